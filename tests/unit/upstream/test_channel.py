"""One wire for everything: what arrives on it goes to whom it belongs, and nobody waits for anybody."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.protocol.call import Change, Notice, Reason, Request, UpstreamName
from gateway.protocol.lines import TooLong
from gateway.protocol.subscriptions import Wanted, spell
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.channel import Channel, ChannelListening
from gateway.upstream.failures import Failed, UpstreamError

NAME = UpstreamName("files")
VERSION = "2026-07-28"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
WANTED = Wanted(tools=True)
CALL = Request("tools/call", {"name": b'"a"'})
LISTEN = Request("subscriptions/listen", {"notifications": spell(WANTED)})


class Wire:
    """Plays the other end of a duplex."""

    def __init__(self) -> None:
        self.arriving: asyncio.Queue[bytes | TooLong | Failed] = asyncio.Queue()
        self.written: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.skipped: list[str] = []
        self.stuck = False

    async def send(self, message: bytes, within: float) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self.written.put_nowait(json.loads(message))

    def post(self, message: bytes) -> bool:
        self.written.put_nowait(json.loads(message))
        return True

    async def receive(self) -> Sequence[bytes | TooLong]:
        arrived = await self.arriving.get()
        if isinstance(arrived, Failed):
            raise arrived
        return [arrived]

    def skip(self, message: bytes | TooLong, why: str) -> None:
        self.skipped.append(why)

    def say(self, **members: Any) -> None:
        self.arriving.put_nowait(json.dumps({"jsonrpc": "2.0", **members}).encode())

    def tell(self, method: str, **params: Any) -> None:
        self.say(method=method, params=params)


class Opened:
    """A channel, its wire, and what was told."""

    def __init__(self, idle: float | None) -> None:
        self.wire = Wire()
        self.background = Background()
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self.channel = Channel(
            NAME,
            self.wire,
            client_info=b'{"name":"gw","version":"1"}',
            patience=5.0,
            listen_idle=idle,
            ids=itertools.count(1),
            background=self.background,
            metrics=Metrics(),
            on_change=self.changes.put,
        )

    def call(self, request: Request = CALL, emit: Any = None, **options: Any) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.channel.call(request, emit, version=VERSION, **options))

    async def listen(self) -> ChannelListening:
        listening = asyncio.create_task(self.channel.listen(LISTEN, WANTED, version=VERSION))
        id = (await self.wire.written.get())["id"]
        self.wire.tell(
            "notifications/subscriptions/acknowledged",
            notifications={"toolsListChanged": True},
            _meta={SUBSCRIPTION: id},
        )
        return await listening

    async def heard(self) -> None:
        """Return once all that was said was taken in."""
        self.wire.say(id=999, result={})
        while not self.wire.arriving.empty():  # noqa: ASYNC110  # each message takes a turn of the loop
            await asyncio.sleep(0)
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(idle: float | None = None) -> AsyncIterator[Opened]:
    one = Opened(idle)
    try:
        yield one
    finally:
        one.channel.close()
        await one.background.close(1)
        assert one.channel.active == 0


async def test_answers_go_by_their_id_in_any_order() -> None:
    """Servers that give it back as a string are understood (B22)."""
    async with opened() as one:
        first, second = one.call(), one.call()
        assert [(await one.wire.written.get())["id"] for _ in range(2)] == [1, 2]
        one.wire.say(id="2", result={"n": 2})
        one.wire.say(id=1, error={"code": -32002, "message": "no"})
        assert json.loads(bytes((await second).result)) == {"n": 2}
        with pytest.raises(UpstreamError) as caught:
            await first
        assert caught.value.code == -32002


async def test_an_error_without_an_id_belongs_to_the_only_request() -> None:
    async with opened() as one:
        first = one.call()
        await one.wire.written.get()
        one.wire.say(id=None, error={"code": -32700, "message": "no"})
        with pytest.raises(UpstreamError):
            await first
        both = one.call(), one.call()
        await one.wire.written.get()
        await one.wire.written.get()
        one.wire.say(id=None, error={"code": -32700, "message": "no"})
        await one.heard()
        assert not any(call.done() for call in both)
        for call in both:
            call.cancel()
        await asyncio.wait(both)


async def test_a_request_says_what_era_it_is_of_and_a_cancelled_one_is_cancelled() -> None:
    """By the id that the server knows it by (U-23); a late answer is nobody's."""
    async with opened() as one:
        call = one.call()
        sent = await one.wire.written.get()
        assert sent["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == VERSION
        call.cancel()
        await asyncio.wait([call])
        assert await one.wire.written.get() == {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": sent["id"]},
        }
        one.wire.say(id=sent["id"], result={})
        await one.heard()


async def test_what_was_never_written_and_what_is_a_probe_is_not_cancelled() -> None:
    async with opened() as one:
        probe = one.call(cancel=False)
        await one.wire.written.get()
        probe.cancel()
        await asyncio.wait([probe])
        one.wire.stuck = True
        call = one.call()
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert one.wire.written.empty()


async def test_progress_goes_by_its_token_and_only_grows() -> None:
    async with opened() as one:
        told: list[Notice] = []

        async def emit(notice: Notice) -> None:
            told.append(notice)

        call = one.call(Request("tools/call", {"name": b'"a"'}, wants_progress=True), emit)
        token = (await one.wire.written.get())["params"]["_meta"]["progressToken"]
        for step in (1, 1, 2):
            one.wire.tell("notifications/progress", progressToken=token, progress=step)
        one.wire.tell("notifications/progress", progressToken=77, progress=9)
        one.wire.say(id=token, result={})
        await call
        assert [bytes(notice.params["progress"]) for notice in told] == [b"1", b"2"]


async def test_one_who_takes_notices_slowly_holds_up_nobody() -> None:
    """What is beyond some hundreds is dropped, the answer is not."""
    async with opened() as one:
        free = asyncio.Event()
        told: list[Notice] = []

        async def emit(notice: Notice) -> None:
            await free.wait()
            told.append(notice)

        slow = one.call(Request("tools/call", {"name": b'"a"'}, wants_progress=True), emit)
        token = (await one.wire.written.get())["id"]
        for step in range(2000):
            one.wire.tell("notifications/progress", progressToken=token, progress=step)
        one.wire.say(id=token, result={"slow": True})
        quick = one.call()
        one.wire.say(id=(await one.wire.written.get())["id"], result={})
        await quick
        free.set()
        assert json.loads(bytes((await slow).result)) == {"slow": True}
        assert 0 < len(told) < 2000


async def test_requests_and_noise_are_answered_by_nothing() -> None:
    """A modern server has no requests to make (U-22); what is no message is skipped (U-30)."""
    async with opened() as one:
        call = one.call()
        id = (await one.wire.written.get())["id"]
        one.wire.say(id=1, method="roots/list")
        one.wire.say(id=1, method="ping")
        for noise in (b"", b"hello", b"[1,2]", b"[]", b"\xff\xfe", b"7", b"null", b'{"jsonrpc":"2.0"}'):
            one.wire.arriving.put_nowait(noise)
        one.wire.say(id=id, result={})
        await call
        assert one.wire.written.empty()
        assert len(one.wire.skipped) == 8


async def test_a_change_outside_of_any_subscription_reaches_the_cache() -> None:
    async with opened() as one:
        one.wire.tell("notifications/tools/list_changed")
        assert (await one.changes.get()).method == "tools/list"
        one.wire.tell("notifications/resources/updated", uri="a:b")
        assert (await one.changes.get()).uri == "a:b"


async def test_too_large_an_answer_fails_its_own_call() -> None:
    async with opened() as one:
        both = one.call(), one.call()
        await one.wire.written.get()
        await one.wire.written.get()
        one.wire.arriving.put_nowait(TooLong(99, b'{"id":2,"result":', b"..."))
        with pytest.raises(Failed) as caught:
            await both[1]
        assert caught.value.reason is Reason.TOO_LARGE
        one.wire.arriving.put_nowait(TooLong(99, b"{", b"..."))  # whose is it? there is only one
        with pytest.raises(Failed):
            await both[0]


async def test_a_subscription_hears_what_names_it_and_its_end_is_told_apart() -> None:
    """By its id (L-16); a result or a cancellation is its end (L-10, L-27), anything else its loss."""
    async with opened() as one:
        first, second = await one.listen(), await one.listen()
        assert first.honoured == WANTED
        for id in (2, 1, "1"):
            one.wire.tell("notifications/tools/list_changed", _meta={SUBSCRIPTION: id})
        assert [(await anext(first)).method for _ in range(2)] == ["notifications/tools/list_changed"] * 2
        one.wire.tell("notifications/cancelled", requestId=1)
        one.wire.say(id=2, result={"resultType": "complete"})
        assert [notice async for notice in first] == []
        assert [notice.method async for notice in second] == ["notifications/tools/list_changed"]
        assert (first.failure, second.failure) == (None, None)
        assert one.wire.written.empty()


async def test_hanging_up_is_told_once() -> None:
    async with opened() as one:
        listening = await one.listen()
        listening.close()
        listening.close()
        assert (await one.wire.written.get())["params"] == {"requestId": 1}
        assert one.wire.written.empty()
        with pytest.raises(StopAsyncIteration):
            await anext(listening)


async def test_a_listen_that_is_refused_or_never_acknowledged() -> None:
    async with opened() as one:
        refused = asyncio.create_task(one.channel.listen(LISTEN, WANTED, version=VERSION))
        await one.wire.written.get()
        one.wire.say(id=1, error={"code": -32601, "message": "no"})
        with pytest.raises(UpstreamError) as caught:
            await refused
        assert caught.value.code == -32601
        ended = asyncio.create_task(one.channel.listen(LISTEN, WANTED, version=VERSION))
        await one.wire.written.get()
        one.wire.say(id=2, result={})
        with pytest.raises(Failed, match="invalid response"):
            await ended
        assert one.wire.written.empty()


async def test_a_listener_that_reads_nothing_is_lost_not_waited_for() -> None:
    """It asks again, and hears that it may have missed something."""
    async with opened() as one:
        listening = await one.listen()
        for _ in range(1001):
            one.wire.tell("notifications/tools/list_changed", _meta={SUBSCRIPTION: 1})
        await one.heard()
        for _ in range(1000):
            await anext(listening)
        with pytest.raises(Failed):
            await anext(listening)
        assert listening.failure is not None
        assert (await one.wire.written.get())["method"] == "notifications/cancelled"


async def test_a_listener_may_be_told_that_nothing_was_heard_for_long() -> None:
    async with opened(idle=0.01) as one:
        listening = await one.listen()
        with pytest.raises(Failed) as caught:
            await anext(listening)
        assert caught.value.reason is Reason.TIMEOUT


async def test_the_end_of_the_wire_is_the_end_of_all() -> None:
    async with opened() as one:
        listening, call = await one.listen(), one.call()
        await one.wire.written.get()
        failure = Failed(NAME, Reason.CONNECT, "gone")
        one.wire.arriving.put_nowait(failure)
        for waiting in (call, anext(listening), one.channel.call(CALL, version=VERSION)):
            with pytest.raises(Failed, match="connection failed"):
                await waiting
        assert one.channel.failure is failure
        assert listening.failure is failure
