"""Sessions end: by idleness, by age, by being too many; and nothing is left of them (B29)."""

import asyncio
import gc
from collections import Counter
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from gateway.front.legacy_sessions import Session, Work
from gateway.front.legacy_stream import Stream
from tests.support.legacy_client import LegacyClient, message
from tests.support.running import Clock, running
from tests.support.scripted import ScriptedUpstream, hang, result, tool

IDLE, LIFE = 1800.0, 86400.0
LIMITS = {"session_idle": IDLE, "session_lifetime": LIFE, "sessions": 3}
ADD = {"name": "alpha__add", "arguments": {}}


@pytest.fixture
async def alpha():
    resources = [{"uri": "a:1", "name": "one"}]
    async with ScriptedUpstream(tools=[tool("add")], resources=resources) as alpha:
        yield alpha


@pytest.fixture
def wall():
    return Clock(1_800_000_000.0)


@pytest.fixture
async def gateway(alpha, wall):
    async with running({"alpha": alpha}, clock=Clock(), wall_clock=wall, limits=LIMITS) as gateway:
        yield gateway


@pytest.fixture
def url(gateway):
    return gateway.addresses.endpoints[0]


async def gone(client):
    async with client.open("ping") as exchange:
        return (await exchange.whole()).status == 404


async def test_an_idle_session_ends(gateway, url, wall):
    """X-21; what is used goes on, and an end is an end for the notebook, too."""
    async with LegacyClient(url) as quiet, LegacyClient(url) as talking:
        for _ in range(4):
            wall.advance(IDLE / 3)
            await talking.result("ping")
        assert await gone(quiet)
        assert not await gone(talking)
        wall.advance(IDLE + 1)
        gateway.runtime.sessions.sweep()
        assert len(gateway.runtime.sessions) == 0


async def test_the_oldest_session_ends_however_busy_it_is(gateway, url, wall):
    async with LegacyClient(url) as client:
        for _ in range(int(LIFE / IDLE * 2) - 1):
            wall.advance(IDLE / 2)
            assert not await gone(client)
        wall.advance(IDLE / 2 + 1)
        assert await gone(client)


async def test_a_session_with_a_stream_or_a_call_is_not_idle(alpha, gateway, url, wall):
    alpha.on("tools/call", hang())
    async with (
        LegacyClient(url) as one,
        LegacyClient(url) as two,
        one.listen(),
        two.open("tools/call", ADD),
    ):
        await alpha.arrived("tools/call")
        wall.advance(IDLE + 1)
        gateway.runtime.sessions.sweep()
        assert len(gateway.runtime.sessions) == 2
        assert not await gone(one)
        assert not await gone(two)


