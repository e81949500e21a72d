"""Tasks told on listen streams: to their own caller, under that caller's id, where its upstream does."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from tests.support.listening import (
    EVERY_LIST,
    SUBSCRIPTION,
    TOOLS,
    TOOLS_CHANGED,
    UPDATED,
    listening,
    quiet,
    told,
)
from tests.support.running import Exchange, Running, running
from tests.support.scripted import META, ScriptedUpstream, error, hang, listen, result, tool
from tests.support.scripted import Exchange as Asked

EXTENSION = "io.modelcontextprotocol/tasks"
TASKS = {"extensions": {EXTENSION: {}}}
ABLE = {**TASKS, "elicitation": {}}
TOLD = "notifications/tasks"
ANN, BOB = "TOK-ann", "TOK-bob"
FORM = {
    "method": "elicitation/create",
    "params": {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}},
}


def task(id: str = "t-1", status: str = "working", **members: Any) -> dict[str, Any]:
    """Return a task as an upstream writes it."""
    times = {"createdAt": "2026-11-30T10:00:00Z", "lastUpdatedAt": "2026-11-30T10:00:01Z"}
    return {"taskId": id, "status": status, "ttlMs": None, **times, **members}


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("build")]) as upstream:
        upstream.capabilities["extensions"] = {EXTENSION: {}}
        upstream.on("tools/call", result({"resultType": "task", **task()}))
        upstream.on("tasks/get", result(task()))
        yield upstream


@pytest.fixture
async def gateway(alpha: ScriptedUpstream) -> AsyncIterator[Running]:
    async with running({"alpha": alpha}) as gateway:
        yield gateway


async def create(gateway: Running, who: str | None = ANN, **options: Any) -> str:
    """Call the tool and return the id of the task it became."""
    call = {"name": "alpha__build"}
    called = await gateway.ask("tools/call", call, token=who, capabilities=TASKS, **options)
    return str(called.result["taskId"])


def ids(*each: str) -> dict[str, Any]:
    """Return the filter that asks for these tasks."""
    return {"taskIds": sorted(each)} if each else {}


def hear(
    gateway: Running, wanted: Mapping[str, Any], granted: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Listen as Ann, with a client that knows tasks."""
    return listening(gateway, wanted, granted, **{"token": ANN, "capabilities": TASKS, **options})


async def next_task(stream: Exchange) -> tuple[str, str]:
    """Return id and status of the task that is told next."""
    notice = await stream.event()
    assert notice["method"] == TOLD
    return notice["params"]["taskId"], notice["params"]["status"]


