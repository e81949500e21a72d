"""W3C trace context and baggage, in `_meta` or in headers: what counts, and what goes on (E-25)."""

import re
from collections.abc import Container, Mapping

from gateway.protocol.jsonrpc import Json, Malformed, encode, text_of, text_or_none

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{0,512}")


CONTEXT = ("traceparent", "tracestate")
_BAGGAGE_KEY = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}"
_MEMBER = re.compile(
    rf"[ \t]*({_BAGGAGE_KEY})[ \t]*=[ \t]*([\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*)[ \t]*"
)
"""One member of baggage, without what may stand behind a semicolon."""
_MOST_BAGGAGE = 8192


def texts(meta: Mapping[str, Json]) -> Mapping[str, str]:
    """Return what of the trace context in `_meta` is text at all."""
    found = {name: text_or_none(meta.get(name)) for name in CONTEXT}
    return {name: text for name, text in found.items() if text is not None}


def context(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return trace context as far as it is well formed, nothing without a traceparent."""
    parent, state = given.get("traceparent", ""), given.get("tracestate", "")
    if _TRACEPARENT.fullmatch(parent) is None:
        return {}
    return {"traceparent": parent} | ({"tracestate": state} if state and _TRACESTATE.fullmatch(state) else {})


def baggage(text: str, allowed: Container[str]) -> str:
    """Return the members of baggage that may go on, "" if there are none."""
    if len(text) > _MOST_BAGGAGE:
        return ""
    members = (_MEMBER.fullmatch(member.partition(";")[0]) for member in text.split(","))
    return ",".join(f"{one[1]}={one[2]}" for one in members if one is not None and one[1] in allowed)


def upward(vendor: Mapping[str, Json], allowed: Container[str] = ()) -> Mapping[str, Json]:
    """Return the caller's foreign `_meta` members as an upstream may see them.

    Malformed trace context is dropped, and tracestate with it; `baggage` may hold anything and crosses a
    boundary of trust, so only what is allowed of it goes on.
    """
    if not (vendor.keys() & {"traceparent", "tracestate", "baggage"}):
        return vendor
    kept = {key: raw for key, raw in vendor.items() if key != "baggage"}
    going = baggage(text_or_none(vendor.get("baggage")) or "", allowed)
    if going:
        kept["baggage"] = encode(going)
    if not _matches(_TRACEPARENT, kept.get("traceparent")):
        kept.pop("traceparent", None)
        kept.pop("tracestate", None)
    elif not _matches(_TRACESTATE, kept.get("tracestate")):
        kept.pop("tracestate", None)
    return kept


def _matches(pattern: re.Pattern[str], raw: Json | None) -> bool:
    try:
        text = text_of(raw)
    except Malformed:
        return False
    return text is not None and pattern.fullmatch(text) is not None
