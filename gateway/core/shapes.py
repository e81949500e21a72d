"""Rewrites the objects of the protocol where they must change, and knows nothing of the others.

URIs are renamed at the places of F-12 and nowhere else (F-13), nulls that mean "absent" are dropped (E-28);
every other value stays the text it came as. An object nothing was done to is spliced whole, and a 15 MB
picture is passed over, never decoded or copied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from gateway.protocol.call import UpstreamName
from gateway.protocol.jsonrpc import (
    CROWD,
    Json,
    Malformed,
    Members,
    encode,
    is_crowd,
    is_null,
    is_object,
    items,
    member_start,
    split,
    text_of,
)


class UriSpace(Protocol):
    """What rewriting needs to know about an upstream; the router's Namespace is one."""

    @property
    def upstream(self) -> UpstreamName: ...

    def expose_uri(self, uri: str) -> str: ...


class InvalidResult(Malformed):
    """A result no client could be given; the upstream broke the protocol, and the message says how (E-09)."""


Pieces: TypeAlias = list[Json]
"""A JSON text cut into runs, to be written one after the other."""

Changes: TypeAlias = Mapping[str, Pieces | None]
"""What becomes of an object's members: another text, or None where one is left out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the gateway knows about one kind of object, and only that: everything else passes."""

    optional: frozenset[str] = frozenset()
    """Protocol fields where null means absent."""
    uris: frozenset[str] = frozenset()
    inside: "Mapping[str, Shape]" = field(default_factory=dict)
    """Members that hold such an object, or an array of them."""
    by_type: "Mapping[str, Shape] | None" = None
    """The shapes of a union, by the value of its `type`; a type not listed here is not touched (K-03)."""


_ANNOTATIONS = Shape(frozenset({"audience", "priority", "lastModified"}))
ICON = Shape(frozenset({"mimeType", "sizes", "theme"}))
CONTENTS = Shape(frozenset({"_meta", "mimeType", "text", "blob"}), uris=frozenset({"uri"}))
PLAIN_BLOCK = Shape(frozenset({"_meta", "annotations"}), inside={"annotations": _ANNOTATIONS})
BLOCK = Shape(
    by_type={
        "text": PLAIN_BLOCK,
        "image": PLAIN_BLOCK,
        "audio": PLAIN_BLOCK,
        "resource": Shape(PLAIN_BLOCK.optional, inside={"annotations": _ANNOTATIONS, "resource": CONTENTS}),
        "resource_link": Shape(
            frozenset({"_meta", "annotations", "title", "description", "mimeType", "size", "icons"}),
            uris=frozenset({"uri"}),
            inside={"annotations": _ANNOTATIONS, "icons": ICON},
        ),
    }
)
MESSAGE = Shape(inside={"content": BLOCK})

_ARRAY = ord("[")
"""What an array begins with."""
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def revised(raw: Json, shape: Shape, namespace: UriSpace) -> Pieces | None:
    """Return an object or an array of objects as the client is given it, None when it may stay as it is."""
    if is_array(raw):
        return revised_array(raw, shape, namespace)
    return revised_members(split(raw), shape, namespace) if is_object(raw) else None


def revised_array(raw: Json, shape: Shape, namespace: UriSpace) -> Pieces | None:
    """Return an array as the client is given it, None when it may stay as it is."""
    if is_crowd(raw):
        raise InvalidResult("an array holds too much to look through")
    try:
        # Nothing else runs in the process during one decode, so a large array is taken apart bit by bit.
        elements = None if len(raw) >= CROWD else _objects.decode(raw)
    except msgspec.DecodeError:  # an element is no object: nothing is known about it
        elements = None
    if elements is None:
        changed = [
            revised_members(split(element), shape, namespace) if is_object(element) else None
            for element in items(raw)
        ]
    else:
        changed = [revised_members(members, shape, namespace) for members in elements]
    if all(pieces is None for pieces in changed):
        return None
    # The elements' own texts are needed only beside one that changed: one pass over the text less.
    texts: Iterable[Json] = items(raw) if None in changed else (b"" for _ in changed)
    written: Pieces = []
    for text, pieces in zip(texts, changed, strict=True):
        written.append(b"," if written else b"[")
        written.extend([text] if pieces is None else pieces)
    written.append(b"]")
    return written


def revised_members(members: Members, shape: Shape, namespace: UriSpace) -> Pieces | None:
    """Return an object as the client is given it, None when it may stay as it is."""
    changes = changes_of(members, shape, namespace)
    return object_pieces(members, changes) if changes else None


def changes_of(members: Members, shape: Shape, namespace: UriSpace) -> dict[str, Pieces | None]:
    """Return what becomes of the members that do not stay as they are; None leaves one out."""
    if shape.by_type is not None:
        known = shape.by_type.get(_type_of(members))
        if known is None:
            return {}
        shape = known
    changes: dict[str, Pieces | None] = {}
    for key, raw in members.items():
        if key in shape.optional and is_null(raw):
            changes[key] = None
        elif key in shape.uris:
            uri = text_of(raw)
            exposed = uri if uri is None else namespace.expose_uri(uri)
            if exposed != uri:
                changes[key] = [encode(exposed)]
        elif key in shape.inside:
            pieces = revised(raw, shape.inside[key], namespace)
            if pieces is not None:
                changes[key] = pieces
    return changes


def _type_of(members: Members) -> str:
    try:
        return text_of(members.get("type")) or ""
    except Malformed:  # a lone surrogate: no type anybody knows
        return ""


def object_pieces(members: Members, changes: Changes) -> Pieces:
    """Return the object of these members in their order, the changed ones changed, new ones at the end."""
    pieces: Pieces = []
    for key in dict.fromkeys((*members, *changes)):
        value: Pieces | None = changes[key] if key in changes else [members[key]]
        if value is not None:
            pieces.append(member_start(key))
            pieces.extend(value)
    if not pieces:
        return [b"{}"]
    pieces[0] = b"{" + bytes(pieces[0])[1:]
    pieces.append(b"}")
    return pieces


_SPLICED = 64 * 1024
"""Below this a run is copied into its neighbours (a few microseconds), above it is a segment of its own."""

_LONG_RUN = 100_000
"""So many pieces are joined at once: nothing else runs meanwhile."""


def segments_of(pieces: Pieces) -> tuple[Json, ...]:
    """Return the same text in few parts: a large run is passed on, never copied."""
    segments: list[Json] = []
    run: Pieces = []
    for piece in pieces:
        if len(piece) < _SPLICED:
            run.append(piece)
            if len(run) >= _LONG_RUN:
                segments.append(b"".join(run))
                run = []
            continue
        if run:
            segments.append(b"".join(run))
            run = []
        segments.append(piece)
    if run:
        segments.append(b"".join(run))
    return tuple(segments)


def is_array(raw: Json | None) -> bool:
    """Whether a value is there and begins like an array."""
    return raw is not None and memoryview(raw)[0] == _ARRAY
