"""Name -> live upstream: the one door through which the gateway asks its upstreams anything."""

import asyncio
import os
import random as chance
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

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


class UpstreamPool:
    """All upstreams of one configuration. Set `on_change` before `start`."""

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
    ) -> None:
        """Raise ValueError when a file that the settings name will not do."""
        self.on_change: OnChange | None = None
        self._background = background
        self._parked = Parked(LocalMailbox(), background) if parked is None else parked
        self._bus = LocalBus() if bus is None else bus
        self._bus.subscribe(_NOTE, self._heard_note)
        self._notes = 0
        self._closing = False
        self._watches: list[asyncio.Task[None]] = []
        self._members: dict[UpstreamName, Member] = {}
        counted = LocalRates(clock) if rates is None else rates
        held = Room(limits.in_flight, limits.message) if room is None else room
        self.room = held
        """What counts the bytes of messages."""
        self.apart = Apart(held, lambda name: Busy(UpstreamName(name), "in_flight"))
        """Where what upstreams answered is worked on."""
        client_info = _client_info(identity, version)
        for key, settings in upstreams.items():
            upstream: Transport
            if settings.command is not None:
                upstream = StdioUpstream(
                    UpstreamName(key),
                    settings,
                    client_info=client_info,
                    limit=limits.message,
                    parked=self._parked,
                    background=background,
                    metrics=metrics,
                    on_change=self._changed,
                    environ=environ,
                    clock=clock,
                    random=random,
                    pace=pace,
                )
            else:
                line = HttpLine(
                    UpstreamName(key),
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
                upstream = self._over_http(line, settings, client_info, pace or Pace(), random)
            self._members[upstream.name] = Member(
                upstream,
                settings,
                metrics=metrics,
                on_change=self._changed,
                clock=clock,
                random=random,
                pace=pace or Pace(),
                rates=counted,
            )

    def _over_http(
        self,
        line: HttpLine,
        settings: config.Upstream,
        client_info: bytes,
        pace: Pace,
        random: Callable[[], float],
    ) -> HttpUpstream:
        changes = Changes(line.name, self._changed, self._background)

        async def open(key: Key, rested: Callable[[], None]) -> HttpSession:
            session = HttpSession(
                line,
                key,
                settings,
                client_info=client_info,
                changes=changes,
                parked=self._parked,
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
                on_change=self._changed,
                parked=self._parked,
                on_idle=rested,
            )

        legacy, older = (
            LegacyUpstream(
                line.name,
                settings,
                opener,
                parked=self._parked,
                background=self._background,
                metrics=line.metrics,
            )
            for opener in (open, open_older)
        )
        return HttpUpstream(
            line,
            settings,
            ModernHttpUpstream(line, settings, client_info=client_info, on_change=self._changed),
            legacy,
            older,
        )

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

    async def start(self) -> None:
        """Begin probing; returns at once."""
        for member in self._members.values():
            task = self._background.start(member.watch(), name=f"watch {member.name}")
            self._watches.append(task)

    async def close(self) -> None:
        """Stop probing and close every connection; running calls fail."""
        self._closing = True
        for task in self._watches:
            task.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches.clear()
        await self._parked.close()
        # At once: programs take their time to end.
        await asyncio.gather(*(member.close() for member in self._members.values()))

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
        if self._notes < _MOST_NOTES:
            self._notes += 1
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
            self._notes -= 1

    def _heard_note(self, message: bytes) -> None:
        note = _decode_note(message)
        name = UpstreamName(note.upstream)
        if name in self._members:  # replicas may be configured differently for a while
            self._members[name].note(note.context, Notice(note.method, {}))

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

    async def _changed(self, change: Change) -> None:
        if self.on_change is not None:
            await self.on_change(change)


def _client_info(identity: config.Identity, version: str) -> bytes:
    title = {} if identity.title is None else {"title": identity.title}
    return encode({"name": identity.name, **title, "version": version})
