"""What lies in Redis: to the byte, for as long as it may live, readable by those who hold a key only."""

import asyncio
import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from gateway.cache.policy import EVERYTHING, Entry, Lookup, Rules, private_key, public_key
from gateway.cache.redis_generations import ADVANCE
from gateway.cache.redis_store import DELETE, GET, Unreadable, pack, unpack
from gateway.protocol.call import (
    MODERN_VERSION,
    Change,
    Partition,
    Reason,
    Reply,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import encode
from gateway.support.redis import redis_budget
from tests.support.redis import RedisServer, redis_for_many, redis_proxy
from tests.support.replicas import replica

GH = UpstreamName("gh")
LISTS = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, None, Rules())
READ = replace(LISTS, method="resources/read", target="file:///x?token=hunter2")
ANN = replace(LISTS, partition=Partition("ann"))
SERVICE = (":changes", ":replicas", ":told", ":lead", ":scope")
"""How the names of keys end that hold no entry."""

NUMBERS = (
    b'{"ttlMs":60000,"cacheScope":"public","z":1.0,"a":[1,1e2,-0,9007199254740993,9223372036854775808,'
    b"18446744073709551616,1234567890123456789012345678901234567890,"
    b'0.1000000000000000055511151231257827],"u":"\\u00e9\\/\xc3\xa9"}'
)


@pytest.fixture(scope="module")
def process() -> Iterator[RedisServer]:
    with redis_for_many() as server:
        yield server


@pytest.fixture
async def server(process: RedisServer) -> RedisServer:
    await process.clear()
    return process


def answering(body: bytes | None = None, *, scope: str = "public", ttl: int = 60_000, pad: int = 0):
    asked: list[int] = []

    async def fill() -> Reply:
        asked.append(1)
        return Reply(body or encode({"ttlMs": ttl, "cacheScope": scope, "pad": "x" * pad}))

    fill.asked = asked  # type: ignore[attr-defined]
    return fill


def fetches(fill) -> int:
    return len(fill.asked)


async def entry_key(server: RedisServer) -> str:
    (key,) = [key for key in await server.keys() if not key.endswith(SERVICE)]
    return key


# What is shared


async def test_what_one_replica_fetched_is_served_by_all(server: RedisServer) -> None:
    """One upstream call, however many replicas; afterwards from each one's own memory."""
    fill = answering()
    async with replica(server) as one, replica(server) as two:
        assert await one.ask(LISTS, fill) == "miss absent"
        assert await two.ask(LISTS, fill) == "hit hit"
        assert two.cache.peek(LISTS) is not None
        assert fetches(fill) == 1


async def test_a_new_replica_begins_with_a_warm_cache(server: RedisServer) -> None:
    """What was stored before it started is found, whatever was counted before."""
    fill = answering()
    async with replica(server) as one:
        await one.generations.advance(GH, (EVERYTHING,))
        await one.ask(LISTS, fill)
    async with replica(server) as two:
        assert await two.ask(LISTS, fill) == "hit hit"


async def test_results_pass_through_redis_to_the_byte(server: RedisServer) -> None:
    """B39: numbers keep their digits, members their order, text its escapes."""
    fill = answering(NUMBERS)
    async with replica(server) as one, replica(server) as two:
        await one.ask(LISTS, fill)
        assert await two.body(LISTS, fill) == NUMBERS
        assert fetches(fill) == 1


async def test_a_private_result_stays_in_the_process_that_fetched_it(server: RedisServer) -> None:
    """By default nothing of it is in Redis."""
    fill = answering(scope="private")
    async with replica(server) as one, replica(server) as two:
        assert await one.ask(ANN, fill) == "miss absent"
        assert await one.ask(ANN, fill) == "hit hit"
        assert await two.ask(ANN, fill) == "miss absent"
        assert [key for key in await server.keys() if not key.endswith(SERVICE)] == []


async def test_a_private_result_in_redis_is_its_owners(server: RedisServer) -> None:
    """B08: with private_in_redis it is found by the same caller elsewhere, and by nobody else."""
    fill = answering(scope="private")
    async with (
        replica(server, private_in_redis=True) as one,
        replica(server, private_in_redis=True) as two,
    ):
        assert await one.ask(ANN, fill) == "miss absent"
        assert await two.ask(ANN, fill) == "hit hit"
        assert await two.ask(replace(ANN, partition=Partition("bob")), fill) == "miss absent"
        assert await two.ask(LISTS, fill) == "bypass anonymous"


