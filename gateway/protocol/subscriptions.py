"""Reads and writes what a listen is about: its filter, and the notices that are sent for it. Pure.

What it wants and what its acknowledgement grants are the same object, `notifications`. Here it is a set of
wishes with the algebra of sets, so that wishes are joined, narrowed to what was granted, and compared with
what is open already.
"""

from typing import Final, NamedTuple

from msgspec import Struct

from gateway.protocol.call import META_SUBSCRIPTION_ID
from gateway.protocol.jsonrpc import (
    INVALID_PARAMS,
    Json,
    Malformed,
    McpError,
    Members,
    encode,
    is_null,
    items,
    join,
    split,
    text_or_none,
)
from gateway.protocol.sse import in_one_line

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

_TOOLS, _PROMPTS, _RESOURCES = _FLAGS = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
_URIS, _TASKS = _NAMES = ("resourceSubscriptions", "taskIds")


class Wanted(Struct, frozen=True):
    """A subscription filter, whoever's URIs and task ids it holds."""

    tools: bool = False
    prompts: bool = False
    resources: bool = False
    uris: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()

    @property
    def lists(self) -> "Wanted":
        """The lists alone."""
        return Wanted(self.tools, self.prompts, self.resources)

    @property
    def names(self) -> "Wanted":
        """The resources and tasks alone."""
        return Wanted(uris=self.uris, tasks=self.tasks)

    def __or__(self, other: "Wanted") -> "Wanted":
        return Wanted(
            self.tools or other.tools,
            self.prompts or other.prompts,
            self.resources or other.resources,
            self.uris | other.uris,
            self.tasks | other.tasks,
        )

    def __and__(self, other: "Wanted") -> "Wanted":
        return Wanted(
            self.tools and other.tools,
            self.prompts and other.prompts,
            self.resources and other.resources,
            self.uris & other.uris,
            self.tasks & other.tasks,
        )

    def __sub__(self, other: "Wanted") -> "Wanted":
        return Wanted(
            self.tools and not other.tools,
            self.prompts and not other.prompts,
            self.resources and not other.resources,
            self.uris - other.uris,
            self.tasks - other.tasks,
        )

    def __bool__(self) -> bool:
        return self.tools or self.prompts or self.resources or bool(self.uris) or bool(self.tasks)


class Circular(NamedTuple):
    """A notification made once for any number of subscriptions: what stands before and behind each's id."""

    before: bytes
    behind: bytes


def circular(method: str, params: Members) -> Circular:
    """Return a notification that carries its subscription's id (L-05), in one line; `params` lack `_meta`."""
    rest = join(params)[1:-1]
    before = b'{"jsonrpc":"2.0","method":%b,"params":{"_meta":{"%b":' % (
        encode(method),
        META_SUBSCRIPTION_ID.encode(),
    )
    return Circular(before, b"},%b}}" % in_one_line(rest) if rest else b"}}}")


def read_wanted(params: Members) -> Wanted:
    """Return what a listen asks for; raises McpError -32602 when it does not say so in the known form (L-01).

    Members that nobody defined are ignored, whatever they hold.
    """
    filter = _object(params.get("notifications"))
    if filter is None:
        raise McpError(INVALID_PARAMS, "notifications must be an object")
    for key in _FLAGS:
        if bytes(filter.get(key, b"null")) not in (b"true", b"false", b"null"):
            raise McpError(INVALID_PARAMS, f"notifications.{key} must be a boolean")
    for key in _NAMES:
        if None in _texts(filter.get(key)):
            raise McpError(INVALID_PARAMS, f"notifications.{key} must be an array of strings")
    return _wanted(filter)


def read_acknowledged(params: Members) -> Wanted:
    """Return what an acknowledgement grants; whatever is not clearly granted is not.

    Servers write nulls, false flags, kinds of their own, or nothing at all.
    """
    return _wanted(_object(params.get("notifications")) or {})


def spell(wanted: Wanted) -> bytes:
    """Return the `notifications` object: true flags only, and no array that is empty (L-04)."""
    flags = zip(_FLAGS, (wanted.tools, wanted.prompts, wanted.resources), strict=True)
    names = zip(_NAMES, (wanted.uris, wanted.tasks), strict=True)
    filter: list[tuple[str, Json]] = [(key, b"true") for key, is_wanted in flags if is_wanted]
    filter += [(key, encode(sorted(texts))) for key, texts in names if texts]
    return join(filter)


def _wanted(filter: Members) -> Wanted:
    tools, prompts, resources = (bytes(filter.get(key, b"")) == b"true" for key in _FLAGS)
    uris, tasks = (frozenset(text for text in _texts(filter.get(key)) if text is not None) for key in _NAMES)
    return Wanted(tools, prompts, resources, uris, tasks)


def _object(raw: Json | None) -> Members | None:
    try:
        return None if raw is None else split(raw)
    except Malformed:
        return None


def _texts(raw: Json | None) -> list[str | None]:
    """Return the strings of an array, None for each element that is none, and [None] when it is no array."""
    if raw is None or is_null(raw):
        return []
    try:
        elements = items(raw)
    except Malformed:
        return [None]
    return [text_or_none(element) for element in elements]
