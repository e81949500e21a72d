"""Storms of changes, of reconnections and of clients cost little and lose nothing (B45, B29, L-20)."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.listening import TOOLS, TOOLS_CHANGED, UPDATED, listening, quiet, told, uris
from tests.support.running import Exchange, Running, running
from tests.support.scripted import Exchange as Asked
from tests.support.scripted import ScriptedUpstream, listen, result, tool

MANY = 500
FILES = 4096
"""Of a thousand streams each end is one."""


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        yield upstream


@pytest.fixture
async def many() -> AsyncIterator[None]:
    """Allow thousands of streams: in files, and without the loop's debug mode, which takes six times as long.

    For the same reason those tests do not hold what comes against the official types; others do.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < FILES:
        enough = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
    loop = asyncio.get_running_loop()
    loop.set_debug(False)
    yield
    loop.set_debug(True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


async def storm(alpha: ScriptedUpstream) -> None:
    """Say so often that the list changed, with the change itself at the end."""
    (stream,) = alpha.listens
    for _ in range(MANY):
        await stream.notify(TOOLS_CHANGED)
    alpha.tools = [tool("last")]
    await stream.notify(TOOLS_CHANGED)


async def until_listed(gateway: Running, stream: Exchange, name: str) -> int:
    """List whenever a change is told, as clients do, until the list holds this; how often that was."""
    for count in range(1, MANY):
        assert await told(stream) == (TOOLS_CHANGED, None)
        if (await gateway.ask("tools/list", judged=False)).names == [name]:
            return count
    raise AssertionError("the last change was never told")


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("many")
async def test_a_storm_of_changes_is_told_once_or_twice(alpha: ScriptedUpstream) -> None:
    """B45: at once, and once more at the end, so that the last change is not lost."""
    async with (
        running({"alpha": alpha}, subscriptions={"gather": 0.3}) as gateway,
        AsyncExitStack() as clients,
    ):
        opening = [listening(gateway, TOOLS, judged=False) for _ in range(1_000)]
        streams = [await clients.enter_async_context(each) for each in opening]
        await gateway.ask("tools/list")
        before = len(alpha.seen("tools/list"))
        await storm(alpha)
        counts = await asyncio.gather(*(until_listed(gateway, stream, "alpha__last") for stream in streams))
        assert max(counts) <= 5
        assert len(alpha.seen("tools/list")) - before <= 5
        invalidations = await gateway.counted('cache_invalidations_total{cause="list_changed"')
        assert invalidations <= 5


async def test_a_list_request_that_changes_nothing_is_told_to_nobody(alpha: ScriptedUpstream) -> None:
    """B45: an upstream that cries change whenever it is asked for its list."""

    async def cry(exchange: Asked) -> None:
        for _ in range(10):
            await alpha.notify(TOOLS_CHANGED)
        await result({"tools": alpha.tools, "ttlMs": 60_000, "cacheScope": "public"})(exchange)

    async with running({"alpha": alpha}) as gateway, listening(gateway, TOOLS) as stream:
        await gateway.ask("tools/list")
        alpha.on("tools/list", cry)
        await alpha.notify(TOOLS_CHANGED)
        notices = 0
        while notices < 20:
            try:
                async with asyncio.timeout(0.5):  # far longer than a notice takes
                    await told(stream)
            except TimeoutError:
                break
            notices += 1
            await gateway.ask("tools/list")
        assert notices <= 4
        alpha.tools = [tool("b")]
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)


def hangs_up(alpha: ScriptedUpstream, times: int) -> None:
    """Let the next streams be acknowledged and ended at once, each with a word that this is meant."""

    async def ends(exchange: Asked) -> None:
        task = asyncio.create_task(listen()(exchange))
        while not alpha.listens:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)
        await alpha.listens[-1].end()
        await task

    alpha.once("subscriptions/listen", *[ends] * times)


async def test_an_upstream_that_hangs_up_at_once_is_left_alone_for_longer_each_time(
    alpha: ScriptedUpstream,
) -> None:
    """B45: and clients are told nothing, since nothing changes."""
    hangs_up(alpha, 6)
    waits = {"retry": 0.01, "longest_retry": 10.0}
    began = asyncio.get_running_loop().time()
    async with running({"alpha": alpha}, subscriptions=waits) as gateway, listening(gateway, TOOLS):
        await alpha.listening()
        while len(alpha.seen("subscriptions/listen")) < 7:
            await alpha.arrived("subscriptions/listen")
        assert asyncio.get_running_loop().time() - began >= 0.01 * (2**6 - 1) / 2, "half of it may be chance"
        await gateway.until_counted("upstream_listen_gaps_total", 6)
        assert await gateway.counted('notices_total{fate="delivered"}') == 0