async def test_redis_is_shown_no_token_uri_or_body(server: RedisServer) -> None:
    """Names are of fixed length and tell nothing; values are sealed (C-25)."""
    fill = answering(
        b'{"ttlMs":60000,"cacheScope":"private","contents":[{"uri":"file:///x","text":"salary"}]}'
    )
    async with replica(server, private_in_redis=True) as one:
        await one.ask(replace(READ, partition=Partition("partition-of-ann")), fill)
        names = await server.keys()
        everything = b"".join(
            [name.encode() for name in names] + [await server.ask("DUMP", name) for name in names]
        )
    for secret in (b"hunter2", b"file:", b"ann", b"salary", b"gh", b"resources/read"):
        assert secret not in everything
    assert all(name.startswith("mcpgw:1:{") for name in names)
    assert len({len(name) for name in names if not name.endswith(SERVICE)}) == 1


async def test_all_keys_of_an_upstream_are_in_one_slot(server: RedisServer) -> None:
    """A script in a Cluster may touch no more than one."""
    async with replica(server) as one:
        await one.ask(LISTS, answering())
        place = one.shared.place(public_key(LISTS))
        assert key_slot(place.encode()) == key_slot(one.generations.key(GH).encode())


# Rotation


@pytest.mark.parametrize("private", [False, True])
async def test_a_new_key_before_the_old_one_leaves_the_cache_warm(server: RedisServer, private: bool) -> None:
    """The first key writes, all of them read."""
    lookup, fill = (ANN, answering(scope="private")) if private else (LISTS, answering())
    async with replica(server, keys=["old"], private_in_redis=True) as one:
        await one.ask(lookup, fill)
    async with replica(server, keys=["new", "old"], private_in_redis=True) as two:
        assert await two.ask(lookup, fill) == "hit hit"


async def test_another_key_reads_nothing(server: RedisServer) -> None:
    """Two deployments on one Redis do not meet."""
    fill = answering()
    async with replica(server, keys=["a"]) as one, replica(server, keys=["b"]) as two:
        await one.ask(LISTS, fill)
        assert await two.ask(LISTS, fill) == "miss absent"


# Ages


async def test_redis_lets_go_of_it_by_itself(server: RedisServer) -> None:
    """Native expiry, and never later than the result's own."""
    async with replica(server) as one:
        await one.ask(LISTS, answering(ttl=60_000))
        assert 55_000 < await server.ask("PTTL", await entry_key(server)) <= 60_000


async def test_a_reader_goes_by_what_remains_there(server: RedisServer) -> None:
    """Not by any clock of the writer's: the two need not agree by a second or a year."""
    fill = answering(ttl=60_000)
    async with replica(server) as one, replica(server) as two:
        two.clock.now = 5e9
        await one.ask(LISTS, fill)
        await server.ask("PEXPIRE", await entry_key(server), 10_000)
        entry = (await two.cache.get(LISTS, fill)).entry
        assert 9_000 < entry.remaining_ms(two.clock()) <= 10_000
        two.clock.now += 10
        assert two.cache.peek(LISTS) is None


async def test_a_longer_expiry_in_redis_lengthens_no_life(server: RedisServer) -> None:
    """Somebody's EXPIRE, or a clock set back, is not more to say than the result's own ttl."""
    fill = answering(ttl=60_000)
    async with replica(server) as one, replica(server) as two:
        await one.ask(LISTS, fill)
        await server.ask("PERSIST", await entry_key(server))
        assert await two.ask(LISTS, fill) == "miss absent"
        await server.ask("PEXPIRE", await entry_key(server), 10**9)
        async with replica(server) as three:
            assert (await three.cache.get(LISTS, fill)).entry.remaining_ms(three.clock()) <= 60_000


async def test_the_time_an_answer_takes_lengthens_no_life(server: RedisServer) -> None:
    """What remained was true when Redis was asked, at the latest."""
    fill = answering()
    async with redis_proxy(server, [GET]) as proxy, replica(server) as one, replica(proxy) as two:
        await one.ask(LISTS, fill)

        async def take_time() -> None:
            two.clock.now += 5.0

        proxy.after["get"] = take_time
        cached = await two.cache.get(LISTS, fill)
        assert (cached.source, proxy.after) == ("hit", {})
        assert cached.entry.remaining_ms(two.clock()) <= 55_000


