"""Takes upstream lists apart, gives their items the exposed names, and joins them into one view.

An item is cut into its members and spliced together again: what changes is its name or URI, what an MCP
App points to, and known optionals that are null; every other member keeps its bytes and its place.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import islice
from operator import attrgetter
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from gateway.core.router import Namespace, NameTable
from gateway.protocol.call import HeaderParam, Scope
from gateway.protocol.jsonrpc import (
    CROWD,
    Json,
    Malformed,
    Members,
    array,
    encode,
    is_crowd,
    is_null,
    items,
    join,
    split,
    text_of,
)
from gateway.protocol.methods import METHODS
from gateway.protocol.modern import InvalidAnnotation, header_params

Excluded: TypeAlias = tuple[str, str]
"""The name of an item that was left out, and the reason."""

MISSING_META = "mcp-gateway/missingUpstreams"
"""The member of `_meta` in which a gateway names the upstreams that a list lacks."""

MOST_ITEMS = 10_000
_AT_ONCE = 100
_LONGEST_LABEL = 128
_MOST_MISSING = 64
_MISSING_NAME = re.compile(r"[a-z][a-z0-9/-]{0,127}")


# A Struct and no dataclass: there are hundreds to a page, and a frozen dataclass takes four times as long.
class Item(msgspec.Struct, frozen=True, eq=False):
    """One element of a list in its upstream's own names; `key` is what calls name it by."""

    key: str
    members: Members
    header_params: tuple[HeaderParam, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """One answer to a list request; the items are views into it and keep it alive."""

    items: tuple[Item, ...]
    next_cursor: str | None = None
    excluded: tuple[Excluded, ...] = ()
    trimmed: tuple[Excluded, ...] = ()
    """The items that lost a decoration no client could read, and which one."""
    missing: tuple[str, ...] = ()
    """What the list says that it lacks, when a gateway answered."""
    cut: bool = False
    """Whether it holds more than were looked at."""


def parse_page(method: str, result: Json, most: int = MOST_ITEMS) -> Page:
    """Return the items of a list result, without those that would break the list for every client.

    Those beyond `most` are not looked at.

    The SDKs check a list as a whole, so one item without its required members, or with a known member of
    the wrong JSON type, would cost the client the tools of all upstreams (B11): it is left out alone and
    reported, as is a tool whose annotations for headers are invalid (U-08). What merely decorates an item
    (annotations, icons, execution, size) costs it only what of it nobody can read. Schemas are not looked
    into, and unknown members and values pass (K-02, K-04).

    Raises Malformed when there is no array of items, or a cursor that is no string (F-18).
    """
    kind = _KINDS[method]
    text = bytes(result)
    members = split(text)
    readable, excluded, trimmed, cut = _few_of(kind, members.get(kind.array), most)
    annotated = method == "tools/list" and _may_hold(text, b"x-mcp-header")
    kept: list[Item] = []
    for key, item in readable:
        try:
            kept.append(Item(key, item, header_params(item["inputSchema"]) if annotated else ()))
        except (InvalidAnnotation, Malformed) as error:
            excluded.append((key[:_LONGEST_LABEL], str(error)))
    cursor = _cursor(members.get("nextCursor"))
    missing = _missing(members.get("_meta")) if _may_hold(text, MISSING_META.encode()) else ()
    return Page(tuple(kept), cursor, tuple(excluded), tuple(trimmed), missing, cut)


def merge_pages(pages: Iterable[Page]) -> tuple[Item, ...]:
    """Return the items of all pages in order; of two with one key the first counts (F-05)."""
    merged: dict[str, Item] = {}
    for page in pages:
        for item in page.items:
            merged.setdefault(item.key, item)
    return tuple(merged.values())


def expose_item(
    method: str, item: Item, exposed_key: str, *, describe: str | None = None, namespace: Namespace
) -> bytes:
    """Return an item as clients see it, under its exposed name, URI or template."""
    changed: dict[str, Json] = {_KINDS[method].key: encode(exposed_key)}
    if describe is not None:
        changed["description"] = encode(describe)
    if method == "tools/list" and (meta := item.members.get("_meta")) is not None:
        changed["_meta"] = _expose_app(meta, namespace)
    return join({**item.members, **changed})


def exposed_items(
    method: str, part: Iterable[Item], *, namespace: Namespace, names: NameTable | None = None
) -> Iterator[tuple[Item, str, bytes]]:
    """Yield one upstream's items with their exposed keys, as clients see them.

    Tools and prompts are named by the table; resources and templates by their URI alone.
    """
    for item in part:
        if names is None:
            key: str | None = namespace.expose_uri(item.key)
            describe = None
        else:
            key = names.exposed(namespace.upstream, item.key)
            describe = names.description(namespace.upstream, item.key)
        if key is not None:
            yield item, key, expose_item(method, item, key, describe=describe, namespace=namespace)


def join_parts(parts: Iterable[Mapping[str, bytes]]) -> tuple[bytes, ...]:
    """Return the items of all parts, in configuration order and then each upstream's own (F-28).

    Two upstreams may list one URI that is exposed unchanged; it stands once, where reading it leads (A-41).
    """
    joined: dict[str, bytes] = {}
    for part in parts:
        for key, item in part.items():
            joined.setdefault(key, item)
    return tuple(joined.values())


@dataclass(frozen=True, eq=False)
class View:
    """A merged list as it is served: what its pages are cut from, until when, and to whom."""

    method: str
    items: tuple[bytes, ...] = field(repr=False)
    scope: Scope
    expires: float
    """The moment the first contributing answer ends its life, on the clock of the cache (C-27)."""

    @cached_property
    def body(self) -> bytes:
        """The JSON array of all items."""
        return array(self.items)

    @cached_property
    def digest(self) -> bytes:
        """What a cursor knows this list by: equal lists have equal digests on every replica (F-20)."""
        return sha256(self.body).digest()

    def slice(self, offset: int, size: int) -> tuple[bytes, int | None]:
        """Return the JSON array of a page, and where the next one starts, None after the last."""
        if offset == 0 and size >= len(self.items):
            return self.body, None
        end = offset + size
        return array(self.items[offset:end]), end if end < len(self.items) else None


class Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a client's next page starts (F-19); sealed, and bound to its caller, before it leaves."""

    method: str
    offset: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    endpoint: str


def encode_cursor(cursor: Cursor) -> bytes:
    """Return the payload to be sealed."""
    return _pack(cursor)


def decode_cursor(payload: bytes) -> Cursor:
    """Return the cursor of a payload; raises Malformed when it is not exactly one."""
    try:
        return _unpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Malformed("this is not a cursor") from None


def _few_of(
    kind: "_Kind", raw: Json | None, most: int
) -> tuple[list[tuple[str, Members]], list[Excluded], list[Excluded], bool]:
    """Return what `_readable` does of the first `most` items, and whether there are more.

    Of a large page few are decoded at a time: nothing else runs in the process meanwhile.
    """
    if raw is None:
        raise Malformed(f"{kind.array} is missing")
    if len(raw) < CROWD and bytes(raw).count(b"{") <= most:
        return *_readable(kind, raw), False
    if is_crowd(raw):
        raise Malformed(f"{kind.array} holds too much to look through")
    elements = _elements(kind, raw)
    readable: list[tuple[str, Members]] = []
    excluded: list[Excluded] = []
    trimmed: list[Excluded] = []
    for start in range(0, min(len(elements), most), _AT_ONCE):
        some = elements[start : min(start + _AT_ONCE, most)]
        found = _readable(kind, array(some), start)
        readable += found[0]
        excluded += found[1]
        trimmed += found[2]
    return readable, excluded, trimmed, len(elements) > most


def _readable(
    kind: "_Kind", raw: Json, start: int = 0
) -> tuple[list[tuple[str, Members]], list[Excluded], list[Excluded]]:
    """Return key and members of the items that clients can read; why others were left out, or trimmed.

    The first of them is the one at `start` in its page.
    """
    try:
        keys = [kind.key_of(item) for item in kind.all.decode(raw)]
        return list(zip(keys, _cut.decode(raw), strict=True)), [], []
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass  # Rarely: there is a null, or a broken item, and every item is looked at by itself.
    elements = _elements(kind, raw)
    readable: list[tuple[str, Members]] = []
    excluded: list[Excluded] = []
    trimmed: list[Excluded] = []
    for place, element in enumerate(elements, start):
        try:
            item = _without_nulls(split(element), kind)
            try:
                key = kind.key_of(kind.one.decode(join(item)))
            except msgspec.ValidationError as error:
                item = _trimmed(item, kind)
                key = kind.key_of(kind.one.decode(join(item)))
                trimmed.append((key[:_LONGEST_LABEL], _brief(error)))
            readable.append((key, item))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, Malformed) as error:
            excluded.append((_label(kind, element, place), _brief(error)))
    return readable, excluded, trimmed


