"""What was missed while an upstream could not be heard is found out, and told if it matters (L-18, L-19)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.protocol.call import Change, UpstreamName
from tests.support.listening import TOOLS, TOOLS_CHANGED, UPDATED, listening, quiet, told, uris
from tests.support.running import Clock, Running, running
from tests.support.scripted import ScriptedUpstream, hang, tool

NOTES = "file:///notes"
SECONDS = 60_000
UNSAID = {"tools": {}}
"""The capabilities of an upstream that never tells of a change."""


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")], resources=[{"uri": NOTES, "name": "notes"}]) as upstream:
        yield upstream


@pytest.fixture
async def gateway(alpha: ScriptedUpstream) -> AsyncIterator[Running]:
    async with running({"alpha": alpha}) as gateway:
        yield gateway


async def restarted(alpha: ScriptedUpstream, gateway: Running) -> None:
    """Stop the upstream until that is noticed, and start it again until it is followed."""
    gaps = await gateway.counted("upstream_listen_gaps_total")
    await alpha.stop()
    await gateway.until("alpha", "down")
    await alpha.start()
    await gateway.until("alpha", "up")
    await gateway.until_counted("upstream_listen_gaps_total", gaps + 1)


async def test_a_restart_with_other_tools_is_told(alpha: ScriptedUpstream, gateway: Running) -> None:
    """B04 b: the upstream itself never says so."""
    async with listening(gateway, TOOLS) as stream:
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        alpha.tools = [tool("b")]
        await restarted(alpha, gateway)
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__b"]
        await quiet(gateway)
        assert await gateway.counted('notices_total{fate="delivered"}') == 1


async def test_a_restart_with_the_same_tools_is_nobodys_business(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """The catalogue proves unchanged, in another order too."""
    alpha.tools = [tool("a"), tool("b")]
    async with listening(gateway, TOOLS) as stream:
        await gateway.ask("tools/list")
        alpha.tools.reverse()
        await restarted(alpha, gateway)
        await quiet(gateway)
        assert len(alpha.seen("tools/list")) >= 2
        alpha.tools = [tool("c")]
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert await gateway.counted('notices_total{fate="delivered"}') == 1


async def test_who_was_given_a_list_without_it_is_told_when_it_is_back(
    alpha: ScriptedUpstream,
) -> None:
    """L-19: though nothing changed at the upstream, and nobody else is told."""
    async with (
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
        listening(gateway, TOOLS, token="ANN") as ann,
        listening(gateway, TOOLS, token="BOB") as bob,
    ):
        for token in ("ANN", "BOB"):
            await gateway.ask("tools/list", token=token)
        await alpha.stop()
        await gateway.until("alpha", "down")
        await gateway.runtime.catalogue.changed(Change(UpstreamName("alpha")))
        assert (await gateway.ask("tools/list", token="ANN")).missing == ["alpha"]
        await alpha.start()
        assert await told(ann) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list", token="ANN")).names == ["alpha__a", "beta__b"]
        await beta.notify(TOOLS_CHANGED)
        assert await told(bob) == (TOOLS_CHANGED, None)
        assert await told(ann) == (TOOLS_CHANGED, None)
        assert await gateway.counted('notices_total{fate="delivered"}') == 3


async def test_resources_may_have_been_updated_unseen(alpha: ScriptedUpstream, gateway: Running) -> None:
    """L-18: nothing proves that they were not, so whoever asked for one is told, and once."""
    async with listening(gateway, {**TOOLS, **uris("alpha+file:///notes")}) as stream:
        alpha.listens[-1].cut()
        assert await told(stream) == (UPDATED, "alpha+file:///notes")
        await alpha.listening()
        await quiet(gateway)
        await alpha.notify(UPDATED, uri=NOTES)
        assert await told(stream) == (UPDATED, "alpha+file:///notes")
        assert await gateway.counted('notices_total{fate="delivered"}') == 2


async def test_an_end_by_the_upstream_is_no_end(alpha: ScriptedUpstream, gateway: Running) -> None:
    """A stream that ends gracefully is opened again, and what it missed found out."""
    async with listening(gateway, TOOLS) as stream:
        await gateway.ask("tools/list")
        alpha.tools = [tool("b")]
        await alpha.listens[0].end()
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_what_cannot_be_looked_at_counts_as_changed(alpha: ScriptedUpstream) -> None:
    """Nothing proves that it is not."""
    upstream = {"url": alpha.url, "list_timeout": 0.05}
    async with running({"alpha": upstream}) as gateway, listening(gateway, TOOLS) as stream:
        await gateway.ask("tools/list")
        alpha.on("tools/list", hang())
        alpha.listens[0].cut()
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_change_without_a_word_is_found_by_asking(alpha: ScriptedUpstream) -> None:
    """An upstream without `listChanged`: the first answer that differs is told to all who listen."""
    alpha.capabilities, alpha.ttl_ms = UNSAID, 0
    async with running({"alpha": alpha}) as gateway, listening(gateway, TOOLS) as stream:
        for _ in range(3):
            await gateway.ask("tools/list")
        alpha.tools = [tool("b")]
        assert (await gateway.ask("tools/list")).names == ["alpha__b"]
        assert await told(stream) == (TOOLS_CHANGED, None)
        for _ in range(3):
            await gateway.ask("tools/list")
        await quiet(gateway)
        assert await gateway.counted('notices_total{fate="delivered"}') == 1


async def test_clients_that_are_shown_different_lists_cause_each_other_no_notices(
    alpha: ScriptedUpstream,
) -> None:
    """What a list is compared with is the list for the same capabilities."""
    alpha.capabilities, alpha.ttl_ms = UNSAID, 0
    forms: Any = {"extensions": {"io.modelcontextprotocol/ui": {}}}
    async with running({"alpha": alpha}) as gateway, listening(gateway, TOOLS):
        for _ in range(3):
            alpha.tools = [tool("a")]
            await gateway.ask("tools/list")
            alpha.tools = [tool("a"), tool("form")]
            await gateway.ask("tools/list", capabilities=forms)
        await quiet(gateway)
        assert await gateway.counted('notices_total{fate="delivered"}') == 0


async def test_a_slow_upstream_is_looked_at_until_its_share_is_there(alpha: ScriptedUpstream) -> None:
    """L-19: it was never down, so nothing else would say that the list is whole again."""
    slow, clock = {"url": alpha.url, "list_timeout": 0.5}, Clock()
    async with (
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": slow, "beta": beta}, clock=clock) as gateway,
        listening(gateway, TOOLS) as stream,
    ):
        alpha.once("tools/list", hang())
        assert (await gateway.ask("tools/list")).missing == ["alpha"]
        clock.advance(10.0)
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__a", "beta__b"]


async def test_a_change_without_a_word_is_found_however_many_ways_the_list_was_asked_for_in(
    alpha: ScriptedUpstream,
) -> None:
    """What was forgotten for their sake counts as changed."""
    alpha.capabilities, alpha.ttl_ms = {"tools": {}}, 0
    async with running({"alpha": alpha}) as gateway, listening(gateway, TOOLS) as stream:
        gateway.runtime.catalogue.seen._most = 10
        await gateway.ask("tools/list")
        for number in range(20):
            able = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": [f"x/{number}"]}}}
            await gateway.ask("tools/list", capabilities=able)
        assert "<LastSeen 10 lists>" in repr(gateway.runtime.catalogue.seen)
        alpha.tools = [tool("b")]
        assert (await gateway.ask("tools/list")).names == ["alpha__b"]
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert await gateway.counted('notices_total{fate="delivered"}') == 1
