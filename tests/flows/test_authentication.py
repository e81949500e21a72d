"""Who gets in and who does not: what is answered at the door, and what outlives a token (Z-01 to Z-08)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest

from tests.support.authorization_server import AuthorizationServer, failing, late
from tests.support.front import Answers, post, serving
from tests.support.legacy_client import LegacyClient
from tests.support.legacy_upstream import LegacyServer, streamed
from tests.support.running import Clock, Running, running
from tests.support.scripted import ScriptedUpstream, tool

PUBLIC = "https://mcp.example.com"
RESOURCE = f"{PUBLIC}/mcp"
SAID = f"{PUBLIC}/.well-known/oauth-protected-resource/mcp"
KEY = "mcpgw_0123456789abcdef"
KEYS = {"ci": {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}", "scopes": ["read"]}}
APP = "https://app.example"
ASK = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}


@pytest.fixture
async def corp() -> AsyncIterator[AuthorizationServer]:
    async with AuthorizationServer() as server:
        server.extra = {"aud": RESOURCE}
        yield server


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        yield upstream


@asynccontextmanager
async def guarded(
    corp: AuthorizationServer,
    alpha: ScriptedUpstream | LegacyServer | Mapping[str, Any],
    *,
    wall_clock: Clock | None = None,
    token: Mapping[str, Any] | None = None,
    **authentication: Any,
) -> AsyncIterator[Running]:
    """Run a gateway that lets in who has a token of `corp`, or whatever else the settings say."""
    settings = {"tokens": {"corp": {"issuer": corp.issuer, **(token or {})}}, **authentication}
    members: dict[str, Any] = {"public_url": PUBLIC, "cors": {"origins": [APP]}, "admin": "127.0.0.1:0"}
    async with running(
        {"alpha": alpha}, wall_clock=wall_clock, authentication=settings, **members
    ) as gateway:
        yield gateway


# Who gets in


async def test_who_shows_a_token_gets_in_and_who_does_not_is_told_where_to_get_one(corp, alpha):
    """Z-02: 401 with the document and the scopes; an error only where one was shown; id and CORS."""
    async with guarded(corp, alpha, scopes=["mcp"]) as gateway:
        token = corp.mint("alice", scope="mcp other")
        assert (await gateway.ask("tools/list", token=token)).names == ["alpha__a"]
        before = len(alpha.requests)
        stranger = await gateway.ask("tools/list", id="mine", headers={"origin": APP})
        assert stranger.status == 401
        assert stranger.header("www-authenticate") == (
            f'Bearer realm="mcp-gateway", scope="mcp", resource_metadata="{SAID}"'
        )
        assert stranger.message["id"] == "mine"
        assert stranger.header("access-control-allow-origin") == APP
        wrong = await gateway.ask(
            "tools/call", {"name": "alpha__a"}, token=corp.mint(aud="https://else.example")
        )
        assert wrong.status == 401
        said = wrong.header("www-authenticate") or ""
        assert said.startswith('Bearer realm="mcp-gateway", error="invalid_token", error_description="')
        assert said.endswith(f'scope="mcp", resource_metadata="{SAID}"')
        assert len(alpha.requests) == before
        assert await gateway.counted('rejected_total{endpoint="/mcp",reason="unauthenticated"') == 1
        assert await gateway.counted('rejected_total{endpoint="/mcp",reason="token"') == 1


@pytest.mark.parametrize("method", ["tools/list", "tools/call", "subscriptions/listen", "no/such"])
async def test_every_request_takes_a_token(corp, alpha, method):
    """Z-01: whatever it asks for; nothing is said about what there is."""
    async with guarded(corp, alpha) as gateway:
        refused = await gateway.ask(method, {"name": "alpha__a"}, judged=False)
        assert (refused.status, refused.code) == (401, -32600)


async def test_so_do_streams_ends_and_notifications_of_sessions(corp, alpha):
    """Z-01: GET, DELETE and what needs no answer; a session's id opens nothing by itself (Z-08)."""
    async with guarded(corp, alpha) as gateway:
        (url,) = gateway.addresses.endpoints
        async with LegacyClient(url, token=corp.mint("alice")) as client:
            token, client.token = client.token, None
            async with client.listen() as stream:
                assert stream.status == 401
            assert await client.delete() == 401
            async with client.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}') as posted:
                assert (await posted.begun()).status == 401
            client.token = token
            assert "result" in await client.ask("ping")


