"""The nouns every part of the gateway passes: Call, Request, Reply, Notice, Change, Principal, Upstream.

What is made for every request is a frozen Struct: eight times as quick to make as a frozen dataclass.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple, NewType, Protocol, TypeAlias

from msgspec import Struct

from gateway.protocol.jsonrpc import Json

UpstreamName = NewType("UpstreamName", str)
Partition = NewType("Partition", str)
Era: TypeAlias = Literal["modern", "legacy"]
Scope: TypeAlias = Literal["public", "private"]
CacheReason: TypeAlias = Literal[
    "fresh",
    "absent",
    "expired",
    "generation",
    "ttl",
    "private",
    "anonymous",
    "not-shared",
    "too-large",
    "incomplete",
    "partial",
    "mrtr",
    "method",
    "upstream-down",
    "error",
]
"""Why an answer came from the cache or not, as headers, explain and the README spell it."""

MODERN_VERSION = "2026-07-28"
LEGACY_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions of the initialize handshake, newest first."""
SERVED_VERSIONS = (MODERN_VERSION, "2025-11-25", "2025-06-18", "2025-03-26")
"""What discover and -32022 list, newest first (S-27, A-02)."""

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_LOG_LEVEL = "io.modelcontextprotocol/logLevel"
META_SERVER_INFO = "io.modelcontextprotocol/serverInfo"
META_SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
META_RELATED_TASK = "io.modelcontextprotocol/related-task"
META_PROGRESS_TOKEN = "progressToken"

HOP_META = frozenset(
    {
        META_VERSION,
        META_CLIENT_INFO,
        META_CAPABILITIES,
        META_LOG_LEVEL,
        META_SERVER_INFO,
        META_SUBSCRIPTION_ID,
        META_RELATED_TASK,
        META_PROGRESS_TOKEN,
    }
)
"""`_meta` keys that each hop writes itself and never copies (E-24)."""

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class Context(Struct, frozen=True):
    """On whose behalf an upstream is asked; what a server of an older era remembers is kept apart by it.

    The default is nobody in particular: the gateway itself, and callers who cannot be told apart.
    """

    caller: str = ""
    """A keyed hash of who the caller is, or of the credential where nothing was verified; "" without one."""
    session: str = ""
    """A keyed hash of the client's own session, "" for clients that have none."""
    alone: bool = False
    """Whether those without a credential are one person."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls: `partition` is a keyed hash of the credential presented, None for a caller without one.

    `authorization` is the header as it came; only an upstream with `auth: forward` may be handed it.
    """

    partition: Partition | None = None
    authorization: str | None = field(default=None, repr=False)
    expires: float | None = None
    """When the credential ends, in seconds since the epoch (time.time); None = nobody knows."""
    session: str = ""
    """A keyed hash of the session that a client of an older era has with us, "" for all others."""
    id: str = ""
    """Who the caller proved to be: NAME:SUBJECT, key:NAME or cert:NAME; "" where nothing was verified."""
    subject: Partition | None = None
    """A keyed hash of the id, the same whatever credential proves it; None without an id."""
    scopes: frozenset[str] = frozenset()
    """What the credential grants, with all that is included in it."""
    claims: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)
    """What the token says of the caller, as it was decoded; empty for what is no token."""

    @property
    def who(self) -> Partition | None:
        """Whom to remember: the person where that was verified, else the credential; None for nobody."""
        return self.subject or self.partition


class RequestMeta(Struct, frozen=True):
    """What one request says about itself in `_meta`; raw where nobody here needs to look inside."""

    version: str
    capabilities: Json = b"{}"
    log_level: str | None = None
    progress_token: Json | None = None
    vendor: Mapping[str, Json] = {}
    """Every `_meta` member that this hop does not own, trace context included."""


class Call(Struct, frozen=True):
    """A client's request that passed the front's checks.

    `id` is the raw JSON as the client wrote it. `params` are its members without `_meta`. `param_headers`
    holds the Mcp-Param-* lines: lower-cased token -> values as received, one per line.
    """

    id: bytes
    method: str
    params: Mapping[str, Json]
    meta: RequestMeta
    param_headers: Mapping[str, tuple[str, ...]] | None = {}
    """None for a client of an older era, which mirrors nothing."""
    name_header: str | None = None
    """Mcp-Name decoded, on methods that are not known here (K-08)."""


@dataclass(frozen=True, slots=True)
class HeaderParam:
    """One `x-mcp-header` annotation: which argument (a chain of `properties`) is mirrored in which header."""

    token: str
    path: tuple[str, ...]
    type: Literal["string", "integer", "boolean"]


