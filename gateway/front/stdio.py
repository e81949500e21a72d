"""Serves one client over stdin and stdout: a message a line, any number of them at a time.

The client is one person, whoever that is: it is known by being the one that started this process. What a
client over HTTP mirrors in headers has no place here, so the head is made of the message itself.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import lru_cache

from msgspec.structs import replace

from gateway.config import Config
from gateway.front.http import LISTEN, Pipeline, Stopping, outcome
from gateway.front.pipes import Inlet, Outlet
from gateway.front.stream import ClientGone, Outcome
from gateway.protocol import jsonrpc, methods, modern
from gateway.protocol.call import META_VERSION, Call, Notice, Principal
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Json, Malformed, McpError
from gateway.protocol.lines import LineCutter, TooLong
from gateway.protocol.modern import Head, PostedNotification, Rejection
from gateway.protocol.sse import in_one_line
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

CANCELLED = "notifications/cancelled"

_MOST_AT_ONCE = 1000
"""Requests under way; a client that asks for more is told so."""
_LAST_WORDS = 1.0
_NO_MEMBERS: Mapping[str, Json] = {}


class StdioFront:
    """Hands the client's calls to the pipeline of one endpoint, and its answers back."""

    def __init__(
        self,
        pipeline: Pipeline,
        config: Config,
        metrics: Metrics,
        *,
        endpoint: str,
        principal: Principal,
        background: Background,
        outlet: Outlet,
    ) -> None:
        self._pipeline = pipeline
        self._config = config
        self._metrics = metrics
        self._endpoint = endpoint
        self._principal = principal
        self._background = background
        self._outlet = outlet
        self._open: dict[bytes, asyncio.Task[None]] = {}
        """Requests that are owed an answer, by their id as the client wrote it."""
        self._running: set[asyncio.Task[None]] = set()
        self._listens = 0
        self._stopped = False

    def __repr__(self) -> str:
        return f"<StdioFront {self._endpoint}: {len(self._open)} open, {self._listens} listening>"

    async def serve(self, inlet: Inlet) -> None:
        """Take messages until there are no more, or nobody is left to be answered.

        While the client does not read what it asked for, no more of its requests are read either.
        """
        cutter = LineCutter(self._config.limits.message)
        try:
            while chunk := await inlet.read():
                for line in cutter.feed(chunk):
                    await self._outlet.room()
                    self._take(line)
            for line in cutter.end():
                self._take(line)
        except ClientGone:
            pass

    async def drain(self, grace: float) -> None:
        """Let what is running finish until the grace is over, and tell the rest that the gateway stops."""
        running = set(self._running)
        if running:
            _, running = await asyncio.wait(running, timeout=0.0 if self._outlet.gone.is_set() else grace)
        if running:
            log.warning("%d open request(s) cut off at the end of the grace", len(running))
            self._stopped = True
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_LAST_WORDS)
        if not await self._outlet.close(_LAST_WORDS) and not self._outlet.gone.is_set():
            log.warning("the client does not read: what was left to say is dropped")

    # Messages

    def _take(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            log.warning("skipped a message of %d bytes, more than limits.message", line.size)
            error = McpError(INVALID_REQUEST, "The message is larger than `limits.message`")
            id = line.id()
            self._say(jsonrpc.error_message(None if id is None else b"%d" % id, error))
        elif line.strip():
            self._message(line)

    def _message(self, line: bytes) -> None:
        accepted = modern.accept_body(
            _head_of(line),
            line,
            depth=self._config.limits.depth,
            passes=self._pipeline.passes,
        )
        match accepted:
            case Call():
                self._begin(replace(accepted, param_headers=None))
            case PostedNotification(method):
                if method == CANCELLED:
                    self._cancel(line)
            case Rejection():
                refused = outcome(accepted)
                self._metrics.rejected(self._endpoint, refused.word)
                self._say(*refused.body)

    def _begin(self, call: Call) -> None:
        if call.id in self._open:
            error = McpError(INVALID_REQUEST, "A request with this id is under way")
            self._say(jsonrpc.error_message(None, error))
        elif len(self._open) - self._listens >= _MOST_AT_ONCE:
            error = McpError(INTERNAL_ERROR, f"More than {_MOST_AT_ONCE} requests are under way")
            self._say(jsonrpc.error_message(call.id, error))
        else:
            task = self._background.start(self._serve(call), name=f"stdio {methods.label(call.method)}")
            self._open[call.id] = task
            self._running.add(task)
            task.add_done_callback(lambda _: self._over(call.id, task))

    def _over(self, id: bytes, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if self._open.get(id) is task:
            del self._open[id]

    def _cancel(self, line: bytes) -> None:
        """Stop the request that the client names; it is not answered any more (U-23)."""
        raw = _inner(_members(line), "params").get("requestId")
        task = None if raw is None else self._open.pop(bytes(raw), None)
        if task is not None:
            task.cancel()

    # One request

    async def _serve(self, call: Call) -> None:
        reply = _Reply(self._outlet)
        self._metrics.exchange_started(self._endpoint)
        started = time.monotonic()
        word = "cancelled"
        try:
            came = await self._came(call, reply)
            word = came.word
            reply.done = True
            self._say(*came.body)
            if call.method == LISTEN and word == "ok":
                # Two pages of the specification want two ends; the official client takes this one alone, or
                # before the result, for a loss.
                self._say(jsonrpc.notification_message(CANCELLED, {"requestId": call.id}))
            await self._outlet.room()
        except ClientGone:
            pass
        finally:
            reply.done = True
            self._metrics.exchange(self._endpoint, call.method, word, time.monotonic() - started)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s %s: %s", self._endpoint, methods.label(call.method), word)

    async def _came(self, call: Call, reply: "_Reply") -> Outcome:
        """Return what the request comes to; only one that the client cancelled has no answer."""
        try:
            if call.method == LISTEN:
                return await self._listen(call, reply)
            return outcome(await self._pipeline.handle(call, self._principal, reply.emit), id=call.id)
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            return outcome(Stopping(), id=call.id)
        except ClientGone:
            raise
        except Exception as error:
            return outcome(error, id=call.id)

    async def _listen(self, call: Call, reply: "_Reply") -> Outcome:
        if self._listens >= self._config.limits.streams_per_caller:
            raise McpError(INTERNAL_ERROR, "Too many open streams; `limits.streams_per_caller` allows more")
        self._listens += 1
        try:
            return outcome(await self._pipeline.listen(call, self._principal, reply), id=call.id)
        finally:
            self._listens -= 1

    def _say(self, *message: Json) -> None:
        """Write a message; a client that is gone hears nothing."""
        if message and not self._outlet.gone.is_set():
            self._outlet.write(_line(*message))


class _Reply:
    """What goes out ahead of one answer: progress, logs, and whatever a listen is told."""

    __slots__ = ("_outlet", "done")

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.done = False

    async def emit(self, notice: Notice) -> None:
        """Send a notification ahead of the answer, and wait while the client is behind."""
        if self.done:
            return
        self._outlet.write(_line(jsonrpc.notification_message(notice.method, notice.params)))
        await self._outlet.room()

    def tell(self, before: bytes, id: bytes, behind: bytes) -> bool:
        """Send a notification in one line if the client takes more now; whether it was sent."""
        if self.done or self._outlet.full or self._outlet.gone.is_set():
            return False
        self._outlet.write(b"".join((before, id, behind, b"\n")))
        return True

    async def writable(self) -> None:
        """Return once the client takes more; raises ClientGone when it has left."""
        await self._outlet.room()


def _line(*message: Json) -> bytes:
    """Return a message in one line: an upstream may have written its result in many (E-29)."""
    return in_one_line(b"".join(message)) + b"\n"


def _head_of(line: bytes) -> Head:
    """Return the head that a client over HTTP would have sent before this message (S-11)."""
    members = _members(line)
    params = _inner(members, "params")
    version = jsonrpc.text_or_none(_inner(params, "_meta").get(META_VERSION))
    method = jsonrpc.text_or_none(members.get("method"))
    row = methods.METHODS.get(method or "")
    named = None if row is None or row.named_by is None else params.get(row.named_by)
    name = jsonrpc.text_or_none(named)
    if name is None and row is not None:
        return _plain_head(version, method)
    return _head(version, method, None if name is None else modern.encode_value(name))


@lru_cache(maxsize=64)
def _plain_head(version: str | None, method: str | None) -> Head:
    """Return the head of a message that names nothing: what is accepted under it is remembered by it."""
    return _head(version, method, None)


def _head(version: str | None, method: str | None, name: str | None) -> Head:
    lines = {"protocol-version": version, "method": method, "name": name}
    return Head(None, {key: (text,) for key, text in lines.items() if text is not None}, None, {})


def _members(raw: Json) -> Mapping[str, Json]:
    for text in (raw, jsonrpc.mended(bytes(raw))):
        try:
            return jsonrpc.split(text)
        except Malformed:
            continue
    return _NO_MEMBERS


def _inner(members: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    raw = members.get(key)
    return _members(raw) if raw is not None and jsonrpc.is_object(raw) else _NO_MEMBERS