async def test_nobody_is_let_in_by_a_body_that_is_still_to_come():
    """S-06: the credential decides before the body is read, and nobody is asked to send one in vain."""
    authentication = {"keys": KEYS}
    request = post(content_length="1000", expect="100-continue")
    head, _, _ = request.partition(b"\r\n\r\n")
    async with serving(Answers(), authentication=authentication) as gateway, gateway.connect() as client:
        client.send(head + b"\r\n\r\n")
        refused = await client.reply()
        assert refused.status == 401
        assert "id" not in refused.json


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"authorization": "Basic dTpw"}, 401, "invalid_token"),
        ({"authorization": "Bearer"}, 400, "invalid_request"),
        ({"authorization": "Bearer a b"}, 400, "invalid_request"),
        ({"authorization": "Bearer " + "x" * 20_000}, 400, "invalid_request"),
        ({"authorization": "Bearer nonsense"}, 401, "invalid_token"),
        ({"authorization": f"Bearer {KEY}", "x-api-key": KEY}, 400, "invalid_request"),
        ({"x-api-key": "mcpgw_other"}, 401, "invalid_token"),
    ],
)
async def test_a_credential_that_is_none_is_no_way_in(corp, alpha, headers, status, error):
    """Z-04: a malformed one is a 400; two at once are. Also where anybody gets in who shows none."""
    async with guarded(corp, alpha, keys=KEYS, key_header="X-API-Key", anonymous=True) as gateway:
        refused = await gateway.ask("tools/list", headers=headers)
        assert refused.status == status
        assert f'error="{error}"' in (refused.header("www-authenticate") or "")
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]


async def test_a_token_without_a_scope_that_all_need_is_told_which(corp, alpha):
    """Z-04: 403 with every such scope; a scope that includes it will do. Keys need none."""
    settings = {"scopes": ["mcp", "read"], "implies": {"admin": ["mcp", "read"]}, "keys": KEYS}
    async with guarded(corp, alpha, **settings) as gateway:
        refused = await gateway.ask("tools/list", id=7, token=corp.mint(scope="mcp"))
        assert (refused.status, refused.message["id"]) == (403, 7)
        said = refused.header("www-authenticate") or ""
        assert 'error="insufficient_scope"' in said
        assert 'scope="mcp read"' in said
        assert (await gateway.ask("tools/list", token=corp.mint(scope="admin"))).status == 200
        assert (await gateway.ask("tools/list", token=KEY)).status == 200


async def test_a_key_comes_in_either_header_and_goes_no_further(corp, alpha):
    """It proves who somebody is to us: no upstream sees it, though it sees callers' tokens (Z-09)."""
    upstream = {"url": alpha.url, "auth": "forward"}
    async with guarded(corp, upstream, keys=KEYS, key_header="X-API-Key") as gateway:
        assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=KEY)).status == 200
        assert (
            await gateway.ask("tools/call", {"name": "alpha__a"}, headers={"x-api-key": KEY})
        ).status == 200
        token = corp.mint()
        assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=token)).status == 200
        shown = {received.header("authorization") for received in alpha.requests}
        assert shown == {None, f"Bearer {token}"}
        assert all(received.header("x-api-key") is None for received in alpha.requests)


async def test_an_issuer_that_does_not_answer_lets_nobody_in_and_sends_nobody_away(corp, alpha):
    """503 and when to come back, never a 401 that makes clients throw good tokens away."""
    corp.on("jwks", failing(500))
    async with guarded(corp, alpha) as gateway:
        refused = await gateway.ask("tools/list", id="a", token=corp.mint())
        assert (refused.status, refused.code, refused.message["id"]) == (503, -32603, "a")
        assert int(refused.header("retry-after") or 0) >= 1
        assert refused.header("www-authenticate") is None
        assert (await gateway.ask("tools/list")).status == 401
        assert await gateway.counted('rejected_total{endpoint="/mcp",reason="issuer"') == 1