async def test_a_task_is_told_under_the_id_its_caller_knows(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-23, T-13: the upstream is asked for its own id, by a gateway that knows tasks; all is rewritten."""
    id = await create(gateway)
    async with hear(gateway, ids(id), id="mine") as stream:
        (seen,) = [one for one in alpha.listens if "taskIds" in one.wanted]
        assert seen.wanted == {**EVERY_LIST, "taskIds": ["t-1"]}
        assert seen.exchange.received.meta[f"{META}clientCapabilities"] == TASKS
        link = {"type": "resource_link", "uri": "a:1", "name": "a"}
        done = task(status="completed", result={"content": [link]}, statusMessage=None, _meta={"v/x": 1})
        await alpha.notify(TOLD, **done)
        notice = await stream.event()
        assert notice["params"].pop("_meta") == {SUBSCRIPTION: "mine"}
        assert notice["params"] == {
            **task(id, "completed"),
            "result": {"content": [{**link, "uri": "alpha+a:1"}]},
        }


async def test_every_caller_hears_of_its_own_tasks_only(alpha: ScriptedUpstream, gateway: Running) -> None:
    """T-07, L-04: another's id and an invented one are not acknowledged, and nothing is told."""
    anns = await create(gateway)
    alpha.on("tools/call", result({"resultType": "task", **task("t-2")}))
    bobs = await create(gateway, BOB)
    async with (
        hear(gateway, ids(anns, bobs, "invented"), ids(anns)) as ann,
        hear(gateway, ids(anns, bobs), ids(bobs), token=BOB) as bob,
    ):
        assert len(alpha.listens) == 1
        await alpha.notify(TOLD, **task("t-2", "failed"))
        await alpha.notify(TOLD, **task("t-1", "cancelled"))
        assert await next_task(ann) == (anns, "cancelled")
        assert await next_task(bob) == (bobs, "failed")


async def test_two_ids_of_one_task_are_two_names_of_it(alpha: ScriptedUpstream, gateway: Running) -> None:
    """L-23: whoever listens under both hears it under both."""
    one, two = await create(gateway), await create(gateway)
    async with hear(gateway, ids(one, two)) as stream, hear(gateway, ids(two), id=2) as other:
        await alpha.notify(TOLD, **task(status="completed"))
        assert {await next_task(stream), await next_task(stream)} == {(one, "completed"), (two, "completed")}
        assert await next_task(other) == (two, "completed")


@pytest.mark.parametrize("why", ["unknown", "undeclared", "refused", "not carried"])
async def test_what_the_upstream_does_not_grant_is_not_promised(alpha: ScriptedUpstream, why: str) -> None:
    """L-23, A-11: the lists are told all the same."""
    members: dict[str, Any] = {}
    async with running({"alpha": alpha}, secrets={"keys": ["the-same-key-twice"]}) as gateway:
        id = await create(gateway)
    if why == "unknown":
        alpha.on("subscriptions/listen", listen(EVERY_LIST))
    elif why == "undeclared":
        del alpha.capabilities["extensions"]
    elif why == "not carried":
        members = {"extensions": []}

    async def refuse_tasks(exchange: Any) -> None:
        if "taskIds" in exchange.received.params["notifications"]:
            await error(-32602, "Unknown task", http=400)(exchange)
        else:
            await listen()(exchange)

    if why == "refused":
        alpha.on("subscriptions/listen", refuse_tasks)
    async with (
        running({"alpha": alpha}, secrets={"keys": ["the-same-key-twice"]}, **members) as gateway,
        hear(gateway, {**TOOLS, **ids(id)}, TOOLS) as stream,
    ):
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_task_the_upstream_chokes_on_costs_resources_nothing(alpha: ScriptedUpstream) -> None:
    """It refuses the whole listen for one that is over: the resources asked for with it are heard of."""
    alpha.resources = [{"uri": "a:1", "name": "one"}]

    async def refuse_tasks(exchange: Any) -> None:
        if "taskIds" in exchange.received.params["notifications"]:
            await error(-32602, "Unknown task", http=400)(exchange)
        else:
            await listen()(exchange)

    alpha.on("subscriptions/listen", refuse_tasks)
    async with running({"alpha": alpha}) as gateway:
        both = {"resourceSubscriptions": ["alpha+a:1"]}
        async with hear(gateway, {**both, **ids(await create(gateway))}, both) as stream:
            await alpha.notify(UPDATED, uri="a:1")
            assert await told(stream) == (UPDATED, "alpha+a:1")


async def test_of_a_task_only_the_latest_state_waits(alpha: ScriptedUpstream, gateway: Running) -> None:
    """L-20: one pending notice for each task; and what was told while the upstream was away is looked up."""
    id = await create(gateway)
    async with hear(gateway, ids(id)) as stream:
        await alpha.notify(TOLD, **task())
        assert await next_task(stream) == (id, "working")
        alpha.on("tasks/get", result({"resultType": "complete", **task(status="completed")}))
        alpha.listens[-1].cut()
        assert await next_task(stream) == (id, "completed")
        assert alpha.seen("tasks/get")[-1].params["taskId"] == "t-1"
        assert alpha.seen("tasks/get")[-1].meta[f"{META}clientCapabilities"] == TASKS


async def test_only_who_can_answer_is_told_of_questions(alpha: ScriptedUpstream, gateway: Running) -> None:
    """M-05, M-23: by the capabilities of the listen; the others poll and are told what they lack."""
    id = await create(gateway)
    async with (
        hear(gateway, ids(id), capabilities=ABLE) as able,
        hear(gateway, ids(id), id=2) as unable,
    ):
        await alpha.notify(TOLD, **task(status="input_required", inputRequests={"who": FORM}))
        asked = (await able.event())["params"]
        assert asked["inputRequests"]["who"]["params"]["message"] == "[alpha] Who?"
        await alpha.notify(TOLD, **task(status="working"))
        assert await next_task(unable) == (id, "working")


async def test_an_upstream_that_knows_its_callers_is_listened_to_as_each(alpha: ScriptedUpstream) -> None:
    """L-13: with the credential that created the task."""
    async with running({"alpha": {"url": alpha.url, "auth": "forward"}}) as gateway:
        id = await create(gateway)
        async with hear(gateway, ids(id)) as stream:
            (seen,) = [one for one in alpha.listens if "taskIds" in one.wanted]
            assert seen.exchange.received.header("authorization") == f"Bearer {ANN}"
            await seen.notify(TOLD, **task(status="completed"))
            assert await next_task(stream) == (id, "completed")


async def test_what_nobody_asked_for_or_could_read_is_dropped(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-06, K-04: and counted."""
    id = await create(gateway)
    async with hear(gateway, ids(id)) as stream:
        await alpha.notify(TOLD, **task("t-9"))
        await alpha.notify(TOLD, **task(result=[]))
        await alpha.notify(TOLD, **task(status="completed"))
        assert await next_task(stream) == (id, "completed")
        assert await gateway.counted('dropped_total{upstream="alpha",what="notification"}') == 2


async def test_when_nobody_wants_a_task_any_more_it_is_not_asked_for(alpha: ScriptedUpstream) -> None:
    """L-14: nor kept, once its last listener has gone."""
    async with running({"alpha": alpha}, subscriptions={"debounce": 0.01}) as gateway:
        id = await create(gateway)
        async with hear(gateway, ids(id)):
            assert [one.wanted["taskIds"] for one in alpha.listens if "taskIds" in one.wanted] == [["t-1"]]
        while any("taskIds" in one.wanted for one in alpha.listens):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.002)
        async with hear(gateway, TOOLS) as stream:
            await alpha.notify(TOOLS_CHANGED)
            assert await told(stream) == (TOOLS_CHANGED, None)
        assert "0 URIs, 0 tasks" in repr(gateway.runtime.hub)


async def test_what_is_told_counts_for_more_than_a_look_that_took_its_time(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """T-10: the answer was written before the task ended, and comes afterwards."""
    answers = asyncio.Event()
    alpha.on("tasks/get", hang(answers, then=result(task())))
    id = await create(gateway)
    async with hear(gateway, {**ids(id), **TOOLS}) as stream:
        for listen in list(alpha.listens):
            listen.cut()
        await alpha.arrived("tasks/get")
        await alpha.listens[-1].notify(TOLD, **task(status="completed", result={"content": []}))
        assert await next_task(stream) == (id, "completed")
        answers.set()
        await quiet(gateway)
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_stream_that_breaks_again_and_again_costs_one_round_of_looks_and_one_more(
    alpha: ScriptedUpstream,
) -> None:
    """B45: eight at a time, before an upstream that is slow to answer."""
    answers, many = asyncio.Event(), 20

    async def answer(exchange: Asked) -> None:
        await result(task(exchange.received.params["taskId"]))(exchange)

    alpha.on("tasks/get", hang(answers, then=answer))
    settings = {"alpha": {"url": alpha.url, "list_timeout": 60}}
    async with running(settings, subscriptions={"retry": 0.01, "longest_retry": 0.01}) as gateway:
        created = []
        for number in range(many):
            alpha.on("tools/call", result({"resultType": "task", **task(f"t-{number}")}))
            created.append(await create(gateway))
        async with hear(gateway, ids(*created)) as stream:
            for gap in range(1, 6):
                for listen in list(alpha.listens):
                    listen.cut()
                while await gateway.counted("upstream_listen_gaps_total") < gap:  # noqa: ASYNC110 - as below
                    await asyncio.sleep(0.002)
            while len(alpha.seen("tasks/get")) < 8:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.002)
            answers.set()
            heard = [await next_task(stream) for _ in range(many)]
            await quiet(gateway)
            assert {id for id, _ in heard} <= set(created)
            assert len(alpha.seen("tasks/get")) == 8 + many
