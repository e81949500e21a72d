"""Two replicas on a real Redis against the model of the response cache: any interleaving, and any trouble.

The model is that of the single cache, with what only replicas have: a result is lawful wherever it was
fetched, as long as it is public or Redis holds private ones too; and what was kept while nothing was wrong
must be found again. Time passes for Redis by taking it from the lives of its keys, since its own clock
cannot be set. Trouble may cost hits, never a right answer, and is over by itself.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from gateway.cache.policy import Rules
from gateway.cache.responses import Cached
from gateway.protocol.call import Change, Reply
from gateway.protocol.jsonrpc import encode
from tests.support.redis import RedisServer, redis_server
from tests.support.replicas import Replica, replica
from tests.unit.cache.clock import Clock
from tests.unit.cache.test_responses_machine import (
    ANSWERS,
    CALLERS,
    CHANGES,
    GH,
    PLENTY,
    QUESTIONS,
    RULES,
    CacheMachine,
    Fetch,
    Question,
    Waiter,
)

REPLICAS = (0, 1)
LEASE = 0.3
PROBE = "prompts/list"
Owner = tuple[str | None, Question]

# Time passes for what lies in Redis, and for nothing else there: leases go by clocks that no test sets.
AGE = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('TYPE', key).ok == 'hash' and redis.call('HEXISTS', key, 'v') == 1 then
    redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[1])
  end
end
"""
SPOIL = """
local entries, counts, members = {}, {}, {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = string.match(key, ':(%a+)$')
  kind = kind == 'changes' and counts or (kind == 'replicas' or kind == 'told') and members or entries
  table.insert(kind, key)
end
table.sort(entries)
local how, value = ARGV[1], ARGV[2]
if how == 'entries' then for _, key in ipairs(entries) do redis.call('SET', key, value) end end
if how == 'values' then for _, key in ipairs(entries) do redis.pcall('HSET', key, 'v', value) end end
if how == 'swapped' and #entries > 1 then
  redis.call('RENAME', entries[1], 'spare')
  redis.call('RENAME', entries[2], entries[1])
  redis.call('RENAME', 'spare', entries[2])
end
if how == 'counts' then for _, key in ipairs(counts) do redis.call('SET', key, value) end end
if how == 'count' or how == 'floor' then
  for _, key in ipairs(counts) do redis.pcall('HSET', key, how == 'count' and 'n' or 'f', value) end
end
if how == 'topics' then
  for _, key in ipairs(counts) do
    for _, field in ipairs(redis.pcall('HKEYS', key)) do
      if #field == 16 then redis.pcall('HSET', key, field, value) end
    end
  end
end
if how == 'members' then for _, key in ipairs(members) do redis.call('SET', key, value) end end
"""
TROUBLES = [
    ("flush", ""),
    *product(["cut"], ["0", "1", ""]),
    ("entries", "x"),
    ("values", "x"),
    *[("swapped", "")] * 4,
    ("counts", "x"),
    *product(["count", "floor", "topics"], ["x", "nan", "inf", "1e17", "9007199254740993"]),
    ("members", "x"),
]


