"""A posted request is accepted, or refused with the one error that the first failing check gives (S-06)."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol import modern
from gateway.protocol.call import (
    HOP_META,
    LEGACY_VERSIONS,
    LOG_LEVELS,
    META_CAPABILITIES,
    META_CLIENT_INFO,
    META_LOG_LEVEL,
    META_VERSION,
    SERVED_VERSIONS,
    Call,
)
from gateway.protocol.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    error_message,
)
from gateway.protocol.methods import LEGACY_METHODS, METHODS
from gateway.protocol.modern import (
    PostedNotification,
    Rejection,
    accept,
    accept_headers,
    era_of,
    read_head,
    status_of,
)

VERSION = "2026-07-28"
META: dict[str, Any] = {
    META_VERSION: VERSION,
    META_CLIENT_INFO: {"name": "mcp", "version": "0.1.0"},
    META_CAPABILITIES: {"elicitation": {"form": {}, "url": {}}},
}
ABSENT = object()

Headers = Sequence[tuple[bytes, bytes]]
Accepted = Call | PostedNotification | Rejection


def headers(
    method: str = "tools/list", name: str | None = None, **more: str | None
) -> list[tuple[bytes, bytes]]:
    """Return a request's header block; `mcp_method=None` leaves that line out, another value replaces it."""
    lines: dict[str, str | None] = {
        "Host": "127.0.0.1:3910",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        "mcp-name": name,
    }
    lines |= {key.replace("_", "-"): value for key, value in more.items()}
    return [(key.encode(), value.encode("latin-1")) for key, value in lines.items() if value is not None]


def body(
    method: object = "tools/list", params: object = None, *, meta: object = META, **envelope: object
) -> bytes:
    """Return a request's body; ABSENT leaves a member out."""
    if params is None:
        params = {}
    if isinstance(params, dict) and meta is not ABSENT:
        params = {**params, "_meta": meta}
    members = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params} | envelope
    return json.dumps({key: value for key, value in members.items() if value is not ABSENT}).encode()


def raw(text: str) -> bytes:
    """Return a tools/call whose text is written by hand; META stands for its `_meta`."""
    return text.replace("META", f'"_meta":{json.dumps(META)}').encode()


def call_text(arguments: str) -> bytes:
    """Return a tools/call of `n` with arguments written by hand."""
    params = f'{{"name":"n","arguments":{arguments},META}}'
    return raw(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}')


def refused(came: Accepted) -> tuple[int, int, bytes | None]:
    """Return status, code and id of a rejection."""
    assert isinstance(came, Rejection), came
    assert came.error is not None
    assert came.status == status_of(came.error.code)
    return came.status, came.error.code, came.id


def message(came: Accepted) -> str:
    """Return a rejection's words."""
    assert isinstance(came, Rejection), came
    assert came.error is not None
    return came.error.message


def accepted(came: Accepted) -> Call:
    assert isinstance(came, Call), came
    return came


# What is accepted

PARAMS: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "n"},
    "prompts/get": {"name": "n"},
    "resources/read": {"uri": "n"},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "n"},
        "argument": {"name": "a", "value": ""},
    },
    "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
    "tasks/get": {"taskId": "n"},
    "tasks/update": {"taskId": "n", "inputResponses": {}},
    "tasks/cancel": {"taskId": "n"},
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_table_is_accepted(method: str) -> None:
    """With the headers that mirror it and nothing more."""
    name = "n" if METHODS[method].named_by else None
    params = PARAMS.get(method, {})
    call = accepted(accept(headers(method, name), body(method, params)))
    assert (call.id, call.method, list(call.params)) == (b"1", method, list(params))
    assert call.meta.version == VERSION
    assert json.loads(bytes(call.meta.capabilities)) == META[META_CAPABILITIES]
    assert (call.meta.log_level, call.meta.progress_token, dict(call.meta.vendor)) == (None, None, {})
    assert dict(call.param_headers) == {}


def test_payloads_keep_every_byte() -> None:
    """Numbers, order, whitespace, escapes and duplicates inside arguments are kept (B39)."""
    arguments = (
        '{ "b":1.0, "a" : 18446744073709551616,"a":1e2,"é":"\\u00e9\\ud83d\\ude00" ,"n":null,"_Meta":1}'
    )
    call = accepted(accept(headers("tools/call", "n"), call_text(arguments)))
    assert bytes(call.params["arguments"]).decode() == arguments


@pytest.mark.parametrize(
    "id",
    [
        '"1"',
        "1",
        "0",
        "-1",
        "-0",
        '"a😀"',
        '"\\u0061"',
        '""',
        "9007199254740993",
        "1" + "0" * 100,
        "9" * 5000,
    ],
)
def test_an_id_is_echoed_as_it_was_written(id: str) -> None:
    """Strings and integers of any size, in an answer and in an error (E-03, E-04, B22)."""
    text = f'{{"jsonrpc":"2.0","id": {id} ,"method":"tools/list","params":{{META}}}}'
    assert accepted(accept(headers(), raw(text))).id == id.encode()
    assert refused(accept(headers(mcp_method=None), raw(text))) == (400, HEADER_MISMATCH, id.encode())


