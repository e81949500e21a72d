"""Upstreams that die, hang, come back, or never were modern; limits, cancellation and many at once."""

import asyncio
import json
import logging
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway import config
from gateway.protocol.call import Change, Reason, UpstreamUnavailable
from gateway.upstream.pool import Pace, TimedOut
from tests.support.pools import ALPHA, QUICK, running, settings
from tests.support.scripted import (
    ScriptedUpstream,
    answer,
    cut,
    error,
    event,
    hang,
    progress,
    result,
    sse,
    status,
    token,
    tool,
)

RECONNECT = Change(ALPHA, cause="reconnect")
ONCE = Pace(first=60.0, longest=60.0, patience=2.0, gap=60.0)
"""One probe, then none for the length of a test."""


# Probes


async def test_the_first_probe_tells_what_the_upstream_is():
    """server/discover at start; the answer is kept for the merged discover."""
    async with ScriptedUpstream() as upstream:
        upstream.instructions = "hi"
        async with running(alpha=upstream) as gateway:
            status = gateway.pool.status(ALPHA)
            assert (status.state, status.era, status.version) == ("up", "modern", "2026-07-28")
            assert status.discovered.instructions == "hi"
            assert json.loads(status.discovered.capabilities["tools"]) == {"listChanged": True}
            assert gateway.pool.all_tried
            assert gateway.changes.empty()
            assert repr(gateway.pool) == "<UpstreamPool [alpha: modern, 0 active]>"
            assert await gateway.counted('mcp_gateway_upstream_up{upstream="alpha"}') == 1


@pytest.mark.parametrize(
    "answered",
    [error(-32601, http=404), error(-32600, http=400, id="server-error"), status(404), status(405)],
)
async def test_an_upstream_that_speaks_no_known_version_is_down_with_a_clear_reason(answered):
    """It is not modern, and shakes no hands either; calls say why they fail (U-16, U-18)."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("server/discover", answered)
        upstream.on("initialize", answered)
        async with running(alpha=upstream, pace=ONCE) as gateway:
            known = gateway.pool.status(ALPHA)
            assert (known.state, known.era, known.last_error) == ("down", None, Reason.ERA)
            assert "to server/discover: it does not speak 2026-07-28" in known.detail
            assert "it refuses initialize" in known.detail
            assert not gateway.pool.available(ALPHA)
            with pytest.raises(UpstreamUnavailable) as caught:
                await gateway.tool()
            assert str(caught.value) == "upstream alpha: no common protocol version"
            assert upstream.seen("tools/call") == []


@pytest.mark.parametrize("answered", [status(500, b"<html>", "text/html"), status(503), status(401), cut()])
async def test_a_first_connect_that_failed_is_tried_again(answered):
    """It says nothing about the era; once it works, whatever was assumed is stale (U-17, B01)."""
    async with ScriptedUpstream() as upstream:
        upstream.on("server/discover", answered)
        async with running(alpha=upstream) as gateway:
            assert gateway.pool.status(ALPHA).state == "down"
            upstream.reset()
            assert await gateway.changes.get() == RECONNECT
            assert gateway.pool.available(ALPHA)


async def test_an_upstream_with_forwarded_credentials_is_up_without_ours():
    """The gateway has no credential to probe with: 401 means somebody is there (B15)."""
    async with ScriptedUpstream() as upstream:
        upstream.on("server/discover", status(401, WWW_Authenticate="Bearer"))
        async with running(alpha=settings(upstream, auth=config.Auth(kind="forward"))) as gateway:
            assert gateway.pool.status(ALPHA).state == "up"


# Death and return


async def test_an_upstream_that_dies_is_skipped_and_found_again():
    """Down at the first refused connection, up by itself, and then its cached answers are doubted (C-30)."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        await gateway.tool()
        await upstream.stop()
        for _ in range(2):  # the first may meet a connection that is just being closed
            with pytest.raises(UpstreamUnavailable) as caught:
                await gateway.tool()
            assert caught.value.reason in (Reason.CONNECT, Reason.DOWN)
        assert not gateway.pool.available(ALPHA)
        assert repr(gateway.pool) == "<UpstreamPool [alpha: down, connect]>"
        assert await gateway.counted('mcp_gateway_upstream_up{upstream="alpha"}') == 0
        await upstream.start()
        assert await gateway.changes.get() == RECONNECT
        await gateway.tool()


