"""What is read of older clients: handshakes, requests, batches."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol import legacy_client
from gateway.protocol.call import META_SERVER_INFO, MODERN_VERSION
from gateway.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, McpError
from gateway.protocol.legacy_client import (
    DIALECTS,
    MOST_IN_A_BATCH,
    NEWEST,
    Answered,
    Asked,
    Handshake,
    Noted,
    Unreadable,
    call_of,
    cancelled_id,
    handshake,
    initialized,
    level_of,
    read_message,
    read_messages,
    uri_of,
)
from gateway.protocol.methods import METHODS, UI
from tests.support.wire import check_result

OLDEST = DIALECTS["2025-03-26"]
VERSIONS = list(DIALECTS)


def nothing_passes(method: str) -> bool:
    return False


def shaken(version: str = "2025-11-25", **capabilities: Any) -> Handshake:
    params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "c"}}
    return handshake(json.dumps(params).encode())


def asked(method: str, params: Any = None, id: bytes = b"1") -> Asked:
    return Asked(id, method, None if params is None else json.dumps(params).encode())


# The handshake


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        *[(version, version) for version in VERSIONS],
        ("2024-11-05", "2025-11-25"),
        (MODERN_VERSION, "2025-11-25"),
        ("later", "2025-11-25"),
    ],
)
def test_a_version_that_is_served_is_agreed_upon(wanted: str, given: str) -> None:
    """For any other the newest is offered."""
    assert shaken(wanted).version == given


@pytest.mark.parametrize(
    ("version", "said", "declared"),
    [
        ("2025-11-25", {"roots": {"listChanged": True}}, {"roots": {}}),
        ("2025-11-25", {"sampling": {}}, {"sampling": {}}),
        ("2025-11-25", {"sampling": {"tools": {}, "context": {}}}, {"sampling": {"tools": {}}}),
        ("2025-06-18", {"sampling": {"tools": {}}}, {"sampling": {}}),
        ("2025-11-25", {"elicitation": {}}, {"elicitation": {"form": {}}}),
        ("2025-11-25", {"elicitation": {"url": {}}}, {"elicitation": {"url": {}}}),
        ("2025-11-25", {"elicitation": {"form": {}, "url": {}}}, {"elicitation": {"form": {}, "url": {}}}),
        ("2025-06-18", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("2025-03-26", {"elicitation": {}}, {}),
        ("2025-11-25", {"extensions": {UI: {"a": 1}, "x/y": {}}}, {"extensions": {UI: {"a": 1}}}),
        ("2025-11-25", {"extensions": {"io.modelcontextprotocol/tasks": {}}}, {}),
        ("2025-11-25", {"tasks": {"list": {}}, "experimental": {"e": {}}}, {}),
        ("2025-11-25", {"roots": None, "sampling": True, "elicitation": []}, {}),
    ],
)
def test_capabilities_are_declared_as_a_modern_client_would(
    version: str, said: dict[str, Any], declared: dict[str, Any]
) -> None:
    """Only what the revision has and the gateway carries; of the extensions Apps alone (A-34)."""
    assert json.loads(shaken(version, **said).capabilities) == declared


@pytest.mark.parametrize("params", [None, b"[]", b"{}", b'{"protocolVersion":1}'])
def test_a_handshake_names_a_version(params: bytes | None) -> None:
    with pytest.raises(McpError) as told:
        handshake(params)
    assert told.value.code == INVALID_PARAMS


def test_a_handshake_may_say_no_more_than_its_version() -> None:
    held = handshake(b'{"protocolVersion":"2025-06-18","capabilities":null,"clientInfo":null}')
    assert (held.version, held.capabilities, held.client) == ("2025-06-18", b"{}", "")


INFO = {
    "name": "acme",
    "version": "1",
    "title": "Acme",
    "icons": [{"src": "https://x/i.png"}],
    "websiteUrl": "https://x",
    "description": "all of it",
}


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2025-11-25", {"name", "version", "title", "icons", "websiteUrl", "description"}),
        ("2025-06-18", {"name", "version", "title"}),
        ("2025-03-26", {"name", "version"}),
    ],
)
def test_what_the_gateway_says_of_itself_fits_the_version(version: str, known: set[str]) -> None:
    discovered = {
        "resultType": "complete",
        "supportedVersions": [MODERN_VERSION],
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True},
            "extensions": {UI: {}, "io.modelcontextprotocol/tasks": {}},
        },
        "instructions": "Be kind.",
        "ttlMs": 5,
        "cacheScope": "public",
        "_meta": {META_SERVER_INFO: INFO},
    }
    result = check_result(
        "initialize", initialized(json.dumps(discovered).encode(), shaken(version)), version
    )
    assert result.keys() == {"protocolVersion", "capabilities", "serverInfo", "instructions"}
    assert result["protocolVersion"] == version
    assert result["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True},
        "extensions": {UI: {}},
    }
    assert result["serverInfo"].keys() == known


# Messages


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"jsonrpc":"2.0","id":"1","method":"ping"}', Asked(b'"1"', "ping")),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', Noted("notifications/initialized")),
    ],
)
def test_a_message_is_read(text: bytes, message: object) -> None:
    assert read_message(text, 10) == message


def test_an_answer_of_the_client_is_read() -> None:
    """With a result, or with an error."""
    answered = read_message(b'{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}', 10)
    assert isinstance(answered, Answered)
    assert (answered.id, bytes(answered.result or b"")) == (b'"q"', b'{"action":"accept"}')
    refused = read_message(b'{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no"}}', 10)
    assert isinstance(refused, Answered)
    assert refused.error is not None
    assert (refused.id, refused.error.code) == (b"7", -1)


@pytest.mark.parametrize(
    ("text", "code", "id"),
    [
        (b"", PARSE_ERROR, None),
        (b"{", PARSE_ERROR, None),
        (b"7", INVALID_REQUEST, None),
        (b"[]", INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', INVALID_REQUEST, b"1"),
        (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"id":1,"method":"ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":1,"error":{}}', INVALID_REQUEST, b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":[[[[[[[[[[[[]]]]]]]]]]]]}', INVALID_REQUEST, b"1"),
    ],
)
def test_what_is_no_message_is_told_so(text: bytes, code: int, id: bytes | None) -> None:
    message = read_messages(text, NEWEST, 10)
    assert isinstance(message, Unreadable)
    assert (message.error.code, message.id) == (code, id)


@given(st.binary(max_size=60))
def test_any_bytes_are_some_message(body: bytes) -> None:
    """Nothing a client posts is a failure of ours."""
    for dialect in (NEWEST, OLDEST):
        read_messages(body, dialect, 10)


# Batches


def test_a_batch_is_read_where_the_revision_has_them() -> None:
    """X-60: each element on its own, and elsewhere an array is no message."""
    text = b'[{"jsonrpc":"2.0","id":1,"method":"ping"}, {"jsonrpc":"2.0","method":"n"}, 7]'
    batch = read_messages(text, OLDEST, 10)
    assert isinstance(batch, list)
    assert batch[:2] == [Asked(b"1", "ping"), Noted("n")]
    assert isinstance(batch[2], Unreadable)
    assert isinstance(read_messages(text, NEWEST, 10), Unreadable)
    assert isinstance(read_messages(text, DIALECTS["2025-06-18"], 10), Unreadable)


def test_half_a_character_costs_a_batch_no_other_message() -> None:
    """X-60; one in an id cannot be answered to, so that message alone is refused (E-04, E-33)."""
    half = rb"\ud83d"
    text = (
        rb' [{"jsonrpc":"2.0","id":1,"method":"ping"} ,'
        rb'{"jsonrpc":"2.0","id":2,"method":"x","params":{"a":"\\%b"}},'
        rb'{"jsonrpc":"2.0","id":"%b","method":"x"},3,{"jsonrpc":"2.0","id":3,"method":"x"}]'
    ) % (half, half)
    batch = read_messages(text, OLDEST, 10)
    assert isinstance(batch, list)
    assert [one.id for one in batch if isinstance(one, Asked)] == [b"1", b"2", b"3"]
    assert [one.id for one in batch if isinstance(one, Unreadable)] == [None, None]
    assert isinstance(batch[1], Asked)
    assert bytes(batch[1].params or b"") == '{"a":"\\\\\ufffd"}'.encode()
    for text in (rb'[{"a":"%b"]' % half, rb'["%b' % half):
        assert isinstance(read_messages(text, OLDEST, 10), Unreadable)


def test_a_batch_has_its_bounds() -> None:
    """It is not empty, not endless, and no place for a handshake."""
    for text in (b"[]", json.dumps([1] * (MOST_IN_A_BATCH + 1)).encode()):
        refused = read_messages(text, OLDEST, 10)
        assert isinstance(refused, Unreadable)
        assert refused.error.code == INVALID_REQUEST
    batch = read_messages(b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]', OLDEST, 10)
    assert isinstance(batch, list)
    assert isinstance(batch[0], Unreadable)
    assert batch[0].id == b"1"


# Requests


@pytest.mark.parametrize("method", [m for m, row in METHODS.items() if row.kind in ("list", "named", "read")])
def test_a_request_becomes_a_modern_call(method: str) -> None:
    """With what the handshake settled in the place of an envelope."""
    held = shaken(roots={})
    params = {"name": "n", "uri": "u:x", "_meta": {"progressToken": 7, "com.example/a": 1}}
    call = call_of(asked(method, params, b'"i"'), held, "info", nothing_passes)
    assert (call.id, call.method, call.meta.version) == (b'"i"', method, MODERN_VERSION)
    assert bytes(call.meta.capabilities) == b'{"roots":{}}'
    assert call.meta.log_level == "info"
    assert bytes(call.meta.progress_token or b"") == b"7"
    assert list(call.meta.vendor) == ["com.example/a"]
    assert "_meta" not in call.params
    assert call.param_headers is None


def test_arguments_keep_every_byte() -> None:
    arguments = b'{"a": 1.0, "b":18446744073709551616, "a":"\\u00e9"}'
    call = call_of(
        Asked(b"1", "tools/call", b'{"name":"t","arguments":%b}' % arguments), shaken(), None, nothing_passes
    )
    assert bytes(call.params["arguments"]) == arguments


def test_nobody_says_what_is_the_gateways_to_say() -> None:
    """Neither the rounds of a conversation nor a hop's own `_meta` come from an older client (M-08, E-24)."""
    params = {
        "name": "t",
        "requestState": "s",
        "inputResponses": {},
        "_meta": {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}, META_SERVER_INFO: {}},
    }
    call = call_of(asked("tools/call", params), shaken(), None, nothing_passes)
    assert list(call.params) == ["name"]
    assert (call.meta.capabilities, call.meta.vendor) == (b"{}", {})


