"""What a session of an older revision is told of changes, handed to whoever listens.

Such a server tells of changes wherever it can, on the standing stream, beside an answer or on the channel.
They are levels, not a log: a list that changes twice before it is heard of has changed once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.protocol.call import Change, Notice, Partition, Reason, UpstreamName
from gateway.protocol.jsonrpc import METHOD_NOT_FOUND, McpError, text_of
from gateway.protocol.methods import METHODS
from gateway.protocol.subscriptions import Wanted
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.legacy_session import LegacySession

log = logging.getLogger(__name__)

_UPDATED = "notifications/resources/updated"
_FLAGS = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}
_AT_ONCE = 10
"""Subscriptions asked for at the same time."""
_MOST_WAITING = 1000
"""Different changes that may wait to be taken."""


class LegacyListening:
    """An open subscription to one session, to be iterated by one reader."""

    def __init__(self, session: LegacySession, ears: "Ears", *, idle: float | None, metrics: Metrics) -> None:
        self._session = session
        self._ears = ears
        self._idle = idle
        self._metrics = metrics
        self._waiting: dict[tuple[str, str | None], Notice] = {}
        self._stir = asyncio.Event()
        self._subscribed: list[str] = []
        self._closed = False
        self._lost: Failed | None = None
        self.honoured = Wanted()
        """What the server will tell, never more than was wanted (L-16)."""
        self.failure: Failed | None = None
        """How it was lost, None while it was not."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<LegacyListening {self._session.name}: {state}, {len(self._waiting)} waiting>"

    async def open(self, wanted: Wanted) -> None:
        """Ask for what the server declares that it tells; raises McpError -32601 when that is nothing."""
        greeting = self._session.greeting
        assert greeting is not None
        tools, prompts, resources = (
            getattr(wanted, kind) and greeting.has(kind, "listChanged") for kind in _FLAGS.values()
        )
        uris = wanted.uris if greeting.has("resources", "subscribe") else frozenset()
        if not (uris or tools or prompts or resources):
            raise UpstreamError(McpError(METHOD_NOT_FOUND, "it tells of no changes"), 200)
        self.honoured = Wanted(tools, prompts, resources, uris)
        self._ears.add(self)
        turn = asyncio.Semaphore(_AT_ONCE)

        async def ask(uri: str) -> None:
            async with turn:
                if await self._session.subscribe(uri):
                    self._subscribed.append(uri)

        tried = await asyncio.gather(*map(ask, sorted(uris)), return_exceptions=True)
        for failed in tried:
            if failed is not None:
                raise failed
        self.honoured = Wanted(tools, prompts, resources, frozenset(self._subscribed))
        self._metrics.listen_opened(self._session.name)

    def tell(self, notice: Notice) -> bool:
        """Take a change; whether it belongs here."""
        if notice.method == _UPDATED:
            if not self.honoured.uris:
                return False
            uri = text_of(notice.params.get("uri"))
        elif getattr(self.honoured, _FLAGS.get(notice.method, ""), False):
            uri = None
        else:
            return False
        if len(self._waiting) >= _MOST_WAITING:
            self.lose(
                Failed(self._session.name, Reason.PROTOCOL, "it tells more than is taken", transient=True)
            )
            return True
        self._waiting[notice.method, uri] = notice
        self._stir.set()
        return True

    def lose(self, failure: Failed) -> None:
        """End it as lost, once what came before was read."""
        if self._lost is None:
            self._lost = failure
            self._stir.set()

    def close(self) -> None:
        """Hang up, unless it is over already; notices not read yet are forgotten."""
        self._end("closed")

    def __aiter__(self) -> "LegacyListening":
        return self

    async def __anext__(self) -> Notice:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise StopAsyncIteration
        while not self._waiting:
            if self._lost is not None:
                self.failure = self._lost
                self._end("lost")
                raise self._lost
            self._stir.clear()
            await self._stir.wait()
        return self._waiting.pop(next(iter(self._waiting)))

    def _end(self, how: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        self._ears.remove(self)
        for uri in self._subscribed:
            self._session.unsubscribe(uri)
        self._metrics.listen_ended(self._session.name, how)
        log.debug("upstream %s: its listen ended: %s", self._session.name, how)


class Ears:
    """Who hears what one session is told: its listeners, or else the cache at once."""

    def __init__(self, changes: "Changes", partition: Partition | None, on_idle: Callable[[], None]) -> None:
        """Without a `partition` what changes does so for everybody; `on_idle` is called as the last goes."""
        self._on_idle = on_idle
        self._changes = changes
        self._partition = partition
        self._listenings: set[LegacyListening] = set()

    def __len__(self) -> int:
        return len(self._listenings)

    def add(self, listening: LegacyListening) -> None:
        self._listenings.add(listening)

    def remove(self, listening: LegacyListening) -> None:
        self._listenings.discard(listening)
        if not self._listenings:
            self._on_idle()

    def tell(self, notice: Notice) -> None:
        """Hand on a change."""
        heard = [listening.tell(notice) for listening in list(self._listenings)]
        if not any(heard):
            self._changes.tell(notice, self._partition)

    def lose(self, failure: Failed) -> None:
        """Have every listener know that it may have missed something."""
        for listening in list(self._listenings):
            listening.lose(failure)


class Changes:
    """Passes on, one after the other, what changed at one upstream."""

    def __init__(
        self, name: UpstreamName, on_change: Callable[[Change], Awaitable[None]], background: Background
    ) -> None:
        self._name = name
        self._on_change = on_change
        self._background = background
        self._waiting: dict[Change, None] = {}
        self._passing = False

    def tell(self, notice: Notice, partition: Partition | None) -> None:
        """Take note of a change, and pass it on soon."""
        uri = text_of(notice.params.get("uri")) if notice.method == _UPDATED else None
        cause = "list_changed" if uri is None else "updated"
        for method, known in METHODS.items():
            if known.invalidated_by == notice.method:
                self._waiting[Change(self._name, method, uri, cause, partition)] = None
        if len(self._waiting) > _MOST_WAITING:
            self._waiting = {Change(self._name, cause="list_changed"): None}
        if not self._passing:
            self._passing = True
            self._background.start(self._pass_on(), name=f"changes at {self._name}")

    async def _pass_on(self) -> None:
        try:
            while self._waiting:
                change = next(iter(self._waiting))
                del self._waiting[change]
                await self._on_change(change)
        finally:
            self._passing = False
