"""The tasks extension for single tools: whoever declares it gets a task, all others wait for the result."""

import asyncio
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, RequestParams
from pydantic import BaseModel

IDENTIFIER = "io.modelcontextprotocol/tasks"
POLL_MS = 500
KEPT = timedelta(minutes=5)

Ctx = ServerRequestContext[Any, Any]
Status = Literal["working", "completed", "cancelled", "failed"]


class TaskParams(RequestParams):
    """What every request about a task says."""

    task_id: str


class Task:
    """One call that goes on in the background."""

    def __init__(self, work: CallNext, ctx: Ctx) -> None:
        self.id = uuid.uuid4().hex
        self.status: Status = "working"
        self.begun = self.changed = datetime.now(UTC)
        self.end: dict[str, Any] = {}
        self._work = asyncio.create_task(self._drive(work, ctx))

    def cancel(self) -> None:
        """Stop the work; what has ended stays as it ended."""
        if self._work.cancel():
            self._to("cancelled")

    def wire(self) -> dict[str, Any]:
        """Return what is told of it."""
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.begun.isoformat(timespec="seconds"),
            "lastUpdatedAt": self.changed.isoformat(timespec="seconds"),
            "ttlMs": int(KEPT.total_seconds() * 1000),
            "pollIntervalMs": POLL_MS,
            **self.end,
        }

    def over(self) -> bool:
        """Whether it need not be remembered any more."""
        return self._work.done() and datetime.now(UTC) - self.begun > KEPT

    def _to(self, status: Status, **end: Any) -> None:
        self.status, self.changed, self.end = status, datetime.now(UTC), end

    async def _drive(self, work: CallNext, ctx: Ctx) -> None:
        try:
            outcome = await work(ctx)
        except MCPError as error:
            self._to("failed", error=error.error.model_dump(mode="json", exclude_none=True))
            return
        if isinstance(outcome, BaseModel):
            outcome = outcome.model_dump(by_alias=True, mode="json", exclude_none=True)
        self._to("completed", result=outcome)


class Tasks(Extension):
    """Makes tasks of the calls of these tools, and serves what is asked about them."""

    identifier = IDENTIFIER

    def __init__(self, *tools: str) -> None:
        self._tools = tools
        self._tasks: dict[str, Task] = {}

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Ctx, call_next: CallNext
    ) -> HandlerResult:
        """Answer with a task where the client can have one."""
        declared = ctx.session.client_capabilities
        if params.name not in self._tools or IDENTIFIER not in ((declared and declared.extensions) or {}):
            return await call_next(ctx)
        self._tasks = {id: task for id, task in self._tasks.items() if not task.over()}
        task = Task(call_next, ctx)
        self._tasks[task.id] = task
        return {"resultType": "task", **task.wire()}

    def methods(self) -> Sequence[MethodBinding]:
        """Nothing here asks its user, so tasks/update is acknowledged and no more."""
        return [
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/update", TaskParams, self._update),
            MethodBinding("tasks/cancel", TaskParams, self._cancel),
        ]

    async def _get(self, ctx: Ctx, params: TaskParams) -> HandlerResult:
        return {"resultType": "complete", **self._found(ctx, params).wire()}

    async def _update(self, ctx: Ctx, params: TaskParams) -> HandlerResult:
        self._found(ctx, params)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Ctx, params: TaskParams) -> HandlerResult:
        self._found(ctx, params).cancel()
        return {"resultType": "complete"}

    def _found(self, ctx: Ctx, params: TaskParams) -> Task:
        require_client_extension(ctx, IDENTIFIER)
        found = self._tasks.get(params.task_id)
        if found is None:
            raise MCPError(INVALID_PARAMS, "There is no such task")
        return found
