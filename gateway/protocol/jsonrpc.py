"""Splits and splices JSON-RPC messages; payloads stay the bytes they came as.

An object is cut one level deep into its members, each still raw JSON, and put together again from
them: what nobody reads is never decoded, so 1.0, 2**64, key order and escapes survive to the byte.
"""

import re
from codecs import utf_8_decode
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = bytes | msgspec.Raw
"""One JSON value as text; a Raw is a view that keeps the whole message alive, `bytes(raw)` frees it."""

Members: TypeAlias = Mapping[str, Json]
"""A JSON object cut one level deep, in its own order."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
LEGACY_RESOURCE_NOT_FOUND = -32002
HEADER_MISMATCH = -32020
MISSING_CLIENT_CAPABILITY = -32021
UNSUPPORTED_PROTOCOL_VERSION = -32022
LEGACY_URL_ELICITATION_REQUIRED = -32042


class _Key(str):
    """A member's name that equals nothing but itself, so that a dict keeps every member there is."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_every_member = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=lambda kind, name: kind(name))
_items = msgspec.json.Decoder(list[msgspec.Raw])
_string = msgspec.json.Decoder(str)
_one = msgspec.json.Decoder(msgspec.Raw)
_any = msgspec.json.Decoder()

_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: one level down, one level up
_NO_STEPS = bytes(set(range(256)) - set(b'[{]}"'))
_UTF8_SLICE = 1 << 20
_COUNTED_SLICE = 1 << 16
CROWD = 500_000
"""So many values in one array are more than anybody means; a shorter text cannot hold them."""
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class Malformed(ValueError):
    """A text is not the JSON that was expected there; the message says what is wrong, without quoting it."""


class DuplicateKey(Malformed):
    """An object names one member twice; `names` are all it repeats, in `members` the last of each stands."""

    def __init__(self, names: frozenset[str], members: Members) -> None:
        super().__init__("a member is named twice")
        self.names = names
        self.members = members


class McpError(Exception):
    """An error the caller should see, as JSON-RPC writes it; `data` is raw JSON or None."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.data = data

    @classmethod
    def with_data(cls, code: int, message: str, data: object) -> "McpError":
        """Return an error whose data is `data` encoded."""
        return cls(code, message, msgspec.json.encode(data))


def split(raw: Json) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object; of a repeated key the last one wins.

    Raises Malformed when the text is not one object, nests too deep, or is no JSON anywhere inside.
    """
    try:
        return _members.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(_reason(error)) from None


def split_strict(raw: Json) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object like `split`, but raise DuplicateKey when one is named twice.

    The decoder drops repeated keys silently. A text no longer than its members need has dropped none; one
    that is longer, mostly by whitespace, is decoded once more with every member kept.
    """
    members = split(raw)
    # Per member two quotes, a colon and a comma, the last comma being the closing brace. Escapes, which
    # only make a name longer than it counts here, cannot hide a member either.
    needed = 1 + 4 * len(members) + sum(map(len, members)) + sum(map(len, members.values()))
    if len(raw) > needed:
        every = [str(name) for name in _every_member.decode(raw)]
        if len(every) > len(members):
            names = frozenset(name for name, times in Counter(every).items() if times > 1)
            raise DuplicateKey(names, members)
    return members


def is_json(raw: Json) -> bool:
    """Whether the text is one JSON value of any kind; raises Malformed when it nests too deep to tell."""
    try:
        _one.decode(raw)
    except msgspec.DecodeError:
        return False
    except RecursionError as error:
        raise Malformed(_reason(error)) from None
    return True


def is_utf8(text: bytes) -> bool:
    """Whether the bytes are UTF-8, which the decoder does not look at inside raw values.

    Decoded by slices: a text of 15 MB would make a string of 60.
    """
    if text.isascii():
        return True
    view = memoryview(text)
    at = 0
    try:
        while at < len(view):
            last = at + _UTF8_SLICE >= len(view)
            at += utf_8_decode(view[at : at + _UTF8_SLICE], "strict", last)[1]
    except UnicodeDecodeError:
        return False
    return True


def nests_deeper(text: bytes, limit: int) -> bool:
    """Whether a valid JSON text has a value more than `limit` arrays and objects deep.

    Nearly every text has too few brackets for it. Of the others the strings are cut out and the brackets
    added up without a loop in Python, some 30 ns each.
    """
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    signs = text.replace(rb"\\", b"").replace(rb"\"", b"").translate(_STEPS, _NO_STEPS)
    steps = memoryview(b"".join(signs.split(b'"')[::2])).cast("b")
    return max(accumulate(steps), default=0) > limit


def is_crowd(raw: Json) -> bool:
    """Whether a valid JSON text holds so many values that to take it apart would take long.

    Each pass over it is one of those that stop everything else for as long as they take: there are few, and
    nothing is made of the values themselves.
    """
    if len(raw) < CROWD:
        return False
    view = memoryview(raw)
    slices = (view[at : at + _COUNTED_SLICE] for at in range(0, len(view), _COUNTED_SLICE))
    if sum(bytes(some).count(b",") for some in slices) < CROWD:  # no picture is copied for it
        return False
    plain = bytes(raw).replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 2 * CROWD:
        return True
    return b"".join(plain.split(b'"')[::2]).count(b",") >= CROWD


def mended(text: bytes, by: bytes = b"\xef\xbf\xbd") -> bytes:
    """Return the text with U+FFFD, or `by`, for each lone surrogate escape, and everything else as it was.

    JavaScript writes those when it cuts a string inside an emoji. They have no UTF-8 form, so most parsers
    refuse the whole message, this one's decoder among them.
    """
    if b"\x00" in text:  # no JSON anyway, and the stand-in for an escaped backslash here
        return text
    return _LONE_SURROGATE.sub(by, text.replace(rb"\\", b"\0\0")).replace(b"\0\0", rb"\\")


def items(raw: Json) -> list[msgspec.Raw]:
    """Return the elements of a JSON array; raises Malformed when it is none."""
    try:
        return _items.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(_reason(error)) from None


def value(raw: Json) -> Any:
    """Return a JSON text decoded; raises Malformed."""
    try:
        return _any.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(_reason(error)) from None


def text_of(raw: Json | None) -> str | None:
    """Return the string a raw value holds, or None when it is absent or anything else; raises Malformed."""
    if raw is None:
        return None
    try:
        return _string.decode(raw)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError as error:
        raise Malformed(_reason(error)) from None


def text_or_none(raw: Json | None) -> str | None:
    """Return the string a raw value holds, or None, also for an escape or a number without meaning."""
    try:
        return text_of(raw)
    except Malformed:
        return None


def is_object(raw: Json | None) -> bool:
    """Whether a value is there and begins like an object."""
    return raw is not None and bytes(memoryview(raw)[:1]) == b"{"


def encode(data: object) -> bytes:
    """Return plain data as JSON text; Raw values inside are spliced as they are."""
    return msgspec.json.encode(data)


def canonical(raw: Json) -> bytes:
    """Return one spelling for equal values, to compare and to hash: members sorted, no whitespace.

    Raises Malformed when the text is no JSON, or holds a number or a nesting that cannot be decoded.
    """
    try:
        return msgspec.json.encode(value(raw), order="deterministic")
    except RecursionError as error:
        raise Malformed(_reason(error)) from None


def join(members: Iterable[tuple[str, Json]] | Members) -> bytes:
    """Return the JSON object of these members, each value spliced as it is."""
    pairs = members.items() if isinstance(members, Mapping) else members
    parts: list[Json] = [b"{"]
    for key, raw in pairs:
        parts.append(member_start(key))
        parts.append(raw)
    if len(parts) == 1:
        return b"{}"
    parts[1] = bytes(parts[1])[1:]
    parts.append(b"}")
    return b"".join(parts)


def member_start(key: str) -> bytes:
    """Return what stands before a member's value: a comma, which the first one has to lose, and the name."""
    return _short_start(key) if len(key) <= 64 else _start(key)


