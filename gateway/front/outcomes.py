"""Makes HTTP of whatever a request came to: a result, an error, a challenge, a refusal or a bug."""

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from gateway.front import challenges, mirror
from gateway.front.challenges import Door
from gateway.front.stream import Outcome, failure
from gateway.protocol import jsonrpc, modern
from gateway.protocol.call import Answer, Challenge, Forbidden, Reuse, UpstreamUnavailable
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, McpError
from gateway.protocol.modern import PostedNotification, Rejection
from gateway.support.metrics import OTHER

log = logging.getLogger(__name__)

_WORDS_BY_STATUS = {406: "accept", 413: "body_size", 415: "content_type", 431: "header_size"}
_PLAIN_TEXTS = {
    405: "Method Not Allowed: this is a document to GET",
    406: "Not Acceptable: Accept must admit application/json and text/event-stream",
    408: "Request Timeout: the body did not arrive in time; the setting `limits.request_body` allows more",
    413: "Content Too Large: the setting `limits.message` allows more",
    415: "Unsupported Media Type: post application/json without a content coding",
    431: "Request Header Fields Too Large: the setting `limits.header` allows more",
}
_WORDS_BY_CODE = {
    jsonrpc.PARSE_ERROR: "malformed",
    jsonrpc.INVALID_REQUEST: "envelope",
    jsonrpc.METHOD_NOT_FOUND: "method",
    jsonrpc.INVALID_PARAMS: "params",
    jsonrpc.HEADER_MISMATCH: "header_mismatch",
    jsonrpc.UNSUPPORTED_PROTOCOL_VERSION: "version",
}

_NO_DOOR = Door()

Mirrored: TypeAlias = Callable[[Reuse], bytes]
Came: TypeAlias = Answer | Rejection | PostedNotification | BaseException


class Stopping(Exception):
    """The gateway ends before the answer was there."""

    def __str__(self) -> str:
        return "The gateway is stopping"


def outcome(
    came: Came, *, id: bytes | None = None, door: Door = _NO_DOOR, mirrored: Mirrored | None = None
) -> Outcome:
    """Return what goes out for whatever a request came to; `mirrored` says in headers what the cache did."""
    match came:
        case Answer():
            assert id is not None  # only a call has an answer, and every call an id
            cached = mirror.NO_STORE if mirrored is None or came.reuse is None else mirrored(came.reuse)
            return Outcome(200, jsonrpc.result_pieces(id, *came.result), cached=cached)
        case PostedNotification():
            return Outcome(202, word="notification")
        case Rejection():
            return _rejected(came)
        case McpError():
            return failure(modern.status_of(came.code), came, id, "error")
        case UpstreamUnavailable():
            return failure(200, McpError(INTERNAL_ERROR, str(came)), id, "unavailable")
        case Challenge():
            return challenges.of_upstream(came, id, door)
        case Forbidden():
            return challenges.forbidden(came, id, door)
        case Stopping():
            return failure(200, McpError(INTERNAL_ERROR, str(came)), id, "stopping")
        case _:
            log.error("Internal error", exc_info=came)
            return failure(200, McpError(INTERNAL_ERROR, "Internal error"), id, "bug")


def mirrored_failure(failed: Outcome, error: Exception) -> Outcome:
    """Return the answer with the reason why the cache holds no part of it: an error is never kept (C-03)."""
    down = isinstance(error, UpstreamUnavailable)
    return replace(failed, cached=mirror.lines(Reuse("bypass", "upstream-down" if down else "error")))


def _rejected(rejection: Rejection) -> Outcome:
    error = rejection.error
    if error is None:
        return plain(rejection.status, rejection.headers)
    word = _WORDS_BY_CODE.get(error.code, OTHER)
    return failure(rejection.status, error, rejection.id, word, rejection.headers)


def plain(status: int, headers: Mapping[str, str] | None = None, text: str = "", word: str = "") -> Outcome:
    """Return a refusal in plain text, of what is no JSON-RPC yet."""
    body = text or _PLAIN_TEXTS.get(status, "Refused")
    known = word or _WORDS_BY_STATUS.get(status, OTHER)
    return Outcome(status, (f"{body}\n".encode(),), known, headers or {}, "text/plain; charset=utf-8")


def only(allow: str) -> Outcome:
    """Return what is said to a verb that is none of those."""
    error = McpError(
        INVALID_REQUEST, "Only POST is served here, and to sessions of older clients GET and DELETE"
    )
    return failure(405, error, None, "verb", {"Allow": allow})
