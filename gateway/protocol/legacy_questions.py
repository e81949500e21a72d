"""Turns what an upstream asks inside an answer into requests to an older client, and its answers back. Pure.

A modern client is given all questions at once, and calls again; an older one is sent each as a request of its
own while its call is waiting (M-15). What its revision cannot express fails the call (M-18).
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from gateway.protocol.call import HOP_META, META_PROGRESS_TOKEN
from gateway.protocol.jsonrpc import (
    INTERNAL_ERROR,
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
    text_or_none,
)
from gateway.protocol.legacy_answers import block_of, lacks
from gateway.protocol.legacy_client import Answered, Dialect

_CANCELLED = b'{"action":"cancel"}'
_KEY = re.compile(r"q[0-9]+(-progress)?(-[0-9a-f]{32})?")


class Question(Struct, frozen=True):
    """One thing to ask the client: `key` is the upstream's name for it."""

    key: str
    method: str
    params: Json | None = None
    page: str | None = None
    """The id by which the client knows the page it is to open."""


def key(number: int, *, progress: bool, page: str | None) -> str:
    """Return the name under which a question of an older server's is put to an older client.

    It says what else may be told about it, since nothing between the two has words for that: whether the
    server wants to hear of progress, and, by something random, that it may say when a page is dealt with.
    """
    return f"q{number}{'-progress' if progress else ''}{'' if page is None else f'-{page}'}"


def wants_progress(key: str) -> bool:
    """Whether who asks under this name wants to hear how far the answer is."""
    found = _KEY.fullmatch(key)
    return found is not None and found[1] is not None


def completes(key: str) -> bool:
    """Whether who asks under this name may say that the page has been dealt with."""
    found = _KEY.fullmatch(key)
    return found is not None and found[2] is not None


def asked(result: Members) -> Members | None:
    """Return the questions of an `input_required` result, None where it has only a state (M-14)."""
    requests = result.get("inputRequests")
    if requests is None or not is_object(requests):
        return None
    return split(requests) or None


def questions(requests: Members, dialect: Dialect, mint: Callable[[], str]) -> list[Question]:
    """Return the questions as the client is asked them; raises McpError for one that cannot be put to it.

    `mint` makes the ids by which clients tell the pages apart that they are to open.
    """
    return [_question(key, split(raw), dialect, mint) for key, raw in requests.items()]


def request(id: str, question: Question) -> bytes:
    """Return the message that asks it; its id is the token for progress, too."""
    params = question.params
    if wants_progress(question.key):
        said = dict(split(params or b"{}"))
        meta = said.get("_meta")
        before = split(meta) if meta is not None and is_object(meta) else {}
        params = join({**said, "_meta": join({**before, META_PROGRESS_TOKEN: encode(id)})})
    members: dict[str, Json] = {
        "jsonrpc": b'"2.0"',
        "id": encode(id),
        "method": encode(question.method),
    }
    if params is not None:
        members["params"] = params
    return join(members)


def withdrawal(id: str, reason: str) -> bytes:
    """Return the message that takes a question back."""
    params = encode({"requestId": id, "reason": reason})
    return join({"jsonrpc": b'"2.0"', "method": b'"notifications/cancelled"', "params": params})


def response(question: Question, answered: Answered) -> Json:
    """Return what the upstream is given for an answer; raises McpError where that ends the call (M-17)."""
    if answered.error is not None:
        if question.method == "elicitation/create":
            return _CANCELLED
        raise answered.error
    if answered.result is None or not is_object(answered.result):
        raise McpError(INTERNAL_ERROR, f"The client's answer to {question.method} is no object")
    return _without_hops(answered.result)


def _question(key: str, members: Mapping[str, Json], dialect: Dialect, mint: Callable[[], str]) -> Question:
    method, raw = text_or_none(members.get("method")) or "", members.get("params")
    if raw is None or is_null(raw):
        return Question(key, method)
    params = split(_without_hops(raw))
    match method:
        case "elicitation/create" if text_or_none(params.get("mode")) == "url" and "url" in dialect.modes:
            page = mint()
            return Question(key, method, join({**params, "elicitationId": encode(page)}), page)
        case "elicitation/create":
            return Question(key, method, _elicitation(params, dialect))
        case "sampling/createMessage":
            return Question(key, method, _sampling(params, dialect))
    return Question(key, method, join(params))


def _elicitation(params: Members, dialect: Dialect) -> bytes:
    mode = text_or_none(params.get("mode")) or "form"
    if mode not in dialect.modes:
        raise lacks(f"elicitation.{mode}" if dialect.modes else "elicitation")
    if dialect.choices:
        return join(params)
    kept = {name: raw for name, raw in params.items() if name != "mode"}
    if "requestedSchema" in kept:
        kept["requestedSchema"] = _simple(kept["requestedSchema"])
    return join(kept)


def _simple(schema: Json) -> Json:
    """Return a form without what revision 2025-06-18 has no words for; raises McpError where it needs them.

    A choice among titles was spelled otherwise there. Of several values at once it knew nothing.
    """
    members = split(schema) if is_object(schema) else {}
    properties = members.get("properties")
    if properties is None or not is_object(properties):
        return schema
    changed = {name: _field(raw) for name, raw in split(properties).items()}
    return join({**members, "properties": join(changed)})


def _field(raw: Json) -> Json:
    if not is_object(raw):
        return raw
    members = split(raw)
    if text_or_none(members.get("type")) == "array":
        raise lacks("elicitation of several values")
    choices = members.get("oneOf")
    if choices is None:
        return raw
    try:
        pairs = [split(choice) for choice in items(choices)]
        values = [pair["const"] for pair in pairs]
    except (Malformed, KeyError):
        raise lacks("elicitation of this kind of choice") from None
    titles = [pair.get("title", pair["const"]) for pair in pairs]
    spelled = {"enum": array(values), "enumNames": array(titles)}
    return join({**{name: one for name, one in members.items() if name != "oneOf"}, **spelled})


def _sampling(params: Members, dialect: Dialect) -> bytes:
    if dialect.sampling_tools:
        return join(params)
    if not (is_null(params.get("tools")) and is_null(params.get("toolChoice"))):
        raise lacks("sampling.tools")
    messages = params.get("messages")
    if messages is None:
        return join(params)
    singles = [single for raw in items(messages) for single in _singles(split(raw), dialect)]
    return join({**params, "messages": array(singles)})


def _singles(message: Members, dialect: Dialect) -> list[bytes]:
    """Return a message as one for each block: older revisions have no other."""
    content = message.get("content")
    if content is None:
        return [join(message)]
    blocks = items(content) if bytes(memoryview(content)[:1]) == b"[" else [content]
    for block in blocks:
        kind = text_or_none(split(block).get("type")) if is_object(block) else None
        if kind in ("tool_use", "tool_result"):
            raise lacks("sampling.tools")
    unknown = set() if dialect.titles else {"_meta"}
    rest = {name: raw for name, raw in message.items() if name not in unknown}
    return [join({**rest, "content": block_of(block, dialect)}) for block in blocks]


def _without_hops(raw: Json) -> Json:
    """Return an object without what one hop alone says in `_meta` (E-24)."""
    members = split(raw)
    meta = members.get("_meta")
    if meta is None or not is_object(meta):
        return raw
    kept = {key: one for key, one in split(meta).items() if key not in HOP_META}
    rest: dict[str, Json] = {key: one for key, one in members.items() if key != "_meta"}
    return join({**rest, "_meta": join(kept)} if kept else rest)
