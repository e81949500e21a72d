"""Event streams to a client: when they begin, what keeps them alive, and how they end."""

import asyncio
import socket
import time

import pytest

from gateway.front.stream import ClientGone, Responder
from gateway.protocol.call import Answer, Call, Emit, Notice, Principal, Sink
from gateway.protocol.jsonrpc import McpError
from gateway.protocol.subscriptions import circular
from tests.support.front import Answers, Client, Listens, answer, post, progress, serving

SOON = {"keep_alive": 0.04}
IMPATIENT = {"stalled_listener": 0.15, "keep_alive": 10}


class Talks(Answers):
    """A pipeline that emits, waits to be told, and then answers or fails."""

    def __init__(self, *notices: Notice, then: Answer | Exception | None = None) -> None:
        super().__init__(self._talk)
        self._notices = notices
        self._then = then or answer(done=True)
        self.go = asyncio.Event()
        self.emit: Emit | None = None

    async def _talk(self, call: Call, principal: Principal, emit: Emit) -> Answer:
        self.emit = emit
        for notice in self._notices:
            await emit(notice)
        await self.go.wait()
        if isinstance(self._then, Exception):
            raise self._then
        return self._then


async def test_the_first_notification_begins_a_stream() -> None:
    """S-17, S-18: it goes out at once, the answer ends the stream, and no field invites a resume."""
    pipeline = Talks(progress(1), progress(2))
    async with serving(pipeline) as gateway, gateway.connect() as client:
        client.send(post("tools/call", params={"name": "t"}, id="c"))
        head = await client.head()
        assert await client.chunk() == (
            b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/progress",'
            b'"params":{"progressToken":"p","progress":1}}\n\n'
        )
        pipeline.go.set()
        rest = b"".join([chunk async for chunk in client.chunks()])
        client.send(post(id=2))
        assert (await client.reply()).header("content-type") == "text/event-stream"
    assert head.status == 200
    assert head.header("content-type") == "text/event-stream"
    assert head.header("cache-control") == "no-cache, no-transform"
    assert head.header("x-accel-buffering") == "no"
    assert head.header("content-length") is None
    assert rest.count(b"event: message\n") == 2
    assert rest.endswith(b'"id":"c","result":{"resultType": "complete", "done": true}}\n\n')
    assert b"\nid:" not in rest
    assert b"retry:" not in rest


async def test_a_silent_call_becomes_a_stream_of_comments() -> None:
    """B19: after `keep_alive` without an answer the client gets signs of life."""
    pipeline = Talks()
    async with serving(pipeline, limits=SOON) as gateway, gateway.connect() as client:
        client.send(post("tools/call", params={"name": "t"}))
        assert (await client.head()).header("content-type") == "text/event-stream"
        assert (await client.chunk()).startswith(b":")
        assert (await client.chunk()).startswith(b":")
        pipeline.go.set()
        rest = b"".join([chunk async for chunk in client.chunks()])
    assert rest.endswith(b'"result":{"resultType": "complete", "done": true}}\n\n')


async def test_a_quick_answer_stays_json() -> None:
    """No stream when nothing had to be said before the answer."""
    pipeline = Talks()
    pipeline.go.set()
    async with serving(pipeline, limits=SOON) as gateway:
        assert (await gateway.ask(post())).header("content-type") == "application/json"
        assert await gateway.counted("streams_opened_total") == []


async def test_a_slow_body_gets_no_comments() -> None:
    """There is nothing to keep alive before the request is there; the status is still open."""
    request = post()
    async with serving(Answers(), limits={**SOON, "request_body": 0.2}) as gateway:
        reply = await gateway.ask(request[:-5])
    assert reply.status == 408


