"""TLS on the endpoints' listener: what clients are shown, what they must show, and files that change."""

import asyncio
import logging
import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509

from gateway import config
from gateway.front.tls import ListenerTls, shown_certificate
from gateway.protocol.call import Answer, Call, Emit, Principal
from gateway.support.metrics import Metrics
from tests.support.certificates import Authority, Pair
from tests.support.front import Answers, Client, Serving, answer, post, progress, serving
from tests.support.running import running
from tests.support.scripted import ScriptedUpstream


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Pair:
    return authority.issue("127.0.0.1")


def shows(pair: Pair, **others: Any) -> dict[str, Any]:
    """Return the setting `tls` of a gateway with this certificate."""
    return {"cert_file": str(pair.certificate), "key_file": str(pair.key), **others}


def trusting(authority: Authority, client: Pair | None = None, **versions: ssl.TLSVersion) -> ssl.SSLContext:
    """Return what a client verifies the gateway with, and the certificate it shows itself."""
    context = ssl.create_default_context(cafile=authority.file)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    for name, version in versions.items():
        setattr(context, f"{name}_version", version)
    return context


async def serial(gateway: Serving, context: ssl.SSLContext) -> int:
    """Connect anew, and return which certificate is shown."""
    async with gateway.connect(ssl=context) as client:
        return serial_of(client)


def serial_of(client: Client) -> int:
    shown = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(shown).serial_number


def serial_in(pair: Pair) -> int:
    return x509.load_der_x509_certificate(pair.der).serial_number


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(15):
        while not true():  # noqa: ASYNC110  # a thread reads the files, and tells nobody
            await asyncio.sleep(0.002)


