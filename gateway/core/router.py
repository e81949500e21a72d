"""Gives names and URIs their federated form and finds the upstream behind one again.

Names are routed by table, never by splitting (B09): a name that had to be cut cannot be split back. URIs
are the other way round: their federated form is undone from the text alone, so that a link no list ever
held still finds its upstream (F-14).
"""

import json
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Literal

from gateway.config import ToolRules
from gateway.core.access import allowed
from gateway.protocol.call import UpstreamName

_PREFIX = re.compile(
    r"[a-z][a-z0-9-]{0,30}"
)  # F-02: no "_", "+", "/", ":" keeps every rule below unambiguous
_NAME = {"strict": re.compile(r"[A-Za-z0-9_-]+"), "spec": re.compile(r"[A-Za-z0-9_.-]+")}
_ILLEGAL = {"strict": re.compile(r"[^A-Za-z0-9_-]+"), "spec": re.compile(r"[^A-Za-z0-9_.-]+")}
_SHORTEST_LIMIT = 20
_HASH, _LONG_HASH = 8, 16

_KEPT = re.compile(r"(?:https?|data):", re.ASCII | re.IGNORECASE)
_UI = re.compile(r"ui://", re.ASCII | re.IGNORECASE)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LONGEST_URI = 8192
_LONGEST_TEMPLATE = 2048
_NO_RULES = ToolRules()


@dataclass(frozen=True, slots=True)
class Namespace:
    """One upstream's share of the names and URIs clients see; an empty prefix leaves them as they are."""

    upstream: UpstreamName
    prefix: str
    separator: str = "__"
    max_length: int = 64
    charset: Literal["strict", "spec"] = "strict"

    def __post_init__(self) -> None:
        if self.prefix and not _PREFIX.fullmatch(self.prefix):
            raise ValueError(f"the prefix {self.prefix!r} must match {_PREFIX.pattern}")
        if not _NAME[self.charset].fullmatch(self.separator):
            raise ValueError(
                f"the separator {self.separator!r} must be made of {_NAME[self.charset].pattern}"
            )
        if self.max_length < _SHORTEST_LIMIT:
            raise ValueError(f"names need room for {_SHORTEST_LIMIT} characters at least")

    def expose_name(self, original: str, *, base: str | None = None, taken: Container[str] = ()) -> str:
        """Return the exposed name; `base` is what the operator renamed the original to.

        Without `taken` it depends on nothing but this namespace and the original: no other tool and no
        other upstream can change it, and every replica says the same after every restart (B03, B09).
        """
        return self.fit(self.plain_name(original if base is None else base), original, taken)

    def fit(self, wanted: str, original: str, taken: Container[str] = ()) -> str:
        """Return `wanted` if clients accept it and it is free, else what is legal of it and a hash."""
        if len(wanted) <= self.max_length and _NAME[self.charset].fullmatch(wanted) and wanted not in taken:
            return wanted
        legal = _ILLEGAL[self.charset].sub("_", wanted)
        attempt = 0
        while (name := self._hashed(legal, original, attempt)) in taken:
            attempt += 1
        return name

    def expose_uri(self, uri: str) -> str:
        """Return the URI clients see (F-09): the scheme is compared without case, no character is changed.

        Hosts require `ui:` and clients may fetch `http:`, `https:` and `data:` themselves; anything else,
        opaque or without a scheme too, gets the prefix and "+" in front, which makes a valid scheme.
        """
        if not self.prefix or _KEPT.match(uri):
            return uri
        if _UI.match(uri):
            return f"{uri[:5]}{self.prefix}/{uri[5:]}"
        return f"{self.prefix}+{uri}"

    def original_uri(self, exposed: str) -> str | None:
        """Return the upstream's own URI, or None when this namespace exposes no such URI."""
        if not self.prefix or _KEPT.match(exposed):
            return exposed
        if _UI.match(exposed):
            return (
                exposed[:5] + rest if (rest := _after(exposed[5:], self.prefix + "/")) is not None else None
            )
        return _after(exposed, self.prefix + "+")

    def expose_template(self, template: str) -> str:
        """Return the template whose expansions are the exposed form of the original's expansions (F-10).

        The rule for URIs looks at the scheme only, and no "{" can stand in a scheme it knows: a template that
        starts with a variable, or has one in its scheme, gets the "+" form, which every expansion undoes.
        """
        return self.expose_uri(template)

    def original_template(self, exposed: str) -> str | None:
        """Return the upstream's own template, or None when this namespace exposes no such template."""
        return self.original_uri(exposed)

    def plain_name(self, name: str) -> str:
        """Return the name as F-03 has it, whether or not clients accept it."""
        return f"{self.prefix}{self.separator}{name}" if self.prefix else name

    def _hashed(self, legal: str, original: str, attempt: int) -> str:
        # Escaped JSON, because any string then has bytes to hash, a lone surrogate too.
        text = json.dumps([self.upstream, original, attempt]).encode()
        suffix = sha256(text).hexdigest()[: _LONG_HASH if attempt else _HASH]
        return f"{legal[: self.max_length - len(suffix) - 1]}_{suffix}"


