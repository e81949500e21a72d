"""A crowd on several replicas: one fetch for all where that may be, and no wait beyond a bound (B51).

The bound is longer than a test may take, except where it is what ends the waiting.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.cache.leads import LEAD, RELEASE
from gateway.cache.policy import Lookup, Rules, public_key, rules_for_call
from gateway.cache.redis_store import GET, PUT
from gateway.cache.responses import Cached
from gateway.protocol.call import MODERN_VERSION, Change, Partition, Reason, Reply, UpstreamName
from gateway.protocol.call import UpstreamUnavailable as Unavailable
from gateway.protocol.jsonrpc import McpError, encode
from gateway.support.bus import TELL
from tests.support.redis import RedisProxy, RedisServer, redis_proxy, redis_server
from tests.support.replicas import Replica, replica
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, tool

GH = UpstreamName("gh")
LISTS = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, None, Rules())
READ = replace(LISTS, method="resources/read", target="file:///a")
LIST_CHANGED = Change(GH, "tools/list")
CROWD = 40


def caller(lookup: Lookup, name: str) -> Lookup:
    return replace(lookup, partition=Partition(name))


ANN = caller(LISTS, "ann")


class Upstream:
    """Answers each fetch with its version when it was asked and whose it was; counts, holds back, fails."""

    def __init__(self, scope: str = "public", ttl: int = 60_000) -> None:
        self.scope = scope
        self.ttl = ttl
        self.version = 1
        self.more: dict[str, Any] = {}
        self.fetches: list[str] = []
        self.errors: list[Exception] = []
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    def of(self, name: str) -> Callable[[], Awaitable[Reply]]:
        async def fill() -> Reply:
            self.fetches.append(name)
            error = self.errors.pop(0) if self.errors else None
            result = {"version": self.version, "of": name, "ttlMs": self.ttl, "cacheScope": self.scope}
            self.asked.set()
            await self.go.wait()
            if error is not None:
                raise error
            return Reply(encode({**result, **self.more}))

        return fill

    def hold(self) -> None:
        self.asked.clear()
        self.go.clear()


def said(cached: Cached) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cached.entry.result)
    return found


async def get(one: Replica, lookup: Lookup, upstream: Upstream) -> dict[str, Any]:
    """Return what a caller is answered; the upstream is told his name."""
    return said(await one.cache.get(lookup, upstream.of(lookup.partition or "nobody")))


async def storm(
    replicas: Sequence[Replica], lookups: Sequence[Lookup], upstream: Upstream, crowd: int = CROWD
) -> list[dict[str, Any]]:
    """Return what each of a crowd at every replica is answered, all asking at once."""
    asking = [
        get(one, lookups[number % len(lookups)], upstream) for number in range(crowd) for one in replicas
    ]
    return list(await asyncio.gather(*asking))


@asynccontextmanager
async def replicas(server: RedisServer, count: int = 3, **options: Any) -> AsyncIterator[list[Replica]]:
    """Run some whose deadlines a busy test machine does not reach."""
    patient = {"timeout": 10.0, "lease": 10.0, **options}
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(replica(server, **patient)) for _ in range(count)]


async def turns(one: Replica) -> dict[str, float]:
    """Return how often each outcome was counted."""
    text = (await asyncio.to_thread(one.metrics.render)).decode()
    lines = [line for line in text.splitlines() if line.startswith("mcp_gateway_cache_turns_total")]
    return {line.split('outcome="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


def all_wait(replicas: Sequence[Replica], upstream: Upstream, callers: int, *, before: int) -> bool:
    """Whether so many callers are in flights of which each follows another or has asked the upstream."""
    waiting = [int(count) for one in replicas for count in re.findall(r"(\d+) waiting", repr(one.flight))]
    turns = [[int(count) for count in re.findall(r"\d+", repr(one.leads))] for one in replicas]
    led, followed = (sum(counts) for counts in zip(*turns, strict=True))
    return (
        sum(waiting) == callers and led + followed == len(waiting) and len(upstream.fetches) == before + led
    )


async def asked_to_lead(one: Replica) -> float:
    """Return how often Redis was asked whose turn it is."""
    text = (await asyncio.to_thread(one.metrics.render)).decode()
    lines = [line for line in text.splitlines() if 'redis_operations_total{operation="lead"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def assert_idle(server: RedisServer, *all_of_them: Replica) -> None:
    """Nothing is under way, waited for, or led."""
    for one in all_of_them:
        await one.until(lambda one=one: repr(one.leads) == "<Leads 0 led, 0 followed>")  # type: ignore[misc]
        assert repr(one.flight) == "<SingleFlight []>"
    while await server.keys("*:lead"):  # noqa: ASYNC110 - Redis announces nothing
        await asyncio.sleep(0.005)


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[RedisProxy]:
    async with redis_proxy(server, (LEAD, RELEASE, TELL, GET, PUT)) as proxy:
        yield proxy


# One fetch


@pytest.mark.parametrize(
    ("lookup", "crowd"), [(LISTS, 200), (ANN, CROWD), (READ, CROWD), (caller(READ, "ann"), CROWD)]
)
async def test_a_cold_storm_costs_one_fetch(server: RedisServer, lookup: Lookup, crowd: int) -> None:
    """Two hundred callers at each of three replicas that know nothing yet."""
    upstream = Upstream()
    async with replicas(server) as three:
        answers = await storm(three, [lookup], upstream, crowd)
        assert len(upstream.fetches) == 1
        assert {answer["version"] for answer in answers} == {1}
        await assert_idle(server, *three)
        counted = [await turns(one) for one in three]
        assert sum(each.get("led", 0) for each in counted) == 1
        assert sum(each.get("followed", 0) for each in counted) <= 2
        assert not any(each.keys() - {"led", "followed"} for each in counted)


async def test_so_does_one_of_many_callers_on_what_was_public(server: RedisServer) -> None:
    """After it expired, and also at replicas that were not there when it was fetched."""
    upstream = Upstream(ttl=50)
    crowd = [caller(LISTS, f"caller {number}") for number in range(CROWD)]
    async with replicas(server) as three:
        await get(three[0], ANN, upstream)
        await assert_idle(server, *three)
        assert len(await server.keys("*:scope")) == 1
        while await server.ask("EXISTS", three[0].shared.place(public_key(LISTS))):  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # Redis announces nothing
        three[0].clock.now += 60
        upstream.ttl = 60_000
        upstream.hold()
        asking = asyncio.create_task(storm(three, crowd, upstream))
        await three[0].until(lambda: all_wait(three, upstream, 3 * CROWD, before=1))
        upstream.go.set()
        await asking
        assert len(upstream.fetches) == 2


async def test_a_hit_in_redis_tells_as_much(server: RedisServer) -> None:
    """What another replica fetched for all was public: the next fetch is everybody's, too."""
    upstream = Upstream()
    async with replicas(server, 2) as (one, two):
        await get(one, ANN, upstream)
        await assert_idle(server, one)
        await server.ask("DEL", *await server.keys("*:scope"))
        assert await two.ask(caller(LISTS, "bob"), upstream.of("bob")) == "hit hit"
        await one.changed(LIST_CHANGED)
        upstream.hold()
        crowd = [caller(LISTS, f"caller {number}") for number in range(CROWD)]
        asking = asyncio.create_task(storm([two], crowd, upstream))
        await two.until(lambda: all_wait([two], upstream, CROWD, before=1))
        upstream.go.set()
        await asking
        assert len(upstream.fetches) == 2


