"""Finds the upstream behind a name or URI, reading the lists that could tell where none is known yet."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cachetools import LRUCache
from msgspec import Struct

from gateway.config import Config
from gateway.core.access import CONCERNED, LISTED, Kind, Sight, Verdict
from gateway.core.capabilities import RELAYED_EXTENSIONS, declares
from gateway.core.catalogue import NOTHING, Caller, Catalogue, Listing
from gateway.core.discover import extends
from gateway.core.federation import Federation
from gateway.core.lists import Item
from gateway.core.router import NameTable, UriTable
from gateway.protocol.call import (
    SERVED_VERSIONS,
    Challenge,
    Partition,
    Reason,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Json, McpError
from gateway.protocol.methods import LEGACY_METHODS, METHODS, UI, Method
from gateway.upstream.pool import UpstreamPool

log = logging.getLogger(__name__)

Key = TypeVar("Key", UpstreamName, tuple[UpstreamName, str])
T = TypeVar("T")
Failures = list[tuple[Key, Exception]]

_RESOURCE_LISTS = ("resources/list", "resources/templates/list")
_PROVENANCE = 20_000

PUBLIC = Partition("public")
"""Stands for every caller where a public result showed a URI; no hash of a credential looks like it."""


class Target(Struct, frozen=True):
    """What a name led to: the upstream, its own name for it, and the item it listed."""

    upstream: UpstreamName
    original: str
    item: Item


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Whose each exposed name is, at one revision of the catalogue."""

    revision: int
    listings: Mapping[UpstreamName, Listing]
    names: NameTable | None


