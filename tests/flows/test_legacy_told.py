"""What an older client and older servers tell each other beside requests: roots, progress, pages."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.flows.test_stdio_upstreams import program
from tests.support.legacy_client import LegacyClient
from tests.support.legacy_upstream import LegacyServer, streamed, text
from tests.support.redis import redis_server
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, error, tool

pytestmark = pytest.mark.timeout(60)

ROOTS_CHANGED = "notifications/roots/list_changed"
PROGRESS = "notifications/progress"
COMPLETE = "notifications/elicitation/complete"
ABLE = {"elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}}
OLD = {"name": "old__deploy", "arguments": {}}
ANN = {"roots": [{"uri": "file:///ann"}]}
PAGE = {"mode": "url", "message": "Go", "url": "https://x/?q=1", "elicitationId": "theirs"}


@pytest.fixture
async def old() -> AsyncIterator[LegacyServer]:
    async with LegacyServer(tools=[tool("deploy")]) as old:
        yield old


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("deploy")]) as alpha:
        yield alpha


@pytest.fixture(params=["one process", "three replicas"])
async def gateways(
    request: pytest.FixtureRequest, old: LegacyServer, alpha: ScriptedUpstream
) -> AsyncIterator[list[Running]]:
    """One gateway, or three that each request comes to in turn."""
    async with AsyncExitStack() as stack:
        settings: dict[str, object] = {}
        count = 1
        if request.param == "three replicas":
            server = await stack.enter_async_context(redis_server())
            settings = {
                "cache": {"redis": server.url, "redis_timeout": 5.0, "redis_budget": 5.0},
                "secrets": {"keys": ["0123456789abcdef-key"]},
            }
            count = 3
        gateways = [
            await stack.enter_async_context(running({"alpha": alpha, "old": old}, **settings))
            for _ in range(count)
        ]
        if count > 1:
            for one in gateways:
                await one.runtime.mailbox.linked()
        yield gateways


@pytest.fixture
def urls(gateways: list[Running]) -> list[str]:
    return [one.addresses.endpoints[0] for one in gateways]


async def test_that_roots_changed_is_told_in_the_clients_own_sessions(old, alpha, gateways, urls):
    """At older servers, on every replica; not where nobody could ask for them, nor in anybody else's."""
    async with (
        LegacyClient(urls, capabilities=ABLE, token="ANN") as ann,
        LegacyClient(urls, capabilities=ABLE, token="BOB") as bob,
        LegacyClient(urls, token="ANN") as unable,
    ):
        sessions = {}
        for name, client in (("ann", ann), ("bob", bob), ("unable", unable)):
            for _ in urls:
                await client.result("tools/call", OLD)
                called = await old.arrived("tools/call")
                sessions.setdefault(name, set()).add(called.header("mcp-session-id"))
        assert len(sessions["ann"] | sessions["bob"] | sessions["unable"]) == 3 * len(urls)
        for client, name in ((ann, "ann"), (bob, "bob"), (unable, "ann")):
            assert await client.notify(ROOTS_CHANGED) == 202
            told = {(await old.arrived(ROOTS_CHANGED)).header("mcp-session-id") for _ in urls}
            assert told == sessions[name]
        assert len(old.seen(ROOTS_CHANGED)) == 3 * len(urls)
        assert alpha.seen(ROOTS_CHANGED) == []


async def test_a_program_of_ones_own_is_told_that_roots_changed():
    """Over stdio, in the process of this caller."""
    settings = program("--era", "legacy", isolation="caller")
    async with running({"files": settings}) as gateway:
        url = gateway.addresses.endpoints[0]
        async with LegacyClient(url, capabilities=ABLE, token="ANN") as client:

            async def seen():
                called = await client.result("tools/call", {"name": "files__seen", "arguments": {}})
                messages = json.loads(called["content"][0]["text"])
                return [one["method"] for one in messages if one.get("method") == ROOTS_CHANGED]

            assert await seen() == []
            assert await client.notify(ROOTS_CHANGED) == 202
            while not (told := await seen()):
                pass
            assert told == [ROOTS_CHANGED]


