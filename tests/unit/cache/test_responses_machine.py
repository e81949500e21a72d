"""The response cache against a dict: any interleaving of callers, answers, changes and time.

The model is told what each fetch brought and keeps, per caller and for everybody, which fetch may be served.
The cache must then answer from exactly that fetch, and whatever it hands to whom must be lawful.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.cache.flight import SingleFlight
from gateway.cache.policy import Lookup, Rules
from gateway.cache.responses import Cached, ResponseCache
from gateway.cache.stores import MemoryGenerations, MemoryStore
from gateway.protocol.call import (
    MODERN_VERSION,
    Change,
    Partition,
    Reason,
    Reply,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import McpError, encode, value
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from tests.unit.cache.clock import Clock

GH = UpstreamName("gh")
CALLERS = (None, "ann", "bob")
QUESTIONS = (
    (("tools/list", None), ("tools/list", "")),
    (("resources/list", None), ("resources/templates/list", None)),
    (("resources/read", "m:a"), ("resources/read", "m:a/b")),
)
"""One pair is asked in each run: what a run knows of it is soon enough to go wrong."""
URIS = ("m:a", "m:a/b", "m:c")
CHANGES = (
    (Change(GH), Change(GH, "tools/list"), Change(GH, "resources/list"), "tools/list"),
    (Change(GH), Change(GH, "resources/list"), Change(GH, "resources/templates/list"), "resources/list"),
    (Change(GH, "resources/list"), *(Change(GH, "resources/read", uri) for uri in URIS)),
)
"""What may be announced in such a run; a word takes back the public pages of that list."""
TTLS = (0.0, 10.0, 40.0, 40.0, 70.0)
RULES = (
    Rules(),
    Rules(single_tenant=True),
    Rules(share_public=False),
    Rules(scope="public"),
    Rules(scope="private"),
    Rules(min_ttl={"tools/list": 30.0}, max_ttl=50.0),
)
PLENTY, SCARCE = 2**24, 4000
NUMBERS = b',"n":[1.0,1,1e2,-0,9007199254740993,18446744073709551616,0.1000000000000000055511151231257827]}'
"""The end of every result: what a parser would spell anew."""

BOUNDS = (0.0, 0.0, 20.0, 600.0)
"""How long a result may stand in for an upstream that is down."""

ANSWERS: Mapping[str, st.SearchStrategy[Any]] = {
    "ttl": st.sampled_from(TTLS),
    "scope": st.sampled_from(["public", "public", "private", "private", None]),
    "complete": st.sampled_from([True] * 7 + [False]),
    "uris": st.frozensets(st.sampled_from(URIS), max_size=2),
    "size": st.sampled_from([10, 10, 1000, 5000]),
}
Question = tuple[str, str | None]


@dataclass(eq=False)
class Waiter:
    """A caller who asked, how many changes had been announced by then, and of which replica."""

    caller: str | None
    question: Question
    changes: int
    at: int = 0
    task: asyncio.Task[Cached] = field(init=False)


@dataclass(eq=False)
class Fetch:
    """One question that went upstream, on behalf of `leader`, and what it brought in the end."""

    number: int
    leader: Waiter
    changes: int
    reply: asyncio.Future[Reply]
    raw: bytes = b""
    received: float = 0.0
    ttl: float = 0.0
    scope: str = "private"
    complete: bool = True
    uris: frozenset[str] = frozenset()


class CacheMachine(RuleBasedStateMachine):
    """Drives one cache and one dict side by side."""

    @initialize(
        kind=st.integers(0, len(QUESTIONS) - 1),
        rules=st.sampled_from(RULES),
        max_bytes=st.sampled_from([PLENTY, PLENTY, SCARCE]),
        bound=st.sampled_from(BOUNDS),
    )
    def begin(self, kind: int, rules: Rules, max_bytes: int, bound: float) -> None:
        self.questions, self.announceable = QUESTIONS[kind], CHANGES[kind]
        self.loop = asyncio.new_event_loop()
        self.reported: list[dict[str, object]] = []
        self.loop.set_exception_handler(lambda _, context: self.reported.append(context))
        self.clock = Clock()
        self.background = Background()
        self.store = MemoryStore(max_bytes, self.clock, linger=bound)
        self.bound = bound
        self.flight = SingleFlight(self.background)
        self.cache = ResponseCache(
            self.store, MemoryGenerations(), self.flight, Metrics(), self.clock, stale_if_error=bound
        )
        self.rules = rules
        self.changes: list[Change | str] = []
        """What was announced so far; a word is a list whose public pages were taken back."""
        self.private_until: dict[str, float] = {}
        self.fetches: list[Fetch] = []
        self.open: list[Fetch] = []
        self.waiting: list[Waiter] = []
        self.model: dict[tuple[str | None, Question], Fetch] = {}
        """(owner, question) -> what may be served; the owner of what is public is `everybody`."""

    # What happens

    @rule(caller=st.sampled_from(CALLERS), which=st.integers(0, 1))
    def ask(self, caller: str | None, which: int) -> None:
        question = self.questions[which]
        expected = self.servable(caller, question)
        begun = len(self.fetches)
        waiter = Waiter(caller, question, len(self.changes))
        self.start(waiter, self.cache)
        self.settle()
        if waiter.task.done():
            assert waiter.task.result().source == "hit"
            assert len(self.fetches) == begun
        if self.store.largest == PLENTY:  # else either arm may have had to make room
            served = self.fetched(waiter.task.result()) if waiter.task.done() else None
            assert served is expected
        self.collect()

    @rule(which=st.integers(0, 1))
    def ask_all_at_once(self, which: int) -> None:
        for caller in CALLERS:
            self.ask(caller, which)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), **ANSWERS)
    def answer(
        self, which: int, ttl: float, scope: str | None, complete: bool, uris: frozenset[str], size: int
    ) -> None:
        fetch = self.open.pop(which % len(self.open))
        result: dict[str, object] = {"number": fetch.number, "ttlMs": int(ttl * 1000), "pad": "x" * size}
        if scope is not None:
            result["cacheScope"] = scope
        if not complete:
            result["resultType"] = "input_required"
        result["contents"] = [{"uri": uri} for uri in uris]
        self.learn(fetch, ttl, scope, complete, uris)
        fetch.raw = encode(result)[:-1] + NUMBERS
        fetch.reply.set_result(Reply(fetch.raw))
        self.settle()
        self.collect()

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), refused=st.booleans())
    def fail(self, which: int, refused: bool) -> None:
        fetch = self.open.pop(which % len(self.open))
        number = str(fetch.number)
        if refused:  # what was kept before must not stand in after that
            for owner in (self.context(fetch.leader.caller), "everybody"):
                kept = self.model.get((owner, fetch.leader.question))
                if kept is not None and self.clock.now >= kept.received + kept.ttl and self.bound:
                    del self.model[owner, fetch.leader.question]
        error = McpError(-32602, number) if refused else UpstreamUnavailable(GH, Reason.TIMEOUT, number)
        fetch.reply.set_exception(error)
        self.settle()
        self.collect()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 99))
    def leave(self, which: int) -> None:
        waiter = self.waiting.pop(which % len(self.waiting))
        waiter.task.cancel()
        self.settle()
        assert waiter.task.cancelled()
        self.open = [fetch for fetch in self.open if not fetch.reply.cancelled()]
        wanted = {waiter.question for waiter in self.waiting}
        assert {fetch.leader.question for fetch in self.open} <= wanted

    @rule(seconds=st.sampled_from([5.0, 10.0, 30.0, 600.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(which=st.integers(0, 3))
    def change(self, which: int) -> None:
        epoch, change = self.cache.epoch, self.announceable[which]
        if isinstance(change, str):
            lookup = self.lookup(None, (change, None))
            self.loop.run_until_complete(self.cache.purge_public(lookup))
            self.private_until[change] = self.clock.now + 600.0
        else:
            self.loop.run_until_complete(self.cache.invalidate(change))
        assert self.cache.epoch > epoch
        self.changes.append(change)

    # What holds at any time

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.store.held[1] <= self.store.largest

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        assert bool(self.waiting) == bool(self.open)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for waiter in self.waiting:
            waiter.task.cancel()
        self.settle()
        try:
            assert repr(self.flight) == "<SingleFlight []>"
            assert repr(self.background) == "<Background []>"
            assert self.reported == []
        finally:
            self.loop.close()

    # The model

    def context(self, caller: str | None) -> str | None:
        return "all" if caller is None and self.rules.single_tenant else caller

    def servable(self, caller: str | None, question: Question) -> Fetch | None:
        """Return what the cache has to answer with, if it has anything."""
        owners = [self.context(caller)] if self.context(caller) is not None else []
        for owner in [*owners, "everybody"]:
            fetch = self.model.get((owner, question))
            if fetch is not None and self.fresh(fetch):
                return fetch
        return None

    def fresh(self, fetch: Fetch) -> bool:
        """Whether its ttl lasts, and no change came since it was begun."""
        return self.clock.now < fetch.received + fetch.ttl and not self.touched(fetch, fetch.changes)

    def distrusted(self, fetch: Fetch) -> bool:
        """Whether a page of this list turned out private a short while ago."""
        return self.clock.now < self.private_until.get(fetch.leader.question[0], 0.0)

    def standing_in(self, waiter: Waiter) -> list[Fetch]:
        """Return what may be served to this caller while the upstream is down."""
        owners = [self.context(waiter.caller)] if self.context(waiter.caller) is not None else []
        if self.rules.share_public and self.rules.scope != "private":
            owners.append("everybody")
        kept = [self.model.get((owner, waiter.question)) for owner in owners if self.bound]
        return [
            fetch
            for fetch in kept
            if fetch is not None
            and self.clock.now < fetch.received + fetch.ttl + self.bound
            and not self.touched(fetch, fetch.changes)
        ]

    def touched(self, fetch: Fetch, since: int, until: int | None = None) -> bool:
        """Whether a change announced in between makes this result stale."""
        return any(self.touches(change, fetch) for change in self.changes[since:until])

    def touches(self, change: Change | str, fetch: Fetch) -> bool:
        method, target = fetch.leader.question
        if isinstance(change, str):
            return change == method and fetch.scope == "public"
        if change.uri is not None:
            meant = {change.uri, "m:a"} if change.uri == "m:a/b" else {change.uri}
            return method == "resources/read" and not meant.isdisjoint({target, *fetch.uris})
        if change.method is None:
            return True
        return method == change.method or (method, change.method) == (
            "resources/templates/list",
            "resources/list",
        )

    def learn(
        self, fetch: Fetch, ttl: float, scope: str | None, complete: bool, uris: frozenset[str]
    ) -> None:
        """Note what a fetch brings, and what of it may be served from now on."""
        method, _ = question = fetch.leader.question
        floor = self.rules.min_ttl.get(method, 0.0)
        fetch.received, fetch.complete, fetch.uris = self.clock.now, complete, uris
        fetch.ttl = min(max(ttl, floor), self.rules.max_ttl)
        public = (self.rules.scope or scope) == "public" and self.rules.share_public
        by_floor_alone = ttl == 0.0 < fetch.ttl and self.rules.scope is None
        trusted = not by_floor_alone and not self.distrusted(fetch)
        fetch.scope = "public" if public and trusted else "private"
        if not complete or self.touched(fetch, fetch.changes):
            return
        own, everybody = (self.context(fetch.leader.caller), question), ("everybody", question)
        self.model.pop(own if fetch.scope == "public" else everybody, None)
        self.model.pop(everybody if fetch.scope == "public" else own, None)
        if fetch.ttl > 0.0 and (fetch.scope == "public" or own[0] is not None):
            self.model[everybody if fetch.scope == "public" else own] = fetch

    # What a caller may be handed

    def collect(self) -> None:
        for waiter in [waiter for waiter in self.waiting if waiter.task.done()]:
            self.waiting.remove(waiter)
            error = waiter.task.exception()
            if error is None:
                self.check(waiter, waiter.task.result())
            elif isinstance(error, McpError):
                refused = self.fetches[int(error.message)].leader
                assert (
                    refused.caller == waiter.caller
                )  # alike to the upstream, be it that neither has a token
                assert refused.question == waiter.question
            else:
                assert isinstance(error, UpstreamUnavailable)
                if self.store.largest == PLENTY:
                    assert self.standing_in(waiter) == []
                assert self.fetches[int(error.detail)].leader.question == waiter.question

    def same_context(self, one: Waiter, other: Waiter) -> bool:
        return self.context(one.caller) == self.context(other.caller) is not None

    def check(self, waiter: Waiter, cached: Cached) -> None:
        fetch = self.fetched(cached)
        own = fetch.leader is waiter
        assert fetch.leader.question == waiter.question
        assert cached.entry.result == fetch.raw
        if fetch.scope == "private" or not fetch.complete:
            assert own or self.same_context(fetch.leader, waiter)
        assert own or fetch.complete
        assert not self.touched(fetch, fetch.changes, waiter.changes)
        remaining = cached.entry.remaining_ms(self.clock_of(waiter)())
        assert remaining <= max(0.0, fetch.received + fetch.ttl - self.clock.now) * 1000
        if cached.source == "hit":
            assert self.fresh(fetch)
            assert fetch.complete
        elif cached.source == "stale":
            assert remaining == 0
            assert self.clock.now < fetch.received + fetch.ttl + self.bound
            assert not self.touched(fetch, fetch.changes)
            self.check_stale(waiter, fetch)
        elif waiter.question[0] == "resources/read" and fetch.ttl == 0.0:
            assert own
        if self.touched(fetch, fetch.changes):
            assert cached.source == "bypass"
            assert cached.entry.ttl == 0.0

    def check_stale(self, waiter: Waiter, fetch: Fetch) -> None:
        assert self.store.largest != PLENTY or fetch in self.standing_in(waiter)

    # Plumbing

    def clock_of(self, waiter: Waiter) -> Clock:
        return self.clock

    def lookup(self, caller: str | None, question: Question) -> Lookup:
        method, target = question
        partition = None if caller is None else Partition(caller)
        return Lookup(GH, "s", method, target, "p", MODERN_VERSION, partition, self.rules)

    def start(self, waiter: Waiter, cache: ResponseCache) -> None:
        lookup = self.lookup(waiter.caller, waiter.question)
        waiter.task = self.loop.create_task(cache.get(lookup, lambda: self.fetch(waiter)))
        self.waiting.append(waiter)

    async def fetch(self, waiter: Waiter) -> Reply:
        fetch = Fetch(len(self.fetches), waiter, len(self.changes), self.loop.create_future())
        self.fetches.append(fetch)
        self.open.append(fetch)
        return await fetch.reply

    def fetched(self, cached: Cached) -> Fetch:
        return self.fetches[value(cached.entry.result)["number"]]

    def settle(self) -> None:
        async def steps() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(steps())


TestCacheMachine = pytest.mark.timeout(400)(CacheMachine.TestCase)  # a failure is shortened for 5 minutes
TestCacheMachine.settings = settings(max_examples=100, stateful_step_count=50)


def test_the_machine_can_tell_a_stale_hit() -> None:
    """The model itself is tested: a change it knows of must make its own entry unservable."""
    machine = CacheMachine()
    machine.begin(0, Rules(), PLENTY, 0.0)
    machine.ask("ann", 0)
    machine.answer(0, 40.0, "public", True, frozenset(), 10)
    assert machine.servable("bob", ("tools/list", None)) is machine.fetches[0]
    machine.change(1)
    assert machine.servable("bob", ("tools/list", None)) is None
    machine.teardown()
