"""Passes on to the other replicas what their clients are to hear, in order, and one message at a time.

What waits for its turn is a set, as a client's own stream has one: the same change said twice before it went
out is one change, so a bus that stands still or is slow costs a bounded amount of memory, and what comes out
of it afterwards is no flood. A message that cannot be known to have been heard is sent again.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

import msgspec
from cachetools import LRUCache

from gateway.core.audience import Followed
from gateway.core.following import TASK, Aside, Digests, Found, Gap, Hear, Looking, Lost, Said
from gateway.protocol.call import Change, Notice, Partition, UpstreamName
from gateway.support.bus import Bus
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_TOPIC = "said"
_MOST = 1024
"""So many things wait at most, before single resources become all of an upstream's."""
_MOST_NOTICES = 256
_LARGEST_ITEM = 16 * 2**10
_LARGEST = 64 * 2**10
"""Bytes of one message, about; it holds one thing at least."""
_MOST_DIGESTS = 64
_SOON = 0.05
_PAUSE = 0.5
_NO_PARAMS: Mapping[str, bytes] = {}
_NO_DIGESTS: Digests = {}


class _Item(msgspec.Struct, array_like=True):
    """One thing that is said."""

    kind: Literal["change", "aside", "found", "notice", "lost", "gap", "looking"]
    upstream: str
    settings: str
    """Of the upstream: one of that name with other settings is another."""
    context: str | None
    method: str | None = None
    uri: str | None = None
    cause: str = ""
    partition: str | None = None
    params: Mapping[str, bytes] = _NO_PARAMS
    digests: Digests = _NO_DIGESTS
    lasts: float = 0.0
    asked: bool = False
    run: bytes = b""


class _Message(msgspec.Struct, array_like=True):
    id: bytes
    items: list[msgspec.Raw]


Authority: TypeAlias = Callable[[], bool | None]
"""Whether this may still be said, None when that is not known at the moment."""

_Key: TypeAlias = tuple[object, ...]


class Relay:
    """What one replica says, and hears."""

    def __init__(
        self, bus: Bus, background: Background, *, settings: Mapping[UpstreamName, str], hear: Hear
    ) -> None:
        self._bus = bus
        self._background = background
        self._settings = settings
        self._hear = hear
        self._pending: dict[_Key, tuple[bytes, Authority]] = {}
        self._notices = 0
        self._task: asyncio.Task[None] | None = None
        self._known: LRUCache[bytes, bool] = LRUCache(256)
        """Messages that came: with two keys of the ring in common each comes twice."""
        bus.subscribe(_TOPIC, self._heard)

    def __repr__(self) -> str:
        return f"<Relay {len(self._pending)} waiting>"

    def say(self, at: Followed, said: Said, authority: Authority) -> None:
        """Have the others hear this soon, if there is authority for it by then."""
        key, text = self._bounded(at, said)
        self._notices += key[1] is Notice and key not in self._pending
        self._pending[key] = text, authority
        if self._task is None:
            self._task = self._background.start(self._work(), name="tell the other replicas")

    async def warn(self, at: Followed, said: Said) -> None:
        """Say something at once, whoever hears it."""
        text = _encode(_spelled(at, said, self._settings[at.upstream]))
        await self._bus.tell(_TOPIC, _encode(_Message(os.urandom(8), [msgspec.Raw(text)])))

    def _bounded(self, at: Followed, said: Said) -> tuple[_Key, bytes]:
        """Return what is said under what is the same; too much or too large becomes something general."""
        text = _encode(_spelled(at, said, self._settings[at.upstream]))
        key = _key(at, said)
        waiting, most = len(self._pending), _MOST
        if isinstance(said, Notice):
            waiting, most = self._notices, _MOST_NOTICES
        if len(text) <= _LARGEST_ITEM and (key in self._pending or waiting < most):
            return key, text
        if isinstance(said, Notice):
            return self._bounded(at, Lost(said.method))
        if isinstance(said, Change) and said.uri is not None:
            return self._bounded(at, replace(said, uri=None))
        return key, text

    async def _work(self) -> None:
        try:
            while self._pending:
                taken = dict(self._due())
                if not taken:
                    await asyncio.sleep(_SOON)  # whether we may speak is being found out
                    continue
                for key in taken:
                    del self._pending[key]
                self._notices -= sum(key[1] is Notice for key in taken)
                message = _Message(os.urandom(8), [msgspec.Raw(text) for text, _ in taken.values()])
                if not await self._bus.announce(_TOPIC, _encode(message)):
                    self._pending = taken | self._pending
                    self._notices = sum(key[1] is Notice for key in self._pending)
                    await asyncio.sleep(_PAUSE)
        finally:
            self._task = None

    def _due(self) -> Iterator[tuple[_Key, tuple[bytes, Authority]]]:
        """Yield what fits into a message; what may not be said any more is forgotten."""
        size = 0
        for key, (text, authority) in list(self._pending.items()):
            may = authority()
            if may is False:
                del self._pending[key]
                self._notices -= key[1] is Notice
            elif may:
                if size and size + len(text) > _LARGEST:
                    return
                size += len(text)
                yield key, (text, authority)

    def _heard(self, data: bytes) -> None:
        try:
            message = _decode_message(data)
            items = [_decode_item(raw) for raw in message.items]
        except msgspec.DecodeError:
            log.warning("another replica says something this version does not understand")
            return
        if message.id in self._known:
            return
        self._known[message.id] = True
        for item in items:
            at = Followed(UpstreamName(item.upstream), _partition(item.context))
            if self._settings.get(at.upstream) == item.settings:
                self._hear(at, _read(at, item))


