"""What a modern upstream may answer, and what becomes of it."""

import asyncio
import gzip
import json
import tracemalloc
import zlib

import pytest

from gateway import config
from gateway.protocol.call import Reason, UpstreamUnavailable
from gateway.protocol.jsonrpc import McpError
from tests.support.pools import running
from tests.support.scripted import (
    CUT,
    ScriptedUpstream,
    answer,
    complete,
    cut,
    error,
    event,
    notification,
    progress,
    raw,
    result,
    sse,
    status,
    token,
    tool,
)


@pytest.fixture
async def upstream():
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        yield upstream


@pytest.fixture
async def gateway(upstream):
    async with running(alpha=upstream) as gateway:
        yield gateway


def body(exchange, **members):
    return json.dumps({"jsonrpc": "2.0", "id": exchange.id, **members}).encode()


def encoded(encoding, compress, content_type="application/json"):
    async def behave(exchange):
        headers = {"Content-Type": content_type, "Content-Encoding": encoding}
        await exchange.respond(200, headers, [compress(body(exchange, result=complete({"ok": 1})))])

    return behave


def typed(content_type):
    async def behave(exchange):
        head = f"Content-Type: {content_type}\r\n".encode() if content_type else b""
        text = body(exchange, result=complete({"ok": 1}))
        await raw(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (head, len(text)), text)(exchange)

    return behave


async def failure(gateway, method="tools/call", **members):
    with pytest.raises(UpstreamUnavailable) as caught:
        await gateway.call(method, params={"name": b'"a"'}, **members)
    # Clients read the upstream's key and the reason, never an address or a text of the upstream's (E-14).
    assert "127.0.0.1" not in str(caught.value)
    assert str(caught.value).startswith("upstream alpha: ")
    return caught.value


# Content types and encodings (B26)


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON", None]
)
async def test_json_is_known_by_its_type_or_by_itself(upstream, gateway, content_type):
    """Parameters and case do not matter, a missing type is forgiven."""
    upstream.on("tools/call", typed(content_type))
    assert json.loads(await gateway.tool())["ok"] == 1


def deflate_raw(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", deflate_raw), ("identity", bytes)],
)
async def test_the_encodings_asked_for_are_decoded(upstream, gateway, encoding, compress):
    """gzip and both kinds of deflate."""
    upstream.on("tools/call", encoded(encoding, compress))
    assert json.loads(await gateway.tool())["ok"] == 1


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, br"])
async def test_other_encodings_are_a_clear_error(upstream, gateway, encoding):
    """An upstream that ignores Accept-Encoding is told from one that is broken."""
    upstream.on("tools/call", encoded(encoding, bytes))
    failed = await failure(gateway)
    assert failed.reason is Reason.PROTOCOL
    assert "unsupported encoding" in failed.detail


async def test_a_body_that_is_not_what_its_encoding_says(upstream, gateway):
    """Garbage instead of gzip fails that call only."""
    upstream.once("tools/call", encoded("gzip", lambda data: b"\x1f\x8bgarbage"))
    assert (await failure(gateway)).reason is Reason.PROTOCOL
    await gateway.tool()


