"""The body and the headers of what is posted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.call import HOP_META, HeaderParam, Request
from gateway.protocol.jsonrpc import McpError, encode
from gateway.upstream.outgoing import compose, target, with_plain_integers

COUNT = (HeaderParam("N", ("n",), "integer"),)


def composed(method="tools/call", **members):
    return compose(Request(method, **members), id=5, version="2026-07-28", client_info=b'{"name":"gw"}')


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": b'"a"'}, "a"),
        ("prompts/get", {"name": b'"p"'}, "p"),
        ("resources/read", {"uri": b'"file:///x%20y?z"'}, "file:///x%20y?z"),
        ("tasks/get", {"taskId": b'"t"'}, "t"),
        ("tools/list", {"name": b'"a"'}, None),
        ("tools/call", {"name": b"1"}, None),
        ("tools/call", {}, None),
    ],
)
def test_mcp_name_mirrors_the_parameter_that_names(method, params, name):
    """Only where the method has one, and from the body alone (U-02, U-03)."""
    outgoing = composed(method, params=params)
    assert outgoing.headers.get("Mcp-Name") == name
    assert outgoing.headers["Mcp-Method"] == method


def test_hop_owned_meta_is_written_anew():
    """Vendor members pass, the hop's own do not, whatever they hold (E-24)."""
    vendor = {key: b'"theirs"' for key in HOP_META} | {"x.example/y": b"[1.0]"}
    meta = json.loads(composed(vendor=vendor).body)["params"]["_meta"]
    assert "theirs" not in meta.values()
    assert meta["x.example/y"] == [1.0]
    assert not {"progressToken", "io.modelcontextprotocol/logLevel"} & set(meta)


def test_an_integer_no_header_can_mirror_fails_the_call():
    """Beyond 2**53-1 readers disagree (U-06)."""
    for number in (b"9007199254740992", b"1e300"):
        with pytest.raises(McpError) as caught:
            composed(params={"arguments": b'{"n":' + number + b"}"}, header_params=COUNT)
        assert caught.value.code == -32602


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (b'{ "n": 42 }', b'{ "n": 42 }'),
        (b'{"n":42.0,"x":1.0}', b'{"n":42,"x":1.0}'),
        (b'{"n":4.2e1}', b'{"n":42}'),
        (b'{"n":4.2}', b'{"n":4.2}'),
        (b'{"n":"42.0"}', b'{"n":"42.0"}'),
        (b'{"n":null}', b'{"n":null}'),
        (b"{}", b"{}"),
        (b"[1.0]", b"[1.0]"),
        (b"null", b"null"),
    ],
)
def test_only_a_mirrored_integer_is_respelled(arguments, sent):
    """Everything else stays to the byte."""
    assert with_plain_integers(arguments, COUNT) == sent


@given(st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1))
def test_any_integer_keeps_its_value(number):
    """Respelling 5.0 as 5 never changes the number."""
    for spelled in (encode(number), b"%d.0" % number):
        raw = with_plain_integers(b'{"n":' + spelled + b"}", COUNT)
        assert raw == b'{"n":%d}' % number


def test_a_message_names_the_tool():
    """What logs and timeouts call a request (B19)."""
    assert target(Request("tools/call", {"name": b'"search"'})) == "tools/call search"
    assert target(Request("resources/read", {"uri": b'"file:///secret"'})) == "resources/read"
    assert target(Request("tools/list")) == "tools/list"
