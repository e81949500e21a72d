"""What the response cache answers, stores, shares and forgets."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gateway.cache.flight import SingleFlight
from gateway.cache.policy import Lookup, Rules, public_key, rules_for_call
from gateway.cache.responses import Cached, ResponseCache
from gateway.cache.stores import MemoryGenerations, MemoryStore
from gateway.protocol.call import (
    MODERN_VERSION,
    Challenge,
    Change,
    Partition,
    Reason,
    Reply,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import McpError, encode
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from tests.unit.cache.clock import Clock, Timers

GH, JIRA = UpstreamName("gh"), UpstreamName("jira")
LISTS = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, None, Rules())
ANN = replace(LISTS, partition=Partition("ann"))
BOB = replace(LISTS, partition=Partition("bob"))
PUBLIC = {"ttlMs": 60_000, "cacheScope": "public"}
PRIVATE = {"ttlMs": 60_000, "cacheScope": "private"}


class Upstream:
    """Answers each fetch with what was set last, numbered; holds the answers back when told to."""

    def __init__(self, **hints: object) -> None:
        self.hints: dict[str, object] = dict(hints)
        self.fetches = 0
        self.error: Exception | None = None
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self) -> Reply:
        self.fetches += 1
        number, hints = self.fetches, dict(self.hints)
        self.asked.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return Reply(encode({"number": number, **hints}))

    def hold(self) -> None:
        self.asked.clear()
        self.go.clear()


class Fixture:
    """A cache with everything below it."""

    def __init__(self, max_bytes: int = 2**20, stale_if_error: float = 0.0) -> None:
        self.clock = Clock()
        self.background = Background()
        self.store = MemoryStore(max_bytes, self.clock, linger=stale_if_error)
        self.timers = Timers()
        self.flight = SingleFlight(self.background, self.timers)
        self.metrics = Metrics()
        self.cache = ResponseCache(
            self.store,
            MemoryGenerations(),
            self.flight,
            self.metrics,
            self.clock,
            stale_if_error=stale_if_error,
        )
        self.get, self.invalidate = self.cache.get, self.cache.invalidate

    async def ask(self, lookup: Lookup, fill: Callable[[], Awaitable[Reply]]) -> str:
        """Return an answer in two words."""
        return words(await self.cache.get(lookup, fill))

    def assert_idle(self) -> None:
        assert repr(self.flight) == "<SingleFlight []>"


def words(cached: Cached) -> str:
    return f"{cached.source} {cached.reason}"


def number(cached: Cached) -> int:
    """Return which fetch an answer came from."""
    return int(cached.entry.result.split(b'"number":')[1].split(b",")[0].strip(b"}"))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def f() -> Fixture:
    return Fixture()


# Hits


async def test_a_public_result_is_shared_by_everybody(f: Fixture) -> None:
    """The product's promise: one fetch, whoever asks."""
    upstream = Upstream(**PUBLIC)
    assert await f.ask(ANN, upstream) == "miss absent"
    for lookup in (ANN, BOB, LISTS):
        assert await f.ask(lookup, upstream) == "hit hit"
    assert upstream.fetches == 1


async def test_a_private_result_is_its_owners(f: Fixture) -> None:
    """B08: ann's list is served to ann, never to bob nor to nobody."""
    upstream = Upstream(**PRIVATE)
    assert [number(await f.get(lookup, upstream)) for lookup in (ANN, BOB, ANN, BOB)] == [1, 2, 1, 2]
    assert number(await f.get(LISTS, upstream)) == 3


async def test_callers_without_a_token_share_no_private_result(f: Fixture) -> None:
    """C-19: not even one with himself."""
    upstream = Upstream(**PRIVATE)
    assert await f.ask(LISTS, upstream) == "bypass anonymous"
    assert await f.ask(LISTS, upstream) == "bypass anonymous"
    assert f.store.held == (0, 0)


async def test_in_a_single_tenant_deployment_they_do(f: Fixture) -> None:
    """The operator said they are one person; who brings a token is another one."""
    rules = Rules(single_tenant=True)
    nobody, upstream = replace(LISTS, rules=rules), Upstream(**PRIVATE)
    assert await f.ask(nobody, upstream) == "miss absent"
    assert await f.ask(nobody, upstream) == "hit hit"
    assert await f.ask(replace(ANN, rules=rules), upstream) == "miss absent"


