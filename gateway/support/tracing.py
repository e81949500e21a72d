"""What of a request is traced, whoever takes the spans: how they hang together, and what stands in them.

Where tracing is set up, a request has a span of its own (front), under it one for each look into the cache,
and under these one for each request to an upstream; a listen is one span for as long as it lasts. Nothing is
spent otherwise but a look at a context variable. Names follow the conventions of OpenTelemetry for MCP; what
those leave open begins with `mcp_gateway`. No argument, result, URI or credential is in a span.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Protocol, TypeAlias

from msgspec.structs import replace

from gateway.protocol import trace
from gateway.protocol.call import (
    Challenge,
    Forbidden,
    Principal,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import Json, McpError, encode, text_or_none
from gateway.protocol.methods import METHODS, shown
from gateway.support.exchange import Exchange, current_span, span_is

Kind: TypeAlias = Literal["server", "internal", "client"]
Attributes: TypeAlias = Mapping[str, str | int | float]

_MOST = 128
"""Characters of an upstream's own name for something."""
_ID = re.compile(rb'-?[0-9]{1,20}|"[A-Za-z0-9._:~-]{1,64}"')
"""Ids of messages that are told: numbers and short words, since a client may write anything."""
_FINE = frozenset({"ok", "notification"})
_TARGETS = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}


class Span(Protocol):
    """One span that has begun."""

    @property
    def trace_id(self) -> str:
        """The trace it belongs to, in hex."""
        ...

    def child(self, name: str, kind: Kind, attributes: Attributes) -> "Span":
        """Begin a span under this one."""
        ...

    def carrier(self) -> Mapping[str, str]:
        """Return what tells the next one that this is its parent, by the names of W3C trace context."""
        ...

    def note(self, attributes: Attributes) -> None: ...

    def end(self, error: str | None = None, name: str | None = None) -> None:
        """End it, under another name if one is given; `error` says in a word what went wrong."""
        ...


class Tracer(Protocol):
    """Begins the spans of requests, and takes all spans that end, without anybody waiting for that."""

    def begin(
        self,
        name: str,
        *,
        began: float,
        parent: Mapping[str, str],
        link: Mapping[str, str],
        attributes: Attributes,
    ) -> Span:
        """Begin the span of a request that arrived at `began`, of the monotonic clock."""
        ...

    async def close(self) -> None:
        """Send what is left, within a bound."""
        ...


_tracer: Tracer | None = None


def use(tracer: Tracer | None) -> Tracer | None:
    """Trace with this one from now on, or not at all; return the one before."""
    global _tracer
    before, _tracer = _tracer, tracer
    return before


async def close() -> None:
    """Trace no more, and send what is left."""
    tracer = use(None)
    if tracer is not None:
        await tracer.close()


def on() -> bool:
    """Whether requests are traced."""
    return _tracer is not None


# A request of a client


def serve(
    exchange: Exchange,
    *,
    id: bytes,
    version: str,
    principal: Principal,
    meta: Mapping[str, Json],
    headers: Mapping[str, str],
) -> None:
    """Begin the span of a request, which is current from here on.

    Its parent is what the message itself says (`_meta`), since that is what the client's own span is about;
    what stands in the headers, if it is anything else, is about the transport, and linked. Without the former
    it is the parent.
    """
    if exchange.span is not None:  # another message of the same batch
        span_is(exchange.span)
    if _tracer is None or exchange.span is not None:
        return
    inner = trace.context(trace.texts(meta))
    outer = trace.context({name: headers[name] for name in trace.CONTEXT if name in headers})
    attributes: dict[str, str | int | float] = {
        "mcp.method.name": exchange.method,
        "network.transport": "pipe" if exchange.transport == "stdio" else "tcp",
        "mcp_gateway.request.id": exchange.id,
        "mcp_gateway.endpoint": exchange.endpoint,
    }
    if version:
        attributes["mcp.protocol.version"] = version
    if exchange.transport == "http":
        attributes["network.protocol.name"] = "http"
    if exchange.method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
    if _ID.fullmatch(id):
        attributes["jsonrpc.request.id"] = id.decode().strip('"')
    if principal.session:  # a keyed hash, as the id itself opens the session
        attributes["mcp.session.id"] = principal.session[:_MOST]
    if exchange.caller:
        attributes["mcp_gateway.caller"] = exchange.caller[:12]
    link = outer if inner and outer.get("traceparent") != inner["traceparent"] else {}
    exchange.span = _tracer.begin(
        exchange.method, began=exchange.began, parent=inner or outer, link=link, attributes=attributes
    )
    span_is(exchange.span)


