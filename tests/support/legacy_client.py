"""A client of an older revision that shows every byte, and judges each message it is sent by that revision.

    async with LegacyClient(gateway.addresses.endpoints[0], "2025-06-18") as client:
        listed = await client.ask("tools/list")
        async with client.open("tools/call", {"name": "ask"}) as posted:     # a call to be watched
            question = await posted.next()
            await client.respond(question["id"], {"action": "accept"})
            assert (await posted.answer())["result"]["content"] == []
        async with client.listen() as stream:
            assert (await stream.next())["method"] == "notifications/tools/list_changed"

With several addresses each request goes to the next of them, as a balancer without affinity does it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count, cycle
from typing import Any
from urllib.parse import urlsplit

import mcp_types.methods as official

from gateway.protocol.call import HOP_META, META_PROGRESS_TOKEN
from tests.support.wire import check_message

_BOTH = "application/json, text/event-stream"


def judged(method: str | None, message: bytes, version: str) -> dict[str, Any]:
    """Return a message decoded; fails if a strict client of this revision could refuse it.

    The official types know 2025-11-25; what the revisions before it lack is looked for besides.
    """
    decoded: dict[str, Any] = json.loads(message)
    if "method" in decoded and "id" in decoded:
        assert decoded["jsonrpc"] == "2.0"
        assert isinstance(decoded["id"], str)
        official.parse_server_request(decoded["method"], version, decoded.get("params"))
    else:
        check_message(method, message, version)
    _check_addition(decoded, version)
    return decoded


def _check_addition(decoded: Mapping[str, Any], version: str) -> None:
    """Fail on what came with later revisions, at any place where it is the protocol's own."""
    result = decoded.get("result", {})
    for about in (result, decoded.get("params") or {}):
        leaked = HOP_META & set(about.get("_meta") or {})
        assert not leaked - {META_PROGRESS_TOKEN}, decoded
    if version == "2025-11-25":
        return
    items = [
        item for key in ("tools", "prompts", "resources", "resourceTemplates") for item in result.get(key, [])
    ]
    blocks = [*result.get("content", []), *(one["content"] for one in result.get("messages", []))]
    blocks += result.get("contents", [])
    absent = {"icons", "execution"}
    if version == "2025-03-26":
        absent |= {"title", "_meta", "outputSchema"}
        assert "structuredContent" not in result, decoded
        assert "resource_link" not in {block.get("type") for block in blocks}, decoded
    for item in [*items, *blocks]:
        assert not absent & item.keys(), item
    assert "mode" not in (decoded.get("params") or {}), decoded


