"""The standing stream of a session: what it is told, and that there is one."""

import asyncio
from urllib.parse import urlsplit

import pytest

from tests.support.front import Client
from tests.support.legacy_client import LegacyClient
from tests.support.running import running
from tests.support.scripted import ScriptedUpstream, listen, tool

VERSIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]
LISTS = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


@pytest.fixture
async def alpha():
    resources = [{"uri": uri, "name": uri} for uri in ("a:1", "a:2")]
    async with ScriptedUpstream(tools=[tool("add")], resources=resources) as alpha:
        yield alpha


@pytest.fixture
async def gateway(alpha):
    async with running({"alpha": alpha}) as gateway:
        yield gateway


@pytest.fixture
def url(gateway):
    return gateway.addresses.endpoints[0]


async def wanted(alpha, uris):
    """Wait until the upstream is listened to by one stream, for these resources."""
    while [set(one.wanted.get("resourceSubscriptions", ())) for one in alpha.listens] != [set(uris)]:  # noqa: ASYNC110  # see scripted
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_session_hears_of_lists_and_of_the_resources_it_asked_for(alpha, url, version):
    """L-25: without a subscription's id, and of nothing else."""
    async with LegacyClient(url, version) as client, client.listen() as stream:
        assert stream.status == 200
        await client.result("resources/subscribe", {"uri": "alpha+a:1"})
        await wanted(alpha, ["a:1"])
        await alpha.notify("notifications/resources/updated", uri="a:1")
        assert await stream.next() == {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": "alpha+a:1"},
        }
        for kind in ("tools", "prompts", "resources"):
            await alpha.notify(f"notifications/{kind}/list_changed")
            assert await stream.next() == {
                "jsonrpc": "2.0",
                "method": f"notifications/{kind}/list_changed",
            }
        await client.result("resources/unsubscribe", {"uri": "alpha+a:1"})
        await wanted(alpha, [])
        await alpha.notify("notifications/resources/updated", uri="a:1")
        await alpha.notify("notifications/tools/list_changed")
        assert (await stream.next())["method"] == "notifications/tools/list_changed"


async def test_what_was_asked_for_before_the_stream_is_heard_on_it(alpha, url):
    async with LegacyClient(url) as client:
        for uri in ("alpha+a:1", "alpha+a:2", "alpha+a:1"):
            await client.result("resources/subscribe", {"uri": uri})
        async with client.listen() as stream:
            await wanted(alpha, ["a:1", "a:2"])
            await alpha.notify("notifications/resources/updated", uri="a:2")
            assert (await stream.next())["params"] == {"uri": "alpha+a:2"}
        await wanted(alpha, [])  # nobody listens any more


async def test_sessions_hear_of_their_own_resources_only(alpha, url):
    """X-27: each message on one stream, that of who asked for it."""
    async with LegacyClient(url) as ann, LegacyClient(url) as bob, ann.listen() as hers, bob.listen() as his:
        await ann.result("resources/subscribe", {"uri": "alpha+a:1"})
        await bob.result("resources/subscribe", {"uri": "alpha+a:2"})
        await wanted(alpha, ["a:1", "a:2"])
        await alpha.notify("notifications/resources/updated", uri="a:1")
        await alpha.notify("notifications/resources/updated", uri="a:2")
        assert (await hers.next())["params"] == {"uri": "alpha+a:1"}
        assert (await his.next())["params"] == {"uri": "alpha+a:2"}


async def test_a_change_is_not_missed_while_the_stream_asks_for_something_else(alpha, url):
    """The new listen is there before the old one goes, and told twice is better than never."""
    async with LegacyClient(url) as client, client.listen() as stream:
        await client.result("resources/subscribe", {"uri": "alpha+a:1"})
        await wanted(alpha, ["a:1"])
        for _ in range(5):
            await asyncio.gather(
                client.result("resources/subscribe", {"uri": "alpha+a:2"}),
                alpha.listens[0].notify("notifications/resources/updated", uri="a:1"),
            )
            assert (await stream.next())["params"] == {"uri": "alpha+a:1"}
            await client.result("resources/unsubscribe", {"uri": "alpha+a:2"})
            await wanted(alpha, ["a:1"])


async def test_a_newer_stream_takes_the_place_of_the_older(alpha, gateway, url):
    """A-46: it survives a connection that is only half there."""
    async with LegacyClient(url) as client, client.listen() as old, client.listen() as new:
        assert await old.ended()
        await gateway.busy(1)
        await alpha.listening()
        await alpha.notify("notifications/tools/list_changed")
        assert (await new.next())["method"] == "notifications/tools/list_changed"
        (session,) = gateway.runtime.sessions
        assert session.stream is not None


async def test_a_stream_ends_with_its_session_and_leaves_nothing(gateway, url):
    async with LegacyClient(url) as client, client.listen() as stream:
        await gateway.subscribed(1)
        assert await client.delete() == 204
        assert await stream.ended()
    await gateway.subscribed(0)
    await gateway.busy(0)