async def test_after_a_stream_that_lasted_the_pauses_begin_anew(alpha: ScriptedUpstream) -> None:
    """B45: else the twelfth would be a minute, in which nobody hears anything."""
    hangs_up(alpha, 12)
    waits = {"retry": 0.03, "longest_retry": 3600.0, "stable": 1e-9}
    async with running({"alpha": alpha}, subscriptions=waits) as gateway, listening(gateway, TOOLS) as stream:
        while len(alpha.seen("subscriptions/listen")) < 13:
            await alpha.arrived("subscriptions/listen")
        await alpha.listening()
        alpha.tools = [tool("b")]
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("many")
async def test_many_clients_are_served_by_one_upstream_stream(alpha: ScriptedUpstream) -> None:
    """B45: they come back in the same moment, too, and cost the upstream nothing."""
    alpha.resources = [{"uri": "a:1", "name": "one"}]
    wanted = {**TOOLS, **uris("alpha+a:1")}
    async with running({"alpha": alpha}, subscriptions={"debounce": 0.25}) as gateway:
        for _ in range(2):
            async with AsyncExitStack() as clients:
                opening = [listening(gateway, wanted, judged=False) for _ in range(1_000)]
                streams = await asyncio.gather(*map(clients.enter_async_context, opening))
                while len(alpha.listens) > 1:  # noqa: ASYNC110 - the one before is just being closed
                    await asyncio.sleep(0)
                await alpha.notify(UPDATED, uri="a:1")
                for stream in streams:
                    assert await told(stream) == (UPDATED, "alpha+a:1")
            await gateway.subscribed(0)
        assert len(alpha.seen("subscriptions/listen")) <= 3


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("many")
async def test_of_streams_that_were_dropped_nothing_is_left(alpha: ScriptedUpstream) -> None:
    """B29: counts and tables are what they were before."""
    alpha.resources = [{"uri": "a:1", "name": "one"}]
    async with running({"alpha": alpha}) as gateway:
        before = await quiet(gateway)
        for _ in range(4):
            async with AsyncExitStack() as clients:
                for _ in range(500):
                    opening = gateway.open("subscriptions/listen", {"notifications": uris("alpha+a:1")})
                    await clients.enter_async_context(opening)
                await gateway.subscribed(500)
            await gateway.subscribed(0)
        await gateway.busy(0)
        while await quiet(gateway) != before:  # noqa: ASYNC110 - what nobody wants lingers a little
            await asyncio.sleep(0.005)
        assert await gateway.counted('subscriptions_ended_total{cause="left"}') == 2_000
        assert await gateway.counted('streams_open{side="downstream"}') == 0


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("many")
async def test_a_stalled_reader_costs_the_others_nothing(alpha: ScriptedUpstream) -> None:
    """L-20: it is cut and counted, and what waits for it meanwhile is no more than it asked for."""
    named = [f"a:{number:02}" for number in range(50)]
    wanted = uris(*(f"alpha+{uri}" for uri in named))
    limits = {"stalled_listener": 0.2}
    async with (
        running({"alpha": alpha}, limits=limits) as gateway,
        listening(gateway, wanted, judged=False) as reader,
        listening(gateway, wanted, id="x" * 60_000) as stalled,
    ):
        stalled.stop_reading()
        last: dict[str, int] = {}
        done = asyncio.Event()

        async def read() -> None:
            while not done.is_set() or set(last) != {f"alpha+{uri}" for uri in named}:
                _, uri = await told(reader)
                last[uri] = last.get(uri, 0) + 1

        reading = asyncio.create_task(read())
        for _ in range(400):
            for uri in named:
                await alpha.notify(UPDATED, uri=uri)
            await asyncio.sleep(0)
        done.set()
        last.clear()
        for uri in named:
            await alpha.notify(UPDATED, uri=uri)
        await reading
        await gateway.until_counted("streams_cut_total", 1)
        await gateway.subscribed(1)


async def test_a_flood_of_an_extensions_notices_is_dropped_and_ends_nothing(alpha: ScriptedUpstream) -> None:
    """L-20: who reads nothing has so much waiting and no more; who reads goes on hearing of the lists."""
    extension = "io.modelcontextprotocol/ui"
    able = {"extensions": {extension: {}}}
    async with (
        running({"alpha": alpha}, subscriptions={"pending": "64KiB"}) as gateway,
        listening(gateway, {}, capabilities=able) as stalled,
        listening(gateway, TOOLS) as reads,
    ):
        stalled.stop_reading()
        (stream,) = alpha.listens
        pad, number = "x" * 30_000, 0
        while not await gateway.counted('notices_total{fate="dropped"}'):
            number += 1
            await stream.notify(f"notifications/{extension}/x", number=number, pad=pad)
        await stream.notify(f"notifications/{extension}/x", pad=3 * pad)  # larger than what may wait
        await stream.notify(UPDATED, uri="file:///" + pad)
        await stream.notify(TOOLS_CHANGED)
        assert await told(reads) == (TOOLS_CHANGED, None)
        assert await gateway.counted('notices_total{fate="dropped"}') >= 2
        assert await gateway.counted('dropped_total{upstream="alpha",what="notification"}') == 1
        assert await gateway.counted('subscriptions_ended_total{cause="overflow"}') == 0
