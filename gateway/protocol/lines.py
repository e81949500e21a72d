"""Cuts what a program writes into lines, however it arrives, and skips those that are too long (U-30, B25).

Each byte is copied once; a line beyond the limit is read to its end without being kept, so that the next
one is whole again.
"""

import re
from dataclasses import dataclass

_HEAD = 256
_TAIL = 256
_ID = rb'"id"\s*:\s*("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"|-?(?:0|[1-9]\d{0,18})(?![\d.eE]))'
_ID_IN_HEAD = re.compile(rb"[{,]\s*" + _ID)
_ID_IN_TAIL = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line that was skipped: how long it was, and how it began and ended."""

    size: int
    head: bytes
    tail: bytes

    def id(self) -> bytes | None:
        """Return the id of the message it probably was, as it was written, None when that cannot be seen.

        Some servers write the id first, others last; what the message holds between is not looked at.
        """
        envelope = re.split(rb'"(?:result|error|params)"\s*:', self.head, maxsplit=1)[0]
        found = _ID_IN_HEAD.search(envelope) or _ID_IN_TAIL.search(self.tail)
        return None if found is None else found[1]


class LineCutter:
    """Turns chunks into lines without their ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    def __repr__(self) -> str:
        return f"<LineCutter {self._size} bytes of an unfinished line>"

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """Return the lines that this chunk completes."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for piece in ended:
            self._add(piece)
            lines.append(self._taken())
        self._add(rest)
        return lines

    def end(self) -> list[bytes | TooLong]:
        """Return the last line if it had no end."""
        return [self._taken()] if self._size else []

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._size <= self._limit:
            self._parts.append(piece)
            return
        if not self._head:
            self._head = (b"".join(self._parts) + piece[:_HEAD])[:_HEAD]
            self._tail = b"".join(self._parts[-_TAIL:])[-_TAIL:]
            self._parts.clear()
        self._tail = (self._tail + piece[-_TAIL:])[-_TAIL:]

    def _taken(self) -> bytes | TooLong:
        line: bytes | TooLong
        if self._size > self._limit:
            line = TooLong(self._size, self._head, self._tail)
        else:
            line = b"".join(self._parts).removesuffix(b"\r")
        self._parts.clear()
        self._size = 0
        self._head = self._tail = b""
        return line
