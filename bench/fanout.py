"""Fan-out: what one upstream says once, told to thousands; and many changes while one reader is stalled.

The gateway is held against a bare aiohttp server that keeps its responses in a dict and writes the same event
to each. Both hold all their streams for the whole measurement and speak in turns.
"""

import json
import resource
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench.processes import Crowd, Server, crowd, fetch, gateway, oncpu_seconds, resident, server
from bench.statistics import CERTAIN, interval

PATH = "/talk"
UPSTREAM = "/talk/0/mcp"

MOST = 1.5
"""What a fan-out may take, and a stream may keep in memory, of what the bare broadcast does."""

CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"

GATHERED_SECONDS = 0.6
"""A list that changes again within half a second is told of at the end of it."""

WARM_STREAMS = 200
READERS = 20
URIS = [f"note:///{number}" for number in range(50)]
WANTED = {"resourceSubscriptions": [f"talk+{uri}" for uri in URIS]}
WARM_FLOODS = 4
SPARE_FILES = 300

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True)
class Fan:
    """One fan-out by number of streams: milliseconds and kB as medians, ratios gateway by broadcast."""

    streams: int
    ours_ms: float
    theirs_ms: float
    ratio: float
    low: float
    high: float
    ours_us: float
    """Processor time of the gateway per stream and notice."""
    theirs_us: float
    cpu_ratio: float
    ours_kb: float
    theirs_kb: float
    upstream_streams: int
    ratios: list[float] = field(repr=False)

    @property
    def memory_ratio(self) -> float:
        return self.ours_kb / self.theirs_kb

    @property
    def verdict(self) -> str:
        if self.upstream_streams != 1:
            return "NOT ONE STREAM UPSTREAM"
        if self.memory_ratio > MOST:
            return "TOO MUCH MEMORY"
        if self.ratio <= MOST:
            return ""
        return "TOO SLOW" if len(self.ratios) >= CERTAIN and self.low > MOST else "too slow, or noise"

    @property
    def failed(self) -> bool:
        return self.verdict.isupper()


@dataclass(frozen=True)
class Flood:
    """Many updates at a time, to readers alone and beside one that takes nothing."""

    updates_at_once: int
    updates: int
    """In all rounds together, with those before the first."""
    alone_ms: float
    beside_ms: float
    ratio: float
    low: float
    high: float
    cpu_ratio: float
    heard: float
    """What a reader was told in all; a resource that changes again before that was told is told of once."""
    heard_beside: float
    stalled_heard: int
    """The same of the stalled one, once it read again at the end."""
    grown_kb: list[float]
    """Memory of the gateway with the stalled one after each round, above that before the first."""
    ratios: list[float] = field(repr=False)


@dataclass(frozen=True)
class _Side:
    server: Server
    speaker: str
    """Whom to tell to say it."""
    crowd: Crowd


