"""The two pipes of a program that is a server itself: stdin and stdout, each served by a thread of its own.

Only a thread can read and write whatever they may be, a pipe, a file or a terminal, on every system. Nothing
else of the process can reach them once they are taken over.
"""

import asyncio
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gateway.front.stream import ClientGone

_CHUNK = 2**18
_FULL = 2**20
"""Bytes that may wait for the client before whoever has more to say waits too."""


def take_over() -> tuple[int, int]:
    """Return stdin and stdout as descriptors of our own.

    From now on whatever prints, a library or a child, prints to stderr, and whoever reads stdin reads
    nothing: stdout carries messages alone (B28).
    """
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed
        os.dup2(nothing, 1)
    os.close(nothing)
    if sys.platform == "win32":
        import msvcrt

        for descriptor in (source, target):
            msvcrt.setmode(descriptor, os.O_BINARY)
    return source, target


class Inlet:
    """Reads chunks, one at a time and only when one is wanted: what is not wanted yet waits at the client."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Semaphore(0)
        self._came: asyncio.Future[bytes] | None = None
        threading.Thread(target=self._serve, name="stdin", daemon=True).start()

    def __repr__(self) -> str:
        return f"<Inlet {self._descriptor}>"

    async def read(self) -> bytes:
        """Return what came, b"" at the end."""
        self._came = self._loop.create_future()
        self._wanted.release()
        return await self._came

    def _serve(self) -> None:
        while True:
            self._wanted.acquire()
            try:
                chunk = _read(self._descriptor)
            except OSError:
                chunk = b""
            if not _tell(self._loop, self._take, chunk) or not chunk:
                return

    def _take(self, chunk: bytes) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(chunk)


class Outlet:
    """Writes whole lines in the order in which they are handed over."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._waiting = 0
        self._moved = asyncio.Event()
        self.gone = asyncio.Event()
        """Set once nobody reads any more, or all was written after `close`."""
        threading.Thread(target=self._serve, name="stdout", daemon=True).start()

    def __repr__(self) -> str:
        return f"<Outlet {self._descriptor}: {self._waiting} bytes waiting>"

    @property
    def full(self) -> bool:
        """Whether the client is behind: better to wait for `room` before there is more to write."""
        return self._waiting >= _FULL

    def write(self, line: bytes) -> None:
        """Write a line some time soon; raises ClientGone when nobody reads any more."""
        if self.gone.is_set():
            raise ClientGone
        self._waiting += len(line)
        with self._changed:
            self._lines.append(line)
            self._changed.notify()

    async def room(self) -> None:
        """Return once the client has caught up; raises ClientGone when it never will."""
        while self.full and not self.gone.is_set():
            self._moved.clear()
            await self._moved.wait()
        if self.gone.is_set():
            raise ClientGone

    async def close(self, within: float) -> bool:
        """Take no more; whether all was written in so many seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.gone.wait()
        return not self._waiting

    def _serve(self) -> None:
        try:
            while lines := self._next():
                data = b"".join(lines)
                _write(self._descriptor, data)
                if not _tell(self._loop, self._wrote, len(data)):
                    return
        except OSError:
            pass
        finally:
            os.close(self._descriptor)
            _tell(self._loop, self._ended)

    def _next(self) -> list[bytes]:
        """Return all that is to be written now, nothing when that was all."""
        with self._changed:
            while not self._lines and not self._closing:
                self._changed.wait()
            lines = list(self._lines)
            self._lines.clear()
            return lines

    def _wrote(self, size: int) -> None:
        self._waiting -= size
        self._moved.set()

    def _ended(self) -> None:
        self.gone.set()
        self._moved.set()


def _read(descriptor: int) -> bytes:
    """Return the next chunk; a client may have made its pipe one that does not wait."""
    while True:
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            select.select([descriptor], [], [])


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *arguments: object) -> bool:
    """Have something done in the loop; whether that is still there."""
    try:
        loop.call_soon_threadsafe(what, *arguments)
    except RuntimeError:
        return False
    return True
