"""Clients of older revisions over HTTP: sessions, batches, the standing stream and the end (X-20 to X-25).

What they say is understood in front/legacy_talk.py; here it is taken out of HTTP and put back into it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import hdrs, web

from gateway import config
from gateway.front.admission import Refusal
from gateway.front.legacy_sessions import Sessions, TooMany, Visit
from gateway.front.legacy_talk import Pipeline, Talk, Told, in_order
from gateway.front.stream import Outcome, Responder, failure, too_much
from gateway.protocol import jsonrpc, legacy_client, methods, modern
from gateway.protocol.call import LEGACY_VERSIONS, SERVED_VERSIONS, Challenge, Forbidden, Principal
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, McpError, array
from gateway.protocol.legacy_client import Answered, Asked, Message, Noted, Unreadable
from gateway.support import exchange, tracing
from gateway.support.metrics import Metrics
from gateway.support.notebook import Unavailable
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

VERBS = frozenset({"GET", "DELETE"})
"""What is served beside POST, to sessions (S-05)."""

_HEADER = b"Mcp-Session-Id: %b\r\n"
_RETRY = 5
"""Seconds after which it makes sense to try again what there was no room for."""
_TAKEN = Outcome(202, word="notification")
_NO_MORE = Outcome(200, word="cancelled", streamed=True)
"""The end of a stream without an answer."""


class LegacyFront:
    """Serves the sessions of all endpoints."""

    def __init__(
        self,
        pipelines: Mapping[str, Pipeline],
        settings: config.Config,
        sessions: Sessions,
        metrics: Metrics,
        *,
        background: Background,
        stopping: asyncio.Event,
        refused: Callable[[Challenge | Forbidden, bytes | None, str, Responder], Outcome],
        barred: Callable[[str, Responder, int], Awaitable[Refusal | None]],
    ) -> None:
        """`refused` makes HTTP of what this caller may not do here, or at an upstream that knows it."""
        self._limits = settings.limits
        self._depth = settings.limits.depth
        self._barred = barred
        self._sessions = sessions
        self._metrics = metrics
        self._background = background
        self._refused = refused
        self._talks = {
            path: Talk(path, pipeline, settings, sessions, background=background, stopping=stopping)
            for path, pipeline in pipelines.items()
        }

    def __repr__(self) -> str:
        return f"<LegacyFront {self._sessions!r}>"

    def sweep(self) -> None:
        """Forget what was idle for too long."""
        self._sessions.sweep()

    def close(self) -> None:
        """End what goes on in sessions without anybody waiting for it."""
        self._sessions.close()

    # The verbs

    async def post(
        self, endpoint: str, head: modern.Head, body: bytes, principal: Principal, responder: Responder
    ) -> Outcome:
        """Answer what is posted."""
        ids = head.lines.get(modern.SESSION, ())
        came: Message | list[Message] | None = None
        if not ids or body.lstrip()[:1] != b"[":
            came = legacy_client.read_message(body, self._depth)
            if isinstance(came, Asked) and came.method == "initialize":
                return await self._initialize(endpoint, head, came, principal, responder)
            if not ids:
                return self._outside(came)
        id = came.id if isinstance(came, Asked | Unreadable) else None
        visit = await self._find(endpoint, ids, principal, id)
        if not isinstance(visit, Visit):
            return visit
        if came is None:
            came = legacy_client.read_messages(body, visit.session.held.dialect, self._depth)
        with visit.session.visited():
            try:
                if isinstance(came, list):
                    return await self._batch(endpoint, visit, came, responder)
                return await self._one(endpoint, visit, came, responder)
            except Unavailable as error:
                log.warning("a client's answer could not be handed on: %s", error)
                return _busy("The answer cannot be handed on at the moment; send it again")

    async def get(
        self,
        endpoint: str,
        request: web.BaseRequest,
        head: modern.Head,
        principal: Principal,
        responder: Responder,
    ) -> Outcome:
        """Keep a session's standing stream open, in the place of the one it had (A-46)."""
        if not modern.takes_events(request.headers.getall(hdrs.ACCEPT, ())):
            return _refused(406, "Not Acceptable: Accept must admit text/event-stream", "accept")
        visit = await self._standing(endpoint, head, principal)
        if not isinstance(visit, Visit):
            return visit
        barred = responder.entry.stream(self._limits)
        if barred is not None:
            return too_much(barred)
        responder.begin(None)
        exchange.lasts()
        stream = self._talks[endpoint].stream(visit, responder)
        try:
            if await self._sessions.take_stream(visit.session, stream):
                responder.open()
                await stream.run()
        except asyncio.CancelledError:
            if not responder.stopped:
                raise
        finally:
            stream.close()
            self._background.start(
                self._sessions.leave_stream(visit.session, stream), name="legacy stream's end"
            )
        return _NO_MORE

    async def delete(self, endpoint: str, head: modern.Head, principal: Principal) -> Outcome:
        """End a session."""
        visit = await self._standing(endpoint, head, principal)
        if not isinstance(visit, Visit):
            return visit
        try:
            await self._sessions.end(visit.session)
        except Unavailable as error:
            log.warning("a session could not be ended: %s", error)
            return _busy("The session cannot be ended at the moment")
        return Outcome(204, word="session")

    # One message

    async def _initialize(
        self, endpoint: str, head: modern.Head, asked: Asked, principal: Principal, responder: Responder
    ) -> Outcome:
        wanted = legacy_client.asked_version(asked.params)
        if any(stated != wanted for stated in head.lines.get("protocol-version", ())):
            error = McpError(INVALID_REQUEST, "The MCP-Protocol-Version header differs from the body")
            return failure(400, error, asked.id, "header_mismatch")
        responder.begin(asked.id)
        with _Counted(self._metrics, endpoint, asked.method, responder, wanted or "") as counted:
            _trace(asked, wanted or "", principal, responder)
            try:
                told, token = await self._talks[endpoint].initialize(asked, principal)
            except TooMany as full:
                counted.word = "error"
                return _busy(str(full), asked.id)
            counted.word = told.word
            if token is not None:
                responder.extra_head += _HEADER % token.encode()
            return self._outcome(told, asked.id, endpoint, responder)

    def _outside(self, message: Message) -> Outcome:
        """Answer what is said without a session: before it may come a ping alone (X-05, X-21)."""
        if isinstance(message, Asked) and message.method == "ping":
            return Outcome(200, jsonrpc.result_pieces(message.id, b"{}"))
        if isinstance(message, Unreadable):
            return _unreadable(message)
        id = message.id if isinstance(message, Asked) else None
        error = McpError(INVALID_REQUEST, "There is no Mcp-Session-Id header: initialize first")
        return failure(400, error, id, "session")

    async def _one(self, endpoint: str, visit: Visit, message: Message, responder: Responder) -> Outcome:
        match message:
            case Asked():
                responder.begin(message.id)
                told = await self._told(endpoint, visit, message, responder)
                return self._outcome(told, message.id, endpoint, responder)
            case Unreadable():
                return _unreadable(message)
            case _:
                await self._taken(endpoint, visit, message)
                return _TAKEN

    async def _taken(self, endpoint: str, visit: Visit, message: Noted | Answered) -> None:
        """Take in what needs no answer."""
        exchange.called_for("notification" if isinstance(message, Noted) else "answer")
        talk = self._talks[endpoint]
        if isinstance(message, Noted):
            await talk.note(visit, message)
        else:
            await talk.answer(visit, message)

    async def _told(self, endpoint: str, visit: Visit, asked: Asked, responder: Responder) -> Told:
        version = visit.session.held.dialect.version
        with _Counted(self._metrics, endpoint, asked.method, responder, version) as counted:
            _trace(asked, version, visit.principal, responder)
            over = responder.entry.keep()  # until the work has ended, whoever waits for it
            told = await self._talks[endpoint].ask(visit, asked, responder, over)
            counted.word = told.word
            return told

    # Several messages

    async def _batch(
        self, endpoint: str, visit: Visit, messages: list[Message], responder: Responder
    ) -> Outcome:
        """Answer each message on its own: in one array, or as events once there is a stream (X-60)."""
        more = sum(isinstance(one, Asked) for one in messages) - 1
        if more > 0:
            barred = responder.entry.more(self._limits, more)
            if barred is None:
                barred = await self._barred(endpoint, responder, more)
            if barred is not None:
                return too_much(barred)
        exchange.called_for("batch")
        refusals = [_unreadable(one).body for one in messages if isinstance(one, Unreadable)]
        for one in messages:  # what was asked before comes before anything new
            if isinstance(one, Answered):
                await self._taken(endpoint, visit, one)
        if refusals or any(isinstance(one, Asked) for one in messages):
            responder.begin(None)
        begun = await in_order(
            messages,
            lambda asked: self._told(endpoint, visit, asked, responder),
            lambda noted: self._taken(endpoint, visit, noted),
            self._background,
        )
        if not begun and not refusals:
            return _TAKEN
        answers = [b"".join(body) for body in refusals]
        told = await asyncio.gather(*(task for _, task in begun))
        answers += [
            b"".join(self._outcome(one, asked.id, endpoint, responder).body)
            for (asked, _), one in zip(begun, told, strict=True)
            if one.message is not None
        ]
        if not answers:
            return _NO_MORE
        if not responder.streaming:
            return Outcome(200, (array(answers),))
        for answer in answers[:-1]:
            await responder.send(answer)
        return Outcome(200, (answers[-1],))

    # Outcomes

    async def _find(
        self, endpoint: str, ids: tuple[str, ...], principal: Principal, id: bytes | None = None
    ) -> Visit | Outcome:
        """Return the session, or what the request with this id is told where there is none."""
        if len(ids) > 1:
            error = McpError(INVALID_REQUEST, "There is more than one Mcp-Session-Id header")
            return failure(400, error, id, "session")
        try:
            visit = await self._sessions.find(ids[0], endpoint, principal)
        except TooMany as full:
            return _busy(str(full), id)
        if visit is None:
            error = McpError(INVALID_REQUEST, "There is no such session, or not any more: initialize again")
            return failure(404, error, id, "session")
        return visit

    async def _standing(self, endpoint: str, head: modern.Head, principal: Principal) -> Visit | Outcome:
        """Return the session that a GET or a DELETE is about; any known version may be stated (X-22)."""
        if any(
            stated not in SERVED_VERSIONS and stated not in LEGACY_VERSIONS
            for stated in head.lines.get("protocol-version", ())
        ):
            error = McpError(
                INVALID_REQUEST, "The MCP-Protocol-Version header names no version that is known"
            )
            return failure(400, error, None, "version")
        return await self._find(endpoint, head.lines[modern.SESSION], principal)

    def _outcome(self, told: Told, id: bytes, endpoint: str, responder: Responder) -> Outcome:
        """Return an answer as HTTP; whatever came of a method, its status is 200 (E-17)."""
        if told.refusal is not None:
            return self._refused(told.refusal, id, endpoint, responder)
        if told.message is None:
            return _NO_MORE
        return Outcome(200, told.message, told.word)


