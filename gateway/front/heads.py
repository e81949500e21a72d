"""Connections that do not wait for ever for the head of a request, which aiohttp's own would (slowloris)."""

import asyncio
import time
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_LATE = b"Request Timeout: the head did not arrive in time; the setting `limits.request_head` allows more\n"
_LATE_HEAD = (
    b"HTTP/1.1 408 Request Timeout\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\n"
    b"Connection: close\r\n\r\n"
) % len(_LATE)


class PatientConnection(web.RequestHandler):
    """aiohttp's connection, which can be asked to close when the head of a request takes too long."""

    __slots__ = ("_head_since", "welcome")

    def __init__(self, server: web.Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._head_since: float | None = None
        """When the first bytes came of a head that is not whole yet."""
        self.welcome = True
        """Whether it may be idle between two requests for as long as keep-alive lets it."""

    def data_received(self, data: bytes) -> None:
        """Parse what came, and note when it is the beginning of a head."""
        super().data_received(data)
        if self._current_request is not None:
            return
        if self._messages:
            self._head_since = None
        elif self._head_since is None and self._waiter is not None:  # no request is being answered
            self._head_since = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether it is open, and nothing is asked or answered on it."""
        waits = self._waiter is not None and not self._waiter.done() and self.transport is not None
        return waits and self._head_since is None

    def close_if_late(self, now: float, bound: float) -> None:
        """Close the connection if a head has begun and does not end, or if no request ever came.

        Where it is not welcome, it is the same for its next request.

        What came together with the last request may have begun another: the time counts from its answer then.
        """
        if self._waiter is None or self._waiter.done():
            return  # a request is being answered
        since = self._head_since
        if since is None:
            since = self._next_keepalive_close_time - self._keepalive_timeout
        if now - since < bound:
            return
        if self._has_begun():
            self.late()
        elif self._request_count and self.welcome:
            self._head_since = None  # only idle between two requests; keep-alive ends that
            return
        self.force_close()

    def late(self) -> None:
        """Say that the head did not arrive in time."""
        if self.transport is not None:
            self.transport.write(_LATE_HEAD + _LATE)

    def _has_begun(self) -> bool:
        """Ask the parser whether it holds the beginning of a request, which is spoilt by that."""
        try:
            return self._parser is not None and self._parser.feed_eof() is not None
        except HttpProcessingError:
            return True


class PatientServer(web.Server):
    """aiohttp's low-level server, whose connections are looked after by whoever runs it."""

    def __call__(self) -> web.RequestHandler:
        return PatientConnection(self, loop=asyncio.get_running_loop(), **self._kwargs)

    def close_late(self, now: float, bound: float) -> None:
        """Close the connections that are too long in bringing the head of a request."""
        for connection in self.connections:
            if isinstance(connection, PatientConnection):
                connection.close_if_late(now, bound)
