"""Measures the gateway beside what no gateway can beat: a bare aiohttp handler and a bare forwarder.

The sides of a comparison are measured in turns, round by round, so that whatever else the machine does hits
all of them; each round has its ratio, and what counts is the median of those.
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench import fanout, storm
from bench.processes import Server, cpu_seconds, fetch, gateway, redis, run_load, server
from bench.statistics import CERTAIN, interval

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
UI = "io.modelcontextprotocol/ui"
Figures = Mapping[str, float]

NO_REDIS = "redis-server is not installed (on Debian and Ubuntu: apt install redis-server)"

WITHOUT_MEMORY = "1KiB"
"""A `cache.memory` into which not even the smallest result fits, so that every hit comes from Redis."""

PATIENT = "2s"
"""A `cache.redis_timeout` nobody should set: on a busy machine a late answer would make a miss of a hit."""

MIXED = 16
"""How many requests of each side one turn of a mixed load holds."""

STREAMS = (1_000, 10_000)
"""To how many streams a notice is told at once."""

UPDATES = 20_000
"""How many updates of resources come one after the other, beside a reader that is stalled."""

EXACT = 0.02
"""How far the count of questions per answer may be from what a row says: a ping, a probe, a late answer."""


@dataclass(frozen=True)
class Target:
    """One side of a comparison: who is sent which requests, and how many questions an answer must cost it.

    `costs` are those to the upstream and to Redis. There is one request per member of `params`, and of
    `extensions`: what a client declares, by which lists are kept apart.
    """

    name: str
    server: Server
    path: str
    method: str
    params: Sequence[Mapping[str, object]] = ({},)
    extensions: Sequence[Mapping[str, object]] = ({},)
    costs: tuple[float, float] | None = None

    def requests(self) -> list[dict[str, object]]:
        """Return the requests as a load sends them."""
        return [
            {"path": self.path, "headers": self._headers(params), "body": self._body(params, extensions)}
            for params in self.params
            for extensions in self.extensions
        ]

    def once(self) -> bytes:
        """Send every request once and return the last answer."""
        answer = b""
        for request in self.requests():
            headers: dict[str, str] = dict(request["headers"])  # type: ignore[call-overload]
            answer = fetch(f"{self.server.url}{self.path}", str(request["body"]).encode(), headers)
        return answer

    def asked(self) -> tuple[float, float]:
        """Return how many questions a gateway has put to its upstreams for this, and to Redis for results."""
        if self.server.admin is None:
            return 0.0, 0.0
        upstream = self.server.metric("client_operation_duration_seconds_count", mcp_method_name=self.method)
        return upstream, self.server.metric("redis_operations_total", operation="get", outcome="ok")

    def _headers(self, params: Mapping[str, object]) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": self.method,
        }
        name = params.get("name", params.get("uri"))
        return headers if name is None else headers | {"mcp-name": str(name)}

    def _body(self, params: Mapping[str, object], extensions: Mapping[str, object]) -> str:
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": extensions}}
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": self.method,
            "params": {**params, "_meta": meta if extensions else META},
        }
        return json.dumps(message, separators=(",", ":"))


@dataclass(frozen=True)
class Comparison:
    """A gateway and what it is held against; the least their ratio should be, where there is such a bound."""

    what: str
    gateway: Target
    other: Target
    least: float | None = None


@dataclass(frozen=True)
class Row:
    """What a comparison came to; with 95 % the ratio lies between `low` and `high`, see `interval`."""

    what: str
    gateway: Figures
    other: Figures
    ratio: float
    low: float
    high: float
    least: float | None
    answer_bytes: int
    costs: tuple[float, float]
    """What an answer cost in questions to the upstream and to Redis."""
    odd: bool
    """Whether that is not what the row is about."""
    ratios: list[float] = field(repr=False)
    cpu_ratio: float | None = None
    """The same by processor time per answer, which tells more where the processor is not ours alone."""

    @property
    def verdict(self) -> str:
        if self.odd:
            return "NOT WHAT IT SAYS"
        if self.least is None or self.ratio >= self.least:
            return ""
        certain = len(self.ratios) >= CERTAIN and self.high < self.least
        return "BELOW" if certain else "below, or noise"


@dataclass(frozen=True)
class Options:
    """How long and how wide to measure."""

    rounds: int
    seconds: float
    connections: int
    clients: int


def load(target: Target, options: Options) -> Figures:
    """Measure one side once."""
    used, asked = cpu_seconds(target.server.pid), target.asked()
    job = {"urls": [target.server.url], "requests": target.requests()}
    figures = run_load({**job, "connections": options.connections, "seconds": options.seconds})
    used = cpu_seconds(target.server.pid) - used
    kept = ("rate", "answers", "megabytes_per_second", "p50_ms", "p99_ms")
    counted = (after - before for before, after in zip(asked, target.asked(), strict=True))
    return (
        {key: figures[key] for key in kept}
        | {"cpu_us": used * 1e6 / figures["answers"]}
        | dict(zip(("upstream", "redis"), counted, strict=True))
    )


def measure(group: Sequence[Comparison], options: Options) -> Iterator[Row]:
    """Measure all sides of some comparisons in turns, there and back, and yield what each came to."""
    targets = {target.name: target for one in group for target in (one.gateway, one.other)}
    sizes = {name: len(target.once()) for name, target in targets.items()}
    figures: dict[str, list[Figures]] = {name: [] for name in targets}
    for number in range(options.rounds):
        for name in list(targets) if number % 2 == 0 else reversed(targets):
            figures[name].append(load(targets[name], options))
    for one in group:
        ours, theirs = figures[one.gateway.name], figures[one.other.name]
        ratios = [mine["rate"] / other["rate"] for mine, other in zip(ours, theirs, strict=True)]
        answers = sum(each["answers"] for each in ours)
        costs = tuple(sum(each[key] for each in ours) / answers for key in ("upstream", "redis"))
        measured = row(one, _medians(ours), _medians(theirs), ratios, sizes[one.gateway.name], costs)
        if all(each["cpu_us"] for each in ours):
            used = [other["cpu_us"] / mine["cpu_us"] for mine, other in zip(ours, theirs, strict=True)]
            measured = replace(measured, cpu_ratio=median(used))
        yield measured


def alternate(one: Comparison, options: Options) -> Row:
    """Measure two answers of one process request by request, mixed on a single connection.

    From one second to the next the rate of large answers differs by a third; neighbours share their moment.
    They are mixed by chance, for strict turns can fall into step with the turns of the processor.
    """
    sides = (one.gateway, one.other)
    answer, _ = (len(side.once()) for side in sides)
    places = [0, 1] * MIXED
    random.Random(1).shuffle(places)
    (ours,), (theirs,) = (side.requests() for side in sides)
    job = {
        "urls": [one.gateway.server.url],
        "requests": [(ours, theirs)[side] for side in places],
        "connections": 1,
        "seconds": options.seconds,
    }
    before = one.gateway.asked()
    rounds = [run_load(job) for _ in range(options.rounds)]
    answers = sum(each["answers"] for each in rounds)
    costs = [(now - then) / answers for then, now in zip(before, one.gateway.asked(), strict=True)]
    took = [[_of_side(side, places, each["p50_ms_each"]) for each in rounds] for side in (0, 1)]
    rates = [{"rate": 1000 / median(each), "p50_ms": median(each)} for each in took]
    ratios = [other / mine for mine, other in zip(*took, strict=True)]
    return row(one, rates[0], rates[1], ratios, answer, costs)


def row(
    one: Comparison,
    ours: Figures,
    theirs: Figures,
    ratios: list[float],
    answer_bytes: int,
    costs: Sequence[float],
) -> Row:
    upstream, asked = costs
    wanted = one.gateway.costs or (upstream, asked)
    odd = abs(upstream - wanted[0]) > EXACT or abs(asked - wanted[1]) > EXACT
    low, high = interval(ratios)
    return Row(
        one.what,
        ours,
        theirs,
        median(ratios),
        low,
        high,
        one.least,
        answer_bytes,
        (upstream, asked),
        odd,
        ratios,
    )


def _of_side(side: int, places: Sequence[int], milliseconds: Sequence[float]) -> float:
    """Return the median of one side's; a place whose turn never came has none."""
    return median(each for place, each in zip(places, milliseconds, strict=True) if place == side and each)


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {key: median(figures[key] for figures in rounds) for key in rounds[0]}


