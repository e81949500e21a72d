"""A server of the official SDK is listened to, and the SDK's client listens to the gateway before it."""

import asyncio
import json
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

from gateway.protocol.subscriptions import Wanted
from gateway.upstream.transport import Listening
from tests.support.pools import ALPHA, running, settings
from tests.support.processes import reference_server
from tests.support.running import running as serving

WANTED = Wanted(True, True, True, frozenset({"test://static-text", "a:b"}), frozenset({"t"}))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with reference_server() as url:
        yield url


async def tell(url: str, command: str) -> None:
    """Have the server do something that its subscribers hear of."""
    address = f"{url.removesuffix('/mcp')}/debug/{command}"
    await asyncio.to_thread(lambda: urlopen(Request(address, method="POST"), timeout=10).close())


async def streams(url: str) -> int:
    """Return how many listen streams the server has open."""
    address = f"{url.removesuffix('/mcp')}/debug/state"

    def ask() -> int:
        with urlopen(address, timeout=10) as answer:
            return int(json.load(answer)["listenStreams"])

    return await asyncio.to_thread(ask)


async def heard(listening: Listening) -> tuple[str, dict[str, object]]:
    notice = await anext(listening)
    return notice.method, {key: json.loads(bytes(raw)) for key, raw in notice.params.items()}


async def test_its_changes_are_heard_until_it_ends_the_stream(url: str) -> None:
    """It grants all but tasks (L-16), and says when the end is deliberate (L-10)."""
    async with running(alpha=settings(url)) as gateway, gateway.pool.listen(ALPHA, WANTED) as listening:
        assert listening.honoured == WANTED - Wanted(tasks=frozenset({"t"}))
        for kind in ("tools", "prompts", "resources"):
            await tell(url, f"emit?kind={kind}")
            assert await heard(listening) == (f"notifications/{kind}/list_changed", {})
        await tell(url, "emit?kind=updated&uri=c:d")
        await tell(url, "emit?kind=updated&uri=a:b")
        assert await heard(listening) == ("notifications/resources/updated", {"uri": "a:b"})
        await tell(url, "end-listen")
        assert [notice async for notice in listening] == []


async def test_it_notices_that_nobody_listens_any_more(url: str) -> None:
    """The stream is closed, which is how the modern protocol cancels (U-23)."""
    async with running(alpha=settings(url)) as gateway:
        async with gateway.pool.listen(ALPHA, Wanted()):
            assert await streams(url) == 1
        while await streams(url):
            pass


async def test_the_client_hears_what_the_server_says(url: str) -> None:
    """Through the gateway: lists and resources under its own names, until the gateway stops (L-10)."""
    async with (
        serving({"everything": url}) as gateway,
        Client(gateway.addresses.endpoints[0], mode="2026-07-28", read_timeout_seconds=10) as client,
        client.listen(
            tools_list_changed=True, resource_subscriptions=["everything+test://watched-resource", "no:such"]
        ) as heard,
    ):
        assert heard.honored.tools_list_changed
        assert heard.honored.resource_subscriptions == ["everything+test://watched-resource"]
        before = {tool.name for tool in (await client.list_tools()).tools}
        await client.call_tool("everything__test_trigger_tool_change")
        assert await anext(heard) == ToolsListChanged()
        assert {tool.name for tool in (await client.list_tools()).tools} != before
        await client.call_tool("everything__test_trigger_resource_update")
        assert await anext(heard) == ResourceUpdated(uri="everything+test://watched-resource")
        gateway.runtime.stopping.set()
        assert [event async for event in heard] == []
