"""Writes results, errors and notifications as a client of an older revision can read them. Pure.

What its revision does not know is left out or becomes text, and everything else stays the bytes it came as
(X-01). Who knows which of it is said by the table of dialects.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gateway.protocol.call import HOP_META, Notice
from gateway.protocol.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LEGACY_RESOURCE_NOT_FOUND,
    LEGACY_URL_ELICITATION_REQUIRED,
    MISSING_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
    Json,
    Malformed,
    McpError,
    Members,
    array,
    encode,
    is_object,
    items,
    join,
    split,
    text_or_none,
)
from gateway.protocol.legacy_client import Dialect

EMPTY = b"{}"
"""An empty result is exactly that: strict peers refuse any key (X-10)."""

_MODERN = frozenset({"resultType", "ttlMs", "cacheScope"})
_LISTS = MappingProxyType(
    {
        "tools/list": "tools",
        "prompts/list": "prompts",
        "resources/list": "resources",
        "resources/templates/list": "resourceTemplates",
    }
)
_BLOCKS = frozenset({"text", "image", "audio", "resource"})
"""The blocks of content that every revision served here knows."""
_ABOUT_RESOURCES = frozenset({"resources/read", "resources/subscribe"})
_NOT_THEIRS = frozenset({HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION})


# Results


def result_of(method: str, result: Json, dialect: Dialect) -> bytes:
    """Return a modern result as the client gets it (X-11, X-12, X-13)."""
    members = split(result)
    changes: dict[str, Json | None] = {key: None for key in _MODERN & members.keys()}
    if "_meta" in members:
        changes["_meta"] = _foreign(members["_meta"])
    listed = _LISTS.get(method)
    if listed is not None:
        changes[listed] = _elements(members.get(listed), lambda raw: _item(listed, raw, dialect))
    match method:
        case "tools/call":
            changes |= _called(members, dialect)
        case "prompts/get":
            changes["messages"] = _elements(members.get("messages"), lambda raw: _message(raw, dialect))
        case "resources/read":
            changes["contents"] = _elements(members.get("contents"), lambda raw: _contents(raw, dialect))
    return bytes(_changed(result, members, changes))


def _item(listed: str, raw: Json, dialect: Dialect) -> Json | None:
    """Return an element of a list, None for one that is not shown."""
    members = split(raw)
    changes: dict[str, Json | None] = _additions(members, dialect)
    if listed == "tools":
        # Tasks are not offered to these clients: a tool that needs one cannot be called (T-18).
        if text_or_none(_object(members.get("execution")).get("taskSupport")) == "required":
            return None
        changes["execution"] = None
        schema = members.get("outputSchema")
        if schema is not None and not (dialect.structured and _describes_object(schema)):
            changes["outputSchema"] = None
    elif listed == "prompts" and not dialect.titles and "arguments" in members:
        changes["arguments"] = _elements(members["arguments"], lambda one: _without(one, "title", "_meta"))
    return _changed(raw, members, changes)


def _called(members: Members, dialect: Dialect) -> dict[str, Json | None]:
    """Return what becomes of the result of a tool; content is made up where only the structured had any."""
    changes: dict[str, Json | None] = {}
    content = members.get("content")
    if content is not None:
        changes["content"] = _elements(content, lambda raw: block_of(raw, dialect))
    structured = members.get("structuredContent")
    if structured is not None and not (dialect.structured and is_object(structured)):
        changes["structuredContent"] = None
        if content is None or not _is_array(content) or not items(content):
            changes["content"] = array([_text(bytes(structured).decode())])
    return changes


def block_of(raw: Json, dialect: Dialect) -> Json:
    """Return a block of content; one of a kind that the client cannot know becomes text."""
    if not is_object(raw):
        return raw
    members = split(raw)
    kind = text_or_none(members.get("type"))
    if kind == "resource_link" and dialect.links:
        return _changed(raw, members, _additions(members, dialect, titles=False))
    if kind not in _BLOCKS:
        text = _link(members) if kind == "resource_link" else bytes(raw).decode()
        annotations = members.get("annotations")
        return _text(text, annotations if annotations is not None and is_object(annotations) else None)
    changes: dict[str, Json | None] = {}
    if not dialect.titles:
        changes["_meta"] = None
        if "resource" in members:
            changes["resource"] = _contents(members["resource"], dialect)
    return _changed(raw, members, changes)


def _message(raw: Json, dialect: Dialect) -> Json:
    if not is_object(raw):
        return raw
    members = split(raw)
    content = members.get("content")
    return raw if content is None else _changed(raw, members, {"content": block_of(content, dialect)})


def _contents(raw: Json, dialect: Dialect) -> Json:
    return raw if dialect.titles else _without(raw, "_meta")


def _additions(members: Members, dialect: Dialect, *, titles: bool = True) -> dict[str, Json | None]:
    """Return which members came with a later revision than the client's."""
    unknown = set() if dialect.icons else {"icons"}
    if titles and not dialect.titles:
        unknown |= {"title", "_meta"}
    return dict.fromkeys(unknown & members.keys())


