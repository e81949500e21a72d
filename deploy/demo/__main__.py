"""Runs the demo: two upstreams and the gateway as child processes, until Ctrl-C.

A third upstream is a program that the gateway starts itself, where it was installed.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from deploy.demo.tour import tour

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 40
STOP_SECONDS = 15

# Whatever proxy the environment names, loopback is reached directly.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Child:
    """One process of the demo and its ports by option.

    It announces itself once the ports are its own; what answers there before may be somebody else. `ready`
    says what is to be waited for after that.
    """

    name: str
    process: subprocess.Popen[bytes]
    ports: dict[str, int]
    ready: Callable[[], bool] = lambda: True
    announced: threading.Event = field(default_factory=threading.Event)


class Failed(Exception):
    """The demo cannot go on; the message says why."""


def answers(url: str) -> bool:
    try:
        with direct.open(url, timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def check_free(ports: dict[str, int]) -> None:
    """Raise Failed when a port is taken."""
    for option, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                other = port + 1000 if port + 1000 < 65536 else port - 1000
                raise Failed(
                    f"port {port} cannot be used ({error.strerror}); stop what listens there, "
                    f'or choose another: make demo ARGS="--{option} {other}"'
                ) from None


def start(
    name: str,
    ports: dict[str, int],
    *command: str,
    ready: Callable[[], bool] = lambda: True,
    env: dict[str, str] | None = None,
) -> Child:
    # A session of its own: Ctrl-C reaches only the launcher, which stops the children in order.
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    child = Child(name, process, ports, ready)
    assert process.stdout is not None
    threading.Thread(target=listen_to, args=(process.stdout, child.announced), daemon=True).start()
    return child


def listen_to(output: IO[bytes], announced: threading.Event) -> None:
    """Take a child's first line for its announcement, and pass on what else it prints."""
    with output:
        for line in output:
            if announced.is_set():
                print(line.decode(errors="replace"), end="", flush=True)
            announced.set()


def check_alive(child: Child) -> None:
    code = child.process.poll()
    if code is not None:
        check_free(child.ports)  # somebody else was quicker: that is the better reason
        raise Failed(f"{child.name} ended with exit code {code}")


def wait_ready(child: Child, stop: threading.Event) -> None:
    """Return once the child is ready or the user wants to stop; raises Failed when it ends or is late."""
    give_up = time.monotonic() + START_SECONDS
    while not stop.is_set():
        check_alive(child)
        if child.announced.is_set() and child.ready():
            print(f"  {child.name} is ready", flush=True)
            return
        if time.monotonic() > give_up:
            raise Failed(f"{child.name} was not ready within {START_SECONDS} s")
        stop.wait(0.1)


def watch(children: list[Child], stop: threading.Event) -> None:
    """Return when the user wants to stop; raises Failed when a child ends before."""
    while not stop.wait(0.5):
        for child in children:
            check_alive(child)


def stop_all(children: list[Child]) -> None:
    """Stop the last started first, so that the gateway leaves before its upstreams."""
    for child in reversed(children):
        child.process.terminate()
        try:
            child.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def start_server(name: str, port: int) -> Child:
    label = f"the MCP server {name} at http://127.0.0.1:{port}/mcp"
    return start(label, {f"{name}-port": port}, f"deploy.demo.{name}", "--port", str(port))


def time_server(published: Path) -> Path | None:
    """Return the Python that has mcp-server-time, None where it was not installed."""
    folder = published.resolve() / "venv" / "bin"
    return folder / "python" if (folder / "mcp-server-time").exists() else None


def start_gateway(ports: dict[str, int], endpoint: str, admin: str, time_python: Path | None) -> Child:
    variables = {f"DEMO_{option.upper().replace('-', '_')}": str(port) for option, port in ports.items()}
    config = "demo-offline.yaml"
    if time_python is not None:
        config = "demo.yaml"
        variables["DEMO_TIME_PYTHON"] = str(time_python)
    return start(
        f"the gateway at {endpoint}",
        {option: ports[option] for option in ("port", "admin-port")},
        *("gateway", "serve", "--json", "--config", str(ROOT / "config" / config)),
        ready=partial(answers, f"{admin}/readyz"),
        env=variables,
    )


def run(ports: dict[str, int], published: Path, stop: threading.Event) -> None:
    endpoint, admin = f"http://127.0.0.1:{ports['port']}/mcp", f"http://127.0.0.1:{ports['admin-port']}"
    check_free(ports)
    time_python = time_server(published)
    starts = [
        partial(start_server, "notes", ports["notes-port"]),
        partial(start_server, "clock", ports["clock-port"]),
        partial(start_gateway, ports, endpoint, admin, time_python),
    ]
    children: list[Child] = []
    print("Starting two MCP servers and the gateway", end="", flush=True)
    if time_python is not None:
        print(", which starts a third one", flush=True)
    else:
        print("\n  The third one, mcp-server-time, is not installed: PyPI could not be reached", flush=True)
    try:
        # One after the other: of two demos started at once, the one that has the first port has them all.
        for start_next in starts:
            if not stop.is_set():
                children.append(start_next())
                wait_ready(children[-1], stop)
        if not stop.is_set():
            print(
                f"\n# Try in a second terminal:\n\n{tour(endpoint, admin, third=time_python is not None)}\n",
                flush=True,
            )
            print("# Ctrl-C stops the demo.\n", flush=True)
            watch(children, stop)
    finally:
        print("\nStopping", flush=True)
        stop_all(children)


def port_number(text: str) -> int:
    """Return the port that an option names; raises ArgumentTypeError, which argparse prints."""
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is no port; choose a number from 1 to 65535")
    return int(text)


def read_options() -> tuple[dict[str, int], Path]:
    """Return every option's port and the published servers' folder; ends with 2 for wrong ports."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--port", type=port_number, default=8080, help="of the gateway's endpoint")
    parser.add_argument("--admin-port", type=port_number, default=9090, help="of health, status and metrics")
    parser.add_argument("--notes-port", type=port_number, default=9101)
    parser.add_argument("--clock-port", type=port_number, default=9102)
    parser.add_argument(
        "--published", type=Path, default=ROOT / ".published", help="where mcp-server-time is installed"
    )
    options = vars(parser.parse_args())
    published = options.pop("published")
    ports = {name.replace("_", "-"): port for name, port in options.items()}
    owners: dict[int, str] = {}
    for option, port in ports.items():
        if owners.setdefault(port, option) != option:
            parser.error(f"--{owners[port]} and --{option} are both {port}; each needs a port of its own")
    return ports, published


def main() -> int:
    ports, published = read_options()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        run(ports, published, stop)
    except Failed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
