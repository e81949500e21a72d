"""Keeps entries in Redis for all replicas, and in this process what may stay there or is asked for often.

A stored value is sealed and says which changes it depends on and the count it is as old as. Redis itself
compares that with the counts, in the same step in which it reads or writes: what a change made stale is
neither found nor stored, wherever the change came from and whatever was under way (C-32). What is found is as
good as fetched at the count it was compared with.

Times are Redis's own. A writer says how long a result still lives and what Redis's clock should show now; a
value that comes late, through a Redis that stood still, lives shorter by that. A reader derives what remains
from the remaining life of the key, counted from before it asked. So no result outlives its ttl. A key lives
on while its writer lets results stand in for an upstream that is down; what is found then is expired.
"""

import asyncio
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

import msgspec

from gateway.cache.policy import Entry, Key, Override, Topic, Verdict, judge, topic_of, upstream_of
from gateway.cache.redis_generations import MOST, RedisGenerations
from gateway.cache.stores import MemoryStore
from gateway.protocol.call import Scope, UpstreamName
from gateway.support.bus import Bus
from gateway.support.redis import Reply, Script, SharedRedis, no_redis_budget, within_redis_budget
from gateway.support.seal import Seal, SealBroken
from gateway.support.tasks import Background

Kept: TypeAlias = Literal["kept", "stale", "unanswered", "too-large"]

_DROPS = "drops"
_COMPRESSED_FROM = 16 * 2**10
_THREAD_FROM = 256 * 2**10
"""Bytes from which (de)compressing takes milliseconds, and is done beside the event loop."""

_DIGEST = 16
_PURPOSE = "entry"

_PRELUDE = f"""
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local n, f
if redis.call('TYPE', KEYS[2]).ok == 'hash' then
  n, f = tonumber(redis.call('HGET', KEYS[2], 'n')), tonumber(redis.call('HGET', KEYS[2], 'f'))
end
if not (n and f and 0 <= f and f <= n and n < {MOST}) then return {{now, -1}} end
local function stale(count, topics)
  if not count or count < f or #topics == 0 or #topics % 16 ~= 0 then return true end
  local names = {{}}
  for i = 1, #topics, 16 do names[#names + 1] = string.sub(topics, i, i + 15) end
  for _, changed in ipairs(redis.call('HMGET', KEYS[2], unpack(names))) do
    local at = tonumber(changed or 0)
    if not (at and at <= n) then redis.call('DEL', KEYS[2]) return true end  -- spoilt: counted anew
    if at > count then return true end
  end
  return false
end
"""

GET = Script(
    "get",
    _PRELUDE
    + """
    if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return {now, n} end
    local entry = redis.call('HMGET', KEYS[1], 'v', 'g', 't', 'l')
    local left = redis.call('PTTL', KEYS[1])
    if left < 1 or not entry[1] or not entry[2] or not entry[3] or not entry[4] then return {now, n} end
    if stale(tonumber(entry[2]), entry[3]) then return {now, n} end
    return {now, n, left, entry[1], entry[2], entry[3], entry[4]}
    """,
)
PUT = Script(
    "put",
    _PRELUDE
    + """
    local left = tonumber(ARGV[4]) - math.max(0, now - tonumber(ARGV[5]))
    if left < 1 or stale(tonumber(ARGV[2]), ARGV[3]) then return {now, n, 0} end
    redis.call('UNLINK', KEYS[1])
    redis.call('HSET', KEYS[1], 'v', ARGV[1], 'g', ARGV[2], 't', ARGV[3], 'l', ARGV[6])
    redis.call('PEXPIRE', KEYS[1], left + ARGV[6])
    return {now, n, 1}
    """,
)
DELETE = Script("delete", "return {redis.call('UNLINK', KEYS[1])}")


class _Value(msgspec.Struct, array_like=True):
    """What is sealed: a result, what a reader must know of it, and whether it is compressed."""

    ttl: float
    scope: Scope
    topics: tuple[Topic, ...]
    overrides: tuple[Override, ...]
    size: int
    compressed: bool
    body: bytes


_decode = msgspec.msgpack.Decoder(_Value).decode


class Unreadable(ValueError):
    """A value is not one of ours, or of another place, or damaged."""


