"""The clients of the matrix: the official SDK's of four revisions, and one that writes batches by hand.

All are used alike; what they return is JSON, and an error answer is raised as Refused.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any, Protocol
from unittest import mock

import anyio
import httpx2
import mcp.client.session as sdk_session
import mcp_types as t
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

from tests.support.legacy_client import Exchange, LegacyClient, judged

MODERN = "2026-07-28"
TOKEN = "ann"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
Change = tuple[str, str | None]
"""The method of a notification, and the resource it is about."""
TOOLS_CHANGED: Change = ("notifications/tools/list_changed", None)


class Refused(Exception):
    """An error answer."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{code} {message} {data}")
        self.code = code
        self.message = message
        self.data = data


class Heard:
    """What came beside the answers."""

    def __init__(self) -> None:
        self.progress: list[float] = []
        self.logs: list[str] = []
        self.shown: list[str] = []
        self.changes: asyncio.Queue[Change] = asyncio.Queue()

    def forget(self) -> None:
        """Forget all that came so far; what comes late is told by what it is about."""
        self.progress.clear()
        self.logs.clear()
        self.shown.clear()
        while not self.changes.empty():
            self.changes.get_nowait()


class MatrixClient(Protocol):
    """What each client of the matrix can do."""

    heard: Heard

    async def listed(self, method: str) -> list[dict[str, Any]]:
        """Return a whole list, page by page."""

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool, with a progress token, and answer what it asks."""

    async def abandon(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Call a tool, and take the call back at its first progress."""

    async def log_from(self, level: str) -> None:
        """Want log messages of this level or above from now on."""

    async def read(self, uri: str) -> dict[str, Any]: ...

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]: ...

    async def complete(self, prompt: str, name: str, value: str) -> dict[str, Any]: ...

    def watching(self, uri: str | None = None) -> AbstractAsyncContextManager[None]:
        """Hear of changes of the tools and of a resource, in `heard.changes`."""


Opened = Callable[[str], AbstractAsyncContextManager[MatrixClient]]


# The official SDK's


