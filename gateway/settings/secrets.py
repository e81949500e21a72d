"""Finds the secrets in the texts people give a program: its arguments, its environment, the URLs of servers.

Nothing says of a text that it is a secret but its place, its name and its looks, so all three are asked, and
a word too many is taken for a secret rather than one too few. Where a text cannot be taken apart for sure,
one secret in it makes all of it secret.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

_NAME = re.compile(
    r"(?i)token|secret|passw|passph|passcode|pass(?:$|[-_.0-9])|pwd|(?:^|[-_.])p(?:s)?w(?:$|[-_.])"
    r"|api[-_.]?key|access[-_.]?key|keys?(?:$|[-_.]?[0-9]*$)|credential|(?:^|[-_.])creds?(?:$|[-_.])"
    r"|auth|cookie|private|bearer|jwt|mnemonic|seed[-_.]?phrase|signature|session|webhook"
    r"|(?:^|[-_.])(?:pat|dsn|sid|pin|otp|totp|sig|sas|salt|hmac|code)$|conn(?:ection)?[-_. ]?str"
)
_STRONG = re.compile(r"(?i)pass|pwd|pw$|secret|pin$|api[-_.]?key|access[-_.]?key|credential|private")
"""Names whose numbers are secrets, too; a token may be one of those that are counted."""
_COUNTED = re.compile(
    r"(?i)tokens|(?:^|[-_.])(?:max|min|limit|ttl|timeout|count|size|len|length|port|num|age|retries|interval)"
    r"(?:$|[-_.])"
)
_LONE_NAME = re.compile(
    r"(?i)(?:(?:api|access|secret|auth|private|client)[-_]?)?(?:key|token|secret|password|passwd|pass|pwd)"
    r"|(?:bearer|basic|(?:x-)?api-key:|authorization:?)"
)
"""Words that, standing alone, say of the next one that it is a secret."""
_VALUE = re.compile(
    r"(?i)(?:^|[\s=:\"'])(?:bearer|basic)\s+\S|^authorization\s*[:=]\s*\S"
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9]|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|npg_|nvapi-|hf_|ntn_|AKIA)"
    r"|\bAIza|\beyJ[A-Za-z0-9_-]{8,}\.|-----BEGIN|://[^/?#\s@]+@|://[^/?#\s:@]*:(?![0-9]+[/?#])[^\s@]+@"
    r"|(?:^|[^A-Za-z0-9+/])[A-Za-z0-9+/]{8,}={1,2}$"
)
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_~+=-]{20,}")
_BASE64 = re.compile(r"[A-Za-z0-9]{8,}={1,2}")
_WORDS = re.compile(r"[A-Za-z0-9_~+=-]{20,}")
_FILE = re.compile(r"(?:\.{0,2}/|~/|[A-Za-z]:[\\/])[^\s=?&]*")
_MIXED = re.compile(r"[A-Za-z][0-9]|[0-9][A-Za-z]")
_NO_SECRET = re.compile(r"(?i)|true|false")
_HARMLESS = re.compile(r"(?i)|true|false|on|off|yes|no|none|\*|[0-9.:]*")
_NUMBER = re.compile(r"[0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
_CERTAIN_OPTION = re.compile(r"(?:--[a-z][a-z-]*|-[A-Za-z])(?:=|$)")
_SEVERAL = re.compile(r"(?i)(?:key|token|secret|credential|password|header|var)s$")
"""Options that may have several values, each an argument."""
_ASSIGNED = re.compile(r"(-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)(\s*:\s*)(.*)", re.DOTALL)
_HEADER_OPTION = re.compile(r"(?i)-*(?:h|headers?|(?:[a-z-]+-)headers?)")
_LOGIN_OPTION = re.compile(r"(?i)-*(?:u|user|userpwd|proxy-user|login)")
_LOGIN = re.compile(r"(?![0-9]+:[0-9]+$)[^:]*:.+", re.DOTALL)
_SHORT = re.compile(r"-[pPkt]")
_SHORT_VALUE = re.compile(r"(?![0-9.:/-]*$)[^/\s]+")
_ATTACHED = re.compile(r"(-[pP])((?=[^=]*[A-Z0-9])(?![0-9.:]*$)[^=/]+)|(-u)([^:=]*:.+)", re.DOTALL)
_PLAIN_HEADER = re.compile(r"[A-Za-z0-9,;*/. _-]{0,15}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*")
_LOGIN_IN_URL = re.compile(
    r"(?:://|^(?!.*://))[^/?#\s@]*@|(?:://|^(?!.*://))[^/?#\s:@\[]*:(?![0-9]*(?:[/?#]|$))[^?#]*@"
)
_PAIR = re.compile(
    r"\b([A-Za-z_][A-Za-z0-9_.-]*)\\*[\"'\])]*\s*[=:]\s*(?=\\*[\"']?([^\s\"',;&}\]\\]+))"
    r"|(?:^|[\s\"'`])(--?[A-Za-z][A-Za-z0-9_.-]*)(?=[\s\"',=]+([^\s\"',]+))"
)
_SCHEMES = frozenset({"bearer", "basic", "token", "key", "apikey", "authorization", "http", "https"})


@dataclass(frozen=True, slots=True)
class Secret:
    """A part of a text that must not be shown, and the name it goes by: that of an option, a header, …"""

    value: str
    name: str
    named: bool = True
    """Whether its name says that it is one; else something in it does."""

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"


Part: TypeAlias = str | Secret
"""A text is its parts, one after the other."""

ARGUMENT: Final = "ARGUMENT"
"""The name of a secret that has none."""


def in_arguments(args: Iterable[str]) -> Iterator[list[Part]]:
    """Yield the parts of each argument; an option may have its value in the next one."""
    before = ""
    for text in args:
        name = before
        if _CERTAIN_OPTION.match(text) or (_OPTION.fullmatch(text) and not is_named(name, text)):
            name = ""
        shown: list[Part] = [text]
        parts = shown if _is_scheme(text) else _merged(_value_of(name, text))
        yield parts
        goes_on = name if _SEVERAL.search(name) else ""
        before = text if parts == shown and _names_the_next(text, name) else goes_on


def in_value(name: str, text: str) -> list[Part]:
    """Return the parts of what a variable holds."""
    return _merged(_named(name, text))


def in_header(name: str, text: str) -> list[Part]:
    """Return the parts of a header's value, which is secret unless it is short and has a harmless name."""
    return _merged(_header(name, text))