async def test_a_call_to_a_dead_upstream_has_it_probed_at_once():
    """Nobody waits for the back-off to learn that the upstream is back."""
    slow = Pace(first=60.0, longest=60.0, patience=5.0, gap=0.0)
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        await upstream.stop()
        async with running(alpha=upstream, pace=slow) as gateway:
            with pytest.raises(UpstreamUnavailable) as caught:
                await gateway.tool()
            assert str(caught.value) == "upstream alpha: currently down"
            await upstream.start()
            await gateway.tool()


async def test_a_down_upstream_answers_in_no_time():
    """Right after a probe failed there is no second one: the error is immediate (B01)."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("server/discover", status(500))
        async with running(alpha=upstream, pace=ONCE) as gateway:
            for _ in range(20):
                with pytest.raises(UpstreamUnavailable):
                    await gateway.call("tools/list")
            assert len(upstream.requests) == 1


async def test_one_bad_upstream_does_not_touch_another():
    """One hangs, one refuses, one answers 500: calls to the healthy one go through (B01)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as good,
        ScriptedUpstream() as hanging,
        ScriptedUpstream() as gone,
    ):
        hanging.on("*", hang())
        await gone.stop()
        async with running(alpha=good, beta=settings(hanging, timeout=0.2), gamma=gone, pace=ONCE) as gateway:
            waiting = [asyncio.create_task(gateway.tool(upstream="beta")) for _ in range(5)]
            await gateway.tool()
            assert not gateway.pool.available("gamma")
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(outcome, UpstreamUnavailable)


async def test_a_list_given_up_makes_its_upstream_suspect(monkeypatch):
    """An upstream that hangs is found out by a probe, so that the next list skips it at once (B01)."""
    monkeypatch.setattr("gateway.upstream.member._SUSPICIOUS_SILENCE", 0.0)
    async with ScriptedUpstream() as upstream, running(alpha=settings(upstream, timeout=0.2)) as gateway:
        upstream.on("*", hang())
        listing = asyncio.create_task(gateway.call("tools/list"))
        await upstream.arrived("tools/list")
        listing.cancel()
        for _ in range(3):  # at start, on suspicion, and again since that one failed
            await upstream.arrived("server/discover")
        assert not gateway.pool.available(ALPHA)
        upstream.reset()
        assert await gateway.changes.get() == RECONNECT


async def test_retry_after_is_waited_for():
    """A busy upstream is asked again when it says so (U-27)."""
    async with ScriptedUpstream() as upstream, running(alpha=upstream) as gateway:
        upstream.once("tools/list", status(503, Retry_After="0"), status(429))
        await gateway.call("tools/list")
        assert len(upstream.seen("tools/list")) == 3
        upstream.once("tools/list", status(503, Retry_After="3600"))
        with pytest.raises(UpstreamUnavailable) as caught:
            await gateway.call("tools/list")
        assert caught.value.reason is Reason.STATUS


async def test_a_dying_upstream_is_one_line_in_the_log(caplog):
    """And no line holds the query of its URL (B42)."""
    caplog.set_level(logging.DEBUG)
    async with ScriptedUpstream() as upstream:
        url = upstream.url + "?api_key=K3Y"
        await upstream.stop()
        async with running(alpha=settings(url)) as gateway:
            for _ in range(5):
                with pytest.raises(UpstreamUnavailable):
                    await gateway.call("tools/list")
    down = [record for record in caplog.records if "alpha: down" in record.getMessage()]
    assert len(down) == 1
    assert "K3Y" not in caplog.text


