"""The gateway's credentials stay its own, the caller's go only where the operator lets them (B15, Z-09)."""

import pytest

from tests.support.running import ONCE, Clock, running
from tests.support.scripted import ScriptedUpstream, default, status, tool

ANN, BOB = "TOK-A", "TOK-B"
METADATA = 'Bearer resource_metadata="https://alpha.example/.well-known/x", error="invalid_token"'


def guarded(*tokens, answered=None):
    """Serve those who show one of these tokens, like a server that checks them."""
    refuse = answered or status(401, WWW_Authenticate=METADATA)

    async def behave(exchange):
        shown = exchange.received.header("authorization")
        allowed = shown is not None and shown.removeprefix("Bearer ") in tokens
        await (default if allowed else refuse)(exchange)

    return behave


def forwarding(upstream, **members):
    return {"url": upstream.url, "auth": "forward", **members}


# The gateway's own credentials


@pytest.mark.parametrize("code", [401, 403])
async def test_an_upstream_that_refuses_the_gateways_credential_is_no_401(code):
    """The client can do nothing about it: an error that names the upstream, no challenge (B15, U-28)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        own = {"url": alpha.url, "auth": {"bearer": "OWN"}}
        async with running({"alpha": own}, pace=ONCE) as gateway:
            alpha.on("tools/call", status(code, WWW_Authenticate=METADATA))
            failed = await gateway.ask("tools/call", {"name": "alpha__a"}, token=ANN)
            assert (failed.status, failed.code) == (200, -32603)
            assert failed.header("www-authenticate") is None
            assert failed.error["message"] == "upstream alpha: it rejected the gateway's credentials"
            assert {received.header("authorization") for received in alpha.requests} == {"Bearer OWN"}


async def test_in_a_merged_list_a_refusal_removes_that_part_only():
    """Whoever's credential it was (B15)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        ScriptedUpstream(tools=[tool("c")]) as gamma,
    ):
        upstreams = {"alpha": alpha, "beta": forwarding(beta), "gamma": gamma}
        async with running(upstreams, pace=ONCE) as gateway:
            beta.on("*", guarded(ANN))
            gamma.on("tools/list", status(401))
            listed = await gateway.ask("tools/list", token=BOB)
            assert (listed.status, listed.names, listed.missing) == (200, ["alpha__a"], ["beta", "gamma"])
            assert listed.hints == (0, "private")
            listed = await gateway.ask("tools/list", token=ANN)
            assert (listed.names, listed.missing) == (["alpha__a", "beta__b"], ["gamma"])


async def test_each_upstream_sees_its_own_credential_only():
    """A bearer, headers, the caller's own, and none (B06, B07)."""
    upstreams = [ScriptedUpstream(tools=[tool("t")]) for _ in range(4)]
    async with upstreams[0] as bearer, upstreams[1] as headers, upstreams[2] as forward, upstreams[3] as bare:
        settings = {
            "bearer": {"url": bearer.url, "auth": {"bearer": "B-OWN"}},
            "headers": {"url": headers.url, "auth": {"headers": {"X-Key": "H-OWN"}}},
            "forward": forwarding(forward),
            "bare": bare,
        }
        async with running(settings) as gateway:
            assert len((await gateway.ask("tools/list", token=ANN)).names) == 4
            for name in settings:
                assert (await gateway.ask("tools/call", {"name": f"{name}__t"}, token=ANN)).status == 200
        shown = [
            {(seen.header("authorization"), seen.header("x-key")) for seen in upstream.requests}
            for upstream in upstreams
        ]
        assert shown == [
            {("Bearer B-OWN", None)},
            {(None, "H-OWN")},
            {(None, None), (f"Bearer {ANN}", None)},
            {(None, None)},
        ]


# forward


async def test_an_upstream_that_lets_nobody_in_without_a_token_is_up():
    """The probe has no credential and is refused; callers with one reach lists, tools and discover."""
    async with ScriptedUpstream(tools=[tool("a")], prompts=[{"name": "p"}]) as alpha:
        alpha.on("*", guarded(ANN))
        async with running({"alpha": forwarding(alpha)}, admin="127.0.0.1:0") as gateway:
            assert gateway.status("alpha").state == "up"
            assert (await gateway.ask("tools/list", token=ANN)).names == ["alpha__a"]
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=ANN)).text["tool"] == "a"
            assert (await gateway.ask("prompts/list", token=ANN)).names == ["alpha__p"]
            said = (await gateway.ask("server/discover", token=ANN)).result
            assert said["capabilities"].keys() >= {"tools", "prompts"}
            assert (await gateway.admin("/readyz"))[0] == 200


