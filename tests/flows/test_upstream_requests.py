"""What a modern upstream receives: headers and body built anew for it, and nothing of anybody else's."""

import asyncio
import json

import pytest

from gateway import config
from gateway.protocol.call import Challenge, HeaderParam, Reason, UpstreamUnavailable
from gateway.protocol.jsonrpc import McpError
from gateway.upstream.pool import StaleSchema
from tests.support.pools import ALPHA, running, settings
from tests.support.scripted import META, VERSION, ScriptedUpstream, error, redirect, result, status, tool

ALLOWED = {
    "host",
    "content-type",
    "content-length",
    "accept",
    "accept-encoding",
    "user-agent",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
}


async def test_a_call_carries_exactly_the_protocols_headers():
    """Headers come from the outgoing body; of the client's there is nothing (U-01, U-02, B06)."""
    async with ScriptedUpstream(tools=[tool("get")]) as upstream, running(alpha=upstream) as gateway:
        await gateway.tool("get")
        seen = await upstream.arrived("tools/call")
        assert {name.decode().lower() for name, _ in seen.raw_headers} == ALLOWED
        assert seen.header("content-type") == "application/json"
        assert seen.header("accept") == "application/json, text/event-stream"
        assert seen.header("accept-encoding") == "gzip, deflate"
        assert seen.header("mcp-protocol-version") == VERSION
        assert seen.header("mcp-method") == "tools/call"
        assert seen.header("mcp-name") == "get"


async def test_the_envelope_is_the_gateways_own():
    """Own id, own client info, the caller's capabilities, vendor keys as they are (U-11, U-12, E-24)."""
    vendor = {"com.example/x": b"1.0", "progressToken": b'"theirs"', f"{META}clientInfo": b'"theirs"'}
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        await gateway.tool(capabilities=b'{"sampling":{}}', log_level="info", vendor=vendor)
        await gateway.tool(wants_progress=True)
        first, second = await upstream.arrived("tools/call"), await upstream.arrived("tools/call")
        assert first.meta == {
            f"{META}protocolVersion": VERSION,
            f"{META}clientInfo": {"name": "gw", "title": "Gateway", "version": "1.2.3"},
            f"{META}clientCapabilities": {"sampling": {}},
            f"{META}logLevel": "info",
            "com.example/x": 1.0,
        }
        assert second.message["id"] > first.message["id"]
        assert isinstance(second.meta["progressToken"], int)
        assert f"{META}logLevel" not in second.meta


async def test_arguments_arrive_to_the_byte():
    """Numbers, order, escapes and unknown members pass as they came (B39)."""
    raw = b'{"z":1.0,"a":18446744073709551616,"n":null,"e":"\\u00e9", "x":1e2}'
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        await gateway.call("tools/call", params={"name": b'"a"', "arguments": raw})
        assert raw in (await upstream.arrived("tools/call")).body


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b'"eu"', "eu"),
        (b'"Z\\u00fcrich "', "=?base64?WsO8cmljaCA=?="),
        (b'"a\\r\\nX: y"', "=?base64?YQ0KWDogeQ==?="),
        (b'" pad "', "=?base64?IHBhZCA=?="),
        (b'"=?base64?eA==?="', "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
        (b'""', ""),
        (b"null", None),
        (None, None),
    ],
)
async def test_annotated_arguments_are_mirrored(value, sent):
    """Encoded so that no argument can inject a header; null and absent give none (U-05, U-06, B43)."""
    params = (HeaderParam("Region", ("region",), "string"),)
    arguments = b"{}" if value is None else b'{"region":' + value + b"}"
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        await gateway.call(
            "tools/call", params={"name": b'"a"', "arguments": arguments}, header_params=params
        )
        seen = await upstream.arrived("tools/call")
        assert seen.header("mcp-param-region") == sent
        assert seen.header("x") is None


async def test_a_mirrored_integer_has_one_spelling():
    """42.0 is 42 in header and body, since peers compare strings; other values stay (U-06)."""
    params = (HeaderParam("N", ("deep", "n"), "integer"),)
    arguments = b'{"keep":1.0,"deep":{"n":42.0,"m":2.0}}'
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        await gateway.call(
            "tools/call", params={"name": b'"a"', "arguments": arguments}, header_params=params
        )
        seen = await upstream.arrived("tools/call")
        assert seen.header("mcp-param-n") == "42"
        assert b'{"keep":1.0,"deep":{"n":42,"m":2.0}}' in seen.body


@pytest.mark.parametrize("name", ["näme", " pad ", "=?base64?eA==?=", "a\nb"])
async def test_odd_names_travel_encoded(name):
    """Mcp-Name is wrapped when no header could carry it (U-05)."""
    async with ScriptedUpstream(tools=[tool(name)]) as upstream, running(alpha=upstream) as gateway:
        reply = await gateway.call("tools/call", params={"name": json.dumps(name).encode()})
        assert json.loads(json.loads(reply)["content"][0]["text"])["tool"] == name


async def test_credentials_stay_with_their_upstream():
    """Each upstream sees its own; the caller's Authorization only where it is forwarded (Z-09, B15)."""
    async with ScriptedUpstream() as one, ScriptedUpstream() as two, ScriptedUpstream() as three:
        async with running(
            alpha=settings(one, auth=config.Auth(kind="bearer", bearer="S-ALPHA")),
            beta=settings(two, auth=config.Auth(kind="headers", headers={"X-Key": "S-BETA"})),
            gamma=settings(three, auth=config.Auth(kind="forward")),
        ) as gateway:
            for name in ("alpha", "beta", "gamma"):
                await gateway.call("tools/list", upstream=name, authorization="Bearer TOK-A")
        seen = [await upstream.arrived("tools/list") for upstream in (one, two, three)]
        assert [request.header("authorization") for request in seen] == [
            "Bearer S-ALPHA",
            None,
            "Bearer TOK-A",
        ]
        assert [request.header("x-key") for request in seen] == [None, "S-BETA", None]
        assert three.seen("server/discover")[0].header("authorization") is None


