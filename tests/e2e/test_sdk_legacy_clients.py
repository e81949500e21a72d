"""The official SDK's client of the handshake's era walks every operation of a modern server behind it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import mcp.client.session
import mcp_types as t
import pytest
from mcp import Client, MCPError

from tests.e2e.test_dialogue import User
from tests.support.processes import RunningGateway, gateway, reference_server

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

VERSIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with reference_server() as url:
        yield url


@pytest.fixture(scope="module")
def front(server: str) -> Iterator[RunningGateway]:
    with gateway(f"{{all: '{server}'}}") as running:
        yield running


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the SDK open with this version; it has a setting for none but the newest."""
    monkeypatch.setattr(mcp.client.session, "LATEST_HANDSHAKE_VERSION", request.param)
    return str(request.param)


def client(front: RunningGateway, user: User | None = None, **options: Any) -> Client:
    if user is not None:
        options |= {
            "elicitation_callback": user.elicitation,
            "sampling_callback": user.sampling,
            "list_roots_callback": user.roots,
        }
    return Client(front.endpoint, mode="legacy", cache=None, read_timeout_seconds=20, **options)


def said(result: t.CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, t.TextContent)
    return block.text


async def test_it_agrees_on_its_version(front: RunningGateway, version: str) -> None:
    async with client(front) as session:
        assert session.protocol_version == version
        assert session.server_info is not None
        assert session.server_info.name == "mcp-gateway"
        assert session.server_capabilities.tools is not None
        await session.send_ping()


async def test_it_reads_every_list(front: RunningGateway, version: str) -> None:
    async with client(front) as session:
        tools = (await session.list_tools()).tools
        assert len(tools) > 20
        assert all((tool.title is None) or version != "2025-03-26" for tool in tools)
        assert (await session.list_prompts()).prompts
        assert (await session.list_resources()).resources
        assert (await session.list_resource_templates()).resource_templates


async def test_it_calls_reads_prompts_and_completes(front: RunningGateway, version: str) -> None:
    async with client(front) as session:
        assert said(await session.call_tool("all__test_simple_text", {}))
        assert (await session.call_tool("all__test_error_handling", {})).is_error
        kinds = [block.type for block in (await session.call_tool("all__test_audio_content", {})).content]
        assert kinds == ["audio"]
        kinds = [block.type for block in (await session.call_tool("all__test_embedded_resource", {})).content]
        assert kinds == ["resource"]
        assert (await session.read_resource("all+test://static-text")).contents
        with pytest.raises(MCPError) as refused:
            await session.read_resource("all+test://no-such")
        assert refused.value.error.code == -32002
        assert (await session.get_prompt("all__test_simple_prompt")).messages
        ref = t.PromptReference(name="all__test_prompt_with_arguments")
        completed = await session.complete(ref, {"name": "arg1", "value": "a"})
        assert completed.completion.values is not None


async def test_it_hears_progress_and_logs(front: RunningGateway, version: str) -> None:
    heard: list[float] = []
    logged: list[str] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        heard.append(value)

    async def log(params: t.LoggingMessageNotificationParams) -> None:
        logged.append(params.level)

    async with client(front, logging_callback=log) as session:
        await session.call_tool("all__test_tool_with_progress", {}, progress_callback=progress)
        assert heard == [0, 50, 100]
        await session.call_tool("all__test_tool_with_logging", {})
        assert logged == []
        await session.set_logging_level("info")
        await session.call_tool("all__test_tool_with_logging", {})
    assert logged == ["info", "info", "info"]


@pytest.mark.parametrize(
    ("tool", "answer", "shown", "elicits"),
    [
        ("elicitation", "Hello, my name!", ["[all] What is your name?"], True),
        ("sampling", "The model said: Paris", [], False),
        ("list_roots", "roots: file:///home/ann", [], False),
        ("request_state", "state-ok", ["[all] Please confirm"], True),
        ("multiple_inputs", "got all three", ["[all] What is your name?"], True),
        (
            "multi_round",
            "my name likes my color",
            ["[all] Step 1: What is your name?", "[all] Step 2: What is your favorite color?"],
            True,
        ),
    ],
)
async def test_its_user_is_asked(
    front: RunningGateway, version: str, tool: str, answer: str, shown: list[str], elicits: bool
) -> None:
    """M-15: forms, a model's text and roots; the first revision has no forms (M-18)."""
    user = User()
    async with client(front, user) as session:
        name = f"all__test_input_required_result_{tool}"
        if elicits and version == "2025-03-26":
            with pytest.raises(MCPError) as refused:
                await session.call_tool(name, {})
            assert refused.value.error.code == -32603
            assert "elicitation" in refused.value.error.message
            return
        assert said(await session.call_tool(name, {})) == answer
    assert user.shown == shown


async def test_its_user_is_sent_to_a_page(front: RunningGateway, version: str) -> None:
    """By the newest revision alone."""
    user = User()
    async with client(front, user) as session:
        if version == "2025-11-25":
            assert said(await session.call_tool("all__test_url_elicitation", {})) == "visit: accept"
            assert user.shown == ["[all] Please sign in"]
        else:
            with pytest.raises(MCPError) as refused:
                await session.call_tool("all__test_url_elicitation", {})
            assert refused.value.error.code == -32603


async def test_it_hears_of_changes(front: RunningGateway, server: str, version: str) -> None:
    """On the stream that it opens by GET."""
    heard: list[str] = []
    news = asyncio.Event()

    async def handle(message: Any) -> None:
        if isinstance(message, t.ResourceUpdatedNotification | t.ToolListChangedNotification):
            heard.append(message.method)
            news.set()

    async def tell(what: str) -> None:
        address = f"{server.removesuffix('/mcp')}/debug/emit?kind={what}"
        await asyncio.to_thread(lambda: urlopen(Request(address, method="POST"), timeout=10).close())

    async with client(front, message_handler=handle) as session:
        await session.list_tools()
        await session.subscribe_resource("all+test://static-text")
        # The stream is opened at some time after the handshake, and the client does not say when.
        for what, method in (
            ("updated&uri=test://static-text", "notifications/resources/updated"),
            ("tools", "notifications/tools/list_changed"),
        ):
            while method not in heard:
                news.clear()
                await tell(what)
                try:
                    async with asyncio.timeout(1.0):
                        await news.wait()
                except TimeoutError:
                    continue
        await session.unsubscribe_resource("all+test://static-text")


def cancelled(server: str) -> set[str]:
    """Return which calls the server saw the end of."""
    with urlopen(f"{server.removesuffix('/mcp')}/debug/state", timeout=10) as answer:
        return {call["text"] for call in json.load(answer)["cancelled"]}


async def test_what_it_takes_back_is_ended(front: RunningGateway, server: str, version: str) -> None:
    """The SDK says so in a notification of its own (B21)."""
    async with client(front) as session:
        begun = asyncio.Event()

        async def progress(value: float, total: float | None, message: str | None) -> None:
            begun.set()

        call = asyncio.ensure_future(  # the client's own task, not the gateway's
            session.call_tool(
                "all__slow_echo", {"text": version, "seconds": 30, "steps": 300}, progress_callback=progress
            )
        )
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while version not in await asyncio.to_thread(cancelled, server):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)
        assert said(await session.call_tool("all__test_simple_text", {}))
