"""Remembers what every list was when it was last fetched, to tell whether it changed. No clock, no waiting.

Lists differ by whose credential the upstream sees and by the capabilities they are fetched with (C-06): two
clients who are shown different lists must not look like one list that changes.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Container, Mapping
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
    digest: bytes
    told: bool = False
    """Whether clients were told since that it may be another one."""


@dataclass(slots=True)
class _Shown:
    """One list in one context, as it was for each capability profile, the one used last at the end."""

    by_profile: OrderedDict[str, _Seen]
    forgot: bool
    """Whether it was known for profiles that had to make room."""


class LastSeen:
    """The digest of each list by upstream, context, method and capability profile; bounded.

    Whoever has most makes room, so that nobody is forgotten because another shows up in ever new ways. A list
    that may have been forgotten counts as changed, unless others see just the same.
    """

    def __init__(self, most: int = _LISTS) -> None:
        self._most = most
        self._count = 0
        self._forgot = False
        self.heeded: Container[Followed] = ()
        """The contexts in which somebody listens: elsewhere no change is suspected that is not known."""
        self.on_news: Callable[[Followed, str, Profile, bytes], None] = lambda *_: None
        """Told of each list that somebody is given for the first time, or since it was told as changed."""
        self._shown: OrderedDict[tuple[Followed, str], _Shown] = OrderedDict()
        self._under_way: Counter[tuple[UpstreamName, str]] = Counter()
        self._ended: dict[tuple[UpstreamName, str], float] = {}
        self._alarms: Counter[tuple[UpstreamName, str]] = Counter()

    def __repr__(self) -> str:
        return f"<LastSeen {self._count} lists>"

    def record(self, at: Followed, method: str, profile: Profile, digest: bytes) -> bool:
        """Note a list's digest as of now; whether it may have changed without anybody having been told."""
        shown = self._shown.get((at, method))
        if shown is None:
            shown = self._shown[at, method] = _Shown(OrderedDict(), self._forgot)
        self._shown.move_to_end((at, method))
        seen = shown.by_profile.get(profile.digest)
        if seen is None:
            new = _Seen(profile, digest)
            changed = (
                shown.forgot
                and at in self.heeded
                and all(its.digest != new.digest for its in shown.by_profile.values())
            )
            shown.by_profile[profile.digest] = new
            self._count += 1
            self._make_room()
            self.on_news(at, method, profile, digest)
            return changed
        shown.by_profile.move_to_end(profile.digest)
        same, told = seen.digest == digest, seen.told
        seen.digest, seen.told = digest, False
        if told or not same:
            self.on_news(at, method, profile, digest)
        if told:
            self._alarms[at.upstream, method] = self._alarms[at.upstream, method] + 1 if same else 0
        return not same and not told

    def tell(self, at: Followed | UpstreamName, method: str) -> None:
        """Note that clients are told of a change of this list: the next look at it is no news."""
        for (seen_at, seen_method), shown in self._shown.items():
            if seen_method == method and at in (seen_at, seen_at.upstream):
                for seen in shown.by_profile.values():
                    seen.told = True

    def forget(self, upstream: UpstreamName) -> None:
        """Know nothing more of an upstream's lists: nobody is shown them any more."""
        for key in [key for key in self._shown if key[0].upstream == upstream]:
            self._count -= len(self._shown.pop(key).by_profile)
        for pair in [pair for pair in self._ended if pair[0] == upstream]:
            del self._ended[pair]
        for pair in [pair for pair in self._alarms if pair[0] == upstream]:
            del self._alarms[pair]

    def profiles(self, at: Followed) -> list[tuple[str, Profile]]:
        """Return which lists are known of an upstream in a context, and what they were fetched with."""
        return [
            (method, seen.profile)
            for (its, method), shown in self._shown.items()
            if its == at
            for seen in shown.by_profile.values()
        ]

    def say_again(self, at: Followed) -> None:
        """Pass on once more what was given in a context, but what clients were told of since."""
        for (its, method), shown in self._shown.items():
            for seen in shown.by_profile.values() if its == at else ():
                if not seen.told:
                    self.on_news(at, method, seen.profile, seen.digest)

    def digests(self, at: Followed, methods: Collection[str]) -> Mapping[bytes, bytes]:
        """Return what these lists look like in a context, by method and what they were fetched with."""
        return {
            f"{method} {profile}".encode(): seen.digest
            for method in methods
            if (at, method) in self._shown
            for profile, seen in self._shown[at, method].by_profile.items()
        }

    def began(self, upstream: UpstreamName, method: str) -> None:
        """Note that a list is being fetched; `ended` must follow."""
        self._under_way[upstream, method] += 1

    def ended(self, upstream: UpstreamName, method: str, now: float) -> None:
        """Note that it was fetched, or was not to be had."""
        self._under_way[upstream, method] -= 1
        self.looked(upstream, method, now)

    def looked(self, upstream: UpstreamName, method: str, until: float) -> None:
        """Note until when it is being fetched, or was, by whichever replica."""
        self._ended[upstream, method] = until

    def suspects(self, upstream: UpstreamName, method: str) -> bool:
        """Whether the last alarm of an upstream proved false."""
        return self._alarms[upstream, method] > 0

    def doubts(self, at: Followed, method: str, *, since: float) -> bool:
        """Whether word of a change may mean nothing but that the list was asked for (B45).

        That is so while it is being fetched, and for upstreams whose word proved empty before also when it
        was fetched after `since`. What nobody has seen yet needs no second look.
        """
        if (at, method) not in self._shown:
            return False
        key = (at.upstream, method)
        lately = self._ended.get(key, float("-inf")) >= since
        return self._under_way[key] > 0 or (lately and self._alarms[key] >= _TOLERATED)

    def _make_room(self) -> None:
        if self._count <= self._most:
            return
        key, shown = max(
            self._shown.items(), key=lambda each: len(each[1].by_profile)
        )  # the oldest of equals
        shown.by_profile.popitem(last=False)
        shown.forgot = True
        self._count -= 1
        if not shown.by_profile:
            del self._shown[key]
            self._forgot = True


class Findings:
    """Which lists were found to be other ones without a word: each is told once, whoever finds it."""

    def __init__(self) -> None:
        self._found: LRUCache[tuple[Followed, str | None], Mapping[bytes, bytes]] = LRUCache(_LISTS)

    def __repr__(self) -> str:
        return f"<Findings {len(self._found)}>"

    def note(self, at: Followed, method: str | None, digests: Mapping[bytes, bytes]) -> None:
        """Note that clients are told of it, and what it looks like."""
        self._found[at, method] = digests

    def forget(self, at: Followed, method: str | None) -> None:
        """Note that its upstream told of a change: what was found before is not what it is now."""
        self._found.pop((at, method), None)

    def noted(self, at: Followed, method: str | None) -> bool:
        """Whether anything was found."""
        return (at, method) in self._found

    def told(self, at: Followed, method: str | None, digests: Mapping[bytes, bytes]) -> bool:
        """Whether clients were last told of just this."""
        return self._found.get((at, method)) == digests

    def known(self, at: Followed, method: str | None, digests: Mapping[bytes, bytes]) -> bool:
        """Whether any of this is what clients were told of already."""
        found = self._found.get((at, method), {})
        return any(found.get(what) == digest for what, digest in digests.items())


def digest_of_items(items: Collection[Item]) -> bytes:
    """Return what tells a list from another; the order of its items is no part of it."""
    whole = sha256()
    for item in sorted(join(item.members) for item in items):
        whole.update(sha256(item).digest())
    return whole.digest()
