"""A real MCP server on 127.0.0.1 that does what a test's script says, and records all that reaches it.

    async with ScriptedUpstream(tools=[tool("add"), tool("sub")]) as upstream:
        ...point the gateway at upstream.url...
        upstream.on("tools/call", result({"content": []}))         # from now on
        upstream.once("tools/list", status(503), hang())           # the next two requests, then as before
        seen = await upstream.arrived("tools/call")                # the next request not waited for yet
        assert seen.header("mcp-name") == "add"
        await seen.closed.wait()                                   # the peer hung up on it

Without a script it is a well-behaved server of revision 2026-07-28: discover, paged lists with ttl and
scope, read, call (echoes its arguments), prompts, complete and listen. `await upstream.notify(...)` tells all
who listen; each of `upstream.listens` can be told, ended and cut; `listen(...)` scripts how they begin.
`upstream.tools`, `.prompts`, `.resources`, `.templates`, `.ttl_ms`, `.scope`, `.page_size`,
`.capabilities`, `.instructions` and `.supported` may be changed at any time. It checks what a strict server
checks: the `_meta` keys and that Mcp-* headers agree with the body.

A behaviour is any `async def behaviour(exchange: Exchange)`; the functions below make the usual ones. In
`sse(...)` and `raw(...)` each step is bytes (written on its own), an asyncio.Event (waited for), or CUT
(drop the connection without an end). `stop()` refuses connections, `start()` listens on the same port again.
"""

import asyncio
import base64
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
CUT = object()
"""A step: abort the TCP connection here."""

Step = bytes | asyncio.Event | object
Behaviour = Callable[["Exchange"], Awaitable[None]]


@dataclass(eq=False)
class Received:
    """One request as it arrived."""

    verb: str
    path: str
    raw_headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the peer closed the connection before the answer was complete."""

    @property
    def message(self) -> Any:
        """The body decoded, {} when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    @property
    def method(self) -> str:
        message = self.message
        return str(message.get("method", "")) if isinstance(message, dict) else ""

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.message.get("params") or {})

    @property
    def meta(self) -> dict[str, Any]:
        return dict(self.params.get("_meta") or {})

    def headers(self, name: str) -> list[str]:
        """Return every value of a header, in order."""
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.raw_headers if key.lower() == wanted]

    def header(self, name: str) -> str | None:
        """Return a header's only value, None when it is absent."""
        values = self.headers(name)
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


@dataclass(eq=False)
class Exchange:
    """One request and the means to answer it."""

    upstream: "ScriptedUpstream"
    received: Received
    request: web.BaseRequest
    response: web.StreamResponse | None = None

    @property
    def id(self) -> Any:
        return self.received.message.get("id")

    async def respond(
        self, status: int, headers: Mapping[str, str], steps: Sequence[Step], *, length: int | None = None
    ) -> None:
        """Send the head, then each step; ends the response unless cut."""
        response = web.StreamResponse(status=status, headers=headers)
        if length is not None:
            response.content_length = length
        self.response = response
        await response.prepare(self.request)
        if await self.play(steps, response.write):
            await response.write_eof()

    async def play(self, steps: Sequence[Step], write: Callable[[bytes], Awaitable[None]]) -> bool:
        """Perform the steps; whether the connection is still there."""
        for step in steps:
            if isinstance(step, bytes):
                await write(step)
                await asyncio.sleep(0)
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                self.abort()
                return False
        return True

    def abort(self) -> None:
        """Drop the TCP connection at once."""
        transport = self.request.transport
        if transport is not None:
            transport.abort()

    async def reply(self, payload: Mapping[str, Any], *, status: int = 200, **headers: str) -> None:
        """Answer with a JSON-RPC message that carries the request's id."""
        body = json.dumps({"jsonrpc": "2.0", "id": self.id, **payload}, ensure_ascii=False).encode()
        await self.respond(status, {"Content-Type": "application/json", **headers}, [body], length=len(body))