async def test_gzipped_sse(upstream, gateway):
    """A stream may be compressed too."""

    async def behave(exchange):
        packer = zlib.compressobj(wbits=31)
        one = event(progress(token(exchange), 1))
        two = event({"jsonrpc": "2.0", "id": exchange.id, "result": complete({"ok": 1})})
        steps = [
            packer.compress(one) + packer.flush(zlib.Z_SYNC_FLUSH),
            packer.compress(two) + packer.flush(),
        ]
        headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
        await exchange.respond(200, headers, steps)

    upstream.on("tools/call", behave)
    assert json.loads(await gateway.tool(wants_progress=True))["ok"] == 1
    assert len(gateway.notices) == 1


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        (status(200, b"<html>secret S3CR3T</html>", "text/html"), Reason.PROTOCOL),
        (status(500, b"<html>oops</html>", "text/html; charset=utf-8"), Reason.STATUS),
        (status(404, b"nothing here", "text/plain"), Reason.STATUS),
        (status(202), Reason.PROTOCOL),
        (status(202, b"Accepted", "text/plain"), Reason.PROTOCOL),
        (status(202, b"{}", "application/json"), Reason.PROTOCOL),
        (status(204), Reason.PROTOCOL),
        (status(200), Reason.PROTOCOL),
        (status(200, b"", "application/json"), Reason.PROTOCOL),
        (status(200, b"{", "application/json"), Reason.PROTOCOL),
        (status(200, b"\xff\xfe", "application/json"), Reason.PROTOCOL),
        (status(200, b"[" * 100_000, "application/json"), Reason.PROTOCOL),
        (status(200, b'"x"', "application/json"), Reason.PROTOCOL),
        (status(400, b'{"detail":"no"}', "application/json"), Reason.STATUS),
        (status(413), Reason.STATUS),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"), Reason.CONNECT),
        (raw(b"garbage\r\n\r\n"), Reason.PROTOCOL),
        (cut(), Reason.CONNECT),
    ],
)
async def test_what_is_no_answer_is_a_clear_failure(upstream, gateway, answered, reason):
    """HTML, nothing, half of it, or no HTTP at all: one call fails, once, and the next one works (U-25)."""
    upstream.once("tools/call", answered)
    failed = await failure(gateway)
    assert failed.reason is reason
    assert len(upstream.seen("tools/call")) == 1
    await gateway.tool()


async def test_the_own_secret_is_not_in_an_excerpt(upstream):
    """An error page that repeats what it was sent leaves no token in the log (B42)."""
    auth = config.Auth(kind="bearer", bearer="S3CR3T-token")
    settings = config.Upstream(url=upstream.url, prefix="alpha", auth=auth)
    async with running(alpha=settings) as gateway:
        upstream.once("tools/call", status(500, b"<b>you sent S3CR3T-token</b>", "text/html"))
        failed = await failure(gateway)
        assert "you sent" in failed.detail
        assert "S3CR3T" not in failed.detail


# JSON-RPC


@pytest.mark.parametrize("http", [200, 400, 404, 429, 500, 503])
async def test_an_error_is_read_at_any_status(upstream, gateway, http):
    """Code, message and data arrive as they were sent, null data too (U-25, B13)."""
    upstream.on("tools/call", error(-32001, "quota", {"left": 0, "n": 1.0}, http=http))
    with pytest.raises(McpError) as caught:
        await gateway.tool()
    assert (caught.value.code, caught.value.message) == (-32001, "quota")
    assert bytes(caught.value.data) == b'{"left": 0, "n": 1.0}'
    assert len(upstream.seen("tools/call")) == 1


async def test_an_error_without_an_id_is_ours(upstream, gateway):
    """Servers that could not read the id write null."""
    upstream.on("tools/call", error(-32602, "bad", http=400, id=None))
    with pytest.raises(McpError):
        await gateway.tool()


async def test_a_tools_own_error_is_a_result(upstream, gateway):
    """isError passes untouched (B13)."""
    upstream.on("tools/call", result({"isError": True, "content": [{"type": "text", "text": "quota"}]}))
    assert json.loads(await gateway.tool())["isError"] is True


def changed_id(change):
    async def behave(exchange):
        text = json.dumps({"jsonrpc": "2.0", "id": change(exchange.id), "result": complete({"ok": 1})})
        await status(200, text.encode(), "application/json")(exchange)

    return behave


async def test_a_stringified_id_is_ours_and_another_one_is_not(upstream, gateway):
    """B22."""
    upstream.once("tools/call", changed_id(str), changed_id(lambda id: id + 1), changed_id(lambda id: None))
    assert json.loads(await gateway.tool())["ok"] == 1
    for _ in range(2):
        assert (await failure(gateway)).reason is Reason.PROTOCOL


async def test_a_batch_is_refused_cleanly(upstream, gateway):
    """One answer in an array is no answer of this revision (E-01)."""

    async def behave(exchange):
        text = b"[" + body(exchange, result=complete({})) + b"]"
        await status(200, text, "application/json")(exchange)

    upstream.once("tools/call", behave)
    assert (await failure(gateway)).reason is Reason.PROTOCOL


