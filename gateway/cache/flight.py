"""Lets concurrent callers share one piece of work, which belongs to none of them, and wait for none too long.

Whoever comes first does the work for all. When it takes too long, or fails for a reason that may be the first
caller's own, the next one does his, then two more, then three: a caller for whom an upstream hangs delays the
others by one bound, many such callers by a few, and an upstream that is slow for everybody is asked a few
times instead of once by each. The first answer that is everybody's ends the waiting of all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from gateway.support.tasks import Background

T = TypeVar("T")

_PROOFS = 3
"""Failures in a row, of different callers' work, after which one says as much to all who only wait."""


class Interrupted(Exception):
    """The shared work was cancelled under its waiting callers: the gateway is stopping."""


class Timer(Protocol):
    """What calls back once, unless it is cancelled."""

    def cancel(self) -> None: ...


Later: TypeAlias = Callable[[float, Callable[[], None]], Timer]
"""Starts a timer of so many seconds."""


@dataclass(frozen=True, slots=True)
class Terms(Generic[T]):
    """How far one caller relies on the others."""

    alike: Hashable = None
    """Whose work goes like his own: while it is under way his would go no better, and its failure is his."""
    shared: Callable[[T], bool] = lambda _: True
    """Whether a result is also for those who only waited."""
    look: Callable[[], Awaitable[T | None]] | None = None
    """Looks whether what he waits for has come from elsewhere."""
    general: Callable[[Exception], bool] = lambda _: True
    """Whether a failure is about what was asked rather than about who asked."""


class SingleFlight:
    """Runs work once per key, however many ask for it while it runs, for as long as that serves them.

    The work survives the caller who began it and is cancelled when the last one leaves. A failure reaches
    those whose own work would have failed alike, and nobody who comes later.
    """

    def __init__(self, background: Background, later: Later | None = None) -> None:
        self._background = background
        self._later = later
        self._flights: dict[Hashable, _Flight[Any]] = {}

    def __repr__(self) -> str:
        waiting = ", ".join(f"{key}: {len(flight.seats)} waiting" for key, flight in self._flights.items())
        return f"<SingleFlight [{waiting}]>"

    def under_way(self, key: Hashable) -> bool:
        """Whether who asks now would join others."""
        return key in self._flights

    def begun(self, key: Hashable, bound: float) -> None:
        """Say that work is only now doing what takes its time: `bound` seconds on, others need not wait."""
        if (flight := self._flights.get(key)) is not None:
            flight.hurry(self._later or asyncio.get_running_loop().call_later, bound)

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]], terms: Terms[T] | None = None) -> T:
        """Return what `work` returns, or what the work of those who ask for the same does."""
        flight: _Flight[T] = self._join(key)
        # A future of one's own instead of asyncio.shield, which from Python 3.13 on reports a failure of the
        # shared work once for every caller who left before it.
        future = asyncio.get_running_loop().create_future()
        seat: _Seat[T] = _Seat(future, work, terms or Terms(), copy_context())
        flight.join(seat)
        try:
            return await seat.future
        finally:
            flight.leave(seat)

    def _join(self, key: Hashable) -> "_Flight[T]":
        flight = cast("_Flight[T] | None", self._flights.get(key))
        if flight is None:
            flight = _Flight(self._background, lambda done: self._forget(key, done))
            self._flights[key] = flight
        return flight

    def _forget(self, key: Hashable, flight: "_Flight[Any]") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