async def test_what_the_operator_calls_public_needs_no_fetch_to_be_known_so(server: RedisServer) -> None:
    """`scope: public` holds for every result; so do the results of calls that he wants kept for all."""
    upstream = Upstream("private")
    overridden = replace(LISTS, rules=Rules(scope="public"))
    rules = rules_for_call(Rules(), ttl=60.0, scope="public")
    call = replace(LISTS, method="tools/call", target="{}", rules=rules)
    for lookup in (overridden, call):
        async with replicas(server) as three:
            crowd = [caller(lookup, f"caller {number}") for number in range(CROWD)]
            upstream.fetches.clear()
            await storm(three, crowd, upstream)
            assert len(upstream.fetches) == 1


def links(gateways: Sequence[Running]) -> list[str]:
    return [repr(one.runtime.replicated and one.runtime.replicated.bus) for one in gateways]


async def test_a_whole_gateway_asks_once_for_all(server: RedisServer) -> None:
    """Over HTTP, joined and dressed: three gateways, one upstream request."""
    cache = {"redis": server.url, "redis_timeout": 2.0, "coalesce": 20.0}
    shared: dict[str, Any] = {"cache": cache, "secrets": {"keys": ["0123456789abcdef-key"]}}
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, AsyncExitStack() as stack:
        at = {"alpha": {"url": alpha.url, "list_timeout": 60.0}}
        three = [await stack.enter_async_context(running(at, **shared)) for _ in range(3)]
        for one in three:
            while not one.runtime.replicated or one.runtime.replicated.state != "up":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        for token in (None, "TOK-A"):
            alpha.requests.clear()
            before = links(three)
            asking = [one.ask("tools/list", token=token) for one in three for _ in range(5)]
            answers = await asyncio.gather(*asking)
            assert all(answer.names == ["alpha__a"] for answer in answers)
            if links(three) == before:  # a machine that stands still for a lease unlinks them
                assert len(alpha.seen("tools/list")) == (1 if token is None else 0)


