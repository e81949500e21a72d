"""Reads requests of revision 2026-07-28: `accept` takes one up the ladder of checks, first failure answers.

It is on the way of every request, so a body is cut into members once per level and nothing below them is
decoded. The notation of mirrored headers stands in protocol/mirror.py and is offered here too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper, lru_cache
from itertools import chain
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from gateway.protocol.call import (
    HOP_META,
    LEGACY_VERSIONS,
    LOG_LEVELS,
    META_CAPABILITIES,
    META_CLIENT_INFO,
    META_LOG_LEVEL,
    META_PROGRESS_TOKEN,
    META_VERSION,
    MODERN_VERSION,
    SERVED_VERSIONS,
    Call,
    Era,
    RequestMeta,
)
from gateway.protocol.envelope import (
    altered,
    brief,
    is_id,
    method_of,
    object_of,
    read_id,
    read_object,
    repeated,
)
from gateway.protocol.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    DuplicateKey,
    Json,
    Malformed,
    McpError,
    is_null,
    is_object,
    mended,
    nests_deeper,
    split,
    text_of,
    text_or_none,
)
from gateway.protocol.methods import METHODS
from gateway.protocol.mirror import (
    InvalidAnnotation,
    check_param_headers,
    decode_value,
    encode_value,
    header_params,
    is_field_value,
    mirrored,
)

__all__ = [
    "LEGACY_VERSIONS",
    "SESSION",
    "Head",
    "InvalidAnnotation",
    "PostedNotification",
    "Rejection",
    "accept",
    "accept_body",
    "accept_headers",
    "check_param_headers",
    "decode_value",
    "encode_value",
    "era_of",
    "header_params",
    "mirrored",
    "read_head",
    "status_of",
    "takes_events",
]

_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
}

_PARAMS = frozenset(
    {
        "_meta",
        "argument",
        "arguments",
        "context",
        "cursor",
        "inputResponses",
        "name",
        "notifications",
        "ref",
        "requestState",
        "taskId",
        "uri",
    }
)
"""Members that a request's params are known to have."""

_FOLDED_PARAMS = frozenset(name.casefold() for name in _PARAMS)
_FOLDED_META = frozenset(name.casefold() for name in HOP_META)


def _nothing_passes(method: str) -> bool:
    return False


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_NO_LINES: Mapping[str, tuple[str, ...]] = MappingProxyType({})
_NO_PARAMS: Mapping[str, Json] = MappingProxyType({})
_MEMORABLE = 256
"""The longest header value that is judged once and remembered."""
_LEGACY = frozenset(LEGACY_VERSIONS)
_LOOKED_AT = frozenset(
    {b"accept", b"content-encoding", b"content-type", b"host", b"origin", b"x-forwarded-host"}
)
"""Headers that a request is judged by, here or at the door, besides Mcp-* and its credential."""
_MEMORABLE_HEAD = 1024
_MEMORABLE_META = 2048
_REMEMBERED = 512


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a request goes no further; without an error the answer is plain HTTP. `id` is raw JSON."""

    status: int
    error: McpError | None
    id: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PostedNotification:
    """A notification, to which 202 is the whole answer (S-20)."""

    method: str


Lines: TypeAlias = Mapping[str, tuple[str, ...]]
"""The Mcp-* lines of a request: the name in lower case behind the dash -> its values, one per line."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """What a request's header lines come to; lines that are alike where anybody looks are one object."""

    unfit: Rejection | None
    """Why the body need not be read (step 4)."""
    lines: Lines
    garbled: str | None
    """Why a mirrored header could be read in two ways (step 9, S-13)."""
    params: Lines
    modern: bool = False
    """Whether the version that is stated is none of the handshake's, which settles the era (S-02)."""

    @property
    def common(self) -> bool:
        """Whether the same lines may come again and again: none mirrors an argument or names a session."""
        return not self.params and SESSION not in self.lines


SESSION = "session-id"
"""The line that names a session of an older revision."""


def status_of(code: int) -> int:
    """Return the HTTP status of an error to a modern client; 200 for what is not the client's fault."""
    return _STATUS.get(code, 200)


