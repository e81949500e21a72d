"""Several tenants in front of two replicas, and every byte that each of them is sent.

    ann, bob = Party(Tenant("ann", 1)), Party(Tenant("bob", 1))
    async with Gateways(...) as gateways: ...
    exchange = await send(ann, address, "tools/list")
    await exchange.over()
    examine(exchange, foreign)      # fails when anything of the others is in it: head, body, events

One `Exchange` is one HTTP request and what came back, byte for byte; connections may be shared by tenants, as
those of a proxy in front are.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tests.support.marks import Search, Tenant
from tests.support.running import message
from tests.support.scripted import VERSION

BOTH = "application/json, text/event-stream"
OVERLAP = 256
"""Bytes that are searched once more, because a word may have come in two pieces."""


class Leak(AssertionError):
    """Something of one tenant came where it must not."""


class Party:
    """A tenant as a client: its credentials, the newest last, and what it was handed."""

    def __init__(self, tenant: Tenant | None) -> None:
        self.tenant = tenant
        self.tokens: list[str] = []
        self.foreign = Search([])
        """What must not come here."""

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return "nobody" if self.tenant is None else self.tenant.name

    @property
    def token(self) -> str | None:
        return self.tokens[-1] if self.tokens else None


class Connection:
    """A TCP connection that one exchange after the other uses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.busy = False
        self.closed = False

    @classmethod
    async def open(cls, address: str) -> "Connection":
        at = urlsplit(address)
        return cls(*await asyncio.open_connection(at.hostname, at.port, limit=2**24))

    def close(self) -> None:
        self.closed = True
        self.writer.transport.abort()


