"""Several processes behind one address: how they start, serve, are replaced, and end; as real processes.

Clients keep their connections or make a new one for each request, and nothing of theirs may fail while a
worker is replaced in an orderly way.
"""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio

from gateway.server import Addresses
from tests.support.certificates import Authority
from tests.support.events import Events
from tests.support.legacy_client import LegacyClient
from tests.support.processes import ROOT, Program, RunningGateway, gateway, launch, start, text_of, wait_for
from tests.support.redis import RedisServer, redis_server
from tests.support.running import Reachable, message
from tests.support.scripted import VERSION, ScriptedUpstream, default, hang, tool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Mcp-Protocol-Version": VERSION,
    "Mcp-Method": "tools/call",
    "Mcp-Name": "alpha__a",
}
REPLACED = 'mcp_gateway_worker_ends_total{cause="replaced"}'
CRASHED = 'mcp_gateway_worker_ends_total{cause="crashed"}'
CALLS = ("mcp_server_operation_duration_seconds_count{", 'mcp_method_name="tools/call"')


@dataclass
class Crew(Reachable):
    """A gateway of several processes."""

    running: RunningGateway

    @property
    def program(self) -> Program:
        return self.running.program

    def signal(self, number: int) -> None:
        """Send the supervisor a signal."""
        self.program.process.send_signal(number)

    async def status(self) -> dict[str, Any]:
        return dict((await self.admin("/status.json"))[1])

    async def pids(self) -> list[int]:
        """Return the processes of the workers that are ready, by place."""
        return [each["pid"] for each in (await self.status())["workers"] if each["state"] == "ready"]

    async def until(self, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Wait until this holds of what the status says of the workers."""
        while not holds(workers := (await self.status())["workers"]):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.05)
        return workers

    async def until_config(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until this holds of what the status says of the configuration."""
        while not holds((await self.status())["config"]):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)

    async def counted(self, sample: str, of: str = "") -> float:
        """Return the sum of what the lines of metrics say that begin so, and have this in them."""
        assert self.addresses.admin is not None
        text = await asyncio.to_thread(text_of, f"{self.addresses.admin}/metrics")
        found = [line for line in text.splitlines() if line.startswith(sample) and of in line]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    async def ended(self, pid: int) -> None:
        """Wait until a process is no more."""
        while _is_there(pid):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)


def _is_there(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def all_ready(workers: list[dict[str, Any]]) -> bool:
    return all(each["state"] == "ready" for each in workers)


def _any_of(pids: list[int], workers: list[dict[str, Any]]) -> bool:
    """Whether one of these processes is still a worker."""
    return any(each["pid"] in pids for each in workers)


class Load:
    """Clients that call a tool again and again, and remember what did not work."""

    def __init__(self, crew: Crew, clients: int = 6) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._crew = crew
        self._clients = clients
        self._done = asyncio.Event()
        self._body = message("tools/call", {"name": "alpha__a", "arguments": {}}, id=1)

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._client(stays=bool(n % 2))) for n in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        await asyncio.gather(*self._tasks)

    async def more(self, answers: int) -> None:
        """Wait until so many more were answered."""
        wanted = self.answered + answers
        while self.answered < wanted:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)

    async def _client(self, *, stays: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=not stays)
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self._done.is_set():
                try:
                    await self._call(session)
                except (aiohttp.ClientError, OSError) as error:
                    self.failed.append(repr(error))
                await asyncio.sleep(0.01)

    async def _call(self, session: aiohttp.ClientSession) -> None:
        url = self._crew.addresses.endpoints[0]
        async with session.post(url, data=self._body, headers=HEADERS) as answer:
            text = await answer.text()
            if answer.status == 200 and '"content"' in text:
                self.answered += 1
            else:
                self.failed.append(f"{answer.status} {text[:200]}")


def settings(redis: RedisServer, grace: str = "10s") -> str:
    return (
        f"cache: {{redis: '{redis.url}', redis_timeout: 500ms}}\nsecrets: {{keys: [0123456789abcdef-key]}}\n"
        f"shutdown_grace: {grace}"
    )


