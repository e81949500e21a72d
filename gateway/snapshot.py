"""Takes down what one process is doing now, for /status.json and the status page; it waits for nothing."""

import re
import time
from dataclasses import dataclass
from typing import Literal

import msgspec

from gateway.config import VERSION
from gateway.protocol.call import UpstreamName
from gateway.runtime import Runtime
from gateway.status import (
    MOST_EXCLUDED,
    Authentication,
    Cache,
    Excluded,
    Held,
    Load,
    Phase,
    Questions,
    Settings,
    Status,
    Upstream,
    Use,
)


@dataclass(frozen=True, slots=True)
class Doors:
    """What is open at the listener of clients."""

    connections: int
    requests: int
    streams: int


def status_of(
    runtime: Runtime,
    *,
    phase: Phase,
    redis: Literal["up", "down"] | None,
    started: float,
    doors: Doors,
    settings: Settings,
) -> Status:
    """Return what a process of this Runtime does now."""
    config = runtime.config
    limits = config.limits
    entries, held = runtime.cache.held
    now = time.time()
    verifier = runtime.verifier
    return Status(
        version=VERSION,
        phase=phase,
        now=round(now, 3),
        started=started,
        config=settings,
        endpoints={
            path: list(endpoint.upstreams or config.upstreams) for path, endpoint in config.endpoints.items()
        },
        upstreams={name: _upstream(runtime, UpstreamName(name), now) for name in config.upstreams},
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
        cache=Cache(entries=entries, bytes=held, most=config.cache.memory, redis=redis),
    )


def _upstream(runtime: Runtime, name: UpstreamName, now: float) -> Upstream:
    status = runtime.pool.status(name)
    in_state = time.monotonic() - status.since
    report = runtime.catalogue.report(name)
    return Upstream(
        state=status.state,
        era=status.era,
        transport=status.wire,
        version=status.version,
        error=None if status.last_error is None else status.last_error.value,
        http_status=_http_status(status.detail),
        since=round(now - in_state),
        in_state_seconds=round(in_state, 1),
        active=status.active,
        queued=status.queued,
        breaker=status.breaker,
        sessions=Use(open=status.sessions, most=runtime.config.upstreams[name].most_sessions),
        followed=runtime.hub.state(name),
        excluded_in_all=len(report.excluded),
        listed=dict(report.listed),
        excluded=[
            Excluded(list=method, item=item, reason=why)
            for method, item, why in report.excluded[:MOST_EXCLUDED]
        ],
    )


def _http_status(detail: str) -> int | None:
    """Return the number of an HTTP status; the rest of a detail is for logs, it may name an address."""
    hit = re.match(r"HTTP ([1-5][0-9]{2})\b", detail)
    return int(hit[1]) if hit else None
