"""Starts the programs a test needs as child processes, waits until they answer, and stops them again."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""What is asked runs on this machine: http_proxy is about others."""

ROOT = Path(__file__).resolve().parents[2]


class NotReady(Exception):
    """A program ended or said nothing before it was ready; the message holds what it wrote."""


@dataclass
class Program:
    """A running child process; what it writes goes to a file that is read back when something is wrong."""

    process: subprocess.Popen[str]
    output: IO[str]

    def written(self) -> str:
        self.output.seek(0)
        return self.output.read()

    def wait(self, timeout: float) -> int:
        return self.process.wait(timeout)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.close()


def free_port() -> int:
    """Return a port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(*arguments: str, env: Mapping[str, str] | None = None, stdout: int | None = None) -> Program:
    """Start `python -m ARGUMENTS`; without `stdout` both streams go to the output file."""
    return launch(sys.executable, "-m", *arguments, env=env, stdout=stdout)


def launch(
    *command: str,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    cwd: Path = ROOT,
    user: int | None = None,
) -> Program:
    """Start any command; as for `start`. Another `user` is in the group of the same number alone."""
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the program
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=output if stdout is None else stdout,
        stderr=output,
        start_new_session=True,
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    return Program(process, output)


def _wait_until(ready: Callable[[], bool], what: str, program: Program, timeout: float) -> None:
    # A process that starts sends no event to wait for: asking again is all there is.
    give_up = time.monotonic() + timeout
    while not ready():
        if program.process.poll() is not None:
            raise NotReady(f"exit code {program.process.returncode}\n{program.written()}")
        if time.monotonic() > give_up:
            raise NotReady(f"no answer from {what} in {timeout} s\n{program.written()}")
        time.sleep(0.05)


def status_of(url: str) -> int | None:
    """Return the HTTP status of a GET, None when nobody answers."""
    try:
        with _DIRECTLY.open(url, timeout=1) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None


def text_of(url: str) -> str:
    """Return what a GET is answered with."""
    with _DIRECTLY.open(url, timeout=10) as response:
        return str(response.read().decode())


def wait_for(url: str, program: Program, status: int = 200, timeout: float = 15) -> None:
    """Return once `url` answers with this status; raises NotReady."""
    _wait_until(lambda: status_of(url) == status, url, program, timeout)


def wait_for_port(port: int, program: Program, timeout: float = 15, *, host: str = "127.0.0.1") -> None:
    """Return once somebody listens on a port; raises NotReady."""

    def listening() -> bool:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            return False
        return True

    _wait_until(listening, f"port {port} of {host}", program, timeout)


@contextmanager
def reference_server(*options: str) -> Iterator[str]:
    """Run the reference upstream and yield its URL."""
    program = start("tests.support.everything", "--port", "0", *options, stdout=subprocess.PIPE)
    assert program.process.stdout is not None
    try:
        url = program.process.stdout.readline().strip()
        if not url:
            raise NotReady(program.written())
        wait_for(url.removesuffix("/mcp") + "/debug/state", program)
        yield url
    finally:
        program.process.stdout.close()
        program.close()


@dataclass
class RunningGateway:
    """A gateway process and where it listens."""

    program: Program
    endpoint: str
    admin: str
    config: Path


@contextmanager
def gateway(upstreams: str, more: str = "", *options: str) -> Iterator[RunningGateway]:
    """Run `serve` with these upstreams (a YAML mapping) and options, and yield it once it is ready."""
    listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write(f"listen: {listen}\nadmin: {admin}\nupstreams: {upstreams}\n{more}\n")
        config.flush()
        program = start("gateway", "serve", "--config", config.name, *options)
        try:
            wait_for(f"http://{admin}/readyz", program, timeout=90 if options else 15)
            yield RunningGateway(program, f"http://{listen}/mcp", f"http://{admin}", Path(config.name))
        finally:
            program.close()
