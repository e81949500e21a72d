"""Calls of servers of older eras that wait for a client's answers, and how a retry finds them (M-19, M-20).

Such a server asks its questions in the middle of a call. The call stays here, on the replica that holds its
session, while the client is given the questions and a state: the address of this process and a random name.
Whichever replica the retry comes to asks the one that holds the call. What a user answers is kept nowhere.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from gateway.protocol.call import (
    Challenge,
    Context,
    Emit,
    Notice,
    Reason,
    Reply,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Json,
    McpError,
    is_object,
    split,
    text_or_none,
)
from gateway.support.mailbox import Mailbox, Tell, Unreachable
from gateway.support.metrics import Metrics
from gateway.support.shares import Shares
from gateway.support.tasks import Background
from gateway.upstream.failures import Failed, TimedOut, UpstreamError

log = logging.getLogger(__name__)

_SUBJECT = "parked"
_GIVEN_UP = "parked-given-up"
_REPORT = "parked-report"
_MOST_WORDS = 100
"""Words on their way at once that nobody waits for; more are dropped."""
_CLOSING = 2.0
GONE = "the call that asked for this input is over, or none of yours"
_MANY = {
    "all": "too many calls wait for input",
    "own": "too many of your calls wait for input; the setting `limits.questions_per_caller` allows more",
}
_AWAY = "the replica that holds this call is out of reach"


class Suspended(Protocol):
    """A call whose upstream waits for answers. It is gone on with once, or dropped."""

    async def go_on(self, answers: Mapping[str, Json], emit: Emit | None) -> Reply:
        """Hand the answers over and return the result, or more questions, parked anew.

        Raises what `Transport.call` does. Cancelling it cancels the call at the upstream (U-23).
        """
        ...

    def report(self, key: str, params: Mapping[str, Json]) -> None:
        """Tell the upstream how far the client is with one of the answers; waits for nothing."""
        ...

    def on_withdrawn(self, key: str, tell: Callable[[], None]) -> None:
        """Have it told once the upstream does not want the answer to a question any more, at once if so."""
        ...

    async def drop(self) -> None:
        """Cancel the call at the upstream (U-23): nobody brings answers any more."""
        ...


@dataclass(eq=False, slots=True)
class _Entry:
    suspended: Suspended
    context: Context
    end: asyncio.TimerHandle
    over: Callable[[], bool]


class Parked:
    """All calls of this process that wait for answers: at most `most`, and `each` of one caller.

    Each waits for a bounded time.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        background: Background,
        *,
        most: int = 1000,
        each: int = 100,
        wait: float = 600.0,
        anonymous_wait: float = 300.0,
        metrics: Metrics | None = None,
    ) -> None:
        """`anonymous_wait` is for how long a call of those who cannot be told apart is kept."""
        self._mailbox = mailbox
        self._background = background
        self._shares = Shares(most, each)
        self._wait = wait
        self._anonymous_wait = anonymous_wait
        self._entries: dict[str, _Entry] = {}
        self._metrics = metrics
        self._closed = False
        self._words = 0
        self.on_completed: Callable[[str, str], Awaitable[None]] | None = None
        """Told by which session's client, under which key, a page was asked for that has been dealt with."""
        mailbox.serve(_SUBJECT, self._answer)
        mailbox.serve(_REPORT, self._hear_report)
        mailbox.serve(_GIVEN_UP, self._abandon)

    def __repr__(self) -> str:
        return f"<Parked {len(self)} calls>"

    def __len__(self) -> int:
        return len(self._entries)

    def allow(self, *, most: int, each: int, wait: float, anonymous_wait: float) -> None:
        """Let so many calls wait from now on, for so long; those that do are kept as they are."""
        self._shares.allow(most, each)
        self._wait = wait
        self._anonymous_wait = anonymous_wait

    def park(self, suspended: Suspended, context: Context, over: Callable[[], bool] = lambda: False) -> str:
        """Keep a call until its answers come, and return the state that leads to it.

        `over` says whether its upstream does not wait any more. When there is no room, or we are stopping, it
        is dropped and McpError says so to the client.
        """
        full = None if self._closed else self._shares.take(context.caller)
        if self._closed or full is not None:
            self._drop(suspended)
            self._count("stopping" if full is None else "refused")
            raise McpError(INTERNAL_ERROR, Reason.STOPPING.value if full is None else _MANY[full])
        name = secrets.token_urlsafe(16)
        anonymous = not context.caller and not context.alone
        life = self._anonymous_wait if anonymous else self._wait
        end = asyncio.get_running_loop().call_later(life, self._expire, name)
        self._entries[name] = _Entry(suspended, context, end, over)
        self._count(None)
        return f"{self._mailbox.me}.{name}"

    async def resume(
        self,
        state: str,
        context: Context,
        input_responses: Mapping[str, Json],
        emit: Emit | None = None,
    ) -> Reply:
        """Go on with a call, wherever it is held; raises what `Suspended.go_on` does.

        McpError -32602 when it is over, another's, or somebody goes on with it already: of several retries
        one reaches the upstream. Another McpError says that it may still be there and cannot be reached.
        """
        address, _, name = state.partition(".")
        if address == self._mailbox.me:
            return await self._go_on(name, context, input_responses, emit)
        answers = {key: bytes(answer) for key, answer in input_responses.items()}
        question = _encode(_Question(name, context, answers))
        try:
            said = await self._mailbox.ask(
                address, _SUBJECT, question, timeout=None, told=None if emit is None else _passing_on(emit)
            )
        except Unreachable as error:
            log.info("a parked call cannot be gone on with: %s", error)
            raise (
                McpError(INVALID_PARAMS, GONE) if error.gone else McpError(INTERNAL_ERROR, _AWAY)
            ) from None
        return _told(_decode_outcome(said))

    async def go_on(self, request: Request, emit: Emit | None = None) -> Reply:
        """Go on with the call that a request brings answers for; raises what `resume` does."""
        state = text_or_none(request.params.get("requestState"))
        answers = request.params.get("inputResponses")
        if answers is None:  # they may have been taken back meanwhile, or the call be over
            answers = b"{}"
        if state is None or not is_object(answers):
            raise McpError(INVALID_PARAMS, "requestState must be a string, inputResponses an object")
        return await self.resume(state, request.context, split(answers), emit)

    async def give_up(self, state: str, context: Context) -> None:
        """Drop a call whose questions nobody will answer, wherever it is held; it may be gone already."""
        address, _, name = state.partition(".")
        if address == self._mailbox.me:
            self._let_go(name, context)
            return
        question = _encode(_Question(name, context, {}))
        with suppress(Unreachable, TimeoutError):  # it expires
            await self._mailbox.ask(address, _GIVEN_UP, question, timeout=_CLOSING)

    def report(self, state: str, context: Context, key: str, params: Mapping[str, Json]) -> None:
        """Pass on how far a client is with an answer, to wherever the call is held; it may get lost."""
        address, _, name = state.partition(".")
        if address == self._mailbox.me:
            self._report(name, context, key, params)
            return
        said = {member: bytes(raw) for member, raw in params.items()}
        question = _encode(_Report(name, context, key, said))
        self._say(lambda: self._reported(address, question))

    def on_withdrawn(self, state: str, context: Context, key: str, tell: Callable[[], None]) -> None:
        """Have it told once a question is taken back, or its call over; known here of calls held here only.

        Whoever makes a call in rounds makes all of them on the replica that holds it.
        """
        address, _, name = state.partition(".")
        entry = self._entries.get(name)
        if address == self._mailbox.me and entry is not None and entry.context == context:
            entry.suspended.on_withdrawn(key, tell)

    def completed(self, session: str, key: str) -> bool:
        """Have a client told that a page has been dealt with; whether it may be."""
        tell = self.on_completed
        return tell is not None and self._say(lambda: tell(session, key))

    def sweep(self) -> None:
        """Let go of calls whose upstreams wait no more."""
        for name in [name for name, entry in self._entries.items() if entry.over()]:
            self._drop(self._taken(name).suspended)
            self._count("given-up")

    async def close(self) -> None:
        """Drop every call; whoever comes later is told that it is over."""
        self._closed = True
        dropping = []
        for name in list(self._entries):
            dropping.append(self._drop(self._taken(name).suspended))
            self._count("stopping")
        if dropping:
            await asyncio.wait(dropping, timeout=_CLOSING)

    async def _go_on(
        self, name: str, context: Context, answers: Mapping[str, Json], emit: Emit | None
    ) -> Reply:
        entry = self._entries.get(name)
        if entry is None or entry.context != context:
            raise McpError(INVALID_PARAMS, GONE)
        self._taken(name)
        self._count("resumed")
        return await entry.suspended.go_on(answers, emit)

    async def _answer(self, question: bytes, tell: Tell) -> bytes:
        """Go on with a call for another replica, and say how that went in a form that can be carried."""
        asked = _decode_question(question)

        async def emit(notice: Notice) -> None:
            params = {key: bytes(value) for key, value in notice.params.items()}
            await tell(_encode(_Said(notice.method, params)))

        try:
            reply = await self._go_on(asked.name, asked.context, asked.answers, emit)
        except (McpError, UpstreamUnavailable, Challenge) as error:
            return _encode(_outcome(error))
        return _encode(_Replied(bytes(reply.result)))

    async def _abandon(self, question: bytes, tell: Tell) -> bytes:
        asked = _decode_question(question)
        self._let_go(asked.name, asked.context)
        return b""

    async def _hear_report(self, question: bytes, tell: Tell) -> bytes:
        said = _decode_report(question)
        self._report(said.name, said.context, said.key, said.params)
        return b""

    def _report(self, name: str, context: Context, key: str, params: Mapping[str, Json]) -> None:
        entry = self._entries.get(name)
        if entry is not None and entry.context == context:
            entry.suspended.report(key, params)

    async def _reported(self, address: str, question: bytes) -> None:
        with suppress(Unreachable, TimeoutError):
            await self._mailbox.ask(address, _REPORT, question, timeout=_CLOSING)

    def _say(self, word: Callable[[], Awaitable[None]]) -> bool:
        """Do what nobody waits for, unless too much of it is being done; whether it is."""
        if self._words >= _MOST_WORDS:
            return False
        self._words += 1

        async def said() -> None:
            try:
                await word()
            finally:
                self._words -= 1

        self._background.start(said(), name="word about a question")
        return True

    def _let_go(self, name: str, context: Context) -> None:
        entry = self._entries.get(name)
        if entry is None or entry.context != context:
            return
        self._drop(self._taken(name).suspended)
        self._count("given-up")

    def _expire(self, name: str) -> None:
        self._drop(self._taken(name).suspended)
        self._count("expired")

    def _taken(self, name: str) -> _Entry:
        """Return a call that waits no more."""
        entry = self._entries.pop(name)
        entry.end.cancel()
        self._shares.give_back(entry.context.caller)
        return entry

    def _count(self, outcome: str | None) -> None:
        """Say how many there are, and how one of them ended."""
        if self._metrics is not None:
            self._metrics.parked(len(self._entries))
            if outcome is not None:
                self._metrics.parked_ended(outcome)

    def _drop(self, suspended: Suspended) -> "asyncio.Task[None]":
        return self._background.start(suspended.drop(), name="drop a parked call")