async def test_what_comes_late_lives_shorter(server: RedisServer) -> None:
    """A write that a frozen Redis carries out after a while must not lengthen a life by that while."""
    async with replica(server, timeout=0.1) as one:
        await one.ask(LISTS, answering(ttl=1))  # Redis's clock has been read
        moment = await one.generations.moment(GH)
        entry = Entry(b"{}", one.clock(), 60.0, "public", moment, (EVERYTHING, ("tools/list",)))
        server.freeze()
        assert await one.shared.put(public_key(LISTS), entry) == "unanswered"
        await asyncio.sleep(0.5)  # the time that must be missing from its life
        server.thaw()
        place = one.shared.place(public_key(LISTS))
        while await server.ask("PTTL", place) < 0:  # noqa: ASYNC110 - Redis announces nothing
            await asyncio.sleep(0.01)
        assert await server.ask("PTTL", place) <= 59_600


async def test_a_result_whose_life_is_over_before_it_is_written_is_not(server: RedisServer) -> None:
    """There would be no end to an expiry in the past."""
    async with replica(server) as one:
        await one.ask(LISTS, answering(ttl=1))
        one.clock.now += 1
        entry = Entry(b"{}", one.clock() - 5, 5.0, "public", await one.generations.moment(GH))
        assert await one.shared.put(public_key(LISTS), entry) == "stale"


# Values that are not what they should be


@pytest.mark.parametrize(
    "spoil",
    [
        ("SET", b"garbage"),
        ("LPUSH", b"x"),
        ("HSET", b"v", b"garbage", b"g", b"99999999999999999", b"t", b"0123456789abcdef"),
        ("HSET", b"v", b"", b"g", b"x", b"t", b""),
        ("HSET", b"other", b"x"),
    ],
)
async def test_a_value_that_is_not_ours_is_a_miss(server: RedisServer, spoil: tuple[object, ...]) -> None:
    """Wrong type, garbage, half of it: fetched anew, and replaced."""
    fill = answering()
    async with replica(server) as one, replica(server) as two:
        await one.ask(LISTS, fill)
        key = await entry_key(server)
        await server.ask("DEL", key)
        await server.ask(spoil[0], key, *spoil[1:])
        await server.ask("EXPIRE", key, 100)
        assert await two.ask(LISTS, fill) == "miss absent"
        assert two.redis.answers
        async with replica(server) as three:
            assert await three.ask(LISTS, fill) == "hit hit"
    assert fetches(fill) == 2


@pytest.mark.parametrize("field", ["v", "g", "t", "l"])
async def test_a_value_with_one_thing_changed_is_a_miss(server: RedisServer, field: str) -> None:
    """Also when only the count or the topics were: they are under the seal."""
    fill = answering()
    async with replica(server) as one, replica(server) as two:
        await one.ask(LISTS, fill)
        key = await entry_key(server)
        was = await server.ask("HGET", key, field)
        changed = b"%d" % (int(was) + 1) if field in "gl" else was[:-1] + bytes([was[-1] ^ 1])
        await server.ask("HSET", key, field, changed)
        assert await two.ask(LISTS, fill) == "miss absent"


async def test_a_value_under_another_key_is_a_miss(server: RedisServer) -> None:
    """Whoever can write to Redis cannot serve one caller's result to another."""
    fill = answering(scope="private")
    bob = replace(ANN, partition=Partition("bob"))
    async with replica(server, private_in_redis=True) as one:
        await one.ask(ANN, fill)
        ann_key, bob_key = private_key(ANN), private_key(bob)
        assert ann_key is not None
        assert bob_key is not None
        await server.ask("COPY", one.shared.place(ann_key), one.shared.place(bob_key))
        assert await one.ask(bob, fill) == "miss absent"


@pytest.mark.parametrize(
    "spoil", [("SET", b"x"), ("HSET", b"n", b"many"), ("HSET", b"f", b"none"), ("HDEL", b"n")]
)
async def test_spoilt_counts_make_everything_stale_and_are_begun_anew(
    server: RedisServer, spoil: tuple[object, ...]
) -> None:
    """Without counts nobody can say what is fresh; afterwards the cache works again."""
    fill = answering()
    async with replica(server) as one, replica(server) as two:
        await one.ask(LISTS, fill)
        key = one.generations.key(GH)
        if spoil[0] == "SET":
            await server.ask("DEL", key)
        await server.ask(spoil[0], key, *spoil[1:])
        assert await two.ask(LISTS, fill) == "miss absent"
        await two.ask(LISTS, fill)
        assert await two.ask(LISTS, fill) == "hit hit"
        async with replica(server) as three:
            assert await three.ask(LISTS, fill) == "hit hit"


