"""The way to places that an upstream names: what is checked, and that nothing goes along."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.upstream.egress import Answer, Astray, Egress

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
ELSEWHERE = "https://mcp.example/mcp"


class Names(AbstractResolver):
    """Names of a test's own, each with the addresses that it has one look-up after the other."""

    def __init__(self, **names: list[str]) -> None:
        self._names = names
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        addresses = self._names[host.partition(".")[0]]
        address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return [
            ResolveResult(
                hostname=host,
                host=one,
                port=port,
                family=socket.AF_INET6 if ":" in one else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for one in address.split(",")
        ]

    async def close(self) -> None:
        """Nothing is open."""


async def nowhere(url: URL) -> Answer:
    raise AssertionError(f"{url} is not the upstream's own")


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[str, list[web.BaseRequest]]]:
    """Run a server that answers so; yield where, and what it was asked."""
    seen: list[web.BaseRequest] = []

    async def kept(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        return await handler(request)

    runner = web.ServerRunner(web.Server(kept), shutdown_timeout=0.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


@asynccontextmanager
async def going(upstream: str = ELSEWHERE, **how: Any) -> AsyncIterator[Egress]:
    egress = Egress(upstream, **{"own": nowhere, **how})
    try:
        yield egress
    finally:
        await egress.close()


def answering(status: int = 200, body: bytes = b"{}", **headers: str) -> Handler:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return answer


@pytest.mark.parametrize(
    "url",
    [
        "http://as.example/x",
        "ftp://as.example/x",
        "file:///etc/passwd",
        "https://user:pw@as.example/x",
        "https:///x",
        "https://as.example:99999/",
        "https://as.example/\r\nX: y",
        "gopher",
        "",
    ],
)
async def test_only_https_and_only_urls(url: str) -> None:
    """Also no login in it, which whoever wrote it would have sent (Z-12)."""
    async with going() as egress:
        with pytest.raises(Astray) as caught:
            await egress.get(url)
        assert not caught.value.outage
        assert "pw" not in caught.value.detail


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:1/x",
        "https://[::1]:1/x",
        "https://localhost:1/x",
        "https://10.0.0.1/x",
        "https://169.254.169.254/latest",
        "https://[::ffff:10.0.0.1]/x",
        "https://inside.example/x",
        "https://both.example/x",
        "https://0x7f000001/x",
    ],
)
async def test_no_place_at_an_address_that_is_not_public(url: str) -> None:
    """An address by itself, or one that a name leads to; nothing is even tried (Z-12, U-29)."""
    names = Names(inside=["10.0.0.1"], both=["169.254.169.254,fd00::1"], **{"0x7f000001": ["127.0.0.1"]})
    async with going(resolver=names) as egress:
        for ask in (egress.get(url), egress.post(url, {}, {})):
            with pytest.raises(Astray) as caught:
                await ask
            assert not caught.value.outage


async def test_the_address_that_is_checked_is_the_one_that_is_connected_to() -> None:
    """A name that was public when somebody looked is this machine's a moment later: it is looked up once."""
    async with serving(answering()) as (base, seen):
        port = URL(base).port
        names = Names(rebound=["127.0.0.1"])
        async with going(resolver=names) as egress:
            with pytest.raises(Astray, match="not public"):
                await egress.get(f"https://rebound.example:{port}/x")
        assert names.asked == ["rebound.example"]
        assert seen == []


async def test_an_upstream_on_this_machine_may_name_another_on_it() -> None:
    """For trying things out, over plain http, too; but nothing else that is not public."""
    async with serving(answering(body=b'{"a": 1}')) as (base, seen):
        async with going("http://127.0.0.1:1/mcp") as egress:
            assert (await egress.get(f"{base}/x")).body == b'{"a": 1}'
            assert (await egress.post(f"{base}/x", {"a": "b c"}, {"X-Key": "k"})).status == 200
            with pytest.raises(Astray, match="not public"):
                await egress.get("https://10.0.0.1/x")
        assert [request.method for request in seen] == ["GET", "POST"]
        assert seen[1].headers["X-Key"] == "k"