def in_url(text: str) -> list[Part]:
    """Return the parts of a URL, which has nothing before its host."""
    return _merged(_url(text))


def has_login(url: str) -> bool:
    """Whether a name or a password stands before the host."""
    return _LOGIN_IN_URL.search(url.replace("\\", "/")) is not None


def is_named(name: str, text: str) -> bool:
    """Whether the name of a text says that it is a secret."""
    if name.startswith("-") and not name.startswith("--"):
        if _SHORT.fullmatch(name):
            return _SHORT_VALUE.fullmatch(text) is not None
        return _is_named(name[1:], text) or _is_named(name[2:], text)
    return _is_named(name.lstrip("-"), text)


def is_shown(literal: str, secret: Secret) -> bool:
    """Whether a text beside the variables in a secret may be shown: the variables hold the secret, maybe."""
    if secret.named:
        return all(word.lower() in _SCHEMES for word in re.findall(r"\w+", literal))
    return not _looks_secret(literal) and not _holds_pair(literal)


def is_secret(name: str, text: str) -> bool:
    """Whether a text with this name is one, or holds one."""
    return is_named(name, text) or _holds_secret(text)


def _is_named(name: str, text: str) -> bool:
    name = _CAMEL.sub("_", name)
    if _NAME.search(name) is None and _LONE_NAME.fullmatch(name) is None:
        return False
    if _NUMBER.fullmatch(text):
        return _COUNTED.search(name) is None
    return (_NO_SECRET if _STRONG.search(name) else _HARMLESS).fullmatch(text) is None


def _names_the_next(text: str, name: str) -> bool:
    """Whether an argument, itself the value of an option with this name maybe, says what the next one is."""
    if _OPTION.fullmatch(text):
        return True
    return _LONE_NAME.fullmatch(text) is not None and (name == "" or _is_scheme(text) or text.endswith(":"))


def _is_scheme(text: str) -> bool:
    return text.lower() in ("bearer", "basic")


