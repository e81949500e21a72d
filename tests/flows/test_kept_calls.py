"""Results of tools that the operator lets the cache keep: for whom, for which calls, and which never."""

import asyncio

import pytest

from tests.support.running import Clock, running
from tests.support.scripted import META, ScriptedUpstream, error, hang, result, status, tool

ANN, BOB = "TOK-A", "TOK-B"
ADD = "alpha__add"


def kept(upstream, **rule):
    """Return the settings of an upstream whose `add` is kept for a minute."""
    return {"url": upstream.url, "cache": {"calls": {"add": {"ttl": 60.0, **rule}}}}


async def test_equal_calls_are_answered_from_the_cache():
    """However their arguments are spelled, whatever progress they want; and without hints (C-02)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        running({"alpha": kept(alpha)}, clock=clock) as gateway,
    ):
        first = await gateway.ask("tools/call", {"name": ADD, "arguments": {"a": 1, "b": [2]}}, token=ANN)
        again = await gateway.ask(
            "tools/call",
            {"name": ADD, "arguments": {"b": [2], "a": 1}},
            token=ANN,
            id="other",
            meta={"progressToken": "p", f"{META}logLevel": "debug"},
        )
        assert again.result == first.result
        assert (again.message["id"], again.notices) == ("other", [])
        assert not {"ttlMs", "cacheScope"} & set(again.result)
        assert (again.header("mcp-gateway-cache") or "").startswith("hit")
        assert len(alpha.seen("tools/call")) == 1
        for arguments in ({"a": 1.0, "b": [2]}, {"a": 1}, {}, None):
            params = {"name": ADD} if arguments is None else {"name": ADD, "arguments": arguments}
            assert (await gateway.ask("tools/call", params, token=ANN)).text["arguments"] == arguments
        assert len(alpha.seen("tools/call")) == 5
        clock.advance(60)
        await gateway.ask("tools/call", {"name": ADD, "arguments": {"a": 1, "b": [2]}}, token=ANN)
        assert len(alpha.seen("tools/call")) == 6
        sample = 'cache_hints_total{mcp_method_name="tools/call",source="override",upstream="alpha"}'
        assert await gateway.counted(sample) == 6


@pytest.mark.parametrize(("scope", "asked"), [("private", 4), ("public", 1)])
async def test_results_are_partitioned_like_anything_else(scope, asked):
    """ann's are ann's; who has no credential shares what is public only (C-16, C-19)."""
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        running({"alpha": kept(alpha, scope=scope)}, clock=Clock()) as gateway,
    ):
        for token in (ANN, BOB, ANN, BOB, None, None):
            await gateway.ask("tools/call", {"name": ADD, "arguments": {}}, token=token)
        assert len(alpha.seen("tools/call")) == asked


async def test_a_tool_that_is_not_named_is_never_kept():
    """Off by default, and original names count."""
    async with (
        ScriptedUpstream(tools=[tool("add"), tool("alpha__add")]) as alpha,
        running({"alpha": kept(alpha)}, clock=Clock()) as gateway,
    ):
        for _ in range(2):
            await gateway.ask("tools/call", {"name": "alpha__alpha__add"}, token=ANN)
        assert len(alpha.seen("tools/call")) == 2


@pytest.mark.parametrize(
    "answer",
    [
        result({"content": [], "isError": True}),
        result({"resultType": "input_required", "inputRequests": {"q": {"method": "roots/list"}}}),
        result({"resultType": "task", "taskId": "t"}),
        result({"content": 3}),
        error(-32603, "broken"),
        status(500),
    ],
    ids=["isError", "input_required", "task", "unreadable", "error", "500"],
)
async def test_what_is_no_success_is_not_kept(answer):
    """The next call is made (C-03), and its success is kept."""
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        running({"alpha": kept(alpha)}, clock=Clock()) as gateway,
    ):
        alpha.once("tools/call", answer)
        for _ in range(3):
            last = await gateway.ask("tools/call", {"name": ADD, "arguments": {"a": 1}}, token=ANN)
        assert last.text["arguments"] == {"a": 1}
        assert len(alpha.seen("tools/call")) == 2


async def test_a_call_with_input_is_neither_looked_up_nor_kept():
    """It continues something that only it knows of (C-03)."""
    extra = {"inputResponses": {"k": {"action": "accept"}}}
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        running({"alpha": kept(alpha)}, clock=Clock()) as gateway,
    ):
        for params in ({}, extra, extra, {}):
            await gateway.ask("tools/call", {"name": ADD, "arguments": {}, **params}, token=ANN)
        assert len(alpha.seen("tools/call")) == 3


async def test_a_mirrored_header_is_checked_before_the_cache_is_asked():
    """A hit is no way around it (S-14)."""
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    async with (
        ScriptedUpstream(tools=[tool("add", inputSchema=schema)]) as alpha,
        running({"alpha": kept(alpha)}, clock=Clock()) as gateway,
    ):
        params = {"name": ADD, "arguments": {"region": "eu"}}
        await gateway.ask("tools/list", token=ANN)
        for headers, code in (({"mcp-param-region": "eu"}, None), ({"mcp-param-region": "us"}, -32020)):
            answer = await gateway.ask("tools/call", params, token=ANN, headers=headers)
            assert answer.message.get("error", {}).get("code") == code
        assert len(alpha.seen("tools/call")) == 1


async def test_a_change_of_the_tools_and_an_outage_end_what_is_kept():
    """No result of a call stands in: it could not say that it is stale."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        running({"alpha": kept(alpha)}, clock=clock, cache={"stale_if_error": 300.0}) as gateway,
    ):
        params = {"name": ADD, "arguments": {}}
        await gateway.ask("tools/call", params, token=ANN)
        await gateway.runtime.catalogue.forget("alpha", "tools/list", "list_changed")
        await gateway.ask("tools/call", params, token=ANN)
        assert len(alpha.seen("tools/call")) == 2
        clock.advance(60)
        alpha.on("tools/call", status(500))
        assert (await gateway.ask("tools/call", params, token=ANN)).code == -32603


async def test_equal_calls_of_one_caller_at_once_are_made_once():
    """Those of others are made for themselves (C-34)."""
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        running({"alpha": kept(alpha)}, clock=Clock()) as gateway,
    ):
        late = asyncio.Event()
        alpha.on("tools/call", hang(late, then=result({"content": []})))
        tokens = [ANN] * 5 + [BOB] * 5
        tasks = [asyncio.create_task(gateway.ask("tools/call", {"name": ADD}, token=one)) for one in tokens]
        await gateway.busy(10)
        late.set()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert len(alpha.seen("tools/call")) == 2
