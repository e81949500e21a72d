"""Measures the gateway beside what no gateway can beat: a bare aiohttp handler and a bare forwarder.

Rounds of both sides alternate, so that whatever else the machine does hits both; each round has its ratio.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import create_server
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Target:
    """One side of a comparison: where to send which request, and which process answers."""

    name: str
    url: str
    pid: int
    method: str
    params: Mapping[str, object]

    def headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": self.method,
        }
        return headers | ({"mcp-name": str(self.params["name"])} if "name" in self.params else {})

    def body(self) -> str:
        params = {**self.params, "_meta": META}
        message = {"jsonrpc": "2.0", "id": 1, "method": self.method, "params": params}
        return json.dumps(message, separators=(",", ":"))

    def once(self) -> bytes:
        """Send the request once and return the answer."""
        request = urllib.request.Request(self.url, self.body().encode(), self.headers())
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read())


@dataclass(frozen=True)
class Comparison:
    """The gateway and what it is held against, the ratio of their rates and the least it should be."""

    what: str
    gateway: Target
    other: Target
    least: float


@dataclass(frozen=True)
class Row:
    """What a comparison came to."""

    what: str
    gateway: Figures
    other: Figures
    ratio: float
    least: float
    answer_bytes: int


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m ARGUMENTS` for as long as the context lasts."""
    started = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(15)
        assert started.stdout is not None
        started.stdout.close()


def server(stack: ExitStack, *arguments: str) -> tuple[str, int]:
    """Start one of bench.servers and return its URL and process id."""
    started = stack.enter_context(process("bench.servers", *arguments))
    assert started.stdout is not None
    return f"http://127.0.0.1:{int(started.stdout.readline())}", started.pid


def gateway(stack: ExitStack, upstream: str, folder: Path) -> tuple[str, int]:
    """Start the gateway with an endpoint for each shape of catalogue and return its URL and process id."""
    ten = [f"u{number}" for number in range(10)]
    listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    config = {
        "listen": listen,
        "admin": admin,
        "log": {"level": "warning"},
        "upstreams": {
            "few": f"{upstream}/few/10/mcp",
            "big": f"{upstream}/big/1000/mcp",
            **{name: f"{upstream}/{name}/100/mcp" for name in ten},
        },
        "endpoints": {
            "/few": {"upstreams": ["few"]},
            "/one": {"upstreams": ["u0"]},
            "/ten": {"upstreams": ten},
            "/big": {"upstreams": ["big"]},
        },
    }
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(config))
    started = stack.enter_context(process("gateway", "serve", "--config", str(file)))
    give_up = time.monotonic() + 20
    while True:
        try:
            urllib.request.urlopen(f"http://{admin}/readyz", timeout=1).close()
            return f"http://{listen}", started.pid
        except (urllib.error.URLError, OSError):
            if started.poll() is not None or time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def load(target: Target, connections: int, seconds: float) -> Figures:
    """Measure one side once, from a process of its own."""
    job = {
        "url": target.url,
        "headers": target.headers(),
        "body": target.body(),
        "connections": connections,
        "seconds": seconds,
    }
    used = cpu_seconds(target.pid)
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        cwd=ROOT,
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=seconds + 60,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    if figures.pop("errors"):
        raise SystemExit(f"{target.name} answered with errors: {done.stdout}")
    used = cpu_seconds(target.pid) - used
    return figures | {"cpu_us": used * 1e6 / figures.pop("answers")}


def measure(comparison: Comparison, rounds: int, connections: int, seconds: float) -> Row:
    """Measure both sides in turns; the ratio is the median of all rounds, each with its own."""
    answer = len(comparison.gateway.once())
    sides: tuple[list[Figures], list[Figures]] = ([], [])
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for side in order:
            target = (comparison.gateway, comparison.other)[side]
            sides[side].append(load(target, connections, seconds))
    gateway, other = ({key: median(f[key] for f in side) for key in side[0]} for side in sides)
    ratio = median(ours["rate"] / theirs["rate"] for ours, theirs in zip(*sides, strict=True))
    return Row(comparison.what, gateway, other, ratio, comparison.least, answer)


def comparisons(stack: ExitStack, folder: Path) -> Iterator[Comparison]:
    """Start all servers and yield what is to be compared."""
    upstream, _ = server(stack, "upstream")
    front, front_pid = gateway(stack, upstream, folder)

    def cached(path: str) -> Target:
        return Target(f"gateway {path}", f"{front}{path}", front_pid, "tools/list", {})

    for path, tools in (("/few", 10), ("/one", 100)):
        target = cached(path)
        body = folder / f"{tools}.json"
        body.write_bytes(target.once())
        other = Target("bare handler", *server(stack, "handler", "--body", str(body)), "tools/list", {})
        yield Comparison(f"cached tools/list of {tools} tools / bare handler", target, other, 0.7)
        lowest = Target("low-level", *server(stack, "lowest", "--body", str(body)), "tools/list", {})
        yield Comparison(f"cached tools/list of {tools} tools / low-level server", target, lowest, 0.5)

    target, other = cached("/ten"), cached("/big")
    yield Comparison("cached list of 10 upstreams x 100 tools / of 1 x 1000", target, other, 0.95)

    bare = server(stack, "forwarder", "--target", f"{upstream}/u0/100/mcp")
    call: dict[str, object] = {"arguments": {"query": "everything", "limit": 5}}
    name = "u0_tool_0001"
    yield Comparison(
        "tools/call passed through / bare forwarder",
        Target("gateway call", f"{front}/one", front_pid, "tools/call", {"name": f"u0__{name}", **call}),
        Target("bare forwarder", *bare, "tools/call", {"name": name, **call}),
        0.7,
    )


def report(rows: list[Row]) -> None:
    columns = f"{'gateway':>10}{'other':>10}{'ratio':>7}{'least':>7}"
    print(f"{'':<56}{columns}{'CPU us':>13}{'p50 ms':>14}{'p99 ms':>15}")
    for row in rows:
        cpu = f"{row.gateway['cpu_us']:.0f} / {row.other['cpu_us']:.0f}"
        middle, late = (f"{row.gateway[key]:.2f} / {row.other[key]:.2f}" for key in ("p50_ms", "p99_ms"))
        print(
            f"{row.what:<56}{row.gateway['rate']:>8.0f}/s{row.other['rate']:>8.0f}/s{row.ratio:>7.2f}"
            f"{row.least:>7}{cpu:>13}{middle:>14}{late:>15}{'' if row.ratio >= row.least else '  BELOW'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for comparison in comparisons(stack, Path(folder)):
            rows.append(measure(comparison, options.rounds, options.connections, options.seconds))
            print(f"measured: {comparison.what}", file=sys.stderr)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {vars(options)}\n")
    report(rows)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if all(row.ratio >= row.least for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
