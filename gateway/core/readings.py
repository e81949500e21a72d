"""Answers what else a URI may be taken for, and what else a pattern over URIs is about. No I/O.

Nobody knows how a server reads `%2e`, a backslash or `file:/x`, so rules are held against every reading that
some server may have. What comes out is good for comparison only.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from unicodedata import normalize
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Readings:
    """What a URI may be taken for."""

    spelled: str
    unclear: bool
    """Whether readers disagree too much on what it leads to."""
    meant: tuple[str, ...]
    """What it is to one reader or another."""
    near: tuple[str, ...]
    """All these and their neighbours, which only who forbids something has to care for."""


def readings_of(uri: str) -> Readings:
    """Return what a URI may be taken for; nobody looks into one that is too long to be an address."""
    if len(uri) > _LONGEST:
        return Readings(uri, True, (uri,), (uri,))
    texts = _unfolded(uri)
    meant = dict.fromkeys(map(_normal, texts))
    near = dict.fromkeys(texts)
    paths = dict.fromkeys(one for text in texts for path in _paths(text) for one in _unfolded(path))
    for reading in (*meant, *paths):
        for neighbour in _neighbours(reading):
            near.update(dict.fromkeys((neighbour, *_slashed(neighbour))))
    unclear = _is_padded_or_endless(uri) or any(map(_is_unclear, texts)) or any(map(_is_odd_host, meant))
    return Readings(uri, unclear, tuple(meant), tuple(near))


def forms_of(pattern: str, *, shortened: bool) -> tuple[str, ...]:
    """Return a pattern over URIs as patterns over their readings.

    A shortened one is also about what is left of its URIs without query and fragment.
    """
    texts = [pattern]
    for text in texts:  # grows
        steps = [_ENCODED.sub(_escaped, text)]
        if shortened:
            steps += [text.partition("#")[0], _PATTERN_QUERY.split(text, maxsplit=1)[0]]
        texts += [step for step in steps if step not in texts]
    # A question mark may stand for any character, or begin a query.
    return tuple(
        dict.fromkeys(
            form for text in texts for form in (text, _normal(text), _normal(text, end_of_host=_SLASH))
        )
    )


def _unfolded(uri: str) -> list[str]:
    """Return a URI decoded and without query and fragment, in whatever order readers do so."""
    rounds = {uri: 0}
    texts = [uri]
    for text in texts:  # grows
        steps = [(text.partition("#")[0], rounds[text]), (text.partition("?")[0], rounds[text])]
        if rounds[text] < _ROUNDS and "%" in text:
            steps.append((unquote(text, errors="surrogateescape"), rounds[text] + 1))
        for step, round in steps:
            if step not in rounds:
                rounds[step] = round
                texts.append(step)
    return texts


def _is_unclear(text: str) -> bool:
    return bool(_CONTROL.search(text) or _DOTS.search(text) or _LOGIN.match(text))


def _is_padded_or_endless(uri: str) -> bool:
    """Whether spaces are around it, however often it is decoded, or more is encoded than servers undo."""
    for _ in range(_ROUNDS):
        if uri != uri.strip():
            return True
        decoded = unquote(uri, errors="surrogateescape")
        if decoded == uri:
            return False
        uri = decoded
    return bool(uri != uri.strip() or _ENCODED.search(uri))


def _is_odd_host(reading: str) -> bool:
    """Whether the host is an address that some readers spell otherwise, like 127.1."""
    scheme, _, rest = reading.partition("://")
    host = _SLASH_OR_QUERY.split(rest, maxsplit=1)[0].partition(":")[0]
    if scheme not in _PORTS or not _NUMBER.fullmatch(host.rpartition(".")[2]):
        return False
    try:
        return str(IPv4Address(host)) != host
    except ValueError:
        return True


def _normal(text: str, *, end_of_host: "re.Pattern[str] | None" = None) -> str:
    """Return a URI, or a pattern, in one spelling; nothing in it is decoded."""
    end_of_host = end_of_host or _SLASH_OR_QUERY
    text = _CONTROL.sub("", text).strip().replace("\\", "/")
    parts = _SCHEME.match(text)
    if parts is None:
        head, mark, rest = text.partition("://")  # a pattern that leaves the scheme open
        if not mark or "/" in head:
            return _tidy(text)
        host, rest = _cut(rest, end_of_host)
        return f"{head.lower()}://{host.lower()}{_tidy(rest)}"
    scheme, slashes, rest = parts["scheme"].lower(), len(parts["slashes"]), parts["rest"]
    if scheme == "file":
        host, path = _cut(rest, end_of_host) if slashes == 2 else ("", rest)
        host = _host(host, scheme)
        return f"file://{'' if host == 'localhost' else host}{_tidy('/' + path)}"
    if scheme not in _PORTS and slashes < 2:
        return f"{scheme}:{_tidy('/' * slashes + rest)}"
    if scheme not in _PORTS and slashes > 2:
        return f"{scheme}://{_tidy('/' + rest)}"
    host, path = _cut(rest, end_of_host)
    return f"{scheme}://{_host(host, scheme)}{_tidy(path)}"


def _cut(rest: str, end: re.Pattern[str]) -> tuple[str, str]:
    found = end.search(rest)
    return (rest, "") if found is None else (rest[: found.start()], rest[found.start() :])


def _host(authority: str, scheme: str) -> str:
    """Return a host and its port in one spelling, without a login."""
    parts = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
    if parts is None:
        return authority.lower()
    host = normalize("NFKC", parts["host"]).replace("。", ".").lower().rstrip(".")
    port = (parts["port"] or "").lstrip("0")
    if host.startswith("["):
        with contextlib.suppress(ValueError):
            host = f"[{IPv6Address(host[1:-1]).compressed}]"
    elif not host.isascii() and len(host) <= _LONGEST_HOST and not _GLOB.search(host):
        with contextlib.suppress(UnicodeError):
            host = host.encode("idna").decode("ascii")
    return f"{host}:{port}" if port and port != _PORTS.get(scheme) else host


def _tidy(path: str) -> str:
    """Return a path, and what is behind it, without detours and doubled slashes."""
    path, rest = _cut(path, _QUERY)
    path = _SLASHES.sub("/", path)
    if not _DOTS.search(path):
        return path + rest
    kept: list[str] = []
    top = path.startswith("/")
    for segment in path.split("/"):
        if segment not in (".", ".."):
            kept.append(segment)
        elif segment == ".." and len(kept) > top:
            kept.pop()
    end = "/" if kept and path.endswith(("/.", "/..")) else ""
    return "/".join(kept) + end + rest


def _neighbours(reading: str) -> Iterator[str]:
    """Yield a reading, and what careless readers make of it."""
    yield reading
    parts = _SCHEME.match(reading)
    if parts is None:
        return
    scheme, rest = parts["scheme"], parts["rest"]
    host, path = _cut(rest, _SLASH_OR_QUERY)
    if "xn--" in host:
        with contextlib.suppress(UnicodeError):
            yield f"{scheme}://{host.encode().decode('idna')}{path}"
    if scheme == "file":
        yield f"file:///{rest}"  # its host is a folder, or nothing
        if len(parts["slashes"]) == 2:
            yield f"file://{path}"
    elif scheme not in _PORTS:
        yield from (f"{scheme}:{slashes}{rest}" for slashes in ("", "/", "//", "///"))
    elif ":" not in host:
        yield f"{scheme}://{host}:{_PORTS[scheme]}{path}"


def _paths(text: str) -> Iterator[str]:
    """Yield where a URI leads at whoever serves files and takes its host for a folder, or drops it."""
    scheme, _, rest = text.partition(":")
    if scheme.strip().lower() == "file":
        yield f"file://{_tidy('/' + rest.replace(_BACKSLASH, '/'))}"
        if rest.startswith("//"):
            _, path = _cut(rest[2:], _SLASH_OR_QUERY)
            yield f"file://{_tidy('/' + path.replace(_BACKSLASH, '/'))}"


def _slashed(reading: str) -> Iterable[str]:
    """Return a reading with a slash at the end of its path, or without, whichever it has not."""
    path, rest = _cut(reading, _QUERY)
    return [(path[:-1] if path.endswith("/") else path + "/") + rest]


def _escaped(found: re.Match[str]) -> str:
    """Return what is encoded in a pattern so that it stands for itself."""
    text = unquote(found[0], errors="surrogateescape")
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


_LONGEST = 4096
_ROUNDS = 4
"""How often a URI may be percent-encoded; what is encoded more often is unclear."""
_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
"""Schemes of which readers take any number of slashes for two, and the ports that go without saying."""
_LONGEST_HOST = 253
_BACKSLASH = "\\"
_GLOB = re.compile(r"[*?\[]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DOTS = re.compile(r"(?:^|[/\\?#:])\.{1,2}(?=[/\\?#;]|$)")
_LOGIN = re.compile(r"(?:(?:https?|wss?|ftp):[/\\]*|[a-z][a-z0-9+.-]*:[/\\]{2})[^/?#]*@", re.IGNORECASE)
_ENCODED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>/*)(?P<rest>.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>[0-9]*))?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SLASHES = re.compile(r"/{2,}")
_QUERY = re.compile(r"[?#]")
_SLASH_OR_QUERY = re.compile(r"[/?#]")
_SLASH = re.compile(r"[/#]")
_PATTERN_QUERY = re.compile(r"\[\?\]|\?(?=[\w.~-]+=)")
