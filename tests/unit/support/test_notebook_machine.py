"""Both notebooks against a model: whatever is noted, read, renewed, taken out and let go, in any order."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gateway.config import parse_redis_url
from gateway.support.metrics import Metrics
from gateway.support.notebook import LocalNotebook, Notebook
from gateway.support.redis import SharedRedis
from gateway.support.redis_notebook import RedisNotebook
from gateway.support.seal import Seal
from tests.support.redis import RedisServer, redis_for_many
from tests.unit.cache.clock import Clock

KINDS = st.sampled_from(["session", "ended"])
KEYS = st.sampled_from([b"", b"a", b"\0\xff"])
VALUES = st.sampled_from([b"", b"1", b"v", b"x" * 1000])
SETS = st.frozensets(VALUES, max_size=4)
LIVES = st.sampled_from([5.0, 10.0, 30.0])
RENEWALS = st.none() | LIVES
AGE = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[1])
end
"""


class Model:
    """What lies where, and until when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.facts: dict[tuple[str, bytes], tuple[float, bytes | frozenset[bytes]]] = {}

    def look(self, kind: str, key: bytes, renew: float | None = None, want: type | None = None) -> Any:
        end, fact = self.facts.get((kind, key), (0.0, None))
        if fact is None or end <= self.now:
            self.facts.pop((kind, key), None)
            return None
        if renew is not None and want is not None and isinstance(fact, want):
            self.facts[kind, key] = (self.now + renew, fact)
        return fact

    def note(self, kind: str, key: bytes, fact: bytes | frozenset[bytes], ttl: float) -> None:
        self.facts[kind, key] = (self.now + ttl, fact)


class NotebookMachine(RuleBasedStateMachine):
    """Drives a notebook and the model side by side."""

    loop: ClassVar[asyncio.AbstractEventLoop]

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.clock = Clock(0.0)
        self.notebook: Notebook = self.open()

    def open(self) -> Notebook:
        return LocalNotebook(self.clock)

    def passes(self, seconds: float) -> None:
        self.clock.now += seconds

    def do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    @rule(kind=KINDS, key=KEYS, value=VALUES, ttl=LIVES)
    def write(self, kind: str, key: bytes, value: bytes, ttl: float) -> None:
        self.do(self.notebook.write(kind, key, value, ttl))
        self.model.note(kind, key, value, ttl)

    @rule(kind=KINDS, key=KEYS, value=VALUES, ttl=LIVES)
    def add(self, kind: str, key: bytes, value: bytes, ttl: float) -> None:
        there = self.model.look(kind, key) is not None
        assert self.do(self.notebook.add(kind, key, value, ttl)) is not there
        if not there:
            self.model.note(kind, key, value, ttl)

    @rule(kind=KINDS, key=KEYS, renew=RENEWALS)
    def read(self, kind: str, key: bytes, renew: float | None) -> None:
        fact = self.model.look(kind, key, renew, bytes)
        assert self.do(self.notebook.read(kind, key, renew=renew)) == (
            fact if isinstance(fact, bytes) else None
        )

    @rule(kind=KINDS, key=KEYS)
    def erase(self, kind: str, key: bytes) -> None:
        there = self.model.look(kind, key) is not None
        assert self.do(self.notebook.erase(kind, key)) is there
        self.model.facts.pop((kind, key), None)

    @rule(kind=KINDS, key=KEYS, members=SETS, ttl=LIVES, most=st.sampled_from([2, 4]))
    def include(self, kind: str, key: bytes, members: frozenset[bytes], ttl: float, most: int) -> None:
        fact = self.model.look(kind, key)
        joined = (fact if isinstance(fact, frozenset) else frozenset()) | members
        fits = len(joined) <= most
        assert self.do(self.notebook.include(kind, key, members, ttl, most=most)) is fits
        if fits and joined:
            self.model.note(kind, key, joined, ttl)

    @rule(kind=KINDS, key=KEYS, members=SETS)
    def exclude(self, kind: str, key: bytes, members: frozenset[bytes]) -> None:
        self.do(self.notebook.exclude(kind, key, members))
        fact = self.model.look(kind, key)
        if isinstance(fact, frozenset):
            self.model.facts[kind, key] = (self.model.facts[kind, key][0], fact - members)
            if not fact - members:
                del self.model.facts[kind, key]

    @rule(kind=KINDS, key=KEYS, renew=RENEWALS)
    def members(self, kind: str, key: bytes, renew: float | None) -> None:
        fact = self.model.look(kind, key, renew, frozenset)
        there = fact if isinstance(fact, frozenset) else frozenset()
        assert self.do(self.notebook.members(kind, key, renew=renew)) == there

    @rule(seconds=st.sampled_from([1.0, 7.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.passes(seconds)
        self.model.now += seconds


class LocalMachine(NotebookMachine):
    """In memory."""

    @invariant()
    def holds_no_more_than_there_is(self) -> None:
        if hasattr(self, "model"):
            assert isinstance(self.notebook, LocalNotebook)
            assert (self.notebook.held > 0) is (len(self.notebook) > 0)


class RedisMachine(NotebookMachine):
    """In Redis, whose own clock cannot be set: time is taken from the lives of its keys."""

    server: ClassVar[RedisServer]

    def open(self) -> Notebook:
        self.do(self.server.clear())
        redis = SharedRedis(parse_redis_url(self.server.url), timeout=5.0, metrics=Metrics())
        self.redis = redis
        return RedisNotebook(redis, Seal(["k"]), prefix="mcpgw")

    def passes(self, seconds: float) -> None:
        # What little passes by itself meanwhile must not count: no two ends are so close.
        self.do(self.server.ask("EVAL", AGE, 0, int(seconds * 1000)))

    def teardown(self) -> None:
        if hasattr(self, "redis"):
            self.do(self.redis.close())


@pytest.fixture
def machine_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_the_notebook_in_memory(machine_loop: asyncio.AbstractEventLoop) -> None:
    LocalMachine.loop = machine_loop
    run(LocalMachine, 100)


def test_the_notebook_in_redis(machine_loop: asyncio.AbstractEventLoop) -> None:
    with redis_for_many() as server:
        RedisMachine.server, RedisMachine.loop = server, machine_loop
        run(RedisMachine, 20)


def run(machine: type[NotebookMachine], examples: int) -> None:

    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))