# Streams


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_a_stream_is_read_as_it_comes(upstream, gateway, end):
    """Comments, other events, priming events, ids and byte-wise cuts do not matter (U-21)."""

    async def behave(exchange):
        final = {"jsonrpc": "2.0", "id": exchange.id, "result": complete({"text": "é😀"})}
        text = b"\xef\xbb\xbf: hello" + end + end + b"id: 1" + end + b"data:" + end + end
        text += b"event: ping" + end + b"data: {}" + end + end + b"retry: 5" + end + end
        text += event(progress(token(exchange), 1), end=end) + event(final, end=end)
        await exchange.respond(
            200, {"Content-Type": "text/event-stream"}, [text[i : i + 1] for i in range(len(text))]
        )

    upstream.on("tools/call", behave)
    assert json.loads(await gateway.tool(wants_progress=True))["text"] == "é😀"
    assert gateway.notices == [("notifications/progress", {"progress": b"1"})]


async def test_only_the_callers_own_progress_gets_through(upstream, gateway):
    """Unknown tokens, repeats and late events are dropped, and counted (E-34, B23)."""
    late = asyncio.Event()
    upstream.on(
        "tools/call",
        sse(
            lambda exchange: event(progress(token(exchange), 1, total=2.0, message="m")),
            lambda exchange: event(progress(token(exchange), 1)),
            event(progress(999, 5)),
            event(progress("theirs", 5)),
            answer({"ok": 1}),
            late,
            lambda exchange: event(progress(token(exchange), 2)),
        ),
    )
    await gateway.tool(wants_progress=True)
    late.set()
    assert gateway.notices == [
        ("notifications/progress", {"progress": b"1", "total": b"2.0", "message": b'"m"'})
    ]
    assert await gateway.counted('mcp_gateway_dropped_total{upstream="alpha",what="progress"}') == 3


async def test_progress_nobody_wants_is_not_asked_for(upstream, gateway):
    """No token goes up, nothing comes down (U-11)."""
    upstream.on("tools/call", sse(event(progress(1, 1)), answer({"ok": 1})))
    await gateway.tool()
    assert "progressToken" not in (await upstream.arrived("tools/call")).meta
    assert gateway.notices == []


async def test_log_messages_only_from_the_level_asked_for(upstream, gateway):
    """S-24."""
    levels = [
        event(notification("notifications/message", level=level, data=level)) for level in ("info", "error")
    ]
    upstream.on("tools/call", sse(*levels, answer({"ok": 1})))
    await gateway.tool(log_level="warning")
    await gateway.tool()
    assert gateway.notices == [("notifications/message", {"level": b'"error"', "data": b'"error"'})]


async def test_changes_on_a_call_are_consumed(upstream, gateway):
    """They invalidate, and do not reach the caller; a server's request is dropped (U-22)."""
    upstream.on(
        "tools/call",
        sse(
            event(notification("notifications/tools/list_changed")),
            event(notification("notifications/resources/updated", uri="a:b")),
            event({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}}),
            answer({"ok": 1}),
        ),
    )
    await gateway.tool()
    changes = [gateway.changes.get_nowait() for _ in range(2)]
    assert [(change.method, change.uri, change.cause) for change in changes] == [
        ("tools/list", None, "list_changed"),
        ("resources/read", "a:b", "updated"),
    ]
    assert gateway.notices == []
    assert await gateway.counted('mcp_gateway_dropped_total{upstream="alpha",what="request"}') == 1
    assert len(upstream.seen("")) == 0


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((), Reason.PROTOCOL),
        ((event(progress(1, 1)),), Reason.PROTOCOL),
        ((b"data: {", CUT), Reason.CONNECT),
        ((event(b"{"),), Reason.PROTOCOL),
        ((event(b"[]"),), Reason.PROTOCOL),
        ((event({"jsonrpc": "2.0", "id": 999, "result": {}}),), Reason.PROTOCOL),
    ],
)
async def test_a_stream_without_the_answer_fails_at_once(upstream, gateway, steps, reason):
    """And a tool call is not replayed (U-21, U-27)."""
    upstream.on("tools/call", sse(*steps))
    assert (await failure(gateway)).reason is reason
    assert len(upstream.seen("tools/call")) == 1