@dataclass(frozen=True, slots=True)
class Collision:
    """Two originals wanted one exposed name: `held_by` keeps it, `upstream` and `original` got `given`."""

    wanted: str
    held_by: tuple[UpstreamName, str]
    upstream: UpstreamName
    original: str
    given: str


@dataclass(frozen=True, slots=True)
class _Claim:
    namespace: Namespace
    original: str
    wanted: str
    legal: str

    @classmethod
    def of(cls, namespace: Namespace, original: str, wanted: str) -> "_Claim":
        return cls(namespace, original, wanted, namespace.fit(wanted, original))

    @property
    def key(self) -> tuple[UpstreamName, str]:
        return self.namespace.upstream, self.original


class NameTable:
    """Which exposed name means which upstream's tool or prompt; one table for tools, one for prompts.

    Who keeps a contested name follows from the configuration, never from who answered first: what the
    operator renamed before what an upstream happens to call so, upstreams with a prefix before those
    without (whose names may look like anybody's), then configuration order. Everyone else gets a hash
    suffix and is reported in `collisions`. Hand in the last known names of an upstream that is down as
    well, or a name of its would pass to another upstream for that time.

    An upstream's rules are about original names, the endpoint's about the names its clients would see
    without them; a tool they hide has no exposed name.
    """

    def __init__(
        self,
        parts: Iterable[tuple[Namespace, Iterable[str]]],
        *,
        upstream_rules: Mapping[UpstreamName, ToolRules] | None = None,
        endpoint_rules: ToolRules | None = None,
    ) -> None:
        self._upstream_rules = upstream_rules or {}
        self._endpoint_rules = endpoint_rules or _NO_RULES
        self._originals: dict[str, tuple[UpstreamName, str]] = {}
        self._exposed: dict[tuple[UpstreamName, str], str] = {}
        self._federated: dict[tuple[UpstreamName, str], str] = {}
        collisions: list[Collision] = []
        claims = list(self._claims(parts))
        federated = _settle(claims, collisions)
        self._federated = {claim.key: name for name, claim in federated.items()}
        for name, claim in _settle(self._endpoint_claims(federated), collisions).items():
            self._originals[name] = claim.key
            self._exposed[claim.key] = name
        self.collisions = tuple(collisions)

    def __repr__(self) -> str:
        return f"<NameTable {len(self._originals)} names, {len(self.collisions)} collisions>"

    def __len__(self) -> int:
        return len(self._originals)

    def __iter__(self) -> Iterator[str]:
        return iter(self._originals)

    def resolve(self, exposed: str) -> tuple[UpstreamName, str] | None:
        """Return the upstream and its own name, or None for a name that is unknown or hidden alike (F-08)."""
        return self._originals.get(exposed)

    def exposed(self, upstream: UpstreamName, original: str) -> str | None:
        """Return the name clients see, or None for what this upstream does not offer here."""
        return self._exposed.get((upstream, original))

    def description(self, upstream: UpstreamName, original: str) -> str | None:
        """Return the operator's own description; the endpoint's word goes before the upstream's."""
        federated = self._federated.get((upstream, original), "")
        own = self._rules(upstream).describe.get(original)
        return self._endpoint_rules.describe.get(federated, own)

    def _rules(self, upstream: UpstreamName) -> ToolRules:
        return self._upstream_rules.get(upstream) or _NO_RULES

    def _claims(self, parts: Iterable[tuple[Namespace, Iterable[str]]]) -> Iterator[_Claim]:
        for namespace, names in sorted(parts, key=lambda part: not part[0].prefix):
            rules = self._rules(namespace.upstream)
            visible = {name for name in names if allowed(name, rules)}
            claims = [
                _Claim.of(namespace, name, namespace.plain_name(rules.rename.get(name, name)))
                for name in visible
            ]
            # By name, not by the upstream's order, which may change from one answer to the next.
            yield from sorted(claims, key=lambda claim: (*_rank(claim, rules), claim.original))

    def _endpoint_claims(self, federated: Mapping[str, _Claim]) -> Iterator[_Claim]:
        rename = self._endpoint_rules.rename
        for name, claim in sorted(federated.items(), key=lambda item: item[0] not in rename):
            if allowed(name, self._endpoint_rules):
                yield _Claim.of(claim.namespace, claim.original, rename.get(name, name))


