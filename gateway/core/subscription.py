"""One downstream listen stream: what it has not been told yet, and how it ends.

What is pending is a set, not a queue: a second change of the same thing before the first was told changes
nothing. So however slowly a client reads, what waits for it is bounded by what it asked for, and by a size
where upstreams say how much that is (L-20); and nobody waits for it: only its own request does.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec.structs import replace

from gateway.core.access import Sight
from gateway.protocol.call import Partition, Sink
from gateway.protocol.subscriptions import Circular, Wanted
from gateway.support.ledger import Cell

End: TypeAlias = Literal["stopping", "expired", "refused", "withdrawn", "overflow", "reloaded"]
"""Why the gateway ended a stream; clients that leave are not among them."""

Key: TypeAlias = tuple[str, str]
"""What is told once however often it happened: a method, and the URI or task it is about."""

_MOST_UNNAMED = 256
_ROOM = 2**20
_NO_EXTENSIONS: frozenset[str] = frozenset()

_AT_ONCE = 200
"""Streams that are told before others have their turn, which takes some milliseconds."""


class Subscription:
    """Made for one listen request, whose own task waits for the end, and for the client where it is slow."""

    __slots__ = (
        "_due",
        "_id",
        "_pending",
        "_room",
        "_round",
        "_sink",
        "_size",
        "_unnamed",
        "_waiter",
        "ended",
        "endpoint",
        "extensions",
        "partition",
        "sight",
        "wanted",
        "who",
    )

    def __init__(
        self,
        id: bytes,
        endpoint: str,
        partition: Partition | None,
        wanted: Wanted,
        extensions: frozenset[str] = _NO_EXTENSIONS,
        *,
        room: int = _ROOM,
        who: Partition | None = None,
        sight: Sight | None = None,
    ) -> None:
        """`id` is the raw id of the request, which every notice carries in the same spelling (L-05).

        `room` is how many bytes may wait of what is as large as its upstream likes.
        """
        self.endpoint = endpoint
        self.partition = partition
        self.who = who or partition
        """Whose it is; `partition` is the credential it was opened with."""
        self.wanted = wanted
        """What is acknowledged, in the client's own words."""
        self.extensions = extensions
        """What the client declared, for the notifications that belong to an extension (L-22)."""
        self.sight = sight
        """What its client may hear of, None where that is everything."""
        self.ended: End | None = None
        self._id = id
        self._pending: dict[Key, Circular] = {}
        self._size = 0
        self._room = room
        self._unnamed = 0
        self._waiter: asyncio.Future[None] | None = None
        """Of the request's own task, while a round may tell the stream in its place."""
        self._round: Round | None = None
        self._sink: Sink | None = None
        self._due = False

    def __repr__(self) -> str:
        state = "open" if self.ended is None else self.ended
        return f"<Subscription {self.endpoint}: {state}, {len(self._pending)} pending>"

    def tell(self, key: Key, news: Circular) -> bool:
        """Note that the client is to be told; whether that is news, or waits already."""
        pending = self._pending
        before = pending.get(key)
        known = before is not None
        if self.ended is not None and not known:
            return False
        self._size += _size(news) - (0 if before is None else _size(before))
        pending[key] = news
        if self._waiter is not None and not self._due and self._round is not None:
            self._due = True
            self._round.add(self)
        return not known

    def tell_unnamed(self, key: Key, news: Circular) -> bool | None:
        """Note a change of what the client did not name: there is no end to such names.

        None when there was no room left for it.
        """
        if key not in self._pending:
            if self._unnamed >= _MOST_UNNAMED or self._size + _size(news) > self._room:
                return None
            self._unnamed += 1
        return self.tell(key, news)

    def tell_large(self, key: Key, news: Circular) -> bool:
        """Note a change of what the client named, whose size is its upstream's to choose.

        One is never too large; but a stream on which too much of it waits already ends, for none of it can be
        left out.
        """
        before = self._pending.get(key)
        if self._size - (0 if before is None else _size(before)) > self._room:
            self.end("overflow")
            return False
        return self.tell(key, news)

    def narrow(self, *, uris: frozenset[str], tasks: frozenset[str], without: Iterable[Key]) -> None:
        """Take back what turned out not to be on offer, before anything is acknowledged."""
        self.wanted = replace(self.wanted, uris=uris, tasks=tasks)
        for key in without:
            self._forget(key)

    def end(self, why: End) -> None:
        """Let the client have what is pending, and then the end."""
        if self.ended is None:
            self.ended = why
            self._wake()

    async def relay(self, sink: Sink, round: "Round") -> None:
        """Tell what is pending as it comes, until the end.

        What happens while the client takes its time is told to it once, afterwards.
        """
        self._sink, self._round = sink, round
        try:
            while True:
                if not self._deliver(sink, round):
                    await sink.writable()
                elif self.ended is not None:
                    return
                else:
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
        finally:
            self._waiter = self._sink = self._round = None

    def flush(self) -> None:
        """Tell what is pending, as a round does; for a client that is slow to take it its own task waits."""
        self._due = False
        if self._waiter is None or self._sink is None or self._round is None:
            return  # its own task is at work on it, or it is over
        if not self._deliver(self._sink, self._round):
            self._wake()

    def _deliver(self, sink: Sink, round: "Round") -> bool:
        """Tell what is pending for as long as the client takes it; whether that was all."""
        pending, id, told = self._pending, self._id, 0
        for before, behind in pending.values():
            if not sink.tell(before, id, behind):
                break
            told += 1
        round.told[0] += told
        if told == len(pending):
            pending.clear()
            self._unnamed = self._size = 0
            return True
        for key in list(pending)[:told]:
            self._forget(key)
        return False

    def _forget(self, key: Key) -> None:
        news = self._pending.pop(key, None)
        if news is not None:
            self._size -= _size(news)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _size(news: Circular) -> int:
    return len(news.before) + len(news.behind)


class Round:
    """Tells streams what is pending for them, a few at a time, so that thousands do not hold up the rest.

    It spares the tasks of their requests from waking up, which would cost more than what they then do.
    """

    def __init__(self, told: Cell) -> None:
        """`told` counts the notices."""
        self.told = told
        self._due: deque[Subscription] = deque()
        self._begun = False

    def __repr__(self) -> str:
        return f"<Round {len(self._due)} due>"

    def add(self, stream: Subscription) -> None:
        """Have a stream told soon."""
        self._due.append(stream)
        if not self._begun:
            self._begun = True
            asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        due = self._due
        for _ in range(min(len(due), _AT_ONCE)):
            due.popleft().flush()
        self._begun = bool(due)
        if due:
            asyncio.get_running_loop().call_soon(self._go)
