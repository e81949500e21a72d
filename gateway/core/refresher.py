"""Looks at lists anew when they may have changed: per upstream one refresh runs, and one more may follow.

Looking is all it does. Whoever keeps the lists says so when one of them is another than before; what could
not be looked at counts as changed, since nothing proves that it is not.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from gateway.core.audience import Followed
from gateway.protocol.call import UpstreamName
from gateway.support import exchange
from gateway.support.tasks import Background, happens

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0


class Refresher:
    """Refreshes of all upstreams."""

    def __init__(
        self,
        refresh: Callable[[Followed, Mapping[str, bool]], Awaitable[None]],
        *,
        pause: float,
        background: Background,
    ) -> None:
        """`refresh` is given methods, and whether clients are owed a word where nothing can be found out.

        `pause` comes after the first of several refreshes of one upstream; after each more it is doubled.
        """
        self._refresh = refresh
        self._pause = pause
        self._background = background
        self._due: dict[UpstreamName, dict[tuple[Followed, str], bool]] = {}
        self._urgent: dict[UpstreamName, asyncio.Event] = {}

    def __repr__(self) -> str:
        due = ", ".join(f"{name}: {len(lists)} due" for name, lists in self._due.items())
        return f"<Refresher [{due}]>"

    def want(self, at: Followed, methods: Iterable[str], *, owed: bool = False, urgent: bool = False) -> None:
        """Have these lists looked at: now, or right after what is being looked at and the pause behind it.

        What is urgent does not wait for the pause: an upstream that was away says nothing of its own accord.
        """
        name = at.upstream
        waiting = name in self._due
        due = self._due.setdefault(name, {})
        for method in methods:
            due[at, method] = due.get((at, method), False) or owed
        if not waiting:
            self._urgent[name] = asyncio.Event()
            self._background.start(self._work(name), name=f"refresh {name}")
        elif urgent:
            self._urgent[name].set()

    async def _work(self, name: UpstreamName) -> None:
        exchange.detach()
        pause, urgent = self._pause, self._urgent[name]
        try:
            while self._due[name]:
                due, self._due[name] = self._due[name], {}
                urgent.clear()
                for at in dict.fromkeys(at for at, _ in due):
                    try:
                        mine = {method: owed for (its, method), owed in due.items() if its == at}
                        await self._refresh(at, mine)
                    except Exception:  # a bug must not leave this upstream unseen
                        log.exception("upstream %s: its lists could not be refreshed", name)
                if not await happens(urgent, pause):
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            del self._due[name], self._urgent[name]
