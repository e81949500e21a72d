"""Redis frozen, killed, flushed and spoilt under load: every request is answered, none with the old (B51)."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from gateway.cache.policy import Lookup, Rules, public_key
from gateway.cache.redis_store import GET
from gateway.protocol.call import MODERN_VERSION, Change, Reply, UpstreamName
from gateway.protocol.jsonrpc import encode, value
from tests.support.redis import RedisServer, redis_proxy, redis_server
from tests.support.replicas import Replica, replica
from tests.support.running import Clock, running
from tests.support.scripted import ScriptedUpstream, tool

GH = UpstreamName("gh")
LISTS = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, None, Rules())
PAGES = [replace(LISTS, target=None if number == 0 else f"page {number}") for number in range(8)]
LIST_CHANGED = Change(GH, "tools/list")

Trouble = Callable[[RedisServer, Replica], Awaitable[None]]


class Upstream:
    """Answers with its version as it is when asked."""

    version = 1
    asked = 0

    async def __call__(self) -> Reply:
        self.asked += 1
        return Reply(encode({"version": self.version, "ttlMs": 60_000, "cacheScope": "public"}))


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def freeze(server: RedisServer, one: Replica) -> None:
    server.freeze()
    await one.until(lambda: not one.bus.hears)
    server.thaw()


async def kill(server: RedisServer, one: Replica) -> None:
    await server.kill()
    await one.until(lambda: not one.bus.hears)
    await server.begin()


async def flush(server: RedisServer, one: Replica) -> None:
    await server.ask("FLUSHALL")


async def spoil(server: RedisServer, one: Replica) -> None:
    for page in PAGES:
        await server.ask("SET", one.shared.place(public_key(page)), "x")


async def spoil_counts(server: RedisServer, one: Replica) -> None:
    await server.ask("SET", one.generations.key(GH), "x")


@pytest.mark.parametrize("trouble", [freeze, kill, flush, spoil, spoil_counts])
async def test_under_load_nobody_is_refused_or_served_the_old(server: RedisServer, trouble: Trouble) -> None:
    """Through trouble and recovery, with changes before, meanwhile and after."""
    upstream = Upstream()
    async with (
        replica(server, timeout=0.2, lease=0.8) as one,
        replica(server, timeout=0.2, lease=0.8) as two,
    ):
        told, done = 1, asyncio.Event()

        async def client(first: int) -> int:
            for turn in itertools.count(first):
                if done.is_set():
                    return turn
                known, asked = told, (one, two)[turn % 2]
                cached = await asked.cache.get(PAGES[turn % len(PAGES)], upstream)
                if asked is one:  # while cut off, a change is known to who announces it
                    assert value(cached.entry.result)["version"] >= known
                await asyncio.sleep(0.001)
            raise AssertionError

        async def change() -> None:
            nonlocal told
            upstream.version += 1
            await one.changed(LIST_CHANGED)
            told = upstream.version

        clients = [asyncio.create_task(client(first)) for first in range(4)]
        await change()
        troubled = asyncio.create_task(trouble(server, one))
        while not troubled.done():
            await change()
            await asyncio.sleep(0.05)
        await troubled
        await change()
        for each in (one, two):
            await each.linked()
        await change()
        for asked, page in itertools.product((two, one), PAGES):
            assert value((await asked.cache.get(page, upstream)).entry.result)["version"] == upstream.version
        done.set()
        assert all(turn > 8 for turn in await asyncio.gather(*clients))


async def test_while_cut_off_nothing_is_kept(server: RedisServer) -> None:
    """A change that others hear of would not be heard of here; afterwards it is one cache again."""
    upstream = Upstream()
    async with replica(server) as one:
        await one.cache.get(LISTS, upstream)
        epoch = one.cache.epoch
        await server.kill()
        await one.until(lambda: not one.bus.hears)
        assert one.memory.held == (0, 0)
        assert one.cache.epoch != one.cache.epoch != epoch
        assert [await one.ask(LISTS, upstream) for _ in range(2)] == ["miss absent", "miss absent"]
        await server.begin()
        await one.linked()
        assert [await one.ask(LISTS, upstream) for _ in range(2)] == ["miss absent", "hit hit"]


async def test_a_change_heard_while_redis_was_away_is_told_when_it_is_back(server: RedisServer) -> None:
    """Before anything is served from it again."""
    upstream = Upstream()
    async with replica(server) as one, replica(server) as two:
        await one.cache.get(LISTS, upstream)
        await server.ask("CONFIG", "SET", "save", "")
        await server.ask("SAVE")  # what comes back knows of the entry, and of no change
        await server.kill()
        await one.until(lambda: not one.bus.hears)
        upstream.version += 1
        await one.changed(LIST_CHANGED)
        await server.begin()
        for each in (one, two):
            await each.linked()
            cached = await each.cache.get(LISTS, upstream)
            assert value(cached.entry.result)["version"] == 2


async def test_time_spent_on_redis_is_not_held_against_an_upstream(server: RedisServer) -> None:
    """A list that timed out over Redis rests nobody: with a clock that stands still the next one is whole."""
    async with (
        redis_proxy(server, [GET]) as proxy,
        ScriptedUpstream(tools=[tool("a")], page_size=1) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running(
            {
                "alpha": {"url": alpha.url, "list_timeout": 0.3},
                "beta": {"url": beta.url, "list_timeout": 0.3},
            },
            cache={"redis": proxy.url, "redis_timeout": 10.0},
            secrets={"keys": ["0123456789abcdef-key"]},
            admin="127.0.0.1:0",
            clock=Clock(),
        ) as gateway,
    ):
        while (await gateway.admin("/status.json"))[1]["cache"]["redis"] != "up":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        released = asyncio.Event()

        async def hold() -> None:
            await released.wait()

        proxy.before["get"] = hold
        await gateway.ask("tools/list")
        released.set()
        whole = await gateway.ask("tools/list")
        assert (sorted(whole.names), whole.missing) == (["alpha__a", "beta__b"], [])
