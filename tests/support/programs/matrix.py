"""A server of the official SDK for the compatibility matrix: the same features in either era.

    python -m tests.support.programs.matrix stdio     over stdin and stdout, in the era it is greeted in
    python -m tests.support.programs.matrix http      prints the address of a free port, and serves there
                                                      /modern/mcp, /legacy/mcp (sessions) and /sse

What asks its user returns `input_required` in the modern era, and sends a request in the middle of the call
in the other. What a client answered is told as JSON, an error as its code.
"""

import json
import socket
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.server.models import InitializationOptions
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError, UrlElicitationRequiredError
from mcp.shared.message import ServerMessageMetadata
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

MODERN = "2026-07-28"
PAGE = 3
NOTE = "matrix://note"
PROMPTS = ("greet", "part", "praise", "thank")
RESOURCES = (NOTE, "matrix://one", "matrix://two", "matrix://three")
TEMPLATES = ("matrix://a/{id}", "matrix://b/{id}", "matrix://c/{id}", "matrix://d/{id}")

Ctx = ServerRequestContext[Any, Any]
Work = Callable[["Features", Ctx, t.CallToolRequestParams], Awaitable[Any]]
TOOLS: dict[str, Work] = {}


def tool(work: Work) -> Work:
    TOOLS[work.__name__] = work
    return work


def text(said: Any) -> t.CallToolResult:
    whole = said if isinstance(said, str) else json.dumps(said)
    return t.CallToolResult(content=[t.TextContent(type="text", text=whole)])