@pytest.mark.parametrize("error", [McpError(-32602, "no such tool"), McpError(-32601, "no"), KeyError("x")])
async def test_an_error_after_the_stream_began_travels_in_it(error: Exception) -> None:
    """The status is sent; a stream that ends without an answer hangs a JS client for a minute."""
    pipeline = Talks(progress(1), then=error)
    pipeline.go.set()
    async with serving(pipeline) as gateway:
        reply = await gateway.ask(post("tools/call", params={"name": "t"}, id=7))
    assert reply.status == 200
    assert [message.get("method", message.get("id")) for message in reply.events] == [
        "notifications/progress",
        7,
    ]
    assert reply.events[-1]["error"]["code"] == getattr(error, "code", -32603)


async def test_an_error_before_any_notification_keeps_its_status() -> None:
    """Even for listen, whose answer is else always a stream."""
    async with serving(Answers(McpError(-32602, "no filter"))) as gateway:
        reply = await gateway.ask(post("subscriptions/listen"))
    assert (reply.status, reply.header("content-type")) == (400, "application/json")


async def test_nothing_follows_the_answer() -> None:
    """S-19, E-33: a late notification is dropped, on a stream and after JSON."""
    pipeline = Talks(progress(1))
    pipeline.go.set()
    async with serving(pipeline) as gateway, gateway.connect() as client:
        client.send(post("tools/call", params={"name": "t"}))
        assert len((await client.reply()).events) == 2
        assert pipeline.emit is not None
        await pipeline.emit(progress(3))
        client.send(post(verb="GET"))
        assert (await client.reply()).status == 405


async def test_line_breaks_inside_a_message_do_not_break_the_framing() -> None:
    """An upstream may pretty-print; the bytes between its tokens are ours to change."""
    pipeline = Talks(progress(1), then=Answer((b'{\r\n "resultType":\n"complete"}',)))
    pipeline.go.set()
    async with serving(pipeline) as gateway:
        reply = await gateway.ask(post("tools/call", params={"name": "t"}))
    messages = [block for block in reply.body.decode().replace("\r\n", "\n").split("\n\n") if block]
    assert len(messages) == 2
    assert all(line.startswith(("event:", "data:")) for block in messages for line in block.split("\n"))


async def test_listen_is_always_a_stream() -> None:
    """L-02: also when the pipeline ends it without a word."""
    async with serving(Answers()) as gateway:
        reply = await gateway.ask(post("subscriptions/listen", id="listen:0"))
    assert reply.header("content-type") == "text/event-stream"
    assert [message["id"] for message in reply.events] == ["listen:0"]


async def test_a_quiet_listen_is_kept_alive() -> None:
    """S-22, L-12: comments as long as nothing happens, and none of them before the acknowledgement."""
    stopping = asyncio.Event()
    async with (
        serving(Listens(stopping), limits=SOON, stopping=stopping) as gateway,
        gateway.connect() as client,
    ):
        client.send(post("subscriptions/listen"))
        await client.head()
        assert b"acknowledged" in await client.chunk()
        assert (await client.chunk()).startswith(b":")
        assert (await client.chunk()).startswith(b":")
        assert await gateway.counted("streams_open{") == ['streams_open{side="downstream"} 1.0']
        client.abort()
        await gateway.until_idle()
        assert await gateway.counted("streams_open{") == ['streams_open{side="downstream"} 0.0']


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
async def test_a_client_that_vanishes_is_noticed_by_the_comments_it_does_not_receive() -> None:
    """B29: without a FIN nothing tells of it but what is never acknowledged."""
    stopping = asyncio.Event()
    limits = {"keep_alive": 0.04, "stalled_listener": 0.5}
    async with (
        serving(Listens(stopping), limits=limits, stopping=stopping) as gateway,
        gateway.connect() as client,
    ):
        client.send(post("subscriptions/listen"))
        await client.head()
        assert b"acknowledged" in await client.chunk()
        client.vanish()
        await gateway.until_idle()
        assert await gateway.counted("streams_open{") == ['streams_open{side="downstream"} 0.0']