@asynccontextmanager
async def crew_of(
    redis: RedisServer, upstreams: str, workers: int = 2, grace: str = "10s"
) -> AsyncIterator[Crew]:
    """Run so many workers."""
    running = gateway(upstreams, settings(redis, grace), "--workers", str(workers))
    entered = await asyncio.to_thread(running.__enter__)
    try:
        yield Crew(Addresses((entered.endpoint,), entered.admin), entered)
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        yield upstream


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crew(redis: RedisServer, alpha: ScriptedUpstream) -> AsyncIterator[Crew]:
    """Run two workers for the tests of this file that leave them as they are, or as good."""
    async with crew_of(redis, f"{{alpha: '{alpha.url}'}}") as crew:
        yield crew


async def test_one_address_is_served_by_all_of_them(crew: Crew) -> None:
    """Each has its own process, and what operators ask is answered for all."""
    pids = await crew.pids()
    assert len(set(pids)) == 2
    assert crew.program.process.pid not in pids
    code, ready = await crew.admin("/readyz")
    assert code == 200
    assert ready["workers"] == {"ready": 2, "of": 2}
    assert ready["upstreams"] == {"alpha": "up"}
    assert (await crew.ask("tools/list")).names == ["alpha__a"]


async def test_operators_ask_all_of_them_as_one(crew: Crew) -> None:
    """A purge by one is a purge of all, for they share their cache."""
    code, said = await crew.admin("/explain?method=tools/list")
    assert (code, said["method"]) == (200, "tools/list")
    code, said = await crew.admin("/purge", {"upstream": "alpha", "method": "tools/list"})
    assert (code, said["purged"][0]["upstream"]) == (200, "alpha")
    code, said = await crew.admin("/catalogue.json?q=alpha&read=true")
    assert (code, [item["name"] for item in said["items"]]) == (200, ["alpha__a"])
    code, said = await crew.admin("/catalogue.json?endpoint=/nowhere")
    assert (code, said["error"]) == (400, "there is no endpoint '/nowhere': /mcp")
    page = await asyncio.to_thread(text_of, f"{crew.addresses.admin}/status")
    assert page.startswith("<!doctype html>")
    code, said = await crew.admin("/nothing")
    assert code == 404


PURGE = "POST /purge HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        (("Content-Length: 12\r\n\r\n", '{"all"', ":true}"), 200),
        (("Transfer-Encoding: chunked\r\n\r\n", '6\r\n{"all"\r\n', "6\r\n:true}\r\n0\r\n\r\n"), 200),
        (("Expect: 100-continue\r\nContent-Length: 12\r\n\r\n", '{"all":true}'), 200),
        (("Content-Length: 12\r\n\r\n", '{"all"'), 408),
        (("Content-Length: 70000\r\n\r\n",), 413),
    ],
    ids=["pieces", "chunks", "expect", "unfinished", "long"],
)
async def test_what_operators_send_is_waited_for(crew: Crew, pieces: tuple[str, ...], code: int) -> None:
    """In however many pieces it comes, but not for ever."""
    assert crew.addresses.admin is not None
    at = urlsplit(crew.addresses.admin)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        writer.write(PURGE.encode())
        for piece in pieces:
            writer.write(piece.encode())
            await writer.drain()
            # What is answered meanwhile came after this piece was read, so the next one is another.
            assert (await crew.admin("/healthz"))[0] == 200
        assert int((await reader.readline()).split(b" ")[1]) == code
    finally:
        writer.transport.abort()


async def test_the_status_is_seen_to_change(crew: Crew) -> None:
    """By whoever looks at the page: the whole first, merged, and then what is different."""
    killed, other = await crew.pids()
    async with (
        aiohttp.ClientSession(read_bufsize=2**20) as session,
        session.get(f"{crew.addresses.admin}/status/events") as response,
    ):
        events = Events(response)
        event, whole = await events.next()
        assert event == "whole"
        assert [each["pid"] for each in whole["workers"]] == [killed, other]
        assert whole["upstreams"]["alpha"]["state"] == "up"
        os.kill(killed, signal.SIGKILL)
        pids = [killed, other]
        while killed in pids or None in pids:
            event, change = await events.next()
            assert event == "change"
            if "workers" in change:
                pids = [each.get("pid") for each in change["workers"]]
        assert pids[1] == other
    await crew.until(all_ready)


