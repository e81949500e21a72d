"""Takes down what one process is doing now, for /status.json and the status page."""

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from gateway.cache.responses import Reuse
from gateway.config import VERSION
from gateway.protocol.call import Reason, UpstreamName
from gateway.runtime import Runtime
from gateway.status import (
    MOST_EXCLUDED,
    Authentication,
    Cache,
    Endpoint,
    Excluded,
    Failure,
    Held,
    Hint,
    Latency,
    Load,
    Phase,
    Questions,
    Recent,
    Settings,
    Status,
    Upstream,
    Use,
    latency_of,
)
from gateway.support.metrics import CACHE_LOOKUPS, CACHE_SAVED, CALLS, IN_FLIGHT, REQUESTS, Metrics

SAMPLED = 30.0
"""Seconds between two samples of what was counted."""
_SAMPLES = 10
_STREAMS = frozenset({"subscriptions/listen"})
_NOT_WAITED_FOR = frozenset({"cancelled", "down", "busy", "stopping"})
"""Ends of calls whose time says nothing of the upstream: most of them were not even sent."""


@dataclass(frozen=True, slots=True)
class Doors:
    """What is open at the listener of clients."""

    connections: int
    requests: int
    streams: int


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted since the process began, at one moment."""

    at: float
    requests: int = 0
    lookups: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """For each upstream the answers by the bucket of their latency."""

    @classmethod
    def now(cls, metrics: Metrics, now: float) -> "Counted":
        """Return what is counted by now."""
        seconds: dict[str, list[float]] = {}
        for (upstream, method, failure), cell in metrics.read(CALLS):
            if method in _STREAMS or failure in _NOT_WAITED_FOR:
                continue
            counts = seconds.setdefault(upstream, [0.0] * (len(cell) - 1))
            for at, count in enumerate(cell[: len(counts)]):
                counts[at] += count
        lookups: Counter[str] = Counter()
        for (_, _, result, _), cell in metrics.read(CACHE_LOOKUPS):
            lookups[result] += int(cell[0])
        requests = sum(_observed(cell) for _, cell in metrics.read(REQUESTS))
        return cls(now, requests, lookups, seconds)


class Recorder:
    """Remembers what was counted a while ago, so that what was counted since can be told."""

    def __init__(self, metrics: Metrics, now: float) -> None:
        self._metrics = metrics
        self._samples: deque[Counted] = deque([Counted(now)], maxlen=_SAMPLES)

    def sample(self, now: float) -> None:
        """Count, once in `SAMPLED` seconds; the oldest sample is forgotten."""
        self._samples.append(Counted.now(self._metrics, now))

    def lately(self, now: float) -> tuple[Recent, dict[str, Latency]]:
        """Return what came in since the oldest sample, and how long each upstream took."""
        then, counted = self._samples[0], Counted.now(self._metrics, now)
        recent = Recent(
            seconds=round(now - then.at),
            requests=max(0, counted.requests - then.requests),
            lookups=dict(counted.lookups - then.lookups),
        )
        return recent, {
            name: latency_of(_buckets(counts, then.seconds.get(name, [0.0] * len(counts))))
            for name, counts in counted.seconds.items()
        }


def _buckets(counts: Sequence[float], before: Sequence[float]) -> dict[str, int]:
    bounds = [*map(str, CALLS.bounds), "+Inf"]
    # An upstream that was taken out and put back begins anew.
    since = [max(0, int(count - old)) for count, old in zip(counts, before, strict=True)]
    return dict(zip(bounds, since, strict=True))


async def status_of(
    runtime: Runtime,
    recorder: Recorder,
    *,
    phase: Phase,
    redis: Literal["up", "down"] | None,
    started: float,
    doors: Doors,
    settings: Settings,
) -> Status:
    """Take down what a process of this Runtime does now.

    Others have a turn after each upstream: a hundred of them take 40 ms.
    """
    config = runtime.config
    limits = config.limits
    entries, held = runtime.cache.held
    now = time.time()
    verifier = runtime.verifier
    recent, latencies = recorder.lately(time.monotonic())
    calls = _calls(runtime.metrics)
    lookups, reasons = _lookups(runtime.metrics)
    upstreams: dict[str, Upstream] = {}
    for name in config.upstreams:
        await asyncio.sleep(0)
        upstreams[name] = _upstream(runtime, UpstreamName(name), now, latencies.get(name, Latency()))
    await asyncio.sleep(0)
    joined = _joined(runtime, upstreams)
    upstreams = {
        name: msgspec.structs.replace(
            one,
            calls=dict(calls.get(name, {})),
            lookups=dict(lookups.get(name, Counter()) + joined[name]),
            reasons=dict(reasons.get(name, {})),
        )
        for name, one in upstreams.items()
    }
    return Status(
        version=VERSION,
        phase=phase,
        now=round(now, 3),
        started=round(started, 3),
        config=settings,
        endpoints={path: config.behind(path) for path in config.endpoints},
        traffic=_traffic(runtime.metrics, config.endpoints),
        upstreams=upstreams,
        authentication=None if verifier is None else msgspec.convert(verifier.status, Authentication),
        load=Load(
            connections=Use(open=doors.connections, most=limits.connections),
            requests=Use(open=doors.requests, most=limits.requests),
            streams=Use(open=doors.streams),
            bytes=Held(held=runtime.room.held, most=limits.in_flight),
        ),
        sessions=Use(open=len(runtime.sessions), most=limits.sessions),
        questions=Questions(
            parked=runtime.pool.parked,
            asked=len(runtime.sessions.asking),
            most=limits.questions,
            most_per_caller=limits.questions_per_caller,
        ),
        cache=Cache(
            entries=entries,
            bytes=held,
            most=config.cache.memory,
            redis=redis,
            lookups=dict(_added(lookups.values())),
            reasons=dict(_added(reasons.values())),
            saved=sum(int(cell[0]) for _, cell in runtime.metrics.read(CACHE_SAVED)),
        ),
        recent=recent,
    )


def _upstream(runtime: Runtime, name: UpstreamName, now: float, latency: Latency) -> Upstream:
    status = runtime.pool.status(name)
    ticks = time.monotonic()
    in_state = ticks - status.since
    report = runtime.catalogue.report(name)
    lapse = status.lapse
    return Upstream(
        state=status.state,
        era=status.era,
        transport=status.wire,
        version=status.version,
        error=_words(status.last_error),
        http_status=_http_status(status.detail),
        since=round(now - in_state),
        in_state_seconds=round(in_state, 1),
        last_error=None
        if lapse is None
        else Failure(
            error=lapse.reason.value,
            http_status=_http_status(lapse.detail),
            method=lapse.method,
            at=round(now - ticks + lapse.at),
        ),
        active=status.active,
        queued=status.queued,
        breaker=status.breaker,
        sessions=Use(open=status.sessions, most=runtime.config.upstreams[name].most_sessions),
        followed=runtime.hub.state(name),
        listed=dict(report.listed),
        excluded=[
            Excluded(list=method, item=item, reason=why)
            for method, item, why in report.excluded[:MOST_EXCLUDED]
        ],
        excluded_in_all=len(report.excluded),
        latency=latency,
        hints={method: _hint(reuse, now) for method, reuse in runtime.cache.reuse(name).items()},
    )


def _hint(reuse: Reuse, now: float) -> Hint:
    entry = reuse.entry
    kept: Literal["everybody", "caller", "nobody"] = "everybody" if entry.scope == "public" else "caller"
    return Hint(
        ttl_ms=None if reuse.said is None else reuse.said.ttl_ms,
        scope=None if reuse.said is None else reuse.said.scope,
        ttl=round(entry.ttl, 3),
        kept_for=kept if reuse.refused is None else "nobody",
        reason=reuse.refused,
        overrides=entry.overrides,
        received=round(now - reuse.age),
        changed=reuse.changed,
    )


def _calls(metrics: Metrics) -> dict[str, Counter[str]]:
    """Return the requests to each upstream by how they ended, but for those that are streams of changes."""
    found: dict[str, Counter[str]] = {}
    for (upstream, method, failure), cell in metrics.read(CALLS):
        if method in _STREAMS:
            continue
        found.setdefault(upstream, Counter())[failure or "ok"] += _observed(cell)
    return found


def _lookups(metrics: Metrics) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """Return the lookups of each upstream by result, and those that were no hits by reason."""
    results: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for (upstream, _, result, reason), cell in metrics.read(CACHE_LOOKUPS):
        results.setdefault(upstream, Counter())[result] += int(cell[0])
        if result in ("miss", "bypass"):
            reasons.setdefault(upstream, Counter())[reason] += int(cell[0])
    return results, reasons


def _joined(runtime: Runtime, upstreams: dict[str, Upstream]) -> dict[str, Counter[str]]:
    """Return the hits that each upstream has by answers that were joined before: it has a part in them."""
    found: dict[str, Counter[str]] = {name: Counter() for name in upstreams}
    for path, pipeline in runtime.pipelines.items():
        for method, count in pipeline.remembered.items():
            for name in runtime.config.behind(path):
                if method in upstreams[name].listed:
                    found[name]["hit"] += count
    return found


def _traffic(metrics: Metrics, paths: Iterable[str]) -> dict[str, Endpoint]:
    answered: dict[str, Counter[str]] = {}
    for (path, _, failure), cell in metrics.read(REQUESTS):
        answered.setdefault(path, Counter())[failure or "ok"] += _observed(cell)
    running = {path: int(cell[0]) for (path,), cell in metrics.read(IN_FLIGHT)}
    return {
        path: Endpoint(open=running.get(path, 0), answered=dict(answered.get(path, {}))) for path in paths
    }


def _observed(cell: Sequence[float]) -> int:
    """Return how many seconds were put into a histogram: each is in one bucket, and the sum comes last."""
    return int(sum(list(cell)[:-1]))


def _words(reason: Reason | None) -> str | None:
    return None if reason is None else reason.value


def _added(counts: Iterable[Counter[str]]) -> Counter[str]:
    whole: Counter[str] = Counter()
    for each in counts:
        whole.update(each)
    return whole


def _http_status(detail: str) -> int | None:
    """Return the number of an HTTP status; the rest of a detail is for logs, it may name an address."""
    hit = re.match(r"HTTP ([1-5][0-9]{2})\b", detail)
    return int(hit[1]) if hit else None
