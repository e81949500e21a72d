"""What replicas note together: found by all of them, told to nobody else, and not taken for gone unasked."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.support.notebook import LARGEST, Unavailable
from tests.support.mailboxes import Post
from tests.support.redis import RedisServer, redis_server


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def test_what_one_notes_the_other_finds(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        await one.notebook.write("session", b"a", b"1", 60)
        assert await two.notebook.read("session", b"a") == b"1"
        assert await two.notebook.erase("session", b"a")
        assert await one.notebook.read("session", b"a") is None


async def test_of_several_who_add_at_once_one_succeeds(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        adding = [each.notebook.add("ended", b"a", b"1", 60) for each in (one, two) for _ in range(20)]
        assert sorted(await asyncio.gather(*adding))[-2:] == [False, True]


async def test_of_several_who_include_at_once_nobody_undoes_another(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        uris = [b"file:///%d" % number for number in range(40)]
        adding = [
            (one, two)[index % 2].notebook.include("uris", b"a", [uri], 60, most=30)
            for index, uri in enumerate(uris)
        ]
        assert sorted(await asyncio.gather(*adding)) == [False] * 10 + [True] * 30
        assert len(await one.notebook.members("uris", b"a")) == 30


async def test_it_ends_by_itself(server: RedisServer) -> None:
    async with Post(server.url) as one:
        await one.notebook.write("session", b"a", b"1", 0.01)
        await one.notebook.include("uris", b"a", [b"1"], 0.01, most=3)
        while await server.keys():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        await one.notebook.write("session", b"a", b"1", 60)
        (key,) = await server.keys()
        assert 0 < await server.ask("PTTL", key) <= 60_000
        await one.notebook.read("session", b"a", renew=600)
        assert 60_000 < await server.ask("PTTL", key) <= 600_000


async def test_nothing_of_it_can_be_read_in_redis(server: RedisServer) -> None:
    """Neither names nor values, and what is swapped there is nothing of ours."""
    async with Post(server.url) as one:
        await one.notebook.write("session", b"CANARY-1", b"CANARY-2", 60)
        await one.notebook.include("uris", b"CANARY-3", [b"CANARY-4"], 60, most=3)
        keys = await server.keys()
        held = [field for key in keys for field in await server.ask("HGETALL", key)]
        assert len(keys) == 2
        assert all(key.startswith("mcpgw:1:note:") for key in keys)
        assert not any("CANARY" in str(one) for one in [*keys, *held])
        await one.notebook.write("session", b"b", b"other", 60)
        (added,) = set(await server.keys()) - set(keys)
        await server.ask("EVAL", "redis.call('RENAME', KEYS[1], KEYS[2]) return 1", 2, keys[0], added)
        assert await one.notebook.read("session", b"b") is None


async def test_keys_may_be_rotated_one_replica_at_a_time(server: RedisServer) -> None:
    async with Post(server.url, "old") as old, Post(server.url, "new", "old") as both:
        for one, two in ((old, both), (both, old)):
            await one.notebook.write("session", b"a", one.me.encode(), 60)
            await one.notebook.include("uris", b"a", [one.me.encode()], 60, most=3)
            assert await two.notebook.read("session", b"a") == one.me.encode()
            assert one.me.encode() in await two.notebook.members("uris", b"a")


async def test_what_is_lost_or_garbage_is_absent(server: RedisServer) -> None:
    async with Post(server.url) as one:
        await one.notebook.write("session", b"a", b"1", 60)
        (key,) = await server.keys()
        for spoil in (("SET", key, "x"), ("HSET", key, "v", "x"), ("RPUSH", key, "x"), ("FLUSHALL",)):
            await server.ask("DEL", key)
            await server.ask(*spoil)
            assert await one.notebook.read("session", b"a") is None
            assert await one.notebook.members("session", b"a") == frozenset()
        await one.notebook.write("session", b"a", b"2", 60)
        assert await one.notebook.read("session", b"a") == b"2"


async def test_without_redis_nobody_can_tell(server: RedisServer) -> None:
    """Which is not the same as there being nothing; with the first answer it is over."""
    async with Post(server.url, timeout=0.02) as one:
        notebook = one.notebook
        while True:
            try:
                await notebook.write("session", b"a", b"1", 60)
                break
            except Unavailable:  # 20 ms may be too short for a machine that is busy
                await asyncio.sleep(0.01)
        server.freeze()
        for asked in (
            lambda: notebook.read("session", b"a"),
            lambda: notebook.write("session", b"a", b"1", 60),
            lambda: notebook.add("session", b"b", b"1", 60),
            lambda: notebook.erase("session", b"b"),
            lambda: notebook.include("uris", b"a", [b"1"], 60, most=3),
            lambda: notebook.exclude("uris", b"a", [b"1"]),
            lambda: notebook.members("uris", b"a"),
        ):
            with pytest.raises(Unavailable):
                await asked()
        server.thaw()
        found = None
        while found is None:
            try:
                found = await notebook.read("session", b"a")
            except Unavailable:
                await asyncio.sleep(0.01)
        assert found == b"1"


async def test_what_is_too_large_is_refused(server: RedisServer) -> None:
    async with Post(server.url) as one:
        with pytest.raises(ValueError, match="larger"):
            await one.notebook.write("session", b"a", bytes(LARGEST + 1), 60)
