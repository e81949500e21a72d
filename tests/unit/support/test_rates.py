"""Requests counted against rates, here and in Redis."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Rate
from gateway.support.rates import LocalRates, RedisRates, take
from gateway.support.seal import Seal
from tests.support.mailboxes import Post
from tests.support.redis import redis_server
from tests.support.running import Clock

TEN = Rate(10, 1.0)


def test_as_many_as_the_rate_names_may_come_at_once():
    """Then one for each part of the time that is over; the wait is exact."""
    full = 0.0
    for _ in range(10):
        full, wait = take(full, TEN, 100.0)
        assert wait == 0.0
    same, wait = take(full, TEN, 100.0)
    assert (same, round(wait, 6)) == (full, 0.1)
    full, wait = take(full, TEN, 100.1)
    assert wait == 0.0


@given(
    rate=st.builds(Rate, st.integers(1, 10_000), st.sampled_from([1.0, 60.0, 3600.0, 86400.0])),
    pauses=st.lists(st.floats(0.0, 2.0), max_size=200),
)
def test_nobody_gets_more_than_the_rate(rate, pauses):
    """In no time more than what the bucket holds and what has run in since."""
    full, now, taken = 0.0, 1000.0, 0
    for pause in pauses:
        now += pause * rate.seconds / rate.count
        full, wait = take(full, rate, now)
        taken += wait == 0.0
        assert 0.0 <= wait <= rate.seconds
    allowed = rate.count + (now - 1000.0) * rate.count / rate.seconds
    assert taken <= allowed + 0.001


async def test_each_key_has_a_bucket_of_its_own():
    """And only so many of them are remembered."""
    clock = Clock()
    rates = LocalRates(clock, most=2)
    one = Rate(1, 60.0)
    assert await rates.take("a", one) == 0.0
    assert await rates.take("b", one) == 0.0
    assert await rates.take("a", one) == 60.0
    clock.advance(20.0)
    assert await rates.take("a", one) == 40.0
    await rates.take("c", one)
    assert repr(rates) == "<LocalRates 2 buckets>"


async def test_several_may_be_taken_together_or_none():
    """A batch of an older revision counts as what it holds."""
    rates = LocalRates(Clock())
    assert await rates.take("a", TEN, 8) == 0.0
    assert await rates.take("a", TEN, 3) == pytest.approx(0.1)
    assert await rates.take("a", TEN, 2) == 0.0


async def test_one_may_look_without_taking():
    """And is told what would be told to whoever takes."""
    clock = Clock()
    rates, one = LocalRates(clock), Rate(1, 60.0)
    assert [await rates.look("a", one) for _ in range(2)] == [0.0, 0.0]
    await rates.take("a", one)
    clock.advance(20.0)
    assert await rates.look("a", one) == await rates.take("a", one) == 40.0


SEAL = Seal(["0123456789abcdef0123456789abcdef"])


def replica(post: Post) -> RedisRates:
    return RedisRates(post.redis, SEAL, prefix="gw", local=LocalRates(Clock()))


async def test_replicas_count_together():
    """Whichever is asked, all of them let in no more than the rate; 7 does not divide a day evenly."""
    rate = Rate(7, 86400.0)
    async with redis_server() as server, Post(server.url) as one, Post(server.url) as two:
        replicas = [replica(one), replica(two)] * 10
        waits = await asyncio.gather(*(each.take("alice", rate) for each in replicas))
        assert sorted(wait == 0.0 for wait in waits) == [False] * 13 + [True] * 7
        assert all(12_000 < wait <= 86400.0 / 7 + 1 for wait in waits if wait)
        assert await replicas[0].take("bob", rate, cost=7) == 0.0
        assert await replicas[1].take("bob", rate) > 0.0


async def test_whoever_looks_in_redis_leaves_nothing_there():
    """What another replica has taken is seen; without Redis it is this process that looks."""
    rate = Rate(1, 3600.0)
    async with redis_server() as server, Post(server.url) as one, Post(server.url) as two:
        here, there = replica(one), replica(two)
        assert await here.look("alice", rate) == 0.0
        assert await server.keys() == []
        await there.take("alice", rate)
        assert 3000 < await here.look("alice", rate) <= 3601
        await server.kill()
        assert await here.look("alice", rate) == 0.0


async def test_what_lies_in_redis_names_nobody_and_ends_by_itself():
    """A keyed hash, for as long as the bucket is not full."""
    async with redis_server() as server, Post(server.url) as one:
        await replica(one).take("203.0.113.7", Rate(2, 60.0))
        (key,) = await server.keys()
        assert key.startswith("gw:1:rate:")
        assert "203.0.113" not in key
        assert 20_000 < await server.ask("PTTL", key) <= 30_001


async def test_without_redis_each_replica_counts_alone():
    """Nobody waits, and nobody gets in without being counted."""
    async with redis_server() as server, Post(server.url) as one:
        rates = replica(one)
        await server.kill()
        waits = [await rates.take("alice", Rate(3, 60.0)) for _ in range(5)]
        assert [wait == 0.0 for wait in waits] == [True, True, True, False, False]
