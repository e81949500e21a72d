"""One replica leads, the others are told or wait no longer than the bound, and nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest
from redis.crc import key_slot

from gateway.cache.leads import LEAD, RELEASE, Leads, Turn
from gateway.cache.policy import Key, Lookup, Rules, private_key, public_key
from gateway.protocol.call import MODERN_VERSION, Partition, UpstreamName
from tests.support.redis import RedisProxy, RedisServer, redis_proxy, redis_server
from tests.support.replicas import Replica, replica

GH = UpstreamName("gh")
READ = Lookup(
    GH, "settings", "resources/read", "file:///x?token=hunter2", "profile", MODERN_VERSION, None, Rules()
)
PUBLIC = public_key(READ)
OWN = private_key(replace(READ, partition=Partition("ann"))) or ()


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[RedisProxy]:
    async with redis_proxy(server, (LEAD, RELEASE)) as proxy:
        yield proxy


def leads_of(one: Replica) -> Leads:
    assert one.leads is not None
    return one.leads


def turn(one: Replica, slot: Key = PUBLIC, *, moment: int = 1) -> AbstractAsyncContextManager[Turn]:
    return leads_of(one).turn(slot, PUBLIC, moment)


async def ready(*replicas: Replica) -> None:
    for one in replicas:
        assert await one.generations.ready(GH)


async def state(one: Replica, slot: Key = PUBLIC, *, moment: int = 1) -> str:
    async with turn(one, slot, moment=moment) as given:
        return given.state


async def held(server: RedisServer, count: int) -> None:
    """Wait until so many leads lie in Redis."""
    while len(await server.keys("*:lead")) != count:  # noqa: ASYNC110 - Redis announces nothing
        await asyncio.sleep(0.005)


def idle(*replicas: Replica) -> bool:
    return all(repr(one.leads) == "<Leads 0 led, 0 followed>" for one in replicas)


async def test_one_leads_and_the_others_are_told_when_he_is_done(server: RedisServer) -> None:
    """They go on at once: the bound here is longer than a test may take."""
    async with replica(server) as one, replica(server) as two, replica(server) as three:
        await ready(one, two, three)
        async with turn(one) as given:
            assert given.state == "leads"
            waiting = [asyncio.create_task(state(each)) for each in (two, three)]
            await one.until(lambda: repr(two.leads) == repr(three.leads) == "<Leads 0 led, 1 followed>")
            assert repr(one.leads) == "<Leads 1 led, 0 followed>"
        assert await asyncio.gather(*waiting) == ["told", "told"]
        await held(server, 0)
        assert idle(one, two, three)


async def test_who_follows_nobody_leads(server: RedisServer) -> None:
    """Another slot, another count of changes, and what was let go of."""
    async with replica(server) as one, replica(server) as two:
        await ready(one, two)
        async with turn(one):
            assert await state(two, moment=2) == "leads"
            assert await state(two, OWN) == "leads"
        await held(server, 0)
        assert await state(two) == "leads"


async def test_a_lead_ends_by_itself(server: RedisServer) -> None:
    """Whoever died with it delays nobody for longer, and later ones not at all."""
    async with replica(server, coalesce=1.0) as one, replica(server, coalesce=1.0) as two:
        await ready(one, two)
        async with turn(one):
            (key,) = await server.keys("*:lead")
            assert 0 < await server.ask("PTTL", key) <= 1000
            assert await state(two) == "late"
            assert idle(two)
            await held(server, 0)
            assert await state(two) == "leads"


async def test_letting_go_of_a_lost_lead_leaves_the_new_one(server: RedisServer) -> None:
    """Who was slower than its life takes nothing away from his successor."""
    async with replica(server) as one, replica(server) as two:
        await ready(one, two)
        first = turn(one)
        await first.__aenter__()
        await server.ask("DEL", *await server.keys("*:lead"))
        async with turn(two):
            await first.__aexit__(None, None, None)
            await one.until(lambda: repr(one.background).count("let go") == 0)
            assert len(await server.keys("*:lead")) == 1
        await held(server, 0)


async def test_a_word_between_question_and_answer_is_not_missed(
    server: RedisServer, proxy: RedisProxy
) -> None:
    """The leader is done before the follower knows that there is one."""
    async with replica(server) as one, replica(proxy) as two:
        await ready(one, two)
        leading = turn(one)
        await leading.__aenter__()

        async def done() -> None:
            await leading.__aexit__(None, None, None)
            await one.until(lambda: repr(one.background).count("let go") == 0)

        proxy.after["lead"] = done
        assert await state(two) == "told"
        assert idle(one, two)


async def test_cancelled_while_asking_the_lead_is_let_go(server: RedisServer, proxy: RedisProxy) -> None:
    """It may have been granted, and nobody would ever fetch."""
    async with replica(proxy) as one:
        await ready(one)
        asking = asyncio.create_task(state(one))

        async def leave() -> None:
            assert len(await server.keys("*:lead")) == 1
            asking.cancel()

        proxy.after["lead"] = leave
        with pytest.raises(asyncio.CancelledError):
            await asking
        await held(server, 0)
        assert idle(one)


async def test_cancelled_while_waiting_or_leading_nothing_is_left(server: RedisServer) -> None:
    """Of the one the waiter goes, of the other the lead."""
    async with replica(server) as one, replica(server) as two:
        await ready(one, two)
        entered = asyncio.Event()

        async def lead() -> None:
            async with turn(one):
                entered.set()
                await asyncio.Event().wait()

        leading = asyncio.create_task(lead())
        await entered.wait()
        waiting = asyncio.create_task(state(two))
        await one.until(lambda: repr(two.leads) == "<Leads 0 led, 1 followed>")
        waiting.cancel()
        leading.cancel()
        assert await asyncio.gather(waiting, leading, return_exceptions=True)
        await held(server, 0)
        assert idle(one, two)


async def test_a_replica_that_begins_anew_is_told_by_itself(server: RedisServer, proxy: RedisProxy) -> None:
    """All who waited left and another came, before the lead was let go of."""
    async with replica(proxy) as one:
        await ready(one)
        again: list[asyncio.Task[str]] = []

        async def come_again() -> None:
            again.append(asyncio.create_task(state(one)))
            await one.until(lambda: repr(one.leads) == "<Leads 0 led, 1 followed>")
            (key,) = await server.keys("*:lead")
            while not await server.ask("HEXISTS", key, "followed"):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)

        proxy.before["release"] = come_again
        assert await state(one) == "leads"
        await one.until(lambda: bool(again))
        assert await again[0] == "told"


async def test_a_session_that_ends_lets_everybody_go_on(server: RedisServer) -> None:
    """No word would be heard any more."""
    async with replica(server) as one, replica(server) as two:
        await ready(one, two)
        async with turn(one):
            waiting = asyncio.create_task(state(two))
            await one.until(lambda: repr(two.leads) == "<Leads 0 led, 1 followed>")
            two.bus.distrust()
            assert await waiting == "told"


async def test_without_a_session_nobody_is_asked(server: RedisServer) -> None:
    """What others fetch would not be found."""
    async with replica(server, linked=False) as one:
        assert await state(one) == "alone"
        assert not await leads_of(one).was_public(PUBLIC)
        assert await server.keys("*:lead") == []


async def test_a_redis_that_does_not_answer_is_not_waited_for(server: RedisServer) -> None:
    """Then everybody leads for himself."""
    async with replica(server, timeout=0.5) as one:
        await ready(one)
        server.freeze()
        try:
            assert await state(one) == "leads"
        finally:
            server.thaw()


@pytest.mark.parametrize("spoil", [("SET", "x"), ("LPUSH", "x"), ("HSET", "by", "somebody")])
@pytest.mark.parametrize("expires", [True, False])
async def test_garbage_in_place_of_a_lead_costs_the_bound_at_most(
    server: RedisServer, spoil: tuple[str, ...], expires: bool
) -> None:
    """Without an end of its own it is nobody's; Redis counts as answering either way."""
    async with replica(server, coalesce=1.0) as one:
        await ready(one)
        async with turn(one):
            (key,) = await server.keys("*:lead")
        await held(server, 0)
        await server.ask(spoil[0], key, *spoil[1:])
        if expires:
            await server.ask("EXPIRE", key, 100)
        assert await state(one) == ("late" if expires else "leads")
        assert one.redis.answers


