"""The single door: a checked call goes in, an answer comes out, whatever upstreams and cache it took.

One Pipeline serves one endpoint. It joins what all upstreams say together, asking through the cache where
the table of methods allows it; what only one of them can answer the courier takes there.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import msgspec
from cachetools import TTLCache

from gateway.cache.responses import Cached, ResponseCache
from gateway.config import Authentication, Config
from gateway.core import discover
from gateway.core.access import CONCERNED, Kind, Sight, Verdict, policy_of
from gateway.core.addressed import Courier
from gateway.core.audience import KINDS, Place, Tracked
from gateway.core.capabilities import declares, list_profile, needed, relayed_extensions, remembering
from gateway.core.catalogue import Caller, Catalogue, Part
from gateway.core.dialogue import Dialogue, holder
from gateway.core.directory import Directory, Failures, Target, not_served
from gateway.core.explain import Explainer
from gateway.core.federation import Federation
from gateway.core.hub import Hub
from gateway.core.inventory import Inventory
from gateway.core.lists import MISSING_META, Cursor, Item, View, decode_cursor, encode_cursor
from gateway.core.results import Dressed, made, missing_capability
from gateway.core.reuse import FRESH, Origin, joined, origin, reuse
from gateway.core.router import uri_problem
from gateway.core.standing import LetGo, counts
from gateway.core.tasks import Tasks
from gateway.core.turning import Door
from gateway.core.views import Views, Whole, owner
from gateway.protocol.call import (
    META_SUBSCRIPTION_ID,
    SERVED_VERSIONS,
    Answer,
    Call,
    Challenge,
    Emit,
    Notice,
    Partition,
    Principal,
    Reason,
    Scope,
    Sink,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Json,
    Malformed,
    McpError,
    Members,
    encode,
    is_null,
    join,
    split,
    text_of,
)
from gateway.protocol.methods import METHODS, TASKS, Method
from gateway.protocol.subscriptions import ACKNOWLEDGED, Wanted, read_wanted, spell
from gateway.support.metrics import Metrics
from gateway.support.redis import redis_budget
from gateway.support.seal import Seal, SealBroken
from gateway.upstream.pool import UpstreamPool

_CURSOR_TTL = 600.0
_REPLACED = "\ufffd"

_MERGED = "*"
"""The metrics' upstream label of an answer joined from all of them."""


