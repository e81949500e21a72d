"""What one client may cost, and what it is told beyond that: 429 or 503, when to come back, which setting."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import Any

import pytest

from gateway.protocol.call import Answer, Call, Emit, Principal
from tests.support.front import Answers, Client, Listens, Reply, Serving, answer, body, post, serving
from tests.support.legacy_client import LegacyClient
from tests.support.redis import RedisServer, redis_server
from tests.support.running import Clock, Running, running
from tests.support.scripted import ScriptedUpstream, hang, tool
from tests.support.scripted import result as scripted_result

ALICE, BOB = "Bearer A", "Bearer B"
CALL: dict[str, Any] = {"params": {"name": "t"}}
MIB = 2**20


def refused(reply: Reply, status: int, setting: str) -> None:
    """Fail unless a refusal is whole: for programs, for people, and with the time to come back."""
    assert reply.status == status
    assert int(reply.header("retry-after") or 0) >= 1
    error = reply.json["error"]
    assert error["code"] == -32603
    assert f"`{setting}` allows more" in error["message"]


class Waits(Answers):
    """A pipeline whose calls end when the test says so."""

    def __init__(self) -> None:
        super().__init__(self._wait)
        self.go = asyncio.Event()

    async def _wait(self, call: Call, principal: Principal, emit: Emit) -> Answer:
        await self.go.wait()
        return answer()

    async def busy(self, count: int) -> None:
        while len(self.calls) < count:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0)


async def test_one_caller_has_so_many_calls_at_once() -> None:
    """Others have theirs, and so do those without a credential, all together."""
    pipeline = Waits()
    limits = {"calls_per_caller": 2, "anonymous_calls": 1}
    async with (
        serving(pipeline, limits=limits) as gateway,
        gateway.connect() as one,
        gateway.connect() as two,
        gateway.connect() as three,
        gateway.connect() as four,
    ):
        for client in (one, two):
            client.send(post("tools/call", authorization=ALICE, **CALL))
        three.send(post("tools/call", **CALL))
        await pipeline.busy(3)
        refused(await gateway.ask(post("tools/list", authorization=ALICE)), 429, "limits.calls_per_caller")
        refused(await gateway.ask(post("tools/list")), 429, "limits.anonymous_calls")
        four.send(post("tools/call", authorization=BOB, **CALL))
        await pipeline.busy(4)
        assert await gateway.counted('rejected_total{endpoint="/mcp",reason="calls"} 2')
        pipeline.go.set()
        assert [(await client.reply()).status for client in (one, two, three, four)] == [200] * 4
        assert (await gateway.ask(post("tools/list", authorization=ALICE))).status == 200


async def test_a_call_whose_client_left_makes_room() -> None:
    """Nothing is counted for ever."""
    pipeline = Waits()
    async with serving(pipeline, limits={"calls_per_caller": 1}) as gateway:
        for number in range(1, 4):
            async with gateway.connect() as client:
                client.send(post("tools/call", authorization=ALICE, **CALL))
                await pipeline.busy(number)
                client.abort()
                await gateway.until_idle()


async def test_the_process_answers_so_many_requests_at_once() -> None:
    """Whoever asks beyond that is not even looked at: a credential need not be verified for it."""
    pipeline = Waits()
    async with (
        serving(pipeline, limits={"requests": 2}) as gateway,
        gateway.connect() as one,
        gateway.connect() as two,
    ):
        for client, who in ((one, ALICE), (two, BOB)):
            client.send(post("tools/call", authorization=who, **CALL))
        await pipeline.busy(2)
        refused(await gateway.ask(post("tools/list", authorization="Basic x")), 503, "limits.requests")
        assert await gateway.counted('rejected_total{endpoint="/mcp",reason="requests"} 1')
        pipeline.go.set()
        assert [(await client.reply()).status for client in (one, two)] == [200, 200]


async def test_open_streams_are_no_requests() -> None:
    """They have a bound of their own."""
    stopping = asyncio.Event()
    limits = {"requests": 1, "anonymous_calls": 1}
    async with (
        serving(Listens(stopping), limits=limits, stopping=stopping) as gateway,
        gateway.connect() as one,
        gateway.connect() as two,
    ):
        for client in (one, two):
            client.send(post("subscriptions/listen"))
            assert (await client.head()).header("content-type") == "text/event-stream"
        stopping.set()


async def test_a_refusal_can_be_read_by_a_web_page() -> None:
    """B36: a page that is not told what it got shows a network error."""
    pipeline = Waits()
    cors = {"origins": ["https://app.example.com"]}
    async with serving(pipeline, cors=cors, limits={"requests": 1}) as gateway, gateway.connect() as one:
        one.send(post("tools/call", **CALL))
        await pipeline.busy(1)
        reply = await gateway.ask(post("tools/list", origin="https://app.example.com"))
        refused(reply, 503, "limits.requests")
        assert reply.header("access-control-allow-origin") == "https://app.example.com"


async def test_the_next_connection_is_closed_as_it_opens_where_all_are_busy() -> None:
    """One whose request is answered makes room for another."""
    pipeline = Waits()
    async with (
        serving(pipeline, limits={"connections": 2}) as gateway,
        gateway.connect() as one,
        gateway.connect() as two,
    ):
        for client in (one, two):
            client.send(post("tools/call", **CALL))
        await pipeline.busy(2)
        async with gateway.connect() as three:
            assert await three.hung_up()
        assert await gateway.counted('rejected_total{endpoint="other",reason="connections"} 1')
        pipeline.go.set()
        assert [(await client.reply()).status for client in (one, two)] == [200, 200]
        assert (await gateway.ask(post("tools/list"))).status == 200
        assert await one.hung_up()
        two.send(post("tools/list"))
        assert (await two.reply()).status == 200


KEY = "a-key-of-a-caller"
AUTHENTICATION = {"keys": {"ci": {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}"}}}


async def _asks(client: Client, credential: str = f"Bearer {KEY}") -> int:
    client.send(post("tools/list", authorization=credential))
    return (await client.reply()).status


@pytest.mark.parametrize("strange", [post("tools/list"), post("tools/list")[:20], b""])
async def test_connections_of_strangers_make_room_for_callers(strange: bytes) -> None:
    """Whatever of a request they brought; the one that has been idle longest first."""
    async with (
        serving(Answers(), authentication=AUTHENTICATION, limits={"connections": 10}) as gateway,
        AsyncExitStack() as open,
        asyncio.timeout(10),
    ):
        caller = await open.enter_async_context(gateway.connect())
        assert await _asks(caller) == 200
        strangers = [await open.enter_async_context(gateway.connect()) for _ in range(9)]
        for stranger in strangers:
            stranger.send(strange)
            if strange.endswith(b"}"):
                assert (await stranger.reply()).status == 401
        while gateway.front.connections < 10:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0)
        newcomers = []
        for stranger in strangers:
            newcomers.append(await open.enter_async_context(gateway.connect()))
            assert await _asks(newcomers[-1]) == 200
            assert await stranger.hung_up()
        assert await gateway.counted('rejected_total{endpoint="other",reason="idle"} 9')
        assert await _asks(caller) == 200
        # Now they are all callers', and the first newcomer has been idle longest.
        last = await open.enter_async_context(gateway.connect())
        assert await _asks(last) == 200
        assert await newcomers[0].hung_up()
        assert [await _asks(client) for client in (caller, *newcomers[1:])] == [200] * 9
        assert await gateway.counted('rejected_total{endpoint="other",reason="connections"}') == []


async def test_strangers_take_no_place_of_callers_from_each_other() -> None:
    """However many come: the second takes the place of the first."""
    async with (
        serving(Answers(), authentication=AUTHENTICATION, limits={"connections": 4}) as gateway,
        AsyncExitStack() as open,
        asyncio.timeout(10),
    ):
        callers = [await open.enter_async_context(gateway.connect()) for _ in range(4)]
        assert [await _asks(client) for client in callers] == [200] * 4
        for _ in range(20):
            async with gateway.connect() as stranger:
                assert await _asks(stranger, "Bearer made-up") == 401
                async with gateway.connect() as next:
                    assert await _asks(next, "Bearer made-up") == 401
                    assert await stranger.hung_up()
        assert await callers[0].hung_up()
        assert [await _asks(client) for client in callers[1:]] == [200] * 3


async def test_bodies_that_do_not_fit_are_refused_while_they_arrive() -> None:
    """in_flight bounds what is held, whoever sends it; the refused one frees what it took."""
    limits = {"message": "4MiB", "in_flight": "8MiB"}
    whole = body("tools/call", {"name": "t", "arguments": {"x": "y" * 3 * MIB}})
    pipeline = Waits()
    async with (
        serving(pipeline, limits=limits) as gateway,
        gateway.connect() as one,
        gateway.connect() as two,
    ):
        one.send(post("tools/call", whole, authorization=ALICE, **CALL))
        two.send(post("tools/call", whole, authorization=BOB, **CALL))
        await pipeline.busy(2)
        reply = await gateway.ask(post("tools/call", whole, authorization="Bearer C", **CALL))
        refused(reply, 503, "limits.in_flight")
        small = await asyncio.wait_for(
            _status(gateway, post("tools/call", authorization="Bearer D", **CALL)), 5
        )
        assert small is None, "there is room for small ones"
        pipeline.go.set()
        assert [(await client.reply()).status for client in (one, two)] == [200, 200]
        assert (await gateway.ask(post("tools/call", whole, authorization=ALICE, **CALL))).status == 200
        await gateway.until_idle()
        assert await gateway.counted("held_bytes 0")


async def _status(gateway: Serving, request: bytes) -> int | None:
    """Return the status of a refusal, None where the request was let in."""
    before = len(gateway.state.pipelines["/mcp"].calls)  # type: ignore[attr-defined]
    async with gateway.connect() as client:
        client.send(request)
        while len(gateway.state.pipelines["/mcp"].calls) == before:  # type: ignore[attr-defined]
            if client.reader.at_eof():
                return (await client.reply()).status
            await asyncio.sleep(0)
    return None


async def test_one_caller_cannot_hold_everything() -> None:
    """Half of in_flight is the most; the others go on."""
    limits = {"message": "4MiB", "in_flight": "12MiB"}
    whole = body("tools/call", {"name": "t", "arguments": {"x": "y" * 3 * MIB}})
    pipeline = Waits()
    async with (
        serving(pipeline, limits=limits) as gateway,
        gateway.connect() as one,
        gateway.connect() as two,
    ):
        one.send(post("tools/call", whole, authorization=ALICE, **CALL))
        await pipeline.busy(1)
        two.send(post("tools/call", whole, authorization=ALICE, **CALL))
        refused(await two.reply(), 429, "limits.in_flight")
        pipeline.go.set()
        assert (await gateway.ask(post("tools/call", whole, authorization=BOB, **CALL))).status == 200


class Deaf:
    """Clients that ask for much and read nothing."""

    def __init__(self, gateway: Serving) -> None:
        self._gateway = gateway
        self.clients: list[Client] = []

    async def ask(self, request: bytes) -> None:
        reader, writer = await asyncio.open_connection(*self._gateway.addresses[0], limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request)
        self.clients.append(Client(reader, writer))


async def test_readers_that_take_nothing_bound_themselves_and_nobody_else() -> None:
    """What waits for slow clients counts; whoever asks beyond it gets a small answer and no large one."""
    large = Answers(answer(text="x" * 8 * MIB))
    limits = {"message": "8MiB", "in_flight": "24MiB", "stalled_listener": "60s"}
    async with serving(large, limits=limits) as gateway:
        deaf = Deaf(gateway)
        for _ in range(20):
            asked = len(large.calls)
            await deaf.ask(post("tools/call", authorization=ALICE, **CALL))
            async with asyncio.timeout(10):
                while not (held := await _held(gateway)) and len(large.calls) == asked:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            if held >= 12 * MIB:
                break
        refused(await gateway.ask(post("tools/call", authorization=ALICE, **CALL)), 429, "limits.in_flight")
        assert await _held(gateway) < 24 * MIB
        assert (await gateway.ask(post("tools/call", authorization=BOB, **CALL))).status == 200
        for client in deaf.clients:
            client.abort()
        await gateway.until_idle()
        assert await _held(gateway) == 0


async def _held(gateway: Serving) -> int:
    (line,) = await gateway.counted("held_bytes ")
    return int(float(line.rpartition(" ")[2]))


# Rates


async def test_a_caller_may_ask_so_often() -> None:
    """The next one is told when; others, and those without a credential, are counted apart."""
    clock = Clock()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        limits = {"rate_per_caller": "2/m", "anonymous_rate": "1/m"}
        async with running({"alpha": upstream}, clock=clock, limits=limits) as gateway:
            asked = [await gateway.ask("tools/list", token="A") for _ in range(3)]
            assert [one.status for one in asked] == [200, 200, 429]
            assert asked[2].header("retry-after") == "30"
            assert "`limits.rate_per_caller`" in json.loads(asked[2].body)["error"]["message"]
            assert (await gateway.ask("tools/list", token="B")).status == 200
            assert [(await gateway.ask("tools/list")).status for _ in range(2)] == [200, 429]
            clock.advance(30.0)
            assert (await gateway.ask("tools/list", token="A")).status == 200
            assert await gateway.counted('rejected_total{endpoint="/mcp",reason="rate"}') == 2


async def test_an_endpoint_takes_so_much_from_all_together() -> None:
    """503, for it is not this caller's doing; the other endpoint is open."""
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        endpoints = {"/mcp": {"rate": "2/h"}, "/other": {}}
        async with running({"alpha": upstream}, endpoints=endpoints) as gateway:
            asked = [(await gateway.ask("tools/list", token=who)).status for who in "ABC"]
            assert asked == [200, 200, 503]
            assert (await gateway.ask("tools/list", token="C", path="/other")).status == 200


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def test_replicas_count_rates_together(redis: RedisServer) -> None:
    """Whichever a balancer chooses; without Redis each counts alone, and nobody waits."""
    shared = {
        "cache": {"redis": redis.url, "redis_timeout": "2s"},
        "secrets": {"keys": ["0123456789abcdef0123456789abcdef"]},
        "limits": {"rate_per_caller": "3/h", "rates_in": "redis"},
    }
    async with (
        ScriptedUpstream(tools=[tool("a")]) as upstream,
        running({"alpha": upstream}, **shared) as one,
        running({"alpha": upstream}, **shared) as two,
    ):
        asked = [(await each.ask("tools/list", token="A")).status for each in (one, two, one, two, one)]
        assert asked == [200, 200, 200, 429, 429]
        assert [key for key in await redis.keys("*:rate:*") if "A" in key.split(":")[-1]] == []
        await redis.kill()
        alone = [(await one.ask("tools/list", token="A")).status for _ in range(4)]
        assert alone == [200, 200, 200, 429]