# What replicas say to each other; payloads are bytes and never taken apart


class _Question(msgspec.Struct, array_like=True):
    name: str
    context: Context
    answers: dict[str, bytes]


class _Report(msgspec.Struct, array_like=True):
    name: str
    context: Context
    key: str
    params: dict[str, bytes]


class _Said(msgspec.Struct, array_like=True):
    method: str
    params: dict[str, bytes]


class _Replied(msgspec.Struct, array_like=True, tag="reply"):
    result: bytes


class _Refused(msgspec.Struct, array_like=True, tag="error"):
    code: int
    message: str
    data: bytes | None
    status: int | None
    """That of the upstream's HTTP response; None = the gateway's own error."""


class _Unavailable(msgspec.Struct, array_like=True, tag="unavailable"):
    upstream: str
    reason: Reason
    detail: str
    outage: bool
    status: int | None = None


class _Late(msgspec.Struct, array_like=True, tag="late"):
    upstream: str
    target: str
    limit: str


class _Challenged(msgspec.Struct, array_like=True, tag="challenge"):
    upstream: str
    status: int
    error: str | None
    scope: str | None


_Outcome: TypeAlias = _Replied | _Refused | _Unavailable | _Late | _Challenged

_encode = msgspec.msgpack.Encoder().encode
_decode_question = msgspec.msgpack.Decoder(_Question).decode
_decode_report = msgspec.msgpack.Decoder(_Report).decode
_decode_said = msgspec.msgpack.Decoder(_Said).decode
_decode_outcome = msgspec.msgpack.Decoder(_Outcome).decode


