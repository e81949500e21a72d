"""How replicas share the streams of upstreams: what each knows of the others, and what they say."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from gateway.core.audience import Followed
from gateway.protocol.call import Change, Notice
from gateway.protocol.subscriptions import Wanted

TASK = "notifications/tasks"

State: TypeAlias = Literal["idle", "connecting", "following", "unsupported", "refused"]
"""What became of an upstream's stream: not wanted, not there yet, open, not served, credential refused."""

Digests: TypeAlias = Mapping[bytes, bytes]
"""What a list looks like, by what it was fetched with."""


class Granted(Struct, frozen=True, array_like=True):
    """What whoever holds a stream says of it."""

    state: State
    asked: Wanted = Wanted()
    honoured: Wanted = Wanted()
    run: bytes = b""
    """Names the time without a gap in which its streams replace each other."""


class Found(Struct, frozen=True):
    """A list that turned out to be another one, with nobody having said so, and what it looks like now."""

    change: Change
    digests: Digests


class Aside(Struct, frozen=True):
    """A change that one replica learned of otherwise than by a stream."""

    change: Change


class Gap(Struct, frozen=True):
    """Nothing was heard of an upstream for a while; what was cached of it is forgotten already."""

    run: bytes = b""
    """Names the time without a gap that began behind it."""


class Lost(Struct, frozen=True):
    """Notices of a kind were too many, or too large, to be passed on."""

    method: str


class Looking(Struct, frozen=True):
    """A list is being asked for by a replica, for so many seconds at most."""

    method: str
    lasts: float


Said: TypeAlias = Change | Notice | Found | Aside | Gap | Lost | Looking
"""What clients of every replica are to hear of, after the caches have."""


class Share(Protocol):
    """One replica's part in one stream."""

    @property
    def holds(self) -> bool:
        """Whether the stream is held here in the name of all."""
        ...

    @property
    def others(self) -> Wanted:
        """What the other replicas want of us, if we hold it."""
        ...

    @property
    def granted(self) -> Granted | None:
        """What the holder says, where that is another replica and it has said something."""
        ...

    @property
    def wishes(self) -> int:
        """How often something else was wanted here."""
        ...

    def heard(self, wish: int) -> bool:
        """Whether another replica that holds it knows all that was wanted when `wishes` was this."""
        ...

    def turn(self) -> AbstractAsyncContextManager[bool]:
        """Wait until this process is to hold a stream; when it is not any more, what runs inside is ended.

        Entering says whether nothing can be cached that is older than the stream to come.
        """
        ...

    def want(self) -> None:
        """Let whoever holds it know that something else is wanted here."""
        ...

    def grant(self, granted: Granted) -> None:
        """Let the others know what they get, should we hold it."""
        ...

    def close(self) -> None:
        """Have no part in it any more."""
        ...


Hear: TypeAlias = Callable[[Followed, Said], None]
"""Takes in what another replica says; waits for nothing."""


class Following(Protocol):
    """Which replica holds an upstream's stream, and how the others hear what it says."""

    def share(
        self,
        at: Followed,
        *,
        wanted: Callable[[], Wanted],
        changed: Callable[[], None],
        missed: Callable[[], None],
    ) -> Share:
        """Take part in a stream, of which all that is `wanted` here is what that returns.

        `missed` is called when what others said may not have been heard.
        """
        ...

    def hear(self, hear: Hear) -> None:
        """Have what the other replicas say taken in."""
        ...

    def relay(self, at: Followed, said: Said) -> None:
        """Tell the other replicas what their clients are to hear, unless they hear it themselves."""
        ...

    async def warn(self, at: Followed, said: Said) -> None:
        """Return once this was said, ahead of what waits to be relayed; it may be missed."""
        ...

    async def close(self) -> None:
        """Leave all streams to the others, at once."""
        ...


class Alone:
    """The only replica: whatever is to be followed, it follows."""

    def share(
        self,
        at: Followed,
        *,
        wanted: Callable[[], Wanted],
        changed: Callable[[], None],
        missed: Callable[[], None],
    ) -> Share:
        return _Whole()

    def hear(self, hear: Hear) -> None:
        """Nobody says anything."""

    def relay(self, at: Followed, said: Said) -> None:
        """Nobody is there to hear it."""

    async def warn(self, at: Followed, said: Said) -> None:
        """Nobody is there to hear it."""

    async def close(self) -> None:
        """Nobody is there to leave it to."""


class _Whole:
    """All there is of a stream: nobody else has a part in it."""

    holds = True
    others = Wanted()
    granted = None
    wishes = 0

    def heard(self, wish: int) -> bool:
        """Nobody else has to know."""
        return True

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """Hold it for as long as it likes; nothing was cached before this process began."""
        yield True

    def want(self) -> None:
        """It knows what it wants itself."""

    def grant(self, granted: Granted) -> None:
        """Nobody waits to hear it."""

    def close(self) -> None:
        """Nobody is there to leave it to."""