def tool(name: str, **members: Any) -> dict[str, Any]:
    """Return a plain tool definition."""
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}, **members}


def event(message: Mapping[str, Any] | bytes, *, end: bytes = b"\n") -> bytes:
    """Return one SSE event."""
    data = message if isinstance(message, bytes) else json.dumps(message, ensure_ascii=False).encode()
    return b"event: message" + end + b"data: " + data + end + end


def progress(token: Any, value: float, **params: Any) -> dict[str, Any]:
    """Return a progress notification."""
    return notification("notifications/progress", progressToken=token, progress=value, **params)


def notification(method: str, **params: Any) -> dict[str, Any]:
    """Return a notification."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def complete(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with the members every modern result has."""
    info = {f"{META}serverInfo": {"name": "scripted", "version": "1"}}
    return {"resultType": "complete", "_meta": info, **members}


def result(members: Mapping[str, Any], *, http: int = 200) -> Behaviour:
    """Answer with this result as JSON."""

    async def behave(exchange: Exchange) -> None:
        await exchange.reply({"result": complete(members)}, status=http)

    return behave


def error(code: int, message: str = "no", data: Any = None, *, http: int = 200, **members: Any) -> Behaviour:
    """Answer with a JSON-RPC error; `id=None` among the members overrides the id."""

    async def behave(exchange: Exchange) -> None:
        body = {"code": code, "message": message} | ({} if data is None else {"data": data})
        await exchange.reply({"error": body, **members}, status=http)

    return behave


def status(code: int, body: bytes = b"", content_type: str | None = None, **headers: str) -> Behaviour:
    """Answer with plain HTTP; header names are written with underscores for dashes."""

    async def behave(exchange: Exchange) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if content_type is not None:
            named["Content-Type"] = content_type
        await exchange.respond(code, named, [body] if body else [], length=len(body))

    return behave


def redirect(location: str, *, code: int = 307) -> Behaviour:
    """Answer with a redirect."""
    return status(code, Location=location)


def hang(until: asyncio.Event | None = None, then: Behaviour | None = None) -> Behaviour:
    """Send nothing until the event (for ever without one), then do `then` or drop the connection."""

    async def behave(exchange: Exchange) -> None:
        await (until or asyncio.Event()).wait()
        if then is not None:
            await then(exchange)
        else:
            exchange.abort()

    return behave


def raw(*steps: Step) -> Behaviour:
    """Write exactly these bytes on the connection, status line and all, then close it."""

    async def behave(exchange: Exchange) -> None:
        transport = exchange.request.transport
        assert transport is not None

        async def write(data: bytes) -> None:
            transport.write(data)

        if await exchange.play(steps, write):
            transport.close()

    return behave


def cut() -> Behaviour:
    """Drop the connection without a byte of an answer."""
    return raw(CUT)


def sse(
    *steps: Step | Callable[["Exchange"], Step], content_type: str = "text/event-stream", **headers: str
) -> Behaviour:
    """Answer with an event stream of exactly these steps; a callable step is made from the exchange."""

    async def behave(exchange: Exchange) -> None:
        played = [step(exchange) if callable(step) else step for step in steps]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.respond(200, {"Content-Type": content_type, **named}, played)

    return behave


def answer(members: Mapping[str, Any]) -> Callable[["Exchange"], bytes]:
    """Return the step of `sse` that is the final response."""
    return lambda exchange: event({"jsonrpc": "2.0", "id": exchange.id, "result": complete(members)})


