"""Answers from the cache where it may; fetches, judges and keeps what it may not. The cache's only door."""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from cachetools import LRUCache

from gateway.cache.explain import Found, Last, Met, explained
from gateway.cache.flight import Interrupted, SingleFlight, Terms
from gateway.cache.leads import Leads, State, Turn
from gateway.cache.policy import (
    CALL,
    Entry,
    Hints,
    Key,
    Lookup,
    Override,
    Said,
    Verdict,
    Why,
    context,
    cost_of,
    hints_of,
    judge,
    list_key,
    may_coalesce,
    may_stand_in,
    may_store,
    private_key,
    public_key,
    storable,
    topics_for,
    topics_of,
)
from gateway.cache.stores import Generations, Store
from gateway.protocol.call import Challenge, Change, Reason, Reply, UpstreamName, UpstreamUnavailable
from gateway.protocol.jsonrpc import Json, McpError
from gateway.protocol.methods import METHODS
from gateway.support import exchange, tracing
from gateway.support.metrics import Metrics, Turned

Fill: TypeAlias = Callable[[], Awaitable[Reply]]

_REMEMBERED = 4096
_PATIENCE = 1.0
_DISTRUST = 600.0
"""Seconds for which no page of a list is public after the list turned out to be private in part (C-23)."""

_SAYS_MORE = {verdict: rank for rank, verdict in enumerate(Verdict)}
_REFUSALS = frozenset({Reason.CREDENTIALS, Reason.TOKEN})
"""What an upstream is unavailable for that lets the gateway, or this caller, in no more."""
_OUTCOMES: dict[State, Turned] = {"leads": "led", "told": "in-vain", "late": "gave-up"}
_REASONS: dict[Verdict, Why] = {
    Verdict.ABSENT: "absent",
    Verdict.EXPIRED: "expired",
    Verdict.GENERATION: "generation",
}


@dataclass(frozen=True, slots=True)
class Cached:
    """An answer and where it came from: stored (hit), fetched and stored (miss), fetched only (bypass).

    A stale one is stored and expired, and stands in for an upstream that is down.
    """

    entry: Entry
    source: Literal["hit", "miss", "stale", "bypass"]
    reason: Why

    @property
    def overrides(self) -> tuple[Override, ...]:
        """The operator's settings that made ttl or scope another than the upstream said."""
        return self.entry.overrides


@dataclass(frozen=True, slots=True)
class Reuse:
    """What an upstream said of one result's reuse, and what became of it; the entry is without its result."""

    said: Said | None
    entry: Entry
    refused: Why | None
    """Why it was not kept."""
    age: float = 0.0
    changed: bool = False
    """Whether a change came since."""

    @property
    def private(self) -> bool:
        """Whether its upstream calls it a caller's own, as far as is known."""
        return self.entry.scope != "public" if self.said is None else self.said.scope == "private"


@dataclass(frozen=True, slots=True)
class _Landed:
    """What a fetch brought, and whether callers who only waited for it may have it."""

    cached: Cached
    shared: bool
    """To callers of the same context."""
    public: bool
    """To anybody."""


