"""A real server of HTTP+SSE, revision 2024-11-05, on a free port: each stream is a session of its own.

What it answers is what the scripted program answers; `endpoint` and `begins` are scripted.
"""

import asyncio
import itertools
import json
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.support.programs.server import Server, options


class Session(Server):
    """One stream, and what its server remembers."""

    def __init__(self) -> None:
        super().__init__(options(["--era", "legacy"]))
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()

    def write(self, whole: dict[str, Any]) -> None:
        self.events.put_nowait(b"event: message\r\ndata: " + json.dumps(whole).encode() + b"\r\n\r\n")


class SseUpstream:
    """The server, and all sessions it ever had."""

    def __init__(self) -> None:
        self.endpoint = "/messages?session={name}"
        self.begins = b""
        """What comes on a stream before its first event."""
        self.question: dict[str, Any] | None = None
        """What the tool `ask` asks of sessions to come."""
        self.sessions: dict[str, Session] = {}
        self.open = 0
        self.authorizations: list[tuple[str, str | None]] = []
        self._names = itertools.count(1)
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> "SseUpstream":
        application = web.Application(client_max_size=2**25)
        application.router.add_get("/sse", self._stream)
        application.router.add_post("/messages", self._posted)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/sse"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        self.cut()
        await self._runner.cleanup()

    def cut(self) -> None:
        """End every stream."""
        for session in self.sessions.values():
            session.events.put_nowait(None)

    async def deserted(self) -> None:
        """Return once no stream is open; that a client hung up is noticed in its own time."""
        while self.open:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.002)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        name, session = str(next(self._names)), Session()
        session.question = self.question
        self.sessions[name] = session
        self.authorizations.append(("GET", request.headers.get("Authorization")))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.open += 1
        try:
            place = self.endpoint.format(name=name).encode()
            await response.write(self.begins + b"event: endpoint\r\ndata: " + place + b"\r\n\r\n")
            while (event := await session.events.get()) is not None:
                await response.write(event)
        finally:
            self.open -= 1
        return response

    async def _posted(self, request: web.Request) -> web.Response:
        self.authorizations.append(("POST", request.headers.get("Authorization")))
        session = self.sessions.get(request.query.get("session", ""))
        if session is None:
            return web.Response(status=404, text="no such session")
        session.hear(json.loads(await request.read()))
        return web.Response(status=202, text="Accepted")
