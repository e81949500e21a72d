"""Every metric the gateway has: names, labels and the closed sets the label values come from.

No label value is ever taken from a request: methods pass `methods.label`, words chosen by code are checked
against the sets below and become `other` when they are not in them, endpoints and upstreams are names from
the configuration (B52). A resolved series is kept in a dict, so that counting costs about a microsecond.
"""

from collections.abc import Set
from typing import Generic, Literal, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

from gateway.protocol import methods
from gateway.protocol.call import Reason

Side: TypeAlias = Literal["downstream", "upstream"]
Family = TypeVar("Family", Counter, Gauge, Histogram)

OTHER = "other"

EXCHANGE_OUTCOMES = frozenset({"ok", "error", "unavailable", "challenge", "cancelled", "stopping", "bug"})
"""How an accepted request ended: a result, a JSON-RPC error, an upstream's failure, a 401 or 403, ..."""

REJECTIONS = frozenset(
    {
        "path",
        "host",
        "origin",
        "verb",
        "authorization",
        "content_type",
        "accept",
        "encoding",
        "header_size",
        "body_size",
        "body_slow",
        "malformed",
        "envelope",
        "header_mismatch",
        "version",
        "params",
        "method",
    }
)
"""Why a request did not become a call."""

UPSTREAM_OUTCOMES = frozenset({"ok", "error", "challenge", "cancelled"} | {r.name.lower() for r in Reason})
LOOKUPS = frozenset({"hit", "miss", "bypass"})
LOOKUP_REASONS = frozenset(
    {
        "fresh",
        "hit",
        "absent",
        "expired",
        "generation",
        "ttl",
        "private",
        "anonymous",
        "not-shared",
        "too-large",
        "incomplete",
    }
)
CHANGE_CAUSES = frozenset(
    {"list_changed", "updated", "reconnect", "catalogue", "cursor", "schema", "settings", "purge"}
)
KINDS = frozenset(method.items for method in methods.METHODS.values() if method.items is not None)
DROPS = frozenset({"notification", "request", "progress", "log"})

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0)


class _Series(Generic[Family]):
    """One metric with its series resolved once: `labels()` of the library costs more than the counting."""

    def __init__(self, family: Family, labels: tuple[str, ...]) -> None:
        self._family: Family = family
        self._labels = labels
        self._resolved: dict[tuple[str, ...], Family] = {}

    def __len__(self) -> int:
        return len(self._resolved)

    def of(self, *values: str) -> Family:
        child = self._resolved.get(values)
        if child is None:
            child = self._resolved[values] = self._family.labels(*values)
        return child

    def forget(self, upstream: str) -> None:
        if "upstream" not in self._labels:
            return
        at = self._labels.index("upstream")
        for values in [values for values in self._resolved if values[at] == upstream]:
            del self._resolved[values]
            self._family.remove(*values)


SomeSeries = TypeVar("SomeSeries", _Series[Counter], _Series[Gauge], _Series[Histogram])


