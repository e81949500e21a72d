"""`make demo` for real: it starts, what it prints works as printed, Ctrl-C leaves nothing behind."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from mcp import Client

from tests.support.processes import Program, free_port, start

pytestmark = pytest.mark.timeout(60)


@dataclass
class Demo:
    """A running launcher, the script it printed and its ports."""

    program: Program
    script: str
    endpoint: str
    ports: list[int]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """Start the launcher on free ports and read what it prints until it says how to stop."""
    ports = [free_port() for _ in range(4)]
    options = ["--port", "--admin-port", "--notes-port", "--clock-port"]
    arguments = [text for pair in zip(options, map(str, ports), strict=True) for text in pair]
    program = start("deploy.demo", *arguments, stdout=subprocess.PIPE)
    assert program.process.stdout is not None
    try:
        lines = []
        for line in program.process.stdout:
            if line.startswith("# Ctrl-C"):
                break
            lines.append(line)
        script = "".join(lines).partition("# Try in a second terminal:")[2]
        assert script, f"{''.join(lines)}\n{program.written()}"
        yield Demo(program, script, f"http://127.0.0.1:{ports[0]}/mcp", ports)
    finally:
        program.process.stdout.close()
        program.close()


def run_script(script: str) -> str:
    """Run what was printed as a person would paste it."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_command_works_as_printed(demo: Demo) -> None:
    """All of it is one shell script; its answers are the ones promised."""
    output = run_script(demo.script)
    assert '"notes__add_note"' in output
    assert '"clock__current_time"' in output
    assert "Europe/Berlin" in output
    assert output.count("notifications/progress") == 4
    assert "Started tea for 3 min" in output
    assert re.search(r'^mcp_gateway_cache_lookups?_total{.*result="hit".*} [1-9]', output, re.MULTILINE)
    zones, zones_later, index, index_later = map(int, re.findall(r'^"ttlMs":(\d+)$', output, re.MULTILINE))
    assert 86_400_000 >= zones > zones_later
    assert 10_000 >= index > index_later
    assert {"notes", "clock"} <= set(re.findall(r'"(notes|clock)"', output.splitlines()[-1]))


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


def test_the_printed_bodies_are_json(demo: Demo) -> None:
    """A quick check that quoting did not break a body."""
    bodies = re.findall(r"-d '({.*})'", demo.script)
    assert len(bodies) >= 6
    assert all(json.loads(body)["jsonrpc"] == "2.0" for body in bodies)


def test_ctrl_c_stops_everything(demo: Demo) -> None:
    """Exit code 0, and all four ports are free again."""
    before = time.monotonic()
    demo.program.process.send_signal(signal.SIGINT)
    assert demo.program.wait(15) == 0
    assert time.monotonic() - before < 10
    for port in demo.ports:
        socket.create_server(("127.0.0.1", port)).close()
