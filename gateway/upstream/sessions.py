"""Keeps sessions, or processes, apart by whose they are: one for each key, at most so many, idle ones end."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from gateway import config
from gateway.protocol.call import (
    Challenge,
    Context,
    Partition,
    Reason,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import McpError
from gateway.protocol.legacy_server import NOTHING, declared
from gateway.protocol.methods import METHODS
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_LAST_WORDS = 5.0
"""The longest that sessions may take to end when the gateway does."""

_UNTAKEN = 1.0
"""How long one that was just opened stays for whoever asked for it."""

_conversations = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Key:
    """Whose a session is, and what its client can be asked: the two never meet another's (X-31, B07)."""

    whose: str = ""
    """The caller, or the client's session; "" for those who cannot be told apart, and for the gateway."""
    capabilities: bytes = NOTHING
    credential: str = ""
    """What stands for the caller's own Authorization, where the upstream is handed it."""
    conversation: int = 0
    """Not 0 for a session that serves a single call."""
    authorization: str | None = field(default=None, compare=False, repr=False)
    """The Authorization itself, with which all of the session is sent."""
    partition: Partition | None = field(default=None, compare=False, repr=False)
    """Whose private results change when the session is told so."""

    @property
    def holder(self) -> str:
        """Who takes part of the room with it; "" for what is everybody's, and for single calls."""
        return self.whose or self.credential

    @property
    def shared(self) -> bool:
        """Whether it is the gateway's own, and of all who cannot be told apart."""
        return not (self.whose or self.conversation or self.credential)


def whose_of(context: Context, settings: config.Upstream) -> str:
    """Return whose sessions a context has a part in, "" for those of everybody."""
    if settings.apart == "session" and context.session:
        return context.session
    return "" if settings.apart == "shared" else context.caller


def key_of(request: Request, settings: config.Upstream, credential: str) -> Key:
    """Return whose session a request goes to; `credential` stands for what it is sent with.

    Capabilities are declared only for one caller (M-22). Nobody can tell anonymous ones apart, so a call of
    theirs that may be asked something has a session of its own, for as long as it lasts.
    """
    context, whose = request.context, whose_of(request.context, settings)
    capabilities = NOTHING if settings.apart == "shared" else declared(request.capabilities)
    conversation = 0
    if not whose and not context.alone and capabilities != NOTHING:
        known = METHODS.get(request.method)
        if known is not None and known.may_ask:
            conversation = next(_conversations)
        else:
            capabilities = NOTHING
    partition = Partition(context.caller) if whose and context.caller else None
    return Key(whose, capabilities, credential, conversation, request.authorization, partition)


class Kept(Protocol):
    """What is kept: it is opened before, and ends when `close` returns."""

    @property
    def active(self) -> int:
        """What is under way, calls that wait for their user included."""
        ...

    @property
    def ended(self) -> bool:
        """Whether it is of no use any more."""
        ...

    async def close(self) -> None: ...


K = TypeVar("K", bound=Kept)


@dataclass(eq=False, slots=True)
class _Entry(Generic[K]):
    kept: K
    users: int = 0
    since: float = 0.0
    timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        return not self.users and not self.kept.active


