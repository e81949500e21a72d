"""What upstreams may put into their results, and others into Redis; each function is one target."""

import json

from gateway.cache.policy import Rules, call_target, hints_of, storable, ttl_of
from gateway.cache.redis_store import Unreadable, unpack
from gateway.core.discover import Part, merge
from gateway.core.lists import decode_cursor, expose_item, join_parts, parse_page
from gateway.core.results import Dressed, dress_error, inlined, normalise
from gateway.core.router import Namespace
from gateway.core.shapes import InvalidResult
from gateway.protocol.call import UpstreamName
from gateway.protocol.jsonrpc import (
    Malformed,
    McpError,
    array,
    error_message,
    is_object,
    mended,
    nests_deeper,
    read_incoming,
    split,
)
from gateway.protocol.methods import METHODS
from gateway.protocol.subscriptions import Wanted
from gateway.upstream.incoming import Conversation, Subscription
from tests.fuzz.wire import read

ALPHA = Namespace(UpstreamName("alpha"), "alpha")
LISTS = tuple(name for name, row in METHODS.items() if row.items is not None)
RESULTS = ("tools/call", "prompts/get", "resources/read", "completion/complete", "server/discover")
RULES = Rules(max_ttl=86400.0)
LARGEST = 1 << 16
_SERVER = b'{"name":"gateway","version":"1"}'


def list_page(data: bytes) -> None:
    """A page of a list is refused, or what is kept of it makes a list that any client can read."""
    method = LISTS[data[0] % len(LISTS)] if data else LISTS[0]
    result = _result(data[1:])
    if result is None:
        return
    try:
        page = parse_page(method, result)
    except Malformed:
        return
    part = {
        item.key: expose_item(method, item, ALPHA.expose_uri(item.key), namespace=ALPHA)
        for item in page.items
    }
    listed = read(array(join_parts([part])))
    key = {"tools/list": "name", "prompts/list": "name", "resources/list": "uri"}.get(method, "uriTemplate")
    assert [item[key] for item in listed] == [ALPHA.expose_uri(one) for one in part]


def result(data: bytes) -> None:
    """A result is dressed as one JSON object of the gateway's own, or refused; no hint makes it public."""
    method = RESULTS[data[0] % len(RESULTS)] if data else RESULTS[0]
    raw = _result(data[1:])
    if raw is None:
        return
    hints = hints_of(raw, RULES, method)
    assert 0.0 <= hints.ttl <= RULES.max_ttl
    if hints.scope == "public":
        assert read(raw).get("cacheScope") == "public"
    read(storable(raw))
    call_target({"arguments": raw})
    ttl_of(raw, 1.0)
    try:
        outcome = normalise(method, raw, namespace=ALPHA, server_info=_SERVER)
    except InvalidResult:
        return
    if isinstance(outcome, Dressed):
        whole = read(b"".join(bytes(piece) for piece in outcome.segments(5, "private")))
        assert whole["resultType"] == "complete"
        assert whole["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "gateway"
    try:
        pieces = inlined(raw, namespace=ALPHA)
    except Malformed:
        return
    if pieces is not None:
        read(b"".join(bytes(piece) for piece in pieces))


def upstream_message(data: bytes) -> None:
    """A message on a response stream or a listen stream is understood, dropped or Malformed."""
    try:
        message = read_incoming(data)
    except Malformed:
        return
    for hearing in (
        Conversation(1, progress=True, log_level="debug"),
        Subscription(1, Wanted(tools=True, uris=frozenset({"a:1"}))),
    ):
        for _ in range(2):
            try:
                heard = hearing.meaning(message)
            except Malformed:
                continue
            if isinstance(heard, McpError):
                told = dress_error(heard, namespace=ALPHA, declared=b"{}")
                read(error_message(b"1", told))


def discovered(data: bytes) -> None:
    """What two servers say of themselves is joined, whatever it is."""
    texts = [one for one in map(_result, data.split(b"\0")) if one is not None]
    parts = [Part(f"u{at}", f"u{at}__", text) for at, text in enumerate(texts)]
    try:
        merged = merge(parts, listens=True, max_instructions=2000)
    except Malformed:
        return
    for raw in merged.members(["2026-07-28"]).values():
        read(bytes(raw))
    assert len(merged.instructions or "") <= 2000 + 200 * len(parts)


def redis_value(data: bytes) -> None:
    """What stands in Redis is an entry no larger than allowed, or Unreadable."""
    try:
        entry = unpack(data, largest=LARGEST)
    except Unreadable:
        return
    assert len(entry.result) <= LARGEST


def cursor(data: bytes) -> None:
    """The payload of a cursor is exactly one, or Malformed."""
    try:
        found = decode_cursor(data)
    except Malformed:
        return
    json.dumps([found.method, found.offset, found.endpoint])


def _result(data: bytes) -> bytes | None:
    """Return what can come as a result: an object in a message that was read, in UTF-8, mended."""
    try:
        text = bytes(read_incoming(b'{"jsonrpc":"2.0","id":1,"result":' + data + b"}").result or b"null")
        split(text)
    except Malformed:
        return None
    return text if is_object(text) and mended(text) == text and not nests_deeper(text, 200) else None
