"""One upstream of the pool: its health, found out by probing, and calls with their limits and retries."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Literal, TypeAlias, TypeVar

from cachetools import LRUCache

from gateway import config
from gateway.protocol.call import (
    Challenge,
    Change,
    Context,
    Emit,
    Era,
    Notice,
    Reason,
    Reply,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import HEADER_MISMATCH, McpError
from gateway.protocol.methods import METHODS, shown
from gateway.protocol.subscriptions import Wanted
from gateway.support import exchange, tracing
from gateway.support.metrics import Metrics
from gateway.support.rates import Rates
from gateway.support.tasks import happens
from gateway.upstream.breaker import Breakers, Passed, Standing
from gateway.upstream.deadlines import Deadline
from gateway.upstream.failures import Busy, Failed, StaleSchema, TimedOut, UpstreamError
from gateway.upstream.negotiating import negotiated
from gateway.upstream.outgoing import target
from gateway.upstream.probing import Discovered, Verdict
from gateway.upstream.retrying import Pace, RetryBudget, retry_pause
from gateway.upstream.slots import Turn, turn
from gateway.upstream.tokens import bearer_of
from gateway.upstream.transport import Listening, Transport

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[Change], Awaitable[None]]
State: TypeAlias = Literal["starting", "up", "down"]
Answered = TypeVar("Answered", Reply, Listening)
Attempt: TypeAlias = Callable[[], Awaitable[Answered]]

# A list that was given up after this long makes its upstream suspect of hanging.
_SUSPICIOUS_SILENCE = 1.0
LISTEN = "subscriptions/listen"
_NO_WORD_OF_IT = frozenset({Reason.BUSY, Reason.STOPPING, Reason.DOWN, Reason.TOKEN})
_NO_LAPSE = frozenset({Reason.BUSY, Reason.STOPPING, Reason.DOWN})
"""Reasons for which an upstream was not asked at all."""
_NOBODYS = "lists"
_KEPT = frozenset({Reason.ERA, Reason.CREDENTIALS, Reason.TOKEN})
"""Reasons that are told to whoever calls an upstream that is down for them."""
_NO_TOKEN = "it takes a token of the caller's in exchange, which an API key or a certificate is not"
_MOST_LISTENERS = 1000
"""Callers with streams of their own of whom it is remembered how their last listen went."""


@dataclass(frozen=True, slots=True)
class Lapse:
    """How an upstream last failed; `at` is the pool's clock, `method` None for a probe."""

    reason: Reason
    detail: str
    method: str | None
    at: float


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """What is known of an upstream; `detail` is for logs, `since` is the pool's clock at the last change."""

    name: UpstreamName
    state: State = "starting"
    era: Era | None = None
    version: str | None = None
    last_error: Reason | None = None
    detail: str = ""
    discovered: Discovered | None = None
    active: int = 0
    queued: int = 0
    """Calls that wait until one more may run."""
    breaker: Standing = "closed"
    sessions: int = 0
    """Sessions of an older protocol, or processes, that are open."""
    wire: str = ""
    """How it is reached, for people."""
    since: float = 0.0
    outage: bool = False
    """Whether it is down for being out of reach or out of order, rather than for refusing."""
    lapse: Lapse | None = None


