"""Counts changes in Redis for all replicas, and knows the counts here as long as it hears of every change.

The count of an upstream never falls and never repeats: it is at least the microsecond of Redis's clock. When
Redis lost data (flushed, failed over, evicted, restarted from an old snapshot) the count goes on above every
count that anybody still remembers, and all results from before count as stale.

A session is the time in which the bus heard everything. Counts known from another session are not acted upon;
at the first question about an upstream in a new one its count is read again, and what was kept here from
before it is stale. A change that could not be told is told as a change of everything as soon as that can be,
at the latest when the next session begins; until then nothing that it touches is fresh here.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from gateway.cache.policy import EVERYTHING, Topic
from gateway.cache.stores import MOST_TOPICS, History
from gateway.protocol.call import UpstreamName
from gateway.support.bus import Bus
from gateway.support.redis import Script, SharedRedis, no_redis_budget, within_redis_budget
from gateway.support.seal import Seal
from gateway.support.tasks import Background

UNKNOWN = 2**62
"""Later than any count: with it nothing that is kept here is fresh."""

_KEPT_MS = 7 * 86_400_000
_CHANGES = "changes"
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
"""Seconds between attempts to tell what is owed."""

_MOST_OWED = 100
"""Topics of one upstream that are told one by one; of more, everything is."""

MOST = 2**53 - 2**40
"""Higher counts are not ours: beyond 2^53 Redis's numbers have gaps, and a count would stand still."""

_PRELUDE = f"""
local t = redis.call('TIME')
local us = t[1] * 1000000 + t[2]
local key, known = KEYS[1], tonumber(ARGV[1])
if redis.call('TYPE', key).ok ~= 'hash' then redis.call('DEL', key) end
local n, f = tonumber(redis.call('HGET', key, 'n')), tonumber(redis.call('HGET', key, 'f'))
if not (n and f and 0 <= f and f <= n and n < {MOST}) then n, f = nil, nil end
local function begin()
  n = math.max(n or 0, us, known + 1)
  local info = redis.pcall('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
  redis.call('DEL', key)
  redis.call('HSET', key, 'n', string.format('%.0f', n), 'f', string.format('%.0f', n), 'r', run)
end
"""

SYNC = Script(
    "sync",
    _PRELUDE
    + f"""
    local info = redis.pcall('INFO', 'server')
    local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
    if not n or not f or n < known or redis.call('HGET', key, 'r') ~= run then begin() end
    redis.call('PEXPIRE', key, {_KEPT_MS})
    return {{n}}
    """,
)
"""The count now. A count below one that is known, or another run of the server, means that data was lost."""

ADVANCE = Script(
    "advance",
    _PRELUDE
    + f"""
    if not n or not f or redis.call('HLEN', key) > tonumber(ARGV[2]) then begin() end
    n = math.max(n + 1, us, known + 1)
    local count = string.format('%.0f', n)
    redis.call('HSET', key, 'n', count)
    for i = 3, #ARGV do redis.call('HSET', key, ARGV[i], count) end
    redis.call('PEXPIRE', key, {_KEPT_MS})
    return {{n}}
    """,
)
"""One step of the count, noted at every topic; with too many topics all that was is taken as changed."""


class _Change(msgspec.Struct, array_like=True):
    """What replicas tell each other."""

    upstream: str
    count: int
    topics: list[tuple[str, ...]]
    key: str
    """Where it was counted: elsewhere than here while the last key of the ring differs."""


