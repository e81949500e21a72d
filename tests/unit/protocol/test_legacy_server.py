"""What a server of an older revision is sent, and what its words mean."""

import json
from typing import Any

import mcp_types.methods as official
import pytest

from gateway.protocol import legacy_server
from gateway.protocol.call import LEGACY_VERSIONS, Request
from gateway.protocol.jsonrpc import Incoming, Malformed, McpError, read_incoming
from tests.support.wire import check_result

CLIENT = b'{"name":"gw","version":"1"}'


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def declared(capabilities: Any) -> Any:
    return json.loads(legacy_server.declared(dumped(capabilities)))


def message(members: Any) -> Incoming:
    return read_incoming(dumped({"jsonrpc": "2.0", **members}))


def greeting(**members: Any) -> legacy_server.Greeting:
    whole = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "old", "version": "1"},
        **members,
    }
    return legacy_server.read_greeting(dumped(whole))


# What is sent


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
def test_the_handshake_is_what_the_official_types_call_one(version: str) -> None:
    """It offers the newest of the older revisions."""
    params = legacy_server.initialize_params(b"{}", CLIENT, version)
    sent = json.loads(legacy_server.request_message(7, "initialize", params))
    assert (sent["id"], sent["method"]) == (7, "initialize")
    official.parse_client_request("initialize", version, sent["params"])
    assert json.loads(legacy_server.initialize_params(b"{}", CLIENT)["protocolVersion"]) == "2025-11-25"


@pytest.mark.parametrize(
    ("capabilities", "said"),
    [
        ({}, {}),
        ({"elicitation": {}}, {"elicitation": {"form": {}}}),
        ({"elicitation": {"form": None, "url": {}}}, {"elicitation": {"url": {}}}),
        ({"elicitation": {"form": {}, "url": {}}}, {"elicitation": {"form": {}, "url": {}}}),
        ({"sampling": {"context": {}}}, {"sampling": {}}),
        ({"sampling": {"tools": {}}}, {"sampling": {"tools": {}}}),
        ({"roots": {"listChanged": True}}, {"roots": {}}),
        ({"tasks": {}, "experimental": {"a": {}}, "own": {}}, {}),
        (
            {"extensions": {"io.modelcontextprotocol/tasks": {}, "io.modelcontextprotocol/ui": {"a": 1}}},
            {"extensions": {"io.modelcontextprotocol/ui": {"a": 1}}},
        ),
        ({"extensions": {"io.modelcontextprotocol/tasks": {}}}, {}),
        (None, {}),
    ],
)
def test_never_more_is_declared_than_the_client_has(capabilities: Any, said: Any) -> None:
    """In one spelling, so that clients that can do the same share a profile."""
    assert declared(capabilities) == said


def test_a_request_has_no_envelope() -> None:
    """Only the progress token and what others put into `_meta` travels, and no input of the retry."""
    request = Request(
        "tools/call",
        {"name": b'"a"', "arguments": b"{}", "requestState": b'"s"', "inputResponses": b"{}"},
        capabilities=b'{"roots":{}}',
        wants_progress=True,
        vendor={"com.example/a": b"1", "io.modelcontextprotocol/clientInfo": b"{}"},
    )
    params = legacy_server.request_params(request, 5, "2025-11-25")
    assert {key: json.loads(raw) for key, raw in params.items()} == {
        "name": "a",
        "arguments": {},
        "_meta": {"com.example/a": 1, "progressToken": 5},
    }
    assert "_meta" not in legacy_server.request_params(Request("tools/list"), 5, "2025-11-25")


@pytest.mark.parametrize(
    ("version", "kept"),
    [("2025-11-25", True), ("2025-06-18", True), ("2025-03-26", False), ("2024-11-05", False)],
)
def test_a_completion_loses_its_context_where_there_was_none(version: str, kept: bool) -> None:
    """Revisions before 2025-06-18 do not know it."""
    request = Request("completion/complete", {"ref": b"{}", "argument": b"{}", "context": b"{}"})
    assert ("context" in legacy_server.request_params(request, 1, version)) is kept


# What is heard


