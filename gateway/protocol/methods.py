"""The one table of methods: what each names, caches, needs and is invalidated by."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["discover", "list", "named", "read", "complete", "listen", "task"]

TASKS: Final = "io.modelcontextprotocol/tasks"
UI: Final = "io.modelcontextprotocol/ui"


@dataclass(frozen=True, slots=True)
class Method:
    """One request method of revision 2026-07-28, or of an extension that the gateway understands."""

    kind: Kind
    capability: str | None = None
    """The server capability that must be advertised for it (S-28)."""
    extension: str | None = None
    """The extension that both ends must declare for it (K-01)."""
    cacheable: bool = False
    named_by: str | None = None
    """The string parameter that Mcp-Name mirrors (S-11)."""
    items: str | None = None
    """The result member that holds the elements of a list."""
    invalidated_by: str | None = None
    """The notification that makes a stored result stale (C-30)."""
    safe_to_retry: bool = True
    """Whether an answer that got lost may simply be asked for again (U-27)."""
    may_ask: bool = False
    """Whether `input_required` is a legal answer (M-01)."""


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "server/discover": Method("discover", cacheable=True),
        "tools/list": Method(
            "list",
            capability="tools",
            cacheable=True,
            items="tools",
            invalidated_by="notifications/tools/list_changed",
        ),
        "prompts/list": Method(
            "list",
            capability="prompts",
            cacheable=True,
            items="prompts",
            invalidated_by="notifications/prompts/list_changed",
        ),
        "resources/list": Method(
            "list",
            capability="resources",
            cacheable=True,
            items="resources",
            invalidated_by="notifications/resources/list_changed",
        ),
        "resources/templates/list": Method(
            "list",
            capability="resources",
            cacheable=True,
            items="resourceTemplates",
            invalidated_by="notifications/resources/list_changed",
        ),
        "resources/read": Method(
            "read",
            capability="resources",
            cacheable=True,
            named_by="uri",
            invalidated_by="notifications/resources/updated",
            may_ask=True,
        ),
        "tools/call": Method("named", capability="tools", named_by="name", safe_to_retry=False, may_ask=True),
        "prompts/get": Method("named", capability="prompts", named_by="name", may_ask=True),
        "completion/complete": Method("complete", capability="completions"),
        "subscriptions/listen": Method("listen"),
        "tasks/get": Method("task", extension=TASKS, named_by="taskId"),
        "tasks/update": Method("task", extension=TASKS, named_by="taskId", safe_to_retry=False),
        "tasks/cancel": Method("task", extension=TASKS, named_by="taskId", safe_to_retry=False),
    }
)

LEGACY_METHODS = frozenset(
    {
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/result",
        "tasks/list",
    }
)
"""Methods of older revisions: -32601 at 404 to a modern caller (S-03)."""

_OF_CLIENTS = frozenset({"elicitation/create", "roots/list", "sampling/createMessage"})
"""What servers ask of clients; no server is asked for it."""
_OURS = frozenset(name.casefold() for name in {*METHODS, *LEGACY_METHODS, *_OF_CLIENTS})
_OUR_PREFIXES = ("notifications/", "tasks/")
RESERVED = frozenset(name.partition("/")[0] for name in {*_OURS, *_OUR_PREFIXES})
"""How the specification's own methods begin: no extension's does (K-08)."""


def is_foreign(method: str) -> bool:
    """Whether a method may be some extension's that is not known here, whatever reads its case how (K-08)."""
    folded = method.casefold()
    return bool(folded) and folded not in _OURS and not folded.startswith(_OUR_PREFIXES)


def cacheable(method: str) -> bool:
    """Whether results of a method may be cached at all (C-01)."""
    row = METHODS.get(method)
    return row is not None and row.cacheable


def label(method: str) -> str:
    """Return the method as a metric label: from a closed set, `other` for what a client made up (B52)."""
    return method if method in METHODS else "other"


def shown(method: str) -> str:
    """Return the method as logs and traces name it: those of older revisions, too, and `other` as above."""
    return method if method in METHODS or method in LEGACY_METHODS else "other"