class RedisGenerations:
    """The counts that all replicas share."""

    def __init__(
        self,
        redis: SharedRedis,
        bus: Bus,
        seal: Seal,
        background: Background,
        *,
        prefix: str,
        most_topics: int = MOST_TOPICS,
    ) -> None:
        self._redis = redis
        self._bus = bus
        self._seal = seal
        self._background = background
        self._prefix = prefix
        self._most_topics = most_topics
        self._histories: dict[UpstreamName, History] = {}
        self._synced: dict[UpstreamName, int] = {}
        """The session in which an upstream's count was read last."""
        self._syncing: dict[tuple[UpstreamName, int], asyncio.Task[None]] = {}
        self._untold: dict[UpstreamName, dict[Topic, int]] = {}
        """What is owed to the others, and which debt it was that made it so last."""
        self._debts = 0
        self._telling: dict[UpstreamName, set[asyncio.Task[None]]] = {}
        """What is being told to the others."""
        self._paying: asyncio.Task[None] | None = None
        self._all_told = asyncio.Event()
        self._epoch = 0
        bus.subscribe(_CHANGES, self._heard)
        bus.watch(self.moved)

    def __repr__(self) -> str:
        known = ", ".join(
            f"{name} at {self._histories[name].moment}" for name in self._synced if self.knows(name)
        )
        return f"<RedisGenerations [{known}], {len(self._untold)} untold>"

    @property
    def epoch(self) -> int:
        if not self._bus.hears:
            self._epoch += 1  # somebody may have changed something just now
        return self._epoch

    def moved(self) -> None:
        """Begin a new epoch: something that may be in a joined answer is no longer to be served."""
        self._epoch += 1

    def knows(self, upstream: UpstreamName) -> bool:
        """Whether no change of this upstream can have happened that is not known here."""
        synced = self._synced.get(upstream) == self._bus.session
        return synced and self._bus.hears and not self.owes(upstream, (EVERYTHING,))

    def owes(self, upstream: UpstreamName, topics: Iterable[Topic]) -> bool:
        """Whether any of these is still to be told to the others; until then it is neither found nor kept."""
        owed = self._untold.get(upstream)
        return owed is not None and not owed.keys().isdisjoint(topics)

    async def ready(self, upstream: UpstreamName) -> bool:
        """Return the same after reading the count, if that is all that is missing."""
        if self.knows(upstream):
            return True
        if not self._bus.hears:
            return False
        if upstream in self._untold:
            self._pay()
            if self.owes(upstream, (EVERYTHING,)):
                return False
        # Once for a whole crowd: each question has to be answered in time, and so has the last of them.
        asked = upstream, self._bus.session
        if asked not in self._syncing:
            with no_redis_budget():
                self._syncing[asked] = self._background.start(self._sync(*asked), name="read a count")
        await within_redis_budget(self._syncing[asked])
        return self.knows(upstream)

    def lost(self, upstream: UpstreamName) -> None:
        """Read the count anew at the next question: Redis has lost it, or a part of what was counted."""
        self._synced.pop(upstream, None)
        self.moved()

    def learn(self, upstream: UpstreamName, count: int) -> None:
        """Note what Redis says the count is. What began after this answer is not older than it."""
        history = self._history(upstream)
        history.moment = max(history.moment, count)

    def count(self, upstream: UpstreamName) -> int:
        """Return the highest count known here; Redis knows no lower one unless it lost data."""
        return self._history(upstream).moment

    def peek(self, upstream: UpstreamName, topics: Iterable[Topic]) -> int:
        topics = tuple(topics)
        if not self.knows(upstream) or self.owes(upstream, topics):
            return UNKNOWN
        return self._histories[upstream].latest(topics)

    async def latest(self, upstream: UpstreamName, topics: Iterable[Topic]) -> int:
        await self.ready(upstream)
        return self._history(upstream).latest(topics)

    async def moment(self, upstream: UpstreamName) -> int:
        await self.ready(upstream)
        return self._history(upstream).moment

    async def advance(self, upstream: UpstreamName, topics: Iterable[Topic]) -> None:
        # Told to the end, whoever leaves meanwhile: half told, it would be known here and nowhere else.
        counting = self._background.start(self._advance(upstream, tuple(topics)), name="count a change")
        await asyncio.shield(counting)

    async def told(self, upstream: UpstreamName) -> None:
        if telling := self._telling.get(upstream):
            await asyncio.wait(set(telling))
        # Who is cut off as we are stops by himself when his lease is over; the others are told when we can.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._bus.lapse):
                while upstream in self._untold:
                    await self._all_told.wait()

    async def tell_the_untold(self) -> bool:
        """Catch up, at the beginning of a session; whether Redis and everybody else know all changes now."""
        self.moved()  # what was begun while cut off may be older than a change that nobody told us of
        while self._untold:  # more may be owed when something has been told
            upstream, owed = next(iter(self._untold.items()))
            told = dict(owed)
            if not await self._tell(upstream, tuple(told)):
                return False
            self._settle(upstream, told)
        self._all_told.set()
        return True

    def _settle(self, upstream: UpstreamName, told: Mapping[Topic, int]) -> None:
        """Note what is not owed any more; what is owed once more since it was counted still is."""
        owed = self._untold.get(upstream, {})
        for topic, debt in told.items():
            if owed.get(topic) == debt:
                del owed[topic]
        if not owed:
            self._untold.pop(upstream, None)

    def owe(self, upstream: UpstreamName, topics: Iterable[Topic]) -> None:
        """Have topics count as changed, for everybody, before anything of this upstream is known again."""
        owed = self._untold.setdefault(upstream, {})
        self._all_told.clear()
        self._debts += 1
        owed.update(dict.fromkeys(topics, self._debts))
        if EVERYTHING in owed or len(owed) > _MOST_OWED:
            owed.clear()
            owed[EVERYTHING] = self._debts
        self.moved()
        self._pay()

    def _pay(self) -> None:
        """Tell what is owed, now if that can be; else the next session begins with it."""
        if self._bus.hears and (self._paying is None or self._paying.done()):
            with no_redis_budget():  # the debt is not that of whoever comes upon it
                self._paying = self._background.start(self._paid(), name="tell what is owed")

    async def _paid(self) -> None:
        pause = _FIRST_PAUSE
        while self._bus.hears and not await self.tell_the_untold():
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def key(self, upstream: UpstreamName) -> str:
        """Return where the counts of an upstream lie; all of its keys are in one slot of a Cluster."""
        return f"{self.slot(upstream)}:changes"

    def slot(self, upstream: UpstreamName) -> str:
        """Return how all keys of an upstream begin."""
        return f"{self._prefix}:1:{{{self._seal.name('upstream', upstream.encode()).hex()}}}"

    def digest(self, topic: Topic) -> bytes:
        """Return what a topic is called in Redis: a uri may hold a secret."""
        return self._seal.name("topic", msgspec.msgpack.encode(topic))

    async def _sync(self, upstream: UpstreamName, session: int) -> None:
        try:
            history = self._history(upstream)
            answer = await self._redis.run(SYNC, [self.key(upstream)], [history.moment])
            if answer is not None and session == self._bus.session and self._synced.get(upstream) != session:
                history.rebase(int(answer[0]))
                self._synced[upstream] = session
        finally:
            del self._syncing[upstream, session]

    async def _advance(self, upstream: UpstreamName, topics: Sequence[Topic]) -> None:
        """Count a change, which makes stale what lies in Redis; it is told without being waited for."""
        count = await self._count(upstream, topics)
        if count is None:
            self._failed_to_tell(upstream, topics)
            return
        telling = self._background.start(self._announce(upstream, topics, count), name="tell of a change")
        self._telling.setdefault(upstream, set()).add(telling)
        telling.add_done_callback(lambda _: self._has_told(upstream, telling))

    async def _announce(self, upstream: UpstreamName, topics: Sequence[Topic], count: int) -> None:
        if not await self._spread(upstream, topics, count):
            self._failed_to_tell(upstream, topics)

    def _has_told(self, upstream: UpstreamName, telling: asyncio.Task[None]) -> None:
        self._telling[upstream].discard(telling)
        if not self._telling[upstream]:
            del self._telling[upstream]

    def _failed_to_tell(self, upstream: UpstreamName, topics: Sequence[Topic]) -> None:
        history = self._history(upstream)
        history.record(topics, history.moment + 1)
        self.owe(upstream, (EVERYTHING,))

    async def _tell(self, upstream: UpstreamName, topics: Sequence[Topic]) -> bool:
        count = await self._count(upstream, topics)
        return count is not None and await self._spread(upstream, topics, count)

    async def _spread(self, upstream: UpstreamName, topics: Sequence[Topic], count: int) -> bool:
        change = _Change(upstream, count, list(topics), self.key(upstream))
        return await self._bus.announce(_CHANGES, msgspec.msgpack.encode(change))

    async def _count(self, upstream: UpstreamName, topics: Sequence[Topic]) -> int | None:
        history = self._history(upstream)
        args: list[bytes | str | int] = [
            history.moment,
            self._most_topics,
            *(self.digest(topic) for topic in topics),
        ]
        answer = await self._redis.run(ADVANCE, [self.key(upstream)], args, urgent=True)
        if answer is None:
            return None
        count = int(answer[0])
        history.record(topics, count)
        self.moved()
        return count

    def _heard(self, message: bytes) -> None:
        change = msgspec.msgpack.decode(message, type=_Change)
        upstream = UpstreamName(change.upstream)
        self._history(upstream).record(change.topics, change.count)
        self.moved()
        if change.key != self.key(upstream):
            self._background.start(self._count(upstream, change.topics), name="count a change")

    def _history(self, upstream: UpstreamName) -> History:
        history = self._histories.get(upstream)
        if history is None:
            history = self._histories[upstream] = History(self._most_topics)
        return history