_encode = msgspec.msgpack.Encoder().encode
_decode_message = msgspec.msgpack.Decoder(_Message).decode
_decode_item = msgspec.msgpack.Decoder(_Item).decode


def _key(at: Followed, said: Said) -> _Key:
    kind = type(said)
    match said:
        case Change() | Found() | Aside():
            change = said if isinstance(said, Change) else said.change
            return at, kind, change.method, change.uri, change.partition
        case Notice(method, params) if method == TASK:
            return at, kind, bytes(params.get("taskId", b""))  # it says all of it each time
        case Notice(method, params):
            return at, kind, method, *((key, bytes(raw)) for key, raw in params.items())
        case Lost(method) | Looking(method):
            return at, kind, method
        case Gap():
            return at, kind


def _spelled(at: Followed, said: Said, settings: str) -> _Item:
    match said:
        case Change():
            return _with_change(_Item("change", at.upstream, settings, at.context), said)
        case Aside(change):
            return _with_change(_Item("aside", at.upstream, settings, at.context), change)
        case Found(change, digests):
            item = _with_change(_Item("found", at.upstream, settings, at.context), change)
            item.digests = dict(list(digests.items())[:_MOST_DIGESTS])
            return item
        case Notice(method, params):
            raw = {key: bytes(value) for key, value in params.items()}
            return _Item("notice", at.upstream, settings, at.context, method, params=raw)
        case Lost(method):
            return _Item("lost", at.upstream, settings, at.context, method)
        case Gap(run):
            return _Item("gap", at.upstream, settings, at.context, run=run)
        case Looking(method, lasts):
            return _Item("looking", at.upstream, settings, at.context, method, lasts=lasts)


def _with_change(item: _Item, change: Change) -> _Item:
    item.method, item.uri, item.cause = change.method, change.uri, change.cause
    item.partition, item.asked = change.partition, change.asked
    return item


def _read(at: Followed, item: _Item) -> Said:
    change = Change(at.upstream, item.method, item.uri, item.cause, _partition(item.partition), item.asked)
    match item.kind:
        case "change":
            return change
        case "aside":
            return Aside(change)
        case "found":
            return Found(change, item.digests)
        case "notice":
            return Notice(item.method or "", item.params)
        case "lost":
            return Lost(item.method or "")
        case "gap":
            return Gap(item.run)
        case "looking":
            return Looking(item.method or "", item.lasts)


def _partition(text: str | None) -> Partition | None:
    return None if text is None else Partition(text)