async def test_an_issuer_that_hangs_is_waited_for_as_long_as_is_written(corp, alpha):
    """And by nobody who has another credential."""
    corp.on("jwks", late())
    async with guarded(corp, alpha, token={"timeout": 0.2}, keys=KEYS) as gateway:
        assert (await gateway.ask("tools/list", token=KEY)).status == 200
        assert (await gateway.ask("tools/list", token=corp.mint())).status == 503


async def test_a_client_that_leaves_while_its_token_is_judged_costs_nothing(corp, alpha):
    """S-21: the answer of the issuer still counts for who comes next."""
    go = asyncio.Event()
    corp.on("jwks", late(go))
    async with guarded(corp, alpha) as gateway:
        token = corp.mint()
        async with gateway.open("tools/list", token=token) as exchange:
            await corp.arrived("jwks")
            exchange.leave()
        await gateway.busy(0)
        go.set()
        assert (await gateway.ask("tools/list", token=token)).status == 200


# Who floods


GUEST, FLOOD = ({"x-forwarded-for": address} for address in ("203.0.113.1", "203.0.113.2"))


def introspecting(corp: AuthorizationServer, alpha: ScriptedUpstream, **members: Any) -> Any:
    """Run a gateway behind a trusted proxy that asks `corp` about each token."""
    corp.client("gw", "SECRET")
    asked = {"introspection_url": corp.url("introspect"), "client_id": "gw", "client_secret": "SECRET"}
    settings = {"tokens": {"corp": {"issuer": corp.issuer, "timeout": 60, **asked}}}
    return running(
        {"alpha": alpha},
        public_url=PUBLIC,
        trusted_proxies=["127.0.0.1"],
        authentication=settings,
        **members,
    )


async def test_one_address_cannot_have_all_that_an_issuer_may_be_asked(corp, alpha):
    """Its questions count until they are answered, whoever left; others' tokens are verified."""
    go = asyncio.Event()
    known, new, own = corp.opaque("carol"), corp.opaque("alice"), corp.opaque("mallory")

    async def hang(asked):
        if asked.form["token"].startswith("made-up"):
            await go.wait()
        return await asked.server.default(asked)

    corp.on("introspect", hang)
    async with introspecting(corp, alpha) as gateway, AsyncExitStack() as stack:
        assert (await gateway.ask("tools/list", token=known, headers=FLOOD)).status == 200
        flood = [
            await stack.enter_async_context(
                gateway.open("tools/list", token=f"made-up-{number}", headers=FLOOD)
            )
            for number in range(32)
        ]
        for _ in range(33):
            await corp.arrived("introspect")
        for exchange in flood[:16]:
            exchange.leave()
        await gateway.busy(16)
        refused = await gateway.ask("tools/list", token=own, headers=FLOOD)
        assert refused.status == 429
        assert int(refused.header("retry-after") or 0) >= 1
        assert b"`limits.verifications_per_address`" in refused.body
        assert (await gateway.ask("tools/list", token=known, headers=FLOOD)).status == 200
        assert (await gateway.ask("tools/list", token=new, headers=GUEST)).status == 200
        assert corp.count("introspect") == 34
        assert await gateway.counted('rejected_total{endpoint="/mcp",reason="verifications"}') == 1
        go.set()
        assert {(await exchange.answer()).status for exchange in flood[16:]} == {401}
        await gateway.busy(0)
        assert (await gateway.ask("tools/list", token=own, headers=FLOOD)).status == 200


async def test_credentials_that_are_refused_use_up_the_rate_of_their_address(corp, alpha):
    """Then no new one of it is verified for a while; known ones are let in, and other addresses."""
    clock = Clock()
    limits = {"anonymous_rate": "3/m"}
    known, new = corp.opaque("carol"), corp.opaque("alice")
    async with introspecting(corp, alpha, limits=limits, clock=clock) as gateway:
        assert (await gateway.ask("tools/list", token=known, headers=FLOOD)).status == 200
        asked = [
            await gateway.ask("tools/list", token=f"made-up-{number}", headers=FLOOD) for number in range(5)
        ]
        assert [one.status for one in asked] == [401, 401, 401, 429, 429]
        assert asked[-1].header("retry-after") == "20"
        assert b"`limits.anonymous_rate`" in asked[-1].body
        assert corp.count("introspect") == 4
        # What is known to be refused, and no credential at all, are told the same.
        for token in ("made-up-0", None):
            assert (await gateway.ask("tools/list", token=token, headers=FLOOD)).status == 429
        assert (await gateway.ask("tools/list", token=known, headers=FLOOD)).status == 200
        assert (await gateway.ask("tools/list", token=new, headers=FLOOD)).status == 429
        assert (await gateway.ask("tools/list", token=new, headers=GUEST)).status == 200
        clock.advance(20.0)
        assert (await gateway.ask("tools/list", token=corp.opaque("bob"), headers=FLOOD)).status == 200