async def test_an_entry_tells_what_remains_of_its_ttl(f: Fixture) -> None:
    """C-10: the original value again would let staleness grow with every hop."""
    upstream = Upstream(**PUBLIC)
    assert (await f.get(ANN, upstream)).entry.remaining_ms(f.clock()) == 60_000
    f.clock.now += 45.5
    cached = await f.get(BOB, upstream)
    assert cached.entry.remaining_ms(f.clock()) == 14_500
    f.clock.now += 14.5
    assert await f.ask(ANN, upstream) == "miss expired"
    f.clock.now += 1000
    assert await f.ask(ANN, upstream) == "miss absent"


async def test_peek_returns_a_hit_at_once_and_nothing_else(f: Fixture) -> None:
    """The way of a hit has no await that could wait."""
    upstream = Upstream(**PUBLIC)
    assert f.cache.peek(ANN) is None
    fetched = await f.get(ANN, upstream)
    peeked = f.cache.peek(BOB)
    assert peeked is not None
    assert peeked.entry is fetched.entry
    f.clock.now += 60
    assert f.cache.peek(ANN) is None


async def test_a_hit_never_gives_the_loop_away(f: Fixture) -> None:
    """No task, no lock: a hit is done before anything else runs."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    coroutine = f.get(ANN, upstream)
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    assert words(done.value.value) == "hit hit"


async def test_the_result_is_stored_in_the_upstreams_own_bytes(f: Fixture) -> None:
    """B39: numbers, key order and escapes survive a hit; what belongs to one hop does not (C-39)."""
    raw = b'{"ttlMs":6e4,"a":1.0,"b":18446744073709551616,"c":"\\u00e9","cacheScope":"public"'

    async def fill() -> Reply:
        return Reply(raw + b',"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"x"}}}')

    assert (await f.get(ANN, fill)).entry.result == raw + b"}"
    assert (await f.get(ANN, fill)).entry.result == raw + b"}"


async def test_what_is_derived_lives_as_long_as_its_entry(f: Fixture) -> None:
    """Parsed forms are made once per result, and gone with it."""
    upstream = Upstream(**PUBLIC)
    (await f.get(ANN, upstream)).entry.derived["page"] = "parsed"
    assert (await f.get(BOB, upstream)).entry.derived == {"page": "parsed"}
    await f.invalidate(Change(GH))
    assert (await f.get(BOB, upstream)).entry.derived == {}


# What is not stored


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({}, "bypass ttl"),
        ({"ttlMs": 0, "cacheScope": "public"}, "bypass ttl"),
        ({"ttlMs": -5, "cacheScope": "shared"}, "bypass ttl"),
        ({"ttlMs": "60000", "cacheScope": "public"}, "bypass ttl"),
        ({**PUBLIC, "resultType": "input_required"}, "bypass incomplete"),
        ({**PUBLIC, "resultType": "task"}, "bypass incomplete"),
        ({**PUBLIC, "text": "x" * 2**20}, "bypass too-large"),
        ({"ttlMs": 60_000, "cacheScope": "shared"}, "miss absent"),
        ({**PUBLIC, "resultType": "complete"}, "miss absent"),
        ({**PUBLIC, "resultType": None}, "miss absent"),
    ],
)
async def test_what_is_stored_and_why_not(f: Fixture, hints: dict[str, object], expected: str) -> None:
    """C-03, C-11, C-13: what is not stored is fetched again by the next caller, and handed on as it is."""
    upstream = Upstream(**hints)
    first = await f.get(ANN, upstream)
    assert words(first) == expected
    assert first.entry.result == encode({"number": 1, **hints})
    assert await f.ask(ANN, upstream) == ("hit hit" if expected.startswith("miss") else expected)


async def test_what_is_no_object_is_handed_on_and_never_stored(f: Fixture) -> None:
    """Saying what is wrong with it is not the cache's business."""

    async def fill() -> Reply:
        return Reply(b"[1, 2]")

    cached = await f.get(ANN, fill)
    assert words(cached) == "bypass incomplete"
    assert cached.entry.result == b"[1, 2]"
    assert cached.entry.remaining_ms(f.clock()) == 0


async def test_a_public_result_that_must_not_be_shared(f: Fixture) -> None:
    """C-24: with share_public off it is its caller's own; a caller without a token has none."""
    rules = Rules(share_public=False)
    upstream = Upstream(**PUBLIC)
    assert await f.ask(replace(ANN, rules=rules), upstream) == "miss absent"
    assert await f.ask(replace(ANN, rules=rules), upstream) == "hit hit"
    assert await f.ask(replace(BOB, rules=rules), upstream) == "miss absent"
    assert await f.ask(replace(LISTS, rules=rules), upstream) == "bypass not-shared"


