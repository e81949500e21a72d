"""Runs the demo: both upstreams and the gateway as child processes, until Ctrl-C."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deploy.demo.tour import tour

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30
STOP_SECONDS = 15


@dataclass
class Child:
    """One process of the demo and how to tell that it is ready."""

    name: str
    process: subprocess.Popen[bytes]
    ready: Callable[[], bool]


class Failed(Exception):
    """The demo cannot go on; the message says why."""


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def check_free(ports: dict[str, int]) -> None:
    """Raise Failed when a port is taken, before anything is started."""
    for option, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise Failed(
                    f"port {port} cannot be used ({error.strerror}); stop what listens there, "
                    f'or choose another: make demo ARGS="--{option} {port + 1000}"'
                ) from None


def start(name: str, ready: Callable[[], bool], *command: str, env: dict[str, str] | None = None) -> Child:
    # A session of its own: Ctrl-C reaches only the launcher, which stops the children in order.
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    return Child(name, process, ready)


def check_alive(child: Child) -> None:
    code = child.process.poll()
    if code is not None:
        raise Failed(f"{child.name} ended with exit code {code}")


def wait_ready(child: Child, stop: threading.Event) -> None:
    """Return once the child is ready or the user wants to stop; raises Failed when it ends or is late."""
    give_up = time.monotonic() + START_SECONDS
    while not stop.is_set():
        check_alive(child)
        if child.ready():
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


def run(ports: dict[str, int], stop: threading.Event) -> None:
    endpoint, admin = f"http://127.0.0.1:{ports['port']}/mcp", f"http://127.0.0.1:{ports['admin-port']}"
    check_free(ports)
    children: list[Child] = []
    print("Starting two MCP servers and the gateway", flush=True)
    try:
        for name in ("notes", "clock"):
            port = ports[f"{name}-port"]
            label = f"the MCP server {name} at http://127.0.0.1:{port}/mcp"
            module = f"deploy.demo.{name}"
            children.append(start(label, partial(listening, port), module, "--port", str(port)))
        for child in children:
            wait_ready(child, stop)
        variables = {f"DEMO_{option.upper().replace('-', '_')}": str(port) for option, port in ports.items()}
        serve = ("gateway", "serve", "--config", str(ROOT / "config" / "demo.yaml"))
        ready = partial(answers, f"{admin}/readyz")
        children.append(start(f"the gateway at {endpoint}", ready, *serve, env=variables))
        wait_ready(children[-1], stop)
        if not stop.is_set():
            print(f"\n# Try in a second terminal:\n\n{tour(endpoint, admin)}\n", flush=True)
            print("# Ctrl-C stops the demo.\n", flush=True)
            watch(children, stop)
    finally:
        print("\nStopping", flush=True)
        stop_all(children)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="of the gateway's endpoint")
    parser.add_argument("--admin-port", type=int, default=9090, help="of health, status and metrics")
    parser.add_argument("--notes-port", type=int, default=9101)
    parser.add_argument("--clock-port", type=int, default=9102)
    ports = {name.replace("_", "-"): port for name, port in vars(parser.parse_args()).items()}
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        run(ports, stop)
    except Failed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