@dataclass(frozen=True, slots=True)
class Shelf:
    """The resources one upstream listed, in its own URIs."""

    namespace: Namespace
    uris: Collection[str] = ()
    templates: tuple[str, ...] = ()
    unlisted: Collection[str] = ()
    """What it listed and its clients may only ask for: others that list it go first."""


class UriTable:
    """Which upstream an exposed URI is read from (F-11), among those a caller may use, in order."""

    def __init__(
        self, shelves: Iterable[Shelf], *, may: Callable[[UpstreamName, str], bool] | None = None
    ) -> None:
        """`may` says which upstream may be known to have a URI that it does not list; None = any."""
        self._shelves = tuple(shelves)
        self._may = may
        self._prefixed = {shelf.namespace.prefix: shelf for shelf in self._shelves if shelf.namespace.prefix}
        self._listed: dict[str, UpstreamName] = {}
        collisions: list[Collision] = []
        for shelf in self._shelves:
            for uri in shelf.uris:
                if not shelf.namespace.prefix or _KEPT.match(uri):
                    self._list(uri, shelf.namespace.upstream, collisions)
        for shelf in self._shelves:
            for uri in shelf.unlisted:
                if not shelf.namespace.prefix or _KEPT.match(uri):
                    self._listed.setdefault(uri, shelf.namespace.upstream)
        self.collisions = tuple(collisions)

    def __repr__(self) -> str:
        return f"<UriTable {len(self._shelves)} upstreams, {len(self.collisions)} collisions>"

    def resolve(
        self, exposed: str, *, seen: Mapping[str, UpstreamName] | None = None
    ) -> tuple[UpstreamName, str] | None:
        """Return the upstream and its own URI, or None for what no upstream here could own.

        A prefix decides alone. Without one, whoever listed the URI goes first, then who showed it to this
        caller (`seen`), then whose template fits, then configuration order.
        """
        if (owner := self._owner(exposed)) is not None:
            return owner
        upstream = self._listed.get(exposed) or self._candidate(exposed, (seen or {}).get(exposed))
        return None if upstream is None else (upstream, exposed)

    def claimant(self, exposed: str) -> tuple[UpstreamName, str] | None:
        """Return who would be asked for this if nobody listed it and nothing were hidden."""
        if (owner := self._owner(exposed)) is not None:
            return owner
        upstream = self._candidate(exposed, None, anyone=True)
        return None if upstream is None else (upstream, exposed)

    def resolve_template(self, exposed: str) -> tuple[UpstreamName, str] | None:
        """Return the upstream and its own template or URI for a completion's `ref/resource` (F-34)."""
        if (owner := self._owner(exposed)) is not None:
            return owner
        for shelf in self._shelves:
            if exposed in shelf.templates and shelf.namespace.original_template(exposed) == exposed:
                return shelf.namespace.upstream, exposed
        return self.resolve(exposed)

    def _owner(self, exposed: str) -> tuple[UpstreamName, str] | None:
        text, mark = (exposed[5:], "/") if _UI.match(exposed) else (exposed, "+")
        shelf = self._prefixed.get(text.partition(mark)[0])
        original = shelf.namespace.original_uri(exposed) if shelf else None
        return (shelf.namespace.upstream, original) if shelf and original is not None else None

    def _candidate(
        self, exposed: str, seen_at: UpstreamName | None, *, anyone: bool = False
    ) -> UpstreamName | None:
        shelves = [
            shelf
            for shelf in self._shelves
            if shelf.namespace.original_uri(exposed) == exposed
            and (anyone or self._may is None or self._may(shelf.namespace.upstream, exposed))
        ]
        if any(shelf.namespace.upstream == seen_at for shelf in shelves):
            return seen_at
        for shelf in shelves:
            if any(template_matches(template, exposed) for template in shelf.templates):
                return shelf.namespace.upstream
        return shelves[0].namespace.upstream if shelves else None

    def _list(self, uri: str, upstream: UpstreamName, collisions: list[Collision]) -> None:
        holder = self._listed.setdefault(uri, upstream)
        if holder != upstream:
            collisions.append(Collision(uri, (holder, uri), upstream, uri, uri))


