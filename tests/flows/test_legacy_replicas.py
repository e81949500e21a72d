"""A client of an older revision behind a balancer without affinity: each request goes to another replica."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from tests.support.legacy_client import LegacyClient
from tests.support.redis import redis_server
from tests.support.running import running
from tests.support.scripted import ScriptedUpstream, complete, result, tool

ABLE = {"elicitation": {"form": {}}, "roots": {}}
DEPLOY = {"name": "alpha__deploy", "arguments": {}}
ROOTS = {"method": "roots/list"}
ANN = {"roots": [{"uri": "file:///ann"}]}
KEYS = {"keys": ["0123456789abcdef-key"]}


@pytest.fixture
async def server():
    async with redis_server() as server:
        yield server


@pytest.fixture
async def alpha():
    resources = [{"uri": "a:1", "name": "one"}]
    async with ScriptedUpstream(tools=[tool("deploy")], resources=resources) as alpha:
        yield alpha


@pytest.fixture
async def replicas(server, alpha):
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                running({"alpha": alpha}, secrets=KEYS, cache={"redis": server.url, "redis_timeout": 0.5})
            )
            for _ in range(3)
        ]
        for one in replicas:
            await one.runtime.mailbox.linked()
        yield replicas


@pytest.fixture
def urls(replicas):
    return [one.addresses.endpoints[0] for one in replicas]


async def asking(exchange):
    """Ask for the roots, and answer with what is brought."""
    params = exchange.received.params
    if "inputResponses" not in params:
        asked = {"resultType": "input_required", "inputRequests": {"k": ROOTS}, "requestState": "s"}
        await result(asked)(exchange)
        return
    text = json.dumps(params["inputResponses"])
    await exchange.reply({"result": complete({"content": [{"type": "text", "text": text}]})})


async def test_any_replica_takes_what_belongs_to_a_session(urls):
    async with LegacyClient(urls, capabilities=ABLE) as client:
        for _ in range(4):
            assert len((await client.result("tools/list"))["tools"]) == 1
        assert await client.result("logging/setLevel", {"level": "error"}) == {}


async def test_a_question_is_answered_wherever_the_answer_is_posted(alpha, urls):
    """M-15, M-16: it reaches the call that waits on another replica, whichever that is."""
    alpha.on("tools/call", asking)
    async with LegacyClient(urls, capabilities=ABLE) as client:
        for _ in range(4):  # of three: so each of them holds the call once
            async with client.open("tools/call", DEPLOY) as posted:
                put = await posted.next()
                assert await client.respond(put["id"], ANN) == 202
                answer = await posted.answer()
            assert json.loads(answer["result"]["content"][0]["text"]) == {"k": ANN}


async def test_a_stream_hears_of_what_is_asked_for_at_other_replicas(alpha, urls):
    async with LegacyClient(urls) as client, client.listen() as stream:
        await client.result("resources/subscribe", {"uri": "alpha+a:1"})
        while [set(one.wanted.get("resourceSubscriptions", ())) for one in alpha.listens] != [{"a:1"}]:  # noqa: ASYNC110  # see scripted
            await asyncio.sleep(0.002)
        await alpha.notify("notifications/resources/updated", uri="a:1")
        assert (await stream.next())["params"] == {"uri": "alpha+a:1"}


async def test_a_session_that_was_ended_is_gone_everywhere(urls):
    async with LegacyClient(urls) as client:
        assert await client.delete() == 204
        for _ in urls:
            async with client.open("tools/list") as exchange:
                assert (await exchange.begun()).status == 404


async def test_a_session_outlives_a_redis_that_is_away(server, urls):
    """Nobody is sent away with a 404 because what is noted cannot be read."""
    async with LegacyClient(urls) as client:
        server.freeze()
        for _ in urls:
            assert len((await client.result("tools/list"))["tools"]) == 1
        server.thaw()
        assert len((await client.result("tools/list"))["tools"]) == 1
