"""Decides whether and when a failed attempt is made again. Chance and clock are handed in."""

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from gateway.protocol.methods import METHODS
from gateway.upstream.failures import Failed

_ATTEMPTS = 3
_FIRST_PAUSE = 0.1
_LONGEST_WAIT_ASKED = 10.0
_RESERVE = 20.0
"""Requests that may be sent again in a row."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often an upstream that does not answer is probed, in seconds."""

    first: float = 0.5
    longest: float = 30.0
    patience: float = 1.0
    """How long a call to an upstream known to be down waits for a probe made at once on its behalf."""
    gap: float = 1.0
    """The least time between two such probes."""

    def pause(self, failures: int, chance: float) -> float:
        """Return the wait before the next probe: doubling, capped, and spread so that replicas differ."""
        return spread(min(self.longest, self.first * 2.0 ** min(failures - 1, 30)), chance)


class RetryBudget:
    """How many requests may be sent again: a share of all, and a few for upstreams that are seldom asked."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._most = _RESERVE if share else 0.0
        self._left = self._most

    def __repr__(self) -> str:
        return f"<RetryBudget {self._left:.1f} left>"

    def sent(self) -> None:
        """Count a request that is sent for the first time."""
        if self._left < self._most:
            self._left = min(self._most, self._left + self._share)

    def spend(self) -> bool:
        """Whether a request may be sent once more; it is counted then."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def retry_pause(
    failure: Failed, method: str, *, attempt: int, heard: bool, remaining: float, random: Callable[[], float]
) -> float | None:
    """Return the seconds to wait before asking again, None when the failure stands (U-27).

    `attempt` counts from 1; `heard` is set once the caller was sent a notification, which a second attempt
    would repeat. An unknown method is treated as a tool call: nobody knows whether it may run twice.
    """
    known = METHODS.get(method)
    safe = known is not None and known.safe_to_retry
    if attempt >= _ATTEMPTS or heard or not (failure.unsent or (safe and failure.transient)):
        return None
    pause = spread(_FIRST_PAUSE * 4.0 ** (attempt - 1), random())
    if failure.retry_after is not None:
        if failure.retry_after > _LONGEST_WAIT_ASKED:
            return None
        pause = max(pause, failure.retry_after)
    return pause if pause < remaining else None


def spread(seconds: float, chance: float) -> float:
    """Return the time shortened by up to a half; `chance` is 0 to 1."""
    return seconds * (1.0 - chance / 2)


def retry_after(text: str | None, now: float) -> float | None:
    """Return the seconds a Retry-After header asks for, None when it is absent or unreadable."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):  # the latter for a year or an hour of many digits
        return None
