"""Older servers on several replicas, for clients of either era: each request may come to another."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from tests.support.legacy_client import LegacyClient
from tests.support.legacy_upstream import LegacyServer, streamed
from tests.support.redis import redis_server
from tests.support.running import running
from tests.support.scripted import ScriptedUpstream, tool

ABLE = {"elicitation": {"form": {}}, "roots": {}}
ANN = {"roots": [{"uri": "file:///ann"}]}
KEYS = {"keys": ["0123456789abcdef-key"]}


@pytest.fixture
async def server():
    async with redis_server() as server:
        yield server


@pytest.fixture
async def alpha():
    async with ScriptedUpstream(tools=[tool("deploy")]) as alpha:
        yield alpha


@pytest.fixture
async def old():
    """A server of an older revision, one session of which is with one replica."""
    async with LegacyServer(tools=[tool("deploy")]) as old:
        yield old


@pytest.fixture
async def replicas(server, alpha, old):
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                running(
                    {"alpha": alpha, "old": old},
                    secrets=KEYS,
                    cache={"redis": server.url, "redis_timeout": 0.5},
                )
            )
            for _ in range(3)
        ]
        for one in replicas:
            await one.runtime.mailbox.linked()
        yield replicas


@pytest.fixture
def urls(replicas):
    return [one.addresses.endpoints[0] for one in replicas]


async def test_a_session_outlives_a_redis_that_is_away(server, urls):
    """Nobody is sent away with a 404 because one that hangs does not say what is noted."""
    async with LegacyClient(urls) as client:
        server.freeze()
        for _ in urls:
            assert len((await client.result("tools/list"))["tools"]) == 2
        server.thaw()
        assert len((await client.result("tools/list"))["tools"]) == 2


OLD = {"name": "old__deploy", "arguments": {}}


async def call(gateway, asked=None, **options):
    """Make the call, or go on with it where something was asked."""
    params = OLD
    if asked is not None:
        answers = dict.fromkeys(asked.result["inputRequests"], ANN)
        params = {**OLD, "inputResponses": answers, "requestState": asked.result["requestState"]}
    return await gateway.ask("tools/call", params, capabilities=ABLE, token="ANN", **options)


async def test_a_call_is_gone_on_with_from_whichever_replica_the_retry_comes_to(old, replicas):
    """M-19, M-20: round by round another one, what the server tells meanwhile included."""

    async def talk(call):
        said = []
        for round in range(4):
            said.append((await call.ask("roots/list"))["result"])
            await call.notify("notifications/progress", progressToken=call.token, progress=round)
        return said

    old.on("tools/call", streamed(talk))
    one, two, three = replicas
    answer = await call(one, meta={"progressToken": "p"})
    for gateway in (two, three, one, two):
        assert answer.result["resultType"] == "input_required"
        answer = await call(gateway, answer, meta={"progressToken": "p"})
    assert json.loads(answer.result["content"][0]["text"]) == [ANN] * 4
    assert [notice["params"]["progressToken"] for notice in answer.notices] == ["p"]
    assert len(old.seen("tools/call")) == 1


async def test_of_retries_at_several_replicas_one_reaches_the_server(old, replicas):
    async def talk(call):
        return (await call.ask("roots/list"))["result"]

    old.on("tools/call", streamed(talk))
    asked = await call(replicas[0])
    answers = await asyncio.gather(*(call(gateway, asked) for gateway in (*replicas, *replicas)))
    assert sorted("error" in answer.message for answer in answers) == [False] + [True] * 5
    assert {answer.code for answer in answers if "error" in answer.message} == {-32602}


async def test_a_client_that_leaves_another_replica_cancels_the_call(old, replicas):
    """U-23: the server hears of it from the replica that has its session."""
    reached = asyncio.Event()

    async def talk(call):
        await call.ask("roots/list")
        reached.set()
        await asyncio.Event().wait()

    old.on("tools/call", streamed(talk))
    asked = await call(replicas[0])
    leaving = asyncio.ensure_future(call(replicas[1], asked))
    await reached.wait()
    leaving.cancel()
    of = (await old.arrived("tools/call")).message["id"]
    assert (await old.arrived("notifications/cancelled")).params["requestId"] == of


async def test_a_replica_that_stops_takes_its_calls_with_it(server, old):
    """The server is told, and the retry is refused at once wherever it comes."""

    async def talk(call):
        await call.ask("roots/list")

    old.on("tools/call", streamed(talk))
    shared = {"secrets": KEYS, "cache": {"redis": server.url, "redis_timeout": 0.5}}
    async with running({"old": old}, **shared) as left:
        async with running({"old": old}, **shared) as stops:
            asked = await call(stops)
        assert (await old.arrived("notifications/cancelled")).params["requestId"]
        assert (await call(left, asked)).code == -32602


async def test_older_clients_of_older_servers_are_asked_through_any_replica(old, urls):
    """Both edges at once: the call waits for its server's answer here, for its client's there."""

    async def talk(call):
        return [(await call.ask("roots/list"))["result"] for _ in range(3)]

    old.on("tools/call", streamed(talk))
    async with (
        LegacyClient(urls, capabilities=ABLE, token="ANN") as client,
        client.open("tools/call", OLD) as posted,
    ):
        for _ in range(3):
            put = await posted.next()
            assert put["method"] == "roots/list"
            assert await client.respond(put["id"], ANN) == 202
        answer = await posted.answer()
    assert json.loads(answer["result"]["content"][0]["text"]) == [ANN] * 3
    assert len(old.seen("tools/call")) == 1
