"""Puts together what makes replicas behave as one cache: entries, counts and the bus, all on one Redis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.cache.leads import Leads
from gateway.cache.redis_generations import RedisGenerations
from gateway.cache.redis_store import RedisStore, Tiered
from gateway.cache.stores import MemoryStore
from gateway.config import RedisAddress, RedisTls
from gateway.protocol.call import UpstreamName
from gateway.support.bus import LEASE, RedisBus
from gateway.support.metrics import Metrics
from gateway.support.redis import SharedRedis
from gateway.support.seal import Seal
from gateway.support.tasks import Background


@dataclass(frozen=True, slots=True)
class Sharing:
    """How far a replica shares: the deadline of a question, how names begin, what may lie in Redis.

    `coalesce` is how long it waits for another's fetch, `coalesces` the same of single upstreams; 0 = not.
    """

    timeout: float = 0.05
    prefix: str = "mcpgw"
    largest: int = 4 * 2**20
    private_in_redis: bool = False
    lease: float = LEASE
    linger: float = 0.0
    """Seconds for which what is expired stays in Redis."""
    coalesce: float = 1.0
    coalesces: Mapping[UpstreamName, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Replicated:
    """One replica's share of the common cache."""

    redis: SharedRedis
    bus: RedisBus
    generations: RedisGenerations
    store: Tiered
    entries: RedisStore
    leads: Leads | None

    def start(self) -> None:
        """Begin to hear the others; until then nothing is cached."""
        self.bus.start()

    async def close(self) -> None:
        """Leave the others."""
        await self.bus.close()
        await self.redis.close()

    @property
    def state(self) -> Literal["up", "down"]:
        """Whether the replicas are one cache now; down = requests go on uncached."""
        return "up" if self.bus.hears and self.redis.answers else "down"


def replicated(
    address: RedisAddress,
    sharing: Sharing,
    *,
    memory: MemoryStore,
    seal: Seal,
    background: Background,
    metrics: Metrics,
    clock: Callable[[], float],
    most_topics: int,
    tls: RedisTls | None = None,
) -> Replicated:
    """Return the parts, wired; nothing runs and nothing is connected yet."""
    redis = SharedRedis(address, timeout=sharing.timeout, metrics=metrics, tls=tls)
    bus = RedisBus(
        redis, seal, prefix=sharing.prefix, background=background, metrics=metrics, lease=sharing.lease
    )
    generations = RedisGenerations(
        redis, bus, seal, background, prefix=sharing.prefix, most_topics=most_topics
    )
    bus.prepare = generations.tell_the_untold
    entries = RedisStore(redis, generations, seal, clock, largest=sharing.largest, linger=sharing.linger)
    private = sharing.private_in_redis
    store = Tiered(memory, entries, generations, bus, background, clock, private_in_redis=private)
    leads = Leads(
        redis,
        generations,
        bus,
        seal,
        background,
        bound=sharing.coalesce,
        bounds=sharing.coalesces,
        largest=sharing.largest,
        private_in_redis=sharing.private_in_redis,
    )
    return Replicated(redis, bus, generations, store, entries, leads if sharing.coalesce else None)