async def test_what_changed_since_its_count_is_kept_nowhere(server: RedisServer) -> None:
    """Redis says so when it is written, before the change has been told here."""
    key = public_key(LISTS)
    async with replica(server) as one:
        await one.ask(LISTS, answering(ttl=1))  # Redis's clock has been read
        moment = await one.generations.moment(GH)
        await server.ask("HINCRBY", one.generations.key(GH), "n", 10)
        digest = one.generations.digest(("tools/list",))
        await server.ask("HSET", one.generations.key(GH), digest, moment + 10)
        entry = Entry(b"{}", one.clock(), 60.0, "public", moment, (EVERYTHING, ("tools/list",)))
        assert await one.shared.put(key, entry) == "stale"
        one.memory.clear()
        await one.store.put(key, entry)
        assert one.memory.peek(key) is None


async def test_a_count_that_rose_unheard_is_caught_up_with(server: RedisServer) -> None:
    """As one of another key of the ring does: from the next fetch on results are kept again."""
    fill = answering()
    async with replica(server) as one:
        await one.ask(LISTS, fill)
        one.memory.clear()
        counts, count = one.generations.key(GH), await one.generations.moment(GH) + 10
        digest = one.generations.digest(("tools/list",))
        await server.ask("HSET", counts, "n", count, digest, count)
        await one.ask(LISTS, fill)
        await one.ask(LISTS, fill)
        assert await one.ask(LISTS, fill) == "hit hit"


async def test_a_count_that_fell_begins_anew_above_all_that_are_known(server: RedisServer) -> None:
    """Whoever knows of more is believed, at the first question that shows it."""
    fill = answering()
    async with replica(server) as one:
        await one.ask(LISTS, fill)
        one.memory.clear()
        counts, known = one.generations.key(GH), await one.generations.moment(GH)
        await server.ask("HSET", counts, "n", known - 10, "f", known - 10)
        assert await one.ask(LISTS, fill) != "hit hit"
        await one.ask(LISTS, fill)
        assert int(await server.ask("HGET", counts, "n")) > known


async def test_what_was_read_in_another_session_is_not_kept_here(server: RedisServer) -> None:
    """That it was deleted meanwhile was told to those who heard."""
    fill, key = answering(), public_key(LISTS)
    async with (
        redis_proxy(server, [GET]) as proxy,
        replica(server, lease=0.5) as one,
        replica(proxy, lease=0.5, timeout=10.0) as two,
    ):
        await one.ask(LISTS, fill)

        async def miss_something() -> None:
            two.bus.distrust()
            await one.store.delete(key)
            await two.linked()

        proxy.after["get"] = miss_something
        assert await two.ask(LISTS, fill) == "hit hit"
        assert two.memory.peek(key) is None


# Sizes


async def test_a_large_result_is_compressed(server: RedisServer) -> None:
    """And comes back as it was."""
    fill = answering(pad=2_000_000)
    async with replica(server) as one, replica(server) as two:
        body = await one.body(LISTS, fill)
        assert await server.ask("MEMORY", "USAGE", await entry_key(server)) < 50_000
        assert await two.body(LISTS, fill) == body
    assert fetches(fill) == 1


async def test_what_is_too_large_stays_here(server: RedisServer) -> None:
    """It is still a hit in the process that fetched it."""
    fill = answering(pad=20_000)
    async with replica(server, largest=10_000) as one:
        await one.ask(LISTS, fill)
        assert await one.ask(LISTS, fill) == "hit hit"
        assert [key for key in await server.keys() if not key.endswith(SERVICE)] == []


ENTRIES = st.builds(
    Entry,
    st.binary(max_size=40_000),
    st.just(0.0),
    st.floats(0, 86_400),
    st.sampled_from(["public", "private"]),
    st.just(0),
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=2).map(tuple),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.sampled_from([(), ("min_ttl", "scope")]),
)


@given(ENTRIES)
def test_what_is_packed_comes_out_the_same(entry: Entry) -> None:
    """Every byte of the result, its ttl, scope and topics."""
    back = unpack(pack(entry), largest=2**20)
    assert (back.result, back.ttl, back.scope, back.topics, back.overrides) == (
        entry.result,
        entry.ttl,
        entry.scope,
        entry.topics,
        entry.overrides,
    )


