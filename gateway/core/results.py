"""Rewrites what crosses the gateway: results, errors and notices on the way out, params on the way in.

What the gateway owns is set, URIs are renamed at the places of F-12 and nowhere else (F-13), nulls that
mean "absent" are dropped (E-28); every other value stays the text it came as. An object nothing was done
to is spliced whole, and a 15 MB picture is passed over, never decoded or copied: results are segments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Never, TypeAlias

from gateway.core.capabilities import is_well_formed, undeclared
from gateway.core.shapes import (
    BLOCK,
    CONTENTS,
    MESSAGE,
    Changes,
    InvalidResult,
    Pieces,
    Shape,
    UriSpace,
    is_array,
    object_pieces,
    revised_array,
    revised_members,
    segments_of,
)
from gateway.protocol.call import (
    HOP_META,
    LOG_LEVELS,
    META_PROGRESS_TOKEN,
    META_SERVER_INFO,
    Notice,
    Scope,
)
from gateway.protocol.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY_RESOURCE_NOT_FOUND,
    LEGACY_URL_ELICITATION_REQUIRED,
    MISSING_CLIENT_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    Json,
    Malformed,
    McpError,
    Members,
    array,
    encode,
    is_null,
    is_object,
    items,
    join,
    split,
    text_of,
)
from gateway.protocol.methods import METHODS

_NO_MEMBERS: Mapping[str, Never] = {}


@dataclass(frozen=True, slots=True)
class Dressed:
    """A result ready for any number of clients: all of the object but its hints and the closing brace.

    It holds views of the result it was made from, so it costs little memory beside it and may be memoised
    with it.
    """

    cacheable: bool
    head: tuple[Json, ...]

    def segments(self, ttl_ms: int | None = None, scope: Scope | None = None) -> tuple[Json, ...]:
        """Return the object, with these hints where hints belong (C-02, K-05).

        Without hints a result is stale at once and nobody else's: 0 and private (A-27).
        """
        if not self.cacheable:
            return (*self.head, b"}")
        return (*self.head, b',"ttlMs":%d,"cacheScope":"%s"}' % (ttl_ms or 0, (scope or "private").encode()))


@dataclass(frozen=True, slots=True)
class Asking:
    """A result that asks the client back instead of answering, as its upstream wrote it (M-01)."""

    members: Members


@dataclass(frozen=True, slots=True)
class Promising:
    """A result that promises another, a task, as its upstream wrote it (T-02)."""

    members: Members


@dataclass(frozen=True, slots=True)
class Foreign:
    """A result of a kind that only some extension knows, as its upstream wrote it (K-06)."""

    kind: str
    members: Members

    def dressed(self, method: str, *, server_info: Json) -> Dressed:
        """Return it as it is, but for who answers; what its other members mean is not known."""
        kept = {key: [self.members[key]] for key in ("ttlMs", "cacheScope") if key in self.members}
        changes: dict[str, Pieces | None] = {"resultType": [encode(self.kind)], **kept}
        return replace(made(method, self.members, server_info=server_info, changes=changes), cacheable=False)


Outcome: TypeAlias = Dressed | Asking | Promising | Foreign


def normalise(method: str, result: Json, *, namespace: UriSpace, server_info: Json) -> Outcome:
    """Return an upstream's result rewritten, all but the hints, which differ from hit to hit.

    One that does not answer yet is left to whoever may pass it on. Raises InvalidResult for what no client
    could read or was not asked for.
    """
    try:
        members = split(result)
        match _kind(method, members):
            case "complete":
                pass
            case "input_required":
                return Asking(members)
            case "task":
                return Promising(members)
            case kind:
                return Foreign(kind, members)
        changes = _payload_changes(method, members, namespace)
        return made(method, members, server_info=server_info, changes=changes)
    except InvalidResult:
        raise
    except Malformed as error:
        raise InvalidResult(str(error)) from None


def made(
    method: str,
    members: Members,
    *,
    server_info: Json,
    own_meta: Members = _NO_MEMBERS,
    changes: Changes = _NO_MEMBERS,
) -> Dressed:
    """Return a result of the gateway's own making, or an upstream's with `changes`, ready for clients.

    A change of None leaves the member out; a changed member that was not there is added. `own_meta` is
    what the gateway says in `_meta` itself, past the filter for what upstreams write there (L-10).
    """
    wanted: dict[str, Pieces | None] = {
        "resultType": [b'"complete"'],
        "ttlMs": None,
        "cacheScope": None,
        **changes,
        "_meta": [_result_meta(members.get("_meta"), {**own_meta, META_SERVER_INFO: server_info})],
    }
    row = METHODS.get(method)
    pieces = object_pieces(members, wanted)
    pieces.pop()  # the closing brace: the hints come before it
    return Dressed(row is not None and row.cacheable, segments_of(pieces))


def inlined(result: Json, *, namespace: UriSpace) -> Pieces | None:
    """Return a call's result that stands inside another one, None when it may stay as it is (T-03).

    Nobody but the outer one says who answers. Raises InvalidResult for what no client could read.
    """
    members = split(result)
    if _kind("tools/call", members) != "complete":
        raise InvalidResult("a finished task has a result that is not finished")
    changes = _payload_changes("tools/call", members, namespace) | _without_nulls(members, "resultType")
    if "_meta" in members:
        foreign = _foreign_meta(members["_meta"])
        if not foreign:
            changes["_meta"] = None
        elif len(foreign) < len(split(members["_meta"])):
            changes["_meta"] = [join(foreign)]
    return object_pieces(members, changes) if changes else None


def rewrite_params(method: str, params: Members, target: str) -> dict[str, Json]:
    """Return a client's params as the upstream is sent them; `target` is what it calls the thing asked for.

    What belongs to other methods or eras is dropped: inputs where none can have been asked for (M-07), a
    legacy `task` (T-14). Of protocol fields null means absent (E-28), inside `arguments` it is data (E-27).
    Of a method that is not known here nothing is known to change (K-08).
    """
    row = METHODS.get(method)
    if row is None:
        return dict(params)
    dropped = set() if row.may_ask else {"inputResponses", "requestState"}
    if method == "tools/call":
        dropped.add("task")
    elif method == "tasks/update":
        dropped.remove("inputResponses")
    sent: dict[str, Json] = {
        key: raw
        for key, raw in params.items()
        if key not in dropped and not (key in _OPTIONAL_PARAMS and is_null(raw))
    }
    if row.named_by is not None:
        sent[row.named_by] = _renamed(sent.get(row.named_by), target)
    elif method == "completion/complete":
        kind, _ = completion_target(params)
        ref = split(sent["ref"])
        member = "name" if kind == "ref/prompt" else "uri"
        known = {key: raw for key, raw in ref.items() if not (key == "title" and is_null(raw))}
        sent["ref"] = join({**known, member: _renamed(ref.get(member), target)})
    return sent


def completion_target(params: Members) -> tuple[str, str]:
    """Return what a completion is about: ("ref/prompt", name) or ("ref/resource", URI or template) (F-34)."""
    try:
        ref = split(params["ref"])
        kind = text_of(ref.get("type"))
        target = text_of(ref.get("name" if kind == "ref/prompt" else "uri"))
    except (KeyError, Malformed):
        raise McpError(INVALID_PARAMS, "ref must be an object") from None
    if kind not in ("ref/prompt", "ref/resource") or target is None:
        raise McpError(INVALID_PARAMS, "ref must be a ref/prompt with a name or a ref/resource with a uri")
    return kind, target


def dress_notice(notice: Notice, *, progress_token: Json | None, log_level: str | None) -> Notice | None:
    """Return an upstream's notification as the caller of the running request is sent it, None if it is not.

    Progress goes to a caller that gave a token, under that token (E-33); log messages to one that asked,
    from its level up (S-24). Other core notifications have no place here, unknown ones pass (K-07). Known
    optionals of another type than clients know are left out, null among them (E-28).
    """
    params: dict[str, Json] = {key: raw for key, raw in notice.params.items() if key != "_meta"}
    optional: Mapping[str, bytes] = _NO_MEMBERS
    match notice.method:
        case "notifications/progress":
            if progress_token is None or not _is_number(params.get("progress")):
                return None
            params[META_PROGRESS_TOKEN] = progress_token
            optional = {"total": _NUMBER, "message": _STRING}
        case "notifications/message":
            if "data" not in params or not _loud_enough(params.get("level"), log_level):
                return None
            optional = {"logger": _STRING}
        case method if method in _CORE_NOTIFICATIONS:
            return None
    sent = {
        key: raw for key, raw in params.items() if key not in optional or memoryview(raw)[0] in optional[key]
    }
    meta = _foreign_meta(notice.params.get("_meta"))
    if meta:
        sent["_meta"] = join(meta)
    return Notice(notice.method, sent)


def dress_error(error: McpError, *, namespace: UriSpace, declared: Json) -> McpError:
    """Return an upstream's error as a modern caller that `declared` these capabilities is sent it (F-31).

    What says that the gateway asked wrongly is the gateway's failure, not the caller's.
    """
    data = None if error.data is None else _exposed_data(error.data, namespace)
    match error.code:
        case code if code == LEGACY_RESOURCE_NOT_FOUND:
            return McpError(INVALID_PARAMS, error.message, data)
        case code if code in _OUR_FAULT:
            return _failure(namespace, f"refused the gateway's request ({code})")
        case code if code == MISSING_CLIENT_CAPABILITY:
            return _missing_capability(error.message, data, namespace, declared)
        case code if code == LEGACY_URL_ELICITATION_REQUIRED:
            missing = undeclared(b'{"elicitation":{"url":{}}}', declared)
            if missing is not None:
                return missing_capability(missing)
            return _failure(namespace, "asks for input in the way of an older revision")
        case code if code in _RESERVED:
            original: dict[str, Json] = {"code": encode(code), "message": encode(error.message)}
            if data is not None:
                original["data"] = data
            return _failure(namespace, f"answered with the undefined error {code}", join(original))
        case code:
            return McpError(code, error.message, data)


def missing_capability(missing: Json, message: str = "Missing required client capability") -> McpError:
    """Return what a caller is told whose client cannot do what these capabilities stand for."""
    return McpError(MISSING_CLIENT_CAPABILITY, message, join({"requiredCapabilities": missing}))


_ERROR_DATA = Shape(uris=frozenset({"uri"}))
_COMPLETION = Shape(frozenset({"total", "hasMore"}))

MAX_COMPLETIONS = 100
"""More `values` than these no client has to take (S-33)."""

_OPTIONAL_PARAMS = frozenset({"arguments", "context", "cursor", "inputResponses", "requestState"})
_OUR_FAULT = frozenset({HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION, PARSE_ERROR, INVALID_REQUEST})
_RESERVED = range(-32099, -32019)
"""Codes the specification keeps for itself; those it has not defined never reach a client (E-11)."""

_STRING, _NUMBER = b'"', b"-0123456789"
"""What values of these kinds begin with."""
_CORE_NOTIFICATIONS = frozenset(
    {
        "notifications/cancelled",
        "notifications/elicitation/complete",
        "notifications/initialized",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/roots/list_changed",
        "notifications/subscriptions/acknowledged",
        "notifications/tasks",
        "notifications/tasks/status",
        "notifications/tools/list_changed",
    }
)


def _kind(method: str, members: Members) -> str:
    """Return what kind of result it is; raises for one that is no answer to this method."""
    raw = members.get("resultType")
    kind = "complete" if is_null(raw) else text_of(raw)
    if not kind:
        raise InvalidResult("resultType is not a string that says anything")
    row = METHODS.get(method)
    if kind == "input_required" and (row is None or not row.may_ask):
        raise InvalidResult(f"input_required is no answer to {method}")  # M-01
    if kind == "task" and method != "tools/call":
        raise InvalidResult(f"a task is no answer to {method}")  # T-02
    return kind


def _payload_changes(method: str, members: Members, namespace: UriSpace) -> dict[str, Pieces | None]:
    """Return what becomes of the members that say what the result is about."""
    match method:
        case "tools/call":
            # rmcp leaves an empty content out; structuredContent may be null, isError may not (B12, B13).
            content = members.get("content")
            changes: dict[str, Pieces | None] = {"content": [b"[]"]} if is_null(content) else {}
            if not is_null(content):
                changes = _array_changes("content", members, BLOCK, namespace)
            return changes | _without_nulls(members, "isError")
        case "prompts/get":
            messages = _array_changes("messages", members, MESSAGE, namespace)
            return messages | _without_nulls(members, "description")
        case "resources/read":
            return _array_changes("contents", members, CONTENTS, namespace)
        case "completion/complete":
            return _completion_changes(members.get("completion"), namespace)
    return {}


def _without_nulls(members: Members, key: str) -> dict[str, Pieces | None]:
    return {key: None} if key in members and is_null(members[key]) else {}


def _array_changes(key: str, members: Members, shape: Shape, namespace: UriSpace) -> dict[str, Pieces | None]:
    raw = members.get(key)
    if raw is None or not is_array(raw):
        raise InvalidResult(f"{key} is not an array")  # K-04
    pieces = revised_array(raw, shape, namespace)
    return {} if pieces is None else {key: pieces}


def _completion_changes(raw: Json | None, namespace: UriSpace) -> dict[str, Pieces | None]:
    completion: Members = split(raw) if raw is not None and is_object(raw) else {}
    if not is_array(completion.get("values")):
        raise InvalidResult("completion.values is not an array")
    values = items(completion["values"])
    if len(values) > MAX_COMPLETIONS:
        shown = array(values[:MAX_COMPLETIONS])
        kept = {
            key: raw for key, raw in completion.items() if not (key in _COMPLETION.optional and is_null(raw))
        }
        return {"completion": [join({**kept, "values": shown, "hasMore": b"true"})]}
    pieces = revised_members(completion, _COMPLETION, namespace)
    return {} if pieces is None else {"completion": pieces}


def _result_meta(raw: Json | None, own: Members) -> bytes:
    """Return the result's `_meta`: the upstream's members, and ours: who answers (E-22, E-24, F-29)."""
    foreign = _foreign_meta(raw)
    return join({**foreign, **own}) if foreign else join(own)


def _foreign_meta(raw: Json | None) -> dict[str, Json]:
    """Return the members that no hop owns, nulls among them (E-27); none when `_meta` is no object."""
    if raw is None or not is_object(raw):
        return {}
    return {key: value for key, value in split(raw).items() if key not in HOP_META}


def _exposed_data(data: Json, namespace: UriSpace) -> Json:
    """Return an error's data with its `uri` exposed, the very text when there is none (F-12)."""
    if not is_object(data):
        return data
    try:
        pieces = revised_members(split(data), _ERROR_DATA, namespace)
    except Malformed:
        return data
    return data if pieces is None else b"".join(pieces)