def room_for(streams: int) -> bool:
    """Let every process started from now on hold so many streams; whether that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = streams + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        return False
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True


def fan_out(folder: Path, *, streams: int, rounds: int) -> Fan:
    """Measure one number of streams on one gateway and one broadcast."""
    with ExitStack() as stack:
        talker = server(stack, "talker")
        limits = {"streams_per_caller": streams + WARM_STREAMS}
        ours = gateway(stack, folder, endpoints={PATH: [f"{talker.url}{UPSTREAM}"]}, limits=limits)
        theirs = server(stack, "broadcast")
        sides = [
            _Side(ours, talker.url, _crowd(stack, ours, PATH, {"toolsListChanged": True})),
            _Side(theirs, theirs.url, _crowd(stack, theirs, "/mcp", {"toolsListChanged": True})),
        ]
        kilobytes = [_filled(side, streams) for side in sides]
        for side in sides:
            _said(side)
        took: list[list[float]] = [[], []]
        used: list[list[float]] = [[], []]
        for number in range(rounds):
            for at in (0, 1) if number % 2 == 0 else (1, 0):
                seconds, cpu = _said(sides[at])
                took[at].append(seconds * 1000)
                used[at].append(cpu * 1e6 / streams)
        upstream = json.loads(fetch(talker.url))
        assert upstream["opened"] == upstream["streams"], upstream
    ratios = [mine / other for mine, other in zip(*took, strict=True)]
    cpu_ratios = [mine / other for mine, other in zip(*used, strict=True)]
    low, high = interval(ratios)
    return Fan(
        streams=streams,
        ours_ms=median(took[0]),
        theirs_ms=median(took[1]),
        ratio=median(ratios),
        low=low,
        high=high,
        ours_us=median(used[0]),
        theirs_us=median(used[1]),
        cpu_ratio=median(cpu_ratios),
        ours_kb=kilobytes[0],
        theirs_kb=kilobytes[1],
        upstream_streams=upstream["streams"],
        ratios=ratios,
    )


def flood(folder: Path, *, rounds: int, updates: int) -> Flood:
    """Measure updates on two gateways, one of which has a stalled reader; nobody may miss the last of any."""
    with ExitStack() as stack:
        alone, beside = (_flooded(stack, folder) for _ in range(2))
        stalled = _crowd(stack, beside.server, PATH, WANTED)
        stalled.order("open", count=1, first=READERS, uris=True)
        stalled.order("stall")
        for _ in range(WARM_FLOODS):  # until nothing more is taken from the gateway for the stalled one
            for side in (alone, beside):
                _flood(side, updates)
        took: list[list[float]] = [[], []]
        used: list[list[float]] = [[], []]
        resident_at = [_collected(beside.server)]
        last: dict[str, float] = {}
        for number in range(rounds):
            for at in (0, 1) if number % 2 == 0 else (1, 0):
                seconds, cpu, last = _flood((alone, beside)[at], updates)
                took[at].append(seconds * 1000)
                used[at].append(cpu * 1000)
            resident_at.append(_collected(beside.server))
        heard = [median(side.crowd.order("heard")["heard"]) for side in (alone, beside)]
        (told,) = stalled.order("resume")["heard"]
        stalled.order("until", last=last)
    ratios = [slow / quick for quick, slow in zip(*took, strict=True)]
    low, high = interval(ratios)
    return Flood(
        updates_at_once=updates,
        updates=updates * (rounds + WARM_FLOODS),
        alone_ms=median(took[0]),
        beside_ms=median(took[1]),
        ratio=median(ratios),
        low=low,
        high=high,
        cpu_ratio=median(slow / quick for quick, slow in zip(*used, strict=True)),
        heard=heard[0],
        heard_beside=heard[1],
        stalled_heard=told,
        grown_kb=[(each - resident_at[0]) / 1024 for each in resident_at[1:]],
        ratios=ratios,
    )


def _flooded(stack: ExitStack, folder: Path) -> _Side:
    talker = server(stack, "talker")
    # A stalled reader is to be there until the end, not cut after ten seconds.
    limits = {"stalled_listener": "1h"}
    ours = gateway(stack, folder, endpoints={PATH: [f"{talker.url}{UPSTREAM}"]}, limits=limits)
    readers = _crowd(stack, ours, PATH, WANTED)
    readers.order("open", count=READERS, first=0, uris=True)
    return _Side(ours, talker.url, readers)


def _flood(side: _Side, updates: int) -> tuple[float, float, dict[str, float]]:
    """Have resources updated; return when the last update of each was.

    Before it the seconds until all had heard of them since, and those of the gateway's processor time.
    """
    used = oncpu_seconds(side.server.pid)
    said = _say(side.speaker, UPDATED, URIS, updates)
    last = {f"talk+{uri}": at for uri, at in said["last"].items()}
    took = side.crowd.order("until", last=last)["at"] - said["at"]
    return took, oncpu_seconds(side.server.pid) - used, last


def _collected(server: Server) -> int:
    server.collect()
    return resident(server.pid)


def report(fans: Sequence[Fan], floods: Sequence[Flood]) -> None:
    """Print both as tables."""
    columns = f"{'gateway':>11}{'bare':>9}{'ratio':>7}{'95 %':>12}{'most':>6}{'CPU us':>13}{'CPU':>6}"
    print(f"{'one notice to all of':<24}{columns}{'kB each':>15}{'memory':>8}{'upstream':>10}")
    for one in fans:
        between = f"{one.low:.2f}-{one.high:.2f}" if len(one.ratios) >= CERTAIN else ""
        print(
            f"{f'{one.streams} streams':<24}{one.ours_ms:>8.1f} ms{one.theirs_ms:>6.1f} ms{one.ratio:>7.2f}"
            f"{between:>12}{MOST:>6.2f}{f'{one.ours_us:.1f} / {one.theirs_us:.1f}':>13}{one.cpu_ratio:>6.2f}"
            f"{f'{one.ours_kb:.1f} / {one.theirs_kb:.1f}':>15}{one.memory_ratio:>8.2f}"
            f"{one.upstream_streams:>10}  {one.verdict}".rstrip()
        )
    print()
    for flooded in floods:
        between = f" ({flooded.low:.2f} to {flooded.high:.2f})" if len(flooded.ratios) >= CERTAIN else ""
        print(
            f"{flooded.updates_at_once} updates of {len(URIS)} resources to {READERS} readers: "
            f"{flooded.alone_ms:.0f} ms, beside a stalled one {flooded.beside_ms:.0f} ms, "
            f"ratio {flooded.ratio:.2f}{between}, of CPU {flooded.cpu_ratio:.2f}\n"
            f"  of {flooded.updates} updates a reader was told {flooded.heard:.0f} times, "
            f"beside the stalled one {flooded.heard_beside:.0f} times, "
            f"the stalled one {flooded.stalled_heard} times;\n"
            f"  nobody missed the last of any resource; memory since the first round: "
            f"{' '.join(f'{each:+.0f}' for each in flooded.grown_kb)} kB"
        )


def _filled(side: _Side, streams: int) -> float:
    """Open all streams of a side and return the kB that each of them takes."""
    # What is made once, by the first few, is nobody's.
    side.crowd.order("open", count=WARM_STREAMS, first=0)
    side.crowd.order("close")
    time.sleep(1.0)
    side.server.collect()
    empty = resident(side.server.pid)
    side.crowd.order("open", count=streams, first=10_000)
    time.sleep(1.0)
    side.server.collect()
    return (resident(side.server.pid) - empty) / streams / 1024


def _said(side: _Side) -> tuple[float, float]:
    """Have something said once; return the seconds until all have it, and of the server's processor time."""
    time.sleep(GATHERED_SECONDS)
    side.crowd.order("arm")
    used = oncpu_seconds(side.server.pid)
    side.crowd.begin("wait")
    began = _say(side.speaker, CHANGED, [], 1)["at"]
    ended = side.crowd.end()["at"]
    return ended - began, oncpu_seconds(side.server.pid) - used


def _say(url: str, method: str, uris: Sequence[str], times: int) -> dict:  # type: ignore[type-arg]
    order = {"method": method, "uris": list(uris), "times": times}
    return json.loads(fetch(f"{url}/say", json.dumps(order).encode()))  # type: ignore[no-any-return]


def _crowd(stack: ExitStack, to: Server, path: str, wanted: object) -> Crowd:
    method = "subscriptions/listen"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(to.url).netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        f"Mcp-Method: {method}\r\n"
    )
    params = {"notifications": wanted, "_meta": META}
    body = {"jsonrpc": "2.0", "id": "@", "method": method, "params": params}
    return crowd(stack, to.url, [{"head": head, "body": json.dumps(body, separators=(",", ":"))}])
