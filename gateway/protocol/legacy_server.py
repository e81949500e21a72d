"""How a server of an older revision is spoken to and understood, as if it were a modern one. Pure.

What it is sent has no envelope in `_meta` and is worded by the revision its handshake settled. What it says
leaves here as a modern server would have said it: results with their words of 2026-07-28, the handshake as a
discover result, and its own requests as the `inputRequests` of the call they came up in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Raw, Struct

from gateway.protocol.call import (
    HOP_META,
    LEGACY_VERSIONS,
    META_PROGRESS_TOKEN,
    META_SERVER_INFO,
    Request,
)
from gateway.protocol.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Incoming,
    Json,
    Malformed,
    McpError,
    array,
    canonical,
    encode,
    error_message,
    is_null,
    is_object,
    items,
    join,
    read_incoming,
    split,
    text_of,
    text_or_none,
)
from gateway.protocol.methods import METHODS, UI
from gateway.protocol.mirror import without_invalid

OFFERED = LEGACY_VERSIONS[0]
"""What a handshake asks for; the server may settle for any older one (9.2)."""
NOTHING = b"{}"
"""The capabilities of a client that cannot be asked anything."""

INITIALIZE, INITIALIZED, PING = "initialize", "notifications/initialized", "ping"
SET_LEVEL = "logging/setLevel"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
CANCELLED = "notifications/cancelled"
COMPLETED = "notifications/elicitation/complete"
PROGRESS = "notifications/progress"
ROOTS_CHANGED = "notifications/roots/list_changed"

QUESTIONS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
"""What a server may ask of its client while it works on a call."""

_BATCHING = frozenset({"2025-03-26", "2024-11-05"})
_NO_CONTEXT = frozenset({"2025-03-26", "2024-11-05"})
"""Revisions whose completion/complete has no `context` (9.1)."""
_INPUT = frozenset({"inputResponses", "requestState"})
_NOT_OURS = frozenset({"tasks", "experimental"})
"""Capabilities that mean something else by now, or are between two ends that are not there."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server said of itself in the handshake."""

    version: str
    capabilities: Mapping[str, Json]
    instructions: str | None
    server_info: bytes

    def has(self, capability: str, part: str | None = None) -> bool:
        """Whether it declared a capability, or one part of it."""
        raw = self.capabilities.get(capability)
        if not is_object(raw) or raw is None:
            return False
        return part is None or bytes(split(raw).get(part, b"null")) not in (b"null", b"false")

    @property
    def discovered(self) -> bytes:
        """The discover result of a modern server that has the same to say."""
        members: dict[str, Json] = {
            "resultType": b'"complete"',
            "supportedVersions": encode([self.version]),
            "capabilities": join(self.capabilities),
            "ttlMs": b"0",
            "cacheScope": b'"private"',
            "_meta": join({META_SERVER_INFO: self.server_info}),
        }
        if self.instructions is not None:
            members["instructions"] = encode(self.instructions)
        return join(members)


class Question(Struct, frozen=True):
    """A request of the server's; `id` as it wrote it, `params` as a client is shown them."""

    id: bytes
    method: str
    params: bytes | None
    token: bytes | None = None
    """By which it wants to be told of progress."""
    page: str | None = None
    """What it calls the page it wants opened."""


# What is sent


def request_message(id: int, method: str, params: Mapping[str, Json]) -> bytes:
    """Return a request."""
    return b'{"jsonrpc":"2.0","id":%d,"method":%s,"params":%s}' % (id, encode(method), join(params))


def initialize_params(capabilities: Json, client_info: Json, version: str = OFFERED) -> dict[str, Json]:
    """Return what opens a session."""
    return {
        "protocolVersion": encode(version),
        "capabilities": capabilities,
        "clientInfo": client_info,
    }


def declared(capabilities: Json) -> bytes:
    """Return a client's capabilities as a handshake declares them: one spelling for all that mean the same.

    Never more than the client has; `listChanged` of roots stays out, for nobody could tell (9.2).
    """
    if not is_object(capabilities):
        return NOTHING
    said = {key: raw for key, raw in split(capabilities).items() if is_object(raw)}
    kept: dict[str, object] = {}
    if "elicitation" in said:
        modes = {mode for mode, raw in split(said["elicitation"]).items() if not is_null(raw)}
        modes = modes & {"form", "url"} or {"form"}  # one that names none means form (S-30)
        kept["elicitation"] = {mode: {} for mode in sorted(modes)}
    if "sampling" in said:
        tools = not is_null(split(said["sampling"]).get("tools"))
        kept["sampling"] = {"tools": {}} if tools else {}
    if "roots" in said:
        kept["roots"] = {}
    if "extensions" in said:
        settings = split(said["extensions"]).get(UI)
        if settings is not None and is_object(settings):
            kept["extensions"] = {UI: _settled(settings)}
    return canonical(encode(kept))


