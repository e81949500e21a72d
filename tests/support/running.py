"""The whole gateway on real ports, and a client of it that checks every message it is sent.

    async with running({"alpha": alpha, "beta": {"url": beta.url, "auth": "forward"}}) as gateway:
        listed = await gateway.ask("tools/list", token="TOK-A")
        assert listed.names == ["alpha__add"]
        async with gateway.open("tools/call", {"name": "alpha__add"}) as exchange:   # a call to be watched
            assert (await exchange.event())["method"] == "notifications/progress"

`clock=Clock()` gives all of the gateway a clock that a test sets, `wall_clock` one to sessions and to what
is sealed. Upstreams are probed without pauses, so that one that comes back is noticed at once.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gateway import config
from gateway.protocol.call import UpstreamName
from gateway.protocol.jsonrpc import split
from gateway.protocol.methods import METHODS
from gateway.protocol.modern import encode_value
from gateway.runtime import Runtime, build
from gateway.server import Addresses, Gateway
from gateway.upstream.pool import Pace, UpstreamStatus
from tests.support.scripted import META, VERSION, ScriptedUpstream
from tests.support.wire import check_message

QUICK = Pace(first=0.01, longest=0.02, patience=2.0, gap=0.0)
QUICKLY: Mapping[str, Any] = {
    "acknowledge": 15.0,
    "retry": 0.01,
    "longest_retry": 0.02,
    "gather": 0.02,
    "debounce": 0.01,
}
"""Short pauses, and no deadline that a busy machine might miss."""

ONCE = Pace(first=60.0, longest=60.0, patience=2.0, gap=60.0)
"""One probe, then none for the length of a test."""

MISSING = "mcp-gateway/missingUpstreams"


class Clock:
    """A monotonic clock that goes when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Answer:
    """What came back for one request, judged by the official types already."""

    method: str
    status: int
    headers: Sequence[tuple[str, str]]
    messages: list[bytes] = field(default_factory=list)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def streamed(self) -> bool:
        return self.header("content-type") == "text/event-stream"

    @property
    def message(self) -> dict[str, Any]:
        """The response itself, the last message of a stream."""
        return dict(json.loads(self.messages[-1]))

    @property
    def notices(self) -> list[dict[str, Any]]:
        """What came before the response."""
        return [json.loads(message) for message in self.messages[:-1]]

    @property
    def result(self) -> dict[str, Any]:
        message = self.message
        assert "result" in message, message
        return dict(message["result"])

    @property
    def raw_result(self) -> dict[str, bytes]:
        """The members of the result as the text they are."""
        return {key: bytes(raw) for key, raw in split(split(self.messages[-1])["result"]).items()}

    @property
    def error(self) -> dict[str, Any]:
        message = self.message
        assert "error" in message, message
        return dict(message["error"])

    @property
    def code(self) -> int:
        return int(self.error["code"])

    @property
    def items(self) -> list[dict[str, Any]]:
        """The elements of a list."""
        return list(self.result[METHODS[self.method].items or ""])

    @property
    def names(self) -> list[str]:
        """The names of a list's elements, or their URIs."""
        return [item.get("uri") or item.get("uriTemplate") or item["name"] for item in self.items]

    @property
    def hints(self) -> tuple[int, str]:
        return self.result["ttlMs"], self.result["cacheScope"]

    @property
    def missing(self) -> list[str]:
        """The upstreams that a merged answer says it lacks."""
        return list(self.result["_meta"].get(MISSING, []))

    @property
    def text(self) -> Any:
        """What the default tool or prompt of a ScriptedUpstream echoes."""
        if "messages" in self.result:
            return json.loads(self.result["messages"][0]["content"]["text"])
        return json.loads(self.result["content"][0]["text"])