def read_head(raw_headers: Sequence[tuple[bytes, bytes]]) -> Head:
    """Return what the header lines come to; a client repeats the same few for ever, so that is remembered.

    Neither credentials nor mirrored arguments are.
    """
    picked = tuple([pair for pair in raw_headers if _looked_at[pair[0]]])
    known = _heads.get(picked)
    if known is not None:
        return known
    head = _judged(picked)
    if head.common and sum(map(len, chain.from_iterable(picked))) <= _MEMORABLE_HEAD:
        _remember(_heads, picked, head)
    return head


def era_of(head: Head, body: bytes) -> Era:
    """Return in which era a posted body is to be read (S-02); what cannot be read is its session's to judge.

    The version that every modern client states settles it at once.
    """
    if head.modern:
        return "modern"
    try:
        return _era_within(body)
    except Malformed:
        with suppress(Malformed):
            return _era_within(mended(body))
    return "legacy" if SESSION in head.lines else "modern"


def _era_within(body: bytes) -> Era:
    """Return the era that a message states itself; raises Malformed, for what is wrong inside as well."""
    members = split(body)
    if text_or_none(members.get("method")) == "server/discover":
        return "modern"
    return "modern" if META_VERSION in _inner(_inner(members, "params"), "_meta") else "legacy"


