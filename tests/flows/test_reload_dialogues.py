"""What clients hold of an upstream outlives a reload if the upstream does, and else leads nowhere."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.legacy_upstream import Call, LegacyServer, streamed
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, result, tool

ABLE = {"elicitation": {"form": {}}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
ACCEPTED = {"action": "accept", "content": {}}
EXTENSION = "io.modelcontextprotocol/tasks"


@pytest.fixture
async def beta() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("b")]) as upstream:
        yield upstream


async def ask(call: Call) -> None:
    """Ask the user in the middle of a call, as servers of older revisions do."""
    await call.begin()
    answer = await call.ask("elicitation/create", FORM)
    await call.finish({"content": [{"type": "text", "text": answer["result"]["action"]}]})


async def asked(gateway: Running) -> dict[str, Any]:
    """Return the params with which a call is gone on with that waits for its user."""
    first = await gateway.ask("tools/call", {"name": "old__ask"}, token="ANN", capabilities=ABLE)
    assert first.result["resultType"] == "input_required"
    answers = dict.fromkeys(first.result["inputRequests"], ACCEPTED)
    return {
        "name": "old__ask",
        "requestState": first.result["requestState"],
        "inputResponses": answers,
    }


async def test_a_call_that_waits_for_its_user_goes_on_if_its_upstream_does(beta: ScriptedUpstream) -> None:
    """The server of an older revision waits in the middle of it, in the session that stays."""
    async with LegacyServer(tools=[tool("ask")]) as server, running({"old": server}) as gateway:
        server.on("tools/call", streamed(ask))
        params = await asked(gateway)
        await gateway.reload({"old": server, "beta": beta})
        assert gateway.runtime.pool.parked == 1
        done = await gateway.ask("tools/call", params, token="ANN", capabilities=ABLE)
        assert done.result["content"] == [{"type": "text", "text": "accept"}]


async def test_a_call_that_waits_for_its_user_ends_with_its_upstream(beta: ScriptedUpstream) -> None:
    """Nobody is left to be answered, and the client is told so."""
    async with LegacyServer(tools=[tool("ask")]) as server, running({"old": server}) as gateway:
        server.on("tools/call", streamed(ask))
        params = await asked(gateway)
        await gateway.reload({"beta": beta}, shutdown_grace=0.0)
        late = await gateway.ask("tools/call", params, token="ANN", capabilities=ABLE, judged=False)
        assert late.code in (-32602, -32603)
        while gateway.runtime.pool.retired:  # noqa: ASYNC110  # nothing says so
            await asyncio.sleep(0.002)
        assert gateway.runtime.pool.parked == 0
        assert beta.seen("tools/call") == []


async def test_a_task_is_found_as_long_as_its_upstream_is_there(beta: ScriptedUpstream) -> None:
    """Its id leads to the upstream by name; what is gone is asked for nothing."""
    working = {
        "taskId": "t-1",
        "status": "working",
        "createdAt": "2026-11-30T10:00:00Z",
        "lastUpdatedAt": "2026-11-30T10:00:01Z",
        "ttlMs": 60_000,
        "pollIntervalMs": 500,
    }
    able = {"extensions": {EXTENSION: {}}}
    async with ScriptedUpstream(tools=[tool("build")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.capabilities["extensions"] = {EXTENSION: {}}
        alpha.on("tools/call", result({"resultType": "task", **working}))
        alpha.on("tasks/get", result(working))
        await gateway.reload({"alpha": {"url": alpha.url, "timeout": 20.0}})  # it says more of itself by now
        await gateway.until("alpha", "up")
        made = await gateway.ask("tools/call", {"name": "alpha__build"}, token="ANN", capabilities=able)
        task = {"taskId": made.result["taskId"]}
        await gateway.reload({"alpha": {"url": alpha.url, "timeout": 20.0}, "beta": beta})
        found = await gateway.ask("tasks/get", task, token="ANN", capabilities=able)
        assert found.result["status"] == "working"
        await gateway.reload({"beta": beta})
        late = await gateway.ask("tasks/get", task, token="ANN", capabilities=able, judged=False)
        assert late.code in (-32602, -32601)


async def test_a_list_is_paged_through_as_it_was_begun(beta: ScriptedUpstream) -> None:
    """Where nothing of it is configured otherwise."""
    async with (
        ScriptedUpstream(tools=[tool(f"t{at}") for at in range(5)]) as alpha,
        running({"alpha": alpha}, limits={"page_size": 2}) as gateway,
    ):
        first = await gateway.ask("tools/list")
        cursor = first.result["nextCursor"]
        paths: dict[str, Any] = {"endpoints": {"/mcp": {"upstreams": ["alpha"]}}}
        await gateway.reload({"alpha": alpha, "beta": beta}, limits={"page_size": 2}, **paths)
        second = await gateway.ask("tools/list", {"cursor": cursor})
        assert first.names + second.names == [f"alpha__t{at}" for at in range(4)]
