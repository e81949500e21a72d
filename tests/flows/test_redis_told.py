"""A change is forgotten everywhere before anybody is told, also while Redis stands still or holds garbage."""

from collections.abc import AsyncIterator

import pytest

from gateway.cache.policy import Lookup, Rules
from gateway.protocol.call import MODERN_VERSION, Change, Reply, UpstreamName
from gateway.protocol.jsonrpc import encode, value
from tests.support.redis import RedisServer, redis_server
from tests.support.replicas import Replica, replica

GH = UpstreamName("gh")
LISTS = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, None, Rules())


class Upstream:
    """Answers with its version."""

    version = 1

    async def __call__(self) -> Reply:
        return Reply(encode({"version": self.version, "ttlMs": 60_000, "cacheScope": "public"}))

    async def change(self, told_by: Replica) -> None:
        self.version += 1
        await told_by.cache.invalidate(Change(GH, "tools/list"))
        await told_by.cache.told(GH)

    async def assert_current(self, *replicas: Replica) -> None:
        for one in replicas:
            assert value(await one.body(LISTS, self))["version"] == self.version


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def test_while_redis_is_frozen_a_change_is_told_when_nobody_acts_on_what_he_remembers(
    server: RedisServer,
) -> None:
    """The other replica cannot be told, and stops by itself; whoever is told finds the old nowhere."""
    upstream = Upstream()
    async with (
        replica(server, timeout=0.1, lease=0.6, coalesce=1.0) as one,
        replica(server, timeout=0.1, lease=0.6, coalesce=1.0) as two,
    ):
        await upstream.assert_current(one, two)
        server.freeze()
        try:
            await upstream.change(one)
            await upstream.assert_current(two, one)
            await one.until(lambda: not one.bus.lapse)
            await upstream.change(one)  # of which nobody is left to be told, and for which nobody waits
            await upstream.assert_current(two, one)
        finally:
            server.thaw()
        for each in (one, two):
            await each.linked()
        await upstream.change(two)
        await upstream.assert_current(one, two)


async def test_a_change_without_a_link_of_ones_own_is_told_with_the_next(server: RedisServer) -> None:
    """It is out with the first session after it, long before anybody's lease is over."""
    upstream = Upstream()
    async with replica(server, lease=30.0) as one, replica(server, lease=30.0) as two:
        await upstream.assert_current(one, two)
        one.bus.distrust()
        await upstream.change(one)
        await upstream.assert_current(two, one)


GARBAGE = ["x", "", "nan", "inf", "-1", "1e17", "9007199254740993", "99999999999999999999"]


@pytest.mark.parametrize("number", GARBAGE)
@pytest.mark.parametrize("field", ["n", "f", "topics"])
async def test_a_count_that_is_none_makes_nothing_fresh_and_is_counted_anew(
    server: RedisServer, field: str, number: str
) -> None:
    """Beyond 2^53 Redis's numbers have gaps, and one more of them is the same again."""
    upstream = Upstream()
    async with replica(server) as one, replica(server) as two:
        await upstream.assert_current(one, two)
        await upstream.change(one)
        counts = one.generations.key(GH)
        fields = await server.ask("HKEYS", counts) if field == "topics" else [field.encode()]
        for name in fields:
            if field != "topics" or len(name) == 16:
                await server.ask("HSET", counts, name, number)
        for told_by in (one, two, one):
            await upstream.change(told_by)
            await upstream.assert_current(two, one)
        for each in (one, two):
            kept = ""
            while kept != "hit hit":
                kept = await each.ask(LISTS, upstream)


async def test_what_was_begun_while_cut_off_is_of_an_epoch_that_is_over(server: RedisServer) -> None:
    """A joined answer, done when all is well again: nobody could say what changed while it was begun."""
    async with replica(server) as one:
        one.bus.distrust()
        begun = one.cache.epoch
        await one.linked()
        assert one.cache.epoch > begun
