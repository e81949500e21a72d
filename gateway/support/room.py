"""Counts the bytes of messages that are held at once, of everybody and of each caller, against one bound."""

from typing import TypeAlias

from gateway.support.ledger import Cell

SMALL = 16_384
"""Messages below it are not counted: there are only so many requests at once, and they come and go."""

Whose: TypeAlias = str | None
"""A caller, None for all without a credential; "" for what is read of upstreams."""


class Room:
    """What one process may hold. Nobody may hold more than half of it, or one message where that is more."""

    def __init__(self, most: int, largest: int) -> None:
        self.held = 0
        self.counted: Cell = [0.0]
        """Counts the same for the metrics."""
        self._of: dict[Whose, int] = {}
        self.allow(most, largest)

    def allow(self, most: int, largest: int) -> None:
        """Let so much be held from now on; what is held already stays."""
        self.most = most
        self.each = max(most // 2, min(most, largest))

    def __repr__(self) -> str:
        return f"<Room {self.held} of {self.most} bytes held>"

    @property
    def full(self) -> bool:
        return self.held >= self.most

    def full_for(self, whose: Whose) -> bool:
        """Whether a caller holds as much as one may."""
        return self._of.get(whose, 0) >= self.each

    def hold(self, size: int, whose: Whose) -> None:
        """Count bytes in, or out where the size is negative."""
        self.held += size
        self.counted[0] += size
        held = self._of.get(whose, 0) + size
        if held:
            self._of[whose] = held
        else:
            self._of.pop(whose, None)


class Held:
    """What one message takes while it is read: it grows, and is let go of at the end."""

    __slots__ = ("_room", "_size", "_whose")

    def __init__(self, room: Room, whose: Whose) -> None:
        self._room = room
        self._whose = whose
        self._size = 0

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self.fits(0)

    def fits(self, size: int) -> bool:
        """Note how large it is by now; whether there is room for that."""
        counted = size if size >= SMALL else 0
        if counted == self._size:
            return True
        growing = counted > self._size
        self._room.hold(counted - self._size, self._whose)
        self._size = counted
        return not growing or self._room.held <= self._room.most