def _elements(kind: "_Kind", raw: Json) -> list[msgspec.Raw]:
    try:
        return items(raw)
    except Malformed:
        raise Malformed(f"{kind.array} is not an array") from None


def _brief(error: Exception) -> str:
    return str(error)[: 2 * _LONGEST_LABEL]


def _label(kind: "_Kind", element: msgspec.Raw, place: int) -> str:
    try:
        key = text_of(split(element).get(kind.key))
    except Malformed:
        key = None
    return key[:_LONGEST_LABEL] if key else f"item {place}"


def _cursor(raw: Json | None) -> str | None:
    if is_null(raw):
        return None
    cursor = text_of(raw)
    if cursor is None:
        raise Malformed("nextCursor is not a string")
    return cursor


def _missing(meta: Json | None) -> tuple[str, ...]:
    """Return the upstreams that another gateway lacked for its list; what is no such name is passed over."""
    try:
        named = split(meta or b"{}").get(MISSING_META)
        texts = map(text_of, items(named or b"[]"))
        names = (text for text in texts if text is not None and _MISSING_NAME.fullmatch(text))
        return tuple(islice(names, _MOST_MISSING))
    except Malformed:
        return ()


def _without_nulls(item: Members, kind: "_Kind") -> dict[str, Json]:
    """Return the members without known optionals that are null (E-28); any other null is data (E-27)."""
    kept: dict[str, Json] = {}
    for key, raw in item.items():
        if key not in kind.optional or not is_null(raw):
            kept[key] = _inner_without_nulls(raw, kind.nested[key]) if key in kind.nested else raw
    return kept


