"""Sessions behind a balancer without affinity: three replicas share a Redis, each request meets the next."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from gateway.front import legacy_sessions
from gateway.front.legacy_sessions import Sessions
from tests.support.legacy_client import LegacyClient
from tests.support.redis import RedisServer, redis_server
from tests.support.running import Clock, Running, running
from tests.support.scripted import ScriptedUpstream, complete, event, hang, result, sse, tool
from tests.support.scripted import answer as final
from tests.support.scripted import notification as notice

pytestmark = pytest.mark.timeout(60)

SECRETS = {"keys": ["0123456789abcdef-key"]}
ADD = {"name": "alpha__add", "arguments": {}}
ROOTS = {"method": "roots/list"}
ANN = {"roots": [{"uri": "file:///ann"}]}
IDLE = 1800.0


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    resources = [{"uri": f"a:{number}", "name": str(number)} for number in range(4)]
    async with ScriptedUpstream(tools=[tool("add")], resources=resources) as alpha:
        yield alpha


@pytest.fixture
def wall() -> Clock:
    return Clock(1_800_000_000.0)


@pytest.fixture
async def replicas(alpha: ScriptedUpstream, server: RedisServer, wall: Clock) -> AsyncIterator[list[Running]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running(
                    {"alpha": alpha},
                    cache={"redis": server.url, "redis_timeout": 5.0, "redis_budget": 5.0},
                    secrets=SECRETS,
                    limits={"session_idle": IDLE},
                    wall_clock=wall,
                )
            )
            for _ in range(3)
        ]


@pytest.fixture
def urls(replicas: list[Running]) -> list[str]:
    return [replica.addresses.endpoints[0] for replica in replicas]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what no event announces."""
    while not holds():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.005)


async def gone(client: LegacyClient) -> bool:
    async with client.open("ping") as exchange:
        return (await exchange.whole()).status == 404


async def test_every_replica_serves_the_session(alpha: ScriptedUpstream, urls: list[str]) -> None:
    """X-28: with the version, the capabilities and the log level of its handshake and what came after."""
    steps = (
        lambda exchange: event(notice("notifications/message", level="info", data=1)),
        final({"content": []}),
    )
    alpha.on("tools/call", sse(*steps))
    async with LegacyClient(urls, "2025-06-18", capabilities={"roots": {}}) as client:
        for _ in range(4):
            assert (await client.result("tools/list"))["tools"][0]["name"] == "alpha__add"
        await client.result("logging/setLevel", {"level": "info"})
        for _ in range(4):
            async with client.open("tools/call", ADD) as exchange:
                await exchange.whole()
            assert [one["method"] for one in exchange.messages[:-1]] == ["notifications/message"]
        declared = {
            str(one.meta["io.modelcontextprotocol/clientCapabilities"]) for one in alpha.seen("tools/call")
        }
        assert declared == {"{'roots': {}}"}


async def test_a_session_ends_on_all_replicas_at_once(
    alpha: ScriptedUpstream, replicas: list[Running], urls: list[str]
) -> None:
    """With its stream and its calls, wherever they are."""
    alpha.on("tools/call", hang())
    async with (
        LegacyClient(urls) as client,
        client.listen() as stream,
        client.open("tools/call", ADD) as call,
    ):
        seen = await alpha.arrived("tools/call")
        for _ in range(3):
            assert await client.result("ping") == {}
        assert await client.delete() == 204
        for _ in range(4):
            assert await gone(client)
        assert await stream.ended()
        await seen.closed.wait()
        assert await call.ended()
        await until(lambda: not any(len(replica.runtime.sessions) for replica in replicas))


async def test_an_answer_finds_the_replica_that_waits_for_it(
    alpha: ScriptedUpstream, urls: list[str]
) -> None:
    """M-16: whichever it is posted to; with an error, too."""

    async def behave(exchange):
        params = exchange.received.params
        if "inputResponses" not in params:
            asks = {"resultType": "input_required", "inputRequests": {"k": ROOTS}, "requestState": "s"}
            await result(asks)(exchange)
        else:
            assert params["inputResponses"] == {"k": ANN}
            await exchange.reply({"result": complete({"content": []})})

    alpha.on("tools/call", behave)
    async with LegacyClient(urls, capabilities={"roots": {}}) as client:
        for _ in range(4):
            async with client.open("tools/call", ADD) as call:
                put = await call.next()
                assert put is not None
                assert await client.respond(put["id"], ANN) == 202
                assert (await call.answer())["result"] == {"content": []}
        async with client.open("tools/call", ADD) as call:
            put = await call.next()
            assert put is not None
            await client.respond(put["id"], error={"code": -7, "message": "no", "data": [1]})
            assert (await call.answer())["error"] == {"code": -7, "message": "no", "data": [1]}


async def test_a_call_is_taken_back_at_any_replica(alpha: ScriptedUpstream, urls: list[str]) -> None:
    """B21."""
    alpha.on("tools/call", hang())
    async with LegacyClient(urls) as client:
        for id in (1, 2, 3):
            async with client.open("tools/call", ADD, id=id) as call:
                seen = await alpha.arrived("tools/call")
                assert await client.notify("notifications/cancelled", {"requestId": id}) == 202
                await seen.closed.wait()
                assert await call.ended()


