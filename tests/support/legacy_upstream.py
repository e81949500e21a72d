"""A real server of an older revision on 127.0.0.1, with sessions that it can forget.

    async with LegacyServer(tools=[tool("add")]) as server:
        ...point the gateway at server.url...
        server.on("tools/call", streamed(lambda call: call.ask("roots/list")))   # asks, then answers
        server.forget()                       # every session is unknown from now on (404)
        await server.notify("notifications/tools/list_changed")   # on every standing stream

It is scripted like a ScriptedUpstream, whose behaviours it takes; by itself it answers `initialize`, lists
with pages, calls (`set_note` and `get_note` keep a note per session), reads, prompts, completions, `ping`,
`logging/setLevel` and subscriptions. What no server of its revision should be sent is kept in `faults`, and
leaving the block fails for it.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types.methods as official
import pydantic
from aiohttp import web

from tests.support.scripted import (
    META,
    Behaviour,
    Exchange,
    Received,
    ScriptedUpstream,
    error,
    event,
    notification,
    status,
)

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
UNVERSIONED = ("2025-03-26", "2024-11-05")


@dataclass(eq=False)
class Session:
    """What the server remembers of one client."""

    id: str
    version: str
    capabilities: Mapping[str, Any]
    authorization: str | None
    note: str | None = None
    level: str | None = None
    ready: bool = False
    subscribed: list[str] = field(default_factory=list)
    standing: web.StreamResponse | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Call:
    """A call that is answered on a stream, with whatever comes before."""

    def __init__(self, exchange: Exchange, server: "LegacyServer") -> None:
        self.exchange = exchange
        self.server = server
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    @property
    def token(self) -> Any:
        """The progress token it came with."""
        return self.exchange.received.meta.get("progressToken")

    async def begin(self) -> None:
        self.exchange.response = self.response
        await self.response.prepare(self.exchange.request)

    async def write(self, message: Mapping[str, Any]) -> None:
        await self.response.write(event(message))

    async def notify(self, method: str, **params: Any) -> None:
        await self.write(notification(method, **params))

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = None) -> Any:
        """Ask the client, and return its response."""
        id, answered = self.server.question(id)
        members = {} if params is None else {"params": params}
        await self.write({"jsonrpc": "2.0", "id": id, "method": method, **members})
        return await answered

    async def finish(self, result: Mapping[str, Any]) -> None:
        await self.write({"jsonrpc": "2.0", "id": self.exchange.id, "result": result})
        await self.response.write_eof()


def plain(members: Mapping[str, Any]) -> Behaviour:
    """Answer with this result as JSON, just as it is."""

    async def behave(exchange: Exchange) -> None:
        await exchange.reply({"result": members})

    return behave


def text(*blocks: str) -> dict[str, Any]:
    """Return the result of a tool."""
    return {"content": [{"type": "text", "text": block} for block in blocks]}


def streamed(talk: Callable[[Call], Awaitable[Any]]) -> Behaviour:
    """Answer on a stream: what the talk returns becomes the text of the result, unless it is a result."""

    async def behave(exchange: Exchange) -> None:
        server = exchange.upstream
        assert isinstance(server, LegacyServer)
        call = Call(exchange, server)
        await call.begin()
        said = await talk(call)
        await call.finish(said if _is_result(said) else text(json.dumps(said)))

    return behave


def _is_result(said: Any) -> bool:
    return isinstance(said, dict) and isinstance(said.get("content"), list)


class LegacyServer(ScriptedUpstream):
    """See the module's docstring."""

    def __init__(
        self, *, version: str = "2025-11-25", stateless: bool = False, stands: bool = True, **members: Any
    ) -> None:
        """It settles on `version` whatever it is offered; `stateless` names no session."""
        super().__init__(**members)
        self.version = version
        self.stateless = stateless
        self.stands = stands
        """Whether it has a standing stream (GET)."""
        self.unknown: Behaviour = error(-32001, "Session not found", http=404)
        self.replaces = False
        """Whether a session may go on with another credential, as where tokens are replaced."""
        self.sessions: dict[str, Session] = {}
        self.deleted: list[str] = []
        self.faults: list[str] = []
        self.unready = error(-32000, "Bad Request: Server not initialized", http=400)
        self._questions: dict[Any, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        assert self.faults == []

    @property
    def initialized(self) -> int:
        """How many sessions were ever opened."""
        return len(self.seen("initialize"))

    def forget(self) -> None:
        """Know no session any more, as after a restart."""
        for session in self.sessions.values():
            session.over.set()
        self.sessions.clear()

    def question(self, id: Any) -> tuple[Any, "asyncio.Future[Any]"]:
        """Return the id of a question, and what its answer becomes."""
        id = f"s{next(self._ids)}" if id is None else id
        self._questions[id] = asyncio.get_running_loop().create_future()
        return id, self._questions[id]

    async def standing(self, count: int = 1) -> list[Session]:
        """Return the sessions that have a standing stream, once there are so many."""
        while len(found := [one for one in self.sessions.values() if one.standing is not None]) < count:
            self._changed.clear()
            await self._changed.wait()
        return found

    async def stood(self, session: Session) -> None:
        """Return once this session has a standing stream."""
        await self.until(lambda: session.standing is not None)

    async def subscribed(self, *uris: str) -> None:
        """Return once just these resources are subscribed to, by all sessions together."""
        while sorted(uri for one in self.sessions.values() for uri in one.subscribed) != sorted(uris):
            self._changed.clear()
            await self._changed.wait()

    async def notify(self, method: str, **params: Any) -> None:
        """Send a notification on every standing stream."""
        for session in list(self.sessions.values()):
            if session.standing is not None:
                await session.standing.write(event(notification(method, **params)))

    async def until(self, such: Callable[[], bool]) -> None:
        """Return once this holds; it is looked at whenever something arrived."""
        while not such():
            self._changed.clear()
            await self._changed.wait()

    def session_of(self, received: Received) -> Session | None:
        """Return the session that a request names."""
        if self.stateless:
            return Session("", self.version, {}, None, ready=True)
        return self.sessions.get(received.header("mcp-session-id") or "")

    def _behaviour(self, method: str) -> Behaviour:
        if waiting := self._next.get(method):
            return waiting.popleft()
        scripted = self._always.get(method) or self._always.get("*")
        return _in_session(scripted) if scripted else legacy

    def check(self, received: Received, session: Session | None) -> None:
        """Note what a server of this revision should not be sent."""
        fault = self.faults.append
        method, message = received.method, received.message
        for name in ("mcp-method", "mcp-name", "cookie"):
            if received.headers(name):
                fault(f"{name} on {method}")
        if any(key.lower().startswith(b"mcp-param-") for key, _ in received.raw_headers):
            fault(f"a mirrored argument on {method}")
        if foreign := [key for key in received.meta if key.startswith(META)]:
            fault(f"{method} with {foreign}")
        version = self.version if session is None else session.version
        wanted = None if method == "initialize" or version in UNVERSIONED else version
        if received.header("mcp-protocol-version") != wanted:
            fault(f"{method}: version header {received.header('mcp-protocol-version')}, not {wanted}")
        if "id" not in message or not method:
            return
        try:
            official.parse_client_request(method, version, message.get("params"))
        except (pydantic.ValidationError, KeyError, ValueError) as wrong:
            fault(f"{method}: {wrong}")


def _in_session(scripted: Behaviour) -> Behaviour:
    """Have a script run for known sessions only, as everything else does."""

    async def behave(exchange: Exchange) -> None:
        server, received = exchange.upstream, exchange.received
        assert isinstance(server, LegacyServer)
        if received.method in ("server/discover", "initialize"):
            await scripted(exchange)
            return
        session = server.session_of(received)
        if session is None:
            await server.unknown(exchange)
            return
        server.check(received, session)
        await scripted(exchange)

    return behave


async def legacy(exchange: Exchange) -> None:
    """Answer as a well-behaved server of an older revision does."""
    server, received = exchange.upstream, exchange.received
    assert isinstance(server, LegacyServer)
    if received.method == "server/discover":
        await error(-32600, "Bad Request: Missing session ID", http=400, id=None)(exchange)
        return
    if received.method == "initialize":
        server.check(received, None)
        await _initialize(exchange, server)
        return
    if received.verb == "GET" and not server.stands:
        await status(405, Allow="POST, DELETE")(exchange)
        return
    if not server.stateless and received.header("mcp-session-id") is None:
        await error(-32600, "Bad Request: Missing session ID", http=400)(exchange)
        return
    session = server.session_of(received)
    if session is None:
        await server.unknown(exchange)
        return
    same = session.authorization == received.header("authorization") or server.replaces
    if not same and not server.stateless:
        server.faults.append(f"{received.verb} with another credential than its session began with")
    match received.verb:
        case "GET":
            await _stand(exchange, server, session)
        case "DELETE":
            server.deleted.append(session.id)
            server.sessions.pop(session.id, None)
            session.over.set()
            server._changed.set()
            await status(200)(exchange)
        case _:
            server.check(received, session)
            await _message(exchange, server, session)


async def _initialize(exchange: Exchange, server: LegacyServer) -> None:
    params = exchange.received.params
    number = len(server.seen("initialize"))
    session = Session(
        f"session-{number}", server.version, params["capabilities"], exchange.received.header("authorization")
    )
    headers = {}
    if not server.stateless:
        server.sessions[session.id] = session
        headers["Mcp-Session-Id"] = session.id
    result: dict[str, Any] = {
        "protocolVersion": server.version,
        "capabilities": server.capabilities,
        "serverInfo": {"name": "old", "version": "1"},
    }
    if server.instructions is not None:
        result["instructions"] = server.instructions
    await exchange.reply({"result": result}, **headers)


async def _stand(exchange: Exchange, server: LegacyServer, session: Session) -> None:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    exchange.response = response
    await response.prepare(exchange.request)
    session.standing = response
    server._changed.set()
    try:
        await session.over.wait()
        exchange.abort()
    finally:
        session.standing = None


async def _message(exchange: Exchange, server: LegacyServer, session: Session) -> None:
    message = exchange.received.message
    if "method" not in message:
        waiting = server._questions.pop(message.get("id"), None)
        if waiting is None:
            server.faults.append(f"an answer to nothing: {message}")
        elif not waiting.done():
            waiting.set_result(message)
        await status(202)(exchange)
    elif "id" not in message:
        if message["method"] == "notifications/initialized":
            session.ready = True
        await status(202)(exchange)
    elif not session.ready and message["method"] != "ping":
        await server.unready(exchange)
    else:
        await _request(exchange, server, session)


async def _request(exchange: Exchange, server: LegacyServer, session: Session) -> None:
    method, params = exchange.received.method, exchange.received.params
    match method:
        case "ping":
            await plain({})(exchange)
        case "logging/setLevel":
            session.level = params["level"]
            await plain({})(exchange)
        case "resources/subscribe":
            session.subscribed.append(params["uri"])
            server._changed.set()
            await plain({})(exchange)
        case "resources/unsubscribe":
            session.subscribed.remove(params["uri"])
            server._changed.set()
            await plain({})(exchange)
        case "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list":
            await _list(exchange, server)
        case "tools/call":
            await _call(exchange, server, session)
        case "resources/read" if params["uri"] not in [one["uri"] for one in server.resources]:
            await error(-32002, "Resource not found", {"uri": params["uri"]})(exchange)
        case "resources/read":
            contents = [
                {"uri": params["uri"], "mimeType": "text/plain", "text": f"content of {params['uri']}"}
            ]
            await plain({"contents": contents})(exchange)
        case "prompts/get":
            said = json.dumps({"prompt": params["name"], "arguments": params.get("arguments")})
            content = {"type": "text", "text": said}
            await plain({"messages": [{"role": "user", "content": content}]})(exchange)
        case "completion/complete":
            values = [f"{params['argument']['value']}-one"]
            await plain({"completion": {"values": values, "total": 1, "hasMore": False}})(exchange)
        case _:
            await error(-32601, "Method not found")(exchange)


async def _list(exchange: Exchange, server: LegacyServer) -> None:
    key, items = {
        "tools/list": ("tools", server.tools),
        "prompts/list": ("prompts", server.prompts),
        "resources/list": ("resources", server.resources),
        "resources/templates/list": ("resourceTemplates", server.templates),
    }[exchange.received.method]
    start = int((exchange.received.params.get("cursor") or "at-0").removeprefix("at-"))
    end = start + server.page_size
    members: dict[str, Any] = {key: items[start:end]}
    if end < len(items):
        members["nextCursor"] = f"at-{end}"
    await plain(members)(exchange)


async def _call(exchange: Exchange, server: LegacyServer, session: Session) -> None:
    name, arguments = exchange.received.params["name"], exchange.received.params.get("arguments") or {}
    if name not in [known["name"] for known in server.tools]:
        await error(-32602, f"Unknown tool: {name}")(exchange)
    elif name == "set_note":
        session.note = arguments.get("note")
        await plain(text("kept"))(exchange)
    elif name == "get_note":
        await plain(text(session.note or "none"))(exchange)
    else:
        await plain(text(json.dumps({"tool": name, "arguments": arguments})))(exchange)