def test_a_handshake_stands_in_for_discover() -> None:
    """What a modern server would have said, and nothing that means something else by now."""
    capabilities = {"tools": {"listChanged": True}, "tasks": {}, "experimental": {}, "logging": {}}
    read = greeting(capabilities=capabilities, instructions="Be kind.")
    result = check_result("server/discover", read.discovered)
    assert result["supportedVersions"] == ["2025-11-25"]
    assert result["capabilities"] == {"tools": {"listChanged": True}, "logging": {}}
    assert result["instructions"] == "Be kind."
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
    assert read.has("tools")
    assert read.has("tools", "listChanged")
    assert read.has("logging")
    assert not read.has("tools", "subscribe")
    assert not read.has("resources", "subscribe")


@pytest.mark.parametrize("version", ["2026-07-28", "1.0", None, 5])
def test_a_version_nobody_speaks_ends_the_handshake(version: Any) -> None:
    """A known older one is the session's."""
    with pytest.raises(Malformed):
        greeting(protocolVersion=version)
    assert greeting(protocolVersion="2024-11-05").version == "2024-11-05"


def test_strange_handshakes_are_taken_for_what_they_say() -> None:
    """Nulls and other types count as absent."""
    read = greeting(capabilities={"tools": None, "prompts": True}, serverInfo=None, instructions=7)
    assert read.capabilities == {}
    assert read.instructions is None
    check_result("server/discover", read.discovered)


def test_batches_are_read_in_the_revisions_that_have_them() -> None:
    """X-60."""
    one = {"jsonrpc": "2.0", "id": 1, "result": {}}
    two = {"jsonrpc": "2.0", "method": "notifications/progress"}
    assert len(legacy_server.read_messages(dumped([one, two]), "2025-03-26")) == 2
    assert len(legacy_server.read_messages(dumped(one), "2025-11-25")) == 1
    for version in ("2025-11-25", "2025-06-18", None):
        with pytest.raises(Malformed):
            legacy_server.read_messages(dumped([one]), version)
    with pytest.raises(Malformed):
        legacy_server.read_messages(b"[]", "2025-03-26")


def test_a_result_is_worded_as_a_modern_one() -> None:
    """X-02; hints that a legacy result happens to hold are not followed (C-15)."""
    listed = {"prompts": [], "ttlMs": 5000, "cacheScope": "public", "resultType": "x", "own": 1.0}
    result = json.loads(legacy_server.worded("prompts/list", dumped(listed)))
    assert result == {
        "prompts": [],
        "ttlMs": 0,
        "cacheScope": "private",
        "resultType": "complete",
        "own": 1.0,
    }
    called = json.loads(legacy_server.worded("tools/call", b'{"content":[],"isError":true}'))
    assert called == {"content": [], "isError": True, "resultType": "complete"}


def test_tools_keep_what_holds_and_lose_what_does_not() -> None:
    """A bad annotation costs itself only (U-09), a tool that needs a task is not offered (T-18)."""
    schema = {
        "type": "object",
        "properties": {
            "good": {"type": "string", "x-mcp-header": "Good"},
            "bad": {"type": "number", "x-mcp-header": "Bad", "minimum": 1.50},
            "twice": {"type": "string", "x-mcp-header": "good"},
        },
    }
    tools = [
        {"name": "a", "inputSchema": schema},
        {"name": "b", "inputSchema": {}, "execution": {"taskSupport": "required"}},
        {"name": "c", "inputSchema": {}, "execution": {"taskSupport": "optional"}},
    ]
    text = legacy_server.worded("tools/list", dumped({"tools": tools}).replace(b"1.5", b"1.50"))
    a, c = json.loads(text)["tools"]
    assert a["inputSchema"]["properties"] == {
        "good": {"type": "string", "x-mcp-header": "Good"},
        "bad": {"type": "number", "minimum": 1.5},
        "twice": {"type": "string"},
    }
    assert b"1.50" in text  # no number is read on the way
    assert c == {"name": "c", "inputSchema": {}}


