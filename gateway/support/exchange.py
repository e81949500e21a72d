"""What one request of a client comes to, gathered on its way for the access line. No payload, no token.

The front begins it, and a context variable carries it through core, cache and upstreams, where each notes its
share. Work that is shared belongs to whoever began it, and what ends after its exchange is noted nowhere.
"""

import itertools
import re
import secrets
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from gateway.protocol.call import Era, Reuse

if TYPE_CHECKING:
    from gateway.support.tracing import Span

Transport: TypeAlias = Literal["http", "stdio"]

MOST_NOTED = 16
"""Look-ups, and calls, of one exchange that are told one by one; of more it tells how many."""

_GIVEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}")
"""An id that is taken over: nothing in it could mean anything in a header or a log."""
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""What exposed names are made of, and then some; where bare names will do, servers choose them."""
_ours = f"{secrets.token_hex(4)}-"
_count = itertools.count(1)


class Looked(Struct, frozen=True):
    """What the cache said of one upstream's share."""

    upstream: str
    method: str
    result: str
    reason: str
    age: int


class Called(Struct, frozen=True):
    """One request to an upstream, retries included."""

    upstream: str
    method: str
    outcome: str
    ms: float


class Exchange(Struct, eq=False):
    """One request of a client, from its arrival to the last byte of its answer."""

    id: str
    transport: Transport
    began: float
    endpoint: str = ""
    era: Era | None = None
    method: str = ""
    """From a closed set, `other` for what a client made up."""
    name: str = ""
    """The tool or prompt, once it is found: never what a client only made up."""
    caller: str = ""
    """The beginning of a keyed hash of who calls, or of the credential; "" for callers without one."""
    lookups: list[Looked] = []
    calls: list[Called] = []
    unnoted: int = 0
    """Look-ups and calls beyond those that are told."""
    reuse: Reuse | None = None
    """What the cache had to do with the answer altogether."""
    outcome: str = "cancelled"
    code: int | None = None
    """Of JSON-RPC, where it came to an error."""
    status: int = 0
    """Of HTTP; 0 where none was answered."""
    sent: int = 0
    """Bytes of the answer, its head and all that came ahead of it included."""
    listens: bool = False
    """Whether it lasts for as long as the client wants."""
    over: bool = False
    ended: float = 0.0
    """When, in seconds since 1970."""
    seconds: float = 0.0
    """How long it took."""
    span: "Span | None" = None
    """Where requests are traced: its Span."""


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
_span: ContextVar["Span | None"] = ContextVar("span", default=None)


def begin(transport: Transport, given: str | None = None) -> Exchange:
    """Return a new exchange, which what runs from here on belongs to; `given` is an id that came with it."""
    id = f"{_ours}{next(_count):x}" if given is None or not _GIVEN.fullmatch(given) else given
    exchange = Exchange(id, transport, time.monotonic())
    _current.set(exchange)
    if _span.get() is not None:  # of a request before, on the same connection
        _span.set(None)
    return exchange


def current() -> Exchange | None:
    """Return the exchange that what runs now belongs to, None when there is none or it is over."""
    exchange = _current.get()
    return None if exchange is None or exchange.over else exchange


def detach() -> None:
    """Say that this task, whoever's request began it, works for everybody."""
    _current.set(None)
    _span.set(None)


def current_span() -> "Span | None":
    """Return the span that what runs now belongs to, None where nothing is traced."""
    return _span.get()


def span_is(span: "Span | None") -> None:
    """Say which span what runs from here on belongs to."""
    _span.set(span)


def looked_up(upstream: str, method: str, result: str, reason: str, age: float = 0.0) -> None:
    """Note what the cache said."""
    exchange = _current.get()
    if exchange is None or exchange.over:
        return
    if len(exchange.lookups) < MOST_NOTED:
        exchange.lookups.append(Looked(upstream, method, result, reason, max(0, int(age))))
    else:
        exchange.unnoted += 1


def called(upstream: str, method: str, outcome: str, seconds: float) -> None:
    """Note a request to an upstream."""
    exchange = _current.get()
    if exchange is None or exchange.over:
        return
    if len(exchange.calls) < MOST_NOTED:
        exchange.calls.append(Called(upstream, method, outcome, _ms(seconds)))
    else:
        exchange.unnoted += 1


def called_for(method: str) -> None:
    """Note what is asked for: in a batch that it is one, whatever is in it."""
    exchange = _current.get()
    if exchange is not None and not exchange.over and exchange.method != "batch":
        exchange.method = method


def lasts() -> None:
    """Note that it lasts for as long as the client wants."""
    exchange = _current.get()
    if exchange is not None:
        exchange.listens = True


def named(name: str) -> None:
    """Note the name of the tool or prompt that was found, unless it is an odd one of its upstream's own."""
    exchange = _current.get()
    if exchange is not None and _NAME.fullmatch(name):
        exchange.name = name


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