async def test_a_narrowed_upstream_serves_nothing_that_was_shared_before(f: Fixture) -> None:
    """The public arm is not even looked at."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    assert await f.ask(replace(BOB, rules=Rules(share_public=False)), upstream) == "miss absent"
    assert await f.ask(replace(BOB, rules=Rules(scope="private")), upstream) == "hit hit"
    assert number(await f.get(replace(BOB, rules=Rules(scope="private")), upstream)) == 2


async def test_a_floor_keeps_what_its_upstream_did_not(f: Fixture) -> None:
    """min_ttl: for the caller who fetched it, and nobody else."""
    rules = Rules(min_ttl={"tools/list": 60.0})
    upstream = Upstream(ttlMs=0, cacheScope="public")
    assert await f.ask(replace(ANN, rules=rules), upstream) == "miss absent"
    assert await f.ask(replace(ANN, rules=rules), upstream) == "hit hit"
    assert await f.ask(replace(BOB, rules=rules), upstream) == "miss absent"


@pytest.mark.parametrize(
    "error", [McpError(-32602, "unknown cursor"), UpstreamUnavailable(GH, Reason.TIMEOUT)]
)
async def test_an_error_reaches_every_waiter_and_is_not_kept(f: Fixture, error: Exception) -> None:
    """C-03, B51: the next caller asks again."""
    upstream = Upstream(**PRIVATE)
    upstream.error = error
    results = await asyncio.gather(*(f.get(ANN, upstream) for _ in range(5)), return_exceptions=True)
    assert results == [error] * 5
    assert upstream.fetches == 1
    upstream.error = None
    assert await f.ask(ANN, upstream) == "miss absent"
    f.assert_idle()


# Scope changes


async def test_the_latest_answer_decides_the_scope(f: Fixture) -> None:
    """C-20: a private answer takes the public one back, a public one replaces the caller's own."""
    early, late = Upstream(**PRIVATE), Upstream(**PUBLIC)
    early.hold()
    slow = asyncio.create_task(f.get(ANN, early))
    await early.asked.wait()
    assert await f.ask(BOB, late) == "miss absent"
    early.go.set()
    assert words(await slow) == "miss absent"
    assert await f.ask(BOB, Upstream(**PRIVATE)) == "miss absent"

    f.clock.now += 60
    assert await f.ask(ANN, late) == "miss expired"
    assert f.store.held[0] == 2  # the public one and bob's; ann's own is gone
    assert await f.ask(LISTS, late) == "hit hit"


async def test_public_pages_of_a_partly_private_list_are_taken_back(f: Fixture) -> None:
    """C-23: all pages carry one scope; from then on page one is kept for each caller alone."""
    first, second = Upstream(**PUBLIC), Upstream(**PRIVATE)
    page_two = replace(ANN, target="2")
    await f.get(ANN, first)
    await f.get(page_two, second)
    epoch = f.cache.epoch
    await f.cache.purge_public(ANN)
    assert f.cache.epoch > epoch
    assert await f.ask(BOB, first) == "miss generation"
    assert await f.ask(ANN, first) == "miss absent"
    assert await f.ask(BOB, first) == "hit hit"
    assert (await f.get(ANN, first)).entry.scope == "private"
    assert await f.ask(page_two, second) == "hit hit"
    assert await f.ask(LISTS, first) == "bypass anonymous"
    assert await f.ask(replace(ANN, method="prompts/list"), Upstream(**PUBLIC)) == "miss absent"
    assert await f.ask(replace(BOB, method="prompts/list"), Upstream(**PUBLIC)) == "hit hit"

    f.clock.now += 600
    assert await f.ask(ANN, first) == "miss absent"
    assert await f.ask(BOB, first) == "hit hit"


# Invalidation


async def test_a_change_makes_its_list_stale_at_once(f: Fixture) -> None:
    """C-30: all cursors, all profiles, all callers, that upstream."""
    upstream = Upstream(**PRIVATE)
    touched = [ANN, BOB, replace(ANN, target="2"), replace(ANN, profile="ui")]
    untouched = [replace(ANN, method="prompts/list"), replace(ANN, upstream=JIRA)]
    for lookup in touched + untouched:
        await f.get(lookup, upstream)
    epoch = f.cache.epoch
    await f.invalidate(Change(GH, "tools/list"))
    assert f.cache.epoch == epoch + 1
    assert [await f.ask(lookup, upstream) for lookup in touched] == ["miss generation"] * 4
    assert [await f.ask(lookup, upstream) for lookup in untouched] == ["hit hit"] * 2