def _inner(members: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    raw = members.get(key)
    return split(raw) if raw is not None and is_object(raw) else _NO_PARAMS


def accept_headers(raw_headers: Sequence[tuple[bytes, bytes]]) -> Rejection | None:
    """Return why the body need not be read: its type, or what the client will not take (S-06 step 4)."""
    return read_head(raw_headers).unfit


def accept(
    raw_headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    *,
    depth: int = 200,
    passes: Callable[[str], bool] = _nothing_passes,
    strict_tasks: bool = False,
) -> Call | PostedNotification | Rejection:
    """Take a posted request through the ladder behind `accept_headers`; never raises."""
    return accept_body(read_head(raw_headers), body, depth=depth, passes=passes, strict_tasks=strict_tasks)


def accept_body(
    head: Head,
    body: bytes,
    *,
    depth: int = 200,
    passes: Callable[[str], bool] = _nothing_passes,
    strict_tasks: bool = False,
) -> Call | PostedNotification | Rejection:
    """Take a posted body through S-06, steps 6 to 15 as far as no schema is needed; never raises.

    `passes` says of a method that is not known here whether somebody else may serve it (K-08), `strict_tasks`
    whether requests about tasks must have the Mcp-Name header (A-10). What `era_of` calls legacy has no place
    here.
    """
    sent = body
    try:
        body, members = read_object(body)
    except DuplicateKey as error:
        told, id = repeated(error)
        return Rejection(400, told, id)
    except McpError as error:
        return Rejection(status_of(error.code), error)
    id = read_id(members)
    try:
        if body is not sent and altered(sent, body, "params", "_meta", META_PROGRESS_TOKEN):
            raise McpError(INVALID_PARAMS, f"params._meta.{META_PROGRESS_TOKEN} holds half a character")
        if nests_deeper(body, depth):
            raise McpError(INVALID_REQUEST, f"The body nests more than {depth} levels deep")
        method = method_of(members, id)
        if id is None:
            return _notification(method, members, head.lines)
        return _call(id, method, members, head, passes, strict_tasks)
    except McpError as error:
        return Rejection(status_of(error.code), error, id)
    except Malformed as error:  # only where `depth` allows more levels than the decoder can take
        return Rejection(400, McpError(INVALID_REQUEST, f"The body cannot be read: {error}"), id)


# The ladder of accept, rung by rung


def _notification(method: str, members: Mapping[str, Json], lines: Lines) -> PostedNotification:
    for version in lines.get("protocol-version", ()):
        if version != MODERN_VERSION:
            raise _unsupported(version)
    params = members.get("params")
    if not is_null(params):
        object_of(params, "params")
    return PostedNotification(method)


def _call(
    id: bytes,
    method: str,
    members: Mapping[str, Json],
    head: Head,
    passes: Callable[[str], bool],
    strict_tasks: bool,
) -> Call:
    if head.garbled is not None:
        raise McpError(HEADER_MISMATCH, head.garbled)
    raw_params = members.get("params")
    text = b"" if raw_params is None or len(raw_params) > _MEMORABLE_META else bytes(raw_params)
    bare = _bare.get((head, method, text))
    if bare is not None:
        return Call(id, method, _NO_PARAMS, bare, head.params)
    params = {} if is_null(raw_params) else object_of(raw_params, "params")
    raw_meta = params.pop("_meta", None)
    meta = None if raw_meta is None or len(raw_meta) > _MEMORABLE_META else _metas.get(bytes(raw_meta))
    if meta is not None:
        _check_agreement(method, meta.version, params, head.lines)
    else:
        meta = _read_meta(method, params, raw_meta, head.lines)
    row = METHODS.get(method)
    if row is None and passes(method):
        return Call(id, method, passed(params), meta, name_header=_name_header(head.lines))
    if strict_tasks and row is not None and row.kind == "task":
        _single(head.lines, "name")
    check_params(method, params)
    drop_look_alikes(params)
    if text and not params and _says_nothing_else(meta):
        _remember(_bare, (head, method, text), meta)
    return Call(id, method, params, meta, head.params)


_metas: dict[bytes, RequestMeta] = {}
"""What `_meta` came to: most clients write the same one in every request. Only accepted ones are here, and
none that says more than who the client is."""
_bare: dict[tuple[Head, str, bytes], RequestMeta] = {}
"""Accepted requests whose params are that `_meta` and nothing else: what clients list with."""


def _says_nothing_else(meta: RequestMeta) -> bool:
    return not meta.vendor and meta.progress_token is None


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value


def _read_meta(method: str, params: Mapping[str, Json], raw: Json | None, lines: Lines) -> RequestMeta:
    """Return `_meta` read, when it and the headers that mirror it are in order (steps 10 to 13)."""
    meta = {} if is_null(raw) else object_of(raw, "params._meta")
    _check_presence(method, params, meta, lines)
    version = text_of(meta[META_VERSION])
    if version is None:
        raise McpError(INVALID_PARAMS, f"params._meta[{META_VERSION!r}] is not a string")
    _check_agreement(method, version, params, lines)
    if version != MODERN_VERSION:
        raise _unsupported(version)
    read = _request_meta(version, meta)
    if raw is not None and len(raw) <= _MEMORABLE_META and _says_nothing_else(read):
        _remember(_metas, bytes(raw), read)
    return read


def _check_presence(method: str, params: Mapping[str, Json], meta: Mapping[str, Json], lines: Lines) -> None:
    """Refuse a request whose `_meta` lacks what is required (step 10), or that belongs to another era.

    Without a version in `_meta` the header alone can say what the client speaks; if that is nothing we
    serve, the list of versions is the only useful answer (S-08).
    """
    if META_VERSION in meta and META_CAPABILITIES in meta:
        return
    missing = [key for key in (META_VERSION, META_CAPABILITIES) if key not in meta]
    if missing[0] == META_VERSION:
        stated = lines.get("protocol-version", (None,))[0]
        if stated is not None and stated not in SERVED_VERSIONS:
            raise _unsupported(stated)
    raise McpError(INVALID_PARAMS, f"params._meta lacks {' and '.join(map(repr, missing))}")


def _check_agreement(method: str, version: str, params: Mapping[str, Json], lines: Lines) -> None:
    """Refuse a request whose headers say anything but its body does (step 11, S-11).

    Of those about tasks only the extension asks for Mcp-Name, and some clients leave it out (T-05).
    """
    if _single(lines, "protocol-version") != version:
        raise _mismatch("protocol-version", f"params._meta[{META_VERSION!r}]")
    if _single(lines, "method") != method:
        raise _mismatch("method", "method")
    row = METHODS.get(method)
    if row is None or row.named_by is None or (row.kind == "task" and "name" not in lines):
        return
    try:
        name = decode_value(_single(lines, "name"))
    except ValueError as error:
        raise McpError(HEADER_MISMATCH, f"The Mcp-Name header {error}") from None
    named = text_of(params.get(row.named_by))
    if named is not None and name != named:
        raise _mismatch("name", f"params.{row.named_by}")


def _single(lines: Lines, header: str) -> str:
    values = lines.get(header)
    if values is None:
        raise McpError(HEADER_MISMATCH, f"The {_header(header)} header is missing")
    return values[0]


def _mismatch(header: str, member: str) -> McpError:
    return McpError(HEADER_MISMATCH, f"The {_header(header)} header differs from {member} in the body")


def _unsupported(requested: str) -> McpError:
    """Return the answer to a version that is not served (step 12).

    A modern envelope that declares a legacy version is offered the modern ones only: it would try the
    same again with any other (S-09).
    """
    supported = [MODERN_VERSION] if requested in LEGACY_VERSIONS else list(SERVED_VERSIONS)
    message = f"Unsupported protocol version; supported: {', '.join(supported)}"
    data = {"supported": supported, "requested": brief(requested)}
    return McpError.with_data(UNSUPPORTED_PROTOCOL_VERSION, message, data)


def _request_meta(version: str, meta: Mapping[str, Json]) -> RequestMeta:
    """Return `_meta` read (step 13); a null stands for an absent optional member (E-26)."""
    capabilities = meta[META_CAPABILITIES]
    if not is_object(capabilities):
        raise McpError(INVALID_PARAMS, f"params._meta[{META_CAPABILITIES!r}] is not an object")
    client_info = meta.get(META_CLIENT_INFO)
    if client_info is not None and not (is_object(client_info) or is_null(client_info)):
        raise McpError(INVALID_PARAMS, f"params._meta[{META_CLIENT_INFO!r}] is not an object")
    return RequestMeta(
        version, bytes(capabilities), _log_level(meta), progress_token(meta), vendor_meta(meta)
    )


def vendor_meta(meta: Mapping[str, Json]) -> dict[str, Json]:
    """Return the members of a request's `_meta` that no hop owns (E-24)."""
    return {
        key: raw for key, raw in meta.items() if key not in HOP_META and key.casefold() not in _FOLDED_META
    }


def _log_level(meta: Mapping[str, Json]) -> str | None:
    raw = meta.get(META_LOG_LEVEL)
    if raw is None or is_null(raw):
        return None
    level = text_of(raw)
    if level not in LOG_LEVELS:
        raise McpError(
            INVALID_PARAMS, f"params._meta[{META_LOG_LEVEL!r}] is not one of {', '.join(LOG_LEVELS)}"
        )
    return level


def progress_token(meta: Mapping[str, Json]) -> Json | None:
    """Return the token that progress is asked for with; raises McpError for one that is none (E-33)."""
    token = meta.get(META_PROGRESS_TOKEN)
    if token is None or is_null(token):
        return None
    if not is_id(token):
        raise McpError(
            INVALID_PARAMS, f"params._meta.{META_PROGRESS_TOKEN} is neither a string nor an integer"
        )
    return token


def check_params(method: str, params: dict[str, Json]) -> None:
    """Refuse a method that is not served, and params that cannot even be routed (steps 14, 15)."""
    row = METHODS.get(method)
    if row is None:
        hint = f"; this server speaks {', '.join(SERVED_VERSIONS)}" if method == "initialize" else ""
        raise McpError(METHOD_NOT_FOUND, f"Method not found: {brief(method)}{hint}")
    if row.named_by is not None and text_of(params.get(row.named_by)) is None:
        wrong = "is missing" if row.named_by not in params else "is not a string"
        raise McpError(INVALID_PARAMS, f"params.{row.named_by} {wrong}")
    if row.kind == "named":
        arguments = params.get("arguments")
        if arguments is not None and not is_object(arguments):
            if not is_null(arguments):
                raise McpError(INVALID_PARAMS, "params.arguments is not an object")
            del params["arguments"]  # as good as absent (E-26), and strict peers refuse it (E-28)


def drop_look_alikes(params: dict[str, Json]) -> None:
    """Drop members that a reader who ignores case, as Go's does, would take for known ones."""
    if params.keys() <= _PARAMS:
        return
    for name in [name for name in params if name not in _PARAMS and name.casefold() in _FOLDED_PARAMS]:
        del params[name]


def passed(params: dict[str, Json]) -> dict[str, Json]:
    """Return the params of a method that is not known here: all of them but what may be taken for ours."""
    return {name: raw for name, raw in params.items() if name.casefold() != "_meta"}


def _name_header(lines: Lines) -> str | None:
    try:
        return decode_value(lines["name"][0]) if "name" in lines else None
    except ValueError:
        return None


def _header(name: str) -> str:
    return "MCP-Protocol-Version" if name == "protocol-version" else f"Mcp-{name.title()}"


# Header lines


class _LookedAt(dict[bytes, bool]):
    """Whether a header of this name, in any case, is looked at here or at the door."""

    def __missing__(self, name: bytes) -> bool:
        lower = name.lower()
        looked_at = lower.startswith(b"mcp-") or lower in _LOOKED_AT
        if len(name) <= _MEMORABLE:
            _remember(self, name, looked_at)
        return looked_at


_looked_at = _LookedAt()
_heads: dict[tuple[tuple[bytes, bytes], ...], Head] = {}


def _judged(raw_headers: tuple[tuple[bytes, bytes], ...]) -> Head:
    posted: list[bytes] = []
    wanted: list[bytes] = []
    lines: dict[str, tuple[str, ...]] = {}
    for name, line in raw_headers:
        match name.lower():
            case b"content-type":
                posted.append(line)
            case b"accept":
                wanted.append(line)
            case mcp if mcp.startswith(b"mcp-"):
                key = mcp[4:].decode("latin-1").lower()
                lines[key] = (*lines.get(key, ()), line.decode("latin-1").strip(" \t"))
    params = {key[6:]: values for key, values in lines.items() if key.startswith("param-")}
    modern = not _LEGACY.issuperset(lines.get("protocol-version", ()))
    return Head(_unfit(posted, wanted), MappingProxyType(lines), _garbled(lines), params or _NO_LINES, modern)


def _unfit(posted: Sequence[bytes], wanted: Sequence[bytes]) -> Rejection | None:
    if len(posted) != 1 or not _remembered(_posts_json, posted[0]):
        return Rejection(415, None, headers={"Accept-Post": "application/json"})
    if wanted and not _remembered(_takes_both, b",".join(wanted)):
        return Rejection(406, None)
    return None


def _garbled(lines: Lines) -> str | None:
    """Return which header two readers could read differently (step 9, S-13)."""
    for header in ("protocol-version", "method", "name"):
        values = lines.get(header, ())
        if len(values) > 1:
            return f"There is more than one {_header(header)} header"
        if values and not is_field_value(values[0]):
            return f"The {_header(header)} header holds characters outside printable ASCII"
    return None


@lru_cache(maxsize=64)
def _posts_json(line: bytes) -> bool:
    return line.partition(b";")[0].strip(b" \t").lower() == b"application/json"


@lru_cache(maxsize=256)
def _takes_both(line: bytes) -> bool:
    """Whether Accept admits JSON and an event stream (S-15); of the ranges that fit, the closest decides."""
    ranges = dict(filter(None, map(_media_range, line.decode("latin-1").lower().split(","))))
    return not ranges or all(_admits(ranges, kind) for kind in ("application/json", "text/event-stream"))


def takes_events(lines: Sequence[str]) -> bool:
    """Whether these lines of Accept let an event stream in, as a GET needs it (X-24)."""
    ranges = dict(filter(None, map(_media_range, ",".join(lines).lower().split(","))))
    return not ranges or _admits(ranges, "text/event-stream")


def _admits(ranges: Mapping[str, bool], kind: str) -> bool:
    return ranges.get(kind, ranges.get(f"{kind.partition('/')[0]}/*", ranges.get("*/*", False)))


def _media_range(text: str) -> tuple[str, bool] | None:
    """Return one range of Accept, and whether its weight lets it in."""
    kind, *parameters = [part.strip(" \t") for part in text.split(";")]
    refused = any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return (kind, not refused) if kind else None


def _remembered(judge: "_lru_cache_wrapper[bool]", line: bytes) -> bool:
    """Return the judgement of a header value; clients repeat a few short ones for ever."""
    return judge(line) if len(line) <= _MEMORABLE else judge.__wrapped__(line)
