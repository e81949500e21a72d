"""A client hears of its own tasks while their upstream grants it, under the ids it knows them by (L-23)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.listening import TOOLS, listening
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, listen, result, tool

TASKS: Any = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
TASK = {
    "taskId": "t-1",
    "status": "working",
    "createdAt": "2026-11-30T10:00:00Z",
    "lastUpdatedAt": "2026-11-30T10:00:01Z",
    "ttlMs": None,
}


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("build")]) as upstream:
        upstream.capabilities["extensions"] = TASKS["extensions"]
        upstream.on("tools/call", result({"resultType": "task", **TASK}))
        yield upstream


@pytest.fixture
async def gateway(alpha: ScriptedUpstream) -> AsyncIterator[Running]:
    async with running({"alpha": alpha}) as gateway:
        yield gateway


async def created(gateway: Running, token: str) -> str:
    call = {"name": "alpha__build"}
    answer = await gateway.ask("tools/call", call, token=token, capabilities=TASKS)
    return str(answer.result["taskId"])


async def test_a_task_is_told_of_under_its_callers_id(alpha: ScriptedUpstream, gateway: Running) -> None:
    """The upstream's own never shows; the last state before the client reads is the one it gets."""
    id = await created(gateway, "ANN")
    wanted = {"taskIds": [id]}
    async with listening(gateway, wanted, token="ANN", capabilities=TASKS, judged=False) as stream:
        assert [one.wanted["taskIds"] for one in alpha.listens if "taskIds" in one.wanted] == [["t-1"]]
        await alpha.notify("notifications/tasks", **{**TASK, "status": "completed"})
        notice = await stream.event()
        assert notice["method"] == "notifications/tasks"
        assert (notice["params"]["taskId"], notice["params"]["status"]) == (id, "completed")
        assert notice["params"]["ttlMs"] is None


async def test_what_is_anothers_or_not_granted_is_not_promised(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """Some upstreams know of no task ids in a listen, and some ids are none of the caller's."""
    id = await created(gateway, "ANN")
    wanted = {**TOOLS, "taskIds": [id, "made-up"]}
    async with listening(gateway, wanted, TOOLS, token="BOB", capabilities=TASKS):
        pass
    alpha.on("subscriptions/listen", listen(TOOLS))
    async with listening(gateway, wanted, TOOLS, token="ANN", capabilities=TASKS):
        pass
