"""The one place that creates asyncio tasks: it names them, keeps them, logs their failures and ends them.

And how a task waits for what may not come.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


async def happens(event: asyncio.Event, within: float | None) -> bool:
    """Whether an event comes to pass in so many seconds; None = however long that takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
    return event.is_set()


class Background:
    """The tasks that outlive whoever started them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself only holds tasks weakly
        self._closed = False

    def __repr__(self) -> str:
        return f"<Background [{', '.join(sorted(task.get_name() for task in self._tasks))}]>"

    def start(
        self, coro: Coroutine[Any, Any, T], *, name: str, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine on its own, in another context if one is given; if it fails, the log says so.

        After `close` the task is cancelled before its first step, so a late start neither runs nor leaks.
        """
        task = asyncio.get_running_loop().create_task(coro, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if self._closed:
            task.cancel()
        return task

    async def close(self, timeout: float) -> None:
        """Cancel every task and wait until all have ended, at most this many seconds.

        What does not end in time is named in the log and left to the end of the loop.
        """
        self._closed = True
        current = asyncio.current_task()
        running = {task for task in self._tasks if task is not current}
        for task in running:
            task.cancel()
        if running:
            _, running = await asyncio.wait(running, timeout=timeout)
        for task in running:
            log.warning("task %s did not end within %gs", task.get_name(), timeout)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)