def pack(entry: Entry) -> bytes:
    """Return an entry as bytes; a large result is compressed when that saves a tenth."""
    body, compressed = entry.result, False
    if len(body) >= _COMPRESSED_FROM:
        smaller = zlib.compress(body, 1)
        if len(smaller) * 10 <= len(body) * 9:
            body, compressed = smaller, True
    size = len(entry.result)
    value = _Value(entry.ttl, entry.scope, entry.topics, entry.overrides, size, compressed, body)
    return msgspec.msgpack.encode(value)


def unpack(packed: bytes, *, largest: int) -> Entry:
    """Return what was packed, received at 0; raises Unreadable, and never makes more than `largest` of it."""
    try:
        value = _decode(packed)
    except msgspec.MsgspecError:
        raise Unreadable from None
    if value.size > largest or not value.topics:
        raise Unreadable
    body = _inflate(value.body, value.size) if value.compressed else value.body
    if len(body) != value.size:
        raise Unreadable
    return Entry(body, 0.0, value.ttl, value.scope, 0, value.topics, value.overrides)


def _inflate(body: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, size + 1)
    except zlib.error:
        raise Unreadable from None
    if not inflater.eof or inflater.unused_data:
        raise Unreadable
    return inflated


class RedisStore:
    """Entries in Redis. It never raises: what is unreadable is absent, what is unwritable lost (C-35)."""

    def __init__(
        self,
        redis: SharedRedis,
        generations: RedisGenerations,
        seal: Seal,
        clock: Callable[[], float],
        *,
        largest: int,
        linger: float = 0.0,
    ) -> None:
        self._redis = redis
        self._generations = generations
        self._seal = seal
        self._clock = clock
        self._largest = largest
        self._linger = b"%d" % (linger * 1000)
        self._times: dict[UpstreamName, tuple[float, float]] = {}
        """What Redis's clock showed, in milliseconds, and ours when we read it."""

    def __repr__(self) -> str:
        return f"<RedisStore {self._redis!r}>"

    async def get(self, key: Key) -> Entry | None:
        """Return what lies there and nothing made stale, as of the count it was compared with.

        It may be expired.
        """
        upstream, asked = upstream_of(key), self._clock()
        place = self.place(key)
        answer = await self._ask(GET, upstream, place)
        if answer is None or len(answer) < 7:
            return None
        _, count, left, sealed, written, topics, linger = answer
        try:
            entry = await self._open(sealed, _bound(place, written, topics, linger))
        except (SealBroken, Unreadable):
            return None
        # Never longer than what remains, whatever the key's expiry says.
        remaining = min((left - int(linger)) / 1000, entry.ttl)
        return replace(entry, received=asked + remaining - entry.ttl, generation=int(count))

    async def put(self, key: Key, entry: Entry) -> Kept:
        """Store an entry unless one of its topics changed since its count."""
        if len(entry.result) > self._largest:
            return "too-large"
        upstream = upstream_of(key)
        if upstream not in self._times:
            return "unanswered"
        place = self.place(key)
        written = b"%d" % entry.generation
        topics = b"".join(self._generations.digest(topic) for topic in entry.topics)
        sealed = await self._close(entry, _bound(place, written, topics, self._linger))
        shown, read = self._times[upstream]
        now = self._clock()
        times = [entry.remaining_ms(now), int(shown + (now - read) * 1000)]
        answer = await self._ask(PUT, upstream, place, sealed, written, topics, *times, self._linger)
        if answer is None:
            return "unanswered"
        return "kept" if len(answer) > 2 and answer[2] else "stale"

    async def delete(self, key: Key) -> bool | None:
        """Take away what lies there; whether there was something, None when that is not known."""
        answer = await self._redis.run(DELETE, [self.place(key)], [])
        return None if answer is None else bool(answer[0])

    def place(self, key: Key) -> str:
        """Return the name of an entry in Redis: of fixed length, and telling nothing (C-25)."""
        name = self._seal.name(_PURPOSE, msgspec.msgpack.encode(key)).hex()
        return f"{self._generations.slot(upstream_of(key))}:{name}"

    async def _ask(
        self, script: Script, upstream: UpstreamName, place: str, *args: bytes | str | int
    ) -> Reply | None:
        known = self._generations.count(upstream)
        keys = [place, self._generations.key(upstream)]
        answer = await self._redis.run(script, keys, args)
        if answer is None:
            return None
        self._times[upstream] = float(answer[0]), self._clock()
        if answer[1] < known:
            self._generations.lost(upstream)  # it holds less than was known before it was asked
            return None
        self._generations.learn(upstream, int(answer[1]))
        return answer

    async def _open(self, sealed: bytes, bound: bytes) -> Entry:
        def opened() -> Entry:
            return unpack(self._seal.decrypt(_PURPOSE, sealed, bound_to=bound), largest=self._largest)

        return await asyncio.to_thread(opened) if len(sealed) >= _THREAD_FROM else opened()

    async def _close(self, entry: Entry, bound: bytes) -> bytes:
        def closed() -> bytes:
            return self._seal.encrypt(_PURPOSE, pack(entry), bound_to=bound)

        return await asyncio.to_thread(closed) if len(entry.result) >= _THREAD_FROM else closed()


