"""Reads the outermost level of what clients post, which is the same in every era. Pure."""

import re
from collections.abc import Mapping, Sequence

from gateway.protocol.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    DuplicateKey,
    Json,
    Malformed,
    McpError,
    encode,
    is_json,
    is_object,
    is_utf8,
    mended,
    split,
    split_strict,
    text_of,
    text_or_none,
)

_QUOTE = ord('"')
_INTEGER = re.compile(rb"-?[0-9]+")


def read_object(body: bytes) -> tuple[bytes, Mapping[str, Json]]:
    """Return a message, mended if it had to be, and the members of the one object it is (S-06, steps 6, 7).

    Raises McpError for what is none, DuplicateKey where it names a member twice.
    """
    if not is_utf8(body):
        raise McpError(PARSE_ERROR, "The body is not UTF-8")
    try:
        return body, split_strict(body)
    except DuplicateKey:
        raise
    except Malformed as error:
        whole = mended(body)
        if whole != body:
            if altered(body, whole, "id"):
                raise McpError(INVALID_REQUEST, "id holds half a character") from None
            return read_object(whole)
        raise _unreadable(body, str(error)) from None


def altered(body: bytes, whole: bytes, *path: str) -> bool:
    """Whether mending the body changed this member, which must go back as it came (E-04, E-33)."""
    return _at(whole, path) != _at(mended(body, b"?"), path)


def _at(raw: Json, path: Sequence[str]) -> bytes | None:
    for name in path:
        try:
            found = split(raw).get(name)
        except Malformed:
            return None
        if found is None:
            return None
        raw = found
    return bytes(raw)


def _unreadable(body: bytes, reason: str) -> McpError:
    if not body.strip():
        return McpError(PARSE_ERROR, "The body is empty")
    try:
        if not is_json(body):
            return McpError(PARSE_ERROR, f"The body is not JSON: {reason}")
    except Malformed as error:
        return McpError(INVALID_REQUEST, f"The body cannot be read: {error}")
    if body.lstrip()[:1] == b"[":
        return McpError(INVALID_REQUEST, "The body is a batch; post each message on its own")
    return McpError(INVALID_REQUEST, "The body is not a JSON object")


def repeated(error: DuplicateKey) -> tuple[McpError, bytes | None]:
    """Return the answer to an envelope that names a member twice, and its id if that is beyond doubt."""
    id = None if "id" in error.names else read_id(error.members)
    return McpError(INVALID_REQUEST, f"The message names {_names(error)} twice"), id


def read_id(members: Mapping[str, Json]) -> bytes | None:
    """Return the id as it was written, None where there is none or it is nothing that can be one (E-03)."""
    raw = members.get("id")
    if raw is None:
        return None
    text = bytes(raw)
    return text if text.isdigit() or is_id(text) else None


def method_of(members: Mapping[str, Json], id: bytes | None) -> str:
    """Return the method of what is one request or one notification (step 7, E-03, E-07)."""
    version = members.get("jsonrpc")
    if version is None or (bytes(version) != b'"2.0"' and text_of(version) != "2.0"):
        raise McpError(INVALID_REQUEST, 'jsonrpc is not "2.0"')
    if "id" in members and id is None:
        raise McpError(INVALID_REQUEST, "id is neither a string nor an integer")
    if "method" not in members:
        if "result" in members or "error" in members:
            raise McpError(INVALID_REQUEST, "The message is a response; the gateway asks clients nothing")
        raise McpError(INVALID_REQUEST, "method is missing")
    method = text_of(members["method"])
    if method is None:
        raise McpError(INVALID_REQUEST, "method is not a string")
    return method


def object_of(raw: Json | None, where: str) -> dict[str, Json]:
    """Return the members of an object of the envelope, none of them named twice."""
    if raw is None or not is_object(raw):
        raise McpError(INVALID_PARAMS, f"{where} is not an object")
    try:
        members: dict[str, Json] = {**split_strict(raw)}
    except DuplicateKey as error:
        raise McpError(INVALID_REQUEST, f"{where} names {_names(error)} twice") from None
    return members


def is_id(raw: Json) -> bool:
    """Whether a value of valid JSON is a string or an integer as JSON writes one, of any size (E-03)."""
    return memoryview(raw)[0] == _QUOTE or _INTEGER.fullmatch(raw) is not None


def same_id(raw: Json) -> bytes:
    """Return one spelling of an id: `"a\\/b"` and `"a/b"` are one id, `"1"` and `1` are two (E-04)."""
    text = bytes(raw)
    if text[:1] == b'"' and b"\\" in text:
        said = text_or_none(text)
        return text if said is None else encode(said)
    return b"0" if text == b"-0" else text


def _names(error: DuplicateKey) -> str:
    return ", ".join(repr(brief(name)) for name in sorted(error.names)[:3])


def brief(text: str) -> str:
    """Return a client's word short enough to be said back to it."""
    return text if len(text) <= 64 else text[:63] + "…"
