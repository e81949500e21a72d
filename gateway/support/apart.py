"""Does work on large messages beside the event loop, which goes on with everybody else meanwhile.

The work is pure: it reads bytes that nobody changes and makes something new of them. Small messages are
worked on at once, as starting a thread for them would cost more than it saves.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.support.room import Held, Room

T = TypeVar("T")

LARGE = 256 * 2**10
"""Bytes from which work may take some ten milliseconds, if somebody meant it to."""

_AT_ONCE = 2
threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="large messages")
"""Those of the whole process: more would only take turns with the event loop more often."""


class Apart:
    """Takes turns: of what one upstream sends one piece is worked on at a time, so that others are, too."""

    def __init__(self, room: Room, refused: Callable[[str], Exception]) -> None:
        """`refused` makes the error for an upstream whose message finds no room to wait in."""
        self._room = room
        self._refused = refused
        self._turns: dict[str, asyncio.Semaphore] = {}

    def __repr__(self) -> str:
        return f"<Apart: {sorted(self._turns)}>"

    async def do(self, upstream: str, size: int, work: Callable[[], T]) -> T:
        """Return what the work makes of a message of this size, which counts as held until then.

        Whoever does not wait for it any more leaves it to end by itself, its turn with it.
        """
        if size < LARGE:
            return work()
        with Held(self._room, "") as held:
            if not held.fits(size):
                raise self._refused(upstream)
            turn = self._turns.setdefault(upstream, asyncio.Semaphore(1))
            await turn.acquire()
            done = asyncio.wrap_future(threads.submit(work))
            done.add_done_callback(lambda ended: _end(ended, turn))
            return await asyncio.shield(done)


def _end(ended: "asyncio.Future[T]", turn: asyncio.Semaphore) -> None:
    turn.release()
    if not ended.cancelled():
        ended.exception()  # it is looked at here, for there may be nobody left who does
