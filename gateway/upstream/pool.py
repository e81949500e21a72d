"""Name -> live upstream: the one door through which the gateway asks its upstreams anything."""

import asyncio
import os
import random as chance
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import msgspec

from gateway import config
from gateway.protocol.call import (
    Change,
    Context,
    Emit,
    Notice,
    Reason,
    Reply,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import Json, encode
from gateway.protocol.subscriptions import Wanted, spell
from gateway.support.apart import Apart
from gateway.support.bus import Bus, LocalBus
from gateway.support.mailbox import LocalMailbox
from gateway.support.metrics import Metrics
from gateway.support.rates import LocalRates, Rates
from gateway.support.room import Room
from gateway.support.tasks import Background
from gateway.upstream.failures import Busy, StaleSchema, TimedOut
from gateway.upstream.http_any import HttpUpstream
from gateway.upstream.http_line import HttpLine
from gateway.upstream.legacy_http import HttpSession
from gateway.upstream.legacy_listening import Changes
from gateway.upstream.legacy_upstream import LegacyUpstream
from gateway.upstream.member import Member, OnChange, UpstreamStatus
from gateway.upstream.modern_http import ModernHttpUpstream
from gateway.upstream.parked import Parked
from gateway.upstream.probing import Discovered
from gateway.upstream.retrying import Pace
from gateway.upstream.sessions import Key
from gateway.upstream.sse_channel import SseSession
from gateway.upstream.stdio import StdioUpstream
from gateway.upstream.transport import Listening, Transport

__all__ = ["Discovered", "Listening", "Pace", "StaleSchema", "TimedOut", "UpstreamPool", "UpstreamStatus"]


_NOBODY = Context()
_NOTE = "upstream note"
_MOST_NOTES = 100
"""Notes on their way to other replicas at once."""


class _Note(msgspec.Struct, array_like=True):
    """What a client has to tell, on its way to another replica."""

    upstream: str
    context: Context
    method: str


_encode = msgspec.msgpack.Encoder().encode
_decode_note = msgspec.msgpack.Decoder(_Note).decode

_SHOWN_ONLY = frozenset({"prefix", "label", "cache", "list_timeout", "tools", "methods", "trust_annotations"})
"""What a configuration says of an upstream that it never notices: how it is shown, and what is kept of it."""

_Setup: TypeAlias = tuple[object, ...]
"""What an upstream is reached by; a member whose setup is the same in a new configuration goes on there."""


class _Voice:
    """Through which one upstream tells of its changes, until nobody is concerned with it any more."""

    def __init__(self, ears: "_Ears") -> None:
        self._ears = ears
        self.mute = False

    async def say(self, change: Change) -> None:
        if self._ears.on_change is not None and not self.mute:
            await self._ears.on_change(change)


class _Ears:
    """Who hears the upstreams, and the other replicas: the same for all configurations of a process."""

    def __init__(self, bus: Bus) -> None:
        self.on_change: OnChange | None = None
        self.members: Mapping[UpstreamName, Member] = {}
        self.notes = 0
        bus.subscribe(_NOTE, self._heard_note)

    def _heard_note(self, message: bytes) -> None:
        note = _decode_note(message)
        name = UpstreamName(note.upstream)
        if name in self.members:  # replicas may be configured differently for a while
            self.members[name].note(note.context, Notice(note.method, {}))


class _Kept:
    """One upstream, with what decides whether it goes on in another configuration."""

    __slots__ = ("member", "setup", "voice", "watch")

    def __init__(self, member: Member, setup: _Setup, voice: _Voice) -> None:
        self.member = member
        self.setup = setup
        self.voice = voice
        self.watch: asyncio.Task[None] | None = None


class UpstreamPool:
    """All upstreams of one configuration. Set `on_change` before `start`.

    A pool that comes after another goes on with the upstreams that are set up the same: their sessions,
    programs, breakers and streams are not touched.
    """

    def __init__(
        self,
        upstreams: Mapping[str, config.Upstream],
        *,
        identity: config.Identity,
        version: str,
        limits: config.Limits,
        background: Background,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        random: Callable[[], float] = chance.random,
        environ: Mapping[str, str] = os.environ,
        pace: Pace | None = None,
        parked: Parked | None = None,
        bus: Bus | None = None,
        rates: Rates | None = None,
        room: Room | None = None,
        before: "UpstreamPool | None" = None,
    ) -> None:
        """Raise ValueError when a file that the settings name will not do.

        Of the pool `before` nothing is taken until `take_over`.
        """
        self._background = background
        self._parked = Parked(LocalMailbox(), background) if parked is None else parked
        self._bus = LocalBus() if bus is None else bus
        self._ears: _Ears = _Ears(self._bus) if before is None else before._ears
        self._metrics = metrics
        self._closing = False
        self._retired: set[Member] = set() if before is None else before._retired
        self._rates = LocalRates(clock) if rates is None else rates
        held = Room(limits.in_flight, limits.message) if room is None else room
        self.room = held
        """What counts the bytes of messages."""
        self.apart: Apart = (
            Apart(held, lambda name: Busy(UpstreamName(name), "in_flight"))
            if before is None
            else before.apart
        )
        """Where what upstreams answered is worked on."""
        client_info = _client_info(identity, version)

        def made(name: UpstreamName, settings: config.Upstream, voice: _Voice) -> Member:
            upstream: Transport
            if settings.command is not None:
                upstream = StdioUpstream(
                    name,
                    settings,
                    client_info=client_info,
                    limit=limits.message,
                    parked=self._parked,
                    background=background,
                    metrics=metrics,
                    on_change=voice.say,
                    environ=environ,
                    clock=clock,
                    random=random,
                    pace=pace,
                )
            else:
                line = HttpLine(
                    name,
                    settings,
                    version=version,
                    limit=limits.message,
                    background=background,
                    metrics=metrics,
                    environ=environ,
                    clock=clock,
                    wall_clock=wall_clock,
                    random=random,
                    room=held,
                )
                upstream = _over_http(
                    line,
                    settings,
                    client_info,
                    pace or Pace(),
                    random,
                    parked=self._parked,
                    background=background,
                    say=voice.say,
                )
            return Member(
                upstream,
                settings,
                metrics=metrics,
                on_change=voice.say,
                clock=clock,
                random=random,
                pace=pace or Pace(),
                rates=self._rates,
            )

        known = {} if before is None else before._kept
        self._kept: dict[UpstreamName, _Kept] = {}
        for key, settings in upstreams.items():
            name = UpstreamName(key)
            setup = (
                settings.model_dump(exclude=set(_SHOWN_ONLY)),
                client_info,
                limits.message,
                _marks(settings),
            )
            if name in known and known[name].setup == setup:
                self._kept[name] = known[name]
            else:
                voice = _Voice(self._ears)
                self._kept[name] = _Kept(made(name, settings, voice), setup, voice)
        self._members: dict[UpstreamName, Member] = {name: kept.member for name, kept in self._kept.items()}

    def __repr__(self) -> str:
        return f"<UpstreamPool [{' | '.join(map(repr, self._members.values()))}]>"

    @property
    def all_tried(self) -> bool:
        """Whether every upstream's first probe ended."""
        return all(member.state != "starting" for member in self._members.values())

    @property
    def parked(self) -> int:
        """Calls that wait for answers of their clients."""
        return len(self._parked)

    @property
    def on_change(self) -> OnChange | None:
        """Who is told what upstreams say of their own accord."""
        return self._ears.on_change

    @on_change.setter
    def on_change(self, hear: OnChange | None) -> None:
        self._ears.on_change = hear

    @property
    def retired(self) -> int:
        """How many upstreams of earlier configurations are not closed yet."""
        return len(self._retired)

    def keeps(self, name: UpstreamName, other: "UpstreamPool") -> bool:
        """Whether an upstream is the very same in another pool."""
        mine, its = self._kept.get(name), other._kept.get(name)
        return mine is not None and mine is its

    async def start(self) -> None:
        """Begin probing; returns at once."""
        self._begin()

    def _begin(self) -> None:
        self._ears.members = self._members
        for name, kept in self._kept.items():
            if kept.watch is None:
                kept.watch = self._background.start(kept.member.watch(), name=f"watch {name}")

    def take_over(self, before: "UpstreamPool") -> "Retired":
        """Begin in the place of another pool, and return those of its upstreams that are not in this one.

        They say nothing more of their own accord; what asks them may go on until they are closed.
        """
        gone = [kept for name, kept in before._kept.items() if self._kept.get(name) is not kept]
        for kept in gone:
            kept.voice.mute = True
            kept.member.retire()
            self._retired.add(kept.member)
            if kept.watch is not None:
                kept.watch.cancel()
        self._begin()
        for kept in gone:
            self._forget(kept.member.name)
        return Retired([kept.member for kept in gone], self._retired, self._forget_closed)

    def _forget_closed(self, name: UpstreamName) -> None:
        self._parked.sweep()
        self._forget(name)

    def _forget(self, name: UpstreamName) -> None:
        """Drop the series of an upstream that nobody has any more."""
        if name not in self._ears.members:
            self._metrics.forget(name)

    async def close(self) -> None:
        """Stop probing and close every connection; running calls fail."""
        self._closing = True
        watches = [kept.watch for kept in self._kept.values() if kept.watch is not None]
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await self._parked.close()
        # At once: programs take their time to end.
        await asyncio.gather(*(member.close() for member in (*self._members.values(), *self._retired)))

    async def call(self, name: UpstreamName, request: Request, emit: Emit | None = None) -> Reply:
        """Return an upstream's result.

        Raises McpError as the upstream sent it, UpstreamUnavailable (StaleSchema, TimedOut) or Challenge.
        Cancelling closes the response at once.
        """
        self._check_open(name)
        return await self._members[name].call(request, emit)

    def give_up(self, name: UpstreamName, state: str, context: Context) -> None:
        """Let a call end that asked something and gets no answer; `state` is what it was asked with.

        A modern server waits for nothing. One of an older era would, and others with it (M-22).
        """
        if self._is_older(name):
            self._background.start(self._parked.give_up(state, context), name=f"give up a call at {name}")

    def note(self, name: UpstreamName, context: Context, notice: Notice) -> None:
        """Tell an older server what a client has to tell, in its own sessions, on whichever replica they are.

        A modern server is told nothing: it asks when it wants to know. What is lost is lost; nothing waits.
        """
        if not self._is_older(name):
            return
        self._members[name].note(context, notice)
        if self._ears.notes < _MOST_NOTES:
            self._ears.notes += 1
            self._background.start(
                self._pass_on(_Note(name, context, notice.method)), name=f"note for {name}"
            )

    def report(
        self, name: UpstreamName, state: str, context: Context, key: str, params: Mapping[str, Json]
    ) -> None:
        """Tell an older server how far a client is with an answer, by the state it was asked with."""
        if self._is_older(name):
            self._parked.report(state, context, key, params)

    def on_withdrawn(
        self, name: UpstreamName, state: str, context: Context, key: str, tell: Callable[[], None]
    ) -> None:
        """Have it told once an older server does not want an answer any more; `state` is as for `report`."""
        if self._is_older(name):
            self._parked.on_withdrawn(state, context, key, tell)

    def _is_older(self, name: UpstreamName) -> bool:
        return self._members[name].status.era == "legacy"

    async def _pass_on(self, note: "_Note") -> None:
        try:
            await self._bus.tell(_NOTE, _encode(note))
        finally:
            self._ears.notes -= 1

    @asynccontextmanager
    async def listen(
        self,
        name: UpstreamName,
        wanted: Wanted,
        *,
        capabilities: Json = b"{}",
        authorization: str | None = None,
        context: Context = _NOBODY,
    ) -> AsyncIterator[Listening]:
        """Hold a subscription to an upstream open; entering returns once it is acknowledged.

        `wanted` holds the upstream's own URIs and task ids. Raises like `call`; McpError -32601 says that
        this upstream serves no subscriptions, however often it is asked. Leaving closes the stream at once.
        """
        self._check_open(name)
        request = Request(
            "subscriptions/listen",
            {"notifications": spell(wanted)},
            capabilities=capabilities,
            authorization=authorization,
            context=context,
        )
        async with self._members[name].listen(request, wanted) as listening:
            yield listening

    async def up(self, name: UpstreamName) -> None:
        """Return once the upstream answers."""
        await self._members[name].up()

    async def tried(self, name: UpstreamName, timeout: float) -> None:
        """Return once the upstream's first probe ended, well or not, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._members[name].tried()

    def status(self, name: UpstreamName) -> UpstreamStatus:
        """Return what is known of an upstream."""
        return self._members[name].status

    def discovered(self, name: UpstreamName) -> Discovered | None:
        """Return what an upstream last said about itself."""
        return self._members[name].discovered

    def available(self, name: UpstreamName) -> bool:
        """Whether asking makes sense: false while known to be down, so that lists skip it at once (B01)."""
        return self._members[name].state != "down"

    def _check_open(self, name: UpstreamName) -> None:
        if self._closing:
            raise UpstreamUnavailable(name, Reason.STOPPING)


class Retired:
    """The upstreams that a new configuration has none of, or other ones in the place of."""

    def __init__(
        self, members: list[Member], open: set[Member], forget: Callable[[UpstreamName], None]
    ) -> None:
        self._members = members
        self._open = open
        self._forget = forget

    def __repr__(self) -> str:
        return f"<Retired {', '.join(member.name for member in self._members)}>"

    async def close(self) -> None:
        """Close their connections and end their programs; calls that still run fail."""
        await asyncio.gather(*(member.close() for member in self._members))
        self._open.difference_update(self._members)
        for member in self._members:
            self._forget(member.name)


def _marks(settings: config.Upstream) -> tuple[str, ...]:
    """Return what tells the content of the files that an upstream's settings name from another one."""
    client = settings.auth.obtained
    tls = [settings.tls] if client is None else [settings.tls, client.tls]
    paths = [path for one in tls for path in (one.ca_file, one.client_cert, one.client_key) if path]
    try:
        return tuple(sha256(Path(path).read_bytes()).hexdigest() for path in paths)
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}") from None


