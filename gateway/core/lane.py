"""Takes in what one upstream says in one context, at whatever speed, and works it off in order.

Whoever reads the upstream's stream never waits for what its words lead to: a refresh awaited there would wait
for an answer that nobody reads (B45). A change that was not worked off yet is the same change when it comes
again, and a list that changes again and again is worked off at most once in a while, the last time included.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.protocol.call import Change
from gateway.support import exchange
from gateway.support.tasks import Background, happens

log = logging.getLogger(__name__)

_MOST_URIS = 1024


class Lane:
    """The changes of one upstream in one context that wait for their turn."""

    def __init__(
        self,
        settle: Callable[[Change], Awaitable[None]],
        done: Callable[[], None],
        *,
        gather: float,
        background: Background,
    ) -> None:
        """`settle` works off one change; `done` is called when all is worked off and nothing is paced."""
        self._settle = settle
        self._done = done
        self._gather = gather
        self._background = background
        self._pending: dict[tuple[str | None, str | None], Change] = {}
        self._not_before: dict[str | None, float] = {}
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Lane {len(self._pending)} pending>"

    def add(self, change: Change) -> None:
        """Take in a change; too many resources at once are all of them."""
        key = (change.method, change.uri)
        if key not in self._pending and change.uri is not None and len(self._pending) >= _MOST_URIS:
            change = Change(change.upstream, change.method, cause=change.cause, partition=change.partition)
            key = (change.method, None)
        self._pending[key] = change
        self._stir.set()
        if self._task is None:
            self._task = self._background.start(self._work(), name=f"changes of {change.upstream}")

    async def _work(self) -> None:
        exchange.detach()
        try:
            while self._pending or self._not_before:
                self._stir.clear()
                now = asyncio.get_running_loop().time()
                self._not_before = {what: at for what, at in self._not_before.items() if at > now}
                for key in [key for key in self._pending if self._is_due(key)]:
                    change = self._pending.pop(key)
                    if change.uri is None:
                        self._not_before[change.method] = asyncio.get_running_loop().time() + self._gather
                    try:
                        await self._settle(change)
                    except Exception:  # a bug must not leave the upstream unheard
                        log.exception("upstream %s: a change could not be told", change.upstream)
                await self._next()
        finally:
            self._task = None
            self._done()

    def _is_due(self, key: tuple[str | None, str | None]) -> bool:
        method, uri = key
        return uri is not None or method not in self._not_before

    async def _next(self) -> None:
        """Wait until something may be due."""
        if not self._not_before or any(map(self._is_due, self._pending)):
            return
        now = asyncio.get_running_loop().time()
        await happens(self._stir, max(0.0, min(self._not_before.values()) - now))
