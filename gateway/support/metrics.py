"""Every metric the gateway has: names, labels and the closed sets the label values come from.

No label value is ever taken from a request: what has a closed set becomes `other` when it is not in it,
endpoints and upstreams are names from the configuration (B52). Names and labels are those of the
OpenTelemetry conventions for MCP where these have one, written as Prometheus writes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from gateway.protocol import methods
from gateway.protocol.call import LEGACY_VERSIONS, MODERN_VERSION, Era, Reason
from gateway.support import series
from gateway.support.ledger import Cell, Key, Ledger, Snapshot, Values
from gateway.support.series import OTHER, Label, Row, Series, observed

__all__ = ["OTHER", "TABLE", "Metrics", "Side", "Turned", "merged"]

Side: TypeAlias = Literal["downstream", "upstream"]
Turned: TypeAlias = Literal["led", "followed", "in-vain", "gave-up"]
"""What became of a fetch that one replica makes for all: made here, or waited for, with or without use."""

FAILURES = frozenset({"error", "unavailable", "challenge", "forbidden", "cancelled", "stopping", "bug"})
"""How a request ended without a result: a JSON-RPC error, an upstream's failure, a 401 or 403, ..."""

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

UPSTREAM_FAILURES = frozenset({"error", "challenge", "cancelled"} | {r.name.lower() for r in Reason})
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
SUBSCRIPTION_ENDS = frozenset({"left", "stopping", "expired", "refused", "withdrawn", "overflow", "reloaded"})
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
VERSIONS = frozenset({MODERN_VERSION, *LEGACY_VERSIONS})
SESSION_ENDS = frozenset({"", "idle"})
"""How sessions of clients end: by their own word, or without one."""
WORKER_ENDS = frozenset({"crashed", "replaced", "stopping"})
ISSUER_OUTCOMES = frozenset({"ok", "absent", "error", "timeout"})
DROPS = frozenset({"notification", "request", "progress", "log", "member", "response"})

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_REMEMBERED = 4096

_OK = "ok"
_AGES = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0, 604_800.0)
_LIVES = (1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 28_800.0, 86_400.0, 604_800.0)
_DURATIONS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)

SECTIONS: Final[dict[str, list[Row]]] = {}
"""Every metric, by what it is about."""


def _section(about: str) -> None:
    SECTIONS[about] = []


def _row(row: Row) -> Row:
    list(SECTIONS.values())[-1].append(row)
    return row


def _counter(name: str, text: str, *labels: Label) -> Row:
    return _row(Row(f"mcp_gateway_{name}_total", "counter", text, labels))


def _gauge(name: str, text: str, *labels: Label, merge: Literal["sum", "max", "min"] = "sum") -> Row:
    return _row(Row(f"mcp_gateway_{name}", "gauge", text, labels, merge))


def _seconds(name: str, text: str, *labels: Label, bounds: tuple[float, ...] = _DURATIONS) -> Row:
    return _row(Row(f"{name}_seconds", "histogram", text, labels, bounds=bounds))


def _words(name: str, meaning: str, *words: str) -> Label:
    return Label(name, meaning, frozenset(words))


_ENDPOINT = Label("endpoint", "the endpoint's path; `other` for a path that is none")
_UPSTREAM = Label("upstream", "the upstream's key in the configuration")
_UPSTREAM_OR_ALL = Label("upstream", "the upstream's key in the configuration; `*` for a list joined of all")
_ISSUER = Label("issuer", "the issuer's key in the configuration")
_METHOD = Label("mcp_method_name", "the method of the request", frozenset(methods.METHODS))
_VERSION = Label("mcp_protocol_version", "the revision of the protocol", VERSIONS)
_TRANSPORT = _words("network_transport", "`pipe` for standard input and output, or `tcp`", "pipe", "tcp")
_SIDE = _words("side", "whose they are: clients', or upstreams'", "downstream", "upstream")


_section("Clients")