async def test_what_the_operator_names_may_be_anywhere() -> None:
    """An authorization server inside the house; a neighbour of it is not meant."""
    async with serving(answering()) as (base, _), serving(answering()) as (other, seen):
        async with going(trusted=[f"{base}/corp"]) as egress:
            assert (await egress.get(f"{base}/corp/metadata")).status == 200
            with pytest.raises(Astray):
                await egress.get(other)
        assert seen == []


async def test_the_upstreams_own_documents_are_asked_for_its_own_way() -> None:
    """With its certificates and through its proxy; a redirect from there is checked like any other."""
    asked: list[URL] = []

    async def own(url: URL) -> Answer:
        asked.append(url)
        away = {"Location": "https://10.0.0.1/x"} if url.path == "/away" else {}
        return Answer(302 if away else 200, away, b"{}")

    async with going("http://mcp.internal/mcp", own=own) as egress:
        assert (await egress.get("http://mcp.internal/.well-known/x")).status == 200
        with pytest.raises(Astray, match="not public"):
            await egress.get("http://mcp.internal/away")
        with pytest.raises(Astray, match="https"):  # a secret goes nowhere unencrypted
            await egress.post("http://mcp.internal/token", {}, {})
    assert [url.path for url in asked] == ["/.well-known/x", "/away"]


@pytest.mark.parametrize("location", ["https://10.0.0.1/x", "http://as.example/x", "https://127.0.0.1:1/"])
async def test_each_hop_of_a_redirect_is_checked(location: str) -> None:
    """The first place is fine, the next one is not (U-29)."""
    async with serving(answering(302, Location=location)) as (base, _), going(trusted=[base]) as egress:
        with pytest.raises(Astray):
            await egress.get(f"{base}/x")


async def test_redirects_come_to_an_end_and_a_form_follows_none() -> None:
    """What was posted holds a secret."""
    async with serving(answering(307, Location="/again")) as (base, seen), going(trusted=[base]) as egress:
        assert (await egress.post(f"{base}/token", {"client_secret": "S"}, {})).status == 307
        assert len(seen) == 1
        with pytest.raises(Astray, match="over 3 redirects"):
            await egress.get(f"{base}/x")
        assert len(seen) == 5


async def test_documents_are_bounded() -> None:
    """However they come."""

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 2**16)

    async with serving(endless) as (base, _), going(trusted=[base]) as egress:
        with pytest.raises(Astray, match="over 262144 bytes"):
            await egress.get(f"{base}/x")


async def test_nothing_compressed_is_unpacked() -> None:
    """A little of it may become very much; nobody offered to take it."""
    compressed = answering(body=b"\x1f\x8b", **{"Content-Encoding": "gzip"})
    async with serving(compressed) as (base, seen), going(trusted=[base]) as egress:
        with pytest.raises(Astray, match="encoding"):
            await egress.get(f"{base}/x")
        assert seen[0].headers["Accept-Encoding"] == "identity"


async def test_nothing_of_one_request_goes_along_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cookie, no credential of a .netrc, no proxy of the environment."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    async with serving(answering(**{"Set-Cookie": "s=1"})) as (base, seen), going(trusted=[base]) as egress:
        for _ in range(2):
            await egress.get(f"{base}/x")
        names = {name.lower() for request in seen for name in request.headers}
        assert names == {"host", "accept", "accept-encoding", "user-agent"}


async def test_a_place_out_of_reach_is_an_outage() -> None:
    """The next attempt may find it."""
    async with serving(answering()) as (base, _):
        pass
    async with going(trusted=[base]) as egress:
        with pytest.raises(Astray) as caught:
            await egress.get(f"{base}/x?key=S3CRET")
        assert caught.value.outage
        assert "S3CRET" not in caught.value.detail


async def test_a_kept_connection_that_was_just_closed_is_made_again() -> None:
    """The server closes it as the next request is on its way."""
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        if connections == 1:
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with going(trusted=[base]) as egress:
        for _ in range(2):
            assert (await egress.get(base)).status == 200
    assert connections == 2
    server.close()