def _missing_capability(message: str, data: Json | None, namespace: UriSpace, declared: Json) -> McpError:
    """Return -32021 when it names something the caller did not declare; else the gateway is what lacks it."""
    named = split(data) if data is not None and is_object(data) else {}
    required = named.get("requiredCapabilities")
    missing = undeclared(required, declared) if required is not None else None
    if required is None or missing is None:
        return _failure(namespace, "needs a client capability that this gateway does not relay")
    if not is_well_formed(required):
        data = join({**named, "requiredCapabilities": missing})
    return McpError(MISSING_CLIENT_CAPABILITY, message, data)


def _failure(namespace: UriSpace, what: str, data: Json | None = None) -> McpError:
    return McpError(INTERNAL_ERROR, f"upstream {namespace.upstream} {what}", data)


def _renamed(raw: Json | None, target: str) -> Json:
    """Return the target as JSON, in the client's spelling where that says the same."""
    return raw if raw is not None and text_of(raw) == target else encode(target)


def _loud_enough(level: Json | None, wanted: str | None) -> bool:
    name = text_of(level)
    if wanted is None or name not in LOG_LEVELS:
        return False
    return LOG_LEVELS.index(name) >= LOG_LEVELS.index(wanted)


def _is_number(raw: Json | None) -> bool:
    return raw is not None and memoryview(raw)[0] in _NUMBER