REQUESTS = _seconds(
    "mcp_server_operation_duration",
    "From the last byte of a client's request to its answer",
    _ENDPOINT,
    _METHOD,
    Label("error_type", "how it ended without a result; empty where it has one", FAILURES | {""}),
)
SPOKEN = _counter(
    "requests",
    "Requests of clients that were answered, by what their clients speak",
    _VERSION,
    _TRANSPORT,
)
IN_FLIGHT = _gauge("requests_in_flight", "Requests of clients that are being answered", _ENDPOINT)
REJECTED = _counter(
    "rejected",
    "Requests and connections refused before they became a call",
    _ENDPOINT,
    Label("reason", "why; docs/configuration.md names the setting behind each", REJECTIONS),
)
CERTIFICATE_ENDS = _gauge(
    "tls_certificate_expiry_timestamp_seconds",
    "When the endpoints' certificate ends, in seconds since 1970",
    merge="min",
)
HELD_BYTES = _gauge("held_bytes", "Bytes of large requests and answers that are held, of limits.in_flight")
STREAMS = _gauge("streams_open", "Open event streams", _SIDE)
STREAMS_OPENED = _counter("streams_opened", "Event streams opened", _SIDE)
STREAMS_CUT = _counter("streams_cut", "Event streams cut because nothing was read of them")
SUBSCRIPTIONS = _gauge("subscriptions", "Listens of clients that are open")
SUBSCRIPTIONS_ENDED = _counter(
    "subscriptions_ended",
    "Listens of clients that ended",
    Label("cause", "who or what ended it; `left` is the client itself", SUBSCRIPTION_ENDS),
)
NOTICES = _counter(
    "notices",
    "Notices of changes for clients",
    Label(
        "fate",
        "`delivered`, `coalesced` with one that is still to be sent, or `dropped` for want of room",
        NOTICE_FATES,
    ),
)
SESSIONS = _gauge("sessions", "Sessions of clients of older protocols, as known here")
SESSION_SECONDS = _seconds(
    "mcp_server_session_duration",
    "Lives of the sessions of clients of older protocols that ended here, or were not heard of any more",
    _ENDPOINT,
    _VERSION,
    Label(
        "error_type",
        "`idle` where it was not heard of any more; empty where its client ended it",
        SESSION_ENDS,
    ),
    bounds=_LIVES,
)
ASKED = _gauge("asked_calls", "Calls of clients of older protocols that wait for what their client was asked")
PARKED = _gauge("parked_calls", "Calls that wait for a client's answers")
PARKED_ENDED = _counter(
    "parked_calls_ended",
    "Calls that waited for a client's answers",
    Label("outcome", "how that ended; `refused` ones found no room", PARKED_ENDS),
)

_section("Who comes in")

VERIFIED = _counter(
    "verified",
    "Credentials verified, those still remembered aside",
    Label("source", "the issuer's key in the configuration, or `key`, `cert` or `none`"),
    Label("outcome", "what became of it; nobody could tell of an `unavailable` one", VERDICTS),
)
ISSUER_QUESTIONS = _counter(
    "issuer_questions",
    "Questions to authorization servers",
    _ISSUER,
    Label("what", "what was asked for: metadata, keys or introspection"),
    Label("outcome", "what came of it", ISSUER_OUTCOMES),
)
ISSUER_SECONDS = _seconds(
    "mcp_gateway_issuer_question_duration",
    "From a question to an authorization server to its answer",
    _ISSUER,
    Label("what", "what was asked for: metadata, keys or introspection"),
)

_section("Upstreams")

