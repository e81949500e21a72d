"""Compares what two callers are given for the same question, and names what is not the same for both. Pure.

A result that an upstream calls public is served to everybody. So it must be one and the same for all callers,
and refused to none. What differs from fetch to fetch is told apart from what differs from caller to caller by
looking at the parts that each caller is given every time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.protocol.call import HOP_META
from gateway.protocol.jsonrpc import Json, Malformed, items, split, text_of, value
from gateway.protocol.methods import METHODS

_NAMED = 5
_LONGEST_NAME = 100
_HINTS = frozenset({"ttlMs", "cacheScope", "nextCursor", "resultType"})
_KEYS = ("name", "uri", "uriTemplate")

Path: TypeAlias = tuple[str, ...]
Leaves: TypeAlias = Mapping[Path, bytes]


@dataclass(frozen=True, slots=True)
class Given:
    """A result; all pages of a list."""

    pages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The upstream said no, to this caller or to everybody."""

    words: str


@dataclass(frozen=True, slots=True)
class Silent:
    """There was no answer, so nothing is known."""

    words: str


Outcome: TypeAlias = Given | Refused | Silent
Kind: TypeAlias = Literal["differs", "refused", "unstable", "unknown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """How the answers to two callers differ; no value of theirs is in it, only where they differ."""

    kind: Kind
    words: str


def same(method: str, first: Outcome, second: Outcome) -> bool:
    """Whether two answers are one and the same to whoever reads them."""
    match first, second:
        case Given(), Given():
            return leaves(method, first.pages) == leaves(method, second.pages)
        case Refused(), Refused():
            return True
        case _:
            return False


def difference(method: str, first: Sequence[Outcome], second: Sequence[Outcome]) -> Difference | None:
    """Return how what two callers were given differs, None for not at all; each has asked once or more.

    With a single answer each, a difference that comes from time counts as one between callers: ask again.
    """
    silent = next((one for one in (*first, *second) if isinstance(one, Silent)), None)
    if silent is not None:
        return Difference("unknown", silent.words)
    ours = [one for one in first if isinstance(one, Given)]
    theirs = [one for one in second if isinstance(one, Given)]
    refusal = next((one for one in (*first, *second) if isinstance(one, Refused)), None)
    if refusal is not None:
        if not ours and not theirs:
            return None
        if len(ours) in (0, len(first)) and len(theirs) in (0, len(second)):
            who = "the first" if not ours else "the second"
            return Difference("refused", f"{who} caller is refused it ({refusal.words})")
        return Difference("unstable", f"the same caller is given it and refused it ({refusal.words})")
    return _between(
        [leaves(method, one.pages) for one in ours], [leaves(method, one.pages) for one in theirs]
    )


def instability(method: str, answers: Sequence[Outcome]) -> Difference | None:
    """Return how the answers to one and the same caller differ from fetch to fetch, None for not at all."""
    head, *rest = answers
    found = [difference(method, [head], [one]) for one in rest]
    told = next((one for one in found if one is not None), None)
    if told is None or told.kind == "unknown":
        return told
    if told.kind == "refused":
        return Difference("unstable", "one fetch is given it and another is refused it")
    return Difference("unstable", told.words.replace("between callers", "from fetch to fetch"))


def leaves(method: str, pages: Sequence[bytes]) -> Leaves:
    """Return every value of a result by where it stands; elements of a list stand under their name or URI.

    Hints are not payload, and `_meta` of a single hop is never kept.
    """
    found: dict[Path, bytes] = {}
    row = METHODS.get(method)
    array = row.items if row is not None else None
    for page in pages:
        try:
            members = split(page)
        except Malformed:
            found[("",)] = bytes(page)
            continue
        for name, raw in members.items():
            if name in _HINTS:
                continue
            if name == array:
                found.update(_elements(name, raw))
            elif name == "_meta":
                found.update((path, leaf) for path, leaf in _walk(("_meta",), raw) if path[1:2] not in _HOP)
            else:
                found.update(_walk((name,), raw))
    return found


def shown_uri(uri: str) -> str:
    """Return a URI as a report may show it: a query may hold a secret."""
    path, query, _ = uri.partition("?")
    return path[:_LONGEST_NAME] + ("?…" if query else "")


_HOP = frozenset((key,) for key in HOP_META)


def _between(ours: Sequence[Leaves], theirs: Sequence[Leaves]) -> Difference | None:
    if all(one == ours[0] for one in (*ours, *theirs)):
        return None
    lasting, lasting_theirs = _lasting(ours), _lasting(theirs)
    apart = [
        path for path, leaf in lasting.items() if path in lasting_theirs and lasting_theirs[path] != leaf
    ]
    apart += [path for path in lasting if not any(path in one for one in theirs)]
    apart += [path for path in lasting_theirs if not any(path in one for one in ours)]
    if apart:
        return Difference("differs", f"it differs between callers at {_places(apart)}")
    moving = [
        path
        for many in (ours, theirs)
        for one in many
        for path, leaf in one.items()
        if any(other.get(path) != leaf for other in many)
    ]
    moving = [path for path in moving if path[0] != "_meta"]  # such as the id of a request
    if not moving:
        return None
    return Difference("unstable", f"it differs from fetch to fetch at {_places(moving)}")


def _lasting(many: Sequence[Leaves]) -> Leaves:
    """Return what a caller is given every time."""
    head, *rest = many
    return {path: leaf for path, leaf in head.items() if all(one.get(path) == leaf for one in rest)}


def _elements(array: str, raw: Json) -> Iterator[tuple[Path, bytes]]:
    try:
        elements = items(raw)
    except Malformed:
        yield (array,), bytes(raw)
        return
    for place, element in enumerate(elements):
        yield from _walk((array, _key_of(element) or f"#{place}"), element)


def _key_of(element: Json) -> str | None:
    try:
        members = split(element)
        named = (text_of(members.get(key)) for key in reversed(_KEYS))
        return next((text for text in named if text is not None), None)
    except Malformed:
        return None


def _walk(path: Path, raw: Json) -> Iterator[tuple[Path, bytes]]:
    """Yield every value that holds no other; equal ones have one spelling."""
    try:
        yield from _leaves(path, value(raw))
    except Malformed:
        yield path, bytes(raw)


def _leaves(path: Path, data: object) -> Iterator[tuple[Path, bytes]]:
    todo: list[tuple[Path, object]] = [(path, data)]
    while todo:
        at, one = todo.pop()
        if isinstance(one, dict) and one:
            todo += [((*at, str(key)), inner) for key, inner in one.items()]
        elif isinstance(one, list) and one:
            todo += [((*at, str(place)), inner) for place, inner in enumerate(one)]
        else:
            yield at, repr(one).encode("utf-8", "surrogatepass")


def _places(paths: Sequence[Path]) -> str:
    names = list(dict.fromkeys("/".join(map(_short, path[:3])) for path in sorted(paths)))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _short(part: str) -> str:
    return shown_uri(part) if ":" in part else part[:_LONGEST_NAME]