def _looks_secret(text: str) -> bool:
    if _VALUE.search(text) or _RANDOM.fullmatch(text):
        return True
    if _FILE.fullmatch(text):
        return False  # what looks random in it is the hash of a package, or of a build
    chunks = (chunk for word in _WORDS.findall(text) for chunk in re.split(r"[-_~+=]+", word))
    return any(len(chunk) > 3 and _MIXED.search(chunk) for chunk in chunks)


def _holds_secret(text: str) -> bool:
    """Whether there is a secret somewhere in a text: a script, JSON, a connection string."""
    if _looks_secret(text):
        return True
    if text.lstrip("\"' ")[:1] in ("{", "[") and any(
        _NAME.search(_CAMEL.sub("_", word)) for word in re.findall(r"[A-Za-z0-9_.-]+", text)
    ):
        return True
    return _holds_pair(text)


def _holds_pair(text: str) -> bool:
    """Whether there is a name of a secret in a text with something behind it."""
    for hit in _PAIR.finditer(text):
        name, value = hit[1] or hit[3], hit[2] or hit[4]
        if is_named(name, value) and not _is_scheme(value) and not _OPTION.fullmatch(hit[4] or ""):
            return True
    return False


def _value_of(option: str, text: str) -> Iterator[Part]:
    """Yield the parts of what stands behind an option, or behind none."""
    if _HEADER_OPTION.fullmatch(option) and (header := _HEADER.fullmatch(text)):
        yield header[1] + header[2]
        yield from _header(header[1], header[3])
    elif _LOGIN_OPTION.fullmatch(option) and _LOGIN.fullmatch(text):
        yield Secret(text, option)
    else:
        yield from _named(option, text)


def _named(name: str, text: str) -> Iterator[Part]:
    """Yield the parts of a text with a name; the name may be empty."""
    if name and is_named(name, text):
        yield Secret(text, name)
    elif _URL.fullmatch(text) and not has_login(text):
        yield from _url(text)
    elif (assigned := _ASSIGNED.fullmatch(text)) and not (
        _looks_secret(assigned[1]) or _BASE64.fullmatch(text)
    ):
        yield f"{assigned[1]}="
        yield from _value_of(assigned[1], assigned[2])
    elif (header := _HEADER.fullmatch(text)) and _is_named(header[1], header[3]):
        yield header[1] + header[2]
        yield from _header(header[1], header[3])
    elif attached := _ATTACHED.fullmatch(text):
        yield attached[1] or attached[3]
        yield Secret(attached[2] or attached[4], name or ARGUMENT)
    elif _holds_secret(text):
        yield Secret(text, name or ARGUMENT, named=False)
    else:
        yield text


def _header(name: str, value: str) -> Iterator[Part]:
    harmless = _PLAIN_HEADER.fullmatch(value) and not _NAME.search(name)
    if harmless and not _looks_secret(value):
        yield value
    else:
        yield Secret(value, name, named=_NAME.search(name) is not None)


def _url(text: str) -> Iterator[Part]:
    """Yield the parts of a URL: secrets may stand in its path, its query and its fragment."""
    scheme = _SCHEME.match(text)
    rest = text[scheme.end() :] if scheme else text
    cut = re.search(r"[?#]", rest)
    path, behind = (rest, "") if cut is None else (rest[: cut.start()], rest[cut.start() :])
    if scheme:
        yield scheme[0]
    before = ""
    for number, segment in enumerate(path.split("/")):
        if number:
            yield "/"
        named = bool(_LONE_NAME.fullmatch(before)) and segment not in ("", "mcp", "sse")
        if number and segment and (named or _holds_secret(unquote(segment))):
            yield Secret(segment, "path", named=named)
        else:
            yield segment
        before = segment
    for number, pair in enumerate(re.split(r"([?#&;])", behind)):
        name, is_set, value = pair.partition("=")
        if number % 2:
            yield pair
        elif not is_set:
            yield Secret(pair, "query", named=False) if _holds_secret(unquote(pair)) else pair
        elif _looks_secret(unquote(name)):
            yield Secret(pair, "query")
        elif (named := is_named(unquote(name), unquote(value))) or any(
            isinstance(part, Secret) for part in _named("", unquote(value))
        ):
            yield f"{name}="
            yield Secret(value, unquote(name), named=named)
        else:
            yield pair


def _merged(parts: Iterable[Part]) -> list[Part]:
    """Return the parts with neighbouring shown ones made one."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged
