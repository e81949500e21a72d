"""An upstream that fails, floods or is flooded: its breaker, its queue, its rate, and its retry budget."""

import asyncio

import pytest

from gateway import config
from gateway.protocol.call import Context, Reason, UpstreamUnavailable
from gateway.upstream.failures import Busy
from tests.support.pools import ALPHA, Watched, running, settings
from tests.support.running import ONCE, Clock, Running
from tests.support.running import running as gateway_running
from tests.support.scripted import ScriptedUpstream, cut, error, hang, result, sse, status, tool

ALICE, BOB, CAROL = (Context(caller=name) for name in ("alice", "bob", "carol"))
BREAKER = config.Breaker(failures=4, rest=5.0, longest_rest=60.0)


async def refused(gateway: Watched, context: Context = ALICE) -> UpstreamUnavailable:
    with pytest.raises(UpstreamUnavailable) as caught:
        await gateway.tool(context=context)
    return caught.value


@pytest.mark.parametrize("failing", [status(500), status(503), cut()], ids=["500", "503", "cut"])
async def test_an_upstream_that_fails_requests_but_not_probes_is_left_alone(failing, caplog):
    """Nobody asks it during its rest; then one request does, and its answer lets everybody in again."""
    clock = Clock()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("tools/call", failing)
        alpha = settings(upstream, breaker=BREAKER, retry_budget=0.0)
        async with running(alpha=alpha, clock=clock) as gateway:
            for context in (ALICE, BOB, ALICE, BOB):
                assert not isinstance(await refused(gateway, context), Busy)
            asked = len(upstream.seen("tools/call"))
            for context in (ALICE, BOB, CAROL):
                held_off = await refused(gateway, context)
                assert held_off.reason is Reason.BUSY
                assert str(held_off) == (
                    "upstream alpha: too much to do, try again later (it failed too often, see its `breaker`)"
                )
            assert len(upstream.seen("tools/call")) == asked
            assert gateway.pool.status(ALPHA).breaker == "open"
            assert await gateway.counted('mcp_gateway_upstream_breaker_open{upstream="alpha"}') == 1
            assert (
                await gateway.counted('mcp_gateway_upstream_refused_total{bound="breaker",upstream="alpha"}')
                == 3
            )
            upstream.on("tools/call", result({"content": []}))
            clock.advance(5.0)
            await gateway.tool(context=CAROL)
            assert gateway.pool.status(ALPHA).breaker == "closed"
            await gateway.tool(context=ALICE)
            assert await gateway.counted('mcp_gateway_upstream_breaker_open{upstream="alpha"}') == 0
    said = [one.message for one in caplog.records if "left alone" in one.message]
    assert len(said) == 1


async def test_one_request_at_a_time_tries_an_upstream_after_its_rest():
    """While it is out the others are refused, and a trial that fails doubles the rest."""
    clock, go = Clock(), asyncio.Event()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("tools/call", status(500))
        alpha = settings(upstream, breaker=BREAKER, retry_budget=0.0)
        async with running(alpha=alpha, clock=clock) as gateway:
            for context in (ALICE, BOB, ALICE, BOB):
                await refused(gateway, context)
            before = len(upstream.seen("tools/call"))
            upstream.on("tools/call", hang(until=go, then=status(500)))
            clock.advance(5.0)
            trial = asyncio.ensure_future(refused(gateway, CAROL))  # a caller of the test's own
            while len(upstream.seen("tools/call")) == before:  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(0)
            assert gateway.pool.status(ALPHA).breaker == "trying"
            assert isinstance(await refused(gateway, BOB), Busy)
            go.set()
            assert not isinstance(await trial, Busy)
            clock.advance(9.9)
            assert isinstance(await refused(gateway, CAROL), Busy)
            clock.advance(0.2)
            assert not isinstance(await refused(gateway, CAROL), Busy)