class Exchange:
    """One request under way on a connection of its own."""

    def __init__(
        self, method: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, judged: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer: Answer | None = None
        self._method = method
        self._judged = judged
        self._buffer = b""

    async def begun(self) -> Answer:
        """Return status and headers once they are there."""
        if self._answer is None:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = [line.partition(":") for line in lines[1:] if line]
            headers = [(name, value.strip()) for name, _, value in pairs]
            self._answer = Answer(self._method, int(lines[0].split(" ")[1]), headers)
        return self._answer

    async def event(self) -> dict[str, Any]:
        """Return the next message of a stream."""
        answer = await self.begun()
        assert answer.streamed, f"no stream: {answer}"
        message = await self._next()
        assert message is not None, "the stream ended"
        return message

    async def answer(self) -> Answer:
        """Return all of it, once it has ended."""
        answer = await self.begun()
        if answer.streamed:
            while await self._next() is not None:
                pass
            return answer
        answer.body = await self._reader.readexactly(int(answer.header("content-length") or 0))
        if answer.header("content-type") == "application/json":
            self._judge(answer.body)
        return answer

    async def ended(self) -> bool:
        """Whether the gateway closes the connection without another byte."""
        try:
            return await self._reader.read() == b""
        except ConnectionError:
            return True

    def send(self, data: bytes) -> None:
        """Send what was left out of the message before."""
        self._writer.write(data)

    def stop_reading(self) -> None:
        """Take nothing any more, and leave the connection open."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def leave(self) -> None:
        """Drop the connection."""
        self._writer.transport.abort()

    async def _next(self) -> dict[str, Any] | None:
        while b"\n\n" not in self._buffer:
            size = int(await self._reader.readline(), 16)
            self._buffer += (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                return None
        event, _, self._buffer = self._buffer.partition(b"\n\n")
        lines = event.split(b"\n")
        data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
        if not data:
            return await self._next()  # a comment
        return self._judge(b"\n".join(data))

    def _judge(self, message: bytes) -> dict[str, Any]:
        assert self._answer is not None
        decoded = check_message(self._method, message) if self._judged else dict(json.loads(message))
        self._answer.messages.append(message)
        return decoded


@dataclass
class Reachable:
    """A gateway that listens somewhere, in this process or another."""

    addresses: Addresses

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Answer:
        """Make a request and return the whole answer; the options are those of `open`."""
        async with self.open(method, params, **options) as exchange:
            return await exchange.answer()

    @asynccontextmanager
    async def open(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        path: str = "/mcp",
        id: Any = 1,
        token: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        body: bytes | None = None,
        judged: bool = True,
    ) -> AsyncIterator[Exchange]:
        """Make a request; a header of None is left out, `body` stands for the whole message.

        Not `judged` are answers that hold what an upstream must not send and the gateway passes all the same.
        """
        if body is None:
            body = message(method, params, id=id, capabilities=capabilities, meta=meta)
        named = METHODS[method].named_by if method in METHODS else None
        name = (params or {}).get(named) if named else None
        lines: dict[str, str | None] = {
            "host": urlsplit(self.addresses.endpoints[0]).netloc,
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "content-length": str(len(body)),
            "mcp-protocol-version": VERSION,
            "mcp-method": method,
            "mcp-name": encode_value(name) if isinstance(name, str) else None,
            "authorization": None if token is None else f"Bearer {token}",
        }
        lines |= {key.lower(): value for key, value in (headers or {}).items()}
        head = "".join(f"{key}: {value}\r\n" for key, value in lines.items() if value is not None)
        at = urlsplit(self.addresses.endpoints[0])
        reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=2**20)
        try:
            writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
            yield Exchange(method, reader, writer, judged)
        finally:
            writer.transport.abort()

    async def pages(self, method: str, **options: Any) -> list[Answer]:
        """Return a list's pages, to the last."""
        found = [await self.ask(method, **options)]
        while (cursor := found[-1].result.get("nextCursor")) is not None:
            found.append(await self.ask(method, {"cursor": cursor}, **options))
        return found

    async def admin(
        self, path: str, posted: Mapping[str, Any] | None = None, *, token: str | None = None
    ) -> tuple[int, Any]:
        """Return status and JSON of an operator's page, or of what is posted to it."""
        assert self.addresses.admin is not None
        at = urlsplit(self.addresses.admin)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        try:
            body = b"" if posted is None else json.dumps(posted).encode()
            head = f"{'GET' if posted is None else 'POST'} {path} HTTP/1.1\r\nHost: {at.netloc}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            head += "" if token is None else f"Authorization: Bearer {token}\r\n"
            writer.write(f"{head}\r\n".encode() + body)
            answered, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()
        return int(answered.split(b" ")[1]), json.loads(body)


@dataclass
class Running(Reachable):
    """A gateway that runs in this process."""

    gateway: Gateway

    async def reload(
        self, upstreams: Mapping[str, ScriptedUpstream | Mapping[str, Any] | str], **members: Any
    ) -> None:
        """Have it go on by another configuration; the members are those of `running`."""
        await self.gateway.reload(settings(upstreams, **members))

    @property
    def runtime(self) -> Runtime:
        return self.gateway.runtime

    def status(self, upstream: str) -> UpstreamStatus:
        return self.runtime.pool.status(UpstreamName(upstream))

    async def until(self, upstream: str, state: str) -> None:
        """Wait until the upstream is in this state; each probe takes turns of the loop."""
        while self.status(upstream).state != state:  # noqa: ASYNC110  # no event tells it, and no time passes
            await asyncio.sleep(0)

    async def busy(self, count: int) -> None:
        """Wait until the gateway works on just so many requests."""
        while f": {count} open," not in repr(self.gateway):  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.002)

    async def counted(self, sample: str) -> float:
        """Return the sum of the gateway's own metric lines that begin so, 0 when there is none."""
        return await self.raw(f"mcp_gateway_{sample}")

    async def raw(self, sample: str) -> float:
        """Return the same of any metric by its whole name."""
        found = [line for line in (await self.text()).splitlines() if line.startswith(sample)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    async def text(self) -> str:
        """Return all metrics as they are scraped."""
        return (await asyncio.to_thread(self.runtime.metrics.render)).decode()

    async def subscribed(self, count: int) -> None:
        """Wait until just so many listens of clients are open."""
        while len(self.runtime.hub) != count:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.002)

    async def until_counted(self, sample: str, least: float) -> None:
        """Wait until the counter whose line begins so has come this far."""
        while await self.counted(sample) < least:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.02)


