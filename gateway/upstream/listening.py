"""One subscription to an upstream: opened by its acknowledgement, then read notice by notice.

Nothing is read ahead of who iterates: a slow one slows the upstream down, and holds one chunk in memory.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias, assert_never

from gateway.protocol.call import Notice, Reason, UpstreamName
from gateway.protocol.jsonrpc import Malformed, McpError, read_incoming
from gateway.protocol.sse import EventTooLarge, SseParser
from gateway.protocol.subscriptions import Wanted
from gateway.support.metrics import Metrics
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.incoming import Acknowledged, Dropped, Ended, Heard, Subscription

log = logging.getLogger(__name__)

Read: TypeAlias = Callable[[], Awaitable[bytes]]
"""Returns what arrived of a stream, b"" at its end; raises Failed. Cancelling it loses nothing."""

_ENDS = {
    Reason.CONNECT: "lost",
    Reason.TIMEOUT: "idle",
    Reason.PROTOCOL: "invalid",
    Reason.TOO_LARGE: "too_large",
    Reason.STOPPING: "stopping",
}


class EventListening:
    """An open subscription, to be iterated by one reader.

    The iteration ends when the upstream ended it deliberately and raises UpstreamUnavailable when it was
    lost. A read that is cancelled loses no notice.
    """

    def __init__(
        self,
        name: UpstreamName,
        subscription: Subscription,
        *,
        read: Read,
        hang_up: Callable[[], None],
        limit: int,
        idle: float | None,
        metrics: Metrics,
        grown: Callable[[int], None],
    ) -> None:
        self._name = name
        self._subscription = subscription
        self._read = read
        self._hang_up = hang_up
        self._parser = SseParser(limit)
        self._limit = limit
        self._idle = idle
        self._metrics = metrics
        self._grown = grown
        self._waiting: deque[bytes] = deque()
        """The messages of the last chunk that nobody took yet."""
        self._opened = False
        self._closed = False
        self.honoured = Wanted()
        """What the upstream acknowledged, never more than was wanted (L-16)."""
        self.failure: Failed | None = None
        """How it was lost, None while it was not."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "not acknowledged"
        return f"<EventListening {self._name}: {state}, {len(self._waiting)} waiting>"

    async def open(self) -> None:
        """Return once it is acknowledged; raises UpstreamError for an error instead, or Failed."""
        match await self._heard(idle=None):
            case Acknowledged(honoured):
                self.honoured = honoured
                self._opened = True
                self._metrics.listen_opened(self._name)
            case McpError() as error:
                raise UpstreamError(error, 200)
            case _:
                raise Failed(self._name, Reason.PROTOCOL, "the listen ended before it was acknowledged")

    def close(self) -> None:
        """Hang up, unless it is over already; notices not read yet are forgotten."""
        self._end("closed")

    def __aiter__(self) -> "EventListening":
        return self

    async def __anext__(self) -> Notice:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise StopAsyncIteration
        try:
            return await self._notice()
        except Failed as failure:
            self.failure = failure
            self._end(_ENDS.get(failure.reason, "lost"))
            raise

    async def _notice(self) -> Notice:
        match await self._heard(idle=self._idle):
            case Notice() as notice:
                return notice
            case Ended(how):
                self._end(how)
                raise StopAsyncIteration
            case McpError() as error:
                self._end("error")
                raise Failed(self._name, Reason.PROTOCOL, f"error {error.code} ended the listen")
            case Acknowledged() as again:  # the subscription hands out only the first
                raise AssertionError(again)
            case meaning:
                assert_never(meaning)

    async def _heard(self, *, idle: float | None) -> Acknowledged | Notice | Ended | McpError:
        while True:
            while not self._waiting:
                await self._fetch(idle)
            meaning = self._meaning(self._waiting.popleft())
            if not isinstance(meaning, Dropped):
                return meaning
            self._metrics.dropped(self._name, meaning.what)
            log.debug("upstream %s: %s dropped: %s", self._name, meaning.what, meaning.why)

    async def _fetch(self, idle: float | None) -> None:
        """Wait for the next chunk and queue its messages."""
        try:
            async with asyncio.timeout(idle):
                chunk = await self._read()
        except TimeoutError:
            raise Failed(self._name, Reason.TIMEOUT, f"nothing was heard for {idle:g}s") from None
        if not chunk:
            # Graceful is only what says so (L-10).
            raise Failed(self._name, Reason.CONNECT, "the listen ended without a result", transient=True)
        try:
            events = self._parser.feed(chunk)
        except EventTooLarge:
            raise Failed(self._name, Reason.TOO_LARGE, f"over {self._limit} bytes") from None
        self._grown(self._parser.held)
        # Other events are other people's; empty data primes a resumption, which does not exist here (U-21).
        self._waiting.extend(event.data for event in events if event.event in ("", "message") and event.data)

    def _meaning(self, data: bytes) -> Heard:
        try:
            return self._subscription.meaning(read_incoming(data))
        except Malformed as error:
            raise Failed(self._name, Reason.PROTOCOL, f"in the listen: {error}") from None

    def _end(self, how: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        self._grown(0)
        self._hang_up()
        if self._opened:
            self._metrics.listen_ended(self._name, how)
            log.debug("upstream %s: its listen ended: %s", self._name, how)
