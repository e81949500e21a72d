"""Reads what a client of an older revision says, and answers its handshake; requests become Calls. Pure.

`DIALECTS` is the table of how the revisions differ. What goes back to such clients is written in
protocol/legacy_answers.py, what they are asked in protocol/legacy_questions.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from msgspec import Struct

from gateway.protocol.call import (
    LOG_LEVELS,
    META_SERVER_INFO,
    MODERN_VERSION,
    Call,
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
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    DuplicateKey,
    Json,
    Malformed,
    McpError,
    encode,
    is_null,
    is_object,
    is_utf8,
    items,
    join,
    mended,
    nests_deeper,
    read_error,
    split,
    text_of,
    text_or_none,
    value,
)
from gateway.protocol.methods import METHODS, UI
from gateway.protocol.modern import check_params, drop_look_alikes, progress_token, vendor_meta

MOST_IN_A_BATCH = 100
"""More messages in one array are refused: all of them would be worked on at once."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What clients of one revision know of what has been added to the protocol since."""

    version: str
    structured: bool = True
    """Structured content of results, and its schema."""
    links: bool = True
    """Links to resources among the content."""
    titles: bool = True
    """Titles, and `_meta` of whatever is listed or said."""
    icons: bool = True
    """Icons, and what an implementation says of itself beyond its name."""
    context: bool = True
    """What has been filled in already when a completion is asked for."""
    modes: frozenset[str] = frozenset({"form", "url"})
    """The ways to ask the user."""
    choices: bool = True
    """Forms that let choose several values, or show titles in their place."""
    sampling_tools: bool = True
    """Tools for the model, and messages of several blocks."""
    batches: bool = False


DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        dialect.version: dialect
        for dialect in (
            Dialect("2025-11-25"),
            Dialect(
                "2025-06-18", icons=False, modes=frozenset({"form"}), choices=False, sampling_tools=False
            ),
            Dialect(
                "2025-03-26",
                structured=False,
                links=False,
                titles=False,
                icons=False,
                context=False,
                modes=frozenset(),
                choices=False,
                sampling_tools=False,
                batches=True,
            ),
        )
    }
)
"""The revisions of the handshake that are served, newest first."""

NEWEST = next(iter(DIALECTS.values()))

_ASKING = frozenset({"list", "named", "read", "complete"})
"""The kinds of methods that are in every revision."""
_LARGEST_EXTENSIONS = 1024
_LONGEST_NAME = 64
_NO_PARAMS: Mapping[str, Json] = MappingProxyType({})
_AS_LONG = b"??????"
"""What may stand for an escape, so that everything keeps its place."""


class Asked(Struct, frozen=True):
    """A request; `params` are as they came, and may be anything."""

    id: bytes
    method: str
    params: Json | None = None


class Noted(Struct, frozen=True):
    """A notification."""

    method: str
    params: Json | None = None


class Answered(Struct, frozen=True):
    """The answer to something that the client was asked: either a result or an error."""

    id: bytes
    result: Json | None = None
    error: McpError | None = None


class Unreadable(Struct, frozen=True):
    """What is no message, and what its sender is told."""

    error: McpError
    id: bytes | None = None


Message: TypeAlias = Asked | Noted | Answered | Unreadable


class Handshake(Struct, frozen=True):
    """What a client and the gateway agreed upon."""

    version: str
    capabilities: bytes = b"{}"
    """What the client can do, as a modern one would declare it with every request."""
    client: str = ""
    """What it calls itself: for people alone (E-23)."""

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.version]


# Reading


def read_messages(body: bytes, dialect: Dialect, depth: int) -> Message | list[Message]:
    """Return what was posted: a message, or those of a batch where the revision has them (X-60)."""
    if body.lstrip()[:1] != b"[" or not dialect.batches:
        return read_message(body, depth)
    try:
        if not is_utf8(body):
            raise Malformed("not UTF-8")
        elements = _elements(body)
    except Malformed:
        return read_message(body, depth)
    if not elements:
        return Unreadable(McpError(INVALID_REQUEST, "The batch is empty"))
    if len(elements) > MOST_IN_A_BATCH:
        return Unreadable(McpError(INVALID_REQUEST, f"A batch holds {MOST_IN_A_BATCH} messages at most"))
    return [_of_a_batch(read_message(element, depth - 1)) for element in elements]


