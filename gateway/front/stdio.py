"""Serves one client over stdin and stdout: a message a line, any number of them at a time.

The client is one person, whoever that is: it is known by being the one that started this process. What a
client over HTTP mirrors in headers has no place here, so the head is made of the message itself. Both eras
may be spoken on the same pipes: each message tells its own, and the pipes are the session of an older client.
"""

import asyncio
import logging
import time
from collections.abc import Container, Coroutine, Mapping
from contextlib import suppress
from functools import lru_cache

from msgspec.structs import replace

from gateway.config import Config
from gateway.front.http import LISTEN, Pipeline
from gateway.front.legacy_sessions import Sessions, Visit
from gateway.front.legacy_stream import Stream
from gateway.front.legacy_talk import UNDER_WAY, Talk, Told, in_order
from gateway.front.outcomes import Stopping, outcome
from gateway.front.pipes import Inlet, Outlet
from gateway.front.stream import ClientGone, Outcome
from gateway.protocol import jsonrpc, legacy_client, methods, modern
from gateway.protocol.call import (
    LEGACY_VERSIONS,
    META_VERSION,
    MODERN_VERSION,
    Answer,
    Call,
    Era,
    Notice,
    Principal,
)
from gateway.protocol.envelope import same_id
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Json, Malformed, McpError
from gateway.protocol.legacy_client import Answered, Asked, Message, Noted, Unreadable
from gateway.protocol.lines import LineCutter, TooLong
from gateway.protocol.modern import Head, PostedNotification, Rejection
from gateway.protocol.sse import in_one_line
from gateway.support import access, tracing
from gateway.support import exchange as exchanges
from gateway.support.exchange import Exchange
from gateway.support.guests import Guests
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
        sessions: Sessions,
        background: Background,
        stopping: asyncio.Event,
        outlet: Outlet,
        guests: Guests | None = None,
    ) -> None:
        """`guests` are the requests that work by this configuration."""
        self._endpoint = endpoint
        self._sessions = sessions
        self._background = background
        self._stopping = stopping
        self.adopt(pipeline, config, guests or Guests())
        self._visit: Visit | None = None
        """That of a client of an older revision, from its handshake on."""
        self._stream: Stream | None = None
        self._metrics = metrics
        self._principal = principal
        self._outlet = outlet
        self._open: dict[bytes, asyncio.Task[None]] = {}
        """Requests that are owed an answer, by their id in its one spelling."""
        self._running: set[asyncio.Task[None]] = set()
        self._listens = 0
        self._stopped = False

    def __repr__(self) -> str:
        return f"<StdioFront {self._endpoint}: {len(self._open)} open, {self._listens} listening>"

    def adopt(self, pipeline: Pipeline, config: Config, guests: Guests) -> None:
        """Go on by another configuration with what comes from now on."""
        self._pipeline = pipeline
        self._config = config
        self._guests = guests
        self._talk = Talk(
            self._endpoint,
            pipeline,
            config,
            self._sessions,
            background=self._background,
            stopping=self._stopping,
        )

    async def serve(self, inlet: Inlet) -> None:
        """Take messages until there are no more, or nobody is left to be answered.

        While the client does not read what it asked for, no more of its requests are read either.
        """
        cutter = LineCutter(self._config.limits.message)
        try:
            while chunk := await inlet.read():
                for line in cutter.feed(chunk):
                    await self._outlet.room()
                    await self._take_safely(line)
            for line in cutter.end():
                await self._take_safely(line)
        except ClientGone:
            pass

    async def drain(self, grace: float, hurry: asyncio.Event) -> None:
        """Let what is running finish until the grace is over, and tell the rest that the gateway stops.

        Nobody waits once the client is gone, or somebody is in a `hurry`.
        """
        if self._stream is not None:
            self._stream.close()
        ends = [self._background.start(one.wait(), name="end") for one in (hurry, self._outlet.gone)]
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._running and not any(end.done() for end in ends):
                    await asyncio.wait([*self._running, *ends], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        running = set(self._running)
        if running:
            log.warning("%d open request(s) cut off at the end of the grace", len(running))
            self._stopped = True
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_LAST_WORDS)
        self._sessions.close()
        if not await self._outlet.close(_LAST_WORDS) and not self._outlet.gone.is_set():
            log.warning("the client does not read: what was left to say is dropped")

    # Messages

    async def _take_safely(self, line: bytes | TooLong) -> None:
        """Take a message; a bug of ours costs the client no other one."""
        try:
            await self._take(line)
        except ClientGone:
            raise
        except Exception:
            log.exception("Internal error")
            self._say(jsonrpc.error_message(None, McpError(INTERNAL_ERROR, "Internal error")))

    async def _take(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            log.warning("skipped a message of %d bytes, more than limits.message", line.size)
            error = McpError(INVALID_REQUEST, "The message is larger than `limits.message`")
            self._say(jsonrpc.error_message(line.id(), error))
        elif line.strip():
            await self._message(line)

    async def _message(self, line: bytes) -> None:
        head = _head_of(line)
        if self._is_batch(line) or modern.era_of(head, line) == "legacy":
            await self._legacy(line)
        else:
            self._modern(head, line)

    def _is_batch(self, line: bytes) -> bool:
        return self._visit is not None and line.lstrip()[:1] == b"["

    def _modern(self, head: Head, line: bytes) -> None:
        accepted = modern.accept_body(
            head,
            line,
            depth=self._config.limits.depth,
            passes=lambda method: self._pipeline.passes(method, self._principal),
        )
        match accepted:
            case Call():
                self._begin(replace(accepted, param_headers=None))
            case PostedNotification(method):
                if method == CANCELLED:
                    self._cancel(_inner(_members(line), "params").get("requestId"))
            case Rejection():
                refused = outcome(accepted)
                self._metrics.rejected(self._endpoint, refused.word)
                self._say(*refused.body)

    def _begin(self, call: Call) -> None:
        if not self._refused(call.id, self._open):
            task = self._start(self._serve(call), call.method)
            id = same_id(call.id)
            self._open[id] = task
            task.add_done_callback(lambda _: self._over(id, task))

    def _refused(self, id: bytes, open: Container[bytes]) -> bool:
        """Refuse a request that nobody could tell from an open one, or one too many; whether it was."""
        if same_id(id) in open:
            error = McpError(INVALID_REQUEST, UNDER_WAY)
            self._say(jsonrpc.error_message(None, error))
            return True
        if len(self._running) - self._listens >= _MOST_AT_ONCE:
            error = McpError(INTERNAL_ERROR, f"More than {_MOST_AT_ONCE} requests are under way")
            self._say(jsonrpc.error_message(id, error))
            return True
        return False

    def _start(self, work: Coroutine[None, None, None], method: str) -> "asyncio.Task[None]":
        task = self._background.start(work, name=f"stdio {methods.label(method)}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _over(self, id: bytes, task: "asyncio.Task[None]") -> None:
        if self._open.get(id) is task:
            del self._open[id]

    def _cancel(self, id: Json | None) -> None:
        """Stop the request that the client names; it is not answered any more (U-23)."""
        task = None if id is None else self._open.pop(same_id(id), None)
        if task is not None:
            task.cancel()

    # A client of an older revision

    async def _legacy(self, line: bytes) -> None:
        depth = self._config.limits.depth
        if self._visit is None:
            await self._legacy_message(legacy_client.read_message(line, depth))
            return
        came = legacy_client.read_messages(line, self._visit.session.held.dialect, depth)
        if isinstance(came, list):
            await self._batch(self._visit, came)
        else:
            await self._legacy_message(came)

    async def _legacy_message(self, message: Message) -> None:
        visit = self._visit
        match message:
            case Asked(method="initialize"):
                # What comes next may need the session, so it waits: for no longer than upstreams may take.
                await self._initialize(message)
            case Asked() if visit is not None:
                self._listen_for(visit)
                if not self._refused(message.id, visit.session.running):
                    self._start(self._serve_legacy(visit, message), message.method)
                    await asyncio.sleep(0)  # it begins, so that the next line may take it back
            case Asked(method="ping"):
                self._say(*jsonrpc.result_pieces(message.id, b"{}"))
            case Asked():
                error = McpError(INVALID_REQUEST, "There is no session: initialize first")
                self._say(jsonrpc.error_message(message.id, error))
            case Unreadable():
                self._metrics.rejected(self._endpoint, "envelope")
                self._say(jsonrpc.error_message(message.id, message.error))
            case _:
                await self._taken(visit, message)

    async def _taken(self, visit: Visit | None, message: Noted | Answered) -> None:
        """Take in what needs no answer."""
        if isinstance(message, Noted) and message.method == CANCELLED:
            self._cancel(legacy_client.cancelled_id(message.params))
        if visit is None:
            return
        if isinstance(message, Answered):
            await self._talk.answer(visit, message)
            return
        self._listen_for(visit)
        await self._talk.note(visit, message)

    async def _initialize(self, asked: Asked) -> None:
        """Begin the session, in the place of one that there may be."""
        self._metrics.exchange_started(self._endpoint)
        exchange = self._exchange("legacy", asked.method)
        self._trace(exchange, asked, legacy_client.asked_version(asked.params) or "", self._principal)
        try:
            told, token = await self._talk.initialize(asked, self._principal)
            if token is not None:
                self._forget_session()
                self._visit = await self._sessions.find(token, self._endpoint, self._principal)
            exchange.sent = self._tell(told, asked)
            exchange.outcome = told.word
        finally:
            self._ended(exchange, asked.method, legacy_client.asked_version(asked.params) or "")

    def _forget_session(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._visit is not None:
            self._sessions.forget(self._visit.session)

    def _listen_for(self, visit: Visit) -> None:
        """Tell the client of changes, once it has shown that it knows of its session."""
        if self._stream is None:
            self._stream = self._talk.stream(visit, _LegacyOutlet(self._outlet))
            self._background.start(self._run(visit, self._stream), name="legacy stream")

    async def _run(self, visit: Visit, stream: Stream) -> None:
        try:
            await self._sessions.take_stream(visit.session, stream)
            await stream.run()
        finally:
            stream.close()
            await self._sessions.leave_stream(visit.session, stream)

    async def _serve_legacy(self, visit: Visit, asked: Asked) -> None:
        told = await self._told(visit, asked)
        if told is not None:
            self._tell(told, asked)
            with suppress(ClientGone):
                await self._outlet.room()

    async def _told(self, visit: Visit, asked: Asked) -> Told | None:
        """Return the answer, None where the client wants none any more."""
        self._metrics.exchange_started(self._endpoint)
        exchange = self._exchange("legacy", asked.method)
        self._trace(exchange, asked, visit.session.held.dialect.version, visit.principal)
        guests = self._guests
        guests.come()
        try:
            told = await self._talk.ask(visit, asked, _LegacyOutlet(self._outlet))
            exchange.outcome = told.word
            exchange.sent = sum(map(len, self._pieces(told, asked)))
            return told
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            exchange.outcome = "stopping"
            return Told(outcome(Stopping(), id=asked.id).body, exchange.outcome)
        finally:
            guests.leave()
            self._ended(exchange, asked.method, visit.session.held.version)

    def _tell(self, told: Told, asked: Asked) -> int:
        """Write an answer; return its size."""
        return self._say(*self._pieces(told, asked))

    def _pieces(self, told: Told, asked: Asked) -> tuple[Json, ...]:
        if told.refusal is not None:
            return outcome(told.refusal, id=asked.id).body
        return told.message or ()

    async def _batch(self, visit: Visit, messages: list[Message]) -> None:
        """Answer several messages in one array (X-60)."""
        for one in messages:
            if isinstance(one, Answered):
                await self._taken(visit, one)
        begun = await in_order(
            messages,
            lambda asked: self._told_once(visit, asked),
            lambda noted: self._taken(visit, noted),
            self._background,
        )
        refused = [one for one in messages if isinstance(one, Unreadable)]
        if begun or refused:
            self._start(self._answer_batch(begun, refused), "batch")

    async def _told_once(self, visit: Visit, asked: Asked) -> Told | None:
        """Return the answer, unless it would be taken for that to another request: it is none then."""
        return None if self._refused(asked.id, visit.session.running) else await self._told(visit, asked)

    async def _answer_batch(
        self, begun: "list[tuple[Asked, asyncio.Task[Told | None]]]", refused: list[Unreadable]
    ) -> None:
        answers = [jsonrpc.error_message(one.id, one.error) for one in refused]
        told = await asyncio.gather(*(task for _, task in begun))
        for (asked, _), one in zip(begun, told, strict=True):
            pieces = () if one is None else self._pieces(one, asked)
            if pieces:
                answers.append(b"".join(pieces))
        if answers:
            self._say(jsonrpc.array(answers))

    # One request

    async def _serve(self, call: Call) -> None:
        reply = _Reply(self._outlet)
        self._metrics.exchange_started(self._endpoint)
        exchange = self._exchange("modern", call.method)
        if tracing.on():
            version, meta = call.meta.version, call.meta.vendor
            tracing.serve(
                exchange, id=call.id, version=version, principal=self._principal, meta=meta, headers={}
            )
        try:
            came = await self._came(call, reply, exchange)
            exchange.outcome = came.word
            reply.done = True
            exchange.sent = self._say(*came.body)
            if call.method == LISTEN and came.word == "ok":
                # Two pages of the specification want two ends; the official client takes this one alone, or
                # before the result, for a loss.
                self._say(jsonrpc.notification_message(CANCELLED, {"requestId": call.id}))
            await self._outlet.room()
        except ClientGone:
            pass
        finally:
            reply.done = True
            self._ended(exchange, call.method)

    def _exchange(self, era: Era, method: str) -> Exchange:
        """Return a new exchange, which this task works on from here on."""
        exchange = exchanges.begin("stdio")
        exchange.endpoint = self._endpoint
        exchange.era = era
        exchange.method = methods.shown(method)
        exchange.caller = self._principal.who or ""
        exchange.listens = method == LISTEN
        return exchange

    def _trace(self, exchange: Exchange, asked: Asked, version: str, principal: Principal) -> None:
        """Begin the span of a request, if requests are traced."""
        if tracing.on():
            known = version if version in LEGACY_VERSIONS else ""
            meta = legacy_client.meta_of(asked.params)
            tracing.serve(exchange, id=asked.id, version=known, principal=principal, meta=meta, headers={})

    def _ended(self, exchange: Exchange, method: str, version: str = MODERN_VERSION) -> None:
        seconds = time.monotonic() - exchange.began
        self._metrics.exchange(self._endpoint, method, exchange.outcome, seconds, version, program=True)
        access.tell(exchange)

    async def _came(self, call: Call, reply: "_Reply", exchange: Exchange) -> Outcome:
        """Return what the request comes to; only one that the client cancelled has no answer."""
        try:
            if call.method == LISTEN:
                return await self._listen(call, reply)
            answer = await self._handled(call, reply)
            exchange.reuse = answer.reuse
            return outcome(answer, id=call.id)
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            return outcome(Stopping(), id=call.id)
        except ClientGone:
            raise
        except Exception as error:
            return outcome(error, id=call.id)

    async def _handled(self, call: Call, reply: "_Reply") -> Answer:
        guests = self._guests
        guests.come()
        try:
            return await self._pipeline.handle(call, self._principal, reply.emit)
        finally:
            guests.leave()

    async def _listen(self, call: Call, reply: "_Reply") -> Outcome:
        if self._listens >= self._config.limits.streams_per_caller:
            raise McpError(INTERNAL_ERROR, "Too many open streams; `limits.streams_per_caller` allows more")
        self._listens += 1
        try:
            return outcome(await self._pipeline.listen(call, self._principal, reply), id=call.id)
        finally:
            self._listens -= 1

    def _say(self, *message: Json) -> int:
        """Write a message and return its size; a client that is gone hears nothing."""
        if not message or self._outlet.gone.is_set():
            return 0
        line = _line(*message)
        self._outlet.write(line)
        return len(line)


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


class _LegacyOutlet:
    """Where what belongs to a session goes: there is one way to the client, whatever it belongs to."""

    __slots__ = ("_outlet",)

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    async def send(self, message: bytes) -> None:
        """Send a message, and wait while the client is slow to take it."""
        self._outlet.write(_line(message))
        await self._outlet.room()

    def post(self, message: bytes) -> bool:
        """Send a message if the client takes more now; whether it was sent."""
        if self._outlet.full:
            return False
        self._outlet.write(_line(message))
        return True

    async def writable(self) -> None:
        """Return once the client takes more."""
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
