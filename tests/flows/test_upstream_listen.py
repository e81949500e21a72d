"""One subscription to a modern upstream: how it opens, what is heard of it, and how it ends."""

import asyncio
import gzip
import json
import logging
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway import config
from gateway.protocol.call import Challenge, Reason, UpstreamUnavailable
from gateway.protocol.jsonrpc import McpError
from gateway.protocol.subscriptions import Wanted
from gateway.upstream.pool import TimedOut
from tests.support.pools import ALPHA, running, settings
from tests.support.scripted import (
    CUT,
    META,
    VERSION,
    ScriptedUpstream,
    cut,
    error,
    event,
    hang,
    listen,
    notification,
    raw,
    redirect,
    result,
    sse,
    status,
    tool,
)

TOOLS = Wanted(tools=True)
ALL = Wanted(True, True, True, frozenset({"file:///a", "b:c"}), frozenset({"t1"}))
CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.fixture
async def upstream():
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        yield upstream


@pytest.fixture
async def gateway(upstream):
    async with running(alpha=upstream) as gateway:
        yield gateway


@asynccontextmanager
async def listening(gateway, upstream, wanted=ALL, **members):
    """Open a subscription; yield it and the upstream's end of it."""
    async with gateway.pool.listen(ALPHA, wanted, **members) as heard:
        await upstream.listening(len(upstream.listens) or 1)
        yield heard, upstream.listens[-1]


async def told(heard):
    """Return the next notice as plain data."""
    notice = await anext(heard)
    return notice.method, {key: json.loads(bytes(raw)) for key, raw in notice.params.items()}


async def refused(gateway, kind=UpstreamUnavailable, wanted=TOOLS, **members):
    """Return why a subscription could not be opened."""
    with pytest.raises(kind) as caught:
        async with gateway.pool.listen(ALPHA, wanted, **members):
            pytest.fail("it was opened")
    return caught.value


async def lost(heard):
    """Return why a subscription was lost, which it stays."""
    with pytest.raises(UpstreamUnavailable) as caught:
        await told(heard)
    with pytest.raises(UpstreamUnavailable):
        await anext(heard)
    return caught.value


async def ended(gateway, reason):
    """Check that one subscription ended so and nothing of it is open; a probe may be under way still."""
    sample = f'mcp_gateway_upstream_listens_ended_total{{reason="{reason}",upstream="alpha"}}'
    alternative = f'mcp_gateway_upstream_listens_ended_total{{upstream="alpha",reason="{reason}"}}'
    assert (await gateway.counted(sample) or await gateway.counted(alternative)) == 1
    await nothing_is_open(gateway)


async def nothing_is_open(gateway):
    """Check that no stream is counted, and wait until no call is."""
    assert await gateway.counted('mcp_gateway_upstream_listens{upstream="alpha"}') == 0
    assert await gateway.counted('mcp_gateway_streams_open{side="upstream"}') == 0
    while await gateway.counted('mcp_gateway_upstream_connections{upstream="alpha"}'):
        pass
    assert "0 active, 0 streams" in repr(gateway.pool._members[ALPHA]._upstream)


async def dropped(gateway, what):
    return await gateway.counted(f'mcp_gateway_dropped_total{{upstream="alpha",what="{what}"}}')


# How it opens


@pytest.mark.parametrize("code", [401, 403, 500, 503])
async def test_a_listen_that_fails_again_and_again_is_one_line(upstream, code, caplog):
    """It is tried for ever, and says something new only when it goes otherwise than the last time."""
    caplog.set_level(logging.INFO, logger="gateway.upstream.member")
    auth = {"bearer": "SECRETSECRET"}
    async with running(alpha=settings(upstream, auth=auth)) as gateway:
        for no, kind in ((status(code), UpstreamUnavailable), (error(-32603), McpError)) * 2:
            upstream.on("subscriptions/listen", no)
            for _ in range(3):
                await refused(gateway, kind)
        upstream.reset("subscriptions/listen")
        for _ in range(2):
            async with listening(gateway, upstream, TOOLS):
                pass
            await upstream.unlistened()
    lines = [one for one in caplog.records if "subscriptions/listen" in one.getMessage()]
    assert [one.levelname for one in lines] == ["WARNING", "WARNING", "INFO"]
    assert [f"HTTP {code}" in one.getMessage() for one in lines] == [True, True, False]


