"""Reads the files of a configuration: whatever they are, no longer than a moment and no more than a bound."""

import errno
import os
import select
import stat
import time
from pathlib import Path

PATIENCE = 10.0
"""Seconds in which a pipe has to be read to its end."""
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # a pipe into which nobody writes would hold up whoever opens it
_CHUNK = 2**16


def content_of(path: Path, most: int, *, patience: float = PATIENCE) -> bytes:
    """Return what a file holds, and one byte more than `most` of what holds more; raises OSError.

    A pipe into which nobody writes is empty.
    """
    with open(path, "rb", buffering=0, opener=lambda name, how: os.open(name, how | _AT_ONCE)) as file:
        waits = _AT_ONCE and not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        give_up = time.monotonic() + patience
        content = b""
        while len(content) <= most:
            chunk = file.read(min(_CHUNK, most + 1 - len(content)))
            if chunk is None and waits:
                _wait(file.fileno(), give_up - time.monotonic())
            elif chunk:
                content += chunk
            else:
                break
        return content


def _wait(descriptor: int, seconds: float) -> None:
    """Wait until there is something to read, or nobody left who writes; raises OSError."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if seconds <= 0 or not poll.poll(seconds * 1000):
        raise TimeoutError(errno.ETIMEDOUT, "whoever writes into this pipe does not come to an end")
