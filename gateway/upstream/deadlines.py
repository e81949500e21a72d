"""The two limits of a call: `timeout` of silence, which progress resets, and `max_timeout` in all (B19)."""

import asyncio
from types import TracebackType


class Deadline:
    """An asyncio.timeout that progress pushes back, up to an end that nothing moves.

    Leaving it late raises TimeoutError; `limit` then says which of the two it was.
    """

    def __init__(self, idle: float, longest: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle = idle
        self._longest = longest
        self._end = self._loop.time() + longest
        self._timeout = asyncio.timeout_at(self._next())

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    @property
    def remaining(self) -> float:
        """The seconds left if nothing happens."""
        when = self._timeout.when()
        return 0.0 if when is None else when - self._loop.time()

    @property
    def limit(self) -> str:
        """The limit in force, as it is called in the configuration."""
        if (self._timeout.when() or 0.0) >= self._end:
            return f"max_timeout of {self._longest:g}s"
        return f"timeout of {self._idle:g}s without progress"

    def progressed(self) -> None:
        """Start the time of silence anew, unless the call is already over its limit."""
        if not self._timeout.expired():
            self._timeout.reschedule(self._next())

    async def __aenter__(self) -> "Deadline":
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    def _next(self) -> float:
        return min(self._loop.time() + self._idle, self._end)