# What is private


async def test_a_private_answer_costs_one_fetch_at_each_replica(server: RedisServer) -> None:
    """It stays in the process, so from the second time on nobody waits for another."""
    upstream = Upstream("private")
    async with replicas(server) as three:
        await storm(three, [ANN], upstream)
        assert len(upstream.fetches) == 3
        before = [await turns(one) for one in three]
        for one in three:
            one.clock.now += 60
        await storm(three, [ANN], upstream)
        assert len(upstream.fetches) == 6
        assert [await turns(one) for one in three] == before
        await assert_idle(server, *three)


async def test_a_private_answer_in_redis_is_fetched_once(server: RedisServer) -> None:
    """For its caller, wherever he asks; each caller has his own."""
    upstream = Upstream("private")
    async with replicas(server, private_in_redis=True) as three:
        crowd = [caller(LISTS, f"caller {number}") for number in range(5)]
        asking = [(one, lookup) for lookup in crowd for one in three for _ in range(20)]
        answers = await asyncio.gather(*(get(one, lookup, upstream) for one, lookup in asking))
        assert all(
            answer["of"] == lookup.partition for answer, (_, lookup) in zip(answers, asking, strict=True)
        )
        assert sorted(upstream.fetches) == sorted(lookup.partition or "" for lookup in crowd)


async def test_what_turns_out_private_is_nobodys_but_its_callers(server: RedisServer) -> None:
    """All waited for one fetch because it was public; then each is answered what was fetched for him."""
    upstream = Upstream()
    async with replicas(server) as three:
        for one in three:
            await get(one, ANN, upstream)
        upstream.scope = "private"
        await three[0].changed(LIST_CHANGED)
        upstream.fetches.clear()
        crowd = [caller(LISTS, f"caller {number}") for number in range(10)]
        asking = [(one, lookup) for lookup in crowd for one in three for _ in range(5)]
        answers = await asyncio.gather(*(get(one, lookup, upstream) for one, lookup in asking))
        assert all(
            answer["of"] == lookup.partition for answer, (_, lookup) in zip(answers, asking, strict=True)
        )
        for name in {lookup.partition for lookup in crowd}:
            assert upstream.fetches.count(name or "") <= 3
        await assert_idle(server, *three)
        assert await server.keys("*:scope") == []


