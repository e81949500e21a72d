"""What one endpoint says to clients of older revisions, whatever carries it: messages come in and go out.

A request becomes a call of the pipeline, as a modern client would have made it, and its answer goes back in
the client's own terms. Where an upstream asks for input meanwhile, the client is asked and the call made
again, until there is an answer (M-15). Nothing here knows of HTTP.
"""

import asyncio
import logging
import os
import random as chance
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from gateway import config
from gateway.front.legacy_sessions import Session, Sessions, Visit, Work
from gateway.front.legacy_stream import Outlet, Stream
from gateway.protocol import legacy_answers, legacy_client, legacy_questions, methods
from gateway.protocol.call import (
    MODERN_VERSION,
    Answer,
    Call,
    Challenge,
    Emit,
    Forbidden,
    Notice,
    Principal,
    RequestMeta,
    Sink,
    UpstreamUnavailable,
)
from gateway.protocol.envelope import same_id
from gateway.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Json,
    McpError,
    Members,
    error_message,
    join,
    result_pieces,
    split,
    text_or_none,
)
from gateway.protocol.legacy_client import Answered, Asked, Message, Noted
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 256
"""Requests of one session that are worked on at once, whether or not anybody waits for them any more."""

UNDER_WAY = "A request with this id is under way"

T = TypeVar("T")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
"""Seconds before a call is made again that an upstream wants to be made again (M-14)."""


class Pipeline(Protocol):
    """What answers the calls of one endpoint."""

    async def handle(self, call: Call, principal: Principal, emit: Emit) -> Answer: ...

    async def listen(self, call: Call, principal: Principal, sink: Sink) -> Answer: ...

    def passes(self, method: str, principal: Principal) -> bool: ...

    def give_up(self, call: Call, principal: Principal) -> None:
        """Let a call end that was answered with questions, as the client will not answer them."""
        ...

    def report(self, call: Call, principal: Principal, key: str, params: Mapping[str, Json]) -> None:
        """Tell who asked something in a call, of which this is the retry, how far the answer is."""
        ...

    def on_withdrawn(self, call: Call, principal: Principal, key: str, tell: Callable[[], None]) -> None:
        """Have it told once who asked something in a call wants no answer to it any more."""
        ...

    def note(self, notice: Notice, principal: Principal) -> None:
        """Tell servers what a client tells of itself."""
        ...

    async def check_subscribable(self, uri: str, capabilities: Json, principal: Principal) -> None:
        """Raise McpError unless somebody tells of the updates of this resource."""
        ...


class Told(msgspec.Struct, frozen=True):
    """The answer to a request: a message in pieces, none where the client has taken it back."""

    message: tuple[Json, ...] | None
    word: str = "ok"
    """Which names it in metrics."""
    refusal: Challenge | Forbidden | None = None
    """Set where the caller may not do this here, or an upstream refused the caller's own credential."""