async def test_a_listen_is_asked_for_as_every_request_is(upstream, gateway):
    """Own id, own headers from the body, the capabilities of this context, and no empty wish (L-04)."""
    tasks = {"extensions": {f"{META}tasks": {}}}
    async with listening(gateway, upstream, TOOLS, capabilities=json.dumps(tasks).encode()):
        seen = await upstream.arrived("subscriptions/listen")
        assert seen.header("accept") == "application/json, text/event-stream"
        assert seen.header("mcp-method") == "subscriptions/listen"
        assert seen.header("mcp-protocol-version") == VERSION
        assert seen.header("authorization") is None
        assert seen.params["notifications"] == {"toolsListChanged": True}
        assert seen.meta[f"{META}clientCapabilities"] == tasks
        assert set(seen.params) == {"notifications", "_meta"}


async def test_a_callers_credential_goes_only_where_it_is_forwarded(upstream):
    """The subscription of a caller's context carries that caller's Authorization (L-13, Z-09)."""
    forwarding = settings(upstream, auth={"kind": "forward"})
    async with running(alpha=forwarding) as gateway, listening(gateway, upstream, authorization="Bearer X"):
        assert (await upstream.arrived("subscriptions/listen")).header("authorization") == "Bearer X"
    async with running(alpha=upstream) as gateway, listening(gateway, upstream, authorization="Bearer X"):
        assert (await upstream.arrived("subscriptions/listen")).header("authorization") is None


@pytest.mark.parametrize(
    ("granted", "honoured"),
    [
        (True, ALL),
        ({}, Wanted()),
        ({"toolsListChanged": True, "resourceSubscriptions": ["b:c"]}, Wanted(True, uris=frozenset({"b:c"}))),
        ({"promptsListChanged": False, "taskIds": None, "x": 1, "resourceSubscriptions": [1]}, Wanted()),
    ],
)
async def test_what_is_honoured_is_what_was_acknowledged(upstream, gateway, granted, honoured):
    """Never more than was wanted (L-16)."""
    upstream.on("subscriptions/listen", listen(granted))
    async with listening(gateway, upstream) as (heard, _):
        assert heard.honoured == honoured


async def test_an_upstream_cannot_grant_what_nobody_wanted(upstream, gateway):
    """A superset is cut down (L-16)."""
    every = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["a:b", "x:y"]}
    upstream.on("subscriptions/listen", listen(every))
    async with listening(gateway, upstream, Wanted(prompts=True, uris=frozenset({"x:y"}))) as (heard, _):
        assert heard.honoured == Wanted(prompts=True, uris=frozenset({"x:y"}))


async def test_an_empty_wish_opens_a_stream_too(upstream, gateway):
    """It is legal, and stays open (L-08)."""
    async with listening(gateway, upstream, Wanted()) as (heard, stream):
        assert (stream.wanted, heard.honoured) == ({}, Wanted())
        await stream.notify("notifications/com.example/x")
        assert await told(heard) == ("notifications/com.example/x", {})


async def test_entering_waits_for_the_acknowledgement(upstream, gateway):
    """What came before it is dropped and counted (L-16)."""
    upstream.on("subscriptions/listen", listen(False))
    async with AsyncExitStack() as open:
        entering = asyncio.create_task(open.enter_async_context(gateway.pool.listen(ALPHA, ALL)))
        await upstream.listening()
        (stream,) = upstream.listens
        await stream.notify(CHANGED)
        await stream.notify(UPDATED, uri="b:c")
        await stream.notify(ACKNOWLEDGED, subscription="theirs", notifications={"toolsListChanged": True})
        while await dropped(gateway, "notification") < 3:
            assert not entering.done()
        await stream.acknowledge({"promptsListChanged": True})
        await stream.notify("notifications/prompts/list_changed")
        heard = await entering
        assert heard.honoured == Wanted(prompts=True)
        assert (await told(heard))[0] == "notifications/prompts/list_changed"


