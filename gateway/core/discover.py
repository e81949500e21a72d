"""Merges what many upstreams say they can do into what the gateway says it can do (F-22..F-27).

A part may be anything an upstream sent: what is odd in it counts as not said, and hurts that part alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gateway.core.capabilities import RELAYED_EXTENSIONS
from gateway.protocol.jsonrpc import (
    Json,
    Malformed,
    canonical,
    encode,
    is_null,
    is_object,
    join,
    split,
    text_or_none,
)
from gateway.protocol.methods import TASKS, UI

_OFFERED = ("completions", "logging", "prompts", "resources", "tools")
_LISTED = frozenset({"prompts", "resources", "tools"})
_OWN = frozenset({"listChanged", "subscribe"})
"""Members of a capability that promise notifications: the gateway's own promise, never copied."""

_LEGACY_TASKS = "tasks"
_TRUE = b"true"
_CUT = " [...]"
_TAG = re.compile(r"<(?=\s*/?\s*server\b)", re.IGNORECASE)
_NOTHING: Mapping[str, msgspec.Raw] = {}


@dataclass(frozen=True, slots=True)
class Part:
    """One upstream's answer to server/discover; `name_prefix` is what its exposed names start with."""

    upstream: str
    name_prefix: str
    result: Json
    without: frozenset[str] = frozenset()
    """Capabilities and extensions that the caller may not know of."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What the gateway may say of itself; `instructions` is None when nobody has any."""

    capabilities: Mapping[str, Json]
    instructions: str | None

    def members(self, versions: Sequence[str]) -> dict[str, Json]:
        """Return the members of a discover result, still without resultType, hints and `_meta` (S-26)."""
        members: dict[str, Json] = {
            "supportedVersions": encode(versions),
            "capabilities": join(self.capabilities),
        }
        if self.instructions is not None:
            members["instructions"] = encode(self.instructions)
        return members


def merge(
    parts: Sequence[Part],
    *,
    listens: bool,
    max_instructions: int,
    extensions: frozenset[str] = RELAYED_EXTENSIONS,
) -> Merged:
    """Return the parts, in configuration order, as one.

    `listens` says whether the gateway serves subscriptions/listen: only then may it promise to notify (F-23).
    """
    read = [_read(part.result) for part in parts]
    said = [result.get("capabilities") for result in read]
    readable = [
        _kept(_object(raw), part.without)
        for part, raw in zip(parts, said, strict=True)
        if raw is not None and (is_null(raw) or is_object(raw))
    ]
    texts = [_text(result.get("instructions")) for result in read]
    return Merged(
        _capabilities(readable, listens=listens, allowed=extensions),
        _instructions(list(zip(parts, texts, strict=True)), max_instructions),
    )


def _kept(capabilities: Mapping[str, msgspec.Raw], without: frozenset[str]) -> Mapping[str, msgspec.Raw]:
    if not without:
        return capabilities
    kept = {key: raw for key, raw in capabilities.items() if key not in without}
    inner = _object(kept.get("extensions"))
    if inner.keys() & without:
        left = {key: raw for key, raw in inner.items() if key not in without}
        kept["extensions"] = msgspec.Raw(join(left))
    return kept


def offers(capabilities: Mapping[str, Json], capability: str) -> bool:
    """Whether an upstream's capabilities hold this one.

    An empty array is what PHP makes of an empty object, so any value but null and false is a yes.
    """
    raw = capabilities.get(capability)
    return raw is not None and not is_null(raw) and bytes(memoryview(raw)[:5]) != b"false"


def notifies(capabilities: Mapping[str, Json], capability: str) -> bool:
    """Whether an upstream promises to tell when its list of these changes."""
    return _is_true(_object(capabilities.get(capability)).get("listChanged"))


def subscribes(capabilities: Mapping[str, Json]) -> bool:
    """Whether an upstream promises to tell when a resource is updated."""
    return _is_true(_object(capabilities.get("resources")).get("subscribe"))


def extends(capabilities: Mapping[str, Json], extension: str) -> bool:
    """Whether an upstream's capabilities hold this extension (T-01)."""
    raw = capabilities.get("extensions")
    return offers(_object(raw), extension)


def _capabilities(
    parts: list[Mapping[str, msgspec.Raw]], *, listens: bool, allowed: frozenset[str]
) -> dict[str, Json]:
    merged: dict[str, Json] = {}
    for capability in _OFFERED:
        offered = [_object(part[capability]) for part in parts if offers(part, capability)]
        if offered:
            merged[capability] = join(_offered(capability, offered, listens=listens))
    extensions = _extensions([_object(part.get("extensions")) for part in parts], allowed)
    if extensions:
        merged["extensions"] = join(extensions)
    experimental = _agreed([_object(part.get("experimental")) for part in parts])
    if experimental:
        merged["experimental"] = join(experimental)
    known = {*_OFFERED, "extensions", "experimental", _LEGACY_TASKS}  # F-25: legacy tasks is never advertised
    merged.update({name: raw for name, raw in _agreed(parts).items() if name not in known})
    return merged