class Talk:
    """Serves the sessions of one endpoint."""

    def __init__(
        self,
        endpoint: str,
        pipeline: Pipeline,
        settings: config.Config,
        sessions: Sessions,
        *,
        background: Background,
        stopping: asyncio.Event,
        random: Callable[[], float] = chance.random,
    ) -> None:
        self._endpoint = endpoint
        self._pipeline = pipeline
        self._limits = settings.limits
        self._every = max(settings.limits.session_idle / 4, 0.05)
        """Seconds after which a session is noted as alive again, in which something goes on."""
        self._sessions = sessions
        self._background = background
        self._stopping = stopping
        self._random = random

    def __repr__(self) -> str:
        return f"<Talk {self._endpoint}>"

    # Sessions

    async def initialize(self, asked: Asked, principal: Principal) -> tuple[Told, str | None]:
        """Return the answer to the handshake, and the id of the session that began, None if none did.

        Raises TooMany.
        """
        try:
            held = legacy_client.handshake(asked.params)
        except McpError as error:
            return _failed(asked, error), None
        visit, token = await self._sessions.begin(held, self._endpoint, principal)
        try:
            result = legacy_client.initialized(await self._discovered(visit), held)
        except BaseException as error:
            self._sessions.forget(visit.session)
            if not isinstance(error, Exception):
                raise
            return self._refusal(asked, held.dialect, error), None
        return Told(result_pieces(asked.id, result)), token

    async def _discovered(self, visit: Visit) -> bytes:
        """Return what the endpoint says of itself to a modern client."""
        meta = RequestMeta(MODERN_VERSION, visit.session.held.capabilities)
        call = Call(b"0", "server/discover", {}, meta, None)
        answer = await self._pipeline.handle(call, visit.principal, _nowhere)
        return b"".join(answer.result)

    def stream(self, visit: Visit, outlet: Outlet) -> Stream:
        """Return a standing stream for a session; whoever runs it takes it to the sessions first."""
        return Stream(
            self._pipeline,
            visit.principal,
            outlet,
            uris=lambda: self._sessions.uris(visit.session),
            touch=lambda: self._touched(visit.session),
            every=self._every,
            over=lambda: self._stopping.is_set() or self._sessions.over(visit.principal),
            background=self._background,
        )

    async def _touched(self, session: Session) -> bool:
        await self._sessions.keep_stream(session)
        return await self._sessions.touch(session)

    # What comes in

    async def ask(
        self, visit: Visit, asked: Asked, outlet: Outlet, over: Callable[[], None] = lambda: None
    ) -> Told:
        """Return the answer to a request; `over` is called once the work on it has ended.

        That does not end with who waits for it: a connection that is lost takes nothing back (X-25).
        """
        try:
            task, work = self._begun(visit, asked, outlet)
        except McpError as error:
            over()
            return _failed(asked, error)
        task.add_done_callback(lambda _: over())
        while not task.done():
            await asyncio.wait([task], timeout=self._every)
            if not task.done():
                await self._sessions.touch(visit.session)  # or the other replicas would take it for idle
        return Told(None, "cancelled") if task.cancelled() and work.withdrawn else task.result()

    def _begun(self, visit: Visit, asked: Asked, outlet: Outlet) -> "tuple[asyncio.Task[Told], Work]":
        """Begin to work on a request; raises McpError where that may not be."""
        id = same_id(asked.id)
        known = visit.session.running.get(id)
        if known is not None and not known.withdrawn:  # nobody could take back the one and not the other
            raise McpError(INVALID_REQUEST, UNDER_WAY)
        if len(visit.session.running) >= _MOST_AT_ONCE:
            raise McpError(INTERNAL_ERROR, "Too many requests of this session at once")
        work = Work()
        task = self._background.start(self._work(visit, asked, outlet), name="legacy request")
        work.task = task
        visit.session.running[id] = work

        def ended(_: object) -> None:
            if visit.session.running.get(id) is work:
                del visit.session.running[id]

        task.add_done_callback(ended)
        return task, work

    async def note(self, visit: Visit, noted: Noted) -> None:
        """Take in a notification; those of no interest to anybody are dropped (9.3)."""
        match noted.method:
            case "notifications/cancelled":
                id = legacy_client.cancelled_id(noted.params)
                if id is not None:
                    await self._sessions.cancel(visit.session, same_id(id))
            case "notifications/progress":
                told = legacy_client.progress_of(noted.params)
                if told is not None:
                    await self._sessions.report(visit.session, *told)
            case "notifications/roots/list_changed":
                self._pipeline.note(Notice(noted.method, {}), visit.principal)

    async def answer(self, visit: Visit, answered: Answered) -> None:
        """Take in what the client answers to something it was asked."""
        await self._sessions.answer(visit.session, answered)

    # Work on a request

    async def _work(self, visit: Visit, asked: Asked, outlet: Outlet) -> Told:
        try:
            return Told(result_pieces(asked.id, await self._result(visit, asked, outlet)))
        except Exception as error:
            return self._refusal(asked, visit.session.held.dialect, error)

    def _refusal(self, asked: Asked, dialect: legacy_client.Dialect, error: Exception) -> Told:
        match error:
            case McpError():
                return _failed(asked, legacy_answers.error_of(error, asked.method, dialect))
            case UpstreamUnavailable():
                return _failed(asked, McpError(INTERNAL_ERROR, str(error)), "unavailable")
            case Challenge():
                return Told((), "challenge", error)
            case Forbidden():
                return Told((), "forbidden", error)
        log.error("Internal error", exc_info=error)
        return _failed(asked, McpError(INTERNAL_ERROR, "Internal error"), "bug")

    async def _result(self, visit: Visit, asked: Asked, outlet: Outlet) -> bytes:
        match asked.method:
            case "ping":
                return legacy_answers.EMPTY
            case "logging/setLevel":
                if not legacy_client.offers(await self._discovered(visit), "logging"):
                    raise legacy_client.unknown_method(asked.method)  # as was said in the handshake (F-22)
                await self._sessions.set_level(visit.session, legacy_client.level_of(asked.params))
                return legacy_answers.EMPTY
            case "resources/subscribe":
                uri = legacy_client.uri_of(asked.params)
                await self._pipeline.check_subscribable(uri, visit.session.held.capabilities, visit.principal)
                await self._sessions.subscribe(visit.session, uri)
                return legacy_answers.EMPTY
            case "resources/unsubscribe":
                await self._sessions.unsubscribe(visit.session, legacy_client.uri_of(asked.params))
                return legacy_answers.EMPTY
        call = legacy_client.call_of(
            asked,
            visit.session.held,
            visit.session.level,
            lambda method: self._pipeline.passes(method, visit.principal),
        )
        result = await self._in_rounds(visit, call, outlet)
        return legacy_answers.result_of(asked.method, result, visit.session.held.dialect)

    async def _in_rounds(self, visit: Visit, call: Call, outlet: Outlet) -> bytes:
        """Return the result of a call, asking the client whatever its upstream wants to know first (M-16)."""

        async def emit(notice: Notice) -> None:
            with suppress(ConnectionError):  # nobody is there to be told; the work goes on all the same
                await outlet.send(legacy_answers.written(legacy_answers.notice_of(notice)))

        left = self._limits.rounds
        while True:
            answer = await self._pipeline.handle(call, visit.principal, emit)
            result = b"".join(answer.result)
            row = methods.METHODS.get(call.method)
            if row is None or not row.may_ask:
                return result
            members = split(result)
            if text_or_none(members.get("resultType")) != "input_required":
                return result
            call = await self._answered(visit, call, members, outlet, last=not left)
            left -= 1

    async def _answered(
        self, visit: Visit, call: Call, members: Members, outlet: Outlet, *, last: bool
    ) -> Call:
        """Return the call as it is made again, with the client's answers or after a pause (M-14)."""
        params = {
            key: raw for key, raw in call.params.items() if key not in ("inputResponses", "requestState")
        }
        if "requestState" in members:
            params["requestState"] = members["requestState"]
        requests = legacy_questions.asked(members)
        try:
            if last:
                raise McpError(INTERNAL_ERROR, f"More than {self._limits.rounds} rounds of questions")
            if requests is None:
                await asyncio.sleep(_SHORTEST_PAUSE + self._random() * (_LONGEST_PAUSE - _SHORTEST_PAUSE))
            else:
                asking = msgspec.structs.replace(call, params=dict(params))
                with self._sessions.asks(visit):
                    params["inputResponses"] = join(await self._put(visit, asking, requests, outlet))
        except BaseException:
            # Also when the client took its call back: a server that waits would keep others waiting (M-22).
            self._pipeline.give_up(msgspec.structs.replace(call, params=params), visit.principal)
            raise
        return msgspec.structs.replace(call, params=params)

    async def _put(self, visit: Visit, call: Call, requests: Members, outlet: Outlet) -> dict[str, Json]:
        """Put an upstream's questions to the client and return the answers; raises McpError."""
        wait = self._limits.input_wait
        questions = legacy_questions.questions(requests, visit.session.held.dialect, _mint)
        asked: list[tuple[legacy_questions.Question, str, asyncio.Future[Answered]]] = []
        withdrawn: set[str] = set()
        reason = "it is not needed any more"

        def withdraw(id: str, answer: asyncio.Future[Answered]) -> None:
            """Take back a question whose answer the upstream does not wait for any more (9.5)."""
            if not answer.done():
                withdrawn.add(id)
                answer.cancel()
                _take_back(id, outlet, reason)

        try:
            for question in questions:
                if question.page is not None and legacy_questions.completes(question.key):
                    await self._sessions.note_page(visit.session, question.key, question.page)
                report = partial(self._pipeline.report, call, visit.principal, question.key)
                wanted = legacy_questions.wants_progress(question.key)
                asked.append(
                    (question, *self._sessions.question(visit.session, wait, report if wanted else None))
                )
            for question, id, _ in asked:
                await outlet.send(legacy_questions.request(id, question))
            for question, id, answer in asked:
                tell = partial(withdraw, id, answer)
                self._pipeline.on_withdrawn(call, visit.principal, question.key, tell)
            given: dict[str, Json] = {}
            try:
                async with asyncio.timeout(wait):
                    for question, id, answer in asked:
                        await asyncio.wait((answer,))
                        if id not in withdrawn:
                            given[question.key] = legacy_questions.response(question, answer.result())
                return given
            except TimeoutError:
                reason = "it took too long"
                raise McpError(INTERNAL_ERROR, "The client did not answer in time") from None
        except ConnectionError:
            raise McpError(INTERNAL_ERROR, "The client is not there to be asked") from None
        finally:
            for _, id, answer in asked:
                if id not in withdrawn and (not answer.done() or answer.cancelled()):
                    answer.cancel()
                    _take_back(id, outlet, reason)