async def test_an_upstream_that_never_acknowledges_is_given_up(upstream):
    """It has as long as a silent call; its stream is closed."""
    for silence in (listen(False), hang()):
        upstream.on("subscriptions/listen", silence)
        async with running(alpha=settings(upstream, timeout=1.0)) as gateway:
            gave_up = await refused(gateway, TimedOut)
            assert str(gave_up).startswith("upstream alpha: subscriptions/listen got no answer in time")
            seen = await upstream.arrived("subscriptions/listen")
            await seen.closed.wait()
            assert await gateway.counted('mcp_gateway_streams_open{side="upstream"}') == 0


@pytest.mark.parametrize(
    "behaviour",
    [
        error(-32601, "Method not found", http=404),
        error(-32601),
        sse(lambda exchange: event({"jsonrpc": "2.0", "id": exchange.id, "error": {"code": -32601}})),
        result({}),
    ],
    ids=["404", "200", "in the stream", "a result at once"],
)
async def test_an_upstream_without_subscriptions_says_so(upstream, gateway, behaviour):
    """Told apart from trouble: it is asked once, and stays up (L-16)."""
    upstream.on("subscriptions/listen", behaviour)
    assert (await refused(gateway, McpError)).code == -32601
    assert len(upstream.seen("subscriptions/listen")) == 1
    assert gateway.pool.status(ALPHA).state == "up"
    assert await gateway.counted('mcp_gateway_upstream_connections{upstream="alpha"}') == 0


@pytest.mark.parametrize("http", [200, 400, 500])
async def test_an_error_before_the_acknowledgement_is_the_upstreams(upstream, gateway, http):
    """As of any request (L-09)."""
    upstream.on("subscriptions/listen", error(-32603, "Subscription limit reached", http=http))
    told = await refused(gateway, McpError)
    assert (told.code, told.message) == (-32603, "Subscription limit reached")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (status(500), Reason.STATUS),
        (status(405, Allow="GET"), Reason.STATUS),
        (status(202), Reason.PROTOCOL),
        (status(200, b"<html>", "text/html"), Reason.PROTOCOL),
        (status(200, b"{", "application/json"), Reason.PROTOCOL),
        (sse(b"data: {\n\n"), Reason.PROTOCOL),
        (sse(event(notification(CHANGED)), lambda x: event({"id": x.id, "result": {}})), Reason.PROTOCOL),
        (sse(lambda x: event({"id": 999, "result": {}})), Reason.PROTOCOL),
        (sse(lambda x: event(notification("notifications/cancelled", requestId=x.id))), Reason.PROTOCOL),
        (sse(), Reason.CONNECT),
        (sse(CUT), Reason.CONNECT),
        (cut(), Reason.CONNECT),
        (sse(b"", content_encoding="br"), Reason.PROTOCOL),
        (redirect("https://elsewhere.example/mcp"), Reason.STATUS),
        (status(503, Retry_After="3600"), Reason.STATUS),
    ],
)
async def test_whatever_else_comes_instead_is_a_failure(upstream, gateway, behaviour, reason):
    """With its reason, and without a stream or connection left behind."""
    upstream.on("subscriptions/listen", behaviour)
    assert (await refused(gateway)).reason is reason
    await nothing_is_open(gateway)


async def test_what_lasts_a_moment_is_tried_again(upstream, gateway):
    """As every request that may safely be repeated (U-27)."""
    upstream.once("subscriptions/listen", cut(), cut())
    async with listening(gateway, upstream) as (heard, stream):
        await stream.notify(CHANGED)
        assert await told(heard) == (CHANGED, {})
    assert len(upstream.seen("subscriptions/listen")) == 3


