"""A clock that stands still until a test sets it, and timers that wait for the same."""

from collections.abc import Callable
from dataclasses import dataclass


class Clock:
    """Seconds, as time.monotonic gives them."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Timers:
    """Timers that go off when a test says so."""

    def __init__(self) -> None:
        self._set: list[Timer] = []

    def __call__(self, seconds: float, ring: Callable[[], None]) -> "Timer":
        self._set.append(Timer(ring))
        return self._set[-1]

    def ring(self) -> None:
        """Let go off whatever was set and not cancelled until now."""
        due, self._set = self._set, []
        for timer in due:
            if not timer.cancelled:
                timer.ring()


@dataclass
class Timer:
    """One of them."""

    ring: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
