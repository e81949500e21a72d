"""Remembers what every list was when it was last fetched, to tell whether it changed. No clock, no waiting.

Lists differ by whose credential the upstream sees and by the capabilities they are fetched with (C-06): two
clients who are shown different lists must not look like one list that changes.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256

from cachetools import LRUCache

from gateway.core.audience import Followed
from gateway.core.capabilities import Profile
from gateway.core.lists import Item
from gateway.protocol.call import UpstreamName
from gateway.protocol.jsonrpc import join

_LISTS = 4096
_TOLERATED = 2
"""Alarms of an upstream that proved false before its next ones are looked into."""


@dataclass(slots=True)
class _Seen:
    profile: Profile
    items: Collection[Item]
    digest: bytes
    told: bool = False
    """Whether clients were told since that it may be another one."""


class LastSeen:
    """The digest of each list by upstream, context, method and capability profile; bounded."""

    def __init__(self) -> None:
        self._seen: LRUCache[tuple[Followed, str, str], _Seen] = LRUCache(_LISTS)
        self._under_way: Counter[tuple[UpstreamName, str]] = Counter()
        self._ended: dict[tuple[UpstreamName, str], float] = {}
        self._alarms: Counter[tuple[UpstreamName, str]] = Counter()

    def __repr__(self) -> str:
        return f"<LastSeen {len(self._seen)} lists>"

    def record(self, at: Followed, method: str, profile: Profile, items: Collection[Item]) -> bool:
        """Note what a list is now; whether it changed without anybody having been told."""
        key = (at, method, profile.digest)
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = _Seen(profile, items, _digest(items))
            return False
        same = seen.items is items or seen.digest == (digest := _digest(items))
        told = seen.told
        if not same:
            seen.digest = digest
        seen.items, seen.told = items, False
        if told:
            self._alarms[at.upstream, method] = self._alarms[at.upstream, method] + 1 if same else 0
        return not same and not told

    def tell(self, at: Followed | UpstreamName, method: str) -> None:
        """Note that clients are told of a change of this list: the next look at it is no news."""
        for (seen_at, seen_method, _), seen in self._seen.items():
            if seen_method == method and at in (seen_at, seen_at.upstream):
                seen.told = True

    def profiles(self, at: Followed) -> list[tuple[str, Profile]]:
        """Return which lists are known of an upstream in a context, and what they were fetched with."""
        return [(method, seen.profile) for (its, method, _), seen in self._seen.items() if its == at]

    def began(self, upstream: UpstreamName, method: str) -> None:
        """Note that a list is being fetched; `ended` must follow."""
        self._under_way[upstream, method] += 1

    def ended(self, upstream: UpstreamName, method: str, now: float) -> None:
        """Note that it was fetched, or was not to be had."""
        self._under_way[upstream, method] -= 1
        self._ended[upstream, method] = now

    def doubts(self, at: Followed, method: str, *, since: float) -> bool:
        """Whether word of a change may mean nothing but that the list was asked for (B45).

        That is so while it is being fetched, and for upstreams whose word proved empty before also when it
        was fetched after `since`. What nobody has seen yet needs no second look.
        """
        if not any(its == at and its_method == method for its, its_method, _ in self._seen):
            return False
        key = (at.upstream, method)
        lately = self._ended.get(key, float("-inf")) >= since
        return self._under_way[key] > 0 or (lately and self._alarms[key] >= _TOLERATED)


def _digest(items: Collection[Item]) -> bytes:
    """Return what tells a list from another; the order of its items is no part of it."""
    whole = sha256()
    for item in sorted(join(item.members) for item in items):
        whole.update(sha256(item).digest())
    return whole.digest()