@pytest.mark.parametrize("code", [429, 503])
async def test_an_upstream_that_has_no_time_is_asked_once(upstream, gateway, code):
    """B45: whoever listens asks again at a pace of his own, which grows."""
    upstream.on("subscriptions/listen", status(code))
    assert (await refused(gateway)).reason is Reason.STATUS
    assert len(upstream.seen("subscriptions/listen")) == 1


async def test_a_redirect_within_the_origin_is_followed(upstream, gateway):
    """As calls follow it (B16)."""
    upstream.once("subscriptions/listen", redirect("/mcp/there", code=308))
    async with listening(gateway, upstream) as (_, stream):
        assert stream.exchange.received.path == "/mcp/there"


async def test_another_version_is_spoken_when_the_upstream_asks_for_it(upstream, gateway):
    """As calls do (U-28)."""
    data = {"supported": [VERSION], "requested": VERSION}
    upstream.once("subscriptions/listen", error(-32022, "Unsupported protocol version", data, http=400))
    async with listening(gateway, upstream) as (heard, _):
        assert heard.honoured == ALL


async def test_a_refused_credential_is_the_callers_or_the_gateways(upstream):
    """A challenge where the caller's was forwarded, else the gateway's own matter (B15)."""
    upstream.on("subscriptions/listen", status(401, WWW_Authenticate='Bearer error="invalid_token"'))
    async with running(alpha=settings(upstream, auth={"kind": "forward"})) as gateway:
        challenge = await refused(gateway, Challenge, authorization="Bearer X")
        assert (challenge.status, challenge.error) == (401, "invalid_token")
    async with running(alpha=upstream) as gateway:
        assert (await refused(gateway)).reason is Reason.CREDENTIALS


async def test_an_upstream_that_is_down_is_not_listened_to():
    """Nor one whose gateway is stopping."""
    async with ScriptedUpstream() as upstream, running(alpha=upstream) as gateway:
        await upstream.stop()
        assert (await refused(gateway)).reason is Reason.CONNECT
        await gateway.pool.close()
        assert (await refused(gateway)).reason is Reason.STOPPING


# What is heard of it


async def test_changes_are_handed_on_in_their_order(upstream, gateway):
    """Lists, resources, tasks, and what nobody here knows; the subscription's id stays here (L-05, L-22)."""
    async with listening(gateway, upstream) as (heard, stream):
        await stream.notify(CHANGED)
        await stream.notify("notifications/prompts/list_changed", _meta={"com.example/k": 1})
        await stream.notify("notifications/resources/list_changed", more=[1.0])
        await stream.notify(UPDATED, uri="file:///a/sub", title="x")
        await stream.notify("notifications/tasks", taskId="t1", status="working")
        await stream.notify("notifications/com.example/x", y={})
        assert [await told(heard) for _ in range(6)] == [
            (CHANGED, {}),
            ("notifications/prompts/list_changed", {"_meta": {"com.example/k": 1}}),
            ("notifications/resources/list_changed", {"more": [1.0]}),
            (UPDATED, {"uri": "file:///a/sub", "title": "x"}),
            ("notifications/tasks", {"taskId": "t1", "status": "working"}),
            ("notifications/com.example/x", {"y": {}}),
        ]


@pytest.mark.parametrize("spelling", [str, float, lambda id: None])
async def test_the_subscription_is_known_by_any_spelling_of_its_id(upstream, gateway, spelling):
    """A number may come back as a string (B22), and the stream says whose it is without any."""
    async with listening(gateway, upstream) as (heard, stream):
        meta = {f"{META}subscriptionId": spelling(stream.exchange.id)}
        await stream.send(event(notification(CHANGED, _meta=meta)))
        await stream.send(event(notification(UPDATED, uri="b:c")))
        assert [await told(heard), await told(heard)] == [(CHANGED, {}), (UPDATED, {"uri": "b:c"})]