def _offered(capability: str, offered: list[Mapping[str, msgspec.Raw]], *, listens: bool) -> dict[str, Json]:
    """Return one capability's members: those that everybody who has it agrees on, and our own promises."""
    members: dict[str, Json] = {key: raw for key, raw in _agreed(offered).items() if key not in _OWN}
    if listens and capability in _LISTED:
        # The gateway itself says so when an upstream comes, goes or is configured anew.
        members["listChanged"] = _TRUE
        if capability == "resources" and any(_is_true(part.get("subscribe")) for part in offered):
            members["subscribe"] = _TRUE
    return members


def _extensions(parts: list[Mapping[str, msgspec.Raw]], allowed: frozenset[str]) -> dict[str, Json]:
    merged: dict[str, Json] = {}
    for id in dict.fromkeys(id for part in parts for id in part if id in allowed):
        settings = [part[id] for part in parts if id in part and not is_null(part[id])]
        objects = [raw for raw in settings if is_object(raw)]
        if id == TASKS and settings:
            merged[id] = b"{}"
        elif objects and len(objects) == len(settings) and _same(objects):
            merged[id] = objects[0]
        elif settings and id == UI:
            merged[id] = b"{}"
    return merged


def _agreed(parts: Sequence[Mapping[str, msgspec.Raw]]) -> dict[str, Json]:
    """Return the members that every part has, with the same value (F-26)."""
    if not parts:
        return {}
    return {
        key: raw
        for key, raw in parts[0].items()
        if not is_null(raw) and all(key in part for part in parts) and _same([part[key] for part in parts])
    }


def _same(values: Sequence[msgspec.Raw]) -> bool:
    try:
        return len({canonical(raw) for raw in values}) == 1
    except Malformed:
        return False


def _instructions(texts: Sequence[tuple[Part, str]], limit: int) -> str | None:
    """Return a preamble and one labelled block for each upstream that says something (F-27)."""
    said = [(part, text) for part, text in texts if text]
    if not said:
        return None
    if len(texts) == 1 and not said[0][0].name_prefix:
        return _cut(said[0][1], limit)
    preamble = _preamble([part for part, _ in texts])
    frames = [_frame(part) for part, _ in said]
    room = limit - len(preamble) - sum(len(start) + len(end) + 2 for start, end in frames)
    if room < len(_CUT) * len(said):
        return None
    shares = _shares([len(text) for _, text in said], room)
    blocks = (
        f"{start}{_cut(text, share)}{end}"
        for (start, end), (_, text), share in zip(frames, said, shares, strict=True)
    )
    return "\n\n".join((preamble, *blocks))


def _preamble(parts: Sequence[Part]) -> str:
    text = "Several servers answer here as one. Each block below is what one of them says about itself."
    if any(part.name_prefix for part in parts):
        text += (
            " It uses the server's own names: the tools and prompts listed here carry the block's prefix"
            " in front of them."
        )
    return text


def _frame(part: Part) -> tuple[str, str]:
    prefix = f' prefix="{part.name_prefix}"' if part.name_prefix else ""
    return f'<server name="{part.upstream}"{prefix}>\n', "\n</server>"


def _shares(wants: Sequence[int], room: int) -> list[int]:
    """Return how many characters each may have: short texts stay whole, long ones share what is left."""
    shares = [0] * len(wants)
    left = len(wants)
    for index in sorted(range(len(wants)), key=lambda index: wants[index]):
        shares[index] = min(wants[index], room // left)
        room -= shares[index]
        left -= 1
    return shares


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: max(0, limit - len(_CUT))] + _CUT if limit >= len(_CUT) else ""


def _text(raw: Json | None) -> str:
    """Return an upstream's instructions so that they cannot pose as another upstream's block."""
    return _TAG.sub("&lt;", text_or_none(raw) or "").strip()


def _read(result: Json) -> Mapping[str, msgspec.Raw]:
    try:
        return split(result)
    except Malformed:
        return _NOTHING


def _object(raw: Json | None) -> Mapping[str, msgspec.Raw]:
    """Return the members of an object, none for anything else."""
    return split(raw) if raw is not None and is_object(raw) else _NOTHING


def _is_true(raw: Json | None) -> bool:
    return raw is not None and bytes(memoryview(raw)[:5]) == _TRUE
