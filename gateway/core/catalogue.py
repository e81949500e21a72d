"""Keeps what each upstream lists: every page through the cache, and the last known items beyond their ttl.

Routing and header checks need to know a tool even when its list may no longer be served (C-13), so the
items last seen are remembered per upstream and credential context, whatever their ttl was.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import TypeAlias, TypeVar

from cachetools import LRUCache
from msgspec import Struct

from gateway.cache.explain import Found
from gateway.cache.policy import Entry, Lookup, Rules, call_target, rules_for_call
from gateway.cache.responses import Cached, ResponseCache
from gateway.config import Config
from gateway.core.access import Sight
from gateway.core.audience import Followed
from gateway.core.capabilities import Profile, digest_of
from gateway.core.discover import offers
from gateway.core.interned import Interned
from gateway.core.lastseen import LastSeen, digest_of_items
from gateway.core.lists import Item, Page, merge_pages, parse_page
from gateway.core.reuse import FRESH, Origin, joined, origin
from gateway.protocol.call import (
    MODERN_VERSION,
    Change,
    Context,
    Emit,
    Partition,
    Principal,
    Reason,
    Reply,
    Request,
    Scope,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Json, Malformed, McpError, encode
from gateway.protocol.methods import METHODS
from gateway.support.busy import Busy
from gateway.support.metrics import Metrics
from gateway.support.room import Held
from gateway.upstream.pool import UpstreamPool

log = logging.getLogger(__name__)

T = TypeVar("T")

_LISTS = tuple(method for method, row in METHODS.items() if row.kind == "list")
_FIRST_REST = 1.0
_LONGEST_REST = 30.0
_CONTEXTS = 4096
_LEAST_KNOWN = 16 * 2**20
"""Bytes of lists that are remembered however small the cache is."""
_PER_ITEM = 512
"""What the objects around one listed item weigh, beside its bytes: measured, rounded up."""
_MOST_TOLD = 100
"""Items of one list that the log names as left out, or as trimmed; of more it tells how many."""
_ABSENCE = 60.0
"""Seconds for which an upstream is not asked again for a list that it said it does not serve."""


class Caller(Struct, frozen=True):
    """On whose behalf upstreams are asked: the principal, and the capability profile lists vary by (C-06)."""

    principal: Principal
    profile: Profile
    sight: Sight | None = None
    """What the rules let the principal see, None without rules; an upstream's lists do not vary by it."""


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The items one upstream lists under one method; the same object for as long as the pages stay equal."""

    items: tuple[Item, ...] = ()
    by_key: Mapping[str, Item] = field(default_factory=dict)
    pages: tuple[bytes, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    """What the list says that it lacks, when the upstream is a gateway itself."""
    digest: bytes = field(default_factory=lambda: digest_of_items(()))
    """What tells its items from others, in whatever order."""
    size: int = 0
    """Bytes of all pages."""


NOTHING = Listing()


@dataclass(frozen=True, slots=True)
class Part:
    """One upstream's share of a merged list: until when and to whom it may be served again."""

    upstream: UpstreamName
    listing: Listing
    received: float
    """When the oldest of its pages was fetched."""
    expires: float
    scope: Scope
    origin: Origin = FRESH
    served: bool = True
    """False for an upstream that neither declared nor serves such a list."""


@dataclass(frozen=True, slots=True)
class Contents:
    """How many items an upstream lists by method, and which were left out of which, and why."""

    listed: Mapping[str, int]
    excluded: Sequence[tuple[str, str, str]]


_Pages: TypeAlias = Callable[[UpstreamName, str, str | None, Caller], Awaitable[Cached]]
"""Where one page of a list is had from."""


