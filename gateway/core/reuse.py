"""Says in two words how the cache took part in an answer, and how old it is. No clock, no store."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

from gateway.cache.policy import Why
from gateway.protocol.call import CacheReason, Reuse, Scope

Source: TypeAlias = Literal["hit", "miss", "stale", "bypass"]


class Origin(NamedTuple):
    """Where one part of an answer came from, and why."""

    source: Source
    reason: CacheReason


FRESH = Origin("hit", "fresh")
PARTIAL = Origin("bypass", "partial")

_TELLING: tuple[Source, ...] = ("bypass", "stale", "miss")


def origin(source: Source, why: Why) -> Origin:
    """Return what the cache says of a result in the words of an answer."""
    return FRESH if why == "hit" else Origin(source, why)


def joined(origins: Iterable[Origin], *, partial: bool) -> Origin:
    """Return the origin of an answer made of these: that of the part which kept it from being a hit.

    A part that was not kept says more than one that merely had to be fetched: it will be fetched again.
    """
    if partial:
        return PARTIAL
    found = list(origins)
    for source in _TELLING:
        for one in found:
            if one.source == source:
                return one
    return FRESH


def reuse(whence: Origin, *, received: float, expires: float, scope: Scope, now: float) -> Reuse:
    """Return what an answer says of itself; `received` is when the oldest of its parts was fetched.

    Both times are rounded down: nothing is called alive longer than it is.
    """
    age, ttl = max(0.0, now - min(received, now)), max(0.0, expires - now)
    return Reuse(whence.source, whence.reason, int(age), int(ttl), scope)
