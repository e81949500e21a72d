"""What the clients of one endpoint see of its upstreams' lists: names, items and URIs, made once per parts.

Nothing here waits or decides who may be asked: listings go in, tables and joined items come out. Equal
listings are the same objects, so that a join is made once for as long as no part of it changes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import TypeVar

from cachetools import LRUCache

from gateway.config import Config
from gateway.core.access import LISTED, Sight, matches
from gateway.core.catalogue import NOTHING, Listing
from gateway.core.lists import Item, exposed_items, join_parts
from gateway.core.router import Namespace, NameTable, Shelf, UriTable
from gateway.protocol.call import UpstreamName
from gateway.protocol.methods import is_foreign

Made = TypeVar("Made")

_NAMED = frozenset({"tools/list", "prompts/list"})
_REMEMBERED = 128
_SELECTIONS = 64
"""Ways in which one list is shown: by which upstreams are there, and by what callers may see."""


class Merged:
    """One method's lists of several upstreams as one; what is not asked for is not made.

    It may be made in several threads at once: each makes the same.
    """

    def __init__(
        self,
        method: str,
        parts: Sequence[tuple[Namespace, Listing]],
        name: Callable[[], NameTable | None],
    ) -> None:
        self._method = method
        self._parts = parts
        self._exposed: dict[UpstreamName, tuple[tuple[Item, str, bytes], ...]] = {}
        self._selected: dict[tuple[frozenset[UpstreamName], Sight | None], tuple[bytes, ...]] = {}
        self._name = name

    @cached_property
    def names(self) -> NameTable | None:
        """Whose each exposed name is, None where things have no names."""
        return self._name()

    def items_of(self, shown: Set[UpstreamName], sight: Sight | None = None) -> tuple[bytes, ...]:
        """Return the visible items of these upstreams under their exposed names, in configuration order."""
        key = (frozenset(shown), sight)
        items = self._selected.get(key)
        if items is None:
            if len(self._selected) >= _SELECTIONS:
                self._selected.clear()
            items = self._selected[key] = join_parts(
                self._seen(namespace, listing, sight)
                for namespace, listing in self._parts
                if namespace.upstream in shown
            )
        return items

    def _seen(self, namespace: Namespace, listing: Listing, sight: Sight | None) -> dict[str, bytes]:
        upstream = namespace.upstream
        if upstream not in self._exposed:
            made = exposed_items(self._method, listing.items, namespace=namespace, names=self.names)
            self._exposed[upstream] = tuple(made)
        kind = LISTED[self._method]
        return {
            key: text
            for item, key, text in self._exposed[upstream]
            if sight is None or sight.lists(upstream, kind, item.key, item.members.get("annotations"))
        }


def namespaces(config: Config, names: Iterable[str] | None = None) -> Mapping[UpstreamName, Namespace]:
    """Return how these upstreams, or all of them, are shown, in the order they are named."""
    return {
        UpstreamName(name): Namespace(
            UpstreamName(name),
            config.upstreams[name].prefix,
            config.names.separator,
            config.names.max_length,
            config.names.charset,
        )
        for name in (config.upstreams if names is None else names)
    }


class Federation:
    """The namespaces and rules of one endpoint."""

    def __init__(self, endpoint: str, config: Config) -> None:
        served = config.endpoints[endpoint]
        self.endpoint = endpoint
        self.namespaces = namespaces(config, config.behind(endpoint))
        self._upstream_rules = {name: config.upstreams[name].tools for name in self.namespaces}
        self._endpoint_rules = served.tools
        self._methods = {name: config.upstreams[name].methods for name in self.namespaces}
        self._made: LRUCache[tuple[object, ...], tuple[tuple[Listing, ...], object]] = LRUCache(_REMEMBERED)

    def __repr__(self) -> str:
        return f"<Federation {self.endpoint}: {', '.join(self.namespaces)}>"

    def shed(self) -> None:
        """Forget what was made of listings."""
        self._made.clear()

    def name_prefix(self, name: UpstreamName) -> str:
        """Return what every exposed name of this upstream starts with; names are cut behind it only."""
        space = self.namespaces[name]
        return space.prefix + space.separator if space.prefix else ""

    def carrier(self, method: str, sight: Sight | None = None) -> UpstreamName | None:
        """Return which upstream serves a method that is not known here (K-08), None when none does.

        It is the first that the operator says it of, or the only one there is, of those from which it is not
        hidden.
        """
        if not is_foreign(method):
            return None
        for name, patterns in self._methods.items():
            if matches(method, patterns) and not (sight and sight.hides(name, "method", method)):
                return name
        only = next(iter(self.namespaces)) if len(self.namespaces) == 1 else None
        return None if only is None or (sight and sight.hides(only, "method", method)) else only

    def merged(self, method: str, listings: Mapping[UpstreamName, Listing]) -> Merged:
        """Return the lists of one method as one."""
        parts = [(space, listings.get(name, NOTHING)) for name, space in self.namespaces.items()]
        return self._once((method,), [listing for _, listing in parts], lambda: self._merge(method, parts))

    def uris(
        self,
        resources: Mapping[UpstreamName, Listing],
        templates: Mapping[UpstreamName, Listing],
        sight: Sight | None = None,
    ) -> UriTable:
        """Return where URIs lead, given what the upstreams that have resources list.

        What is hidden from a caller is another upstream's to offer, as if it were not there.
        """
        shelves = [
            (self.namespaces[name], listing, templates.get(name, NOTHING))
            for name, listing in resources.items()
        ]
        used = [listing for _, *both in shelves for listing in both]
        key = ("uris", sight, *resources)
        if sight is not None:
            return self._once(key, used, lambda: _sighted(shelves, sight))
        return self._once(
            key,
            used,
            lambda: UriTable(
                Shelf(space, listed.by_key.keys(), tuple(templated.by_key))
                for space, listed, templated in shelves
            ),
        )

    def _merge(self, method: str, parts: Sequence[tuple[Namespace, Listing]]) -> Merged:
        if method not in _NAMED:
            return Merged(method, parts, lambda: None)
        tools = method == "tools/list"
        return Merged(
            method,
            parts,
            lambda: NameTable(
                ((space, listing.by_key) for space, listing in parts),
                upstream_rules=self._upstream_rules if tools else None,
                endpoint_rules=self._endpoint_rules if tools else None,
            ),
        )

    def _once(self, key: tuple[object, ...], used: Sequence[Listing], make: Callable[[], Made]) -> Made:
        """Return what was made of these very listings before; they are kept, so that no id is used twice."""
        whole = (*key, *map(id, used))
        remembered = self._made.get(whole)
        if remembered is None:
            remembered = self._made[whole] = (tuple(used), make())
        return remembered[1]  # type: ignore[return-value]  # the key names what `make` returns


def _sighted(shelves: Iterable[tuple[Namespace, Listing, Listing]], sight: Sight) -> UriTable:
    """Return the table of what a caller may know of, what is in his lists before the rest."""

    def shelf(space: Namespace, listed: Listing, templated: Listing) -> Shelf:
        upstream = space.upstream
        verdicts = {uri: sight.judge(upstream, "resource", uri, listed=True) for uri in listed.by_key}
        return Shelf(
            space,
            [uri for uri, verdict in verdicts.items() if verdict.listed],
            tuple(
                each
                for each in templated.by_key
                if not sight.judge(upstream, "resource", each, listed=True).hidden
            ),
            [uri for uri, verdict in verdicts.items() if not (verdict.listed or verdict.hidden)],
        )

    return UriTable(
        (shelf(*each) for each in shelves), may=lambda name, uri: not sight.hides(name, "resource", uri)
    )