CALLS = _seconds(
    "mcp_client_operation_duration",
    "From sending a request to an upstream to its answer",
    _UPSTREAM,
    _METHOD,
    Label("error_type", "how it ended without a result; empty where it has one", UPSTREAM_FAILURES | {""}),
)
UP = _gauge("upstream_up", "Whether the upstream answers (1) or not (0)", _UPSTREAM, merge="max")
UPSTREAM_INFO = _gauge(
    "upstream_info",
    "Always 1: what the upstream speaks, as far as it is known",
    _UPSTREAM,
    _words("era", "of which era its revision is", "modern", "legacy"),
    _VERSION,
    _TRANSPORT,
    merge="max",
)
BREAKER_OPEN = _gauge(
    "upstream_breaker_open",
    "Whether the upstream is left alone by its breaker (1)",
    _UPSTREAM,
    merge="max",
)
REFUSED = _counter(
    "upstream_refused",
    "Requests that an upstream was not asked",
    _UPSTREAM,
    Label("bound", "the setting by which it was not", BOUNDS),
)
QUEUED = _gauge("upstream_queued", "Calls that wait until one more may run at the upstream", _UPSTREAM)
RETRIED = _counter(
    "upstream_retries",
    "Requests that were to be sent again",
    _UPSTREAM,
    Label("outcome", "whether they were; `withheld` ones were beyond the retry budget", RETRIES),
)
CONNECTIONS = _gauge("upstream_connections", "Open connections to the upstream", _UPSTREAM)
LISTENS = _gauge(
    "upstream_listens", "Subscriptions that the upstream acknowledged and that are open", _UPSTREAM
)
LISTENS_ENDED = _counter(
    "upstream_listens_ended",
    "Ends of such subscriptions",
    _UPSTREAM,
    Label("reason", "who or what ended it; `closed` is the gateway itself", LISTEN_ENDS),
)
LISTEN_GAPS = _counter(
    "upstream_listen_gaps", "Times an upstream was heard again after it had not been", _UPSTREAM
)
LISTEN_LEFT_OUT = _counter(
    "upstream_listen_left_out",
    "Resources and tasks asked for by clients that were too many to ask their upstream for",
    _UPSTREAM,
)
UPSTREAM_SESSIONS = _gauge(
    "upstream_sessions",
    "Sessions with a server of an older protocol, or processes of a program, that are open",
    _UPSTREAM,
)
UPSTREAM_SESSIONS_WAITING = _gauge(
    "upstream_sessions_waiting", "Requests that wait until one more of these may be opened", _UPSTREAM
)
UPSTREAM_SESSIONS_DISPLACED = _counter(
    "upstream_sessions_displaced", "Idle ones that were ended to make room for another", _UPSTREAM
)
UPSTREAM_SESSION_SECONDS = _seconds(
    "mcp_client_session_duration",
    "Lives of the sessions with servers of older protocols",
    _UPSTREAM,
    _VERSION,
    Label(
        "error_type", "why it ended if not by the gateway's own will", UPSTREAM_FAILURES | {"", "forgotten"}
    ),
    bounds=_LIVES,
)
PROCESSES = _gauge("upstream_processes", "Processes of an upstream that is a program", _UPSTREAM)
PROCESSES_STARTED = _counter("upstream_processes_started", "Processes of it that were started", _UPSTREAM)
UPSTREAM_TOKENS = _counter(
    "upstream_tokens",
    "Access tokens for an upstream that its authorization server was asked for",
    _UPSTREAM,
    _words("outcome", "what came of it", "obtained", "refused", "failed"),
)
CATALOGUE_ITEMS = _gauge(
    "catalogue_items",
    "Items that an upstream lists",
    _UPSTREAM,
    Label("kind", "the member of the result that holds them", KINDS),
    merge="max",
)
CATALOGUE_BYTES = _gauge(
    "catalogue_bytes",
    "Bytes of these lists, as the upstream sends them",
    _UPSTREAM,
    Label("kind", "the member of the result that holds them", KINDS),
    merge="max",
)
EXCLUDED_TOOLS = _gauge(
    "excluded_tools", "Listed tools left out because they are invalid", _UPSTREAM, merge="max"
)
REFRESHED = _counter(
    "refreshes",
    "Lists fetched to see whether they changed",
    _UPSTREAM,
    Label("outcome", "what came of it", REFRESHES),
)
DROPPED = _counter(
    "dropped",
    "Messages and members of an upstream that reach nobody",
    _UPSTREAM,
    Label("what", "what it was", DROPS),
)

_section("Cache")