# What outlives a token


async def test_a_renewed_token_goes_on_with_what_its_bearer_was_given(corp, alpha):
    """M-12, Z-08: at any replica; another person's token opens none of it."""
    alpha.tools = [tool(name) for name in "abc"]
    members = {
        "public_url": PUBLIC,
        "authentication": {"tokens": {"corp": {"issuer": corp.issuer}}},
        "limits": {"page_size": 1},
        "secrets": {"keys": ["0123456789abcdef0123456789abcdef"]},
    }
    async with running({"alpha": alpha}, **members) as one, running({"alpha": alpha}, **members) as two:
        first = await one.ask("tools/list", token=corp.mint("alice"))
        cursor = {"cursor": first.result["nextCursor"]}
        for gateway in (one, two):
            second = await gateway.ask("tools/list", cursor, token=corp.mint("alice"))
            assert second.names == ["alpha__b"]
            foreign = await gateway.ask("tools/list", cursor, token=corp.mint("bob"))
            assert foreign.code == -32602


async def test_an_older_clients_session_goes_on_with_a_renewed_token(corp, alpha):
    """X-20: for another person, and without a token, it does not exist."""
    async with guarded(corp, alpha) as gateway:
        (url,) = gateway.addresses.endpoints
        async with LegacyClient(url, token=corp.mint("alice")) as client:
            client.token = corp.mint("alice")
            listed = await client.ask("tools/list")
            assert [one["name"] for one in listed["result"]["tools"]] == ["alpha__a"]
            client.token = corp.mint("bob")
            async with client.open("tools/list") as posted:
                assert (await posted.whole()).status == 404
            client.token = None
            async with client.open("tools/list") as posted:
                refused = await posted.whole()
                assert refused.status == 401
                assert SAID in refused.headers["www-authenticate"]
            client.token = corp.mint("alice")


async def test_what_an_older_server_remembers_of_a_person_a_renewed_token_finds_again(corp):
    """B07: its session is the person's, where it does not see the token; nobody else gets into it."""
    async with (
        LegacyServer(tools=[tool("set_note"), tool("get_note")]) as server,
        guarded(corp, server) as gateway,
    ):

        async def note(subject):
            answer = await gateway.ask("tools/call", {"name": "alpha__get_note"}, token=corp.mint(subject))
            return answer.result["content"][0]["text"]

        params = {"name": "alpha__set_note", "arguments": {"note": "of alice"}}
        await gateway.ask("tools/call", params, token=corp.mint("alice"))
        assert await note("alice") == "of alice"
        assert await note("bob") == "none"
        assert await note("alice") == "of alice"


async def test_a_question_may_be_answered_with_a_renewed_token(corp):
    """M-12: by the same person; whoever else has the state has nothing."""

    async def talk(call):
        return (await call.ask("elicitation/create", ASK))["result"]

    async with LegacyServer(tools=[tool("a")]) as server, guarded(corp, server) as gateway:
        server.on("tools/call", streamed(talk))
        able = {"capabilities": {"elicitation": {}}}
        asked = await gateway.ask("tools/call", {"name": "alpha__a"}, token=corp.mint("alice"), **able)
        ((key, _),) = asked.result["inputRequests"].items()
        answer = {"action": "accept", "content": {"name": "Alice"}}
        state = asked.result["requestState"]
        params = {"name": "alpha__a", "inputResponses": {key: answer}, "requestState": state}
        for other in (corp.mint("bob"), corp.mint("alice", iss="https://else.example")):
            assert "error" in (await gateway.ask("tools/call", params, token=other, **able)).message
        done = await gateway.ask("tools/call", params, token=corp.mint("alice"), **able)
        assert json.loads(done.result["content"][0]["text"]) == answer


async def test_streams_end_with_the_token_they_were_opened_with(corp, alpha):
    """A listen with its result, an older client's standing stream as well; a renewed token opens another."""
    wall = Clock(time.time())  # stands still, so that the token counts for as long as the test likes
    async with guarded(corp, alpha, wall_clock=wall, token={"leeway": 0}) as gateway:
        (url,) = gateway.addresses.endpoints
        short = corp.mint("alice", expires_in=1, iat=None)
        wanted = {"notifications": {"toolsListChanged": True}}
        async with (
            gateway.open("subscriptions/listen", wanted, token=short) as listening,
            LegacyClient(url, token=short) as client,
        ):
            async with client.listen() as stream:
                assert (await listening.answer()).result["resultType"] == "complete"
                wall.advance(5.0)
                while await stream.next() is not None:
                    pass  # it was opened anew until its time was over here, too
            assert (await gateway.ask("tools/list", token=short)).status == 401
            client.token = corp.mint("alice", iat=None)
            async with client.listen():
                await gateway.subscribed(1)


async def test_what_is_private_is_kept_by_token_or_by_person_as_is_written(corp):
    """C-18, and `partition: subject`: another token of the same person finds it, another person never."""
    async with (
        ScriptedUpstream(tools=[tool("a")], scope="private") as one,
        ScriptedUpstream(tools=[tool("b")], scope="private") as two,
    ):
        upstreams = {"one": one, "two": {"url": two.url, "cache": {"partition": "subject"}}}
        tokens = {"corp": {"issuer": corp.issuer}}
        async with running(upstreams, public_url=PUBLIC, authentication={"tokens": tokens}) as gateway:
            for subject in ("alice", "alice", "bob"):
                listed = await gateway.ask("tools/list", token=corp.mint(subject))
                assert listed.names == ["one__a", "two__b"]
            counts = [
                sum(received.method == "tools/list" for received in upstream.requests)
                for upstream in (one, two)
            ]
            assert counts == [3, 2]


# Operators


async def test_an_operator_asks_and_forgets_on_behalf_of_a_verified_caller(corp):
    """What is kept by person is found and forgotten with any token of that person."""
    async with ScriptedUpstream(tools=[tool("a")], scope="private") as alpha:
        upstream = {"url": alpha.url, "cache": {"partition": "subject"}}
        async with guarded(corp, upstream) as gateway:
            assert (await gateway.ask("tools/list", token=corp.mint("alice"))).status == 200
            path = "/explain?method=tools/list"
            status, said = await gateway.admin(path, token=corp.mint("alice"))
            assert (status, said["parts"][0]["verdict"]) == (200, "HIT")
            status, said = await gateway.admin(path, token="x")
            assert (status, "does not count" in said["error"]) == (400, True)
            status, _ = await gateway.admin("/purge", {"caller": True}, token=corp.mint("alice"))
            assert status == 200
            status, said = await gateway.admin(path, token=corp.mint("alice"))
            assert said["parts"][0]["verdict"] == "MISS"


async def test_the_status_tells_how_issuers_are(corp, alpha):
    """Numbers and names alone (B42)."""
    async with guarded(corp, alpha) as gateway:
        token = corp.mint("alice")
        assert (await gateway.ask("tools/list", token=token)).status == 200
        _, told = await gateway.admin("/status.json")
        assert told["authentication"] == {
            "issuers": {"corp": {"keys": 1, "answers": True}},
            "known": 1,
            "refused": 0,
            "most": 10_000,
        }
    corp.client("gw", "SECRET")
    asked = {"introspection_url": corp.url("introspect"), "client_id": "gw", "client_secret": "SECRET"}
    async with guarded(corp, alpha, token=asked) as gateway:
        assert (await gateway.ask("tools/list", token="made-up")).status == 401
        corp.on("introspect", failing(500))
        assert (await gateway.ask("tools/list", token="another")).status == 503
        _, told = await gateway.admin("/status.json")
        assert told["authentication"]["issuers"] == {"corp": {"questions": 0, "answers": False}}
        assert (told["authentication"]["known"], told["authentication"]["refused"]) == (0, 1)
