"""What one upstream answers at great length holds up nobody else, and is held within bounds."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.support import apart
from tests.support.running import running
from tests.support.scripted import ScriptedUpstream, hang, result, tool

LARGE = "d" * 300_000


@contextmanager
def busy_threads() -> Iterator[None]:
    """Keep the threads for large messages busy."""
    go = threading.Event()
    waiting = [apart.threads.submit(go.wait) for _ in range(8)]
    try:
        yield
    finally:
        go.set()
        for each in waiting:
            each.result()


async def test_others_are_answered_while_a_large_answer_is_worked_on():
    """So is the very upstream's other caller, whose answer is small."""
    async with (
        ScriptedUpstream(tools=[tool("a"), tool("b")]) as alpha,
        ScriptedUpstream(tools=[tool("c")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        await gateway.ask("tools/list")
        alpha.once("tools/call", result({"content": [{"type": "text", "text": LARGE}]}))
        with busy_threads():
            large = asyncio.create_task(gateway.ask("tools/call", {"name": "alpha__a"}))
            while not gateway.runtime.room.held:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.01)
            assert (await gateway.ask("tools/call", {"name": "beta__c"})).text["tool"] == "c"
            assert (await gateway.ask("tools/call", {"name": "alpha__b"})).text["tool"] == "b"
            assert not large.done()
        assert (await large).result["content"][0]["text"] == LARGE
        assert gateway.runtime.room.held == 0


async def test_others_are_answered_while_a_large_list_is_worked_on():
    """Its names are there once it is read, as ever."""
    async with (
        ScriptedUpstream(tools=[tool("a", description=LARGE)]) as alpha,
        ScriptedUpstream(tools=[tool("c")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        with busy_threads():
            large = asyncio.create_task(gateway.ask("tools/list"))
            while not gateway.runtime.room.held:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.01)
            assert (await gateway.ask("tools/call", {"name": "beta__c"})).text["tool"] == "c"
            assert not large.done()
        assert (await large).names == ["alpha__a", "beta__c"]


async def test_an_upstream_whose_list_is_too_large_is_missing(caplog):
    """All pages count together; the others are listed."""
    async with (
        ScriptedUpstream(
            tools=[tool(f"t{n}", description="d" * 30_000) for n in range(4)], page_size=1
        ) as alpha,
        ScriptedUpstream(tools=[tool("c")]) as beta,
        running({"alpha": alpha, "beta": beta}, limits={"list_bytes": 100_000}) as gateway,
    ):
        listed = await gateway.ask("tools/list")
        assert (listed.names, listed.missing) == (["beta__c"], ["alpha"])
        assert gateway.runtime.room.held == 0


async def test_the_pages_of_a_list_are_held_until_it_is_whole():
    """They count for `limits.in_flight` while the next one is waited for, and not afterwards."""
    async with (
        ScriptedUpstream(
            tools=[tool(f"t{n}", description="d" * 30_000) for n in range(2)], page_size=1
        ) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        go = asyncio.Event()
        first = result({"tools": [tool("a", description="d" * 30_000)], "nextCursor": "more"})
        alpha.once("tools/list", first, hang(until=go, then=result({"tools": [tool("b")]})))
        asked = asyncio.create_task(gateway.ask("tools/list"))
        while len(alpha.seen("tools/list")) < 2:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.01)
        assert gateway.runtime.room.held > 30_000
        go.set()
        assert (await asked).names == ["alpha__a", "alpha__b"]
        assert gateway.runtime.room.held == 0


async def test_one_page_of_too_many_items_is_cut(caplog):
    """The rest is left out, and the log says so."""
    async with (
        ScriptedUpstream(tools=[tool(f"t{n}") for n in range(5)]) as alpha,
        running({"alpha": alpha}, limits={"list_items": 3}) as gateway,
    ):
        assert (await gateway.ask("tools/list")).names == ["alpha__t0", "alpha__t1", "alpha__t2"]
    assert "upstream alpha lists over 3 items: the rest is left out" in caplog.text


async def test_of_many_broken_items_the_log_names_some(caplog):
    """And tells how many more there are: each line takes its time."""
    broken = [{"name": f"t{n}"} for n in range(105)]
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/list", result({"tools": [*broken, tool("a")]}))
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        assert len([record for record in caplog.records if "left out of" in record.getMessage()]) == 100
    assert "upstream alpha: so it is with 5 more of tools/list" in caplog.text