def _inner_without_nulls(raw: Json, optional: Collection[str]) -> Json:
    text = bytes(raw)
    if b"null" not in text or text[:1] not in (b"[", b"{"):
        return raw
    if text.startswith(b"["):
        return array(_inner_without_nulls(element, optional) for element in items(raw))
    members = split(raw)
    kept = {key: inner for key, inner in members.items() if key not in optional or not is_null(inner)}
    return raw if len(kept) == len(members) else join(kept)


def _trimmed(item: Members, kind: "_Kind") -> dict[str, Json]:
    """Return the members without what of the decorations clients could not read."""
    kept = dict(item)
    for key in kind.decorations.keys() & item.keys():
        fits = _fitting(item[key], kind.decorations[key])
        if fits is None:
            del kept[key]
        else:
            kept[key] = fits
    return kept


def _fitting(raw: Json, known: "_Decoration") -> Json | None:
    """Return what of a decoration clients can read, the very text if that is all of it, None for nothing."""
    if _fits(raw, known.whole):
        return raw
    try:
        if not known.many:
            return _fitting_object(raw, known)
        objects = (_fitting_object(element, known) for element in items(raw))
        return array(found) if (found := [each for each in objects if each is not None]) else None
    except Malformed:
        return None


def _fitting_object(raw: Json, known: "_Decoration") -> Json | None:
    if not bytes(raw).startswith(b"{"):
        return None
    kept = {
        key: inner
        for key, inner in split(raw).items()
        if key not in known.members or _fits(inner, known.members[key])
    }
    return join(kept) if known.required <= kept.keys() else None


def _fits(raw: Json, known: "msgspec.json.Decoder[object]") -> bool:
    try:
        known.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _expose_app(meta: Json, namespace: Namespace) -> Json:
    """Return a tool's `_meta` with the URI of its MCP App exposed, in both its places (F-12, K-09)."""
    if not _may_hold(bytes(meta), b"resourceUri"):
        return meta
    members = split(meta)
    changed = _exposed_member(members, "ui/resourceUri", namespace)
    app = members.get("ui")
    if app is not None and bytes(app).startswith(b"{"):
        inner = split(app)
        if exposed := _exposed_member(inner, "resourceUri", namespace):
            changed["ui"] = join({**inner, **exposed})
    return join({**members, **changed}) if changed else meta


def _exposed_member(members: Members, key: str, namespace: Namespace) -> dict[str, Json]:
    uri = text_of(members.get(key))
    return {} if uri is None else {key: encode(namespace.expose_uri(uri))}


def _may_hold(text: bytes, key: bytes) -> bool:
    """Whether a member of this name may stand somewhere inside, be it spelled with escapes."""
    return key in text or (b"\\" in text and b"\\u00" in text)  # the first look costs next to nothing


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Cursor)
_cut = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


# What clients insist on, as the official schema has it: a known member may be absent, never null.


class _Object(msgspec.Struct):
    """Any JSON object: what it holds is not ours to judge (K-02, B10)."""


class _Icon(msgspec.Struct, rename="camel"):
    src: Annotated[str, msgspec.Meta(pattern="^[A-Za-z][A-Za-z0-9+.-]*:")]
    mime_type: str | UnsetType = UNSET
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["light", "dark"] | UnsetType = UNSET