async def test_every_address_says_https_and_answers_so(authority: Authority, server: Pair) -> None:
    """The whole gateway: as announced, and to a request of a web page from there."""
    async with ScriptedUpstream() as upstream, running({"a": upstream}, tls=shows(server)) as gateway:
        address = gateway.addresses.endpoints[0]
        assert address.startswith("https://127.0.0.1:")
        port = int(address.split(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(authority))
        client = Client(reader, writer)
        client.send(post("tools/list", origin=address.removesuffix("/mcp")))
        reply = await client.reply()
        writer.transport.abort()
        assert reply.status == 200
        assert reply.json["result"]["tools"] == []


async def test_versions_and_protocols(authority: Authority, server: Pair) -> None:
    """Nothing older than min_version, and http/1.1 is agreed on (RFC 7301)."""
    old = trusting(authority, maximum=ssl.TLSVersion.TLSv1_2)
    async with serving(Answers(), tls=shows(server)) as gateway:
        offered = trusting(authority)
        offered.set_alpn_protocols(["h2", "http/1.1"])
        async with gateway.connect(ssl=offered) as client:
            agreed = client.writer.get_extra_info("ssl_object")
            assert (agreed.version(), agreed.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
        async with gateway.connect(ssl=old) as client:
            assert client.writer.get_extra_info("ssl_object").version() == "TLSv1.2"
    async with serving(Answers(), tls=shows(server, min_version="1.3")) as gateway:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await serial(gateway, old)
        assert await gateway.counted("rejected_total") == [
            'rejected_total{endpoint="other",reason="tls"} 1.0'
        ]


async def test_what_is_no_tls_is_hung_up_on(authority: Authority, server: Pair) -> None:
    """Plain HTTP gets no answer in the clear, and the next client is served."""
    async with serving(Answers(), tls=shows(server)) as gateway:
        async with gateway.connect() as client:
            client.send(post())
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.reply()
        assert await serial(gateway, trusting(authority)) == serial_in(server)


async def test_who_does_not_begin_a_handshake_is_hung_up_on(server: Pair) -> None:
    """After `limits.request_head`, as with the head of a request."""
    async with (
        serving(Answers(), tls=shows(server), limits={"request_head": 0.1}) as gateway,
        gateway.connect() as client,
        asyncio.timeout(15),
    ):
        assert await client.hung_up()


async def test_handshakes_count_as_connections(authority: Authority, server: Pair) -> None:
    """Who opens connections and says nothing takes no more of them than anybody else may."""
    limits = {"connections": 2, "request_head": 60.0}
    context = trusting(authority)
    async with serving(Answers(), tls=shows(server), limits=limits) as gateway, asyncio.timeout(15):
        async with gateway.connect(), gateway.connect(ssl=context) as client:
            client.send(post())
            assert (await client.reply()).status == 200
            assert await status(gateway, context) is None
        while await status(gateway, context) != 200:
            pass


async def test_a_handshake_takes_the_place_of_an_idle_connection(authority: Authority, server: Pair) -> None:
    """As connections without TLS do; the one that has been idle longest goes."""
    context = trusting(authority)
    async with (
        serving(Answers(), tls=shows(server), limits={"connections": 2}) as gateway,
        gateway.connect(ssl=context) as one,
        gateway.connect(ssl=context) as two,
        asyncio.timeout(15),
    ):
        for client in (one, two):
            client.send(post())
            assert (await client.reply()).status == 200
        assert await status(gateway, context) == 200
        assert await one.hung_up()
        two.send(post())
        assert (await two.reply()).status == 200
        assert await gateway.counted('rejected_total{endpoint="other",reason="idle"} 1')


async def test_a_client_cannot_renegotiate(authority: Authority, server: Pair) -> None:
    """Openssl, a client that can, is refused: each costs the server far more than the client."""
    async with serving(Answers(), tls=shows(server)) as gateway:
        host, port = gateway.addresses[0]
        openssl = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2", "-CAfile", str(authority.file)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert openssl.stdin is not None
        assert openssl.stdout is not None
        said = await openssl.stdout.readuntil(b"Verify return code: 0 (ok)")
        openssl.stdin.write(b"R\n")
        said += await openssl.stdout.read()
        await openssl.wait()
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said


# Files that change


async def test_a_new_certificate_is_shown_to_new_connections(
    authority: Authority, server: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The old one stays with the connections that began with it, whose requests go on."""
    caplog.set_level(logging.INFO, "gateway.front.tls")
    context, before = trusting(authority), serial_in(server)
    async with (
        serving(Answers(), tls=shows(server, reload=0.01)) as gateway,
        gateway.connect(ssl=context) as client,
    ):
        assert serial_of(client) == before
        replace(server, authority.issue("127.0.0.1", file="next"))
        await until(lambda: "read again" in caplog.text)
        assert await serial(gateway, context) == serial_in(server) != before
        client.send(post())
        assert (await client.reply()).status == 200
        assert serial_of(client) == before


async def test_a_broken_pair_leaves_the_old_one(
    authority: Authority, server: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, with the file, until the pair is whole."""
    caplog.set_level(logging.INFO, "gateway.front.tls")
    context, before = trusting(authority), serial_in(server)
    following = authority.issue("127.0.0.1", file="next")
    async with serving(Answers(), tls=shows(server, reload=0.01)) as gateway:
        shutil.copy(following.certificate, server.certificate)  # and the key not yet
        await until(lambda: "does not belong to the certificate" in caplog.text)
        assert await serial(gateway, context) == before
        server.key.unlink()
        await until(lambda: "No such file" in caplog.text)
        assert await serial(gateway, context) == before
        shutil.copy(following.key, server.key)
        await until(lambda: "read again" in caplog.text)
        assert await serial(gateway, context) == serial_in(following)
    assert caplog.text.count("does not belong") == 1
    assert str(server.key) in caplog.text
    assert "PRIVATE" not in caplog.text


async def test_an_authority_that_is_taken_away_counts_no_more(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    """Not even for a client that resumes a session of before, which holds its certificate."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    alice, trusted = other.issue("alice"), tmp_path / "clients.pem"
    shutil.copy(other.file, trusted)
    tls = shows(server, client_ca_file=str(trusted), client_certificates="required", reload=0.01)
    context = trusting(authority, alice, maximum=ssl.TLSVersion.TLSv1_2)
    async with serving(Answers(), tls=tls) as gateway:
        async with gateway.connect(ssl=context) as client:
            client.send(post())
            assert (await client.reply()).status == 200
            session = client.writer.get_extra_info("ssl_object").session
        shutil.copy(authority.file, trusted)
        metrics = gateway.metrics
        async with asyncio.timeout(15):
            while 'reason="certificate"' not in (await asyncio.to_thread(metrics.render)).decode():
                with pytest.raises((ssl.SSLError, ConnectionError, TookIt)):
                    await asyncio.to_thread(resumed, gateway.addresses[0], context, session)


class TookIt(Exception):
    """The gateway let a client in; the files were not read again yet."""


def hear_out(address: tuple[str, int], context: ssl.SSLContext | None) -> None:
    """Connect, and wait until the other side hangs up."""
    with socket.create_connection(address, timeout=15) as plain:
        if context is None:
            plain.recv(1)
            return
        with context.wrap_socket(plain, server_hostname=address[0]) as wrapped:
            wrapped.recv(1)


def resumed(address: tuple[str, int], context: ssl.SSLContext, session: Any) -> None:
    """Connect as a client that was here before."""
    with (
        socket.create_connection(address, timeout=15) as plain,
        context.wrap_socket(plain, server_hostname=address[0], session=session) as wrapped,
    ):
        wrapped.sendall(post())
        if wrapped.recv(1):
            raise TookIt


# Certificates of clients


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_who_must_show_a_certificate_and_has_none_gets_no_answer(
    authority: Authority, server: Pair, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Nor with one of another authority, or one that has ended; an `optional` one may be missing, not bad."""
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "other").issue("mallory")
    late = authority.issue("late", days=-0.01)
    tls = shows(server, client_ca_file=str(authority.file))
    outcomes: dict[str, list[int | None]] = {}
    for demand in ("required", "optional"):
        pipeline = Answers()
        async with serving(pipeline, tls={**tls, "client_certificates": demand}) as gateway:
            for pair in (authority.issue("alice"), None, stranger, late):
                context = trusting(authority, pair, maximum=version, minimum=version)
                outcomes.setdefault(demand, []).append(await status(gateway, context))
            refused = await gateway.counted("rejected_total")
        assert len(pipeline.calls) == sum(one == 200 for one in outcomes[demand])
        assert refused == [
            f'rejected_total{{endpoint="other",reason="certificate"}} {outcomes[demand].count(None)}.0'
        ]
    assert outcomes == {"required": [200, None, None, None], "optional": [200, 200, None, None]}


async def test_a_revoked_certificate_counts_no_more(
    authority: Authority, server: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a list that names it stands in the file of authorities; the others' do."""
    caplog.set_level(logging.INFO, "gateway.front.tls")
    alice, bob = (authority.issue(name) for name in ("alice", "bob"))
    trusted = tmp_path / "clients.pem"
    shutil.copy(authority.file, trusted)
    tls = shows(server, client_ca_file=str(trusted), client_certificates="required", reload=0.01)
    async with serving(Answers(), tls=tls) as gateway:
        assert await status(gateway, trusting(authority, alice)) == 200
        trusted.write_bytes(authority.file.read_bytes() + authority.revoke(alice))
        await until(lambda: "read again" in caplog.text)
        assert f"{trusted} was read again" in caplog.text
        assert "the certificate was read again" not in caplog.text
        assert await status(gateway, trusting(authority, alice)) is None
        assert await status(gateway, trusting(authority, bob)) == 200
        assert await gateway.counted("rejected_total") == [
            'rejected_total{endpoint="other",reason="certificate"} 1.0'
        ]


async def status(gateway: Serving, context: ssl.SSLContext) -> int | None:
    """Make a request on a connection of its own; None where there is no answer."""
    try:
        async with gateway.connect(ssl=context) as client, asyncio.timeout(15):
            client.send(post())
            return (await client.reply()).status
    except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
        return None


BOTH_LOOPS = pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@BOTH_LOOPS
def test_a_handshake_that_is_left_alone_takes_room(
    authority: Authority, server: Pair, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """On either event loop; the room is there again once the connection is gone."""
    metrics = Metrics()
    tls = ListenerTls(config.ServerTls(**shows(server)), metrics, has_room=lambda handshakes: handshakes < 1)
    context = trusting(authority)

    class Closes(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    def come(address: tuple[str, int]) -> None:
        with socket.create_connection(address, timeout=15):
            while True:  # until the gateway has taken the connection of who says nothing
                try:
                    hear_out(address, context)
                except (ssl.SSLError, ConnectionError):
                    break
        while True:
            try:
                return hear_out(address, context)
            except (ssl.SSLError, ConnectionError):
                continue

    async def meet() -> None:
        listener = await asyncio.get_running_loop().create_server(Closes, "127.0.0.1", 0, ssl=tls.context)
        await asyncio.to_thread(come, listener.sockets[0].getsockname())
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(meet())
    assert "mcp_gateway_rejected_total{" in metrics.render().decode()


@BOTH_LOOPS
def test_whose_certificate_a_connection_shows(
    authority: Authority, server: Pair, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """On either event loop: the whole certificate, none where none was shown, none without TLS."""
    alice = authority.issue("alice")
    settings = config.ServerTls(**shows(server, client_ca_file=str(authority.file)))
    found: list[bytes | None] = []

    class Greets(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            found.append(shown_certificate(transport))
            transport.close()

    async def meet(context: ssl.SSLContext | None, client: ssl.SSLContext | None) -> None:
        listener = await asyncio.get_running_loop().create_server(Greets, "127.0.0.1", 0, ssl=context)
        await asyncio.to_thread(hear_out, listener.sockets[0].getsockname(), client)
        listener.close()
        await listener.wait_closed()

    tls = ListenerTls(settings, Metrics())
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(meet(tls.context, trusting(authority, alice)))
        runner.run(meet(tls.context, trusting(authority)))
        runner.run(meet(None, None))
    assert found == [alice.der, None, None]


def test_a_certificate_that_ends_soon_is_spoken_of(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Two weeks before, and once it is over; when it ends is a metric."""
    pair = authority.issue("127.0.0.1", days=20)
    now = x509.load_der_x509_certificate(pair.der).not_valid_after_utc.timestamp() - 15 * 86_400
    ends, metrics = now + 15 * 86_400, Metrics()
    clock = iter([now, now + 2 * 86_400, now + 3 * 86_400, ends + 1, ends + 2])
    tls = ListenerTls(config.ServerTls(**shows(pair)), metrics, now=lambda: next(clock))
    assert caplog.text == ""
    for said in (1, 1, 2, 2):
        tls.look()
        assert caplog.text.count("the certificate of the endpoints") == said
    assert "has ended" in caplog.text
    metric = next(
        line for line in metrics.render().decode().splitlines() if line.startswith("mcp_gateway_tls")
    )
    assert float(metric.split()[1]) == ends


@pytest.mark.parametrize("broken", ["cert_file", "key_file", "client_ca_file"])
def test_a_file_that_will_not_do_stops_the_start(
    authority: Authority, server: Pair, tmp_path: Path, broken: str
) -> None:
    """Though it did when the configuration was checked; its name is told, and nothing of what it holds."""
    empty = tmp_path / "empty.pem"
    empty.write_text("not a certificate")
    settings = config.ServerTls.model_construct(
        **{**shows(server, client_ca_file=str(authority.file)), broken: str(empty)}
    )
    with pytest.raises(OSError, match="not usable") as error:
        ListenerTls(settings, Metrics())
    assert error.value.filename == str(empty)
    assert "not a certificate" not in str(error.value)


# What is sent over it


async def test_answers_of_any_size_and_streams_come_whole(authority: Authority, server: Pair) -> None:
    """Framed as without TLS."""
    large = "x" * 5_000_000

    async def talk(call: Call, principal: Principal, emit: Emit) -> Answer:
        await emit(progress(1))
        return answer(large=large)

    for work in (answer(large=large), talk):
        async with (
            serving(Answers(work), tls=shows(server)) as gateway,
            gateway.connect(ssl=trusting(authority), limit=2**20) as client,
        ):
            for _ in range(2):
                client.send(post("tools/call", params={"name": "t"}))
                reply = await client.reply()
                last = reply.json if work is not talk else reply.events[-1]
                assert last["result"]["large"] == large


async def test_a_client_that_reads_nothing_is_cut(authority: Authority, server: Pair) -> None:
    """Backpressure reaches through TLS (B29)."""
    pipeline = Answers(answer(large="x" * 20_000_000))
    async with (
        serving(pipeline, tls=shows(server), limits={"stalled_listener": 0.15}) as gateway,
        gateway.connect(ssl=trusting(authority), limit=1) as client,
        asyncio.timeout(30),
    ):
        client.send(post("tools/call", params={"name": "t"}))
        await pipeline.started.wait()
        client.writer.transport.pause_reading()
        await gateway.until_idle()


async def test_a_client_that_leaves_cancels_its_call(authority: Authority, server: Pair) -> None:
    """S-21."""

    async def wait(call: Call, principal: Principal, emit: Emit) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    pipeline = Answers(wait)
    async with serving(pipeline, tls=shows(server)) as gateway, asyncio.timeout(15):
        async with gateway.connect(ssl=trusting(authority)) as client:
            client.send(post("tools/call", params={"name": "t"}))
            await pipeline.started.wait()
        await pipeline.cancelled.wait()


def replace(pair: Pair, by: Pair) -> None:
    """Put another pair in its place, as whoever renews certificates does."""
    for old, new in ((pair.key, by.key), (pair.certificate, by.certificate)):
        shutil.copy(new, old)
