"""Tasks of an official SDK's server, driven by the official SDK's client, through two gateway processes."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import mcp_types as t
import pytest
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientSession

from tests.support.processes import RunningGateway, gateway, reference_server

VERSION = "2026-07-28"
KEYS = "secrets: {keys: [a-key-of-both-replicas]}"
TASKS = "io.modelcontextprotocol/tasks"
POLLS = 200
"""Far more than any tool here takes; the server asks for a poll every 200 ms."""


class Created(t.Result):
    """What a call is answered with when it became a task."""

    result_type: Literal["task"]
    task_id: str
    status: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None


class Params(t.RequestParams):
    task_id: str


class UpdateParams(Params):
    input_responses: dict[str, Any]


class Get(t.Request[Params, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: Params
    name_param = "taskId"


class Update(t.Request[UpdateParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams
    name_param = "taskId"


class Cancel(t.Request[Params, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: Params
    name_param = "taskId"


class Report(t.Result):
    """What is said of a task."""

    task_id: str
    status: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = None


async def get(session: ClientSession, id: str) -> Report:
    return await session.send_request(Get(params=Params(task_id=id)), Report)


async def until(session: ClientSession, id: str, *statuses: str) -> Report:
    """Poll at the server's pace until the task is in one of these states."""
    for _ in range(POLLS):
        report = await get(session, id)
        if report.status in statuses:
            return report
        await asyncio.sleep(0.05)
    raise AssertionError(f"after {POLLS} polls: {report}")


class Tasks(ClientExtension):
    """Polls a task to its end, answers what it asks, and makes its result the call's own."""

    identifier = TASKS

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.created: list[Created] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._finish)]

    async def _finish(self, created: Created, context: ClaimContext) -> t.CallToolResult:
        self.created.append(created)
        while True:
            report = await until(context.session, created.task_id, "completed", "failed", "input_required")
            if report.status == "completed":
                return t.CallToolResult.model_validate(report.result)
            if report.status == "failed":
                assert report.error is not None
                raise MCPError(report.error["code"], report.error["message"], report.error.get("data"))
            answers = {key: self._answer(one["params"]) for key, one in (report.input_requests or {}).items()}
            update = UpdateParams(task_id=created.task_id, input_responses=answers)
            await context.session.send_request(Update(params=update), t.Result)

    def _answer(self, params: dict[str, Any]) -> dict[str, Any]:
        self.shown.append(params["message"])
        kinds = {name: schema["type"] for name, schema in params["requestedSchema"]["properties"].items()}
        content = {name: True if kind == "boolean" else f"my {name}" for name, kind in kinds.items()}
        return {"action": "accept", "content": content}


async def no_user(context: object, params: object) -> t.ElicitResult:
    """Stand for a user, so that elicitation is declared; questions of tasks do not come this way."""
    return t.ElicitResult(action="cancel")


@pytest.fixture(scope="module")
def replicas() -> Iterator[tuple[RunningGateway, RunningGateway]]:
    """Run two gateways with the same key in front of one server that has tasks."""
    with (
        reference_server() as url,
        gateway(f"{{all: '{url}'}}", KEYS) as one,
        gateway(f"{{all: '{url}'}}", KEYS) as other,
    ):
        yield one, other


Replicas = tuple[RunningGateway, RunningGateway]


def client(at: RunningGateway, tasks: Tasks) -> Client:
    return Client(
        at.endpoint,
        mode=VERSION,
        cache=None,
        read_timeout_seconds=20,
        extensions=[tasks],
        elicitation_callback=no_user,
    )


def said(result: t.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, t.TextContent)
    return block.text


async def test_a_call_goes_on_in_the_background_and_ends_with_its_result(replicas: Replicas) -> None:
    """T-02 to T-04; a tool that is done at once makes no task of it."""
    tasks = Tasks()
    async with client(replicas[0], tasks) as session:
        done = await session.call_tool("all__slow_compute", {"seconds": 0.2, "label": "x"})
        assert said(done) == "computed x for 0.2 s"
        assert said(await session.call_tool("all__greet", {"name": "Ann"})) == "Hello, Ann!"
        failed = await session.call_tool("all__failing_job")
        assert (failed.is_error, said(failed)) == (True, "the job failed")
        with pytest.raises(MCPError) as caught:
            await session.call_tool("all__protocol_error_job")
        assert (caught.value.error.code, caught.value.error.message) == (-32603, "the job broke")
    assert len(tasks.created) == 3


async def test_a_task_asks_its_user(replicas: Replicas) -> None:
    """T-10, M-23: one question, and two at once."""
    tasks = Tasks()
    async with client(replicas[0], tasks) as session:
        deleted = await session.call_tool("all__confirm_delete", {"filename": "secret.txt"})
        assert said(deleted) == 'answered {"action": "accept", "content": {"confirm": true}}'
        await session.call_tool("all__multi_input")
    assert tasks.shown == ["[all] Delete secret.txt?", "[all] Your name?", "[all] Sure?"]


async def test_another_replica_knows_the_task_and_another_client_may_cancel_it(replicas: Replicas) -> None:
    """T-06, T-08, T-11: its creator has gone; nothing of it is kept in the gateway that made it."""
    async with client(replicas[0], Tasks()) as session:
        created = await session.session.call_tool(
            "all__slow_compute", {"seconds": 60, "label": "x"}, allow_claimed=True
        )
    assert isinstance(created, Created)
    async with client(replicas[1], Tasks()) as session:
        assert (await get(session.session, created.task_id)).status == "working"
        await session.session.send_request(Cancel(params=Params(task_id=created.task_id)), t.Result)
        assert (await until(session.session, created.task_id, "cancelled")).task_id == created.task_id
        with pytest.raises(MCPError) as caught:
            await get(session.session, "invented")
        assert caught.value.error.code == -32602


async def test_a_client_without_tasks_waits_for_the_result_or_is_told_what_it_lacks(
    replicas: Replicas,
) -> None:
    """T-16."""
    async with Client(replicas[0].endpoint, mode=VERSION, cache=None, read_timeout_seconds=20) as session:
        done = await session.call_tool("all__slow_compute", {"seconds": 0.1, "label": "x"})
        assert said(done) == "computed x for 0.1 s"
        with pytest.raises(MCPError) as caught:
            await session.call_tool("all__failing_job")
        assert caught.value.error.code == -32021
