"""What the pool asks of an upstream, whatever era it speaks and over whatever wire."""

from collections.abc import AsyncIterator
from typing import Protocol

from gateway.protocol.call import Context, Emit, Notice, Reply, Request, UpstreamName
from gateway.protocol.subscriptions import Wanted
from gateway.upstream.failures import Failed
from gateway.upstream.probing import Verdict


class Listening(Protocol):
    """An open subscription, to be iterated by one reader.

    The iteration ends when the upstream ended it deliberately and raises UpstreamUnavailable when it was
    lost. A read that is cancelled loses no notice.
    """

    @property
    def honoured(self) -> Wanted:
        """What the upstream promised to tell, never more than was wanted (L-16)."""
        ...

    @property
    def failure(self) -> Failed | None:
        """How it was lost, None while it was not."""
        ...

    def __aiter__(self) -> AsyncIterator[Notice]: ...

    async def __anext__(self) -> Notice: ...

    def close(self) -> None:
        """Hang up, unless it is over already; notices not read yet are forgotten."""
        ...


class Transport(Protocol):
    """One upstream server. No deadline is kept here but that of a probe: the pool keeps them (U-24)."""

    version: str
    """The protocol version spoken with it; the pool sets it when the upstream wants another (U-28)."""

    @property
    def name(self) -> UpstreamName: ...

    @property
    def wire(self) -> str:
        """How it is reached, for people: Streamable HTTP, HTTP+SSE or stdio."""
        ...

    @property
    def active(self) -> int:
        """Calls under way; a subscription is none."""
        ...

    @property
    def queued(self) -> int:
        """Calls that wait until one more may run."""
        ...

    @property
    def sessions(self) -> int:
        """Sessions of an older protocol, or processes, that are open."""
        ...

    async def probe(self) -> Verdict:
        """Find out, within a time, whether it can be used and what it speaks; from then on that is spoken.

        Raises nothing. What a handshake had to leave behind, such as a session, serves the calls to come:
        probing again and again must not make more of it (B29).
        """
        ...

    async def call(self, request: Request, emit: Emit | None = None) -> Reply:
        """Return the result, worded as a modern server would; raises UpstreamError, Failed or Challenge.

        Cancelling cancels it at the upstream as well (U-23).
        """
        ...

    async def listen(self, request: Request, wanted: Wanted) -> Listening:
        """Return the subscription once it is open, for the caller to close. Raises as `call` does."""
        ...

    def note(self, context: Context, notice: Notice) -> None:
        """Tell an older server what a client has to tell, in the sessions that are that client's alone.

        It waits for nothing, and what cannot be told is lost.
        """
        ...

    async def close(self) -> None:
        """End all that is open; calls that are running or come later fail as STOPPING."""
        ...
