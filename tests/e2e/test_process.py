"""The command line as a process: how it starts, how it refuses to, how it stops."""

import asyncio
import signal
import socket
import time
from pathlib import Path

from mcp import Client, MCPError

from tests.support.processes import RunningGateway, free_port, gateway, start, wait_for

VERSION = "2026-07-28"


def serve(folder: Path, text: str) -> tuple[int, str]:
    """Run `serve` on a config that must not start; return the exit code and what was written."""
    config = folder / "gateway.yaml"
    config.write_text(text)
    program = start("gateway", "serve", "--config", str(config))
    try:
        return program.wait(10), program.written()
    finally:
        program.close()


async def call_slowly(
    running: RunningGateway, pace: float, started: asyncio.Event
) -> dict[str, object] | None:
    """Call the slow tool; set the event with its first progress."""

    async def progress(done: float, total: float | None, message: str | None) -> None:
        started.set()

    async with Client(running.endpoint, mode=VERSION, cache=None) as client:
        await client.list_tools()  # else the client asks for it after the call, when nobody listens any more
        result = await client.call_tool("notes__summarise_notes", {"pace": pace}, progress_callback=progress)
        return result.structured_content


def test_sigterm_ends_an_idle_gateway_with_0(demo_upstreams: str) -> None:
    """Nothing to wait for: it is gone at once."""
    with gateway(demo_upstreams) as running:
        before = time.monotonic()
        running.program.process.send_signal(signal.SIGTERM)
        assert running.program.wait(5) == 0
        assert time.monotonic() - before < 3


def test_ctrl_c_is_a_clean_stop_too(demo_upstreams: str) -> None:
    """SIGINT, no traceback."""
    with gateway(demo_upstreams) as running:
        running.program.process.send_signal(signal.SIGINT)
        assert running.program.wait(5) == 0
        assert "Traceback" not in running.program.written()
        assert "cursors, sessions and ids of tasks are sealed with a random key" in running.program.written()


def test_a_rolling_restart_of_one_process_is_refused_and_survived(demo_upstreams: str) -> None:
    """SIGUSR2 would end it otherwise."""
    with gateway(demo_upstreams) as running:
        running.program.process.send_signal(signal.SIGUSR2)
        wait_for(f"{running.admin}/readyz", running.program, 200)
        running.program.process.send_signal(signal.SIGTERM)
        assert running.program.wait(5) == 0
        assert "a rolling restart needs several processes: serve --workers" in running.program.written()


async def test_a_running_call_ends_before_the_gateway_does(demo_upstreams: str) -> None:
    """SIGTERM turns readiness off at once; the call still gets its result; then exit code 0 (B50)."""
    with gateway(demo_upstreams) as running:
        started = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(call_slowly(running, 0.5, started))
            await asyncio.wait_for(started.wait(), 10)
            running.program.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_for, f"{running.admin}/readyz", running.program, 503)
            await asyncio.to_thread(wait_for, f"{running.admin}/healthz", running.program, 200)
        summary = call.result()
        assert summary is not None
        assert summary["notes"] == 3
        assert await asyncio.to_thread(running.program.wait, 5) == 0


async def test_the_grace_is_bounded_and_what_still_runs_gets_an_error(demo_upstreams: str) -> None:
    """A call longer than shutdown_grace ends with an error, and the process with 0 (B50)."""
    with gateway(demo_upstreams, "shutdown_grace: 300ms") as running:
        started = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(_outcome(call_slowly(running, 5, started)))
            await asyncio.wait_for(started.wait(), 10)
            running.program.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(running.program.wait, 5) == 0
        assert isinstance(call.result(), MCPError)


async def test_a_second_signal_ends_it_at_once_with_1(demo_upstreams: str) -> None:
    """Whoever asks twice means now."""
    with gateway(demo_upstreams, "shutdown_grace: 60s") as running:
        started = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(_outcome(call_slowly(running, 5, started)))
            await asyncio.wait_for(started.wait(), 10)
            running.program.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_for, f"{running.admin}/readyz", running.program, 503)
            running.program.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(running.program.wait, 5) == 1


async def _outcome(call: object) -> object:
    """Return what a call came to, an exception included."""
    (outcome,) = await asyncio.gather(call, return_exceptions=True)  # type: ignore[call-overload]
    while isinstance(outcome, BaseExceptionGroup):
        outcome = outcome.exceptions[0]
    return outcome


def test_a_port_in_use_is_named_and_is_no_traceback(tmp_path: Path) -> None:
    """The start fails with the address, at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, written = serve(
            tmp_path,
            f"listen: {address}\nadmin: 127.0.0.1:{free_port()}\nupstreams: {{a: 'http://127.0.0.1:1/mcp'}}\n",
        )
    assert code == 1
    assert address in written
    assert "Traceback" not in written


def test_a_config_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    """Exit code 2, and the nearest known key."""
    code, written = serve(tmp_path, "listen: 127.0.0.1:0\nupstream: {a: 'http://127.0.0.1:1/mcp'}\n")
    assert code == 2
    assert "gateway.yaml:2" in written
    assert "upstreams" in written


def test_upstreams_that_are_down_do_not_keep_it_from_starting() -> None:
    """It is ready without them and says so."""
    with gateway(f"{{gone: 'http://127.0.0.1:{free_port()}/mcp'}}") as running:
        assert running.program.process.poll() is None
