"""The shared cache on a Cluster, and on a server that Sentinels know: the same answers, the same changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from gateway.cache.policy import Lookup, Rules
from gateway.protocol.call import MODERN_VERSION, Change, Reply, UpstreamName
from gateway.protocol.jsonrpc import encode
from tests.support.processes import free_port
from tests.support.redis import RedisServer, redis_server
from tests.support.replicas import Place, replica

GH = UpstreamName("gh")
LISTS = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, None, Rules())


@dataclass
class Elsewhere:
    """Where replicas find their Redis, other than on its own socket."""

    url: str


async def answer() -> Reply:
    return Reply(encode({"ttlMs": 60_000, "cacheScope": "public"}))


async def assert_one_cache(place: Place) -> None:
    """What one fetched the other serves, until one of them hears of a change."""
    async with replica(place) as one, replica(place) as two:
        assert await one.ask(LISTS, answer) == "miss absent"
        assert await two.ask(LISTS, answer) == "hit hit"
        await one.cache.invalidate(Change(GH, "tools/list"))
        assert two.cache.peek(LISTS) is None
        assert await two.ask(LISTS, answer) == "miss generation"
        assert await one.ask(LISTS, answer) == "hit hit"


async def test_a_cluster_is_one_cache() -> None:
    """Entries and counts of an upstream share a slot; what is published at any node is heard at all."""
    port = free_port()
    options = ("--port", str(port), "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
    # Its own default, the port plus 10000, does not exist for the upper ports.
    options += ("--cluster-port", str(free_port()))
    async with redis_server(*options) as server:
        await server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while b"cluster_state:ok" not in await server.ask("CLUSTER", "INFO"):  # noqa: ASYNC110 - it takes its time
            await asyncio.sleep(0.05)
        await assert_one_cache(Elsewhere(f"redis+cluster://127.0.0.1:{port}"))


@asynccontextmanager
async def sentinel(server_port: int) -> AsyncIterator[tuple[RedisServer, int]]:
    port = free_port()
    async with redis_server("--port", str(port), "--sentinel", config=True) as guard:
        client = Redis(host="127.0.0.1", port=port, protocol=2)
        await client.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", server_port, 1)
        await client.aclose()
        yield guard, port


async def test_a_server_that_sentinels_know_is_found() -> None:
    """The address names the Sentinel, and the name the server has there."""
    server_port = free_port()
    async with redis_server("--port", str(server_port)), sentinel(server_port) as (_, port):
        await assert_one_cache(Elsewhere(f"redis+sentinel://127.0.0.1:{port}/main"))