def _elements(body: bytes) -> list[bytes]:
    """Return the messages of a batch, each as it was sent; raises Malformed for what is no array.

    Of one that holds half a character the others are not the worse (X-60), so such halves are mended to find
    where the messages end.
    """
    try:
        return [bytes(element) for element in items(body)]
    except Malformed:
        whole = mended(body, _AS_LONG)
        if whole == body:
            raise
    elements, at = [], 0
    for element in items(whole):
        at = whole.index(element, at)
        elements.append(body[at : at + len(element)])
        at += len(element)
    return elements


def read_message(body: bytes, depth: int) -> Message:
    """Return the one message that a text is."""
    sent = body
    try:
        body, members = read_object(body)
    except DuplicateKey as error:
        return Unreadable(*repeated(error))
    except McpError as error:
        return Unreadable(error)
    id = read_id(members)
    try:
        if body is not sent and altered(sent, body, "params", "_meta", "progressToken"):
            raise McpError(INVALID_PARAMS, "params._meta.progressToken holds half a character")
        if nests_deeper(body, depth):
            raise McpError(INVALID_REQUEST, f"The message nests more than {depth} levels deep")
        if "method" not in members and id is not None and ("result" in members or "error" in members):
            return _answered(id, members)
        method = method_of(members, id)
    except McpError as error:
        return Unreadable(error, id)
    except Malformed as error:
        return Unreadable(McpError(INVALID_REQUEST, f"The message cannot be read: {error}"), id)
    params = members.get("params")
    return Noted(method, params) if id is None else Asked(id, method, params)


def _of_a_batch(message: Message) -> Message:
    if isinstance(message, Asked) and message.method == "initialize":
        return Unreadable(McpError(INVALID_REQUEST, "initialize has no place in a batch"), message.id)
    return message


def _answered(id: bytes, members: Mapping[str, Json]) -> Answered:
    error = members.get("error")
    if not is_null(error) and error is not None:
        return Answered(id, error=read_error(error))
    return Answered(id, members.get("result"))


# The handshake


def handshake(params: Json | None) -> Handshake:
    """Return what comes of the params of `initialize`; raises McpError for those that say no version."""
    members = object_of(params, "params")
    asked = text_of(members.get("protocolVersion"))
    if asked is None:
        raise McpError(INVALID_PARAMS, "params.protocolVersion is missing, or is no string")
    dialect = DIALECTS.get(asked, NEWEST)
    info = members.get("clientInfo")
    name = text_or_none(_object(info).get("name")) or ""
    return Handshake(
        dialect.version, declared(_object(members.get("capabilities")), dialect), name[:_LONGEST_NAME]
    )


def asked_version(params: Json | None) -> str | None:
    """Return the version that `initialize` asks for, None where it asks for none."""
    return text_or_none(_object(params).get("protocolVersion"))


def meta_of(params: Json | None) -> Mapping[str, Json]:
    """Return the `_meta` of a request's params, nothing for what is none."""
    return _object(_object(params).get("_meta"))


def declared(capabilities: Mapping[str, Json], dialect: Dialect) -> bytes:
    """Return what a client said in its handshake that it can do, as a modern one declares it.

    Of the extensions only that of MCP Apps was anything before 2026 (A-34).
    """
    kept: dict[str, Json] = {}
    if is_object(capabilities.get("roots")):
        kept["roots"] = b"{}"
    if is_object(capabilities.get("sampling")):
        tools = dialect.sampling_tools and is_object(_object(capabilities["sampling"]).get("tools"))
        kept["sampling"] = b'{"tools":{}}' if tools else b"{}"
    if is_object(capabilities.get("elicitation")) and dialect.modes:
        said = _object(capabilities["elicitation"])
        modes = sorted(mode for mode in dialect.modes if is_object(said.get(mode))) or ["form"]
        if dialect.modes == {"form"}:
            modes = ["form"]
        kept["elicitation"] = encode({mode: {} for mode in modes})
    ui = _object(capabilities.get("extensions")).get(UI)
    if ui is not None and is_object(ui):
        kept["extensions"] = join({UI: ui if len(ui) <= _LARGEST_EXTENSIONS else b"{}"})
    return join(kept)