class Pipeline:
    """Serves one endpoint; lives as long as the Runtime it belongs to."""

    def __init__(
        self,
        federation: Federation,
        config: Config,
        *,
        pool: UpstreamPool,
        cache: ResponseCache,
        catalogue: Catalogue,
        hub: Hub,
        seal: Seal,
        metrics: Metrics,
        server_info: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._federation = federation
        self._config = config
        self._pool = pool
        self._cache = cache
        self._catalogue = catalogue
        self._hub = hub
        shared = config.cache
        self._redis_budget = None if shared.redis is None else max(shared.redis_budget, shared.redis_timeout)
        self._policy = policy_of(config, federation.endpoint)
        self._directory = Directory(federation, config, pool, catalogue)
        self._seal = seal
        self._metrics = metrics
        self._server_info = server_info
        self._clock = clock
        dialogue = Dialogue(federation, config, seal)
        extensions = frozenset(config.extensions)
        self._tasks = Tasks(federation, dialogue, seal, carried=TASKS in extensions)
        self._courier = Courier(
            federation,
            pool=pool,
            catalogue=catalogue,
            directory=self._directory,
            dialogue=dialogue,
            tasks=self._tasks,
            extensions=extensions,
            baggage=frozenset(config.tracing.baggage),
            metrics=metrics,
            server_info=server_info,
            clock=clock,
        )
        self.show = self._directory.show
        self._views = Views(max(config.cache.memory // 4, 2**20), clock)
        self.explainer = Explainer(
            federation, config, self._directory, catalogue, self._views, cache, self._policy, clock=clock
        )
        self.inventory = Inventory(federation, self._directory, catalogue)
        self._profile = remembering(partial(list_profile, extensions=extensions))
        self.remembered: Counter[str] = Counter()
        """Answers joined before, by method: for each of them no upstream's part was even looked for."""
        self._snapshots: TTLCache[tuple[Sight | None, Partition | None, bytes], _Snapshot] = TTLCache(
            max(config.cache.memory // 4, 2**20), _CURSOR_TTL, timer=clock, getsizeof=_weight
        )

    def __repr__(self) -> str:
        return f"<Pipeline {self._federation.endpoint}: {', '.join(self._federation.namespaces)}>"

    async def handle(self, call: Call, principal: Principal, emit: Emit) -> Answer:
        """Return the answer to any request but a listen.

        Raises McpError for what the client should be told, UpstreamUnavailable for an upstream that did not
        answer, Challenge for one that refused the caller's own credential, and Forbidden for what the rules
        do not let this caller do.
        """
        if self._redis_budget is None:
            return await self._handled(call, principal, emit)
        with redis_budget(self._redis_budget):
            return await self._handled(call, principal, emit)

    async def _handled(self, call: Call, principal: Principal, emit: Emit) -> Answer:
        row = METHODS.get(call.method)
        if row is None:
            return await self._courier.foreign(call, self._caller(call, principal), emit)
        match row.kind:
            case "discover":
                return await self._discover(call, principal)
            case "list":
                return await self._list(call, row, principal)
            case "named":
                return await self._courier.named(call, row, self._caller(call, principal), emit)
            case "read":
                return await self._courier.read(call, row, self._caller(call, principal), emit)
            case "complete":
                return await self._courier.complete(call, row, self._caller(call, principal), emit)
            case "task":
                return await self._courier.task(call, row, self._caller(call, principal), emit)
            case "listen":
                raise ValueError("a listen is served by `listen`")
            case kind:
                assert_never(kind)

    def passes(self, method: str, principal: Principal) -> bool:
        """Whether an upstream may serve this caller a method that is not known here (K-08)."""
        return self._federation.carrier(method, self.sight(principal)) is not None

    def sight(self, principal: Principal) -> Sight | None:
        """Return what the rules let a caller see, None without rules."""
        return None if self._policy is None else self._policy.sight(principal)

    def admits(self, principal: Principal, before: Authentication) -> bool:
        """Whether who was let in `before` would be let in again."""
        return counts(principal, before, self._config.authentication)

    async def listen(self, call: Call, principal: Principal, sink: Sink) -> Answer:
        """Acknowledge a subscription, and relay what it asks for until the gateway is to end it.

        The acknowledgement comes first and promises what is sure to be told, which may be nothing: an error
        would end clients that open a listen while they connect (L-03, L-04, L-07, L-08).
        """
        wanted = _wanted(call, self._config.subscriptions.uri_bytes)
        caller = self._caller(call, principal)
        deadline = asyncio.get_running_loop().time() + self._config.subscriptions.acknowledge
        places: dict[str, Place] = {}
        silent: frozenset[str] = frozenset()
        if self._door() is self:
            places, silent = await self._places(wanted.uris, caller, deadline)
        if (door := self._door()) is not self:  # what was found may be promised no more
            if not door.admits(principal, self._config.authentication):
                raise LetGo
            return await door.listen(call, principal, sink)
        stream = await self._hub.subscribe(
            call.id,
            self._federation.endpoint,
            principal,
            msgspec.structs.replace(self._advertised(wanted, caller), uris=silent),
            places,
            self._tracked(wanted.tasks, call, caller),
            deadline=deadline,
            sight=caller.sight,
            asked=wanted,
            extensions=relayed_extensions(
                call.meta.capabilities, extensions=frozenset(self._config.extensions)
            ),
        )
        meta: Members = {META_SUBSCRIPTION_ID: call.id}
        try:
            acknowledged = {"_meta": join(meta), "notifications": spell(stream.wanted)}
            await sink.emit(Notice(ACKNOWLEDGED, acknowledged))
            await self._hub.relay(stream, sink)
        finally:
            self._hub.leave(stream)
        # The id belongs to the gateway here, so it goes past the filter for what upstreams write (L-10).
        ended = made(call.method, {}, server_info=self._server_info, own_meta=meta)
        return Answer(ended.segments())

    def _door(self) -> Door:
        """Return behind what the endpoint is served now, by another configuration perhaps."""
        door = self._hub.door(self._federation.endpoint)
        if door is None:
            raise McpError(INTERNAL_ERROR, "This endpoint is not served any more")
        return door

    def go_on_from(self, before: "Pipeline") -> None:
        """Let clients page on through lists, and know what they were shown, where all of it is the same."""
        self._snapshots = before._snapshots
        self._directory.go_on_from(before._directory)

    def shed(self) -> None:
        """Forget what was put together for answers: nobody asks any more, though streams may be open."""
        self._views.clear()
        self._snapshots = TTLCache(1, _CURSOR_TTL)
        self._directory.shed()
        self._federation.shed()

    def give_up(self, call: Call, principal: Principal) -> None:
        """Let a call end that was answered with questions, as the client will not answer them."""
        self._courier.give_up(call, principal)

    def report(self, call: Call, principal: Principal, key: str, params: Members) -> None:
        """Pass on how far the client is with the answer to one question of those that a call leads to."""
        self._courier.report(call, principal, key, params)

    def on_withdrawn(self, call: Call, principal: Principal, key: str, tell: Callable[[], None]) -> None:
        """Have it told once nobody wants the answer to one question of those that a call leads to."""
        self._courier.on_withdrawn(call, principal, key, tell)

    def note(self, notice: Notice, principal: Principal) -> None:
        """Pass on what an older client tells of itself, to the older servers that it has sessions with."""
        context = self._catalogue.context(principal)
        for name in self._federation.namespaces:
            self._pool.note(name, context, notice)

    async def check_subscribable(self, uri: str, capabilities: Json, principal: Principal) -> None:
        """Raise McpError unless an upstream tells of the updates of this resource, or may do so.

        What becomes of each is known only from its stream; this is for clients that ask for one at a time.
        """
        caller = self._as(principal, capabilities)
        odd = uri_problem(uri) is not None or _REPLACED in uri
        found = None if odd else await self._directory.owner(uri, caller)
        if found is not None:
            verdict = self._directory.judge(found[0], "resource", found[1], caller)
            if verdict is not None:
                verdict.check()
        elif not odd:  # what is hidden is subscribed to like what nobody has; nothing will be told of it
            found = self._directory.claimant(uri, caller)
        if found is None or not found[1]:
            raise McpError.with_data(INVALID_PARAMS, "Resource not found", {"uri": uri})
        discovered = self._pool.discovered(found[0])
        if discovered is not None and not discover.subscribes(discovered.capabilities):
            raise McpError(INVALID_PARAMS, f"upstream {found[0]} does not tell of updates")

    def _advertised(self, wanted: Wanted, caller: Caller) -> Wanted:
        """Return the lists of these that some upstream has, or may turn out to have (F-23, L-07)."""
        rows = [METHODS[f"{kind}/list"] for kind in KINDS]
        tools, prompts, resources = (
            any(self._directory.may_offer(name, row) for name in self._directory.shown(caller, row))
            for row in rows
        )
        return wanted & Wanted(tools, prompts, resources)

    def _tracked(self, ids: frozenset[str], call: Call, caller: Caller) -> dict[str, Tracked]:
        """Return where these tasks are, and how this caller is told of them; those of others are left out."""
        principal = caller.principal
        few = sorted(ids)[: self._config.subscriptions.uris_per_stream]
        return {
            exposed: Tracked(
                self._catalogue.followed(held.upstream, principal),
                held.original,
                partial(self._courier.told, call, principal, exposed, held),
            )
            for exposed, held in self._tasks.places(few, principal).items()
            if self._allows(held.upstream, "tool", held.tool, caller)
        }

    def _allows(self, upstream: UpstreamName, kind: Kind, name: str, caller: Caller) -> bool:
        verdict = self._directory.judge(upstream, kind, name, caller)
        return verdict is None or verdict.allowed

    async def _places(
        self, uris: frozenset[str], caller: Caller, deadline: float
    ) -> tuple[dict[str, Place], frozenset[str]]:
        """Return where these resources lead, and those that are promised though nothing is told of them.

        Those are hidden from this caller: servers grant what they do not have, and silence is all that
        follows. Left out is what nobody could own, what takes scopes that this caller lacks, a second
        spelling of one resource, of which the client is told under the first, and what holds the mark of a
        character that was none: that is not what the client wrote.
        """
        places: dict[str, Place] = {}
        silent: set[str] = set()
        taken: set[Place] = set()
        for uri in sorted(uris)[: self._config.subscriptions.uris_per_stream]:
            if uri_problem(uri) is not None or _REPLACED in uri:
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    found = await self._directory.owner(uri, caller)
            except TimeoutError:
                found = self._directory.known_owner(uri, caller)
            hidden = found is None
            if found is None:
                found = self._directory.claimant(uri, caller)
            if found is None or not found[1]:
                continue
            if not hidden and not self._allows(found[0], "resource", found[1], caller):
                continue
            place = Place(self._catalogue.followed(found[0], caller.principal), found[1])
            if place in taken:
                continue
            taken.add(place)
            if not hidden:
                places[uri] = place
            elif self._tells(found[0]):
                silent.add(uri)
        return places, frozenset(silent)

    def _tells(self, name: UpstreamName) -> bool:
        """Whether an upstream is there that tells of the updates of resources."""
        discovered = self._pool.discovered(name) if self._pool.available(name) else None
        return discovered is not None and discover.subscribes(discovered.capabilities)

    async def tools(
        self, principal: Principal | None = None
    ) -> tuple[dict[str, Target], list[str], dict[str, Verdict]]:
        """Return the tools a caller is shown, as in its list, what was missing, and what rules kept from it.

        Without a principal it is somebody for whom all rules are set aside. All upstreams are asked as they
        are for callers without a credential.
        """
        row = METHODS["tools/list"]
        caller = Caller(Principal(), list_profile(b"{}"))
        self._directory.check_offered("tools/list", row, caller)
        parts, failures = await self._gather("tools/list", row, caller)
        if principal is not None and self._policy is not None:
            caller = msgspec.structs.replace(caller, sight=self._policy.sight(principal))
        listed = map(split, (await self._view("tools/list", caller, parts, failures)).items)
        shown = {text_of(members["name"]) or "": members for members in listed}
        targets = self._directory.targets("tools/list", caller)
        tools = {
            name: Target(at.upstream, at.original, Item(at.original, members))
            for name, members in shown.items()
            if (at := targets.get(name)) is not None
        }
        problems = [str(error) for _, error in failures]
        problems += [
            f"upstream {part.upstream}: {item} left out: {reason}"
            for part in parts
            for item, reason in part.listing.excluded
        ]
        verdicts = {
            name: self._directory.judge(target.upstream, "tool", target.original, caller)
            for name, target in targets.items()
        }
        kept = {name: verdict for name, verdict in verdicts.items() if verdict and not verdict.allowed}
        return tools, problems, kept

    # What all upstreams say together

    async def _discover(self, call: Call, principal: Principal) -> Answer:
        caller = self._caller(call, principal)
        remembered = self._remembered(call.method, caller)
        if remembered is not None:
            return remembered
        epoch = self._cache.epoch
        names = list(self._directory.reached(caller))
        answers, failures = await self._directory.ask_all(
            names, lambda name: self._catalogue.discover(name, caller)
        )
        parts = [
            discover.Part(name, self._federation.name_prefix(name), result, _unknown_to(caller, name))
            for name in names
            if (result := self._said(name, answers.get(name))) is not None
        ]
        if not parts and names:
            raise _all_failed(call.method, failures)
        merged = discover.merge(
            parts,
            listens=True,
            max_instructions=self._config.limits.instructions,
            extensions=frozenset(self._config.extensions),
        )
        expires, scope = _least(
            ((cached.entry.received + cached.entry.ttl, cached.entry.scope) for cached in answers.values()),
            partial=bool(failures),
        )
        received = min((cached.entry.received for cached in answers.values()), default=self._clock())
        dressed = self._joined(call.method, merged.members(SERVED_VERSIONS), failures)
        origins = (origin(cached.source, cached.reason) for cached in answers.values())
        whence = joined(origins, partial=bool(failures))
        return self._whole(
            call.method, caller, Whole(dressed, received, expires, scope, epoch, len(answers)), whence
        )

    def _said(self, name: UpstreamName, cached: Cached | None) -> Json | None:
        """Return what an upstream says it can do, its last known word when it is down (B48)."""
        if cached is not None:
            return cached.entry.result
        known = self._pool.discovered(name)
        return None if known is None else known.result

    async def _list(self, call: Call, row: Method, principal: Principal) -> Answer:
        caller = self._caller(call, principal)
        cursor = self._open_cursor(call, principal)
        if cursor is None:
            remembered = self._remembered(call.method, caller)
            if remembered is not None:
                return remembered
        self._directory.check_offered(call.method, row, caller)
        snapshot = None if cursor is None else self._snapshot(cursor.digest, caller)
        if cursor is not None and snapshot is not None:
            return self._page(call, row, snapshot, caller, cursor.offset, FRESH)
        epoch = self._cache.epoch
        parts, failures = await self._gather(call.method, row, caller)
        view = await self._view(call.method, caller, parts, failures)
        received = min(part.received for part in parts)
        whence = joined((part.origin for part in parts), partial=bool(failures))
        if cursor is not None and view.digest != cursor.digest:
            raise McpError(INVALID_PARAMS, "cursor: the list has changed since, start again without it")
        if cursor is not None or len(view.items) > self._config.limits.page_size:
            offset = 0 if cursor is None else cursor.offset
            snapshot = _Snapshot(view, received, failures)
            return self._page(call, row, snapshot, caller, offset, whence)
        dressed = self._joined(call.method, {row.items or "": view.body}, failures)
        whole = Whole(dressed, received, view.expires, view.scope, epoch, len(parts))
        return self._whole(call.method, caller, whole, whence)

    async def _gather(
        self, method: str, row: Method, caller: Caller
    ) -> tuple[list[Part], Failures[UpstreamName]]:
        """Ask every upstream that may have something to list, all at once (B01)."""
        names = [name for name in self._directory.shown(caller, row) if self._directory.may_offer(name, row)]
        answers, failures = await self._directory.ask_all(
            names, lambda name: self._catalogue.part(name, method, caller)
        )
        parts = [part for name in names if (part := answers.get(name)) is not None]
        for name, error in failures:
            if isinstance(error, UpstreamUnavailable):
                self._hub.lacked(name, method, caller)
        self._hub.whole([part.upstream for part in parts], method)
        if not any(part.served for part in parts):
            raise _all_failed(method, failures) if failures else not_served(method)
        # What an upstream that is a gateway lacks is lacking here, too.
        inner = [UpstreamName(f"{part.upstream}/{name}") for part in parts for name in part.listing.missing]
        return parts, failures + [(name, UpstreamUnavailable(name, Reason.DOWN)) for name in inner]

    async def _view(
        self, method: str, caller: Caller, parts: Sequence[Part], failures: Failures[UpstreamName]
    ) -> View:
        shown = {part.upstream: part.listing for part in parts}
        # The names of a missing upstream stay reserved while its items are not shown (B09, C-28).
        known = self._directory.known(method, caller, shown)
        merged = self._federation.merged(method, known)
        expires, scope = _least(((part.expires, part.scope) for part in parts), partial=bool(failures))
        # Whoever lists much has it joined in turns of his own.
        largest = max(parts, key=lambda part: part.listing.size)
        items = await self._pool.apart.do(
            largest.upstream,
            sum(listing.size for listing in shown.values()),
            lambda: merged.items_of(shown.keys(), caller.sight),
        )
        return View(method, items, scope, expires)

    def _page(
        self,
        call: Call,
        row: Method,
        snapshot: "_Snapshot",
        caller: Caller,
        offset: int,
        whence: Origin,
    ) -> Answer:
        """Return one page of a list too long for one answer; every page carries the whole's scope (C-23)."""
        view, principal = snapshot.view, caller.principal
        body, following = view.slice(offset, self._config.limits.page_size)
        members: dict[str, Json] = {row.items or "": body}
        if following is not None:
            owner = None if view.scope == "public" else principal.partition
            if _weight(snapshot) <= self._snapshots.maxsize:
                self._snapshots[caller.sight, owner, view.digest] = snapshot
            cursor = encode_cursor(Cursor(call.method, following, view.digest, self._federation.endpoint))
            token = self._seal.seal("cursor", cursor, bound_to=holder(principal), ttl=_CURSOR_TTL)
            members["nextCursor"] = encode(token)
        dressed = self._joined(call.method, members, snapshot.failures)
        now, scope = self._clock(), self._told(view.scope)
        return Answer(
            dressed.segments(_remaining_ms(view.expires, now), scope),
            reuse(whence, received=snapshot.received, expires=view.expires, scope=scope, now=now),
        )

    def _snapshot(self, digest: bytes, caller: Caller) -> "_Snapshot | None":
        """Return the list a caller is paging through: that caller's own, or everybody's (F-21).

        Whoever may see less by now than when it was made has to begin anew (Z-08).
        """
        own = self._snapshots.get((caller.sight, caller.principal.partition, digest))
        return own or self._snapshots.get((caller.sight, None, digest))

    def _open_cursor(self, call: Call, principal: Principal) -> Cursor | None:
        raw = call.params.get("cursor")
        if is_null(raw):
            return None
        token = text_of(raw)
        try:
            if token is None:
                raise Malformed("not a string")
            cursor = decode_cursor(self._seal.open("cursor", token, bound_to=holder(principal)))
        except (SealBroken, Malformed):
            raise McpError(INVALID_PARAMS, "cursor: not one of ours, or too old") from None
        if (cursor.method, cursor.endpoint) != (call.method, self._federation.endpoint):
            raise McpError(INVALID_PARAMS, "cursor: it belongs to another list")
        return cursor

    def _joined(self, method: str, members: Members, failures: Failures[UpstreamName]) -> Dressed:
        if failures:
            missing: Members = {MISSING_META: encode(sorted(name for name, _ in failures))}
            members = {**members, "_meta": join(missing)}
        return made(method, members, server_info=self._server_info)

    def _remembered(self, method: str, caller: Caller) -> Answer | None:
        owner, epoch = self._owner(caller), self._cache.epoch
        whole = self._views.get(method, caller.profile.digest, owner, epoch, caller.sight)
        if whole is None:
            return None
        age = self._clock() - whole.received
        self._metrics.cache_lookup(_MERGED, method, "hit", "fresh", age, calls=whole.parts)
        self.remembered[method] += 1
        return self._served(whole, FRESH)

    def _whole(self, method: str, caller: Caller, whole: Whole, whence: Origin) -> Answer:
        owner, epoch = self._owner(caller), self._cache.epoch
        self._views.put(method, caller.profile.digest, owner, whole, epoch, caller.sight)
        return self._served(whole, whence)

    def _owner(self, caller: Caller) -> Partition | None:
        """Return whom a private answer may be given to again; without a credential nobody, or all (C-19)."""
        return owner(caller.principal, single_tenant=self._config.cache.single_tenant)

    def _served(self, whole: Whole, whence: Origin) -> Answer:
        now, scope = self._clock(), self._told(whole.scope)
        return Answer(
            whole.dressed.segments(_remaining_ms(whole.expires, now), scope),
            reuse(whence, received=whole.received, expires=whole.expires, scope=scope, now=now),
        )

    def _told(self, scope: Scope) -> Scope:
        """Return who may be given an answer again by others than us: with rules, its caller (C-21, C-22)."""
        return scope if self._policy is None else "private"

    def _caller(self, call: Call, principal: Principal) -> Caller:
        return self._as(principal, call.meta.capabilities)

    def _as(self, principal: Principal, capabilities: Json) -> Caller:
        profile = self._profile(capabilities)
        if self._policy is None:
            return Caller(principal, profile)
        return Caller(principal, profile, self._policy.sight(principal))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A list being paged through, as it was when its first page went out, and what it lacked then."""

    view: View
    received: float
    failures: Failures[UpstreamName]


def _unknown_to(caller: Caller, name: UpstreamName) -> frozenset[str]:
    """Return the capabilities and extensions with which a caller can reach nothing of an upstream."""
    sight = caller.sight
    if sight is None:
        return frozenset()
    return frozenset(key for key, kinds in CONCERNED.items() if not sight.reaches(name, *kinds))


def _weight(snapshot: _Snapshot) -> int:
    """Return the bytes of a snapshot: its items, the array they were joined to, and what surrounds them."""
    view = snapshot.view
    return 1024 + 2 * len(view.body) + 64 * len(view.items)


def _wanted(call: Call, most: int) -> Wanted:
    """Return what a listen wants; raises when it wants tasks without knowing of them (L-23), or too much.

    What all clients name goes to their upstream in one message, which has to take it.
    """
    wanted = read_wanted(call.params)
    if sum(len(name.encode(errors="surrogatepass")) for name in (*wanted.uris, *wanted.tasks)) > most:
        raise McpError(INVALID_PARAMS, f"notifications name more than {most} bytes of resources and tasks")
    if wanted.tasks and not declares(TASKS, call.meta.capabilities):
        raise missing_capability(needed(TASKS), "notifications.taskIds needs the tasks extension")
    return wanted


def _least(hints: Iterable[tuple[float, Scope]], *, partial: bool) -> tuple[float, Scope]:
    """Return the first end of a part's life and the narrowest scope (C-27); partial is stale (C-28)."""
    expires, scope = float("inf"), "public"
    for ends, seen_by in hints:
        expires = min(expires, ends)
        if seen_by == "private":
            scope = "private"
    if partial or expires == float("inf"):
        return 0.0, "private"
    return expires, "private" if scope == "private" else "public"


def _remaining_ms(expires: float, now: float) -> int:
    return max(0, int((expires - now) * 1000))


def _all_failed(method: str, failures: Failures[UpstreamName]) -> Exception:
    """Return what to raise when no upstream answered: a caller can act on a challenge only (B01, B15)."""
    for _, error in failures:
        if isinstance(error, Challenge):
            return error
    if len(failures) == 1:
        return failures[0][1]
    told = "; ".join(
        str(error)
        if isinstance(error, UpstreamUnavailable)
        else f"upstream {name}: it answered with an error"
        for name, error in failures
    )
    return McpError(INTERNAL_ERROR, f"no upstream answered {method}: {told}")
