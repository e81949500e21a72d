"""The listener of operators: who answers there is handed in.

Probes and Prometheus come by whatever name or address a pod has, and are let in by all (B31). What tells more
is not for a web page whose own name was made to lead here, which its browser takes for the page's own server.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import hdrs, web

from gateway.config import Config
from gateway.front.gate import is_own_name
from gateway.front.heads import PatientConnection, PatientServer
from gateway.protocol import jsonrpc
from gateway.support.tasks import Background

Answer: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_IDLE_CONNECTION = 75.0
_TICKS = 4  # looks at every connection per deadline
_LONGEST_TICK = 0.5
_LONGEST_QUESTION = 256 * 1024
"""What the arguments of a call may come to in a query: no call with longer ones is kept."""
_MOST_CONNECTIONS = 512
"""Open connections, each of which is one less for clients; those that are idle make room for others."""
_UNDER_ANY_NAME = ("/healthz", "/readyz", "/metrics")


class OperatorsListener:
    """Listens on an address or a unix socket, and waits for no request's head for ever."""

    def __init__(
        self,
        answer: Answer,
        background: Background,
        settings: Callable[[], Config],
    ) -> None:
        self._answer = answer
        self._settings = settings
        self._background = background
        self._server: PatientServer | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<OperatorsListener {'listening' if self._listener is not None else 'off'}>"

    async def start(self, host: str, port: int) -> list[tuple[str, int]]:
        """Listen; return where exactly (port 0 picks one)."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._bounded(self._serving(self._answer_own)), host, port)
        return [(name[0], name[1]) for name in (at.getsockname() for at in self._listener.sockets)]

    async def start_at(self, path: str) -> None:
        """Listen on a unix socket, which whoever may enter its folder can ask."""
        self._listener = await asyncio.get_running_loop().create_unix_server(
            self._serving(self._answer), path
        )

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        if self._server is not None:
            await self._server.shutdown(0.1)
            self._server = None

    async def _answer_own(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer whoever knows the gateway by a name of its own."""
        if request.path not in _UNDER_ANY_NAME:
            for host in request.headers.getall(hdrs.HOST, ()):
                if not is_own_name(host, self._settings()):
                    said = f"Host {host[:200]!r} is not shown this; the setting `hosts` allows it"
                    return web.Response(
                        status=403, body=jsonrpc.encode({"error": said}), content_type="application/json"
                    )
        return await self._answer(request)

    def _bounded(self, server: PatientServer) -> Callable[[], asyncio.BaseProtocol]:
        def connect() -> asyncio.BaseProtocol:
            there = server.connections
            if len(there) < _MOST_CONNECTIONS:
                return server()
            idle = (one for one in there if isinstance(one, PatientConnection) and one.idle)
            if (oldest := next(idle, None)) is None:
                return _TurnedAway()
            oldest.force_close()
            return server()

        return connect

    def _serving(self, answer: Answer) -> PatientServer:
        self._server = PatientServer(
            answer,
            access_log=None,
            keepalive_timeout=_IDLE_CONNECTION,
            max_line_size=_LONGEST_QUESTION,
        )
        self._pulse = self._background.start(self._close_late(self._server), name="admin connections")
        return self._server

    async def _close_late(self, server: PatientServer) -> None:
        while True:
            patience = self._settings().limits.request_head
            await asyncio.sleep(min(patience / _TICKS, _LONGEST_TICK))
            server.close_late(time.monotonic(), patience)


def json_answer(data: object, status: int = 200) -> web.Response:
    """Return an answer that nobody keeps."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return web.Response(body=jsonrpc.encode(data), status=status, headers=headers)


class _TurnedAway(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it again."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
