"""Overhears what the log would say of programs: their stderr, and what is no message on their stdout."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_KEPT = 5
_LONGEST = 300
_SOURCE = "gateway.upstream.program"
_SIGNS = ("stderr:", "on stdout skipped")
"""How the lines that matter are told from others of that module."""


class Overheard(logging.Handler):
    """Keeps the last lines of each program, as the log would have them: without secrets."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, deque[str]] = {}
        self._something = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        message = record.getMessage()
        if not isinstance(record.args, tuple) or not any(sign in message for sign in _SIGNS):
            return
        upstream = str(record.args[0])
        words = message.removeprefix(f"upstream {upstream}: ")
        self._lines.setdefault(upstream, deque(maxlen=_KEPT)).append(words[:_LONGEST])
        self._something.set()

    async def last_words(self, upstream: str, patience: float) -> tuple[str, ...]:
        """Return what a program said last; what it writes as it ends may come a moment later."""
        try:
            async with asyncio.timeout(patience):
                while upstream not in self._lines:
                    self._something.clear()
                    await self._something.wait()
        except TimeoutError:
            return ()
        return tuple(self._lines[upstream])


@contextmanager
def overhearing() -> Iterator[Overheard]:
    """Listen for as long as this lasts; nothing of it is written anywhere."""
    overheard = Overheard()
    source = logging.getLogger(_SOURCE)
    before = source.level, source.propagate
    source.addHandler(overheard)
    source.setLevel(logging.INFO)
    source.propagate = False
    try:
        yield overheard
    finally:
        source.removeHandler(overheard)
        source.level, source.propagate = before
