"""What /status.json says, and how what several processes say becomes one. No clock, no I/O.

It holds names and numbers, no address and no secret. Moments are seconds since 1970, so that nothing in it
changes unless something happened. Counts say what they count since the process began; `recent` ones forget.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

Phase: TypeAlias = Literal["starting", "ready", "degraded", "draining"]
"""Degraded = ready, and uncached because Redis is away."""

SERVING: tuple[Phase, ...] = ("ready", "degraded")
"""The phases in which clients should be sent here."""

State: TypeAlias = Literal["starting", "up", "down"]

MOST_EXCLUDED = 100
"""Items of one upstream that are named as left out; of more the number is told."""

_T = TypeVar("_T")

_WORST_FIRST: Sequence[State] = ("down", "starting", "up")
_FOLLOWED = ("following", "connecting", "refused", "unsupported", "idle")
_HELD_OFF = ("open", "trying", "closed")


class Use(Struct, frozen=True, kw_only=True):
    """How much of something is in use, and of how much."""

    open: int = 0
    most: int | None = None


class Held(Struct, frozen=True, kw_only=True):
    """Bytes that are held, and how many may be."""

    held: int = 0
    most: int | None = None


class Excluded(Struct, frozen=True, kw_only=True):
    """An item that an upstream lists and clients are not shown."""

    list: str
    item: str
    reason: str


class Failure(Struct, frozen=True, kw_only=True):
    """How something failed; `at` is when."""

    error: str
    http_status: int | None = None
    method: str | None = None
    at: float = 0.0


class Latency(Struct, frozen=True, kw_only=True):
    """How long an upstream took of late, in seconds; `buckets` count by the bound stayed within."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    buckets: dict[str, int] = field(default_factory=dict)


class Hint(Struct, frozen=True, kw_only=True):
    """What an upstream last said of a method's reuse, and what became of that result.

    `ttl_ms` and `scope` are the upstream's own words, None where it gave none; `ttl` and `kept_for` are what
    the settings made of it, `reason` is why it was not kept, or not for everybody.
    """

    ttl_ms: int | None = None
    scope: str | None = None
    ttl: float = 0.0
    kept_for: Literal["everybody", "caller", "nobody"] = "nobody"
    reason: str | None = None
    overrides: tuple[str, ...] = ()
    received: float = 0.0
    changed: bool = False
    """Whether a change came since, so that it is served no more."""


class Upstream(Struct, frozen=True, kw_only=True):
    """One server behind the gateway."""

    state: State = "starting"
    era: str | None = None
    transport: str = ""
    version: str | None = None
    error: str | None = None
    http_status: int | None = None
    since: float = 0.0
    in_state_seconds: float = 0.0
    last_error: Failure | None = None
    active: int = 0
    queued: int = 0
    breaker: str = "closed"
    sessions: Use = Use()
    followed: str = "idle"
    listed: dict[str, int] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    excluded_in_all: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    """Requests sent to it, by how they ended."""
    latency: Latency = Latency()
    lookups: dict[str, int] = field(default_factory=dict)
    """Questions to the cache about it: hit, stale, miss, bypass."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Why those were no hits."""
    hints: dict[str, Hint] = field(default_factory=dict)


class Load(Struct, frozen=True, kw_only=True):
    """How much goes on."""

    connections: Use = Use()
    requests: Use = Use()
    streams: Use = Use()
    bytes: Held = Held()


class Questions(Struct, frozen=True, kw_only=True):
    """Calls that wait for a client to answer."""

    parked: int = 0
    asked: int = 0
    most: int = 0
    most_per_caller: int = 0


class Authentication(Struct, frozen=True, kw_only=True):
    """Who says who callers are, and how many credentials are remembered."""

    issuers: dict[str, dict[str, object]] = field(default_factory=dict)
    known: int = 0
    refused: int = 0
    most: int = 0