def request_params(request: Request, id: int, version: str) -> dict[str, Json]:
    """Return the params of a request as this revision has them; the id is the progress token, too (E-34)."""
    params = {key: raw for key, raw in request.params.items() if key not in _INPUT and key != "_meta"}
    if request.method == "completion/complete" and version in _NO_CONTEXT:
        params.pop("context", None)
    meta: dict[str, Json] = {key: raw for key, raw in request.vendor.items() if key not in HOP_META}
    if request.wants_progress:
        meta[META_PROGRESS_TOKEN] = encode(id)
    if meta:
        params["_meta"] = join(meta)
    return params


def answer_message(id: Json, result: Json) -> bytes:
    """Return what answers a request of the server's."""
    return join([("jsonrpc", b'"2.0"'), ("id", id), ("result", result)])


def refusal_message(id: Json, code: int = METHOD_NOT_FOUND, message: str = "Method not found") -> bytes:
    """Return what refuses a request of the server's."""
    return error_message(id, McpError(code, message))


# What is heard


def read_messages(data: bytes, version: str | None = None) -> list[Incoming]:
    """Return the messages of one text: more than one only in the revisions that have batches (X-60).

    Raises Malformed. Before the handshake is over the revision is None, and nothing is batched.
    """
    if data.lstrip()[:1] != b"[":
        return [read_incoming(data)]
    if version not in _BATCHING:
        raise Malformed("a batch, which this revision does not have")
    messages = [read_incoming(bytes(element)) for element in items(data)]
    if not messages:
        raise Malformed("an empty batch")
    return messages


def read_greeting(result: Json) -> Greeting:
    """Return the result of a handshake read; raises Malformed for a version that nobody here speaks."""
    members = split(result)
    version = text_of(members.get("protocolVersion"))
    if version not in LEGACY_VERSIONS:
        raise Malformed(f"initialize settled on {_brief(version)}")
    raw = members.get("capabilities")
    capabilities: dict[str, Json] = {}
    if raw is not None and is_object(raw):
        # Copied out of the message, which would otherwise live as long as the session.
        capabilities = {
            key: bytes(one) for key, one in split(raw).items() if key not in _NOT_OURS and is_object(one)
        }
    info = members.get("serverInfo")
    return Greeting(
        version,
        capabilities,
        text_or_none(members.get("instructions")),
        bytes(info) if info is not None and is_object(info) else b'{"name":"unknown","version":""}',
    )


def versions_named(data: Json | None) -> tuple[str, ...]:
    """Return the revisions that an error's data says are supported, as far as they are spoken here."""
    try:
        named = split(data or b"{}").get("supported")
        texts = () if named is None or is_null(named) else tuple(map(text_or_none, items(named)))
    except Malformed:
        return ()
    return tuple(version for version in LEGACY_VERSIONS if version in texts)


def worded(method: str, result: Json) -> bytes:
    """Return a result as a modern server would word it (X-02); what it says of its own life is not heard.

    Raises Malformed when it is no object, when a list of tools is none, or when a call was made a task, which
    nobody asked for and would be taken for a tool that says nothing (T-18).
    """
    members: dict[str, Json] = dict(split(result))
    if method == "tools/call" and "content" not in members and is_object(members.get("task")):
        raise Malformed("a task in the place of a result")
    members["resultType"] = b'"complete"'
    known = METHODS.get(method)
    if known is not None and known.cacheable:
        members["ttlMs"], members["cacheScope"] = b"0", b'"private"'  # C-15
    if method == "tools/list" and "tools" in members:
        members["tools"] = array(_tools(items(members["tools"])))
    return join(members)


