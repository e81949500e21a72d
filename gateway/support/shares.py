"""Room for a number of things at once, of which each holder may take a part only."""

from collections import Counter
from typing import Literal


class Shares:
    """Counts who holds how many: at most `most` altogether, and `each` of one holder."""

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._held: Counter[str] = Counter()
        self._total = 0

    def __repr__(self) -> str:
        return f"<Shares {self._total} of {self._most}, by {len(self._held)}>"

    def __len__(self) -> int:
        return self._total

    def allow(self, most: int, each: int) -> None:
        """Let so many be taken from now on; those that are stay taken."""
        self._most = most
        self._each = each

    def take(self, whose: str) -> Literal["all", "own"] | None:
        """Take one, unless all are taken or this holder has its share; return which, or None once it has."""
        if self._held.get(whose, 0) >= self._each:
            return "own"
        if self._total >= self._most:
            return "all"
        self._held[whose] += 1
        self._total += 1
        return None

    def give_back(self, whose: str) -> None:
        """Give back one that was taken."""
        self._held[whose] -= 1
        self._total -= 1
        if not self._held[whose]:
            del self._held[whose]