class Tiered:
    """Memory over Redis: what is asked for often lies here, what others fetched is found there."""

    def __init__(
        self,
        memory: MemoryStore,
        redis: RedisStore,
        generations: RedisGenerations,
        bus: Bus,
        background: Background,
        clock: Callable[[], float],
        *,
        private_in_redis: bool = False,
    ) -> None:
        self._memory = memory
        self._redis = redis
        self._generations = generations
        self._bus = bus
        self._background = background
        self._clock = clock
        self._private_in_redis = private_in_redis
        bus.subscribe(_DROPS, self._dropped)
        bus.watch(memory.clear)

    def __repr__(self) -> str:
        return f"<Tiered {self._memory!r} over {self._redis!r}>"

    @property
    def largest(self) -> int:
        return self._memory.largest

    @property
    def held(self) -> tuple[int, int]:
        return self._memory.held

    def peek(self, key: Key) -> Entry | None:
        return self._memory.peek(key)

    async def get(self, key: Key) -> Entry | None:
        upstream = upstream_of(key)
        if not await self._generations.ready(upstream):
            return None
        here = self._memory.peek(key)
        if here is not None and self._generations.owes(upstream, here.topics):
            return None
        if self._fresh(upstream, here) or not self._shared(key):
            return here
        session = self._bus.session
        there = await self._redis.get(key)
        if there is None or self._generations.owes(upstream, there.topics):
            return here  # stale, and says so
        if here is not None and self._outlasts(upstream, here, there):
            return here
        if session == self._bus.session:
            await self._memory.put(key, there)
        return there

    async def put(self, key: Key, entry: Entry) -> None:
        upstream = upstream_of(key)
        if not self._generations.knows(upstream) or self._generations.owes(upstream, entry.topics):
            return
        if self._shared(key) and await self._redis.put(key, entry) == "stale":
            return
        await self._memory.put(key, entry)

    async def delete(self, key: Key) -> None:
        here = self._memory.peek(key) is not None
        self._memory.drop(key)
        if not self._shared(key):
            return
        # To the end, whoever leaves or has waited long enough meanwhile.
        with no_redis_budget():
            taking = self._background.start(self._take_away(key, here), name="delete an entry")
        await within_redis_budget(taking)

    async def _take_away(self, key: Key, here: bool) -> None:
        upstream = upstream_of(key)
        there = await self._redis.delete(key) if self._generations.knows(upstream) else None
        gone = there is not None
        if there or (gone and here):
            gone = await self._bus.publish(_DROPS, msgspec.msgpack.encode(key))
        if not gone:
            # It may be found again by whoever must not have it (C-20): what it depends on counts as changed.
            self._generations.owe(upstream, (topic_of(key),))

    def _shared(self, key: Key) -> bool:
        return key[0] == "public" or self._private_in_redis

    def _fresh(self, upstream: UpstreamName, entry: Entry | None) -> bool:
        if entry is None:
            return False
        generation = self._generations.peek(upstream, entry.topics)
        return judge(entry, generation=generation, now=self._clock()) is Verdict.FRESH

    def _outlasts(self, upstream: UpstreamName, here: Entry, there: Entry) -> bool:
        """Whether what lies here, expired but not changed, is younger than what lies there."""
        changed = here.generation < self._generations.peek(upstream, here.topics)
        return not changed and here.received + here.ttl >= there.received + there.ttl

    def _dropped(self, message: bytes) -> None:
        self._memory.drop(msgspec.msgpack.decode(message, type=Key))
        self._generations.moved()


def _bound(place: str, written: bytes, topics: bytes, linger: bytes) -> bytes:
    """Return what a sealed value belongs to: one with another key, count, topics or end is nobody's."""
    parts = (place.encode(), written, topics, linger)
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)