def _passing_on(emit: Emit) -> Tell:
    async def told(said: bytes) -> None:
        notice = _decode_said(said)
        await emit(Notice(notice.method, notice.params))

    return told


def _outcome(error: McpError | UpstreamUnavailable | Challenge) -> _Outcome:
    match error:
        case McpError():
            data = None if error.data is None else bytes(error.data)
            status = error.status if isinstance(error, UpstreamError) else None
            return _Refused(error.code, error.message, data, status)
        case Challenge():
            return _Challenged(error.upstream, error.status, error.error, error.scope)
        case TimedOut():
            return _Late(error.upstream, error.target, error.limit)
        case _:
            status = error.status if isinstance(error, Failed) else None
            return _Unavailable(error.upstream, error.reason, error.detail, error.outage, status)


def _told(outcome: _Outcome) -> Reply:
    """Return the reply, or raise what was raised where the call is held; asking again never helps."""
    match outcome:
        case _Replied():
            return Reply(outcome.result)
        case _Refused():
            error = McpError(outcome.code, outcome.message, outcome.data)
            raise error if outcome.status is None else UpstreamError(error, outcome.status)
        case _Late():
            raise TimedOut(UpstreamName(outcome.upstream), outcome.target, outcome.limit)
        case _Challenged():
            raise Challenge(UpstreamName(outcome.upstream), outcome.status, outcome.error, outcome.scope)
        case _Unavailable():
            name = UpstreamName(outcome.upstream)
            failed = Failed(name, outcome.reason, outcome.detail, status=outcome.status)
            failed.outage = outcome.outage
            raise failed
