"""Who is known by a certificate, of the connection or as a trusted proxy reports it, and what is theirs."""

import asyncio
import base64
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from cryptography import x509

from tests.support.certificates import Authority, Pair, uri
from tests.support.front import Answers, Client, Reply, Serving, answer, post, serving
from tests.support.running import Clock, Running, running
from tests.support.scripted import ScriptedUpstream, result, tool

ALICE, BOB = "spiffe://acme/alice", "spiffe://acme/bob"
PROXY = "127.0.0.1"
KEY = "mcpgw_0123456789abcdef"
KEYS = {"ci": {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}"}}
CERT = "X-Client-Cert"
XFCC = "x-forwarded-client-cert"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        yield upstream


def over_tls(authority: Authority, **certificates: Any) -> dict[str, Any]:
    """Return the settings of a gateway that asks for certificates in the handshake."""
    server = authority.issue("127.0.0.1")
    tls = {"cert_file": server.certificate, "key_file": server.key, "client_ca_file": authority.file}
    return {
        "tls": {name: str(path) for name, path in tls.items()},
        "authentication": {"certificates": {"source": "tls", **certificates}, "keys": KEYS},
    }


def showing(authority: Authority, pair: Pair | None) -> ssl.SSLContext:
    """Return what a client connects with that shows this certificate."""
    context = ssl.create_default_context(cafile=authority.file)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def address(gateway: Serving | Running) -> tuple[str, int]:
    if isinstance(gateway, Serving):
        return gateway.addresses[0]
    at = urlsplit(gateway.addresses.endpoints[0])
    return at.hostname or "", at.port or 0


@asynccontextmanager
async def connected(
    gateway: Serving | Running, authority: Authority, pair: Pair | None
) -> AsyncIterator[Client]:
    """Connect, and show a certificate."""
    reader, writer = await asyncio.open_connection(*address(gateway), ssl=showing(authority, pair))
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def asked(
    gateway: Serving | Running, authority: Authority, pair: Pair | None, request: bytes | None = None
) -> Reply:
    """Send a request over a connection of its own, with this certificate."""
    async with connected(gateway, authority, pair) as client:
        client.send(post("tools/list") if request is None else request)
        return await client.reply()


# Of the connection


async def test_a_certificate_of_the_connection_says_who_it_is(authority: Authority) -> None:
    """By its URI; each name is a caller of its own, with the scopes that certificates grant."""
    alice, bob = (authority.issue(name, others=[uri(name)], file=name[-3:]) for name in (ALICE, BOB))
    pipeline = Answers(answer(tools=[]))
    settings = over_tls(authority, names=["spiffe://acme/*"], scopes=["read"])
    async with serving(pipeline, **settings) as gateway:
        for shown in (alice, alice, bob):
            assert (await asked(gateway, authority, shown)).status == 200
    first, again, other = pipeline.principals
    assert [one.id for one in (first, again, other)] == [f"cert:{ALICE}", f"cert:{ALICE}", f"cert:{BOB}"]
    assert first == again
    assert first.partition not in (None, other.partition)
    assert first.scopes == {"read"}
    assert first.authorization is None
    assert first.expires is not None


async def test_without_a_certificate_that_counts_nobody_gets_in(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """None, and one of a name that is not let in, which is told; a key beside it says who it is."""
    caplog.set_level(logging.DEBUG, "gateway.front.auth")
    stranger = authority.issue("spiffe://other/eve", others=[uri("spiffe://other/eve")], file="eve")
    pipeline = Answers(answer(tools=[]))
    async with serving(pipeline, **over_tls(authority, names=["spiffe://acme/*"])) as gateway:
        for shown in (None, stranger):
            refused = await asked(gateway, authority, shown, post(id="c"))
            assert (refused.status, refused.json["id"]) == (401, "c")
            assert refused.header("www-authenticate") == 'Bearer realm="mcp-gateway"'
        assert refused.json["error"]["message"].endswith("its name is none of those let in")
        assert "spiffe://other/eve matches none of authentication.certificates.names" in caplog.text
        wrong = await asked(gateway, authority, stranger, post(authorization="Bearer mcpgw_other"))
        assert wrong.status == 401
        # A header that a client wrote itself is none of the connection's.
        spoofed = await asked(gateway, authority, None, post(extra=((XFCC, f"URI={ALICE}"),)))
        assert spoofed.status == 401
        let_in = await asked(gateway, authority, stranger, post(authorization=f"Bearer {KEY}"))
        assert let_in.status == 200
    assert [one.id for one in pipeline.principals] == ["key:ci"]


async def test_what_is_private_to_one_certificate_is_no_others(
    authority: Authority, alpha: ScriptedUpstream
) -> None:
    """B08: as with tokens; a certificate that was renewed is the same caller's."""
    members = {"tools": [tool("a")], "ttlMs": 60_000, "cacheScope": "private"}
    alpha.on("tools/list", result(members))
    alice, bob = (authority.issue(name) for name in ("alice", "bob"))
    again = authority.issue("alice", file="alice-again")
    async with running({"alpha": alpha}, **over_tls(authority)) as gateway:
        for pair in (alice, again, alice):
            assert (await asked(gateway, authority, pair)).status == 200
        before = len(alpha.seen("tools/list"))
        assert (await asked(gateway, authority, bob)).status == 200
        assert len(alpha.seen("tools/list")) == before + 1


async def test_a_connection_does_not_outlive_its_certificate(
    authority: Authority, alpha: ScriptedUpstream
) -> None:
    """It was good in the handshake; a stream ends as well."""
    alice = authority.issue("alice")
    ends = x509.load_der_x509_certificate(alice.der).not_valid_after_utc.timestamp()
    clock = Clock(ends - 0.2)
    async with (
        running({"alpha": alpha}, wall_clock=clock, **over_tls(authority)) as gateway,
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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_that_is_resumed_is_the_same_callers(
    authority: Authority, alpha: ScriptedUpstream, version: ssl.TLSVersion
) -> None:
    """No certificate is sent again then; the session still holds it."""
    context = showing(authority, authority.issue("alice"))
    context.minimum_version = context.maximum_version = version

    def ask(address: tuple[str, int], session: Any) -> tuple[bytes, Any, bool]:
        with (
            socket.create_connection(address, timeout=15) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as wrapped,
        ):
            wrapped.sendall(post("tools/list", version="1.0"))
            answered = wrapped.recv(12)
            return answered, wrapped.session, bool(wrapped.session_reused)

    async with running({"alpha": alpha}, **over_tls(authority, names=["alice"])) as gateway:
        answered, session, _ = await asyncio.to_thread(ask, address(gateway), None)
        assert answered == b"HTTP/1.1 200"
        answered, _, reused = await asyncio.to_thread(ask, address(gateway), session)
        assert (answered, reused) == (b"HTTP/1.1 200", True)


# As a proxy reports it


def behind(proxy: str = PROXY, **certificates: Any) -> dict[str, Any]:
    """Return the settings of a gateway behind a proxy that reports certificates."""
    settings = {"source": "header", **certificates}
    return {"trusted_proxies": [proxy], "authentication": {"certificates": settings}}


@pytest.mark.parametrize("format", ["xfcc", "pem", "rfc9440", "subject"])
async def test_a_trusted_proxy_says_whose_certificate_it_was_shown(
    authority: Authority, alpha: ScriptedUpstream, format: str
) -> None:
    """In the format it writes, or that there was none; nothing of it reaches an upstream (B06)."""
    alice = authority.issue("alice")
    told = {
        "xfcc": f'Hash=ab;Cert="{quote(alice.certificate.read_text(), safe="")}";Subject="CN=alice";URI=',
        "pem": quote(alice.certificate.read_text(), safe=""),
        "rfc9440": f":{base64.b64encode(alice.der).decode()}:",
        "subject": "alice",
    }
    settings = behind(header=CERT, format=format, names=["alice"])
    async with running({"alpha": alpha}, **settings) as gateway:
        assert (await gateway.ask("tools/list", headers={CERT: told[format]})).status == 200
        called = await gateway.ask("tools/call", {"name": "alpha__a"}, headers={CERT: told[format]})
        assert called.status == 200
        assert (await gateway.ask("tools/list")).status == 401
        assert (await gateway.ask("tools/list", headers={CERT: ""})).status == 401
    assert all(received.header(CERT) is None for received in alpha.requests)
    assert not any(b"alice" in received.body for received in alpha.requests)


@pytest.mark.parametrize(("format", "said"), [("subject", "alice"), ("xfcc", f"Hash=ab;URI={ALICE}")])
async def test_a_header_that_anybody_could_write_counts_for_nothing(
    alpha: ScriptedUpstream, format: str, said: str
) -> None:
    """From whoever is no trusted proxy, whatever else he writes of himself."""
    async with running({"alpha": alpha}, **behind("10.0.0.0/8", header=CERT, format=format)) as gateway:
        spoofed = {CERT: said, "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"}
        refused = await gateway.ask("tools/list", headers=spoofed)
        assert refused.status == 401
        assert "alice" not in refused.body.decode()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([f"Hash=ab;URI={ALICE}"], 200),
        ([f"Hash=ab;URI={ALICE}", f"Hash=cd;URI={BOB}"], 400),
        (["Hash"], 400),
    ],
)
async def test_what_a_proxy_reports_is_whole_and_comes_once(lines: list[str], status: int) -> None:
    """In the header that Envoy writes unless told otherwise; one that came twice may be half the client's."""
    pipeline = Answers(answer(tools=[]))
    async with serving(pipeline, **behind()) as gateway:
        request = post(extra=tuple((XFCC, line) for line in lines))
        assert (await gateway.ask(request)).status == status
    assert [one.id for one in pipeline.principals] == ([f"cert:{ALICE}"] if status == 200 else [])


async def test_an_older_clients_session_is_its_certificates() -> None:
    """X-20: nobody who is reported as another gets into it."""
    pipeline = Answers(answer(capabilities={}, supportedVersions=[], serverInfo={}, tools=[]))
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
        b'"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
    )
    plain = ("mcp-protocol-version", "mcp-method")
    async with serving(pipeline, **behind()) as gateway:

        def say(name: str, content: bytes, *extra: tuple[str, str]) -> bytes:
            return post(content=content, without=plain, extra=((XFCC, f"Hash=ab;URI={name}"), *extra))

        begun = await gateway.ask(say(ALICE, body))
        session = begun.header("mcp-session-id")
        assert begun.status == 200, begun.body
        assert session is not None
        ping = b'{"jsonrpc":"2.0","id":2,"method":"ping"}'
        assert (await gateway.ask(say(ALICE, ping, ("mcp-session-id", session)))).status == 200
        assert (await gateway.ask(say(BOB, ping, ("mcp-session-id", session)))).status == 404