class Cache(Struct, frozen=True, kw_only=True):
    """What is kept, and what came of looking there."""

    entries: int = 0
    bytes: int = 0
    most: int | None = None
    redis: Literal["up", "down"] | None = None
    lookups: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    saved: int = 0
    """Requests that no upstream had to be asked for."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """What came in on one path."""

    open: int = 0
    answered: dict[str, int] = field(default_factory=dict)
    """Requests by how they ended."""


class Recent(Struct, frozen=True, kw_only=True):
    """What came in during the last `seconds`."""

    seconds: float = 0.0
    requests: int = 0
    lookups: dict[str, int] = field(default_factory=dict)


class Settings(Struct, frozen=True, kw_only=True):
    """Which configuration is in force, and since when; `problem` is what is wrong with the file since."""

    generation: int = 1
    loaded: float = 0.0
    problem: str | None = None
    needs_restart: tuple[str, ...] = ()


class Worker(Struct, frozen=True, kw_only=True):
    """One process of several, as its supervisor knows it."""

    number: int
    state: str = "starting"
    pid: int | None = None
    started: float | None = None
    restarts: int = 0


class Status(Struct, frozen=True, kw_only=True):
    """All of it."""

    version: str
    phase: Phase
    now: float
    started: float
    config: Settings = Settings()
    workers: list[Worker] | None = None
    """None where there is one process alone."""
    endpoints: dict[str, list[str]] = field(default_factory=dict)
    traffic: dict[str, Endpoint] = field(default_factory=dict)
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    authentication: Authentication | None = None
    load: Load = Load()
    sessions: Use = Use()
    questions: Questions = Questions()
    cache: Cache = Cache()
    recent: Recent = Recent()


read = msgspec.json.Decoder(Status).decode
"""Returns what another process wrote; what a newer version says beside it is passed over."""


def latency_of(buckets: Mapping[str, int]) -> Latency:
    """Return what bucket counts say; every bound has to be there, empty buckets too."""
    total = sum(buckets.values())
    if not total:
        return Latency()
    ordered = sorted(((float(bound), count) for bound, count in buckets.items()))
    return Latency(
        count=total, p50=_quantile(ordered, 0.5), p95=_quantile(ordered, 0.95), buckets=dict(buckets)
    )


def _quantile(ordered: Sequence[tuple[float, int]], share: float) -> float:
    """Return the seconds within which this share of answers came.

    Within a bucket they count as spread evenly, as Prometheus has it; of what is beyond the last finite bound
    nothing more is known than that bound.
    """
    wanted = sum(count for _, count in ordered) * share
    lower = 0.0
    for bound, count in ordered:
        if bound == inf:
            break
        if count and count >= wanted:
            return round(lower + (bound - lower) * wanted / count, 6)
        wanted -= count
        lower = bound
    return lower


def difference(before: Status, after: Status) -> dict[str, object]:
    """Return the members that became other ones, and of the upstreams those alone; `gone` ones are no more.

    How long a state lasts is no news.
    """
    changed: dict[str, object] = {
        name: value
        for name in after.__struct_fields__
        if name != "upstreams" and (value := getattr(after, name)) != getattr(before, name)
    }
    upstreams = {
        name: one for name, one in after.upstreams.items() if not _same(before.upstreams.get(name), one)
    }
    if upstreams:
        changed["upstreams"] = upstreams
    gone = [name for name in before.upstreams if name not in after.upstreams]
    if gone:
        changed["gone"] = gone
    return changed


def _same(before: Upstream | None, after: Upstream) -> bool:
    return before is not None and after == msgspec.structs.replace(
        before, in_state_seconds=after.in_state_seconds
    )


def merged(
    said: Sequence[Status], *, workers: Sequence[Worker] | None = None, phase: Phase | None = None
) -> Status:
    """Return what several processes of one gateway say as one; raises ValueError when there is none.

    Numbers are added up. Of what must be the same everywhere the worst counts, as it is what an operator has
    to see: an upstream is up when it is for every process.
    """
    if not said:
        raise ValueError("no process said anything")
    newest = max(said, key=lambda each: each.config.generation)
    names = newest.upstreams
    return Status(
        version=newest.version,
        phase=phase or _phase([each.phase for each in said]),
        now=max(each.now for each in said),
        started=min(each.started for each in said),
        config=_settings([each.config for each in said]),
        workers=None if workers is None else list(workers),
        endpoints=newest.endpoints,
        traffic={
            path: _endpoint([each.traffic[path] for each in said if path in each.traffic])
            for path in newest.traffic
        },
        upstreams={
            name: _upstream([each.upstreams[name] for each in said if name in each.upstreams])
            for name in names
        },
        authentication=_authentication(
            [each.authentication for each in said if each.authentication is not None]
        ),
        load=_load([each.load for each in said]),
        sessions=_use(each.sessions for each in said),
        questions=_questions([each.questions for each in said]),
        cache=_cache([each.cache for each in said]),
        recent=_recent([each.recent for each in said]),
    )


def _phase(phases: Sequence[Phase]) -> Phase:
    """Return the phase of all: some that serve are enough, and one without Redis is worth a look."""
    for one in ("degraded", "ready", "starting"):
        if one in phases:
            return one
    return "draining"


def _settings(said: Sequence[Settings]) -> Settings:
    """Return the configuration that is in force everywhere, and what is wrong anywhere."""
    oldest = min(said, key=lambda each: (each.generation, each.loaded))
    problems = (each.problem for each in said if each.problem is not None)
    return Settings(
        generation=oldest.generation,
        loaded=max(each.loaded for each in said if each.generation == oldest.generation),
        problem=next(problems, None),
        needs_restart=tuple(dict.fromkeys(key for each in said for key in each.needs_restart)),
    )


def _upstream(said: Sequence[Upstream]) -> Upstream:
    worst = min(said, key=lambda each: (_WORST_FIRST.index(each.state), -each.since))
    failures = [each.last_error for each in said if each.last_error is not None]
    return msgspec.structs.replace(
        worst,
        era=worst.era or _first(each.era for each in said),
        version=worst.version or _first(each.version for each in said),
        last_error=max(failures, key=lambda each: each.at, default=None),
        active=sum(each.active for each in said),
        queued=sum(each.queued for each in said),
        breaker=_ranked((each.breaker for each in said), _HELD_OFF),
        sessions=_use(each.sessions for each in said),
        followed=_ranked((each.followed for each in said), _FOLLOWED),
        listed=_latest_lists(said),
        excluded=max((each.excluded for each in said), key=len),
        excluded_in_all=max(each.excluded_in_all for each in said),
        calls=_sum(each.calls for each in said),
        latency=latency_of(_sum(each.latency.buckets for each in said)),
        lookups=_sum(each.lookups for each in said),
        reasons=_sum(each.reasons for each in said),
        hints=_hints(each.hints for each in said),
    )


def _latest_lists(said: Sequence[Upstream]) -> dict[str, int]:
    """Return the sizes of lists; a process that read one early knows less than one that read it late."""
    found: dict[str, tuple[float, int]] = {}
    for each in said:
        for method, count in each.listed.items():
            at = each.hints[method].received if method in each.hints else 0.0
            found[method] = max(found.get(method, (at, count)), (at, count))
    return {method: count for method, (_, count) in found.items()}


def _hints(said: Iterable[Mapping[str, Hint]]) -> dict[str, Hint]:
    latest: dict[str, Hint] = {}
    for hints in said:
        for method, hint in hints.items():
            if method not in latest or hint.received > latest[method].received:
                latest[method] = hint
    return latest


def _endpoint(said: Sequence[Endpoint]) -> Endpoint:
    return Endpoint(open=sum(each.open for each in said), answered=_sum(each.answered for each in said))


def _authentication(said: Sequence[Authentication]) -> Authentication | None:
    if not said:
        return None
    issuers: dict[str, dict[str, object]] = {}
    for each in said:
        for name, issuer in each.issuers.items():
            before = issuers.get(name)
            # The one that has no answer is the one to see.
            if before is None or issuer.get("answers") is False:
                issuers[name] = issuer
    return Authentication(
        issuers=issuers,
        known=sum(each.known for each in said),
        refused=sum(each.refused for each in said),
        most=sum(each.most for each in said),
    )


def _load(said: Sequence[Load]) -> Load:
    return Load(
        connections=_use(each.connections for each in said),
        requests=_use(each.requests for each in said),
        streams=_use(each.streams for each in said),
        bytes=Held(held=sum(each.bytes.held for each in said), most=_total(each.bytes.most for each in said)),
    )


def _questions(said: Sequence[Questions]) -> Questions:
    return Questions(
        parked=sum(each.parked for each in said),
        asked=sum(each.asked for each in said),
        most=sum(each.most for each in said),
        most_per_caller=max(each.most_per_caller for each in said),
    )


def _cache(said: Sequence[Cache]) -> Cache:
    states = [each.redis for each in said]
    return Cache(
        entries=sum(each.entries for each in said),
        bytes=sum(each.bytes for each in said),
        most=_total(each.most for each in said),
        redis="down" if "down" in states else _first(states),
        lookups=_sum(each.lookups for each in said),
        reasons=_sum(each.reasons for each in said),
        saved=sum(each.saved for each in said),
    )


def _recent(said: Sequence[Recent]) -> Recent:
    return Recent(
        seconds=max(each.seconds for each in said),
        requests=sum(each.requests for each in said),
        lookups=_sum(each.lookups for each in said),
    )


def _use(said: Iterable[Use]) -> Use:
    uses = list(said)
    return Use(open=sum(each.open for each in uses), most=_total(each.most for each in uses))


def _total(said: Iterable[int | None]) -> int | None:
    numbers = [each for each in said if each is not None]
    return sum(numbers) if numbers else None


def _sum(said: Iterable[Mapping[str, int]]) -> dict[str, int]:
    whole: Counter[str] = Counter()
    for each in said:
        whole.update(each)
    return dict(whole)


def _first(said: Iterable[_T | None]) -> _T | None:
    return next((each for each in said if each is not None), None)


def _ranked(said: Iterable[str], order: Sequence[str]) -> str:
    """Return the word that stands first in an order, or the first of all where none does."""
    words = list(said)
    return next((word for word in order if word in words), words[0])
