"""Decides what each message means that arrives in answer to one request. No I/O; it remembers one number."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from gateway.protocol.call import LOG_LEVELS, META_PROGRESS_TOKEN, Notice, Reply
from gateway.protocol.jsonrpc import Incoming, Json, Malformed, McpError, split, text_of, value
from gateway.protocol.methods import METHODS

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


Meaning: TypeAlias = Reply | McpError | Notice | Stale | Dropped


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
            return self._response(message)
        if message.id is not None:
            # A modern server has no requests to make (E-02, U-22); answering would be a violation of ours.
            return Dropped("request", f"a request on a response stream: {message.method[:80]}")
        try:
            params: dict[str, Json] = {} if message.params is None else dict(split(message.params))
        except Malformed:
            return Dropped("notification", "its params are no object")
        match message.method:
            case "notifications/progress":
                return self._report(params)
            case "notifications/message":
                return self._log(params)
            case method:
                return _other(method, params)

    def _response(self, message: Incoming) -> Reply | McpError:
        if message.error is not None:
            # An error without an id belongs to the one request of this POST (U-25).
            if message.id is not None and not self._is_mine(message.id):
                raise Malformed("the error answers another id")
            return message.error
        if message.id is None or not self._is_mine(message.id):
            raise Malformed("the result answers another id")
        if message.result is None or bytes(memoryview(message.result)[:1]) != b"{":
            raise Malformed("the result is no object")
        return Reply(message.result)

    def _report(self, params: dict[str, Json]) -> Notice | Dropped:
        token = params.pop(META_PROGRESS_TOKEN, None)
        if not self._progress or token is None or not self._is_mine(token):
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

    def _is_mine(self, raw: Json) -> bool:
        """Whether an id or token is ours; some servers give it back as a string (B22)."""
        given = _decoded(raw)
        return not isinstance(given, bool) and given in (self._id, str(self._id))


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