class _Counted:
    """Counts a request in and out."""

    def __init__(
        self, metrics: Metrics, endpoint: str, method: str, responder: Responder, version: str
    ) -> None:
        self._metrics = metrics
        self._endpoint = endpoint
        self._method = method
        self._responder = responder
        self._version = version
        self._started = 0.0
        self.word = "cancelled"

    def __enter__(self) -> "_Counted":
        self._metrics.exchange_started(self._endpoint)
        exchange.called_for(methods.shown(self._method))
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        word = "stopping" if self._responder.stopped else self.word
        seconds = time.monotonic() - self._started
        self._metrics.exchange(self._endpoint, self._method, word, seconds, self._version)


def _trace(asked: Asked, version: str, principal: Principal, responder: Responder) -> None:
    """Begin the span of a request, if requests are traced."""
    of = exchange.current()
    if of is not None and tracing.on():
        meta = legacy_client.meta_of(asked.params)
        tracing.serve(
            of,
            id=asked.id,
            version=version if version in LEGACY_VERSIONS else "",
            principal=principal,
            meta=meta,
            headers=responder.request.headers,
        )


def _unreadable(message: Unreadable) -> Outcome:
    return failure(400, message.error, message.id, "envelope")


def _refused(status: int, text: str, word: str) -> Outcome:
    return Outcome(status, (f"{text}\n".encode(),), word, content_type="text/plain; charset=utf-8")


def _busy(reason: str, id: bytes | None = None) -> Outcome:
    error = McpError(INTERNAL_ERROR, reason)
    return failure(503, error, id, "sessions", {"Retry-After": str(_RETRY)})