def served(exchange: Exchange) -> None:
    """End the span of a request, which has come to what its exchange says."""
    span = exchange.span
    if span is None:
        return
    named = _TARGETS.get(exchange.method)
    attributes: dict[str, str | int | float] = {}
    if exchange.name and named is not None:
        attributes[named] = exchange.name
    if exchange.code is not None:
        attributes["rpc.response.status_code"] = str(exchange.code)
    if exchange.reuse is not None:
        attributes["mcp_gateway.cache.result"] = exchange.reuse.source
        attributes["mcp_gateway.cache.reason"] = exchange.reuse.reason
        attributes["mcp_gateway.cache.age"] = exchange.reuse.age
    error = None if exchange.outcome in _FINE else exchange.outcome
    if error == "error" and exchange.code is not None:
        error = str(exchange.code)
    span.note(attributes)
    target = f" {exchange.name}" if exchange.name else ""
    span.end(error, f"{exchange.method}{target}")


# What it takes


@contextmanager
def looking(upstream: UpstreamName, method: str) -> Iterator[Span | None]:
    """Have a span for a look into the cache, current within; None where nothing is traced."""
    above = current_span()
    if above is None:
        yield None
        return
    about = {"mcp_gateway.upstream": upstream, "mcp.method.name": shown(method)}
    span = above.child(f"cache {shown(method)}", "internal", about)
    with _within(span):
        yield span


@contextmanager
def asking(upstream: UpstreamName, request: Request, version: str | None, wire: str) -> Iterator[Request]:
    """Have a span for a request to an upstream, current within; yield the request that tells of it."""
    above = current_span()
    if above is None:
        yield request
        return
    method = shown(request.method)
    about: dict[str, str | int | float] = {
        "mcp.method.name": method,
        "mcp_gateway.upstream": upstream,
        "network.transport": "pipe" if wire == "stdio" else "tcp",
    }
    if version is not None:
        about["mcp.protocol.version"] = version
    if method == "tools/call":
        about["gen_ai.operation.name"] = "execute_tool"
    named, target = _TARGETS.get(method), ""
    if named is not None:
        own = text_or_none(request.params.get(METHODS[method].named_by or "")) or ""
        target = about[named] = own.encode(errors="replace").decode()[:_MOST]
    span = above.child(f"{method} {target}".rstrip(), "client", about)
    carried = dict(span.carrier())
    baggage = text_or_none(request.vendor.get("baggage"))
    if baggage is not None:  # what of it may go on is all that is left by now
        carried["baggage"] = baggage
    vendor = {name: raw for name, raw in request.vendor.items() if name not in trace.CONTEXT}
    vendor |= {name: encode(text) for name, text in carried.items()}
    with _within(span):
        yield replace(request, vendor=vendor, carried=carried)


@contextmanager
def _within(span: Span) -> Iterator[None]:
    above = current_span()
    span_is(span)
    error: str | None = None
    try:
        yield
    except McpError as failure:
        error = str(failure.code)
        span.note({"rpc.response.status_code": error})
        raise
    except UpstreamUnavailable as failure:
        error = failure.reason.name.lower()
        raise
    except (Challenge, Forbidden) as failure:
        error = type(failure).__name__.lower()
        raise
    except Exception:
        error = "_OTHER"
        raise
    except BaseException:
        error = "cancelled"
        raise
    finally:
        span_is(above)
        span.end(error)
