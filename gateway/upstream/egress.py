"""Goes to the places that an upstream, or a server it names, supplied: metadata and authorization servers.

Such a place must be https, or this machine where the upstream runs on it too, and may be at no private
address. That is checked as the connection is made, with the very address: a name that was looked up before
may lead elsewhere by now. Places of the operator's own may be anywhere. Nothing is sent along but what is
asked for: no cookies, no proxy of the environment, no redirect that was not checked, and bodies are bounded.
"""

import errno
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from gateway.support.trust import failed_check
from gateway.upstream.addresses import permitted
from gateway.upstream.connecting import is_loopback, shown_url

_HOPS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST = 256 * 2**10
"""The largest document, or answer of an authorization server, in bytes."""
_AT_ONCE = 20
"""Connections at once; who comes then waits, within his own time."""
_KEEP_ALIVE = 4.0
_CLOSED = "leads to an address that is not public"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:  # without the body, which may hold a token
        return f"<Answer {self.status}, {len(self.body)} bytes>"


Own = Callable[[URL], Awaitable[Answer]]
"""Gets a document from the upstream itself, the way all else is asked of it, but without a credential."""


class Astray(Exception):
    """There was no answer; `outage` says that the place was out of reach, rather than none to go to."""

    def __init__(self, detail: str, *, outage: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.outage = outage


class Egress:
    """The way out on behalf of one upstream."""

    def __init__(
        self,
        upstream: str,
        *,
        own: Own,
        trusted: Collection[str] = (),
        tls: SSLContext | bool = True,
        headers: Mapping[str, str] | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`trusted` are URLs of the operator's own: their origins may be anywhere."""
        self._upstream = _origin(URL(upstream))
        self._local = is_loopback(URL(upstream).host or "")
        self._own = own
        self._trusted = {_origin(URL(url)) for url in trusted}
        self._tls = tls
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        self._resolver = resolver
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<Egress of {self._upstream}: {len(self._sessions)} open>"

    async def close(self) -> None:
        """Close every connection; what comes later goes nowhere."""
        self._closed = True
        for session in list(self._sessions.values()):
            await session.close()

    async def get(self, url: str) -> Answer:
        """Return a document; each hop of a redirect is checked like the first place. Raises Astray."""
        at = _parsed(url)
        for _ in range(_HOPS + 1):
            answer = await self._got(at)
            location = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or not location:
                return answer
            try:
                at = _parsed(str(at.join(URL(location))))
            except (ValueError, TypeError):
                raise Astray(f"{shown_url(str(at))} redirects to what is no URL") from None
        raise Astray(f"{shown_url(url)}: over {_HOPS} redirects")

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
        """Send a form to where a secret may go: https, or this machine. No redirect is followed."""
        at = _parsed(url)
        self._check(at)
        return await self._asked("POST", at, data=form, headers=headers)

    async def _got(self, url: URL) -> Answer:
        if _origin(url) == self._upstream:  # plain http, too, if the operator wrote that
            return await self._own(url)
        self._check(url)
        return await self._asked("GET", url)

    def _check(self, url: URL) -> None:
        """Raise Astray for a place that is not fit, whatever its address turns out to be."""
        local = is_loopback(url.host or "")
        if url.scheme != "https" and not local:
            raise Astray(f"{shown_url(str(url))} is not https")
        if local and not self._local and _origin(url) not in self._trusted:
            raise Astray(f"{shown_url(str(url))} is on this machine, where the upstream is not")

    async def _asked(self, verb: str, url: URL, **more: Any) -> Answer:
        session = self._session(free=_origin(url) in self._trusted or _origin(url) == self._upstream)
        try:
            try:
                return await self._exchange(session, verb, url, more)
            except aiohttp.ServerDisconnectedError:  # the kept connection was just being closed
                return await self._exchange(session, verb, url, more)
        except aiohttp.ClientError as error:
            raise _failed(url, error) from None

    async def _exchange(
        self, session: aiohttp.ClientSession, verb: str, url: URL, more: Mapping[str, Any]
    ) -> Answer:
        async with session.request(verb, url, allow_redirects=False, **more) as response:
            if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
                raise Astray(f"{shown_url(str(url))}: an encoding that nobody offered")
            body = await bounded(response.content.readany, shown_url(str(url)))
            return Answer(response.status, response.headers, body)

    def _session(self, *, free: bool) -> aiohttp.ClientSession:
        """Return the session for the operator's own places, or that for all others."""
        if self._closed:
            raise Astray("the gateway is stopping", outage=True)
        session = self._sessions.get(free)
        if session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._tls,
                limit=_AT_ONCE,
                keepalive_timeout=_KEEP_ALIVE,
                use_dns_cache=False,
                resolver=self._resolver,
                socket_factory=_socket if free else self._checked,
            )
            session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),  # whoever asks keeps the time
                auto_decompress=False,
                trust_env=False,
                requote_redirect_url=False,
            )
            self._sessions[free] = session
        return session

    def _checked(self, address: Any) -> socket.socket:
        """Return a socket for an address that is about to be connected to, if that may be."""
        host = str(address[4][0])
        if not permitted(host, loopback=self._local):
            raise OSError(errno.EACCES, _CLOSED)
        return _socket(address)


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    return socket.socket(family, kind, protocol)


def _parsed(text: str) -> URL:
    try:
        url = URL(text, encoded=True)
        port = url.port
    except (ValueError, TypeError):
        raise Astray("what is named is no URL") from None
    if url.scheme not in ("http", "https") or not url.raw_host or port is None:
        raise Astray("what is named is no http URL")
    if url.user is not None or url.password is not None:
        raise Astray(f"{shown_url(text)} holds a login")
    if not text.isascii() or any(character <= " " for character in text):
        raise Astray("what is named is no URL")
    return url.with_fragment(None)


def _origin(url: URL) -> str:
    return f"{url.scheme}://{(url.raw_host or '').lower()}:{url.port}"


def _failed(url: URL, error: aiohttp.ClientError) -> Astray:
    place = shown_url(str(url))
    check = failed_check(error)
    if check is not None:
        return Astray(f"{place}: {check}", outage=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        if _CLOSED in str(error.os_error):  # where there are several addresses, one text speaks of all
            return Astray(f"{place} {_CLOSED}")
        return Astray(f"{place}: {error.os_error.strerror or 'no connection'}", outage=True)
    return Astray(f"{place}: {type(error).__name__}", outage=True)


async def bounded(reading: Callable[[], Awaitable[bytes]], place: str) -> bytes:
    """Return what is read piece by piece until b"", within the bound of documents; raises Astray."""
    body = bytearray()
    while chunk := await reading():
        body += chunk
        if len(body) > _MOST:
            raise Astray(f"{place}: over {_MOST} bytes")
    return bytes(body)
