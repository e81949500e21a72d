"""Carries tasks: an upstream's ids become ids that one caller can use, and nothing of them is kept here.

An exposed id is a sealed token that holds the upstream and its own id. It opens for the caller it was made
for only, on every replica with the same keys, and as long as there are these: a task's end is its upstream's
to say.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gateway.core.capabilities import declares
from gateway.core.dialogue import Dialogue, holder
from gateway.core.federation import Federation
from gateway.core.results import Dressed, Promising, dress_error, inlined, made
from gateway.core.shapes import InvalidResult, Pieces, UriSpace, object_pieces
from gateway.protocol.call import Call, Notice, Principal, UpstreamName
from gateway.protocol.jsonrpc import (
    INVALID_PARAMS,
    Json,
    Malformed,
    McpError,
    Members,
    encode,
    is_null,
    is_object,
    read_error,
    split,
    text_of,
)
from gateway.protocol.methods import TASKS
from gateway.support.seal import Seal, SealBroken

_PURPOSE = "taskId"
_LONGEST = 2048
"""The most bytes in an upstream's own id: sealed, it has to fit into a header line with some room."""

_OPTIONAL = ("error", "inputRequests", "pollIntervalMs", "result", "statusMessage")
_NEVER = ("pollInterval", "requestState", "task", "ttl")
"""What the older revision's tasks had, and a state that nobody would be asked for again (T-03)."""


class Held(NamedTuple):
    """Where a task is, what it is called there, and the tool whose call it is, by its own name."""

    upstream: UpstreamName
    original: str
    tool: str = ""


