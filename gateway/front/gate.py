"""Decides by Host and Origin who may knock, and what a browser is told about it. No I/O."""

import fnmatch
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from aiohttp import hdrs
from multidict import MultiMapping

from gateway import config
from gateway.front import forwarded
from gateway.front.forwarded import Lines, Seen

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.%]+\]|[^\s/?#@:\[\]]+)(?::([0-9]{1,5}))?")
_TOKEN = re.compile(r"mcp-param-[!#$%&'*+.^_`|~0-9a-z-]+")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_ALLOWED_HEADERS = (
    "authorization",
    "content-type",
    "accept",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "mcp-session-id",
    "last-event-id",
)
_EXPOSED_HEADERS = (
    "WWW-Authenticate, Retry-After, Age, Mcp-Gateway-Cache, Mcp-Session-Id, Mcp-Protocol-Version, "
    "X-Request-Id"
)
_PREFLIGHT_SECONDS = 7200  # the longest that Chromium keeps one
_REMEMBERED = 256
_NOBODY_ELSES = (".localhost", ".internal", ".svc", ".cluster.local")
"""Ends of names that nobody can register."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is turned away at the door, in words that name the setting to change (B31)."""

    reason: Literal["host", "origin"]
    message: str


class Origin(NamedTuple):
    scheme: str
    host: str
    port: str | None


class Gate:
    """The Host, Origin and CORS rules of one configuration on the addresses the gateway is bound to."""

    def __init__(self, settings: config.Config, bound: Sequence[tuple[str, int]]) -> None:
        self._loopback = bool(bound) and all(_is_loopback(host) for host, _ in bound)
        self._any_host = "*" in settings.hosts or not (self._loopback or settings.hosts)
        self._hosts = tuple(_split_host(host) for host in [*settings.hosts, *_own_hosts(settings, bound)])
        self._any_origin = "*" in settings.origins or "*" in settings.cors.origins
        self._origins = frozenset(
            _read_origins([*settings.origins, *settings.cors.origins, *_own_origins(settings, bound)])
        )
        self._any_browser = "*" in settings.cors.origins
        self._browsers = frozenset(_read_origins(settings.cors.origins))
        self._scheme = "http" if settings.tls.cert_file is None else "https"
        self._public = None if settings.public_url is None else urlsplit(settings.public_url)
        self._proxies = tuple(ipaddress.ip_network(proxy, strict=False) for proxy in settings.trusted_proxies)
        self.cors = bool(settings.cors.origins)
        key_header = settings.authentication.key_header
        self._allowed = _ALLOWED_HEADERS if key_header is None else (*_ALLOWED_HEADERS, key_header.lower())
        self.looks_at_peers = bool(self._proxies)
        # Remembered answers: nearly every request brings the same few values.
        self._host_fits = lru_cache(_REMEMBERED)(self._judge_host)
        self._origin_fits = lru_cache(_REMEMBERED)(self._judge_origin)
        self._lines = lru_cache(_REMEMBERED)(self._cors_lines)
        self._is_proxy = lru_cache(_REMEMBERED)(self._judge_proxy)
        self._seen = lru_cache(_REMEMBERED)(self._read)

    def trusts(self, remote: str | None) -> bool:
        """Whether an address is one of the trusted proxies, whose word counts."""
        return bool(self._proxies) and self._is_proxy(remote or "")

    def peer(self, headers: MultiMapping[str], remote: str | None) -> str:
        """Return the address that a request comes from: the one beyond the trusted proxies."""
        seen = self._forwarded(headers, remote)
        return seen.address if seen is not None else forwarded.plain_address(remote or "") or ""

    def refuse(self, headers: MultiMapping[str], peer: str | None) -> Refusal | None:
        """Return why the request may not come in, or None (S-10)."""
        if not self._any_host:
            host = self._host_of(headers, peer)
            if not self._host_fits(host):
                return Refusal(
                    "host", f"Host {host[:200]!r} is not served here; the setting `hosts` allows it"
                )
        origins = headers.getall(hdrs.ORIGIN, ())
        if len(origins) > 1:  # which of them another reader believes is anybody's guess
            return Refusal("origin", "There is more than one Origin header")
        for origin in origins:
            if not (self._origin_fits(origin) or self._is_own(origin, headers, peer)):
                return Refusal(
                    "origin", f"Origin {origin[:200]!r} is not allowed; the setting `origins` allows it"
                )
        return None

    def refuse_target(self, target: str) -> Refusal | None:
        """Return why a request may not be for the URL in its first line, where there is a whole one.

        What is written there counts more than Host does (RFC 9112, 3.2.2), which is judged all the same.
        """
        if self._any_host or "://" not in target:
            return None
        host = target.partition("://")[2]
        host = re.split(r"[/?#\\]", host, maxsplit=1)[0]
        if "@" not in host and self._host_fits(host):
            return None
        return Refusal(
            "host",
            f"Host {host.rpartition('@')[2][:200]!r} is not served here; the setting `hosts` allows it",
        )

    def called_otherwise(self, headers: MultiMapping[str], remote: str | None) -> str | None:
        """Return the URL that a trusted proxy was asked for, where `public_url` is another at its host (B37).

        Tokens are for the URL that clients know, so that one of another scheme or path is good for nothing.
        """
        seen = self._forwarded(headers, remote)
        if self._public is None or seen is None or seen.host is None:
            return None
        name, port = _split_host(seen.host)
        if not _fits(name, port, (self._public.hostname or "", None)):
            return None
        scheme, path = self._public.scheme, self._public.path.rstrip("/")
        seen_scheme, seen_path = seen.scheme or scheme, path if seen.prefix is None else seen.prefix
        if (seen_scheme, seen_path) == (scheme, path):
            return None
        return f"{seen_scheme}://{name}{seen_path}"

    def cors_lines(self, origin: str | None) -> bytes:
        """Return the header lines that every answer to this Origin carries (B36)."""
        return self._lines(origin) if self.cors else b""

    def preflight(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of the answer to a preflight; an Origin off the list gets no permission."""
        origin = headers.get(hdrs.ORIGIN)
        if origin is None or not self._is_browser(origin):
            return {}
        asked = headers.get("Access-Control-Request-Headers", "").lower().split(",")
        params = [name.strip() for name in asked if _TOKEN.fullmatch(name.strip())]
        return {
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": ", ".join([*self._allowed, *params]),
            "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
        }

    def _host_of(self, headers: MultiMapping[str], peer: str | None) -> str:
        seen = self._forwarded(headers, peer)
        if seen is not None and seen.host is not None:
            return seen.host
        return headers.get(hdrs.HOST, "")

    def _is_own(self, origin: str, headers: MultiMapping[str], peer: str | None) -> bool:
        """Whether a page is from the very place that it asks; only a Host that was judged is one."""
        if self._any_host:
            return False
        seen = self._forwarded(headers, peer)
        scheme = self._scheme if seen is None else seen.scheme
        called = _read_origin(f"{scheme}://{self._host_of(headers, peer)}")
        return called is not None and _read_origin(origin) == called

    def _forwarded(self, headers: MultiMapping[str], remote: str | None) -> Seen | None:
        """Return what trusted proxies say of a request, None when it came from nobody trusted."""
        if not self.trusts(remote):
            return None
        lines = (tuple(headers.getall(name, ())) for name in forwarded.NAMES)
        return self._seen(remote or "", Lines(*lines))

    def _read(self, remote: str, lines: Lines) -> Seen:
        return forwarded.read(lines, forwarded.plain_address(remote) or "", self._is_proxy)

    def _judge_proxy(self, peer: str) -> bool:
        plain = forwarded.plain_address(peer)
        return plain is not None and any(ipaddress.ip_address(plain) in network for network in self._proxies)

    def _judge_host(self, host: str) -> bool:
        name, port = _split_host(host)
        if self._loopback and _is_loopback(name):
            return True
        return any(_fits(name, port, pattern) for pattern in self._hosts)

    def _judge_origin(self, text: str) -> bool:
        origin = _read_origin(text)
        if origin is None:  # `null` too: a sandboxed page or a local file may be anybody's
            return False
        if self._any_origin or (self._loopback and _is_loopback(origin.host)):
            return True
        return origin in self._origins

    def _is_browser(self, text: str) -> bool:
        origin = _read_origin(text)
        return origin is not None and (self._any_browser or origin in self._browsers)

    def _cors_lines(self, origin: str | None) -> bytes:
        if origin is None or not self._is_browser(origin):
            return b"Vary: Origin\r\n"
        return (
            f"Access-Control-Allow-Origin: {origin}\r\n"
            f"Access-Control-Expose-Headers: {_EXPOSED_HEADERS}\r\n"
            "Vary: Origin\r\n"
        ).encode()


def is_own_name(host: str, settings: config.Config) -> bool:
    """Whether a Host is one that no foreign page can have been given by its name server (DNS rebinding).

    It is an address, a name that nobody can register, or one that the configuration knows as the gateway's.
    """
    name, _ = _split_host(host)
    if "." not in name or name.endswith(_NOBODY_ELSES) or _is_address(name):
        return True
    known = [*settings.hosts, urlsplit(settings.public_url or "").hostname or ""]
    return any(_fits(name, None, _split_host(each)) for each in known)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_hosts(settings: config.Config, bound: Sequence[tuple[str, int]]) -> list[str]:
    hosts = [f"[{host}]" if ":" in host else host for host, _ in bound if not _is_wildcard(host)]
    public = urlsplit(settings.public_url or "").hostname
    return [*hosts, public] if public is not None else hosts


def _own_origins(settings: config.Config, bound: Sequence[tuple[str, int]]) -> list[str]:
    scheme = "http" if settings.tls.cert_file is None else "https"
    own = [
        f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        for host, port in bound
        if not _is_wildcard(host)
    ]
    if settings.public_url is not None:
        public = urlsplit(settings.public_url)
        own.append(f"{public.scheme}://{public.netloc.rpartition('@')[2]}")
    return own


def _read_origins(texts: Iterable[str]) -> Iterable[Origin]:
    return filter(None, (_read_origin(text.rstrip("/")) for text in texts))


def _read_origin(text: str) -> Origin | None:
    match = _ORIGIN.fullmatch(text.lower())
    if match is None or not (text.isascii() and text.isprintable()):
        return None
    scheme, host, port = match.groups()
    return Origin(scheme, _bare(host), None if port == _DEFAULT_PORTS.get(scheme) else port)


def _split_host(text: str) -> tuple[str, str | None]:
    """Return a Host header as name and port; the port is None when it is not said."""
    host = text.strip().lower()
    end = host.find("]") if host.startswith("[") else -1
    name, _, port = host[end + 1 :].partition(":")
    return _bare(host[: end + 1] + name), port or None


def _bare(host: str) -> str:
    return host.strip("[]").rstrip(".")


def _fits(name: str, port: str | None, pattern: tuple[str, str | None]) -> bool:
    """Whether a host fits; a port counts only where both sides say one, proxies often strip it (B31)."""
    wanted, wanted_port = pattern
    if wanted_port is not None and port is not None and wanted_port != port:
        return False
    return fnmatch.fnmatchcase(name, wanted) if "*" in wanted else name == wanted


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")
