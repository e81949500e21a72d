"""Posts requests to one origin over kept connections and hands back responses whose body is unread.

Connections, TLS, proxies and the reading of responses are aiohttp's. Its ClientSession is left out: nothing
of its cookies, auth, middlewares and redirects is used here, and what they and a task per body cost is 100 µs
a call (measured).
"""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from ssl import SSLContext
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.http_writer import StreamWriter
from multidict import CIMultiDictProxy
from yarl import URL

from gateway.support.tasks import Background

CONNECT_TIMEOUT = 10.0
# uvicorn and node close idle connections after 5 s: be first, a call must not meet a connection being closed.
_KEEP_ALIVE = 4.0
_HEAD_LIMIT = 64 * 2**10
_AT_ONCE = 64 * 2**10
"""A body below it leaves in one write with its head; a larger one in pieces, as the upstream takes it."""
_SWITCHING = 101
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""When the system asks a silent peer whether it is there: it is missed after a minute, not after two hours.

Names differ by system: the second is what macOS calls the first.
"""


class _Peer(aiohttp.ClientRequest):
    """The request that a connector is asked to connect for; it is always the same one."""

    @cached_property
    def connection_key(self) -> ConnectionKey:
        return super().connection_key


class _Reader(ResponseHandler):
    """aiohttp's reader of responses, which resumes only what was paused: every read asks for it, at 5 µs."""

    def resume_reading(self, *how: bool, **named: bool) -> None:
        if self._reading_paused:
            super().resume_reading(*how, **named)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._factory = cast("partial[ResponseHandler]", partial(_Reader, loop=self._loop))


class Poster:
    """Posts to the origin of one URL. Raises aiohttp's ClientError for whatever keeps an answer away."""

    def __init__(
        self,
        url: URL,
        *,
        tls: SSLContext | bool,
        server_name: str | None,
        proxy: str | None,
        background: Background,
    ) -> None:
        self._background = background
        self._connector = _Connector(limit=0, ssl=tls, keepalive_timeout=_KEEP_ALIVE)
        # aiohttp's own total of 300 s would cut every long call (B19).
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
        self._peer = _Peer(
            "POST",
            url,
            loop=asyncio.get_running_loop(),
            server_hostname=server_name,
            proxy=None if proxy is None else URL(proxy),
        )
        """What the connector is asked for: where to, through which proxy, with whose certificate."""
        self._host = f"Host: {self._peer.headers['Host']}\r\n"
        self._open: set[Response] = set()
        self._whole_target = proxy is not None and url.scheme == "http"

    def __repr__(self) -> str:
        return f"<Poster {self._peer.host}:{self._peer.port}>"

    async def close(self) -> None:
        """Close every connection; running requests fail."""
        for response in list(self._open):
            # The connector closes what is below, of which a reader in waiting is told nothing.
            response.content.set_exception(aiohttp.ClientConnectionError("the connection was closed"))
        await self._connector.close()

    def start(self, url: URL, headers: Mapping[str, str], verb: str = "POST") -> str:
        """Return the start of a request to this URL of the origin, which more header lines may follow."""
        target = str(url) if self._whole_target else url.raw_path_qs
        return f"{verb} {target} HTTP/1.1\r\n{self._host}{header_lines(headers)}"

    async def post(self, head: str, body: bytes) -> "Response":
        """Send a request and return its response as soon as the head of it is there."""
        connection = await self._connect()
        writing: asyncio.Task[None] | None = None
        try:
            protocol = connection.protocol
            assert protocol is not None
            protocol.set_response_params(
                read_until_eof=True, max_line_size=_HEAD_LIMIT, max_field_size=_HEAD_LIMIT
            )
            whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode()
            if len(body) < _AT_ONCE:
                _write(protocol, whole + body)
            else:
                # On its own: an upstream may refuse a body, or begin to answer, before it has read it all.
                sending = _write_pieces(protocol, whole, body)
                writing = self._background.start(sending, name=f"post {self._peer.host}")
            return await self._answered(connection, protocol, writing)
        except BaseException:
            if writing is not None:
                writing.cancel()
            connection.close()
            raise

    async def _connect(self) -> Connection:
        try:
            return await self._connector.connect(self._peer, traces=[], timeout=self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection within {CONNECT_TIMEOUT:g}s") from error

    async def _answered(
        self, connection: Connection, protocol: ResponseHandler, writing: asyncio.Task[None] | None
    ) -> "Response":
        try:
            message, content = await protocol.read()
            while message.code < 200 and message.code != _SWITCHING:  # an interim answer
                message, content = await protocol.read()
        except HttpProcessingError as error:
            raise aiohttp.ClientResponseError(
                self._peer.request_info, (), status=error.code, message=error.message, headers=error.headers
            ) from error
        return Response(message, content, connection, writing, self._open)


class Response:
    """A response with its body still to be read; the connection is given back at the body's end."""

    __slots__ = ("_connection", "_open", "_writing", "content", "headers", "status")

    def __init__(
        self,
        message: RawResponseMessage,
        content: aiohttp.StreamReader,
        connection: Connection,
        writing: asyncio.Task[None] | None,
        open: "set[Response]",
    ) -> None:
        """Add itself to those that are `open`, for as long as more may come."""
        self._connection: Connection | None = connection
        self._writing = writing
        self.status = message.code
        self.headers: CIMultiDictProxy[str] = message.headers
        self.content = content
        self._open = open
        open.add(self)
        content.on_eof(self._ended)

    def __repr__(self) -> str:
        return f"<Response {self.status}, {'ended' if self._connection is None else 'open'}>"

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def content_length(self) -> int | None:
        length = self.headers.get("Content-Length")
        return None if length is None else int(length)

    def detect_loss(self) -> None:
        """Have the system find out when the peer is gone though nothing is to be sent to it (L-24)."""
        protocol = None if self._connection is None else self._connection.protocol
        transport = None if protocol is None else protocol.transport
        peer = None if transport is None else transport.get_extra_info("socket")
        if peer is None:
            return  # it has just been closed, as reading will tell
        with suppress(OSError):  # likewise
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, number in _PROBES.items():
                if hasattr(socket, name):
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), number)

    def close(self) -> None:
        """Cut the connection unless the body came to its end."""
        self._open.discard(self)
        connection, self._connection = self._connection, None
        if self._writing is not None:
            self._writing.cancel()
        if connection is not None:
            connection.close()

    def _ended(self) -> None:
        if self._writing is not None and not self._writing.done():
            self.close()  # answered before all was read: what is left unsent would head the next request
        elif self._connection is not None:
            self._connection.release()
            self._connection = None
            self._open.discard(self)


def header_lines(headers: Mapping[str, str]) -> str:
    """Return these headers as they are sent; raises ValueError for a value that would end its line."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise ValueError("a header holds a line break")
    return text


def _write(protocol: ResponseHandler, data: bytes) -> None:
    transport = protocol.transport
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("the connection was lost before the request was sent")
    transport.write(data)


async def _write_pieces(protocol: ResponseHandler, head: bytes, body: bytes) -> None:
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    view = memoryview(body)
    with suppress(ConnectionError):  # whoever waits for the answer is told
        await writer.write(head)
        for at in range(0, len(view), _AT_ONCE):
            await writer.write(view[at : at + _AT_ONCE])
        await writer.drain()
