"""That the memory store keeps to its bytes and its clock, and that counted changes are never forgotten."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.policy import Entry, Key, Topic, cost_of
from gateway.cache.stores import MemoryGenerations, MemoryStore
from gateway.protocol.call import UpstreamName
from tests.unit.cache.clock import Clock

GH, JIRA = UpstreamName("gh"), UpstreamName("jira")
ENTRY = Entry(b"x" * 1000, 0.0, 60.0, "public")
COST = cost_of(("k1",), ENTRY)


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(3 * COST, clock)


async def test_what_is_put_is_there_until_deleted(store: MemoryStore) -> None:
    """Both ways of reading see the same."""
    await store.put(("k1",), ENTRY)
    assert store.peek(("k1",)) is await store.get(("k1",)) is ENTRY
    await store.delete(("k1",))
    await store.delete(("k1",))
    assert store.peek(("k1",)) is None
    assert store.held == (0, 0)


async def test_the_least_recently_used_makes_room(store: MemoryStore) -> None:
    """The bound is in bytes; a look counts as use."""
    for key in ("k1", "k2", "k3"):
        await store.put((key,), ENTRY)
    store.peek(("k1",))
    await store.put(("k4",), ENTRY)
    assert [key for key in ("k1", "k2", "k3", "k4") if store.peek((key,))] == ["k1", "k3", "k4"]
    assert store.held == (3, 3 * COST)
    assert repr(store) == f"<MemoryStore 3 entries, {3 * COST} of {3 * COST} bytes>"


async def test_what_never_fits_is_not_put_and_pushes_nothing_out(store: MemoryStore) -> None:
    """One huge result must not cost all others their place."""
    await store.put(("k1",), ENTRY)
    await store.put(("k2",), replace(ENTRY, result=b"x" * 4 * COST))
    assert store.peek(("k1",)) is ENTRY
    assert store.peek(("k2",)) is None


async def test_an_expired_entry_lingers_a_minute_and_is_gone(store: MemoryStore, clock: Clock) -> None:
    """So that a miss can be called expired, and memory comes back without anybody asking."""
    await store.put(("k1",), ENTRY)
    clock.now = 119.0
    assert store.peek(("k1",)) is ENTRY
    clock.now = 120.0
    assert store.peek(("k1",)) is None
    assert store.held == (0, 0)


async def test_a_store_without_memory_holds_nothing(clock: Clock) -> None:
    """`memory: 0` switches the cache off."""
    store = MemoryStore(0, clock)
    await store.put(("k1",), ENTRY)
    assert store.held == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4000), st.floats(0, 100)), max_size=40))
async def test_the_bound_holds_whatever_is_put(puts: list[tuple[int, int, float]]) -> None:
    """Replaced, expired, evicted and refused entries all leave the books right."""
    clock = Clock(0.0)
    store = MemoryStore(8000, clock)
    kept: dict[Key, Entry] = {}
    for name, size, later in puts:
        clock.now += later
        key: Key = (str(name),)
        kept[key] = Entry(bytes(size), clock.now, 30.0, "public")
        await store.put(key, kept[key])
        count, held = store.held
        there = [key for key in kept if store.peek(key) is not None]
        assert held <= 8000
        assert count == len(there)
        assert held == sum(cost_of(key, entry) for key in there if (entry := store.peek(key)))


async def test_a_count_moves_its_own_topics_and_upstream_only() -> None:
    """C-30: that upstream, that list."""
    generations = MemoryGenerations()
    assert await generations.moment(GH) == 0
    assert generations.peek(GH, [("tools/list",)]) == 0
    await generations.advance(GH, [("tools/list",)])
    await generations.advance(GH, [("prompts/list",)])
    assert await generations.moment(GH) == 2
    assert await generations.latest(GH, [(), ("tools/list",)]) == 1
    assert generations.peek(GH, [(), ("prompts/list",)]) == 2
    assert generations.peek(GH, [(), ("resources/list",)]) == 0
    assert await generations.moment(JIRA) == 0
    assert repr(generations) == "<MemoryGenerations [gh at 2]>"


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 5))
async def test_a_forgotten_topic_never_makes_a_stale_result_fresh(changes: list[int], most: int) -> None:
    """However few topics are remembered, each counts as changed no earlier than it did."""
    generations = MemoryGenerations(most)
    changed: dict[Topic, int] = {}
    for at, number in enumerate(changes, start=1):
        topic = ("resources/read", str(number))
        changed[topic] = at
        await generations.advance(GH, [topic])
        for known, when in changed.items():
            assert when <= generations.peek(GH, [known]) <= at
        assert generations.peek(GH, [topic]) == at