# Limits (B19)


async def test_silence_ends_a_call():
    """The error names upstream, tool and limit, and the upstream's response is closed."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("tools/call", hang())
        async with running(alpha=settings(upstream, timeout=0.1)) as gateway:
            with pytest.raises(TimedOut) as caught:
                await gateway.tool()
            assert str(caught.value) == (
                "upstream alpha: tools/call a got no answer in time (timeout of 0.1s without progress)"
            )
            assert caught.value.reason is Reason.TIMEOUT
            await (await upstream.arrived("tools/call")).closed.wait()
            assert gateway.pool.available(ALPHA)


async def test_progress_keeps_a_call_alive_and_comments_do_not():
    """Each report starts the silence anew; a keep-alive comment is no sign of work."""

    async def reporting(exchange):
        reports = [event(progress(token(exchange), n)) for n in range(6)]
        steps = [step for report in reports for step in (report, Pause(0.1))]
        await paced(exchange, [*steps, answer({"ok": 1})(exchange)])

    async def pinging(exchange):
        await paced(exchange, [b": ping\n\n", Pause(0.1)] * 60)

    async with (
        ScriptedUpstream(tools=[tool("a")]) as upstream,
        running(alpha=settings(upstream, timeout=0.3)) as gateway,
    ):
        upstream.once("tools/call", reporting, pinging)
        assert json.loads(await gateway.tool(wants_progress=True))["ok"] == 1
        assert len(gateway.notices) == 6
        with pytest.raises(TimedOut):
            await gateway.tool(wants_progress=True)


async def test_a_tool_that_reports_for_ever_is_ended():
    """max_timeout is absolute."""

    async def forever(exchange):
        number = 0
        while True:
            number += 1
            steps = [event(progress(token(exchange), number)), Pause(0.02)]
            await paced(exchange, steps)

    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("tools/call", forever)
        async with running(alpha=settings(upstream, timeout=0.2, max_timeout=0.4)) as gateway:
            with pytest.raises(TimedOut, match=r"max_timeout of 0\.4s"):
                await gateway.tool(wants_progress=True)
            await (await upstream.arrived("tools/call")).closed.wait()


class Pause:
    """A step whose subject is time passing."""

    def __init__(self, seconds):
        self.seconds = seconds


async def paced(exchange, steps):
    """Write a stream slowly; goes on with it when called again."""
    response = exchange.response
    if response is None:
        response = exchange.response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(exchange.request)
    for step in steps:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        else:
            await response.write(step)


# Cancellation (B21)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_cancelled_call_closes_its_response_at_once(streaming):
    """Before the headers and in the middle of a stream; nothing stays behind."""
    never = asyncio.Event()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        behaviour = sse(lambda exchange: event(progress(token(exchange), 1)), never) if streaming else hang()
        upstream.on("tools/call", behaviour)
        call = asyncio.create_task(gateway.tool(wants_progress=True))
        seen = await upstream.arrived("tools/call")
        await gateway.told(1 if streaming else 0)
        assert gateway.pool.status(ALPHA).active == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await seen.closed.wait()
        assert gateway.pool.status(ALPHA).active == 0
        assert await gateway.counted('mcp_gateway_streams_open{side="upstream"}') == 0


async def test_a_caller_that_cannot_be_told_ends_the_call():
    """What emit raises comes out as it is, is no upstream failure, and closes the response."""

    async def gone(notice):
        raise ConnectionResetError("the client left")

    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        upstream.on("tools/call", sse(lambda exchange: event(progress(token(exchange), 1)), asyncio.Event()))
        gateway.emit = gone
        with pytest.raises(ConnectionResetError):
            await gateway.tool(wants_progress=True)
        await (await upstream.arrived("tools/call")).closed.wait()


# Many at once


async def test_a_hundred_open_streams_leave_room_for_a_quick_call():
    """Streams do not count among the calls of an upstream, whatever `connections` says."""
    go = asyncio.Event()
    async with (
        ScriptedUpstream(tools=[tool("a"), tool("quick")]) as upstream,
        running(alpha=settings(upstream, connections=2)) as gateway,
    ):
        upstream.on("tools/call", sse(lambda exchange: event(progress(token(exchange), 1)), go, answer({})))
        streams = [asyncio.create_task(gateway.tool(wants_progress=True)) for _ in range(100)]
        await gateway.told(100)
        assert await gateway.counted('mcp_gateway_streams_open{side="upstream"}') == 100
        upstream.once("tools/call", result({"content": []}))
        await gateway.tool("quick")
        go.set()
        await asyncio.gather(*streams)


async def test_calls_beyond_the_limit_wait_their_turn():
    """`connections` bounds what an upstream works on at once."""
    go = asyncio.Event()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as upstream,
        running(alpha=settings(upstream, connections=2)) as gateway,
    ):
        upstream.on("tools/call", hang(go, then=result({})))
        calls = [asyncio.create_task(gateway.tool()) for _ in range(5)]
        await upstream.arrived("tools/call")
        await upstream.arrived("tools/call")
        assert gateway.pool.status(ALPHA).active == 2
        go.set()
        await asyncio.gather(*calls)
        assert len(upstream.seen("tools/call")) == 5


# Trust (B49)


def certificate(folder, name, *, days=1):
    """Write a self-signed certificate for 127.0.0.1 and its key; return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{name}-{days}.pem", folder / f"{name}-{days}.key"
    cert_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(cert_file), str(key_file)


