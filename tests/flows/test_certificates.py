"""Who is known by a certificate: of the connection itself, or as a trusted proxy reports it."""

import ssl
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority, Pair, uri
from tests.support.front import Answers, Reply, Serving, answer, post, serving

ALICE, BOB = "spiffe://acme/alice", "spiffe://acme/bob"
HERE, ELSEWHERE = ["127.0.0.1/32"], ["10.0.0.0/8"]
KEY = "mcpgw_0123456789abcdef"
KEYS = {"ci": {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}"}}
XFCC = "x-forwarded-client-cert"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def over_tls(authority: Authority, **certificates: Any) -> dict[str, Any]:
    """Return the settings of a gateway that asks for certificates in the handshake."""
    server = authority.issue("127.0.0.1")
    tls = {"cert_file": server.certificate, "key_file": server.key, "client_ca_file": authority.file}
    return {
        "tls": {name: str(path) for name, path in tls.items()},
        "authentication": {"certificates": {"source": "tls", **certificates}, "keys": KEYS},
    }


async def over(gateway: Serving, authority: Authority, shown: Pair | None, request: bytes) -> Reply:
    """Send a request over a connection of its own, with this certificate."""
    context = ssl.create_default_context(cafile=authority.file)
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    async with gateway.connect(ssl=context) as client:
        client.send(request)
        return await client.reply()


async def test_a_certificate_of_the_connection_says_who_it_is(authority: Authority) -> None:
    """By its URI; each name is a caller of its own, with the scopes that certificates grant."""
    alice, bob = (authority.issue(name, others=[uri(name)], file=name[-3:]) for name in (ALICE, BOB))
    pipeline = Answers(answer(tools=[]))
    settings = over_tls(authority, names=["spiffe://acme/*"], scopes=["read"])
    async with serving(pipeline, **settings) as gateway:
        for shown in (alice, alice, bob):
            assert (await over(gateway, authority, shown, post())).status == 200
    first, again, other = pipeline.principals
    assert [one.id for one in (first, again, other)] == [f"cert:{ALICE}", f"cert:{ALICE}", f"cert:{BOB}"]
    assert first == again
    assert first.partition not in (None, other.partition)
    assert first.scopes == {"read"}
    assert first.authorization is None
    assert first.expires is not None


async def test_without_a_certificate_that_counts_nobody_gets_in(authority: Authority) -> None:
    """None, and one of a name that is not let in; a key beside it says who it is."""
    stranger = authority.issue("spiffe://other/eve", others=[uri("spiffe://other/eve")], file="eve")
    pipeline = Answers(answer(tools=[]))
    async with serving(pipeline, **over_tls(authority, names=["spiffe://acme/*"])) as gateway:
        for shown in (None, stranger):
            refused = await over(gateway, authority, shown, post(id="c"))
            assert (refused.status, refused.json["id"]) == (401, "c")
            assert refused.header("www-authenticate") == 'Bearer realm="mcp-gateway"'
        wrong = await over(gateway, authority, stranger, post(authorization="Bearer mcpgw_other"))
        assert wrong.status == 401
        # A header that a client wrote itself is none of the connection's.
        spoofed = await over(gateway, authority, None, post(extra=((XFCC, f"URI={ALICE}"),)))
        assert spoofed.status == 401
        assert (await over(gateway, authority, stranger, post(authorization=f"Bearer {KEY}"))).status == 200
    assert [one.id for one in pipeline.principals] == ["key:ci"]


def reported(*lines: str) -> bytes:
    """Return a request as a proxy hands it on."""
    return post(extra=tuple((XFCC, line) for line in lines))


@pytest.mark.parametrize(
    ("proxies", "lines", "status"),
    [
        (HERE, [f"Hash=ab;URI={ALICE}"], 200),
        (HERE, [f"Hash=ab;URI={ALICE}", f"Hash=cd;URI={BOB}"], 400),
        (HERE, ["Hash"], 400),
        (HERE, [""], 401),
        (HERE, [], 401),
        (ELSEWHERE, [f"Hash=ab;URI={ALICE}"], 401),
    ],
)
async def test_what_a_proxy_reports_counts_where_the_proxy_is_trusted(
    proxies: list[str], lines: list[str], status: int
) -> None:
    """From anybody else it is a header like others; one that came twice may be half the client's."""
    pipeline = Answers(answer(tools=[]))
    authentication = {"certificates": {"source": "header"}}
    async with serving(pipeline, trusted_proxies=proxies, authentication=authentication) as gateway:
        assert (await gateway.ask(reported(*lines))).status == status
    assert [one.id for one in pipeline.principals] == ([f"cert:{ALICE}"] if status == 200 else [])


async def test_an_older_clients_session_is_its_certificates() -> None:
    """X-20: nobody who is reported as another gets into it."""
    pipeline = Answers(answer(capabilities={}, supportedVersions=[], serverInfo={}, tools=[]))
    authentication = {"certificates": {"source": "header"}}
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
        b'"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
    )
    plain = ("mcp-protocol-version", "mcp-method")
    async with serving(pipeline, trusted_proxies=HERE, authentication=authentication) as gateway:

        def say(name: str, content: bytes, *extra: tuple[str, str]) -> bytes:
            return post(content=content, without=plain, extra=((XFCC, f"Hash=ab;URI={name}"), *extra))

        begun = await gateway.ask(say(ALICE, body))
        session = begun.header("mcp-session-id")
        assert begun.status == 200, begun.body
        assert session is not None
        ping = b'{"jsonrpc":"2.0","id":2,"method":"ping"}'
        assert (await gateway.ask(say(ALICE, ping, ("mcp-session-id", session)))).status == 200
        assert (await gateway.ask(say(BOB, ping, ("mcp-session-id", session)))).status == 404