class Catalogue:
    """Fetches and remembers the lists of all upstreams."""

    def __init__(
        self,
        config: Config,
        pool: UpstreamPool,
        cache: ResponseCache,
        metrics: Metrics,
        settings: Mapping[UpstreamName, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        before: "Catalogue | None" = None,
    ) -> None:
        """`settings` tell results apart that upstreams of one name gave under different ones.

        What the catalogue `before` knows of upstreams that are the same is known here as well.
        """
        self._config = config
        self._pool = pool
        self._cache = cache
        self._metrics = metrics
        self._clock = clock
        self._rules = {UpstreamName(name): rules_of(config, name) for name in config.upstreams}
        self._call_rules = {
            (name, tool): rules_for_call(rules, ttl=call.ttl, scope=call.scope)
            for name, rules in self._rules.items()
            for tool, call in config.upstreams[name].cache.calls.items()
        }
        self._settings = settings
        self._known: Interned[tuple[UpstreamName, str, Partition | None], Listing] = Interned(
            max(config.cache.memory // 4, _LEAST_KNOWN)
        )
        self.seen: LastSeen = LastSeen() if before is None else before.seen
        self._others: frozenset[UpstreamName] = frozenset()
        """Upstreams that are other ones by now, or none: what they list is no news for those who listen."""
        self.asked: set[UpstreamName] = set() if before is None else before.asked
        """The upstreams of which anything may have been cached by this process."""
        self.on_found: Callable[[Followed, str], None] | None = None
        """Told of a list that turned out to be another one, with nobody having said so."""
        self.on_asking: Callable[[Followed, str], Awaitable[None]] | None = None
        """Told, and waited for, before a list is asked for."""
        self.revision = 0
        """Moves with everything that `known` would say differently."""
        self._lacking: LRUCache[tuple[UpstreamName, str, Partition | None], float] = LRUCache(_CONTEXTS)
        self._rests: LRUCache[tuple[UpstreamName, Partition | None], tuple[float, float]] = LRUCache(
            _CONTEXTS
        )
        self._busy: LRUCache[tuple[UpstreamName, Partition | None], Busy] = LRUCache(_CONTEXTS)
        if before is not None:
            self._learn_from(before)

    def _learn_from(self, before: "Catalogue") -> None:
        same = {name for name in self._rules if self._pool.keeps(name, before._pool)}
        self.revision = before.revision + 1
        self._known.take(before._known, lambda key: key[0] in same)
        self._lacking.update({key: since for key, since in before._lacking.items() if key[0] in same})
        self._rests.update({key: rest for key, rest in before._rests.items() if key[0] in same})
        self._busy.update({key: busy for key, busy in before._busy.items() if key[0] in same})

    def outdated(self, others: frozenset[UpstreamName]) -> None:
        """Note which upstreams the catalogue that takes this one's place has none of, or other ones."""
        self._others = others

    @property
    def remembered(self) -> tuple[int, int, int]:
        """How many lists are known, how many different ones, and the bytes they count for."""
        return self._known.held

    def known(self, name: UpstreamName, method: str, caller: Caller) -> Listing | None:
        """Return what this upstream listed when last asked with the caller's credential there (A-47)."""
        return self._known.get((name, method, self._context(name, caller)))

    def offers(self, name: UpstreamName, capability: str | None) -> bool | None:
        """Whether an upstream declared a capability; None while it has not said (B48)."""
        discovered = self._pool.discovered(name)
        if capability is None or discovered is None:
            return None
        return offers(discovered.capabilities, capability)

    async def part(self, name: UpstreamName, method: str, caller: Caller) -> Part | None:
        """Return one upstream's whole list, all pages, from the cache where it may answer.

        None when it has no such list. Raises UpstreamUnavailable when the upstream is down, failed, or took
        longer than its list_timeout, and nothing that is kept may stand in.
        """

        async def ask() -> Part | None:
            # What it declares is known once it was tried; before, it might be asked for what it has not.
            with self._asked(name, caller).asking():
                await self._pool.tried(name, self._config.upstreams[name].list_timeout)
            return await self._whole(name, method, caller, self._page)

        async def stand_in(error: UpstreamUnavailable) -> Part | None:
            return await self._whole(name, method, caller, partial(self._kept_page, error))

        return await self._in_time(name, method, caller, ask, stand_in)

    async def discover(self, name: UpstreamName, caller: Caller) -> Cached:
        """Return what one upstream says it can do; raises as `part` does."""
        request = self._request(name, "server/discover", caller)
        lookup = self._lookup(name, "server/discover", caller, None)

        async def fill() -> Reply:
            with self._asked(name, caller).asking():
                return await self._pool.call(name, request)

        return await self._in_time(
            name,
            "server/discover",
            caller,
            lambda: self._cache.get(lookup, fill),
            lambda error: self._cache.stand_in(lookup, error),
        )

    async def read(
        self, name: UpstreamName, uri: str, caller: Caller, request: Request, emit: Emit
    ) -> Cached:
        """Return one resource under its upstream's own URI; notices go to whoever made the request (C-34)."""
        lookup = self._lookup(name, "resources/read", caller, uri)
        return await self._cache.get(lookup, lambda: self._pool.call(name, request, emit))

    def keeps_calls(self, name: UpstreamName, tool: str) -> bool:
        """Whether the operator wants this tool's results kept."""
        return (name, tool) in self._call_rules

    def call_lookup(self, name: UpstreamName, tool: str, caller: Caller, request: Request) -> Lookup | None:
        """Return under what a call's result may be kept, None where the operator did not say so of the tool.

        The key holds everything the upstream is sent that may shape its answer: all params, and the
        capabilities as they are declared to it.
        """
        rules = self._call_rules.get((name, tool))
        target = None if rules is None else call_target(request.params)
        if rules is None or target is None:
            return None
        lookup = self._lookup(name, request.method, caller, target)
        return replace(lookup, profile=digest_of(request.capabilities), rules=rules)

    async def call(self, lookup: Lookup, request: Request, emit: Emit) -> Cached:
        """Return the result of a call that may be kept; notices go to whoever made the request (C-34)."""
        return await self._cache.get(lookup, lambda: self._pool.call(lookup.upstream, request, emit))

    async def explain(
        self, name: UpstreamName, method: str, caller: Caller, target: str | None = None
    ) -> Found:
        """Return what would become of one page or resource asked for now; asks nobody."""
        resting = self._resting(name, caller)
        down = resting or not self._pool.available(name)
        outage = resting or self._pool.status(name).outage
        lookup = self._lookup(name, method, caller, target)
        return await self._cache.explain(lookup, down=down, outage=outage)

    async def explain_call(self, lookup: Lookup) -> Found:
        """Return what would become of a call that may be kept; no outage is bridged for one (C-33)."""
        down = not self._pool.available(lookup.upstream)
        return await self._cache.explain(lookup, down=down, outage=False)

    def lacks(self, name: UpstreamName, method: str, caller: Caller) -> bool:
        """Whether an upstream said of late that it does not serve this caller this list."""
        since = self._lacking.get((name, method, self._context(name, caller)))
        return since is not None and self._clock() < since + _ABSENCE

    def forwarded(self, name: UpstreamName, principal: Principal) -> str | None:
        """Return the caller's own Authorization where the operator lets this upstream have it (Z-09).

        A key of the gateway's own is no token that any authorization server could exchange.
        """
        auth = self._config.upstreams[name].auth
        if not auth.personal or (auth.token_exchange is not None and principal.id.startswith("key:")):
            return None
        return principal.authorization

    async def forget(self, name: UpstreamName, method: str, cause: str, uri: str | None = None) -> None:
        """Drop what is cached of one upstream's list, or of one resource."""
        await self._cache.invalidate(Change(name, method, uri, cause))

    async def changed(self, change: Change) -> None:
        """Drop what an upstream's change made stale; after a reconnect anything may be different (C-30)."""
        mine = change.partition
        for key in [key for key in self._lacking if key[0] == change.upstream and mine in (None, key[2])]:
            if change.method in (None, key[1]):
                del self._lacking[key]
        if change.method is None:
            for rest in [rest for rest in self._rests if rest[0] == change.upstream]:
                if mine in (None, rest[1]):
                    del self._rests[rest]
        await self._cache.invalidate(change)
        await self._cache.told(change.upstream)

    def report(self, name: UpstreamName) -> "Contents":
        """Return what is known of an upstream's lists, for the status."""
        listings = dict(self._listings(name))
        return Contents(
            {method: len(listing.items) for method, listing in listings.items()},
            [
                (method, item, reason)
                for method, listing in listings.items()
                for item, reason in listing.excluded
            ],
        )

    def private(self, name: UpstreamName, method: str) -> bool:
        """Whether an upstream says of its list that it is its caller's own, or nobody knows any more."""
        reuse = self._cache.reuse(name).get(method)
        return reuse is None or reuse.private

    def _listings(self, name: UpstreamName) -> Iterator[tuple[str, Listing]]:
        for method in _LISTS:
            listing = self._known.get((name, method, None))
            if listing is not None:
                yield method, listing

    async def _in_time(
        self,
        name: UpstreamName,
        method: str,
        caller: Caller,
        ask: Callable[[], Awaitable[T]],
        stand_in: Callable[[UpstreamUnavailable], Awaitable[T]],
    ) -> T:
        if not self._pool.available(name):
            outage = self._pool.status(name).outage
            return await stand_in(UpstreamUnavailable(name, Reason.DOWN, outage=outage))
        if self._resting(name, caller):  # it has just let a list wait too long
            return await stand_in(UpstreamUnavailable(name, Reason.DOWN, outage=True))
        limit = self._config.upstreams[name].list_timeout
        busy = self._asked(name, caller)
        before = busy.spent
        try:
            async with asyncio.timeout(limit):
                answer = await ask()
        except TimeoutError:
            if busy.spent - before > limit / 2:  # else the time went to Redis, or to another caller's fetch
                self._rest(name, caller)
        else:
            self._rests.pop((name, self._context(name, caller)), None)
            return answer
        return await stand_in(UpstreamUnavailable(name, Reason.TIMEOUT, f"{method}: list_timeout {limit:g}s"))

    async def _whole(self, name: UpstreamName, method: str, caller: Caller, page: "_Pages") -> Part | None:
        declared = self.offers(name, METHODS[method].capability)
        if declared is False:
            return None
        key = (name, method, self._context(name, caller))
        since = self._lacking.get(key)
        if since is not None and self._clock() < since + _ABSENCE:
            return self._nothing(name, since, FRESH, declared is True)
        epoch = self._cache.epoch
        try:
            part = await self._walk(name, method, caller, page)
        except McpError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
        else:
            self._lacking.pop(key, None)
            self._look(name, method, caller, part.listing)
            return part
        # It counts as empty for a while, for whoever it said so to: it may serve others (B48).
        if since is None:
            log.warning("upstream %s does not serve %s", name, method)
        now = self._clock()
        if self._cache.epoch == epoch:  # else what it said may be outdated already (C-32)
            self._lacking[key] = now
        self._look(name, method, caller, NOTHING)
        return self._nothing(name, now, Origin("miss", "absent"), declared is True)

    def _look(self, name: UpstreamName, method: str, caller: Caller, listing: Listing) -> None:
        """Say so when the list is another than it was for the same credential and capabilities."""
        at = self.followed(name, caller.principal)
        if name in self._others:
            return
        if self.seen.record(at, method, caller.profile, listing.digest) and self.on_found is not None:
            self.on_found(at, method)

    def _nothing(self, name: UpstreamName, since: float, whence: Origin, served: bool) -> Part:
        """Return the share of an upstream that said it has no such list, kept as other answers would be."""
        rules = self._rules[name]
        own = self._config.upstreams[name].auth.personal
        scope: Scope = "private" if own or not rules.shares else "public"
        return Part(name, NOTHING, since, since + min(_ABSENCE, rules.max_ttl), scope, whence, served)

    async def _walk(self, name: UpstreamName, method: str, caller: Caller, ask: "_Pages") -> Part:
        with Held(self._pool.room, "") as held:
            return await self._walked(name, method, caller, ask, held)

    def _check_size(self, name: UpstreamName, method: str, size: int, held: Held) -> None:
        """Count what was gathered of a list; raises UpstreamUnavailable when it is too much."""
        most = self._config.limits.list_bytes
        if size > most:
            raise UpstreamUnavailable(name, Reason.TOO_LARGE, f"{method}: over {most} bytes on all pages")
        if not held.fits(size):
            raise UpstreamUnavailable(name, Reason.BUSY, f"{method}: `limits.in_flight` is used up")

    async def _walked(
        self, name: UpstreamName, method: str, caller: Caller, ask: "_Pages", held: Held
    ) -> Part:
        entries: list[Entry] = []
        pages: list[Page] = []
        seen: set[str] = set()
        cursor: str | None = None
        origins: list[Origin] = []
        restarted = False
        limits = self._config.limits
        while True:
            try:
                cached = await ask(name, method, cursor, caller)
            except McpError as error:
                if cursor is None or restarted or error.code != INVALID_PARAMS:
                    raise
                await self._cache.invalidate(Change(name, method, cause="cursor"))  # C-26
                entries, pages, seen, cursor, restarted = [], [], set(), None, True
                continue
            origins.append(origin(cached.source, cached.reason))
            page = await self._read_page(name, method, cached)
            entries.append(cached.entry)
            pages.append(page)
            self._check_size(name, method, sum(len(entry.result) for entry in entries), held)
            cursor = page.next_cursor
            full = sum(len(page.items) for page in pages) >= limits.list_items
            if page.cut or (full and cursor is not None):
                log.warning("upstream %s lists over %d items: the rest is left out", name, limits.list_items)
                break
            if cursor is None:
                break
            if cursor in seen or len(pages) >= limits.list_pages:
                log.warning(
                    "upstream %s repeats a cursor of %s: stopped after %d pages", name, method, len(pages)
                )
                break
            seen.add(cursor)
        return await self._part(name, method, caller, entries, pages, joined(origins, partial=False))

    async def _read_page(self, name: UpstreamName, method: str, cached: Cached) -> Page:
        known = cached.entry.derived.get("page")
        if isinstance(known, Page):
            return known
        result, most = cached.entry.result, self._config.limits.list_items
        try:
            page = await self._pool.apart.do(name, len(result), lambda: parse_page(method, result, most))
        except Malformed as error:
            if cached.source != "bypass":  # what no client can read must not be kept for its ttl
                await self.forget(name, method, "catalogue")
            log.warning("upstream %s: invalid result of %s: %s", name, method, error)
            self._metrics.dropped(name, "response")
            raise UpstreamUnavailable(name, Reason.PROTOCOL, f"{method}: {error}") from None
        cached.entry.derived["page"] = page
        return page

    async def _part(
        self,
        name: UpstreamName,
        method: str,
        caller: Caller,
        entries: list[Entry],
        pages: list[Page],
        whence: Origin,
    ) -> Part:
        scope: Scope = "public" if all(entry.scope == "public" for entry in entries) else "private"
        if scope == "private" and any(entry.scope == "public" for entry in entries):
            await self._cache.purge_public(self._lookup(name, method, caller, None))  # C-23
        key = (name, method, self._context(name, caller))
        bodies = tuple(entry.result for entry in entries)
        listing = self._known.get(key)
        if listing is None or listing.pages != bodies:
            size = sum(map(len, bodies))
            digest = await self._pool.apart.do(name, size, lambda: _digest(bodies))
            twin = (name, method, digest)  # most callers are shown what others are
            listing = self._known.equal(twin) or await self._learn(name, method, pages, bodies)
            weight = size + _PER_ITEM * len(listing.items)
            self._known.put(key, twin, listing, weight)
            self.revision += 1
        received = min(entry.received for entry in entries)
        expires = min(entry.received + entry.ttl for entry in entries)
        return Part(name, listing, received, expires, scope, whence)

    async def _learn(
        self, name: UpstreamName, method: str, pages: list[Page], bodies: tuple[bytes, ...]
    ) -> Listing:
        most = self._config.limits.list_items
        listing = await self._pool.apart.do(
            name, sum(map(len, bodies)), lambda: _listing(pages, bodies, most)
        )
        excluded = listing.excluded
        for item, reason in excluded[:_MOST_TOLD]:
            log.warning("upstream %s: %s left out of %s: %s", name, item, method, reason)
        trimmed = [pair for page in pages for pair in page.trimmed]
        for item, reason in trimmed[:_MOST_TOLD]:
            log.warning("upstream %s: %s of %s is listed without this: %s", name, item, method, reason)
        untold = len(excluded[_MOST_TOLD:]) + len(trimmed[_MOST_TOLD:])
        if untold:
            log.warning("upstream %s: so it is with %d more of %s", name, untold, method)
        for _ in trimmed:
            self._metrics.dropped(name, "member")
        self._metrics.catalogue(name, METHODS[method].items or "", len(listing.items), sum(map(len, bodies)))
        if method == "tools/list":
            self._metrics.excluded_tools(name, len(excluded))
        return listing

    async def _page(self, name: UpstreamName, method: str, cursor: str | None, caller: Caller) -> Cached:
        params: dict[str, Json] = {} if cursor is None else {"cursor": encode(cursor)}
        request = self._request(name, method, caller, params)
        lookup = self._lookup(name, method, caller, cursor)

        async def fill() -> Reply:
            self.seen.began(name, method)
            try:
                if self.on_asking is not None:
                    await self.on_asking(self.followed(name, caller.principal), method)
                with self._asked(name, caller).asking():
                    return await self._pool.call(name, request)
            finally:
                self.seen.ended(name, method, time.monotonic())

        return await self._cache.get(lookup, fill)

    async def _kept_page(
        self, error: UpstreamUnavailable, name: UpstreamName, method: str, cursor: str | None, caller: Caller
    ) -> Cached:
        return await self._cache.stand_in(self._lookup(name, method, caller, cursor), error)

    def _request(
        self, name: UpstreamName, method: str, caller: Caller, params: Mapping[str, Json] | None = None
    ) -> Request:
        return Request(
            method,
            params or {},
            capabilities=caller.profile.capabilities,
            authorization=self.forwarded(name, caller.principal),
            context=self.context(caller.principal),
        )

    def _lookup(self, name: UpstreamName, method: str, caller: Caller, target: str | None) -> Lookup:
        self.asked.add(name)
        return Lookup(
            upstream=name,
            settings=self._settings[name],
            method=method,
            target=target,
            profile=caller.profile.digest,
            version=MODERN_VERSION,
            partition=self._kept_for(name, caller.principal),
            rules=self._rules[name],
            caller=caller.principal.who,
        )

    def context(self, principal: Principal) -> Context:
        """Return whom a server of an older era is to take this caller for."""
        return Context(principal.who or "", principal.session, self._config.cache.single_tenant)

    def _kept_for(self, name: UpstreamName, principal: Principal) -> Partition | None:
        """Return for whom private results are kept: this very credential (C-18), or its bearer if so written.

        What an upstream says to a session of its own stays with that session, whoever has others.
        """
        upstream = self._config.upstreams[name]
        if upstream.cache.partition == "subject" and upstream.apart != "session":
            return principal.who
        return principal.partition

    def followed(self, name: UpstreamName, principal: Principal) -> Followed:
        """Return in which context this upstream meets a caller: its own with `forward`, else everybody's."""
        forward = self._config.upstreams[name].auth.personal
        return Followed(name, principal.partition if forward else None)

    def _context(self, name: UpstreamName, caller: Caller) -> Partition | None:
        return self.followed(name, caller.principal).context

    def _asked(self, name: UpstreamName, caller: Caller) -> Busy:
        """Return the clock that runs while an upstream is asked in this caller's context."""
        return self._busy.setdefault((name, self._context(name, caller)), Busy())

    def _resting(self, name: UpstreamName, caller: Caller) -> bool:
        rest = self._rests.get((name, self._context(name, caller)))
        return rest is not None and self._clock() < rest[0]

    def _rest(self, name: UpstreamName, caller: Caller) -> None:
        """Leave an upstream that hangs out of lists for a while: it must not slow every one of them (B01).

        One that knows its callers may hang for some of them only.
        """
        key = (name, self._context(name, caller))
        delay = min(self._rests.get(key, (0.0, _FIRST_REST / 2))[1] * 2, _LONGEST_REST)
        self._rests[key] = (self._clock() + delay, delay)


def _listing(pages: list[Page], bodies: tuple[bytes, ...], most: int) -> Listing:
    items = merge_pages(pages)[:most]
    excluded = tuple(pair for page in pages for pair in page.excluded)
    missing = tuple(dict.fromkeys(inner for page in pages for inner in page.missing))
    by_key = {item.key: item for item in items}
    size = sum(map(len, bodies))
    return Listing(items, by_key, bodies, excluded, missing, digest_of_items(items), size)


def _digest(pages: tuple[bytes, ...]) -> bytes:
    whole = sha256()
    for page in pages:
        whole.update(sha256(page).digest())
    return whole.digest()


def rules_of(config: Config, name: str) -> Rules:
    """Return how far one upstream's hints are followed, by the settings.

    What a process says that is its caller's own is that caller's own as well, whatever it says (C-24): it
    knows of nobody else.
    """
    upstream = config.upstreams[name]
    cache = upstream.cache
    ceiling = config.cache.max_ttl if cache.max_ttl is None else min(cache.max_ttl, config.cache.max_ttl)
    return Rules(
        share_public=cache.share_public,
        min_ttl=cache.min_ttl,
        max_ttl=ceiling,
        scope=cache.scope,
        single_tenant=config.cache.single_tenant,
        isolated=upstream.isolated,
    )
