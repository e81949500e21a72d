"""The listener of operators: who answers there is handed in."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.front.heads import PatientServer
from gateway.support.tasks import Background

_IDLE_CONNECTION = 75.0
_TICKS = 4  # looks at every connection per deadline
_LONGEST_TICK = 0.5
_LONGEST_QUESTION = 256 * 1024
"""What the arguments of a call may come to in a query: no call with longer ones is kept."""


class OperatorsListener:
    """Listens on an address or a unix socket, and waits for no request's head for ever."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        background: Background,
        request_head: float,
    ) -> None:
        self._answer = answer
        self._background = background
        self._request_head = request_head
        self._server: PatientServer | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<OperatorsListener {'listening' if self._listener is not None else 'off'}>"

    async def start(self, host: str, port: int) -> list[tuple[str, int]]:
        """Listen; return where exactly (port 0 picks one)."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._serving(), host, port)
        return [(name[0], name[1]) for name in (at.getsockname() for at in self._listener.sockets)]

    async def start_at(self, path: str) -> None:
        """Listen on a unix socket, which whoever may enter its folder can ask."""
        self._listener = await asyncio.get_running_loop().create_unix_server(self._serving(), path)

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

    def _serving(self) -> PatientServer:
        self._server = PatientServer(
            self._answer,
            access_log=None,
            keepalive_timeout=_IDLE_CONNECTION,
            max_line_size=_LONGEST_QUESTION,
        )
        self._pulse = self._background.start(self._close_late(self._server), name="admin connections")
        return self._server

    async def _close_late(self, server: PatientServer) -> None:
        while True:
            await asyncio.sleep(min(self._request_head / _TICKS, _LONGEST_TICK))
            server.close_late(time.monotonic(), self._request_head)
