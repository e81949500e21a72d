"""A desktop client starts the gateway as a program, and what it reads from it is messages alone."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as t
import pytest
from mcp import Client, StdioServerParameters
from mcp.client import ClientRequestContext
from mcp.client.subscriptions import ToolsListChanged

from tests.support.kin import MARK, mark, none_left
from tests.support.processes import ROOT, reference_server

VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
PROGRAM = ROOT / "tests" / "support" / "programs" / "server.py"

pytestmark = pytest.mark.timeout(60)  # each test starts a gateway, and that its programs


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with reference_server() as url:
        yield url


@pytest.fixture
def kin() -> str:
    """Return the mark of all that this test starts."""
    return mark()


@pytest.fixture
def servers(url: str, kin: str, tmp_path: Path) -> Path:
    """Write the file that a desktop client keeps: a server on the network, and a program."""
    file = tmp_path / "mcp.json"
    program = {"command": sys.executable, "args": [str(PROGRAM), "--era", "modern"], "env": {MARK: kin}}
    file.write_text(json.dumps({"mcpServers": {"all": {"type": "http", "url": url}, "local": program}}))
    return file


class User:
    """Answers every form, and remembers what it was asked."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def elicitation(self, context: ClientRequestContext, params: Any) -> t.ElicitResult:
        self.shown.append(params.message)
        names = params.requested_schema["properties"]
        return t.ElicitResult(action="accept", content={name: f"my {name}" for name in names})


def client(
    servers: Path, kin: str, user: User | None = None, *, mode: str = VERSION, told: Any = None
) -> Client:
    started = StdioServerParameters(
        command=sys.executable,
        args=["-m", "gateway", "stdio", str(servers)],
        env={MARK: kin},
        cwd=ROOT,
    )
    asked = {} if user is None else {"elicitation_callback": user.elicitation}
    return Client(started, mode=mode, cache=None, read_timeout_seconds=30, message_handler=told, **asked)


async def test_a_modern_client_walks_through_it(servers: Path, kin: str) -> None:
    """Lists of both servers, a call with progress, a read, a prompt, a completion, a form, a subscription."""
    user = User()
    progress: list[float] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with client(servers, kin, user) as session:
        names = {tool.name for tool in (await session.list_tools()).tools}
        assert {"all__test_simple_text", "local__echo"} <= names
        result = await session.call_tool("all__test_tool_with_progress", {}, progress_callback=on_progress)
        assert not result.is_error
        assert progress == sorted(progress) != []
        echoed = await session.call_tool("local__echo", {"text": "grüß\nGott"})
        (block,) = echoed.content
        assert isinstance(block, t.TextContent)
        assert json.loads(block.text)["arguments"] == {"text": "grüß\nGott"}
        read = await session.read_resource("all+test://static-text")
        assert isinstance(read.contents[0], t.TextResourceContents)
        prompt = await session.get_prompt("all__test_simple_prompt")
        assert prompt.messages
        asked = await session.call_tool("all__test_input_required_result_elicitation", {})
        assert asked.content[0].model_dump()["text"] == "Hello, my name!"
        assert user.shown == ["[all] What is your name?"]
        async with session.listen(tools_list_changed=True) as heard:
            assert heard.honored.tools_list_changed
            await session.call_tool("all__test_trigger_tool_change")
            assert await anext(heard) == ToolsListChanged()
    await none_left(kin)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_older_client_walks_through_it(servers: Path, kin: str, mode: str) -> None:
    """The handshake instead; what a modern server asks reaches its user as a request, changes as notices."""
    user = User()
    progress: list[float] = []
    told: asyncio.Queue[str] = asyncio.Queue()

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async def on_message(message: object) -> None:
        if isinstance(message, t.ToolListChangedNotification):
            told.put_nowait(message.method)

    async with client(servers, kin, user, mode=mode, told=on_message) as session:
        names = {tool.name for tool in (await session.list_tools()).tools}
        assert {"all__test_simple_text", "local__echo"} <= names
        await session.call_tool("all__test_tool_with_progress", {}, progress_callback=on_progress)
        assert progress == sorted(progress) != []
        read = await session.read_resource("all+test://static-text")
        assert isinstance(read.contents[0], t.TextResourceContents)
        asked = await session.call_tool("all__test_input_required_result_elicitation", {})
        assert asked.content[0].model_dump()["text"] == "Hello, my name!"
        assert user.shown == ["[all] What is your name?"]
        if mode == "legacy":
            await session.call_tool("all__test_trigger_tool_change")
            assert await asyncio.wait_for(told.get(), 10) == "notifications/tools/list_changed"
    await none_left(kin)