async def test_requests_that_meet_a_replica_together_are_of_one_session(
    alpha: ScriptedUpstream, replicas: list[Running], urls: list[str]
) -> None:
    """One that has not heard of the session before, and asks Redis for each of them."""
    alpha.on("tools/call", hang())
    client = LegacyClient(urls[0])
    await client.initialize()
    here = LegacyClient(urls[1])
    here.session = client.session
    async with AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(here.open("tools/call", ADD, id=id)) for id in range(8)]
        seen = [await alpha.arrived("tools/call") for _ in calls]
        (session,) = replicas[1].runtime.sessions
        assert len(session.running) == 8
        for id in range(8):
            assert await client.notify("notifications/cancelled", {"requestId": id}) == 202
        for one in seen:
            await one.closed.wait()


async def test_the_stream_hears_of_what_was_asked_for_elsewhere(
    alpha: ScriptedUpstream, replicas: list[Running], urls: list[str]
) -> None:
    """When the answer is there, so is the promise; several at once lose none."""
    async with LegacyClient(urls) as client, client.listen() as stream:
        await until(lambda: sum(len(replica.runtime.hub) for replica in replicas) == 1)
        uris = [f"alpha+a:{number}" for number in range(4)]
        await asyncio.gather(*(client.result("resources/subscribe", {"uri": uri}) for uri in uris))
        (holder,) = [session for one in replicas for session in one.runtime.sessions if session.stream]
        assert holder.busy
        await until(
            lambda: any(len(one.wanted.get("resourceSubscriptions", ())) == 4 for one in alpha.listens)
        )
        for number in range(4):
            await alpha.notify("notifications/resources/updated", uri=f"a:{number}")
            told = await stream.next()
            assert told is not None
            assert told["params"] == {"uri": f"alpha+a:{number}"}
        for uri in uris:
            await client.result("resources/unsubscribe", {"uri": uri})
        await until(lambda: not any(one.wanted.get("resourceSubscriptions") for one in alpha.listens))


async def test_a_newer_stream_takes_the_place_of_one_elsewhere(
    alpha: ScriptedUpstream, replicas: list[Running], urls: list[str]
) -> None:
    """A-46, and all that was asked for is heard on it."""
    async with LegacyClient(urls) as client:
        await client.result("resources/subscribe", {"uri": "alpha+a:1"})
        async with client.listen() as first, client.listen() as second, client.listen() as third:
            assert await first.ended()
            assert await second.ended()
            await until(lambda: sum(len(replica.runtime.hub) for replica in replicas) == 1)
            await until(lambda: any("resourceSubscriptions" in one.wanted for one in alpha.listens))
            await alpha.notify("notifications/resources/updated", uri="a:1")
            assert (await third.next() or {})["params"] == {"uri": "alpha+a:1"}


@pytest.fixture
def replacing(monkeypatch: pytest.MonkeyPatch) -> dict[str, asyncio.Event]:
    """Have replicas that are asked to end their stream never answer; what became of the first question."""
    became = {"asked": asyncio.Event(), "given up": asyncio.Event()}

    async def stand_still(*_: object) -> bytes:
        became["asked"].set()
        try:
            await asyncio.Event().wait()
        finally:
            became["given up"].set()
        return b""

    monkeypatch.setattr(Sessions, "_replace", stand_still)
    return became


async def test_a_stream_waits_for_no_replica_that_stands_still(
    replacing: dict[str, asyncio.Event], alpha: ScriptedUpstream, urls: list[str]
) -> None:
    """It opens, and what is asked for from then on is heard on it."""
    async with LegacyClient(urls) as client, client.listen(), client.listen() as second:
        assert second.status == 200
        await client.result("resources/subscribe", {"uri": "alpha+a:1"})
        await until(lambda: any("resourceSubscriptions" in one.wanted for one in alpha.listens))
        await replacing["asked"].wait()
        assert not replacing["given up"].is_set()


async def test_a_session_is_idle_when_it_is_so_everywhere(urls: list[str], wall: Clock) -> None:
    """Each replica hears of a third of what it does."""
    async with LegacyClient(urls) as client, LegacyClient(urls) as quiet:
        for _ in range(12):
            wall.advance(IDLE * 0.7)
            assert await client.result("ping") == {}
        for _ in range(3):
            assert await gone(quiet)


def moved(client: LegacyClient, url: str) -> LegacyClient:
    """Return the client as it talks to one replica alone."""
    again = LegacyClient(url, client.version, capabilities=client.capabilities)
    again.session = client.session
    return again