# Older clients


async def busy(gateway: Running, upstream: ScriptedUpstream, count: int) -> None:
    while len(upstream.seen("tools/call")) < count:  # noqa: ASYNC110  # no event tells it
        await asyncio.sleep(0)


async def test_an_older_clients_calls_count_until_they_have_ended() -> None:
    """A lost connection takes nothing back (X-25), so it makes no room either."""
    go = asyncio.Event()
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        upstream.on("tools/call", hang(until=go, then=scripted_result({"content": []})))
        limits = {"anonymous_calls": 2}
        async with running({"alpha": upstream}, limits=limits) as gateway:
            url = gateway.addresses.endpoints[0]
            async with LegacyClient(url, "2025-06-18") as client:
                for number in (1, 2):
                    async with client.open("tools/call", {"name": "alpha__a"}):
                        await busy(gateway, upstream, number)
                await gateway.busy(0)
                refusal = await gateway.ask("tools/list")
                assert refusal.status == 429
                assert "`limits.anonymous_calls`" in json.loads(refusal.body)["error"]["message"]
                go.set()
                while (await gateway.ask("tools/list")).status == 429:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.002)


async def test_a_reader_that_is_slow_on_purpose_is_cut_off() -> None:
    """A byte now and then is no standstill; but what waits for it is held, and that cannot go on for ever."""
    large = Answers(answer(text="x" * 8 * MIB))
    limits = {"message": "8MiB", "stalled_listener": "60s"}
    async with serving(large, limits=limits) as gateway:
        deaf = Deaf(gateway)
        await deaf.ask(post("tools/call", authorization=ALICE, **CALL))
        async with asyncio.timeout(10):
            while not await _held(gateway):  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(0.002)
        (responder,) = gateway.front._open
        now = time.monotonic()
        for later in (30.0, 500.0, 600.0):
            responder._flushed -= 1  # it took a byte
            responder.beat(now + later, keep_alive=15.0, stalled=60.0)
        await gateway.until_idle()
        assert await gateway.counted('rejected_total{endpoint="other",reason="slow_reader"} 1')
        assert await _held(gateway) == 0
        deaf.clients[0].abort()


