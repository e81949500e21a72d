"""Counts who is at work with what is about to be taken down, so that it is known when nobody is any more."""

import asyncio
from contextlib import suppress


class Guests:
    """Those who came, and have not left yet."""

    __slots__ = ("_count", "_nobody")

    def __init__(self) -> None:
        self._count = 0
        self._nobody: asyncio.Event | None = None
        """Set when the last one leaves, once anybody waits for that."""

    def __repr__(self) -> str:
        return f"<Guests {self._count}>"

    def __len__(self) -> int:
        return self._count

    def come(self) -> None:
        """Count one in; `leave` must follow."""
        self._count += 1

    def leave(self) -> None:
        """Count one out."""
        self._count -= 1
        if not self._count and self._nobody is not None:
            self._nobody.set()

    async def gone(self, within: float) -> bool:
        """Whether there was a moment without any in so many seconds."""
        if self._count:
            self._nobody = self._nobody or asyncio.Event()
            self._nobody.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._nobody.wait()
        return not self._count
