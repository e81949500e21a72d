"""Notices that files changed: it looks at them again and again, which works on every file system and mount.

A file that is written, renamed over, swapped behind a symbolic link or mounted anew looks otherwise than
before; what still changes is left until it looks the same twice, so that nobody reads half of it.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

Look: TypeAlias = tuple[int, ...]
"""When a file was written, how long it is, which one it is, and who may read it."""

EVERY = 1.0
"""Seconds between two looks."""
_AT_ONCE: int = getattr(os, "O_NONBLOCK", 0)
_LONGEST = 2**24
"""Bytes of a file that are read to see whether it is another one; those read by the gateway are shorter."""


def look(files: Iterable[Path]) -> Mapping[Path, Look | None]:
    """Return how files look, None for one that is not there."""
    return {file: _look(file) for file in files}


def _look(file: Path) -> Look | None:
    try:
        at = os.stat(file)
    except OSError:
        return None
    written = at.st_mtime_ns, at.st_size, at.st_ino, at.st_dev
    return *written, at.st_mode, at.st_uid, at.st_gid, at.st_ctime_ns


def content(files: Iterable[Path]) -> Mapping[Path, bytes | None]:
    """Return what tells the content of files from another one, None for one that cannot be read."""
    return {file: _content(file) for file in files}


def _content(file: Path) -> bytes | None:
    try:
        # What is no file might have nothing to be read, for ever.
        with open(os.open(file, os.O_RDONLY | _AT_ONCE), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                return None
            return sha256(opened.read(_LONGEST)).digest()
    except OSError:
        return None


def passes_once(file: Path) -> bool:
    """Whether what is read there is gone then: it is a pipe, a device or the like."""
    try:
        return not stat.S_ISREG(os.stat(file).st_mode)
    except OSError:
        return False


def note(read: dict[Path, bytes | None], file: Path) -> None:
    """Note what a file holds just before it is read: should it change meanwhile, it is read once more."""
    if file not in read:
        read.update(content([file]))


class Watch:
    """Tells from how some files look whether they should be read again; it does no I/O."""

    def __init__(self, known: Mapping[Path, bytes | None]) -> None:
        """`known` is their content when they were read."""
        self._known = known
        self._before: Mapping[Path, Look | None] | None = None
        self._settled: Mapping[Path, Look | None] | None = None

    @property
    def files(self) -> Iterable[Path]:
        """The files that are watched."""
        return self._known

    def looked(self, looks: Mapping[Path, Look | None]) -> bool:
        """Whether files that looked otherwise look the same by now: what they hold is worth a comparison."""
        same, self._before = looks == self._before, looks
        if not same or looks == self._settled:
            return False
        self._settled = looks
        return True

    def differs(self, now: Mapping[Path, bytes | None]) -> bool:
        """Whether they hold something else than what was read."""
        return now != self._known
