"""Says what a lookup would meet in the cache and why. No clock, no store: both are handed in."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.cache.policy import READ, Entry, Key, Lookup, Verdict, Why, context
from gateway.protocol.call import Scope

Outlook: TypeAlias = Literal["hit", "miss", "stale", "bypass"]
Arm: TypeAlias = Literal["private", "public"]

_DIGITS = 16
_OF_THE_CALLER = ("anonymous", "not-shared", "generation")
"""Reasons that were the last caller's, or the moment's, and need not be the next one's."""

_MISSED: Mapping[Verdict, Why] = {
    Verdict.ABSENT: "absent",
    Verdict.EXPIRED: "expired",
    Verdict.GENERATION: "generation",
}


@dataclass(frozen=True, slots=True)
class Met:
    """What lies in one arm, whether it may answer now, and whether it may while its upstream is down."""

    key: Key
    entry: Entry | None
    verdict: Verdict
    stands_in: bool

    @property
    def arm(self) -> Arm:
        return "private" if self.key[0] == "private" else "public"


@dataclass(frozen=True, slots=True)
class Last:
    """What became of the latest result of its like, whoever asked: its scope, and why it was not kept."""

    scope: Scope
    refused: Why | None


@dataclass(frozen=True, slots=True)
class Found:
    """What would become of a lookup made now; `met` is what would answer, or came nearest to it."""

    lookup: Lookup
    outlook: Outlook
    reason: Why
    met: Met | None
    now: float

    @property
    def entry(self) -> Entry | None:
        return None if self.met is None else self.met.entry

    def report(self) -> Mapping[str, object]:
        """Return it for people and programs: hashes instead of whatever may be a secret."""
        entry, met = self.entry, self.met
        said: dict[str, object] = {
            "verdict": self.outlook.upper(),
            "reason": self.reason,
            "key": ingredients(self.lookup),
        }
        if entry is None or met is None:
            return said
        return said | {
            "arm": met.arm,
            "scope": entry.scope,
            "age": round(self.now - entry.received, 3),
            "ttl": entry.ttl,
            "remaining": round(entry.remaining(self.now), 3),
            "bytes": len(entry.result),
            "overrides": list(entry.overrides),
        }


def explained(
    lookup: Lookup, met: Sequence[Met], last: Last | None, *, down: bool, bridged: bool, now: float
) -> Found:
    """Return what would become of a lookup that meets this, and of its like the last time.

    `down` is its upstream; what is fresh is served all the same, what is not if the outage may be `bridged`.
    """
    for one in met:
        if one.verdict is Verdict.FRESH:
            return Found(lookup, "hit", "hit", one, now)
    nearest = _nearest(met)
    if down:
        stale = [one for one in met if one.stands_in]
        if bridged and stale:
            return Found(lookup, "stale", "upstream-down", stale[0], now)
        return Found(lookup, "bypass", "upstream-down", nearest, now)
    if nearest is not None:
        return Found(lookup, "miss", _MISSED[nearest.verdict], nearest, now)
    return Found(lookup, *_absent(lookup, last), None, now)


def ingredients(lookup: Lookup) -> Mapping[str, str | None]:
    """Return what the key of a lookup is made of; a cursor may hold anything, and a query a token."""
    owner = context(lookup)
    return {
        "upstream": lookup.upstream,
        "settings": lookup.settings[:_DIGITS],
        "method": lookup.method,
        "target": _shown(lookup),
        "profile": lookup.profile[:_DIGITS],
        "version": lookup.version,
        "partition": None if owner is None else owner[:_DIGITS] or "everyone",
    }


def _nearest(met: Sequence[Met]) -> Met | None:
    """Return what an answer failed by: an invalidated result says more than one that is only too old."""
    there = [one for one in met if one.entry is not None]
    behind = [one for one in there if one.verdict is Verdict.GENERATION]
    return next(iter(behind or there), None)


def _absent(lookup: Lookup, last: Last | None) -> tuple[Outlook, Why]:
    """Return why nothing is there, by what is known of the latest result of its like."""
    if last is None:
        return "miss", "absent"
    if last.refused is not None and last.refused not in _OF_THE_CALLER:
        return "bypass", last.refused
    if last.scope == "public":
        return "miss", "absent"
    if context(lookup) is not None:
        return "miss", "private"  # somebody else's is there, or was
    return "bypass", "anonymous" if lookup.rules.shares else "not-shared"


def _shown(lookup: Lookup) -> str | None:
    target = lookup.target
    if target is None:
        return None
    digest = hashlib.sha256(target.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    if lookup.method != READ:
        return f"#{digest}"
    path, query, _ = target.partition("?")
    return f"{path[:1024]}?#{digest}" if query else target[:1024]
