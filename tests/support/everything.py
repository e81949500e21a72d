"""The reference upstream: one server of the official SDK that has everything the conformance suite asks for.

It serves both eras on one Streamable HTTP endpoint (/mcp): 2026-07-28 (stateless) and the handshake versions
(sessions, GET stream, DELETE), with the tasks extension (SEP-2663). What it saw can be read back:

  GET  /debug/state              open listen streams, legacy sessions, cancelled calls, tasks
  GET  /debug/log                the last requests: HTTP status, headers, JSON-RPC method, params
  POST /debug/clear              forget the log and the cancelled calls
  POST /debug/emit?kind=K[&uri=] publish a change: tools, prompts, resources or updated
  POST /debug/end-listen         end every listen stream gracefully (the result frame is sent)

Run `python -m tests.support.everything [--port 3001] [--name everything] [--page-size 0] ...`; the first line
on stdout is its URL, and port 0 takes a free one.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import socket
import sys
import time
import uuid
import warnings
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import jsonschema
import mcp_types as t
import uvicorn
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"
HEADER_MISMATCH, MISSING_CAPABILITY = -32020, -32021
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
WAV = base64.b64encode(
    b"RIFF" + (44).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little") + b"\x01\x00\x01\x00"
    b"\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00data" + (8).to_bytes(4, "little") + b"\x80" * 8
).decode()

Ctx = ServerRequestContext[Any, Any]
Outcome = t.CallToolResult | t.InputRequiredResult | dict[str, Any]
logger = logging.getLogger("everything")


def say(*lines: str, error: bool = False) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(type="text", text=x) for x in lines], is_error=error)


def obj(required: list[str] | None = None, **properties: dict[str, Any]) -> dict[str, Any]:
    """A JSON Schema of an object."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


STR, INT, NUM, BOOL = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}


def form(message: str, schema: dict[str, Any]) -> t.ElicitRequest:
    return t.ElicitRequest(params=t.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(prompt: str, max_tokens: int = 100) -> t.CreateMessageRequest:
    message = t.SamplingMessage(role="user", content=t.TextContent(type="text", text=prompt))
    return t.CreateMessageRequest(
        params=t.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


def accepted(answer: Any, key: str) -> Any:
    """The value `key` of an accepted elicitation, else None."""
    if isinstance(answer, t.ElicitResult) and answer.action == "accept" and answer.content:
        return answer.content.get(key)
    return None


# ---------------------------------------------------------------- what the server remembers


@dataclass
class Task:
    """One task of the tasks extension."""

    id: str
    status: str = "working"
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    pending: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    answered: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def to(self, status: str, **values: Any) -> None:
        self.status, self.updated = status, time.time()
        for name, value in values.items():
            setattr(self, name, value)

    def wire(self) -> dict[str, Any]:
        def stamp(at: float) -> str:
            return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))

        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": stamp(self.created),
            "lastUpdatedAt": stamp(self.updated),
            "ttlMs": 300_000,
            "pollIntervalMs": 200,
        }

    async def ask(self, asked: dict[str, t.ElicitRequest]) -> dict[str, Any]:
        """Park the task until every request of `asked` is answered."""
        requests = {k: r.model_dump(by_alias=True, mode="json", exclude_none=True) for k, r in asked.items()}
        self.to("input_required", pending=requests)
        while self.pending:
            await self.answered.wait()
            self.answered = anyio.Event()
        self.to("working")
        return self.answers


