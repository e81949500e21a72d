"""The downstream edge on a real socket, pipelines that do what a test says, a client that shows every byte.

async with serving(Answers(result)) as gateway:
    async with gateway.connect() as client:
        client.send(post("tools/list"))
        reply = await client.reply()
        assert reply.status == 200
"""

import asyncio
import ctypes
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gateway import config
from gateway.front.admission import Admission
from gateway.front.http import FrontState, HttpFront, Pipeline
from gateway.front.legacy_sessions import Sessions
from gateway.front.verify import Verifier
from gateway.protocol.call import Answer, Call, Emit, Notice, Principal, Sink
from gateway.protocol.jsonrpc import Json
from gateway.support.bus import LocalBus
from gateway.support.mailbox import LocalMailbox
from gateway.support.metrics import REQUESTS, Metrics
from gateway.support.notebook import LocalNotebook
from gateway.support.rates import LocalRates
from gateway.support.room import Room
from gateway.support.seal import Seal
from gateway.support.tasks import Background

VERSION = "2026-07-28"
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux, which Python gives no name."""
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
Work = Callable[[Call, Principal, Emit], Awaitable[Answer]]


def answer(**members: Any) -> Answer:
    """Return a result as the pipeline hands it over."""
    return Answer((json.dumps({"resultType": "complete", **members}).encode(),))


def progress(value: float) -> Notice:
    """Return a progress notification with its token put back."""
    return Notice("notifications/progress", {"progressToken": b'"p"', "progress": str(value).encode()})


class Answers:
    """A pipeline that does one piece of work for every call, and keeps what it was asked."""

    def __init__(self, work: Work | Answer | Exception | None = None) -> None:
        self._work = answer() if work is None else work
        self.calls: list[Call] = []
        self.principals: list[Principal] = []
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def handle(self, call: Call, principal: Principal, emit: Emit) -> Answer:
        """Do the work."""
        self.calls.append(call)
        self.principals.append(principal)
        self.started.set()
        if isinstance(self._work, Answer):
            return self._work
        if isinstance(self._work, Exception):
            raise self._work
        try:
            return await self._work(call, principal, emit)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def listen(self, call: Call, principal: Principal, sink: Sink) -> Answer:
        """Do the work; a listen is no different here."""
        return await self.handle(call, principal, sink.emit)

    def passes(self, method: str, principal: Principal) -> bool:
        """Whether an upstream may serve what is not known here: none does."""
        return False

    def give_up(self, call: Call, principal: Principal) -> None:
        """Nobody waits for an answer here."""

    def report(self, call: Call, principal: Principal, key: str, params: Mapping[str, Json]) -> None:
        """Nobody wants to know."""

    def on_withdrawn(self, call: Call, principal: Principal, key: str, tell: Callable[[], None]) -> None:
        """Nothing asked here is ever taken back."""

    def note(self, notice: Notice, principal: Principal) -> None:
        """Nobody is to be told."""

    async def check_subscribable(self, uri: str, capabilities: Json, principal: Principal) -> None:
        """Whether somebody tells of a resource: somebody does."""


class Listens(Answers):
    """A pipeline whose listen acknowledges and then stays until the gateway stops."""

    def __init__(self, stopping: asyncio.Event) -> None:
        super().__init__(self._stay)
        self._stopping = stopping

    async def _stay(self, call: Call, principal: Principal, emit: Emit) -> Answer:
        await emit(Notice("notifications/subscriptions/acknowledged", {"notifications": b"{}"}))
        await self._stopping.wait()
        return answer()


@dataclass
class Reply:
    """One HTTP response as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """Return a header's only value."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The messages of an event stream."""
        lines = self.body.decode().splitlines()
        return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]