@pytest.mark.parametrize("mode", [VERSION, "legacy"])
async def test_a_program_of_an_older_era_asks_the_one_user(tmp_path: Path, kin: str, mode: str) -> None:
    """Whoever starts the gateway is alone with it, so nobody else can be meant."""
    file = tmp_path / "mcp.json"
    program = {"command": sys.executable, "args": [str(PROGRAM), "--era", "legacy"], "env": {MARK: kin}}
    file.write_text(json.dumps({"mcpServers": {"old": program}}))
    user = User()
    async with client(file, kin, user, mode=mode) as session:
        result = await session.call_tool("old__ask", {})
        (block,) = result.content
        assert isinstance(block, t.TextContent)
        assert json.loads(block.text) == {"action": "accept", "content": {"name": "my name"}}
    assert user.shown == ["[old] Who?"]
    await none_left(kin)


# What it writes, byte for byte


class Gateway:
    """A gateway that is spoken to by hand; `said` is every line it wrote."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.said: list[bytes] = []

    def send(self, *lines: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(line + b"\n" for line in lines))

    def ask(self, id: object, method: str, **params: object) -> None:
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": META}}
        self.send(json.dumps(message).encode())

    async def line(self) -> Any:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line.endswith(b"\n"), line
        self.said.append(line)
        return json.loads(line)

    async def answer(self, id: object) -> Any:
        """Return the answer to a request, past whatever else is said."""
        while True:
            message = await self.line()
            if message.get("id") == id and "method" not in message:
                return message

    async def end(self) -> int:
        """Wait for the end, after which nothing more has been said than messages."""
        assert self.process.stdout is not None
        rest = await self.process.stdout.read()
        self.said += rest.splitlines(keepends=True)
        for line in self.said:
            assert line.endswith(b"\n")
            assert b"\r" not in line
            message = json.loads(line)
            assert all(
                one["jsonrpc"] == "2.0" for one in (message if isinstance(message, list) else [message])
            )
        return await self.process.wait()


@asynccontextmanager
async def gateway(servers: Path, kin: str, *options: str) -> AsyncIterator[Gateway]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gateway", "stdio", *options, str(servers)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=ROOT,
        env={**os.environ, MARK: kin},
        limit=2**24,
    )
    assert process.stderr is not None
    stderr = asyncio.ensure_future(process.stderr.read())
    try:
        yield Gateway(process)
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        sys.stdout.write((await stderr).decode())
        raise
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await stderr


async def test_junk_is_answered_and_does_no_harm(servers: Path, kin: str) -> None:
    """No JSON, no UTF-8, an empty line, an array, half a message: each is answered at most once."""
    async with gateway(servers, kin) as at:
        at.send(b"", b"hello", b"\xff\xfe", b"[1, 2]", b"42", b'{"jsonrpc": "2.0", "id": 1}', b'{"id":')
        at.send(b'{"method": "x", "params": {"\xff": 1}}')
        codes = [(await at.line())["error"]["code"] for _ in range(7)]
        assert sorted(codes) == [-32700] * 4 + [-32600] * 3
        at.ask(2, "tools/list")
        assert "result" in await at.answer(2)
        assert at.process.stdin is not None
        at.process.stdin.close()
        assert await at.end() == 0
    await none_left(kin)


async def test_requests_are_answered_in_any_order_and_cancelled(servers: Path, kin: str) -> None:
    """One that hangs holds up nobody; one that is cancelled is not answered."""
    async with gateway(servers, kin) as at:
        at.ask("slow", "tools/call", name="local__hang", arguments={})
        at.ask(1, "tools/list")
        assert "result" in await at.answer(1)
        at.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"slow"}}')
        at.ask("slow", "tools/call", name="local__echo", arguments={"text": "again"})
        assert "result" in await at.answer("slow")
        assert at.process.stdin is not None
        at.process.stdin.close()
        assert await at.end() == 0
    assert sum(json.loads(line).get("id") == "slow" for line in at.said) == 1
    await none_left(kin)


async def test_a_subscription_lasts_until_the_end_of_stdin(servers: Path, kin: str) -> None:
    """Its result says that the end is deliberate (L-10), and then it is over."""
    async with gateway(servers, kin) as at:
        at.ask(0, "subscriptions/listen", notifications={"toolsListChanged": True})
        first = await at.line()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert at.process.stdin is not None
        at.process.stdin.close()
        answer = await at.answer(0)
        assert answer["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == 0
        assert await at.end() == 0
    assert json.loads(at.said[-1]) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 0},
    }
    await none_left(kin)


async def test_what_is_asked_before_the_end_is_answered(servers: Path, kin: str) -> None:
    """So that it can be asked by a pipe of a shell."""
    async with gateway(servers, kin) as at:
        for number in range(20):
            at.ask(number, "tools/list")
        assert at.process.stdin is not None
        at.process.stdin.close()
        assert await at.end() == 0
    assert {json.loads(line)["id"] for line in at.said} == set(range(20))
    await none_left(kin)


async def test_a_signal_ends_it_with_all_it_started(servers: Path, kin: str) -> None:
    """A call that does not end in time is told why."""
    own_form(servers, shutdown_grace="100ms")
    async with gateway(servers, kin) as at:
        at.ask(1, "tools/list")
        assert "result" in await at.answer(1)
        at.ask(2, "tools/call", name="local__hang", arguments={})
        at.ask(3, "tools/list")
        assert "result" in await at.answer(3)
        at.process.send_signal(signal.SIGTERM)
        assert (await at.answer(2))["error"] == {"code": -32603, "message": "The gateway is stopping"}
        assert await at.end() == 0
    await none_left(kin)


def own_form(servers: Path, **more: object) -> None:
    """Make a configuration of the gateway's own of a client's file."""
    found = json.loads(servers.read_text())["mcpServers"]
    upstreams = {
        name: {key: value for key, value in one.items() if key != "type"} for name, one in found.items()
    }
    servers.write_text(json.dumps({"upstreams": upstreams, **more}))


async def test_a_client_that_does_not_read_is_not_read_either(servers: Path, kin: str) -> None:
    """It is not what it is owed that grows, but what it could not yet ask; nothing is lost of it."""
    text = "x" * 300_000
    async with gateway(servers, kin) as at:
        for number in range(40):
            at.ask(number, "tools/call", name="local__echo", arguments={"text": text})
        assert at.process.stdin is not None
        seen = set()
        while len(seen) < 40:
            message = await at.line()
            assert "result" in message, message
            seen.add(message["id"])
        at.process.stdin.close()
        assert await at.end() == 0
    assert seen == set(range(40))
    await none_left(kin)


async def test_a_client_that_dies_takes_everything_with_it(servers: Path, kin: str) -> None:
    """Both pipes close at once, as they do when it is killed."""
    async with gateway(servers, kin) as at:
        at.ask(1, "tools/call", name="local__hang", arguments={})
        at.ask(2, "tools/list")
        assert "result" in await at.answer(2)
        transport = at.process._transport  # type: ignore[attr-defined]  # there is no public way to close one pipe
        for number in (0, 1):
            transport.get_pipe_transport(number).close()
        assert await at.process.wait() == 0
    await none_left(kin)


async def test_an_older_client_is_asked_on_the_same_pipe(servers: Path, kin: str) -> None:
    """By hand, in 2025-03-26: nothing before the handshake, batches behind it, both eras side by side."""
    async with gateway(servers, kin) as at:
        at.send(
            b'{"jsonrpc":"2.0","id":0,"method":"tools/list"}', b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        )
        assert (await at.answer(0))["error"]["code"] == -32600
        assert (await at.answer(1))["result"] == {}
        hello = {
            "protocolVersion": "2025-03-26",
            "capabilities": {},
            "clientInfo": {"name": "hand", "version": "1"},
        }
        start = {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": hello}
        at.send(json.dumps(start).encode())
        assert (await at.answer("i"))["result"]["protocolVersion"] == "2025-03-26"
        at.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        at.send(
            b'[{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","id":3,"method":"nope"},'
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}]'
        )
        batch = {one["id"]: one for one in await at.line()}
        assert batch[2]["result"] == {}
        assert batch[3]["error"]["code"] == -32601
        call = {"name": "local__hang", "arguments": {}}
        at.send(
            json.dumps({"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": call}).encode(),
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}',
            b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}',
        )
        assert "ttlMs" not in (await at.answer(5))["result"]
        at.ask(6, "tools/list")
        assert "ttlMs" in (await at.answer(6))["result"]
        hang = json.dumps({"jsonrpc": "2.0", "id": "a/b", "method": "tools/call", "params": call}).encode()
        at.send(
            b'[%b,%b,{"jsonrpc":"2.0","id":8,"method":"ping"},'
            rb'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a\/b"}}]'
            % (hang, hang)
        )
        twice = await at.line()
        assert twice["error"]["code"] == -32600
        assert "id" not in twice
        assert [one["id"] for one in await at.line()] == [8]
        assert at.process.stdin is not None
        at.process.stdin.close()
        assert await at.end() == 0
    assert not any(b'"id":4' in line for line in at.said)
    await none_left(kin)


async def test_a_signal_after_the_end_of_stdin_is_a_hurry(servers: Path, kin: str) -> None:
    """Clients send one when the end takes too long for them: what runs is cut off, and all of it ends."""
    async with gateway(servers, kin) as at:
        at.ask(1, "tools/list")
        assert "result" in await at.answer(1)
        at.ask(2, "tools/call", name="local__hang", arguments={})
        at.ask(3, "subscriptions/listen", notifications={"toolsListChanged": True})
        assert (await at.line())["method"] == "notifications/subscriptions/acknowledged"
        assert at.process.stdin is not None
        at.process.stdin.close()
        assert "result" in await at.answer(3)  # the end has begun
        at.process.send_signal(signal.SIGTERM)
        assert (await at.answer(2))["error"]["message"] == "The gateway is stopping"
        assert await at.end() == 0
    await none_left(kin)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("{", (), "not valid YAML"),
        ('{"mcpServers": {"a": {}}}', (), "expected either `url` or `command`"),
        ('{"mcpServers": {"a": {"url": "http://a"}}}', ("--endpoint", "/x"), "there is no endpoint /x"),
        ('{"mcpServers": {"a": {"url": "http://a"}}}', ("--admin", "nope"), "--admin"),
        ('{"mcpServers": {"a": {"url": "http://a"}}}', ("--token-env", "NOT_SET_HERE"), "holds no token"),
    ],
)
def test_a_wrong_start_says_nothing_on_stdout(
    tmp_path: Path, text: str, options: tuple[str, ...], said: str
) -> None:
    """A client would take it for a message."""
    file = tmp_path / "mcp.json"
    file.write_text(text)
    command = [sys.executable, "-m", "gateway", "stdio", str(file), *options]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()


def test_a_client_over_stdio_hears_of_a_configuration_that_changed(tmp_path: Path, kin: str) -> None:
    """On the same pipes; nothing of what is gone is shown to it."""
    file = tmp_path / "mcp.json"
    program = {"command": sys.executable, "args": [str(PROGRAM), "--era", "modern"], "env": {MARK: kin}}
    file.write_text(json.dumps({"mcpServers": {"local": program}}))
    command = [sys.executable, "-m", "gateway", "stdio", str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said, heard = process.stdin, process.stdout

        def say(id: int, method: str, **params: Any) -> None:
            message = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": META}}
            said.write(json.dumps(message).encode() + b"\n")
            said.flush()

        def hear() -> dict[str, Any]:
            return dict(json.loads(heard.readline()))

        say(1, "subscriptions/listen", notifications={"toolsListChanged": True})
        assert hear()["method"] == "notifications/subscriptions/acknowledged"
        say(2, "tools/list")
        assert "local__echo" in [one["name"] for one in hear()["result"]["tools"]]
        file.write_text(json.dumps({"mcpServers": {"other": program}, "theme": "dark"}))
        assert hear()["method"] == "notifications/tools/list_changed"
        names: list[str] = []
        id = 3
        while "other__echo" not in names:  # the old is gone at once, the new comes when it is there
            say(id, "tools/list")
            while (message := hear()).get("id") != id:
                assert message["method"] == "notifications/tools/list_changed"
            names = [one["name"] for one in message["result"]["tools"]]
            assert not [name for name in names if name.startswith("local__")]
            id += 1
        said.close()
        assert process.wait(20) == 0
    asyncio.run(none_left(kin))
