"""The scripted upstream does what the script says."""

import asyncio

import aiohttp
import pytest

from tests.support.scripted import (
    CUT,
    META,
    VERSION,
    ScriptedUpstream,
    answer,
    cut,
    event,
    hang,
    notification,
    result,
    sse,
    status,
    tool,
)

HEADERS = {"Content-Type": "application/json", "MCP-Protocol-Version": VERSION}
LISTEN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "subscriptions/listen",
    "params": {
        "notifications": {"toolsListChanged": True},
        "_meta": {f"{META}protocolVersion": VERSION, f"{META}clientCapabilities": {}},
    },
}
LISTENING = {**HEADERS, "Mcp-Method": "subscriptions/listen"}


async def post(session, upstream, method, mirrored=None, **params):
    meta = {f"{META}protocolVersion": VERSION, f"{META}clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": meta}}
    headers = {**HEADERS, "Mcp-Method": method, **({"Mcp-Name": mirrored} if mirrored else {})}
    async with session.post(upstream.url, json=message, headers=headers) as response:
        return response.status, await response.text()


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def test_without_a_script_it_is_a_well_behaved_server(session):
    """Lists are paged, calls echo their arguments, unknown methods are 404."""
    async with ScriptedUpstream(tools=[tool("a"), tool("b")], page_size=1) as upstream:
        assert '"nextCursor": "at-1"' in (await post(session, upstream, "tools/list"))[1]
        assert '"name": "b"' in (await post(session, upstream, "tools/list", cursor="at-1"))[1]
        code, body = await post(session, upstream, "tools/call", "a", name="a", arguments={"x": 1})
        assert (code, '\\"x\\": 1' in body) == (200, True)
        assert (await post(session, upstream, "nope"))[0] == 404
        assert (await post(session, upstream, "tools/call", "b", name="a"))[0] == 400
        seen = await upstream.arrived("tools/call")
        assert (seen.header("mcp-name"), seen.params["arguments"]) == ("a", {"x": 1})


async def test_a_script_holds_once_or_for_good(session):
    """`once` comes before `on`, and `reset` brings the default back."""
    async with ScriptedUpstream() as upstream:
        upstream.on("tools/list", status(503, b"busy", "text/plain"))
        upstream.once("tools/list", result({"tools": []}))
        answers = [(await post(session, upstream, "tools/list"))[0] for _ in range(3)]
        assert answers == [200, 503, 503]
        upstream.reset()
        assert (await post(session, upstream, "tools/list"))[0] == 200


async def test_a_stream_waits_for_events_and_may_be_cut(session):
    """Steps are written one by one; CUT drops the connection."""
    go = asyncio.Event()
    first = event(notification("notifications/message", level="info", data=1))
    async with ScriptedUpstream() as upstream:
        upstream.once("tools/list", sse(first, go, answer({"tools": []})), sse(first, CUT), cut())
        running = asyncio.create_task(post(session, upstream, "tools/list"))
        await upstream.arrived("tools/list")
        go.set()
        assert '"tools": []' in (await running)[1]
        for _ in range(2):
            with pytest.raises(aiohttp.ClientError):
                await post(session, upstream, "tools/list")


async def test_it_tells_when_the_peer_hangs_up(session):
    """`closed` is set once the connection of an unanswered request is gone."""
    async with ScriptedUpstream() as upstream:
        upstream.on("*", hang())
        running = asyncio.create_task(post(session, upstream, "tools/list"))
        seen = await upstream.arrived()
        running.cancel()
        await seen.closed.wait()


async def test_it_comes_back_on_the_same_port(session):
    """A stopped server refuses, a started one answers at the same URL."""
    async with ScriptedUpstream() as upstream:
        await upstream.stop()
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(session, upstream, "tools/list")
        await upstream.start()
        assert (await post(session, upstream, "tools/list"))[0] == 200


async def test_listeners_are_told(session):
    """`notify` reaches open listen streams."""
    async with (
        ScriptedUpstream() as upstream,
        session.post(upstream.url, json=LISTEN, headers=LISTENING) as response,
    ):
        assert await upstream.listening() == [{"toolsListChanged": True}]
        await upstream.notify("notifications/tools/list_changed")
        text = b""
        while b"list_changed" not in text:
            text += await response.content.readany()


async def test_who_hangs_up_is_told_nothing(session):
    """A notice may come in the very moment at which the peer goes, which is no fault of the script."""
    async with (
        ScriptedUpstream() as upstream,
        session.post(upstream.url, json=LISTEN, headers=LISTENING) as stays,
        session.post(upstream.url, json=LISTEN, headers=LISTENING) as goes,
    ):
        assert len(await upstream.listening(2)) == 2
        goes.close()
        sent = 0
        while len(upstream.listens) > 1 or not sent:
            await upstream.notify("notifications/tools/list_changed")
            sent += 1
            await asyncio.sleep(0)
        text = b""
        while text.count(b"list_changed") < sent:
            text += await stays.content.readany()