async def test_a_client_that_leaves_its_stream_may_come_back(alpha, gateway, url):
    async with LegacyClient(url) as client:
        for _ in range(3):
            async with client.listen() as stream:
                await gateway.subscribed(1)
                await alpha.notify("notifications/tools/list_changed")
                assert (await stream.next())["method"] == "notifications/tools/list_changed"
            await gateway.subscribed(0)
        (session,) = gateway.runtime.sessions
        while session.busy:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.002)


async def test_a_stream_ends_when_the_gateway_stops(alpha):
    async with running({"alpha": alpha}) as gateway:
        client = LegacyClient(gateway.addresses.endpoints[0])
        await client.initialize()
        async with client.listen() as stream:
            await gateway.subscribed(1)
            gateway.runtime.background.start(gateway.gateway.stop(5.0), name="stop")
            assert await stream.ended()


async def test_what_cannot_be_granted_yet_is_heard_of_later(alpha):
    """A stream that opens while the upstream is away hears of the resource once it is back."""
    async with (
        ScriptedUpstream(tools=[tool("sub")]) as beta,
        running({"alpha": alpha, "beta": beta}, subscriptions={"acknowledge": 0.2}) as gateway,
        LegacyClient(gateway.addresses.endpoints[0]) as client,
    ):
        await client.result("resources/subscribe", {"uri": "alpha+a:1"})
        await alpha.stop()
        await gateway.until("alpha", "down")
        async with client.listen() as stream:
            await beta.listening()
            await beta.notify("notifications/tools/list_changed")
            assert (await stream.next())["method"] == "notifications/tools/list_changed"
            await alpha.start()
            updated = {
                "jsonrpc": "2.0",
                "method": "notifications/resources/updated",
                "params": {"uri": "alpha+a:1"},
            }
            while await stream.next() != updated:
                pass
            await wanted(alpha, ["a:1"])
            await alpha.notify("notifications/resources/updated", uri="a:1")
            while await stream.next() != updated:
                pass


async def test_a_resource_nobody_tells_of_cannot_be_subscribed_to(alpha):
    """9.3: -32602 where its server does not do that."""
    alpha.capabilities = {"resources": {"listChanged": True}}
    async with running({"alpha": alpha}) as gateway, LegacyClient(gateway.addresses.endpoints[0]) as client:
        said = await client.error("resources/subscribe", {"uri": "alpha+a:1"})
        assert said["code"] == -32602
        assert "alpha" in said["message"]


async def test_subscriptions_are_bounded(alpha):
    bounds = {"uris_per_stream": 2, "uri_bytes": 100}
    async with (
        running({"alpha": alpha}, subscriptions=bounds) as gateway,
        LegacyClient(gateway.addresses.endpoints[0]) as client,
    ):
        long = "alpha+a:" + "x" * 100
        assert "uri_bytes" in (await client.error("resources/subscribe", {"uri": long}))["message"]
        for uri in ("alpha+a:1", "alpha+a:2"):
            await client.result("resources/subscribe", {"uri": uri})
        said = await client.error("resources/subscribe", {"uri": "alpha+a:3"})
        assert "uris_per_stream" in said["message"]
        await client.result("resources/unsubscribe", {"uri": "alpha+a:2"})
        await client.result("resources/subscribe", {"uri": "alpha+a:3"})


async def test_a_stream_outlives_the_promise_of_its_upstream(alpha, gateway, url):
    """Where a modern stream would end, this one tells of all that it was to tell of, and goes on."""
    async with LegacyClient(url) as client, client.listen() as stream:
        await client.result("resources/subscribe", {"uri": "alpha+a:1"})
        await wanted(alpha, ["a:1"])
        alpha.on("subscriptions/listen", listen(LISTS))
        alpha.listens[0].cut()
        told = {(await stream.next())["method"] for _ in range(3)}
        assert told >= {f"notifications/{kind}/list_changed" for kind in ("tools", "prompts")}
        await gateway.subscribed(1)
        await alpha.notify("notifications/tools/list_changed")
        while (await stream.next())["method"] != "notifications/tools/list_changed":
            pass


async def test_who_listens_again_on_the_same_connection_is_told_to_go_elsewhere(gateway, url):
    """The head of the stream promised that the connection stays, so it does, for one answer more."""
    async with LegacyClient(url) as client, asyncio.timeout(20):
        at = urlsplit(url)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        own = Client(reader, writer)
        listens = (
            f"GET {at.path} HTTP/1.1\r\nhost: {at.netloc}\r\naccept: text/event-stream\r\n"
            f"mcp-session-id: {client.session}\r\nmcp-protocol-version: {client.version}\r\n\r\n"
        ).encode()
        own.send(listens)
        assert (await own.head()).header("connection") is None
        stopping = asyncio.create_task(gateway.gateway.stop(60.0, linger=60.0))
        async for _ in own.chunks():
            pass
        own.send(listens)
        reply = await own.reply()
        assert (reply.status, reply.header("connection")) == (200, "close")
        assert await own.hung_up()
        writer.transport.abort()
        await stopping
