"""Looks at tasks anew after a gap: per context one round runs, and one more may follow.

A stream that breaks again and again, before an upstream that answers slowly or not at all, then costs a few
requests at a time, however many tasks are listened for.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from gateway.core.audience import Followed
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Requests of one round that are under way together."""


class TaskLooks:
    """Rounds of all contexts."""

    def __init__(
        self,
        look: Callable[[Followed, str], Awaitable[None]],
        tasks_of: Callable[[Followed], list[str]],
        *,
        background: Background,
    ) -> None:
        """`look` has a deadline of its own; `tasks_of` says which tasks of a context are worth a look."""
        self._look = look
        self._tasks_of = tasks_of
        self._background = background
        self._due: dict[Followed, bool] = {}
        """Whether another round is due, for the contexts that have one running."""

    def __repr__(self) -> str:
        return f"<TaskLooks [{', '.join(f'{at.upstream} due' for at in self._due)}]>"

    def want(self, at: Followed) -> None:
        """Have all tasks of a context looked at: what a round has not reached is left to the next."""
        running = at in self._due
        self._due[at] = True
        if not running:
            self._background.start(self._work(at), name=f"look at tasks of {at.upstream}")

    async def _work(self, at: Followed) -> None:
        try:
            while self._due[at]:
                self._due[at] = False
                ids = deque(self._tasks_of(at))
                await asyncio.gather(*(self._some(at, ids) for _ in range(_AT_ONCE)))
        finally:
            del self._due[at]

    async def _some(self, at: Followed, ids: deque[str]) -> None:
        while ids and not self._due[at]:
            try:
                await self._look(at, ids.popleft())
            except Exception:  # a bug must not leave the other tasks unseen
                log.exception("upstream %s: a task could not be looked at", at.upstream)