async def test_a_rolling_restart_loses_nothing(crew: Crew) -> None:
    """One process after the other is replaced; every call is answered meanwhile, and counted once."""
    before, counted = await crew.pids(), await crew.counted(*CALLS)
    replaced = await crew.counted(REPLACED)
    async with Load(crew) as load:
        await load.more(20)
        crew.signal(signal.SIGUSR2)
        await crew.until(lambda workers: all_ready(workers) and not _any_of(before, workers))
        for pid in before:
            await crew.ended(pid)
        await load.more(20)
    assert load.failed == []
    assert await crew.counted(*CALLS) - counted == load.answered
    assert await crew.counted(REPLACED) == replaced + 2


async def test_a_session_of_an_older_client_outlives_the_processes(crew: Crew) -> None:
    """Whichever of them it began in, and whichever its next request comes to."""
    async with LegacyClient(crew.addresses.endpoints[0]) as client:
        for _ in range(6):
            assert [one["name"] for one in (await client.result("tools/list"))["tools"]] == ["alpha__a"]
        before = await crew.pids()
        crew.signal(signal.SIGUSR2)
        await crew.until(lambda workers: all_ready(workers) and not _any_of(before, workers))
        for _ in range(6):
            assert [one["name"] for one in (await client.result("tools/list"))["tools"]] == ["alpha__a"]
        assert await client.delete() in (200, 204)


async def test_a_stream_of_an_older_client_hears_what_any_of_them_is_told(
    crew: Crew, alpha: ScriptedUpstream
) -> None:
    """One of the workers listens to the upstream, and all tell their clients."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(LegacyClient(crew.addresses.endpoints[0])) for _ in range(4)
        ]
        for client in clients:
            await client.result("tools/list")
        streams = [await stack.enter_async_context(client.listen()) for client in clients]
        alpha.tools = [tool("a"), tool("b")]
        try:
            code, _ = await crew.admin("/purge", {"upstream": "alpha", "method": "tools/list"})
            assert code == 200
            for stream in streams:
                assert (await stream.next())["method"] == "notifications/tools/list_changed"
        finally:
            alpha.tools = [tool("a")]
            await crew.admin("/purge", {"upstream": "alpha", "method": "tools/list"})


async def test_a_worker_that_is_killed_is_replaced(crew: Crew) -> None:
    """At once, the first time; the address is served all along, and what was counted stays."""
    killed, other = await crew.pids()
    async with Load(crew) as load:
        await load.more(20)
    counted, crashed = await crew.counted(*CALLS), await crew.counted(CRASHED)
    restarts = [each["restarts"] for each in (await crew.status())["workers"]]
    os.kill(killed, signal.SIGKILL)
    await crew.ended(killed)
    for _ in range(10):
        assert (await crew.ask("tools/list")).status == 200
    workers = await crew.until(
        lambda workers: all_ready(workers) and killed not in [each["pid"] for each in workers]
    )
    assert workers[1]["pid"] == other
    assert [each["restarts"] for each in workers] == [restarts[0] + 1, restarts[1]]
    assert await crew.counted(*CALLS) == counted > 20
    assert await crew.counted(CRASHED) == crashed + 1
    assert (
        await crew.counted("mcp_gateway_workers ") == await crew.counted("mcp_gateway_workers_wanted ") == 2
    )
    assert await crew.counted('mcp_gateway_worker_resident_memory_bytes{worker="2"}') > 0


HANGS_SOON = """
import sys
from gateway.supervisor import worker
worker.SILENT = 6.0
from gateway.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


