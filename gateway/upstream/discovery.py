"""Reads where tokens for an upstream are given out: its metadata, and the authorization server's. No I/O.

What must hold of what is found at the well-known places (RFC 9728, RFC 8414, OpenID Connect Discovery, Z-11).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from yarl import URL

from gateway.protocol.well_known import DEFAULT_PORTS

_MOST_ISSUERS = 10
_MOST_SCOPES = 64
_SCOPE_LENGTH = 256


class Unfit(ValueError):
    """A document that cannot be used; the message is for people and holds no secret."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What an upstream says of itself (RFC 9728)."""

    resource: str
    """What a token for it must be for."""
    issuers: tuple[str, ...]
    """The authorization servers that give such tokens out, by their identifiers."""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Issuer:
    """What an authorization server says of itself."""

    issuer: str
    token_url: str
    client_auth: tuple[str, ...] | None = None
    """How clients may prove who they are, None where it does not say."""
    algorithms: tuple[str, ...] | None = None
    """How a client may sign an assertion, None where it does not say."""


def canonical(url: str) -> str:
    """Return the form of an MCP server's URL that names it in tokens (Z-06): no fragment, no bare slash."""
    parts = URL(url, encoded=True).with_user(None).with_fragment(None)
    host = (parts.raw_host or "").lower()
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    query = f"?{parts.raw_query_string}" if parts.raw_query_string else ""
    path = "" if parts.raw_path == "/" and not query else parts.raw_path
    return f"{parts.scheme}://{host}{port}{path}{query}"


def read_resource(body: bytes, url: str, wished: str | None = None) -> Resource:
    """Return what an upstream's metadata says; raises Unfit, also where it speaks of another resource.

    `wished` is what the operator says that tokens are for.
    """
    members = _object(body)
    resource = _text(members, "resource")
    if not _is_about(resource, url, wished):
        raise Unfit(
            f"its metadata is about another resource, {_short(resource)}: set `resource` if that is right"
        )
    issuers = tuple(filter(_is_issuer, _texts(members.get("authorization_servers")) or ()))
    if not issuers:
        raise Unfit("its metadata names no authorization server")
    scopes = _texts(members.get("scopes_supported")) or ()
    return Resource(resource, issuers[:_MOST_ISSUERS], tuple(s for s in scopes if is_scope(s))[:_MOST_SCOPES])


def read_issuer(body: bytes, issuer: str) -> Issuer:
    """Return what an authorization server's metadata says; raises Unfit for that of another one.

    The identifier must be the one that led here, to the letter: otherwise one server could speak for another.
    """
    members = _object(body)
    said = _text(members, "issuer")
    if said != issuer:
        raise Unfit(f"its metadata is that of another issuer, {_short(said)}")
    token_url = _text(members, "token_endpoint")
    if not _is_place(token_url):
        raise Unfit("its token_endpoint is no URL")
    return Issuer(
        issuer,
        token_url,
        _texts(members.get("token_endpoint_auth_methods_supported")),
        _texts(members.get("token_endpoint_auth_signing_alg_values_supported")),
    )


def scopes_of(text: str | None) -> tuple[str, ...]:
    """Return the scopes that a challenge names, those that are none left out."""
    found = dict.fromkeys(one for one in (text or "").split(" ") if is_scope(one))
    return tuple(found)[:_MOST_SCOPES]


def is_scope(text: str) -> bool:
    """Whether this may be asked for as a scope (RFC 6749, 3.3)."""
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "\\')
    return 0 < len(text) <= _SCOPE_LENGTH and plain


def _is_issuer(text: str) -> bool:
    """Whether this can be an issuer's identifier (RFC 8414, 2): no login, query or fragment."""
    return _is_place(text) and not set(text) & set("@?#")


def _is_place(text: str) -> bool:
    """Whether this is an http URL, whose port is read only when somebody asks for it."""
    try:
        url = URL(text, encoded=True)
        return url.scheme in DEFAULT_PORTS and bool(url.raw_host) and url.port is not None
    except (ValueError, TypeError):
        return False


def _is_about(resource: str, url: str, wished: str | None) -> bool:
    """Whether a resource is the upstream itself, or what the operator says that tokens are for.

    A part of it from the left would be other servers as well (RFC 9728, 3.3): so its origin counts only where
    the operator wrote what tokens are for, which is then what is asked for. A slash at the end makes no other
    server, and many a one writes it or leaves it out as it pleases (B16).
    """
    try:
        named, wanted = canonical(resource), canonical(url)
        if named.rstrip("/") == wanted.rstrip("/"):
            return True
        origin = canonical(str(URL(wanted, encoded=True).origin()))
        return wished is not None and named in (origin, canonical(wished))
    except (ValueError, TypeError):
        return False


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Unfit("it is no JSON") from None
    if not isinstance(members, dict):
        raise Unfit("it is no JSON object")
    return members


def _text(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise Unfit(f"it says no {name}")
    return value


def _texts(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return None
    return tuple(one for one in value if isinstance(one, str) and one)


def _short(text: str) -> str:
    return ascii(text[:100])
