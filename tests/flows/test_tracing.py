"""Spans from the client's request to the upstream's, and the context that holds them together (E-25)."""

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gateway import config
from gateway.support import access, logs, otel, tracing
from gateway.support.otel import OtelTracer
from tests.support.canaries import Canaries
from tests.support.collector import Collector, Span
from tests.support.legacy_client import LegacyClient
from tests.support.legacy_upstream import LegacyServer
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, hang, status, tool

TRACE, PARENT, OTHER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "c" * 32
CLIENTS = f"00-{TRACE}-{PARENT}-01"
TRANSPORTS = f"00-{OTHER}-{'d' * 16}-01"
RESOURCES = [{"uri": "a:1", "name": "one"}]


@asynccontextmanager
async def traced(**settings: Any) -> AsyncIterator[tuple[ScriptedUpstream, Running, Collector]]:
    """Run a gateway in front of one upstream; the members are those of `tracing`."""
    async with (
        Collector() as collector,
        ScriptedUpstream(tools=[tool("add")], resources=RESOURCES) as alpha,
        running({"alpha": alpha}, tracing={"baggage": settings.pop("baggage", [])}) as gateway,
    ):
        await collector.traced(**settings)
        yield alpha, gateway, collector


def only(spans: list[Span], kind: str, name: str) -> Span:
    (found,) = [span for span in spans if (span.kind, span.name) == (kind, name)]
    return found


async def test_a_call_is_a_span_of_the_client_s_trace_and_the_upstream_s_a_part_of_it():
    """In the message and in the headers, each naming the gateway's own span as the parent."""
    async with traced() as (alpha, gateway, collector):
        await gateway.ask("tools/call", {"name": "alpha__add"}, id=7, meta={"traceparent": CLIENTS})
        arrived = alpha.seen("tools/call")[0]
        spans = await collector.all()
    front = only(spans, "server", "tools/call alpha__add")
    call = only(spans, "client", "tools/call add")
    assert (front.trace, front.parent, front.links, front.failed) == (TRACE, PARENT, (), False)
    assert (call.trace, call.parent) == (TRACE, front.id)
    carried = f"00-{TRACE}-{call.id}-01"
    assert arrived.meta["traceparent"] == arrived.header("traceparent") == carried
    assert front.attributes == {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "alpha__add",
        "gen_ai.operation.name": "execute_tool",
        "jsonrpc.request.id": "7",
        "mcp.protocol.version": "2026-07-28",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "mcp_gateway.endpoint": "/mcp",
        "mcp_gateway.request.id": front.attributes["mcp_gateway.request.id"],
    }
    assert call.attributes == {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "add",
        "gen_ai.operation.name": "execute_tool",
        "mcp.protocol.version": "2026-07-28",
        "network.transport": "tcp",
        "mcp_gateway.upstream": "alpha",
    }
    assert 0 < call.seconds <= front.seconds


async def test_a_list_shows_what_the_cache_did():
    """A look that fetched has the fetch under it, the next one is an answer from memory."""
    async with traced() as (_, gateway, collector):
        await gateway.ask("resources/read", {"uri": "alpha+a:1"})
        await gateway.ask("resources/read", {"uri": "alpha+a:1"})
        spans = await collector.all()
    first, second = [span for span in spans if (span.kind, span.name) == ("server", "resources/read")]
    looks = {span.parent: span for span in spans if span.name == "cache resources/read"}
    said = {id: look.attributes["mcp_gateway.cache.result"] for id, look in looks.items()}
    assert said == {first.id: "miss", second.id: "hit"}
    fetch = only(spans, "client", "resources/read")
    assert (fetch.trace, fetch.parent) == (first.trace, looks[first.id].id)
    assert first.trace != second.trace
    assert (first.attributes["mcp_gateway.cache.result"], second.attributes["mcp_gateway.cache.result"]) == (
        "miss",
        "hit",
    )


async def test_what_the_message_says_goes_before_what_its_headers_say():
    """The former is about the request, the latter about its transport, and linked; alone it is the parent."""
    async with traced() as (_, gateway, collector):
        headers = {"traceparent": TRANSPORTS, "tracestate": "a=1"}
        await gateway.ask("server/discover", meta={"traceparent": CLIENTS}, headers=headers)
        await gateway.ask("server/discover", headers=headers)
        await gateway.ask("server/discover", meta={"traceparent": "00-0-0-0"}, headers={"traceparent": "x"})
        spans = await collector.all()
    both, outer, odd = [span for span in spans if span.kind == "server"]
    assert (both.trace, both.parent, both.links) == (TRACE, PARENT, (f"{OTHER}-{'d' * 16}",))
    assert (outer.trace, outer.parent, outer.links) == (OTHER, "d" * 16, ())
    assert odd.trace not in (TRACE, OTHER)
    assert (odd.parent, odd.links) == ("", ())