class Exchange:
    """One request of somebody, and every byte of the answer so far."""

    def __init__(
        self,
        party: Party,
        about: str,
        connection: Connection,
        guessed: Sequence[str] = (),
        after: "Exchange | None" = None,
    ) -> None:
        """`after` is the exchange whose answer comes first on this connection."""
        self.party = party
        self.about = about
        self.guessed = [word.encode() for word in guessed]
        """What this party wrote into its request by itself, although it is another's."""
        self.raw = bytearray()
        self.body = bytearray()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.messages: list[dict[str, Any]] = []
        self.ended = False
        self.searched = [0, 0, 0]
        self.connection = connection
        self._after = after
        self._parsed = 0
        self._changed = asyncio.Event()
        connection.busy = True
        self._task = asyncio.ensure_future(self._receive())

    def __repr__(self) -> str:
        return f"<Exchange of {self.party}: {self.about}, {self.status}, {len(self.messages)} messages>"

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "") == "text/event-stream"

    @property
    def last(self) -> dict[str, Any]:
        assert self.messages, (self, bytes(self.raw))
        return self.messages[-1]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.last, (self, bytes(self.raw))
        return dict(self.last["result"])

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.last, (self, bytes(self.raw))
        return dict(self.last["error"])

    @property
    def text(self) -> Any:
        """What a tool, a prompt or a resource of the test's servers says."""
        result = self.result
        if "contents" in result:
            return json.loads(result["contents"][0]["text"])
        if "messages" in result:
            return json.loads(result["messages"][0]["content"]["text"])
        return json.loads(result["content"][0]["text"])

    def notices(self, method: str) -> list[dict[str, Any]]:
        return [one["params"] for one in self.messages if one.get("method") == method]

    async def over(self) -> "Exchange":
        """Return once all of it is there."""
        await self.until(lambda: self.ended)
        return self

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once this holds; it is looked at whenever something came."""
        while not holds():
            assert not self.ended, ("it ended before", self, bytes(self.raw))
            self._changed.clear()
            await self._changed.wait()

    def leave(self) -> None:
        """Drop the connection."""
        self._task.cancel()
        self._end(kept=False)

    def _end(self, *, kept: bool) -> None:
        self.ended = True
        self.connection.busy = False
        if not kept:
            self.connection.close()
        self._changed.set()

    async def _receive(self) -> None:
        kept = False
        try:
            if self._after is not None:
                await self._after.over()
            kept = await self._read()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.raw += getattr(error, "partial", b"")
        finally:
            self._end(kept=kept)

    async def _read(self) -> bool:
        """Read the answer; whether the connection can be used again."""
        lines = (await self._take(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self._changed.set()
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self._take(b"\r\n"), 16):
                self.body += (await self._exactly(size + 2))[:-2]
                self._events()
            await self._exactly(2)
        elif length := int(self.headers.get("content-length", "0")):
            self.body += await self._exactly(length)
        if self.headers.get("content-type") == "application/json" and self.body:
            whole = json.loads(self.body)
            self.messages += whole if isinstance(whole, list) else [whole]
        return self.headers.get("connection") != "close"

    async def _take(self, end: bytes) -> bytes:
        taken = await self.connection.reader.readuntil(end)
        self.raw += taken
        return taken

    async def _exactly(self, size: int) -> bytes:
        taken = await self.connection.reader.readexactly(size)
        self.raw += taken
        return taken

    def _events(self) -> None:
        while (end := self.body.find(b"\n\n", self._parsed)) != -1:
            lines = bytes(self.body[self._parsed : end]).split(b"\n")
            self._parsed = end + 2
            data = b"\n".join(line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: "))
            if data:
                self.messages.append(json.loads(data))
        self._changed.set()


def examine(exchange: Exchange) -> int:
    """Fail when anything of another tenant is in what came since last time; return how much was searched."""
    seen = 0
    for index, data in enumerate((exchange.raw, exchange.body)):
        since = max(0, exchange.searched[index] - OVERLAP)
        exchange.searched[index] = len(data)
        if since < len(data):
            seen += len(data) - since
            _search(exchange, data[since:] if since else data)
    if (fresh := exchange.messages[exchange.searched[2] :]) and b"\\" in exchange.body:
        _search(exchange, json.dumps(fresh, ensure_ascii=False).encode("utf-8", "replace"))
    exchange.searched[2] = len(exchange.messages)
    return seen


def _search(exchange: Exchange, data: bytes | bytearray) -> None:
    for guess in exchange.guessed:
        data = data.replace(guess, b"")
    if (found := exchange.party.foreign.first(data)) is not None:
        raise Leak(f"{exchange} holds the {found.kind} of {found.tenant}: {found.around!r}")


class Wires:
    """The connections to a gateway: for each request a new one, or one that all tenants use in turn."""

    def __init__(self) -> None:
        self._all: list[Connection] = []
        self._kept: dict[str, list[Connection]] = {}
        self.exchanges: list[Exchange] = []

    async def send(
        self,
        party: Party,
        address: str,
        verb: str,
        body: bytes,
        headers: Mapping[str, str | None],
        *,
        about: str,
        guessed: Sequence[str] = (),
        kept: bool = False,
        after: Exchange | None = None,
    ) -> Exchange:
        """Send a request and return what will come of it."""
        at = urlsplit(address)
        lines = {
            "host": at.netloc,
            "accept": BOTH,
            "content-type": "application/json" if body else None,
            "content-length": str(len(body)) if verb == "POST" else None,
            "authorization": None if party.token is None else f"Bearer {party.token}",
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        connection = await self._connection(address, kept=kept) if after is None else after.connection
        path = at.path + (f"?{at.query}" if at.query else "")
        connection.writer.write(f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
        exchange = Exchange(party, about, connection, guessed, after)
        self.exchanges.append(exchange)
        return exchange

    async def _connection(self, address: str, *, kept: bool) -> Connection:
        if not kept:
            self._all.append(await Connection.open(address))
            return self._all[-1]
        pool = self._kept.setdefault(urlsplit(address).netloc, [])
        pool[:] = [one for one in pool if not one.closed and not one.reader.at_eof()]
        for one in pool:
            if not one.busy:
                return one
        pool.append(await Connection.open(address))
        self._all.append(pool[-1])
        return pool[-1]

    async def close(self) -> None:
        """Drop everything."""
        for exchange in self.exchanges:
            if not exchange.ended:
                exchange.leave()
        for one in self._all:
            one.close()
            with suppress(ConnectionError):
                await one.writer.wait_closed()


def modern(
    method: str,
    params: Mapping[str, Any] | None,
    named_by: str | None,
    **options: Any,
) -> tuple[bytes, dict[str, str | None]]:
    """Return body and headers of a request of the modern era."""
    body = message(method, params, **options)
    name = (params or {}).get(named_by) if named_by else None
    return body, {
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        "mcp-name": name if isinstance(name, str) else None,
    }


class Link:
    """The way from one replica to Redis, which can be lost at once and be back later."""

    def __init__(self, target: str, path: str) -> None:
        self.url = f"unix://{path}"
        self._target, self._path = target, path
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def stop(self) -> None:
        """Lose every connection, and take no more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for one in self._ends:
            one.transport.abort()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        ends = {writer}
        self._ends |= ends
        try:
            there, thither = await asyncio.open_unix_connection(self._target)
            ends.add(thither)
            self._ends |= ends
            if self._server is not None:
                await asyncio.gather(_pass(reader, thither), _pass(there, writer))
        finally:
            for one in ends:
                one.transport.abort()
            self._ends -= ends
            self._running.discard(task)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**18):
            writer.write(data)
    writer.transport.abort()


class Monitor:
    """Hears every command that anybody sends to a Redis, published messages included."""

    def __init__(self, path: str) -> None:
        self.heard = bytearray()
        self._path = path
        self._searched = 0
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self._path, limit=2**24)
        self._writer.write(b"MONITOR\r\n")
        assert await reader.readline() == b"+OK\r\n"
        self._task = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(2**20):
            self.heard += data

    def unsearched(self) -> bytes:
        """Return what was heard since last time, and a little from before."""
        since = max(0, self._searched - OVERLAP)
        self._searched = len(self.heard)
        return bytes(self.heard[since:])

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._writer is not None:
            self._writer.transport.abort()