class Exchange:
    """One HTTP request and what comes of it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str | None, version: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._method = method
        self._version = version
        self._buffer = b""
        self._ended = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.messages: list[dict[str, Any]] = []
        self.body = b""

    async def begun(self) -> "Exchange":
        """Read status and headers."""
        if not self.status:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            self.status = int(lines[0].split(" ")[1])
            for line in lines[1:]:
                name, _, value = line.partition(":")
                self.headers[name.lower()] = value.strip()
        return self

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    async def next(self) -> dict[str, Any] | None:
        """Return the next message of a stream, None at its end."""
        await self.begun()
        assert self.streamed, (self.status, self.headers)
        while not self._ended:
            while b"\n\n" not in self._buffer:
                size = int(await self._reader.readline(), 16)
                self._buffer += (await self._reader.readexactly(size + 2))[:-2]
                if not size:
                    self._ended = True
                    return None
            event, _, self._buffer = self._buffer.partition(b"\n\n")
            lines = event.split(b"\n")
            assert not [line for line in lines if line.startswith((b"id:", b"retry:"))]
            data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
            if data:
                return self._judge(b"\n".join(data))
        return None

    async def whole(self) -> "Exchange":
        """Read all of it."""
        await self.begun()
        if self.streamed:
            while await self.next() is not None:
                pass
        elif self.status not in (204,):
            self.body = await self._reader.readexactly(int(self.headers.get("content-length", "0")))
            if self.headers.get("content-type") == "application/json":
                whole = json.loads(self.body)
                for one in whole if isinstance(whole, list) else [whole]:
                    self._judge(json.dumps(one).encode())
        return self

    async def answer(self) -> dict[str, Any]:
        """Return the response, the last message."""
        await self.whole()
        return self.messages[-1]

    async def ended(self) -> bool:
        """Whether it ends without another message."""
        return await self.next() is None

    def leave(self) -> None:
        """Drop the connection."""
        self._writer.transport.abort()

    def _judge(self, message: bytes) -> dict[str, Any]:
        decoded = judged(self._method, message, self._version) if self._method else json.loads(message)
        self.messages.append(decoded)
        return dict(decoded)


class LegacyClient:
    """One client and its session; used as a context it begins one, and leaves it alone at the end."""

    def __init__(
        self,
        urls: str | Sequence[str],
        version: str = "2025-11-25",
        *,
        capabilities: Mapping[str, Any] | None = None,
        token: str | None = None,
        path: str | None = None,
        stated: bool = True,
    ) -> None:
        """`stated` says whether requests carry the version's header."""
        self._urls = cycle([urls] if isinstance(urls, str) else urls)
        self.version = version
        self.capabilities = capabilities or {}
        self.token = token
        self.session: str | None = None
        self._path = path
        self._stated = stated
        self._ids = count(1)

    async def __aenter__(self) -> "LegacyClient":
        await self.initialize()
        assert await self.notify("notifications/initialized") == 202
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def initialize(self) -> dict[str, Any]:
        """Begin a session and return what the gateway says of itself."""
        params = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": {"name": "raw", "version": "1"},
        }
        async with self.post(message("initialize", params, id=next(self._ids)), "initialize") as exchange:
            answer = await exchange.answer()
        assert exchange.status == 200, exchange.body
        if "result" in answer:
            self.session = exchange.headers["mcp-session-id"]
        return answer

    async def ask(self, method: str, params: Any = None, **options: Any) -> dict[str, Any]:
        """Make a request and return its response."""
        async with self.open(method, params, **options) as exchange:
            answer = await exchange.answer()
        assert exchange.status == 200, (exchange.status, exchange.body)
        return answer

    async def result(self, method: str, params: Any = None, **options: Any) -> dict[str, Any]:
        answer = await self.ask(method, params, **options)
        assert "result" in answer, answer
        return dict(answer["result"])

    async def error(self, method: str, params: Any = None, **options: Any) -> dict[str, Any]:
        answer = await self.ask(method, params, **options)
        assert "error" in answer, answer
        return dict(answer["error"])

    @asynccontextmanager
    async def open(
        self, method: str, params: Any = None, *, id: Any = None, **options: Any
    ) -> AsyncIterator[Exchange]:
        """Make a request that is to be watched."""
        id = next(self._ids) if id is None else id
        async with self.post(message(method, params, id=id), method, **options) as exchange:
            yield exchange

    async def notify(self, method: str, params: Any = None) -> int:
        """Post a notification and return the status."""
        async with self.post(message(method, params)) as exchange:
            await exchange.whole()
        assert exchange.body == b""
        return exchange.status

    async def respond(self, id: Any, result: Any = None, *, error: Any = None) -> int:
        """Post the answer to a question and return the status."""
        outcome = {"result": result} if error is None else {"error": error}
        body = json.dumps({"jsonrpc": "2.0", "id": id, **outcome}).encode()
        async with self.post(body) as exchange:
            await exchange.whole()
        return exchange.status

    @asynccontextmanager
    async def listen(self, **headers: str | None) -> AsyncIterator[Exchange]:
        """Open the standing stream; it is there when the block begins."""
        lines = {"accept": "text/event-stream", "content-type": None, **headers}
        async with self.request("GET", b"", "GET", lines) as exchange:
            yield await exchange.begun()

    async def delete(self) -> int:
        """End the session and return the status."""
        async with self.request("DELETE", b"", None, {}) as exchange:
            return (await exchange.begun()).status

    @asynccontextmanager
    async def post(
        self, body: bytes, method: str | None = None, **headers: str | None
    ) -> AsyncIterator[Exchange]:
        """Post anything."""
        async with self.request("POST", body, method, headers) as exchange:
            yield exchange

    @asynccontextmanager
    async def request(
        self, verb: str, body: bytes, method: str | None, headers: Mapping[str, str | None]
    ) -> AsyncIterator[Exchange]:
        at = urlsplit(next(self._urls))
        stated = self.version if self._stated and self.session is not None else None
        lines: dict[str, str | None] = {
            "host": at.netloc,
            "accept": _BOTH,
            "content-type": "application/json",
            "content-length": str(len(body)) if verb == "POST" else None,
            "mcp-session-id": self.session,
            "mcp-protocol-version": stated,
            "authorization": None if self.token is None else f"Bearer {self.token}",
        }
        lines |= {name.lower().replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=2**20)
        try:
            writer.write(f"{verb} {self._path or at.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
            yield Exchange(reader, writer, method, self.version)
        finally:
            writer.transport.abort()


def message(method: str, params: Any = None, **envelope: Any) -> bytes:
    """Return a request, or without an id a notification."""
    members = {"jsonrpc": "2.0", **envelope, "method": method}
    if params is not None:
        members["params"] = params
    return json.dumps(members, ensure_ascii=False).encode()