async def test_a_trace_that_its_caller_does_not_record_is_passed_on_and_not_recorded():
    """The upstream hears of it all the same."""
    async with traced() as (alpha, gateway, collector):
        await gateway.ask(
            "tools/call",
            {"name": "alpha__add"},
            meta={"traceparent": CLIENTS[:-1] + "0", "tracestate": "a=1"},
        )
        arrived = alpha.seen("tools/call")[0]
        assert await collector.all() == []
    assert arrived.meta["traceparent"].startswith(f"00-{TRACE}-")
    assert arrived.meta["traceparent"].endswith("-00")
    assert arrived.meta["tracestate"] == arrived.header("tracestate") == "a=1"


async def test_of_baggage_goes_on_what_is_allowed():
    """From the message, or from the headers where the message has none; in both, and without properties."""
    mixed = "tenant=a%20b;secret=1, user=ann,tenant2=x"
    async with traced(baggage=["tenant", "tenant2"]) as (alpha, gateway, _):
        call = ("tools/call", {"name": "alpha__add"})
        await gateway.ask(*call, meta={"baggage": mixed}, headers={"baggage": "tenant=other"})
        await gateway.ask(*call, headers={"baggage": mixed})
        await gateway.ask(*call, meta={"baggage": "user=ann"})
        await gateway.ask("resources/read", {"uri": "alpha+a:1"}, meta={"baggage": mixed})
        (kept,) = alpha.seen("resources/read")  # others may be given it
        assert ("baggage" in kept.meta, kept.header("baggage")) == (False, None)
        both = [(one.meta.get("baggage"), one.header("baggage")) for one in alpha.seen("tools/call")]
    assert both == [("tenant=a%20b,tenant2=x",) * 2, ("tenant=a%20b,tenant2=x",) * 2, (None, None)]


async def test_allowed_baggage_goes_on_without_tracing_too():
    """In the message, where it came in."""
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        running({"alpha": alpha}, tracing={"baggage": ["tenant"]}) as gateway,
    ):
        await gateway.ask(
            "tools/call",
            {"name": "alpha__add"},
            meta={"baggage": "tenant=a,user=ann", "traceparent": CLIENTS},
        )
        arrived = alpha.seen("tools/call")[0]
    assert (arrived.meta["baggage"], arrived.meta["traceparent"]) == ("tenant=a", CLIENTS)
    assert (arrived.header("baggage"), arrived.header("traceparent")) == (None, None)


async def test_failures_say_of_which_kind_they_are():
    """By the codes of JSON-RPC, or by what befell the upstream."""
    async with traced() as (alpha, gateway, collector):
        await gateway.ask("tools/call", {"name": "alpha__nothing"})
        alpha.on("tools/call", status(500))
        await gateway.ask("tools/call", {"name": "alpha__add"})
        spans = await collector.all()
    unknown, failed = [span for span in spans if span.kind == "server"]
    assert (unknown.name, unknown.failed) == ("tools/call", True)
    assert unknown.attributes["error.type"] == unknown.attributes["rpc.response.status_code"] == "-32602"
    assert (failed.failed, failed.attributes["error.type"]) == (True, "unavailable")
    call = only(spans, "client", "tools/call add")
    assert (call.failed, call.attributes["error.type"]) == (True, "status")


async def test_a_listen_is_one_span_whatever_is_told():
    """It ends with the stream, and those that follow an upstream for everybody have none."""
    async with traced() as (alpha, gateway, collector):
        wanted = {"notifications": {"toolsListChanged": True}}
        async with gateway.open("subscriptions/listen", wanted) as listen:
            await listen.event()
            for number in range(3):
                alpha.tools.append(tool(f"t{number}"))
                await alpha.notify("notifications/tools/list_changed")
                await listen.event()
            listen.leave()
            await gateway.subscribed(0)
            await gateway.busy(0)
        spans = await collector.all()
    (span,) = [span for span in spans if span.attributes["mcp.method.name"] == "subscriptions/listen"]
    assert (span.kind, span.attributes["error.type"]) == ("server", "cancelled")


async def test_older_clients_and_servers_are_part_of_a_trace():
    """Context comes in `_meta` there, too; of a session there is a keyed hash."""
    server = LegacyServer(tools=[tool("see")])
    async with Collector() as collector, server, running({"beta": {"url": server.url}}) as gateway:
        await collector.traced()
        async with LegacyClient(gateway.addresses.endpoints[0], "2025-06-18") as client:
            await client.ask("tools/call", {"name": "beta__see", "_meta": {"traceparent": CLIENTS}})
            session = client.session
        (arrived,) = server.seen("tools/call")
        spans = await collector.all()
    front = only(spans, "server", "tools/call beta__see")
    call = only(spans, "client", "tools/call see")
    assert (front.trace, front.parent, call.parent) == (TRACE, PARENT, front.id)
    carried = f"00-{TRACE}-{call.id}-01"
    assert arrived.meta["traceparent"] == arrived.header("traceparent") == carried
    assert front.attributes["mcp.protocol.version"] == "2025-06-18"
    hashed = front.attributes["mcp.session.id"]
    assert hashed
    assert session is not None
    assert hashed not in session
    assert session not in collector.raw.decode("latin-1")
    assert "initialize" in {span.name for span in spans}


