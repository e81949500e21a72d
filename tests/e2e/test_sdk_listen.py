"""A server of the official SDK is listened to."""

import asyncio
import json
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

from gateway.protocol.subscriptions import Wanted
from gateway.upstream.pool import Listening
from tests.support.pools import ALPHA, running, settings
from tests.support.processes import reference_server

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