@dataclass(slots=True, eq=False)
class _Seat(Generic[T]):
    """A caller who waits, and what he would do himself."""

    future: asyncio.Future[T]
    work: Callable[[], Awaitable[T]]
    terms: Terms[T]
    context: Context
    """In which his own work is done, whoever's timer lets it begin."""
    leads: bool = False
    looked: bool = False

    def land(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # counts as seen, should its caller be leaving at this very moment


@dataclass(slots=True, eq=False)
class _Flight(Generic[T]):
    """Work under way for one key, and the callers who wait for it, served in the order they came."""

    background: Background
    closed: Callable[["_Flight[T]"], None]
    """Told when nobody may join any more."""
    seats: dict[_Seat[T], None] = field(default_factory=dict)
    legs: dict[_Seat[T], asyncio.Task[None]] = field(default_factory=dict)
    """Whose work runs; he may have left since."""
    glance: asyncio.Task[None] | None = None
    timer: Timer | None = None
    rounds: int = 0
    failures: int = 0

    def join(self, seat: _Seat[T]) -> None:
        self.seats[seat] = None
        if self.legs:
            self._look()
        else:
            self._depart(seat)

    def leave(self, seat: _Seat[T]) -> None:
        del self.seats[seat]
        if not self.seats:
            self._close()
            for task in self.legs.values():
                task.cancel()  # without effect on work that has ended
            if self.glance is not None:
                self.glance.cancel()

    def hurry(self, later: Later, bound: float) -> None:
        """Let the others wait so long from now, and no longer."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = later(bound, lambda: self._overdue(later, bound))

    def _overdue(self, later: Later, bound: float) -> None:
        self.hurry(later, bound)
        for seat in self.seats:
            seat.looked = False
        if not self._next_round():
            self._look()

    def _next_round(self) -> bool:
        """Let the next ones do their own work; whether there was anybody whom that could help."""
        self.rounds += 1
        chosen = list(islice(self._unlike(), self.rounds))
        for seat in chosen:
            self._depart(seat)
        return bool(chosen)

    def _unlike(self) -> Iterator[_Seat[T]]:
        tried = {leader.terms.alike for leader in self.legs}
        for seat in self.seats:
            if not seat.leads and not seat.future.done() and seat.terms.alike not in tried:
                tried.add(seat.terms.alike)
                yield seat

    def _depart(self, seat: _Seat[T]) -> None:
        seat.leads = seat.looked = True
        task = self.background.start(self._fly(seat), name="fetch for the cache", context=seat.context)
        self.legs[seat] = task
        # Work that is cancelled before its first step never gets to its own `finally`.
        task.add_done_callback(lambda _: self._interrupt(seat))

    async def _fly(self, leader: _Seat[T]) -> None:
        try:
            result = await leader.work()
        except Exception as error:
            self._failed(leader, error)
        else:
            self._landed(leader, result)

    def _landed(self, leader: _Seat[T], result: T) -> None:
        del self.legs[leader]
        self._close()
        leader.land(result)
        shared = leader.terms.shared(result)
        for seat in self.seats:
            if shared or not seat.leads:  # who has work of his own under way waits for that
                seat.land(result)

    def _failed(self, leader: _Seat[T], error: Exception) -> None:
        del self.legs[leader]
        self.failures = self.failures + 1 if leader.terms.general(error) else 0
        leader.fail(error)
        for seat in self.seats:
            if not seat.leads and (self.failures >= _PROOFS or seat.terms.alike == leader.terms.alike):
                seat.fail(error)
        if not self._next_round() and not self.legs:
            self._close()

    def _interrupt(self, leader: _Seat[T]) -> None:
        if self.legs.pop(leader, None) is not None:
            self._close()
            for seat in self.seats:
                seat.fail(Interrupted())

    def _look(self) -> None:
        """Look on behalf of those who came since somebody looked, one at a time and for all who are there."""
        if self.glance is not None:
            return
        present = [seat for seat in self.seats if not seat.looked and not seat.future.done()]
        seen = next((seat for seat in present if seat.terms.look is not None), None)
        for seat in present:
            seat.looked = True
        if seen is not None:
            self.glance = self.background.start(self._peer(seen, present), name="look for the cache")
            self.glance.add_done_callback(self._looked)

    async def _peer(self, seat: _Seat[T], present: list[_Seat[T]]) -> None:
        result = None if seat.terms.look is None else await seat.terms.look()
        if result is None:
            return
        seat.land(result)
        if seat.terms.shared(result):
            for other in present:
                other.land(result)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self.glance = None
        if not task.cancelled():
            self._look()

    def _close(self) -> None:
        self.closed(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