class Metrics:
    """The gateway's metrics in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, *, version: str | None = None) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._all: list[_Series[Counter] | _Series[Gauge] | _Series[Histogram]] = []
        if version is not None:
            build = Info("mcp_gateway_build", "The running gateway", registry=self._registry)
            build.info({"version": version})
        self._exchanges = self._counter(
            "exchanges", "Requests of clients that were answered", "endpoint", "method", "outcome"
        )
        self._exchange_seconds = self._histogram(
            "exchange_seconds", "From a request's last byte to its answer", "endpoint", "method"
        )
        self._in_flight = self._gauge("exchanges_in_flight", "Requests being answered now", "endpoint")
        self._rejected = self._counter(
            "rejected", "Requests refused before they became a call", "endpoint", "reason"
        )
        self._calls = self._counter(
            "upstream_calls", "Requests sent to an upstream", "upstream", "method", "outcome"
        )
        self._call_seconds = self._histogram(
            "upstream_call_seconds",
            "From sending a request to an upstream to its answer",
            "upstream",
            "method",
        )
        self._up = self._gauge("upstream_up", "Whether the upstream answers (1) or not (0)", "upstream")
        self._connections = self._gauge(
            "upstream_connections", "Open connections to the upstream", "upstream"
        )
        self._lookups = self._counter(
            "cache_lookups",
            "Questions to the response cache",
            "upstream",
            "method",
            "result",
            "reason",
        )
        self._entries = Gauge("mcp_gateway_cache_entries", "Entries held in memory", registry=self._registry)
        self._bytes = Gauge("mcp_gateway_cache_bytes", "Bytes of those entries", registry=self._registry)
        self._invalidated = self._counter(
            "cache_invalidations", "Changes that made entries stale", "upstream", "cause"
        )
        self._catalogue = self._gauge("catalogue_items", "Items an upstream lists", "upstream", "kind")
        self._excluded = self._gauge(
            "excluded_tools", "Listed tools left out because they are invalid", "upstream"
        )
        self._dropped = self._counter(
            "dropped", "Messages and members of an upstream that were dropped", "upstream", "what"
        )
        self._streams = self._gauge("streams_open", "Open event streams", "side")
        self._streams_opened = self._counter("streams_opened", "Event streams opened", "side")

    def __repr__(self) -> str:
        return f"<Metrics {len(self._all)} metrics, {sum(len(series) for series in self._all)} series>"

    # Downstream

    def exchange_started(self, endpoint: str) -> None:
        """Count a call in; `exchange` must follow, whatever becomes of it."""
        self._in_flight.of(endpoint).inc()

    def exchange(self, endpoint: str, method: str, outcome: str, seconds: float) -> None:
        """Count a call out."""
        name = methods.label(method)
        self._in_flight.of(endpoint).dec()
        self._exchanges.of(endpoint, name, _known(outcome, EXCHANGE_OUTCOMES)).inc()
        self._exchange_seconds.of(endpoint, name).observe(seconds)

    def rejected(self, endpoint: str, reason: str) -> None:
        """Count a request that did not become a call; `endpoint` is `other` for an unknown path."""
        self._rejected.of(endpoint, _known(reason, REJECTIONS)).inc()

    def stream_opened(self, side: Side) -> None:
        """Count an event stream in; `stream_closed` must follow."""
        self._streams.of(side).inc()
        self._streams_opened.of(side).inc()

    def stream_closed(self, side: Side) -> None:
        """Count an event stream out."""
        self._streams.of(side).dec()

    # Upstream

    def upstream_call(self, upstream: str, method: str, outcome: str | Reason, seconds: float) -> None:
        """Count an exchange with an upstream: `ok`, `error` (as it sent one), `cancelled`, or a Reason."""
        word = outcome.name.lower() if isinstance(outcome, Reason) else outcome
        name = methods.label(method)
        self._calls.of(upstream, name, _known(word, UPSTREAM_OUTCOMES)).inc()
        self._call_seconds.of(upstream, name).observe(seconds)

    def upstream_up(self, upstream: str, up: bool) -> None:
        """Say whether an upstream answers."""
        self._up.of(upstream).set(1 if up else 0)

    def upstream_connections(self, upstream: str, count: int) -> None:
        """Say how many connections to an upstream are open."""
        self._connections.of(upstream).set(count)

    def catalogue(self, upstream: str, kind: str, count: int) -> None:
        """Say how many items an upstream lists; `kind` is the result member, as in `resourceTemplates`."""
        self._catalogue.of(upstream, _known(kind, KINDS)).set(count)

    def excluded_tools(self, upstream: str, count: int) -> None:
        """Say how many listed tools are left out as invalid (U-08)."""
        self._excluded.of(upstream).set(count)

    def dropped(self, upstream: str, what: str) -> None:
        """Count something of an upstream's that reaches nobody."""
        self._dropped.of(upstream, _known(what, DROPS)).inc()

    def forget(self, upstream: str) -> None:
        """Remove every series of an upstream that is no longer configured (B52)."""
        for series in self._all:
            series.forget(upstream)

    # Cache

    def cache_lookup(self, upstream: str, method: str, result: str, reason: str) -> None:
        """Count how the cache answered, and why."""
        self._lookups.of(
            upstream,
            methods.label(method),
            _known(result, LOOKUPS),
            _known(reason, LOOKUP_REASONS),
        ).inc()

    def cache_size(self, entries: int, bytes: int) -> None:
        """Say what the memory store holds."""
        self._entries.set(entries)
        self._bytes.set(bytes)

    def invalidated(self, upstream: str, cause: str) -> None:
        """Count a change that made entries stale."""
        self._invalidated.of(upstream, _known(cause, CHANGE_CAUSES)).inc()

    # Reading

    def render(self) -> bytes:
        """Return everything in the Prometheus text format; it reads /proc, so call it in a thread."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> _Series[Counter]:
        family = Counter(f"mcp_gateway_{name}", text, labels, registry=self._registry)
        return self._add(_Series(family, labels))

    def _gauge(self, name: str, text: str, *labels: str) -> _Series[Gauge]:
        family = Gauge(f"mcp_gateway_{name}", text, labels, registry=self._registry)
        return self._add(_Series(family, labels))

    def _histogram(self, name: str, text: str, *labels: str) -> _Series[Histogram]:
        family = Histogram(f"mcp_gateway_{name}", text, labels, registry=self._registry, buckets=_BUCKETS)
        return self._add(_Series(family, labels))

    def _add(self, series: SomeSeries) -> SomeSeries:
        self._all.append(series)
        return series


def _known(word: str, words: Set[str]) -> str:
    return word if word in words else OTHER