async def test_what_has_no_place_there_is_dropped_and_counted(upstream, gateway):
    """Foreign subscriptions, progress, log messages, requests, and the like (L-16, L-22)."""
    async with listening(gateway, upstream) as (heard, stream):
        id = stream.exchange.id
        await stream.notify(CHANGED, subscription="other")
        await stream.notify(CHANGED, subscription=id + 1)
        await stream.notify(CHANGED, subscription=True)
        await stream.notify(CHANGED, subscription={"id": id})
        await stream.acknowledge({"toolsListChanged": True})
        await stream.notify("notifications/cancelled", requestId=id + 1)
        await stream.notify("notifications/cancelled")
        await stream.notify("notifications/elicitation/complete", elicitationId="e")
        await stream.notify("notifications/tasks/status", taskId="t1")
        await stream.notify(UPDATED)
        await stream.notify(UPDATED, uri=7)
        await stream.notify("notifications/tasks", taskId=None)
        await stream.send(event({"jsonrpc": "2.0", "method": CHANGED, "params": []}))
        await stream.notify("notifications/progress", progressToken=id, progress=1)
        await stream.notify("notifications/message", level="error", data="x")
        await stream.send(
            event({"jsonrpc": "2.0", "id": 5, "method": "sampling/createMessage", "params": {}})
        )
        await stream.send(b": a comment\n\nevent: endpoint\ndata: /x\n\nid: 1\ndata:\n\n")
        await stream.notify(UPDATED, uri="b:c")
        assert await told(heard) == (UPDATED, {"uri": "b:c"})
        counts = [await dropped(gateway, what) for what in ("notification", "progress", "log", "request")]
        assert counts == [13, 1, 1, 1]


async def test_a_cancelled_read_loses_nothing(upstream, gateway):
    """Whoever reads may look at a clock meanwhile."""
    async with listening(gateway, upstream) as (heard, stream):
        for number in range(3):
            reading = asyncio.create_task(anext(heard))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            whole = event(stream.message(UPDATED, uri=f"b:{number}"))
            await stream.send(whole[:30])
            reading = asyncio.create_task(anext(heard))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await stream.send(whole[30:])
            assert await told(heard) == (UPDATED, {"uri": f"b:{number}"})


async def test_a_compressed_stream_is_read(upstream, gateway):
    """Its upstream was told that it may (B26)."""

    async def behave(exchange):
        meta = {f"{META}subscriptionId": exchange.id}
        acknowledged = notification(ACKNOWLEDGED, _meta=meta, notifications={"toolsListChanged": True})
        body = gzip.compress(event(acknowledged) + event(notification(CHANGED, _meta=meta)))
        headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
        await exchange.respond(200, headers, [body, asyncio.Event()])

    upstream.on("subscriptions/listen", behave)
    async with gateway.pool.listen(ALPHA, TOOLS) as heard:
        assert (heard.honoured, await told(heard)) == (TOOLS, (CHANGED, {}))


async def test_who_reads_slowly_slows_the_upstream_down(upstream, gateway):
    """Nothing is read ahead, and nothing is lost: memory stays with the upstream."""
    size, count = 2**18, 96
    sent = 0

    async def flood(stream):
        nonlocal sent
        for number in range(count):
            await stream.notify(UPDATED, uri=f"b:{number}", padding="x" * size)
            sent += 1

    async with listening(gateway, upstream) as (heard, stream):
        flooding = asyncio.create_task(flood(stream))
        transport = stream.exchange.request.transport
        while not transport.get_write_buffer_size() > 2**16:  # until the system takes no more of it
            await asyncio.to_thread(lambda: None)
        for _ in range(100):
            await asyncio.to_thread(lambda: None)
        assert sent < count * 3 / 4  # the system keeps some 10 MB, most of it here
        assert "0 waiting" in repr(heard)
        uris = [bytes((await anext(heard)).params["uri"]) for _ in range(count)]
        assert uris == [b'"b:%d"' % number for number in range(count)]
        await flooding