CACHE_LOOKUPS = _counter(
    "cache_lookups",
    "Questions to the response cache",
    _UPSTREAM_OR_ALL,
    _METHOD,
    Label("result", "how it was answered", LOOKUPS),
    Label("reason", "why; docs/operating.md says what to do about each", LOOKUP_REASONS),
)
CACHE_HIT_AGE = _seconds(
    "mcp_gateway_cache_hit_age",
    "How old stored results were that answered; a joined list is as old as its oldest part",
    _UPSTREAM_OR_ALL,
    _METHOD,
    bounds=_AGES,
)
CACHE_SAVED = _counter(
    "cache_saved_calls",
    "Calls to upstreams that were not made, for a stored result or for another caller's that was shared",
    _UPSTREAM_OR_ALL,
    _METHOD,
)
CACHE_HINTS = _counter(
    "cache_hints",
    "Fetched results",
    _UPSTREAM,
    _METHOD,
    _words("source", "who decided on ttl and scope: the upstream, or a setting", "upstream", "override"),
)
CACHE_TURNS = _counter(
    "cache_turns",
    "Fetches by turns with other replicas",
    _UPSTREAM,
    _METHOD,
    _words(
        "outcome",
        "`led` for all, `followed` another's, followed `in-vain`, or `gave-up` waiting",
        "led",
        "followed",
        "in-vain",
        "gave-up",
    ),
)
CACHE_ENTRIES = _gauge("cache_entries", "Entries held in memory")
CACHE_BYTES = _gauge("cache_bytes", "Bytes of those entries")
CACHE_INVALIDATIONS = _counter(
    "cache_invalidations",
    "Changes that made entries stale",
    _UPSTREAM,
    Label("cause", "how the gateway came to know", CHANGE_CAUSES),
)

_section("Redis")

REDIS_QUESTIONS = _counter(
    "redis_operations",
    "Questions to Redis",
    Label("operation", "what was asked", REDIS_OPERATIONS),
    Label(
        "outcome",
        "`paused` = not asked after a failure, `spent` = the request had waited enough",
        REDIS_OUTCOMES,
    ),
)
REDIS_SECONDS = _seconds(
    "mcp_gateway_redis_operation_duration",
    "From a question to Redis to its answer, or until it was waited for no more",
    Label("operation", "what was asked", REDIS_OPERATIONS),
)
REDIS_UNREADABLE = _counter(
    "redis_unreadable", "Messages on the replicas' channel that are none of theirs, and were ignored"
)
REDIS_LINKED = _gauge("redis_linked", "Whether changes made elsewhere are heard (1) or not (0)", merge="min")
REDIS_ANSWERS = _gauge(
    "redis_answers", "Whether the last question to Redis was answered in time (1) or not (0)", merge="min"
)

_section("The process")

CONFIG_GENERATION = _gauge(
    "config_generation", "How many configurations were in use by now, this one included", merge="min"
)
CONFIG_GOOD = _gauge(
    "config_last_reload_successful",
    "Whether the last configuration read is in use (1) or not (0)",
    merge="min",
)
CONFIG_LOADED = _gauge(
    "config_last_reload_success_timestamp_seconds",
    "Since when this configuration is in use, in seconds since 1970",
    merge="min",
)
_WORKER = Label("worker", "the number of the worker process")
WORKERS = _gauge("workers", "Worker processes that serve; only with --workers", merge="max")
WORKERS_WANTED = _gauge(
    "workers_wanted", "Worker processes that are to serve; only with --workers", merge="max"
)
WORKER_ENDS_COUNTED = _counter(
    "worker_ends",
    "Worker processes that ended",
    Label("cause", "`replaced` by another, `stopping` with all, or `crashed`", WORKER_ENDS),
)
WORKER_CPU = _counter("worker_cpu_seconds", "CPU time of a worker process; only with --workers", _WORKER)
WORKER_MEMORY = _gauge(
    "worker_resident_memory_bytes", "Memory of a worker process; only with --workers", _WORKER, merge="max"
)
WORKER_FILES = _gauge(
    "worker_open_fds", "Open files of a worker process; only with --workers", _WORKER, merge="max"
)
BUILD = _gauge("build_info", "The running gateway", Label("version", "the release's number"), merge="max")


TABLE: Final = [row for rows in SECTIONS.values() for row in rows]


