"""A gateway whose stderr nobody reads: it works as any other, and ends when it is told to."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tty
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Program, free_port, status_of, wait_for

pytestmark = pytest.mark.timeout(60)


def pipe() -> tuple[int, int]:
    return os.pipe()


def terminal() -> tuple[int, int]:
    reader, writer = pty.openpty()
    tty.setraw(writer)
    return reader, writer


def journal() -> tuple[int, int]:
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


def fill(writer: int) -> None:
    """Write until there is room for nothing."""
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 512)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)


@pytest.fixture(params=[pipe, terminal, journal], ids=["pipe", "terminal", "journal"])
def full(request: pytest.FixtureRequest) -> Iterator[int]:
    """A place for stderr that takes nothing."""
    reader, writer = request.param()
    fill(writer)
    yield writer
    os.close(reader)
    os.close(writer)


def test_serving_goes_on_and_ends(full: int, tmp_path: Path) -> None:
    """With records of the start, of requests, of a purge, of a reload and of the end."""
    listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: {listen}\nadmin: {admin}\nlog: {{level: debug}}\nupstreams: {{a: 'http://127.0.0.1:9/mcp'}}\n"
    )
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    with (tmp_path / "out").open("w+") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=full, text=True)
        program = Program(process, output)
        try:
            wait_for(f"http://{admin}/healthz", program, timeout=30)
            assert status_of(f"http://{listen}/mcp") == 405
            purge = urllib.request.Request(
                f"http://{admin}/purge", b'{"all": true}', {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(purge, timeout=10) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGHUP)
            assert status_of(f"http://{admin}/healthz") == 200
            process.send_signal(signal.SIGTERM)
            assert program.wait(30) == 0
        finally:
            process.kill()
            process.wait()


def test_a_desktop_client_may_leave_it_alone(full: int, tmp_path: Path) -> None:
    """Over stdio it answers all the same, and ends with its input."""
    file = tmp_path / "gateway.yaml"
    file.write_text("log: {level: debug}\nupstreams: {a: 'http://127.0.0.1:9/mcp'}\n")
    command = [sys.executable, "-m", "gateway", "stdio", "--config", str(file)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=full, text=True
    )
    try:
        ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "no/such"})
        out, _ = process.communicate(f"{ping}\n", timeout=30)
        assert json.loads(out)["id"] == 1
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_one_whose_streams_are_closed_serves_all_the_same(closed: str, tmp_path: Path) -> None:
    """What it would log goes nowhere, and least of all where something else was opened since."""
    file = tmp_path / "gateway.yaml"
    admin = f"127.0.0.1:{free_port()}"
    file.write_text(f"listen: 127.0.0.1:0\nadmin: {admin}\nupstreams: {{a: 'http://127.0.0.1:9/mcp'}}\n")
    command = f"exec {sys.executable} -m gateway serve --config {file} {closed}"
    with (tmp_path / "out").open("w+") as output:
        process = subprocess.Popen(command, shell=True, cwd=ROOT, stdout=output, text=True)
        program = Program(process, output)
        try:
            wait_for(f"http://{admin}/healthz", program, timeout=30)
            assert os.readlink(f"/proc/{process.pid}/fd/2") == os.devnull
            process.send_signal(signal.SIGTERM)
            assert program.wait(30) == 0
        finally:
            process.kill()
            process.wait()
