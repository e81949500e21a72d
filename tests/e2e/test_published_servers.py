"""Servers as people install them, behind one gateway, for the official SDK's client in either era."""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as t
import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client

from tests.e2e import test_dialogue
from tests.support.kin import MARK, mark, marked, none_left
from tests.support.processes import RunningGateway, free_port, gateway, start, wait_for
from tests.support.published import NotInstalled, everything_over, node_server, python_server

pytestmark = pytest.mark.timeout(120)  # a dozen programs start on what may be a slow machine

ERAS = {"modern": "2026-07-28", "legacy": "legacy"}
WIRES = ("stdio", "http", "sse")
"""The names that server-everything goes by, over each of its transports."""


@dataclass
class House:
    """The running gateway, the mark of its programs and the folder they may see."""

    gateway: RunningGateway
    kin: str
    folder: Path


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Run the gateway before every server, programs being started by it."""
    folder, kin = tmp_path_factory.mktemp("files").resolve(), mark()
    subprocess.run(["git", "init", "-q", "-b", "main", folder / "repository"], check=True)
    (folder / "hello.txt").write_text("Grüß Gott\n", "utf-8")

    def program(command: list[str], **more: Any) -> dict[str, Any]:
        return {"command": command[0], "args": command[1:], "env": {MARK: kin}, **more}

    with ExitStack() as stack:
        try:
            upstreams: dict[str, Any] = {
                "time": program(python_server("mcp_server_time", "--local-timezone", "Etc/UTC")),
                "git": program(python_server("mcp_server_git")),
                "files": program(node_server("server-filesystem", str(folder)), isolation="caller"),
                "stdio": program(node_server("server-everything", "stdio"), isolation="caller"),
                "http": {"url": stack.enter_context(everything_over("streamableHttp"))},
                "sse": {"url": stack.enter_context(everything_over("sse"))},
            }
        except NotInstalled as error:
            pytest.fail(str(error))
        assert marked(kin) == []
        yield House(stack.enter_context(gateway(json.dumps(upstreams), "startup_wait: 60s")), kin, folder)


class User(test_dialogue.User):
    """Has the folder as its root, and hears what is logged."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.logged: list[t.LoggingMessageNotificationParams] = []

    async def roots(self, context: ClientRequestContext) -> t.ListRootsResult:
        return t.ListRootsResult(roots=[t.Root(uri=self.folder.as_uri())])  # type: ignore[arg-type]

    async def log(self, params: t.LoggingMessageNotificationParams) -> None:
        self.logged.append(params)


@asynccontextmanager
async def client(house: House, era: str, user: User | None = None) -> AsyncIterator[Client]:
    """Connect; a user's client has a credential, by which its requests are known as one caller's."""
    asked: Any = {}
    if user is not None:
        asked = {
            "elicitation_callback": user.elicitation,
            "sampling_callback": user.sampling,
            "list_roots_callback": user.roots,
            "logging_callback": user.log,
        }
    headers = {"authorization": "Bearer ann"} if user is not None else {}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        connected = streamable_http_client(house.gateway.endpoint, http_client=http)
        async with Client(connected, mode=ERAS[era], cache=None, read_timeout_seconds=60, **asked) as session:
            yield session


def said(result: t.CallToolResult) -> str:
    assert not result.is_error, result
    return "\n".join(block.text for block in result.content if isinstance(block, t.TextContent))


every_era = pytest.mark.parametrize("era", ERAS)
every_wire = pytest.mark.parametrize("wire", WIRES)


@every_era
async def test_all_of_them_are_one_list(house: House, era: str) -> None:
    """Tools, prompts, resources and templates, of the six servers together."""
    async with client(house, era) as session:
        tools = {tool.name for tool in (await session.list_tools()).tools}
        assert {"time__convert_time", "git__git_status", "files__read_text_file"} <= tools
        assert {f"{wire}__echo" for wire in WIRES} <= tools
        prompts = {prompt.name for prompt in (await session.list_prompts()).prompts}
        assert {f"{wire}__args-prompt" for wire in WIRES} <= prompts
        resources = {str(one.uri) for one in (await session.list_resources()).resources}
        assert {f"{wire}+demo://resource/static/document/features.md" for wire in WIRES} <= resources
        templates = (await session.list_resource_templates()).resource_templates
        assert {f"{wire}+demo://resource/dynamic/text/{{resourceId}}" for wire in WIRES} <= {
            one.uri_template for one in templates
        }


