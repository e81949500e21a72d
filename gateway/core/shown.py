"""What lists the clients of all replicas were given, so that after a gap any of them can tell what changed.

Whoever was given a list may listen at another replica than the one that gave it, which may be gone when it
matters. So each notes in Redis what it gives, once, and what clients were told of is taken out again: what
stands there is what somebody may still hold to be true. Where that cannot be read, clients are told.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping

import msgspec

from gateway.core.audience import Followed
from gateway.core.capabilities import Profile, digest_of
from gateway.protocol.call import UpstreamName
from gateway.support.notebook import Notebook, Unavailable
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_KIND = "list"
_KEPT = 30 * 86_400.0
_MOST = 256
"""So many ways and versions in which one list was given are told apart; of more nothing is known."""
_LARGEST_PROFILE = 4096
_MOST_WAITING = 4096
_PAUSE = 1.0


class _Given(msgspec.Struct, array_like=True, frozen=True):
    """One list as it was given; without a digest it is one that cannot be compared."""

    capabilities: bytes
    digest: bytes
    token: bytes
    """Tells it from the same that was given before clients were last told."""


Stale = Mapping[str, frozenset[bytes]]
"""What was given of each list before it changed."""


class Shown:
    """What all replicas gave; nobody who asks for a list waits for it."""

    def __init__(
        self,
        notebook: Notebook,
        background: Background,
        settings: Mapping[UpstreamName, str],
        *,
        hears: Callable[[], bool] = lambda: True,
    ) -> None:
        """`settings` tell upstreams of one name apart; what may have been missed while this replica did not
        hear the others is asked for again when it `hears` them."""
        self._notebook = notebook
        self._background = background
        self._settings = settings
        self._hears = hears
        self._waiting: dict[tuple[Followed, str, str], bytes] = {}
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Shown {len(self._waiting)} to be noted>"

    def note(self, at: Followed, method: str, profile: Profile, digest: bytes) -> None:
        """Note soon what a list looked like that was given to somebody."""
        known = len(profile.capabilities) <= _LARGEST_PROFILE
        given = _Given(profile.capabilities if known else b"", digest if known else b"", os.urandom(8))
        self._waiting.pop((at, method, profile.digest), None)
        self._waiting[at, method, profile.digest] = _encode(given)
        if len(self._waiting) > _MOST_WAITING:  # Redis is away, and its clients are told for that reason
            del self._waiting[next(iter(self._waiting))]
        if self._task is None:
            self._task = self._background.start(self._work(), name="note what lists were given")

    async def given(self, at: Followed, method: str) -> Collection[tuple[Profile, bytes]] | None:
        """Return with which capabilities a list was given and what it looked like; None = nobody can tell."""
        try:
            members = await self._notebook.members(_KIND, self._key(at, method), renew=_KEPT)
        except Unavailable:
            return None if self._hears() else ()
        if len(members) >= _MOST:
            return None
        given = [_read(member) for member in members]
        if any(one is None or not one.digest for one in given):
            return None
        return {(_profile(one.capabilities), one.digest) for one in given if one is not None}

    async def stale(self, at: Followed, methods: Collection[str]) -> Stale:
        """Return what was given of lists that are about to be told as changed."""
        try:
            return {method: await self._notebook.members(_KIND, self._key(at, method)) for method in methods}
        except Unavailable:
            return {}  # it stays, and is told once more after a gap

    async def told(self, at: Followed, stale: Stale, now: Mapping[bytes, bytes]) -> None:
        """Take out what clients were told of, but not what a list looks like `now`, by its capabilities."""
        for method, members in stale.items():
            kept = {
                member
                for member in members
                if (one := _read(member)) is not None and now.get(_what(method, one)) == one.digest
            }
            try:
                if gone := members - kept:
                    await self._notebook.exclude(_KIND, self._key(at, method), gone)
            except Unavailable:
                return

    async def _work(self) -> None:
        try:
            while self._waiting:
                (at, method, profile), member = next(iter(self._waiting.items()))
                try:
                    await self._notebook.include(_KIND, self._key(at, method), (member,), _KEPT, most=_MOST)
                except Unavailable:
                    await asyncio.sleep(_PAUSE)
                    continue
                if self._waiting.get((at, method, profile)) is member:
                    del self._waiting[at, method, profile]
        finally:
            self._task = None

    def _key(self, at: Followed, method: str) -> bytes:
        return _encode((at.upstream, self._settings[at.upstream], at.context, method))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Given).decode


def _read(member: bytes) -> _Given | None:
    try:
        return _decode(member)
    except msgspec.DecodeError:
        return None  # of another version


def _profile(capabilities: bytes) -> Profile:
    return Profile(capabilities, digest_of(capabilities))


def _what(method: str, given: _Given) -> bytes:
    return f"{method} {digest_of(given.capabilities)}".encode()
