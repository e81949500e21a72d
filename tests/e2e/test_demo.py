"""`make demo` for real: it starts, what it prints works as printed, Ctrl-C leaves nothing behind."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import zoneinfo
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp import Client

from deploy.demo.__main__ import Failed, start_server, stop_all, wait_ready
from tests.support.kin import alive, family
from tests.support.processes import ROOT, Program, free_port, start, wait_for
from tests.support.published import python_server

pytestmark = pytest.mark.timeout(60)

OPTIONS = ("--port", "--admin-port", "--notes-port", "--clock-port")
# Nothing answers at the discard port: whoever goes through this proxy fails.
DEAD_PROXY = {name: "http://127.0.0.1:9" for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")}
BEHIND_A_PROXY = {**DEAD_PROXY, "no_proxy": "", "NO_PROXY": ""}


@dataclass
class Demo:
    """A running launcher, the script it printed and its ports."""

    program: Program
    script: str
    endpoint: str
    ports: list[int]


def launch(ports: list[int], *more: str, **options: int | None) -> Program:
    """Start the launcher on these ports, where the environment names a proxy that leads nowhere."""
    arguments = [text for pair in zip(OPTIONS, map(str, ports), strict=True) for text in pair]
    return start("deploy.demo", *arguments, *more, env=BEHIND_A_PROXY, **options)


def told(program: Program) -> str:
    """Return what the launcher prints until it says how to stop."""
    assert program.process.stdout is not None
    lines = []
    for line in program.process.stdout:
        if line.startswith("# Ctrl-C"):
            break
        lines.append(line)
    return "".join(lines)


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """Start the launcher on free ports and read what it prints until it says how to stop."""
    ports = [free_port() for _ in range(4)]
    program = launch(ports, stdout=subprocess.PIPE)
    assert program.process.stdout is not None
    try:
        printed = told(program)
        script = printed.partition("# Try in a second terminal:")[2]
        assert script, f"{printed}\n{program.written()}"
        yield Demo(program, script, f"http://127.0.0.1:{ports[0]}/mcp", ports)
    finally:
        program.process.stdout.close()
        program.close()


def run_script(script: str) -> str:
    """Run what was printed as a person would paste it, behind a proxy too."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, **BEHIND_A_PROXY},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_command_works_as_printed(demo: Demo) -> None:
    """All of it is one shell script; its answers are the ones promised."""
    python_server("mcp_server_time")  # raises where it is not installed, and how it would be
    output = run_script(demo.script)
    assert '"notes__add_note"' in output
    assert '"clock__current_time"' in output
    assert "Europe/Berlin" in output
    assert output.count("notifications/progress") == 4
    assert "Started tea for 3 min" in output
    heard = set(re.findall(r'"method":"notifications/(?!progress)([a-z_/]+)"', output))
    assert heard == {"subscriptions/acknowledged", "tools/list_changed", "resources/updated"}
    assert "[notes] Delete Public and private?" in output
    assert '"Deleted Public and private"' in output
    created, *polled = re.findall(r'"status":"(\w+)"', output)
    assert (created, len(polled), polled[-1]) == ("working", 4, "completed")
    assert '"frequent_words"' in output
    assert re.search(r'^mcp_gateway_cache_lookups?_total{.*result="hit".*} [1-9]', output, re.MULTILINE)
    zones, zones_later, index, index_later = map(int, re.findall(r'^"ttlMs":(\d+)$', output, re.MULTILINE))
    assert 86_400_000 >= zones > zones_later
    assert 10_000 >= index > index_later
    # The published program: listed, and called by a client of either era.
    assert '"time__convert_time"' in output
    assert len(re.findall(r"T(?:19|20):00:00\+09:00", output)) >= 2
    assert '"protocolVersion":"2025-11-25"' in output
    statuses = set(re.findall(r'"(notes|clock|time)"', output.splitlines()[-1]))
    assert statuses == {"notes", "clock", "time"}


def test_without_the_registry_it_goes_on_with_two_servers(tmp_path: Path) -> None:
    """It says so, and its tour asks nothing of the third."""
    program = launch([free_port() for _ in range(4)], "--published", str(tmp_path), stdout=subprocess.PIPE)
    assert program.process.stdout is not None
    try:
        printed = told(program)
        assert "mcp-server-time, is not installed: PyPI could not be reached" in printed
        assert "clock__current_time" in printed
        assert "time__convert_time" not in printed
        program.process.send_signal(signal.SIGINT)
        assert program.wait(15) == 0
    finally:
        program.process.stdout.close()
        program.close()