def uri_problem(uri: str, longest: int = _LONGEST_URI) -> str | None:
    """Return why a URI is not even looked up, or None (F-17).

    Spaces, other alphabets and a missing scheme pass: upstreams list such URIs, and can read what they list.
    """
    if not uri:
        return "the URI is empty"
    if len(uri) > longest or len(uri.encode("utf-8", "surrogatepass")) > longest:
        return f"the URI is longer than {longest} bytes"
    return "the URI holds a control character" if _UNSAFE.search(uri) else None


def template_matches(template: str, uri: str) -> bool:
    """Whether some values expand the template to this URI; near enough to route by, RFC 6570 levels 1 to 4.

    No regular expression, whose backtracking a client's URI could drive: all the ends that a part of the
    template may have are the bits of one integer (bit n: the text up to n fits), moved at once.
    """
    if len(template) > _LONGEST_TEMPLATE:
        return False
    start, parts = _parts(_ascii(template))
    ascii_uri = _ascii(uri)
    if not ascii_uri.startswith(start):  # mostly this settles it
        return False
    text = _Text(ascii_uri)
    ends = 1 << len(start)
    for part in parts:
        ends = text.after_literal(ends, part) if isinstance(part, str) else text.after_run(ends, part)
        if not ends:
            return False
    return bool(ends >> text.length & 1)


@dataclass(frozen=True, slots=True)
class _Run:
    """What an expression may become: nothing, or its first character and then any but the excluded ones."""

    first: str
    excluded: str


_SEGMENT = "/?#"
_SIMPLE = _Run("", _SEGMENT)
_RUNS = {
    "+": _Run("", ""),
    "#": _Run("#", ""),
    ".": _Run(".", _SEGMENT),
    "/": _Run("/", "?#"),
    ";": _Run(";", _SEGMENT),
    "?": _Run("?", "#"),
    "&": _Run("&", "#"),
}
_EXPRESSION = re.compile(r"\{([^{}]*)\}")


@lru_cache(maxsize=1024)
def _parts(template: str) -> tuple[str, tuple[str | _Run, ...]]:
    start, *pieces = _EXPRESSION.split(template)  # literals, and between them the insides of braces
    return start, tuple(
        piece if place % 2 else _RUNS.get(piece[:1], _SIMPLE) for place, piece in enumerate(pieces)
    )


class _Text:
    """A URI as bits: where a character stands, and what can be reached from where."""

    def __init__(self, ascii_text: str) -> None:
        self.length = len(ascii_text)
        self._backwards = ascii_text[::-1].encode()
        self._places: dict[str, int] = {}

    def after_literal(self, ends: int, literal: str) -> int:
        for char in literal:
            ends = (ends & self._places_of(char)) << 1
            if not ends:
                break
        return ends

    def after_run(self, ends: int, run: _Run) -> int:
        inside = (1 << self.length) - 1
        for char in run.excluded:
            inside &= ~self._places_of(char)
        starts = self.after_literal(ends, run.first)
        # The sum carries every start to the end of its stretch of ones; what the carry flipped was reached.
        return ends | starts | ((inside + (starts & inside)) ^ inside)

    def _places_of(self, char: str) -> int:
        if (places := self._places.get(char)) is None:
            places = int(self._backwards.translate(_marks(char)) or b"0", 2)
            self._places[char] = places
        return places


@lru_cache(maxsize=128)
def _marks(char: str) -> bytes:
    return bytes(b"01"[code == ord(char)] for code in range(256))


def _ascii(text: str) -> str:
    """Return the text with non-ASCII characters percent-encoded, as an expansion writes them."""
    if text.isascii():
        return text
    return "".join(
        char if char.isascii() else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in text
    )


def _settle(claims: Iterable[_Claim], collisions: list[Collision]) -> dict[str, _Claim]:
    """Give every claim a name of its own, first come, first served."""
    held: dict[str, _Claim] = {}
    for claim in claims:
        wanted = claim.legal
        given = wanted if wanted not in held else claim.namespace.fit(claim.wanted, claim.original, held)
        if given != wanted:
            collisions.append(Collision(wanted, held[wanted].key, *claim.key, given))
        held[given] = claim
    return held


def _rank(claim: _Claim, rules: ToolRules) -> tuple[bool, bool]:
    """Order the claims inside one upstream: renamed, then verbatim, then those that had to be changed."""
    return claim.original not in rules.rename, claim.wanted != claim.legal


def _after(text: str, start: str) -> str | None:
    return text[len(start) :] if text.startswith(start) else None
