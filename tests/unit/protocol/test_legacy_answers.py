"""What an older client gets of a modern answer, row by row of the table of revisions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.call import META_SERVER_INFO, META_SUBSCRIPTION_ID, Notice
from gateway.protocol.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LEGACY_RESOURCE_NOT_FOUND,
    LEGACY_URL_ELICITATION_REQUIRED,
    MISSING_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
    McpError,
)
from gateway.protocol.legacy_answers import error_of, notice_of, result_of, told, written
from gateway.protocol.legacy_client import DIALECTS
from gateway.protocol.methods import METHODS
from tests.support.wire import check_message, check_result

VERSIONS = list(DIALECTS)
MODERN = {
    "resultType": "complete",
    "ttlMs": 60_000,
    "cacheScope": "public",
    "_meta": {META_SERVER_INFO: {"name": "g", "version": "1"}},
}


def converted(method: str, result: dict[str, Any], version: str) -> dict[str, Any]:
    """Return what becomes of a result, judged by the official types."""
    text = result_of(method, json.dumps({**MODERN, **result}).encode(), DIALECTS[version])
    return check_result(method, text, version)


def tool(**members: Any) -> dict[str, Any]:
    return {"name": "t", "inputSchema": {"type": "object"}, **members}


# What all of them lose


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tools/list", {"tools": [tool()]}),
        ("prompts/list", {"prompts": [{"name": "p"}]}),
        ("resources/list", {"resources": [{"name": "r", "uri": "u:r"}]}),
        ("resources/templates/list", {"resourceTemplates": [{"name": "r", "uriTemplate": "u:{r}"}]}),
        ("resources/read", {"contents": [{"uri": "u:r", "text": "x"}]}),
        ("prompts/get", {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}),
        ("tools/call", {"content": [{"type": "text", "text": "x"}], "isError": True}),
        ("completion/complete", {"completion": {"values": ["a"], "total": 1, "hasMore": False}}),
    ],
)
def test_nothing_modern_is_left(method: str, result: dict[str, Any], version: str) -> None:
    """X-11, X-12, X-13; all else stays, isError among it (X-03)."""
    assert converted(method, result, version) == result


def test_the_methods_above_are_all_there_are() -> None:
    kinds = {row.kind for row in METHODS.values()}
    assert kinds == {"discover", "list", "named", "read", "complete", "listen", "task"}


def test_what_others_say_in_meta_stays() -> None:
    meta = {**MODERN["_meta"], "com.example/a": 1.0, META_SUBSCRIPTION_ID: 1}
    text = json.dumps({**MODERN, "_meta": meta, "content": []}).encode()
    assert result_of("tools/call", text, DIALECTS["2025-06-18"]) == (
        b'{"_meta":{"com.example/a":1.0},"content":[]}'
    )


def test_payloads_stay_the_bytes_they_were() -> None:
    """Numbers, whitespace, escapes and order: only members are taken out."""
    block = b'{ "type":"text" , "text":"\\u00e9", "n":1.0, "big":18446744073709551616}'
    text = b'{"resultType":"complete","content":[%b],"structuredContent":{"a" : 1e2},"x": [1.0 ]}' % block
    assert result_of("tools/call", text, DIALECTS["2025-11-25"]) == (
        b'{"content":[%b],"structuredContent":{"a" : 1e2},"x":[1.0 ]}' % block
    )
    untouched = b'{ "content" : [%b] }' % block
    assert result_of("tools/call", untouched, DIALECTS["2025-03-26"]) == untouched


# Structured content


@pytest.mark.parametrize(
    ("structured", "versions"),
    [
        ({"a": 1}, {"2025-11-25", "2025-06-18"}),
        ([1], set()),
        ("text", set()),
        (None, set()),
        (7, set()),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_structured_content_is_an_object_or_text(structured: Any, versions: set[str], version: str) -> None:
    """X-01: where there is no content besides, it is said in words."""
    result = converted("tools/call", {"content": [], "structuredContent": structured}, version)
    if version in versions:
        assert result == {"content": [], "structuredContent": structured}
        return
    (block,) = result["content"]
    assert block["type"] == "text"
    assert json.loads(block["text"]) == structured
    assert "structuredContent" not in result
    said = [{"type": "text", "text": "said"}]
    assert converted("tools/call", {"content": said, "structuredContent": structured}, version) == {
        "content": said
    }


@pytest.mark.parametrize(
    ("schema", "versions"),
    [
        ({"type": "object", "properties": {}}, {"2025-11-25", "2025-06-18"}),
        ({"type": "array"}, set()),
        ({"oneOf": [{"type": "object"}]}, set()),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_an_output_schema_describes_an_object(schema: Any, versions: set[str], version: str) -> None:
    (listed,) = converted("tools/list", {"tools": [tool(outputSchema=schema)]}, version)["tools"]
    assert listed == (tool(outputSchema=schema) if version in versions else tool())


# Content

LINK = {"type": "resource_link", "uri": "u:r", "name": "r", "description": "what it is", "title": "R"}


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ("2025-11-25", {**LINK, "icons": [{"src": "https://x/i"}], "_meta": {"a": 1}}),
        ("2025-06-18", {**LINK, "_meta": {"a": 1}}),
        ("2025-03-26", {"type": "text", "text": "R: u:r\nwhat it is"}),
    ],
)
def test_a_link_becomes_text_for_who_knows_none(version: str, kept: dict[str, Any]) -> None:
    link = {**LINK, "icons": [{"src": "https://x/i"}], "_meta": {"a": 1}}
    assert converted("tools/call", {"content": [link]}, version)["content"] == [kept]
    message = {"role": "user", "content": link}
    assert converted("prompts/get", {"messages": [message]}, version)["messages"] == [
        {"role": "user", "content": kept}
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_block_of_an_unknown_kind_becomes_text(version: str) -> None:
    """Peers refuse a union's member that they do not know."""
    block = {"type": "hologram", "data": [1.0], "annotations": {"priority": 1.0}}
    (said,) = converted("tools/call", {"content": [block]}, version)["content"]
    assert (said["type"], json.loads(said["text"])) == ("text", block)
    assert said["annotations"] == {"priority": 1.0}