async def test_the_tool_list_changes_while_a_timer_runs(demo: Demo) -> None:
    """The list is good for five seconds; after that the new tool is there."""
    async with Client(demo.endpoint, mode="2026-07-28", cache=None) as client:
        await client.call_tool("clock__start_timer", {"name": "egg", "minutes": 1})
        async with asyncio.timeout(10):
            # Only the clock makes a list stale: asking again is the test.
            while "clock__stop_timer" not in {tool.name for tool in (await client.list_tools()).tools}:  # noqa: ASYNC110
                await asyncio.sleep(0.25)
        stopped = await client.call_tool("clock__stop_timer", {"name": "egg"})
        assert not stopped.is_error


def test_a_second_demo_says_which_port_is_taken_and_what_to_do(demo: Demo) -> None:
    """It starts nothing and ends with 1."""
    second = start("deploy.demo", "--port", str(demo.ports[0]))
    try:
        assert second.wait(10) == 1
        assert f"port {demo.ports[0]} cannot be used" in second.written()
        assert "make demo ARGS=" in second.written()
    finally:
        second.close()


def test_of_two_demos_started_at_once_one_runs() -> None:
    """The other one ends with the port it missed, and leaves the first alone."""
    ports = [free_port() for _ in range(4)]
    rivals = [launch(ports), launch(ports)]
    try:
        with ThreadPoolExecutor(2) as pool:
            ends = {pool.submit(rival.wait, 40): rival for rival in rivals}
            ended, running = wait(ends, return_when=FIRST_COMPLETED)
            assert len(ended) == len(running) == 1
            loser, winner = ends[ended.pop()], ends[running.pop()]
            assert loser.wait(0) == 1
            assert re.search(rf"port ({'|'.join(map(str, ports))}) cannot be used", loser.written())
            wait_for(f"http://127.0.0.1:{ports[1]}/readyz", winner, timeout=30)
            winner.process.send_signal(signal.SIGINT)
        assert winner.wait(15) == 0
    finally:
        for rival in rivals:
            rival.close()


def test_what_answers_at_a_port_is_not_taken_for_the_demos_own_server() -> None:
    """A port that was free when it was checked and is somebody else's now."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        child = start_server("notes", port)
        try:
            with pytest.raises(Failed, match=f"port {port} cannot be used"):
                wait_ready(child, threading.Event())
        finally:
            stop_all([child])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--port 99999", "--port: 99999 is no port; choose a number from 1 to 65535"),
        ("--clock-port 0", "--clock-port: 0 is no port"),
        ("--notes-port http", "--notes-port: http is no port"),
        ("--port 9090", "--port and --admin-port are both 9090; each needs a port of its own"),
    ],
)
def test_ports_that_cannot_be_are_refused_before_anything_starts(arguments: str, complaint: str) -> None:
    """Wrong usage is 2, with a sentence in place of a traceback."""
    program = start("deploy.demo", *arguments.split())
    try:
        assert program.wait(10) == 2
        assert complaint in program.written()
        assert "Starting" not in program.written()
    finally:
        program.close()


def test_the_first_installation_says_that_it_takes_a_while(tmp_path: Path) -> None:
    """Once: the second time there is nothing to install. `true` stands in for Python."""
    # By itself make names the folder it enters when it was called by another, as in `make test`.
    command = ["make", "--no-print-directory", f"{tmp_path}/.python", f"VENV={tmp_path}", "PYTHON=true"]
    told = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(2)]
    assert told[0].stdout == f"Installing into {tmp_path} (about a minute, once)\n"
    assert "Installing" not in told[1].stdout


def test_the_clock_knows_its_zones_on_a_system_without_zone_files() -> None:
    """Slim images have none; the demo brings its own."""
    zoneinfo.reset_tzpath(to=[])
    try:
        assert "Europe/Berlin" in zoneinfo.available_timezones()
    finally:
        zoneinfo.reset_tzpath()


def test_the_printed_bodies_are_json(demo: Demo) -> None:
    """A quick check that quoting did not break a body."""
    bodies = re.findall(r"-d '({.*})'", demo.script)
    assert len(bodies) >= 6
    assert all(json.loads(body)["jsonrpc"] == "2.0" for body in bodies)


def test_ctrl_c_stops_everything(demo: Demo) -> None:
    """Exit code 0, all four ports are free again, and of all the processes below it none is left."""
    children = family(demo.program.process.pid)
    assert len(children) >= 3
    before = time.monotonic()
    demo.program.process.send_signal(signal.SIGINT)
    assert demo.program.wait(15) == 0
    assert time.monotonic() - before < 10
    for port in demo.ports:
        socket.create_server(("127.0.0.1", port)).close()
    give_up = time.monotonic() + 10
    while left := [child for child in children if alive(child)]:
        assert time.monotonic() < give_up, f"still running: {left}"
        time.sleep(0.05)