@pytest.mark.parametrize("id", ["null", "true", "1.0", "1e2", "1E2", "1.5", "{}", "[]", "[1]"])
def test_an_id_of_another_kind_is_refused(id: str) -> None:
    """E-03: neither null nor boolean nor fractional, and such an id is not echoed."""
    text = f'{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{{META}}}}'
    came = accept(headers(), raw(text))
    assert refused(came) == (400, INVALID_REQUEST, None)
    assert message(came) == "id is neither a string nor an integer"


def test_vendor_meta_passes_and_hop_meta_does_not() -> None:
    """Every member this hop does not own, null ones too; each hop writes its own (E-24, E-27)."""
    vendor = {"com.example/x": None, "traceparent": "00-a", "x": {"a": 1}}
    owned = dict.fromkeys(HOP_META) | META
    call = accepted(accept(headers(), body(meta=owned | vendor)))
    assert {key: json.loads(bytes(value)) for key, value in call.meta.vendor.items()} == vendor


@pytest.mark.parametrize(
    "name", ["Name", "NAME", "_Meta", "Arguments", "inputreſponses", "requeſtState", "toKen"]
)
def test_members_that_only_look_known_are_dropped(name: str) -> None:
    """A server that ignores case would act on them (K-02 kept to what is safe); unknown ones pass."""
    params = {"name": "n", name: "evil", "x-vendor": 1}
    call = accepted(accept(headers("tools/call", "n"), body("tools/call", params)))
    assert list(call.params) == (["name", name, "x-vendor"] if name == "toKen" else ["name", "x-vendor"])
    meta = META | {"PROGRESSTOKEN": 1, "io.modelcontextprotocol/LogLevel": "debug", "x": 1}
    call = accepted(accept(headers(), body(meta=meta)))
    assert list(call.meta.vendor) == ["x"]


def test_null_stands_for_an_absent_optional_member() -> None:
    """E-26: clientInfo, logLevel, progressToken and arguments."""
    meta = META | {META_CLIENT_INFO: None, META_LOG_LEVEL: None, "progressToken": None}
    params = {"name": "n", "arguments": None}
    call = accepted(accept(headers("tools/call", "n"), body("tools/call", params, meta=meta)))
    assert list(call.params) == ["name"]
    assert (call.meta.log_level, call.meta.progress_token) == (None, None)


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_log_levels_are_read(level: str) -> None:
    """S-25 lists eight."""
    assert accepted(accept(headers(), body(meta=META | {META_LOG_LEVEL: level}))).meta.log_level == level


@pytest.mark.parametrize("token", ["a", "", 0, -1, 2**70])
def test_a_progress_token_is_kept_raw(token: object) -> None:
    """It is only echoed (E-33)."""
    call = accepted(accept(headers(), body(meta=META | {"progressToken": token})))
    assert call.meta.progress_token is not None
    assert bytes(call.meta.progress_token) == json.dumps(token).encode()


def test_header_names_know_no_case_and_values_no_edge() -> None:
    """S-13, and method values do know case (E-32)."""
    lines = [
        (b"MCP-PROTOCOL-VERSION", b" 2026-07-28\t"),
        (b"mCp-MeThOd", b"tools/call "),
        (b"MCP-Name", b"\tn"),
        (b"MCP-PARAM-Region", b" eu "),
        (b"Mcp-Param-region", b"us"),
        (b"mcp-param-Path", b"=?base64?eA==?="),
        (b"Mcp-Session-Id", b"ignored"),
        (b"Last-Event-Id", b"ignored"),
    ]
    call = accepted(accept(lines, body("tools/call", {"name": "n"})))
    assert call.param_headers == {"region": ("eu", "us"), "path": ("=?base64?eA==?=",)}
    came = accept(headers("TOOLS/LIST"), body())
    assert refused(came) == (400, HEADER_MISMATCH, b"1")


@pytest.mark.parametrize("name", ["n", "Zürich ", "=?base64?eA==?=", "a😀", "", "=?BASE64?eA==?="])
def test_a_mirrored_name_is_decoded_before_it_is_compared(name: str) -> None:
    """S-12; the body's name is what counts."""
    line = modern.encode_value(name)
    call = accepted(accept(headers("tools/call", line), body("tools/call", {"name": name})))
    assert json.loads(bytes(call.params["name"])) == name
    uri = accept(headers("resources/read", line), body("resources/read", {"uri": name}))
    assert accepted(uri).method == "resources/read"


def test_names_need_no_header_where_none_is_defined() -> None:
    """An extra Mcp-Name is ignored."""
    assert accepted(accept(headers("tools/list", "whatever"), body()))


def test_a_notification_gets_no_more_than_a_nod() -> None:
    """E-07, S-20: no id, no header checks, and cancelled cancels nothing."""
    cancelled = body("notifications/cancelled", {"requestId": 1}, id=ABSENT)
    assert accept(headers(mcp_method=None), cancelled) == PostedNotification("notifications/cancelled")
    assert accept([], body("x", id=ABSENT, params=ABSENT)) == PostedNotification("x")
    assert accept([], body("x", id=ABSENT, params=None, meta=ABSENT)) == PostedNotification("x")
    assert accept([], b'{"jsonrpc":"2.0","method":"tools/call"}') == PostedNotification("tools/call")