@tool
async def count(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    for step in (1, 2, 3):
        await ctx.session.report_progress(step, 3)
    return text("counted")


@tool
async def hang(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    """Report progress once, then wait to be cancelled."""
    await ctx.session.report_progress(1, 2)
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        features.cancelled.append((params.arguments or {})["tag"])
        raise


@tool
async def cancelled(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    return text(features.cancelled)


@tool
async def log(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    """Say a word at four levels."""
    for level in ("debug", "info", "warning", "error"):
        await ctx.session.send_log_message(level, level, related_request_id=ctx.request_id)
    return text("logged")


@tool
async def change(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    """Let a tool come or go, and tell of it."""
    features.extra = not features.extra
    await features.bus.publish(ToolsListChanged())
    await features.tell("send_tool_list_changed")
    return text("changed")


@tool
async def update(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    """Write another number into the note, and tell of it."""
    features.written += 1
    await features.bus.publish(ResourceUpdated(uri=NOTE))
    await features.tell("send_resource_updated", NOTE, to=features.watchers)
    return text(features.written)


@tool
async def rich(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    """Answer with data and a link."""
    link = t.ResourceLink(type="resource_link", uri=NOTE, name="note")
    said = t.TextContent(type="text", text='{"sum": 3}')
    return t.CallToolResult(content=[said, link], structured_content={"sum": 3})


async def values(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    """Answer with data that is no object, which came with the modern era."""
    return t.CallToolResult(content=[], structured_content=[1, 2])


async def need_page(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    """Want a page visited before it is called at all, which is an error of its own in revision 2025-11-25."""
    tag = (params.arguments or {})["tag"]
    if tag in features.visited:
        return text({"action": "accept"})
    features.visited.add(tag)
    raise UrlElicitationRequiredError([_PAGE])


_FORM = t.ElicitRequestFormParams(
    message="Your name?",
    requested_schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
)
_PAGE = t.ElicitRequestURLParams(message="Sign in", url="https://sign.in.example/", elicitation_id="page-1")
_SAID = t.SamplingMessage(role="user", content=t.TextContent(type="text", text="Capital of France?"))
_LOOK = t.Tool(name="look", input_schema={"type": "object"})


@tool
async def form(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    return await asked(ctx, params, t.ElicitRequest(params=_FORM), t.ElicitResult)


@tool
async def page(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    return await asked(ctx, params, t.ElicitRequest(params=_PAGE), t.ElicitResult)


@tool
async def sample(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    about = t.CreateMessageRequestParams(messages=[_SAID], max_tokens=10)
    return await asked(ctx, params, t.CreateMessageRequest(params=about), t.CreateMessageResult)


@tool
async def sample_tools(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    about = t.CreateMessageRequestParams(messages=[_SAID], max_tokens=10, tools=[_LOOK])
    return await asked(ctx, params, t.CreateMessageRequest(params=about), t.CreateMessageResultWithTools)


@tool
async def roots(features: "Features", ctx: Ctx, params: t.CallToolRequestParams) -> Any:
    return await asked(ctx, params, t.ListRootsRequest(), t.ListRootsResult)


async def asked(ctx: Ctx, params: t.CallToolRequestParams, question: Any, kind: type[t.Result]) -> Any:
    """Ask in the way of the era, without a look at what the client declared, and tell the answer."""
    if ctx.protocol_version == MODERN:
        answer = (params.input_responses or {}).get("q")
        if answer is None:
            return t.InputRequiredResult(input_requests={"q": question})
    else:
        here = ServerMessageMetadata(related_request_id=ctx.request_id)
        try:
            answer = await ctx.session.send_request(question, kind, metadata=here)
        except MCPError as error:
            return t.CallToolResult(
                content=[t.TextContent(type="text", text=json.dumps({"refused": error.error.code}))],
                is_error=True,
            )
    return text(answer.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"}))


class Features:
    """What every server of the matrix has, and remembers."""

    def __init__(self, *more: Work) -> None:
        self.tools = {**TOOLS, **{work.__name__: work for work in more}}
        self.cancelled: list[str] = []
        self.extra = False
        self.visited: set[str] = set()
        self.written = 0
        self.sessions: dict[Any, Any] = {}
        self.watchers: dict[Any, Any] = {}
        self.bus = InMemorySubscriptionBus()
        self.server: Server[Any] = Server(
            "matrix",
            version="1",
            cache_hints={
                "tools/list": CacheHint(60_000, "public"),
                "resources/read": CacheHint(60_000, "public"),
            },
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read,
            on_subscribe_resource=self.subscribe,
            on_unsubscribe_resource=self.unsubscribe,
            on_subscriptions_listen=ListenHandler(self.bus),
            on_completion=self.complete,
            on_set_logging_level=self.set_level,
        )
        made = self.server.create_initialization_options
        self.server.create_initialization_options = (  # type: ignore[method-assign]
            lambda *_, **__: made(NotificationOptions(True, True, True), None, {})
        )

    @property
    def options(self) -> InitializationOptions:
        return self.server.create_initialization_options()

    async def tell(self, word: str, *about: str, to: dict[Any, Any] | None = None) -> None:
        """Tell the sessions of the older era that are still there."""
        told = self.sessions if to is None else to
        for connection, session in list(told.items()):
            try:
                await getattr(session, word)(*about)
            except Exception:
                told.pop(connection, None)

    def known(self, ctx: Ctx) -> None:
        """Remember a session by its connection, of which each request has a view of its own."""
        if ctx.protocol_version != MODERN:
            self.sessions.setdefault(ctx.session._connection, ctx.session)

    async def list_tools(self, ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        self.known(ctx)
        names = [*self.tools, *(["extra"] if self.extra else [])]
        found = [t.Tool(name=name, title=name.title(), input_schema={"type": "object"}) for name in names]
        for one in found:
            if one.name == "rich":
                one.icons = [t.Icon(src="https://icons.example/rich.png")]
                one.output_schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
        items, cursor = paged(found, params, 3 * PAGE)
        return t.ListToolsResult(tools=items, next_cursor=cursor)

    async def call_tool(self, ctx: Ctx, params: t.CallToolRequestParams) -> Any:
        self.known(ctx)
        if params.name not in self.tools:
            raise MCPError(t.INVALID_PARAMS, f"Unknown tool: {params.name}")
        return await self.tools[params.name](self, ctx, params)

    async def list_prompts(self, ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
        whom = [t.PromptArgument(name="name")]
        items, cursor = paged([t.Prompt(name=name, arguments=whom) for name in PROMPTS], params)
        return t.ListPromptsResult(prompts=items, next_cursor=cursor)

    async def get_prompt(self, ctx: Ctx, params: t.GetPromptRequestParams) -> t.GetPromptResult:
        said = f"{params.name} {(params.arguments or {}).get('name')}"
        message = t.PromptMessage(role="user", content=t.TextContent(type="text", text=said))
        return t.GetPromptResult(messages=[message])

    async def list_resources(
        self, ctx: Ctx, params: t.PaginatedRequestParams | None
    ) -> t.ListResourcesResult:
        items, cursor = paged([t.Resource(uri=uri, name=uri) for uri in RESOURCES], params)
        return t.ListResourcesResult(resources=items, next_cursor=cursor)

    async def list_templates(
        self, ctx: Ctx, params: t.PaginatedRequestParams | None
    ) -> t.ListResourceTemplatesResult:
        found = [t.ResourceTemplate(uri_template=uri, name=uri) for uri in TEMPLATES]
        items, cursor = paged(found, params)
        return t.ListResourceTemplatesResult(resource_templates=items, next_cursor=cursor)

    async def read(self, ctx: Ctx, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        uri = str(params.uri)
        if uri not in RESOURCES:
            code = t.INVALID_PARAMS if ctx.protocol_version == MODERN else -32002
            raise MCPError(code, "Resource not found", {"uri": uri})
        said = t.TextResourceContents(uri=uri, mime_type="text/plain", text=f"{uri} {self.written}")
        return t.ReadResourceResult(contents=[said])

    async def subscribe(self, ctx: Ctx, params: t.SubscribeRequestParams) -> t.EmptyResult:
        if str(params.uri) == NOTE:
            self.watchers[ctx.session._connection] = ctx.session
        return t.EmptyResult()

    async def unsubscribe(self, ctx: Ctx, params: t.UnsubscribeRequestParams) -> t.EmptyResult:
        if str(params.uri) == NOTE:
            self.watchers.pop(ctx.session._connection, None)
        return t.EmptyResult()

    async def complete(self, ctx: Ctx, params: t.CompleteRequestParams) -> t.CompleteResult:
        names = [name for name in ("ann", "anton", "bea") if name.startswith(params.argument.value)]
        return t.CompleteResult(completion=t.Completion(values=names, total=len(names), has_more=False))

    async def set_level(self, ctx: Ctx, params: t.SetLevelRequestParams) -> t.EmptyResult:
        """Take it and send everything all the same, as many servers do."""
        return t.EmptyResult()


def paged(
    found: list[Any], params: t.PaginatedRequestParams | None, size: int = PAGE
) -> tuple[list[Any], str | None]:
    start = int(params.cursor) if params is not None and params.cursor is not None else 0
    end = start + size
    return found[start:end], str(end) if end < len(found) else None


def old(app: Any) -> Any:
    """Have an application refuse what is not of its time, as servers did before the modern era."""

    async def refusing(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-protocol-version") == MODERN.encode():
            error = {"code": -32600, "message": "Bad Request: Unsupported protocol version"}
            whole = {"jsonrpc": "2.0", "id": "server-error", "error": error}
            refused = Response(json.dumps(whole), 400, media_type="application/json")
            await refused(scope, receive, send)  # type: ignore[arg-type]
            return
        await app(scope, receive, send)

    return refusing


def application() -> Starlette:
    """Return three servers: one of the modern era, one with sessions, one of HTTP+SSE."""
    modern, legacy, sse = Features(values), Features(need_page), Features(need_page)
    streams = SseServerTransport("/messages/")
    apps = [one.server.streamable_http_app() for one in (modern, legacy)]

    async def connected(request: Request) -> Response:
        parts = request.scope, request.receive, request._send
        async with streams.connect_sse(*parts) as (read, write):
            await sse.server.run(read, write, sse.options)
        return Response()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        async with AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    routes = [
        Mount("/modern", apps[0]),
        Mount("/legacy", old(apps[1])),
        Route("/sse", connected, methods=["GET"]),
        Mount("/messages/", streams.handle_post_message),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def serve() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(application(), log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


async def talk(*more: Work) -> None:
    features = Features(*more)
    async with stdio_server() as (read, write):
        await features.server.run(read, write, features.options)


def main() -> None:
    warnings.simplefilter("ignore")
    match sys.argv[1]:
        case "http":
            serve()
        case "stdio":
            anyio.run(talk, *({"modern": [values], "legacy": [need_page]}[sys.argv[2]]))
        case unknown:
            sys.exit(f"no {unknown}")


if __name__ == "__main__":
    main()