async def test_other_replicas_are_waited_for_once(server: RedisServer) -> None:
    """Whoever waited for everybody's answer, and may not have it, asks nobody before he fetches his own."""
    upstream = Upstream()
    async with replicas(server, 2, private_in_redis=True) as (one, two):
        for each in (one, two):
            await get(each, ANN, upstream)
        upstream.scope = "private"
        await one.changed(LIST_CHANGED)
        before = await asked_to_lead(two)
        upstream.hold()
        leading = asyncio.create_task(get(one, ANN, upstream))
        await upstream.asked.wait()
        names = ["bob", "carol"]
        asking = [asyncio.create_task(get(two, caller(LISTS, name), upstream)) for name in names]
        await two.until(lambda: repr(two.leads) == "<Leads 0 led, 1 followed>")
        await two.until(lambda: "2 waiting" in repr(two.flight))
        upstream.go.set()
        assert [answer["of"] for answer in await asyncio.gather(*asking)] == names
        await leading
        assert await asked_to_lead(two) == before + 1


async def test_anonymous_callers_of_a_private_answer_fetch_each_his_own(server: RedisServer) -> None:
    """C-19: nothing is shared, whoever waited for whom."""
    upstream = Upstream("private")
    async with replicas(server, 2) as two:
        await storm(two, [LISTS], upstream, crowd=10)
        assert len(upstream.fetches) == 20


@pytest.mark.parametrize("lie", [True, False])
async def test_a_note_lets_nobody_have_what_he_could_not_fetch(server: RedisServer, lie: bool) -> None:
    """Somebody wrote into Redis that it is public; or it was, until now."""
    upstream = Upstream("private" if lie else "public")
    async with replicas(server, 2) as two:
        if lie:
            assert two[0].leads is not None
            two[0].leads.note(
                ("public", "gh", "settings", "tools/list", None, "profile", MODERN_VERSION), True, 60.0
            )
        else:
            await get(two[0], ANN, upstream)
            upstream.scope = "private"
            await two[0].changed(LIST_CHANGED)
        while len(await server.keys("*:scope")) != 1:  # noqa: ASYNC110 - Redis announces nothing
            await asyncio.sleep(0.005)
        upstream.fetches.clear()
        names = [f"caller {number}" for number in range(10)]
        answers = await asyncio.gather(
            *(get(one, caller(LISTS, name), upstream) for name in names for one in two)
        )
        assert [answer["of"] for answer in answers] == [name for name in names for _ in two]


# What cannot be had from another replica


@pytest.mark.parametrize(("ttl", "largest"), [(0, 2**20), (60_000, 10)])
async def test_what_others_cannot_find_is_waited_for_once(
    server: RedisServer, ttl: int, largest: int
) -> None:
    """Nothing to keep, or too large for Redis: one fetch a replica, and from then on without turns."""
    upstream = Upstream(ttl=ttl)
    async with replicas(server, largest=largest) as three:
        await storm(three, [LISTS], upstream)
        assert len(upstream.fetches) == 3
        before = [await turns(one) for one in three]
        assert all(each.keys() <= {"led", "in-vain"} for each in before)
        for one in three:
            one.clock.now += 60
        await storm(three, [LISTS], upstream)
        assert len(upstream.fetches) == 6
        assert [await turns(one) for one in three] == before


async def test_a_call_that_failed_is_made_by_each_replica(server: RedisServer) -> None:
    """isError is an answer to one caller."""
    upstream = Upstream()
    upstream.more = {"isError": True}
    rules = rules_for_call(Rules(), ttl=60.0, scope="public")
    call = caller(replace(LISTS, method="tools/call", target="{}", rules=rules), "ann")
    async with replicas(server) as three:
        await asyncio.gather(*(get(one, call, upstream) for one in three))
        assert len(upstream.fetches) == 3