async def test_a_worker_that_hangs_is_replaced(
    tmp_path: Path, redis: RedisServer, alpha: ScriptedUpstream
) -> None:
    """The system sends it clients, but it does nothing: the log says so, and it is killed."""
    config = tmp_path / "gateway.yaml"
    config.write_text(f"{settings(redis)}\nupstreams: {{alpha: '{alpha.url}'}}\n")
    places = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json", "--workers", "2")
    arguments = ("-c", HANGS_SOON, "serve", "--config", str(config), *places)
    program = launch(sys.executable, *arguments, stdout=subprocess.PIPE)
    try:
        assert program.process.stdout is not None
        said = json.loads(await asyncio.to_thread(program.process.stdout.readline))
        running = RunningGateway(program, said["endpoints"]["/mcp"], said["admin"], config)
        crew = Crew(Addresses((running.endpoint,), running.admin), running)
        hanging, other = [each["pid"] for each in await crew.until(all_ready)]
        os.kill(hanging, signal.SIGSTOP)
        workers = await crew.until(
            lambda workers: all_ready(workers) and hanging not in [each["pid"] for each in workers]
        )
        assert [each["restarts"] for each in workers] == [1, 0]
        assert workers[1]["pid"] == other
        assert f"worker 1, pid {hanging}, hangs and is killed: it has said nothing for " in program.written()
        assert not _is_there(hanging)
        for _ in range(10):
            assert (await crew.ask("tools/list")).status == 200
    finally:
        if program.process.stdout is not None:
            program.process.stdout.close()
        await asyncio.to_thread(program.close)


async def test_sigterm_lets_all_of_them_finish(redis: RedisServer) -> None:
    """What runs gets its answer, the exit code is 0, and nobody is left."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        crew_of(redis, f"{{alpha: '{alpha.url}'}}") as crew,
    ):
        release = asyncio.Event()
        alpha.on("tools/call", hang(until=release, then=default))
        pids = await crew.pids()
        call = asyncio.create_task(crew.ask("tools/call", {"name": "alpha__a", "arguments": {}}))
        await alpha.arrived("tools/call")
        crew.signal(signal.SIGTERM)
        await asyncio.to_thread(wait_for, f"{crew.running.admin}/readyz", crew.program, 503)
        release.set()
        assert (await call).status == 200
        assert await asyncio.to_thread(crew.program.wait, 20) == 0
        assert [pid for pid in pids if _is_there(pid)] == []


async def test_a_second_signal_ends_all_of_them_at_once(redis: RedisServer) -> None:
    """With exit code 1, whatever runs."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        crew_of(redis, f"{{alpha: '{alpha.url}'}}", grace="60s") as crew,
    ):
        alpha.on("tools/call", hang())
        pids = await crew.pids()
        call = asyncio.create_task(crew.ask("tools/call", {"name": "alpha__a", "arguments": {}}))
        await alpha.arrived("tools/call")
        crew.signal(signal.SIGTERM)
        await asyncio.to_thread(wait_for, f"{crew.running.admin}/readyz", crew.program, 503)
        crew.signal(signal.SIGTERM)
        assert await asyncio.to_thread(crew.program.wait, 10) == 1
        for pid in pids:
            await crew.ended(pid)
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(outcome, Exception)


async def test_workers_end_with_their_supervisor(redis: RedisServer, alpha: ScriptedUpstream) -> None:
    """Even if it is killed; and what they shared is removed."""
    async with crew_of(redis, f"{{alpha: '{alpha.url}'}}") as crew:
        pids = await crew.pids()
        before = set(_folders())
        crew.signal(signal.SIGKILL)
        for pid in pids:
            await crew.ended(pid)
        assert len(before - set(_folders())) >= 1


def _folders() -> list[str]:
    above = os.environ.get("TMPDIR", "/tmp")
    return [name for name in os.listdir(above) if name.startswith("mcp-gateway-")]


async def test_a_broken_file_is_told_and_changes_nothing(crew: Crew) -> None:
    """With its line, once, and the processes go on."""
    pids, good = await crew.pids(), crew.running.config.read_text()
    crew.running.config.write_text(good + "\nadmim: off\n")
    try:
        await crew.until_config(lambda config: config["problem"] is not None)  # it is watched
        assert await crew.counted("mcp_gateway_config_last_reload_successful ") == 0
        for number in (signal.SIGHUP, signal.SIGUSR2):
            seen = crew.program.written().count("admim: unknown key; did you mean `admin`?")
            crew.signal(number)
            while crew.program.written().count("admim: unknown key; did you mean `admin`?") == seen:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await crew.pids() == pids
        # A worker that has to be replaced begins with what was right.
        os.kill(pids[0], signal.SIGKILL)
        await crew.until(
            lambda workers: all_ready(workers) and pids[0] not in [each["pid"] for each in workers]
        )
    finally:
        crew.running.config.write_text(good)
        await crew.until_config(lambda config: config["problem"] is None)


