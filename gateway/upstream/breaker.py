"""Decides whether an upstream that answers probes, but not requests, is asked at all. The time is handed in.

A breaker is closed while all is well. After so many failures in a row it is open: nothing passes until a rest
is over, and then one request at a time, the trial. What comes of it closes the breaker or prolongs the rest.
"""

from typing import Literal, NamedTuple, TypeAlias

from cachetools import LRUCache

from gateway.config import Breaker as Settings

Standing: TypeAlias = Literal["closed", "open", "trying"]

_USUAL = 0
_MOST_CALLERS = 1000
"""Callers with failures whose breakers are remembered."""


class Breaker:
    """Counts failures in a row; what passed is told apart by number, 0 or that of a trial."""

    __slots__ = ("_failures", "_rest", "_settings", "_trial", "_trying", "_until")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._failures = 0
        self._rest = 0.0
        self._until = 0.0
        self._trial = _USUAL
        self._trying = False

    def __repr__(self) -> str:
        return f"<Breaker {self.standing}, {self._failures} failures>"

    @property
    def standing(self) -> Standing:
        if not self._rest:
            return "closed"
        return "trying" if self._trying else "open"

    @property
    def unmarked(self) -> bool:
        """Whether it knows no more than a new one."""
        return not self._rest and not self._failures

    def left(self, now: float) -> float:
        """Return the seconds until the next request may pass."""
        return max(0.0, self._until - now) if self._rest else 0.0

    def admit(self, now: float) -> int | None:
        """Return the number under which a request passes, None when it does not."""
        if not self._rest:
            return _USUAL
        if now < self._until:
            return None
        self._until = now + self._rest  # the next trial, should this one never come back
        self._trying = True
        self._trial += 1
        return self._trial

    def answered(self, passed: int) -> None:
        """Note that the upstream answered, whatever it said."""
        if not self._rest:
            self._failures = 0
        elif passed != _USUAL:
            self.close()

    def failed(self, passed: int, now: float) -> None:
        """Note that the upstream failed a request."""
        if self._rest:
            if passed == self._trial and self._trying:
                self._open(now, min(2 * self._rest, self._settings.longest_rest))
            return
        self._failures += 1
        if self._failures >= self._settings.failures:
            self._open(now, self._settings.rest)

    def abandoned(self, passed: int, now: float) -> None:
        """Note that nobody will know how a request went; another may take the place of a trial."""
        if self._trying and passed == self._trial:
            self._trying = False
            self._until = now

    def close(self) -> None:
        """Let everything pass."""
        self._rest = self._until = 0.0
        self._failures = 0
        self._trying = False

    def _open(self, now: float, rest: float) -> None:
        self._rest = rest
        self._until = now + rest
        self._trying = False


class Passed(NamedTuple):
    """A request that is let through."""

    caller: str
    here: int
    """The number at the caller's own breaker."""
    there: int
    """The number at that of all."""


class Breakers:
    """The breaker of one upstream, and one for each caller whose requests fail.

    A caller can have an upstream fail at will, with a tool that sleeps for an hour. So one alone never opens
    the breaker of all, only its own: it brings no more than half of the failures that this takes.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._all = Breaker(settings)
        self._each: LRUCache[str, Breaker] = LRUCache(_MOST_CALLERS)
        self._streak: dict[str, int] = {}
        """How often each caller failed since the last answer to anybody."""
        self._share = (settings.failures + 1) // 2

    def __repr__(self) -> str:
        return f"<Breakers {self._all.standing}, {len(self._each)} callers with failures>"

    @property
    def standing(self) -> Standing:
        return self._all.standing

    @property
    def closed_to(self) -> int:
        """Return how many callers alone are kept out, or tried."""
        return sum(one.standing != "closed" for one in self._each.values())

    def left(self, caller: str, now: float) -> float:
        """Return the seconds until a request of this caller may pass."""
        own = self._each.get(caller)
        return max(self._all.left(now), 0.0 if own is None else own.left(now))

    def admit(self, caller: str, now: float) -> Passed | None:
        """Return how a request passes, None when it does not."""
        own = self._each.get(caller)
        here = _USUAL if own is None else own.admit(now)
        if here is None:
            return None
        there = self._all.admit(now)
        if there is None:
            if own is not None:
                own.abandoned(here, now)
            return None
        return Passed(caller, here, there)

    def answered(self, passed: Passed) -> None:
        """Note that the upstream answered, whatever it said."""
        self._all.answered(passed.there)
        if self._streak:
            self._streak.clear()
        own = self._each.get(passed.caller)
        if own is not None:
            own.answered(passed.here)
            if own.unmarked:
                del self._each[passed.caller]

    def failed(self, passed: Passed, now: float) -> None:
        """Note that the upstream failed a request."""
        caller = passed.caller
        own = self._each.get(caller)
        if own is None:
            own = self._each[caller] = Breaker(self._settings)
        own.failed(passed.here, now)
        so_far = self._streak.get(caller, 0)
        if so_far < self._share or passed.there != _USUAL:
            if len(self._streak) < _MOST_CALLERS or so_far:
                self._streak[caller] = so_far + 1
            self._all.failed(passed.there, now)

    def abandoned(self, passed: Passed, now: float) -> None:
        """Note that nobody will know how a request went."""
        self._all.abandoned(passed.there, now)
        own = self._each.get(passed.caller)
        if own is not None:
            own.abandoned(passed.here, now)

    def close(self) -> None:
        """Let everything pass, as the upstream came back from where it was."""
        self._all.close()
        self._each.clear()
        self._streak.clear()
