"""A gateway process between clients and servers that bend what they send: `front` and `upstreams`.

Everything goes over real sockets, many at once. After each input there must be an end: an answer, or the
connection closed. Between them good requests are answered well, the process keeps its size, and its log has
no traceback. The inputs are the same for the same seed; how they meet is not.
"""

import asyncio
import json
import os
import random
import re
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.support.front import META, post
from tests.support.processes import RunningGateway, gateway

AT_ONCE = 32
PATIENCE = 30.0
"""Seconds after which something that does not end is taken to hang."""
GROWTH = 200 * 2**20
CHECKED_EVERY = 2000

_SETTINGS = """
limits: {request_head: 500ms, request_body: 500ms, message: 256KiB, rate_per_caller: null}
log: {level: warning}
"""
_HTTP_WORDS = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\0",
    b"\xff",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity, chunked\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"Connection: close\r\n",
    b"Authorization: Bearer x\r\n",
    b"Mcp-Session-Id: x\r\n",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"ffffffffffffffff\r\n",
    b"0\r\n\r\n",
    b"X: " + b"y" * 9000 + b"\r\n",
    b'"id":1',
    b"[[[[",
    b"\\ud800",
    b"null",
    b"data: ",
    b"id: 5\n",
    b"\n\n",
)


@dataclass
class Bent:
    """What bends the answers of servers, and counts them."""

    chance: random.Random
    sent: int = 0

    def answer(self, *seeds: bytes) -> bytes:
        self.sent += 1
        return bend(self.chance, self.chance.choice(seeds))


@dataclass
class Counted:
    """How many inputs were sent, and what was wrong with what came of them."""

    inputs: int = 0
    wrong: str = ""
    peak: int = 0


