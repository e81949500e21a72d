"""Lets one replica fetch for all: who leads fetches and stores, the others wait a little and look again.

Leading is a key in Redis that lives no longer than the others would wait. It names what is fetched and the
count of changes at that time, so nobody who came after a change waits for a fetch begun before it. Whoever
follows is ready to be told before he asks, and is told after the leader has let go: what happened in between
is never missed. The word carries no answer; what may be served is found in the store or fetched by oneself.

A leader that dies, hangs or is refused costs the others at most the life of his lead. Nothing here decides
whether an answer may be served: a lead, a note or a word that is false costs time or a fetch.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from gateway.cache.policy import Key, upstream_of
from gateway.cache.redis_generations import RedisGenerations
from gateway.protocol.call import UpstreamName
from gateway.support.bus import Bus
from gateway.support.redis import Script, SharedRedis, no_redis_budget
from gateway.support.seal import Seal
from gateway.support.tasks import Background, happens

State: TypeAlias = Literal["asking", "leads", "told", "late", "alone"]

_LANDED = "landed"
_FOLLOW = 0
_NOTED = 3600.0
"""Seconds beyond the life of a public result for which a new replica learns that it was public."""

LEAD = Script(
    "lead",
    """
    local left = redis.call('PTTL', KEYS[1])
    if left > 0 and redis.pcall('HGET', KEYS[1], 'by') ~= ARGV[1] then
      redis.pcall('HSET', KEYS[1], 'followed', 1)
      return {0, left}
    end
    redis.call('UNLINK', KEYS[1])
    redis.call('HSET', KEYS[1], 'by', ARGV[1])
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return {1}
    """,
)
"""Answers 1: lead; or 0: somebody does, for so long at most."""

SCOPE = Script("scope", "return {redis.call('EXISTS', KEYS[1])}")

RELEASE = Script(
    "release",
    """
    local followed = 0
    if redis.pcall('HGET', KEYS[1], 'by') == ARGV[1] then
      if redis.call('HGET', KEYS[1], 'followed') then followed = 1 end
      redis.call('UNLINK', KEYS[1])
    end
    if ARGV[2] ~= '' then redis.call('UNLINK', KEYS[2]) end
    if ARGV[2] == 'public' then
      redis.call('HSET', KEYS[2], 'public', 1)
      redis.call('PEXPIRE', KEYS[2], ARGV[3])
    end
    return {followed}
    """,
)
"""Lets go of a lead and answers whether anybody waits for that; notes what the result turned out to be."""


@dataclass(slots=True)
class Turn:
    """How it came that a replica may fetch: it leads, or was told, or waited long enough, or is alone."""

    state: State = "asking"
    public: bool | None = None
    """Whether what was fetched is everybody's; None = that was not learned."""
    ttl: float = 0.0

    def landed(self, public: bool | None, ttl: float) -> None:
        """Say what the fetch brought, for replicas that know nothing of it yet."""
        self.public, self.ttl = public, ttl


@dataclass(frozen=True, slots=True)
class _Claim:
    """A question for the lead: where it lies, where the note of the last scope lies, who asks, how long."""

    lead: str
    note: str
    me: str
    bound: float

    @property
    def keys(self) -> tuple[str, str]:
        return self.lead, self.note