class _Hints(msgspec.Struct, rename="camel"):
    title: str | UnsetType = UNSET
    read_only_hint: bool | UnsetType = UNSET
    destructive_hint: bool | UnsetType = UNSET
    idempotent_hint: bool | UnsetType = UNSET
    open_world_hint: bool | UnsetType = UNSET


class _Annotations(msgspec.Struct, rename="camel"):
    audience: list[Literal["user", "assistant"]] | UnsetType = UNSET
    priority: Annotated[float, msgspec.Meta(ge=0, le=1)] | UnsetType = UNSET
    last_modified: str | UnsetType = UNSET


class _Execution(msgspec.Struct, rename="camel"):
    """Of revision 2025-11-25; clients that speak both still look into it."""

    task_support: Literal["forbidden", "optional", "required"] | UnsetType = UNSET


class _Argument(msgspec.Struct):
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    required: bool | UnsetType = UNSET


class _Described(msgspec.Struct, rename="camel", kw_only=True):
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    icons: list[_Icon] | UnsetType = UNSET
    meta: _Object | UnsetType = msgspec.field(default=UNSET, name="_meta")


class _Tool(_Described, kw_only=True):
    input_schema: _Object
    output_schema: _Object | UnsetType = UNSET
    annotations: _Hints | UnsetType = UNSET
    execution: _Execution | UnsetType = UNSET


class _Prompt(_Described, kw_only=True):
    arguments: list[_Argument] | UnsetType = UNSET


class _Readable(_Described, kw_only=True):
    mime_type: str | UnsetType = UNSET
    annotations: _Annotations | UnsetType = UNSET


class _Resource(_Readable, kw_only=True):
    uri: str
    # Some SDKs have 64 bits for it, and would refuse the whole list over more.
    size: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | UnsetType = UNSET


class _Template(_Readable, kw_only=True):
    uri_template: str


@dataclass(frozen=True, slots=True, eq=False)
class _Decoration:
    """A member that an item is no worse without: an object, an array of them, or a plain value."""

    whole: msgspec.json.Decoder[object]
    many: bool
    members: Mapping[str, msgspec.json.Decoder[object]]
    required: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """What is known of one list: where its items stand, and which shape clients insist on."""

    array: str
    key: str
    key_of: Callable[[msgspec.Struct], str]
    one: msgspec.json.Decoder[msgspec.Struct]
    all: msgspec.json.Decoder[list[msgspec.Struct]]
    optional: Collection[str]
    nested: Mapping[str, Collection[str]]
    decorations: Mapping[str, _Decoration]


def _kind(method: str, key: str, shape: type[msgspec.Struct]) -> _Kind:
    inner: dict[str, type[msgspec.Struct]] = {
        "icons": _Icon,
        "arguments": _Argument,
        "annotations": _Hints if shape is _Tool else _Annotations,
        "execution": _Execution,
    }
    optional = _optional(shape)
    return _Kind(
        METHODS[method].items or "",
        key,
        attrgetter(_attribute(shape, key)),
        msgspec.json.Decoder(shape),
        msgspec.json.Decoder(list[shape]),  # type: ignore[valid-type]  # a type only known at run time
        optional,
        {member: _optional(known) for member, known in inner.items() if member in optional},
        {
            known.encode_name: _decoration(
                known.type, inner.get(known.encode_name), known.encode_name == "icons"
            )
            for known in msgspec.structs.fields(shape)
            if known.encode_name in _DECORATIONS
        },
    )


def _decoration(whole: object, inner: type[msgspec.Struct] | None, many: bool) -> _Decoration:
    known = () if inner is None else msgspec.structs.fields(inner)
    return _Decoration(
        msgspec.json.Decoder(whole),
        many,
        {each.encode_name: msgspec.json.Decoder(each.type) for each in known},
        frozenset(each.encode_name for each in known if each.required),
    )


_DECORATIONS = frozenset({"annotations", "execution", "icons", "size"})


def _attribute(shape: type[msgspec.Struct], key: str) -> str:
    return next(known.name for known in msgspec.structs.fields(shape) if known.encode_name == key)


def _optional(shape: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(known.encode_name for known in msgspec.structs.fields(shape) if not known.required)


_KINDS = {
    "tools/list": _kind("tools/list", "name", _Tool),
    "prompts/list": _kind("prompts/list", "name", _Prompt),
    "resources/list": _kind("resources/list", "uri", _Resource),
    "resources/templates/list": _kind("resources/templates/list", "uriTemplate", _Template),
}
