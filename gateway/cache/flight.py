"""Lets concurrent callers share one piece of work, which belongs to none of them."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar, cast

from gateway.support.tasks import Background

T = TypeVar("T")


class Interrupted(Exception):
    """The shared work was cancelled under its waiting callers: the gateway is stopping."""


class SingleFlight:
    """Runs work once per key, however many ask for it while it runs.

    The work survives the caller who began it and is cancelled when the last one leaves. A failure reaches
    everybody who waits and nobody who comes later.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._flights: dict[Hashable, _Flight[Any]] = {}

    def __repr__(self) -> str:
        waiting = ", ".join(f"{key}: {len(flight.seats)} waiting" for key, flight in self._flights.items())
        return f"<SingleFlight [{waiting}]>"

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` returns, or what the work already running under this key does."""
        flight = cast("_Flight[T] | None", self._flights.get(key)) or self._depart(key, work)
        # A seat of one's own instead of asyncio.shield, which from Python 3.13 on reports a failure of the
        # shared work once for every caller who left before it.
        seat: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        flight.seats[seat] = None
        try:
            return await seat
        finally:
            del flight.seats[seat]
            if not flight.seats:
                self._forget(key, flight)
                flight.task.cancel()  # without effect on work that has ended

    def _depart(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> "_Flight[T]":
        flight: _Flight[T] = _Flight()
        flight.task = self._background.start(self._fly(key, flight, work), name="fetch for the cache")
        # Work that is cancelled before its first step never gets to its own `finally`.
        flight.task.add_done_callback(lambda _: self._interrupt(key, flight))
        self._flights[key] = flight
        return flight

    async def _fly(self, key: Hashable, flight: "_Flight[T]", work: Callable[[], Awaitable[T]]) -> None:
        try:
            result = await work()
        except Exception as error:
            self._forget(key, flight)
            flight.fail(error)
        else:
            self._forget(key, flight)
            flight.land(result)

    def _interrupt(self, key: Hashable, flight: "_Flight[Any]") -> None:
        self._forget(key, flight)
        flight.fail(Interrupted())

    def _forget(self, key: Hashable, flight: "_Flight[Any]") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


class _Flight(Generic[T]):
    """Work under way, and the callers who wait for it, served in the order they came."""

    __slots__ = ("seats", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.seats: dict[asyncio.Future[T], None] = {}

    def land(self, result: T) -> None:
        for seat in self.seats:
            if not seat.done():
                seat.set_result(result)

    def fail(self, error: Exception) -> None:
        for seat in self.seats:
            if not seat.done():
                seat.set_exception(error)
                seat.exception()  # counts as seen, should its caller be leaving at this very moment