def refusal(question: Incoming, capabilities: Json) -> McpError | None:
    """Return why a client with these capabilities cannot be asked this, None when it can."""
    method = question.method or ""
    if method not in QUESTIONS:
        return McpError(METHOD_NOT_FOUND, "Method not found")
    there = split(capabilities)
    feature = there.get(method.partition("/")[0])
    if feature is None:
        return McpError(METHOD_NOT_FOUND, f"the client does not offer {method}")
    if method == "elicitation/create":
        mode = "form" if is_null(_params(question).get("mode")) else text_of(_params(question).get("mode"))
        if mode not in split(feature):
            return McpError(INVALID_PARAMS, "the client does not offer this mode of elicitation")
    return None


def read_question(question: Incoming) -> Question:
    """Return a request of the server's as it is shown to a modern client; raises Malformed.

    An elicitation's own id has no place there (M-21), nor what the hop said in `_meta`.
    """
    method, id = question.method or "", question.id
    if id is None or is_null(id):
        raise Malformed("a request without an id")
    params = _params(question)
    page = text_or_none(params.pop("elicitationId", None))
    params.pop("task", None)
    meta = params.pop("_meta", None)
    token: Json | None = None
    if meta is not None and is_object(meta):
        said = split(meta)
        token = said.get(META_PROGRESS_TOKEN)
        kept = {key: raw for key, raw in said.items() if key not in HOP_META}
        if kept:
            params["_meta"] = join(kept)
    return Question(
        bytes(id),
        method,
        None if question.params is None else join(params),
        None if token is None or is_null(token) else bytes(token),
        page,
    )


def elicitations(error: McpError) -> list[Question]:
    """Return the pages that an error -32042 wants visited, as questions (M-21); raises Malformed."""
    asked: list[Question] = []
    for raw in items(split(error.data or b"{}").get("elicitations") or b"[]"):
        members: dict[str, Json] = dict(split(raw))
        page = text_or_none(members.pop("elicitationId", None))
        members["mode"] = b'"url"'
        asked.append(Question(b"null", "elicitation/create", join(members), page=page))
    if not asked:
        raise Malformed("it names no page")
    return asked


def asking(questions: Mapping[str, Question], state: str | None) -> bytes:
    """Return the result by which a modern server would ask all this."""
    requests: dict[str, Json] = {}
    for key, question in questions.items():
        request: dict[str, Json] = {"method": encode(question.method)}
        if question.params is not None:
            request["params"] = question.params
        requests[key] = join(request)
    members: dict[str, Json] = {"resultType": b'"input_required"', "inputRequests": join(requests)}
    if state is not None:
        members["requestState"] = encode(state)
    return join(members)


def offers_pages(capabilities: Json) -> bool:
    """Whether a modern client that declared these opens pages for its user."""
    return b'"url"' in declared(capabilities)


def loudest(levels: Iterable[str | None], order: Sequence[str]) -> str | None:
    """Return the least important level among these, None when there is none."""
    known = [order.index(level) for level in levels if level is not None and level in order]
    return order[min(known)] if known else None


def _params(message: Incoming) -> dict[str, Json]:
    raw = message.params
    return {} if raw is None or is_null(raw) else dict(split(raw))


def _tools(tools: Iterable[Json]) -> Iterable[Json]:
    """Yield each tool that needs no task, with those annotations alone that hold (U-09, T-18)."""
    for raw in tools:
        if b"execution" not in bytes(raw) and b"x-mcp-header" not in bytes(raw):
            yield raw
            continue
        try:
            tool: dict[str, Json] = dict(split(raw))
            execution = tool.pop("execution", b"{}")
            required = (
                is_object(execution) and text_or_none(split(execution).get("taskSupport")) == "required"
            )
            if "inputSchema" in tool:
                tool["inputSchema"] = without_invalid(tool["inputSchema"])
        except Malformed:
            yield raw  # the catalogue says what is wrong with it
            continue
        if not required:
            yield join(tool)


def _settled(settings: Json) -> object:
    """Return the settings of an extension in one spelling: types are a set, whatever their order."""
    try:
        members: dict[str, Json] = dict(split(settings))
        types = members.get("mimeTypes")
        if types is not None and bytes(types).lstrip()[:1] == b"[":
            members["mimeTypes"] = encode(sorted({text_of(one) or "" for one in items(types)}))
        return Raw(canonical(join(members)))
    except Malformed:
        return {}


def _brief(version: str | None) -> str:
    return "no version" if version is None else f"version {version[:20]!r}"