@dataclass(eq=False)
class Listen:
    """One listen stream, told what to do from outside."""

    exchange: Exchange
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def wanted(self) -> Mapping[str, Any]:
        """The filter that was asked for."""
        return dict(self.exchange.received.params.get("notifications") or {})

    async def begin(self) -> None:
        """Send the head of the stream."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        self.exchange.response = web.StreamResponse(headers=headers)
        await self.exchange.response.prepare(self.exchange.request)

    async def send(self, data: bytes) -> None:
        """Write these bytes as they are."""
        assert self.exchange.response is not None
        await self.exchange.response.write(data)

    async def notify(self, method: str, *, subscription: Any = None, **params: Any) -> None:
        """Send a notification of this subscription, or of another one."""
        await self.send(event(self.message(method, subscription=subscription, **params)))

    def message(self, method: str, *, subscription: Any = None, **params: Any) -> dict[str, Any]:
        """Return a notification of this subscription, or of another one."""
        id = self.exchange.id if subscription is None else subscription
        meta = {f"{META}subscriptionId": id, **params.pop("_meta", {})}
        return notification(method, _meta=meta, **params)

    async def acknowledge(self, granted: Mapping[str, Any] | None = None) -> None:
        """Grant this much, by default all that was asked for."""
        granted = self.wanted if granted is None else granted
        await self.notify("notifications/subscriptions/acknowledged", notifications=granted)

    async def end(self) -> None:
        """Send the result that says the end is deliberate, and end the stream."""
        info = {f"{META}subscriptionId": self.exchange.id}
        members = {"resultType": "complete", "_meta": info}
        await self.send(event({"jsonrpc": "2.0", "id": self.exchange.id, "result": members}))
        await self.stop()

    async def stop(self) -> None:
        """End the stream without a word."""
        assert self.exchange.response is not None
        await self.exchange.response.write_eof()
        self.over.set()

    def cut(self) -> None:
        """Drop the connection."""
        self.exchange.abort()


def listen(grant: Mapping[str, Any] | bool = True) -> Behaviour:
    """Answer with a listen stream that grants this: True = all that is asked for, False = no word yet."""

    async def behave(exchange: Exchange) -> None:
        upstream, stream = exchange.upstream, Listen(exchange)
        await stream.begin()
        if grant is not False:
            await stream.acknowledge(None if grant is True else grant)
        upstream.listens.append(stream)
        upstream._changed.set()
        try:
            await stream.over.wait()
        finally:
            upstream.listens.remove(stream)
            upstream._changed.set()

    return behave


def token(exchange: Exchange) -> Any:
    """Return the progress token the request came with."""
    return exchange.received.meta.get("progressToken")


class ScriptedUpstream:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        prompts: Sequence[Mapping[str, Any]] = (),
        resources: Sequence[Mapping[str, Any]] = (),
        templates: Sequence[Mapping[str, Any]] = (),
        ttl_ms: int = 60_000,
        scope: str = "public",
        page_size: int = 1000,
        strict: bool = True,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.tools = list(tools)
        self.prompts = list(prompts)
        self.resources = list(resources)
        self.templates = list(templates)
        self.ttl_ms = ttl_ms
        self.scope = scope
        self.page_size = page_size
        self.strict = strict
        self.supported: list[str] = [VERSION]
        self.instructions: str | None = None
        self.capabilities: dict[str, Any] = {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "completions": {},
            "logging": {},
        }
        self.requests: list[Received] = []
        self.connections = 0
        """TCP connections accepted so far."""
        self._ssl = ssl_context
        self._port = 0
        self._always: dict[str, Behaviour] = {}
        self._next: dict[str, deque[Behaviour]] = {}
        self.listens: list[Listen] = []
        """The listen streams that are open, oldest first."""
        self._changed = asyncio.Event()
        self._awaited: set[int] = set()
        self._server: web.Server | None = None
        self._site: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self._port}/mcp"

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/mcp")

    async def __aenter__(self) -> "ScriptedUpstream":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; on the same port as before when it listened before."""
        self._server = web.Server(self._serve, handler_cancellation=True, access_log=None)
        make = self._server

        def accept() -> asyncio.BaseProtocol:
            self.connections += 1
            return make()

        self._site = await asyncio.get_running_loop().create_server(
            accept, "127.0.0.1", self._port, ssl=self._ssl, reuse_address=True
        )
        self._port = self._site.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listening socket and every connection."""
        if self._site is None or self._server is None:
            return
        self._site.close()
        await self._server.shutdown(0.05)
        await self._site.wait_closed()
        self._site = self._server = None

    def on(self, method: str, behaviour: Behaviour) -> None:
        """Answer every request of this method so ("*" = every method without its own script)."""
        self._always[method] = behaviour

    def once(self, method: str, *behaviours: Behaviour) -> None:
        """Answer the next requests of this method so, one each, before whatever holds otherwise."""
        self._next.setdefault(method, deque()).extend(behaviours)

    def reset(self, method: str | None = None) -> None:
        """Forget the scripts of one method or of all: the default behaviour holds again."""
        for table in (self._always, self._next):
            if method is None:
                table.clear()
            else:
                table.pop(method, None)

    async def arrived(self, method: str | None = None) -> Received:
        """Return the first request (of this method) that no `arrived` returned yet, waiting for it."""
        while True:
            for index, received in enumerate(self.requests):
                if index not in self._awaited and method in (None, received.method):
                    self._awaited.add(index)
                    return received
            self._changed.clear()
            await self._changed.wait()

    def seen(self, method: str) -> list[Received]:
        """Return every request of this method so far."""
        return [received for received in self.requests if received.method == method]

    async def notify(self, method: str, **params: Any) -> None:
        """Send a notification on every open listen stream; who has just hung up is told nothing."""
        for stream in list(self.listens):
            with suppress(ConnectionError):
                await stream.notify(method, **params)

    async def listening(self, count: int = 1) -> list[Mapping[str, Any]]:
        """Return the filters of the open listen streams once there are at least so many."""
        while len(self.listens) < count:
            self._changed.clear()
            await self._changed.wait()
        return [stream.wanted for stream in self.listens]

    async def only_one_listens(self) -> None:
        """Return once there is no more than one open listen stream."""
        while len(self.listens) > 1:
            self._changed.clear()
            await self._changed.wait()

    async def unlistened(self) -> None:
        """Return once no listen stream is open."""
        while self.listens:
            self._changed.clear()
            await self._changed.wait()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await request.content.read()  # request.read() would refuse more than 1 MiB
        except ConnectionError:
            return web.Response()
        received = Received(request.method, request.path_qs, tuple(request.raw_headers), body)
        self.requests.append(received)
        self._changed.set()
        exchange = Exchange(self, received, request)
        try:
            await self._behaviour(received.method)(exchange)
        except (asyncio.CancelledError, ConnectionError):
            received.closed.set()
            raise
        return exchange.response or web.Response(status=500)

    def _behaviour(self, method: str) -> Behaviour:
        if waiting := self._next.get(method):
            return waiting.popleft()
        return self._always.get(method) or self._always.get("*") or default


async def default(exchange: Exchange) -> None:
    """Answer as a well-behaved modern server does; scripts may fall back to it."""
    upstream, received = exchange.upstream, exchange.received
    if received.verb != "POST":
        await status(405, Allow="POST")(exchange)
        return
    if "id" not in received.message:
        await status(202)(exchange)
        return
    if upstream.strict and (problem := _problem(received)):
        code, reason = problem
        await error(code, reason, http=400)(exchange)
        return
    if received.meta[f"{META}protocolVersion"] not in upstream.supported:
        asked = received.meta[f"{META}protocolVersion"]
        data = {"supported": upstream.supported, "requested": asked}
        await error(-32022, "Unsupported protocol version", data, http=400)(exchange)
        return
    handler = _DEFAULTS.get(received.method)
    if handler is None:
        await error(-32601, "Method not found", received.method, http=404)(exchange)
    else:
        await handler(exchange)


def _problem(received: Received) -> tuple[int, str] | None:
    if not isinstance(received.meta.get(f"{META}clientCapabilities"), dict):
        return -32602, "clientCapabilities is missing"
    version = received.meta.get(f"{META}protocolVersion")
    if not isinstance(version, str):
        return -32602, "protocolVersion is missing"
    named = _NAMED.get(received.method)
    wanted = [("mcp-protocol-version", version), ("mcp-method", received.method)]
    if named:
        wanted.append(("mcp-name", received.params.get(named, "")))
    for header, value in wanted:
        values = received.headers(header)
        if len(values) != 1 or decoded(values[0]) != value:
            return -32020, f"{header} does not match the body"
    if received.header("content-type") != "application/json":
        return -32600, "wrong content type"
    return None


_NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


def decoded(value: str) -> str:
    """Return a mirrored header's value, the base64 form taken off."""
    if value.startswith("=?base64?") and value.endswith("?="):
        return base64.b64decode(value[9:-2], validate=True).decode()
    return value