@every_era
async def test_the_time_is_converted(house: House, era: str) -> None:
    async with client(house, era) as session:
        asked = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Kolkata"}
        converted = json.loads(said(await session.call_tool("time__convert_time", asked)))
        assert converted["source"]["timezone"] == "Europe/Berlin"
        assert converted["target"]["datetime"][11:16] in ("15:30", "16:30")
        refused = await session.call_tool("time__get_current_time", {"timezone": "Europe/Atlantis"})
        assert refused.is_error


@every_era
async def test_a_repository_tells_its_state(house: House, era: str) -> None:
    repository = house.folder / "repository"
    (repository / f"{era}.txt").write_text("new")
    async with client(house, era) as session:
        where = {"repo_path": str(repository)}
        assert f"{era}.txt" in said(await session.call_tool("git__git_status", where))
        added = await session.call_tool("git__git_add", {**where, "files": [f"{era}.txt"]})
        assert not added.is_error
        assert f"new file:   {era}.txt" in said(await session.call_tool("git__git_status", where))


@every_era
async def test_files_are_read_and_listed_within_the_roots(house: House, era: str) -> None:
    """The server has its folder by its arguments and by the user's roots, and nothing beyond."""
    async with client(house, era, User(house.folder)) as session:
        read = await session.call_tool("files__read_text_file", {"path": str(house.folder / "hello.txt")})
        assert said(read) == "Grüß Gott\n"
        listed = said(await session.call_tool("files__list_directory", {"path": str(house.folder)}))
        assert "[FILE] hello.txt" in listed
        assert "[DIR] repository" in listed
        assert str(house.folder) in said(await session.call_tool("files__list_allowed_directories", {}))
        beyond = await session.call_tool("files__read_text_file", {"path": "/etc/hostname"})
        assert beyond.is_error


@every_wire
@every_era
async def test_everything_is_called(house: House, era: str, wire: str) -> None:
    """Echo, sum, progress, annotations, structured content, links and embedded resources."""
    done: list[tuple[float, float | None]] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        done.append((value, total))

    async with client(house, era) as session:
        assert said(await session.call_tool(f"{wire}__echo", {"message": "ß"})) == "Echo: ß"
        assert "12" in said(await session.call_tool(f"{wire}__get-sum", {"a": 5, "b": 7}))
        long = {"duration": 0.6, "steps": 3}
        operated = await session.call_tool(
            f"{wire}__trigger-long-running-operation", long, progress_callback=progress
        )
        assert "completed" in said(operated)
        assert done == [(1, 3), (2, 3), (3, 3)]
        asked = {"messageType": "error", "includeImage": True}
        text, image = (await session.call_tool(f"{wire}__get-annotated-message", asked)).content
        assert text.annotations is not None
        assert text.annotations.audience == ["user", "assistant"]
        assert isinstance(image, t.ImageContent)
        weather = await session.call_tool(f"{wire}__get-structured-content", {"location": "Chicago"})
        assert weather.structured_content is not None
        assert "temperature" in weather.structured_content
        linked = await session.call_tool(f"{wire}__get-resource-links", {"count": 2})
        links = [block for block in linked.content if isinstance(block, t.ResourceLink)]
        assert links
        assert all(str(link.uri).startswith(f"{wire}+demo://") for link in links)