class Directory:
    """Knows where the names and URIs of one endpoint lead."""

    def __init__(
        self, federation: Federation, config: Config, pool: UpstreamPool, catalogue: Catalogue
    ) -> None:
        self._federation = federation
        self._config = config
        self._pool = pool
        self._catalogue = catalogue
        self._renamed = frozenset(config.endpoints[federation.endpoint].tools.rename.values())
        self._tables: dict[str, _Table] = {}
        self._same_for_all = not any(config.upstreams[name].auth.personal for name in federation.namespaces)
        self._seen: LRUCache[tuple[Partition | None, str], UpstreamName] = LRUCache(_PROVENANCE)

    def go_on_from(self, before: "Directory") -> None:
        """Know what callers were shown by a directory of the same upstreams."""
        self._seen = before._seen

    def shed(self) -> None:
        """Forget what was put together for requests."""
        self._tables = {}
        self._seen = LRUCache(1)

    # Who may do what

    def reached(self, caller: Caller, *kinds: Kind) -> Collection[UpstreamName]:
        """Return the upstreams of which the caller may know something of these kinds, or anything."""
        names, sight = self._federation.namespaces, caller.sight
        return names if sight is None else [name for name in names if sight.reaches(name, *kinds)]

    def shown(self, caller: Caller, row: Method) -> Collection[UpstreamName]:
        """Return the upstreams that a caller may know to serve a method."""
        return self.reached(caller, *CONCERNED.get(row.capability or row.extension or "", ()))

    def judge(self, upstream: UpstreamName, kind: Kind, name: str, caller: Caller) -> Verdict | None:
        """Return what the rules say of this caller's use of a thing, None without rules.

        Of a tool, what it says of itself is known from the list it was last in; so is of a URI whether it is
        listed as it is.
        """
        if caller.sight is None:
            return None
        annotations: Json | None = None
        if kind == "tool":
            listing = self._catalogue.known(upstream, "tools/list", caller) or NOTHING
            item = listing.by_key.get(name)
            annotations = None if item is None else item.members.get("annotations")
        verdict = caller.sight.judge(upstream, kind, name, annotations)
        if verdict.unclear and self._lists(upstream, name, caller):
            return caller.sight.judge(upstream, kind, name, listed=True)
        return verdict

    def _lists(self, upstream: UpstreamName, uri: str, caller: Caller) -> bool:
        """Whether an upstream was last seen to list this very resource or template."""
        known = (self._catalogue.known(upstream, method, caller) for method in _RESOURCE_LISTS)
        return any(listing is not None and uri in listing.by_key for listing in known)

    # Who offers what

    def check_offered(self, method: str, row: Method, caller: Caller) -> None:
        """Raise when no upstream offers what the method needs (S-28).

        An upstream that has not said yet may: it is waited for by whoever needs it, and by nobody else (B01).
        """
        if row.capability is None:
            return
        names = self.shown(caller, row)
        if not names:
            raise not_served(method)
        for name in names:
            if self.may_offer(name, row) and self._may_say(name):
                return
        if any(self._catalogue.offers(name, row.capability) is False for name in names):
            raise not_served(method)
        raise McpError(INTERNAL_ERROR, "no upstream is available")

    def check_extended(self, method: str, row: Method, caller: Caller) -> None:
        """Raise when no upstream has the extension the method belongs to, or it is not let through (K-01)."""
        if row.extension is None:
            return
        names = self.shown(caller, row)
        if row.extension not in self._config.extensions or not any(
            self._extends(name, row.extension) is not False for name in names
        ):
            raise not_served(method)

    def shares_extension(self, name: UpstreamName, declared: Json) -> bool:
        """Whether both ends have some extension that is let through and not known here (K-06)."""
        return any(
            declares(extension, declared) and self._extends(name, extension)
            for extension in self._config.extensions
            if extension not in RELAYED_EXTENSIONS
        )

    def _extends(self, name: UpstreamName, extension: str) -> bool | None:
        """Whether an upstream declared an extension; None while it has not said (B48)."""
        discovered = self._pool.discovered(name)
        return None if discovered is None else extends(discovered.capabilities, extension)

    def may_offer(self, name: UpstreamName, row: Method) -> bool:
        """Whether an upstream declared what the method needs, or has not said yet (B48)."""
        return self._catalogue.offers(name, row.capability) is not False

    def answers(self, name: UpstreamName) -> bool:
        """Whether an upstream was reached, and is not known to be down."""
        return self._pool.discovered(name) is not None and self._pool.available(name)

    def _may_say(self, name: UpstreamName) -> bool:
        """Whether anything is known of this upstream, or will be once it is asked."""
        return self._pool.discovered(name) is not None or self._pool.available(name)

    async def ask_all(
        self, keys: Iterable[Key], ask: Callable[[Key], Awaitable[T]]
    ) -> tuple[dict[Key, T], Failures[Key]]:
        """Ask for all keys at once; return the answers, and the failures.

        A bug of ours that one upstream's answer hits is that upstream's failure: the others answer (B01).
        """
        asked = list(keys)
        if len(asked) == 1:
            outcomes: list[T | BaseException] = [await _outcome(ask(asked[0]))]
        else:
            outcomes = list(await asyncio.gather(*map(ask, asked), return_exceptions=True))
        answers: dict[Key, T] = {}
        failures: Failures[Key] = []
        for key, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, (UpstreamUnavailable, McpError, Challenge)):
                failures.append((key, outcome))
            elif isinstance(outcome, Exception):
                failures.append((key, _bug(key, outcome)))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers[key] = outcome
        return answers, failures

    def known(
        self, method: str, caller: Caller, newer: Mapping[UpstreamName, Listing] | None = None
    ) -> dict[UpstreamName, Listing]:
        """Return what every upstream was last seen to list; `newer` goes before."""
        known: dict[UpstreamName, Listing] = {}
        for name in self._federation.namespaces:
            listing = newer.get(name) if newer else None
            listing = listing or self._catalogue.known(name, method, caller)
            if listing is not None:
                known[name] = listing
        return known

    # Names

    async def find(self, method: str, exposed: str, caller: Caller) -> Target:
        """Return whose name this is, from what was last listed; lists that may hold it are read if need be.

        Raises McpError for a name nobody has, and alike for one that is hidden from this caller, Forbidden
        for one that he may not use, the upstream's failure when its owner cannot be asked.
        """
        target = self._resolve(method, exposed, caller)
        if target is None:
            target = await self._looked_for(method, exposed, caller)
        if caller.sight is not None:
            _judged(method, target, caller.sight).check()
        return target

    async def _looked_for(self, method: str, exposed: str, caller: Caller) -> Target:
        shown = self.shown(caller, METHODS[method])
        for candidates in self._candidates(exposed):
            asked = [name for name in candidates if name in shown and self.may_offer(name, METHODS[method])]
            _, failures = await self.ask_all(asked, lambda name: self._catalogue.part(name, method, caller))
            target = self._resolve(method, exposed, caller)
            if target is not None:
                return target
            for name, error in failures:
                if self._catalogue.known(name, method, caller) is None:
                    raise error
        target = await self._find_bare(method, exposed, caller)
        if target is not None:
            return target
        kind = "tool" if method == "tools/list" else "prompt"
        raise McpError(INVALID_PARAMS, f"Unknown {kind}: {exposed[:128]}")

    async def _find_bare(self, method: str, original: str, caller: Caller) -> Target | None:
        """Return whose own name for a tool this is, where an MCP App may use those (K-10).

        An app knows its server's tools by their own names, and its host hands them on as they are.
        """
        if method != "tools/list" or not self._config.names.bare_name_fallback:
            return None
        row = METHODS[method]
        names = [name for name in self.shown(caller, row) if self.may_offer(name, row)]
        await self.ask_all(names, lambda name: self._catalogue.part(name, method, caller))
        table = self._table(method, caller)
        offering = [
            Target(name, original, table.listings[name].by_key[original])
            for name in names
            if table.names is not None and table.names.exposed(name, original)
        ]
        if caller.sight is not None:
            sight = caller.sight
            offering = [target for target in offering if not _judged(method, target, sight).hidden]
        if len(offering) != 1 or not self._extends(offering[0].upstream, UI):
            return None
        return offering[0]

    async def reread(self, method: str, exposed: str, caller: Caller) -> Target:
        """Return the target as its upstream lists it now, whatever the cache holds (U-20)."""
        target = await self.find(method, exposed, caller)
        await self._catalogue.forget(target.upstream, method, "schema")
        await self._catalogue.part(target.upstream, method, caller)
        return await self.find(method, exposed, caller)

    def listed(self, method: str, exposed: str, caller: Caller) -> Target | None:
        """Return whose name this is by what was last listed, hidden from this caller or not; asks nobody."""
        return self._known_as(method, exposed, caller)

    def _resolve(self, method: str, exposed: str, caller: Caller) -> Target | None:
        target = self._known_as(method, exposed, caller)
        if target is None or caller.sight is None:
            return target
        # What is hidden is looked for like what is unknown: it takes as long to be found nowhere.
        return None if _judged(method, target, caller.sight).hidden else target

    def _known_as(self, method: str, exposed: str, caller: Caller) -> Target | None:
        table = self._table(method, caller)
        found = None if table.names is None else table.names.resolve(exposed)
        if found is None:
            return None
        upstream, original = found
        return Target(upstream, original, table.listings[upstream].by_key[original])

    def _table(self, method: str, caller: Caller) -> "_Table":
        """Return what is listed now; where every caller is shown the same it is put together once."""
        table = self._tables.get(method)
        if table is not None and table.revision == self._catalogue.revision:
            return table
        listings = self.known(method, caller)
        names = self._federation.merged(method, listings).names
        table = _Table(self._catalogue.revision, listings, names)
        if self._same_for_all:
            self._tables[method] = table
        return table

    def targets(self, method: str, caller: Caller) -> dict[str, Target]:
        """Return every name of what was last listed."""
        names = self._federation.merged(method, self.known(method, caller)).names or ()
        found = ((name, self._known_as(method, name, caller)) for name in names)
        return {name: target for name, target in found if target is not None}

    def _candidates(self, exposed: str) -> list[list[UpstreamName]]:
        """Return the upstreams whose names may look like this one, those to be asked first before the others.

        Names are cut behind the prefix only, and whoever has one goes before whoever has none.
        """
        names = list(self._federation.namespaces)
        if exposed in self._renamed:
            return [names]
        prefixes = {name: self._federation.name_prefix(name) for name in names}
        named = [name for name in names if prefixes[name] and exposed.startswith(prefixes[name])]
        return [named, [name for name in names if not prefixes[name]]]

    # URIs

    async def owner(self, uri: str, caller: Caller) -> tuple[UpstreamName, str] | None:
        """Return whose URI this is and how its upstream spells it, None when nobody could own it (F-11).

        What is hidden from the caller is nobody's.
        """
        await self._read_lists(uri, self._offering(caller), caller)
        return self.known_owner(uri, caller)

    def known_owner(self, uri: str, caller: Caller) -> tuple[UpstreamName, str] | None:
        """Return the same by what was last listed and shown; asks nobody."""
        table = self._known_uris(caller)
        seen = self._seen.get((caller.principal.who, uri)) or self._seen.get((PUBLIC, uri))
        return self._unless_hidden(table.resolve(uri, seen=None if seen is None else {uri: seen}), caller)

    def claimant(self, uri: str, caller: Caller) -> tuple[UpstreamName, str] | None:
        """Return who would be asked for a URI that is hidden from the caller, if it were merely unknown."""
        return self._known_uris(caller).claimant(uri)

    async def template_owner(self, template: str, caller: Caller) -> tuple[UpstreamName, str] | None:
        """Return whose template, or URI, this is (F-34)."""
        await self._read_lists(template, self._offering(caller), caller)
        return self._unless_hidden(self._known_uris(caller).resolve_template(template), caller)

    def _unless_hidden(
        self, found: tuple[UpstreamName, str] | None, caller: Caller
    ) -> tuple[UpstreamName, str] | None:
        if found is None:
            return None
        verdict = self.judge(found[0], "resource", found[1], caller)
        return None if verdict is not None and verdict.hidden else found

    def show(self, partition: Partition | None, uri: str, upstream: UpstreamName) -> None:
        """Remember whose result showed this caller a URI that carries no prefix (F-11)."""
        self._seen[partition, uri] = upstream

    def _offering(self, caller: Caller) -> list[UpstreamName]:
        row = METHODS["resources/read"]
        return [name for name in self.shown(caller, row) if self.may_offer(name, row)]

    def _known_uris(self, caller: Caller) -> UriTable:
        resources, templates = (
            {name: self._catalogue.known(name, method, caller) or NOTHING for name in self._offering(caller)}
            for method in _RESOURCE_LISTS
        )
        return self._federation.uris(resources, templates, caller.sight)

    async def _read_lists(self, uri: str, offering: list[UpstreamName], caller: Caller) -> None:
        """Read the lists that were never read, where more than one upstream could own the URI."""
        spaces = self._federation.namespaces
        claiming = [name for name in offering if spaces[name].original_uri(uri) is not None]
        if len(claiming) < 2:
            return
        unread = [
            (name, method)
            for name in claiming
            for method in _RESOURCE_LISTS
            if self._catalogue.known(name, method, caller) is None
        ]
        await self.ask_all(unread, lambda pair: self._catalogue.part(pair[0], pair[1], caller))


def not_served(method: str) -> McpError:
    """Return the error for a method nobody serves here; one for `initialize` names the versions (S-03)."""
    message = "Method not found"
    if method in LEGACY_METHODS:
        message = f"Method not found: this server speaks {', '.join(SERVED_VERSIONS)}"
    return McpError.with_data(METHOD_NOT_FOUND, message, method[:128])


def _judged(method: str, target: Target, sight: Sight) -> Verdict:
    annotations = target.item.members.get("annotations")
    return sight.judge(target.upstream, LISTED[method], target.original, annotations)


async def _outcome(answer: Awaitable[T]) -> T | BaseException:
    try:
        return await answer
    except Exception as error:
        return error


def _bug(key: UpstreamName | tuple[UpstreamName, str], error: Exception) -> UpstreamUnavailable:
    """Return what an exception that nobody foresaw means to the caller; the log has all of it."""
    name = key if isinstance(key, str) else key[0]
    log.error("upstream %s: a bug in the gateway, asking it failed", name, exc_info=error)
    return UpstreamUnavailable(name, Reason.PROTOCOL, type(error).__name__)