def _describes_object(schema: Json) -> bool:
    return text_or_none(_object(schema).get("type")) == "object"


def _link(members: Members) -> str:
    """Return in words what a link leads to."""
    uri, name = text_or_none(members.get("uri")) or "", text_or_none(members.get("name")) or ""
    title, description = text_or_none(members.get("title")), text_or_none(members.get("description"))
    line = f"{title or name}: {uri}" if title or name else uri
    return f"{line}\n{description}" if description else line


def _text(text: str, annotations: Json | None = None) -> bytes:
    block: dict[str, Json] = {"type": b'"text"', "text": encode(text)}
    if annotations is not None:
        block["annotations"] = annotations
    return join(block)


# Errors


def error_of(error: McpError, method: str, dialect: Dialect) -> McpError:
    """Return an error as the client's revision knows it."""
    match error.code:
        case code if code == INVALID_PARAMS and method in _ABOUT_RESOURCES and _names_uri(error.data):
            return McpError(LEGACY_RESOURCE_NOT_FOUND, error.message, error.data)
        case code if code == MISSING_CLIENT_CAPABILITY:
            return lacks(_named(_object(_object(error.data).get("requiredCapabilities"))))
        case code if code == LEGACY_URL_ELICITATION_REQUIRED and "url" not in dialect.modes:
            return lacks("elicitation.url")
        case code if code in _NOT_THEIRS:
            return McpError(INTERNAL_ERROR, error.message)
    return error


def lacks(capability: str) -> McpError:
    """Return what is told where a client cannot do what is needed; its revision has no code for it (A-50)."""
    said = f": {capability}" if capability else ""
    return McpError(INTERNAL_ERROR, f"This needs a client capability that was not declared{said}")


def _named(required: Members) -> str:
    """Return capabilities in words, as in `elicitation.url, roots`."""
    names: list[str] = []
    for feature, raw in required.items():
        parts = list(_object(raw))
        names += [f"{feature}.{part}" for part in parts] or [feature]
    return ", ".join(names)


def _names_uri(data: Json | None) -> bool:
    return text_or_none(_object(data).get("uri")) is not None


# Notifications


def completed(id: str) -> bytes:
    """Return the message that tells of a page that it has been dealt with."""
    return written(Notice("notifications/elicitation/complete", {"elicitationId": encode(id)}))


def notice_of(notice: Notice) -> Notice:
    """Return a notification without what only a modern client is told (X-12)."""
    meta = notice.params.get("_meta")
    if meta is None:
        return notice
    foreign = _foreign(meta)
    params = {key: raw for key, raw in notice.params.items() if key != "_meta"}
    return Notice(notice.method, params if foreign is None else {**params, "_meta": foreign})


def told(before: bytes, id: bytes, behind: bytes) -> Notice:
    """Return the notification of a subscription, whose text comes in three pieces, without its id (L-25)."""
    members = split(b"".join((before, id, behind)))
    params = members.get("params")
    method = text_or_none(members.get("method")) or ""
    return notice_of(Notice(method, {} if params is None else split(params)))


def written(notice: Notice) -> bytes:
    """Return a notification as it is sent; one without params has none."""
    members: dict[str, Json] = {"jsonrpc": b'"2.0"', "method": encode(notice.method)}
    if notice.params:
        members["params"] = join(notice.params)
    return join(members)


# Splicing


def _elements(raw: Json | None, change: Callable[[Json], Json | None]) -> Json | None:
    """Return an array with each of its objects changed, the very text where none is."""
    if raw is None or not _is_array(raw):
        return raw
    before = items(raw)
    after = [change(one) if is_object(one) else one for one in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return raw
    return array(one for one in after if one is not None)


def _changed(raw: Json, members: Members, changes: Mapping[str, Json | None]) -> Json:
    """Return an object with some members changed or, by None, left out; the very text where none is."""
    if all(members.get(key) is new for key, new in changes.items()):
        return raw
    after = {**members, **changes}  # what was there keeps its place
    return join((key, new) for key, new in after.items() if new is not None)


def _without(raw: Json, *names: str) -> Json:
    if not is_object(raw):
        return raw
    members = split(raw)
    return _changed(raw, members, dict.fromkeys(members.keys() & set(names)))


def _foreign(meta: Json) -> Json | None:
    """Return the members of `_meta` that no hop owns, None where there are none."""
    members = _object(meta)
    kept = {key: raw for key, raw in members.items() if key not in HOP_META}
    if not kept:
        return None
    return meta if len(kept) == len(members) else join(kept)


def _is_array(raw: Json) -> bool:
    return bytes(memoryview(raw)[:1]) == b"["


def _object(raw: Json | None) -> Members:
    """Return the members of an object, none for anything else."""
    try:
        return split(raw) if raw is not None and is_object(raw) else {}
    except Malformed:
        return {}
