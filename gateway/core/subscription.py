"""One downstream listen stream: what it has not been told yet, and how it ends.

What is pending is a set, not a queue: a second change of the same thing before the first was told changes
nothing. So however slowly a client reads, what waits for it is bounded by what it asked for (L-20), and
nobody waits for it: only its own request does.
"""

import asyncio
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec.structs import replace

from gateway.protocol.call import META_SUBSCRIPTION_ID, Emit, Notice, Partition
from gateway.protocol.jsonrpc import Json, Members, join
from gateway.protocol.subscriptions import Wanted

End: TypeAlias = Literal["stopping", "expired", "refused", "overflow"]
"""Why the gateway ended a stream; clients that leave are not among them."""

Key: TypeAlias = tuple[str, str]
"""What is told once however often it happened: a method, and the URI or task it is about."""

_MOST_UNNAMED = 256
_NOTHING: Members = {}
_NO_EXTENSIONS: frozenset[str] = frozenset()


class Subscription:
    """Made for one listen request, whose own task relays what is pending."""

    __slots__ = (
        "_meta",
        "_pending",
        "_unnamed",
        "_waiter",
        "ended",
        "endpoint",
        "extensions",
        "partition",
        "wanted",
    )

    def __init__(
        self,
        id: Json,
        endpoint: str,
        partition: Partition | None,
        wanted: Wanted,
        extensions: frozenset[str] = _NO_EXTENSIONS,
    ) -> None:
        """`id` is the raw id of the request, which every notice carries in the same spelling (L-05)."""
        self.endpoint = endpoint
        self.partition = partition
        self.wanted = wanted
        """What is acknowledged, in the client's own words."""
        self.extensions = extensions
        """What the client declared, for the notifications that belong to an extension (L-22)."""
        self.ended: End | None = None
        self._meta = join({META_SUBSCRIPTION_ID: id})
        self._pending: dict[Key, Members] = {}
        self._unnamed = 0
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self.ended is None else self.ended
        return f"<Subscription {self.endpoint}: {state}, {len(self._pending)} pending>"

    def tell(self, key: Key, params: Members = _NOTHING) -> bool:
        """Note that the client is to be told; whether that is news, or waits already."""
        pending = self._pending
        known = key in pending
        if self.ended is not None and not known:
            return False
        pending[key] = params
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        return not known

    def tell_unnamed(self, key: Key, params: Members = _NOTHING) -> bool | None:
        """Note a change of what the client did not name: there is no end to such names.

        None when there was no room left for it.
        """
        if key not in self._pending:
            if self._unnamed >= _MOST_UNNAMED:
                return None
            self._unnamed += 1
        return self.tell(key, params)

    def narrow(self, *, uris: frozenset[str], tasks: frozenset[str], without: Iterable[Key]) -> None:
        """Take back what turned out not to be on offer, before anything is acknowledged."""
        self.wanted = replace(self.wanted, uris=uris, tasks=tasks)
        for key in without:
            self._pending.pop(key, None)

    def end(self, why: End) -> None:
        """Let the client have what is pending, and then the end."""
        if self.ended is None:
            self.ended = why
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def relay(self, emit: Emit, told: list[float]) -> None:
        """Emit what is pending as it comes, until the end; `told` counts the notices.

        What happens while the client takes its time is told to it once, afterwards.
        """
        while True:
            pending, self._pending = self._pending, {}
            self._unnamed = 0
            for (method, _), params in pending.items():
                await emit(Notice(method, {"_meta": self._meta, **params}))
                told[0] += 1
            if self._pending:
                continue
            if self.ended is not None:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