async def test_a_caller_whose_calls_never_end_costs_nobody_else_anything():
    """A tool that sleeps for an hour times out; the breaker closes to who called it, and to no one else."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.once("tools/call", *[hang() for _ in range(4)])
        alpha = settings(upstream, breaker=BREAKER, timeout=1.5)
        async with running(alpha=alpha) as gateway:
            slept = await asyncio.gather(*(refused(gateway, ALICE) for _ in range(4)))
            assert {one.reason for one in slept} == {Reason.TIMEOUT}
            assert isinstance(await refused(gateway, ALICE), Busy)
            await gateway.call("tools/list", context=ALICE)
            await gateway.tool(context=BOB)
            assert gateway.pool.status(ALPHA).breaker == "closed"


@pytest.mark.parametrize("said", [error(-32603), error(-32602, http=400), status(404), status(429)])
async def test_what_an_upstream_says_is_no_failure_of_it(said):
    """An error is an answer, and so is a refusal."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("tools/call", said)
        alpha = settings(upstream, breaker=config.Breaker(failures=1), retry_budget=0.0)
        async with running(alpha=alpha, pace=ONCE) as gateway:
            for _ in range(3):
                with pytest.raises(Exception) as caught:  # noqa: PT011  # of two unrelated kinds
                    await gateway.tool(context=ALICE)
                assert not isinstance(caught.value, Busy)


async def test_an_upstream_that_came_back_is_asked_at_once():
    """What failed while it was gone does not count: the probe has said that it is there."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        alpha = settings(upstream, breaker=config.Breaker(failures=1, rest=3600.0, longest_rest=3600.0))
        async with running(alpha=alpha) as gateway:
            await upstream.stop()
            await refused(gateway, ALICE)
            await upstream.start()
            await gateway.changes.get()
            await gateway.tool(context=ALICE)


async def test_more_calls_than_may_wait_are_refused_at_once(caplog):
    """`connections` run, `queue` wait, the next is told so; those who waited are answered in turn."""
    go = asyncio.Event()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("tools/call", hang(until=go, then=result({"content": []})))
        async with running(alpha=settings(upstream, connections=2, queue=3)) as gateway:
            async with asyncio.TaskGroup() as calls:
                waiting = [calls.create_task(gateway.tool()) for _ in range(5)]
                while gateway.pool.status(ALPHA).queued < 3:  # noqa: ASYNC110  # no event tells it
                    await asyncio.sleep(0)
                assert await gateway.counted('mcp_gateway_upstream_queued{upstream="alpha"}') == 3
                for _ in range(10):
                    assert str(await refused(gateway)) == (
                        "upstream alpha: too much to do, try again later (its `queue` is full)"
                    )
                go.set()
            assert all(one.result() for one in waiting)
            assert len(upstream.seen("tools/call")) == 5
            assert gateway.pool.status(ALPHA).queued == 0
    said = [one.message for one in caplog.records if one.name.startswith("gateway") and one.levelno >= 30]
    assert said == ["upstream alpha: 3 calls wait already; more are refused"]


async def test_who_waits_in_vain_says_nothing_of_the_upstream():
    """Only what it was asked can be its failure: here it works on one call for long."""
    go = asyncio.Event()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.once("tools/call", hang(until=go, then=result({"content": []})))
        alpha = settings(upstream, connections=1, breaker=config.Breaker(failures=2), timeout=1.5)
        async with running(alpha=alpha) as gateway:
            first = asyncio.ensure_future(refused(gateway, ALICE))  # a caller of the test's own
            await upstream.arrived("tools/call")
            others = (gateway.tool(context=BOB) for _ in range(5))
            waited = await asyncio.gather(*others, return_exceptions=True)
            assert (await first).reason is Reason.TIMEOUT
            assert not any(isinstance(one, Busy) for one in waited)
            assert gateway.pool.status(ALPHA).breaker == "closed"
            await gateway.tool(context=CAROL)


async def test_an_upstream_with_too_much_to_do_is_probed_all_the_same():
    """Or it would be taken for dead just when it works on as much as it may."""
    go = asyncio.Event()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("tools/call", hang(until=go, then=result({"content": []})))
        alpha = settings(upstream, connections=1, queue=1)
        async with running(alpha=alpha) as gateway, asyncio.TaskGroup() as calls:
            for _ in range(2):
                calls.create_task(gateway.tool())
            await upstream.arrived("tools/call")
            verdict = await gateway.pool._members[ALPHA]._upstream.probe()
            assert verdict.reason is None
            go.set()


async def test_an_upstream_is_sent_no_more_than_its_rate():
    """The rest is refused; a list then lacks its part, and the others have theirs."""
    clock = Clock()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, ScriptedUpstream(tools=[tool("b")]) as other:
        alpha = {"url": upstream.url, "rate": "3/m"}
        async with gateway_running({"alpha": alpha, "beta": other}, clock=clock) as gateway:
            answers = [await gateway.ask("tools/call", {"name": "alpha__a"}) for _ in range(5)]
            said = [one.message.get("error", {}).get("message") for one in answers]
            assert "upstream alpha: too much to do, try again later (its `rate` is used up)" in said
            assert len(upstream.seen("tools/call")) + len(upstream.seen("tools/list")) == 3
            listed = await gateway.ask("tools/list", token="T")
            assert "beta__b" in listed.names
            assert await gateway.counted('upstream_refused_total{bound="rate",upstream="alpha"}') >= 2
            clock.advance(20.0)
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).result


async def test_an_outage_is_not_made_worse_by_asking_again():
    """Once the budget is spent each request is made once; answers fill it again, a fifth each."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("prompts/list", status(503, Retry_After="0"))
        alpha = settings(upstream, breaker=config.Breaker(failures=1000), retry_budget=0.2)
        async with running(alpha=alpha, pace=ONCE) as gateway:
            for _ in range(40):
                with pytest.raises(UpstreamUnavailable):
                    await gateway.call("prompts/list")
            again = len(upstream.seen("prompts/list")) - 40
            assert 20 <= again <= 20 + 40 * 0.2
            made = 'mcp_gateway_upstream_retries_total{outcome="made",upstream="alpha"}'
            assert await gateway.counted(made) == again
            withheld = 'mcp_gateway_upstream_retries_total{outcome="withheld",upstream="alpha"}'
            assert await gateway.counted(withheld) > 0