@pytest.mark.parametrize(
    ("version", "kept"), [("2025-11-25", True), ("2025-06-18", True), ("2025-03-26", False)]
)
def test_the_context_of_a_completion_came_later_than_the_first_revision(version: str, kept: bool) -> None:
    params = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {}, "context": {"arguments": {}}}
    call = call_of(asked("completion/complete", params), shaken(version), None, nothing_passes)
    assert ("context" in call.params) is kept


@pytest.mark.parametrize(
    "method",
    [
        "tasks/get",
        "tasks/list",
        "tasks/result",
        "tasks/cancel",
        "subscriptions/listen",
        "server/discover",
        "x/y",
    ],
)
def test_what_no_older_revision_has_is_unknown(method: str) -> None:
    """T-18 for tasks."""
    with pytest.raises(McpError) as told:
        call_of(asked(method, {"taskId": "t", "notifications": {}}), shaken(), None, nothing_passes)
    assert told.value.code == METHOD_NOT_FOUND


def test_an_extensions_method_passes_where_somebody_serves_it() -> None:
    """K-08, its params as they are."""
    call = call_of(asked("acme/do", {"name": 1, "requestState": 2}), shaken(), None, lambda method: True)
    assert list(call.params) == ["name", "requestState"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": 1}),
        ("tools/call", {"name": "t", "arguments": 1}),
        ("resources/read", {"uri": None}),
        ("tools/list", []),
        ("tools/list", {"_meta": 1}),
        ("tools/list", {"_meta": {"progressToken": 1.5}}),
    ],
)
def test_params_that_cannot_be_routed_are_refused(method: str, params: Any) -> None:
    with pytest.raises(McpError) as told:
        call_of(asked(method, params), shaken(), None, nothing_passes)
    assert told.value.code == INVALID_PARAMS


