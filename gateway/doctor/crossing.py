"""Says what of one upstream is converted for clients of other revisions, and what cannot reach them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway import config
from gateway.core.discover import offers
from gateway.protocol.call import LEGACY_VERSIONS, MODERN_VERSION, SERVED_VERSIONS, Era
from gateway.protocol.jsonrpc import Json, Malformed, is_object, split

_PAGES = "2025-11-25"
"""The revision from which on a user may be sent to a page."""
_AUDIO = "2025-03-26"
_LISTS = ("tools", "prompts", "resources")
_MODERN = f"clients of {MODERN_VERSION}"


@dataclass(frozen=True, slots=True)
class Converted:
    """Something that clients of another revision are given in their own words."""

    what: str
    whom: str
    how: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something that does not reach clients, or some of them, and what to do about it."""

    what: str
    why: str
    next: str


@dataclass(frozen=True, slots=True)
class Spoken:
    """What is spoken with an upstream."""

    name: str
    settings: config.Upstream
    era: Era
    version: str
    capabilities: Mapping[str, Json]

    @property
    def asks(self) -> bool:
        """Whether it is told that a user can be asked: of an older era only where it knows whose it is."""
        return self.era == "modern" or self.settings.apart != "shared"

    @property
    def tells(self) -> tuple[str, ...]:
        """Of which lists it tells that they changed."""
        return tuple(one for one in _LISTS if _flag(self.capabilities, one, "listChanged"))

    @property
    def updates(self) -> bool:
        """Whether it tells of single resources."""
        return _flag(self.capabilities, "resources", "subscribe")


def converted(spoken: Spoken, served: tuple[str, ...] = SERVED_VERSIONS) -> Iterator[Converted]:
    """Yield what is said to clients in other words than the upstream's, and to whom."""
    older = [version for version in served if version in LEGACY_VERSIONS]
    changes = bool(spoken.tells) or spoken.updates
    if spoken.era == "modern":
        if not older:
            return
        whom = f"clients of {', '.join(older)}"
        yield Converted("requests and results", whom, "the gateway keeps their sessions; the server has none")
        yield Converted("questions to the user", whom, "become requests to the client, its answers a retry")
        if changes:
            yield Converted("changes", whom, "become notifications of the client's session")
        return
    kept = "processes" if spoken.settings.command is not None else "sessions"
    apart = {"shared": "one for everybody", "caller": "one per caller", "session": "one per client's session"}
    how = f"the gateway shook hands; its {kept}: {apart[spoken.settings.apart]}"
    yield Converted("requests and results", _MODERN, f"{how}, and lists have no hints but yours")
    if spoken.asks:
        yield Converted("questions to the user", _MODERN, "become `input_required`; the call waits meanwhile")
    if changes:
        yield Converted("changes", _MODERN, "become notifications of subscriptions/listen")
    behind = [version for version in older if version < spoken.version]
    if behind:
        what = "what came with its revision"
        yield Converted(what, f"clients of {', '.join(behind)}", "is left out, or told as text")


def blocked(spoken: Spoken, served: tuple[str, ...] = SERVED_VERSIONS) -> Iterator[Blocked]:
    """Yield what cannot cross, each with what to do next."""
    place, legacy = f"upstreams.{spoken.name}", spoken.era == "legacy"
    if not spoken.asks:
        kept = "process" if spoken.settings.command is not None else "session"
        yield Blocked(
            "questions to the user (elicitation, sampling, roots)",
            f"its {kept} is shared by all callers, so nobody knows whom it means",
            f"set {place}.isolation: session, or caller",
        )
    if legacy and not spoken.settings.cache.min_ttl:
        shared = "" if spoken.settings.isolated else ", and scope: public where all may see the same"
        yield Blocked(
            "its results into the cache",
            f"{spoken.version} has no hints: they are private, and stale at once",
            f"set {place}.cache.min_ttl: {{tools/list: 60s}}{shared}",
        )
    silent = [one for one in _LISTS if offers(spoken.capabilities, one) and one not in spoken.tells]
    if silent:
        yield Blocked(
            f"changes of its {_joined(silent)}",
            "it declares no listChanged",
            "let the server declare it; until then a change is told once somebody asks again",
        )
    if offers(spoken.capabilities, "resources") and not spoken.updates:
        yield Blocked(
            "updates of single resources",
            "it declares no resources.subscribe",
            "let the server declare it; until then clients have to read again",
        )
    if spoken.settings.command is not None and spoken.settings.apart != "shared":
        yield from _of_own_processes(spoken)
    yield from _of_questions(spoken, served)
    if legacy and offers(spoken.capabilities, "tasks"):
        yield Blocked(
            "its tasks",
            f"those of {spoken.version} are not those of {MODERN_VERSION}: a call is answered at its end",
            f"bring the server to {MODERN_VERSION}, or raise {place}.max_timeout for calls that take long",
        )


def _of_own_processes(spoken: Spoken) -> Iterator[Blocked]:
    """Yield what is not heard of the processes that callers have to themselves; changes of lists are."""
    if spoken.updates:
        yield Blocked(
            "updates of single resources in a caller's own process",
            "the gateway asks for them in the process that serves everybody else",
            f"have clients read again, or set upstreams.{spoken.name}.isolation: shared",
        )


def _of_questions(spoken: Spoken, served: tuple[str, ...]) -> Iterator[Blocked]:
    """Yield what of its questions, or of their answers, some revision has no words for."""
    if not spoken.asks:
        return
    unable = [version for version in served if version in LEGACY_VERSIONS and version < _PAGES]
    if unable and spoken.version >= _PAGES:
        yield Blocked(
            f"pages to visit (url elicitation) to clients of {', '.join(unable)}",
            "they know forms at most: the call fails with an error that says so",
            f"use a client of {_PAGES} or newer",
        )
    if spoken.era == "legacy" and spoken.version < _PAGES:
        yield Blocked(
            "pages to visit (url elicitation)",
            f"a server of {spoken.version} cannot ask for one",
            f"bring the server to {_PAGES} or newer",
        )
    if spoken.version < _AUDIO:
        yield Blocked(
            "audio in answers to its sampling requests",
            f"{spoken.version} knows text and images only",
            f"bring the server to {_AUDIO} or newer",
        )


def _flag(capabilities: Mapping[str, Json], kind: str, flag: str) -> bool:
    raw = capabilities.get(kind)
    try:
        return raw is not None and is_object(raw) and bytes(split(raw).get(flag, b"")) == b"true"
    except Malformed:
        return False


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
