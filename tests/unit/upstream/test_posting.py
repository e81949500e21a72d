"""The bare exchange with an upstream: what is written, what is read, and when a connection is used again."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from gateway.support.tasks import Background
from gateway.upstream.posting import Poster, header_lines

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
LARGE = b"x" * 8_000_000
"""More than sockets hold between two processes."""


@asynccontextmanager
async def posting(peer: Peer, path: str = "/mcp?a=1") -> AsyncIterator[tuple[Poster, URL]]:
    """Run a server that speaks by hand; yield who posts to it, and where."""
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url, background = URL(f"http://127.0.0.1:{port}{path}", encoded=True), Background()
    poster = Poster(url, tls=True, server_name=None, proxy=None, background=background)
    try:
        yield poster, url
    finally:
        await poster.close()
        await background.close(1.0)
        server.close()


class Hands:
    """A peer that keeps what it is sent and answers each request with the next of these."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = iter(answers)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                writer.write(next(self._answers))
        except asyncio.IncompleteReadError:
            writer.close()


class Endless:
    """A peer whose answer has begun and does not end."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await reader.read()
        writer.close()
        self.gone.set()


async def test_closing_tells_whoever_waits_for_more_of_an_answer() -> None:
    """An event stream may have no limit that would end its reader's wait."""
    peer = Endless()
    async with posting(peer) as (poster, url):
        response = await poster.post(poster.start(url, {}), b"{}")
        assert await response.content.readany() == b"x"
        reading = asyncio.create_task(response.content.readany())
        await asyncio.sleep(0)
        await poster.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await reading
        response.close()
        await peer.gone.wait()


async def test_the_system_is_asked_whether_a_silent_peer_is_there() -> None:
    """TCP keep-alive, a minute in all; of a connection that was given up nothing is asked (L-24)."""
    peer = Endless()
    async with posting(peer) as (poster, url):
        response = await poster.post(poster.start(url, {}), b"{}")
        response.detect_loss()
        (protocol,) = poster._connector._acquired
        assert protocol.transport is not None
        asked = protocol.transport.get_extra_info("socket")
        assert asked.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_KEEPIDLE"):
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, interval, count = (asked.getsockopt(socket.IPPROTO_TCP, name) for name in names)
            assert idle + interval * count <= 60
        response.close()
        response.detect_loss()
        await peer.gone.wait()


async def test_one_request_is_one_head_and_one_body() -> None:
    """Target with its query, Host, our lines and the length; the connection serves the next one too."""
    hands = Hands(OK, OK)
    async with posting(hands) as (poster, url):
        for _ in range(2):
            response = await poster.post(poster.start(url, {"A": "1"}) + header_lines({"B": "ü"}), b"[]")
            assert (response.status, await response.content.read()) == (200, b"{}")
    host = f"{url.host}:{url.port}"
    head = f"POST /mcp?a=1 HTTP/1.1\r\nHost: {host}\r\nA: 1\r\nB: ü\r\nContent-Length: 2\r\n\r\n".encode()
    assert hands.heads == [head, head]
    assert hands.connections == 1


async def test_a_large_body_is_sent_whole() -> None:
    """In pieces, and the connection is as good as before."""
    hands = Hands(OK, OK)
    async with posting(hands) as (poster, url):
        for body in (LARGE, b"{}"):
            response = await poster.post(poster.start(url, {}), body)
            assert await response.content.read() == b"{}"
    assert hands.bodies == [LARGE, b"{}"]
    assert hands.connections == 1


async def test_an_answer_ahead_of_the_body_ends_the_connection() -> None:
    """Whoever refuses a body unread must not find the rest of it in front of the next request."""
    over, gone = asyncio.Event(), asyncio.Event()

    async def impatient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        try:
            await over.wait()
            while await reader.read(2**20):
                pass
        finally:
            writer.close()
            gone.set()

    async with posting(impatient) as (poster, url):
        response = await poster.post(poster.start(url, {}), LARGE)
        assert (response.status, await response.content.read()) == (413, b"no")
        assert repr(response) == "<Response 413, ended>"
        over.set()
        async with asyncio.timeout(5):
            await gone.wait()


async def test_interim_answers_are_passed_over() -> None:
    """100, 102 and 103 announce the answer (RFC 9110)."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with posting(Hands(interim + OK)) as (poster, url):
        response = await poster.post(poster.start(url, {}), b"{}")
        assert (response.status, await response.content.read()) == (200, b"{}")


async def test_a_connection_closed_on_a_response_is_not_used_again() -> None:
    """The rest of its body would be taken for the next answer."""
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"
    hands = Hands(half, OK)
    async with posting(hands) as (poster, url):
        response = await poster.post(poster.start(url, {}), b"{}")
        assert repr(response) == "<Response 200, open>"
        response.close()
        response = await poster.post(poster.start(url, {}), b"{}")
        assert await response.content.read() == b"{}"
    assert hands.connections == 2


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
async def test_what_is_no_answer_is_a_client_error(answer: bytes) -> None:
    """Hanging up too."""

    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with posting(odd) as (poster, url):
        with pytest.raises(aiohttp.ClientError):
            await poster.post(poster.start(url, {}), b"{}")


@given(st.dictionaries(st.sampled_from(["A", "B"]), st.text(), min_size=1))
def test_no_value_ends_its_line(headers: dict[str, str]) -> None:
    """A line break in a value would be a header of somebody else's, or the end of them all."""
    try:
        written = header_lines(headers)
    except ValueError:
        assert any(mark in value for value in headers.values() for mark in "\r\n\0")
    else:
        assert written == "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        assert written.count("\n") == len(headers)
