"""Response caches that share a Redis, as replicas of the gateway do, and an upstream they all ask.

async with redis_server() as server, replica(server) as one, replica(server) as two:
    await one.ask(LISTS, upstream)
    assert await two.ask(LISTS, upstream) == "hit hit"
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from gateway.cache.flight import SingleFlight
from gateway.cache.leads import Leads
from gateway.cache.policy import Lookup
from gateway.cache.redis_generations import RedisGenerations
from gateway.cache.redis_store import RedisStore, Tiered
from gateway.cache.replicated import Sharing, replicated
from gateway.cache.responses import ResponseCache
from gateway.cache.stores import MemoryStore
from gateway.config import RedisTls, parse_redis_url
from gateway.protocol.call import Change, Reply, UpstreamName
from gateway.support.bus import RedisBus
from gateway.support.metrics import Metrics
from gateway.support.redis import SharedRedis
from gateway.support.seal import Seal
from gateway.support.tasks import Background
from tests.unit.cache.clock import Clock

NO_BOUNDS: Mapping[UpstreamName, float] = {}


class Place(Protocol):
    """A Redis, or what stands before it."""

    url: str


@dataclass(frozen=True, eq=False)
class Replica:
    """One replica's cache, with everything below it."""

    clock: Clock
    redis: SharedRedis
    bus: RedisBus
    generations: RedisGenerations
    memory: MemoryStore
    shared: RedisStore
    store: Tiered
    flight: SingleFlight
    leads: Leads | None
    background: Background
    cache: ResponseCache
    metrics: Metrics

    async def ask(self, lookup: Lookup, fill: Callable[[], Awaitable[Reply]]) -> str:
        """Return an answer in two words."""
        cached = await self.cache.get(lookup, fill)
        return f"{cached.source} {cached.reason}"

    async def body(self, lookup: Lookup, fill: Callable[[], Awaitable[Reply]]) -> bytes:
        return (await self.cache.get(lookup, fill)).entry.result

    async def changed(self, change: Change) -> None:
        """Heed a change as the catalogue does before anybody is told of it."""
        await self.cache.invalidate(change)
        await self.cache.told(change.upstream)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what no event announces."""
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)

    async def linked(self) -> None:
        await self.until(lambda: self.bus.hears)


@asynccontextmanager
async def replica(
    server: Place,
    *,
    keys: Sequence[str] = ("a key of the ring",),
    private_in_redis: bool = False,
    largest: int = 4 * 2**20,
    timeout: float = 2.0,
    lease: float = 2.0,
    most_topics: int = 10_000,
    coalesce: float = 20.0,
    coalesces: Mapping[UpstreamName, float] = NO_BOUNDS,
    linked: bool = True,
    tls: RedisTls | None = None,
    stale_if_error: float = 0.0,
) -> AsyncIterator[Replica]:
    """Run one, linked to the others; deadline and bound are long for the sake of a busy test machine."""
    clock, background, metrics, seal = Clock(), Background(), Metrics(), Seal(keys)
    memory = MemoryStore(2**24, clock, linger=stale_if_error)
    sharing = Sharing(timeout, "mcpgw", largest, private_in_redis, lease, stale_if_error, coalesce, coalesces)
    parts = replicated(
        parse_redis_url(server.url),
        sharing,
        memory=memory,
        seal=seal,
        background=background,
        metrics=metrics,
        clock=clock,
        most_topics=most_topics,
        tls=tls,
    )
    flight = SingleFlight(background)
    cache = ResponseCache(parts.store, parts.generations, flight, metrics, clock, stale_if_error, parts.leads)
    one = Replica(
        clock,
        parts.redis,
        parts.bus,
        parts.generations,
        memory,
        parts.entries,
        parts.store,
        flight,
        parts.leads,
        background,
        cache,
        metrics,
    )
    parts.start()
    try:
        if linked:
            await one.linked()
        yield one
    finally:
        await parts.close()
        await background.close(1.0)