async def test_an_update_reaches_what_holds_the_uri(f: Fixture) -> None:
    """C-30: reads of it, and reads whose contents include it."""
    read = replace(ANN, method="resources/read", target="file:///dir")
    container = Upstream(**PUBLIC, contents=[{"uri": "x:in/dir", "text": ""}])
    other = Upstream(**PUBLIC, contents=[{"uri": "x:other", "text": ""}])
    await f.get(read, container)
    await f.get(replace(read, target="x:other"), other)
    await f.invalidate(Change(GH, "resources/read", "x:in/dir"))
    assert await f.ask(read, container) == "miss generation"
    assert await f.ask(replace(read, target="x:other"), other) == "hit hit"


async def test_a_fill_begun_before_a_change_is_not_stored(f: Fixture) -> None:
    """C-32: it answers those who asked before, with a ttl of nothing, and nobody after."""
    upstream = Upstream(**PUBLIC)
    upstream.hold()
    early = [asyncio.create_task(f.get(ANN, upstream)) for _ in range(2)]
    await upstream.asked.wait()
    await f.invalidate(Change(GH, "tools/list"))
    upstream.asked.clear()
    late = asyncio.create_task(f.get(ANN, upstream))
    await upstream.asked.wait()
    assert upstream.fetches == 2
    upstream.go.set()
    for task in early:
        cached = await task
        assert (words(cached), number(cached)) == ("bypass generation", 1)
        assert cached.entry.remaining_ms(f.clock()) == 0
    assert (words(await late), number(await late)) == ("miss absent", 2)
    assert number(await f.get(ANN, upstream)) == 2
    f.assert_idle()


async def test_a_read_begun_before_an_update_of_its_contents_is_not_joined(f: Fixture) -> None:
    """What it will hold is not known yet, so any change of its upstream parts early from late."""
    read = replace(ANN, method="resources/read", target="file:///dir")
    upstream = Upstream(**PUBLIC, contents=[{"uri": "x:y", "text": ""}])
    upstream.hold()
    early = asyncio.create_task(f.get(read, upstream))
    await upstream.asked.wait()
    await f.invalidate(Change(GH, "resources/read", "x:y"))
    late = asyncio.create_task(f.get(read, upstream))
    await settle()
    upstream.go.set()
    assert (number(await early), words(await early)) == (1, "bypass generation")
    assert (number(await late), words(await late)) == (2, "miss absent")


async def test_a_change_elsewhere_does_not_spoil_a_fill(f: Fixture) -> None:
    """Only what touches the result counts against storing it."""
    upstream = Upstream(**PUBLIC)
    upstream.hold()
    task = asyncio.create_task(f.get(ANN, upstream))
    await upstream.asked.wait()
    await f.invalidate(Change(GH, "prompts/list"))
    await f.invalidate(Change(JIRA))
    upstream.go.set()
    assert words(await task) == "miss absent"


# Standing in for an upstream that is down (C-33)

DOWN = UpstreamUnavailable(GH, Reason.TIMEOUT)


async def test_an_expired_result_stands_in_while_its_upstream_is_down() -> None:
    """For its own context, as long as the bound says, with a ttl of nothing."""
    f, upstream = Fixture(stale_if_error=300.0), Upstream(**PRIVATE)
    await f.get(ANN, upstream)
    f.clock.now += 60
    upstream.error = DOWN
    cached = await f.get(ANN, upstream)
    assert (words(cached), number(cached)) == ("stale upstream-down", 1)
    assert cached.entry.remaining_ms(f.clock()) == 0
    for lookup in (BOB, LISTS):
        with pytest.raises(UpstreamUnavailable):
            await f.get(lookup, upstream)
    f.clock.now += 299.9
    assert await f.ask(ANN, upstream) == "stale upstream-down"
    f.clock.now += 0.1
    with pytest.raises(UpstreamUnavailable):
        await f.get(ANN, upstream)
    upstream.error = None
    assert await f.ask(ANN, upstream) == "miss absent"
    f.assert_idle()


async def test_a_public_result_stands_in_for_everybody_who_waits() -> None:
    """Each asks once more for himself before he is served from the arm that is his to read."""
    f, upstream = Fixture(stale_if_error=300.0), Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60
    upstream.error = DOWN
    answers = await asyncio.gather(*(f.ask(lookup, upstream) for lookup in (ANN, BOB, LISTS)))
    assert answers == ["stale upstream-down"] * 3
    assert upstream.fetches == 4
    narrowed = replace(BOB, rules=Rules(share_public=False))
    with pytest.raises(UpstreamUnavailable):
        await f.get(narrowed, upstream)


@pytest.mark.parametrize(
    "reason", [Reason.PROTOCOL, Reason.CREDENTIALS, Reason.TOO_LARGE, Reason.ERA, Reason.STOPPING]
)
async def test_nothing_stands_in_for_an_upstream_that_answered(reason: Reason) -> None:
    """Garbage and refusals are answers."""
    f, upstream = Fixture(stale_if_error=300.0), Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60
    upstream.error = UpstreamUnavailable(GH, reason)
    with pytest.raises(UpstreamUnavailable):
        await f.get(ANN, upstream)