class User:
    """Answers every question of a server, and remembers what was shown."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    async def elicitation(self, context: ClientRequestContext, params: Any) -> t.ElicitResult:
        self._heard.shown.append(params.message)
        if isinstance(params, t.ElicitRequestURLParams):
            return t.ElicitResult(action="accept")
        return t.ElicitResult(action="accept", content={"name": "Ann"})

    async def sampling(self, context: ClientRequestContext, params: Any) -> t.CreateMessageResult:
        block = t.TextContent(type="text", text="Paris")
        return t.CreateMessageResult(role="assistant", content=block, model="m")

    async def roots(self, context: ClientRequestContext) -> t.ListRootsResult:
        return t.ListRootsResult(roots=[t.Root(uri="file:///home/ann")])


class Sdk:
    """A client of the official SDK, of whichever revision."""

    def __init__(self, client: Client, heard: Heard) -> None:
        self._client = client
        self.heard = heard
        self._level: str | None = None

    @property
    def modern(self) -> bool:
        return self._client.protocol_version == MODERN

    async def listed(self, method: str) -> list[dict[str, Any]]:
        asked = {
            "tools/list": self._client.list_tools,
            "prompts/list": self._client.list_prompts,
            "resources/list": self._client.list_resources,
            "resources/templates/list": self._client.list_resource_templates,
        }[method]
        found, cursor = [], None
        while True:
            page = await _plain(asked(cursor=cursor))
            found += page[LISTS[method]]
            if (cursor := page.get("nextCursor")) is None:
                return found

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        meta: Any = {LOG_LEVEL: self._level} if self.modern and self._level else None
        return await _plain(
            self._client.call_tool(name, dict(arguments or {}), progress_callback=self._progress, meta=meta)
        )

    async def abandon(self, name: str, arguments: Mapping[str, Any]) -> None:
        begun = anyio.Event()

        async def progress(value: float, total: float | None, message: str | None) -> None:
            begun.set()

        async def call() -> None:
            await self._client.call_tool(name, dict(arguments), progress_callback=progress)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await begun.wait()
            group.cancel_scope.cancel()

    async def log_from(self, level: str) -> None:
        self._level = level
        if not self.modern:
            await _plain(self._client.set_logging_level(level))  # type: ignore[arg-type]

    async def read(self, uri: str) -> dict[str, Any]:
        return await _plain(self._client.read_resource(uri))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        return await _plain(self._client.get_prompt(name, dict(arguments)))

    async def complete(self, prompt: str, name: str, value: str) -> dict[str, Any]:
        about = t.PromptReference(type="ref/prompt", name=prompt)
        return await _plain(self._client.complete(about, {"name": name, "value": value}))

    @asynccontextmanager
    async def watching(self, uri: str | None = None) -> AsyncIterator[None]:
        if not self.modern:
            if uri is not None:
                await _plain(self._client.subscribe_resource(uri))
            yield
            return
        uris = [] if uri is None else [uri]
        wanted = self._client.listen(tools_list_changed=True, resource_subscriptions=uris)
        async with wanted as events, anyio.create_task_group() as group:
            group.start_soon(self._follow, events)
            yield
            group.cancel_scope.cancel()

    async def _follow(self, events: Any) -> None:
        async for event in events:
            match event:
                case ToolsListChanged():
                    self.heard.changes.put_nowait(TOOLS_CHANGED)
                case ResourceUpdated():
                    self.heard.changes.put_nowait(("notifications/resources/updated", event.uri))

    async def _progress(self, value: float, total: float | None, message: str | None) -> None:
        self.heard.progress.append(value)


async def _plain(asked: Awaitable[Any]) -> dict[str, Any]:
    """Return a result as JSON has it."""
    try:
        result = await asked
    except MCPError as error:
        raise Refused(error.error.code, error.error.message, error.error.data) from None
    return dict(result.model_dump(mode="json", by_alias=True, exclude_none=True))


def sdk(version: str, *, able: bool = True) -> Opened:
    """Return how a client of the official SDK begins; one that is not `able` answers no question."""

    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[MatrixClient]:
        heard = Heard()
        user = User(heard)

        async def message(message: Any) -> None:
            if isinstance(message, t.ToolListChangedNotification):
                heard.changes.put_nowait(TOOLS_CHANGED)
            elif isinstance(message, t.ResourceUpdatedNotification):
                heard.changes.put_nowait((message.method, str(message.params.uri)))

        async def logged(params: t.LoggingMessageNotificationParams) -> None:
            heard.logs.append(str(params.level))

        answers: dict[str, Any] = {}
        if able:
            answers = {
                "elicitation_callback": user.elicitation,
                "sampling_callback": user.sampling,
                "list_roots_callback": user.roots,
            }
            if version >= "2025-11-25":
                answers["sampling_capabilities"] = t.SamplingCapability(tools=t.SamplingToolsCapability())
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as http:
            client = Client(
                streamable_http_client(url, http_client=http),
                mode=MODERN if version == MODERN else "legacy",
                cache=None,
                read_timeout_seconds=30,
                logging_callback=logged,
                message_handler=message,
                **answers,
            )
            # It has no option for the revision it begins with.
            with mock.patch.object(sdk_session, "LATEST_HANDSHAKE_VERSION", version):
                await client.__aenter__()
            try:
                assert client.protocol_version == version
                yield Sdk(client, heard)
            finally:
                await client.__aexit__(None, None, None)

    return opened


# By hand


class Batching:
    """A client of 2025-03-26 that sends every request in a batch with a ping, and answers in batches."""

    def __init__(self, client: LegacyClient) -> None:
        self._client = client
        self._ids = count(1000)
        self.heard = Heard()

    async def listed(self, method: str) -> list[dict[str, Any]]:
        found, cursor = [], None
        while True:
            page = await self._ask(method, {} if cursor is None else {"cursor": cursor})
            found += page[LISTS[method]]
            if (cursor := page.get("nextCursor")) is None:
                return found

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._ask("tools/call", _calling(name, arguments or {}))

    async def abandon(self, name: str, arguments: Mapping[str, Any]) -> None:
        id = next(self._ids)
        async with self._posted(_request("tools/call", _calling(name, arguments), id)) as exchange:
            while (message := await exchange.next()) is not None:
                if message.get("method") == "notifications/progress":
                    break
            await self._told("notifications/cancelled", {"requestId": id})

    async def log_from(self, level: str) -> None:
        assert await self._ask("logging/setLevel", {"level": level}) == {}

    async def read(self, uri: str) -> dict[str, Any]:
        return await self._ask("resources/read", {"uri": uri})

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        return await self._ask("prompts/get", {"name": name, "arguments": dict(arguments)})

    async def complete(self, prompt: str, name: str, value: str) -> dict[str, Any]:
        about = {"type": "ref/prompt", "name": prompt}
        return await self._ask(
            "completion/complete", {"ref": about, "argument": {"name": name, "value": value}}
        )

    @asynccontextmanager
    async def watching(self, uri: str | None = None) -> AsyncIterator[None]:
        async with self._client.listen() as stream:
            following = asyncio.create_task(self._follow(stream))
            try:
                if uri is not None:
                    assert await self._ask("resources/subscribe", {"uri": uri}) == {}
                yield
            finally:
                following.cancel()

    async def _follow(self, stream: Exchange) -> None:
        while (message := await stream.next()) is not None:
            about = (message.get("params") or {}).get("uri")
            self.heard.changes.put_nowait((message["method"], about))

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        id, beside = next(self._ids), next(self._ids)
        answers: dict[Any, dict[str, Any]] = {}
        async with self._posted(_request(method, params, id), _request("ping", None, beside)) as exchange:
            await exchange.begun()
            assert exchange.status == 200
            if exchange.streamed:
                while (message := await exchange.next()) is not None:
                    await self._take(message, {id: method, beside: "ping"}, answers)
            else:
                for message in (await exchange.whole()).messages:
                    await self._take(message, {id: method, beside: "ping"}, answers)
        assert answers.keys() == {id, beside}
        assert answers[beside]["result"] == {}
        if "error" in answers[id]:
            error = answers[id]["error"]
            raise Refused(error["code"], error["message"], error.get("data"))
        return dict(answers[id]["result"])

    async def _take(
        self, message: dict[str, Any], methods: Mapping[int, str], answers: dict[Any, dict[str, Any]]
    ) -> None:
        about = methods.get(message["id"]) if "method" not in message else message["method"]
        judged(about, json.dumps(message).encode(), self._client.version)
        match message.get("method"):
            case None:
                answers[message["id"]] = message
            case "notifications/progress":
                self.heard.progress.append(message["params"]["progress"])
            case "notifications/message":
                self.heard.logs.append(message["params"]["level"])
            case question:
                await self._answer(message["id"], _ANSWERS[question])

    async def _answer(self, id: Any, result: Mapping[str, Any]) -> None:
        async with self._client.post(
            json.dumps([{"jsonrpc": "2.0", "id": id, "result": result}]).encode()
        ) as e:
            assert (await e.whole()).status == 202

    async def _told(self, method: str, params: Mapping[str, Any]) -> None:
        body = [{"jsonrpc": "2.0", "method": method, "params": params}]
        async with self._client.post(json.dumps(body).encode()) as exchange:
            assert (await exchange.whole()).status == 202

    @asynccontextmanager
    async def _posted(self, *messages: Mapping[str, Any]) -> AsyncIterator[Exchange]:
        async with self._client.post(json.dumps(messages).encode()) as exchange:
            yield exchange


_ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "Paris"},
        "model": "m",
    },
    "roots/list": {"roots": [{"uri": "file:///home/ann"}]},
}


def _request(method: str, params: Mapping[str, Any] | None, id: int) -> dict[str, Any]:
    members = {} if params is None else {"params": params}
    return {"jsonrpc": "2.0", "id": id, "method": method, **members}


def _calling(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "arguments": dict(arguments), "_meta": {"progressToken": "p"}}


@asynccontextmanager
async def batching(url: str) -> AsyncIterator[MatrixClient]:
    """Begin a session in which everything comes in batches."""
    capabilities = {"sampling": {}, "roots": {}}
    async with LegacyClient(url, "2025-03-26", capabilities=capabilities, token=TOKEN) as client:
        yield Batching(client)


CLIENTS: Mapping[str, Opened] = {
    MODERN: sdk(MODERN),
    "unable": sdk(MODERN, able=False),
    "2025-11-25": sdk("2025-11-25"),
    "2025-06-18": sdk("2025-06-18"),
    "2025-03-26": sdk("2025-03-26"),
    "batches": batching,
}