async def _discover(exchange: Exchange) -> None:
    upstream = exchange.upstream
    members: dict[str, Any] = {
        "supportedVersions": upstream.supported,
        "capabilities": upstream.capabilities,
        "ttlMs": upstream.ttl_ms,
        "cacheScope": upstream.scope,
    }
    if upstream.instructions is not None:
        members["instructions"] = upstream.instructions
    await result(members)(exchange)


def _paged(key: str, items: Callable[[ScriptedUpstream], Sequence[Any]]) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        upstream, cursor = exchange.upstream, exchange.received.params.get("cursor")
        if cursor is not None and not (isinstance(cursor, str) and cursor.startswith("at-")):
            await error(-32602, "Invalid cursor", http=400)(exchange)
            return
        start = int(cursor.removeprefix("at-")) if cursor else 0
        everything = items(upstream)
        end = start + upstream.page_size
        members: dict[str, Any] = {
            key: list(everything[start:end]),
            "ttlMs": upstream.ttl_ms,
            "cacheScope": upstream.scope,
        }
        if end < len(everything):
            members["nextCursor"] = f"at-{end}"
        await result(members)(exchange)

    return behave


async def _call(exchange: Exchange) -> None:
    params = exchange.received.params
    if params.get("name") not in [known["name"] for known in exchange.upstream.tools]:
        await error(-32602, f"Unknown tool: {params.get('name')}", http=400)(exchange)
        return
    text = json.dumps({"tool": params["name"], "arguments": params.get("arguments")}, ensure_ascii=False)
    await result({"content": [{"type": "text", "text": text}], "isError": False})(exchange)