async def in_order(
    messages: Iterable[Message],
    begin: Callable[[Asked], Coroutine[None, None, T]],
    take: Callable[[Noted], Awaitable[None]],
    background: Background,
) -> "list[tuple[Asked, asyncio.Task[T]]]":
    """Begin the requests of a batch and take its notifications, each after all that came before it (X-60).

    So what takes back a request of the same batch finds it.
    """
    begun: list[tuple[Asked, asyncio.Task[T]]] = []
    try:
        for one in messages:
            if isinstance(one, Asked):
                begun.append((one, background.start(begin(one), name="legacy batch")))
                await asyncio.sleep(0)  # it runs until it waits for something, and is known from then on
            elif isinstance(one, Noted):
                await take(one)
    except BaseException:
        for _, task in begun:
            task.cancel()
        raise
    return begun


def _take_back(id: str, outlet: Outlet, reason: str) -> None:
    """Tell the client that a question needs no answer any more."""
    with suppress(ConnectionError):
        outlet.post(legacy_questions.withdrawal(id, reason))


def _failed(asked: Asked, error: McpError, word: str = "error") -> Told:
    return Told((error_message(asked.id, error),), word)


def _mint() -> str:
    return os.urandom(16).hex()


async def _nowhere(notice: Notice) -> None:
    """Nobody is told anything before a session has begun."""