class Metrics:
    """What one process counts, in memory or in a ledger that another reads."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, *, version: str | None = None, ledger: Ledger | None = None) -> None:
        self._of = {row: Series(row, ledger) for row in TABLE}
        self._process = _process()
        if version is not None:
            self._of[BUILD].set(version, to=1)

        # Where the words of frequent events lead, so that they need not be looked at again.
        self._exchange_cells: dict[Values, tuple[Cell, Cell, Cell]] = {}
        self._call_cells: dict[Values, Cell] = {}
        self._lookup_cells: dict[Values, tuple[Cell, Cell | None, Cell | None]] = {}

    def __repr__(self) -> str:
        cells = sum(len(one.cells) for one in self._of.values())
        return f"<Metrics {len(self._of)} metrics, {cells} series>"

    # Downstream

    def exchange_started(self, endpoint: str) -> None:
        """Count a call in; `exchange` must follow, whatever becomes of it."""
        self._of[IN_FLIGHT].add(endpoint)

    def exchange(
        self,
        endpoint: str,
        method: str,
        outcome: str,
        seconds: float,
        version: str = MODERN_VERSION,
        *,
        program: bool = False,
    ) -> None:
        """Count a call out; `version` is the revision that its client speaks, a `program` over pipes."""
        transport = "pipe" if program else "tcp"
        cells = self._exchange_cells.get((endpoint, method, outcome, version, transport))
        if cells is None:
            failure = "" if outcome == _OK else outcome
            cells = (
                self._of[IN_FLIGHT].cell(endpoint),
                self._of[SPOKEN].cell(version, transport),
                self._of[REQUESTS].cell(endpoint, method, failure),
            )
            if method in methods.METHODS and version in VERSIONS:  # what clients make up may be long
                _remember(self._exchange_cells, (endpoint, method, outcome, version, transport), cells)
        in_flight, spoken, timing = cells
        if in_flight[0]:  # or its endpoint was forgotten meanwhile
            in_flight[0] -= 1
        spoken[0] += 1
        observed(timing, _DURATIONS, seconds)

    def rejected(self, endpoint: str, reason: str) -> None:
        """Count a request that did not become a call; `endpoint` is `other` for an unknown path."""
        self._of[REJECTED].add(endpoint, reason)

    def certificate_ends(self, moment: float) -> None:
        """Say when the certificate ends that clients are shown."""
        self._of[CERTIFICATE_ENDS].set(to=moment)

    def held(self) -> Cell:
        """Return what counts the bytes of large messages that are held."""
        return self._of[HELD_BYTES].cell()

    def stream_opened(self, side: Side) -> None:
        """Count an event stream in; `stream_closed` must follow."""
        self._of[STREAMS].add(side)
        self._of[STREAMS_OPENED].add(side)

    def stream_closed(self, side: Side) -> None:
        """Count an event stream out."""
        self._of[STREAMS].add(side, by=-1)

    def stream_cut(self) -> None:
        """Count an event stream whose client took nothing any more."""
        self._of[STREAMS_CUT].add()

    def sessions(self, count: int) -> None:
        """Say how many sessions of older clients are known."""
        self._of[SESSIONS].set(to=count)

    def session_ended(self, endpoint: str, version: str, seconds: float, *, idle: bool) -> None:
        """Count a session of an older client out, which its client ended or was not heard of in any more."""
        self._of[SESSION_SECONDS].observe(endpoint, version, "idle" if idle else "", value=seconds)

    def asked(self, calls: int) -> None:
        """Say how many calls wait for what an older client was asked."""
        self._of[ASKED].set(to=calls)

    def subscriptions(self, count: int) -> None:
        """Say how many listens of clients are open."""
        self._of[SUBSCRIPTIONS].set(to=count)

    def subscription_ended(self, cause: str) -> None:
        """Count a listen out."""
        self._of[SUBSCRIPTIONS_ENDED].add(cause)

    def notices(self, fate: str) -> Cell:
        """Return what counts notices for clients that met this fate."""
        return self._of[NOTICES].cell(fate)

    def verified(self, source: str, outcome: str) -> None:
        """Count a credential: of which issuer (or `key`, `cert` or `none`) it is, and what became of it."""
        self._of[VERIFIED].add(source, outcome)

    def issuer_asked(self, issuer: str, what: str, outcome: str, seconds: float) -> None:
        """Count a question to an authorization server."""
        self._of[ISSUER_QUESTIONS].add(issuer, what, outcome)
        self._of[ISSUER_SECONDS].observe(issuer, what, value=seconds)

    # Upstream

    def listen_gap(self, upstream: str) -> None:
        """Count the end of a time in which an upstream could not be heard."""
        self._of[LISTEN_GAPS].add(upstream)

    def listen_left_out(self, upstream: str, names: int) -> None:
        """Count what an upstream is not asked to tell of, since it would be too much."""
        self._of[LISTEN_LEFT_OUT].add(upstream, by=names)

    def refreshed(self, upstream: str, outcome: str) -> None:
        """Count a list that was fetched to see whether it changed."""
        self._of[REFRESHED].add(upstream, outcome)

    def upstream_call(self, upstream: str, method: str, outcome: str | Reason, seconds: float) -> None:
        """Count an exchange with an upstream: `ok`, `error` (as it sent one), `cancelled`, or a Reason."""
        word = outcome.name.lower() if isinstance(outcome, Reason) else outcome
        cell = self._call_cells.get((upstream, method, word))
        if cell is None:
            cell = self._of[CALLS].cell(upstream, method, "" if word == _OK else word)
            _remember(self._call_cells, (upstream, method, word), cell)
        observed(cell, _DURATIONS, seconds)

    def upstream_up(self, upstream: str, up: bool) -> None:
        """Say whether an upstream answers."""
        self._of[UP].set(upstream, to=1 if up else 0)

    def upstream_speaks(self, upstream: str, era: Era, version: str, *, program: bool) -> None:
        """Say what an upstream turned out to speak."""
        self._of[UPSTREAM_INFO].drop(upstream=upstream)
        self._of[UPSTREAM_INFO].set(upstream, era, version, "pipe" if program else "tcp", to=1)

    def upstream_refused(self, upstream: str, bound: str) -> None:
        """Count a request that a bound of the gateway's kept from an upstream."""
        self._of[REFUSED].add(upstream, bound)

    def upstream_breaker(self, upstream: str, is_open: bool) -> None:
        """Say whether an upstream is left alone."""
        self._of[BREAKER_OPEN].set(upstream, to=1 if is_open else 0)

    def upstream_queued(self, upstream: str, count: int) -> None:
        """Say how many calls wait for a slot."""
        self._of[QUEUED].set(upstream, to=count)

    def upstream_retry(self, upstream: str, outcome: str) -> None:
        """Count a request that failed and may work when it is sent again."""
        self._of[RETRIED].add(upstream, outcome)

    def upstream_connections(self, upstream: str, count: int) -> None:
        """Say how many connections to an upstream are open."""
        self._of[CONNECTIONS].set(upstream, to=count)

    def upstream_sessions(self, upstream: str, *, by: int) -> None:
        """Count sessions with an upstream, or its processes, in and out."""
        self._of[UPSTREAM_SESSIONS].add(upstream, by=by)

    def upstream_sessions_waiting(self, upstream: str, *, by: int) -> None:
        """Count those in and out who wait for a session to become idle."""
        self._of[UPSTREAM_SESSIONS_WAITING].add(upstream, by=by)

    def upstream_session_displaced(self, upstream: str) -> None:
        """Count an idle session, or process, that ended to make room."""
        self._of[UPSTREAM_SESSIONS_DISPLACED].add(upstream)

    def upstream_session_ended(self, upstream: str, version: str, failure: str, seconds: float) -> None:
        """Time a session with a server of an older protocol; `failure` is empty where it was ended here."""
        self._of[UPSTREAM_SESSION_SECONDS].observe(upstream, version, failure, value=seconds)

    def process_started(self, upstream: str) -> None:
        """Count a process of a program in; `process_ended` must follow."""
        self._of[PROCESSES].add(upstream)
        self._of[PROCESSES_STARTED].add(upstream)

    def process_ended(self, upstream: str) -> None:
        """Count a process of a program out."""
        self._of[PROCESSES].add(upstream, by=-1)

    def upstream_token(self, upstream: str, outcome: Literal["obtained", "refused", "failed"]) -> None:
        """Count an access token that was asked for, and what came of it."""
        self._of[UPSTREAM_TOKENS].add(upstream, outcome)

    def listen_opened(self, upstream: str) -> None:
        """Count an acknowledged subscription in; `listen_ended` must follow."""
        self._of[LISTENS].add(upstream)
        self.stream_opened("upstream")

    def listen_ended(self, upstream: str, reason: str) -> None:
        """Count a subscription out, and what ended it."""
        self._of[LISTENS].add(upstream, by=-1)
        self._of[LISTENS_ENDED].add(upstream, reason)
        self.stream_closed("upstream")

    def catalogue(self, upstream: str, kind: str, count: int, size: int) -> None:
        """Say how many items an upstream lists, in so many bytes; `kind` is the member that holds them."""
        self._of[CATALOGUE_ITEMS].set(upstream, kind, to=count)
        self._of[CATALOGUE_BYTES].set(upstream, kind, to=size)

    def excluded_tools(self, upstream: str, count: int) -> None:
        """Say how many listed tools are left out as invalid (U-08)."""
        self._of[EXCLUDED_TOOLS].set(upstream, to=count)

    def dropped(self, upstream: str, what: str) -> None:
        """Count something of an upstream's that reaches nobody."""
        self._of[DROPPED].add(upstream, what)

    def forget(self, upstream: str) -> None:
        """Remove every series of an upstream that is no longer configured (B52)."""
        self._drop(upstream=upstream)

    def forget_endpoint(self, endpoint: str) -> None:
        """Remove every series of an endpoint that is no longer configured."""
        self._drop(endpoint=endpoint)

    def forget_issuer(self, issuer: str) -> None:
        """Remove every series of an issuer that is no longer configured."""
        self._drop(issuer=issuer)
        self._drop(source=issuer)

    def _drop(self, **named: str) -> None:
        for one in self._of.values():
            one.drop(**named)
        self._exchange_cells.clear()
        self._call_cells.clear()
        self._lookup_cells.clear()

    # Cache

    def cache_lookup(
        self, upstream: str, method: str, result: str, reason: str, age: float, *, calls: int = 1
    ) -> None:
        """Count how the cache answered and why, how old the answer is, and how many calls a hit spared."""
        cells = self._lookup_cells.get((upstream, method, result, reason))
        if cells is None:
            cells = (
                self._of[CACHE_LOOKUPS].cell(upstream, method, result, reason),
                self._of[CACHE_HIT_AGE].cell(upstream, method) if result in ("hit", "stale") else None,
                self._of[CACHE_SAVED].cell(upstream, method) if result == "hit" else None,
            )
            _remember(self._lookup_cells, (upstream, method, result, reason), cells)
        count, ages, saved = cells
        count[0] += 1
        if ages is not None:
            observed(ages, _AGES, age)
        if saved is not None:
            saved[0] += calls

    def cache_shared(self, upstream: str, method: str) -> None:
        """Count a caller in who was answered with what another caller had fetched meanwhile."""
        self._of[CACHE_SAVED].add(upstream, method)

    def cache_hints(self, upstream: str, method: str, *, overridden: bool) -> None:
        """Count a fetched result, and whether a setting changed what its upstream said of its reuse."""
        self._of[CACHE_HINTS].add(upstream, method, "override" if overridden else "upstream")

    def cache_turn(self, upstream: str, method: str, outcome: Turned) -> None:
        """Count a fetch that one replica makes for all."""
        self._of[CACHE_TURNS].add(upstream, method, outcome)

    def cache_size(self, entries: int, bytes: int) -> None:
        """Say what the memory store holds."""
        self._of[CACHE_ENTRIES].set(to=entries)
        self._of[CACHE_BYTES].set(to=bytes)

    def invalidated(self, upstream: str, cause: str) -> None:
        """Count a change that made entries stale."""
        self._of[CACHE_INVALIDATIONS].add(upstream, cause)

    def parked(self, calls: int) -> None:
        """Say how many calls wait for a client's answers."""
        self._of[PARKED].set(to=calls)

    def parked_ended(self, outcome: str) -> None:
        """Count a call that waits no more."""
        self._of[PARKED_ENDED].add(outcome)

    def redis_operation(self, operation: str, outcome: str) -> None:
        """Count a question to Redis; `paused` ones were not asked, for one before had failed."""
        self._of[REDIS_QUESTIONS].add(operation, outcome)

    def redis_took(self, operation: str, seconds: float) -> None:
        """Time a question to Redis that was asked, answered or not."""
        self._of[REDIS_SECONDS].observe(operation, value=seconds)

    def redis_unreadable(self) -> None:
        """Count a message of somebody who does not belong on the channel."""
        self._of[REDIS_UNREADABLE].add()

    def redis_linked(self, linked: bool) -> None:
        """Say whether this replica hears of the changes others make; without, it caches nothing."""
        self._of[REDIS_LINKED].set(to=1 if linked else 0)

    def redis_answers(self, answers: bool) -> None:
        """Say whether Redis answers in time; while it does not, most questions are not even asked."""
        self._of[REDIS_ANSWERS].set(to=1 if answers else 0)

    # The process

    def config_loaded(self, generation: int, moment: float) -> None:
        """Say since when a configuration is in use, and how many were by now, this one included."""
        self._of[CONFIG_GENERATION].set(to=generation)
        self._of[CONFIG_GOOD].set(to=1)
        self._of[CONFIG_LOADED].set(to=moment)

    def config_refused(self) -> None:
        """Say that the one before is still in use, since the new one will not do."""
        self._of[CONFIG_GOOD].set(to=0)

    def workers(self, serving: int, wanted: int) -> None:
        """Say how many worker processes serve, and how many are to."""
        self._of[WORKERS].set(to=serving)
        self._of[WORKERS_WANTED].set(to=wanted)
        for cause in WORKER_ENDS:
            self._of[WORKER_ENDS_COUNTED].cell(cause)  # from 0 on, so that the first is an increase

    def worker_ended(self, cause: Literal["crashed", "replaced", "stopping"]) -> None:
        """Count a worker process out."""
        self._of[WORKER_ENDS_COUNTED].add(cause)

    # Reading

    def read(self, row: Row) -> list[tuple[Values, Sequence[float]]]:
        """Return the series of one metric, by the values of its labels, as they count on."""
        return list(self._of[row].cells.items())

    def snapshot(self) -> Snapshot:
        """Return what is counted by now."""
        return {
            (row.name, values): list(cell)
            for row, one in self._of.items()
            for values, cell in list(one.cells.items())
        }

    def render(self) -> bytes:
        """Return everything in the Prometheus text format; it reads /proc, so call it in a thread."""
        return series.text(TABLE, self.snapshot(), self._process)


