"""Says when a worker that crashed is started again, who stands in for it, and how silent one is. Pure."""

from collections.abc import Sequence

GOOD = 60.0
"""Seconds after which a worker counts as one that works."""
_FIRST = 0.5
_LONGEST = 30.0


class Pauses:
    """How long a place waits for its next worker: not at all at first, then longer and longer."""

    def __init__(self) -> None:
        self._crashes = 0

    def __repr__(self) -> str:
        return f"<Pauses after {self._crashes} crashes>"

    def crashed(self, lived: float) -> float:
        """Return the seconds to wait now that a worker has ended after so many."""
        if lived >= GOOD:
            self._crashes = 0
        self._crashes += 1
        if self._crashes == 1:
            return 0.0
        return float(min(_FIRST * 2 ** min(self._crashes - 2, 16), _LONGEST))


class Silence:
    """For how long nothing was heard of a worker, by the looks at it.

    The clock does not tell: where a whole machine was put to sleep, everybody was silent.
    """

    def __init__(self) -> None:
        self._seconds = 0.0

    def __repr__(self) -> str:
        return f"<Silence of {self._seconds:g}s>"

    def heard(self) -> None:
        """Something was."""
        self._seconds = 0.0

    def looked(self, after: float) -> float:
        """Return the seconds, now that so many more were waited."""
        self._seconds += after
        return self._seconds


def stand_ins(serving: Sequence[bool]) -> list[set[int]]:
    """Return for each place which others its worker serves as well: those that have none, in turns."""
    able = [place for place, serves in enumerate(serving) if serves]
    taken: list[set[int]] = [set() for _ in serving]
    vacant = [place for place, serves in enumerate(serving) if not serves] if able else []
    for turn, place in enumerate(vacant):
        taken[able[turn % len(able)]].add(place)
    return taken