async def test_nobody_waits_for_a_worker_that_does_not_come(crew: Crew) -> None:
    """Its place is served by the other one, over the same socket, until it is there."""
    killed, other = await crew.pids()
    os.kill(killed, signal.SIGKILL)
    workers = await crew.until(lambda workers: workers[0]["pid"] not in (killed, None))
    late = workers[0]["pid"]
    os.kill(late, signal.SIGSTOP)
    try:
        async with Load(crew) as load:
            await load.more(60)
        assert load.failed == []
        assert await crew.pids() == [other]
    finally:
        os.kill(late, signal.SIGCONT)
    assert [each["pid"] for each in await crew.until(all_ready)] == [late, other]
    async with Load(crew) as load:
        await load.more(20)
    assert load.failed == []


async def test_a_rolling_restart_waits_for_one_that_just_starts(crew: Crew) -> None:
    """It began with what was in force before, so it is replaced like the others."""
    killed, other = await crew.pids()
    os.kill(killed, signal.SIGKILL)
    workers = await crew.until(lambda workers: workers[0]["pid"] not in (killed, None))
    late = workers[0]["pid"]
    os.kill(late, signal.SIGSTOP)
    try:
        assert await crew.pids() == [other]
        seen = crew.program.written().count("rolling restart of 2 workers")
        crew.signal(signal.SIGUSR2)
        while crew.program.written().count("rolling restart of 2 workers") == seen:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    finally:
        os.kill(late, signal.SIGCONT)
    await crew.until(lambda workers: all_ready(workers) and not _any_of([late, other], workers))
    for pid in (late, other):
        await crew.ended(pid)
    while "rolling restart done: 2 of 2 workers were replaced" not in crew.program.written():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_a_changed_file_is_in_force_in_all_of_them(crew: Crew) -> None:
    """Without a signal, and in the same processes."""
    pids, good = await crew.pids(), crew.running.config.read_text()
    before = (await crew.status())["config"]["generation"]
    crew.running.config.write_text(good + "\nendpoints: {/mcp: {}, /two: {}}\n")
    try:
        await crew.until_config(lambda config: config["generation"] == before + 1)
        assert list((await crew.status())["endpoints"]) == ["/mcp", "/two"]
        for _ in range(10):  # whoever of them is asked
            assert (await crew.ask("tools/list", path="/two")).names == ["alpha__a"]
        assert await crew.pids() == pids
        assert await crew.counted("mcp_gateway_config_generation ") == before + 1
        assert await crew.counted("mcp_gateway_config_last_reload_successful ") == 1
    finally:
        crew.running.config.write_text(good)


async def test_nothing_is_counted_of_what_is_not_there_any_more(crew: Crew) -> None:
    """Neither by those that read so, nor of those that ended and had counted it until then (B52)."""
    good, before = crew.running.config.read_text(), await crew.pids()
    generation = (await crew.status())["config"]["generation"]
    crew.running.config.write_text(good + "\nendpoints: {/mcp: {}, /gone: {}}\n")
    try:
        await crew.until_config(lambda config: config["generation"] == generation + 1)
        for _ in range(10):
            assert (await crew.ask("tools/list", path="/gone")).status == 200
        os.kill(before[0], signal.SIGKILL)  # what it counted is kept
        await crew.until(
            lambda workers: all_ready(workers) and before[0] not in [each["pid"] for each in workers]
        )
        for _ in range(10):
            assert (await crew.ask("tools/list", path="/gone")).status == 200
        assert await crew.counted("mcp_server_operation", 'endpoint="/gone"') > 0
        before = await crew.pids()
    finally:
        crew.running.config.write_text(good)
    crew.signal(signal.SIGUSR2)  # those that end know of it still
    await crew.until(lambda workers: all_ready(workers) and not _any_of(before, workers))
    for pid in before:
        await crew.ended(pid)
    while await crew.counted("", 'endpoint="/gone"'):  # noqa: ASYNC110 - the last one is taken down yet
        await asyncio.sleep(0.05)


