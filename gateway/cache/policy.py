"""Decides what may be stored, under which key, for whom, and whether it may be served. No clock, no store.

A change is not spelled into the keys. Every upstream counts its changes; a stored result carries the count
read before it was fetched, and is stale once a topic it depends on changed after that (C-32). So a stale
result's slot is overwritten instead of left behind, one step of a counter reaches every cursor, caller and
replica, and the verdict can still say why.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Literal, TypeAlias, TypeVar

from gateway.protocol.call import HOP_META, Change, Partition, Scope, UpstreamName
from gateway.protocol.jsonrpc import (
    Json,
    Malformed,
    Members,
    canonical,
    is_null,
    items,
    join,
    split,
    text_or_none,
)
from gateway.protocol.methods import METHODS

Key: TypeAlias = tuple[str | None, ...]
Topic: TypeAlias = tuple[str, ...]
"""What changes as one: () an upstream, (method,), ("resources/read", uri), ("public", method), and what is
private to a caller: ("caller", partition, method)."""

Why: TypeAlias = Literal[
    "hit",
    "absent",
    "expired",
    "generation",
    "ttl",
    "private",
    "anonymous",
    "not-shared",
    "too-large",
    "incomplete",
    "error",
    "upstream-down",
]
"""Why the cache answered as it did, or why a result is kept to one caller or to nobody."""

Override: TypeAlias = Literal["min_ttl", "max_ttl", "scope", "share_public", "isolation", "calls"]
"""A setting of the operator's that made a result's ttl or scope another than its upstream said."""

SomeTarget = TypeVar("SomeTarget", str, str | None)

EVERYONE = Partition("")
"""The one context of all callers without a token in a single-tenant deployment (C-19)."""

READ = "resources/read"
CALL = "tools/call"
EVERYTHING: Topic = ()
_KEPT = (*(name for name, row in METHODS.items() if row.cacheable), CALL)

_ENTRY_OVERHEAD = 1024
_TOPIC_OVERHEAD = 160
"""What Python's objects around an entry weigh, and around each of its topics: both measured, rounded up."""

_LONGEST_TARGET = 1024
_LONGEST_CALL = 64 * 1024
_NUMBER = re.compile(rb"\d+(\.\d+)?([eE][+-]?\d{1,4})?")
_LONGEST_NUMBER = 64
_LONGEST_SAID = 2.0**43
"""Seconds; what is longer is for ever to anybody, and no number that every reader of JSON can hold."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How far one upstream's hints are followed."""

    share_public: bool = True
    min_ttl: Mapping[str, float] = field(default_factory=dict)
    max_ttl: float = 86400.0
    scope: Scope | None = None
    single_tenant: bool = False
    isolated: bool = False
    """Whether each caller has a process of its own there, which knows of no other."""

    @property
    def shares(self) -> bool:
        """Whether anything of this upstream may be had by more than one caller."""
        return self.share_public and self.scope != "private" and not self.isolated


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question to the cache.

    `settings` is a fingerprint of the upstream's settings and credential, `target` the uri of a read or the
    cursor of a list (None and "" are different cursors), `profile` a hash of the capabilities sent upstream.
    """

    upstream: UpstreamName
    settings: str
    method: str
    target: str | None
    profile: str
    version: str
    partition: Partition | None
    rules: Rules
    caller: Partition | None = None
    """Who asks, whatever the credential; sessions of upstreams that tell callers apart are known by it."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A result in the upstream's own names, with what decides about its reuse.

    `received` is in seconds of the cache's clock; `ttl` 0 means it must never be served again. `overrides`
    are the settings that changed what the upstream said of it. `derived` keeps parsed forms for as long as
    the result itself lives.
    """

    result: bytes
    received: float
    ttl: float
    scope: Scope
    generation: int = 0
    topics: tuple[Topic, ...] = (EVERYTHING,)
    overrides: tuple[Override, ...] = ()
    derived: dict[str, object] = field(default_factory=dict)

    def remaining(self, now: float) -> float:
        """Return the seconds it may still be served."""
        return max(0.0, self.received + self.ttl - now)

    def remaining_ms(self, now: float) -> int:
        """Return the ttlMs to emit: what remains, never the original again (C-10)."""
        return int(self.remaining(now) * 1000)


@dataclass(frozen=True, slots=True)
class Hints:
    """What a result says about its reuse, after the operator's rules.

    `why` it is narrower than asked, and which rules made it another than its upstream said.
    """

    ttl: float
    scope: Scope
    complete: bool
    why: Why | None = None
    overrides: tuple[Override, ...] = ()
    said: "Said | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Said:
    """What an upstream itself said of a result's reuse, None where it said nothing; for operators."""

    ttl_ms: int | None
    scope: Literal["public", "private", "other"] | None


