"""Whom connections to others trust, and how the checks that they did not pass are called (B49)."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import TlsFiles
from gateway.support.trust import failed_check, trust
from tests.support.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    (tmp_path / "stranger").mkdir()
    return Authority(tmp_path / "stranger", "stranger")


@asynccontextmanager
async def served(pair: Pair, *options: str) -> AsyncIterator[str]:
    """Have openssl serve with this certificate, as no library of ours does; yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    openssl = await asyncio.create_subprocess_exec(
        *("openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-www"),
        *("-cert", str(pair.certificate), "-key", str(pair.key), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert openssl.stdout is not None
        await openssl.stdout.readuntil(b"ACCEPT")
        yield f"https://127.0.0.1:{port}/"
    finally:
        openssl.kill()
        await openssl.communicate()


async def outcome(url: str, **files: Any) -> int | str | None:
    """Ask there; return the status, or which check failed."""
    context = trust("upstreams.a.tls", TlsFiles(**{name: str(path) for name, path in files.items()}))
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    try:
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
            return answer.status
    except aiohttp.ClientError as error:
        return failed_check(error)


async def test_a_certificate_is_accepted_or_the_check_is_named(
    authority: Authority, stranger: Authority
) -> None:
    """Unknown authority, date, and name."""
    async with served(authority.issue("127.0.0.1")) as url:
        assert await outcome(url, ca_file=authority.file) == 200
        assert await outcome(url, ca_file=stranger.file) == (
            "certificate verify failed: unable to get local issuer certificate; "
            "`ca_file` says whom to trust besides the system's authorities"
        )
    async with served(authority.issue("127.0.0.1", days=-0.01)) as url:
        assert (
            await outcome(url, ca_file=authority.file) == "certificate verify failed: certificate has expired"
        )
    async with served(authority.issue("inner.example")) as url:
        said = await outcome(url, ca_file=authority.file)
        assert str(said).startswith(
            "certificate verify failed: IP address mismatch, certificate is not valid"
        )


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
async def test_a_client_certificate_is_shown_where_it_is_demanded(
    authority: Authority, stranger: Authority, version: str
) -> None:
    """Without one, and with one of somebody else, the message says what is missing."""
    own, other = authority.issue("gateway"), stranger.issue("gateway")
    demands = ("-Verify", "1", "-verify_return_error", "-CAfile", str(authority.file), version)
    async with served(authority.issue("127.0.0.1"), *demands) as url:
        trusts = {"ca_file": authority.file}
        shown = await outcome(url, **trusts, client_cert=own.certificate, client_key=own.key)
        assert shown == 200
        assert "demand" in str(await outcome(url, **trusts))
        refused = await outcome(url, **trusts, client_cert=other.certificate, client_key=other.key)
        assert refused == "it does not trust the authority of the client certificate"


async def test_a_server_that_speaks_no_tls_or_an_old_one_is_told_apart(authority: Authority) -> None:
    """https:// where http:// was meant is the commonest mistake of all."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        assert await outcome(f"https://127.0.0.1:{port}/") == "it speaks no TLS there"
    async with served(authority.issue("127.0.0.1"), "-tls1_1", "-cipher", "ALL:@SECLEVEL=0") as url:
        said = await outcome(url, ca_file=authority.file)
        assert said == "it speaks no version of TLS that is new enough"


async def test_what_is_no_matter_of_tls_is_none() -> None:
    """A refused connection is another's to tell."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert await outcome(f"https://127.0.0.1:{bound.getsockname()[1]}/") is None
    assert failed_check(None) is None
    assert failed_check(TimeoutError()) is None


# The environment


async def test_ssl_cert_file_adds_to_the_systems_trust(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Openssl takes it in the place of the system's: who trusts their own proxy would reach nobody else."""
    system = authorities(ssl.create_default_context())
    monkeypatch.setenv("SSL_CERT_FILE", str(stranger.file))
    trusted = authorities(trust("a", TlsFiles(ca_file=str(authority.file))))
    assert trusted == system | authorities_in(stranger) | authorities_in(authority)
    async with served(stranger.issue("127.0.0.1")) as url:
        assert await outcome(url) == 200


async def test_ssl_cert_dir_adds_too(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As openssl lays such folders out."""
    folder = tmp_path / "hashed"
    folder.mkdir()
    (folder / "a.pem").write_bytes(authority.file.read_bytes())
    rehash = await asyncio.create_subprocess_exec("openssl", "rehash", str(folder))
    assert await rehash.wait() == 0
    system = authorities(ssl.create_default_context())
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    assert authorities(trust("a", TlsFiles())) == system
    async with served(authority.issue("127.0.0.1")) as url:
        assert await outcome(url) == 200


@pytest.mark.parametrize("path", ["missing.pem", "empty.pem"])
def test_an_ssl_cert_file_that_will_not_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Openssl passes over it in silence, and the first call fails."""
    (tmp_path / "empty.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / path))
    with pytest.raises(ValueError, match=r"^SSL_CERT_FILE: "):
        trust("a", TlsFiles())


def authorities(context: ssl.SSLContext) -> set[int]:
    return {int(str(one["serialNumber"]), 16) for one in context.get_ca_certs()}


def authorities_in(authority: Authority) -> set[int]:
    alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    alone.load_verify_locations(cafile=authority.file)
    return authorities(alone)