@pytest.mark.parametrize("error", [McpError(-32603, "no"), Unavailable(GH, Reason.TIMEOUT)])
async def test_when_the_leaders_fetch_fails_the_others_go_on_at_once(
    server: RedisServer, error: Exception
) -> None:
    """One fetch each, and his failure reaches nobody elsewhere."""
    upstream = Upstream()
    upstream.errors.append(error)
    async with replicas(server) as three:
        upstream.hold()
        leading = asyncio.create_task(get(three[0], LISTS, upstream))
        await upstream.asked.wait()
        others = [asyncio.create_task(storm([one], [LISTS], upstream)) for one in three[1:]]
        for one in three[1:]:
            await one.until(lambda one=one: repr(one.leads) == "<Leads 0 led, 1 followed>")  # type: ignore[misc]
        upstream.go.set()
        with pytest.raises(type(error)):
            await leading
        await asyncio.gather(*others)
        assert len(upstream.fetches) <= 3
        await assert_idle(server, *three)
        assert await turns(three[0]) == {"led": 1.0}


# Leaders that do not come back


async def test_a_leader_that_hangs_delays_nobody_beyond_the_bound(server: RedisServer) -> None:
    """The others fetch for themselves, one for each replica, and whoever comes later does not wait at all."""
    upstream = Upstream()
    async with replica(server, coalesce=0.3) as one, replica(server, coalesce=0.3) as two:
        hanging = asyncio.Event()

        async def hang() -> Reply:
            hanging.set()
            await asyncio.Event().wait()
            raise AssertionError

        leading = asyncio.create_task(one.cache.get(LISTS, hang))
        await hanging.wait()
        await storm([two], [LISTS], upstream)
        assert len(upstream.fetches) == 1
        assert (await turns(two)).keys() <= {"gave-up", "led"}
        async with replica(server) as three:
            assert await three.ask(ANN, upstream.of("ann")) == "hit hit"
        leading.cancel()
        await asyncio.wait([leading])
        await assert_idle(server, one, two)


async def test_who_comes_while_another_hangs_is_served_what_lies_in_redis(server: RedisServer) -> None:
    """He looks before he waits, and he who hangs has it as well."""
    upstream, hanging = Upstream(), Upstream()
    async with replica(server, coalesce=0.3) as one, replica(server, coalesce=0.3) as two:
        hanging.hold()
        slow = asyncio.create_task(get(one, LISTS, hanging))
        await hanging.asked.wait()
        await get(two, LISTS, upstream)
        assert (await get(one, LISTS, upstream))["of"] == "nobody"
        assert (await slow) == (await get(two, ANN, upstream))
        assert (len(upstream.fetches), len(hanging.fetches)) == (1, 1)
        await assert_idle(server, one, two)


async def test_who_waits_for_everybodys_looks_for_his_own_first(server: RedisServer) -> None:
    """What was kept for him alone on another replica may answer although the public one is being fetched."""
    upstream, hanging = Upstream(ttl=60_000), Upstream()
    rules = Rules(max_ttl=30.0)
    ann, bob = (replace(caller(LISTS, name), rules=rules) for name in ("ann", "bob"))
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(replica(server, private_in_redis=True)) for _ in range(2)]
        await get(one, bob, upstream)
        await one.cache.invalidate(LIST_CHANGED)
        upstream.scope = "private"
        await get(two, ann, upstream)
        hanging.hold()
        slow = asyncio.create_task(get(one, bob, hanging))
        await hanging.asked.wait()
        assert await one.ask(ann, upstream.of("ann")) == "hit hit"
        assert len(upstream.fetches) == 2
        hanging.go.set()
        await slow
        await assert_idle(server, one, two)


