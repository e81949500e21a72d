"""How an exchange with an upstream fails, in words only this edge needs: may it be tried again, and when."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from gateway.protocol.call import OUTAGES, Reason, UpstreamName, UpstreamUnavailable
from gateway.protocol.jsonrpc import McpError


class Failed(UpstreamUnavailable):
    """One attempt got no answer.

    `unsent` is set only when the upstream cannot have seen the request, so that even a tool call may be sent
    again (U-27); `transient` when asking again may help; `lost` when no connection could be made at all;
    `status` is the HTTP status if there was one.
    """

    def __init__(
        self,
        upstream: UpstreamName,
        reason: Reason,
        detail: str = "",
        *,
        unsent: bool = False,
        lost: bool = False,
        transient: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        broken = reason is Reason.STATUS and status is not None and status >= 500
        super().__init__(upstream, reason, detail, outage=reason in OUTAGES or broken)
        self.unsent = unsent
        self.lost = lost
        self.transient = transient or unsent
        self.status = status
        self.retry_after = retry_after
        self.contradicts = False
        """Whether no server of the era that is spoken would have answered so (U-19a)."""


Bound: TypeAlias = Literal["breaker", "queue", "rate", "in_flight"]
"""The setting by which the gateway itself does not ask an upstream."""

_BOUNDS: Mapping[Bound, str] = {
    "breaker": "it failed too often, see its `breaker`",
    "queue": "its `queue` is full",
    "rate": "its `rate` is used up",
    "in_flight": "`limits.in_flight` is used up",
}


class Busy(Failed):
    """A bound of the gateway's forbids to ask the upstream; what it said before may stand in."""

    def __init__(self, upstream: UpstreamName, bound: Bound) -> None:
        super().__init__(upstream, Reason.BUSY, _BOUNDS[bound])
        self.bound: Bound = bound
        self.outage = True

    def __str__(self) -> str:
        return f"upstream {self.upstream}: {self.reason.value} ({self.detail})"


class NoToken(Failed):
    """No access token for the upstream could be had; `outage` says that nobody was there to give one out.

    `general` is unset where that is about one caller only; `nowhere` says that nobody knows whom to ask.
    """

    def __init__(
        self, upstream: UpstreamName, detail: str, *, outage: bool = False, nowhere: bool = False
    ) -> None:
        super().__init__(upstream, Reason.TOKEN, detail)
        self.outage = outage
        self.nowhere = nowhere
        self.general = True

    def again(self) -> "NoToken":
        """Return it for somebody else: an exception that is raised twice keeps the frames of both."""
        other = NoToken(self.upstream, self.detail, outage=self.outage, nowhere=self.nowhere)
        other.general = self.general
        return other


class ProgramEnded(Failed):
    """The program that an upstream is ended, with what it still owed; the message says how (B27)."""

    def __init__(self, upstream: UpstreamName, how: str, *, unsent: bool = False, lost: bool = True) -> None:
        detail = f"its program ended, {how}"
        super().__init__(upstream, Reason.CONNECT, detail, unsent=unsent, lost=lost, transient=True)

    def __str__(self) -> str:
        return f"upstream {self.upstream}: {self.detail}"


class TimedOut(UpstreamUnavailable):
    """A call hit one of its limits; the message names upstream, target and limit (B19)."""

    def __init__(self, upstream: UpstreamName, target: str, limit: str) -> None:
        super().__init__(upstream, Reason.TIMEOUT, f"{target}: {limit}")
        self.target = target
        self.limit = limit

    def __str__(self) -> str:
        return f"upstream {self.upstream}: {self.target} got no answer in time ({self.limit})"


class StaleSchema(UpstreamUnavailable):
    """The upstream found the mirrored headers of a call wrong: its tools/list must be read anew (U-20)."""

    def __init__(self, upstream: UpstreamName) -> None:
        super().__init__(upstream, Reason.PROTOCOL, "it refused the mirrored headers (-32020)")


class UpstreamError(McpError):
    """A JSON-RPC error as the upstream sent it, with the HTTP status that carried it."""

    def __init__(self, error: McpError, status: int) -> None:
        super().__init__(error.code, error.message, error.data)
        self.status = status
        self.contradicts = False
        """Whether no server of the era that is spoken would have answered so (U-19a)."""