class Verdict(Enum):
    """Whether a stored result may answer now; of the ways it may not, the later ones say more."""

    ABSENT = "absent"
    EXPIRED = "expired"
    GENERATION = "generation"
    FRESH = "fresh"


def context(lookup: Lookup) -> Partition | None:
    """Return the authorization context private results are bound to; None = no context, nothing to share."""
    if lookup.partition is None and lookup.rules.single_tenant:
        return EVERYONE
    return lookup.partition


def private_key(lookup: Lookup) -> Key | None:
    """Return where the caller's own result lies; None for a caller without a context (C-19)."""
    owner = context(lookup)
    if owner is None:
        return None
    return (
        "private",
        owner,
        lookup.upstream,
        lookup.settings,
        lookup.method,
        bounded(lookup.target),
        lookup.profile,
        lookup.version,
    )


def public_key(lookup: Lookup) -> Key:
    """Return where everybody's result lies."""
    return (
        "public",
        lookup.upstream,
        lookup.settings,
        lookup.method,
        bounded(lookup.target),
        lookup.profile,
        lookup.version,
    )


def upstream_of(key: Key) -> UpstreamName:
    """Return the upstream whose result lies under a key."""
    return UpstreamName(key[2 if key[0] == "private" else 1] or "")


def topic_of(key: Key) -> Topic:
    """Return a topic that whatever lies under a key depends on, and as little else as can be."""
    method, target = key[-4], key[-3]
    if method == READ:
        return (READ, target or "")
    return ("public", method or "") if key[0] == "public" else (method or "",)


def list_key(lookup: Lookup) -> Key:
    """Return the name of the whole list a page belongs to: all its pages carry one scope (C-23)."""
    return (lookup.upstream, lookup.settings, lookup.method, lookup.profile, lookup.version)


def bounded(target: SomeTarget) -> SomeTarget:
    """Return a target as keys and topics spell it: exactly, or as its beginning and a digest when it is long.

    What is cut is longer than anything that is not, so the two never meet.
    """
    if target is None or len(target) <= _LONGEST_TARGET:
        return target
    return target[:_LONGEST_TARGET] + sha256(target.encode("utf-8", "surrogatepass")).hexdigest()


def judge(entry: Entry | None, *, generation: int, now: float) -> Verdict:
    """Whether a stored result may answer a request made now.

    `generation` is the upstream's count at the last change of any of the entry's topics. An entry behind it
    is stale at once, whatever its ttl says.
    """
    if entry is None:
        return Verdict.ABSENT
    if entry.generation < generation:
        return Verdict.GENERATION
    if now >= entry.received + entry.ttl:
        return Verdict.EXPIRED
    return Verdict.FRESH


def may_stand_in(entry: Entry, *, generation: int, now: float, bound: float) -> bool:
    """Whether an expired result may be served while its upstream is down (C-33).

    Nothing it depends on changed since, and its ttl is over for less than `bound` seconds.
    """
    expired = judge(entry, generation=generation, now=now) is Verdict.EXPIRED
    return expired and now < entry.received + entry.ttl + bound


def hints_of(result: Json, rules: Rules, method: str) -> Hints:
    """Return how a result may be reused (C-11, C-12, C-15 to C-17), floors and overrides applied.

    A floor lengthens a life and never widens a scope: what lives by it alone is private unless the operator's
    own `scope` says otherwise.
    """
    try:
        members = split(result)
    except Malformed:
        return Hints(0.0, "private", complete=False, why="incomplete")
    if not is_null(members.get("resultType")) and text_or_none(members["resultType"]) != "complete":
        return Hints(0.0, "private", complete=False, why="incomplete")
    if method == CALL:
        return _call_hints(members, rules)
    said = ttl_of(members.get("ttlMs"), float("inf"))
    ttl = min(max(said, rules.min_ttl.get(method, 0.0)), rules.max_ttl)
    raw = members.get("cacheScope")
    public = raw is not None and text_or_none(raw) == "public"
    scope, why, by = _scope(public, rules, by_floor_alone=said == 0.0 < ttl)
    overrides: list[Override] = []
    if ttl != said:
        overrides.append("min_ttl" if ttl > said else "max_ttl")
    if (scope == "public") != public and by is not None and by not in overrides:
        overrides.append(by)
    return Hints(ttl, scope, True, "ttl" if ttl == 0.0 else why, tuple(overrides), _said(members, said))


