"""What a running gateway counts of what happens: lookups, saved calls, lists, sessions, processes."""

import asyncio
import sys
from pathlib import Path

import pytest

from gateway.support.metrics import TABLE
from tests.support.legacy_client import LegacyClient
from tests.support.legacy_upstream import LegacyServer
from tests.support.running import Clock, running
from tests.support.scripted import ScriptedUpstream, hang, result, tool

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "server.py"
LISTS = 'mcp_method_name="tools/list"'


async def test_a_hit_tells_its_age_and_what_it_spared():
    """A joined list is as old as its oldest part, and spares a call to each that has one."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock) as gateway,
    ):
        await gateway.ask("tools/list")
        saved = await gateway.counted("cache_saved_calls_total")
        clock.advance(30)
        await gateway.ask("tools/list")
        assert await gateway.counted("cache_saved_calls_total") == saved + 2
        ages = f'cache_hit_age_seconds_%s{{{LISTS},upstream="*"}}'
        assert await gateway.counted(ages % "count") == 1
        assert await gateway.counted(ages % "sum") == 30
        for upstream in ("alpha", "beta"):
            labels = f'{{kind="tools",upstream="{upstream}"}}'
            assert await gateway.counted(f"catalogue_items{labels}") == 1
            assert await gateway.counted(f"catalogue_bytes{labels}") > 20


async def test_callers_who_share_a_fetch_are_counted_as_spared():
    """Two wait for what one fetches."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        over = asyncio.Event()
        shown = result({"tools": [tool("a")], "ttlMs": 60_000, "cacheScope": "public"})
        alpha.once("tools/list", hang(over, shown))
        asking = [asyncio.ensure_future(gateway.ask("tools/list")) for _ in range(3)]
        await gateway.busy(3)
        over.set()
        await asyncio.gather(*asking)
        assert await gateway.counted(f'cache_saved_calls_total{{{LISTS},upstream="alpha"}}') == 2


async def test_what_an_upstream_speaks_is_told_and_changes():
    """By its era and its revision; there is one series of it."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        LegacyServer(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        await gateway.ask("tools/list")
        spoken = {
            values
            for (name, values), _ in gateway.runtime.metrics.snapshot().items()
            if name == "mcp_gateway_upstream_info"
        }
        assert spoken == {
            ("alpha", "modern", "2026-07-28", "tcp"),
            ("beta", "legacy", "2025-11-25", "tcp"),
        }
        gateway.runtime.metrics.upstream_speaks("beta", "modern", "2026-07-28", program=False)
        assert await gateway.counted('upstream_info{era="legacy"') == 0
        assert await gateway.counted("upstream_info") == 2


async def test_sessions_are_timed_on_both_sides():
    """When a client ends its own, and when the gateway ends one with a server."""
    async with LegacyServer(tools=[tool("a")]) as alpha:
        async with running({"alpha": alpha}) as gateway:
            async with LegacyClient(gateway.addresses.endpoints[0], "2025-06-18") as client:
                await client.ask("tools/list")
                assert await gateway.counted("sessions ") == 1
                assert await client.delete() in (200, 204)
            spoken = 'requests_total{mcp_protocol_version="2025-06-18",network_transport="tcp"}'
            assert await gateway.counted(spoken) == 2  # initialize, and what was asked
            labels = '{endpoint="/mcp",error_type="",mcp_protocol_version="2025-06-18"}'
            assert await gateway.raw(f"mcp_server_session_duration_seconds_count{labels}") == 1
            metrics = gateway.runtime.metrics
        ended = {
            values: sum(numbers[:-1])
            for (name, values), numbers in metrics.snapshot().items()
            if name == "mcp_client_session_duration_seconds"
        }
        assert ended == {("alpha", "2025-11-25", ""): alpha.initialized}


async def test_a_session_that_a_server_forgets_is_counted_as_that():
    """The next call opens another (X-29)."""
    async with LegacyServer(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        await gateway.ask("tools/call", {"name": "alpha__a", "arguments": {}})
        alpha.forget()
        await gateway.ask("tools/call", {"name": "alpha__a", "arguments": {}})
        labels = '{error_type="forgotten",mcp_protocol_version="2025-11-25",upstream="alpha"}'
        assert await gateway.raw(f"mcp_client_session_duration_seconds_count{labels}") == 1


async def test_the_processes_of_a_program_are_counted_in_and_out():
    """Those that run, and how many were started by now."""
    program = {"command": sys.executable, "args": [str(PROGRAM)]}
    async with running({"files": program}, startup_wait=15.0) as gateway:
        await gateway.ask("tools/list")
        assert await gateway.counted('upstream_processes{upstream="files"}') == 1
        assert await gateway.counted('upstream_processes_started_total{upstream="files"}') == 1
        assert await gateway.counted('upstream_info{era="modern"') == 1
        assert 'network_transport="pipe"' in (await gateway.text())
        metrics = gateway.runtime.metrics
    assert metrics.snapshot()["mcp_gateway_upstream_processes", ("files",)] == [0.0]


async def test_the_configuration_in_use_is_told():
    """From the start on, so that an alert has something to look at."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        assert await gateway.counted("config_generation ") == 1
        assert await gateway.counted("config_last_reload_successful ") == 1
        assert await gateway.counted("config_last_reload_success_timestamp_seconds ") > 1_700_000_000
        gateway.runtime.metrics.config_refused()
        assert await gateway.counted("config_last_reload_successful ") == 0


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_metric_is_counted_somewhere(row):
    """A row that nothing counts in would be a promise."""
    name = next(name for name, value in vars(sys.modules["gateway.support.metrics"]).items() if value is row)
    text = Path(sys.modules["gateway.support.metrics"].__file__).read_text("utf-8")
    assert text.count(f"[{name}]") + text.count(f": {name},") >= 1


async def test_what_a_reload_takes_away_leaves_no_series():
    """B52: an endpoint's and an upstream's go with them, once their last request has ended."""
    both = {"/mcp": {}, "/old": {}}
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}, endpoints=both) as gateway,
    ):
        for endpoint in both:
            await gateway.ask("tools/list", path=endpoint)
        text = await gateway.text()
        assert 'endpoint="/old"' in text
        assert 'upstream="beta"' in text
        await gateway.reload({"alpha": alpha}, endpoints={"/mcp": {}})
        assert await gateway.counted("config_generation ") == 2
        while 'endpoint="/old"' in (text := await gateway.text()) or 'upstream="beta"' in text:
            pass
        assert 'endpoint="/mcp"' in text
        assert 'upstream="alpha"' in text
