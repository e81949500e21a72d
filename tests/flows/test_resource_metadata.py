"""What anybody may read of the gateway: who gives out the tokens it takes (RFC 9728, Z-03, B37)."""

import json
from typing import Any

import pytest

from gateway.protocol.call import Answer, Call, Challenge, Emit, Forbidden, Principal, UpstreamName
from tests.support.front import Answers, Reply, Serving, answer, post, serving

ISSUER = {"corp": {"issuer": "https://login.example.com"}}
PUBLIC = "https://x.example/tools/gw"
PLACES = (
    "/.well-known/oauth-protected-resource/tools/gw/mcp",
    "/.well-known/oauth-protected-resource/mcp",
    "/tools/gw/.well-known/oauth-protected-resource/mcp",
    "/.well-known/oauth-protected-resource",
)
SAID = "https://x.example/.well-known/oauth-protected-resource/tools/gw/mcp"
APP = "https://app.example"


def ask(path: str, verb: str = "GET", **headers: str) -> bytes:
    """Return a request without a body."""
    bare = ("content-type", "accept", "mcp-method", "mcp-protocol-version", "content-length")
    return post(verb=verb, path=path, content=b"", without=bare, **headers)


def taking_tokens(pipeline: Answers, **members: Any) -> Any:
    """Serve where tokens are taken, behind a proxy."""
    members.setdefault("authentication", {"tokens": ISSUER, "anonymous": True})
    return serving(pipeline, public_url=PUBLIC, **members)


@pytest.mark.parametrize("path", PLACES)
async def test_the_document_is_at_all_its_places(path: str) -> None:
    """For everybody and for a while, without a look at who asks: GET, HEAD, and any web page."""
    async with taking_tokens(Answers(), cors={"origins": [APP]}) as gateway:
        reply = await gateway.ask(ask(path, origin="https://evil.example", host="pod-7:8080"))
        assert reply.status == 200
        assert reply.json["resource"] == "https://x.example/tools/gw/mcp"
        assert reply.json["authorization_servers"] == ["https://login.example.com"]
        assert reply.header("content-type") == "application/json"
        assert reply.header("cache-control") == "public, max-age=3600"
        assert reply.header("access-control-allow-origin") == "*"
        async with gateway.connect() as client:
            client.send(ask(path, verb="HEAD"))
            head = await client.reply(bare=True)
            assert (head.status, head.header("content-length")) == (200, str(len(reply.body)))


async def test_a_browser_may_ask_with_the_headers_that_clients_send_there() -> None:
    """Discovery of some clients names the protocol version, which takes a preflight (B36)."""
    async with taking_tokens(Answers()) as gateway:
        reply = await gateway.ask(ask(PLACES[0], verb="OPTIONS", origin=APP))
        assert (reply.status, reply.header("access-control-allow-origin")) == (204, "*")
        assert "MCP-Protocol-Version" in (reply.header("access-control-allow-headers") or "")
        refused = await gateway.ask(post(path=PLACES[0]))
        assert (refused.status, refused.header("allow")) == (405, "GET, HEAD, OPTIONS")


async def test_where_no_tokens_are_taken_there_is_nothing_to_read() -> None:
    """404, like any other path."""
    async with serving(Answers(), public_url=PUBLIC) as gateway:
        for path in PLACES:
            assert (await gateway.ask(ask(path, host="x.example"))).status == 404


@pytest.mark.parametrize("path", ["/mcp", "/tools/gw/mcp", "/tools/gw/mcp/"])
async def test_an_endpoint_is_served_with_the_public_path_and_without(path: str) -> None:
    """A proxy may keep the prefix or take it away (B37)."""
    async with taking_tokens(Answers(answer(tools=[]))) as gateway:
        assert (await gateway.ask(post(path=path, host="x.example"))).status == 200


# Challenges that come of a call


async def _refused(gateway: Serving) -> tuple[int, str | None, Any]:
    reply = await gateway.ask(post("tools/call", params={"name": "a"}, id="c", host="x.example"))
    return reply.status, reply.header("www-authenticate"), reply.json


async def test_an_upstreams_challenge_names_our_document() -> None:
    """B15: where the caller's own token was forwarded and refused; scopes are kept."""
    came = Challenge(UpstreamName("alpha"), 403, "insufficient_scope", "w")
    async with taking_tokens(Answers(came)) as gateway:
        status, said, body = await _refused(gateway)
    assert (status, body["id"]) == (403, "c")
    assert said == (
        f'Bearer realm="mcp-gateway", error="insufficient_scope", scope="w", resource_metadata="{SAID}"'
    )


async def test_who_may_not_is_told_all_the_scopes_it_takes() -> None:
    """Z-04: in one challenge, those that every token needs among them; the id is kept."""
    authentication = {"tokens": ISSUER, "anonymous": True, "scopes": ["mcp"]}
    async with taking_tokens(Answers(Forbidden(("w", "mcp", "x"))), authentication=authentication) as gateway:
        status, said, body = await _refused(gateway)
        counted = await gateway.answered()
    assert (status, body["id"], body["error"]["code"]) == (403, "c", -32600)
    assert said == (
        'Bearer realm="mcp-gateway", error="insufficient_scope", '
        'error_description="This takes more than the credential grants", '
        f'scope="mcp w x", resource_metadata="{SAID}"'
    )
    assert {failure for _, _, failure in counted} == {"forbidden"}


async def test_who_may_not_whatever_the_scopes_is_not_sent_for_a_token() -> None:
    """A challenge would make clients ask for one again and again."""
    async with taking_tokens(Answers(Forbidden())) as gateway:
        status, said, body = await _refused(gateway)
    assert (status, said) == (403, None)
    assert body["error"]["message"] == "This is not allowed"


async def test_an_older_client_is_challenged_alike() -> None:
    """By HTTP, whatever its revision; in a batch it is one error among the others' answers."""

    async def work(call: Call, principal: Principal, emit: Emit) -> Answer:
        if call.method == "server/discover":
            return answer(capabilities={"tools": {}}, supportedVersions=[], serverInfo={})
        if call.method == "tools/list":
            return answer(tools=[])
        raise Forbidden(("w",))

    plain = ("mcp-protocol-version", "mcp-method")
    about = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    async with taking_tokens(Answers(work)) as gateway:

        async def say(*messages: tuple[int, str, Any], session: str = "") -> Reply:
            said = [
                {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
                for id, method, params in messages
            ]
            extra = (("mcp-session-id", session),) if session else ()
            content = json.dumps(said if len(said) > 1 else said[0]).encode()
            return await gateway.ask(post(content=content, without=plain, extra=extra, host="x.example"))

        begun = await say((1, "initialize", about))
        session = begun.header("mcp-session-id") or ""
        refused = await say((2, "tools/call", {"name": "a"}), session=session)
        assert (refused.status, refused.json["id"]) == (403, 2)
        challenge = refused.header("www-authenticate") or ""
        assert 'scope="w"' in challenge
        assert challenge.endswith(f'resource_metadata="{SAID}"')
        batch = await say((3, "tools/list", {}), (4, "tools/call", {"name": "a"}), session=session)
        assert batch.status == 200
        assert {one["id"]: "error" in one for one in batch.json} == {3: False, 4: True}