def merged(live: Iterable[Snapshot], ended: Iterable[Snapshot] = ()) -> bytes:
    """Return in the text format as one what several processes count or counted.

    Of those that ended, counters and histograms go on; that of the process which asks is its own.
    It reads /proc, so call it in a thread.
    """
    return series.text(TABLE, series.merged(TABLE, live, ended), _process())


def processes(pids: Mapping[str, int]) -> Snapshot:
    """Return what worker processes take of the machine, by their numbers; it reads /proc."""
    snapshot: dict[Key, list[float]] = {}
    for worker, pid in pids.items():
        for family in _process(pid).collect():
            row = _OF_PROCESSES.get(family.name)
            if row is not None:
                snapshot[row.name, (worker,)] = [family.samples[0].value]
    return snapshot


_OF_PROCESSES = {
    "process_cpu_seconds": WORKER_CPU,
    "process_resident_memory_bytes": WORKER_MEMORY,
    "process_open_fds": WORKER_FILES,
}


def _process(pid: int | str = "self") -> ProcessCollector:
    return ProcessCollector(pid=lambda: pid, registry=CollectorRegistry())


def folded(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return as one what is left of processes that ended."""
    return series.merged(TABLE, (), snapshots)


Counted: TypeAlias = Literal["upstream", "endpoint", "issuer"]
"""What has series of its own while it is configured."""


def forgotten(snapshot: Snapshot, name: str, what: Counted = "upstream") -> Snapshot:
    """Return what processes left that ended, without what is no longer configured (B52)."""
    left = series.without(TABLE, snapshot, what, name)
    return series.without(TABLE, left, "source", name) if what == "issuer" else left


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(known) < _REMEMBERED:
        known[key] = value