def _said(members: Members, ttl: float) -> Said:
    scope = text_or_none(members.get("cacheScope"))
    known: Literal["public", "private", "other"] = (
        "public" if scope == "public" else "private" if scope == "private" else "other"
    )
    return Said(
        None if is_null(members.get("ttlMs")) else int(min(ttl, _LONGEST_SAID) * 1000),
        None if is_null(members.get("cacheScope")) else known,
    )


def rules_for_call(rules: Rules, *, ttl: float, scope: Scope) -> Rules:
    """Return the rules for results of a tool that the operator wants kept.

    What forbids sharing anything of its upstream forbids it here too.
    """
    return replace(rules, min_ttl={CALL: ttl}, scope=scope, share_public=rules.shares)


def call_target(params: Members) -> str | None:
    """Return what tells a call's result from those of other calls, None when its params leave that open.

    A member named twice, or a number with more digits than parsers agree on, means one thing here and may
    mean another upstream: kept under the one, its result could be served to calls that meant the other.
    """
    text = join(params)
    if len(text) > _LONGEST_CALL:
        return None
    try:
        json.loads(text, object_pairs_hook=_unique, parse_float=_exact, parse_int=_whole)
        return canonical(text).decode()
    except (ValueError, ArithmeticError, RecursionError):
        return None


def ttl_of(raw: Json | None, ceiling: float) -> float:
    """Return a raw ttlMs in seconds, at most `ceiling`; 0 for everything but a whole number >= 0 (C-11).

    The digits are looked at as they stand: a decoder would turn 300000.0, 2**80 and true into something else.
    """
    token = b"" if raw is None else bytes(raw)
    if len(token) > _LONGEST_NUMBER:
        return ceiling if token.isdigit() else 0.0
    if not _NUMBER.fullmatch(token):
        return 0.0
    milliseconds = Decimal(token.decode())
    if milliseconds != milliseconds.to_integral_value():
        return 0.0
    return float(min(milliseconds, Decimal(ceiling) * 1000) / 1000)


def may_store(hints: Hints, *, owner: Partition | None, cost: int, largest: int) -> Why | None:
    """Return why a result must not be stored, or None when it may be.

    A private result of a caller without a context is nobody's to reuse, not even that caller's (C-19).
    """
    if not hints.complete:
        return "incomplete"
    if hints.ttl <= 0.0:
        return "ttl"
    if hints.scope == "private" and owner is None:
        return "not-shared" if hints.why == "not-shared" else "anonymous"
    return "too-large" if cost > largest else None


def may_coalesce(hints: Hints, *, owner: Partition | None, method: str) -> bool:
    """Whether callers who waited for one fetch may all have its result (C-03, C-34).

    Private results stay with one context and unfinished ones with one call. A read without a ttl must not be
    older than its request: somebody may have written in between.
    """
    if not hints.complete or (hints.scope == "private" and owner is None):
        return False
    return hints.ttl > 0.0 or method != READ


def cost_of(key: Key, entry: Entry) -> int:
    """Return how many bytes an entry counts for: result, key, topics and the objects around them."""
    spelled = sum(len(part) for part in key if part is not None)
    topics = sum(_TOPIC_OVERHEAD + sum(map(len, topic)) for topic in entry.topics)
    return len(entry.result) + spelled + topics + _ENTRY_OVERHEAD


def storable(result: Json) -> bytes:
    """Return a result without the `_meta` members that belong to one hop or one request (C-39, E-24)."""
    members = split(result)
    try:
        meta = split(members["_meta"])
    except (KeyError, Malformed):
        return bytes(result)
    if HOP_META.isdisjoint(meta):
        return bytes(result)
    kept = {key: value for key, value in meta.items() if key not in HOP_META}
    if not kept:
        return join((key, value) for key, value in members.items() if key != "_meta")
    return join((key, join(kept) if key == "_meta" else value) for key, value in members.items())