def _client_info(identity: config.Identity, version: str) -> bytes:
    title = {} if identity.title is None else {"title": identity.title}
    return encode({"name": identity.name, **title, "version": version})


def _over_http(
    line: HttpLine,
    settings: config.Upstream,
    client_info: bytes,
    pace: Pace,
    random: Callable[[], float],
    *,
    parked: Parked,
    background: Background,
    say: OnChange,
) -> HttpUpstream:
    changes = Changes(line.name, say, background)

    async def open(key: Key, rested: Callable[[], None]) -> HttpSession:
        session = HttpSession(
            line,
            key,
            settings,
            client_info=client_info,
            changes=changes,
            parked=parked,
            on_idle=rested,
            pace=pace,
            random=random,
        )
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        return session

    async def open_older(key: Key, rested: Callable[[], None]) -> SseSession:
        return await SseSession.open(
            line,
            key,
            settings,
            client_info=client_info,
            changes=changes,
            on_change=say,
            parked=parked,
            on_idle=rested,
        )

    legacy, older = (
        LegacyUpstream(
            line.name,
            settings,
            opener,
            parked=parked,
            background=background,
            metrics=line.metrics,
        )
        for opener in (open, open_older)
    )
    return HttpUpstream(
        line,
        settings,
        ModernHttpUpstream(line, settings, client_info=client_info, on_change=say),
        legacy,
        older,
    )