@pytest.mark.parametrize("version", ["2027-01-01", "2025-11-25", "x"])
def test_a_notification_of_another_version_is_refused(version: str) -> None:
    """S-20: with what is supported, and without an id."""
    came = accept(headers(mcp_protocol_version=version), body("notifications/initialized", id=ABSENT))
    assert refused(came) == (400, UNSUPPORTED_PROTOCOL_VERSION, None)


def test_a_notifications_params_are_an_object() -> None:
    """By-position parameters do not exist here."""
    came = accept([], body("x", [1], id=ABSENT))
    assert refused(came) == (400, INVALID_PARAMS, None)


# What is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"{", "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"jsonrpc":"2.0"}x', "not JSON"),
        (b'{"a":01}', "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
        ('{"jsonrpc":"2.0"}'.encode("utf-16"), "not UTF-8"),
        (b"GET / HTTP/1.1", "not JSON"),
    ],
)
def test_a_body_that_is_no_json_is_a_parse_error(text: bytes, words: str) -> None:
    """-32700 and no id."""
    came = accept(headers(), text)
    assert refused(came) == (400, PARSE_ERROR, None)
    assert words in message(came)


@pytest.mark.parametrize(
    ("text", "id", "words"),
    [
        (b"[]", None, "batch"),
        (b' [{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, "batch"),
        (b"1", None, "not a JSON object"),
        (b"null", None, "not a JSON object"),
        (b'"x"', None, "not a JSON object"),
        (b"{}", None, "jsonrpc"),
        (b'{"id":1,"method":"tools/list"}', b"1", "jsonrpc"),
        (b'{"jsonrpc":2.0,"id":1,"method":"tools/list"}', b"1", "jsonrpc"),
        (b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', b"1", "jsonrpc"),
        (b'{"JSONRPC":"2.0","id":1,"method":"tools/list"}', b"1", "jsonrpc"),
        (b'{"jsonrpc":"2.0","id":1}', b"1", "method is missing"),
        (b'{"jsonrpc":"2.0","id":1,"Method":"tools/list"}', b"1", "method is missing"),
        (b'{"jsonrpc":"2.0"}', None, "method is missing"),
        (b'{"jsonrpc":"2.0","id":1,"method":1}', b"1", "method is not a string"),
        (b'{"jsonrpc":"2.0","id":1,"method":null}', b"1", "method is not a string"),
        (b'{"jsonrpc":"2.0","method":["x"]}', None, "method is not a string"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', b"1", "response"),
        (b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":""}}', b'"x"', "response"),
    ],
)
def test_a_body_that_is_no_message_is_an_invalid_request(text: bytes, id: bytes | None, words: str) -> None:
    """-32600, with the id wherever one can be read (E-06)."""
    came = accept(headers(), text)
    assert refused(came) == (400, INVALID_REQUEST, id)
    assert words in message(came)


@pytest.mark.parametrize(
    ("text", "id", "words"),
    [
        ('{"jsonrpc":"2.0","id":1,"id":1,"method":"tools/list"}', None, "The message names 'id' twice"),
        ('{"jsonrpc":"2.0","id":1,"\\u0069d":2,"method":"tools/list"}', None, "The message names 'id' twice"),
        (
            '{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}',
            b"1",
            "The message names 'method' twice",
        ),
        ('{"id":null,"x":1,"x":1}', None, "The message names 'x' twice"),
        ('{"id":1,"method":"a","method":"b","id":2}', None, "The message names 'id', 'method' twice"),
        (
            '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"n",META}}',
            b"1",
            "params names 'name' twice",
        ),
        (
            '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{META, META}}',
            b"1",
            "params names '_meta' twice",
        ),
        (
            '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"x":1, "x":1}}}',
            b"1",
            "params._meta names 'x' twice",
        ),
    ],
)
def test_a_member_named_twice_is_refused(text: str, id: bytes | None, words: str) -> None:
    """Two readers would read two requests; the id is echoed only if there is one."""
    came = accept(headers("tools/call", "n"), raw(text))
    assert refused(came) == (400, INVALID_REQUEST, id)
    assert message(came) == words


@pytest.mark.parametrize("depth", [100_000, 600, 201])
def test_nesting_beyond_the_limit_is_refused(depth: int) -> None:
    """Whether the decoder gave up or our own count did; the message and its params are two levels."""
    deep = "[" * (depth - 2) + "]" * (depth - 2)
    status, code, id = refused(accept(headers("tools/call", "n"), call_text(deep)))
    assert (status, code) == (400, INVALID_REQUEST)
    assert id == (None if depth == 100_000 else b"1")


def test_nesting_up_to_the_limit_passes() -> None:
    """The limit itself is allowed, and brackets in strings are no nesting."""
    inner = '{"a":' * 198 + f'"{"[" * 999}"' + "}" * 198
    text = call_text(inner)
    assert accepted(accept(headers("tools/call", "n"), text))
    assert refused(accept(headers("tools/call", "n"), text, depth=199))[1] == INVALID_REQUEST


def test_a_limit_beyond_the_decoders_is_the_decoders() -> None:
    """Whoever allows 10,000 levels still gets an answer, not an exception."""
    for depth in range(900, 1010, 5):
        deep = "[" * depth + "]" * depth
        text = f'{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"x":{deep},META}}}}'
        came = accept(headers(), raw(text), depth=10_000)
        assert isinstance(came, Call) or refused(came)[1] == INVALID_REQUEST


@pytest.mark.parametrize("text", ["A" * 15_000_000, "é😀" * 2_500_000], ids=["ascii", "not ascii"])
def test_an_argument_of_15_mb_passes(text: str) -> None:
    """B25, whatever its characters."""
    call = accepted(accept(headers("tools/call", "n"), call_text(f'{{"a":"{text}"}}')))
    assert len(call.params["arguments"]) == len(text.encode()) + len('{"a":""}')


def test_a_lone_surrogate_does_not_cost_the_call() -> None:
    """JavaScript clients cut strings inside an emoji; the half becomes U+FFFD, as in its own UTF-8."""
    call = accepted(accept(headers("tools/call", "n"), call_text('{"a":"\\ud83d"}')))
    assert bytes(call.params["arguments"]) == '{"a":"�"}'.encode()
    twice = accept(headers(), rb'{"id":7,"method":"\ud83d","method":"b"}')
    assert refused(twice) == (400, INVALID_REQUEST, b"7")


@pytest.mark.parametrize("more", ["", ',"method":"b"', ',"x":"\ufffd"'])
def test_an_id_that_cannot_go_back_as_it_came_is_refused(more: str) -> None:
    """An answer to another id is an answer to nobody (E-04)."""
    for half in (r"\ud83d", r"a\uDC00", r"\\\ud83d"):
        text = f'{{"jsonrpc":"2.0","id":"{half}","method":"tools/list","params":{{META}}{more}}}'
        assert refused(accept(headers(), raw(text))) == (400, INVALID_REQUEST, None)
    whole = '{"jsonrpc":"2.0","id":"\ufffd","method":"tools/list","params":{"x":"\\ud83d",META}}'
    assert accepted(accept(headers(), raw(whole))).id == '"\ufffd"'.encode()


def test_a_progress_token_that_cannot_go_back_as_it_came_is_refused() -> None:
    """Progress under another token is progress of nothing the client knows (E-33)."""
    text = call_text("{}").replace(b'"_meta":{', b'"_meta":{"progressToken":"\\ud83d",', 1)
    assert b"ud83d" in text
    assert refused(accept(headers("tools/call", "n"), text))[:2] == (400, INVALID_PARAMS)
    fine = text.replace(b"\\ud83d", b"t").replace(b'"arguments":{}', b'"arguments":{"a":"\\ud83d"}')
    token = accepted(accept(headers("tools/call", "n"), fine)).meta.progress_token
    assert bytes(token or b"") == b'"t"'


# The era of a request, and its version


@pytest.mark.parametrize(
    ("meta", "missing"),
    [
        (ABSENT, [META_VERSION, META_CAPABILITIES]),
        (None, [META_VERSION, META_CAPABILITIES]),
        ({}, [META_VERSION, META_CAPABILITIES]),
        ({META_VERSION: VERSION}, [META_CAPABILITIES]),
        ({META_CAPABILITIES: {}}, [META_VERSION]),
    ],
)
@pytest.mark.parametrize("version", [VERSION, None])
def test_missing_meta_is_invalid_params(meta: object, missing: list[str], version: str | None) -> None:
    """Judged before the headers (S-07), and named; without any header it is a legacy request to us."""
    came = accept(headers("other", mcp_protocol_version=version), body(meta=meta))
    assert refused(came) == (400, INVALID_PARAMS, b"1")
    assert message(came) == f"params._meta lacks {' and '.join(map(repr, missing))}"


@pytest.mark.parametrize("params", [[], [1], "x", 1, True])
def test_params_are_an_object(params: object) -> None:
    """Anything else cannot hold `_meta`."""
    came = accept(headers(), body(params=params))
    assert refused(came) == (400, INVALID_PARAMS, b"1")
    assert message(came) == "params is not an object"
    assert refused(accept(headers(), body(params=ABSENT)))[1] == INVALID_PARAMS


@pytest.mark.parametrize(
    ("member", "value"),
    [
        (META_VERSION, 1),
        (META_VERSION, None),
        (META_CAPABILITIES, []),
        (META_CAPABILITIES, None),
        (META_CAPABILITIES, "x"),
        (META_CLIENT_INFO, "x"),
        (META_CLIENT_INFO, [1]),
        (META_LOG_LEVEL, "verbose"),
        (META_LOG_LEVEL, "DEBUG"),
        (META_LOG_LEVEL, 1),
        ("progressToken", 1.5),
        ("progressToken", True),
        ("progressToken", {}),
    ],
)
def test_meta_of_a_wrong_type_is_invalid_params(member: str, value: object) -> None:
    """E-20, S-25, E-33; the message names the member."""
    came = accept(headers(), body(meta=META | {member: value}))
    assert refused(came) == (400, INVALID_PARAMS, b"1")
    assert member in message(came)


@pytest.mark.parametrize("meta", [[], "x", 1])
def test_meta_is_an_object(meta: object) -> None:
    """And says so by its name."""
    came = accept(headers(), body(meta=meta))
    assert refused(came) == (400, INVALID_PARAMS, b"1")
    assert message(came) == "params._meta is not an object"


def unsupported(came: Accepted) -> dict[str, Any]:
    """Return the data of a refused version."""
    assert refused(came) == (400, UNSUPPORTED_PROTOCOL_VERSION, b"1")
    assert VERSION in message(came)
    assert isinstance(came, Rejection)
    assert came.error is not None
    assert came.error.data is not None
    data: dict[str, Any] = json.loads(bytes(came.error.data))
    return data


@pytest.mark.parametrize(
    ("version", "meta"),
    [
        *[(version, meta) for version in ("v999.0.0", "2027-01-01", "") for meta in ("same", ABSENT, {})],
        ("2025-11-25", "same"),
    ],
)
def test_an_unsupported_version_is_told_what_is_supported(version: str, meta: object) -> None:
    """In header and envelope (S-09), or in the header alone (S-08)."""
    stated = META | {META_VERSION: version} if meta == "same" else meta
    came = accept(headers(mcp_protocol_version=version), body(meta=stated))
    supported = [VERSION] if version in LEGACY_VERSIONS else list(SERVED_VERSIONS)
    assert unsupported(came) == {"supported": supported, "requested": version}


def test_a_version_that_contradicts_itself_is_a_header_mismatch() -> None:
    """Agreement comes before support (S-07)."""
    for stated in ("2025-11-25", "v999.0.0", None):
        came = accept(headers(mcp_protocol_version=stated), body())
        assert refused(came) == (400, HEADER_MISMATCH, b"1")
        assert "MCP-Protocol-Version" in message(came)
    came = accept(headers(), body(meta=META | {META_VERSION: "v999.0.0"}))
    assert refused(came) == (400, HEADER_MISMATCH, b"1")


HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


@pytest.mark.parametrize(
    ("method", "stated", "meta", "era"),
    [
        ("tools/list", VERSION, ABSENT, "modern"),  # the header alone says so (1)
        ("initialize", VERSION, ABSENT, "modern"),
        ("tools/list", "v999.0.0", ABSENT, "modern"),
        ("tools/list", None, META, "modern"),  # the envelope (2)
        ("initialize", None, META, "modern"),  # A-33
        ("initialize", "2025-11-25", META, "modern"),
        ("tools/list", "2025-11-25", {META_VERSION: "2025-11-25"}, "modern"),  # S-09
        ("server/discover", None, ABSENT, "modern"),  # the method (3)
        ("server/discover", "2025-06-18", ABSENT, "modern"),
        ("initialize", None, ABSENT, "legacy"),  # the handshake (4)
        ("initialize", "2025-11-25", ABSENT, "legacy"),
        ("initialize", "2024-11-05", ABSENT, "legacy"),
        ("tools/list", None, ABSENT, "legacy"),  # everything else (5)
        ("tools/list", "2025-03-26", ABSENT, "legacy"),
        ("tools/list", None, {"progressToken": 1}, "legacy"),
        ("ping", None, None, "legacy"),
        ("notifications/initialized", None, ABSENT, "legacy"),
    ],
)
def test_the_era_of_a_message_is_told_by_the_first_sign(
    method: str, stated: str | None, meta: Any, era: str
) -> None:
    """S-02, in its order."""
    posted = body(method, HANDSHAKE, meta=meta)
    assert era_of(read_head(headers(mcp_protocol_version=stated, mcp_method=None)), posted) == era


@pytest.mark.parametrize(
    ("text", "in_session", "era"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', False, "legacy"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', True, "legacy"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', False, "modern"),
        (b'{"method":"tools/call","params":{"name":"\\ud83d"}}', False, "legacy"),
        (b'{"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":1,"x":"\\ud83d"}}}', True, "modern"),
        (b"nonsense", True, "legacy"),
        (b"nonsense", False, "modern"),
        (b'{"params":{"_meta":{"\xff":1}}}', False, "modern"),  # unreadable further inside alone
        (b'{"params":{"\xff":{}}}', True, "legacy"),
    ],
)
def test_the_era_of_what_is_no_request(text: bytes, in_session: bool, era: str) -> None:
    """Responses exist in the legacy era alone, and what cannot be read belongs to its session."""
    lines = headers(mcp_protocol_version=None, mcp_method=None)
    lines += [(b"Mcp-Session-Id", b"s")] if in_session else []
    assert era_of(read_head(lines), text) == era


@pytest.mark.parametrize("method", ["tools/list", "ping", "server/discover", "notifications/initialized"])
def test_a_request_without_any_sign_of_an_era_lacks_its_meta(method: str) -> None:
    """What a legacy client sends behind its handshake, and a discover without envelope (S-02 (3))."""
    came = accept([], body(method, meta=ABSENT))
    assert refused(came) == (400, INVALID_PARAMS, b"1")


@pytest.mark.parametrize("method", [*sorted(LEGACY_METHODS), "unknown/method", "tasks/new", "", "Tools/List"])
def test_a_method_that_is_not_served_is_not_found(method: str) -> None:
    """404, S-03; and initialize learns which versions there are (A-33)."""
    came = accept(headers(method), body(method))
    assert refused(came) == (404, METHOD_NOT_FOUND, b"1")
    assert (VERSION in message(came)) is (method == "initialize")


@pytest.mark.parametrize(
    ("line", "params", "mirrored"),
    [
        (None, {"name": "a"}, None),
        ("a", {"name": "a"}, "a"),
        ("=?base64?w6Q=?=", {"uri": "\u00e4"}, "\u00e4"),
        ("=?base64?w6Q?=", {}, None),
        ("other", {"name": "a"}, "other"),
    ],
)
def test_a_method_that_somebody_else_serves_passes(line: str | None, params: Any, mirrored: Any) -> None:
    """K-08: version and Mcp-Method are judged as ever; what Mcp-Name mirrors, is not known here."""
    given = {**params, "cursor": None, "Name": 1, "_META": {"x": 1}}
    call = accepted(accept(headers("x/y", line), body("x/y", given), passes="x/y".__eq__))
    assert (call.method, call.name_header) == ("x/y", mirrored)
    assert list(call.params) == [*params, "cursor", "Name"]
    came = accept(headers("x/z", line), body("x/y", given), passes="x/y".__eq__)
    assert refused(came) == (400, HEADER_MISMATCH, b"1")
    assert refused(accept(headers("x/z"), body("x/z"), passes="x/y".__eq__))[1] == METHOD_NOT_FOUND


# Headers against the body


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_the_header_of_a_task_may_be_missing_but_never_differ(method: str) -> None:
    """T-05, A-10: unless the operator wants it there."""
    params = PARAMS[method]
    assert accepted(accept(headers(method), body(method, params)))
    assert refused(accept(headers(method, "other"), body(method, params)))[1] == HEADER_MISMATCH
    strictly = accept(headers(method), body(method, params), strict_tasks=True)
    assert refused(strictly) == (400, HEADER_MISMATCH, b"1")
    assert accepted(accept(headers(method, "n"), body(method, params), strict_tasks=True))
    assert refused(accept(headers(method), body(method)))[1] == INVALID_PARAMS


@pytest.mark.parametrize("line", ["mcp-protocol-version", "mcp-method", "mcp-name"])
@pytest.mark.parametrize("second", ["same", "other"])
def test_a_routing_header_that_is_there_twice_is_refused(line: str, second: str) -> None:
    """First-copy and last-copy readers would disagree (A-22); judged before `_meta` is."""
    lines = headers("tools/call", "n")
    value = dict(lines)[line.encode()] if second == "same" else b"other"
    for meta in (META, ABSENT):
        came = accept([*lines, (line.title().encode(), value)], body("tools/call", {"name": "n"}, meta=meta))
        assert refused(came) == (400, HEADER_MISMATCH, b"1")
        assert "more than one" in message(came)
        assert line in message(came).lower()


@pytest.mark.parametrize("line", ["mcp-protocol-version", "mcp-method", "mcp-name"])
@pytest.mark.parametrize("value", ["other", None, "caf\xe9", "a\x00b", ""])
def test_a_header_that_differs_is_a_header_mismatch(line: str, value: str | None) -> None:
    """S-11, S-13: missing, unequal or malformed; the message names the header."""
    came = accept(
        headers("tools/call", "n", **{line.replace("-", "_"): value}), body("tools/call", {"name": "n"})
    )
    assert refused(came) == (400, HEADER_MISMATCH, b"1")
    assert line in message(came).lower()


@pytest.mark.parametrize("name", ["=?base64?eA?=", "=?base64?e$==?=", "=?base64?eB==?=", "=?base64?/w==?="])
def test_a_malformed_name_header_is_a_header_mismatch(name: str) -> None:
    """S-12."""
    came = accept(headers("tools/call", name), body("tools/call", {"name": "x"}))
    assert refused(came) == (400, HEADER_MISMATCH, b"1")
    assert message(came).startswith("The Mcp-Name header is not ")


@pytest.mark.parametrize("params", [{}, {"name": None}, {"name": 1}, {"Name": "n"}])
@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_a_name_is_required(method: str, params: dict[str, Any]) -> None:
    """Without one there is nothing to compare the header with, and nothing to route by."""
    came = accept(headers(method, "n"), body(method, params))
    assert refused(came) == (400, INVALID_PARAMS, b"1")
    assert message(came).startswith("params.name ")


def test_a_uri_is_required() -> None:
    """As a name is."""
    came = accept(headers("resources/read", "n"), body("resources/read"))
    assert refused(came) == (400, INVALID_PARAMS, b"1")
    assert message(came) == "params.uri is missing"


@pytest.mark.parametrize("arguments", [[], [{}], "x", 1, False])
@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_arguments_are_an_object(method: str, arguments: object) -> None:
    """S-06 step 15."""
    came = accept(headers(method, "n"), body(method, {"name": "n", "arguments": arguments}))
    assert refused(came) == (400, INVALID_PARAMS, b"1")
    assert message(came) == "params.arguments is not an object"


LADDER: tuple[tuple[int, dict[str, Any], dict[str, Any]], ...] = (
    (PARSE_ERROR, {}, {"text": b"{"}),
    (INVALID_REQUEST, {}, {"method": 1}),
    (HEADER_MISMATCH, {"twice": True}, {}),
    (INVALID_PARAMS, {}, {"meta": {META_VERSION: "v999"}}),
    (HEADER_MISMATCH, {"mcp_method": "other"}, {}),
    (
        UNSUPPORTED_PROTOCOL_VERSION,
        {"mcp_protocol_version": "v999"},
        {"meta": META | {META_VERSION: "v999", META_LOG_LEVEL: "x"}},
    ),
    (INVALID_PARAMS, {}, {"meta": META | {META_LOG_LEVEL: "x"}}),
    (METHOD_NOT_FOUND, {}, {}),
)


@pytest.mark.parametrize("first", range(len(LADDER)))
def test_the_first_failing_check_answers(first: int) -> None:
    """A request with every later fault as well gets the answer to the first (S-06)."""
    lines: dict[str, Any] = {}
    members: dict[str, Any] = {}
    for _, worse_lines, worse_members in reversed(LADDER[first:]):
        lines |= worse_lines
        members |= worse_members
    text = members.pop("text", None) or body(**{"method": "no/such", **members})
    twice = [(b"mcp-method", b"x")] if lines.pop("twice", False) else []
    stated = {"mcp_protocol_version": members.get("meta", META)[META_VERSION]} | lines
    came = accept([*headers("no/such", **stated), *twice], text)
    assert refused(came)[1] == LADDER[first][0]


# What must hold whatever comes

HEADER_LINES = st.tuples(
    st.sampled_from([b"mcp-method", b"Mcp-Name", b"MCP-Protocol-Version", b"mcp-param-a", b"Mcp-", b"x"])
    | st.binary(),
    st.sampled_from([b"tools/call", b"n", VERSION.encode(), b"2025-11-25", b"=?base64?eA?="]) | st.binary(),
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just("n"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def check_total(came: Accepted) -> None:
    match came:
        case Call() | PostedNotification():
            return
        case Rejection(status, error, id, _):
            assert status in (400, 404)
            assert error is not None
            assert error.message
            assert json.loads(error_message(id, error))
        case _:
            raise AssertionError(came)


@given(st.lists(HEADER_LINES, max_size=5), st.binary())
def test_any_bytes_are_accepted_or_refused(lines: Headers, text: bytes) -> None:
    """Never an exception, whatever is posted."""
    check_total(accept(lines, text))
    accept_headers(lines)


@given(
    st.lists(HEADER_LINES, max_size=5),
    st.fixed_dictionaries(
        {},
        optional={
            "jsonrpc": st.just("2.0") | ODD,
            "id": st.just(1) | ODD,
            "method": st.sampled_from([*METHODS, *sorted(LEGACY_METHODS), "x"]) | ODD,
            "params": ODD
            | st.fixed_dictionaries(
                {},
                optional={
                    "_meta": st.fixed_dictionaries({}, optional={key: ODD for key in HOP_META})
                    | st.just(META)
                    | ODD,
                    "name": ODD,
                    "uri": ODD,
                    "arguments": ODD,
                    "Name": ODD,
                },
            ),
        },
    ),
)
def test_any_message_is_accepted_or_refused(lines: Headers, message: dict[str, Any]) -> None:
    """Nearly right requests do not raise either, with or without headers that fit."""
    text = json.dumps(message).encode()
    check_total(accept(lines, text))
    method = message.get("method")
    if isinstance(method, str):
        sent = method.encode(errors="replace").decode("latin-1")  # as bytes on the wire that are no Latin-1
        check_total(accept(headers(sent, "n"), text))


@given(st.data())
def test_a_damaged_request_is_accepted_or_refused(data: st.DataObject) -> None:
    """Any byte changed, left out or doubled."""
    text = body("tools/call", {"name": "n", "arguments": {"a": "é😀"}})
    at = data.draw(st.integers(0, len(text) - 1))
    middle = data.draw(st.sampled_from([b"", text[at : at + 1] * 2, b'"', b"\\", b"\xff", b"\0", b"{"]))
    check_total(accept(headers("tools/call", "n"), text[:at] + middle + text[at + 1 :]))


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (headers("x" * 9999), body("x" * 9999)),
        (headers(mcp_protocol_version="x" * 9999), body(meta=META | {META_VERSION: "x" * 9999})),
        (headers(mcp_protocol_version="x" * 9999), body(meta=ABSENT)),
        (headers(), body("initialize", {"protocolVersion": "x" * 9999}, meta=ABSENT)),
        (headers("tools/call", "x" * 9999), body("tools/call", {"name": "n"})),
        (headers(), body(meta=META | {META_LOG_LEVEL: "x" * 9999})),
        (headers(), b'{"id":1,"' + b"x" * 9999 + b'":1,"' + b"x" * 9999 + b'":1}'),
    ],
)
def test_an_error_does_not_repeat_what_it_refuses(lines: Headers, text: bytes) -> None:
    """A client's text may be a secret, and is never worth sending back at length."""
    came = accept(lines, text)
    assert isinstance(came, Rejection)
    assert came.error is not None
    assert len(error_message(came.id, came.error)) < 400


# Media types


@pytest.mark.parametrize(
    "line",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", " application/json ;x=y"],
)
def test_json_is_json_whatever_its_case_and_parameters(line: str) -> None:
    """B26."""
    assert accept_headers(headers(content_type=line)) is None


@pytest.mark.parametrize(
    "line", [None, "", "text/plain", "application/json-rpc", "application/jsonx", "json", "x" * 9999, "\xff"]
)
def test_another_content_type_is_415(line: str | None) -> None:
    """Plain HTTP, for there is no request yet to answer."""
    came = accept_headers(headers(content_type=line))
    assert came is not None
    assert (came.status, came.error, came.id) == (415, None, None)
    assert came.headers == {"Accept-Post": "application/json"}


def test_two_content_types_are_415() -> None:
    """One of them would be wrong."""
    came = accept_headers([*headers(), (b"Content-Type", b"application/json")])
    assert came is not None
    assert came.status == 415


@pytest.mark.parametrize(
    "line",
    [
        None,
        "",
        "application/json, text/event-stream",
        "text/event-stream,application/json",
        "Application/JSON;q=0.9 , TEXT/event-stream; q=0.001",
        "*/*",
        "*/*;q=0.1",
        "application/*, text/*",
        "application/json, */*",
        "text/html;q=0, */*",
        "application/json, text/event-stream, text/*;q=0",
        f"application/json, text/event-stream, {'x' * 500}/y",
    ],
)
def test_an_accept_that_admits_both_kinds_of_answer_is_fine(line: str | None) -> None:
    """S-15: wildcards count, absent counts as anything."""
    assert accept_headers(headers(accept=line)) is None


def test_accept_may_come_in_two_lines() -> None:
    """They are one list."""
    assert accept_headers([*headers(accept="application/json"), (b"ACCEPT", b"text/event-stream")]) is None


@pytest.mark.parametrize(
    "line",
    [
        "application/json",
        "text/event-stream",
        "text/html",
        "application/*",
        "application/json, text/event-stream;q=0",
        "application/json;q=0.000, text/event-stream",
        "*/*, text/event-stream; Q=0",
        "*/*;q=0",
        "text/*, application/*;q=0.0",
        "application/jsonx, text/event-stream",
    ],
)
def test_an_accept_that_excludes_one_kind_is_406(line: str) -> None:
    """The closest range decides."""
    came = accept_headers(headers(accept=line))
    assert came is not None
    assert (came.status, came.error) == (406, None)


@pytest.mark.parametrize(
    ("code", "status"),
    [(-32700, 400), (-32601, 404), (-32602, 400), (-32021, 400), (-32603, 200), (7, 200), (-32002, 200)],
)
def test_a_code_has_one_status(code: int, status: int) -> None:
    """The table of chapter 1; a 5xx would cost JavaScript clients the code."""
    assert status_of(code) == status


# What is remembered


@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
def test_what_was_accepted_once_is_checked_again(method: str) -> None:
    """The same `_meta`, and for lists the same params, with whatever else differs in turn (S-11)."""
    named = {"name": "n"} if method == "tools/call" else {}
    lines = headers(method, name=named.get("name"))
    for _ in range(2):
        for id in (1, "a"):
            assert accepted(accept(lines, body(method, named, id=id))).id == json.dumps(id).encode()
        other = headers("prompts/list", name=named.get("name"))
        assert refused(accept(other, body(method, named)))[1] == HEADER_MISMATCH
        newer = headers(method, name=named.get("name"), mcp_protocol_version="2026-01-01")
        assert refused(accept(newer, body(method, named)))[1] == HEADER_MISMATCH
        twice = [*lines, (b"Mcp-Method", method.encode())]
        assert refused(accept(twice, body(method, named)))[1] == HEADER_MISMATCH
        strange = {**META, META_VERSION: "2026-01-01"}
        assert refused(accept(newer, body(method, named, meta=strange)))[1] == UNSUPPORTED_PROTOCOL_VERSION
        assert refused(accept(lines, body(method, named, jsonrpc="1.0")))[1] == INVALID_REQUEST


def test_a_progress_token_is_each_requests_own() -> None:
    """And so is whatever else a caller says in `_meta`."""
    for token in (1, 2):
        call = accepted(accept(headers(), body(meta={**META, "progressToken": token, "v": token})))
        assert call.meta.progress_token is not None
        assert bytes(call.meta.progress_token) == bytes(call.meta.vendor["v"]) == b"%d" % token


def test_neither_credentials_nor_arguments_stay_behind() -> None:
    """Lines that differ in a credential only are one to the memory, and mirrored arguments are not kept."""
    first = read_head([*headers(), (b"Authorization", b"Bearer a")])
    assert read_head([*headers(), (b"Authorization", b"Bearer b"), (b"X-Request-Id", b"7")]) is first
    mirrored_line = [*headers(), (b"Mcp-Param-Region", b"eu")]
    assert read_head(mirrored_line) is not read_head(mirrored_line)