async def test_progress_of_an_answer_reaches_the_server_that_wants_to_know(old, urls):
    """In its own token, increasing, of the client that was asked, and until the answer (E-33, E-34)."""

    async def talk(call):
        asked = {"_meta": {"progressToken": "theirs", "v/x": 1}}
        return [(await call.ask("roots/list", asked))["result"], (await call.ask("roots/list"))["result"]]

    old.on("tools/call", streamed(talk))
    async with (
        LegacyClient(urls, capabilities=ABLE, token="ANN") as client,
        LegacyClient(urls, capabilities=ABLE, token="BOB") as other,
        client.open("tools/call", OLD) as posted,
    ):
        put = await posted.next()
        token = put["params"]["_meta"]["progressToken"]
        assert token != "theirs"
        assert put["params"]["_meta"]["v/x"] == 1

        async def report(who=client, **params):
            assert await who.notify(PROGRESS, {"progressToken": token, **params}) == 202

        await report(other, progress=7)
        await report(progress=1, total=3, message="looking")
        told = await old.arrived(PROGRESS)
        assert told.params == {"progressToken": "theirs", "progress": 1, "total": 3, "message": "looking"}
        assert told.header("mcp-session-id") == (await old.arrived("tools/call")).header("mcp-session-id")
        for odd in ({"progress": 1}, {"progress": "2"}, {"progress": True}, {}):
            await report(**odd)
        await report(progress=2.5)
        assert (await old.arrived(PROGRESS)).params == {"progressToken": "theirs", "progress": 2.5}
        assert await client.respond(put["id"], ANN) == 202
        put = await posted.next()
        assert "params" not in put  # this time nobody wants to know
        await report(progress=3)
        assert await client.respond(put["id"], ANN) == 202
        assert (await posted.answer())["result"]["content"]
    assert len(old.seen(PROGRESS)) == 2


async def test_a_page_that_was_dealt_with_is_told_of_to_the_client_that_was_sent_there(old, urls):
    """On its standing stream, once, under the id that it knows, though its call is long over."""

    async def talk(call):
        return (await call.ask("elicitation/create", PAGE))["result"]

    old.on("tools/call", streamed(talk))
    async with (
        LegacyClient(urls, capabilities=ABLE, token="ANN") as client,
        LegacyClient(urls, capabilities=ABLE, token="BOB") as other,
        client.listen() as stream,
        other.listen() as elsewhere,
        client.open("tools/call", OLD) as posted,
    ):
        put = await posted.next()
        id = put["params"]["elicitationId"]
        assert id != "theirs"
        assert await client.respond(put["id"], {"action": "accept"}) == 202
        assert json.loads((await posted.answer())["result"]["content"][0]["text"]) == {"action": "accept"}
        called = await old.arrived("tools/call")
        await old.stood(old.session_of(called))
        for page in ("nobody's", "theirs", "theirs"):
            await old.notify(COMPLETE, elicitationId=page)
        assert await stream.next() == {"jsonrpc": "2.0", "method": COMPLETE, "params": {"elicitationId": id}}
        await old.notify("notifications/tools/list_changed")
        for one in (stream, elsewhere):
            assert (await one.next())["method"] == "notifications/tools/list_changed"


async def test_a_page_that_an_error_named_is_told_of_as_well(old, urls):
    """-32042 becomes a question; the call is made again with its answer (M-21)."""
    old.once("tools/call", error(-32042, "first", {"elicitations": [PAGE]}))
    async with (
        LegacyClient(urls, capabilities=ABLE, token="ANN") as client,
        client.listen() as stream,
        client.open("tools/call", OLD) as posted,
    ):
        put = await posted.next()
        assert await client.respond(put["id"], {"action": "accept"}) == 202
        assert "result" in await posted.answer()
        await old.stood(old.session_of(await old.arrived("tools/call")))
        await old.notify(COMPLETE, elicitationId="theirs")
        assert (await stream.next())["params"] == {"elicitationId": put["params"]["elicitationId"]}


async def test_modern_clients_and_those_without_a_stream_are_told_of_no_page(old):
    """The former learn of it by their retry; what cannot be told is dropped, and counted (9.5)."""

    async def talk(call):
        answer = (await call.ask("elicitation/create", PAGE))["result"]
        await call.notify(COMPLETE, elicitationId="theirs")
        return text(json.dumps(answer))

    old.on("tools/call", streamed(talk))
    async with running({"old": old}) as gateway:
        options = {"token": "ANN", "capabilities": {"elicitation": {"url": {}}}}
        asked = (await gateway.ask("tools/call", OLD, **options)).result
        ((key, question),) = asked["inputRequests"].items()
        assert key == "q1"
        assert "elicitationId" not in question["params"]
        retry = {**OLD, "inputResponses": {key: {"action": "accept"}}, "requestState": asked["requestState"]}
        answer = await gateway.ask("tools/call", retry, **options)
        assert answer.text == {"action": "accept"}
        assert answer.notices == []
        assert await gateway.counted('dropped_total{upstream="old",what="notification"}') == 1.0
        url = gateway.addresses.endpoints[0]
        async with (
            LegacyClient(url, capabilities=ABLE, token="ANN") as client,
            client.open("tools/call", OLD) as posted,
        ):
            put = await posted.next()
            await client.respond(put["id"], {"action": "accept"})
            assert "result" in await posted.answer()
            assert [one.get("method") for one in posted.messages] == ["elicitation/create", None]
