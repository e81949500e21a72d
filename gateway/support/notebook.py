"""Small facts that outlive a request and that any replica may need: noted under a kind and a key, for a time.

A fact is bytes, or a set of bytes. What is not there and what nobody can tell are two things: the one is an
answer, the other `Unavailable`, so that nobody takes a session for ended because Redis hiccuped.
"""

import time
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeAlias

LARGEST = 2**20
"""The most bytes of one fact, or of one member of a set; what is larger is a ValueError."""
_MOST = 100_000
_BYTES = 64 * 2**20
_OVERHEAD = 200
"""What an entry costs beside its bytes, about."""


class Unavailable(Exception):
    """It cannot be told or noted now: Redis does not answer, or there is no room; the message says which.

    A fact may have been noted all the same: an answer can be what got lost.
    """


class Notebook(Protocol):
    """Where facts are noted. Every method raises Unavailable; a ttl is in seconds and begins anew each time.

    The kind says what a key is about; a set and a value of one kind and key are never both there, the later
    takes the place of the earlier.
    """

    async def write(self, kind: str, key: bytes, value: bytes, ttl: float) -> None:
        """Note a value, in the place of what is there."""
        ...

    async def read(self, kind: str, key: bytes, *, renew: float | None = None) -> bytes | None:
        """Return the value, None when there is none; one that is there lives on for `renew`."""
        ...

    async def add(self, kind: str, key: bytes, value: bytes, ttl: float) -> bool:
        """Note a value where nothing is; whether this did. Of several who try at once one succeeds."""
        ...

    async def erase(self, kind: str, key: bytes) -> bool:
        """Forget it; whether it was there. Of several who try at once one is told that it was."""
        ...

    async def include(
        self, kind: str, key: bytes, members: Collection[bytes], ttl: float, *, most: int
    ) -> bool:
        """Put members into a set, which begins with the first; False, and nothing done, beyond `most`."""
        ...

    async def exclude(self, kind: str, key: bytes, members: Collection[bytes]) -> None:
        """Take members out of a set, which ends with the last."""
        ...

    async def members(self, kind: str, key: bytes, *, renew: float | None = None) -> frozenset[bytes]:
        """Return what is in a set, nothing where there is none; one that is there lives on for `renew`."""
        ...


_Name: TypeAlias = tuple[str, bytes]
_Fact: TypeAlias = bytes | frozenset[bytes]


class LocalNotebook:
    """That of a single process: in memory, bounded in entries and bytes; what is full refuses what is new."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        most: int = _MOST,
        bytes: int = _BYTES,
    ) -> None:
        self._clock = clock
        self._most = most
        self._bytes = bytes
        self._held = 0
        self._facts: dict[_Name, tuple[float, _Fact]] = {}
        self._ends: list[tuple[float, _Name]] = []
        """When facts end, soonest first; of one that lives on meanwhile an earlier end may still be here."""

    def __repr__(self) -> str:
        return f"<LocalNotebook {len(self._facts)} facts, {self._held} bytes>"

    def __len__(self) -> int:
        return len(self._facts)

    def allow(self, most: int, bytes: int) -> None:
        """Let so much be noted from now on; what is noted already stays."""
        self._most = most
        self._bytes = bytes

    @property
    def held(self) -> int:
        """The bytes of all facts, with what they cost besides."""
        return self._held

    async def write(self, kind: str, key: bytes, value: bytes, ttl: float) -> None:
        self._note((kind, key), value, ttl)

    async def read(self, kind: str, key: bytes, *, renew: float | None = None) -> bytes | None:
        fact = self._look((kind, key))
        if not isinstance(fact, bytes):
            return None
        if renew is not None:
            self._lasts((kind, key), fact, renew)
        return fact

    async def add(self, kind: str, key: bytes, value: bytes, ttl: float) -> bool:
        if self._look((kind, key)) is not None:
            return False
        self._note((kind, key), value, ttl)
        return True

    async def erase(self, kind: str, key: bytes) -> bool:
        there = self._look((kind, key)) is not None
        self._forget((kind, key))
        return there

    async def include(
        self, kind: str, key: bytes, members: Collection[bytes], ttl: float, *, most: int
    ) -> bool:
        joined = self._set((kind, key)).union(members)
        if len(joined) > most:
            return False
        if joined:
            self._note((kind, key), joined, ttl)
        return True

    async def exclude(self, kind: str, key: bytes, members: Collection[bytes]) -> None:
        name = (kind, key)
        left = self._set(name).difference(members)
        if not self._set(name):
            return
        if left:
            end, before = self._facts[name]
            self._facts[name] = (end, left)
            self._held += _cost(name, left) - _cost(name, before)
        else:
            self._forget(name)

    async def members(self, kind: str, key: bytes, *, renew: float | None = None) -> frozenset[bytes]:
        there = self._set((kind, key))
        if there and renew is not None:
            self._lasts((kind, key), there, renew)
        return there

    def _set(self, name: _Name) -> frozenset[bytes]:
        fact = self._look(name)
        return fact if isinstance(fact, frozenset) else frozenset()

    def _look(self, name: _Name) -> _Fact | None:
        end, fact = self._facts.get(name, (0.0, None))
        if fact is None:
            return None
        if end <= self._clock():
            self._forget(name)
            return None
        return fact

    def _note(self, name: _Name, fact: _Fact, ttl: float) -> None:
        check(fact)
        self._clear()
        before = self._facts.get(name)
        held = self._held + _cost(name, fact) - (_cost(name, before[1]) if before is not None else 0)
        if held > self._bytes or (before is None and len(self._facts) >= self._most):
            raise Unavailable("there is no room for more")
        self._held = held
        self._lasts(name, fact, ttl)

    def _lasts(self, name: _Name, fact: _Fact, ttl: float) -> None:
        end = self._clock() + ttl
        self._facts[name] = (end, fact)
        heappush(self._ends, (end, name))
        if len(self._ends) > 2 * len(self._facts) + 64:
            self._ends = [(end, name) for name, (end, _) in self._facts.items()]
            heapify(self._ends)

    def _clear(self) -> None:
        """Forget what is over."""
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, name = heappop(self._ends)
            if name in self._facts and self._facts[name][0] <= now:
                self._forget(name)

    def _forget(self, name: _Name) -> None:
        fact = self._facts.pop(name, None)
        if fact is not None:
            self._held -= _cost(name, fact[1])


def check(fact: "bytes | Collection[bytes]") -> None:
    """Raise ValueError for what is too large to be noted."""
    if max(map(len, (fact,) if isinstance(fact, bytes) else fact), default=0) > LARGEST:
        raise ValueError(f"a fact is larger than {LARGEST} bytes")


def _cost(name: _Name, fact: _Fact) -> int:
    size = len(fact) if isinstance(fact, bytes) else sum(len(one) + _OVERHEAD for one in fact)
    return len(name[0]) + len(name[1]) + size + _OVERHEAD