async def test_a_new_replica_learns_that_a_result_was_public(server: RedisServer) -> None:
    """Until it is another, and for a while only."""
    async with replica(server) as one, replica(server) as two:
        await ready(one, two)
        assert not await leads_of(two).was_public(PUBLIC)
        async with turn(one) as given:
            given.landed(True, 60.0)
        await held(server, 0)
        (note,) = await server.keys("*:scope")
        assert 3_600_000 < await server.ask("PTTL", note) <= 3_660_000
        assert await leads_of(two).was_public(PUBLIC)
        leads_of(one).note(PUBLIC, False, 0.0)
        while await leads_of(two).was_public(PUBLIC):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
        assert await server.keys("*:scope") == []


async def test_names_tell_nothing_and_are_in_the_upstreams_slot(server: RedisServer) -> None:
    """A uri may hold a secret (C-25); a script in a Cluster may touch one slot only."""
    async with replica(server) as one:
        await ready(one)
        async with turn(one) as given:
            given.landed(True, 1.0)
            everything = repr([(key, await server.ask("DUMP", key)) for key in await server.keys()])
        await held(server, 0)
        names = [*await server.keys("*:scope"), one.generations.key(GH)]
        assert len({key_slot(name.encode()) for name in names}) == 1
        for secret in ("hunter2", "file:", "gh", "resources"):
            assert secret not in everything + repr(names)


async def test_each_upstream_may_have_a_bound_of_its_own(server: RedisServer) -> None:
    """What the lead's life is as well."""
    async with replica(server, coalesces={GH: 1.0}) as one, replica(server, coalesces={GH: 1.0}) as two:
        await ready(one, two)
        async with turn(one):
            assert await state(two) == "late"


async def test_what_other_replicas_find(server: RedisServer) -> None:
    """What is public, and what is private where the operator wants it; nothing too large."""
    async with replica(server, largest=1000) as one, replica(server, private_in_redis=True) as two:
        assert leads_of(one).shares(PUBLIC, 1000)
        assert not leads_of(one).shares(PUBLIC, 1001)
        assert not leads_of(one).shares(OWN)
        assert leads_of(two).shares(OWN)


async def test_where_nobody_waits_there_are_no_leads(server: RedisServer) -> None:
    """coalesce: 0s."""
    async with replica(server, coalesce=0.0) as one:
        assert one.leads is None
