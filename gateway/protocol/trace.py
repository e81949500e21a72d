"""W3C trace context in `_meta`: what goes on to an upstream (E-25)."""

import re
from collections.abc import Mapping

from gateway.protocol.jsonrpc import Json, Malformed, text_of

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{0,512}")


def upward(vendor: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the caller's foreign `_meta` members as an upstream may see them.

    Malformed trace context is dropped, and tracestate with it; `baggage` may hold anything and would cross a
    trust boundary, so none goes on.
    """
    if not (vendor.keys() & {"traceparent", "tracestate", "baggage"}):
        return vendor
    kept = {key: raw for key, raw in vendor.items() if key != "baggage"}
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
