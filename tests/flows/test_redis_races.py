"""A change at every step of a fetch, a fetch at every step of a change, on two replicas of one cache (C-32).

The upstream's answer is what it is when it is asked. A change begins only after the answer is another, and
from the moment it was announced on, nobody may be served the one before.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from gateway.cache.policy import EVERYTHING, Lookup, Rules, public_key
from gateway.cache.redis_generations import ADVANCE, SYNC
from gateway.cache.redis_store import DELETE, GET, PUT
from gateway.protocol.call import MODERN_VERSION, Change, Partition, Reply, UpstreamName
from gateway.protocol.jsonrpc import encode, value
from gateway.support.bus import ANNOUNCE, CONFIRM
from tests.support.redis import RedisProxy, RedisServer, redis_for_many, redis_proxy
from tests.support.replicas import Replica, replica

GH = UpstreamName("gh")
LISTS = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, None, Rules())
READ = replace(LISTS, method="resources/read", target="file:///a/b")
ANN = replace(LISTS, partition=Partition("ann"))
LIST_CHANGED = Change(GH, "tools/list")
UPDATED = Change(GH, "resources/read", "file:///a/b")
RECONNECT = Change(GH)
SCRIPTS = (SYNC, ADVANCE, GET, PUT, DELETE, ANNOUNCE, CONFIRM)


class Upstream:
    """Answers with its version as it was when the question came."""

    def __init__(self, scope: str = "public") -> None:
        self.version = 1
        self.scope = scope
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self) -> Reply:
        result = {"version": self.version, "ttlMs": 60_000, "cacheScope": self.scope}
        self.asked.set()
        await self.go.wait()
        return Reply(encode(result))

    def hold(self) -> None:
        self.asked.clear()
        self.go.clear()


async def version(one: Replica, lookup: Lookup, upstream: Upstream) -> int:
    """Return which version a replica answers with."""
    number = value((await one.cache.get(lookup, upstream)).entry.result)["version"]
    assert isinstance(number, int)
    return number


async def assert_current(upstream: Upstream, lookup: Lookup, *replicas: Replica) -> None:
    """Everybody has the newest, from wherever, and so has a replica that is new."""
    for _ in range(2):
        for one in replicas:
            assert await version(one, lookup, upstream) == upstream.version


@pytest.fixture(scope="module")
def process() -> Iterator[RedisServer]:
    with redis_for_many() as server:
        yield server


@pytest.fixture
async def server(process: RedisServer) -> RedisServer:
    # Debug mode notes a stack for each future, which took half of the time of these many small steps.
    asyncio.get_running_loop().set_debug(False)
    await process.clear()
    return process


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[RedisProxy]:
    async with redis_proxy(server, SCRIPTS) as proxy:
        yield proxy


def changing(upstream: Upstream, one: Replica, change: Change) -> Callable[[], Awaitable[None]]:
    async def step() -> None:
        upstream.version += 1
        await one.changed(change)

    return step


STEPS = [(when, name) for name in ("sync", "get", "put") for when in ("before", "after")]


@pytest.mark.parametrize(("lookup", "change"), [(LISTS, LIST_CHANGED), (LISTS, RECONNECT), (READ, UPDATED)])
@pytest.mark.parametrize(("when", "name"), STEPS)
async def test_a_change_elsewhere_at_each_step_of_a_miss(
    server: RedisServer, proxy: RedisProxy, when: str, name: str, lookup: Lookup, change: Change
) -> None:
    """Wherever the fetching replica is stopped, what it brings is stored only if it is still so."""
    upstream = Upstream()
    async with replica(server) as one, replica(proxy) as two:
        getattr(proxy, when)[name] = changing(upstream, one, change)
        await version(two, lookup, upstream)
        assert upstream.version == 2, "the step was not reached"
        await assert_current(upstream, lookup, two, one)


@pytest.mark.parametrize(("when", "name"), STEPS)
async def test_a_change_of_its_own_at_each_step_of_a_miss(proxy: RedisProxy, when: str, name: str) -> None:
    """The same within one process."""
    upstream = Upstream()
    async with replica(proxy) as one:
        getattr(proxy, when)[name] = changing(upstream, one, LIST_CHANGED)
        await version(one, LISTS, upstream)
        assert upstream.version == 2, "the step was not reached"
        await assert_current(upstream, LISTS, one)


@pytest.mark.parametrize(("when", "name"), [step for step in STEPS if step[1] != "put"])
async def test_a_change_elsewhere_at_each_step_of_a_hit_in_redis(
    server: RedisServer, proxy: RedisProxy, when: str, name: str
) -> None:
    """What was read before the change must not be kept in memory after it."""
    upstream = Upstream()
    async with replica(server) as one, replica(proxy) as two:
        await version(one, LISTS, upstream)
        getattr(proxy, when)[name] = changing(upstream, one, LIST_CHANGED)
        await version(two, LISTS, upstream)
        assert upstream.version == 2, "the step was not reached"
        await assert_current(upstream, LISTS, two, one)


@pytest.mark.parametrize("scope", ["public", "private"])
async def test_a_change_elsewhere_during_the_fetch(server: RedisServer, scope: str) -> None:
    """It is served to who asked before, with no life left, and to nobody else."""
    upstream = Upstream(scope)
    async with replica(server) as one, replica(server) as two:
        upstream.hold()
        asking = asyncio.create_task(two.cache.get(ANN, upstream))
        await upstream.asked.wait()
        await changing(upstream, one, LIST_CHANGED)()
        upstream.go.set()
        cached = await asking
        assert (cached.source, cached.reason, cached.entry.ttl) == ("bypass", "generation", 0.0)
        await assert_current(upstream, ANN, two, one)


CHANGE_STEPS = [(when, name) for name in ("advance", "announce") for when in ("before", "after")]


@pytest.mark.parametrize(("when", "name"), CHANGE_STEPS)
@pytest.mark.parametrize("who", ["one", "two"])
@pytest.mark.parametrize("scope", ["public", "private"])
async def test_a_fetch_begun_before_lands_at_each_step_of_a_change(
    server: RedisServer, proxy: RedisProxy, when: str, name: str, who: str, scope: str
) -> None:
    """Wherever the announcing replica is stopped, on return the old answer is nowhere."""
    upstream = Upstream(scope)
    async with replica(proxy) as one, replica(server) as two:
        fetching = one if who == "one" else two
        await version(one, READ, upstream)  # both are in the middle of their work
        await version(two, READ, upstream)
        upstream.hold()
        asking = asyncio.create_task(fetching.cache.get(ANN, upstream))
        await upstream.asked.wait()
        landed = asyncio.Event()

        async def land() -> None:
            upstream.go.set()
            await asking
            landed.set()

        getattr(proxy, when)[name] = land
        await changing(upstream, one, LIST_CHANGED)()
        assert landed.is_set(), "the step was not reached"
        await assert_current(upstream, ANN, two, one)


@pytest.mark.parametrize(("when", "name"), [("before", "confirm"), ("after", "confirm")])
async def test_a_fetch_lands_while_a_replica_confirms(
    server: RedisServer, proxy: RedisProxy, when: str, name: str
) -> None:
    """The replica that is told has the change in mind before it says so."""
    upstream = Upstream()
    async with replica(server) as one, replica(proxy) as two:
        await version(two, READ, upstream)
        upstream.hold()
        asking = asyncio.create_task(two.cache.get(LISTS, upstream))
        await upstream.asked.wait()

        async def land() -> None:
            upstream.go.set()
            await asking

        getattr(proxy, when)[name] = land
        await changing(upstream, one, LIST_CHANGED)()
        await assert_current(upstream, LISTS, two, one)


STEPS_OF_BOTH = list(itertools.product(STEPS, ["FLUSHALL", "CLIENT KILL TYPE pubsub", "SCRIPT FLUSH"]))


@pytest.mark.parametrize(("step", "command"), STEPS_OF_BOTH)
async def test_redis_forgets_or_hangs_up_at_each_step(
    server: RedisServer, proxy: RedisProxy, step: tuple[str, str], command: str
) -> None:
    """Together with a change: once the links are back, nothing from before it is served."""
    upstream = Upstream()
    when, name = step
    async with replica(server, lease=0.6) as one, replica(proxy, lease=0.6) as two:

        async def forget() -> None:
            await server.ask(*command.split())
            await changing(upstream, one, LIST_CHANGED)()

        getattr(proxy, when)[name] = forget
        while upstream.version == 1:  # a lease that ran out on a busy machine is a detour
            await two.linked()
            await version(two, LISTS, upstream)
        await one.linked()
        await two.linked()
        await assert_current(upstream, LISTS, two, one)
        async with replica(server) as three:
            await assert_current(upstream, LISTS, three)


async def test_flushing_makes_nothing_fresh_again(server: RedisServer) -> None:
    """The counts begin anew above all counts there were: a value written back from before is stale."""
    upstream = Upstream()
    async with replica(server) as one, replica(server) as two:
        await version(one, LISTS, upstream)
        place = one.shared.place(public_key(LISTS))
        before = await server.ask("DUMP", place)
        await changing(upstream, one, LIST_CHANGED)()
        await server.ask("FLUSHALL")
        await server.ask("RESTORE", place, 50_000, before)
        await assert_current(upstream, LISTS, two, one)
        async with replica(server) as three:
            await assert_current(upstream, LISTS, three)


async def test_counts_that_are_lost_alone_make_everything_stale(server: RedisServer) -> None:
    """A server short of memory may evict any key."""
    upstream = Upstream()
    async with replica(server) as one, replica(server) as two:
        await version(one, LISTS, upstream)
        await changing(upstream, one, LIST_CHANGED)()
        upstream.version += 1
        await server.ask("DEL", one.generations.key(GH))
        await assert_current(upstream, LISTS, two, one)


async def test_an_older_state_of_redis_makes_everything_stale(server: RedisServer) -> None:
    """A promoted replica or a snapshot may lack the last changes; whoever knows more is believed."""
    upstream = Upstream()
    async with replica(server) as one, replica(server) as two:
        await version(one, LISTS, upstream)
        place, counts = one.shared.place(public_key(LISTS)), one.generations.key(GH)
        before = [(key, await server.ask("DUMP", key)) for key in (place, counts)]
        await changing(upstream, one, LIST_CHANGED)()
        for key, dump in before:
            await server.ask("RESTORE", key, 50_000, dump, "REPLACE")
        await assert_current(upstream, LISTS, two, one)


async def test_many_topics_make_old_results_stale_and_never_a_stale_one_fresh(server: RedisServer) -> None:
    """What is counted per resource is bounded, here and in Redis."""
    upstream = Upstream()
    async with replica(server, most_topics=8) as one, replica(server, most_topics=8) as two:
        await version(one, READ, upstream)
        await changing(upstream, one, UPDATED)()
        for number in range(30):
            await one.changed(Change(GH, "resources/read", f"x:{number}"))
        assert await server.ask("HLEN", one.generations.key(GH)) <= 12
        await assert_current(upstream, READ, two, one)


async def test_a_change_is_told_to_the_end_although_who_told_it_left(
    server: RedisServer, proxy: RedisProxy
) -> None:
    """A client that disconnects must not leave the others with what it found to be stale."""
    upstream = Upstream()
    async with replica(proxy) as one, replica(server) as two:
        await version(two, LISTS, upstream)
        reached, go = asyncio.Event(), asyncio.Event()

        async def stop() -> None:
            reached.set()
            await go.wait()

        proxy.after["advance"] = stop
        telling = asyncio.create_task(changing(upstream, one, LIST_CHANGED)())
        await reached.wait()
        telling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await telling
        go.set()
        await two.until(lambda: two.cache.peek(LISTS) is None)
        await assert_current(upstream, LISTS, two, one)


async def test_a_change_that_redis_did_not_count_is_told_again(
    server: RedisServer, proxy: RedisProxy
) -> None:
    """Redis is well, only this question went unanswered: here nothing old is served, soon nowhere."""
    upstream = Upstream()
    async with replica(proxy, timeout=0.5) as one, replica(server) as two:
        await version(one, LISTS, upstream)
        await version(two, LISTS, upstream)
        proxy.before["advance"] = hang
        await changing(upstream, one, LIST_CHANGED)()
        assert await version(one, LISTS, upstream) == 2
        await two.until(lambda: two.cache.peek(LISTS) is None)
        await one.until(lambda: one.generations.knows(GH))
        await assert_current(upstream, LISTS, two, one)


async def test_what_is_owed_again_while_it_is_being_told_is_told_again(
    server: RedisServer, proxy: RedisProxy
) -> None:
    """What another replica fetched between the two is older than the second change."""
    upstream = Upstream()
    async with replica(proxy) as one, replica(server) as two:
        await assert_current(upstream, LISTS, one, two)

        async def again() -> None:
            await two.until(lambda: two.cache.peek(LISTS) is None)
            assert await version(two, LISTS, upstream) == 2
            upstream.version += 1
            one.generations.owe(GH, [EVERYTHING])

        proxy.after[ANNOUNCE.name] = again
        upstream.version += 1
        one.generations.owe(GH, [EVERYTHING])
        await one.cache.told(GH)
        assert upstream.version == 3
        await assert_current(upstream, LISTS, two, one)


async def hang() -> None:
    await asyncio.Event().wait()


async def test_a_round_robin_client_sees_no_old_list_once_anybody_was_told(server: RedisServer) -> None:
    """Over three replicas, under load, change after change."""
    upstream = Upstream()
    async with replica(server) as one, replica(server) as two, replica(server) as three:
        replicas = (one, two, three)
        told, turns = 1, [0] * 6
        done = asyncio.Event()

        async def client(first: int) -> None:
            while not done.is_set():
                known = told
                one_of_them = replicas[(first + turns[first]) % 3]
                assert await version(one_of_them, LISTS, upstream) >= known
                turns[first] += 1
                await asyncio.sleep(0)

        clients = [asyncio.create_task(client(first)) for first in range(6)]
        for number in range(15):
            upstream.version += 1
            await replicas[number % 3].changed(LIST_CHANGED)
            told = upstream.version
            await one.until(lambda: min(turns) > number or any(each.done() for each in clients))  # noqa: B023
        done.set()
        await asyncio.gather(*clients)


async def test_nobody_is_told_before_the_slowest_replica_has_heard(
    server: RedisServer, proxy: RedisProxy
) -> None:
    """As long as one of them may still serve the old answer, the change is not announced to clients."""
    upstream = Upstream()
    async with replica(server) as one, replica(proxy) as two:
        await version(two, LISTS, upstream)
        proxy.delivers.clear()
        telling = asyncio.create_task(changing(upstream, one, LIST_CHANGED)())
        await one.until(lambda: upstream.version == 2 and "1 announcements" in repr(one.bus))
        assert not telling.done()
        assert two.cache.peek(LISTS) is not None
        proxy.delivers.set()
        await telling
        assert two.cache.peek(LISTS) is None
        await assert_current(upstream, LISTS, two, one)


async def test_who_does_not_hear_stops_serving_by_himself(server: RedisServer, proxy: RedisProxy) -> None:
    """Nobody waits for longer than a lease, and by then the replica that was not reached trusts nothing."""
    upstream = Upstream()
    async with replica(server, lease=0.6) as one, replica(proxy, lease=0.6) as two:
        await version(two, LISTS, upstream)
        proxy.delivers.clear()
        await changing(upstream, one, LIST_CHANGED)()
        assert two.cache.peek(LISTS) is None
        assert await version(two, LISTS, upstream) == 2
        proxy.delivers.set()
        await two.linked()
        await assert_current(upstream, LISTS, two, one)


async def test_everything_of_one_upstream_only(server: RedisServer) -> None:
    """Another upstream's entries are nobody's business."""
    upstream, other = Upstream(), Upstream()
    jira = replace(LISTS, upstream=UpstreamName("jira"))
    async with replica(server) as one, replica(server) as two:
        await version(one, jira, other)
        await version(two, jira, other)
        await one.generations.advance(GH, (EVERYTHING,))
        assert two.cache.peek(jira) is not None
        await assert_current(upstream, LISTS, one, two)