class Request(Struct, frozen=True):
    """What the gateway asks one upstream, in that upstream's own names and URIs; `params` lack `_meta`."""

    method: str
    params: Mapping[str, Json] = {}
    capabilities: Json = b"{}"
    log_level: str | None = None
    wants_progress: bool = False
    vendor: Mapping[str, Json] = {}
    header_params: tuple[HeaderParam, ...] = ()
    authorization: str | None = None
    """The caller's own Authorization, set only for upstreams configured with `auth: forward`."""
    context: Context = Context()
    """On whose behalf; servers of the modern era are not told."""
    carried: Mapping[str, str] = {}
    """What headers say of the trace that it belongs to, and `vendor` says, too."""
    named_by: str | None = None
    """The parameter that Mcp-Name mirrors where the table of methods does not know it (K-08)."""

    @property
    def personal(self) -> bool:
        """Whether a caller who can be told apart made it: what is said to it is his, and not for the log."""
        return bool(self.authorization or self.context.caller)

    def __repr__(self) -> str:  # without the Authorization
        return f"<Request {self.method}, params: {', '.join(self.params) or 'none'}>"


class Reply(Struct, frozen=True):
    """An upstream's result, one raw JSON object."""

    result: Json


class Reuse(NamedTuple):
    """What the cache had to do with an answer; times in whole seconds, so that equal ones are common."""

    source: Literal["hit", "miss", "stale", "bypass"]
    reason: CacheReason
    age: int = 0
    """How long ago the oldest part of it was fetched."""
    ttl: int = 0
    """How long it may still be served again."""
    scope: Scope = "private"


class Answer(Struct, frozen=True):
    """What the pipeline made of a call: the result object as segments to be written one after the other."""

    result: tuple[Json, ...]
    reuse: Reuse | None = None
    """None for what is never cached."""


class Notice(Struct, frozen=True):
    """A notification that belongs to a running request; progressToken is already taken out of `params`."""

    method: str
    params: Mapping[str, Json]


Emit: TypeAlias = Callable[[Notice], Awaitable[None]]


class Sink(Protocol):
    """Takes what is said on one listen stream."""

    async def emit(self, notice: Notice) -> None:
        """Send a notification, and wait while the client is slow to take it."""
        ...

    def tell(self, before: bytes, id: bytes, behind: bytes) -> bool:
        """Send a notification in one line if the client takes more now; whether it was sent."""
        ...

    async def writable(self) -> None:
        """Return once the client takes more; raises when it has left."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """Something cached became stale: a list (`method`), one resource (`method` and `uri`), or everything.

    With a `partition` only what is private to that caller did. `asked` says of a resource that its upstream
    was to tell of it, or of what it belongs to.
    """

    upstream: UpstreamName
    method: str | None = None
    uri: str | None = None
    cause: str = "list_changed"
    partition: Partition | None = None
    asked: bool = False


class Reason(Enum):
    """Why an upstream could not answer; the value is what clients, logs and metrics say."""

    CONNECT = "connection failed"
    TIMEOUT = "no answer in time"
    STATUS = "unexpected HTTP status"
    PROTOCOL = "invalid response"
    TOO_LARGE = "response too large"
    CREDENTIALS = "it rejected the gateway's credentials"
    TOKEN = "no access token for it could be had"
    CHALLENGE = "it rejected the caller's credentials"
    DOWN = "currently down"
    BUSY = "too much to do, try again later"
    ERA = "no common protocol version"
    STOPPING = "the gateway is stopping"


OUTAGES = frozenset({Reason.CONNECT, Reason.TIMEOUT})
"""Reasons that are an outage whatever led to them."""


class UpstreamUnavailable(Exception):
    """An upstream did not answer a request; `detail` is for logs only and holds no secret.

    `outage` says that it was out of reach or out of order, rather than refused or answered amiss: what it
    said before may stand in (C-33).
    """

    def __init__(
        self, upstream: UpstreamName, reason: Reason, detail: str = "", *, outage: bool | None = None
    ) -> None:
        super().__init__(upstream, reason, detail)
        self.upstream = upstream
        self.reason = reason
        self.detail = detail
        self.outage = reason in OUTAGES if outage is None else outage

    def __str__(self) -> str:
        return f"upstream {self.upstream}: {self.reason.value}"


class Challenge(Exception):
    """An upstream with `auth: forward` refused the caller; the front answers 401 or 403 (B15)."""

    def __init__(
        self,
        upstream: UpstreamName,
        status: int,
        error: str | None,
        scope: str | None,
        *,
        reason: str = "it rejected the caller's credentials",
    ) -> None:
        super().__init__(upstream, status)
        self.reason = reason
        self.upstream = upstream
        self.status = status
        self.error = error
        self.scope = scope


class Forbidden(Exception):
    """This caller may not do this; the front answers 403 and names all scopes that it takes (Z-04)."""

    def __init__(self, scopes: tuple[str, ...] = ()) -> None:
        super().__init__(scopes)
        self.scopes = scopes

    def __str__(self) -> str:
        return "This takes more than the credential grants" if self.scopes else "This is not allowed"


class Upstream(Protocol):
    """One live upstream, whatever its era and transport."""

    @property
    def name(self) -> UpstreamName: ...

    async def call(self, request: Request, emit: Emit | None = None) -> Reply:
        """Return the result; raises McpError as the upstream sent it, or UpstreamUnavailable."""
        ...

    async def close(self) -> None: ...