@given(st.binary())
def test_any_bytes_are_an_entry_or_unreadable(packed: bytes) -> None:
    """Never another exception."""
    with contextlib.suppress(Unreadable):
        unpack(packed, largest=1000)


def test_a_small_value_does_not_become_a_large_one() -> None:
    """Unpacking is bounded by what the value says it is, and that by what is allowed."""
    bomb = zlib.compress(bytes(10_000_000))
    for size in (10, 10_000_000):
        packed = msgspec.msgpack.encode([1.0, "public", [[]], [], size, True, bomb])
        with pytest.raises(Unreadable):
            unpack(packed, largest=2**20)


# Scopes


async def test_when_a_scope_narrows_the_shared_copy_goes_everywhere(server: RedisServer) -> None:
    """C-20: the opposite arm is deleted before writing, in Redis and in every replica's memory."""
    fill = answering()
    async with replica(server) as one, replica(server) as two:
        await one.ask(LISTS, fill)
        await two.ask(LISTS, fill)
        epoch = two.cache.epoch
        await one.store.delete(public_key(LISTS))
        await two.until(lambda: two.cache.peek(LISTS) is None)
        assert two.cache.epoch > epoch
        assert await two.store.get(public_key(LISTS)) is None


async def test_a_shared_copy_that_could_not_be_deleted_is_stale(server: RedisServer) -> None:
    """C-20: Redis did not answer, so what the copy depends on counts as changed; nothing else does."""
    fill, other = answering(), replace(LISTS, method="prompts/list")
    async with (
        redis_proxy(server, [DELETE]) as proxy,
        replica(server) as one,
        replica(proxy, timeout=0.5) as two,
    ):
        for each, lookup in ((one, LISTS), (one, other), (two, LISTS)):
            await each.ask(lookup, fill)
        proxy.before["delete"] = asyncio.Event().wait  # type: ignore[assignment] # for ever
        await two.store.delete(public_key(LISTS))
        assert await two.ask(LISTS, fill) != "hit hit"
        await two.until(lambda: "0 untold" in repr(two.generations))
        assert one.cache.peek(LISTS) is None
        assert one.cache.peek(other) is not None
        assert await one.ask(LISTS, fill) == "miss generation"


async def test_an_unanswered_delete_costs_what_it_was_to_delete_and_nothing_else(server: RedisServer) -> None:
    """The session goes on: other lists, and what is private, are hits all the while."""
    fill, private, other = answering(), answering(scope="private"), replace(LISTS, method="prompts/list")
    async with redis_proxy(server, [DELETE, ADVANCE]) as proxy, replica(proxy, timeout=0.5) as one:
        session = one.bus.session
        await one.ask(LISTS, fill)
        await one.ask(other, fill)
        await one.ask(ANN, fill)
        await one.ask(replace(ANN, method="resources/list"), private)
        let_go = asyncio.Event()
        proxy.before["delete"] = proxy.before["advance"] = let_go.wait  # type: ignore[assignment]
        await one.store.delete(public_key(LISTS))
        await one.until(lambda: "advance" not in proxy.before)
        assert await one.ask(LISTS, fill) != "hit hit"
        assert await one.ask(other, fill) == "hit hit"
        assert await one.ask(replace(ANN, method="resources/list"), private) == "hit hit"
        let_go.set()
        await one.until(lambda: "0 untold" in repr(one.generations))
        while await one.ask(LISTS, fill) != "hit hit":
            pass
        assert await one.ask(other, fill) == "hit hit"
        assert one.bus.session == session


async def test_a_request_that_has_waited_enough_goes_on_without_redis(server: RedisServer) -> None:
    """It keeps here what it fetched; what must not be found any more is deleted without it."""
    fill = answering()
    async with replica(server) as one:
        await one.ask(LISTS, fill)
        with redis_budget(0.0):
            assert await one.ask(LISTS, fill) == "hit hit"
            other = replace(LISTS, method="prompts/list")
            assert await one.ask(other, fill) == "miss absent"
            assert await one.ask(other, fill) == "hit hit"
            await one.store.delete(public_key(LISTS))
        await one.until(lambda: "delete an entry" not in repr(one.background))
        assert [key for key in await server.keys() if not key.endswith(SERVICE)] == []
        assert "0 untold" in repr(one.generations)
        assert one.redis.answers