class ResponseCache:
    """The response cache over a store, the counts of changes, and flights that share a fetch."""

    def __init__(
        self,
        store: Store,
        generations: Generations,
        flight: SingleFlight,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        stale_if_error: float = 0.0,
        leads: Leads | None = None,
        bounds: Mapping[UpstreamName, float] | None = None,
    ) -> None:
        """Let results stand in for `stale_if_error` beyond their ttl; the store must keep them as long.

        With `leads`, one of all replicas fetches what the others then find in the store. `bounds` are the
        seconds for which callers of an upstream wait for another's fetch.
        """
        self._store = store
        self._generations = generations
        self._flight = flight
        self._metrics = metrics
        self._clock = clock
        self._stale_if_error = stale_if_error
        self._leads = leads
        self._bounds = bounds or {}
        self._coalesces: LRUCache[Key, bool] = LRUCache(_REMEMBERED)
        self._reaches: LRUCache[Key, bool] = LRUCache(_REMEMBERED)
        """Whether the last result of a flight was one that other replicas find."""
        self._private_until: LRUCache[Key, float] = LRUCache(_REMEMBERED)
        self._last: LRUCache[Key, Last] = LRUCache(_REMEMBERED)
        self._reuse: LRUCache[tuple[UpstreamName, str], Reuse] = LRUCache(_REMEMBERED)

    def __repr__(self) -> str:
        return f"<ResponseCache epoch {self.epoch} {self._store!r} {self._generations!r} {self._flight!r}>"

    def allow(self, *, stale_if_error: float, bounds: Mapping[UpstreamName, float]) -> None:
        """Go on by another configuration."""
        self._stale_if_error = stale_if_error
        self._bounds = bounds

    @property
    def epoch(self) -> int:
        """Moves with every change; what was joined from entries is as old as the epoch it began in."""
        return self._generations.epoch

    @property
    def held(self) -> tuple[int, int]:
        """How many entries this process holds, and their bytes."""
        return self._store.held

    def reuse(self, upstream: UpstreamName) -> dict[str, Reuse]:
        """Return what an upstream last said of the reuse of results, by method, and what became of those."""
        now = self._clock()
        noted = ((method, self._reuse.get((upstream, method))) for method in METHODS)
        return {
            method: replace(
                last,
                age=now - last.entry.received,
                changed=self._generations.peek(upstream, last.entry.topics) > last.entry.generation,
            )
            for method, last in noted
            if last is not None
        }

    def peek(self, lookup: Lookup) -> Cached | None:
        """Return a hit if this process holds one: no task, no lock, no waiting."""
        now = self._clock()
        for key in _arms(lookup):
            entry = self._store.peek(key)
            if entry is None:
                continue
            generation = self._generations.peek(lookup.upstream, entry.topics)
            if judge(entry, generation=generation, now=now) is Verdict.FRESH:
                return self._noted(lookup, Cached(entry, "hit", "hit"), now)
        return None

    async def get(self, lookup: Lookup, fill: Fill) -> Cached:
        """Return a fresh result, from the store or through `fill`; what `fill` raises reaches every waiter.

        `fill` may outlive this caller, for others who wait for the same; its own deadline is everybody's.
        While the upstream is down an expired result may stand in.
        """
        if exchange.current_span() is None:
            return await self._got(lookup, fill)
        with tracing.looking(lookup.upstream, lookup.method):
            return await self._got(lookup, fill)

    async def _got(self, lookup: Lookup, fill: Fill) -> Cached:
        cached = self.peek(lookup)
        if cached is None:
            try:
                cached = await self._miss(lookup, fill)
            except UpstreamUnavailable as error:
                return await self.stand_in(lookup, error)
            self._noted(lookup, cached, self._clock())
        return cached

    async def stand_in(self, lookup: Lookup, error: UpstreamUnavailable) -> Cached:
        """Return what may be served instead of an answer that failed so, or raise the error (C-33).

        What is still fresh needs no upstream, whatever became of it (C-09).
        Each caller is looked after alone, whoever's fetch it was that failed: from the caller's own arm or
        the public one. A call's result never stands in, since it has no ttlMs that would say how old it is.
        """
        stored, verdict = await self._find(lookup)
        if stored is not None:
            cached = Cached(stored, "hit", "hit")
        else:
            bridged = error.outage and self._stale_if_error > 0.0 and lookup.method != CALL
            late = await self._latest_expired(lookup) if bridged and verdict is not Verdict.ABSENT else None
            if late is None:
                raise error
            cached = Cached(late, "stale", "upstream-down")
        return self._noted(lookup, cached, self._clock())

    def _noted(self, lookup: Lookup, cached: Cached, now: float) -> Cached:
        age = now - cached.entry.received
        self._metrics.cache_lookup(lookup.upstream, lookup.method, cached.source, cached.reason, age)
        reason = "fresh" if cached.reason == "hit" else cached.reason  # as clients are told
        exchange.looked_up(lookup.upstream, lookup.method, cached.source, reason, age)
        if (span := exchange.current_span()) is not None:
            span.note(
                {
                    "mcp_gateway.cache.result": cached.source,
                    "mcp_gateway.cache.reason": reason,
                    "mcp_gateway.cache.age": max(0, int(age)),
                }
            )
        return cached

    async def explain(self, lookup: Lookup, *, down: bool, outage: bool) -> Found:
        """Return what would become of a lookup made now, its upstream down or not, by an outage or not.

        It fetches nothing, counts nothing and changes nothing that anybody is served.
        """
        met = []
        for key in _arms(lookup):
            entry = await self._store.get(key)
            generation = 0 if entry is None else await self._generations.latest(lookup.upstream, entry.topics)
            now, bound = self._clock(), self._stale_if_error
            verdict = judge(entry, generation=generation, now=now)
            late = entry is not None and may_stand_in(entry, generation=generation, now=now, bound=bound)
            met.append(Met(key, entry, verdict, stands_in=late))
        last = self._last.get(public_key(lookup))
        bridged = outage and self._stale_if_error > 0.0
        return explained(lookup, met, last, down=down, bridged=bridged, now=self._clock())

    async def invalidate(self, change: Change) -> None:
        """Make everything stale that a change touches (C-30), also what is being fetched now (C-32)."""
        await self._generations.advance(change.upstream, topics_of(change))
        self._metrics.invalidated(change.upstream, change.cause)

    async def told(self, upstream: UpstreamName) -> None:
        """Return when nobody anywhere is served what a change has made stale, or after a lease at most."""
        await self._generations.told(upstream)

    async def purge_public(self, lookup: Lookup) -> None:
        """Take back the public pages of a list of which another page is private, and share none for a while.

        All pages carry one scope (C-23). Without the while, page one would be shared anew by every fetch and
        taken back again, and so never be a hit.
        """
        self._private_until[list_key(lookup)] = self._clock() + _DISTRUST
        await self._generations.advance(lookup.upstream, (("public", lookup.method),))
        self._metrics.invalidated(lookup.upstream, "catalogue")

    async def _miss(self, lookup: Lookup, fill: Fill) -> Cached:
        await self._ask_around(lookup)
        turns = self._leads
        for slot in self._slots(lookup):
            cached = await self._fly(slot, lookup, fill, turns)
            if cached is not None:
                return cached
            turns = None  # other replicas are waited for once
        return (await self._refill(lookup, fill)).cached

    def _slots(self, lookup: Lookup) -> Iterator[Key]:
        """Yield the flights this caller may wait for, one after the other while none has an answer for him.

        What was public is fetched once for everybody (B51); so is what nothing is known of yet, for callers
        without a context, and what the operator calls public. Nobody is given more than he might have
        fetched: what turns out private stays in the context that fetched it (C-34).
        """
        own, public = private_key(lookup), public_key(lookup)
        known = own is None or lookup.rules.scope == "public"
        if _shares_public(lookup) and self._coalesces.get(public, known):
            yield public
        if own is not None and self._coalesces.get(own, True):
            yield own

    async def _ask_around(self, lookup: Lookup) -> None:
        """Learn whether a result was public when another replica fetched it, if nothing is known here."""
        leads, public = self._leads, public_key(lookup)
        if leads is None or public in self._coalesces or not _shares_public(lookup):
            return
        if private_key(lookup) is None or lookup.rules.scope == "public":
            return  # they wait for everybody's anyhow
        try:
            if await self._flight.run(("scope", public), lambda: leads.was_public(public)):
                self._coalesces.setdefault(public, True)
        except Interrupted:
            raise UpstreamUnavailable(lookup.upstream, Reason.STOPPING) from None

    def _waits_in_vain(self, leads: Leads, slot: Key, lookup: Lookup) -> bool:
        """Whether the others would not find what a flight brings, as far as is known of the last one."""
        public = public_key(lookup)
        may_be_public = _shares_public(lookup) and self._coalesces.get(public, True)
        found = slot == public or leads.shares(slot) or may_be_public
        return not found or not self._reaches.get(slot, True)

    async def _fly(self, slot: Key, lookup: Lookup, fill: Fill, leads: Leads | None) -> Cached | None:
        """Return what this caller or one of those before him fetches, None when that is not for both."""
        moment = await self._generations.moment(lookup.upstream)
        everyones = slot == public_key(lookup)
        # With the count in its name, a flight is never joined by a caller who came after an invalidation.
        name = (slot, moment)
        if everyones and self._flight.under_way(name):
            own = await self._own(lookup)  # nobody in there looks for that
            if own is not None:
                return self._hit(lookup, own).cached
        joins = self._flight.under_way(name)
        mine: list[_Landed] = []

        async def ask() -> Reply:
            self._flight.begun(name, self._bounds.get(lookup.upstream, _PATIENCE))
            return await fill()

        async def fetch() -> _Landed:
            # Who joins others has waited already, for one who took his turn.
            if joins or leads is None or self._waits_in_vain(leads, slot, lookup):
                mine.append(await self._refill(lookup, ask))
            else:
                mine.append(await self._refill_in_turn(leads, slot, lookup, ask, moment))
            return mine[-1]

        async def look() -> _Landed | None:
            stored, _ = await self._find(lookup)
            if stored is None:
                return None
            mine.append(self._hit(lookup, stored))
            return mine[-1]

        def shared(landed: _Landed) -> bool:
            return landed.public if everyones else landed.shared

        terms = Terms(context(lookup), shared, look, _is_general)
        try:
            landed = await self._flight.run(name, fetch, terms)
        except Interrupted:
            raise UpstreamUnavailable(lookup.upstream, Reason.STOPPING) from None
        # Not by whether he fetched: another's may have come before his own.
        if any(landed is one for one in mine):
            return landed.cached
        if shared(landed):
            if landed.cached.source != "hit":  # which counts as what it is
                self._metrics.cache_shared(lookup.upstream, lookup.method)
            return landed.cached
        return None

    async def _own(self, lookup: Lookup) -> Entry | None:
        """Return what may answer from the caller's own arm."""
        key = private_key(lookup)
        stored, _ = await self._find(lookup, () if key is None else (key,))
        return stored

    async def _refill(self, lookup: Lookup, fill: Fill) -> _Landed:
        stored, verdict = await self._find(lookup)
        if stored is not None:
            return self._hit(lookup, stored)
        moment = await self._generations.moment(lookup.upstream)
        return await self._fetch(lookup, fill, moment, verdict)

    async def _refill_in_turn(
        self, leads: Leads, slot: Key, lookup: Lookup, fill: Fill, moment: int
    ) -> _Landed:
        """Return what this replica fetches for all, or another does for this one."""
        stored, verdict = await self._find(lookup)
        if stored is not None:
            return self._hit(lookup, stored)
        async with leads.turn(slot, public_key(lookup), moment) as turn:
            if turn.state != "alone":
                # Who was followed has stored it, and so may have who led before us, since we looked.
                stored, verdict = await self._find(lookup)
                self._count(lookup, turn, found=stored is not None)
            if stored is not None:
                return self._hit(lookup, stored)
            moment = await self._generations.moment(lookup.upstream)
            return await self._fetch(lookup, fill, moment, verdict, turn)

    async def _fetch(
        self, lookup: Lookup, fill: Fill, moment: int, verdict: Verdict, turn: Turn | None = None
    ) -> _Landed:
        public = public_key(lookup)
        known = self._coalesces.get(public)
        try:
            reply = await fill()
        except (Challenge, McpError, UpstreamUnavailable) as error:
            await self._heed(lookup, error)
            raise
        landed = await self._keep(lookup, reply.result, moment, _REASONS[verdict])
        cached = landed.cached
        refused = cached.reason if cached.source == "bypass" else None
        self._last[public] = Last(cached.entry.scope, refused)
        learned = self._coalesces.get(public)
        if turn is not None and turn.state == "leads":
            turn.landed(learned, cached.entry.ttl)
        elif self._leads is not None and learned is not None and learned is not known:
            self._leads.note(public, learned, cached.entry.ttl)
        return landed

    def _hit(self, lookup: Lookup, stored: Entry) -> _Landed:
        if (lookup.upstream, lookup.method) not in self._reuse:  # another replica fetched it
            self._note_reuse(lookup, None, stored, None)
        public = stored.scope == "public"
        if public:  # whoever fetched it
            self._coalesces[public_key(lookup)] = self._reaches[public_key(lookup)] = True
        return _Landed(Cached(stored, "hit", "hit"), shared=True, public=public)

    def _count(self, lookup: Lookup, turn: Turn, *, found: bool) -> None:
        outcome = "followed" if found else _OUTCOMES[turn.state]
        self._metrics.cache_turn(lookup.upstream, lookup.method, outcome)

    async def _heed(self, lookup: Lookup, error: Challenge | McpError | UpstreamUnavailable) -> None:
        """Let nothing stand in later for what its upstream has refused to give again (C-33)."""
        if isinstance(error, UpstreamUnavailable) and (error.outage or error.reason not in _REFUSALS):
            return
        # A challenge is about this caller's credential; the other refusals are about what was asked for.
        await self._forget_expired(private_key(lookup))
        if not isinstance(error, Challenge):
            await self._forget_expired(public_key(lookup))

    async def _forget_expired(self, key: Key | None) -> None:
        entry = await self._store.get(key) if key is not None and self._stale_if_error else None
        if key is not None and entry is not None and entry.remaining(self._clock()) == 0.0:
            await self._store.delete(key)

    async def _latest_expired(self, lookup: Lookup) -> Entry | None:
        """Return the youngest result that may stand in for a fresh one, from the arms of this caller."""
        latest: Entry | None = None
        for key in _arms(lookup):
            entry = await self._store.get(key)
            if entry is None or (latest is not None and entry.received <= latest.received):
                continue
            generation = await self._generations.latest(lookup.upstream, entry.topics)
            if may_stand_in(entry, generation=generation, now=self._clock(), bound=self._stale_if_error):
                latest = entry
        return latest

    async def _find(self, lookup: Lookup, arms: Iterable[Key] | None = None) -> tuple[Entry | None, Verdict]:
        """Return the fresh entry of the first arm that has one, or none and the most telling reason."""
        found = Verdict.ABSENT
        for key in _arms(lookup) if arms is None else arms:
            entry = await self._store.get(key)
            if entry is None:
                continue
            generation = await self._generations.latest(lookup.upstream, entry.topics)
            verdict = judge(entry, generation=generation, now=self._clock())
            if verdict is Verdict.FRESH:
                return entry, verdict
            found = max(found, verdict, key=_SAYS_MORE.__getitem__)
        return None, found

    async def _keep(self, lookup: Lookup, result: Json, moment: int, missed: Why) -> _Landed:
        """Return a fetched result as an entry, stored if it may be."""
        now = self._clock()
        hints = self._hints(lookup, result, now)
        self._metrics.cache_hints(lookup.upstream, lookup.method, overridden=bool(hints.overrides))
        if not hints.complete:
            # The upstream has answered: nothing older stands in for that later (C-33).
            await self._forget_expired(private_key(lookup))
            await self._forget_expired(public_key(lookup))
            entry = Entry(bytes(result), now, 0.0, "private", moment)
            self._note_reuse(lookup, hints.said, entry, hints.why or "incomplete")
            return _Landed(Cached(entry, "bypass", hints.why or "incomplete"), shared=False, public=False)
        topics = topics_for(lookup, result, hints.scope)
        entry = Entry(storable(result), now, hints.ttl, hints.scope, moment, topics, hints.overrides)
        shared, public = self._remember(lookup, hints)
        if await self._generations.latest(lookup.upstream, topics) > moment:
            # For those who asked before the change, and for no one else (C-32).
            return _Landed(Cached(replace(entry, ttl=0.0), "bypass", "generation"), shared, public)
        refused = await self._write(lookup, hints, entry)
        self._note_reuse(lookup, hints.said, entry, refused)
        self._note_reach(lookup, entry, refused)
        cached = Cached(entry, "miss", missed) if refused is None else Cached(entry, "bypass", refused)
        return _Landed(cached, shared, public)

    async def _write(self, lookup: Lookup, hints: Hints, entry: Entry) -> Why | None:
        """Store an entry in the arm of its scope or return why not; the other arm is outdated either way."""
        private, public = private_key(lookup), public_key(lookup)
        arm, opposite = (public, private) if hints.scope == "public" else (private, public)
        if opposite is not None:
            await self._store.delete(opposite)  # before writing, or a reader could meet both (C-20)
        cost = cost_of(arm or public, entry)
        refused = may_store(hints, owner=context(lookup), cost=cost, largest=self._store.largest)
        if refused is None and arm is not None:
            await self._store.put(arm, entry)
        elif arm is not None:
            await self._store.delete(arm)  # what lies there is older than the latest answer
        self._metrics.cache_size(*self._store.held)
        return refused

    def _hints(self, lookup: Lookup, result: Json, now: float) -> Hints:
        hints = hints_of(result, lookup.rules, lookup.method)
        if hints.scope == "public" and now < self._private_until.get(list_key(lookup), 0.0):
            return replace(hints, scope="private", why="private")
        return hints

    def _note_reuse(self, lookup: Lookup, said: Said | None, entry: Entry, refused: Why | None) -> None:
        last = Reuse(said, replace(entry, result=b"", derived={}), refused)
        self._reuse[lookup.upstream, lookup.method] = last

    def _note_reach(self, lookup: Lookup, entry: Entry, refused: Why | None) -> None:
        if self._leads is None:
            return
        private, public = private_key(lookup), public_key(lookup)
        arm = public if entry.scope == "public" else private
        reaches = refused is None and arm is not None and self._leads.shares(arm, len(entry.result))
        self._reaches[public] = reaches and arm is public
        if private is not None:
            self._reaches[private] = reaches

    def _remember(self, lookup: Lookup, hints: Hints) -> tuple[bool, bool]:
        """Note whether the next misses may wait for each other; return who may share this: context, all."""
        shared = may_coalesce(hints, owner=context(lookup), method=lookup.method)
        public = may_coalesce(hints, owner=None, method=lookup.method)
        self._coalesces[public_key(lookup)] = public
        if (key := private_key(lookup)) is not None:
            self._coalesces[key] = shared
        return shared, public


def _arms(lookup: Lookup) -> Iterator[Key]:
    """Yield where to look: the caller's own arm, then everybody's unless this upstream shares nothing."""
    if (key := private_key(lookup)) is not None:
        yield key
    if _shares_public(lookup):
        yield public_key(lookup)


def _is_general(error: Exception) -> bool:
    """Whether a failure says something about the upstream: a refusal may be about who was refused."""
    return not isinstance(error, (Challenge, McpError))


def _shares_public(lookup: Lookup) -> bool:
    return lookup.rules.shares