def topics_for(lookup: Lookup, result: Json, scope: Scope) -> tuple[Topic, ...]:
    """Return the topics whose change makes this result stale (C-30).

    A read depends on the uri asked for and on every uri among its contents; a public page of a list also on
    the list having stayed public (C-23); what is private on whatever ends its caller's results.
    """
    topics: list[Topic] = [EVERYTHING, (lookup.method,)]
    if lookup.method == READ:
        uris = {lookup.target or "", *_content_uris(result)}
        topics += [(READ, bounded(uri)) for uri in sorted(uris)]
    elif scope == "public":
        topics.append(("public", lookup.method))
    owner = context(lookup)
    if scope == "private" and owner is not None:
        topics.append(("caller", owner, lookup.method))
        if lookup.caller is not None and lookup.caller != owner:
            topics.append(("caller", lookup.caller, lookup.method))
    if lookup.method == CALL:
        topics.append(("tools/list",))  # another definition, another tool
    return tuple(topics)


def topics_of(change: Change) -> tuple[Topic, ...]:
    """Return the topics a change touches (C-30); a change nobody here can place touches everything."""
    if change.partition is not None:
        return tuple(("caller", change.partition, method) for method in _methods_of(change))
    if change.uri is not None:
        return tuple((READ, bounded(uri)) for uri in (change.uri, *ancestors(change.uri)))
    if change.method == "resources/list":
        return (("resources/list",), ("resources/templates/list",))
    method = METHODS.get(change.method or "")
    if change.method is not None and method is not None and (method.cacheable or change.method == CALL):
        return ((change.method,),)
    return (EVERYTHING,)


def ancestors(uri: str, most: int = 32) -> tuple[str, ...]:
    """Return the uris this one may be a sub-resource of, nearest first, each with and without its last sign.

    Only the nearest `most` levels count, so that an uri of a million slashes costs no more than another.
    """
    start = uri.find("://") + 3 if "://" in uri else uri.find(":") + 1
    found: list[str] = []
    at = len(uri)
    while len(found) < 2 * most:
        at = max(uri.rfind("/", start, at), uri.rfind("?", start, at), uri.rfind("#", start, at))
        if at <= start:
            break
        found += [parent for parent in (uri[: at + 1], uri[:at]) if parent != uri]
    return tuple(found)


def _methods_of(change: Change) -> tuple[str, ...]:
    """Return the methods whose results a caller's change touches; of one resource nothing is told apart."""
    if change.method == "resources/list":
        return "resources/list", "resources/templates/list"
    return _KEPT if change.method not in _KEPT else (change.method,)


def _scope(public: bool, rules: Rules, *, by_floor_alone: bool) -> tuple[Scope, Why | None, Override | None]:
    """Return the scope of a result that its upstream called public or not, and the rule that decided."""
    if (rules.scope or ("public" if public else "private")) == "private":
        return "private", "private", "scope" if rules.scope else None
    if rules.isolated:
        return "private", "not-shared", "isolation"
    if not rules.share_public:
        return "private", "not-shared", "share_public"
    if by_floor_alone and rules.scope is None:
        return "private", "private", "min_ttl"
    return "public", None, "scope" if rules.scope else None


def _call_hints(members: Members, rules: Rules) -> Hints:
    """Return the hints for a call's result: the operator's alone, what stands in it does not belong there.

    A tool's failure is no answer to keep, and whatever is not clearly a success counts as one.
    """
    failed = members.get("isError")
    if not is_null(failed) and bytes(failed or b"") != b"false":
        return Hints(0.0, "private", complete=False, why="error")
    ttl = min(rules.min_ttl.get(CALL, 0.0), rules.max_ttl)
    scope, why, _ = _scope(False, rules, by_floor_alone=True)
    return Hints(ttl, scope, True, "ttl" if ttl == 0.0 else why, ("calls",))


def _unique(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a member is named twice")


def _exact(text: str) -> None:
    """Raise for a number that another one is read as, too."""
    if Decimal(repr(float(text))) != Decimal(text):
        raise ValueError("more digits than a double holds")


def _whole(text: str) -> None:
    if text == "-0":
        raise ValueError("an integer here, the double -0.0 elsewhere")
    if not -(2**63) <= int(text) < 2**64:
        raise ValueError("more digits than an integer holds everywhere")


def _content_uris(result: Json) -> list[str]:
    try:
        uris = [text_or_none(split(content).get("uri")) for content in items(split(result)["contents"])]
    except (KeyError, Malformed):
        return []  # no well-formed contents: the core will say so, the uri asked for still counts
    return [uri for uri in uris if uri is not None]
