"""Starts gateways, a redis-server and the servers they are held against, and reads what they count."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from types import MappingProxyType
from typing import Any

_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""What is asked runs on this machine: http_proxy is about others."""

ROOT = Path(__file__).resolve().parents[1]

_SERIES = re.compile(r"^mcp_(?:gateway_)?(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PATIENCE_SECONDS = 20.0
_COLLECTING = (sys.executable, "-m", "bench.collecting")


@dataclass(frozen=True)
class Server:
    """A process that answers, and where; `admin` is that of a gateway."""

    url: str
    pid: int
    admin: str | None = None
    collect: Callable[[], None] = lambda: None
    """Has it collect its garbage, if it runs under bench.collecting."""

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of all series of one metric of a gateway that have these labels."""
        assert self.admin is not None
        found = 0.0
        for series, raw, value in _SERIES.findall(fetch(f"{self.admin}/metrics").decode()):
            if series == name and labels.items() <= dict(_LABEL.findall(raw)).items():
                found += float(value)
        return found

    def purge(self, upstream: str) -> None:
        """Let a gateway, and all that share its Redis, forget what it keeps of an upstream."""
        body = json.dumps({"upstream": upstream}).encode()
        fetch(f"{self.admin}/purge", body, {"content-type": "application/json"})


def fetch(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the answer to one request, a POST if it has a body."""
    request = urllib.request.Request(url, body, dict(headers or {}))
    with _DIRECTLY.open(request, timeout=30) as response:
        return bytes(response.read())


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_load(job: Mapping[str, object]) -> dict[str, Any]:
    """Return what a load measured, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        cwd=ROOT,
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    if figures["errors"]:
        raise SystemExit(f"{job['urls']} answered with errors: {figures['errors']}")
    return figures


def oncpu_seconds(pid: int) -> float:
    """Return the processor time of a process's first thread, to the nanosecond; 0 where nobody says."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def resident(pid: int) -> int:
    """Return how many bytes of a process are in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def process(*command: str, orders: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run a command for as long as the context lasts; `orders` are what it reads."""
    stdin = subprocess.PIPE if orders else subprocess.DEVNULL
    started = subprocess.Popen(command, cwd=ROOT, stdin=stdin, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(15)
        for pipe in (started.stdin, started.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True)
class Crowd:
    """A process that holds streams open, see bench.streams."""

    process: subprocess.Popen[str]

    def order(self, name: str, **how: object) -> dict[str, Any]:
        """Have it do something and return what came of it."""
        self.begin(name, **how)
        return self.end()

    def begin(self, name: str, **how: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": name, **how}) + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the streams were not served as they should be")
        done: dict[str, Any] = json.loads(line)
        if done.get("lost"):
            raise SystemExit(f"streams were lost: {done['lost']}")
        return done


def crowd(stack: ExitStack, url: str, requests: Sequence[Mapping[str, str]]) -> Crowd:
    """Start a process whose streams begin with these requests in turn, `"@"` in them being the id."""
    started = stack.enter_context(process(sys.executable, "-m", "bench.streams", orders=True))
    one = Crowd(started)
    one.order("connect", url=url, requests=requests)
    return one


def server(stack: ExitStack, *arguments: str) -> Server:
    """Start one of bench.servers."""
    started = stack.enter_context(process(*_COLLECTING, "bench.servers", *arguments))
    assert started.stdout is not None
    url = f"http://127.0.0.1:{int(started.stdout.readline())}"
    return Server(url, started.pid, collect=lambda: _collect(started))


def redis(stack: ExitStack, folder: Path) -> str | None:
    """Start a redis-server that saves nothing and return its URL; None where it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    socket = folder / "redis.sock"
    nothing = ("--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning")
    started = stack.enter_context(process(program, "--unixsocket", str(socket), *nothing))
    _wait(started, "redis-server", socket.exists)
    return f"unix://{socket}"


def gateway(
    stack: ExitStack,
    folder: Path,
    *,
    endpoints: Mapping[str, Sequence[str]],
    limits: Mapping[str, object] = MappingProxyType({}),
    **cache: object,
) -> Server:
    """Start a gateway; `endpoints` says by path the URLs of upstreams, which end in NAME/COUNT/mcp.

    With Redis it is ready when it hears the other replicas: before, it keeps nothing.
    """
    listen, admin = f"127.0.0.1:{_free_port()}", f"127.0.0.1:{_free_port()}"
    config = {
        "listen": listen,
        "admin": admin,
        "log": {"level": "warning"},
        "cache": cache,
        "limits": dict(limits),
        "secrets": {"keys": ["a key that all replicas of this benchmark share"]},
        "upstreams": {_name(url): url for urls in endpoints.values() for url in urls},
        "endpoints": {path: {"upstreams": [_name(url) for url in urls]} for path, urls in endpoints.items()},
    }
    file = folder / f"{listen.rpartition(':')[2]}.yaml"
    file.write_text(json.dumps(config))
    started = stack.enter_context(process(*_COLLECTING, "gateway", "serve", "--config", str(file)))
    one = Server(f"http://{listen}", started.pid, f"http://{admin}", lambda: _collect(started))

    def ready() -> bool:
        try:
            fetch(f"{one.admin}/readyz")
        except (urllib.error.URLError, OSError):
            return False
        return "redis" not in cache or one.metric("redis_linked") == 1

    _wait(started, "the gateway", ready)
    return one


def _collect(started: subprocess.Popen[str]) -> None:
    started.send_signal(signal.SIGUSR1)
    assert started.stdout is not None
    if not started.stdout.readline():
        raise SystemExit("a server ended that should not")


def _name(url: str) -> str:
    return url.split("/")[-3]


def _free_port() -> int:
    with create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait(started: subprocess.Popen[str], what: str, ready: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while not ready():
        if started.poll() is not None or time.monotonic() > give_up:
            raise SystemExit(f"{what} did not start")
        time.sleep(0.1)