class Leads:
    """Whose turn it is to fetch what all replicas lack."""

    def __init__(
        self,
        redis: SharedRedis,
        generations: RedisGenerations,
        bus: Bus,
        seal: Seal,
        background: Background,
        *,
        bound: float,
        bounds: Mapping[UpstreamName, float],
        largest: int,
        private_in_redis: bool,
    ) -> None:
        """Wait for another replica at most `bound` seconds, or what `bounds` says of an upstream."""
        self._redis = redis
        self._generations = generations
        self._bus = bus
        self._seal = seal
        self._background = background
        self._bound = bound
        self._bounds = bounds
        self._largest = largest
        self._private_in_redis = private_in_redis
        self._led: set[_Claim] = set()
        self._waiting: dict[str, set[asyncio.Event]] = {}
        bus.subscribe(_LANDED, self._heard)
        bus.watch(self._lost)

    def __repr__(self) -> str:
        return f"<Leads {len(self._led)} led, {len(self._waiting)} followed>"

    def shares(self, key: Key, size: int = 0) -> bool:
        """Whether other replicas find a result of this size that is stored under this key."""
        return (key[0] == "public" or self._private_in_redis) and size <= self._largest

    @asynccontextmanager
    async def turn(self, slot: Key, public: Key, moment: int) -> AsyncIterator[Turn]:
        """Wait until this replica may fetch what belongs to a slot; who leads lets go at the end.

        `public` is where everybody's result would lie.
        """
        if not self._generations.knows(upstream_of(public)):
            yield Turn("alone")  # nothing would be found in Redis, and no word heard
            return
        claim, turn = self._claim(slot, public, moment), Turn()
        try:
            await self._come_to(turn, claim)
            yield turn
        finally:
            if turn.state in ("asking", "leads"):  # a question that was given up may be granted yet
                self._led.discard(claim)
                self._background.start(self._let_go(claim, turn), name="let go of a lead")

    async def was_public(self, public: Key) -> bool:
        """Whether another replica noted that what lies there was everybody's when it was last fetched."""
        if not self._bus.hears:
            return False
        answer = await self._redis.run(SCOPE, [self._claim(public, public, 0).note], [])
        return answer is not None and bool(answer[0])

    def note(self, public: Key, everybodys: bool, ttl: float) -> None:
        """Tell replicas to come what a fetch that nobody led turned out to be."""
        claim = self._claim(public, public, 0)
        self._background.start(self._let_go(claim, Turn("alone", everybodys, ttl)), name="note a scope")

    async def _come_to(self, turn: Turn, claim: _Claim) -> None:
        """Ask for the lead, and wait for whoever has it. Without an answer everybody leads for himself."""
        with self._listening(claim.lead) as told:  # before asking, or the word could be missed
            life = max(1, int(claim.bound * 1000))
            answer = await self._redis.run(LEAD, claim.keys[:1], [claim.me, life])
            if answer is not None and answer[0] == _FOLLOW:
                turn.state = "late"
                if await happens(told, min(answer[1] / 1000, claim.bound)):
                    turn.state = "told"
            else:
                turn.state = "leads"
                self._led.add(claim)

    @contextmanager
    def _listening(self, lead: str) -> Iterator[asyncio.Event]:
        told = asyncio.Event()
        waiting = self._waiting.setdefault(lead, set())
        waiting.add(told)
        try:
            yield told
        finally:
            waiting.discard(told)
            if not waiting:
                self._waiting.pop(lead, None)

    async def _let_go(self, claim: _Claim, turn: Turn) -> None:
        scope = {True: "public", False: "private", None: ""}[turn.public]
        life = int((turn.ttl + _NOTED) * 1000)
        with no_redis_budget():  # the others wait for this
            answer = await self._redis.run(RELEASE, claim.keys, [claim.me, scope, life])
        self._wake(claim.lead)  # one may wait here: a fetch that all had left may have been begun anew
        if answer is not None and answer[0]:
            # After letting go: who asks now leads, who asked before hears this.
            await self._bus.tell(_LANDED, claim.lead.encode())

    def _heard(self, message: bytes) -> None:
        self._wake(message.decode())

    def _wake(self, lead: str) -> None:
        for told in self._waiting.get(lead, ()):
            told.set()

    def _lost(self) -> None:
        for lead in self._waiting:
            self._wake(lead)

    def _claim(self, slot: Key, public: Key, moment: int) -> _Claim:
        """Return the names, which tell nothing (C-25), in the one slot of a Cluster the upstream has."""
        upstream = upstream_of(public)
        begin = self._generations.slot(upstream)
        lead = self._seal.name("lead", msgspec.msgpack.encode((slot, moment))).hex()
        note = self._seal.name("scope", msgspec.msgpack.encode(public)).hex()
        bound = self._bounds.get(upstream, self._bound)
        return _Claim(f"{begin}:{lead}:lead", f"{begin}:{note}:scope", os.urandom(8).hex(), bound)