@dataclass(frozen=True)
class Bench:
    """What all comparisons have in common."""

    stack: ExitStack
    folder: Path
    upstream: str
    options: Options

    def handler(self, target: Target, kind: str = "handler") -> Target:
        """Start what answers with the same bytes as this target and does nothing else."""
        body = self.folder / f"{kind} {target.name}".replace("/", " ")
        body.write_bytes(target.once())
        name = {"handler": "bare handler", "lowest": "low-level server"}[kind]
        started = server(self.stack, kind, "--body", str(body))
        return Target(f"{name} for {target.name}", started, "/mcp", target.method, target.params[:1])

    def gateway(self, *, redis: str | None = None, **cache: object) -> Server:
        """Start a gateway with an endpoint for each shape of catalogue."""
        ten = [f"{self.upstream}/u{number}/100/mcp" for number in range(10)]
        endpoints = {
            "/few": [f"{self.upstream}/few/10/mcp"],
            "/one": ten[:1],
            "/ten": ten,
            "/big": [f"{self.upstream}/big/1000/mcp"],
            storm.PATH: [f"{self.upstream}{storm.UPSTREAM}"],
        }
        shared = {} if redis is None else {"redis": redis, "redis_timeout": PATIENT}
        return gateway(self.stack, self.folder, endpoints=endpoints, **shared, **cache)


def alone(bench: Bench, front: Server) -> Iterator[Row]:
    """Measure a gateway without Redis."""
    for path, tools in (("/few", 10), ("/one", 100)):
        target = Target(f"list {path}", front, path, "tools/list", costs=(0, 0))
        what = f"cached tools/list of {tools} tools"
        bare, lowest = bench.handler(target), bench.handler(target, "lowest")
        yield from measure(
            [
                Comparison(f"{what} / bare handler", target, bare, 0.7),
                Comparison(f"{what} / low-level server", target, lowest, 0.5),
            ],
            bench.options,
        )

    ten, big = (Target(f"list {path}", front, path, "tools/list", costs=(0, 0)) for path in ("/ten", "/big"))
    yield alternate(
        Comparison("cached list of 10 upstreams x 100 tools / of 1 x 1000", ten, big, 0.95), bench.options
    )

    call: dict[str, object] = {"arguments": {"query": "everything", "limit": 5}}
    name = "u0_tool_0001"
    forwarder = server(bench.stack, "forwarder", "--target", f"{bench.upstream}/u0/100/mcp")
    through = Target(
        "gateway call", front, "/one", "tools/call", [{"name": f"u0__{name}", **call}], costs=(1, 0)
    )
    bare = Target("bare forwarder", forwarder, "/mcp", "tools/call", [{"name": name, **call}])
    yield from measure(
        [Comparison("tools/call passed through / bare forwarder", through, bare, 0.7)], bench.options
    )


def shared(bench: Bench, front: Server, full: Server, empty: Server) -> Iterator[Row]:
    """Measure two gateways on one Redis, one of which can keep nothing in its own memory.

    Each connection has requests of its own: equal ones that are under way at one moment would share a
    question to Redis, and a fetch.
    """
    own = range(bench.options.connections)
    # Eight per connection: a joined answer stays in memory even there, up to 1 MiB of them, and is gone
    # when its turn comes again.
    declared = [{UI: {"client": number}} for number in range(8 * len(own))]
    method, path = "tools/list", "/one"
    Target("list fetched", full, path, method, extensions=declared).once()
    first = Target("list L1", full, path, method, costs=(0, 0))
    second = Target("list L2", empty, path, method, extensions=declared, costs=(0, 1))
    bare = bench.handler(first)
    what = "tools/list of 100 tools, hit"
    yield from measure(
        [
            Comparison(f"{what} in L1 beside Redis / bare handler", first, bare, 0.7),
            Comparison(f"{what} in L2 / bare handler", second, bare),
        ],
        bench.options,
    )

    method = "resources/read"
    kept = [{"uri": f"u0+kept:/{number}"} for number in own]
    first = Target("read L1", full, path, method, kept, costs=(0, 0))
    second = Target("read L2", empty, path, method, kept, costs=(0, 1))
    bare = bench.handler(first)
    what = "resource of 5 kB, hit"
    yield from measure(
        [
            Comparison(f"{what} in L1 beside Redis / bare handler", first, bare),
            Comparison(f"{what} in L2 / bare handler", second, bare),
        ],
        bench.options,
    )

    live = [{"uri": f"u0+live:/{number}"} for number in own]
    beside = Target("read missed beside Redis", full, path, method, live, costs=(1, 1))
    without = Target("read missed without Redis", front, path, method, live, costs=(1, 0))
    bare = bench.handler(beside)
    what = "resource of 5 kB, miss"
    yield from measure(
        [
            Comparison(f"{what} beside Redis / bare handler", beside, bare),
            Comparison(f"{what} without Redis / bare handler", without, bare),
            Comparison(f"{what} beside Redis / without", beside, without),
        ],
        bench.options,
    )


def report(rows: Sequence[Row]) -> None:
    columns = f"{'gateway':>9}{'other':>9}{'ratio':>7}{'95 %':>12}{'least':>7}"
    print(f"{'':<66}{columns}{'up':>6}{'redis':>6}{'CPU':>6}{'CPU us':>12}{'p50 ms':>15}{'p99 ms':>17}")
    for row in rows:

        def pair(key: str, digits: int, row: Row = row) -> str:
            sides = (row.gateway, row.other)
            return " / ".join(f"{side[key]:.{digits}f}" for side in sides if key in side)

        least = "" if row.least is None else f"{row.least:.2f}"
        between = f"{row.low:.2f}-{row.high:.2f}" if len(row.ratios) >= CERTAIN else ""
        cpu = "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}"
        up, asked = (f"{cost:.2f}".removesuffix(".00") for cost in row.costs)
        print(
            f"{row.what:<66}{row.gateway['rate']:>7.0f}/s{row.other['rate']:>7.0f}/s{row.ratio:>7.2f}"
            f"{between:>12}{least:>7}{up:>6}{asked:>6}{cpu:>6}{pair('cpu_us', 0):>12}"
            f"{pair('p50_ms', 2):>15}{pair('p99_ms', 2):>17}  {row.verdict}".rstrip()
        )


def requests(options: Options, rows: list[Row], storms: list[storm.Storm]) -> list[str]:
    """Measure whatever is asked and answered; return what could not be."""
    skipped = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        bench = Bench(stack, Path(name), server(stack, "upstream").url, options)
        front = bench.gateway()

        def take(measured: Iterator[Row]) -> None:
            for row in measured:
                rows.append(row)
                print(f"measured: {row.what}", file=sys.stderr)

        take(alone(bench, front))
        address = redis(stack, bench.folder)
        replicas = [bench.gateway(redis=address) for _ in range(3)] if address is not None else []
        if address is None:
            skipped.append(
                f"not measured, for {NO_REDIS}: L1 and L2, misses, and the storm over three gateways"
            )
        else:
            empty = bench.gateway(redis=address, memory=WITHOUT_MEMORY)
            take(shared(bench, front, replicas[0], empty))
        fronts = [[front], replicas] if replicas else [[front]]
        storms += storm.measure(bench.upstream, fronts, rounds=options.rounds, clients=options.clients)
    return skipped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side in each round")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--clients", type=int, default=200, help="that ask at one moment in a cold storm")
    parser.add_argument("--listen", action="store_true", help="measure nothing but streams of notices")
    parser.add_argument("--quick", action="store_true", help="one round of 0.3 seconds: whether it runs")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    given = parser.parse_args()
    rounds, seconds = (1, 0.3) if given.quick else (given.rounds, given.seconds)
    options = Options(rounds, seconds, given.connections, given.clients)
    rows: list[Row] = []
    storms: list[storm.Storm] = []
    fans: list[fanout.Fan] = []
    floods: list[fanout.Flood] = []
    skipped: list[str] = []
    if not given.listen:
        skipped += requests(options, rows, storms)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for streams in STREAMS[:1] if given.quick else STREAMS:
            if not fanout.room_for(streams):
                skipped.append(f"not measured, for a process may not open so many files: {streams} streams")
                continue
            fans.append(fanout.fan_out(Path(name), streams=streams, rounds=rounds))
            print(f"measured: a notice to {streams} streams", file=sys.stderr)
        floods.append(fanout.flood(Path(name), rounds=rounds, updates=2_000 if given.quick else UPDATES))
    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    busy = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"Python {machine['python']}, {machine['cores']} cores, load average {busy}")
    print(", ".join(f"{value} {key}" for key, value in asdict(options).items()) + "\n")
    if not given.listen:
        report(rows)
        print()
        storm.report(storms)
        print()
    fanout.report(fans, floods)
    if skipped:
        print("\n" + "\n".join(skipped))
    if given.json is not None:
        groups: dict[str, Sequence[Any]] = {"rows": rows, "storms": storms, "fans": fans, "floods": floods}
        measured = {name: [asdict(one) for one in group] for name, group in groups.items()}
        everything = {"machine": machine, "options": asdict(options), "skipped": skipped, **measured}
        given.json.write_text(json.dumps(everything, indent=1))
    bad = any(row.verdict in ("BELOW", "NOT WHAT IT SAYS") for row in rows)
    bad = bad or any(one.too_many for one in storms) or any(one.failed for one in fans)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