def array(elements: Iterable[Json]) -> bytes:
    """Return the JSON array of these elements, each spliced as it is."""
    return b"[" + b",".join(elements) + b"]"


def is_null(raw: Json | None) -> bool:
    """Whether a member is absent or null, which mean the same at optional protocol fields (E-26)."""
    return raw is None or (len(raw) == 4 and bytes(raw) == b"null")


def result_pieces(id: Json, *result: Json) -> tuple[Json, ...]:
    """Return the response that answers `id` with this result, in pieces as the result may be."""
    return (b'{"jsonrpc":"2.0","id":', id, b',"result":', *result, b"}")


def error_message(id: Json | None, error: McpError) -> bytes:
    """Return the response that answers `id` with an error; an unreadable id is left out (E-06)."""
    body: list[tuple[str, Json]] = [("code", encode(error.code)), ("message", encode(error.message))]
    if error.data is not None:
        body.append(("data", error.data))
    head: list[tuple[str, Json]] = [("jsonrpc", b'"2.0"')]
    if id is not None:
        head.append(("id", id))
    return join([*head, ("error", join(body))])


def notification_message(method: str, params: Members) -> bytes:
    """Return a notification."""
    return join([("jsonrpc", b'"2.0"'), ("method", encode(method)), ("params", join(params))])


class Incoming(msgspec.Struct, frozen=True):
    """One message read from an upstream: a response, or a notification or request (`method` set)."""

    id: msgspec.Raw | None
    method: str | None = None
    params: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    error: McpError | None = None


def read_incoming(message: bytes) -> Incoming:
    """Return an upstream's message taken apart; raises Malformed when it is no JSON-RPC 2.0 message.

    Lone surrogate escapes become U+FFFD.
    """
    try:
        members = split(message)
    except Malformed:
        whole = mended(message)
        if whole == message:
            raise
        members = split(whole)
    if not is_utf8(message):
        raise Malformed("the message is not UTF-8")
    id = members.get("id")
    if "method" in members:
        method = text_of(members["method"])
        if method is None:
            raise Malformed("method is not a string")
        return Incoming(id, method=method, params=members.get("params"))
    if not is_null(members.get("error")):
        return Incoming(None if is_null(id) else id, error=read_error(members["error"]))
    if "result" not in members:
        raise Malformed("the message has no method, no result and no error")
    return Incoming(id, result=members["result"])


def read_error(raw: Json) -> McpError:
    """Return an error object read; raises Malformed when it has no code."""
    error = split(raw)
    code = value(error["code"]) if "code" in error else None
    if isinstance(code, float) and code.is_integer():
        code = int(code)
    if not isinstance(code, int) or isinstance(code, bool):
        raise Malformed("error.code is not an integer")
    data = error.get("data")
    return McpError(code, text_of(error.get("message")) or "", data)


def _start(key: str) -> bytes:
    return b",%s:" % msgspec.json.encode(key)


_short_start = lru_cache(maxsize=4096)(_start)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the JSON nests too deep"
    return str(error)