async def test_cookies_are_not_kept():
    """What an upstream sets for one caller does not come back with another's request."""
    async with ScriptedUpstream() as upstream, running(alpha=upstream) as gateway:
        upstream.once("tools/list", status(200, b"x", "text/plain", Set_Cookie="s=1"))
        with pytest.raises(UpstreamUnavailable):
            await gateway.call("tools/list")
        await gateway.call("tools/list")
        assert [request.header("cookie") for request in upstream.seen("tools/list")] == [None, None]


@pytest.mark.parametrize("code", [307, 308])
async def test_a_redirect_home_is_followed_with_method_and_body(code):
    """/mcp to /mcp/ works (B16)."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        upstream.once("tools/call", redirect("/mcp/?q=1", code=code))
        await gateway.tool()
        first, second = upstream.seen("tools/call")
        assert (second.verb, second.path, second.body) == ("POST", "/mcp/?q=1", first.body)


@pytest.mark.parametrize("code", [301, 302, 303])
async def test_other_redirects_are_an_upstream_error(code):
    """They would turn the POST into a GET (B16)."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        upstream.once("tools/call", redirect("/mcp/", code=code))
        with pytest.raises(UpstreamUnavailable) as caught:
            await gateway.tool()
        assert caught.value.reason is Reason.STATUS
        assert len(upstream.seen("tools/call")) == 1


async def test_a_redirect_elsewhere_or_in_circles_is_refused():
    """Credentials never leave their origin, and a loop ends after a few hops (U-29, B16)."""
    async with (
        ScriptedUpstream() as other,
        ScriptedUpstream(tools=[tool("a")]) as upstream,
        running(alpha=settings(upstream, auth=config.Auth(kind="bearer", bearer="S"))) as gateway,
    ):
        for location in (other.url, "//evil.example/", "https://127.0.0.1/", "http://[", ""):
            upstream.once("tools/call", redirect(location))
            with pytest.raises(UpstreamUnavailable) as caught:
                await gateway.tool()
            assert caught.value.reason is Reason.STATUS
        assert other.requests == []
        before = len(upstream.seen("tools/call"))
        upstream.on("tools/call", redirect("/mcp"))
        with pytest.raises(UpstreamUnavailable):
            await gateway.tool()
        assert len(upstream.seen("tools/call")) == before + 4


async def test_a_version_refused_is_negotiated_once():
    """-32022 naming a version we speak: one retry with a new id, tool calls included (U-28)."""
    refusal = error(-32022, "no", {"supported": [VERSION], "requested": VERSION}, http=400)
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.once("server/discover", refusal)
        async with running(alpha=upstream) as gateway:
            assert gateway.pool.status(ALPHA).state == "up"
            upstream.once("tools/call", refusal)
            await gateway.tool()
            first, second = upstream.seen("tools/call")
            assert first.message["id"] != second.message["id"]
            upstream.on("tools/call", refusal)
            with pytest.raises(UpstreamUnavailable) as caught:
                await gateway.tool()
            assert caught.value.reason is Reason.ERA


async def test_a_header_mismatch_asks_for_a_fresh_schema():
    """-32020 to a tool call is the gateway's to mend, to other methods it is an error (U-20)."""
    mismatch = error(-32020, "HeaderMismatch", http=400)
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        upstream.on("*", mismatch)
        with pytest.raises(StaleSchema) as caught:
            await gateway.tool()
        assert caught.value.upstream == ALPHA
        with pytest.raises(McpError):
            await gateway.call("tools/list")


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_credential_is_told_by_whose_it_was(code):
    """Own: the upstream rejected the gateway. The caller's: a challenge with error and scope (B15)."""
    header = 'Bearer error="insufficient_scope", scope="w", resource_metadata="https://alpha.example/x"'
    refusal = status(
        code, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"TOK"}}', WWW_Authenticate=header
    )
    async with ScriptedUpstream() as upstream:
        own = settings(upstream, auth=config.Auth(kind="bearer", bearer="S"))
        async with running(alpha=own, beta=settings(upstream, auth=config.Auth(kind="forward"))) as gateway:
            upstream.on("tools/list", refusal)
            with pytest.raises(UpstreamUnavailable) as caught:
                await gateway.call("tools/list")
            assert str(caught.value) == "upstream alpha: it rejected the gateway's credentials"
            with pytest.raises(Challenge) as challenged:
                await gateway.call("tools/list", upstream="beta", authorization="Bearer T")
            assert (challenged.value.status, challenged.value.error, challenged.value.scope) == (
                code,
                "insufficient_scope",
                "w",
            )


async def test_ids_never_meet():
    """Fifty calls at once each get their own answer (B22)."""

    async def echo(exchange):
        await result({"content": [], "who": exchange.received.params["arguments"]["who"]})(exchange)

    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        upstream.on("tools/call", echo)

        async def one(who):
            params = {"name": b'"a"', "arguments": b'{"who":%d}' % who}
            return json.loads(await gateway.call("tools/call", params=params))["who"]

        assert await asyncio.gather(*map(one, range(50))) == list(range(50))
        ids = [request.message["id"] for request in upstream.requests]
        assert len(set(ids)) == len(ids)
