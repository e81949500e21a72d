"""Decides which names an upstream is asked for, where its clients together want more than it is to be sent.

Who was promised something keeps it: what was asked for before comes first, and there is room for more when
somebody leaves.
"""

from collections.abc import Iterator

from gateway.protocol.subscriptions import Wanted

_NOTHING = Wanted()


class Room:
    """What one upstream may be asked for in one authorization context."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """`most` counts resources and tasks, `most_bytes` is what they may add up to."""
        self._most = most
        self._most_bytes = most_bytes
        self._kept = _NOTHING
        self.left_out = _NOTHING
        """What did not fit the last time."""

    def fit(self, wish: Wanted) -> Wanted:
        """Return as much of a wish as there is room for; lists take none."""
        names = wish.names
        if names != self._kept and not self._holds(names):
            self._kept = self._most_of(names)
            self.left_out = names - self._kept
        else:
            self._kept, self.left_out = names, _NOTHING
        return wish.lists | self._kept

    def _holds(self, names: Wanted) -> bool:
        return len(names.uris) + len(names.tasks) <= self._most and (
            sum(map(_bytes, names.uris)) + sum(map(_bytes, names.tasks)) <= self._most_bytes
        )

    def _most_of(self, names: Wanted) -> Wanted:
        uris, tasks = set[str](), set[str]()
        left, left_bytes = self._most, self._most_bytes
        for kind, name in (*_each(names & self._kept), *_each(names - self._kept)):
            size = _bytes(name)
            if left and size <= left_bytes:
                (uris if kind == "uri" else tasks).add(name)
                left, left_bytes = left - 1, left_bytes - size
        return Wanted(uris=frozenset(uris), tasks=frozenset(tasks))


def _bytes(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _each(names: Wanted) -> Iterator[tuple[str, str]]:
    yield from (("task", id) for id in sorted(names.tasks))
    yield from (("uri", uri) for uri in sorted(names.uris))
