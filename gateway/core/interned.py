"""Remembers a value for each of many keys, equal ones once, up to a number of bytes. No clock, no waiting."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_PER_KEY = 1024
"""What a key and its place weigh, rounded up."""


@dataclass(slots=True)
class _Shared(Generic[V]):
    value: V
    weight: int
    keys: int = 0


class Interned(Generic[K, V]):
    """The values last put, by key; the least recently used make room, the last one never does."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._names: OrderedDict[K, Hashable] = OrderedDict()
        self._values: dict[Hashable, _Shared[V]] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        keys, values, held = self.held
        return f"<Interned {values} values of {keys} keys, {held} of {self._most_bytes} bytes>"

    @property
    def held(self) -> tuple[int, int, int]:
        """How many keys, how many different values, and the bytes they count for."""
        return len(self._names), len(self._values), self._bytes

    def get(self, key: K) -> V | None:
        """Return what was last put under a key, if it is still remembered."""
        name = self._names.get(key)
        if name is None:
            return None
        self._names.move_to_end(key)
        return self._values[name].value

    def equal(self, name: Hashable) -> V | None:
        """Return the value that somebody put under this name: what has one name is equal."""
        shared = self._values.get(name)
        return None if shared is None else shared.value

    def put(self, key: K, name: Hashable, value: V, weight: int) -> None:
        """Remember a value, which weighs so many bytes, under its name for this key."""
        shared = self._values.get(name)
        if shared is None:
            shared = self._values[name] = _Shared(value, weight)
            self._bytes += weight
        shared.keys += 1
        self._bytes += _PER_KEY
        self._drop(key)
        self._names[key] = name
        while self._bytes > self._most_bytes and len(self._names) > 1:
            self._drop(next(iter(self._names)))

    def take(self, other: "Interned[K, V]", wanted: Callable[[K], bool]) -> None:
        """Remember what another one does of the wanted keys, which goes on remembering it."""
        for key, name in other._names.items():
            if wanted(key):
                shared = other._values[name]
                self.put(key, name, shared.value, shared.weight)

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield every key with its value."""
        for key, name in self._names.items():
            yield key, self._values[name].value

    def _drop(self, key: K) -> None:
        name = self._names.pop(key, None)
        if name is None:
            return
        self._bytes -= _PER_KEY
        shared = self._values[name]
        shared.keys -= 1
        if not shared.keys:
            del self._values[name]
            self._bytes -= shared.weight