async def test_status_says_how_much_goes_on() -> None:
    """Numbers alone."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as upstream,
        running({"alpha": upstream}, admin="127.0.0.1:0") as gateway,
        gateway.open("subscriptions/listen", {"notifications": {}}) as stream,
    ):
        await stream.event()
        load = (await gateway.admin("/status.json"))[1]["load"]
        assert load["connections"] == {"open": 1, "most": 20_000}
        assert load["requests"] == {"open": 0, "most": 2000}
        assert load["streams"] == {"open": 1, "most": None}
        assert load["bytes"] == {"held": 0, "most": 512 * MIB}


async def test_a_batch_counts_as_all_that_it_asks() -> None:
    """In the revision that has them: beyond the bound nothing of it is done."""
    batch = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in range(4)]
    async with (
        ScriptedUpstream(tools=[tool("a")]) as upstream,
        running({"alpha": upstream}, limits={"anonymous_calls": 3}) as gateway,
        LegacyClient(gateway.addresses.endpoints[0], "2025-03-26") as client,
    ):
        for asked, status in ((4, 429), (3, 200)):
            async with client.post(json.dumps(batch[:asked]).encode()) as exchange:
                await exchange.whole()
            assert exchange.status == status
        assert len(exchange.messages) == 3


async def test_a_batch_uses_up_a_rate_by_what_it_asks() -> None:
    """Or a batch would be the way around it; the handshake is one, too."""
    batch = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in range(4)]
    async with (
        ScriptedUpstream(tools=[tool("a")]) as upstream,
        running({"alpha": upstream}, limits={"anonymous_rate": "8/h"}, clock=Clock()) as gateway,
        LegacyClient(gateway.addresses.endpoints[0], "2025-03-26") as client,
    ):
        statuses = []
        for _ in range(2):
            async with client.post(json.dumps(batch).encode()) as exchange:
                await exchange.whole()
            statuses.append(exchange.status)
        assert statuses == [200, 429]


async def test_standing_streams_of_older_clients_count_among_the_streams() -> None:
    """429 at once, as there is no call that could be told."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as upstream,
        running({"alpha": upstream}, limits={"anonymous_streams": 1}) as gateway,
        LegacyClient(gateway.addresses.endpoints[0], "2025-06-18") as one,
        LegacyClient(gateway.addresses.endpoints[0], "2025-06-18") as two,
        one.listen() as first,
        two.listen() as second,
    ):
        assert (first.status, second.status) == (200, 429)
        assert int(second.headers["retry-after"]) >= 1
        assert await gateway.counted('rejected_total{endpoint="/mcp",reason="streams"}') == 1
