"""What upstreams ask inside of an answer as older clients are asked it, and what becomes of their answers."""

import json
from typing import Any

import pytest

from gateway.protocol import legacy_questions
from gateway.protocol.jsonrpc import INTERNAL_ERROR, McpError, split
from gateway.protocol.legacy_client import DIALECTS, Answered
from gateway.protocol.legacy_questions import (
    Question,
    asked,
    questions,
    request,
    response,
    withdrawal,
)

VERSIONS = list(DIALECTS)


def put(method: str, params: Any, version: str) -> dict[str, Any]:
    """Return the request that a client is sent for one question."""
    raw = split(json.dumps({"k": {"method": method, "params": params}}).encode())
    (question,) = questions(raw, DIALECTS[version], lambda: "minted")
    message: dict[str, Any] = json.loads(request("q1", question))
    assert (question.key, message["id"], message["method"]) == ("k", "q1", method)
    return dict(message["params"])


def refused(method: str, params: Any, version: str) -> str:
    with pytest.raises(McpError) as told:
        put(method, params, version)
    assert told.value.code == INTERNAL_ERROR
    return told.value.message


def form(**properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": []}
    return {"mode": "form", "message": "Which?", "requestedSchema": schema}


# Elicitation


def test_a_form_is_shown_to_who_knows_forms() -> None:
    """`mode` came with the last revision; the first has no elicitation (M-18)."""
    asked = form(name={"type": "string", "title": "Name", "default": "x"}, ok={"type": "boolean"})
    assert put("elicitation/create", asked, "2025-11-25") == asked
    without = {key: value for key, value in asked.items() if key != "mode"}
    assert put("elicitation/create", asked, "2025-06-18") == without
    assert "elicitation" in refused("elicitation/create", asked, "2025-03-26")


def test_a_page_to_open_has_an_id_of_ours() -> None:
    url = {"mode": "url", "message": "Sign in", "url": "https://x/?a=1"}
    assert put("elicitation/create", url, "2025-11-25") == {**url, "elicitationId": "minted"}
    for version in ("2025-06-18", "2025-03-26"):
        assert "elicitation" in refused("elicitation/create", url, version)


def test_a_choice_among_titles_is_spelled_as_the_older_revision_had_it() -> None:
    choice = {
        "type": "string",
        "description": "one",
        "oneOf": [{"const": "a", "title": "A"}, {"const": "b"}],
    }
    assert put("elicitation/create", form(c=choice), "2025-11-25") == form(c=choice)
    shown = put("elicitation/create", form(c=choice), "2025-06-18")
    assert shown["requestedSchema"]["properties"] == {
        "c": {"type": "string", "description": "one", "enum": ["a", "b"], "enumNames": ["A", "b"]}
    }


@pytest.mark.parametrize(
    "field",
    [
        {"type": "array", "items": {"type": "string", "enum": ["a"]}},
        {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
        {"type": "string", "oneOf": [{"title": "A"}]},
        {"type": "string", "oneOf": {}},
    ],
)
def test_a_choice_of_several_cannot_be_put_to_an_older_client(field: dict[str, Any]) -> None:
    assert put("elicitation/create", form(c=field), "2025-11-25") == form(c=field)
    assert "elicitation" in refused("elicitation/create", form(c=field), "2025-06-18")


# Sampling

TEXT = {"type": "text", "text": "x"}
SAMPLING = {"messages": [{"role": "user", "content": TEXT}], "maxTokens": 5, "includeContext": "none"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_plain_sampling_request_is_the_same_everywhere(version: str) -> None:
    assert put("sampling/createMessage", SAMPLING, version) == SAMPLING


def test_tools_for_the_model_came_with_the_last_revision() -> None:
    tools = {**SAMPLING, "tools": [{"name": "t", "inputSchema": {"type": "object"}}], "toolChoice": {}}
    use = {"type": "tool_use", "id": "1", "name": "t", "input": {}}
    used = {**SAMPLING, "messages": [{"role": "assistant", "content": [use]}]}
    for params in (tools, used):
        assert put("sampling/createMessage", params, "2025-11-25") == params
        for version in ("2025-06-18", "2025-03-26"):
            assert "sampling.tools" in refused("sampling/createMessage", params, version)


def test_a_message_of_several_blocks_becomes_several() -> None:
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    params = {**SAMPLING, "messages": [{"role": "user", "content": [TEXT, image]}]}
    assert put("sampling/createMessage", params, "2025-11-25") == params
    assert put("sampling/createMessage", params, "2025-06-18")["messages"] == [
        {"role": "user", "content": TEXT},
        {"role": "user", "content": image},
    ]


# Others


def test_roots_are_asked_for_with_or_without_params() -> None:
    raw = split(b'{"a":{"method":"roots/list"},"b":{"method":"roots/list","params":{"_meta":{"x":1}}}}')
    one, two = questions(raw, DIALECTS["2025-03-26"], lambda: "")
    assert json.loads(request("q", one)) == {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
    assert json.loads(request("q", two))["params"] == {"_meta": {"x": 1}}


def test_one_hops_meta_is_left_out() -> None:
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
    assert put("roots/list", meta, "2025-11-25") == {}
    answer = Answered(b"1", json.dumps({"roots": [], **meta}).encode())
    assert response(Question("k", "roots/list"), answer) == b'{"roots":[]}'


def test_what_wants_only_to_be_called_again_asks_nothing() -> None:
    """M-14."""
    assert asked(split(b'{"resultType":"input_required","requestState":"s"}')) is None
    assert asked(split(b'{"inputRequests":{}}')) is None
    assert asked(split(b'{"inputRequests":{"k":{}}}')) is not None


def test_an_answer_is_handed_on_as_it_came() -> None:
    answer = Answered(b"1", b'{ "action":"accept","content":{"n":1.0} }')
    assert response(Question("k", "elicitation/create"), answer) == answer.result


def test_an_error_ends_a_question_or_the_call() -> None:
    """M-17: an elicitation counts as cancelled, anything else ends with that very error."""
    error = McpError(-1, "no")
    answer = Answered(b"1", error=error)
    assert response(Question("k", "elicitation/create"), answer) == b'{"action":"cancel"}'
    for method in ("sampling/createMessage", "roots/list"):
        with pytest.raises(McpError) as told:
            response(Question("k", method), answer)
        assert told.value is error


@pytest.mark.parametrize("result", [None, b"7", b"null", b"[]"])
def test_an_answer_is_an_object(result: bytes | None) -> None:
    with pytest.raises(McpError) as told:
        response(Question("k", "roots/list"), Answered(b"1", result))
    assert told.value.code == INTERNAL_ERROR


def test_a_question_can_be_taken_back() -> None:
    assert json.loads(withdrawal("q", "too late")) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": "q", "reason": "too late"},
    }


@pytest.mark.parametrize("progress", [True, False])
@pytest.mark.parametrize("page", [None, "0123456789abcdef" * 2])
def test_a_key_says_what_else_may_be_told(progress: bool, page: str | None) -> None:
    """Of the question that it names."""
    name = legacy_questions.key(7, progress=progress, page=page)
    assert legacy_questions.wants_progress(name) is progress
    assert legacy_questions.completes(name) is (page is not None)
    assert (name == "q7") is not (progress or page is not None)


@pytest.mark.parametrize(
    "name", ["", "q", "k", "ask-progress", "q1-progress-", "q1-0123", "q1\n", "Q1-progress"]
)
def test_a_key_of_somebody_elses_says_nothing(name: str) -> None:
    """Modern servers name their questions as they like."""
    assert not legacy_questions.wants_progress(name)
    assert not legacy_questions.completes(name)