@pytest.mark.parametrize("notices", [(), (progress(1),)], ids=["before the answer", "in the stream"])
async def test_a_client_that_leaves_cancels_its_call(notices: tuple[Notice, ...]) -> None:
    """S-21, B21: at once, and nothing of the call is left behind."""
    pipeline = Talks(*notices)
    async with serving(pipeline) as gateway, gateway.connect() as client:
        client.send(post("tools/call", params={"name": "t"}))
        await pipeline.started.wait()
        client.abort()
        await pipeline.cancelled.wait()
        await gateway.until_idle()
        assert await gateway.answered() == {("/mcp", "tools/call", "cancelled"): 1}
        assert await gateway.counted("requests_in_flight") == ['requests_in_flight{endpoint="/mcp"} 0.0']


async def test_a_client_that_leaves_between_two_notifications_is_no_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A write to a closed connection cancels the call and alarms nobody."""
    left = asyncio.Event()

    async def talk(call: Call, principal: Principal, emit: Emit) -> Answer:
        while True:
            await emit(progress(1))
            left.set()
            await asyncio.sleep(0)

    pipeline = Answers(talk)
    async with serving(pipeline) as gateway, gateway.connect() as client:
        client.send(post("tools/call", params={"name": "t"}))
        await left.wait()
        client.abort()
        await gateway.until_idle()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_half_sent_request_whose_client_leaves_is_forgotten() -> None:
    """Nothing was owed yet."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        client.send(post()[:-5])
        await gateway.until_busy()
        client.abort()
        await gateway.until_idle()


async def test_a_client_that_stops_reading_is_cut_off() -> None:
    """Backpressure holds the call, and `stalled_listener` ends it; memory stays bounded."""
    sent = 0

    async def flood(call: Call, principal: Principal, emit: Emit) -> Answer:
        nonlocal sent
        while True:
            await emit(Notice("notifications/message", {"data": b'"' + b"x" * 10_000 + b'"'}))
            sent += 1

    pipeline = Answers(flood)
    async with serving(pipeline, limits=IMPATIENT) as gateway, gateway.connect(limit=1024) as client:
        client.send(post("tools/call", params={"name": "t"}))
        await pipeline.cancelled.wait()
        await gateway.until_idle()
    assert sent * 10_000 < 20_000_000


async def test_a_client_that_stops_reading_a_long_answer_is_cut_off() -> None:
    """The same for one big JSON answer."""
    big = Answers(answer(text="x" * 30_000_000))
    async with serving(big, limits=IMPATIENT) as gateway, gateway.connect(limit=1024) as client:
        client.send(post())
        await client.head()
        await gateway.until_idle()


async def test_a_client_that_reads_slowly_gets_everything() -> None:
    """Progress counts, not speed: the download takes many times what a standstill may last."""
    big = Answers(answer(text="x" * 12_000_000))
    limits = {**IMPATIENT, "stalled_listener": 0.4}
    async with serving(big, limits=limits) as gateway, gateway.connect(limit=1024) as client:
        client.send(post())
        length = int((await client.head()).header("content-length") or 0)
        await _read_slowly(client, length, steps=30, pause=0.05)