async def _read(exchange: Exchange) -> None:
    upstream, uri = exchange.upstream, exchange.received.params.get("uri")
    if uri not in [known["uri"] for known in upstream.resources]:
        await error(-32602, "Resource not found", {"uri": uri}, http=400)(exchange)
        return
    contents = [{"uri": uri, "mimeType": "text/plain", "text": f"content of {uri}"}]
    await result({"contents": contents, "ttlMs": upstream.ttl_ms, "cacheScope": upstream.scope})(exchange)


async def _prompt(exchange: Exchange) -> None:
    params = exchange.received.params
    if params.get("name") not in [known["name"] for known in exchange.upstream.prompts]:
        await error(-32602, f"Unknown prompt: {params.get('name')}", http=400)(exchange)
        return
    text = json.dumps({"prompt": params["name"], "arguments": params.get("arguments")}, ensure_ascii=False)
    await result({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})(exchange)


async def _complete(exchange: Exchange) -> None:
    value = exchange.received.params.get("argument", {}).get("value", "")
    values = [f"{value}-one", f"{value}-two"]
    await result({"completion": {"values": values, "total": 2, "hasMore": False}})(exchange)


_DEFAULTS: dict[str, Behaviour] = {
    "server/discover": _discover,
    "tools/list": _paged("tools", lambda upstream: upstream.tools),
    "prompts/list": _paged("prompts", lambda upstream: upstream.prompts),
    "resources/list": _paged("resources", lambda upstream: upstream.resources),
    "resources/templates/list": _paged("resourceTemplates", lambda upstream: upstream.templates),
    "tools/call": _call,
    "resources/read": _read,
    "prompts/get": _prompt,
    "completion/complete": _complete,
    "subscriptions/listen": listen(),
}