class Member:
    """One upstream with its state; `watch` must run for as long as it is used."""

    def __init__(
        self,
        upstream: Transport,
        settings: config.Upstream,
        *,
        metrics: Metrics,
        on_change: OnChange,
        clock: Callable[[], float],
        random: Callable[[], float],
        pace: Pace,
        rates: Rates,
    ) -> None:
        self.name = upstream.name
        self._upstream = upstream
        self._settings = settings
        self._metrics = metrics
        self._on_change = on_change
        self._clock = clock
        self._random = random
        self._pace = pace
        self._rates = rates
        self._breakers = Breakers(settings.breaker)
        self._budget = RetryBudget(settings.retry_budget)
        self._rate_used_up = False
        self._retired = False
        self._status = UpstreamStatus(upstream.name, since=clock())
        self._lapse: Lapse | None = None
        self._probe_now = asyncio.Event()
        self._probed = asyncio.Event()
        """Set and replaced whenever a probe ended."""
        self._probed_at = clock()
        self._missed = False
        """Whether an attempt failed since the upstream was last known to be up."""
        self._listens: LRUCache[int, str | Reason] = LRUCache(_MOST_LISTENERS)
        """How the last listen with each credential went."""

    def __repr__(self) -> str:
        status = self.status
        if status.state == "down":
            why = status.last_error.name.lower() if status.last_error else "unknown"
            return f"{self.name}: down, {why}"
        held_off = "" if status.breaker == "closed" else f", breaker {status.breaker}"
        queued = f", {status.queued} queued" if status.queued else ""
        return f"{self.name}: {status.era or status.state}, {status.active} active{queued}{held_off}"

    @property
    def status(self) -> UpstreamStatus:
        upstream = self._upstream
        return replace(
            self._status,
            active=upstream.active,
            queued=upstream.queued,
            breaker=self._breakers.standing,
            sessions=upstream.sessions,
            wire=upstream.wire,
            lapse=self._lapse,
        )

    @property
    def state(self) -> State:
        return self._status.state

    @property
    def discovered(self) -> Discovered | None:
        return self._status.discovered

    async def tried(self) -> None:
        """Return once the first probe ended, well or not."""
        while self.state == "starting":
            await self._probed.wait()

    async def up(self) -> None:
        """Return once it answers."""
        while self.state != "up":
            await self._probed.wait()

    def retire(self) -> None:
        """Count for nothing any more: another one may bear the name by now."""
        self._retired = True

    async def close(self) -> None:
        await self._upstream.close()

    # Calls

    def note(self, context: Context, notice: Notice) -> None:
        """Tell the server something, if it is one that can be told."""
        self._upstream.note(context, notice)

    async def call(self, request: Request, emit: Emit | None) -> Reply:
        """Return the result within the limits, asking again where that is allowed."""
        self._admit(request)
        deadline = Deadline(self._settings.timeout, self._settings.max_timeout)
        relay = _Relay(emit, deadline)
        with tracing.asking(self.name, request, self._status.version, self._upstream.wire) as traced:
            return await self._counted(traced, relay, deadline, lambda: self._upstream.call(traced, relay))

    @asynccontextmanager
    async def listen(self, request: Request, wanted: Wanted) -> AsyncIterator[Listening]:
        """Hold a subscription open; to be acknowledged it has the time a silent call has."""
        self._admit(request)
        deadline = Deadline(self._settings.timeout, self._settings.max_timeout)
        relay = _Relay(None, deadline)
        listening = await self._counted(
            request, relay, deadline, lambda: self._upstream.listen(request, wanted)
        )
        try:
            yield listening
        finally:
            listening.close()
            if listening.failure is not None:
                self._doubt(listening.failure)

    def _admit(self, request: Request) -> None:
        """Raise Challenge for a caller without a token where one is to be exchanged."""
        exchange = self._settings.auth.token_exchange
        if exchange is None or exchange.anonymous or bearer_of(request.authorization) is not None:
            return
        raise Challenge(self.name, HTTPStatus.UNAUTHORIZED, None, None, reason=_NO_TOKEN)

    async def _counted(
        self, request: Request, relay: "_Relay", deadline: Deadline, attempt: Attempt[Answered]
    ) -> Answered:
        started = self._clock()
        outcome: str | Reason = "cancelled"
        detail = ""
        try:
            answered = await self._bounded(request, relay, deadline, attempt)
            outcome = "ok"
            return answered
        except UpstreamUnavailable as error:
            outcome = error.reason
            detail = error.detail
            if isinstance(error, Busy):
                self._metrics.upstream_refused(self.name, error.bound)
            if error.reason is Reason.ERA or (isinstance(error, Failed) and error.contradicts):
                self._probe_now.set()  # what the last probe found holds no longer (U-19a)
            raise
        except McpError as error:
            outcome = "error"
            if isinstance(error, UpstreamError) and error.contradicts:
                self._probe_now.set()
            raise
        except Challenge:
            outcome = "challenge"
            raise
        except asyncio.CancelledError:
            self._given_up(request, self._clock() - started)
            raise
        finally:
            seconds = self._clock() - started
            self._metrics.upstream_call(self.name, request.method, outcome, seconds)
            word = outcome.name.lower() if isinstance(outcome, Reason) else outcome
            exchange.called(self.name, shown(request.method), word, seconds)
            self._record(request, outcome, detail, seconds)

    def _record(self, request: Request, outcome: str | Reason, detail: str, seconds: float) -> None:
        """Write the one line per exchange."""
        loud = isinstance(outcome, Reason) and outcome is not Reason.BUSY  # which is said once, by its cause
        if isinstance(outcome, Reason) and outcome not in _NO_LAPSE:
            self._lapse = Lapse(outcome, detail, shown(request.method), self._clock())
        level = logging.WARNING if loud else logging.DEBUG
        if request.method == LISTEN:
            level = self._level_of_listen(request, outcome)
        if not log.isEnabledFor(level):
            return
        log.log(
            level,
            "upstream %s: %s: %s in %.3fs",
            self.name,
            target(request),
            f"{outcome.value} ({detail})" if isinstance(outcome, Reason) else outcome,
            seconds,
        )

    def _level_of_listen(self, request: Request, outcome: str | Reason) -> int:
        """Return how loud to be about what is tried for ever: a dead one is one line, not one per attempt."""
        if outcome == "cancelled":  # no word of the upstream
            return logging.DEBUG
        who = hash(request.authorization)
        before = self._listens.get(who, "ok")
        self._listens[who] = outcome
        if outcome == before:
            return logging.DEBUG
        if isinstance(outcome, Reason):
            return logging.WARNING
        return logging.INFO if outcome == "ok" else logging.DEBUG

    async def _bounded(
        self, request: Request, relay: "_Relay", deadline: Deadline, attempt: Attempt[Answered]
    ) -> Answered:
        try:
            async with deadline:
                await self._usable()
                if request.method == LISTEN:  # has a pace of its own, and says nothing of what calls meet
                    return await self._attempts(request, relay, deadline, attempt)
                with self._guarded(request, deadline):
                    return await self._attempts(request, relay, deadline, attempt)
        except TimeoutError:
            if not deadline.expired:
                raise
            raise TimedOut(self.name, target(request), deadline.limit) from None

    @contextmanager
    def _guarded(self, request: Request, deadline: Deadline) -> Iterator[None]:
        """Do what is within only if the breaker lets it, which is told how that went; raises Busy."""
        passed = self._breakers.admit(_at_whose_wish(request), self._clock())
        if passed is None:
            raise Busy(self.name, "breaker")
        mine = Turn(deadline.progressed, request.context.caller)  # a call that waited has all of its time
        before = turn.set(mine)
        try:
            yield
        except UpstreamUnavailable as error:
            if error.reason in _NO_WORD_OF_IT:
                self._breakers.abandoned(passed, self._clock())
            elif error.outage:
                self._fail(passed)
            else:
                self._answer(passed)
            raise
        except (McpError, Challenge):
            self._answer(passed)
            raise
        except BaseException:
            if deadline.expired and not mine.waiting:
                self._fail(passed)
            else:  # a caller who left tells nothing, and neither does a wait for a slot
                self._breakers.abandoned(passed, self._clock())
            raise
        else:
            self._answer(passed)
        finally:
            turn.reset(before)

    def _answer(self, passed: Passed) -> None:
        before = self._breakers.standing
        self._breakers.answered(passed)
        if before != self._breakers.standing:
            self._metrics.upstream_breaker(self.name, False)
            log.info("upstream %s: answers again, and is asked again", self.name)

    def _fail(self, passed: Passed) -> None:
        before = self._breakers.standing
        self._breakers.failed(passed, self._clock())
        if before == "closed" != self._breakers.standing:
            self._metrics.upstream_breaker(self.name, True)
            log.warning(
                "upstream %s: failed %d requests in a row, and is left alone for a while (`breaker`)",
                self.name,
                self._settings.breaker.failures,
            )

    async def _usable(self) -> None:
        """Raise at once, or after one quick probe, while the upstream is known to be out of reach (B01)."""
        if self.state == "starting":
            await self.tried()
        elif self.state == "down" and self._status.last_error is not Reason.ERA:
            await self._probe_once()
        status = self._status
        if status.state == "down":
            reason = status.last_error
            kept = reason if reason in _KEPT else Reason.DOWN
            raise UpstreamUnavailable(self.name, kept, status.detail, outage=status.outage)

    async def _probe_once(self) -> None:
        """Have the upstream probed now, unless it just was, and wait a little for what comes of it."""
        if self._clock() - self._probed_at < self._pace.gap:
            return
        self._probe_now.set()
        await happens(self._probed, self._pace.patience)

    async def _attempts(
        self, request: Request, relay: "_Relay", deadline: Deadline, attempt: Attempt[Answered]
    ) -> Answered:
        made = 1
        self._budget.sent()
        while True:
            try:
                await self._within_rate(request)
                return await self._settled(request, attempt)
            except Failed as failure:
                pause = retry_pause(
                    failure,
                    request.method,
                    attempt=made,
                    heard=relay.used,
                    remaining=deadline.remaining,
                    random=self._random,
                )
                answered = failure.reason is Reason.STATUS and request.method == LISTEN
                if pause is None or answered or not self._again():  # whoever listens has a pace of his own
                    self._doubt(failure)
                    raise
            made += 1
            await asyncio.sleep(pause)

    def _again(self) -> bool:
        """Whether a request may be sent once more."""
        may = self._budget.spend()
        self._metrics.upstream_retry(self.name, "made" if may else "withheld")
        return may

    async def _within_rate(self, request: Request) -> None:
        """Count a request that is about to be sent; raises Busy."""
        rate = self._settings.rate
        if rate is None or request.method == LISTEN:
            return
        used_up = await self._rates.take(f"upstream {self.name}", rate) > 0.0
        if used_up and not self._rate_used_up:
            log.warning("upstream %s: more requests than its `rate`; the rest is refused", self.name)
        self._rate_used_up = used_up
        if used_up:
            raise Busy(self.name, "rate")

    async def _settled(self, request: Request, attempt: Attempt[Answered]) -> Answered:
        spoken = self._status.era
        try:
            return await negotiated(self._upstream, attempt)
        except UpstreamError as error:
            if error.code == HEADER_MISMATCH and request.method == "tools/call":
                raise StaleSchema(self.name) from None
            if not error.contradicts or "requestState" in request.params:
                raise
            # It refused the form of the request, unread: in the other form it may take it (U-19a).
            await self._probe_once()
            if self.state != "up" or self._status.era == spoken:
                raise
        return await negotiated(self._upstream, attempt)

    def _given_up(self, request: Request, seconds: float) -> None:
        """Look closer at an upstream that was waited for in vain; a cancelled tool call says nothing."""
        if request.method != "tools/call" and seconds >= _SUSPICIOUS_SILENCE and self.state == "up":
            self._probe_now.set()

    def _doubt(self, failure: Failed) -> None:
        """Take an upstream that cannot be connected to for down; look closer at one that hung up."""
        if failure.reason is not Reason.CONNECT or self.state != "up":
            return
        if failure.lost:
            self._learn(Verdict(self._status.era, reason=failure.reason, detail=failure.detail, outage=True))
        self._probe_now.set()

    # Probes

    async def watch(self) -> None:
        """Probe until the upstream is up, and again whenever it was lost or became suspect; for ever."""
        if self.state == "starting":  # a series from the start, for alerts on what never came up
            self._metrics.upstream_up(self.name, False)
            self._metrics.upstream_breaker(self.name, False)
        failures = 0
        while True:
            self._probe_now.clear()
            verdict = await self._probe()
            failures = failures + 1 if verdict.reason else 0
            before = self._status.era
            other = None not in (before, verdict.era) and before != verdict.era
            back = (self._missed or other) and verdict.reason is None
            self._learn(verdict)
            if back:
                self._missed = False
                await self._tell_reconnected()
            self._end_probe()
            await self._rest(self._pace.pause(failures, self._random()) if failures else None)

    async def _tell_reconnected(self) -> None:
        """Say that whatever was cached may have changed unseen (C-30)."""
        try:
            await self._on_change(Change(self.name, cause="reconnect"))
        except Exception:  # a listener's bug must not leave this upstream unwatched
            log.exception("upstream %s: its reconnection could not be announced", self.name)

    async def _probe(self) -> Verdict:
        try:
            return await self._upstream.probe()
        except Exception:  # a bug here must not leave this upstream unwatched
            log.exception("upstream %s: the probe failed", self.name)
            return Verdict(None, reason=Reason.PROTOCOL, detail="the probe failed")

    async def _rest(self, pause: float | None) -> None:
        """Wait for the time of the next probe, or until one is wanted at once."""
        await happens(self._probe_now, pause)
        early = self._pace.gap - (self._clock() - self._probed_at)
        if self.state == "up" and early > 0:
            # A suspicion is no emergency: slow lists must not turn probing into a load.
            await asyncio.sleep(early)

    def _end_probe(self) -> None:
        self._probed_at = self._clock()
        self._probed.set()
        self._probed = asyncio.Event()

    def _learn(self, verdict: Verdict) -> None:
        before = self._status
        state: State = "up" if verdict.reason is None else "down"
        if verdict.reason is not None:
            self._lapse = Lapse(verdict.reason, verdict.detail, None, self._clock())
        self._status = UpstreamStatus(
            self.name,
            state,
            verdict.era or before.era,
            verdict.version or before.version,
            verdict.reason,
            verdict.detail,
            verdict.discovered or before.discovered,
            since=before.since if before.state == state else self._clock(),
            outage=verdict.outage,
        )
        if (before.state, state) == ("down", "up"):
            self._breakers.close()  # what failed it failed while it was gone
            self._metrics.upstream_breaker(self.name, False)
        self._missed = self._missed or verdict.reason is not None
        if self._retired:
            return
        self._metrics.upstream_up(self.name, verdict.reason is None)
        if self._status.era is not None and self._status.version is not None:
            program = self._settings.command is not None
            self._metrics.upstream_speaks(self.name, self._status.era, self._status.version, program=program)
        self._say(before, verdict)

    def _say(self, before: UpstreamStatus, verdict: Verdict) -> None:
        """Log what changed, and only that: a dead upstream is one line, not one per probe."""
        if verdict.reason is None:
            if before.state != "up":
                log.info("upstream %s: up, %s %s", self.name, verdict.era, verdict.detail or verdict.version)
        elif (before.state, before.last_error) != ("down", verdict.reason):
            log.warning("upstream %s: down, %s (%s)", self.name, verdict.reason.value, verdict.detail)


def _at_whose_wish(request: Request) -> str:
    """Return who decides what the upstream has to do: nobody what a list is, each caller what a call is."""
    row = METHODS.get(request.method)
    return _NOBODYS if row is not None and row.items is not None else request.context.caller


class _Relay:
    """Hands notifications on; progress keeps the call alive."""

    def __init__(self, emit: Emit | None, deadline: Deadline) -> None:
        self._emit = emit
        self._deadline = deadline
        self.used = False

    async def __call__(self, notice: Notice) -> None:
        if notice.method == "notifications/progress":
            self._deadline.progressed()
        if self._emit is not None:
            self.used = True
            await self._emit(notice)
