"""Decides what each message means that arrives in answer to one request. No I/O, and next to no memory."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from gateway.protocol.call import (
    HOP_META,
    LOG_LEVELS,
    META_PROGRESS_TOKEN,
    META_SUBSCRIPTION_ID,
    Notice,
    Reply,
)
from gateway.protocol.jsonrpc import (
    Incoming,
    Json,
    Malformed,
    McpError,
    is_null,
    is_object,
    join,
    split,
    text_of,
    value,
)
from gateway.protocol.methods import METHODS
from gateway.protocol.subscriptions import ACKNOWLEDGED, Wanted, read_acknowledged

_CORE_PREFIXES = (
    "notifications/cancelled",
    "notifications/elicitation/",
    "notifications/initialized",
    "notifications/prompts/",
    "notifications/resources/",
    "notifications/roots/",
    "notifications/subscriptions/",
    "notifications/tasks",
    "notifications/tools/",
)
_CHANGES = frozenset(known.invalidated_by for known in METHODS.values() if known.invalidated_by is not None)
_NAMED_BY = {"notifications/resources/updated": "uri", "notifications/tasks": "taskId"}
"""What a change of one thing must name."""


@dataclass(frozen=True, slots=True)
class Stale:
    """The message says that these answers, or the one about this URI, changed at the upstream."""

    methods: tuple[str, ...]
    uri: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The message reaches nobody: `what` is counted, `why` is logged."""

    what: Literal["progress", "log", "notification", "request"]
    why: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The subscription is open, for these wishes."""

    honoured: Wanted


@dataclass(frozen=True, slots=True)
class Ended:
    """The upstream ended the subscription of its own will; nothing follows."""

    how: Literal["result", "cancelled"]


Meaning: TypeAlias = Reply | McpError | Notice | Stale | Dropped
Heard: TypeAlias = Acknowledged | Notice | Ended | McpError | Dropped


class Conversation:
    """One request and what came back for it."""

    def __init__(self, id: int, *, progress: bool = False, log_level: str | None = None) -> None:
        self._id = id
        self._progress = progress
        self._log_level = log_level
        self._last = float("-inf")

    def meaning(self, message: Incoming) -> Meaning:
        """Return what the message is to this request; raises Malformed when it cannot belong here."""
        if message.method is None:
            return _response(message, self._id)
        params = _params(message)
        if isinstance(params, Dropped):
            return params
        match message.method:
            case "notifications/progress":
                return self._report(params)
            case "notifications/message":
                return self._log(params)
            case method:
                return _other(method, params)

    def _report(self, params: dict[str, Json]) -> Notice | Dropped:
        token = params.pop(META_PROGRESS_TOKEN, None)
        if not self._progress or token is None or not _names(token, self._id):
            return Dropped("progress", "its token is not this request's")
        progress = _decoded(params.get("progress", b"null"))
        if isinstance(progress, bool) or not isinstance(progress, int | float):
            return Dropped("progress", "it holds no number")
        if not progress > self._last:
            return Dropped("progress", "it does not increase")
        self._last = progress
        return Notice("notifications/progress", params)

    def _log(self, params: dict[str, Json]) -> Notice | Dropped:
        level = text_of(params.get("level"))
        if self._log_level is None:
            return Dropped("log", "nobody asked for log messages")
        if level not in LOG_LEVELS or LOG_LEVELS.index(level) < LOG_LEVELS.index(self._log_level):
            return Dropped("log", "it is below the level asked for")
        return Notice("notifications/message", params)


class Subscription:
    """One listen and what came back for it: first the acknowledgement, then the changes (L-16)."""

    def __init__(self, id: int, wanted: Wanted) -> None:
        self._id = id
        self._wanted = wanted
        self._acknowledged = False

    def meaning(self, message: Incoming) -> Heard:
        """Return what the message is to this subscription; raises Malformed when it cannot belong here."""
        if message.method is None:
            answer = _response(message, self._id)
            return answer if isinstance(answer, McpError) else Ended("result")
        params = _params(message)
        if isinstance(params, Dropped):
            return params
        match message.method:
            case "notifications/progress":
                return Dropped("progress", "no call runs on a listen stream (L-22)")
            case "notifications/message":
                return Dropped("log", "log messages never travel on a listen stream (L-22)")
            case "notifications/cancelled":
                return self._cancelled(params)
            case method:
                return self._told(method, params)

    def _cancelled(self, params: dict[str, Json]) -> Ended | Dropped:
        if _names(params.get("requestId", b"null"), self._id):
            return Ended("cancelled")
        return Dropped("notification", "it cancels what was not asked for here (L-27)")

    def _told(self, method: str, params: dict[str, Json]) -> Acknowledged | Notice | Dropped:
        meta = members_of(params.pop("_meta", None))
        # On this transport the stream itself says whose it is, so a missing id costs nothing.
        named = meta.get(META_SUBSCRIPTION_ID)
        if named is not None and not is_null(named) and not _names(named, self._id):
            return Dropped("notification", "it belongs to another subscription")
        if method == ACKNOWLEDGED:
            return self._opened(params)
        if not self._acknowledged:
            return Dropped("notification", "it came before the acknowledgement")
        if method.startswith(_CORE_PREFIXES) and method not in _CHANGES and method not in _NAMED_BY:
            return Dropped("notification", f"it has no place on a listen stream: {method[:80]}")
        naming = _NAMED_BY.get(method)
        if naming is not None and text_of(params.get(naming)) is None:
            return Dropped("notification", f"it names no {naming}")
        # The subscription's id is this hop's own, whoever reads on (L-05).
        kept = {key: raw for key, raw in meta.items() if key not in HOP_META}
        return Notice(method, {**params, "_meta": join(kept)} if kept else params)

    def _opened(self, params: dict[str, Json]) -> Acknowledged | Dropped:
        if self._acknowledged:
            return Dropped("notification", "it was acknowledged before")
        self._acknowledged = True
        return Acknowledged(read_acknowledged(params) & self._wanted)


def _response(message: Incoming, id: int) -> Reply | McpError:
    if message.error is not None:
        # An error without an id belongs to the one request of this POST (U-25).
        if message.id is not None and not _names(message.id, id):
            raise Malformed("the error answers another id")
        return message.error
    if message.id is None or not _names(message.id, id):
        raise Malformed("the result answers another id")
    if message.result is None or not is_object(message.result):
        raise Malformed("the result is no object")
    return Reply(message.result)


def _params(message: Incoming) -> dict[str, Json] | Dropped:
    """Return the params of a notification; a modern server has nothing else to send but answers."""
    if message.id is not None:
        # It has no requests to make (E-02, U-22); answering would be a violation of ours.
        return Dropped("request", f"a request on a response stream: {(message.method or '')[:80]}")
    try:
        return {} if message.params is None else dict(split(message.params))
    except Malformed:
        return Dropped("notification", "its params are no object")


def members_of(raw: Json | None) -> dict[str, Json]:
    """Return the members of an object, none for anything else."""
    try:
        return {} if raw is None else dict(split(raw))
    except Malformed:
        return {}


def number_of(raw: Json | None) -> int | None:
    """Return the id or token of ours that a message names; some servers give it back as a string (B22)."""
    given = None if raw is None else _decoded(raw)
    if isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) < 20:
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _names(raw: Json, id: int) -> bool:
    """Whether an id or token is ours; some servers give it back as a string (B22)."""
    given = _decoded(raw)
    return not isinstance(given, bool) and given in (id, str(id))


def _decoded(raw: Json) -> object:
    try:
        return cast(object, value(raw))
    except Malformed:  # such as 1e999, which no number here can hold
        return None


def _other(method: str, params: dict[str, Json]) -> Notice | Stale | Dropped:
    if method == "notifications/resources/updated":
        uri = text_of(params.get("uri"))
        if uri is None:
            return Dropped("notification", "it names no uri")
        return Stale(("resources/read",), uri)
    stale = tuple(name for name, known in METHODS.items() if known.invalidated_by == method)
    if stale:
        return Stale(stale)
    if method.startswith(_CORE_PREFIXES):
        return Dropped("notification", f"it has no place on a response stream: {method[:80]}")
    return Notice(method, params)  # K-07
