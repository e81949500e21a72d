"""What becomes of callers with certificates behind the door: their cache, their streams, their upstreams."""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from cryptography import x509

from tests.support.certificates import Authority, Pair
from tests.support.front import Client, post
from tests.support.running import Clock, Running, running
from tests.support.scripted import ScriptedUpstream, result, tool

CERT = "X-Client-Cert"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        yield upstream


@pytest.fixture
def secured(authority: Authority, alpha: ScriptedUpstream) -> Any:
    """Run a gateway that asks its clients for certificates."""
    server = authority.issue("127.0.0.1")
    tls = {
        "cert_file": str(server.certificate),
        "key_file": str(server.key),
        "client_ca_file": str(authority.file),
    }

    def run(*, wall_clock: Clock | None = None, **authentication: Any) -> Any:
        certificates = {"source": "tls", **authentication.pop("certificates", {})}
        settings = {"certificates": certificates, **authentication}
        return running({"alpha": alpha}, wall_clock=wall_clock, tls=tls, authentication=settings)

    return run


@asynccontextmanager
async def connected(
    gateway: Running, authority: Authority, pair: Pair | None = None
) -> AsyncIterator[Client]:
    """Connect, and show a certificate."""
    context = ssl.create_default_context(cafile=authority.file)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    at = urlsplit(gateway.addresses.endpoints[0])
    reader, writer = await asyncio.open_connection(at.hostname, at.port, ssl=context)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def status(gateway: Running, authority: Authority, pair: Pair | None = None, **headers: str) -> int:
    """Ask once, on a connection of its own."""
    async with connected(gateway, authority, pair) as client:
        client.send(post("tools/list", **headers))
        return (await client.reply()).status


async def test_what_is_private_to_one_certificate_is_no_others(
    authority: Authority, alpha: ScriptedUpstream, secured: Any
) -> None:
    """B08: as with tokens; a certificate that was renewed is the same caller's."""
    members = {"tools": [tool("a")], "ttlMs": 60_000, "cacheScope": "private"}
    alpha.on("tools/list", result(members))
    alice, bob = (authority.issue(name) for name in ("alice", "bob"))
    again = authority.issue("alice", file="alice-again")
    async with secured() as gateway:
        for pair in (alice, again, alice):
            assert await status(gateway, authority, pair) == 200
        before = len(alpha.seen("tools/list"))
        assert await status(gateway, authority, bob) == 200
        assert len(alpha.seen("tools/list")) == before + 1


async def test_a_connection_does_not_outlive_its_certificate(authority: Authority, secured: Any) -> None:
    """It was good in the handshake; a stream ends as well."""
    alice = authority.issue("alice")
    ends = x509.load_der_x509_certificate(alice.der).not_valid_after_utc.timestamp()
    clock = Clock(ends - 0.2)
    async with (
        secured(wall_clock=clock) as gateway,
        connected(gateway, authority, alice) as client,
        connected(gateway, authority, alice) as listener,
        asyncio.timeout(15),
    ):
        client.send(post("tools/list"))
        assert (await client.reply()).status == 200
        listener.send(post("subscriptions/listen", params={"notifications": {"toolsListChanged": True}}))
        ended = await listener.reply()
        assert ended.status == 200
        assert ended.events[-1]["id"] == 1
        clock.advance(1)
        client.send(post("tools/list"))
        refused = await client.reply()
        assert refused.status == 401
        assert "it has expired" in refused.json["error"]["message"]


# As a proxy reports it


def reported(alpha: ScriptedUpstream, *, trusted: str = "127.0.0.1", **certificates: Any) -> Any:
    """Run a gateway behind a proxy that reports certificates."""
    settings = {"source": "header", "header": CERT, **certificates}
    return running({"alpha": alpha}, trusted_proxies=[trusted], authentication={"certificates": settings})


@pytest.mark.parametrize("format", ["xfcc", "pem", "rfc9440", "subject"])
async def test_a_trusted_proxy_says_whose_certificate_it_was_shown(
    authority: Authority, alpha: ScriptedUpstream, format: str
) -> None:
    """In the format it writes; nothing of it reaches an upstream (B06)."""
    alice = authority.issue("alice")
    told = {
        "xfcc": f'Hash=ab;Cert="{quote(alice.certificate.read_text(), safe="")}";Subject="CN=alice";URI=',
        "pem": quote(alice.certificate.read_text(), safe=""),
        "rfc9440": f":{base64.b64encode(alice.der).decode()}:",
        "subject": "alice",
    }
    async with reported(alpha, format=format, names=["alice"]) as gateway:
        assert (await gateway.ask("tools/list", headers={CERT: told[format]})).status == 200
        assert (
            await gateway.ask("tools/call", {"name": "alpha__a"}, headers={CERT: told[format]})
        ).status == 200
        assert (await gateway.ask("tools/list")).status == 401
        assert (await gateway.ask("tools/list", headers={CERT: ""})).status == 401
    assert all(received.header(CERT) is None for received in alpha.requests)
    assert not any(b"alice" in received.body for received in alpha.requests)


async def test_a_header_that_anybody_could_write_counts_for_nothing(alpha: ScriptedUpstream) -> None:
    """From whoever is no trusted proxy, whatever else he writes of himself."""
    async with reported(alpha, trusted="10.0.0.0/8", format="subject") as gateway:
        spoofed = {CERT: "alice", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"}
        refused = await gateway.ask("tools/list", headers=spoofed)
        assert refused.status == 401
        assert "alice" not in refused.body.decode()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_that_is_resumed_is_the_same_callers(
    authority: Authority, secured: Any, version: ssl.TLSVersion
) -> None:
    """No certificate is sent again then; the session still holds it."""
    alice = authority.issue("alice")
    context = ssl.create_default_context(cafile=authority.file)
    context.load_cert_chain(alice.certificate, alice.key)
    context.minimum_version = context.maximum_version = version

    def ask(address: tuple[str, int], session: Any) -> tuple[bytes, Any, bool]:
        with (
            socket.create_connection(address, timeout=15) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as wrapped,
        ):
            wrapped.sendall(post("tools/list", version="1.0"))
            answered = wrapped.recv(12)
            return answered, wrapped.session, bool(wrapped.session_reused)

    async with secured(certificates={"names": ["alice"]}) as gateway:
        at = urlsplit(gateway.addresses.endpoints[0])
        address = ("127.0.0.1", at.port or 0)
        answered, session, _ = await asyncio.to_thread(ask, address, None)
        assert answered == b"HTTP/1.1 200"
        answered, _, reused = await asyncio.to_thread(ask, address, session)
        assert (answered, reused) == (b"HTTP/1.1 200", True)
