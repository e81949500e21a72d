"""The official SDK's server, in its legacy sessions, behind the gateway for the official SDK's client."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import mcp_types as t
import pytest
from mcp import Client

from tests.e2e.test_dialogue import User
from tests.support.processes import RunningGateway, gateway, reference_server

VERSION = "2026-07-28"


@pytest.fixture(scope="module", params=["", "--json-response", "--stateless"])
def old(request: pytest.FixtureRequest) -> Iterator[tuple[str, RunningGateway, str]]:
    """Run the server, told to be spoken to the old way, and the gateway before it."""
    options = [request.param] if request.param else []
    with reference_server(*options) as url, gateway(f"{{all: {{url: '{url}', era: legacy}}}}") as running:
        yield url, running, request.param


Old = tuple[str, RunningGateway, str]


def client(old: Old, user: User | None = None) -> Client:
    asked: Any = {}
    if user is not None:
        asked = {
            "elicitation_callback": user.elicitation,
            "sampling_callback": user.sampling,
            "list_roots_callback": user.roots,
        }
    return Client(old[1].endpoint, mode=VERSION, cache=None, read_timeout_seconds=20, **asked)


def said(result: t.CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, t.TextContent)
    return block.text


async def test_its_lists_are_whole(old: Old) -> None:
    """Tools, prompts, resources and templates; those that need a task are left out (T-18)."""
    async with client(old) as session:
        tools = {tool.name for tool in (await session.list_tools()).tools}
        assert {"all__test_simple_text", "all__test_elicitation"} <= tools
        assert (await session.list_prompts()).prompts
        assert (await session.list_resources()).resources
        assert (await session.list_resource_templates()).resource_templates


async def test_it_is_called_read_and_prompted(old: Old) -> None:
    """Each answer as the client's own types have it."""
    async with client(old) as session:
        assert said(await session.call_tool("all__test_simple_text", {}))
        failed = await session.call_tool("all__test_error_handling", {})
        assert failed.is_error
        read = await session.read_resource("all+test://static-text")
        assert isinstance(read.contents[0], t.TextResourceContents)
        prompt = await session.get_prompt("all__test_simple_prompt")
        assert prompt.messages


async def test_progress_comes_through(old: Old) -> None:
    """In order, with the client's own token; a server that answers in JSON has nowhere to report it."""
    heard: list[float] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        heard.append(value)

    async with client(old) as session:
        await session.call_tool("all__test_tool_with_progress", {}, progress_callback=progress)
    assert heard == ([] if old[2] == "--json-response" else [0, 50, 100])


@pytest.mark.parametrize("old", [""], indirect=True)
@pytest.mark.parametrize(
    ("tool", "arguments", "answer", "shown"),
    [
        ("elicitation", {"message": "Your name?"}, "accept", ["[all] Your name?"]),
        ("sampling", {"prompt": "Capital of France?"}, "Paris", []),
        ("roots", {}, "file:///home/ann", []),
    ],
)
async def test_its_questions_reach_the_modern_client(
    old: Old, tool: str, arguments: dict[str, Any], answer: str, shown: list[str]
) -> None:
    """Elicitation, sampling and roots in the middle of a call (M-19)."""
    user = User()
    async with client(old, user) as session:
        result = await session.call_tool(f"all__test_{tool}", arguments)
    assert answer in said(result)
    assert user.shown == shown


@pytest.mark.parametrize("old", [""], indirect=True)
async def test_a_stream_that_it_closes_half_way_is_gone_on_with(old: Old) -> None:
    """By GET with the last event's id, after the pause it asked for (X-29)."""
    async with client(old) as session:
        assert said(await session.call_tool("all__test_reconnection", {}))
    with urlopen(old[0].removesuffix("/mcp") + "/debug/log", timeout=10) as answer:  # noqa: ASYNC210  # no loop waits
        seen = json.load(answer)
    resumed = [one for one in seen if one.get("http") == "GET" and "last-event-id" in one["headers"]]
    assert resumed
