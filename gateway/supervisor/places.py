"""Binds the listening sockets: every place of a worker has its own, and the system spreads clients over them.

They outlive the workers, so what has not been accepted when one ends waits for the next.
"""

import errno
import os
import socket
from collections.abc import Sequence

from gateway.config import Address
from gateway.front.connections import BACKLOG

POSSIBLE = hasattr(socket, "SO_REUSEPORT") and os.name == "posix"
"""Whether this system lets several sockets share an address."""


class Places:
    """The sockets of all places, on the same addresses each."""

    def __init__(self, address: Address, count: int) -> None:
        """Bind and listen; raises OSError for an address that cannot be had, or that somebody else has."""
        self.sockets: list[list[socket.socket]] = []
        try:
            bound = self._first(address)
            self.sockets += [[_listening(kind, at, shared=True) for kind, at in bound] for _ in range(count)]
        except BaseException:
            self.close()
            raise
        self.addresses = [(at[0], at[1]) for _, at in bound]

    def __repr__(self) -> str:
        where = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<Places {len(self.sockets)} on {where}>"

    @property
    def descriptors(self) -> list[list[int]]:
        return [[each.fileno() for each in place] for place in self.sockets]

    def close(self) -> None:
        """Accept nothing any more, once every worker has done the same."""
        for place in self.sockets:
            for each in place:
                each.close()

    def _first(self, address: Address) -> list[tuple[int, tuple[str, int]]]:
        """Return family and address of what there is to bind, with a real port in the place of 0.

        It is bound once without sharing: two supervisors on one port would each get half of the clients.
        """
        found = _resolved(address)
        port = address.port
        bound: list[tuple[int, tuple[str, int]]] = []
        trials: list[socket.socket] = []
        try:
            for number, (kind, at) in enumerate(found):
                try:
                    trials.append(_listening(kind, (at[0], port, *at[2:]), shared=False))
                except OSError as error:
                    # A name such as localhost may stand for a family that this host does not have.
                    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and (
                        bound or number + 1 < len(found)
                    ):
                        continue
                    raise
                name = trials[-1].getsockname()
                port = name[1]
                bound.append((kind, name))
        finally:
            for trial in trials:
                trial.close()
        return bound


def _resolved(address: Address) -> Sequence[tuple[int, tuple[str, int]]]:
    found = socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return list(dict.fromkeys((int(kind), at) for kind, _, _, _, at in found))  # type: ignore[misc]


def _listening(kind: int, at: tuple[str, int], *, shared: bool) -> socket.socket:
    made = socket.socket(kind, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if kind == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(at)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
