"""Puts one answer on the wire: JSON while nothing had to be said before it, an event stream from then on.

The response is framed here and written straight to the transport. aiohttp's response objects cost 50 of the
150 µs that a bare exchange takes (measured), which would be the larger half of what a cached answer may cost.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from types import MappingProxyType
from typing import Literal

from aiohttp import web
from msgspec import Struct

from gateway.front.admission import Entry, Refusal
from gateway.front.mirror import NO_STORE
from gateway.protocol import jsonrpc
from gateway.protocol.call import Notice
from gateway.protocol.jsonrpc import INTERNAL_ERROR, Json, McpError
from gateway.protocol.sse import EVENT_END, EVENT_START, KEEP_ALIVE, format_event
from gateway.support.metrics import OTHER, Metrics

_JOIN_BELOW = 65_536
"""A piece below it is copied into its neighbours: that costs less than a write of its own."""

_MAY_BE_DEAF = 0.25
"""Seconds of work on an answer while what the client sent ahead hides whether it is still there."""

_SLOWEST = 16_384
"""Bytes a second that a client has to read of what waits for it, or it could hold them for ever."""

_JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache, no-transform\r\n"
    b"X-Accel-Buffering: no\r\n"
)


class Outcome(Struct, frozen=True):
    """What a request comes to. `word` names it in logs and metrics."""

    status: int
    body: tuple[Json, ...] = ()
    """In pieces: they are joined when they are sent, and large ones never."""
    word: str = "ok"
    headers: Mapping[str, str] = MappingProxyType({})
    content_type: str = "application/json"
    streamed: bool = False
    """Whether it must end an event stream even when none has begun (L-02)."""
    cached: bytes = NO_STORE
    """The header lines that say how long and by whom it may be kept; an event stream has its own."""


def failure(
    status: int, error: McpError, id: bytes | None, word: str, headers: Mapping[str, str] | None = None
) -> Outcome:
    """Return an error as HTTP, with the id it answers as far as that is known."""
    return Outcome(status, (jsonrpc.error_message(id, error),), word, headers or {})


def too_much(refusal: Refusal, id: bytes | None = None) -> Outcome:
    """Return why a request was not let in, and when to come back, as HTTP."""
    error = McpError(INTERNAL_ERROR, str(refusal))
    return failure(refusal.status, error, id, refusal.word, {"Retry-After": str(refusal.seconds)})


class _Sent(web.StreamResponse):
    """What aiohttp is told about a response that is already on the wire."""

    def __init__(self, keep_alive: bool) -> None:
        super().__init__()
        self._stays = keep_alive

    @property
    def keep_alive(self) -> bool:
        return self._stays

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


STAYS = _Sent(keep_alive=True)
CLOSES = _Sent(keep_alive=False)


class ClientGone(ConnectionResetError):
    """The client left while it was written to; aiohttp is about to cancel the handler."""


class Responder:
    """The answer to one request, from its arrival until its last byte has left.

    Every frame is one write, so the pulse of keep-alives cannot cut into what the pipeline sends.
    """

    __slots__ = (
        "_began_at",
        "_due",
        "_flushed",
        "_metrics",
        "_moved_at",
        "_named",
        "_request",
        "_spoke_at",
        "_state",
        "_stream",
        "_task",
        "_written",
        "closing",
        "entry",
        "extra_head",
        "id",
        "stopped",
    )

    def __init__(
        self,
        request: web.BaseRequest,
        metrics: Metrics,
        task: "asyncio.Task[object] | None",
        entry: Entry,
        named: bytes = b"",
    ) -> None:
        """`task` is the one that works on the request, `entry` what it is counted by until its end.

        `named` is the header line with the request's id.
        """
        now = time.monotonic()
        self._request = request
        self._metrics = metrics
        self._task = task
        self._named = named
        self._state: Literal["reading", "answering", "done"] = "reading"
        self._stream: Literal["no", "chunked", "until close"] = "no"
        self._written = 0
        self._flushed = 0
        self._moved_at = now
        self._spoke_at = now
        self._began_at = now
        self.id: bytes | None = None
        self._due = math.inf
        self.entry = entry
        self.closing = False
        self.extra_head = b""
        """Header lines that every answer to this request carries, errors included (B36)."""
        self.stopped = False

    def __repr__(self) -> str:
        return f"<Responder {self._state}, stream: {self._stream}, {self._written} bytes>"

    @property
    def request(self) -> web.BaseRequest:
        return self._request

    @property
    def written(self) -> int:
        """Bytes of the answer that went out, or wait for the client to take them."""
        return self._written

    @property
    def done(self) -> bool:
        return self._state == "done"

    @property
    def streaming(self) -> bool:
        """Whether it is an event stream by now."""
        return self._stream != "no"

    @property
    def promised(self) -> bool:
        """Whether the head of a stream is out that told the client to go on over this connection."""
        return self._stream == "chunked" and not self.closing

    def begin(self, id: bytes | None) -> None:
        """Note that an answer to this id is owed, and keep the client waiting for it from now on."""
        self.id = id
        self._state = "answering"
        self._spoke_at = self._began_at = time.monotonic()

    async def emit(self, notice: Notice) -> None:
        """Send a notification ahead of the answer; after the answer it is dropped (S-19, E-33)."""
        if self._state == "answering":
            await self.send(jsonrpc.notification_message(notice.method, notice.params))

    async def send(self, message: bytes) -> None:
        """Send a message of any kind ahead of the answer; raises ClientGone when that is over."""
        if self._state != "answering":
            raise ClientGone
        self._send_frame(format_event(message))
        if self._request.protocol.writing_paused:
            await self._drain()

    def post(self, message: bytes) -> bool:
        """Send a message if the client takes more now; whether it was sent."""
        return self.tell(message, b"", b"")

    def open(self) -> None:
        """Let the client see that it has an event stream, before there is anything to say."""
        if self._stream == "no":
            self._send_frame(KEEP_ALIVE)

    def tell(self, before: bytes, id: bytes, behind: bytes) -> bool:
        """Send a notification in one line if the client takes more now; whether it was sent.

        Called for thousands of streams in a row, so whoever cannot take it is left to its own request.
        """
        if self._state != "answering" or self._request.protocol.writing_paused:
            return False
        try:
            self._send_frame(b"".join((EVENT_START, before, id, behind, EVENT_END)))
        except ClientGone:
            return False
        return True

    async def writable(self) -> None:
        """Return once the client takes more; raises ClientGone when it has left."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        await self._taken()

    async def finish(self, outcome: Outcome) -> web.StreamResponse:
        """Send the answer and wait until the client has taken (nearly) all of it."""
        self._state = "done"
        if self._stream != "no" or outcome.streamed:
            message = b"".join(outcome.body)
            self._send_frame(format_event(message) if message else KEEP_ALIVE, last=True)
        else:
            self._send_answer(outcome)
        if self._request.protocol.writing_paused:
            await self._drain()
        if outcome.status == 408:
            self._hang_up()
        return STAYS if self._stays_open() else CLOSES

    def _hang_up(self) -> None:
        """Close once all is sent; aiohttp would go on reading what was too slow already."""
        transport = self._request.transport
        if transport is not None:
            transport.close()

    async def _drain(self) -> None:
        """Wait until the client takes more; how long it may take nothing is the pulse's to judge.

        What waits is held, by the pace of who reads it: it counts, and may not take for ever.
        """
        transport = self._request.transport
        waiting = 0 if transport is None else transport.get_write_buffer_size()
        self._due = time.monotonic() + waiting / _SLOWEST
        self.entry.hold(waiting)
        try:
            await self._taken()
        finally:
            self._due = math.inf
            self.entry.let_go(waiting)

    async def _taken(self) -> None:
        try:
            await self._request.writer.drain()
        except ConnectionError:
            raise ClientGone from None

    def stop(self) -> None:
        """End the work on this request; its handler then answers that the gateway stops (B50)."""
        self.stopped = True
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Cut the connection; aiohttp then cancels the handler."""
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    def release(self) -> None:
        """Let go of what the request held, whatever became of it."""
        self._state = "done"
        self._task = None
        self.entry.leave()
        if self._stream != "no":
            self._metrics.stream_closed("downstream")

    def beat(self, now: float, *, keep_alive: float, stalled: float) -> None:
        """Cut a client that takes nothing any more, and keep a quiet one waiting with a comment (S-22).

        Called about twice a second for every open request, which is cheaper than a timer for each.
        """
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return
        if not transport.is_reading() and self._is_deaf(now):
            self._metrics.rejected(OTHER, "ahead")
            self.abort()
            return
        waiting = transport.get_write_buffer_size()
        if waiting:
            self._cut_if_stalled(waiting, now, stalled)
            return
        self._moved_at = now
        if self._state == "answering" and now - self._spoke_at >= keep_alive:
            self._send_frame(KEEP_ALIVE)

    def _is_deaf(self, now: float) -> bool:
        """Whether the client sent so much behind its request that its leaving could not be seen (S-21).

        Reading is paused then, and the end of the connection stands behind what is not read. While the body
        of the request itself is read a pause means nothing: it is how a fast sender is slowed down.
        """
        return self._state == "answering" and now - self._began_at >= _MAY_BE_DEAF

    def _cut_if_stalled(self, waiting: int, now: float, stalled: float) -> None:
        flushed = self._written - waiting
        if now - self._due >= stalled:
            self._metrics.rejected(OTHER, "slow_reader")
            self.abort()
        elif flushed != self._flushed:
            self._flushed = flushed
            self._moved_at = now
        elif now - self._moved_at >= stalled:
            if self._stream != "no":
                self._metrics.stream_cut()
            self.abort()

    def _stays_open(self) -> bool:
        return self._request.keep_alive and not self.closing

    def _send_answer(self, outcome: Outcome) -> None:
        size = sum(map(len, outcome.body))
        run: list[Json] = [self._head(outcome, size)]
        for piece in outcome.body if self._request.method != "HEAD" else ():
            if len(piece) < _JOIN_BELOW:
                run.append(piece)
                continue
            self._write(b"".join(run))
            self._write(memoryview(piece))
            run.clear()
        self._write(b"".join(run))

    def _head(self, outcome: Outcome, size: int) -> bytes:
        length = b"Content-Length: %d\r\n" % size if outcome.status != 204 else b""
        if outcome.status == 200 and not outcome.headers and outcome.content_type == "application/json":
            start = _JSON_HEAD
        else:
            start = _start_of_head(outcome)
        return b"".join(
            (
                start,
                _date(),
                self._named,
                self.extra_head,
                outcome.cached,
                length,
                self._connection(),
                b"\r\n",
            )
        )

    def _connection(self) -> bytes:
        if not self._stays_open():
            return b"Connection: close\r\n"
        return b"Connection: keep-alive\r\n" if self._request.version < (1, 1) else b""

    def _send_frame(self, frame: bytes, *, last: bool = False) -> None:
        head = b"" if self._stream != "no" else self._open_stream()
        if self._stream == "chunked":
            end = b"\r\n0\r\n\r\n" if last else b"\r\n"
            self._write(b"".join((head, b"%x\r\n" % len(frame), frame, end)))
        else:
            self._write(head + frame)
        self._spoke_at = time.monotonic()

    def _open_stream(self) -> bytes:
        """Decide for an event stream; return the head that goes out with its first frame."""
        if self._request.version < (1, 1):
            self._stream = "until close"
            self.closing = True
            framing = b""
        else:
            self._stream = "chunked"
            framing = b"Transfer-Encoding: chunked\r\n"
        self._metrics.stream_opened("downstream")
        lines = (_STREAM_HEAD, _date(), self._named, self.extra_head, framing, self._connection(), b"\r\n")
        return b"".join(lines)

    def _write(self, data: bytes | memoryview) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        transport.write(data)
        self._written += len(data)


def _start_of_head(outcome: Outcome) -> bytes:
    lines = [f"HTTP/1.1 {outcome.status} {HTTPStatus(outcome.status).phrase}"]
    if outcome.body:
        lines.append(f"Content-Type: {outcome.content_type}")
    lines.extend(f"{name}: {value}" for name, value in outcome.headers.items())
    if not all(line.isprintable() and line.isascii() for line in lines):
        raise ValueError("a header holds a character that has no place there")
    return "\r\n".join([*lines, ""]).encode()


_dated: tuple[int, bytes] = (0, b"")


def _date() -> bytes:
    """Return the Date line, made once a second."""
    global _dated
    second = int(time.time())
    if _dated[0] != second:
        _dated = (second, f"Date: {formatdate(second, usegmt=True)}\r\n".encode())
    return _dated[1]
