"""Keeps entries and counts changes, in the memory of this process."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Protocol, TypeAlias

from cachetools import TLRUCache

from gateway.cache.policy import Entry, Key, Topic, cost_of
from gateway.protocol.call import UpstreamName

_LINGER = 60.0
"""Seconds an expired entry stays: its miss is then called expired, and it goes first when room is needed."""

MOST_TOPICS = 10_000
"""Changed topics remembered per upstream; beyond them old results become stale, never a stale one fresh."""


_Kept: TypeAlias = tuple[Entry, int]
"""An entry and the bytes it counts for."""


class Store(Protocol):
    """Where entries lie. It never raises: an unreadable entry is absent, an unwritable one lost (C-35)."""

    @property
    def largest(self) -> int:
        """The most bytes one entry may count for."""
        ...

    @property
    def held(self) -> tuple[int, int]:
        """How many entries lie in this process, and how many bytes they count for."""
        ...

    def peek(self, key: Key) -> Entry | None:
        """Return what lies in this process, at once."""
        ...

    async def get(self, key: Key) -> Entry | None:
        """Return what lies here or wherever else this store looks."""
        ...

    async def put(self, key: Key, entry: Entry) -> None: ...

    async def delete(self, key: Key) -> None: ...


class Generations(Protocol):
    """Counts the changes of every upstream, and remembers the count at the last change of each topic."""

    @property
    def epoch(self) -> int:
        """A number that moves whenever something stored may have become stale."""
        ...

    def peek(self, upstream: UpstreamName, topics: Iterable[Topic]) -> int:
        """Return the count at the last change of any of the topics, as far as this process knows."""
        ...

    async def latest(self, upstream: UpstreamName, topics: Iterable[Topic]) -> int:
        """Return the same as all replicas know it."""
        ...

    async def moment(self, upstream: UpstreamName) -> int:
        """Return the count now. To be read before a fetch: what it brings is older than any later change."""
        ...

    async def advance(self, upstream: UpstreamName, topics: Iterable[Topic]) -> None:
        """Count one change of these topics: what is older is stale here and wherever replicas share results.

        What another replica holds by itself is stale a message later; `told` waits for that.
        """
        ...

    async def told(self, upstream: UpstreamName) -> None:
        """Return once nobody acts on what the changes counted here made stale; bounded."""
        ...


class MemoryStore:
    """Entries up to a number of bytes; the least recently used make room.

    Expired ones stay for `linger` seconds at least: they may stand in for an upstream that is down (C-33).
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float], linger: float = 0.0) -> None:
        self._clock = clock
        self.largest = 0
        self._linger = _LINGER
        self._kept: TLRUCache[Key, _Kept] = TLRUCache(0, ttu=self._forget_at, timer=clock)
        self.allow(max_bytes, linger)

    def allow(self, max_bytes: int, linger: float) -> None:
        """Keep so many bytes from now on, of what is kept already as well."""
        if max_bytes == self.largest and max(linger, _LINGER) == self._linger:
            return
        before = self._kept
        self.largest = max_bytes
        self._linger = max(linger, _LINGER)
        self._kept = TLRUCache(max_bytes, ttu=self._forget_at, timer=self._clock, getsizeof=itemgetter(1))
        for key, kept in list(before.items()):
            if kept[1] <= max_bytes:
                self._kept[key] = kept

    def __repr__(self) -> str:
        entries, held = self.held
        return f"<MemoryStore {entries} entries, {held} of {self.largest} bytes>"

    @property
    def held(self) -> tuple[int, int]:
        return len(self._kept), int(self._kept.currsize)

    def peek(self, key: Key) -> Entry | None:
        try:
            return self._kept[key][0]
        except KeyError:
            return None

    async def get(self, key: Key) -> Entry | None:
        return self.peek(key)

    async def put(self, key: Key, entry: Entry) -> None:
        cost = cost_of(key, entry)
        if cost <= self.largest:
            self._kept[key] = entry, cost

    async def delete(self, key: Key) -> None:
        self.drop(key)

    def _forget_at(self, key: Key, kept: _Kept, now: float) -> float:
        entry, _ = kept
        return entry.received + entry.ttl + self._linger

    def drop(self, key: Key) -> None:
        """Forget one entry at once."""
        self._kept.pop(key, None)

    def clear(self) -> None:
        """Forget everything at once."""
        self._kept.clear()


class MemoryGenerations:
    """The counts of a single process."""

    def __init__(self, most_topics: int = MOST_TOPICS) -> None:
        self.epoch = 0
        self._most_topics = most_topics
        self._histories: dict[UpstreamName, History] = {}

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} at {history.moment}" for name, history in self._histories.items())
        return f"<MemoryGenerations [{counts}]>"

    def peek(self, upstream: UpstreamName, topics: Iterable[Topic]) -> int:
        history = self._histories.get(upstream)
        return 0 if history is None else history.latest(topics)

    async def latest(self, upstream: UpstreamName, topics: Iterable[Topic]) -> int:
        return self.peek(upstream, topics)

    async def moment(self, upstream: UpstreamName) -> int:
        history = self._histories.get(upstream)
        return 0 if history is None else history.moment

    async def advance(self, upstream: UpstreamName, topics: Iterable[Topic]) -> None:
        history = self._histories.setdefault(upstream, History(self._most_topics))
        history.record(topics, history.moment + 1)
        self.epoch += 1

    async def told(self, upstream: UpstreamName) -> None:
        """There is nobody else."""


class History:
    """One upstream's count, and the count at each topic's last change.

    Of a forgotten topic only a bound is kept: it changed no later than `floor`. That is enough to be safe:
    results from before the floor count as stale whether or not their own topic changed.
    """

    __slots__ = ("_changed", "_floor", "_most", "moment")

    def __init__(self, most_topics: int = MOST_TOPICS) -> None:
        self.moment = 0
        self._most = most_topics
        self._floor = 0
        self._changed: OrderedDict[Topic, int] = OrderedDict()

    def latest(self, topics: Iterable[Topic]) -> int:
        """Return the count at the last change of any of the topics."""
        changed, floor = self._changed, self._floor
        return max(changed.get(topic, floor) for topic in topics)

    def record(self, topics: Iterable[Topic], count: int) -> None:
        """Note that these topics changed at this count."""
        self.moment = max(self.moment, count)
        for topic in topics:
            self._changed[topic] = max(count, self._changed.get(topic, self._floor))
            self._changed.move_to_end(topic)
        while len(self._changed) > self._most:
            _, forgotten = self._changed.popitem(last=False)
            self._floor = max(self._floor, forgotten)

    def rebase(self, count: int) -> None:
        """Take everything up to this count as changed: what happened until then is not known."""
        self.moment = max(self.moment, count)
        self._floor = max(self._floor, count)
        later = ((topic, at) for topic, at in self._changed.items() if at > self._floor)
        self._changed = OrderedDict(later)