def test_a_log_level_is_one_of_eight() -> None:
    """S-25."""
    assert level_of(b'{"level":"warning"}') == "warning"
    for params in (None, b"{}", b'{"level":"loud"}', b'{"level":1}'):
        with pytest.raises(McpError) as told:
            level_of(params)
        assert told.value.code == INVALID_PARAMS


def test_a_subscription_names_a_resource() -> None:
    assert uri_of(b'{"uri":"u:x"}') == "u:x"
    for params in (None, b"{}", b'{"uri":1}'):
        with pytest.raises(McpError):
            uri_of(params)


def test_a_cancellation_names_a_request_as_it_was_spelled() -> None:
    """1 and "1" are two requests (E-04); what names none cancels none."""
    assert cancelled_id(b'{"requestId": 1}') == b"1"
    assert cancelled_id(b'{"requestId":"1"}') == b'"1"'
    for params in (None, b"{}", b'{"requestId":null}', b'{"requestId":{}}', b"[]"):
        assert cancelled_id(params) is None


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"progressToken": "t", "progress": 1, "total": 2}, ("t", {"progress": b"1", "total": b"2"})),
        ({"progressToken": "t", "progress": 0.5, "_meta": {"a": 1}}, ("t", {"progress": b"0.5"})),
        ({"progressToken": 1, "progress": 1}, None),
        ({"progress": 1}, None),
        ({"progressToken": "t"}, None),
        ({"progressToken": "t", "progress": "1"}, None),
        ({"progressToken": "t", "progress": True}, None),
        ([], None),
        (None, None),
    ],
)
def test_progress_of_an_answer_is_read(params: Any, told: Any) -> None:
    """Tokens are texts here, and what is no number is no progress."""
    read = legacy_client.progress_of(None if params is None else json.dumps(params).encode())
    assert (read and (read[0], {key: bytes(raw) for key, raw in read[1].items()})) == told