@pytest.mark.parametrize(
    ("error", "for_bob"),
    [
        (McpError(-32602, "Resource not found"), False),
        (UpstreamUnavailable(GH, Reason.CREDENTIALS), False),
        (UpstreamUnavailable(GH, Reason.TOKEN), False),
        (Challenge(GH, 401, None, None), True),
    ],
)
@pytest.mark.parametrize("hints", [PUBLIC, PRIVATE])
async def test_what_was_refused_once_never_stands_in(
    error: Exception, for_bob: bool, hints: dict[str, object]
) -> None:
    """Not even when the upstream goes down after that; a challenge was about one caller's credential."""
    f, upstream = Fixture(stale_if_error=300.0), Upstream(**hints)
    await f.get(ANN, upstream)
    if hints is PRIVATE:
        await f.get(BOB, upstream)
        for_bob = True
    f.clock.now += 60
    upstream.error = error
    with pytest.raises(type(error)):
        await f.get(ANN, upstream)
    upstream.error = DOWN
    if hints is PRIVATE:
        with pytest.raises(UpstreamUnavailable):
            await f.get(ANN, upstream)
    if for_bob:
        assert await f.ask(BOB, upstream) == "stale upstream-down"
    else:
        with pytest.raises(UpstreamUnavailable):
            await f.get(BOB, upstream)


@pytest.mark.parametrize("hints", [PUBLIC, PRIVATE])
async def test_nothing_older_than_an_unfinished_answer_stands_in(hints: dict[str, object]) -> None:
    """Who was asked for input is not given, when the upstream goes down after that, what there was before."""
    f, upstream = Fixture(stale_if_error=300.0), Upstream(**hints)
    await f.get(ANN, upstream)
    f.clock.now += 60
    upstream.hints = {"resultType": "input_required"}
    assert await f.ask(ANN, upstream) == "bypass incomplete"
    upstream.error = DOWN
    with pytest.raises(UpstreamUnavailable):
        await f.get(ANN, upstream)


async def test_what_changed_or_was_replaced_never_stands_in() -> None:
    """After an invalidation (C-30), and after a newer answer that must not be kept."""
    f, upstream = Fixture(stale_if_error=300.0), Upstream(**PRIVATE)
    await f.get(ANN, upstream)
    f.clock.now += 60
    await f.invalidate(Change(GH, "tools/list"))
    upstream.error = DOWN
    with pytest.raises(UpstreamUnavailable):
        await f.get(ANN, upstream)

    upstream.error = None
    await f.get(ANN, upstream)
    f.clock.now += 60
    upstream.hints = {"ttlMs": 0}
    assert await f.ask(ANN, upstream) == "bypass ttl"
    upstream.error = DOWN
    with pytest.raises(UpstreamUnavailable):
        await f.get(ANN, upstream)


async def test_what_stands_in_is_looked_up_without_asking_anybody() -> None:
    """A list skips an upstream that is known to be down; what is fresh is then a hit like any other."""
    f, upstream = Fixture(stale_if_error=300.0), Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    assert words(await f.cache.stand_in(BOB, DOWN)) == "hit hit"
    f.clock.now += 60
    assert words(await f.cache.stand_in(BOB, DOWN)) == "stale upstream-down"
    assert upstream.fetches == 1
    text = (await asyncio.to_thread(f.metrics.render)).decode()
    assert 'reason="upstream-down",result="stale",upstream="gh"} 1.0' in text


# Results of calls


async def test_a_calls_result_is_kept_for_the_operators_time_and_never_stands_in() -> None:
    """It has no ttlMs that would tell its age."""
    rules = rules_for_call(Rules(), ttl=60.0, scope="private")
    f, upstream = Fixture(stale_if_error=300.0), Upstream(content=[], ttlMs=5, cacheScope="public")
    call = replace(ANN, method="tools/call", target="{}", rules=rules)
    assert await f.ask(call, upstream) == "miss absent"
    f.clock.now += 59.9
    cached = await f.get(call, upstream)
    assert (words(cached), cached.overrides) == ("hit hit", ("calls",))
    f.clock.now += 0.1
    upstream.error = DOWN
    with pytest.raises(UpstreamUnavailable):
        await f.get(call, upstream)
    text = (await asyncio.to_thread(f.metrics.render)).decode()
    assert 'cache_hints_total{mcp_method_name="tools/call",source="override",upstream="gh"} 1.0' in text