async def test_a_leader_that_dies_delays_nobody_beyond_the_bound(
    server: RedisServer, proxy: RedisProxy
) -> None:
    """He took the lead, and nothing was heard of him again."""
    upstream = Upstream()
    async with replica(server, coalesce=0.3) as two:
        async with replica(proxy, coalesce=0.3) as one:
            upstream.hold()
            leading = asyncio.create_task(get(one, LISTS, upstream))
            await upstream.asked.wait()

            async def die() -> None:
                await asyncio.Event().wait()

            proxy.before["release"] = die
            leading.cancel()
            await asyncio.wait([leading])
            assert len(await server.keys("*:lead")) == 1
            upstream.go.set()
            await storm([two], [LISTS], upstream)
            assert len(upstream.fetches) == 2
            assert (await turns(two)).keys() <= {"gave-up", "led"}
        await assert_idle(server, two)


async def test_who_gave_up_waiting_stores_for_the_others(server: RedisServer) -> None:
    """What the slow one brings later does no harm."""
    upstream = Upstream()
    async with replica(server, coalesce=0.2) as one, replica(server, coalesce=0.2) as two:
        upstream.hold()
        slow = asyncio.create_task(get(one, LISTS, upstream))
        await upstream.asked.wait()
        upstream.asked.clear()
        quick = asyncio.create_task(get(two, LISTS, upstream))
        await upstream.asked.wait()
        assert len(upstream.fetches) == 2
        upstream.go.set()
        await asyncio.gather(slow, quick)
        async with replica(server) as three:
            assert await three.ask(LISTS, upstream.of("nobody")) == "hit hit"
        await assert_idle(server, one, two)


@pytest.mark.parametrize("trouble", ["freeze", "kill"])
async def test_redis_leaves_in_the_middle_of_a_storm(server: RedisServer, trouble: str) -> None:
    """Who waits for a leader goes on when no word can come any more; every caller is answered."""
    upstream = Upstream()
    async with replicas(server, timeout=0.5, lease=2.0, coalesce=4.0) as three:
        upstream.hold()
        leading = asyncio.create_task(get(three[0], LISTS, upstream))
        await upstream.asked.wait()
        others = asyncio.create_task(storm(three[1:], [LISTS], upstream, crowd=5))
        for one in three[1:]:
            await one.until(lambda one=one: "1 followed" in repr(one.leads))  # type: ignore[misc]
        if trouble == "freeze":
            server.freeze()
        else:
            await server.kill()
        upstream.go.set()
        try:
            assert len(await others) == 10
            await leading
        finally:
            server.thaw() if trouble == "freeze" else await server.begin()
        assert len(upstream.fetches) <= 3
        for one in three:
            await one.linked()
        await assert_idle(server, *three)


# Changes and leavers


async def test_a_change_while_the_leader_is_away(server: RedisServer) -> None:
    """Who waited is answered the new; so is who comes after, without waiting for the old fetch."""
    upstream = Upstream()
    async with replicas(server) as three:
        one, two, _ = three
        upstream.hold()
        leading = asyncio.create_task(get(one, LISTS, upstream))
        await upstream.asked.wait()
        waiting = asyncio.create_task(storm([two], [LISTS], upstream))
        await two.until(lambda: repr(two.leads) == "<Leads 0 led, 1 followed>")
        upstream.version = 2
        await two.changed(LIST_CHANGED)
        upstream.asked.clear()
        late = asyncio.create_task(get(three[2], LISTS, upstream))
        await upstream.asked.wait()
        upstream.go.set()
        assert (await leading)["version"] == 1
        assert {answer["version"] for answer in await waiting} == {2}
        assert (await late)["version"] == 2
        for each in three:
            assert (await get(each, LISTS, upstream))["version"] == 2
        await assert_idle(server, *three)