class Tasks:
    """Knows the tasks of one endpoint by their ids alone."""

    def __init__(self, federation: Federation, dialogue: Dialogue, seal: Seal, *, carried: bool) -> None:
        """`carried` says whether the operator lets the extension through at all."""
        self._federation = federation
        self._dialogue = dialogue
        self._seal = seal
        self._carried = carried

    def __repr__(self) -> str:
        return f"<Tasks {self._federation.endpoint}>"

    def find(self, exposed: str, principal: Principal) -> Held:
        """Return where a task is; raises McpError for ids that are none of this caller's (T-07)."""
        held = self._opened(exposed, principal)
        if held is None:
            raise unknown_task()
        return held

    def places(self, exposed: Iterable[str], principal: Principal) -> Mapping[str, Held]:
        """Return where those of these tasks are that this caller may hear of (L-23)."""
        found = {id: self._opened(id, principal) for id in exposed if self._carried}
        return {id: held for id, held in found.items() if held is not None}

    def expose(self, held: Held, principal: Principal) -> str:
        """Return an id for this caller, without end (T-06); raises InvalidResult for one that is too long."""
        if not held.original or len(held.original.encode()) + len(held.tool) > _LONGEST:
            raise InvalidResult(f"taskId is empty or longer than {_LONGEST} bytes")
        return self._seal.seal(_PURPOSE, _pack(held), bound_to=holder(principal), ttl=None)

    def promise(
        self,
        call: Call,
        principal: Principal,
        promising: Promising,
        *,
        namespace: UriSpace,
        server_info: Json,
        tool: str = "",
    ) -> Dressed:
        """Return a new task as its creator is given it; nothing had to be kept to find it again (T-08).

        Raises InvalidResult where nobody asked for one, or for what no client could use (T-02).
        """
        if not (self._carried and declares(TASKS, call.meta.capabilities)):
            raise InvalidResult("a task that was not asked for")
        members = promising.members
        try:
            original = text_of(members.get("taskId"))
            if original is None:
                raise InvalidResult("a task without taskId")
            called = tool.encode(errors="replace").decode()  # half a character has no bytes
            exposed = self.expose(Held(namespace.upstream, original, called), principal)
            changes = self._changes(members, exposed, original, call.meta.capabilities, namespace)
        except InvalidResult:
            raise
        except Malformed as error:
            raise InvalidResult(str(error)) from None
        changes["resultType"] = [b'"task"']
        return made(call.method, members, server_info=server_info, changes=changes)

    def report(
        self, call: Call, held: Held, result: Json, *, namespace: UriSpace, server_info: Json
    ) -> Dressed:
        """Return what an upstream answers to a request about a task, as the caller is given it (T-04).

        Raises InvalidResult for what no client could use, Refused when the client is to be told why.
        """
        try:
            members = split(result)
            if not is_null(members.get("resultType")):
                kind = text_of(members["resultType"])
                if kind not in ("complete", "task"):  # peers write both (T-17)
                    raise InvalidResult(f"it is no answer to {call.method}")
            if call.method != "tasks/get":  # an acknowledgement: whatever else it holds, nobody looks for it
                said = {key: raw for key, raw in members.items() if key == "_meta"}
                return made(call.method, said, server_info=server_info)
            exposed = text_of(call.params.get("taskId")) or ""
            changes = self._changes(members, exposed, held.original, call.meta.capabilities, namespace)
        except InvalidResult:
            raise
        except Malformed as error:
            raise InvalidResult(str(error)) from None
        return made(call.method, members, server_info=server_info, changes=changes)

    def tell(
        self, notice: Notice, exposed: str, held: Held, declared: Json, *, namespace: UriSpace
    ) -> Notice | None:
        """Return notifications/tasks for a listener that knows the task by this id and declared this (L-23).

        None when it could not be told: what is asked of it is more than it can answer, or makes no sense.
        """
        try:
            changes = self._changes(notice.params, exposed, held.original, declared, namespace)
        except Malformed:
            return None
        kept = {key: raw for key, raw in notice.params.items() if key not in changes}
        changed = {key: b"".join(pieces) for key, pieces in changes.items() if pieces is not None}
        return Notice(notice.method, {**kept, **changed})

    def _opened(self, exposed: str, principal: Principal) -> Held | None:
        try:
            data = self._seal.open(_PURPOSE, exposed, bound_to=holder(principal))
            upstream, original, *tool = _unpack.decode(data)
        except (SealBroken, msgspec.DecodeError, ValueError):
            return None
        name = UpstreamName(upstream)
        held = Held(name, original, *tool[:1])
        return held if name in self._federation.namespaces else None

    def _changes(
        self, members: Members, exposed: str, original: str, declared: Json, namespace: UriSpace
    ) -> dict[str, Pieces | None]:
        """Return what becomes of a task's members; its statuses and times are its upstream's (T-10)."""
        own = members.get("taskId")
        if own is not None and text_of(own) != original:
            raise InvalidResult("it is about another task")
        changes: dict[str, Pieces | None] = {key: None for key in _NEVER if key in members}
        changes |= {key: None for key in _OPTIONAL if key in members and is_null(members[key])}
        changes["taskId"] = [encode(exposed)]
        changes["ttlMs"] = [members.get("ttlMs", b"null")]  # null is a value here (E-27), and always there
        questions = self._dialogue.questions(members, declared, namespace)
        if questions is not None:
            changes["inputRequests"] = questions
        if not is_null(members.get("result")):
            changes |= _changed_result(members["result"], namespace)
        if not is_null(members.get("error")):
            changes |= _changed_error(members["error"], namespace, declared)
        return changes


def unknown_task() -> McpError:
    """Return what whoever names a task is told that is none of his, or that he may not know of."""
    return McpError(INVALID_PARAMS, "Unknown task")


def _changed_result(raw: Json, namespace: UriSpace) -> dict[str, Pieces | None]:
    if not is_object(raw):
        raise InvalidResult("a task's result is not an object")
    pieces = inlined(raw, namespace=namespace)
    return {} if pieces is None else {"result": pieces}


def _changed_error(raw: Json, namespace: UriSpace, declared: Json) -> dict[str, Pieces | None]:
    """Return the error that a task ended in as it would have been told at once (F-31)."""
    error = read_error(raw)
    told = dress_error(error, namespace=namespace, declared=declared)
    changes: dict[str, Pieces | None] = {}
    if (told.code, told.message) != (error.code, error.message):
        changes = {"code": [encode(told.code)], "message": [encode(told.message)]}
    if told.data is not error.data:
        changes["data"] = None if told.data is None else [told.data]
    return {"error": object_pieces(split(raw), changes)} if changes else {}


_pack = msgspec.msgpack.Encoder().encode

_unpack = msgspec.msgpack.Decoder(list[str])
"""Of two, without the tool, in ids that are older than rules."""