@pytest.mark.parametrize("version", VERSIONS)
def test_sound_pictures_and_embedded_resources_pass(version: str) -> None:
    content = [
        {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
        {"type": "image", "data": "AA==", "mimeType": "image/png", "annotations": {"audience": ["user"]}},
        {"type": "resource", "resource": {"uri": "u:r", "blob": "AA=="}},
    ]
    assert converted("tools/call", {"content": content}, version)["content"] == content


# What came with later revisions

ICONS = [{"src": "https://x/i"}]


@pytest.mark.parametrize(
    ("method", "member", "item"),
    [
        ("tools/list", "tools", tool()),
        ("prompts/list", "prompts", {"name": "p"}),
        ("resources/list", "resources", {"name": "r", "uri": "u:r"}),
        ("resources/templates/list", "resourceTemplates", {"name": "r", "uriTemplate": "u:{r}"}),
    ],
)
@pytest.mark.parametrize(
    ("version", "known"),
    [("2025-11-25", {"title", "_meta", "icons"}), ("2025-06-18", {"title", "_meta"}), ("2025-03-26", set())],
)
def test_titles_meta_and_icons_of_items(
    method: str, member: str, item: dict[str, Any], version: str, known: set[str]
) -> None:
    additions = {"title": "T", "_meta": {"a": 1}, "icons": ICONS}
    result = converted(method, {member: [{**item, **additions}]}, version)
    assert result == {member: [{**item, **{key: additions[key] for key in sorted(known)}}]}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_oldest_knows_no_meta_inside_of_contents(version: str) -> None:
    known = version != "2025-03-26"
    contents = {"uri": "u:r", "text": "x"}
    meta = {"_meta": {"a": 1}} if known else {}
    read = converted("resources/read", {"contents": [{**contents, "_meta": {"a": 1}}]}, version)
    assert read == {"contents": [contents | meta]}
    block = {"type": "resource", "resource": {**contents, "_meta": {"a": 1}}, "_meta": {"a": 1}}
    called = converted("tools/call", {"content": [block]}, version)
    assert called == {"content": [{"type": "resource", "resource": contents | meta} | meta]}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_arguments_of_prompts_have_titles_since_the_second(version: str) -> None:
    prompt = {"name": "p", "arguments": [{"name": "a", "title": "A", "required": True}]}
    (listed,) = converted("prompts/list", {"prompts": [prompt]}, version)["prompts"]
    assert ("title" in listed["arguments"][0]) is (version != "2025-03-26")


@pytest.mark.parametrize("version", VERSIONS)
def test_tasks_are_not_offered(version: str) -> None:
    """T-18: a tool that may be called either way is called the plain one; one that needs a task is hidden."""
    tools = [
        tool(execution={"taskSupport": "optional"}),
        tool(execution={"taskSupport": "required"}),
        tool(annotations={"title": "kept", "readOnlyHint": True}),
    ]
    assert converted("tools/list", {"tools": tools}, version)["tools"] == [
        tool(),
        tool(annotations={"title": "kept", "readOnlyHint": True}),
    ]


# Errors


def error(code: int, data: Any = None) -> McpError:
    return McpError(code, "said", None if data is None else json.dumps(data).encode())


@pytest.mark.parametrize(
    ("came", "method", "version", "code"),
    [
        (error(INVALID_PARAMS, {"uri": "u:r"}), "resources/read", "2025-11-25", LEGACY_RESOURCE_NOT_FOUND),
        (error(INVALID_PARAMS, {"uri": "u:r"}), "resources/read", "2025-03-26", LEGACY_RESOURCE_NOT_FOUND),
        (error(INVALID_PARAMS, {"uri": "u:r"}), "tools/call", "2025-11-25", INVALID_PARAMS),
        (error(INVALID_PARAMS), "resources/read", "2025-11-25", INVALID_PARAMS),
        (error(INVALID_PARAMS, {"uri": 1}), "resources/read", "2025-11-25", INVALID_PARAMS),
        (error(LEGACY_URL_ELICITATION_REQUIRED), "tools/call", "2025-11-25", LEGACY_URL_ELICITATION_REQUIRED),
        (error(LEGACY_URL_ELICITATION_REQUIRED), "tools/call", "2025-06-18", INTERNAL_ERROR),
        (error(LEGACY_URL_ELICITATION_REQUIRED), "tools/call", "2025-03-26", INTERNAL_ERROR),
        (error(MISSING_CLIENT_CAPABILITY), "tools/call", "2025-11-25", INTERNAL_ERROR),
        (error(HEADER_MISMATCH), "tools/call", "2025-11-25", INTERNAL_ERROR),
        (error(UNSUPPORTED_PROTOCOL_VERSION), "tools/call", "2025-11-25", INTERNAL_ERROR),
        (error(-1, [1]), "tools/call", "2025-11-25", -1),
    ],
)
def test_an_error_has_the_code_of_the_clients_revision(
    came: McpError, method: str, version: str, code: int
) -> None:
    told = error_of(came, method, DIALECTS[version])
    assert told.code == code
    if code != INTERNAL_ERROR:
        assert (told.message, told.data) == (came.message, came.data)


def test_a_missing_capability_is_named() -> None:
    """A-50: older revisions have no code for it."""
    came = error(
        MISSING_CLIENT_CAPABILITY, {"requiredCapabilities": {"elicitation": {"url": {}}, "roots": {}}}
    )
    assert "elicitation.url, roots" in error_of(came, "tools/call", DIALECTS["2025-11-25"]).message


# Notifications


def test_a_notice_of_a_subscription_does_not_say_which() -> None:
    """L-25, X-12."""
    before = b'{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"%b":'
    notice = told(before % META_SUBSCRIPTION_ID.encode(), b"7", b'},"uri":"u:r"}}')
    message = check_message(None, written(notice), "2025-11-25")
    assert message == {
        "jsonrpc": "2.0",
        "method": "notifications/resources/updated",
        "params": {"uri": "u:r"},
    }


def test_a_notice_that_says_nothing_more_has_no_params() -> None:
    before = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"%b":'
    notice = told(before % META_SUBSCRIPTION_ID.encode(), b"7", b"}}}")
    assert written(notice) == b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


def test_what_others_say_in_a_notices_meta_stays() -> None:
    notice = Notice("n", {"_meta": b'{"a":1,"%b":2}' % META_SUBSCRIPTION_ID.encode(), "x": b"1.0"})
    assert notice_of(notice).params == {"x": b"1.0", "_meta": b'{"a":1}'}
    assert notice_of(Notice("n", {"x": b"1"})) == Notice("n", {"x": b"1"})


# Anything else

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["tools/call", "tools/list", "prompts/list", "prompts/get", "resources/read"]),
    st.dictionaries(
        st.sampled_from(
            ["content", "tools", "prompts", "messages", "contents", "structuredContent", "_meta"]
        ),
        json_values,
    ),
    st.sampled_from(VERSIONS),
)
def test_an_odd_result_is_converted_as_far_as_it_is_understood(
    method: str, result: dict[str, Any], version: str
) -> None:
    """No shape is a failure of the conversion."""
    text = result_of(method, json.dumps({**result, "resultType": "complete"}).encode(), DIALECTS[version])
    assert "resultType" not in json.loads(text)
