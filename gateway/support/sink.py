"""What is written and never waited for: a bounded queue of lines in front of a file that somebody may read.

A pipe, a socket or a terminal that nobody reads takes no more at some moment, and a plain write would then
hold up the whole process for as long as that lasts (a client starts the gateway and leaves its stderr alone).
"""

import os
import select
import socket
import stat
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TextIO

_ATOMIC = 4096
"""Bytes that a pipe takes as one piece, which no other process that writes to it can cut (PIPE_BUF)."""


class Sink:
    """Takes lines at any time and from any thread, and writes those that there is room for."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream
        self.guard = threading.RLock()
        """Held while lines are added or written, so that they come in order."""
        self.size = 0
        """Bytes that wait."""
        self._waiting: deque[bytearray] = deque()
        self._lost = 0
        self._place = _place_of(stream)

    def __repr__(self) -> str:
        return f"<Sink {self.size} bytes waiting, {self._lost} lines lost>"

    def add(self, line: bytes, most: int) -> None:
        """Have a line written soon; where as many bytes wait already, it is only counted."""
        if self.size >= most:
            self.lose()
            return
        with self.guard:
            self.size += len(line)
            if self._waiting and len(self._waiting[-1]) + len(line) <= _ATOMIC:
                self._waiting[-1] += line
                return
            self._waiting.extend(
                bytearray(line[start : start + _ATOMIC]) for start in range(0, len(line), _ATOMIC)
            )

    def lose(self) -> None:
        """Count a line that is not written."""
        with self.guard:
            self._lost += 1

    def lost(self) -> int:
        """Return how many lines were lost, once and when there is room to tell it."""
        with self.guard:
            if self._waiting:
                return 0
            lost, self._lost = self._lost, 0
            return lost

    def pour(self) -> bool:
        """Write what there is room for; return whether nothing waits any more."""
        with self.guard:
            while self._waiting:
                piece = self._waiting[0]
                taken = self._place.put(piece)
                self.size -= taken
                if taken < len(piece):
                    del piece[:taken]
                    return False
                self._waiting.popleft()
        return True

    def finish(self, patience: float) -> None:
        """Write what waits, and wait no longer than so many seconds for who reads it."""
        until = time.monotonic() + patience
        while not self.pour() and (left := until - time.monotonic()) > 0:
            self._place.wait(left)

    def close(self) -> None:
        """Give back what was opened for writing, and forget what waits; the stream stays open."""
        with self.guard:
            self._place.close()
            self._place = _Stream(None)
            self._waiting.clear()
            self.size = 0


class _Stream:
    """A text stream that no file stands behind, or a system that can write in no other way."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def put(self, piece: bytearray) -> int:
        if self._stream is not None:
            with suppress(OSError, ValueError):  # the stream is gone
                self._stream.write(piece.decode("utf-8", "replace"))
                self._stream.flush()
        return len(piece)

    def wait(self, seconds: float) -> None:
        """It has never to be waited for."""

    def close(self) -> None:
        """Leave it to whoever opened it."""


class _File:
    """A file that takes at once what is written to it, or else is asked before whether it has room."""

    def __init__(self, number: int, *, asked: bool = False) -> None:
        self._number = number
        self._room = select.poll()
        self._room.register(number, select.POLLOUT)
        self._asked = asked

    def put(self, piece: bytearray) -> int:
        """Return how much of it was written; of what can never be, all."""
        try:
            if self._asked and not self._room.poll(0):
                return 0
            return self._write(piece)
        except BlockingIOError:
            return 0
        except (OSError, ValueError):  # nobody will ever read it
            return len(piece)

    def wait(self, seconds: float) -> None:
        """Wait until there is room."""
        self._room.poll(seconds * 1000)

    def close(self) -> None:
        """Leave it to whoever opened it."""

    def _write(self, piece: bytearray) -> int:
        return os.write(self._number, piece)


class _Reopened(_File):
    """A pipe or a terminal, opened once more: whoever else writes to it may go on waiting for its reader."""

    def __init__(self, number: int) -> None:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        self._own = os.open(f"/proc/self/fd/{number}", flags)
        super().__init__(self._own)

    def close(self) -> None:
        if self._own >= 0:
            os.close(self._own)
            self._own = -1


class _Socket(_File):
    """A socket, such as the one to a journal."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=os.dup(number))
        super().__init__(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()

    def _write(self, piece: bytearray) -> int:
        return self._socket.send(piece, socket.MSG_DONTWAIT)


def _place_of(stream: TextIO | None) -> "_Stream | _File":
    """Return how to write to the file behind a stream without waiting."""
    if stream is None or not hasattr(select, "poll"):  # closed from the start; or on Windows
        return _Stream(stream)
    try:
        number = stream.fileno()
        kind = os.fstat(number).st_mode
    except (OSError, ValueError):  # no file stands behind it
        return _Stream(stream)
    try:
        if stat.S_ISSOCK(kind):
            return _Socket(number)
        if stat.S_ISFIFO(kind) or os.isatty(number):
            return _Reopened(number)
    except OSError:  # another user's, or no Linux
        return _File(number, asked=True)
    return _File(number)