async def test_a_shared_copy_that_was_to_be_deleted_while_cut_off_is_stale_afterwards(
    server: RedisServer,
) -> None:
    """Nothing is asked of Redis meanwhile; it is told as a change before the cache is one again."""
    fill = answering()
    async with replica(server) as one, replica(server) as two:
        await one.ask(LISTS, fill)
        two.bus.distrust()
        await two.store.delete(public_key(LISTS))
        await two.linked()
        assert one.cache.peek(LISTS) is None
        assert await one.ask(LISTS, fill) == "miss generation"


async def test_an_evicted_copy_is_dropped_from_the_memories_too(server: RedisServer) -> None:
    """Redis may have let go of what the replicas still hold."""
    fill = answering()
    async with replica(server) as one, replica(server) as two:
        await one.ask(LISTS, fill)
        await two.ask(LISTS, fill)
        await server.ask("DEL", await entry_key(server))
        await one.store.delete(public_key(LISTS))
        await two.until(lambda: two.cache.peek(LISTS) is None)


async def test_no_request_waits_for_another_replica(server: RedisServer) -> None:
    """One that hangs holds up neither a scope that narrows nor a change that is only to be forgotten."""
    fill = answering()
    async with (
        redis_proxy(server, []) as proxy,
        replica(server, lease=60.0) as one,
        replica(proxy, lease=60.0) as two,
    ):
        await one.ask(LISTS, fill)
        await two.ask(LISTS, fill)
        proxy.delivers.clear()
        await one.store.delete(public_key(LISTS))
        await one.cache.invalidate(Change(GH, "prompts/list"))
        await proxy.holds.wait()
        assert two.cache.peek(LISTS) is not None
        telling = asyncio.create_task(one.cache.told(GH))
        await one.ask(LISTS, fill)
        assert not telling.done(), "who is told of a change is told when all have forgotten"
        proxy.delivers.set()
        await telling
        assert two.cache.peek(LISTS) is None


# While an upstream is down


async def test_a_replica_that_never_fetched_it_can_bridge_an_outage(server: RedisServer) -> None:
    """C-33: what expired stays in Redis for stale_if_error, and is never fresh there."""
    fill = answering(ttl=200)

    async def down() -> Reply:
        raise UpstreamUnavailable(GH, Reason.CONNECT)

    async with replica(server, stale_if_error=60.0) as one:
        assert await one.ask(LISTS, fill) == "miss absent"
        assert 55_000 < await server.ask("PTTL", await entry_key(server)) <= 60_200
    async with replica(server, stale_if_error=60.0) as two, replica(server) as strict:
        while (found := await two.shared.get(public_key(LISTS))) and found.remaining(two.clock()):  # noqa: ASYNC110 - it expires there
            await asyncio.sleep(0.01)
        assert await two.ask(LISTS, down) == "stale upstream-down"
        with pytest.raises(UpstreamUnavailable):
            await strict.ask(LISTS, down)
        await two.cache.invalidate(Change(GH, "tools/list"))
        with pytest.raises(UpstreamUnavailable):
            await two.ask(LISTS, down)


async def test_what_a_replica_holds_stands_in_before_an_older_copy_of_redis(server: RedisServer) -> None:
    """The younger of two expired ones."""
    async with replica(server, stale_if_error=60.0) as one:
        await one.ask(LISTS, answering())
        await server.ask("PEXPIRE", await entry_key(server), 60_000)  # all of it is stale_if_error
        there = await one.shared.get(public_key(LISTS))
        while there is not None and there.remaining(one.clock()):  # Redis's own time, which nothing sets
            await asyncio.sleep(0.005)
            there = await one.shared.get(public_key(LISTS))
        assert there is not None
        one.clock.now += 1
        here = replace(there, received=one.clock(), ttl=0.0, result=b"{}")
        await one.memory.put(public_key(LISTS), here)
        assert await one.store.get(public_key(LISTS)) is here


async def test_a_replica_says_what_it_knows(server: RedisServer) -> None:
    """For the log and the reader of a failed test."""
    async with replica(server) as one:
        await one.ask(LISTS, answering())
        assert repr(one.store).startswith("<Tiered <MemoryStore 1 entries,")
        assert "gh at " in repr(one.generations)
        assert repr(one.bus) == "<RedisBus hears, session 1, 0 announcements under way>"
