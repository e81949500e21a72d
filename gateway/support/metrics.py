"""Every metric the gateway has: names, labels and the closed sets the label values come from.

No label value is ever taken from a request: methods pass `methods.label`, words chosen by code are checked
against the sets below and become `other` when they are not in them, endpoints and upstreams are names from
the configuration (B52). Counting is a dict entry that grows, half a microsecond where the library's own
counters and histograms took eight per exchange (measured); the library writes them out.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import accumulate
from typing import Literal, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Info
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.protocol import methods
from gateway.protocol.call import Reason

Side: TypeAlias = Literal["downstream", "upstream"]
Turned: TypeAlias = Literal["led", "followed", "in-vain", "gave-up"]
"""What became of a fetch that one replica makes for all: made here, or waited for, with or without use."""
Values: TypeAlias = tuple[str, ...]
Cell: TypeAlias = list[float]

OTHER = "other"

EXCHANGE_OUTCOMES = frozenset(
    {"ok", "error", "unavailable", "challenge", "forbidden", "cancelled", "stopping", "bug"}
)
"""How an accepted request ended: a result, a JSON-RPC error, an upstream's failure, a 401 or 403, ..."""

REJECTIONS = frozenset(
    {
        "path",
        "host",
        "origin",
        "verb",
        "authorization",
        "unauthenticated",
        "token",
        "scope",
        "issuer",
        "content_type",
        "accept",
        "encoding",
        "header_size",
        "body_size",
        "head_slow",
        "body_slow",
        "ahead",
        "slow_reader",
        "malformed",
        "envelope",
        "header_mismatch",
        "version",
        "params",
        "method",
        "session",
        "sessions",
        "tls",
        "certificate",
        "connections",
        "idle",
        "requests",
        "calls",
        "streams",
        "in_flight",
        "rate",
        "verifications",
    }
)
"""Why a request did not become a call."""

UPSTREAM_OUTCOMES = frozenset({"ok", "error", "challenge", "cancelled"} | {r.name.lower() for r in Reason})
LOOKUPS = frozenset({"hit", "miss", "stale", "bypass"})
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
        "error",
        "upstream-down",
    }
)
CHANGE_CAUSES = frozenset(
    {"list_changed", "updated", "reconnect", "catalogue", "cursor", "schema", "settings", "purge"}
)
REDIS_OPERATIONS = frozenset(
    {
        "get",
        "put",
        "delete",
        "sync",
        "advance",
        "enrol",
        "resign",
        "announce",
        "confirm",
        "tell",
        "lead",
        "release",
        "share",
        "scope",
        "mail",
        "rate",
        "note-write",
        "note-read",
        "note-add",
        "note-erase",
        "note-include",
        "note-exclude",
        "note-members",
    }
)
REDIS_OUTCOMES = frozenset({"ok", "timeout", "error", "paused", "spent"})
KINDS = frozenset(method.items for method in methods.METHODS.values() if method.items is not None)
LISTEN_ENDS = frozenset(
    {"result", "cancelled", "closed", "lost", "idle", "invalid", "too_large", "error", "stopping"}
)
"""Who ended an acknowledged subscription: the upstream in two ways, the gateway, or what befell it."""
NOTICE_FATES = frozenset({"delivered", "coalesced", "dropped"})
SUBSCRIPTION_ENDS = frozenset({"left", "stopping", "expired", "refused", "withdrawn", "overflow"})
"""Why a listen of a client ended; `left` is the client's own doing, or its being cut for reading nothing."""

BOUNDS = frozenset({"breaker", "queue", "rate", "in_flight"})
"""Settings by which an upstream is not asked."""
RETRIES = frozenset({"made", "withheld"})
"""What becomes of the wish to send a request again; `withheld` ones were beyond the retry budget."""
REFRESHES = frozenset({"ok", "failed"})
PARKED_ENDS = frozenset({"resumed", "expired", "given-up", "refused", "stopping"})
"""How calls that wait for their user end: `refused` ones found no room, nobody answers `given-up` ones."""
VERDICTS = frozenset({"ok", "refused", "unavailable"})
"""What became of a credential that was verified; nobody could tell of an `unavailable` one."""
ISSUER_OUTCOMES = frozenset({"ok", "absent", "error", "timeout"})
DROPS = frozenset({"notification", "request", "progress", "log", "member", "response"})

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_REMEMBERED = 4096

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0)


