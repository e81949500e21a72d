"""Builds what is posted to a modern upstream: one body, and every header anew from that body (U-01, U-02)."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from gateway.protocol.call import (
    HOP_META,
    META_CAPABILITIES,
    META_CLIENT_INFO,
    META_LOG_LEVEL,
    META_PROGRESS_TOKEN,
    META_VERSION,
    HeaderParam,
    Request,
)
from gateway.protocol.jsonrpc import Json, Malformed, encode, join, split, text_of, value
from gateway.protocol.methods import METHODS
from gateway.protocol.modern import encode_value, mirrored


class Outgoing(Struct, frozen=True):
    """One request ready to be posted."""

    id: int
    body: bytes
    headers: Mapping[str, str]


def compose(request: Request, *, id: int, version: str, client_info: bytes) -> Outgoing:
    """Return the message and its protocol headers; raises McpError -32602 for what no header can mirror.

    The id serves as the progress token too: both are ours and unique for this upstream (U-12, E-34).
    """
    params = dict(request.params)
    headers = {**_headers(request.method, version), **request.carried}
    named_by = name_param(request.method) or request.named_by
    name = text_of(params.get(named_by)) if named_by else None
    if name is not None:
        headers["Mcp-Name"] = encode_value(name)
    if request.header_params:
        if "arguments" in params:
            params["arguments"] = with_plain_integers(params["arguments"], request.header_params)
        headers.update(mirrored(request.header_params, params.get("arguments")))
    params["_meta"] = _meta(request, id, version, client_info)
    start = b'{"jsonrpc":"2.0","id":%d,"method":%s,"params":' % (id, encode(request.method))
    return Outgoing(id, b"".join((start, join(params), b"}")), headers)


@lru_cache(maxsize=64)
def _headers(method: str, version: str) -> Mapping[str, str]:
    return {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": encode_value(method),
    }


def name_param(method: str) -> str | None:
    """Return the parameter that Mcp-Name mirrors, None when the method has no name (U-03)."""
    known = METHODS.get(method)
    return known.named_by if known else None


def target(request: Request) -> str:
    """Return what a message calls this request: the method, and the tool's or prompt's name."""
    named_by = name_param(request.method)
    name = text_of(request.params.get(named_by)) if named_by == "name" else None
    return request.method if name is None else f"{request.method} {name}"


def with_plain_integers(arguments: Json, params: Sequence[HeaderParam]) -> Json:
    """Return the arguments with mirrored integers like 42.0 spelled 42.

    Peers compare header and body as strings, so both need one spelling (U-06).
    """
    for param in params:
        if param.type == "integer":
            arguments = _respelled(arguments, param.path)
    return arguments


def _respelled(raw: Json, path: Sequence[str]) -> Json:
    if not path:
        text = bytes(raw)
        if not any(mark in text for mark in b".eE"):
            return raw
        number = value(raw)
        return encode(int(number)) if isinstance(number, float) and number.is_integer() else raw
    try:
        members: dict[str, Json] = dict(split(raw))
    except Malformed:
        return raw
    inner = members.get(path[0])
    if inner is None:
        return raw
    changed = _respelled(inner, path[1:])
    if changed is inner:
        return raw
    return join(members | {path[0]: changed})


def _meta(request: Request, id: int, version: str, client_info: bytes) -> bytes:
    meta: dict[str, Json] = {
        META_VERSION: encode(version),
        META_CLIENT_INFO: client_info,
        META_CAPABILITIES: request.capabilities,
    }
    if request.log_level is not None:
        meta[META_LOG_LEVEL] = encode(request.log_level)
    if request.wants_progress:
        meta[META_PROGRESS_TOKEN] = encode(id)
    if request.vendor:
        meta.update((key, raw) for key, raw in request.vendor.items() if key not in HOP_META)
    return join(meta)
