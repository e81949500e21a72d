"""Numbers in a file that another process reads while this one counts, and after this one was killed.

The file is mapped into memory, so counting asks nothing of the system and nothing is lost with the process.
It grows by segments, each mapped for itself, so that cells stay where they are. A segment begins with how
much of it is used; then one record follows on the other:

    length, checksum of the key (0 = free), length of the key, count of the numbers: four bytes each
    the key (JSON: name and label values), padded
    the numbers, eight bytes each

What says that a record is there is written last, so that whoever reads at any moment sees whole ones.
"""

import json
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

log = logging.getLogger(__name__)

Values: TypeAlias = tuple[str, ...]
Cell: TypeAlias = "list[float] | memoryview[float]"
Key: TypeAlias = tuple[str, Values]
"""The name of a metric and the values of its labels."""
Snapshot: TypeAlias = Mapping[Key, Sequence[float]]

SEGMENT = 262_144
"""Bytes a file grows by: about a thousand series of a histogram."""
_MOST_SEGMENTS = 256
_HEAD = struct.Struct("=IIII")
_START = 16
_WORD = 8
_KEY_STEP = 32
"""Lengths of keys are rounded up to it, so that what is released fits others."""


class Ledger:
    """Where the cells of one process are kept; there may be one per file."""

    def __init__(self, path: Path, *, segment: int = SEGMENT, most: int = _MOST_SEGMENTS) -> None:
        self._path = path
        self._segment = segment
        self._most = most
        self._maps: list[mmap.mmap] = []
        self._used = segment
        """Bytes of the last segment; without one there is no room."""
        self._places: dict[Key, tuple[mmap.mmap, int]] = {}
        """The map that the record of each cell is in, and where."""
        self._free: dict[tuple[int, int], list[tuple[mmap.mmap, int]]] = {}
        self._complained = False

    @classmethod
    def create(cls, path: Path, *, segment: int = SEGMENT, most: int = _MOST_SEGMENTS) -> "Ledger":
        """Make the file, which must not exist and which its owner alone may read.

        On a disk that is full it counts in memory: nothing is left undone for the sake of its numbers.
        """
        ledger = cls(path, segment=segment, most=most)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            ledger._grow()
        except FileExistsError:
            raise
        except OSError as error:
            ledger._complain(error)
        return ledger

    def __repr__(self) -> str:
        return f"<Ledger {self._path.name}, {len(self._places)} cells, {len(self._maps)} segments>"

    def cell(self, name: str, values: Values, size: int) -> Cell:
        """Return as many zeros, kept under this key.

        Where no space is left, they are this process's alone.
        """
        key = json.dumps([name, *values]).encode()
        space = -(-len(key) // _KEY_STEP) * _KEY_STEP
        length = _HEAD.size + space + size * _WORD
        try:
            there, at, new = self._place(length, size)
        except OSError as error:
            self._complain(error)
            return [0.0] * size
        first = at + _HEAD.size + space
        there[at + _HEAD.size : first] = key.ljust(space, b"\0")
        there[first : at + length] = bytes(size * _WORD)
        head = _head(there, at)
        head[0], head[2], head[3] = length, len(key), size
        head[1] = _checksum(key)
        if new:
            self._used = at + length
            _words(there)[0] = self._used
        cell = memoryview(there)[first : at + length].cast("d")
        self._places[name, values] = there, at
        return cell

    def release(self, name: str, values: Values) -> None:
        """Forget a cell; its place may go to another, so nobody may count in it any more."""
        place = self._places.pop((name, values), None)
        if place is not None:
            there, at = place
            head = _head(there, at)
            head[1] = 0  # the length stays, by which readers find what comes behind it
            length, size = head[0], head[3]
            self._free.setdefault((length, size), []).append(place)

    def _place(self, length: int, size: int) -> tuple[mmap.mmap, int, bool]:
        if length > self._segment - _START:
            raise OSError("a name is longer than all of the space")
        free = self._free.get((length, size))
        if free:
            return *free.pop(), False
        if self._used + length > self._segment:
            self._grow()
        return self._maps[-1], self._used, True

    def _grow(self) -> None:
        if len(self._maps) >= self._most:
            raise OSError("it is as large as it may become")
        begin = len(self._maps) * self._segment
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            # A hole in the file would end this process by SIGBUS once the disk is full.
            os.posix_fallocate(file.fileno(), begin, self._segment)
            there = mmap.mmap(file.fileno(), self._segment, offset=begin)
        _words(there)[0] = self._used = _START
        self._maps.append(there)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            log.error(
                "no space for more metrics in %s, some will be missing: %s",
                self._path,
                error.strerror or error,
            )


def read_ledger(path: Path, *, segment: int = SEGMENT) -> Snapshot:
    """Return what is counted in a file, whether its process lives or not; nothing where there is no file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size // segment * segment
            if not size:
                return {}
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as there, memoryview(there) as view:
                snapshot: dict[Key, Sequence[float]] = {}
                for begin in range(0, size, segment):
                    with view[begin : begin + segment] as part:
                        _read_segment(part, snapshot)
                return snapshot
    except FileNotFoundError:
        return {}


def _read_segment(part: memoryview, snapshot: dict[Key, Sequence[float]]) -> None:
    with part.cast("Q") as words, part.cast("d") as numbers:
        used, at = min(words[0], len(part)), _START
        while at + _HEAD.size <= used:
            length, checksum, width, size = _HEAD.unpack_from(part, at)
            end = at + length
            if length < _HEAD.size or length % _WORD or end > used:
                return
            first = (end - size * _WORD) // _WORD
            key = bytes(part[at + _HEAD.size : at + _HEAD.size + width])
            if checksum and checksum == _checksum(key) and first * _WORD >= at + _HEAD.size + width:
                counted = numbers[first : first + size].tolist()
                if _HEAD.unpack_from(part, at)[1] == checksum:  # else it is another's by now
                    name, *values = json.loads(key)
                    snapshot[name, tuple(values)] = counted
            at = end


def _checksum(key: bytes) -> int:
    return zlib.crc32(key) or 1


def _head(there: mmap.mmap, at: int) -> "memoryview[int]":
    """Return the head of a record, whose parts are written one by one: a reader may look between any two."""
    return memoryview(there)[at : at + _HEAD.size].cast("I")


def _words(there: mmap.mmap) -> "memoryview[int]":
    return memoryview(there).cast("Q")
