"""The connections of clients: counted, tuned, and told why their bytes are no HTTP."""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong

from gateway.front.heads import PatientConnection, PatientServer
from gateway.front.outcomes import only, plain
from gateway.support.metrics import OTHER, Metrics

log = logging.getLogger(__name__)

_MAX_HEADER_LINES = 256
_IDLE_CONNECTION = 620.0  # longer than the 600 s of common load balancers, which would else meet a closed one
_UNSENT = 131_072
_LOOKED_AT = 100  # of those that seem idle; only such are not as have sent a request this very moment
BACKLOG = 1024
"""Connections that the system holds for us until they are accepted."""
LINGER = 5.0
"""Seconds in which an unread body is read and thrown away so that the refusal arrives."""

_REQUEST_LINE = re.compile(r"b'[!-~]+ [!-~]+ HTTP/1\.[01]'")
"""As the parser quotes it when it knows no such verb; it says the same of a verb where none can stand."""


def tune(listener: asyncio.Server, stalled: float) -> None:
    """Have the system hold little for a client, and find out about one that vanished without a word.

    Megabytes unsent in the kernel would hide a slow client's progress: where the system has no such option,
    only clients slower than about 100 kB/s notice. What was sent to a peer that is gone, a keep-alive comment
    for example, would be sent again and again for a quarter of an hour (B29); now for as long as a client
    that is there may read nothing.
    """
    limits = {"TCP_NOTSENT_LOWAT": _UNSENT, "TCP_USER_TIMEOUT": max(1, int(stalled * 1000))}
    for at in listener.sockets:
        if at.family not in (socket.AF_INET, socket.AF_INET6):
            continue
        for option, limit in limits.items():
            if hasattr(socket, option):
                at.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), limit)


class FrontServer(PatientServer):
    """aiohttp's low-level server: no Application, which costs 16 µs a request more (measured)."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        metrics: Metrics,
        header: int,
        allow: Callable[[], str],
        most: int,
        guarded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`most` connections may be open; `guarded` says whether clients have to prove who they are."""
        super().__init__(handler, handler_cancellation=True)  # S-21: who leaves, cancels
        self.metrics = metrics
        self.allow = allow
        self._header = header
        self.most = most
        self.guarded = guarded
        self.connected = 0
        self.left = asyncio.Event()
        """Set while nobody is connected."""
        self.left.set()
        self._strangers: dict[ClientConnection, None] = {}
        """Idle connections over which nobody ever proved who he is, the longest idle first."""
        self._callers: dict[ClientConnection, None] = {}
        """The other idle ones."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection in; where there are too many, an idle one is closed, or else this one."""
        super().connection_made(handler, transport)
        self.connected += 1
        self.left.clear()
        if self.connected > self.most and not self.make_room():
            self.metrics.rejected(OTHER, "connections")
            transport.abort()
        elif isinstance(handler, ClientConnection):
            self._strangers[handler] = None

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Count a connection out."""
        super().connection_lost(handler, exc)
        self.connected -= 1
        if not self.connected:
            self.left.set()
        if isinstance(handler, ClientConnection):
            self._busy(handler)

    def request_begun(self, connection: web.RequestHandler) -> None:
        """Note that a connection is not idle."""
        if isinstance(connection, ClientConnection):
            self._busy(connection)

    def request_ended(self, connection: web.RequestHandler) -> None:
        """Note that a connection is idle, unless it has more to answer, or is gone."""
        if isinstance(connection, ClientConnection):
            connection.answered += 1
            if connection.transport is not None:
                (self._callers if connection.proven else self._strangers)[connection] = None

    def make_room(self) -> bool:
        """Close the connection that has been idle longest, that of a stranger first; whether there is one."""
        for idle in (self._strangers, self._callers):
            for connection in islice(idle, _LOOKED_AT):
                if connection.is_idle:
                    del idle[connection]
                    self.metrics.rejected(OTHER, "idle")
                    connection.give_way()
                    return True
        return False

    def _busy(self, connection: "ClientConnection") -> None:
        self._strangers.pop(connection, None)
        self._callers.pop(connection, None)

    def __call__(self) -> web.RequestHandler:
        return ClientConnection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=_IDLE_CONNECTION,
            lingering_time=LINGER,
            max_line_size=self._header,
            max_field_size=self._header,
            max_headers=_MAX_HEADER_LINES,
        )


class ClientConnection(PatientConnection):
    """aiohttp's connection with our own answer to what is no HTTP, or too much of it."""

    __slots__ = ("_allow", "_lingering", "_metrics", "answered", "proven")

    def __init__(self, server: FrontServer, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._metrics = server.metrics
        self._allow = server.allow
        self.welcome = not server.guarded()
        self.answered = 0
        """Requests that were."""
        self.proven = False
        """Whether somebody proved who he is."""
        self._lingering: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether all requests that came have been answered."""
        return self._request_count <= self.answered

    def let_in(self, *, proven: bool) -> None:
        """Note that who sent a request may come in."""
        self.welcome = True
        self.proven |= proven

    @property
    def lingers(self) -> bool:
        """Whether it is closed by itself if nothing is asked any more."""
        return self._lingering is not None

    def linger(self, seconds: float) -> None:
        """Close when it has been idle for so long from now on."""
        self._lingering = asyncio.get_running_loop().call_later(seconds, self._linger_no_more)

    def _linger_no_more(self) -> None:
        self._lingering = None
        if self.is_idle:  # what it is asked has an answer that closes it
            self.end()

    def end(self) -> None:
        """Close, after the request at work if there is one; an idle one aiohttp leaves open, and deaf."""
        waits = self._waiter is not None
        self.close()
        if waits and self.transport is not None:
            self.transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Wait for nothing more."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Close; a caller gets what is on the way to him."""
        if self.transport is not None and not self.proven:
            self.transport.abort()
        self.force_close()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        super().data_received(data)
        if self._current_request is not None:
            self._end_broken_body(self._current_request.content)

    def _end_broken_body(self, content: StreamReader) -> None:
        """Tell who reads a body that its framing broke, which aiohttp tells nobody before the body is read.

        What is queued behind a body that has not ended can be nothing but the parser's complaint.
        """
        if self._messages and not content.is_eof():
            content.set_exception(web.RequestPayloadError("broken framing"))
            content.feed_eof()

    def late(self) -> None:
        """Count it, and say so."""
        self._metrics.rejected(OTHER, "head_slow")
        super().late()

    def resume_reading(self, *how: bool, **named: bool) -> None:
        """Go on reading after a pause. Every read asks for it, pause or not, at 10 µs a time (measured)."""
        if self._reading_paused:
            super().resume_reading(*how, **named)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer and close; aiohttp's own version logs the bytes it stumbled over, a token maybe (B42)."""
        if isinstance(exc, LineTooLong) or (message or "").startswith("Too many headers"):
            refusal = plain(431)
        elif isinstance(exc, BadHttpMethod) and _REQUEST_LINE.search(exc.message):
            refusal = only(self._allow())
        else:
            refusal = plain(400, text="Bad Request", word="malformed")
        log.debug("Refused a connection's bytes as %s", type(exc).__name__)
        self._metrics.rejected(OTHER, refusal.word)
        headers = {"Content-Type": refusal.content_type, **refusal.headers}
        response = web.Response(status=refusal.status, body=b"".join(refusal.body), headers=headers)
        response.force_close()
        return response