async def test_a_call_comes_through_before_any_list():
    """Also the very first request of all, of a caller nobody knows yet."""
    async with ScriptedUpstream(tools=[tool("a")], resources=[{"uri": "a:1", "name": "r"}]) as alpha:
        alpha.on("*", guarded(ANN))
        async with running({"alpha": forwarding(alpha)}) as gateway:
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=ANN)).text["tool"] == "a"
        async with running({"alpha": forwarding(alpha)}) as gateway:
            assert (await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=ANN)).status == 200


@pytest.mark.parametrize("token", [None, BOB])
async def test_a_refused_caller_is_challenged_by_the_gateway(token):
    """401 with our realm and the upstream's error, not with its metadata (B15, Z-16); the id is kept."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.on("*", guarded(ANN))
        async with running({"alpha": forwarding(alpha)}, identity={"name": "acme"}) as gateway:
            for method, params in (
                ("tools/list", None),
                ("server/discover", None),
                ("tools/call", {"name": "alpha__a"}),
            ):
                refused = await gateway.ask(method, params, token=token, id="q")
                assert refused.status == 401, method
                assert refused.message["id"] == "q"
                challenge = refused.header("www-authenticate")
                assert challenge == 'Bearer realm="acme", error="invalid_token"'
                assert "alpha.example" not in challenge


async def test_insufficient_scope_keeps_its_scope():
    """403 with error and scope, so that the client can step up (B15)."""
    challenge = 'Bearer error="insufficient_scope", scope="w", resource_metadata="x"'
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": forwarding(alpha)}) as gateway,
    ):
        await gateway.ask("tools/list", token=ANN)
        alpha.on("tools/call", status(403, WWW_Authenticate=challenge))
        refused = await gateway.ask("tools/call", {"name": "alpha__a"}, token=ANN)
        assert refused.status == 403
        assert refused.header("www-authenticate") == (
            'Bearer realm="mcp-gateway", error="insufficient_scope", scope="w"'
        )


async def test_callers_know_only_what_their_own_token_was_shown():
    """Lists differ by token: names of one caller are unknown to the other (B08, F-08)."""
    tools = {f"Bearer {ANN}": "mine", f"Bearer {BOB}": "yours"}

    async def by_token(exchange):
        alpha.tools = [tool(tools[exchange.received.header("authorization")])]
        await default(exchange)

    async with ScriptedUpstream(scope="private") as alpha:
        alpha.on("tools/list", by_token)
        async with running({"alpha": forwarding(alpha)}, clock=Clock()) as gateway:
            for token, name in ((ANN, "mine"), (BOB, "yours"), (ANN, "mine")):
                assert (await gateway.ask("tools/list", token=token)).names == [f"alpha__{name}"]
            assert len(alpha.seen("tools/list")) == 2
            assert (await gateway.ask("tools/call", {"name": "alpha__yours"}, token=ANN)).code == -32602
            assert alpha.seen("tools/call") == []


async def test_a_public_result_of_a_forward_upstream_is_shared_unless_told_otherwise():
    """The upstream says so; `share_public: false` does not believe it (C-16, C-24)."""
    for share, asked in ((True, 1), (False, 2)):
        async with ScriptedUpstream(tools=[tool("a")]) as alpha:
            alpha.on("tools/list", guarded(ANN, BOB))
            settings = forwarding(alpha, cache={"share_public": share})
            async with running({"alpha": settings}, clock=Clock()) as gateway:
                for token in (ANN, BOB):
                    assert (await gateway.ask("tools/list", token=token)).names == ["alpha__a"]
                assert len(alpha.seen("tools/list")) == asked


async def test_a_feature_that_no_forward_upstream_has_is_not_found():
    """Nothing was declared to the probe, so the upstream is asked; its -32601 is the answer (B48)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.on("server/discover", guarded(ANN))

        async def unserved(exchange):
            await exchange.reply({"error": {"code": -32601, "message": "Method not found"}}, status=404)

        alpha.on("prompts/list", unserved)
        async with running({"alpha": forwarding(alpha)}) as gateway:
            refused = await gateway.ask("prompts/list", token=ANN)
            assert (refused.status, refused.code) == (404, -32601)
            assert (await gateway.ask("tools/list", token=ANN)).names == ["alpha__a"]


async def test_a_refusal_is_not_remembered():
    """The next token, or the same one once it is good, goes up again."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.on("*", guarded(ANN))
        async with running({"alpha": forwarding(alpha)}, clock=Clock()) as gateway:
            assert (await gateway.ask("tools/list", token=BOB)).status == 401
            assert (await gateway.ask("tools/list", token=ANN)).status == 200
            alpha.on("*", guarded(ANN, BOB))
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=BOB)).status == 200