async def test_a_budget_of_nothing_sends_nothing_again():
    """retry_budget: 0 = every request once."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.once("prompts/list", status(503))
        async with running(alpha=settings(upstream, retry_budget=0.0)) as gateway:
            with pytest.raises(UpstreamUnavailable):
                await gateway.call("prompts/list")
            assert len(upstream.seen("prompts/list")) == 1


async def test_the_last_list_stands_in_while_an_upstream_is_left_alone():
    """stale_if_error: what it said before is better than nothing (C-33), and status says why."""
    clock = Clock()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.ttl_ms, upstream.scope = 1000, "public"
        alpha = {"url": upstream.url, "breaker": {"failures": 1, "rest": "1h", "longest_rest": "1h"}}
        members = {"cache": {"stale_if_error": "1h"}, "admin": "127.0.0.1:0"}
        async with gateway_running({"alpha": alpha}, clock=clock, **members) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
            upstream.on("tools/call", status(500))
            await gateway.ask("tools/call", {"name": "alpha__a"})
            asked = len(upstream.seen("tools/list"))
            clock.advance(60.0)
            stale = await gateway.ask("tools/list")
            assert stale.names == ["alpha__a"]
            assert len(upstream.seen("tools/list")) == asked
            await reports(gateway, "open")


async def reports(gateway: Running, breaker: str) -> None:
    code, said = await gateway.admin("/status.json")
    assert code == 200
    assert said["upstreams"]["alpha"]["breaker"] == breaker
    assert said["upstreams"]["alpha"]["queued"] == 0


@pytest.mark.parametrize("how", ["json", "stream"])
async def test_what_upstreams_send_is_held_within_bounds(how):
    """A call whose answer there is no room for fails alone, as its answer arrives; nothing stays counted."""
    large = result({"content": [{"type": "text", "text": "x" * 3 * 2**20}]})
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        if how == "json":
            upstream.on("tools/call", large)
        else:
            upstream.on("tools/call", sse(b"event: message\ndata: " + b"x" * 3 * 2**20, asyncio.Event()))
        limits = config.Limits(message="8MiB", in_flight="1MiB")
        async with running(alpha=upstream, limits=limits) as gateway:
            for _ in range(3):
                held = await refused(gateway)
                assert str(held) == (
                    "upstream alpha: too much to do, try again later (`limits.in_flight` is used up)"
                )
            assert gateway.pool.status(ALPHA).breaker == "closed"
            await gateway.call("tools/list")
        async with running(alpha=upstream, limits=config.Limits(message="8MiB")) as gateway:
            if how == "json":
                assert len(await gateway.tool()) > 3 * 2**20