async def test_each_has_its_own_programs_behind_one_certificate(tmp_path: Path, redis: RedisServer) -> None:
    """`--json`, `--listen` and `--admin` are as with one process; the programs end with their workers."""
    authority = Authority(tmp_path)
    server = authority.issue("127.0.0.1")
    program = ROOT / "tests" / "support" / "programs" / "server.py"
    config = tmp_path / "gateway.yaml"
    config.write_text(
        f"{settings(redis)}\ntls: {{cert_file: {server.certificate}, key_file: {server.key}}}\n"
        f"upstreams: {{files: {{command: {sys.executable}, args: [{program}]}}}}\n"
    )
    places = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json", "--workers", "2")
    running = start("gateway", "serve", "--config", str(config), *places, stdout=subprocess.PIPE)
    try:
        assert running.process.stdout is not None
        said = json.loads(await asyncio.to_thread(running.process.stdout.readline))
        url = said["endpoints"]["/mcp"]
        assert url.startswith("https://127.0.0.1:")
        await asyncio.to_thread(wait_for, f"{said['admin']}/readyz", running, timeout=60)
        connector = aiohttp.TCPConnector(
            force_close=True, ssl=ssl.create_default_context(cafile=authority.file)
        )
        pids = set()
        async with aiohttp.ClientSession(connector=connector) as session:
            while len(pids) < 2:
                body = message("tools/call", {"name": "files__pid", "arguments": {}}, id=1)
                async with session.post(
                    url, data=body, headers=HEADERS | {"Mcp-Name": "files__pid"}
                ) as answer:
                    pids.add(int((await answer.json())["result"]["content"][0]["text"]))
        for pid in pids:  # neither the sockets that all listen on, nor the line to the supervisor
            assert sorted(await asyncio.to_thread(os.listdir, f"/proc/{pid}/fd")) == ["0", "1", "2"]
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.wait, 30) == 0
        assert [pid for pid in pids if _is_there(pid)] == []
    finally:
        if running.process.stdout is not None:
            running.process.stdout.close()
        await asyncio.to_thread(running.close)


# How it refuses to start


def refused(folder: Path, text: str, *options: str) -> tuple[int, str]:
    """Run `serve` where it must not start; return the exit code and what was written."""
    config = folder / "gateway.yaml"
    config.write_text(text)
    program = start("gateway", "serve", "--config", str(config), "--workers", "2", *options)
    try:
        return program.wait(60), program.written()
    finally:
        program.close()


async def test_without_redis_there_cannot_be_several(tmp_path: Path) -> None:
    """Exit code 2, and what to do instead."""
    code, written = await asyncio.to_thread(
        refused, tmp_path, "listen: 127.0.0.1:0\nupstreams: {a: 'http://127.0.0.1:1/mcp'}\n"
    )
    assert code == 2
    assert "--workers: several processes meet at a Redis, and none is set" in written
    assert "set `cache.redis`" in written


async def test_an_address_that_is_taken_is_named(tmp_path: Path, redis: RedisServer) -> None:
    """Also if whoever has it would share it with others: half of the clients would be theirs."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, written = await asyncio.to_thread(
            refused,
            tmp_path,
            f"{settings(redis)}\nadmin: off\nupstreams: {{a: 'http://127.0.0.1:1/mcp'}}\nlisten: {address}\n",
        )
    assert code == 1
    assert f"cannot listen (listen: {address}, admin: off): Address already in use" in written
    assert "Traceback" not in written


ENDS_AT_ONCE = """
import asyncio, sys
from gateway.config import load
from gateway.supervisor.run import supervised
from gateway.supervisor.crew import Source

config = load("upstreams: {a: 'http://127.0.0.1:1/mcp'}\\nlisten: 127.0.0.1:0\\nadmin: off\\n")
source = Source([sys.executable, "-c", "print('not today'); raise SystemExit(3)"], lambda named: (config, ""))
never = lambda *_: None
raise SystemExit(asyncio.run(supervised(config, 2, "", source, never, never)))
"""


async def test_what_keeps_workers_from_starting_is_said_once() -> None:
    """By the first of them; then there is no second, and the exit code is that of the first."""
    program = launch(sys.executable, "-c", ENDS_AT_ONCE)
    try:
        assert await asyncio.to_thread(program.wait, 60) == 3
        assert program.written().count("not today") == 1
    finally:
        program.close()