async def test_a_failed_call_is_nobodys_but_its_callers() -> None:
    """isError is an answer to one call: whoever waited makes his own."""
    rules = rules_for_call(Rules(), ttl=60.0, scope="public")
    f, upstream = Fixture(), Upstream(content=[], isError=True)
    call = replace(ANN, method="tools/call", target="{}", rules=rules)
    answers = await asyncio.gather(*(f.get(call, upstream) for _ in range(3)))
    assert sorted(number(cached) for cached in answers) == [1, 2, 3]
    assert {words(cached) for cached in answers} == {"bypass error"}


# Waiting together


async def test_callers_of_one_context_wait_for_one_fetch(f: Fixture) -> None:
    """B51: 200 at once on an entry that just expired, and the first of them leaves."""
    upstream = Upstream(**PRIVATE)
    await f.get(ANN, upstream)
    f.clock.now += 60
    upstream.hold()
    tasks = [asyncio.create_task(f.get(ANN, upstream)) for _ in range(200)]
    await upstream.asked.wait()
    tasks[0].cancel()
    await settle()
    upstream.go.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert {words(cached) for cached in answers[1:] if isinstance(cached, Cached)} == {"miss expired"}
    assert upstream.fetches == 2
    f.assert_idle()


async def test_waiting_never_crosses_contexts(f: Fixture) -> None:
    """C-34: nobody knows yet whether the answer is private."""
    upstream = Upstream(**PRIVATE)
    answers = await asyncio.gather(f.get(ANN, upstream), f.get(BOB, upstream), f.get(ANN, upstream))
    assert [number(cached) for cached in answers] == [1, 2, 1]


async def test_callers_without_a_token_wait_for_the_first_to_learn_the_scope(f: Fixture) -> None:
    """It was private: each of the others fetches for himself, and from then on at once."""
    upstream = Upstream(**PRIVATE)
    answers = await asyncio.gather(*(f.get(LISTS, upstream) for _ in range(3)))
    assert sorted(number(cached) for cached in answers) == [1, 2, 3]
    upstream.hold()
    tasks = [asyncio.create_task(f.get(LISTS, upstream)) for _ in range(3)]
    await settle()
    assert upstream.fetches == 6
    upstream.go.set()
    assert sorted([number(await task) for task in tasks]) == [4, 5, 6]


async def test_a_crowd_without_tokens_at_a_cold_public_list_costs_one_fetch(f: Fixture) -> None:
    """B51: nobody knows that it is public until the first answer says so."""
    upstream = Upstream(**PUBLIC)
    answers = await asyncio.gather(*(f.get(LISTS, upstream) for _ in range(50)))
    assert {number(cached) for cached in answers} == {1}


async def test_callers_of_many_contexts_wait_together_for_what_was_public(f: Fixture) -> None:
    """B51: tokens of their own, one fetch; when it turns out private, one fetch for each token."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    crowd = [ANN, BOB, LISTS, ANN, BOB]
    f.clock.now += 60
    answers = await asyncio.gather(*(f.get(lookup, upstream) for lookup in crowd))
    assert [number(cached) for cached in answers] == [2] * 5
    f.clock.now += 60
    upstream.hints = dict(PRIVATE)
    ann, bob, stranger, ann_again, bob_again = await asyncio.gather(
        *(f.get(lookup, upstream) for lookup in crowd)
    )
    assert number(ann) == number(ann_again) == 3
    assert number(bob) == number(bob_again)
    assert len({number(ann), number(bob), number(stranger)}) == 3
    f.assert_idle()


@pytest.mark.parametrize("error", [Challenge(GH, 401, None, None), McpError(-32603, "not you")])
async def test_a_refusal_of_one_context_is_not_anothers(f: Fixture, error: Exception) -> None:
    """Whoever fetched for all may have been refused for his own credential."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60

    async def refused() -> Reply:
        await asyncio.sleep(0)
        raise error

    ann, bob = await asyncio.gather(f.get(ANN, refused), f.get(BOB, upstream), return_exceptions=True)
    assert ann is error
    assert isinstance(bob, Cached)
    f.assert_idle()


async def test_the_refusal_of_one_costs_the_others_one_fetch(f: Fixture) -> None:
    """B51: the next one asks for all who are left, not each of them at once."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60

    async def refused() -> Reply:
        await asyncio.sleep(0)
        raise McpError(-32603, "not you")

    others = [replace(ANN, partition=Partition(str(number))) for number in range(60)]
    asking = [f.get(ANN, refused), *(f.get(lookup, upstream) for lookup in others)]
    ann, *answers = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(ann, McpError)
    assert {number(cached) for cached in answers if isinstance(cached, Cached)} == {2}
    assert (len(answers), upstream.fetches) == (60, 2)
    f.assert_idle()


async def test_an_upstream_that_fails_for_everybody_is_not_asked_by_everybody(f: Fixture) -> None:
    """The failures of a few different callers are everybody's."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60
    upstream.error = UpstreamUnavailable(GH, Reason.CONNECT)
    others = [replace(ANN, partition=Partition(str(number))) for number in range(200)]
    answers = await asyncio.gather(*(f.get(lookup, upstream) for lookup in others), return_exceptions=True)
    assert answers == [upstream.error] * 200
    assert upstream.fetches - 1 <= 6
    f.assert_idle()