def message(
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    id: Any = 1,
    capabilities: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a modern request."""
    about = {f"{META}protocolVersion": VERSION, f"{META}clientCapabilities": capabilities or {}}
    members = {**(params or {}), "_meta": {**about, **(meta or {})}}
    whole = {"jsonrpc": "2.0", "id": id, "method": method, "params": members}
    return json.dumps(whole, ensure_ascii=False).encode()


def settings(
    upstreams: Mapping[str, ScriptedUpstream | Mapping[str, Any] | str], **members: Any
) -> config.Config:
    """Return a configuration on free ports; an upstream is a server, its settings, or its address.

    A list waits longer than any test, unless the settings say otherwise: what a test holds back is late for
    as long as a busy machine needs to do the rest.
    """
    written = {name: _patient(one) for name, one in upstreams.items()}
    return config.Config(
        **{
            "listen": "127.0.0.1:0",
            "admin": "off",
            "startup_wait": 5.0,
            "upstreams": written,
            **members,
            "subscriptions": {**QUICKLY, **members.get("subscriptions", {})},
        }
    )


def _patient(one: ScriptedUpstream | Mapping[str, Any] | str) -> Mapping[str, Any]:
    match one:
        case ScriptedUpstream():
            named: Mapping[str, Any] = {"url": one.url}
        case str():
            named = {"url": one}
        case _:
            named = one
    return {"list_timeout": named.get("timeout", 30.0), **named}


@asynccontextmanager
async def running(
    upstreams: Mapping[str, ScriptedUpstream | Mapping[str, Any] | str],
    *,
    clock: Clock | None = None,
    wall_clock: Clock | None = None,
    pace: Pace = QUICK,
    settled: bool = True,
    **members: Any,
) -> AsyncIterator[Running]:
    """Run the gateway; by default every upstream has been tried once when the block begins."""
    clocks = {"clock": clock, "wall_clock": wall_clock}
    timing: dict[str, Any] = {name: one for name, one in clocks.items() if one is not None}
    made = await asyncio.to_thread(build, settings(upstreams, **members), pace=pace, **timing)
    gateway = Gateway(made)
    addresses = await gateway.start()
    try:
        if settled:
            await gateway.settled()
        yield Running(addresses, gateway)
    finally:
        await gateway.stop(0.0)
