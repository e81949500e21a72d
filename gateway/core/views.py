"""Remembers whole joined answers: a hit costs one look-up however many upstreams and items it took."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core.access import Sight
from gateway.core.results import Dressed
from gateway.protocol.call import Partition, Principal, Scope

_Key: TypeAlias = tuple[str, str, Sight | None, Partition | None]

_COUNT_OVERHEAD = 1024
_EVERYBODY = Partition("everybody")


def owner(principal: Principal, *, single_tenant: bool) -> Partition | None:
    """Return whom a private answer may be given to again; without a credential nobody, or all (C-19)."""
    if principal.partition is None and single_tenant:
        return _EVERYBODY
    return principal.partition


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A joined answer: when its oldest part came, until when and to whom it may be served, in which epoch.

    What is public of it is so for those who are let see the same.
    """

    dressed: Dressed
    received: float
    expires: float
    scope: Scope
    epoch: int
    parts: int = 1
    """Of how many upstreams' answers it was joined."""


class Views:
    """Whole answers by method, capability profile, sight and partition; bounded in bytes."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._held = 0
        # Not cachetools' LRUCache: it is Python, six frames per look-up, and this one is on every hit's way.
        self._views: OrderedDict[_Key, Whole] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Views {len(self._views)} answers, {self._held} bytes>"

    def get(
        self,
        method: str,
        profile: str,
        partition: Partition | None,
        epoch: int,
        sight: Sight | None = None,
    ) -> Whole | None:
        """Return an answer that may be served now: the caller's own, then that of all alike (C-20).

        An epoch behind means that something was invalidated since: joining anew is cheap, stale is wrong.
        """
        if partition is not None:
            own = self._find((method, profile, sight, partition), epoch)
            if own is not None:
                return own
        return self._find((method, profile, sight, None), epoch)

    def _find(self, key: _Key, epoch: int) -> Whole | None:
        whole = self._views.get(key)
        if whole is None or not self._is_fresh(whole, epoch):
            return None
        self._views.move_to_end(key)
        return whole

    def put(
        self,
        method: str,
        profile: str,
        partition: Partition | None,
        whole: Whole,
        epoch: int,
        sight: Sight | None = None,
    ) -> None:
        """Keep an answer, unless nobody could get it again (C-13, C-19) or a change came meanwhile (C-32)."""
        if not self._is_fresh(whole, epoch):
            return
        owner = None if whole.scope == "public" else partition
        if owner is None and whole.scope != "public":
            return
        if _size(whole) <= self._max_bytes:
            self._drop((method, profile, sight, owner))
            self._views[method, profile, sight, owner] = whole
            self._held += _size(whole)
            while self._held > self._max_bytes:
                self._drop(next(iter(self._views)))

    def clear(self) -> None:
        """Forget everything."""
        self._views.clear()
        self._held = 0

    def _drop(self, key: _Key) -> None:
        whole = self._views.pop(key, None)
        if whole is not None:
            self._held -= _size(whole)

    def _is_fresh(self, whole: Whole, epoch: int) -> bool:
        return whole.epoch == epoch and self._clock() < whole.expires


def _size(whole: Whole) -> int:
    return _COUNT_OVERHEAD + sum(len(memoryview(piece)) for piece in whole.dressed.head)