class RedisMachine(CacheMachine):
    """Drives two caches on one Redis and the model side by side."""

    server: ClassVar[RedisServer]
    shared_loop: ClassVar[asyncio.AbstractEventLoop]

    @initialize(
        kind=st.integers(0, len(QUESTIONS) - 1),
        rules=st.sampled_from(RULES),
        bound=st.sampled_from([0.0, 0.0, 600.0]),
        private_in_redis=st.booleans(),
    )
    def begin(self, kind: int, rules: Rules, bound: float, private_in_redis: bool) -> None:
        self.questions, self.announceable = QUESTIONS[kind], CHANGES[kind]
        self.loop = self.shared_loop
        self.reported: list[dict[str, object]] = []
        self.loop.set_exception_handler(lambda _, context: self.reported.append(context))
        self.rules, self.bound, self.private_in_redis = rules, bound, private_in_redis
        self.stack = AsyncExitStack()
        self.replicas: list[Replica] = []
        self.must: list[dict[Owner, Fetch]] = [{}, {}]
        """What each replica has to find again."""
        self.ended, self.sessions = time.monotonic(), (-1, -1)
        self.undisturbed: set[Fetch] = set()
        """What is being fetched since nothing was wrong."""
        self.do(self.server.ask("FLUSHALL"))
        self.do(self.link_up())
        self.clock = Clock()
        self.store, self.cache = self.replicas[0].memory, self.replicas[0].cache
        self.changes: list[Change | str] = []
        self.private_for_a_while: dict[tuple[int, str], float] = {}
        self.private_until: dict[str, float] = {}
        self.fetches: list[Fetch] = []
        self.open: list[Fetch] = []
        self.waiting: list[Waiter] = []
        self.model: dict[Owner, Fetch] = {}
        self.refused: dict[tuple[int, Owner], list[Fetch]] = {}
        """What had expired at a replica when its upstream refused to give it again."""
        self.calm = True
        self.slow = False
        self.probes = 0

    async def link_up(self) -> None:
        for _ in REPLICAS:
            entered = replica(
                self.server,
                private_in_redis=self.private_in_redis,
                lease=LEASE,
                stale_if_error=self.bound,
                coalesce=0.0,  # who waits for whom among replicas is test_redis_storms's matter
            )
            self.replicas.append(await self.stack.enter_async_context(entered))

    # What happens

    @rule(caller=st.sampled_from(CALLERS), which=st.integers(0, 1), at=st.sampled_from(REPLICAS))
    def ask(self, caller: str | None, which: int, at: int) -> None:
        question, begun = self.questions[which], len(self.fetches)
        # Who finds others waiting for the same waits with them, before looking into Redis.
        joins = any(fetch.leader.at == at and fetch.leader.question == question for fetch in self.open)
        kept = not joins and self.found_again(caller, question, at)
        waiter = Waiter(caller, question, len(self.changes), at)
        self.start(waiter, self.replicas[at].cache)
        self.settle()
        if waiter.task.done():
            assert waiter.task.result().source == "hit"
            assert len(self.fetches) == begun
        elif self.steady:
            assert not kept
        self.collect()

    @rule(
        caller=st.sampled_from(CALLERS),
        which=st.integers(0, 1),
        at=st.sampled_from(REPLICAS),
        ttl=st.sampled_from([40.0, 70.0]),
        scope=st.sampled_from(["public", "private"]),
        then=st.sampled_from([(), (), (0, 1), (1, 0)]),
    )
    def serve(
        self, caller: str | None, which: int, at: int, ttl: float, scope: str, then: tuple[int, ...]
    ) -> None:
        """One request from its question to its answer, and then perhaps everybody asks for the same."""
        self.ask(caller, which, at)
        self.answer_since(0, ttl, scope)
        for each in then:
            self.ask_all_at_once(which, each)

    @rule(which=st.integers(0, 1), at=st.sampled_from(REPLICAS))
    def ask_all_at_once(self, which: int, at: int) -> None:
        for caller in CALLERS:
            self.ask(caller, which, at)

    def answer_since(self, begun: int, ttl: float, scope: str) -> None:
        """Answer all that is being fetched since then, and what is fetched because of these answers."""
        while fetches := [index for index, fetch in enumerate(self.open) if fetch.number >= begun]:
            self.answer(fetches[0], ttl=ttl, scope=scope, complete=True, uris=frozenset(), size=10)

    @rule(
        caller=st.sampled_from(CALLERS[1:]),
        which=st.integers(0, 1),
        scope=st.sampled_from(["public", "private"]),
    )
    def burst(self, caller: str, which: int, scope: str) -> None:
        """Ten of the same at each replica cost at most one fetch there."""
        question, begun = self.questions[which], len(self.fetches)
        if any(fetch.leader.question == question for fetch in self.open):
            return
        for number in range(20):
            self.start(
                Waiter(caller, question, len(self.changes), number % 2), self.replicas[number % 2].cache
            )
        self.settle()
        self.collect()
        self.answer_since(begun, 70.0, scope)
        if self.calm and all(self.shareable_before(caller, question, at, begun) for at in REPLICAS):
            for at in REPLICAS:
                assert sum(fetch.leader.at == at for fetch in self.fetches[begun:]) <= 1

    def shareable_before(self, caller: str, question: Question, at: int, begun: int) -> bool:
        """Whether what these callers asked last at a replica was something that all of them might have."""
        return all(
            fetch.complete and fetch.ttl > 0.0
            for fetch in self.fetches[:begun]
            if fetch.leader.question == question and fetch.leader.at == at and fetch.leader.caller == caller
        )

    # Which rules apply may depend on how fast a link is back. So all may be drawn at any time, that the same
    # seed draws the same; those that do not apply do nothing.

    @rule(which=st.integers(0, 99), **ANSWERS)
    def answer(self, which: int, **members: Any) -> None:
        if self.open:
            super().answer(which, **members)

    @rule(which=st.integers(0, 99))
    def leave(self, which: int) -> None:
        if self.waiting:
            super().leave(which)

    @rule(which=st.integers(0, 99), refused=st.booleans())
    def fail(self, which: int, refused: bool) -> None:
        if not self.open:
            return
        fetch = self.open[which % len(self.open)]
        if refused:
            leader = fetch.leader
            for owner in (self.context(leader.caller), "everybody"):
                late = [
                    kept for kept in self.fetches if kept.raw and self.clock.now >= kept.received + kept.ttl
                ]
                self.refused.setdefault((leader.at, (owner, leader.question)), []).extend(late)
        super().fail(which, refused)

    @rule(seconds=st.sampled_from([5.0, 10.0, 30.0, 600.0]), ahead=st.sampled_from([None, None, 0, 1]))
    def pass_time(self, seconds: float, ahead: int | None) -> None:
        """For all, or on one clock only: then what that replica alone holds ends early."""
        if ahead is not None:
            self.replicas[ahead].clock.now += seconds
            if not self.private_in_redis:
                kept = self.must[ahead]
                self.must[ahead] = {key: kept[key] for key in kept if key[0] == "everybody"}
            return
        self.clock.now += seconds
        for one in self.replicas:
            one.clock.now += seconds
        self.do(self.server.ask("EVAL", AGE, 0, int(seconds * 1000)))

    @rule(which=st.integers(0, 3), at=st.sampled_from(REPLICAS))
    def change(self, which: int, at: int) -> None:
        one, change = self.replicas[at], self.announceable[which]
        epochs = [one.cache.epoch for one in self.replicas]
        if isinstance(change, str):
            self.do(one.cache.purge_public(self.lookup(None, (change, None))))
            self.private_for_a_while[at, change] = one.clock.now + 600.0
        else:
            self.do(one.cache.invalidate(change))
        self.do(one.cache.told(GH))
        assert all(one.cache.epoch > epoch for one, epoch in zip(self.replicas, epochs, strict=True))
        self.changes.append(change)

    # Trouble

    @rule(how=st.sampled_from(TROUBLES))
    def trouble(self, how: tuple[str, str]) -> None:
        # After these a change takes a lease to be told: one of them in a run is enough.
        if how[0] in ("flush", "cut", "members"):
            if self.slow:
                return
            self.slow = True
        self.do(self.make(*how))
        self.calm = False
        self.disturbed()

    async def make(self, how: str, value: str) -> None:
        if how == "flush":
            await self.server.ask("FLUSHALL")
        elif how == "cut":
            links = (await self.server.ask("CLIENT", "LIST", "TYPE", "pubsub")).decode().splitlines()
            for line in links[int(value) :][:1] if value else links:
                await self.server.ask("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id="))
        else:
            await self.server.ask("EVAL", SPOIL, 0, how, value)

    @rule()
    def recover(self) -> None:
        """Nobody does anything about it: links come back, and what is fetched is kept again."""
        if self.calm:
            return
        self.do(self.until_it_is_over())
        self.calm = True

    def disturbed(self) -> None:
        """Expect nothing of what was kept so far, or is being fetched, to be found again."""
        self.must = [{}, {}]
        self.undisturbed.clear()

    async def until_it_is_over(self) -> None:
        async def fill() -> Reply:
            return Reply(encode({"ttlMs": 60_000, "cacheScope": "public"}))

        for one in self.replicas:
            kept = ""
            while kept != "hit hit":
                self.probes += 1  # a question that nobody has asked yet
                probe = replace(self.lookup(None, (PROBE, str(self.probes))), rules=Rules())
                await one.ask(probe, fill)
                kept = await one.ask(probe, fill)
                await asyncio.sleep(0 if kept == "hit hit" else 0.005)

    # What holds at any time

    @invariant()
    def memory_is_bounded(self) -> None:
        assert all(one.memory.held[1] <= PLENTY for one in self.replicas)

    def teardown(self) -> None:
        if not hasattr(self, "replicas"):
            return
        for waiter in self.waiting:
            waiter.task.cancel()
        try:
            self.settle()
            if not self.calm:
                self.recover()
            assert [repr(one.flight) for one in self.replicas] == ["<SingleFlight []>"] * 2
            assert self.reported == []
        finally:
            self.do(self.stack.aclose())

    # The model

    def found_again(self, caller: str | None, question: Question, at: int) -> bool:
        """Whether a replica has to answer without a fetch."""
        owners = [self.context(caller)] if self.context(caller) is not None else []
        kept = [self.must[at].get((owner, question)) for owner in [*owners, "everybody"]]
        return any(fetch is not None and self.fresh(fetch) for fetch in kept)

    def learn(
        self, fetch: Fetch, ttl: float, scope: str | None, complete: bool, uris: frozenset[str]
    ) -> None:
        own = (self.context(fetch.leader.caller), fetch.leader.question)
        arms = (own, ("everybody", fetch.leader.question))
        super().learn(fetch, ttl, scope, complete, uris)
        for must in self.must:
            for key in arms:
                must.pop(key, None)
        for key in arms:
            if fetch in self.undisturbed and self.model.get(key) is fetch:
                everywhere = self.private_in_redis or fetch.scope == "public"
                for at in REPLICAS if everywhere else (fetch.leader.at,):
                    self.must[at][key] = fetch

    def distrusted(self, fetch: Fetch) -> bool:
        at, method = fetch.leader.at, fetch.leader.question[0]
        return self.replicas[at].clock.now < self.private_for_a_while.get((at, method), 0.0)

    def standing_in(self, waiter: Waiter) -> list[Fetch]:
        return []  # what must stand in is the single cache's matter

    def check(self, waiter: Waiter, cached: Cached) -> None:
        super().check(waiter, cached)
        fetch = self.fetched(cached)
        if fetch.scope == "private" and not self.private_in_redis:
            assert fetch.leader.at == waiter.at, "a private result left its process"
        if cached.source == "hit":
            assert fetch.ttl > 0.0

    def check_stale(self, waiter: Waiter, fetch: Fetch) -> None:
        owner = "everybody" if fetch.scope == "public" else self.context(waiter.caller)
        assert fetch.complete
        assert fetch not in self.refused.get((waiter.at, (owner, waiter.question)), [])

    # Plumbing

    def clock_of(self, waiter: Waiter) -> Clock:
        return self.replicas[waiter.at].clock

    async def fetch(self, waiter: Waiter) -> Reply:
        fetch = Fetch(len(self.fetches), waiter, len(self.changes), self.loop.create_future())
        if self.calm:
            self.undisturbed.add(fetch)
        self.fetches.append(fetch)
        self.open.append(fetch)
        return await fetch.reply

    def do(self, work):  # type: ignore[no-untyped-def]
        """Run something to its end, in bounded time.

        When that takes as long as leases do, on a busy test machine, each replica may have been alone.
        """
        result = self.loop.run_until_complete(asyncio.wait_for(work, 15.0))
        began, self.ended = self.ended, time.monotonic()
        sessions = tuple(one.bus.session if one.bus.hears else -1 for one in self.replicas)
        self.steady = self.ended - began < LEASE / 2 and sessions == self.sessions and -1 not in sessions
        self.sessions = sessions
        if not self.steady:
            self.disturbed()
        return result

    def settle(self) -> None:
        async def steps() -> None:
            while not all(self.at_rest(at) for at in REPLICAS):  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0)

        self.do(steps())

    def at_rest(self, at: int) -> bool:
        """Whether all that goes on at a replica is waiting for an answer of its upstream."""
        flights = repr(self.replicas[at].flight)
        flying = flights.count(" waiting")
        seats = sum(int(part.rpartition(" ")[2]) for part in flights.split(" waiting")[:-1])
        fetching = sum(fetch.leader.at == at and not fetch.reply.done() for fetch in self.open)
        waiting = sum(waiter.at == at and not waiter.task.done() for waiter in self.waiting)
        return flying <= fetching and waiting == seats + fetching - flying


@pytest.mark.timeout(120)
class TestRedisMachine(RedisMachine.TestCase):  # type: ignore[misc, name-defined]
    """One server and one loop for all of it."""

    # A failure is shown as it was found: to shorten it takes minutes. Phase.shrink does it where that helps.
    settings = settings(max_examples=40, stateful_step_count=40, phases=[Phase.generate])
    stack: ClassVar[AsyncExitStack]

    @classmethod
    def setUpClass(cls) -> None:
        RedisMachine.shared_loop, cls.stack = asyncio.new_event_loop(), AsyncExitStack()
        RedisMachine.server = RedisMachine.shared_loop.run_until_complete(
            cls.stack.enter_async_context(redis_server())
        )

    @classmethod
    def tearDownClass(cls) -> None:
        RedisMachine.shared_loop.run_until_complete(cls.stack.aclose())
        RedisMachine.shared_loop.close()