async def test_a_listen_takes_no_call_its_place(upstream):
    """Nor waits for one: `connections` bounds calls."""
    go = asyncio.Event()
    upstream.on("tools/call", hang(go, result({"content": []})))
    async with running(alpha=settings(upstream, connections=1)) as gateway, AsyncExitStack() as open:
        calling = asyncio.create_task(gateway.tool())
        await upstream.arrived("tools/call")
        for _ in range(3):
            await open.enter_async_context(gateway.pool.listen(ALPHA, TOOLS))
        assert await gateway.counted('mcp_gateway_upstream_listens{upstream="alpha"}') == 3
        assert await gateway.counted('mcp_gateway_upstream_connections{upstream="alpha"}') == 4
        assert gateway.pool.status(ALPHA).active == 1
        go.set()
        await calling
        await gateway.call("tools/list")


# How it ends


async def test_a_result_ends_it_for_good(upstream, gateway):
    """What came before it is heard first, what is left of the stream is not (L-10)."""
    async with listening(gateway, upstream) as (heard, stream):
        await stream.notify(CHANGED)
        await stream.end()
        assert [notice.method async for notice in heard] == [CHANGED]
        assert [notice async for notice in heard] == []
        assert heard.failure is None
    await ended(gateway, "result")


async def test_its_cancellation_by_the_upstream_ends_it(upstream, gateway):
    """Only when it names this very request (L-27)."""
    async with listening(gateway, upstream) as (heard, stream):
        await stream.notify("notifications/cancelled", requestId=stream.exchange.id, reason="x")
        assert [notice async for notice in heard] == []
        await upstream.unlistened()
    await ended(gateway, "cancelled")


@pytest.mark.parametrize(
    ("last", "reason", "word"),
    [
        (lambda stream: stream.stop(), Reason.CONNECT, "lost"),
        (lambda stream: stream.send(b"data: {\n\n"), Reason.PROTOCOL, "invalid"),
        (lambda stream: stream.send(b'data: {"id":999,"result":{}}\n\n'), Reason.PROTOCOL, "invalid"),
        (lambda stream: stream.send(b'data: {"error":{"code":-32000}}\n\n'), Reason.PROTOCOL, "error"),
        (lambda stream: stream.send(b'data: {"x":' + b"[" * 100_000 + b"\n\n"), Reason.PROTOCOL, "invalid"),
        (lambda stream: stream.send(b'data: {"method":"\xff"}\n\n'), Reason.PROTOCOL, "invalid"),
        (lambda stream: stream.send(b"data: " + b"x" * 300_000), Reason.TOO_LARGE, "too_large"),
    ],
)
async def test_whatever_else_ends_it_is_a_loss(upstream, last, reason, word):
    """Told once as what it is, counted, and nothing of it is left open."""
    async with running(alpha=upstream, limits=config.Limits(message=200_000)) as gateway:
        async with listening(gateway, upstream) as (heard, stream):
            await stream.notify(CHANGED)
            await last(stream)
            assert await told(heard) == (CHANGED, {})
            assert (await lost(heard)).reason is reason
            await upstream.unlistened()
        await ended(gateway, word)


async def test_a_cut_connection_is_a_loss_that_makes_the_upstream_suspect(upstream, gateway):
    """It is probed at once: it may have gone altogether."""
    await upstream.arrived("server/discover")
    async with listening(gateway, upstream) as (heard, stream):
        stream.cut()
        assert (await lost(heard)).reason is Reason.CONNECT
    await upstream.arrived("server/discover")
    await ended(gateway, "lost")