@pytest.mark.parametrize("used", [(), (0.05,), (0.3,), (0.3, 0.6)])
async def test_no_replica_takes_a_used_session_for_idle(
    urls: list[str], wall: Clock, used: tuple[float, ...]
) -> None:
    """X-21, X-28: whatever part of its idle time has gone by, and wherever it was used."""
    begun = wall.now
    here, there = LegacyClient(urls[0]), LegacyClient(urls[0])
    await here.initialize()
    await there.initialize()
    for share in used:
        wall.now = begun + share * IDLE
        assert not await gone(here)
        assert not await gone(there)
    wall.advance(IDLE * 0.95)
    assert not await gone(moved(here, urls[1]))
    assert not await gone(there)
    wall.advance(IDLE * 0.95)
    assert not await gone(moved(here, urls[0]))
    assert not await gone(moved(there, urls[2]))


async def test_a_session_that_is_never_used_ends(urls: list[str], wall: Clock) -> None:
    """Though nothing else goes on that would tell how long Redis has been there."""
    client = LegacyClient(urls[0])
    await client.initialize()
    wall.advance(IDLE * 1.2)
    for url in reversed(urls):
        assert await gone(moved(client, url))


async def test_an_outage_of_redis_makes_no_session_idle(
    server: RedisServer, urls: list[str], wall: Clock
) -> None:
    """Neither while it is away nor when it is back and knows nothing; and then idle ones end as ever."""
    async with LegacyClient(urls[0]) as client, LegacyClient(urls[0]) as quiet:
        for _ in range(5):
            wall.advance(IDLE / 3)
            assert not await gone(client)
        await server.kill()
        for url in reversed(urls):
            assert not await gone(moved(client, url))
        wall.advance(IDLE / 3)
        await server.begin()
        for url in reversed(urls):
            await answers(url)
            assert not await gone(moved(client, url))
        wall.advance(IDLE * 1.1)
        for url in urls:
            assert await gone(moved(quiet, url))


async def answers(url: str) -> None:
    """Wait until a replica reaches Redis."""
    client = LegacyClient(url)
    await client.initialize()
    while "error" in await client.ask("logging/setLevel", {"level": "info"}):  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.05)


async def asking(alpha: ScriptedUpstream) -> None:
    async def behave(exchange):
        if "inputResponses" not in exchange.received.params:
            asks = {"resultType": "input_required", "inputRequests": {"k": ROOTS}, "requestState": "s"}
            await result(asks)(exchange)
        else:
            await exchange.reply({"result": complete({"content": []})})

    alpha.on("tools/call", behave)


async def test_an_answer_waits_for_redis(
    alpha: ScriptedUpstream,
    server: RedisServer,
    urls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """M-16, B44: what the user has said is not lost for an outage that is over soon."""
    monkeypatch.setattr(legacy_sessions, "_PATIENCE", 1.0)
    caplog.set_level("DEBUG", legacy_sessions.__name__)
    await asking(alpha)
    client = LegacyClient(urls[0], capabilities={"roots": {}})
    await client.initialize()
    async with client.open("tools/call", ADD) as call:
        put = await call.next()
        assert put is not None
        await server.kill()
        answered = asyncio.create_task(moved(client, urls[1]).respond(put["id"], ANN))
        await until(lambda: "sent again" in caplog.text)
        await server.begin()
        assert await answered == 202
        assert (await call.answer())["result"] == {"content": []}


async def test_an_answer_that_cannot_be_handed_on_is_not_taken(
    alpha: ScriptedUpstream, server: RedisServer, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is told to send it again, and then the call goes on; of a batch nothing else is done."""
    monkeypatch.setattr(legacy_sessions, "_ANSWERING", 0.2)
    await asking(alpha)
    client = LegacyClient(urls[0], "2025-03-26", capabilities={"roots": {}})
    await client.initialize()
    async with client.open("tools/call", ADD) as call:
        put = await call.next()
        assert put is not None
        await server.kill()
        there = moved(client, urls[1])
        said = {"jsonrpc": "2.0", "id": put["id"], "result": ANN}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for body in (said, [said, ping]):
            async with there.post(json.dumps(body).encode()) as exchange:
                await exchange.whole()
            assert (exchange.status, exchange.headers["retry-after"]) == (503, "5")
        await server.begin()
        while await there.respond(put["id"], ANN) != 202:
            pass
        assert (await call.answer())["result"] == {"content": []}


async def test_an_answer_to_a_replica_that_is_gone_is_dropped(
    alpha: ScriptedUpstream, replicas: list[Running], urls: list[str]
) -> None:
    await asking(alpha)
    client = LegacyClient(urls[0], capabilities={"roots": {}})
    await client.initialize()
    async with client.open("tools/call", ADD) as call:
        put = await call.next()
        assert put is not None
        await replicas[0].gateway.stop(0.1)
        assert await moved(client, urls[1]).respond(put["id"], ANN) == 202


async def test_without_redis_sessions_go_on(
    alpha: ScriptedUpstream, server: RedisServer, urls: list[str]
) -> None:
    """Nobody takes a session for ended because Redis does not answer; what had to be noted is refused."""
    async with LegacyClient(urls) as client:
        await client.result("tools/list")
        await server.kill()
        for _ in range(4):
            assert await client.result("ping") == {}
            assert "content" in await client.result("tools/call", ADD)
        said = await client.error("logging/setLevel", {"level": "info"})
        assert said["code"] == -32603
        await server.begin()
        await client.result("logging/setLevel", {"level": "info"})