SCRIPTS = ("get", "lead", "put", "release", "tell")
STEPS = [(when, name) for name in SCRIPTS for when in ("before", "after")]


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize(("when", "name"), STEPS)
async def test_a_change_at_each_step(
    server: RedisServer, proxy: RedisProxy, when: str, name: str, who: str
) -> None:
    """Of who leads and of who follows: who asks after the change was announced is answered the new."""
    if who == "follower" and name == "tell":
        return
    upstream = Upstream()
    async with replica(server) as one, replica(proxy) as two, replica(server) as three:
        leader, follower = (two, one) if who == "leader" else (one, two)
        changed = asyncio.Event()

        async def change() -> None:
            upstream.version = 2
            await three.changed(LIST_CHANGED)
            changed.set()

        await asyncio.gather(*(each.generations.ready(GH) for each in (one, two, three)))
        upstream.hold()
        if who == "leader":
            getattr(proxy, when)[name] = change
        leading = asyncio.create_task(get(leader, LISTS, upstream))
        await upstream.asked.wait()
        if who == "follower":
            getattr(proxy, when)[name] = change
        following = asyncio.create_task(get(follower, LISTS, upstream))
        await follower.until(lambda: "1 followed" in repr(follower.leads) or len(upstream.fetches) > 1)
        if who == "follower" and name in ("put", "release"):
            await three.changed(LIST_CHANGED)  # so that it has to fetch for itself
        upstream.go.set()
        await asyncio.gather(leading, following)
        await changed.wait()
        for each in (one, two, three, one):
            assert (await get(each, LISTS, upstream))["version"] == 2
        await assert_idle(server, one, two, three)


async def test_the_leader_lands_before_the_question(server: RedisServer, proxy: RedisProxy) -> None:
    """Between looking and asking: the lead is free again, and what is there is found on a second look."""
    upstream = Upstream()
    async with replica(server) as one, replica(proxy) as two:

        async def land() -> None:
            await get(one, LISTS, upstream)
            await assert_idle(server, one)

        proxy.before["lead"] = land
        assert (await get(two, LISTS, upstream))["version"] == 1
        assert len(upstream.fetches) == 1
        assert await turns(two) == {"followed": 1.0}


async def test_the_leader_lands_between_question_and_answer(server: RedisServer, proxy: RedisProxy) -> None:
    """The word comes before one knows to wait for it, and counts."""
    upstream = Upstream()
    async with replica(server) as one, replica(proxy) as two:
        upstream.hold()
        leading = asyncio.create_task(get(one, LISTS, upstream))
        await upstream.asked.wait()

        async def land() -> None:
            upstream.go.set()
            await leading
            await one.until(lambda: "let go" not in repr(one.background))

        proxy.after["lead"] = land
        assert (await get(two, LISTS, upstream))["version"] == 1
        assert len(upstream.fetches) == 1
        await assert_idle(server, one, two)


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize(("when", "name"), [step for step in STEPS if step[1] != "tell"])
async def test_leaving_at_each_step_leaves_nothing_behind(
    server: RedisServer, proxy: RedisProxy, when: str, name: str, who: str
) -> None:
    """All callers of a replica go; the others are answered, and no lead outlives its fetch."""
    upstream = Upstream("public")
    async with replica(server) as one, replica(proxy) as two:
        await asyncio.gather(one.generations.ready(GH), two.generations.ready(GH))
        left = asyncio.Event()
        crowd: list[asyncio.Task[Any]] = []

        async def leave() -> None:
            for each in crowd:
                each.cancel()
            left.set()

        if who == "follower":
            upstream.hold()
            leading = asyncio.create_task(get(one, LISTS, upstream))
            await upstream.asked.wait()
            upstream.errors += [McpError(-32603, "no")] if name == "release" else []
        getattr(proxy, when)[name] = leave
        crowd += [asyncio.create_task(get(two, LISTS, upstream)) for _ in range(5)]
        if who == "follower":
            await two.until(lambda: "1 followed" in repr(two.leads) or left.is_set())
            if name in ("put", "release"):
                await one.changed(LIST_CHANGED)  # so that it has to fetch for itself
            upstream.go.set()
            await asyncio.wait([leading])
        await asyncio.gather(*crowd, return_exceptions=True)
        if name == "put" or who == "leader" or name in ("get", "lead"):
            await left.wait()
        assert (await get(one, LISTS, upstream))["version"] == 1
        await assert_idle(server, one, two)