class Memory(EventStore):
    """Everything the server remembers; also the event store of the legacy SSE streams."""

    def __init__(self) -> None:
        self.log: deque[dict[str, Any]] = deque(maxlen=500)
        self.cancelled: list[dict[str, Any]] = []
        self.finished: list[dict[str, Any]] = []
        self.legacy: dict[str, Any] = {}  # session id -> a ServerSession of it
        self.watchers: dict[str, set[str]] = {}  # uri -> legacy session ids
        self.levels: dict[str, str] = {}  # session id -> logging/setLevel
        self.tasks: dict[str, Task] = {}
        self.extra_tool = self.extra_prompt = self.extra_resource = False
        self.reads = 0
        self._events: list[tuple[str, t.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: t.JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return f"e{len(self._events)}"

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        if not last_event_id.startswith("e") or not last_event_id[1:].isdigit():
            return None
        at = int(last_event_id[1:])
        if not 0 < at <= len(self._events):
            return None
        stream = self._events[at - 1][0]
        for number, (of, message) in enumerate(self._events[at:], at + 1):
            if of == stream and message is not None:
                await send_callback(EventMessage(message, f"e{number}"))
        return stream


# ---------------------------------------------------------------- tools

ToolFn = Callable[["Everything", Ctx, dict[str, Any], t.CallToolRequestParams], Awaitable[Outcome]]


@dataclass
class ToolDef:
    fn: ToolFn
    description: str
    schema: dict[str, Any]
    output: dict[str, Any] | None = None
    task: str | None = None  # None, "optional" or "required"
    meta: dict[str, Any] | None = None
    annotations: t.ToolAnnotations | None = None


TOOLS: dict[str, ToolDef] = {}


def tool(description: str, schema: dict[str, Any] | None = None, name: str | None = None, **more: Any):
    def add(fn: ToolFn) -> ToolFn:
        TOOLS[name or fn.__name__] = ToolDef(fn, description, schema or obj(), **more)
        return fn

    return add


@tool("Returns one text block")
async def test_simple_text(s, ctx, args, params):
    return say("This is a simple text response for testing.")


@tool("Returns one image block")
async def test_image_content(s, ctx, args, params):
    return t.CallToolResult(content=[t.ImageContent(type="image", data=PNG, mime_type="image/png")])


@tool("Returns one audio block")
async def test_audio_content(s, ctx, args, params):
    return t.CallToolResult(content=[t.AudioContent(type="audio", data=WAV, mime_type="audio/wav")])


def embedded(uri: str, mime: str, text: str) -> t.EmbeddedResource:
    return t.EmbeddedResource(
        type="resource", resource=t.TextResourceContents(uri=uri, mime_type=mime, text=text)
    )


@tool("Returns one embedded resource")
async def test_embedded_resource(s, ctx, args, params):
    block = embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    return t.CallToolResult(content=[block])


@tool("Returns a text, an image and an embedded resource")
async def test_multiple_content_types(s, ctx, args, params):
    return t.CallToolResult(
        content=[
            t.TextContent(type="text", text="Multiple content types test:"),
            t.ImageContent(type="image", data=PNG, mime_type="image/png"),
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ]
    )


@tool("Logs three lines at info level while it runs")
async def test_tool_with_logging(s, ctx, args, params):
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message(level="info", data=line, related_request_id=ctx.request_id)
        await anyio.sleep(0.05)
    return say("Tool with logging executed successfully")


@tool("Logs one line; it reaches only a request that asked for logs")
async def test_logging_tool(s, ctx, args, params):
    await ctx.session.send_log_message(
        level="info", data="one line", logger="test", related_request_id=ctx.request_id
    )
    return say("logged")


@tool("Reports the progress 0, 50 and 100 of 100")
async def test_tool_with_progress(s, ctx, args, params):
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"Completed step {done} of 100")
        await anyio.sleep(0.05)
    token = (ctx.meta or {}).get("progress_token")
    return say(f"progress token {token!r}")


@tool("Always fails with isError")
async def test_error_handling(s, ctx, args, params):
    return say("This tool intentionally returns an error for testing", error=True)


def asked(state: str | None = None, **requests: t.InputRequest) -> t.InputRequiredResult:
    """Questions, which `in_its_era` asks as requests where the client is a legacy one."""
    return t.InputRequiredResult(input_requests=requests, request_state=state)


ANSWERS: dict[str, type[t.Result]] = {
    "elicitation/create": t.ElicitResult,
    "sampling/createMessage": t.CreateMessageResult,
    "roots/list": t.ListRootsResult,
}


def in_its_era(handler: Callable[[Any, Ctx, Any], Awaitable[Any]]) -> Callable[[Any, Ctx, Any], Any]:
    """Ask a legacy client what `handler` asks, all at once and in the middle of its request."""

    async def answer(ctx: Ctx, request: t.InputRequest) -> Any:
        related = ServerMessageMetadata(related_request_id=ctx.request_id)
        return await ctx.session.send_request(request, ANSWERS[request.method], metadata=related)

    async def wrapper(self: Any, ctx: Ctx, params: Any) -> Any:
        outcome = await handler(self, ctx, params)
        while ctx.protocol_version != MODERN and isinstance(outcome, t.InputRequiredResult):
            answers: dict[str, Any] = {}

            async def put(key: str, request: t.InputRequest, answers: dict[str, Any] = answers) -> None:
                answers[key] = await answer(ctx, request)

            try:
                async with anyio.create_task_group() as group:
                    for key, request in (outcome.input_requests or {}).items():
                        group.start_soon(put, key, request)
            except* MCPError as refused:
                raise refused.exceptions[0] from None
            answered = {"input_responses": answers, "request_state": outcome.request_state}
            outcome = await handler(self, ctx, params.model_copy(update=answered))
        return outcome

    return wrapper


@tool("Asks for a sampling", obj(["prompt"], prompt=STR))
async def test_sampling(s, ctx, args, params):
    answer = (params.input_responses or {}).get("sampled")
    if answer is None:
        return asked(sampled=sampling(args["prompt"]))
    return say(f"LLM response: {getattr(answer.content, 'text', answer.content)}")


def ask(params: t.CallToolRequestParams, message: str, schema: dict[str, Any]) -> Outcome:
    answer = (params.input_responses or {}).get("form")
    if not isinstance(answer, t.ElicitResult):
        return asked(form=form(message, schema))
    return say(f"User response: action={answer.action}, content={json.dumps(answer.content)}")


@tool("Asks the user for input", obj(["message"], message=STR))
async def test_elicitation(s, ctx, args, params):
    return ask(params, args["message"], obj(["username", "email"], username=STR, email=STR))


@tool("Asks a legacy client for its roots")
async def test_roots(s, ctx, args, params):
    listed = await ctx.session.list_roots()
    return say("roots: " + " ".join(str(root.uri) for root in listed.roots))


@tool("Elicitation with a default for every primitive type (SEP-1034)")
async def test_elicitation_sep1034_defaults(s, ctx, args, params):
    schema = obj(
        name={**STR, "default": "John Doe"},
        age={**INT, "default": 30},
        score={**NUM, "default": 95.5},
        status={**STR, "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={**BOOL, "default": True},
    )
    return ask(params, "Please provide user information", schema)


@tool("Elicitation with the five kinds of enum (SEP-1330)")
async def test_elicitation_sep1330_enums(s, ctx, args, params):
    def titled(*values: str) -> list[dict[str, str]]:
        return [{"const": v, "title": v.title()} for v in values]

    schema = obj(
        untitledSingle={**STR, "enum": ["option1", "option2", "option3"]},
        titledSingle={**STR, "oneOf": titled("value1", "value2", "value3")},
        untitledMulti={"type": "array", "items": {**STR, "enum": ["option1", "option2", "option3"]}},
        titledMulti={"type": "array", "items": {"anyOf": titled("value1", "value2", "value3")}},
        legacyEnum={**STR, "enum": ["opt1", "opt2"], "enumNames": ["Option 1", "Option 2"]},
    )
    return ask(params, "Please choose", schema)


@tool("Needs the client's sampling capability")
async def test_missing_capability(s, ctx, args, params):
    declared = ctx.session.client_capabilities
    if declared is None or declared.sampling is None:
        data = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(MISSING_CAPABILITY, "This tool needs the client capability 'sampling'", data)
    return say("the client has sampling")


REGION = {**STR, "description": "Mirrored into the header Mcp-Param-Region", "x-mcp-header": "Region"}


@tool("Has an argument that clients mirror into a header (SEP-2243)", obj(region=REGION))
async def test_x_mcp_header(s, ctx, args, params):
    return say(f"region={args.get('region')!r}")


SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {
        "address": {"$anchor": "addressDef", "type": "object", "properties": {"street": STR, "city": STR}},
    },
    "type": "object",
    "properties": {
        "name": STR,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {**STR, "enum": ["phone", "email"]},
        "phone": STR,
        "email": STR,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@tool("Tool with JSON Schema 2020-12 features", SCHEMA_2020_12)
async def json_schema_2020_12_tool(s, ctx, args, params):
    return say(json.dumps(args, sort_keys=True))


@tool("Closes its own SSE stream half way (SEP-1699, legacy)")
async def test_reconnection(s, ctx, args, params):
    if ctx.close_sse_stream is not None:
        await anyio.sleep(0.05)  # until the client has an id to go on from
        await ctx.close_sse_stream()
        await anyio.sleep(0.2)
    return say("Reconnection test completed")


# MRTR (SEP-2322)


NAME = obj(["name"], name=STR)
OK = obj(["ok"], ok=BOOL)


@tool("Asks for a name, then greets (MRTR)")
async def test_input_required_result_elicitation(s, ctx, args, params):
    name = accepted((params.input_responses or {}).get("user_name"), "name")
    return asked(user_name=form("What is your name?", NAME)) if name is None else say(f"Hello, {name}!")


@tool("Asks the client's model a question (MRTR)")
async def test_input_required_result_sampling(s, ctx, args, params):
    answer = (params.input_responses or {}).get("capital_question")
    if not isinstance(answer, t.CreateMessageResult | t.CreateMessageResultWithTools):
        return asked(capital_question=sampling("What is the capital of France?"))
    return say(f"The model said: {getattr(answer.content, 'text', answer.content)}")


@tool("Asks for the client's roots (MRTR)")
async def test_input_required_result_list_roots(s, ctx, args, params):
    answer = (params.input_responses or {}).get("client_roots")
    if not isinstance(answer, t.ListRootsResult):
        return asked(client_roots=t.ListRootsRequest())
    return say("roots: " + ", ".join(str(root.uri) for root in answer.roots))


@tool("Checks that its requestState comes back (MRTR)")
async def test_input_required_result_request_state(s, ctx, args, params):
    if (
        params.request_state != "plain state"
        or accepted((params.input_responses or {}).get("confirm"), "ok") is None
    ):
        return asked("plain state", confirm=form("Please confirm", OK))
    return say("state-ok")


@tool("Asks for three things at once (MRTR)")
async def test_input_required_result_multiple_inputs(s, ctx, args, params):
    if set(params.input_responses or {}) >= {"user_name", "greeting", "client_roots"}:
        return say("got all three")
    return asked(
        "three",
        user_name=form("What is your name?", NAME),
        greeting=sampling("Generate a greeting", 50),
        client_roots=t.ListRootsRequest(),
    )


@tool("Asks twice, one question a round (MRTR)")
async def test_input_required_result_multi_round(s, ctx, args, params):
    state = json.loads(params.request_state) if params.request_state else {}
    answers = params.input_responses or {}
    name, color = accepted(answers.get("step1"), "name"), accepted(answers.get("step2"), "color")
    if "name" in state and color is not None:
        return say(f"{state['name']} likes {color}")
    if name is not None:
        ask = form("Step 2: What is your favorite color?", obj(["color"], color=STR))
        return asked(json.dumps({"name": name}), step2=ask)
    return asked(json.dumps({}), step1=form("Step 1: What is your name?", NAME))


@tool("Its requestState must not be changed (MRTR)")
async def test_input_required_result_tampered_state(s, ctx, args, params):
    if params.request_state is None:
        return asked("untouched", confirm=form("Please confirm", OK))
    return say(f"state {params.request_state}")


@tool("Asks only for what the client declared (MRTR)")
async def test_input_required_result_capabilities(s, ctx, args, params):
    declared = ctx.session.client_capabilities
    requests: dict[str, t.InputRequest] = {}
    if declared is not None and declared.sampling is not None:
        requests["sample"] = sampling("Say hello", 50)
    if declared is not None and declared.elicitation is not None:
        requests["ask"] = form("What is your name?", NAME)
    return asked("by capability", **requests) if requests else say("the client can do neither")


@tool("Reports progress, then asks (MRTR); sends no request of its own on the stream")
async def test_streaming_elicitation(s, ctx, args, params):
    name = accepted((params.input_responses or {}).get("user_name"), "name")
    if name is not None:
        return say(f"Hello, {name}!")
    await ctx.session.report_progress(1, 2, "about to ask")
    return asked(user_name=form("What is your name?", NAME))


@tool("Sends the user to a URL (MRTR, url mode)")
async def test_url_elicitation(s, ctx, args, params):
    answer = (params.input_responses or {}).get("visit")
    if isinstance(answer, t.ElicitResult):
        return say(f"visit: {answer.action}")
    visit = t.ElicitRequestURLParams(
        message="Please sign in", url="http://127.0.0.1/sign-in", elicitation_id="e-1"
    )
    return asked(visit=t.ElicitRequest(params=visit))


# Changes that subscribers hear of


@tool("Adds or removes a tool and says so to subscribers")
async def test_trigger_tool_change(s, ctx, args, params):
    await s.change("tools")
    return say(f"extra tool: {s.memory.extra_tool}")


@tool("Adds or removes a prompt and says so to subscribers")
async def test_trigger_prompt_change(s, ctx, args, params):
    await s.change("prompts")
    return say(f"extra prompt: {s.memory.extra_prompt}")


@tool("Adds or removes a resource and says so to subscribers")
async def test_trigger_resource_change(s, ctx, args, params):
    await s.change("resources")
    return say(f"extra resource: {s.memory.extra_resource}")


@tool("Says that a resource was updated", obj(uri=STR))
async def test_trigger_resource_update(s, ctx, args, params):
    await s.change("updated", args.get("uri", "test://watched-resource"))
    return say("updated")


# What no scenario of the suite needs, but a proxy's tests do


@tool(
    "Adds two integers",
    obj(["a", "b"], a=INT, b=INT),
    output=obj(["sum"], sum=INT),
    annotations=t.ToolAnnotations(read_only_hint=True, idempotent_hint=True, title="Add"),
    meta={"com.example/kind": "arithmetic"},
)
async def add(s, ctx, args, params):
    total = args["a"] + args["b"]
    text = t.TextContent(type="text", text=json.dumps({"sum": total}))
    return t.CallToolResult(content=[text], structured_content={"sum": total})


@tool("Returns its text after some seconds, with progress", obj(["text"], text=STR, seconds=NUM, steps=INT))
async def slow_echo(s, ctx, args, params):
    seconds, steps = args.get("seconds", 1), args.get("steps", 10)
    entry = {"text": args["text"], "requestId": ctx.request_id}
    try:
        for step in range(steps):
            await ctx.session.report_progress(step, steps)
            await anyio.sleep(seconds / steps)
    except anyio.get_cancelled_exc_class():
        s.memory.cancelled.append({**entry, "at": step})
        raise
    s.memory.finished.append(entry)
    return say(args["text"])


@tool("Returns the HTTP headers and the _meta that reached this server")
async def echo_request(s, ctx, args, params):
    headers = dict(ctx.request.headers) if ctx.request is not None else {}
    seen = {"server": s.name, "headers": headers, "params": dict(ctx.params or {}), "id": ctx.request_id}
    return say(json.dumps(seen, sort_keys=True))


@tool("Returns a text of the given length", obj(["size"], size=INT))
async def big_text(s, ctx, args, params):
    return say("x" * args["size"])


@tool("Logs one line at every level")
async def log_all_levels(s, ctx, args, params):
    for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
        await ctx.session.send_log_message(level=level, data=f"at {level}", related_request_id=ctx.request_id)
    return say("logged at every level")


@tool("Fails with the given JSON-RPC error", obj(code=INT, message=STR))
async def raise_error(s, ctx, args, params):
    raise MCPError(args.get("code", -32603), args.get("message", "raised on purpose"), {"from": s.name})


@tool("Crashes with an unexpected exception")
async def crash(s, ctx, args, params):
    raise RuntimeError("crashed on purpose")


async def dynamic_tool(s, ctx, args, params):
    return say("dynamic")


EXTRA_TOOL = ToolDef(dynamic_tool, "Comes and goes", obj())

# Tasks (SEP-2663)


@tool("Greets at once, never as a task", obj(["name"], name=STR))
async def greet(s, ctx, args, params):
    return say(f"Hello, {args['name']}!")


@tool("Sleeps as a task", obj(["seconds"], seconds=NUM, label=STR), task="optional")
async def slow_compute(s, ctx, args, params):
    async def work(task: Task | None) -> t.CallToolResult:
        await anyio.sleep(args["seconds"])
        return say(f"computed {args.get('label', '')} for {args['seconds']} s")

    return await s.run(ctx, work)


@tool("Fails with isError as a task", task="required")
async def failing_job(s, ctx, args, params):
    async def work(task: Task | None) -> t.CallToolResult:
        await anyio.sleep(0.5)
        return say("the job failed", error=True)

    return await s.run(ctx, work)


@tool("Fails with a protocol error as a task", task="optional")
async def protocol_error_job(s, ctx, args, params):
    async def work(task: Task | None) -> t.CallToolResult:
        raise MCPError(-32603, "the job broke", {"job": "protocol_error_job"})

    return await s.run(ctx, work)


@tool("Asks before it deletes, as a task", obj(["filename"], filename=STR), task="required")
async def confirm_delete(s, ctx, args, params):
    async def work(task: Task | None) -> t.CallToolResult:
        assert task is not None
        answers = await task.ask(
            {"confirm": form(f"Delete {args['filename']}?", obj(["confirm"], confirm=BOOL))}
        )
        return say(f"answered {json.dumps(answers['confirm'])}")

    return await s.run(ctx, work)


@tool("Asks two things at once, as a task", task="required")
async def multi_input(s, ctx, args, params):
    async def work(task: Task | None) -> t.CallToolResult:
        assert task is not None
        answers = await task.ask({"first": form("Your name?", NAME), "second": form("Sure?", OK)})
        return say(f"answered {sorted(answers)}")

    return await s.run(ctx, work)


@tool("Asks by MRTR, then goes on as a task", task="required")
async def test_tool_with_task(s, ctx, args, params):
    name = accepted((params.input_responses or {}).get("user_name"), "name")
    if name is None:
        return asked("before the task", user_name=form("What is your name?", NAME))

    async def work(task: Task | None) -> t.CallToolResult:
        await anyio.sleep(0.2)
        return say(f"Hello from a task, {name}!")

    return await s.run(ctx, work)


# ---------------------------------------------------------------- prompts and resources


def user(content: Any) -> t.PromptMessage:
    return t.PromptMessage(role="user", content=content)


def prompt_text(text: str) -> t.PromptMessage:
    return user(t.TextContent(type="text", text=text))


PROMPTS: dict[str, tuple[str, list[str]]] = {
    "test_simple_prompt": ("A prompt without arguments", []),
    "test_prompt_with_arguments": ("A prompt with two arguments", ["arg1", "arg2"]),
    "test_prompt_with_embedded_resource": ("A prompt with a resource", ["resourceUri"]),
    "test_prompt_with_image": ("A prompt with an image", []),
    "test_input_required_result_prompt": ("A prompt that asks first (MRTR)", []),
}
WORDS = ["paris", "park", "party", "test-one", "test-two"]

RESOURCES: dict[str, tuple[str, str]] = {
    "test://static-text": ("static-text", "text/plain"),
    "test://static-binary": ("static-binary", "image/png"),
    "test://watched-resource": ("watched-resource", "text/plain"),
    "test://counter": ("counter", "text/plain"),
    "test://needs-input": ("needs-input", "text/plain"),
}
TEMPLATES = {"test://template/{id}/data": ("template-data", "application/json")}


class TaskParams(t.RequestParams):
    task_id: str


class TaskUpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(default_factory=dict)


class LegacyAwareServer(Server[Any]):
    """The SDK derives listChanged for the modern era only; say it to legacy clients too."""

    def create_initialization_options(self, *args: Any, **more: Any) -> Any:
        options = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(options, None, {})


class Everything:
    def __init__(self, name: str, page_size: int = 0, tasks: bool = True, prefix: str = "") -> None:
        self.name, self.page_size, self.with_tasks, self.prefix = name, page_size, tasks, prefix
        self.memory = Memory()
        self.bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self.bus)
        self.background: Any = None
        self.server = LegacyAwareServer(
            name,
            version="1.0.0",
            title=f"Everything ({name})",
            instructions=f"Call the test_ tools of {name}.",
            lifespan=self.lifespan,
            get_tool_input_schema=lambda tool_name: d.schema if (d := self.tools().get(tool_name)) else None,
            cache_hints={
                "server/discover": CacheHint(60_000, "public"),
                "tools/list": CacheHint(5_000, "public"),
                "resources/list": CacheHint(2_000, "private"),
            },
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=self.subscribe,
            on_unsubscribe_resource=self.unsubscribe,
            on_subscriptions_listen=self.listen,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_completion=self.complete,
            on_set_logging_level=self.set_level,
        )
        self.server.middleware.append(
            RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=name)
        )
        self.server.middleware.append(self.observe)
        if tasks:
            self.server.extensions[TASKS] = {}
            for method, model, handler in (
                ("tasks/get", TaskParams, self.task_get),
                ("tasks/update", TaskUpdateParams, self.task_update),
                ("tasks/cancel", TaskParams, self.task_cancel),
            ):
                self.server.add_request_handler(method, model, handler)

    @asynccontextmanager
    async def lifespan(self, server: Any):
        async with anyio.create_task_group() as group:
            self.background = group
            yield {}
            group.cancel_scope.cancel()

    async def observe(self, ctx: Ctx, call_next: Any) -> Any:
        headers = dict(ctx.request.headers) if ctx.request is not None else {}
        session = headers.get("mcp-session-id")
        if session is not None and ctx.protocol_version != MODERN:
            self.memory.legacy[session] = ctx.session
        self.memory.log.append(
            {
                "method": ctx.method,
                "id": ctx.request_id,
                "params": ctx.params,
                "version": ctx.protocol_version,
            }
        )
        return await call_next(ctx)

    def page(self, items: list[Any], params: t.PaginatedRequestParams | None) -> tuple[list[Any], str | None]:
        start = 0
        if params is not None and params.cursor is not None:
            try:
                start = int(base64.urlsafe_b64decode(params.cursor).decode().removeprefix(f"{self.name}:"))
            except ValueError:
                raise MCPError(t.INVALID_PARAMS, f"Invalid cursor {params.cursor!r}") from None
        if not self.page_size or start + self.page_size >= len(items):
            return items[start:], None
        end = start + self.page_size
        return items[start:end], base64.urlsafe_b64encode(f"{self.name}:{end}".encode()).decode()

    # tools

    def tools(self) -> dict[str, ToolDef]:
        known = {**TOOLS, "test_dynamic_tool": EXTRA_TOOL} if self.memory.extra_tool else TOOLS
        return {self.prefix + n: d for n, d in known.items() if self.with_tasks or d.task is None}

    async def list_tools(self, ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        listed = [
            t.Tool(
                name=n,
                description=d.description,
                input_schema=d.schema,
                output_schema=d.output,
                annotations=d.annotations,
                _meta=d.meta,
            )
            for n, d in self.tools().items()
        ]
        page, cursor = self.page(listed, params)
        return t.ListToolsResult(tools=page, next_cursor=cursor)

    @in_its_era
    async def call_tool(self, ctx: Ctx, params: t.CallToolRequestParams) -> Any:
        found = self.tools().get(params.name)
        if found is None:
            raise MCPError(t.INVALID_PARAMS, f"Unknown tool: {params.name}")
        args = params.arguments or {}
        if found.task == "required" and ctx.protocol_version == MODERN and not self.declared(ctx):
            raise self.undeclared()
        wrong = next(iter(jsonschema.Draft202012Validator(found.schema).iter_errors(args)), None)
        if wrong is not None:
            return say(f"Invalid arguments: {wrong.message}", error=True)
        return await found.fn(self, ctx, args, params)

    # tasks

    def declared(self, ctx: Ctx) -> bool:
        capabilities = ctx.session.client_capabilities
        return bool(self.with_tasks and capabilities and TASKS in (capabilities.extensions or {}))

    @staticmethod
    def undeclared() -> MCPError:
        data = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        return MCPError(MISSING_CAPABILITY, f"The client did not declare {TASKS}", data)

    async def run(self, ctx: Ctx, work: Callable[[Task | None], Awaitable[t.CallToolResult]]) -> Any:
        """Run `work` at once, or as a task if this request's client can handle one."""
        if ctx.protocol_version != MODERN or not self.declared(ctx):
            return await work(None)
        task = Task(uuid.uuid4().hex)
        self.memory.tasks[task.id] = task

        async def drive() -> None:
            with task.scope:
                try:
                    outcome = await work(task)
                    wire = outcome.model_dump(by_alias=True, mode="json", exclude_none=True)
                    task.to("completed", result=wire)
                except MCPError as error:
                    task.to("failed", error=error.error.model_dump(mode="json", exclude_none=True))
                except anyio.get_cancelled_exc_class():
                    task.to("cancelled", pending={})
                    raise

        self.background.start_soon(drive)
        return {"resultType": "task", **task.wire()}

    def find(self, ctx: Ctx, params: TaskParams) -> Task:
        if not self.declared(ctx):
            raise self.undeclared()
        named = ctx.request.headers.get("mcp-name") if ctx.request is not None else params.task_id
        if named != params.task_id:
            raise MCPError(HEADER_MISMATCH, "The header Mcp-Name is not the body's taskId")
        if params.task_id not in self.memory.tasks:
            raise MCPError(t.INVALID_PARAMS, f"Unknown task {params.task_id}")
        return self.memory.tasks[params.task_id]

    async def task_get(self, ctx: Ctx, params: TaskParams) -> dict[str, Any]:
        task = self.find(ctx, params)
        found = {"resultType": "complete", **task.wire()}
        if task.status == "input_required":
            found["inputRequests"] = task.pending
        if task.result is not None:
            found["result"] = task.result
        if task.error is not None:
            found["error"] = task.error
        return found

    async def task_update(self, ctx: Ctx, params: TaskUpdateParams) -> dict[str, Any]:
        task = self.find(ctx, params)
        for key in set(params.input_responses) & set(task.pending):
            task.answers[key] = params.input_responses[key]
            del task.pending[key]
        task.answered.set()
        return {"resultType": "complete"}

    async def task_cancel(self, ctx: Ctx, params: TaskParams) -> dict[str, Any]:
        self.find(ctx, params).scope.cancel()
        return {"resultType": "complete"}

    # prompts, completion

    async def list_prompts(self, ctx: Ctx, params: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
        known = (
            {**PROMPTS, "test_dynamic_prompt": ("Comes and goes", [])}
            if self.memory.extra_prompt
            else PROMPTS
        )
        listed = [
            t.Prompt(
                name=self.prefix + n,
                description=d,
                arguments=[t.PromptArgument(name=a, required=True) for a in names],
            )
            for n, (d, names) in known.items()
        ]
        page, cursor = self.page(listed, params)
        return t.ListPromptsResult(prompts=page, next_cursor=cursor)

    @in_its_era
    async def get_prompt(self, ctx: Ctx, params: t.GetPromptRequestParams) -> Any:
        args = params.arguments or {}
        messages: list[t.PromptMessage]
        name = params.name.removeprefix(self.prefix) if params.name.startswith(self.prefix) else ""
        match name:
            case "test_simple_prompt":
                messages = [prompt_text("This is a simple prompt for testing.")]
            case "test_prompt_with_arguments":
                text = f"Prompt with arguments: arg1='{args.get('arg1')}', arg2='{args.get('arg2')}'"
                messages = [prompt_text(text)]
            case "test_prompt_with_embedded_resource":
                block = embedded(args["resourceUri"], "text/plain", "Embedded resource content for testing.")
                messages = [user(block), prompt_text("Please process the embedded resource above.")]
            case "test_prompt_with_image":
                image = t.ImageContent(type="image", data=PNG, mime_type="image/png")
                messages = [user(image), prompt_text("Please analyze the image above.")]
            case "test_input_required_result_prompt":
                context = accepted((params.input_responses or {}).get("user_context"), "context")
                if context is None:
                    question = form("What context should the prompt use?", obj(["context"], context=STR))
                    return asked(user_context=question)
                messages = [prompt_text(f"Context: {context}")]
            case "test_dynamic_prompt" if self.memory.extra_prompt:
                messages = [prompt_text("dynamic")]
            case _:
                raise MCPError(t.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        return t.GetPromptResult(description=PROMPTS.get(name, ("", []))[0], messages=messages)

    async def complete(self, ctx: Ctx, params: t.CompleteRequestParams) -> t.CompleteResult:
        values = [w for w in WORDS if w.startswith(params.argument.value)]
        return t.CompleteResult(completion=t.Completion(values=values, total=len(values), has_more=False))

    # resources

    async def list_resources(
        self, ctx: Ctx, params: t.PaginatedRequestParams | None
    ) -> t.ListResourcesResult:
        known = dict(RESOURCES)
        if self.memory.extra_resource:
            known["test://dynamic"] = ("dynamic", "text/plain")
        listed = [
            t.Resource(uri=uri, name=n, description=f"The resource {n} of {self.name}", mime_type=mime)
            for uri, (n, mime) in known.items()
        ]
        page, cursor = self.page(listed, params)
        return t.ListResourcesResult(resources=page, next_cursor=cursor)

    async def list_templates(
        self, ctx: Ctx, params: t.PaginatedRequestParams | None
    ) -> t.ListResourceTemplatesResult:
        listed = [
            t.ResourceTemplate(uri_template=u, name=n, description=f"Template of {self.name}", mime_type=mime)
            for u, (n, mime) in TEMPLATES.items()
        ]
        return t.ListResourceTemplatesResult(resource_templates=listed)

    @in_its_era
    async def read_resource(self, ctx: Ctx, params: t.ReadResourceRequestParams) -> Any:
        uri = str(params.uri)
        mime = RESOURCES.get(uri, ("", "text/plain"))[1]
        fresh: dict[str, Any] = {}
        if uri == "test://static-binary":
            blob = t.BlobResourceContents(uri=uri, mime_type=mime, blob=PNG)
            return t.ReadResourceResult(contents=[blob], ttl_ms=60_000, cache_scope="public")
        if uri == "test://static-text":
            text, fresh = (
                "This is the content of the static text resource.",
                {"ttl_ms": 1_000, "cache_scope": "public"},
            )
        elif uri == "test://watched-resource":
            text = "The watched resource."
        elif uri == "test://counter":
            self.memory.reads += 1
            text, fresh = str(self.memory.reads), {"ttl_ms": 60_000, "cache_scope": "private"}
        elif uri == "test://needs-input":
            name = accepted((params.input_responses or {}).get("user_name"), "name")
            if name is None:
                return asked("reading", user_name=form("Who reads?", NAME))
            text = f"Read by {name}"
        elif uri == "test://dynamic" and self.memory.extra_resource:
            text = "dynamic"
        elif uri.startswith("test://template/") and uri.endswith("/data") and uri.count("/") == 4:
            mime, this = "application/json", uri.split("/")[3]
            text = json.dumps(
                {"id": this, "templateTest": True, "data": f"Data for ID: {this}", "server": self.name}
            )
        else:
            raise MCPError(t.INVALID_PARAMS, "Resource not found", {"uri": uri})
        return t.ReadResourceResult(
            contents=[t.TextResourceContents(uri=uri, mime_type=mime, text=text)], **fresh
        )

    # legacy only

    @staticmethod
    def session_of(ctx: Ctx) -> str:
        return ctx.request.headers.get("mcp-session-id", "") if ctx.request is not None else ""

    async def subscribe(self, ctx: Ctx, params: t.SubscribeRequestParams) -> t.EmptyResult:
        self.memory.watchers.setdefault(str(params.uri), set()).add(self.session_of(ctx))
        return t.EmptyResult()

    async def unsubscribe(self, ctx: Ctx, params: t.UnsubscribeRequestParams) -> t.EmptyResult:
        self.memory.watchers.get(str(params.uri), set()).discard(self.session_of(ctx))
        return t.EmptyResult()

    async def set_level(self, ctx: Ctx, params: t.SetLevelRequestParams) -> t.EmptyResult:
        self.memory.levels[self.session_of(ctx)] = params.level
        return t.EmptyResult()

    # changes

    async def change(self, kind: str, uri: str = "") -> None:
        m = self.memory
        if kind == "tools":
            m.extra_tool = not m.extra_tool
            await self.bus.publish(ToolsListChanged())
            told, send = list(m.legacy), "send_tool_list_changed"
        elif kind == "prompts":
            m.extra_prompt = not m.extra_prompt
            await self.bus.publish(PromptsListChanged())
            told, send = list(m.legacy), "send_prompt_list_changed"
        elif kind == "resources":
            m.extra_resource = not m.extra_resource
            await self.bus.publish(ResourcesListChanged())
            told, send = list(m.legacy), "send_resource_list_changed"
        elif kind == "updated":
            await self.bus.publish(ResourceUpdated(uri=uri))
            told, send = list(m.watchers.get(uri, ())), "send_resource_updated"
        else:
            raise ValueError(f"unknown kind {kind!r}")
        for session in told:
            try:
                await getattr(m.legacy[session], send)(*([uri] if kind == "updated" else []))
            except Exception:  # the session has ended
                logger.debug("legacy session %s is gone", session)
                m.legacy.pop(session, None)

    # HTTP

    def debug_routes(self) -> list[Route]:
        async def state(request: Request) -> Response:
            m = self.memory
            return JSONResponse(
                {
                    "name": self.name,
                    "listenStreams": len(self.listen._streams),
                    "legacySessions": sorted(self.server.session_manager._server_instances),
                    "watchers": {u: sorted(w) for u, w in m.watchers.items()},
                    "levels": m.levels,
                    "cancelled": m.cancelled,
                    "finished": m.finished,
                    "tasks": {i: task.status for i, task in m.tasks.items()},
                    "reads": m.reads,
                }
            )

        async def log(request: Request) -> Response:
            return JSONResponse(list(self.memory.log))

        async def clear(request: Request) -> Response:
            self.memory.log.clear()
            self.memory.cancelled.clear()
            self.memory.finished.clear()
            return Response(status_code=204)

        async def emit(request: Request) -> Response:
            try:
                await self.change(request.query_params["kind"], request.query_params.get("uri", ""))
            except (KeyError, ValueError) as wrong:
                return JSONResponse({"error": str(wrong)}, 400)
            return Response(status_code=204)

        async def end_listen(request: Request) -> Response:
            self.listen.close()
            return Response(status_code=204)

        return [
            Route("/debug/state", state, methods=["GET"]),
            Route("/debug/log", log, methods=["GET"]),
            Route("/debug/clear", clear, methods=["POST"]),
            Route("/debug/emit", emit, methods=["POST"]),
            Route("/debug/end-listen", end_listen, methods=["POST"]),
        ]

    def app(self, host: str, json_response: bool, stateless: bool, auth_token: str | None) -> Any:
        inner = self.server.streamable_http_app(
            host=host,
            json_response=json_response,
            stateless_http=stateless,
            event_store=self.memory,
            retry_interval=100,
            custom_starlette_routes=self.debug_routes(),
        )

        async def logged(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["path"].startswith("/debug/"):
                await inner(scope, receive, send)
                return
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            entry: dict[str, Any] = {"http": scope["method"], "path": scope["path"], "headers": headers}
            self.memory.log.append(entry)
            if auth_token is not None and headers.get("authorization") != f"Bearer {auth_token}":
                entry["status"] = 401
                challenge = {"www-authenticate": 'Bearer error="invalid_token"'}
                await JSONResponse({"error": "invalid_token"}, 401, challenge)(scope, receive, send)
                return

            async def watched(message: Any) -> None:
                if message["type"] == "http.response.start":
                    entry["status"] = message["status"]
                await send(message)

            await inner(scope, receive, watched)

        return logged


def main() -> None:
    parser = argparse.ArgumentParser(description="Reference upstream MCP server (both eras).")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=3001)
    parser.add_argument("--name", default="everything")
    parser.add_argument("--page-size", type=int, default=0, help="items per page of the lists (0: one page)")
    parser.add_argument("--prefix", default="", help="put this before every tool and prompt name")
    parser.add_argument("--no-tasks", action="store_true", help="without the tasks extension and its tools")
    parser.add_argument(
        "--json-response", action="store_true", help="answer in JSON instead of SSE where possible"
    )
    parser.add_argument("--stateless", action="store_true", help="no sessions for legacy clients")
    parser.add_argument("--auth-token", help="require this bearer token")
    parser.add_argument("--log-level", default="warning")
    options = parser.parse_args()
    logging.basicConfig(level=options.log_level.upper())
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    everything = Everything(options.name, options.page_size, not options.no_tasks, options.prefix)
    app = everything.app(options.host, options.json_response, options.stateless, options.auth_token)
    listener = socket.create_server((options.host, options.port), backlog=512)
    sys.stdout.write(f"http://{options.host}:{listener.getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level=options.log_level, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
