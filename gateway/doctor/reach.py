"""Goes the way to an upstream's address by itself, step by step, so that it can say where the way ends.

It shows no credential, and asks nothing of MCP: the pool does that. Through a proxy it goes no further than
the proxy.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from gateway import config
from gateway.doctor.diagnosis import Met, clock_of, kind_of_tls
from gateway.protocol.call import UpstreamName
from gateway.support.trust import trust
from gateway.upstream.connecting import proxy_for, trust_for

_PATIENCE = 5.0
"""The longest one step is waited for."""
_HEAD = 64 * 2**10
_NOBODY_THERE = frozenset({errno.ECONNREFUSED})


async def reach(
    name: UpstreamName,
    settings: config.Upstream,
    *,
    environ: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> Met:
    """Return how far the way to a server's URL leads, and what is to be seen on it; raises nothing."""
    proxy = proxy_for(settings, environ)
    visit = _Visit(Met(proxied=proxy is not None), clock, wall_clock)
    url = settings.url or ""

    def trusted() -> ssl.SSLContext | bool:
        return trust_for(name, settings, None)

    if proxy is not None:
        await visit.gone(proxy, None, None)
        visit.met.failure = visit.met.failure and "proxy"
    else:
        await visit.gone(url, trusted, settings.tls.server_name)
    return visit.met


async def reach_issuer(
    name: str,
    issuer: config.TokenIssuer,
    *,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> Met:
    """Return the same of an authorization server."""
    visit = _Visit(Met(), clock, wall_clock)

    def trusted() -> ssl.SSLContext | bool:
        return trust(f"authentication.tokens.{name}.tls", issuer.tls)

    await visit.gone(issuer.issuer, trusted, None)
    return visit.met


class _End(Exception):
    """The way leads no further; `kind` is that of the finding, None where nothing is known of it."""

    def __init__(self, kind: str | None) -> None:
        super().__init__(kind)
        self.kind = kind


class _Visit:
    def __init__(self, met: Met, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self.met = met
        self._clock = clock
        self._wall_clock = wall_clock

    async def gone(
        self, url: str, trusted: Callable[[], ssl.SSLContext | bool] | None, server_name: str | None
    ) -> None:
        """Go the whole way, and note with what it ended; `trusted`, which reads files, is for https."""
        parts = urlsplit(url)
        try:
            secure = trusted is not None and parts.scheme == "https"
            tls = await asyncio.to_thread(trusted) if trusted is not None and secure else None
            await self.go(parts, tls if isinstance(tls, ssl.SSLContext) else None, server_name)
        except _End as end:
            self.met.failure = end.kind
        except ValueError:  # a file of `tls` that will not do was said at the start
            self.met.failure = "tls"

    async def go(self, url: SplitResult, context: ssl.SSLContext | None, server_name: str | None) -> None:
        """Take all steps, or raise _End at the one that fails; the connection is closed in any case."""
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        reader, writer = await self._connected(await self._resolved(host, port), port)
        peer = writer.get_extra_info("peername")
        try:
            if context is not None:
                await self._secured(writer, context, server_name or host)
            if not self.met.proxied:
                await self._heard(reader, writer, url)
        except _End as end:
            if end.kind == "cut" and context is not None and self.met.secured is not None:
                raise _End(await asyncio.to_thread(_alert, peer, context, server_name or host)) from None
            raise
        finally:
            writer.close()
            with suppress(OSError, TimeoutError):  # whatever it says to the end
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    async def _resolved(self, host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
        began = self._clock()
        with suppress(ValueError):  # an address needs nobody to look it up, who may be busy
            family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
            self.met.resolved = 0.0
            return [(family, host)]
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError:  # which may be that of many names that are looked up at once: it says nothing
            raise _End(None) from None
        except (OSError, UnicodeError):
            raise _End("unknown-host") from None
        self.met.resolved = self._clock() - began
        return [(family, str(address[0])) for family, _, _, _, address in found]

    async def _connected(
        self, addresses: list[tuple[socket.AddressFamily, str]], port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        began = self._clock()
        refused = True
        for family, address in addresses[:4]:
            try:
                async with asyncio.timeout(_PATIENCE):
                    streams = await asyncio.open_connection(address, port, family=family, limit=_HEAD)
            except TimeoutError:
                refused = False
            except OSError as error:
                refused = refused and error.errno in _NOBODY_THERE
            else:
                self.met.connected = self._clock() - began
                return streams
        raise _End("refused" if refused else "unreachable")

    async def _secured(self, writer: asyncio.StreamWriter, context: ssl.SSLContext, name: str) -> None:
        began = self._clock()
        try:
            await writer.start_tls(context, server_hostname=name, ssl_handshake_timeout=_PATIENCE)
        except ssl.SSLError as error:
            raise _End(kind_of_tls(error)) from None
        except (OSError, TimeoutError):
            raise _End("cut") from None
        self.met.secured = self._clock() - began
        shown = writer.get_extra_info("peercert") or {}
        if "notAfter" in shown:
            self.met.certificate_ends = float(ssl.cert_time_to_seconds(shown["notAfter"]))

    async def _heard(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: SplitResult
    ) -> None:
        """Ask which verbs it takes, which does nothing there, for the sake of the answer's head."""
        target = f"{url.path or '/'}{f'?{url.query}' if url.query else ''}"
        host = url.netloc.rpartition("@")[2]
        head = f"OPTIONS {target} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        began, asked_at = self._clock(), self._wall_clock()
        try:
            async with asyncio.timeout(_PATIENCE):
                writer.write(head.encode())
                await writer.drain()
                answer = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise _End("not-http" if error.partial else "cut") from None
        except asyncio.LimitOverrunError:
            raise _End("not-http") from None
        except TimeoutError:
            raise _End("silent") from None
        except OSError:
            raise _End("cut") from None
        if not answer.startswith(b"HTTP/1."):
            raise _End("not-http")
        self.met.answered = self._clock() - began
        self.met.clock = clock_of(answer, asked_at, self._wall_clock())


def _alert(address: tuple[str, int], context: ssl.SSLContext, name: str) -> str:
    """Return the kind of what a server hangs up for after the handshake; blocks, bounded.

    In TLS 1.3 it demands a client certificate only then, and asyncio keeps that to itself.
    """
    try:
        with (
            socket.create_connection(address[:2], timeout=_PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=name) as secured,
        ):
            secured.recv(1)
    except ssl.SSLError as error:
        return kind_of_tls(error)
    except OSError:
        pass
    return "cut"