async def test_the_failure_of_one_is_not_the_others(f: Fixture) -> None:
    """An upstream may hang, or break, for one credential only."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60

    async def late() -> Reply:
        await asyncio.sleep(0)
        raise UpstreamUnavailable(GH, Reason.TIMEOUT)

    ann, bob, nobody = await asyncio.gather(
        f.get(ANN, late), f.get(BOB, upstream), f.get(LISTS, upstream), return_exceptions=True
    )
    assert isinstance(ann, UpstreamUnavailable)
    assert isinstance(bob, Cached)
    assert isinstance(nobody, Cached)
    assert upstream.fetches == 2


async def test_one_for_whom_the_upstream_hangs_delays_the_others_by_one_bound(f: Fixture) -> None:
    """The next one asks then, for everybody, and he who hangs has that answer as well."""
    upstream, hanging = Upstream(**PUBLIC), Upstream()
    await f.get(ANN, upstream)
    f.clock.now += 60
    hanging.hold()
    slow = asyncio.create_task(f.get(ANN, hanging))
    await hanging.asked.wait()
    waiting = [asyncio.create_task(f.get(lookup, upstream)) for lookup in [BOB, LISTS] * 20 for _ in range(2)]
    await settle()
    assert upstream.fetches == 1
    f.timers.ring()
    answers = await asyncio.gather(slow, *waiting)
    assert {number(cached) for cached in answers} == {2}
    assert (upstream.fetches, hanging.fetches) == (2, 1)
    f.assert_idle()
    await settle()
    assert repr(f.background) == "<Background []>"


async def test_a_slow_upstream_costs_callers_with_tokens_a_few_fetches(f: Fixture) -> None:
    """Two bounds: one more than at once, then two; nobody is asked to wait again for what has come."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60
    upstream.hold()
    crowd = [replace(ANN, partition=Partition(str(number))) for number in range(200)]
    tasks = [asyncio.create_task(f.get(lookup, upstream)) for lookup in crowd]
    fetches = []
    for _ in range(5):
        await settle()
        fetches.append(upstream.fetches - 1)
        f.timers.ring()
    assert fetches == [1, 2, 4, 7, 11]
    upstream.go.set()
    assert len({number(await task) for task in tasks}) == 1
    f.assert_idle()


@pytest.mark.parametrize("lookup", [LISTS, ANN])
async def test_who_would_fare_no_better_keeps_waiting(f: Fixture, lookup: Lookup) -> None:
    """B51: 200 callers of one context, an upstream that takes five bounds, one fetch."""
    upstream = Upstream(**PUBLIC)
    upstream.hold()
    tasks = [asyncio.create_task(f.get(lookup, upstream)) for _ in range(200)]
    for _ in range(5):
        await settle()
        f.timers.ring()
    await settle()
    assert upstream.fetches == 1
    upstream.go.set()
    assert {number(await task) for task in tasks} == {1}
    f.assert_idle()


@pytest.mark.parametrize("lookup", [LISTS, ANN])
async def test_who_waits_is_served_what_another_has_stored(f: Fixture, lookup: Lookup) -> None:
    """A bound later they look again: another replica's caller may have had more luck."""
    upstream = Upstream(**PUBLIC)
    upstream.hold()
    tasks = [asyncio.create_task(f.get(lookup, upstream)) for _ in range(20)]
    await upstream.asked.wait()
    other = Fixture()
    there = (await other.get(LISTS, Upstream(**PUBLIC, other=True))).entry
    await f.store.put(public_key(LISTS), there)
    f.timers.ring()
    assert [(await task).entry for task in tasks] == [there] * 20
    assert upstream.fetches == 1
    f.assert_idle()


async def test_another_callers_private_answer_never_ends_the_waiting(f: Fixture) -> None:
    """C-34: bob's turns out private while ann's hangs; she waits for hers, the others fetch theirs."""
    upstream, hanging = Upstream(**PUBLIC), Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60
    hanging.hold()
    upstream.hints = dict(PRIVATE)
    ann = asyncio.create_task(f.get(ANN, hanging))
    await hanging.asked.wait()
    bob, cid = (
        asyncio.create_task(f.get(replace(ANN, partition=Partition(name)), upstream)) for name in ("bob", "c")
    )
    await settle()
    f.timers.ring()
    assert {number(await bob), number(await cid)} == {2, 3}
    assert not ann.done()
    hanging.go.set()
    assert (await ann).entry.scope == "public"
    f.assert_idle()