async def test_a_list_whose_stream_broke_is_asked_for_again(upstream, gateway):
    """With a new id (U-26, U-27)."""
    upstream.once("tools/list", sse(b"data: {", CUT), sse())
    assert json.loads(await gateway.call("tools/list"))["tools"]
    ids = [request.message["id"] for request in upstream.seen("tools/list")]
    assert len(set(ids)) == 3


async def test_an_error_ends_a_stream(upstream, gateway):
    """An error event is the answer."""

    async def behave(exchange):
        text = event({"jsonrpc": "2.0", "id": exchange.id, "error": {"code": 7, "message": "x"}})
        await exchange.respond(200, {"Content-Type": "text/event-stream"}, [text])

    upstream.on("tools/call", behave)
    with pytest.raises(McpError):
        await gateway.tool()


async def test_a_stream_that_ended_leaves_its_connection_for_the_next_call(upstream, gateway):
    """SSE answers do not cost a connection each."""
    upstream.on("tools/call", sse(answer({"ok": 1})))
    before = upstream.connections
    for _ in range(5):
        await gateway.tool()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("drain")))
    assert upstream.connections == before


async def test_a_stream_left_open_after_the_answer_does_not_hold_the_caller(upstream, gateway):
    """The answer counts, not the end; the connection is closed soon after."""
    upstream.on("tools/call", sse(answer({"ok": 1}), asyncio.Event()))
    assert json.loads(await gateway.tool())["ok"] == 1
    await (await upstream.arrived("tools/call")).closed.wait()


# Sizes (B25)

BIG = 15 * 2**20


async def big(exchange, stream):
    head = b'{"jsonrpc":"2.0","id":%d,"result":{"blob":"' % exchange.id
    message = head + b"A" * BIG + b'"}}'
    pieces = [message[i : i + 2**16] for i in range(0, len(message), 2**16)]
    if stream:
        pieces = [b"data: ", *pieces, b"\n\n"]
    media = "text/event-stream" if stream else "application/json"
    await exchange.respond(200, {"Content-Type": media}, pieces)


@pytest.mark.parametrize("stream", [False, True])
async def test_fifteen_megabytes_pass(upstream, gateway, stream):
    """As JSON and as one data line, while a small call is answered beside it."""
    upstream.once("tools/call", lambda exchange: big(exchange, stream))
    large = asyncio.create_task(gateway.tool())
    await upstream.arrived("tools/call")
    await gateway.call("tools/list")
    assert not large.done()
    assert len(await large) == BIG + len('{"blob":""}')


@pytest.mark.parametrize("stream", [False, True])
async def test_over_the_limit_one_call_fails(upstream, stream):
    """A clear error, and the next call works; memory stays far below what was offered."""
    async with running(alpha=upstream, limits=config.Limits(message=2**20)) as gateway:
        upstream.once("tools/call", lambda exchange: big(exchange, stream))
        assert (await failure(gateway)).reason is Reason.TOO_LARGE
        await gateway.tool()


async def test_a_zip_bomb_is_stopped_by_its_decoded_size(upstream):
    """200 KB that would be 200 MB (B26)."""
    packed = gzip.compress(b" " * (200 * 2**20), compresslevel=1)
    async with running(alpha=upstream, limits=config.Limits(message=2**20)) as gateway:
        upstream.once("tools/call", encoded("gzip", lambda data: packed))
        tracemalloc.start()
        try:
            assert (await failure(gateway)).reason is Reason.TOO_LARGE
            assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
        finally:
            tracemalloc.stop()


async def test_three_megabytes_of_arguments_pass(upstream, gateway):
    """Large bodies go up too."""
    arguments = b'{"blob":"' + b"A" * (3 * 2**20) + b'"}'
    await gateway.call("tools/call", params={"name": b'"a"', "arguments": arguments})
    assert arguments in (await upstream.arrived("tools/call")).body