async def test_a_line_of_the_log_names_its_trace():
    """So that one leads to the other."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure(config.Log(format="json"), stream=stream)
    try:
        async with traced() as (_, gateway, _):
            await gateway.ask("server/discover", meta={"traceparent": CLIENTS})
            await gateway.busy(0)
            logs.flush()
            lines = map(json.loads, stream.getvalue().splitlines())
            assert [line["trace"] for line in lines if line["logger"] == "gateway.access"] == [TRACE]
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        access.use(None)


async def test_no_secret_and_no_content_is_in_any_span():
    """Nor in what names its resource; what the collector is shown stays in the header."""
    secrets = Canaries()
    headers = {"Authorization": secrets["collector"]}
    async with traced(headers=headers) as (_, gateway, collector):
        for token in (secrets["token"], None):
            arguments = {"a": secrets["argument"]}
            await gateway.ask("tools/call", {"name": "alpha__add", "arguments": arguments}, token=token)
            await gateway.ask("tools/call", {"name": secrets["name"]}, token=token, id=f"{secrets['id']} x")
            await gateway.ask("resources/read", {"uri": f"alpha+a:{secrets['uri']}"}, token=token)
            await gateway.ask("tools/list", headers={"baggage": f"a={secrets['baggage']}"})
        assert len(await collector.all()) > 8
        assert {one["Authorization"] for one in collector.headers} == {secrets["collector"]}
        assert secrets.seen_in(collector.raw) == []
        assert collector.resource["service.name"] == "mcp-gateway"


async def test_a_collector_that_hangs_holds_up_no_request_and_not_the_end():
    """Spans beyond the queue are dropped, and the last ones waited for no longer than a moment."""
    async with traced() as (_, gateway, collector):
        collector.held.clear()
        for _ in range(30):
            assert (await gateway.ask("tools/list")).status == 200
        await tracing.close()  # within its own bound
        assert collector.spans == []
        assert not tracing.on()


@asynccontextmanager
async def answering(answer: Any) -> AsyncIterator[str]:
    """Run a collector that reads a head, and answers as it likes."""

    open_ones: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        await tracing.close()
        server.close()
        for writer in open_ones:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def trace_one(url: str) -> None:
    """Have one request traced to a collector."""
    async with ScriptedUpstream(tools=[tool("add")]) as alpha, running({"alpha": alpha}) as gateway:
        tracing.use(await asyncio.to_thread(OtelTracer, config.Tracing(otlp=url), version="1"))
        await gateway.ask("tools/list")
        await tracing.close()


async def test_a_collector_that_answers_without_end_is_not_listened_to():
    """Its status is all that counts."""
    left = asyncio.Event()

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
                await writer.drain()
        finally:
            left.set()

    async with answering(endless) as url:
        await trace_one(url)
        await left.wait()


async def test_a_collector_that_never_ends_its_head_is_given_up(monkeypatch, caplog):
    """And the log says so."""
    monkeypatch.setattr(otel, "_PATIENCE", 0.2)
    monkeypatch.setattr(otel, "_LAST", 20.0)

    async def trickling(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)  # which is what it does

    async with answering(trickling) as url:
        await trace_one(url)
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_spans_and_their_headers_go_to_the_collector_alone():
    """Wherever it says that they belong."""
    async with Collector() as other:

        async def elsewhere(writer: asyncio.StreamWriter) -> None:
            place = f"{other.url}/v1/traces".encode()
            writer.write(b"HTTP/1.1 307 There\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

        async with answering(elsewhere) as url:
            await trace_one(url)
        assert other.raw == b""


async def test_a_client_that_leaves_ends_the_spans_of_its_call():
    """None stays open."""
    async with traced() as (alpha, gateway, collector):
        alpha.on("tools/call", hang())
        async with gateway.open("tools/call", {"name": "alpha__add"}) as exchange:
            await alpha.arrived("tools/call")
            exchange.leave()
        await gateway.busy(0)
        spans = await collector.all()
    assert only(spans, "client", "tools/call add").attributes["error.type"] == "cancelled"
    assert only(spans, "server", "tools/call alpha__add").attributes["error.type"] == "cancelled"


@pytest.mark.parametrize("module", ["gateway.app", "gateway.cli", "gateway.runtime"])
def test_nothing_of_opentelemetry_is_imported_unless_it_is_configured(module: str):
    """Whoever does not trace does not pay for it."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    # The client of Redis looks for the interface of its metrics by itself.
    assert not {"gateway.support.otel", "opentelemetry.sdk.trace", "opentelemetry.exporter"} & {
        *done.stdout.split()
    }