def bend(chance: random.Random, seed: bytes) -> bytes:
    """Return a message with one to four changes."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at:at] = chance.choice(_HTTP_WORDS)
            case 1:
                del data[at : at + chance.randint(1, 40)]
            case 2:
                data[at:at] = data[at : at + chance.randint(1, 60)]
            case 3:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 4:
                data[at : at + 4] = chance.randbytes(chance.randint(1, 12))
            case _:
                del data[max(at, 1) :]
    return bytes(data)


async def front(inputs: int, seed: int) -> Counted:
    """Send bent requests to the endpoint, each on a connection of its own."""
    chance = random.Random(seed)
    seeds = _requests()
    bent = (bend(chance, chance.choice(seeds)) for _ in range(inputs))
    async with _server(Bent(chance)) as url:
        return await _against(f"{{gamma: '{url}'}}", lambda at: (_sent(at, data) for data in bent))


async def upstreams(inputs: int, seed: int) -> Counted:
    """Ask for what two servers answer in bent ways: one its lists, the other the rest; a third is good.

    While the gateway takes one of them for down it asks it nothing: what counts is what they answered.
    """
    chance, bent = random.Random(seed), Bent(random.Random(seed + 1))
    async with _server(bent, "tools/list") as lists, _server(bent, *_CALLED) as calls, _server(bent) as good:
        rules = "era: modern, timeout: 5s, breaker: {failures: 1000000}"
        settings = (
            f"{{alpha: {{url: '{calls}', {rules}}}, beta: {{url: '{lists}', {rules}}}, gamma: '{good}'}}"
        )

        def asked(at: RunningGateway) -> Iterator[Awaitable[None]]:
            while bent.sent < inputs:
                yield _answered(at, *chance.choice(_ASKED))

        counted = await _against(settings, asked)
    return replace(counted, inputs=bent.sent)


async def _against(settings: str, work: "Callable[[RunningGateway], Iterator[Awaitable[None]]]") -> Counted:
    """Do the pieces of work, some at once, and look after the gateway meanwhile."""
    counted = Counted()
    async with _running(settings) as running:
        pid = running.program.process.pid
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        begun = _resident(pid)
        pieces = work(running)

        async def worker() -> None:
            for piece in pieces:
                await piece
                counted.inputs += 1
                if counted.inputs % CHECKED_EVERY == 0:
                    await check()

        async def check() -> None:
            await _answered(running, "tools/list", {}, "gamma__search")
            counted.peak = max(counted.peak, _resident(pid))
            assert counted.peak < begun + GROWTH, f"from {begun} to {counted.peak} bytes"

        try:
            await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
            await check()
        except (AssertionError, TimeoutError, OSError, ValueError, aiohttp.ClientError) as error:
            counted.wrong = f"after {counted.inputs} inputs: {type(error).__name__}: {error}"
        written = running.program.written()
    if any(sign in written for sign in ("Traceback", " ERROR ", "CRITICAL")):
        counted.wrong += f"\n{written[-4000:]}"
    return counted


@asynccontextmanager
async def _running(settings: str) -> AsyncIterator[RunningGateway]:
    """Run the process; its servers answer from this loop while it starts."""
    process = gateway(settings, _SETTINGS)
    running = await asyncio.to_thread(process.__enter__)
    try:
        yield running
    finally:
        await asyncio.to_thread(process.__exit__, None, None, None)


# The client's side


def _requests() -> list[bytes]:
    """Return requests as they should be, for the bending."""
    initialize = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    legacy = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize}).encode()
    listen = {"_meta": META, "notifications": {"toolsListChanged": True}}
    good = post("tools/list")
    chunked = good.partition(b"\r\n\r\n")
    pieces = b"%x\r\n%b\r\n0\r\n\r\n" % (len(chunked[2]), chunked[2])
    return [
        good,
        good + post("server/discover", id=2),
        post("tools/call", params={"_meta": META, "name": "gamma__search", "arguments": {}}),
        post(content=legacy, without=("mcp-protocol-version", "mcp-method")),
        post("subscriptions/listen", params=listen),
        post(verb="GET", content=b""),
        post(verb="OPTIONS", content=b"", origin="http://localhost:3000"),
        re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", chunked[0]) + b"\r\n\r\n" + pieces,
        b"GET /.well-known/oauth-protected-resource/mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        post(authorization="Bearer abc", verb="DELETE", mcp_session_id="x", content=b""),
    ]


async def _sent(running: RunningGateway, data: bytes) -> None:
    """Send bytes, read for a while, hang up; the gateway must close its side as well."""
    address = urlsplit(running.endpoint)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(data)
        try:
            await asyncio.wait_for(reader.read(65536), 2.0)
            writer.write_eof()
        except (TimeoutError, OSError):
            writer.close()
            return
        async with asyncio.timeout(PATIENCE):
            while await reader.read(65536):
                pass
    except ConnectionError:
        pass
    finally:
        writer.close()


_ASKED = (
    ("tools/list", {}, "gamma__search"),
    ("tools/call", {"name": "alpha__search", "arguments": {"q": "x"}}, ""),
    ("prompts/get", {"name": "alpha__p"}, ""),
    ("resources/read", {"uri": "alpha+a:1"}, ""),
)
_CALLED = ("tools/call", "prompts/get", "resources/read")


async def _answered(
    running: RunningGateway, method: str, params: dict[str, object], holding: str = ""
) -> None:
    """Ask as a good client does; the answer is one JSON-RPC response, and holds what it must."""
    name = str(params.get("name", params.get("uri", "")))
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": META["io.modelcontextprotocol/protocolVersion"],
        "mcp-method": method,
        **({"mcp-name": name} if name else {}),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(running.endpoint, json=body, headers=headers) as response,
    ):
        text = await response.text()
    if response.content_type == "text/event-stream":
        text = [line for line in text.splitlines() if line.startswith("data: ")][-1].removeprefix("data: ")
    answer = json.loads(text)
    assert answer["id"] == 1, text
    assert ("result" in answer) != ("error" in answer), text
    assert holding in text, text


# The server's side


@asynccontextmanager
async def _server(bent: Bent, *methods: str) -> AsyncIterator[str]:
    """Run a server that answers as it should, but for these methods."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                asked = json.loads(await reader.readexactly(int(length[1]) if length else 0))
                good = _reply(asked)
                if asked["method"] in methods:
                    writer.write(bent.answer(good, _streamed(good), *_REFUSALS))
                    break
                writer.write(good)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}/mcp"
    finally:
        server.close()


_REFUSALS = (
    b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer error="invalid_token", scope="a b", '
    b'resource_metadata="http://127.0.0.1:1/x"\r\nContent-Length: 0\r\n\r\n',
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno",
    b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/mcp\r\nContent-Length: 0\r\n\r\n",
)
_RESULTS = {
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
    },
    "tools/list": {"tools": [{"name": "search", "inputSchema": {"type": "object"}}]},
    "prompts/list": {"prompts": [{"name": "p"}]},
    "resources/list": {"resources": [{"uri": "a:1", "name": "r"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "tools/call": {
        "content": [{"type": "resource_link", "uri": "a:1", "name": "r"}, {"type": "text", "text": "x"}]
    },
    "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]},
    "resources/read": {"contents": [{"uri": "a:1", "text": "x"}]},
}


def _reply(asked: dict[str, object]) -> bytes:
    result = {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        **_RESULTS.get(str(asked["method"]), {}),
    }
    body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": result}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def _streamed(reply: bytes) -> bytes:
    message = reply.partition(b"\r\n\r\n")[2]
    told = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}'
    events = b": hi\n\nevent: message\ndata: %b\n\nid: 7\ndata: %b\n\n" % (told, message)
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


SOCKETS = {"front_sockets": front, "upstream_sockets": upstreams}
