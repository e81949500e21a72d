"""Shares the streams of upstreams with the other replicas: one of them holds each, the others hear it.

Whoever holds a stream asks its upstream for what all of them want, says what was granted, and tells what it
hears after every cache has forgotten it. Where no other replica can be seen, this one follows for itself.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from gateway.core.audience import Followed
from gateway.core.following import TASK, Aside, Found, Granted, Hear, Said, Share
from gateway.core.relay import Relay
from gateway.protocol.call import Change, Notice, UpstreamName
from gateway.protocol.subscriptions import Wanted
from gateway.support.bus import Bus
from gateway.support.leases import Leases
from gateway.support.seal import Seal
from gateway.support.tasks import Background

T = TypeVar("T")

_NOTHING = Wanted()


class Replicas:
    """This replica among the others."""

    def __init__(
        self,
        leases: Leases,
        bus: Bus,
        seal: Seal,
        background: Background,
        *,
        settings: Mapping[UpstreamName, str],
        slot: Callable[[UpstreamName], str],
    ) -> None:
        """`settings` tell upstreams of one name apart, `slot` says how the keys of each begin."""
        self._leases = leases
        self._seal = seal
        self._background = background
        self._settings = settings
        self._slot = slot
        self._shares: dict[Followed, _Share] = {}
        self._hear: Hear = lambda at, said: None
        self._relay = Relay(bus, background, settings=settings, hear=lambda at, said: self._hear(at, said))

    def __repr__(self) -> str:
        shares = " | ".join(f"{at.upstream}: {share!r}" for at, share in self._shares.items())
        return f"<Replicas [{shares}] {self._relay!r}>"

    def share(
        self,
        at: Followed,
        *,
        wanted: Callable[[], Wanted],
        changed: Callable[[], None],
        missed: Callable[[], None],
    ) -> Share:
        share = self._shares[at] = _Share(
            self._key(at),
            self._leases,
            self._background,
            wanted=wanted,
            changed=changed,
            missed=missed,
            closed=lambda: self._leave(at, share),
        )
        return share

    def hear(self, hear: Hear) -> None:
        self._hear = hear

    def relay(self, at: Followed, said: Said) -> None:
        if isinstance(said, Found | Aside):  # what no upstream says on its stream
            self._relay.say(at, said, lambda: True)
            return
        share = self._shares.get(at)
        if share is None or share.authority() is False:
            return  # who hears this has heard it himself, or will hear of the gap
        if isinstance(said, Change) and said.method == "resources/read" and not share.others.uris:
            return
        if isinstance(said, Notice) and said.method == TASK and not share.others.tasks:
            return
        self._relay.say(at, said, share.authority)

    async def warn(self, at: Followed, said: Said) -> None:
        await self._relay.warn(at, said)

    async def close(self) -> None:
        await self._leases.close()

    def _leave(self, at: Followed, share: "_Share") -> None:
        if self._shares.get(at) is share:
            del self._shares[at]

    def _key(self, at: Followed) -> str:
        """Return the name of a stream, which tells nothing about it (C-25)."""
        what = msgspec.msgpack.encode((at.upstream, self._settings[at.upstream], at.context))
        return f"{self._slot(at.upstream)}:{self._seal.name('follow', what).hex()}"


class _Share:
    """This replica's part in one stream."""

    def __init__(
        self,
        key: str,
        leases: Leases,
        background: Background,
        *,
        wanted: Callable[[], Wanted],
        changed: Callable[[], None],
        missed: Callable[[], None],
        closed: Callable[[], None],
    ) -> None:
        self._background = background
        self._wanted = wanted
        self._closed = closed
        self._others: tuple[object, Wanted] = ((), _NOTHING)
        self._wishes: dict[bytes, Wanted] = {}
        self._granted: tuple[bytes | None, Granted | None] = (None, None)
        self._lease = leases.lease(
            key,
            wish=lambda: _encode(wanted()),
            changed=changed,
            missed=missed,
            suffices=self._suffices,
        )

    def __repr__(self) -> str:
        return repr(self._lease)

    @property
    def holds(self) -> bool:
        return self._lease.standing == "mine"

    @property
    def others(self) -> Wanted:
        if not self.holds:
            return _NOTHING
        if self._others[0] is not self._lease.others:
            known, wanted = self._wishes, _NOTHING
            self._wishes = {
                text: known.get(text) or _read(text, Wanted) or _NOTHING for text in self._lease.others
            }
            for wish in self._wishes.values():
                wanted |= wish
            self._others = self._lease.others, wanted
        return self._others[1]

    @property
    def granted(self) -> Granted | None:
        if self._lease.standing != "another's":
            return None
        word = self._lease.word
        if self._granted[0] is not word:
            self._granted = word, None if word is None else _read(word, Granted)
        return self._granted[1]

    @property
    def wishes(self) -> int:
        return self._lease.wishes

    def heard(self, wish: int) -> bool:
        return self._lease.heard(wish)

    def authority(self) -> bool | None:
        """Whether this replica may speak for the upstream; None while it has to find out."""
        if self._lease.holds:
            return True
        return None if self.holds else False

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        async with self._lease.turn():
            yield False  # whatever lies in Redis may be from before

    def want(self) -> None:
        self._lease.wish()

    def grant(self, granted: Granted) -> None:
        self._lease.grant(_encode(granted))

    def close(self) -> None:
        self._closed()
        self._background.start(self._lease.close(), name="let go of a stream")

    def _suffices(self, word: bytes) -> bool:
        granted = _read(word, Granted)
        return granted is not None and granted.state != "connecting" and not self._wanted() - granted.asked


_encode = msgspec.msgpack.Encoder().encode


def _read(text: bytes, kind: type[T]) -> T | None:
    """Return what another replica says, None for what this version does not understand."""
    try:
        return msgspec.msgpack.decode(text, type=kind)
    except msgspec.DecodeError:
        return None
