"""Makes room for open files: each connection is one, and without one nobody can be asked or answered."""

import logging
import os
import resource
import sys
from contextlib import suppress

log = logging.getLogger(__name__)

SPARE = 200
"""For listeners, Redis, programs and whatever else is no connection of a client or to an upstream."""


def connections_of_clients(wanted: int, upstream: int, files: int) -> int:
    """Return how many connections of clients so many files are enough for; upstreams come first.

    Where there are too few for both, upstreams get no more than half.
    """
    return max(1, min(wanted, files - SPARE - min(upstream, (files - SPARE) // 2)))


def room_for(wanted: int, upstream: int) -> int:
    """Have the system allow as many files as it does, and return how many clients can be connected."""
    needed = wanted + upstream + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    clients = connections_of_clients(wanted, upstream, soft)
    log.info(
        "%d open files are allowed, so no more than %d clients can be connected at once, instead of the %d "
        "of limits.connections: `ulimit -n` or LimitNOFILE allows more",
        soft,
        clients,
        wanted,
    )
    return clients


def open_closed() -> None:
    """Have stdin, stdout and stderr be something, where whoever started the process has closed them.

    What is opened next would get their numbers otherwise, and be written to by whatever prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            taken = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(taken, True)
    # These are there for as long as the process is.
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
