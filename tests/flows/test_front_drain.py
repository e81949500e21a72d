"""The orderly end: who is let in, what ends gracefully, what may finish, and what is cut off (B50)."""

import asyncio

import pytest

from gateway.protocol.call import Answer, Call, Emit, Principal
from tests.support.front import Answers, Listens, answer, body, post, progress, serving


class Waits(Answers):
    """A pipeline whose calls answer once released."""

    def __init__(self, *, talks: bool = False) -> None:
        super().__init__(self._wait)
        self._talks = talks
        self.release = asyncio.Event()

    async def _wait(self, call: Call, principal: Principal, emit: Emit) -> Answer:
        if self._talks:
            await emit(progress(1))
        await self.release.wait()
        return answer(done=True)


async def test_a_drain_refuses_new_connections_and_closes_idle_ones() -> None:
    """And says first that it drains."""
    async with serving(Answers()) as gateway, gateway.connect() as idle:
        idle.send(post())
        await idle.reply()
        assert gateway.front.serving
        drained = asyncio.create_task(gateway.front.drain(10))
        await gateway.stopping.wait()
        assert not gateway.front.serving
        await drained
        assert await idle.hung_up()
        with pytest.raises(ConnectionRefusedError):
            await gateway.ask(post())


async def test_listen_streams_end_with_their_result() -> None:
    """L-10: the result tells each client that the end was meant."""
    stopping = asyncio.Event()
    async with (
        serving(Listens(stopping), stopping=stopping) as gateway,
        gateway.connect() as first,
        gateway.connect() as second,
    ):
        for id, client in enumerate((first, second)):
            client.send(post("subscriptions/listen", id=id))
            await client.head()
            assert b"acknowledged" in await client.chunk()
        await gateway.front.drain(10)
        for id, client in enumerate((first, second)):
            rest = b"".join([chunk async for chunk in client.chunks()])
            assert b'"id":%d,"result"' % id in rest
            assert await client.hung_up()


async def test_who_listens_again_on_the_same_connection_is_told_to_go_elsewhere() -> None:
    """The head of the stream promised that the connection stays, so it does, for one answer more."""
    stopping = asyncio.Event()
    async with (
        serving(Listens(stopping), stopping=stopping) as gateway,
        gateway.connect() as client,
        asyncio.timeout(20),
    ):
        client.send(post("subscriptions/listen", id="first"))
        assert (await client.head()).header("connection") is None
        await client.chunk()
        drained = asyncio.create_task(gateway.front.drain(60, linger=60))
        rest = b"".join([chunk async for chunk in client.chunks()])
        assert b'"id":"first","result"' in rest
        await gateway.until_idle()
        assert not client.reader.at_eof()
        client.send(post("subscriptions/listen", id="again"))
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (200, "close")
        assert "result" in reply.events[-1]
        assert await client.hung_up()
        await drained


async def test_a_call_that_streams_past_the_linger_leaves_its_connection_open_too() -> None:
    """Its head promised the same; whoever asks nothing more holds up nothing for longer than the linger."""
    pipeline = Waits(talks=True)
    async with (
        serving(pipeline) as gateway,
        gateway.connect() as asks,
        gateway.connect() as silent,
        gateway.connect() as idle,
        asyncio.timeout(20),
    ):
        for client in (asks, silent):
            client.send(post("tools/call", params={"name": "t"}))
            await client.head()
            await client.chunk()
        drained = asyncio.create_task(gateway.front.drain(60, linger=0.5))
        assert await idle.hung_up()  # the linger is over
        pipeline.release.set()
        for client in (asks, silent):
            assert b"result" in b"".join([chunk async for chunk in client.chunks()])
        asks.send(post(id=2))
        reply = await asks.reply()
        assert (reply.status, reply.header("connection")) == (200, "close")
        assert await asks.hung_up()
        assert await silent.hung_up()
        await drained


async def test_a_running_call_finishes_and_its_connection_closes() -> None:
    """Short calls are not cut."""
    pipeline = Waits()
    async with serving(pipeline) as gateway, gateway.connect() as client:
        client.send(post())
        await pipeline.started.wait()
        drained = asyncio.create_task(gateway.front.drain(10))
        await gateway.stopping.wait()
        pipeline.release.set()
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (200, "close")
        await drained
        assert await client.hung_up()


async def test_a_request_half_sent_when_the_drain_begins_is_still_answered() -> None:
    """Its connection is busy, and closing it would lose the rest of the body."""
    request = post(content=body("tools/list"))
    async with serving(Answers()) as gateway, gateway.connect() as client:
        client.send(request[:-10])
        await gateway.until_busy()
        drained = asyncio.create_task(gateway.front.drain(10))
        await gateway.stopping.wait()
        client.send(request[-10:])
        assert (await client.reply()).status == 200
        await drained


@pytest.mark.parametrize("talks", [False, True], ids=["json", "stream"])
async def test_at_the_deadline_the_rest_get_an_error_and_are_cancelled(talks: bool) -> None:
    """The client hears why, the upstream's work is stopped."""
    pipeline = Waits(talks=talks)
    async with serving(pipeline) as gateway, gateway.connect() as client:
        client.send(post("tools/call", params={"name": "t"}, id="late"))
        await pipeline.started.wait()
        await gateway.front.drain(0.05)
        assert pipeline.cancelled.is_set()
        reply = await client.reply()
        assert reply.status == 200
        message = reply.events[-1] if talks else reply.json
        assert message["id"] == "late"
        assert message["error"] == {"code": -32603, "message": "The gateway is stopping"}
        assert await client.hung_up()
        assert await gateway.answered() == {("/mcp", "tools/call", "stopping"): 1}


async def test_a_body_that_never_ends_does_not_hold_the_drain() -> None:
    """It gets an answer without an id."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        client.send(post()[:-10])
        await gateway.until_busy()
        await gateway.front.drain(0.05)
        assert "id" not in (await client.reply()).json


async def test_a_client_that_reads_nothing_does_not_hold_the_drain() -> None:
    """Its connection is cut."""
    big = Answers(answer(text="x" * 30_000_000))
    async with serving(big) as gateway, gateway.connect(limit=1024) as client:
        client.send(post())
        await client.head()
        await gateway.front.drain(0.05)
        assert "0 open" in repr(gateway.front)


async def test_a_pipeline_that_will_not_be_cancelled_does_not_hold_the_drain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The drain ends all the same; nothing waits without a deadline."""
    release = asyncio.Event()

    async def stubborn(call: Call, principal: Principal, emit: Emit) -> Answer:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return answer()

    pipeline = Answers(stubborn)
    async with serving(pipeline) as gateway, gateway.connect() as client, asyncio.timeout(10):
        client.send(post())
        await pipeline.started.wait()
        await gateway.front.drain(0.05)
        release.set()
        await gateway.until_idle()
    assert "1 open request(s) cut off" in caplog.text


async def test_a_drain_without_clients_is_immediate() -> None:
    """And a second one changes nothing."""
    async with serving(Answers()) as gateway, asyncio.timeout(5):
        await gateway.front.drain(60)
        await gateway.front.drain(60)
        assert repr(gateway.front).endswith("draining>")