def test_a_task_is_no_result_of_a_call() -> None:
    """Nobody asked for one; without it the result would say nothing, which a tool may (T-18)."""
    with pytest.raises(Malformed, match="a task"):
        legacy_server.worded("tools/call", dumped({"task": {"taskId": "t"}}))
    for result in ({}, {"task": None}, {"task": {}, "content": []}):
        assert legacy_server.worded("tools/call", dumped(result))


def test_only_versions_spoken_here_are_looked_at() -> None:
    """In the newest first."""
    data = dumped({"supported": ["2024-11-05", "2025-06-18", "9", None]})
    assert legacy_server.versions_named(data) == ("2025-06-18", "2024-11-05")
    for other in (None, b"[]", b'{"supported":5}'):
        assert legacy_server.versions_named(other) == ()


# Questions


ASKED = {"id": "s-1", "method": "elicitation/create"}


def test_a_question_is_shown_without_what_belongs_to_its_hop() -> None:
    """The id is kept for the answer, as it was spelled (E-04)."""
    params = {
        "mode": "url",
        "message": "Go",
        "url": "https://a.example/",
        "elicitationId": "e1",
        "_meta": {"progressToken": 1, "com.example/a": 2},
    }
    question = legacy_server.read_question(message({**ASKED, "params": params}))
    assert question.id == b'"s-1"'
    assert json.loads(question.params or b"") == {
        "mode": "url",
        "message": "Go",
        "url": "https://a.example/",
        "_meta": {"com.example/a": 2},
    }
    asked = json.loads(legacy_server.asking({"q1": question}, "state"))
    assert asked["resultType"] == "input_required"
    assert asked["requestState"] == "state"
    assert asked["inputRequests"]["q1"]["method"] == "elicitation/create"
    roots = legacy_server.read_question(message({"id": 1, "method": "roots/list"}))
    assert json.loads(legacy_server.asking({"q1": roots}, None)) == {
        "resultType": "input_required",
        "inputRequests": {"q1": {"method": "roots/list"}},
    }


@pytest.mark.parametrize(
    ("method", "params", "capabilities", "code"),
    [
        ("elicitation/create", {}, {"elicitation": {}}, None),
        ("elicitation/create", {"mode": "form"}, {"elicitation": {}}, None),
        ("elicitation/create", {"mode": "url"}, {"elicitation": {"form": {}}}, -32602),
        ("elicitation/create", {}, {"elicitation": {"url": {}}}, -32602),
        ("elicitation/create", {}, {"roots": {}}, -32601),
        ("sampling/createMessage", {}, {"sampling": {}}, None),
        ("roots/list", {}, {}, -32601),
        ("tasks/get", {}, {"roots": {}}, -32601),
        ("com.example/own", {}, {"roots": {}}, -32601),
    ],
)
def test_what_was_not_declared_is_refused(method: str, params: Any, capabilities: Any, code: Any) -> None:
    """The server hears it at once, and no client is asked."""
    asked = message({"id": 1, "method": method, "params": params})
    refused = legacy_server.refusal(asked, legacy_server.declared(dumped(capabilities)))
    assert (refused and refused.code) == code


def test_pages_of_an_error_become_questions() -> None:
    """One for each, without the id that has no place any more (M-21)."""
    page = {"mode": "url", "elicitationId": "e1", "url": "https://a.example/", "message": "Go"}
    error = McpError(-32042, "visit", dumped({"elicitations": [page, page]}))
    first, _ = legacy_server.elicitations(error)
    assert json.loads(first.params or b"") == {"mode": "url", "url": "https://a.example/", "message": "Go"}
    for data in (b"{}", b'{"elicitations":[]}', b"[]"):
        with pytest.raises(Malformed):
            legacy_server.elicitations(McpError(-32042, "visit", data))


def test_answers_and_refusals_carry_the_servers_id() -> None:
    """As it wrote it."""
    assert json.loads(legacy_server.answer_message(b'"7"', b'{"action":"accept"}')) == {
        "jsonrpc": "2.0",
        "id": "7",
        "result": {"action": "accept"},
    }
    assert json.loads(legacy_server.refusal_message(b"7"))["error"]["code"] == -32601
