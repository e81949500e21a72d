"""What stands in for an upstream that is down, for whom, how long, and what never does (C-33)."""

import pytest

from tests.support.running import Clock, running
from tests.support.scripted import ScriptedUpstream, error, hang, result, status, tool

ANN, BOB = "TOK-A", "TOK-B"
READ = {"uri": "alpha+a:1"}
RESOURCES = [{"uri": "a:1", "name": "one"}]
KEPT = {"stale_if_error": 300.0}


@pytest.mark.parametrize("scope", ["private", "public"])
async def test_an_expired_read_stands_in_for_those_who_could_have_had_it(scope):
    """With ttlMs 0, for so long after its ttl and no longer, and until the upstream answers again."""
    clock = Clock()
    async with (
        ScriptedUpstream(resources=RESOURCES, scope=scope) as alpha,
        running({"alpha": alpha}, clock=clock, cache=KEPT) as gateway,
    ):
        first = await gateway.ask("resources/read", READ, token=ANN)
        clock.advance(60)
        alpha.on("resources/read", status(500))
        stale = await gateway.ask("resources/read", READ, token=ANN)
        assert stale.hints == (0, scope)
        assert stale.result["contents"] == first.result["contents"]
        assert (stale.header("mcp-gateway-cache") or "").startswith("stale; reason=upstream-down")
        other = await gateway.ask("resources/read", READ, token=BOB)
        assert ("result" in other.message) is (scope == "public")
        assert (
            await gateway.counted(
                'cache_lookups_total{mcp_method_name="resources/read",reason="upstream-down"'
            )
            >= 1
        )
        clock.advance(300)
        assert (await gateway.ask("resources/read", READ, token=ANN)).code == -32603
        alpha.reset()
        assert (await gateway.ask("resources/read", READ, token=ANN)).hints == (60_000, scope)


async def test_nothing_stands_in_unless_the_operator_says_so():
    """It is off by default."""
    clock = Clock()
    async with (
        ScriptedUpstream(resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=clock) as gateway,
    ):
        await gateway.ask("resources/read", READ)
        clock.advance(60)
        alpha.on("resources/read", status(500))
        assert (await gateway.ask("resources/read", READ)).code == -32603


@pytest.mark.parametrize(
    "answer",
    [
        status(401),
        status(403),
        status(404),
        error(-32603, "broken", http=500),
        error(-32602, "Resource not found"),
        result({"contents": "unreadable"}),
        status(200, body=b"not json"),
    ],
    ids=["401", "403", "404", "JSON-RPC error with 500", "JSON-RPC error", "no contents", "no JSON"],
)
async def test_what_the_upstream_answers_is_never_papered_over(answer):
    """Refusals, errors and garbage are answers, not outages."""
    clock = Clock()
    async with (
        ScriptedUpstream(resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=clock, cache=KEPT) as gateway,
    ):
        await gateway.ask("resources/read", READ, token=ANN)
        clock.advance(60)
        alpha.once("resources/read", answer)
        assert "error" in (await gateway.ask("resources/read", READ, token=ANN)).message


async def test_a_resource_that_was_refused_is_not_served_when_the_upstream_goes_down_later():
    """It may have been deleted, or the caller shut out: the last word counts."""
    clock = Clock()
    async with (
        ScriptedUpstream(resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=clock, cache=KEPT) as gateway,
    ):
        await gateway.ask("resources/read", READ)
        clock.advance(60)
        alpha.once("resources/read", error(-32602, "Resource not found"))
        assert (await gateway.ask("resources/read", READ)).code == -32602
        alpha.on("resources/read", status(500))
        assert (await gateway.ask("resources/read", READ)).code == -32603


async def test_a_changed_resource_is_not_served():
    """A notification ends its life, stale or fresh."""
    clock = Clock()
    async with (
        ScriptedUpstream(resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=clock, cache=KEPT) as gateway,
    ):
        await gateway.ask("resources/read", READ)
        await gateway.runtime.catalogue.forget("alpha", "resources/read", "updated", "a:1")
        alpha.on("resources/read", status(500))
        assert (await gateway.ask("resources/read", READ)).code == -32603


async def test_a_list_with_a_stale_part_is_whole_and_lives_no_longer():
    """The part counts, nothing is missing; the next list asks again."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a"), tool("b")], page_size=1, ttl_ms=60_000) as alpha,
        ScriptedUpstream(tools=[tool("c")], ttl_ms=600_000) as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock, cache=KEPT) as gateway,
    ):
        whole = await gateway.ask("tools/list")
        clock.advance(60)
        alpha.on("tools/list", status(500))
        stale = await gateway.ask("tools/list")
        assert (stale.names, stale.hints, stale.missing) == (whole.names, (0, "public"), [])
        assert (stale.header("mcp-gateway-cache") or "").startswith("stale; reason=upstream-down")
        alpha.reset()
        alpha.tools.append(tool("d"))
        assert "alpha__d" in (await gateway.ask("tools/list")).names
        assert len(beta.seen("tools/list")) == 1


async def test_an_upstream_out_of_reach_is_bridged_until_it_is_back():
    """Lists, discover and reads; after its return nothing of before is believed (C-30)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("old")], resources=RESOURCES) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock, cache=KEPT) as gateway,
    ):
        await gateway.ask("tools/list")
        await gateway.ask("server/discover")
        await gateway.ask("resources/read", READ)
        clock.advance(60)
        await alpha.stop()
        for _ in range(2):
            stale = await gateway.ask("tools/list")
            assert (stale.names, stale.hints[0], stale.missing) == (["alpha__old", "beta__b"], 0, [])
        assert (await gateway.ask("server/discover")).missing == []
        assert (await gateway.ask("resources/read", READ)).hints[0] == 0
        alpha.tools = [tool("new")]
        await alpha.start()
        await gateway.until("alpha", "up")
        assert (await gateway.ask("tools/list")).names == ["alpha__new", "beta__b"]


async def test_an_upstream_that_hangs_is_bridged_when_its_time_is_over():
    """list_timeout, and while it then rests."""
    clock = Clock()
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        slow = {"url": alpha.url, "list_timeout": 0.1}
        async with running({"alpha": slow}, clock=clock, cache=KEPT) as gateway:
            await gateway.ask("tools/list")
            clock.advance(60)
            alpha.on("tools/list", hang())
            for _ in range(2):
                assert (await gateway.ask("tools/list")).hints == (0, "public")
            assert len(alpha.seen("tools/list")) == 2


async def test_an_upstream_that_refuses_the_gateway_is_not_bridged():
    """Down for its credentials is not down."""
    clock = Clock()
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        known = {"url": alpha.url, "auth": {"bearer": "key"}}
        async with running({"alpha": known}, clock=clock, cache=KEPT) as gateway:
            await gateway.ask("tools/list")
            clock.advance(60)
            alpha.on("*", status(401))
            for _ in range(2):
                assert (await gateway.ask("tools/list")).code == -32603
