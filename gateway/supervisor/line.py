"""What a supervisor and its workers tell each other: JSON, a message a line, over a pair of sockets.

The order comes first. It goes this way since arguments and environments of processes can be read by others.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct


class Order(Struct, frozen=True, tag=True):
    """What a process needs to know to be one of several workers."""

    place: int
    """Which of them it is, from 0."""
    sockets: list[list[int]]
    """The descriptors of the listening sockets of every place."""
    folder: str
    """Holds what this supervisor and its workers share; it goes with the last of them."""
    admin: str | None
    """Where it answers what operators ask: the path of a unix socket."""
    ledger: str
    """The file that it counts in."""
    generation: int
    """How many configurations there were before this one, and this one."""
    text: str
    """The configuration, as it was when it was last found to be right."""

    def __repr__(self) -> str:
        return f"<Order of place {self.place}>"  # the text may hold secrets


class Adopt(Struct, frozen=True, tag=True):
    """Serve what comes for another place as well: it has no worker now."""

    place: int


class Release(Struct, frozen=True, tag=True):
    """That place has a worker again."""

    place: int


class Retire(Struct, frozen=True, tag=True):
    """A successor serves the place: finish what is running, and end."""


class Listening(Struct, frozen=True, tag=True):
    """Clients are served."""


class Ready(Struct, frozen=True, tag=True):
    """Every upstream was tried once."""


class Alive(Struct, frozen=True, tag=True):
    """The event loop turns; said with every beat."""


Told: TypeAlias = Order | Adopt | Release | Retire
Heard: TypeAlias = Listening | Ready | Alive

BEAT = 2.0
"""Seconds after which a worker says again that it is alive."""

LONGEST = 2**24
"""Bytes of one message: the configuration is in the longest."""

_told: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_heard: msgspec.json.Decoder[Heard] = msgspec.json.Decoder(Heard)


def line(message: Told | Heard) -> bytes:
    """Return a message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


def told(text: bytes) -> Told:
    """Return what a supervisor sent; raises ValueError."""
    return _told.decode(text)


def heard(text: bytes) -> Heard:
    """Return what a worker sent; raises ValueError."""
    return _heard.decode(text)
