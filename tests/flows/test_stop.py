"""The orderly end, as SIGTERM begins it: streams end well, calls finish or are told (B50)."""

import asyncio

import pytest

from tests.support.running import running
from tests.support.scripted import META, ScriptedUpstream, event, hang, progress, result, sse, tool

LISTEN = {"notifications": {"toolsListChanged": True}}


async def test_a_listen_ends_with_its_graceful_result():
    """Acknowledged first; at the end complete, with its subscription id, and the connection closed (L-10)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}) as gateway,
        gateway.open("subscriptions/listen", LISTEN, id="sub") as one,
        gateway.open("subscriptions/listen", {"notifications": {}}, id=7) as two,
    ):
        for stream, id, granted in ((one, "sub", LISTEN["notifications"]), (two, 7, {})):
            acknowledged = await stream.event()
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            assert acknowledged["params"]["_meta"][f"{META}subscriptionId"] == id
            assert acknowledged["params"]["notifications"] == granted
        stopping = asyncio.create_task(gateway.gateway.stop(30.0))
        for stream, id in ((one, "sub"), (two, 7)):
            ended = await stream.answer()
            assert ended.message["id"] == id
            assert ended.result["resultType"] == "complete"
            assert ended.result["_meta"][f"{META}subscriptionId"] == id
            assert await stream.ended()
        await stopping


async def test_short_calls_finish_and_nobody_new_is_let_in():
    """What is running may finish within the grace; the admin side says draining meanwhile."""
    late = asyncio.Event()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, admin="127.0.0.1:0") as gateway,
        gateway.open("subscriptions/listen", LISTEN) as listen,
        gateway.open("tools/call", {"name": "alpha__a"}) as call,
    ):
        alpha.on("tools/call", hang(late, then=result({"content": []})))
        assert (await gateway.admin("/readyz"))[0] == 200
        await listen.event()
        await alpha.arrived("tools/call")
        stopping = asyncio.create_task(gateway.gateway.stop(30.0))
        await listen.answer()  # its end says that the draining has begun
        assert (await gateway.admin("/readyz"))[0] == 503
        assert (await gateway.admin("/healthz"))[0] == 200
        with pytest.raises(ConnectionError):
            await gateway.ask("tools/list")
        assert not stopping.done()
        late.set()
        assert (await call.answer()).result["content"] == []
        await stopping


async def test_long_calls_are_told_and_cancelled_upstream():
    """At the end of the grace: an error each, JSON or stream, and their upstream responses are closed."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        started = sse(
            lambda exchange: event(progress(exchange.received.meta["progressToken"], 1)), asyncio.Event()
        )
        alpha.once("tools/call", hang(), started)
        async with gateway.open("tools/call", {"name": "alpha__a"}, id="quiet") as quiet:
            held = [await alpha.arrived("tools/call")]
            about = {"progressToken": 1}
            async with gateway.open("tools/call", {"name": "alpha__a"}, id="loud", meta=about) as loud:
                await loud.event()
                held.append(await alpha.arrived("tools/call"))
                await gateway.gateway.stop(0.05)
                for call, id, streamed in ((quiet, "quiet", False), (loud, "loud", True)):
                    answer = await call.answer()
                    assert (answer.code, answer.message["id"], answer.streamed) == (-32603, id, streamed)
                    assert "stopping" in answer.error["message"]
                    assert await call.ended()
                for received in held:
                    await received.closed.wait()


async def test_a_crowd_that_waits_for_one_fetch_is_told_too():
    """The shared fetch belongs to none of them; it ends with them."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/list", hang())
        tasks = [asyncio.create_task(gateway.ask("tools/list", token="TOK-A")) for _ in range(5)]
        asked = await alpha.arrived("tools/list")
        await gateway.busy(5)
        await gateway.gateway.stop(0.05)
        assert {answer.code for answer in await asyncio.gather(*tasks)} == {-32603}
        await asked.closed.wait()
        assert repr(gateway.runtime.background) == "<Background []>"


async def test_a_gateway_with_nothing_to_do_stops_at_once():
    """Idle connections do not hold it, nor do upstreams that hang."""
    async with ScriptedUpstream() as alpha:
        alpha.on("server/discover", hang())
        async with running({"alpha": alpha}, settled=False) as gateway:
            await alpha.arrived("server/discover")
            async with asyncio.timeout(2):
                await gateway.gateway.stop(30.0)