@dataclass
class Client:
    """One TCP connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    async def reply(self, *, bare: bool = False) -> Reply:
        """Read one whole response, or only the head that answers HEAD."""
        reply = await self.head()
        if bare:
            return reply
        if reply.header("transfer-encoding") == "chunked":
            reply.body = b"".join([chunk async for chunk in self.chunks()])
        elif (length := reply.header("content-length")) is not None:
            reply.body = await self.reader.readexactly(int(length))
        elif reply.status not in (100, 204):
            reply.body = await self.reader.read()
        return reply

    async def head(self) -> Reply:
        """Read a status line and headers."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return Reply(int(lines[0].split(" ")[1]), [(name, value.strip()) for name, _, value in pairs])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read the chunks of a body until its end."""
        while size := int(await self.reader.readline(), 16):
            chunk = await self.reader.readexactly(size + 2)
            yield chunk[:-2]
        await self.reader.readexactly(2)

    async def chunk(self) -> bytes:
        """Read one chunk."""
        return await anext(self.chunks())

    async def hung_up(self) -> bool:
        """Wait until the gateway closes the connection; whether it had nothing more to say."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    def vanish(self) -> None:
        """Be gone without a word, as a machine whose power fails: nothing that comes is received any more."""
        drop_all = ctypes.create_string_buffer(
            struct.pack("HBBI", 6, 0, 0, 0)
        )  # "return 0", in packet filter
        program = struct.pack("HxxxxxxP", 1, ctypes.addressof(drop_all))
        peer = self.writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)

    def abort(self) -> None:
        """Drop the connection."""
        self.writer.transport.abort()


@dataclass
class Serving:
    """A running front and what a test wants to know of it."""

    state: FrontState
    """Read once per request; a test may put another in its place, as a reload does."""
    metrics: Metrics = field(default_factory=Metrics)
    background: Background = field(default_factory=Background)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    addresses: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.front = HttpFront(
            lambda: self.state,
            self.metrics,
            background=self.background,
            stopping=self.stopping,
            admission=Admission(
                Room(self.state.config.limits.in_flight, self.state.config.limits.message),
                LocalRates(),
                self.metrics,
            ),
        )

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[Client]:
        """Open a connection, closed at the end."""
        reader, writer = await asyncio.open_connection(*self.addresses[0], **options)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()

    async def ask(self, data: bytes) -> Reply:
        """Send a request on a connection of its own and read the response."""
        async with self.connect() as client, asyncio.timeout(10):
            client.send(data)
            return await client.reply()

    async def until_idle(self) -> None:
        """Wait until no request is open."""
        await self._until(lambda: "0 open" in repr(self.front))

    async def until_busy(self) -> None:
        """Wait until a request is open."""
        await self._until(lambda: "0 open" not in repr(self.front))

    async def _until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():  # noqa: ASYNC110  # what the kernel does to a socket sets no event
                await asyncio.sleep(0.002)

    async def counted(self, start: str) -> list[str]:
        """Return the metric lines that begin so."""
        lines = (await asyncio.to_thread(self.metrics.render)).decode().splitlines()
        return [
            line.removeprefix("mcp_gateway_") for line in lines if line.startswith(f"mcp_gateway_{start}")
        ]

    async def answered(self) -> dict[tuple[str, ...], int]:
        """Return how many requests were answered, by endpoint, method and error type."""
        return {
            values: int(sum(numbers[:-1]))
            for (name, values), numbers in self.metrics.snapshot().items()
            if name == REQUESTS.name
        }


def settings(**members: Any) -> config.Config:
    """Return a configuration whose upstreams do not matter."""
    upstream = {"url": "http://127.0.0.1:9/mcp", "prefix": "time"}
    return config.Config(upstreams={"time": upstream}, **members)


def state(pipeline: Pipeline | Mapping[str, Pipeline], **members: Any) -> FrontState:
    """Return what one configuration means to the front: a pipeline at /mcp, or several by path."""
    pipelines = pipeline if isinstance(pipeline, Mapping) else {"/mcp": pipeline}
    configured, seal = settings(**members), Seal(["0123456789abcdef0123456789abcdef"])
    sessions = Sessions(
        configured,
        seal=seal,
        notebook=LocalNotebook(),
        mailbox=LocalMailbox(),
        bus=LocalBus(),
        metrics=Metrics(),
        background=Background(),
    )
    authentication = configured.authentication
    verifier = Verifier(authentication, seal, Background(), Metrics()) if authentication.on else None
    return FrontState(configured, pipelines, seal, sessions, verifier)


@asynccontextmanager
async def serving(
    pipeline: Pipeline | Mapping[str, Pipeline],
    *,
    host: str = "127.0.0.1",
    stopping: asyncio.Event | None = None,
    **members: Any,
) -> AsyncIterator[Serving]:
    """Serve a state until the test is done; `members` are those of the configuration."""
    gateway = Serving(state(pipeline, **members), stopping=stopping or asyncio.Event())
    gateway.addresses = await gateway.front.start(host, 0)
    try:
        yield gateway
    finally:
        await gateway.front.drain(0.05)
        await gateway.background.close(1.0)


def body(
    method: str = "tools/list",
    params: Mapping[str, Any] | None = None,
    *,
    id: Any = 1,
    meta: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a modern request."""
    envelope = {**(params or {}), "_meta": {**META, **(meta or {})}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": envelope}).encode()


def post(
    method: str = "tools/list",
    content: bytes | None = None,
    *,
    path: str = "/mcp",
    verb: str = "POST",
    version: str = "1.1",
    without: tuple[str, ...] = (),
    extra: tuple[tuple[str, str], ...] = (),
    id: Any = 1,
    params: Mapping[str, Any] | None = None,
    **headers: str,
) -> bytes:
    """Return an HTTP request; headers replace the usual ones, `extra` adds lines, `without` drops some."""
    content = body(method, params, id=id) if content is None else content
    lines = {
        "host": "127.0.0.1",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        "content-length": str(len(content)),
        **{name.replace("_", "-").lower(): value for name, value in headers.items()},
    }
    if params and "name" in params:
        lines.setdefault("mcp-name", params["name"])
    pairs = [(name, value) for name, value in lines.items() if name not in without] + list(extra)
    head = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"{verb} {path} HTTP/{version}\r\n{head}\r\n".encode("latin-1") + content
