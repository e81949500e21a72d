"""Measures for how long a request waited for one thing, an upstream or Redis, and not for whatever else."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Busy:
    """The time during which at least one question was under way."""

    __slots__ = ("_clock", "_since", "_spent", "_under_way")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._since = 0.0
        self._spent = 0.0

    def __repr__(self) -> str:
        return f"<Busy {self._under_way} under way, {self.spent:.3f}s so far>"

    @property
    def spent(self) -> float:
        """How many seconds that were until now."""
        return self._spent + (self._clock() - self._since if self._under_way else 0.0)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count the time until this question is over, once for all that are under way."""
        if not self._under_way:
            self._since = self._clock()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._spent += self._clock() - self._since
