"""What a client may do, as an upstream is told: what it declared and the gateway relays, never more (U-13).

Capabilities belong to one request: nothing of two clients is put together, and nothing is remembered but what
a declaration, as it was spelled, amounts to.
A null member counts as absent everywhere (E-26).
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import msgspec

from gateway.protocol.jsonrpc import (
    Json,
    Malformed,
    canonical,
    encode,
    is_null,
    is_object,
    join,
    split,
    text_of,
)
from gateway.protocol.methods import TASKS, UI

RELAYED = frozenset({"elicitation.form", "elicitation.url", "sampling", "sampling.tools", "roots"})
"""The ways to ask the client back that the gateway carries; `sampling.context` stays out (U-14, M-24)."""

RELAYED_EXTENSIONS = frozenset({TASKS, UI})
"""The extensions that the gateway understands, carried unless the operator says otherwise (K-01, K-13)."""

T = TypeVar("T")

_PROFILES = 1024
_LONGEST_PROFILE = 4096

_MODES = frozenset({"form", "url"})
_NESTED = frozenset({"elicitation", "sampling", "extensions", "experimental"})
_NOTHING: Mapping[str, msgspec.Raw] = {}


@dataclass(frozen=True, slots=True)
class Profile:
    """The capabilities a list is fetched with, in one spelling, and their digest for cache keys (C-06)."""

    capabilities: bytes
    digest: str


def relayable(
    declared: Json,
    *,
    relay: frozenset[str] = RELAYED,
    extensions: frozenset[str] = RELAYED_EXTENSIONS,
) -> bytes:
    """Return the capabilities to declare upstream for a client that declared these.

    Members the specification does not know pass as they are (K-02): what they allow is between the two ends.
    """
    kept: list[tuple[str, Json]] = []
    for feature, raw in _present(declared).items():
        part: Json | None
        match feature:
            case "elicitation":
                part = _elicitation(raw, relay)
            case "sampling":
                part = _sampling(raw, relay)
            case "roots":
                part = b"{}" if "roots" in relay and is_object(raw) else None
            case "extensions":
                part = _extensions(raw, extensions)
            case "experimental":
                part = raw if is_object(raw) else None
            case _:
                part = raw
        if part is not None:
            kept.append((feature, part))
    return join(kept)


def relayed_extensions(declared: Json, *, extensions: frozenset[str] = RELAYED_EXTENSIONS) -> frozenset[str]:
    """Return the ids of the extensions that a client declared and the gateway relays."""
    return frozenset(extensions & _present(_present(declared).get("extensions", b"{}")).keys())


def list_profile(
    declared: Json,
    *,
    relay: frozenset[str] = RELAYED,
    extensions: frozenset[str] = RELAYED_EXTENSIONS,
) -> Profile:
    """Return what a list is fetched with for this client: little, so that many share it (C-06, C-07)."""
    told = _present(relayable(declared, relay=relay, extensions=extensions))
    profile: dict[str, object] = {}
    if "elicitation" in told:
        profile["elicitation"] = {mode: {} for mode in _modes(_present(told["elicitation"]))}
    if "sampling" in told:
        profile["sampling"] = {"tools": {}} if "tools" in _present(told["sampling"]) else {}
    if "roots" in told:
        profile["roots"] = {}
    settings = _settings(_present(told["extensions"])) if "extensions" in told else {}
    if settings:
        profile["extensions"] = settings
    text = msgspec.json.encode(profile, order="deterministic")
    return Profile(text, digest_of(text))


def remembering(make: Callable[[Json], T]) -> Callable[[Json], T]:
    """Return what makes the same of declared capabilities, and remembers it for those that come often.

    What is too long to be common is made anew each time.
    """
    remembered = lru_cache(_PROFILES)(make)

    def made(declared: Json) -> T:
        text = bytes(declared)
        return remembered(text) if len(text) <= _LONGEST_PROFILE else make(text)

    return made


def digest_of(capabilities: bytes) -> str:
    """Return what stands for these capabilities, as they are spelled, in cache keys (C-06)."""
    return hashlib.blake2b(capabilities, digest_size=16).hexdigest()


def undeclared(required: Json, declared: Json) -> bytes | None:
    """Return which of the required capabilities the client did not declare, None when it did all of them."""
    there = {feature: _offered(feature, raw) for feature, raw in _present(declared).items() if is_object(raw)}
    missing: dict[str, dict[str, dict[str, object]]] = {}
    for feature, raw in _present(required).items():
        parts = _parts(feature, raw)
        if feature not in there:
            missing[feature] = {part: {} for part in parts}
        elif not parts <= there[feature]:
            missing[feature] = {part: {} for part in sorted(parts - there[feature])}
    return encode(missing) if missing else None


def declares(extension: str, declared: Json) -> bool:
    """Whether a client says that it knows this extension (K-01)."""
    extensions = _present(declared).get("extensions")
    return extensions is not None and is_object(_present(extensions).get(extension, b"null"))


def needed(extension: str) -> bytes:
    """Return the capabilities of a client that knows this extension (E-15)."""
    return encode({"extensions": {extension: {}}})


def is_well_formed(capabilities: Json) -> bool:
    """Whether these are shaped as the schema wants them: objects in objects, no names in a list (E-15)."""
    if not is_object(capabilities):
        return False
    features = split(capabilities)
    return all(is_object(raw) for raw in features.values()) and all(
        is_object(part) for feature in _NESTED & features.keys() for part in split(features[feature]).values()
    )


def asked_of(requests: Mapping[str, Json]) -> bytes:
    """Return the capabilities a client needs to fulfil these inputRequests (M-05)."""
    needs: dict[str, dict[str, dict[str, object]]] = {}
    for raw in requests.values():
        request = _present(raw)
        params = _present(request["params"]) if "params" in request else _NOTHING
        match text_of(request.get("method")):
            case "elicitation/create":
                mode = text_of(params.get("mode")) or "form"
                needs.setdefault("elicitation", {})[mode] = {}
            case "sampling/createMessage":
                sampling = needs.setdefault("sampling", {})
                if params.keys() & {"tools", "toolChoice"}:
                    sampling["tools"] = {}
            case "roots/list":
                needs.setdefault("roots", {})
    return encode(needs)


def _elicitation(raw: Json, relay: frozenset[str]) -> bytes | None:
    if not is_object(raw):
        return None
    modes = _present(raw)
    kept = {
        mode: value for mode, value in modes.items() if f"elicitation.{mode}" in relay or mode not in _MODES
    }
    wanted = {mode for mode in _modes(modes) if f"elicitation.{mode}" in relay}
    return join(kept) if wanted else None


def _sampling(raw: Json, relay: frozenset[str]) -> bytes | None:
    if "sampling" not in relay or not is_object(raw):
        return None
    gated = {"tools", "context"}
    return join(
        {key: v for key, v in _present(raw).items() if key not in gated or f"sampling.{key}" in relay}
    )


def _extensions(raw: Json, allowed: frozenset[str]) -> bytes | None:
    kept = {id: settings for id, settings in _present(raw).items() if id in allowed and is_object(settings)}
    return join(kept) if kept else None


def _settings(extensions: Mapping[str, Json]) -> dict[str, msgspec.Raw]:
    """Return the settings in one spelling; an extension whose settings have none is left out."""
    settings = {}
    for id, raw in extensions.items():
        try:
            settings[id] = msgspec.Raw(canonical(raw))
        except Malformed:
            continue
    return settings


def _modes(elicitation: Mapping[str, Json]) -> frozenset[str]:
    """Return the declared modes; an elicitation that names none means form (S-30)."""
    return _MODES & elicitation.keys() or frozenset({"form"})


def _parts(feature: str, raw: Json) -> frozenset[str]:
    parts = frozenset(_present(raw))
    return parts or frozenset({"form"}) if feature == "elicitation" else parts


def _offered(feature: str, raw: Json) -> frozenset[str]:
    parts = _present(raw)
    return frozenset(parts) | (_modes(parts) if feature == "elicitation" else frozenset())


def _present(raw: Json) -> Mapping[str, msgspec.Raw]:
    """Return the members that are not null; nothing for what is no object."""
    if not is_object(raw):
        return _NOTHING
    return {key: value for key, value in split(raw).items() if not is_null(value)}