def initialized(discovered: Json, held: Handshake) -> bytes:
    """Return the result of `initialize`, made of that of `server/discover`."""
    said = split(discovered)
    capabilities = dict(_object(said.get("capabilities")))
    extensions = _object(capabilities.pop("extensions", None))
    if UI in extensions:
        capabilities["extensions"] = join({UI: extensions[UI]})
    capabilities.pop("tasks", None)
    result: dict[str, Json] = {
        "protocolVersion": encode(held.version),
        "capabilities": join(capabilities),
        "serverInfo": _server_info(_object(said.get("_meta")).get(META_SERVER_INFO), held.dialect),
    }
    if text_of(said.get("instructions")) is not None:
        result["instructions"] = said["instructions"]
    return join(result)


def offers(discovered: Json, capability: str) -> bool:
    """Whether the result of `server/discover` has a capability, and so the handshake's."""
    return capability in _object(split(discovered).get("capabilities"))


def _server_info(info: Json | None, dialect: Dialect) -> bytes:
    said = _object(info)
    unknown = set() if dialect.icons else {"icons", "description", "websiteUrl"}
    if not dialect.titles:
        unknown.add("title")
    return join({key: raw for key, raw in said.items() if key not in unknown})


# Requests


def call_of(asked: Asked, held: Handshake, log_level: str | None, passes: Callable[[str], bool]) -> Call:
    """Return a request as a modern client would have made it; raises McpError.

    `passes` says of a method that is not known here whether somebody else may serve it (K-08). What belongs
    to the rounds of a modern conversation is not the client's to say.
    """
    row = METHODS.get(asked.method)
    if not passes(asked.method) if row is None else row.kind not in _ASKING:
        raise unknown_method(asked.method)
    params = {} if is_null(asked.params) else object_of(asked.params, "params")
    raw = params.pop("_meta", None)
    meta = {} if is_null(raw) else object_of(raw, "params._meta")
    about = RequestMeta(MODERN_VERSION, held.capabilities, log_level, progress_token(meta), vendor_meta(meta))
    if row is None:
        passed = {name: raw for name, raw in params.items() if name.casefold() != "_meta"}
        return Call(asked.id, asked.method, passed, about, None)
    check_params(asked.method, params)
    drop_look_alikes(params)
    for name in ("inputResponses", "requestState"):
        params.pop(name, None)
    if row.kind == "complete" and not held.dialect.context:
        params.pop("context", None)
    return Call(asked.id, asked.method, params, about, None)


def unknown_method(method: str) -> McpError:
    """Return what a client is told of a method that is none here."""
    return McpError(METHOD_NOT_FOUND, f"Method not found: {brief(method)}")


def level_of(params: Json | None) -> str:
    """Return the level that `logging/setLevel` sets; raises McpError for one that is none (S-25)."""
    level = text_of(object_of(params, "params").get("level"))
    if level not in LOG_LEVELS:
        raise McpError(INVALID_PARAMS, f"params.level is not one of {', '.join(LOG_LEVELS)}")
    return level


def uri_of(params: Json | None) -> str:
    """Return the URI that `resources/subscribe` and its counterpart are about; raises McpError."""
    uri = text_of(object_of(params, "params").get("uri"))
    if uri is None:
        raise McpError(INVALID_PARAMS, "params.uri is missing, or is no string")
    return uri


def cancelled_id(params: Json | None) -> bytes | None:
    """Return the id, as it was written, of the request that `notifications/cancelled` names."""
    raw = _object(params).get("requestId")
    return bytes(raw) if raw is not None and is_id(raw) else None


def progress_of(params: Json | None) -> tuple[str, Mapping[str, Json]] | None:
    """Return what is told of progress with the answer to a question, and the question's token.

    None where it names no token of ours, or no progress.
    """
    members = dict(_object(params))
    token = text_or_none(members.pop("progressToken", None))
    members.pop("_meta", None)
    if token is None or amount(members.get("progress")) is None:
        return None
    return token, members


def amount(raw: Json | None) -> float | None:
    """Return a number, None for anything else."""
    try:
        said = None if raw is None else value(raw)
    except Malformed:
        return None
    return said if isinstance(said, int | float) and not isinstance(said, bool) else None


def _object(raw: Json | None) -> Mapping[str, Json]:
    """Return the members of an object, none for anything else."""
    try:
        return split(raw) if raw is not None and is_object(raw) else _NO_PARAMS
    except Malformed:
        return _NO_PARAMS
