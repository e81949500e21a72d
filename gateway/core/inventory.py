"""Answers an operator who looks for a tool, prompt or resource: its name here, its own name, and whose it is.

Rules about callers are set aside: it is what there is to be seen. Reading asks no upstream; `read` asks those
whose lists nobody has asked for yet, as a caller without a credential would.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from gateway.core.capabilities import list_profile
from gateway.core.catalogue import NOTHING, Caller, Catalogue, Listing
from gateway.core.directory import Directory
from gateway.core.federation import Federation
from gateway.protocol.call import Principal, UpstreamName
from gateway.protocol.jsonrpc import text_or_none
from gateway.protocol.methods import METHODS

KINDS = {
    "tools/list": "tool",
    "prompts/list": "prompt",
    "resources/list": "resource",
    "resources/templates/list": "template",
}
MOST_AT_ONCE = 500
LONGEST_QUERY = 200

_LONGEST_NAME = 256
_LONGEST_TEXT = 240
_QUERY = re.compile(r"(?<!\{)\?.*", re.DOTALL)
_LOGIN = re.compile(r"://[^/?#@]*@")
_PRIVATE = "private: what it says of itself is its callers' own"
_HIDDEN = "hidden by the rules of `tools`"


@dataclass(frozen=True, slots=True)
class Search:
    """What an operator looks for; every word has to be somewhere, in any case."""

    words: str = ""
    kind: str | None = None
    upstream: str | None = None
    offset: int = 0
    limit: int = 50


class Item(Struct, frozen=True, omit_defaults=True):
    """One thing that an upstream lists; without a `name` clients are not shown it, and `note` says why."""

    kind: str
    upstream: str
    original: str
    name: str | None = None
    title: str | None = None
    description: str | None = None
    note: str | None = None


class Page(Struct, frozen=True):
    """Some of what was found."""

    endpoint: str
    total: int
    offset: int
    items: list[Item]
    kinds: dict[str, int]
    """How many of each kind the words and the upstream fit."""
    unread: list[str]
    """Upstreams of which lists are missing that nobody has asked for yet."""


@dataclass(frozen=True, slots=True)
class _Shelf:
    """All items as of one revision of the catalogue, each with the text that is searched."""

    revision: int
    items: Sequence[tuple[str, Item]] = field(default_factory=list)


class Inventory:
    """Knows one endpoint."""

    def __init__(self, federation: Federation, directory: Directory, catalogue: Catalogue) -> None:
        self._federation = federation
        self._directory = directory
        self._catalogue = catalogue
        self._caller = Caller(Principal(), list_profile(b"{}"))
        self._shelf = _Shelf(-1)

    def __repr__(self) -> str:
        return f"<Inventory of {self._federation.endpoint}: {len(self._shelf.items)} items>"

    async def find(self, search: Search) -> Page:
        """Return what fits, those first whose names do."""
        revision = self._catalogue.revision
        if self._shelf.revision != revision:
            known = {method: self._directory.known(method, self._caller) for method in KINDS}
            # In a thread: ten thousand items take tens of milliseconds.
            items = await asyncio.to_thread(lambda: list(self._items(known)))
            self._shelf = _Shelf(revision, items)
        found = await asyncio.to_thread(_found, self._shelf.items, search)
        kinds = Counter(item.kind for item in found)
        if search.kind is not None:
            found = [item for item in found if item.kind == search.kind]
        end = search.offset + search.limit
        return Page(
            self._federation.endpoint,
            len(found),
            search.offset,
            found[search.offset : end],
            {kind: kinds[kind] for kind in KINDS.values()},
            list(dict.fromkeys(name for name, _ in self._unread())),
        )

    async def read(self) -> None:
        """Have the lists fetched that are not known yet; an upstream that does not give its own has none."""
        await self._directory.ask_all(
            self._unread(), lambda pair: self._catalogue.part(pair[0], pair[1], self._caller)
        )

    def _unread(self) -> list[tuple[UpstreamName, str]]:
        return [
            (name, method)
            for name in self._federation.namespaces
            for method in KINDS
            if self._directory.answers(name)
            and self._directory.may_offer(name, METHODS[method])
            and not self._catalogue.lacks(name, method, self._caller)
            and self._catalogue.known(name, method, self._caller) is None
        ]

    def _items(self, known: dict[str, dict[UpstreamName, Listing]]) -> Iterator[tuple[str, Item]]:
        for method, listings in known.items():
            for name in self._federation.namespaces:
                for item in self._of(method, name, listings):
                    words = (item.name, item.original, item.upstream, item.title, item.description)
                    yield "\n".join(filter(None, words)).casefold(), item

    def _of(
        self, method: str, upstream: UpstreamName, listings: dict[UpstreamName, Listing]
    ) -> Iterator[Item]:
        names = self._federation.merged(method, listings).names
        space = self._federation.namespaces[upstream]
        listing = listings.get(upstream, NOTHING)
        private = self._catalogue.private(upstream, method)
        kind = KINDS[method]
        for item in listing.items:
            exposed = space.expose_uri(item.key) if names is None else names.exposed(upstream, item.key)
            described = None if names is None else names.description(upstream, item.key)
            title = text_or_none(item.members.get("title" if names else "name"))
            description = text_or_none(item.members.get("description"))
            yield Item(
                kind,
                upstream,
                _plain(item.key, kind),
                None if exposed is None else _plain(exposed, kind),
                None if private else _text(title),
                _text(described or (None if private else description)),
                _HIDDEN if exposed is None else _PRIVATE if private else None,
            )
        for key, reason in listing.excluded:
            yield Item(kind, upstream, _plain(key, kind), note=f"left out: {reason}"[:_LONGEST_TEXT])


def _found(items: Sequence[tuple[str, Item]], search: Search) -> list[Item]:
    words = search.words[:LONGEST_QUERY].casefold().split()
    fitting = [
        item
        for text, item in items
        if (search.upstream is None or item.upstream == search.upstream)
        and all(word in text for word in words)
    ]
    return sorted(fitting, key=lambda item: not _named(item, words)) if words else fitting


def _named(item: Item, words: Sequence[str]) -> bool:
    name = f"{item.name or ''}\n{item.original}".casefold()
    return all(word in name for word in words)


def _plain(name: str, kind: str) -> str:
    """Return a name as it may be shown: what a URI says in its query, or of a login, may be a secret."""
    if kind in ("resource", "template"):
        name = _QUERY.sub("?…", _LOGIN.sub("://…@", name), count=1)
    return _text(name, _LONGEST_NAME) or ""


def _text(text: str | None, most: int = _LONGEST_TEXT) -> str | None:
    if text is None:
        return None
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return cut.encode("utf-8", "replace").decode()
