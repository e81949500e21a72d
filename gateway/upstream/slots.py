"""Bounds how many calls run at one upstream at once, and how many wait for that."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar

from gateway.protocol.call import UpstreamName
from gateway.support.metrics import Metrics
from gateway.upstream.failures import Busy

log = logging.getLogger(__name__)

_PROBES = frozenset({"server/discover", "ping"})


class Turn:
    """What a call is doing: `waiting` until it has its slot, so that it can be told whose a timeout is."""

    __slots__ = ("begins", "caller", "waiting")

    def __init__(self, begins: Callable[[], None], caller: str = "") -> None:
        """`begins` is called when it has waited and is about to run; `caller` is whose it is, if known."""
        self.begins = begins
        self.caller = caller
        self.waiting = False


turn: ContextVar[Turn | None] = ContextVar("turn", default=None)
"""That of the call which is being made."""


class Slots:
    """The slots of one upstream."""

    def __init__(self, name: UpstreamName, connections: int, queue: int, metrics: Metrics) -> None:
        self._name = name
        self._semaphore = asyncio.Semaphore(connections)
        self._queue = queue
        self._metrics = metrics
        self._overflowing = False
        self.waiting = 0

    def __repr__(self) -> str:
        return f"<Slots {self._name}: {self.waiting} waiting>"

    async def take(self, method: str) -> "Slot":
        """Return a place among the calls that may run at once, when there is one; raises Busy.

        Whether an upstream is alive is asked without one: it is in doubt just when it has too much to do.
        """
        if method in _PROBES:
            return Slot()
        if self._semaphore.locked():
            await self._wait()
        else:
            await self._semaphore.acquire()  # at once
        return Slot(self._semaphore)

    async def _wait(self) -> None:
        if self.waiting >= self._queue:
            self._say_full()
            raise Busy(self._name, "queue")
        mine = turn.get()
        if mine is not None:
            mine.waiting = True
        self._count(+1)
        try:
            await self._semaphore.acquire()
        finally:
            self._count(-1)
        if mine is not None:
            mine.waiting = False
            mine.begins()

    def _count(self, step: int) -> None:
        self.waiting += step
        self._metrics.upstream_queued(self._name, self.waiting)
        if not self.waiting:
            self._overflowing = False

    def _say_full(self) -> None:
        """Say it once per overflow: whoever floods the queue must not flood the log."""
        if not self._overflowing:
            self._overflowing = True
            log.warning("upstream %s: %d calls wait already; more are refused", self._name, self._queue)


class Slot:
    """One place among the calls, given back once it is not needed: early when the answer streams.

    So `connections` bounds the calls an upstream works on, and long streams starve nobody.
    """

    __slots__ = ("_semaphore", "_taken")

    def __init__(self, semaphore: asyncio.Semaphore | None = None) -> None:
        self._semaphore = semaphore
        self._taken = semaphore is not None

    def release(self) -> None:
        if self._taken and self._semaphore is not None:
            self._taken = False
            self._semaphore.release()

    async def regain(self) -> None:
        """Wait for a place again, after it was given back while the call had something else to wait for."""
        if not self._taken and self._semaphore is not None:
            await self._semaphore.acquire()
            self._taken = True
