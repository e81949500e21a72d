"""Remembers whole joined answers: a hit costs one look-up however many upstreams and items it took."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from gateway.core.results import Dressed
from gateway.protocol.call import Partition, Principal, Scope

_COUNT_OVERHEAD = 1024
_EVERYBODY = Partition("everybody")


def owner(principal: Principal, *, single_tenant: bool) -> Partition | None:
    """Return whom a private answer may be given to again; without a credential nobody, or all (C-19)."""
    if principal.partition is None and single_tenant:
        return _EVERYBODY
    return principal.partition


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A joined answer: when its oldest part came, until when and to whom it may be served, in which epoch."""

    dressed: Dressed
    received: float
    expires: float
    scope: Scope
    epoch: int


class Views:
    """Whole answers by method, capability profile and partition; bounded in bytes."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._views: LRUCache[tuple[str, str, Partition | None], Whole] = LRUCache(max_bytes, getsizeof=_size)

    def __repr__(self) -> str:
        return f"<Views {len(self._views)} answers, {self._views.currsize:g} bytes>"

    def get(self, method: str, profile: str, partition: Partition | None, epoch: int) -> Whole | None:
        """Return an answer that may be served now: the caller's own, then the public one (C-20).

        An epoch behind means that something was invalidated since: joining anew is cheap, stale is wrong.
        """
        if partition is not None:
            own = self._fresh(self._views.get((method, profile, partition)), epoch)
            if own is not None:
                return own
        return self._fresh(self._views.get((method, profile, None)), epoch)

    def put(self, method: str, profile: str, partition: Partition | None, whole: Whole, epoch: int) -> None:
        """Keep an answer, unless nobody could get it again (C-13, C-19) or a change came meanwhile (C-32)."""
        if self._fresh(whole, epoch) is None:
            return
        owner = None if whole.scope == "public" else partition
        if owner is None and whole.scope != "public":
            return
        if _size(whole) <= self._views.maxsize:
            self._views[method, profile, owner] = whole

    def _fresh(self, whole: Whole | None, epoch: int) -> Whole | None:
        if whole is None or whole.epoch != epoch or self._clock() >= whole.expires:
            return None
        return whole


def _size(whole: Whole) -> int:
    return _COUNT_OVERHEAD + sum(len(memoryview(piece)) for piece in whole.dressed.head)