class _Tally:
    """A counter, or a gauge when it may fall: one number per combination of label values."""

    def __init__(self, name: str, text: str, labels: Sequence[str], *, falls: bool) -> None:
        self._family = GaugeMetricFamily if falls else CounterMetricFamily
        self._name = name
        self._text = text
        self.labels = labels
        self.series: dict[Values, Cell] = {}

    def cell(self, *values: str) -> Cell:
        """Return what holds the number of one series, to count in directly where every microsecond counts."""
        return self.series.get(values) or self.series.setdefault(values, [0.0])

    def add(self, *values: str, by: float = 1) -> None:
        self.cell(*values)[0] += by

    def set(self, *values: str, to: float) -> None:
        self.cell(*values)[0] = to

    def collect(self) -> Metric:
        family = self._family(self._name, self._text, labels=self.labels)
        for values, cell in list(self.series.items()):
            family.add_metric(values, cell[0])
        return family


class _Timing:
    """A histogram of seconds: bucket counts and a sum per combination of label values."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name = name
        self._text = text
        self.labels = labels
        self.series: dict[Values, Cell] = {}

    def cell(self, *values: str) -> Cell:
        """Return what holds one series: a count per bucket, and the sum."""
        return self.series.setdefault(values, [0.0] * (len(_BUCKETS) + 2))

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._text, labels=self.labels)
        bounds = [*map(str, _BUCKETS), "+Inf"]
        for values, counts in list(self.series.items()):
            *each, total = list(counts)
            family.add_metric(values, list(zip(bounds, accumulate(each), strict=True)), total)
        return family


class _All(Collector):
    """Hands the library what was counted."""

    def __init__(self) -> None:
        self.metrics: list[_Tally | _Timing] = []

    def collect(self) -> Iterable[Metric]:
        return [metric.collect() for metric in self.metrics]


class Metrics:
    """The gateway's metrics in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, *, version: str | None = None) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._all = _All()
        self._registry.register(self._all)
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
        self._certificate_ends = self._gauge(
            "tls_certificate_expires", "When the endpoints' certificate ends, in seconds since 1970"
        )
        self._held_bytes = self._gauge(
            "held_bytes", "Bytes of large requests and answers that are held, of limits.in_flight"
        )
        self._held: Callable[[], int] = int
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
        self._refused = self._counter(
            "upstream_refused", "Requests an upstream was not asked, by the setting", "upstream", "bound"
        )
        self._breaker = self._gauge(
            "upstream_breaker_open", "Whether the upstream is left alone by its breaker (1)", "upstream"
        )
        self._queued = self._gauge(
            "upstream_queued", "Calls that wait until one more may run at the upstream", "upstream"
        )
        self._retries = self._counter(
            "upstream_retries", "Requests that were to be sent again", "upstream", "outcome"
        )
        self._connections = self._gauge(
            "upstream_connections", "Open connections to the upstream", "upstream"
        )
        self._listens = self._gauge(
            "upstream_listens", "Subscriptions that the upstream acknowledged and that are open", "upstream"
        )
        self._listens_ended = self._counter(
            "upstream_listens_ended",
            "Ends of such subscriptions; closed = by the gateway",
            "upstream",
            "reason",
        )
        self._lookups = self._counter(
            "cache_lookups",
            "Questions to the response cache",
            "upstream",
            "method",
            "result",
            "reason",
        )
        self._hints = self._counter(
            "cache_hints",
            "Fetched results by who decided on ttl and scope: the upstream, or a setting (override)",
            "upstream",
            "method",
            "source",
        )
        self._turns = self._counter(
            "cache_turns",
            "Fetches by turns with other replicas: led for all, followed, followed in vain, waited too long",
            "upstream",
            "method",
            "outcome",
        )
        self._entries = self._gauge("cache_entries", "Entries held in memory")
        self._bytes = self._gauge("cache_bytes", "Bytes of those entries")
        self._invalidated = self._counter(
            "cache_invalidations", "Changes that made entries stale", "upstream", "cause"
        )
        self._redis_operations = self._counter(
            "redis_operations",
            "Questions to Redis; paused = not asked after a failure, spent = the request had waited enough",
            "operation",
            "outcome",
        )
        self._redis_unreadable = self._counter(
            "redis_unreadable", "Messages on the replicas' channel that are none of theirs, and were ignored"
        )
        self._redis_linked = self._gauge(
            "redis_linked", "Whether changes made elsewhere are heard (1) or not (0)"
        )
        self._redis_answers = self._gauge(
            "redis_answers", "Whether the last question to Redis was answered in time (1) or not (0)"
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
        self._streams_cut = self._counter("streams_cut", "Event streams cut because nothing was read of them")
        self._subscriptions = self._gauge("subscriptions", "Listens of clients that are open")
        self._subscriptions_ended = self._counter(
            "subscriptions_ended", "Listens of clients that ended, by who or what ended them", "cause"
        )
        self._notices = self._counter(
            "notices",
            "Notices for clients: sent, one with another still to be sent, or without room to wait",
            "fate",
        )
        self._gaps = self._counter(
            "upstream_listen_gaps", "Times an upstream was heard again after it had not been", "upstream"
        )
        self._listens_too_large = self._counter(
            "upstream_listen_left_out",
            "Resources and tasks asked for by clients that were too many to ask their upstream for",
            "upstream",
        )
        self._upstream_sessions = self._gauge(
            "upstream_sessions",
            "Sessions with a server of an older protocol, or processes of a program, that are open",
            "upstream",
        )
        self._upstream_sessions_waiting = self._gauge(
            "upstream_sessions_waiting",
            "Requests that wait until one more of these may be opened",
            "upstream",
        )
        self._upstream_sessions_displaced = self._counter(
            "upstream_sessions_displaced", "Idle ones that were ended to make room for another", "upstream"
        )
        self._upstream_tokens = self._counter(
            "upstream_tokens",
            "Access tokens for an upstream that its authorization server was asked for",
            "upstream",
            "outcome",
        )
        self._sessions = self._gauge("sessions", "Sessions of clients of older protocols, as known here")
        self._asked = self._gauge(
            "asked_calls", "Calls of clients of older protocols that wait for what their client was asked"
        )
        self._parked = self._gauge("parked_calls", "Calls that wait for a client's answers")
        self._parked_ended = self._counter(
            "parked_calls_ended", "Calls that waited for a client's answers, by how that ended", "outcome"
        )
        self._refreshes = self._counter(
            "refreshes", "Lists fetched to see whether they changed", "upstream", "outcome"
        )
        self._verified = self._counter(
            "verified", "Credentials verified, those still remembered aside", "source", "outcome"
        )
        self._issuer_questions = self._counter(
            "issuer_questions", "Questions to authorization servers", "issuer", "what", "outcome"
        )
        self._issuer_seconds = self._histogram(
            "issuer_seconds", "From such a question to its answer", "issuer", "what"
        )

        # Where the words of frequent events lead, so that they need not be looked at again.
        self._exchange_cells: dict[Values, tuple[Cell, Cell, Cell]] = {}
        self._call_cells: dict[Values, tuple[Cell, Cell]] = {}
        self._lookup_cells: dict[Values, Cell] = {}

    def __repr__(self) -> str:
        series = sum(len(metric.series) for metric in self._all.metrics)
        return f"<Metrics {len(self._all.metrics)} metrics, {series} series>"

    # Downstream

    def exchange_started(self, endpoint: str) -> None:
        """Count a call in; `exchange` must follow, whatever becomes of it."""
        self._in_flight.add(endpoint)

    def exchange(self, endpoint: str, method: str, outcome: str, seconds: float) -> None:
        """Count a call out."""
        cells = self._exchange_cells.get((endpoint, method, outcome))
        if cells is None:
            name = methods.label(method)
            cells = (
                self._in_flight.cell(endpoint),
                self._exchanges.cell(endpoint, name, _known(outcome, EXCHANGE_OUTCOMES)),
                self._exchange_seconds.cell(endpoint, name),
            )
            _remember(self._exchange_cells, (endpoint, method, outcome), cells)
        in_flight, count, timing = cells
        in_flight[0] -= 1
        count[0] += 1
        _time(timing, seconds)

    def rejected(self, endpoint: str, reason: str) -> None:
        """Count a request that did not become a call; `endpoint` is `other` for an unknown path."""
        self._rejected.add(endpoint, _known(reason, REJECTIONS))

    def certificate_ends(self, moment: float) -> None:
        """Say when the certificate ends that clients are shown."""
        self._certificate_ends.set(to=moment)

    def watch_held(self, held: Callable[[], int]) -> None:
        """Have it asked how many bytes of messages are held, whenever somebody wants to know."""
        self._held = held

    def stream_opened(self, side: Side) -> None:
        """Count an event stream in; `stream_closed` must follow."""
        self._streams.add(side)
        self._streams_opened.add(side)

    def stream_closed(self, side: Side) -> None:
        """Count an event stream out."""
        self._streams.add(side, by=-1)

    def stream_cut(self) -> None:
        """Count an event stream whose client took nothing any more."""
        self._streams_cut.add()

    def sessions(self, count: int) -> None:
        """Say how many sessions of older clients are known."""
        self._sessions.set(to=count)

    def asked(self, calls: int) -> None:
        """Say how many calls wait for what an older client was asked."""
        self._asked.set(to=calls)

    def subscriptions(self, count: int) -> None:
        """Say how many listens of clients are open."""
        self._subscriptions.set(to=count)

    def subscription_ended(self, cause: str) -> None:
        """Count a listen out."""
        self._subscriptions_ended.add(_known(cause, SUBSCRIPTION_ENDS))

    def notices(self, fate: str) -> Cell:
        """Return what counts notices for clients that met this fate."""
        return self._notices.cell(_known(fate, NOTICE_FATES))

    def verified(self, source: str, outcome: str) -> None:
        """Count a credential: of which issuer (or `key`, `cert` or `none`) it is, and what became of it."""
        self._verified.add(source, _known(outcome, VERDICTS))

    def issuer_asked(self, issuer: str, what: str, outcome: str, seconds: float) -> None:
        """Count a question to an authorization server."""
        self._issuer_questions.add(issuer, what, _known(outcome, ISSUER_OUTCOMES))
        _time(self._issuer_seconds.cell(issuer, what), seconds)

    # Upstream

    def listen_gap(self, upstream: str) -> None:
        """Count the end of a time in which an upstream could not be heard."""
        self._gaps.add(upstream)

    def listen_left_out(self, upstream: str, names: int) -> None:
        """Count what an upstream is not asked to tell of, since it would be too much."""
        self._listens_too_large.add(upstream, by=names)

    def refreshed(self, upstream: str, outcome: str) -> None:
        """Count a list that was fetched to see whether it changed."""
        self._refreshes.add(upstream, _known(outcome, REFRESHES))

    def upstream_call(self, upstream: str, method: str, outcome: str | Reason, seconds: float) -> None:
        """Count an exchange with an upstream: `ok`, `error` (as it sent one), `cancelled`, or a Reason."""
        word = outcome.name.lower() if isinstance(outcome, Reason) else outcome
        cells = self._call_cells.get((upstream, method, word))
        if cells is None:
            name = methods.label(method)
            cells = (
                self._calls.cell(upstream, name, _known(word, UPSTREAM_OUTCOMES)),
                self._call_seconds.cell(upstream, name),
            )
            _remember(self._call_cells, (upstream, method, word), cells)
        count, timing = cells
        count[0] += 1
        _time(timing, seconds)

    def upstream_up(self, upstream: str, up: bool) -> None:
        """Say whether an upstream answers."""
        self._up.set(upstream, to=1 if up else 0)

    def upstream_refused(self, upstream: str, bound: str) -> None:
        """Count a request that a bound of the gateway's kept from an upstream."""
        self._refused.add(upstream, _known(bound, BOUNDS))

    def upstream_breaker(self, upstream: str, is_open: bool) -> None:
        """Say whether an upstream is left alone."""
        self._breaker.set(upstream, to=1 if is_open else 0)

    def upstream_queued(self, upstream: str, count: int) -> None:
        """Say how many calls wait for a slot."""
        self._queued.set(upstream, to=count)

    def upstream_retry(self, upstream: str, outcome: str) -> None:
        """Count a request that failed and may work when it is sent again."""
        self._retries.add(upstream, _known(outcome, RETRIES))

    def upstream_connections(self, upstream: str, count: int) -> None:
        """Say how many connections to an upstream are open."""
        self._connections.set(upstream, to=count)

    def upstream_sessions(self, upstream: str, *, by: int) -> None:
        """Count sessions with an upstream, or its processes, in and out."""
        self._upstream_sessions.add(upstream, by=by)

    def upstream_sessions_waiting(self, upstream: str, *, by: int) -> None:
        """Count those in and out who wait for a session to become idle."""
        self._upstream_sessions_waiting.add(upstream, by=by)

    def upstream_session_displaced(self, upstream: str) -> None:
        """Count an idle session, or process, that ended to make room."""
        self._upstream_sessions_displaced.add(upstream)

    def upstream_token(self, upstream: str, outcome: Literal["obtained", "refused", "failed"]) -> None:
        """Count an access token that was asked for, and what came of it."""
        self._upstream_tokens.add(upstream, outcome)

    def listen_opened(self, upstream: str) -> None:
        """Count an acknowledged subscription in; `listen_ended` must follow."""
        self._listens.add(upstream)
        self.stream_opened("upstream")

    def listen_ended(self, upstream: str, reason: str) -> None:
        """Count a subscription out, and what ended it."""
        self._listens.add(upstream, by=-1)
        self._listens_ended.add(upstream, _known(reason, LISTEN_ENDS))
        self.stream_closed("upstream")

    def catalogue(self, upstream: str, kind: str, count: int) -> None:
        """Say how many items an upstream lists; `kind` is the result member, as in `resourceTemplates`."""
        self._catalogue.set(upstream, _known(kind, KINDS), to=count)

    def excluded_tools(self, upstream: str, count: int) -> None:
        """Say how many listed tools are left out as invalid (U-08)."""
        self._excluded.set(upstream, to=count)

    def dropped(self, upstream: str, what: str) -> None:
        """Count something of an upstream's that reaches nobody."""
        self._dropped.add(upstream, _known(what, DROPS))

    def forget(self, upstream: str) -> None:
        """Remove every series of an upstream that is no longer configured (B52)."""
        for metric in self._all.metrics:
            if "upstream" in metric.labels:
                at = metric.labels.index("upstream")
                for values in [values for values in metric.series if values[at] == upstream]:
                    del metric.series[values]
        self._call_cells.clear()
        self._lookup_cells.clear()

    # Cache

    def cache_lookup(self, upstream: str, method: str, result: str, reason: str) -> None:
        """Count how the cache answered, and why."""
        cell = self._lookup_cells.get((upstream, method, result, reason))
        if cell is None:
            words = _known(result, LOOKUPS), _known(reason, LOOKUP_REASONS)
            cell = self._lookups.cell(upstream, methods.label(method), *words)
            _remember(self._lookup_cells, (upstream, method, result, reason), cell)
        cell[0] += 1

    def cache_hints(self, upstream: str, method: str, *, overridden: bool) -> None:
        """Count a fetched result, and whether a setting changed what its upstream said of its reuse."""
        self._hints.add(upstream, methods.label(method), "override" if overridden else "upstream")

    def cache_turn(self, upstream: str, method: str, outcome: Turned) -> None:
        """Count a fetch that one replica makes for all."""
        self._turns.add(upstream, methods.label(method), outcome)

    def cache_size(self, entries: int, bytes: int) -> None:
        """Say what the memory store holds."""
        self._entries.set(to=entries)
        self._bytes.set(to=bytes)

    def invalidated(self, upstream: str, cause: str) -> None:
        """Count a change that made entries stale."""
        self._invalidated.add(upstream, _known(cause, CHANGE_CAUSES))

    def parked(self, calls: int) -> None:
        """Say how many calls wait for a client's answers."""
        self._parked.set(to=calls)

    def parked_ended(self, outcome: str) -> None:
        """Count a call that waits no more."""
        self._parked_ended.add(_known(outcome, PARKED_ENDS))

    def redis_operation(self, operation: str, outcome: str) -> None:
        """Count a question to Redis; `paused` ones were not asked, for one before had failed."""
        self._redis_operations.add(_known(operation, REDIS_OPERATIONS), _known(outcome, REDIS_OUTCOMES))

    def redis_unreadable(self) -> None:
        """Count a message of somebody who does not belong on the channel."""
        self._redis_unreadable.add()

    def redis_linked(self, linked: bool) -> None:
        """Say whether this replica hears of the changes others make; without, it caches nothing."""
        self._redis_linked.set(to=1 if linked else 0)

    def redis_answers(self, answers: bool) -> None:
        """Say whether Redis answers in time; while it does not, most questions are not even asked."""
        self._redis_answers.set(to=1 if answers else 0)

    # Reading

    def render(self) -> bytes:
        """Return everything in the Prometheus text format; it reads /proc, so call it in a thread."""
        self._held_bytes.set(to=self._held())
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> _Tally:
        return self._keep(_Tally(f"mcp_gateway_{name}", text, labels, falls=False))

    def _gauge(self, name: str, text: str, *labels: str) -> _Tally:
        return self._keep(_Tally(f"mcp_gateway_{name}", text, labels, falls=True))

    def _histogram(self, name: str, text: str, *labels: str) -> _Timing:
        timing = _Timing(f"mcp_gateway_{name}", text, labels)
        self._all.metrics.append(timing)
        return timing

    def _keep(self, tally: _Tally) -> _Tally:
        self._all.metrics.append(tally)
        return tally


def _time(timing: Cell, seconds: float) -> None:
    timing[bisect_left(_BUCKETS, seconds)] += 1
    timing[-1] += seconds


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(known) < _REMEMBERED:
        known[key] = value


def _known(word: str, words: Set[str]) -> str:
    return word if word in words else OTHER