async def test_a_stream_that_breaks_off_within_its_encoding_is_lost(upstream, gateway):
    """A chunk that never comes to its end is no graceful one."""
    acknowledged = notification(ACKNOWLEDGED, notifications={"toolsListChanged": True})
    chunked = HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked")
    body = event(acknowledged)
    upstream.on("subscriptions/listen", raw(chunked, b"%x\r\n%s\r\n" % (len(body), body), b"ff\r\ndata:"))
    async with gateway.pool.listen(ALPHA, TOOLS) as heard:
        assert (await lost(heard)).reason is Reason.CONNECT
    await ended(gateway, "lost")


async def test_silence_is_a_loss_only_where_the_settings_say_so(upstream):
    """`listen_idle` is off by default; any byte, a comment among them, starts it anew (L-24)."""
    async with running(alpha=settings(upstream, listen_idle=1.0)) as gateway:
        async with listening(gateway, upstream) as (heard, stream):
            await stream.send(b": ping\n\n")
            await stream.notify(CHANGED)
            assert await told(heard) == (CHANGED, {})
            gone = await lost(heard)
            assert (gone.reason, gone.detail) == (Reason.TIMEOUT, "nothing was heard for 1s")
            await upstream.unlistened()
        await ended(gateway, "idle")


async def test_no_limit_of_calls_ends_a_listen(upstream):
    """Neither `timeout` nor `max_timeout` counts once it is acknowledged."""
    async with (
        running(alpha=settings(upstream, timeout=1.0, max_timeout=1.0)) as gateway,
        listening(gateway, upstream) as (heard, stream),
    ):
        # A call that runs into the same limit shows that it is over.
        upstream.on("tools/call", hang())
        with pytest.raises(TimedOut):
            await gateway.tool()
        await stream.notify(CHANGED)
        assert await told(heard) == (CHANGED, {})


@pytest.mark.parametrize("waiting", [True, False])
async def test_leaving_hangs_up_at_once(upstream, gateway, waiting):
    """Also in the middle of a read; nothing is left behind (U-23)."""
    entered = asyncio.Event()

    async def follow():
        async with gateway.pool.listen(ALPHA, ALL) as heard:
            entered.set()
            if waiting:
                await anext(heard)
            await asyncio.Event().wait()

    following = asyncio.create_task(follow())
    await entered.wait()
    seen = await upstream.arrived("subscriptions/listen")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await seen.closed.wait()
    await ended(gateway, "closed")
    assert repr(gateway.background) == "<Background [watch alpha]>"


async def test_being_cancelled_before_the_acknowledgement_hangs_up(upstream, gateway):
    """The stream may be there, or not even its head."""
    for silence in (listen(False), hang()):
        upstream.on("subscriptions/listen", silence)
        entering = asyncio.create_task(refused(gateway))
        seen = await upstream.arrived("subscriptions/listen")
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        await seen.closed.wait()
    assert await gateway.counted('mcp_gateway_streams_open{side="upstream"}') == 0
    assert await gateway.counted('mcp_gateway_upstream_connections{upstream="alpha"}') == 0


async def test_a_stopping_gateway_ends_it(upstream, gateway):
    """Whoever reads is told why."""
    async with listening(gateway, upstream) as (heard, _):
        reading = asyncio.create_task(lost(heard))
        await asyncio.sleep(0)
        await gateway.pool.close()
        assert (await reading).reason is Reason.STOPPING
    await ended(gateway, "stopping")


async def test_two_listens_are_two_streams(upstream, gateway):
    """A new one is open before the old one is closed, and each hears its own (L-15)."""
    async with listening(gateway, upstream, TOOLS) as (old, first), gateway.pool.listen(ALPHA, ALL) as new:
        await upstream.listening(2)
        second = upstream.listens[1]
        assert first.exchange.id != second.exchange.id
        await second.notify(UPDATED, uri="b:c")
        await first.notify(CHANGED)
        assert await told(new) == (UPDATED, {"uri": "b:c"})
        assert await told(old) == (CHANGED, {})
        await first.end()
        assert [notice async for notice in old] == []
        await second.notify(CHANGED)
        assert await told(new) == (CHANGED, {})