@every_wire
@every_era
async def test_everything_is_read_prompted_and_completed(house: House, era: str, wire: str) -> None:
    async with client(house, era) as session:
        uri = f"{wire}+demo://resource/static/document/features.md"
        (document,) = (await session.read_resource(uri)).contents
        assert isinstance(document, t.TextResourceContents)
        assert str(document.uri) == uri
        (made,) = (await session.read_resource(f"{wire}+demo://resource/dynamic/text/1")).contents
        assert isinstance(made, t.TextResourceContents)
        assert "Resource 1" in made.text
        prompt = await session.get_prompt(f"{wire}__args-prompt", {"city": "Paris", "state": "Texas"})
        assert "Paris, Texas" in prompt.messages[0].content.text  # type: ignore[union-attr]
        completed = await session.complete(
            t.PromptReference(name=f"{wire}__completable-prompt"), {"name": "department", "value": "S"}
        )
        assert completed.completion.values == ["Sales", "Support"]


@every_wire
@every_era
async def test_everything_asks_its_user(house: House, era: str, wire: str) -> None:
    """Tools that are there only for clients who can be asked: forms, pages, a model's text, roots."""
    user = User(house.folder)
    async with client(house, era, user) as session:
        tools = {tool.name for tool in (await session.list_tools()).tools}
        assert f"{wire}__trigger-elicitation-request" in tools
        answered = said(await session.call_tool(f"{wire}__trigger-elicitation-request", {}))
        assert "- Name: my name" in answered
        assert user.shown == [f"[{wire}] Please provide inputs for the following fields:"]
        sampled = await session.call_tool(f"{wire}__trigger-sampling-request", {"prompt": "Capital?"})
        assert "Paris" in said(sampled)
        assert house.folder.as_uri() in said(await session.call_tool(f"{wire}__get-roots-list", {}))
        page = {"url": "https://page.example/sign-in", "message": "Sign in"}
        visited = await session.call_tool(f"{wire}__trigger-url-elicitation", page)
        assert "accept" in said(visited)
        assert user.shown[1:] == [f"[{wire}] Sign in"]


@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
@every_wire
async def test_an_older_client_is_told_what_is_logged(house: House, wire: str) -> None:
    async with client(house, "legacy", User(house.folder)) as session:
        await session.set_logging_level("debug")
        started = said(await session.call_tool(f"{wire}__toggle-simulated-logging", {}))
        assert "Started simulated" in started
        stopped = said(await session.call_tool(f"{wire}__toggle-simulated-logging", {}))
        assert "Stopped simulated" in stopped


async def test_a_file_as_people_have_it_is_served(tmp_path: Path) -> None:
    """`serve mcp.json`: its programs run while the gateway does, and not a moment longer."""
    kin = mark()
    try:
        time, files = python_server("mcp_server_time"), node_server("server-filesystem", str(tmp_path))
    except NotInstalled as error:
        pytest.fail(str(error))
    servers = {
        "time": {"command": time[0], "args": time[1:], "env": {MARK: kin, "TZ": "Europe/Berlin"}},
        "files": {"type": "stdio", "command": files[0], "args": files[1:], "env": {MARK: kin}},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    port, admin = free_port(), free_port()
    assert marked(kin) == []
    options = ("--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}")
    program = start("gateway", "serve", str(file), *options)
    try:
        wait_for(f"http://127.0.0.1:{admin}/readyz", program, timeout=60)
        for mode in ERAS.values():
            endpoint = f"http://127.0.0.1:{port}/mcp"
            async with Client(endpoint, mode=mode, cache=None, read_timeout_seconds=60) as session:
                now = await session.call_tool("time__get_current_time", {"timezone": "Asia/Tokyo"})
                assert "+09:00" in said(now)
                listed = await session.call_tool("files__list_directory", {"path": str(tmp_path)})
                assert "mcp.json" in said(listed)
        assert len(marked(kin)) == 4  # each program and its keeper
    finally:
        program.close()
    await none_left(kin)
    assert program.process.returncode == 0


async def test_no_program_outlives_the_gateway(house: House) -> None:
    """The last test of this file: callers' own processes end, too, beside the four that everybody shares."""
    assert len(marked(house.kin)) >= 8  # each with its keeper
    house.gateway.program.close()
    await none_left(house.kin)