def served(pair, *, client_ca=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


async def test_a_private_authority_is_trusted_when_named(tmp_path):
    """ca_file and server_name; without them the error says which check failed."""
    pair = certificate(tmp_path, "inner.example")
    async with ScriptedUpstream(ssl_context=served(pair)) as upstream:
        named = config.Tls(ca_file=pair[0], server_name="inner.example")
        async with running(
            alpha=settings(upstream, tls=named),
            beta=settings(upstream),
            gamma=settings(upstream, tls=config.Tls(insecure_skip_verify=True)),
            pace=ONCE,
        ) as gateway:
            assert gateway.pool.status("alpha").state == "up"
            assert gateway.pool.status("gamma").state == "up"
            distrusted = gateway.pool.status("beta")
            assert distrusted.last_error is Reason.CONNECT
            assert distrusted.detail.startswith("TLS: certificate verify failed: self-signed certificate; ")
            assert "`ca_file`" in distrusted.detail
            with pytest.raises(UpstreamUnavailable) as told:
                await gateway.call("tools/list", upstream="beta")
            assert "certificate" not in str(told.value)


async def test_an_expired_certificate_is_named_as_such(tmp_path):
    """Trusted, but too old."""
    pair = certificate(tmp_path, "inner.example", days=-1)
    async with ScriptedUpstream(ssl_context=served(pair)) as upstream:
        tls = config.Tls(ca_file=pair[0], server_name="inner.example")
        async with running(alpha=settings(upstream, tls=tls), pace=ONCE) as gateway:
            detail = gateway.pool.status(ALPHA).detail
            assert detail == "TLS: certificate verify failed: certificate has expired"


async def test_a_name_that_the_certificate_does_not_hold_is_told(tmp_path):
    """The URL's, unless server_name is another."""
    pair = certificate(tmp_path, "inner.example")
    async with ScriptedUpstream(ssl_context=served(pair)) as upstream:
        trust = {"ca_file": pair[0]}
        async with running(
            alpha=settings(upstream, tls=config.Tls(**trust)),
            beta=settings(upstream, tls=config.Tls(**trust, server_name="other.example")),
            pace=ONCE,
        ) as gateway:
            assert "certificate is not valid for '127.0.0.1'" in gateway.pool.status("alpha").detail
            assert "certificate is not valid for 'other.example'" in gateway.pool.status("beta").detail


async def test_https_where_there_is_http_is_told():
    """And the other way round it is no HTTP."""
    async with ScriptedUpstream() as upstream:
        wrong = settings(upstream.url.replace("http:", "https:"))
        async with running(alpha=wrong, pace=ONCE) as gateway:
            assert gateway.pool.status(ALPHA).detail == "TLS: it speaks no TLS there"


async def test_a_client_certificate_is_shown(tmp_path):
    """mTLS works with client_cert and client_key, and is refused without."""
    server, client = certificate(tmp_path, "inner.example"), certificate(tmp_path, "gw.example")
    async with ScriptedUpstream(ssl_context=served(server, client_ca=client[0])) as upstream:
        trust = {"ca_file": server[0], "server_name": "inner.example"}
        async with running(
            alpha=settings(upstream, tls=config.Tls(**trust, client_cert=client[0], client_key=client[1])),
            beta=settings(upstream, tls=config.Tls(**trust)),
            pace=ONCE,
        ) as gateway:
            assert gateway.pool.status("alpha").state == "up"
            assert gateway.pool.status("beta").state == "down"


async def test_a_proxy_is_used_when_configured():
    """An http upstream is asked through it; loopback is not led there by the environment."""
    async with ScriptedUpstream() as proxy, ScriptedUpstream() as upstream:
        environ = {"http_proxy": proxy.origin}
        async with running(
            alpha=settings("http://upstream.invalid/mcp", proxy=proxy.origin),
            beta=settings("http://elsewhere.invalid/mcp", trust_env=True),
            gamma=settings(upstream, trust_env=True),
            environ=environ,
            pace=QUICK,
        ) as gateway:
            assert [gateway.pool.status(name).state for name in ("alpha", "beta", "gamma")] == ["up"] * 3
            hosts = {request.header("host") for request in proxy.requests}
            assert hosts == {"upstream.invalid", "elsewhere.invalid"}


@pytest.mark.parametrize("by", ["setting", "environment"])
async def test_an_https_upstream_is_reached_through_a_tunnel(tmp_path, by):
    """The proxy sees where to, and nothing of what is said."""
    asked = []

    async def tunnel(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b"\r\n")[0])
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", inner)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as both:
            both.create_task(pumped(reader, inner_writer))
            both.create_task(pumped(inner_reader, writer))

    async def pumped(source, sink):
        while data := await source.read(2**16):
            sink.write(data)
        sink.close()

    pair = certificate(tmp_path, "inner.example")
    async with ScriptedUpstream(ssl_context=served(pair)) as upstream:
        inner = int(upstream.origin.rpartition(":")[2])
        proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        place = f"http://127.0.0.1:{port}"
        away = settings(
            f"https://inner.example:{inner}/mcp",
            tls=config.Tls(ca_file=pair[0]),
            **({"proxy": place} if by == "setting" else {"trust_env": True}),
        )
        environ = {"HTTPS_PROXY": place, "NO_PROXY": ".svc,10.0.0.0/8"}
        async with proxy, running(alpha=away, environ=environ, pace=ONCE) as gateway:
            assert gateway.pool.status(ALPHA).state == "up"
            await gateway.call("tools/list")
    assert set(asked) == {f"CONNECT inner.example:{inner} HTTP/1.1".encode()}


async def test_a_closed_pool_has_no_connections_and_no_tasks():
    """Close ends probes, connections and running calls' hopes."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream, running(alpha=upstream) as gateway:
        await gateway.tool()
        upstream.on("*", hang())
        running_call = asyncio.create_task(gateway.call("tools/list"))
        await upstream.arrived("tools/list")
        await gateway.pool.close()
        for call in (running_call, gateway.tool()):
            with pytest.raises(UpstreamUnavailable) as caught:
                await call
            assert caught.value.reason is Reason.STOPPING
        assert repr(gateway.background) == "<Background []>"