async def test_callers_without_a_token_wait_together_for_what_was_public(f: Fixture) -> None:
    """B51 for open deployments: a public list that just expired is fetched once."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    f.clock.now += 60
    answers = await asyncio.gather(*(f.get(LISTS, upstream) for _ in range(50)))
    assert {number(cached) for cached in answers} == {2}
    assert upstream.fetches == 2


async def test_what_turns_out_private_goes_to_the_one_who_fetched_it(f: Fixture) -> None:
    """They waited for a public answer; each of the others then fetches his own."""
    upstream = Upstream(**PUBLIC)
    await f.get(LISTS, upstream)
    f.clock.now += 60
    upstream.hints = dict(PRIVATE)
    answers = await asyncio.gather(*(f.get(LISTS, upstream) for _ in range(5)))
    assert sorted(number(cached) for cached in answers) == [2, 3, 4, 5, 6]
    f.assert_idle()


async def test_an_unfinished_answer_goes_to_one_caller(f: Fixture) -> None:
    """C-03: it asks one caller for input; the others get asked for themselves."""
    upstream = Upstream(resultType="input_required")
    answers = await asyncio.gather(*(f.get(ANN, upstream) for _ in range(3)))
    assert sorted(number(cached) for cached in answers) == [1, 2, 3]


async def test_a_read_without_a_ttl_is_never_older_than_its_request(f: Fixture) -> None:
    """Somebody may have written after the first reader asked; from then on nobody waits for another."""
    read = replace(ANN, method="resources/read", target="file:///a")
    upstream = Upstream(ttlMs=0, cacheScope="private")
    answers = await asyncio.gather(*(f.get(read, upstream) for _ in range(3)))
    assert sorted(number(cached) for cached in answers) == [1, 2, 3]
    upstream.hold()
    tasks = [asyncio.create_task(f.get(read, upstream)) for _ in range(3)]
    await settle()
    assert upstream.fetches == 6
    upstream.go.set()
    await asyncio.gather(*tasks)


async def test_leaving_at_any_moment_leaves_nothing_behind() -> None:
    """One of three callers is cancelled at every step of the way, or all of them."""
    for leaving in (1, 3):
        for after in range(15):
            f, upstream = Fixture(), Upstream(**PRIVATE)
            tasks = [asyncio.create_task(f.get(ANN, upstream)) for _ in range(3)]
            for _ in range(after):
                await asyncio.sleep(0)
            for task in tasks[:leaving]:
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, Cached) for one in answers[leaving:])
            assert upstream.fetches <= 1
            f.assert_idle()
            await settle()
            assert repr(f.background) == "<Background []>"


async def test_waiting_callers_learn_that_the_gateway_stops(f: Fixture) -> None:
    """In the words of every other failure of an upstream."""
    upstream = Upstream(**PRIVATE)
    upstream.hold()
    task = asyncio.create_task(f.get(ANN, upstream))
    await upstream.asked.wait()
    await f.background.close(1)
    with pytest.raises(UpstreamUnavailable) as stopped:
        await task
    assert stopped.value.reason is Reason.STOPPING


# Counting


async def test_every_answer_is_counted_once(f: Fixture) -> None:
    """By upstream, method, result and reason."""
    upstream = Upstream(**PUBLIC)
    await f.get(ANN, upstream)
    await f.get(ANN, upstream)
    await f.invalidate(Change(GH, "tools/list"))
    text = (await asyncio.to_thread(f.metrics.render)).decode()  # it reads /proc
    count = (
        "mcp_gateway_cache_lookups_total"
        '{mcp_method_name="tools/list",reason="%s",result="%s",upstream="gh"} 1.0'
    )
    assert count % ("absent", "miss") in text
    assert 'result="hit",upstream="gh"} 1.0' in text
    assert "mcp_gateway_cache_entries 1.0" in text
    assert 'mcp_gateway_cache_invalidations_total{cause="list_changed",upstream="gh"} 1.0' in text


def test_the_cache_says_what_it_holds(f: Fixture) -> None:
    """A repr worth reading in a failing test."""
    assert repr(f.cache) == (
        "<ResponseCache epoch 0 <MemoryStore 0 entries, 0 of 1048576 bytes> "
        "<MemoryGenerations []> <SingleFlight []>>"
    )