async def _read_slowly(client: Client, length: int, *, steps: int, pause: float) -> None:
    left = length
    while left:
        left -= len(await client.reader.readexactly(min(length // steps, left)))
        await asyncio.sleep(pause)


async def test_an_http_1_0_client_gets_its_stream_until_close() -> None:
    """It knows no chunks."""
    pipeline = Talks(progress(1))
    pipeline.go.set()
    async with serving(pipeline) as gateway:
        reply = await gateway.ask(post("tools/call", params={"name": "t"}, version="1.0"))
    assert reply.header("transfer-encoding") is None
    assert reply.header("connection") == "close"
    assert len(reply.events) == 2


async def test_listens_of_one_caller_are_limited() -> None:
    """L-09: an error before the acknowledgement; other callers and ended listens do not count."""
    stopping = asyncio.Event()
    async with serving(Listens(stopping), limits={"streams_per_caller": 1}, stopping=stopping) as gateway:
        async with gateway.connect() as first:
            first.send(post("subscriptions/listen", authorization="Bearer A"))
            await first.head()
            refused = await gateway.ask(post("subscriptions/listen", authorization="Bearer A"))
            assert (refused.status, refused.json["error"]["code"]) == (429, -32603)
            assert (refused.header("retry-after"), refused.json["id"]) == ("1", 1)
            async with gateway.connect() as other:
                other.send(post("subscriptions/listen", authorization="Bearer B"))
                assert (await other.head()).header("content-type") == "text/event-stream"
            first.abort()
        await gateway.until_idle()
        async with gateway.connect() as again:
            again.send(post("subscriptions/listen", authorization="Bearer A"))
            assert (await again.head()).header("content-type") == "text/event-stream"


class Tells(Answers):
    """A pipeline that acknowledges a listen and leaves its sink to the test, until it is to go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.sinks: asyncio.Queue[Sink] = asyncio.Queue()

    async def listen(self, call: Call, principal: Principal, sink: Sink) -> Answer:
        await sink.emit(Notice("notifications/subscriptions/acknowledged", {"notifications": b"{}"}))
        self.sinks.put_nowait(sink)
        await self.go.wait()
        return answer()


NEWS = circular("notifications/message", {"data": b'"%b"' % (b"x" * 1000)})


def tell(sink: Sink) -> bool:
    """Tell something of a kilobyte to the subscription `me`."""
    return sink.tell(NEWS.before, b'"me"', NEWS.behind)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_what_is_told_is_an_event_like_any_other(version: str) -> None:
    """Chunked, or as the client's HTTP has it, until the answer; then nothing is told any more (L-10)."""
    pipeline = Tells()
    async with serving(pipeline) as gateway, gateway.connect() as client:
        client.send(post("subscriptions/listen", id="me", version=version))
        sink = await pipeline.sinks.get()
        assert [tell(sink), tell(sink)] == [True, True]
        pipeline.go.set()
        _, *told, last = (await client.reply()).events
        assert not tell(sink)
    meta = {"io.modelcontextprotocol/subscriptionId": "me"}
    params = {"_meta": meta, "data": "x" * 1000}
    assert told == [{"jsonrpc": "2.0", "method": "notifications/message", "params": params}] * 2
    assert last["id"] == "me"


async def test_a_slow_client_is_told_no_more_than_it_takes() -> None:
    """Nothing piles up for it; it is told again once it has taken what was sent."""
    pipeline = Tells()
    async with serving(pipeline) as gateway, gateway.connect(limit=1024) as client:
        client.send(post("subscriptions/listen"))
        sink = await pipeline.sinks.get()
        told = 0
        while tell(sink):
            told += 1
            await asyncio.sleep(0)
        assert told < 20_000
        writable = asyncio.create_task(sink.writable())
        await asyncio.sleep(0)
        assert not writable.done()
        chunks = client.chunks()
        await client.head()
        for _ in range(told):
            await anext(chunks)
        await writable
        assert tell(sink)


async def test_a_client_that_left_is_told_nothing() -> None:
    """Who waits for it is not left waiting."""
    pipeline = Tells()
    async with serving(pipeline) as gateway, gateway.connect() as client:
        client.send(post("subscriptions/listen"))
        sink = await pipeline.sinks.get()
        assert isinstance(sink, Responder)
        sink.abort()
        assert not tell(sink)
        with pytest.raises(ClientGone):
            await sink.writable()
        await gateway.until_idle()


async def test_what_is_told_spares_a_comment() -> None:
    """Signs of life are for streams that are quiet (S-22)."""
    pipeline = Tells()
    async with serving(pipeline, limits={"keep_alive": 10}) as gateway, gateway.connect() as client:
        client.send(post("subscriptions/listen"))
        sink = await pipeline.sinks.get()
        assert isinstance(sink, Responder)
        await client.head()
        await client.chunk()
        quiet_since = time.monotonic()
        assert tell(sink)
        sink.beat(quiet_since + 5, keep_alive=5, stalled=60)
        sink.beat(quiet_since + 60, keep_alive=5, stalled=60)
        assert b"notifications/message" in await client.chunk()
        assert (await client.chunk()).startswith(b":")
        pipeline.go.set()
        assert b'"result"' in await client.chunk()