async def refused(client):
    """Return what is said instead of a handshake, with 503 and when to come back."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
    async with client.open("initialize", params) as exchange:
        said = await exchange.answer()
    assert (exchange.status, exchange.headers["retry-after"]) == (503, "5")
    return said["error"]["message"]


async def test_there_are_so_many_busy_sessions_and_no_more(gateway, url):
    """503 beyond, with when to come back, until one of them falls quiet."""
    async with AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(LegacyClient(url)) for _ in range(2)]
        for client in busy:
            await stack.enter_async_context(client.listen())
        async with LegacyClient(url) as last:
            async with last.listen():
                extra = LegacyClient(url)
                assert "limits.sessions`" in await refused(extra)
                for client in (*busy, last):
                    assert not await gone(client)
            await gateway.subscribed(2)
            await extra.initialize()
            async with extra.listen(), last.open("ping") as exchange:
                assert (await exchange.whole()).status == 503
            await gateway.subscribed(2)
            assert not await gone(last)
            assert len(gateway.runtime.sessions) == 3


async def test_quiet_sessions_keep_nobody_out(gateway, url):
    """Those of the caller who begins one make room first; all of them are served when they come back."""
    async with LegacyClient(url, token="TOK") as other:
        crowd = [LegacyClient(url) for _ in range(10)]
        for client in crowd:
            await client.initialize()
        whose = [bool(session.whose) for session in gateway.runtime.sessions]
        assert sorted(whose) == [False, False, True]
        async with LegacyClient(url, token="NEW") as new:
            for client in (other, new, *crowd):
                assert not await gone(client)
        assert len(gateway.runtime.sessions) == 3


async def test_nobody_takes_more_than_a_share_of_the_sessions(alpha, wall):
    """All without a credential have one together."""
    limits = {**LIMITS, "sessions_per_caller": 2}
    async with running({"alpha": alpha}, wall_clock=wall, limits=limits) as gateway:
        url = gateway.addresses.endpoints[0]
        async with (
            LegacyClient(url) as one,
            LegacyClient(url) as two,
            one.listen(),
            two.listen(),
        ):
            assert "limits.sessions_per_caller`" in await refused(LegacyClient(url))
            async with LegacyClient(url, token="TOK") as other:
                assert await other.result("ping") == {}


async def test_a_session_from_before_a_restart_goes_on(alpha, wall):
    """X-28: with the same keys, as on another replica; without them it is unknown."""
    keys = {"keys": ["0123456789abcdef0123456789abcdef"]}
    settings = {"limits": LIMITS, "wall_clock": wall}
    async with running({"alpha": alpha}, secrets=keys, **settings) as gateway:
        client = LegacyClient(gateway.addresses.endpoints[0], "2025-06-18", capabilities={"roots": {}})
        await client.initialize()
    for secrets, over in ((keys, False), ({"keys": ["another-key-another-key-another-"]}, True)):
        async with running({"alpha": alpha}, secrets=secrets, **settings) as gateway:
            again = LegacyClient(gateway.addresses.endpoints[0], "2025-06-18")
            again.session = client.session
            assert await gone(again) is over
            if not over:
                await again.result("tools/call", ADD)
                sent = alpha.seen("tools/call")[-1].meta
                assert sent["io.modelcontextprotocol/clientCapabilities"] == {"roots": {}}


async def test_a_restart_makes_no_session_idle(alpha, wall):
    """What the process remembered of it is gone: then only its age says that it is over."""
    settings = {
        "limits": LIMITS,
        "wall_clock": wall,
        "secrets": {"keys": ["0123456789abcdef0123456789abcdef"]},
    }
    async with running({"alpha": alpha}, **settings) as gateway:
        client = LegacyClient(gateway.addresses.endpoints[0])
        await client.initialize()
        for _ in range(3):
            wall.advance(IDLE * 0.9)
            assert not await gone(client)
    for _ in range(2):
        async with running({"alpha": alpha}, **settings) as gateway:
            again = LegacyClient(gateway.addresses.endpoints[0])
            again.session = client.session
            wall.advance(IDLE * 0.9)
            assert not await gone(again)
            wall.advance(IDLE * 0.9)
            assert not await gone(again)
    wall.advance(LIFE)
    async with running({"alpha": alpha}, **settings) as gateway:
        again = LegacyClient(gateway.addresses.endpoints[0])
        again.session = client.session
        assert await gone(again)


async def test_without_a_credential_a_session_is_a_caller_of_its_own(alpha, url):
    """What is private to one anonymous session is not given to another; a credential's sessions share."""
    alpha.scope, alpha.ttl_ms = "private", 60_000

    async def fetched(*clients):
        before = len(alpha.seen("tools/list"))
        for client in clients:
            await client.result("tools/list")
        return len(alpha.seen("tools/list")) - before

    async with LegacyClient(url) as one, LegacyClient(url) as two:
        assert await fetched(one, one) == 1
        assert await fetched(two, two) == 1
        assert await fetched(one, two) == 0


async def test_a_credentials_sessions_share_what_is_private_to_it(alpha, url):
    alpha.scope, alpha.ttl_ms = "private", 60_000
    async with LegacyClient(url, token="TOK") as one, LegacyClient(url, token="TOK") as two:
        await one.result("tools/list")
        before = len(alpha.seen("tools/list"))
        await two.result("tools/list")
        assert len(alpha.seen("tools/list")) == before


def counted():
    gc.collect()
    alive = Counter(type(one) for one in gc.get_objects())
    return {kind.__name__: alive[kind] for kind in (Session, Stream, Work)}


async def begin(url, count):
    """Begin so many sessions on one connection, and return their ids."""
    at = urlsplit(url)
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
    body = message("initialize", params, id=1)
    head = (
        f"POST {at.path} HTTP/1.1\r\nhost: {at.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    ids = []
    for _ in range(count):
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        await reader.readexactly(int(headers["content-length"]))
        ids.append(headers["mcp-session-id"])
    writer.close()
    return ids


@pytest.mark.timeout(90)
async def test_five_thousand_sessions_that_nobody_ended_leave_nothing(alpha, wall):
    """B29: nor do the streams, calls and resources of some of them."""
    alpha.on("tools/call", result({"content": []}))
    limits = {**LIMITS, "sessions": 10_000}
    async with running({"alpha": alpha}, clock=Clock(), wall_clock=wall, limits=limits) as gateway:
        runtime = gateway.runtime
        url = gateway.addresses.endpoints[0]
        async with LegacyClient(url) as warm:
            await warm.result("tools/call", ADD)
            await warm.delete()
        base = counted()
        assert len(set(await begin(url, 4_980))) == 4_980
        for _ in range(20):
            client = LegacyClient(url)
            await client.initialize()
            await client.result("tools/call", ADD)
            await client.result("logging/setLevel", {"level": "info"})
            await client.result("resources/subscribe", {"uri": "alpha+a:1"})
            async with client.listen():
                pass
        assert len(runtime.sessions) == 5_000
        assert counted()["Session"] == base["Session"] + 5_000
        await gateway.busy(0)
        await gateway.subscribed(0)
        wall.advance(IDLE + 1)
        while len(runtime.sessions):
            runtime.sessions.sweep()
            await asyncio.sleep(0)
        assert counted() == base
