"""Decides what an upstream is asked to tell of next, given what it refused before. The clock is handed in.

One name that an upstream chokes on makes it refuse a whole listen. So what it took before is asked for first,
and then more; what of that is to blame is searched for by halves, and left out for a while.
"""

from collections.abc import Callable, Iterator

from gateway.protocol.subscriptions import Wanted
from gateway.upstream.retrying import Pace

_NOTHING = Wanted()
_BURST = 16
"""How many refusals in a row a search may cost; after them, one is earned with each first pause."""
_MOST_REMEMBERED = 10_000


class Sieve:
    """What one upstream took and refused, in one authorization context."""

    def __init__(self, pace: Pace, random: Callable[[], float]) -> None:
        """`pace` says how long a name is left out; the longer, the more often it was refused."""
        self._pace = pace
        self._random = random
        self._taken: Wanted | None = None
        """What the last stream was asked for, None before the first."""
        self._suspects: list[Wanted] = []
        """Parts of refused listens, to be tried one by one."""
        self._left_out: dict[tuple[str, str], tuple[int, float]] = {}
        """How often in a row a name was refused, and until when it is not asked for."""
        self._credit = float(_BURST)
        self._counted_at = 0.0

    @property
    def searching(self) -> bool:
        """Whether parts of a refused listen are left to be tried."""
        return bool(self._suspects)

    def fit(self, wish: Wanted, now: float) -> Wanted:
        """Return the wish without the names that are left out for now."""
        if not self._left_out:
            return wish
        kept = [name for name in _names(wish) if self._until(name) <= now]
        return wish.lists | _wanted(kept)

    def next_fit(self, wish: Wanted, now: float) -> float | None:
        """Return when the first of the names that are left out is worth another attempt."""
        if not self._left_out:
            return None
        return min((until for name in _names(wish) if (until := self._until(name)) > now), default=None)

    def trial(self, wish: Wanted, asked: Wanted | None) -> Wanted:
        """Return what to ask for next on the way to a wish that is fit.

        `asked` is what the open stream was asked for, None = there is none.
        """
        base = _NOTHING if asked is None else asked & wish
        self._suspects = [part for each in self._suspects if (part := (each & wish) - base)]
        suspects = _NOTHING
        for part in self._suspects:
            suspects |= part
        if asked is None:
            if self._taken is None and not suspects:
                return wish
            base = wish.lists | ((self._taken or _NOTHING) & wish - suspects)
            if base:
                return base
        clean = wish - base - suspects
        return base | (clean or (self._suspects[0] if self._suspects else _NOTHING))

    def took(self, trial: Wanted) -> None:
        """Note that the upstream opened a stream when asked for this."""
        self._taken = trial
        if self._left_out:
            for name in _names(trial):
                self._left_out.pop(name, None)

    def refused(self, trial: Wanted, asked: Wanted | None, now: float, *, certain: bool, slow: bool) -> bool:
        """Note a refusal; whether something else is worth an attempt at once.

        `certain` says that it is the filter that was refused, `slow` that it took too long to search on.
        """
        blamed = _wanted(_names(trial - (asked or _NOTHING)))
        if not blamed:
            return False
        self._suspects = [part for each in self._suspects if (part := each - blamed)]
        if asked is None and trial.lists:  # it may refuse the lists, too, and is about to be asked
            self._suspects.insert(0, blamed)
            return True
        names = list(_names(blamed))
        if asked is None and not certain and (slow or len(names) == 1):
            # Nothing says that it would take anything else; but what did not take the others down is next.
            self._suspects += [blamed] if len(names) == 1 else _halves(blamed, names)
            return False
        if len(names) == 1 or slow or self.wait(now) > 0:
            self._leave_out(names, now)
        else:
            self._credit -= 1
            self._suspects[:0] = _halves(blamed, names)
        return True

    def wait(self, now: float) -> float:
        """Return how long the next attempt has to wait that may be refused."""
        earned = (now - self._counted_at) / self._pace.first if self._pace.first else float(_BURST)
        self._credit, self._counted_at = min(float(_BURST), self._credit + earned), now
        return max(0.0, 1.0 - self._credit) * self._pace.first

    def affords(self, now: float) -> bool:
        """Whether an attempt before its time may be made, and takes it from what a search may cost."""
        if self.wait(now) > 0:
            return False
        self._credit -= 1
        return True

    def forget(self) -> None:
        """Forget what was refused: the upstream may be another one."""
        self._left_out.clear()
        self._suspects.clear()

    def _until(self, name: tuple[str, str]) -> float:
        return self._left_out.get(name, (0, 0.0))[1]

    def _leave_out(self, names: list[tuple[str, str]], now: float) -> None:
        self._credit -= min(1.0, self._credit)
        for name in names:
            failures = self._left_out.pop(name, (0, 0.0))[0] + 1
            self._left_out[name] = failures, now + self._pace.pause(failures, self._random())
        while len(self._left_out) > _MOST_REMEMBERED:
            del self._left_out[next(iter(self._left_out))]


def _halves(blamed: Wanted, names: list[tuple[str, str]]) -> list[Wanted]:
    if blamed.uris and blamed.tasks:  # tasks come to an end, resources hardly ever
        return [Wanted(uris=blamed.uris), Wanted(tasks=blamed.tasks)]
    middle = len(names) // 2
    return [_wanted(names[:middle]), _wanted(names[middle:])]


def _names(wanted: Wanted) -> Iterator[tuple[str, str]]:
    yield from (("uri", uri) for uri in sorted(wanted.uris))
    yield from (("task", id) for id in sorted(wanted.tasks))


def _wanted(names: "Iterator[tuple[str, str]] | list[tuple[str, str]]") -> Wanted:
    all = list(names)
    return Wanted(
        uris=frozenset(name for kind, name in all if kind == "uri"),
        tasks=frozenset(name for kind, name in all if kind == "task"),
    )
