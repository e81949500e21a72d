"""Reads what proxies say of a request they pass on: X-Forwarded-* and Forwarded (RFC 7239). No I/O.

Whoever is on the way adds to the right, so the lists are read from there, and only as far as those who wrote
are trusted: what stands further left may be the client's own invention.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_MOST_HOPS = 32
_PAIR = re.compile(r'[ \t]*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]*))[ \t]*')
_ESCAPED = re.compile(r"\\(.)")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~%!$&'()*+=:@-]+)+")
_SCHEMES = ("http", "https")


class Seen(NamedTuple):
    """How a request came; None where nobody says so who is trusted."""

    address: str
    """Of the client: of whoever spoke to the first of the trusted proxies."""
    host: str | None = None
    scheme: str | None = None
    prefix: str | None = None
    """The path that the proxies took away; only X-Forwarded-Prefix says it."""


class Lines(NamedTuple):
    """The header lines that are read, each with all its values."""

    address: Sequence[str]
    host: Sequence[str]
    scheme: Sequence[str]
    prefix: Sequence[str]
    forwarded: Sequence[str]


NAMES = ("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "Forwarded")
"""The headers of these lines, in their order."""


def read(lines: Lines, remote: str, trusts: Callable[[str], bool]) -> Seen:
    """Return how a request came that a trusted proxy at `remote` passed on.

    A proxy writes one of the two kinds and lets the client's lines of the other pass, so where both are there
    only that counts in which they agree.
    """
    if not lines.forwarded:
        return _read_apart(lines, remote, trusts)
    together = _read_together(_listed(lines.forwarded), remote, trusts)
    if not any(lines[:4]):
        return together
    apart = _read_apart(lines, remote, trusts)
    return Seen(
        apart.address if apart.address == together.address else remote,
        apart.host if apart.host == together.host else None,
        apart.scheme if apart.scheme == together.scheme else None,
    )


def plain_address(text: str) -> str | None:
    """Return an address in its one spelling, without port, brackets and zone; None for what is none."""
    host = text.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _read_apart(lines: Lines, remote: str, trusts: Callable[[str], bool]) -> Seen:
    address, hops = _walk([plain_address(text) for text in _listed(lines.address)], remote, trusts)
    scheme = (_at(_listed(lines.scheme), hops) or "").lower()
    stripped = _listed(lines.prefix)[-hops:]  # each hop adds what it took away
    return Seen(
        address,
        _at(_listed(lines.host), hops),
        scheme if scheme in _SCHEMES else None,
        "".join(map(_prefix, stripped)) or None,
    )


def _walk(told: Sequence[str | None], remote: str, trusts: Callable[[str], bool]) -> tuple[str, int]:
    """Return the client's address, and how many trusted proxies stand before us."""
    client, hops = remote, 1
    for address in reversed(told):
        if address is None:  # hidden, or garbage: the one who wrote it is the last that is known
            break
        client = address
        if not trusts(address):
            break
        hops += 1
    return client, hops


def _at(values: Sequence[str], hops: int) -> str | None:
    """Return what the outermost trusted proxy wrote; those that replace instead of adding leave one value."""
    return values[max(0, len(values) - hops)] if values else None


def _listed(lines: Sequence[str]) -> list[str]:
    """Return the last values of a header that is a list, whose lines count as one."""
    found = [text.strip() for line in lines for text in _split(line)]
    return found[-_MOST_HOPS:]


def _split(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    parts, start, quoted, at = [], 0, False, 0
    while at < len(line):
        sign = line[at]
        if sign == '"':
            quoted = not quoted
        elif sign == "\\" and quoted:
            at += 1
        elif sign == "," and not quoted:
            parts.append(line[start:at])
            start = at + 1
        at += 1
    return [*parts, line[start:]]


def _prefix(text: str) -> str:
    plain = text.rstrip("/")
    return plain if _PREFIX.fullmatch(plain) and ".." not in plain else ""


def _read_together(elements: Sequence[str], remote: str, trusts: Callable[[str], bool]) -> Seen:
    hops = [_pairs(element) for element in elements]
    told = [plain_address(hop.get("for", "")) for hop in hops]
    address, count = _walk(told, remote, trusts)
    host = scheme = None
    for hop in hops[-count:]:  # from the outermost that is trusted
        host = host or hop.get("host") or None
        proto = hop.get("proto", "").lower()
        scheme = scheme or (proto if proto in _SCHEMES else None)
    return Seen(address, host, scheme)


def _pairs(element: str) -> Mapping[str, str]:
    """Return what one hop says; nothing at all when it is malformed, or says something twice."""
    pairs: dict[str, str] = {}
    at = 0
    while True:
        pair = _PAIR.match(element, at)
        if pair is None:
            return {}
        name, quoted, bare = pair.groups()
        value = bare if quoted is None else _ESCAPED.sub(r"\1", quoted)
        if pairs.setdefault(name.lower(), value) != value:
            return {}
        at = pair.end()
        if at == len(element):
            return pairs
        if element[at] != ";":
            return {}
        at += 1
