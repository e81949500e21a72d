"""What another configuration means to those who listen: whose streams end, and what the others are told."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.config import Authentication
from gateway.core.access import Sight
from gateway.core.audience import KINDS, Audience, Kind
from gateway.core.discover import offers
from gateway.core.subscription import End
from gateway.protocol.call import Answer, Call, Partition, Principal, Sink, UpstreamName
from gateway.protocol.subscriptions import Wanted
from gateway.support.bus import Bus
from gateway.support.tasks import Background
from gateway.upstream.pool import UpstreamPool

_OTHERWISE = "shown otherwise"
_say = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(list[tuple[str, Kind]]).decode

Served = Mapping[str, Collection[UpstreamName]]
"""Endpoint -> its upstreams."""


class Door(Protocol):
    """Behind which one endpoint is served, as it is configured now."""

    async def listen(self, call: Call, principal: Principal, sink: Sink) -> Answer:
        """Relay until either side is to end it."""
        ...

    def show(self, partition: Partition | None, uri: str, upstream: UpstreamName) -> None:
        """Note whose a URI is that a caller is shown (F-11)."""
        ...

    def sight(self, principal: Principal) -> Sight | None:
        """Return what the rules let a caller see, None without rules."""
        ...

    def admits(self, principal: Principal, before: Authentication) -> bool:
        """Whether who was let in `before` would be let in again."""
        ...


@dataclass(frozen=True)
class Turn:
    """What another configuration means to whoever listens."""

    gone: frozenset[UpstreamName] = frozenset()
    """Upstreams that are no more, or other ones under the same name."""
    come: frozenset[UpstreamName] = frozenset()
    """Upstreams that were not there before, or are other ones."""
    renamed: frozenset[UpstreamName] = frozenset()
    """Upstreams whose things have other names and URIs."""
    otherwise: Mapping[str, frozenset[Kind]] = field(default_factory=dict)
    """Endpoint -> the lists of which something else is shown, for other reasons than that an upstream is."""
    rules: bool = False
    """Whether other rules say who may see what."""
    counts: Callable[[Principal], bool] = lambda _: True
    """Whether a caller would be let in again with the credential he came with."""


@dataclass(frozen=True)
class Moved:
    """Which endpoints serve an upstream that they did not before, or none any more."""

    lost: frozenset[tuple[str, UpstreamName]]
    gained: frozenset[tuple[str, UpstreamName]]

    @property
    def gaining(self) -> frozenset[str]:
        """The endpoints that have got one."""
        return frozenset(path for path, _ in self.gained)

    def to(self, name: UpstreamName) -> list[str]:
        """Return the endpoints that have got this upstream."""
        return [path for path, its in self.gained if its == name]


def moved(before: Served, after: Served) -> Moved:
    """Return what moves at endpoints; of those that are gone nobody needs to hear."""
    return Moved(
        frozenset(
            (path, name)
            for path, names in before.items()
            for name in names
            if path in after and name not in after[path]
        ),
        frozenset((path, name) for path in after for name in after[path] if name not in before.get(path, ())),
    )


@dataclass(frozen=True)
class Listener:
    """One stream, as it has to be looked at."""

    principal: Principal
    asked: Wanted
    """The lists its client wants to hear of."""
    promised: Wanted
    named: frozenset[UpstreamName]
    """Whose resources and tasks it was promised by name."""


def end_of(one: Listener, turn: Turn, served: Collection[UpstreamName] | None, *, gains: bool) -> End | None:
    """Return why a stream cannot be kept as it is, None where it can.

    `served` are the upstreams of its endpoint by now, None where that is gone; `gains` says whether there are
    new ones among them.
    """
    if served is None:
        return "reloaded"
    if not turn.counts(one.principal):
        return "refused"
    if any(name in turn.gone or name in turn.renamed or name not in served for name in one.named):
        return "withdrawn"
    if turn.rules and (one.promised.uris or one.promised.tasks):
        return "withdrawn"
    if gains and one.asked - one.promised.lists:
        return "reloaded"  # it may be promised more by now
    return None


class Crier:
    """Tells clients of the lists that are shown otherwise, here and at the other replicas."""

    def __init__(self, audience: Audience, background: Background, bus: Bus | None) -> None:
        self._audience = audience
        self._background = background
        self._bus = bus
        self._welcomes: dict[UpstreamName, asyncio.Task[None]] = {}
        if bus is not None:
            bus.subscribe(_OTHERWISE, self._heard)

    def tell(self, path: str, kind: Kind, upstream: UpstreamName | None) -> None:
        """Tell those who listen at an endpoint that a list, of an upstream or of any, is shown otherwise."""
        self._audience.shown_otherwise(path, kind, upstream)
        if self._bus is not None:
            said = self._bus.tell(_OTHERWISE, _say([(path, kind)]))
            self._background.start(said, name="tell what is shown otherwise")

    def _heard(self, message: bytes) -> None:
        for path, kind in _read(message):
            self._audience.shown_otherwise(path, kind, None)

    def welcome(
        self,
        name: UpstreamName,
        pool: UpstreamPool,
        paths: Collection[str],
        *,
        instead_of: frozenset[Kind] | None,
        elsewhere: Callable[[], Collection[str]],
        compare: Callable[[], None],
    ) -> None:
        """Tell of an upstream's lists once it is there: where it is new, and where it says something else.

        At the `paths` it is new. Where it stands in the place of another one, `instead_of` are the lists of
        that: `elsewhere` clients hear of those that only one of the two has, and the rest is to `compare`.
        """

        async def welcomed() -> None:
            await pool.up(name)
            kinds = offered(pool, name)
            for path in paths:
                for kind in kinds:
                    self.tell(path, kind, name)
            if instead_of is None:
                return
            for path in elsewhere():
                for kind in kinds ^ instead_of:
                    self.tell(path, kind, name)
            compare()

        def over(_: object) -> None:
            if self._welcomes.get(name) is task:
                del self._welcomes[name]

        self._welcomes[name] = task = self._background.start(welcomed(), name=f"welcome {name}")
        task.add_done_callback(over)

    def forget(self, name: UpstreamName) -> None:
        """Wait for an upstream no more that is gone."""
        welcome = self._welcomes.pop(name, None)
        if welcome is not None:
            welcome.cancel()


def offered(pool: UpstreamPool, name: UpstreamName) -> frozenset[Kind]:
    """Return the lists that an upstream says it has."""
    discovered = pool.discovered(name)
    if discovered is None:
        return frozenset()
    return frozenset(kind for kind in KINDS if offers(discovered.capabilities, kind))
