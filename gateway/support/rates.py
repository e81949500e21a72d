"""Counts requests against rates such as 100/s, in this process or in Redis for all replicas together.

Each key has a bucket that holds as many requests as its rate names and fills evenly. All that is kept of
one is the time at which it is full again (GCRA). Where Redis does not answer, this process counts alone.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol

from cachetools import LRUCache

from gateway.config import Rate
from gateway.support.redis import Script, SharedRedis
from gateway.support.seal import Seal

_MOST = 100_000
"""Buckets that are remembered; of the one used longest ago it is forgotten that it is not full."""
_ROUNDING = 1e-6

TAKE = Script(
    "rate",
    """
    local clock = redis.call('TIME')
    local now = clock[1] * 1000000 + clock[2]
    local full = tonumber(redis.call('HGET', KEYS[1], 'full') or now)
    local window, takes = tonumber(ARGV[1]), tonumber(ARGV[2])
    if full < now then full = now end
    local wait = full + takes - window - now
    if wait > 0 then return {wait} end
    if ARGV[3] then return {0} end
    redis.call('HSET', KEYS[1], 'full', string.format('%.0f', full + takes))
    redis.call('PEXPIRE', KEYS[1], math.ceil((full + takes - now) / 1000) + 1)
    return {0}
    """,
)


def take(full: float, rate: Rate, now: float, *, cost: int = 1) -> tuple[float, float]:
    """Return when a bucket is full again, and the seconds after which it makes sense to ask; 0 = taken."""
    takes = cost * rate.seconds / rate.count
    begin = max(full, now)
    wait = begin + takes - rate.seconds - now
    if wait > _ROUNDING * rate.seconds:
        return full, wait
    return begin + takes, 0.0


class Rates(Protocol):
    """Where requests are counted."""

    async def take(self, key: str, rate: Rate, cost: int = 1) -> float:
        """Count so many requests; return 0, or the seconds after which to come back if they are too many."""
        ...

    async def look(self, key: str, rate: Rate) -> float:
        """Return what `take` would of one request, which is not counted."""
        ...


class LocalRates:
    """Counts the requests of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, most: int = _MOST) -> None:
        self._clock = clock
        self._full: LRUCache[str, float] = LRUCache(most)

    def __repr__(self) -> str:
        return f"<LocalRates {len(self._full)} buckets>"

    async def take(self, key: str, rate: Rate, cost: int = 1) -> float:
        """Count so many requests; return 0, or the seconds after which to come back if they are too many."""
        full, wait = take(self._full.get(key, 0.0), rate, self._clock(), cost=cost)
        self._full[key] = full
        return wait

    async def look(self, key: str, rate: Rate) -> float:
        """Return what `take` would of one request, which is not counted."""
        return take(self._full.get(key, 0.0), rate, self._clock())[1]


class RedisRates:
    """Counts the requests of all replicas, by the clock of Redis."""

    def __init__(self, redis: SharedRedis, seal: Seal, *, prefix: str, local: LocalRates) -> None:
        self._redis = redis
        self._seal = seal
        self._prefix = prefix
        self._local = local

    def __repr__(self) -> str:
        return f"<RedisRates {self._redis!r}>"

    async def take(self, key: str, rate: Rate, cost: int = 1) -> float:
        """Count so many requests; return 0, or the seconds after which to come back if they are too many."""
        wait = await self._asked(key, rate, cost)
        return await self._local.take(key, rate, cost) if wait is None else wait

    async def look(self, key: str, rate: Rate) -> float:
        """Return what `take` would of one request, which is not counted."""
        wait = await self._asked(key, rate, 1, "look")
        return await self._local.look(key, rate) if wait is None else wait

    async def _asked(self, key: str, rate: Rate, cost: int, *how: str) -> float | None:
        place = f"{self._prefix}:1:rate:{self._seal.partition(f'rate {rate} {key}')}"
        one = math.ceil(rate.seconds * 1e6 / rate.count)
        answer = await self._redis.run(TAKE, [place], [one * rate.count, one * cost, *how])
        return None if answer is None else float(answer[0]) / 1e6