class Sessions(Generic[K]):
    """All that is open towards one upstream."""

    def __init__(
        self,
        open: Callable[[Key], Awaitable[K]],
        *,
        most: int,
        each: int,
        idle: float,
        background: Background,
        metrics: Metrics,
        name: UpstreamName,
        counted: bool = True,
    ) -> None:
        """`open` is run once for all who wait for the same key; it keeps its own deadline.

        There are at most `most`, and `each` of one holder. What is not `counted`, whoever opens it counts.
        """
        self._open = open
        self._most = most
        self._each = each
        self._idle = idle
        self._background = background
        self._metrics = metrics
        self._name = name
        self._counted = counted
        self._entries: dict[Key, _Entry[K]] = {}
        self._opening: dict[Key, asyncio.Task[McpError | UpstreamUnavailable | Challenge | None]] = {}
        self._room = asyncio.Event()
        self._closed = False
        self._retired = False

    def __repr__(self) -> str:
        return f"<Sessions {self._name}: {len(self._entries)} open, {len(self._opening)} opening>"

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, whose: str) -> list[K]:
        """Return what is open for one caller, or for one client's session, calls of nobody's left out."""
        return [
            entry.kept
            for key, entry in self._entries.items()
            if key.whose == whose and not key.conversation and not entry.kept.ended
        ]

    def get(self, key: Key) -> K | None:
        """Return what is open for a key, if anything is."""
        entry = self._entries.get(key)
        return None if entry is None or entry.kept.ended else entry.kept

    @asynccontextmanager
    async def use(self, key: Key) -> AsyncIterator[K]:
        """Hold what is kept for a key, opened if need be; it does not end meanwhile for being idle."""
        entry = await self._entry(key)
        entry.users += 1
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        try:
            yield entry.kept
        finally:
            entry.users -= 1
            self._rest(key, entry)

    def rested(self, key: Key) -> None:
        """Take note that the last call under way on it has ended."""
        entry = self._entries.get(key)
        if entry is not None:
            self._rest(key, entry)

    def forget(self, key: Key, kept: K) -> bool:
        """Use this one no more, the next who asks gets another; whether it was the one in use."""
        entry = self._entries.get(key)
        if entry is None or entry.kept is not kept:
            return False
        self._remove(key, entry)
        return True

    def retire(self) -> list[K]:
        """End each, the gateway's own as well, as soon as it is idle; return those that are open."""
        self._retired = True
        kept = [entry.kept for entry in self._entries.values()]
        for key, entry in list(self._entries.items()):
            self._rest(key, entry)
        return kept

    def revive(self) -> None:
        """Keep them for a while again."""
        self._retired = False

    async def close(self) -> None:
        """End them all, within a time."""
        self._closed = True
        self._stir()
        for task in self._opening.values():
            task.cancel()
        ending = [self._remove(key, entry) for key, entry in list(self._entries.items())]
        if ending:
            await asyncio.wait(ending, timeout=_LAST_WORDS)

    async def _entry(self, key: Key) -> _Entry[K]:
        while True:
            if self._closed:
                raise UpstreamUnavailable(self._name, Reason.STOPPING)
            entry = self._entries.get(key)
            if entry is not None and not entry.kept.ended:
                return entry
            if entry is not None:
                self._remove(key, entry)
            task = self._opening.get(key)
            if task is None:
                await self._make_room(key)
                if self._closed or key in self._opening or key in self._entries:
                    continue  # somebody else was quicker
                task = self._background.start(self._opened(key), name=f"open a session at {self._name}")
                self._opening[key] = task
            # Whoever leaves, leaves the others' session alone; a handshake is never cut short (U-23).
            failure = await asyncio.shield(task)
            if failure is not None:
                raise failure

    async def _opened(self, key: Key) -> McpError | UpstreamUnavailable | Challenge | None:
        """Return why there is none, for whoever waits for it."""
        try:
            entry = _Entry(await self._open(key))
            self._entries[key] = entry
            self._count(+1)
            self._rest(key, entry, least=_UNTAKEN)
            return None
        except (McpError, UpstreamUnavailable, Challenge) as failure:
            return failure
        except asyncio.CancelledError:  # as the gateway stops: nobody else has this task
            return UpstreamUnavailable(self._name, Reason.STOPPING)
        finally:
            del self._opening[key]
            self._stir()

    async def _make_room(self, key: Key) -> None:
        """Return once one more may be opened: the one idle longest ends for it, or one that becomes idle.

        Whoever wants one more gives up one of their own first; beyond their share they have to.
        """
        while not self._closed:
            known = [*self._entries, *self._opening]
            held = sum(one.holder == key.holder for one in known) if key.holder else 0
            if held < self._each and len(known) < self._most:
                return
            idle = [one for one, entry in self._entries.items() if entry.idle]
            own = [one for one in idle if one.holder == key.holder] if key.holder else []
            ending = own or (idle if held < self._each else [])
            if ending:
                # The gateway's own goes last: it would be opened again at once.
                first = min(ending, key=lambda one: (one.shared, self._entries[one].since))
                self._remove(first, self._entries[first])
                self._metrics.upstream_session_displaced(self._name)
            else:
                self._room.clear()
                self._metrics.upstream_sessions_waiting(self._name, by=1)
                try:
                    await self._room.wait()
                finally:
                    self._metrics.upstream_sessions_waiting(self._name, by=-1)

    def _rest(self, key: Key, entry: _Entry[K], least: float = 0.0) -> None:
        """Begin to count the time that it is idle, if it is."""
        if not entry.idle or self._entries.get(key) is not entry:
            return
        loop = asyncio.get_running_loop()
        entry.since = loop.time()
        self._stir()
        if entry.kept.ended:
            self._remove(key, entry)
        elif self._retired or not key.shared:
            idle = max(least, 0.0 if self._retired or key.conversation else self._idle)
            if entry.timer is not None:
                entry.timer.cancel()
            entry.timer = loop.call_later(idle, self._expire, key, entry)

    def _expire(self, key: Key, entry: _Entry[K]) -> None:
        if entry.idle and self._entries.get(key) is entry:
            self._remove(key, entry)

    def _remove(self, key: Key, entry: _Entry[K]) -> "asyncio.Task[None]":
        if self._entries.pop(key, None) is not None:
            self._count(-1)
        if entry.timer is not None:
            entry.timer.cancel()
        self._stir()
        return self._background.start(entry.kept.close(), name=f"end a session at {self._name}")

    def _count(self, step: int) -> None:
        if self._counted:
            self._metrics.upstream_sessions(self._name, by=step)

    def _stir(self) -> None:
        self._room.set()
