"""Whatever arrives is answered, and never with a 500 (hypothesis)."""

import asyncio
import json
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.front import Answers, body, post, serving

FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ENVELOPES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | PLAIN,
        "id": st.integers() | st.text(max_size=4) | PLAIN,
        "method": st.sampled_from(["tools/list", "tools/call", "initialize", "notifications/x"]) | PLAIN,
        "params": PLAIN | st.dictionaries(st.sampled_from(["_meta", "name", "arguments"]), PLAIN, max_size=3),
    },
).map(lambda envelope: json.dumps(envelope).encode())
LINE = st.binary(max_size=40).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b""))


@given(content=st.binary(max_size=60) | ENVELOPES, method=st.sampled_from(["tools/list", "tools/call"]))
@FEW
async def test_any_body_is_answered(content: bytes, method: str) -> None:
    """A result, a 202, or a JSON-RPC error with a 4xx status."""
    async with serving(Answers()) as gateway:
        reply = await gateway.ask(post(method, content))
    assert reply.status == 202 or 200 <= reply.status < 500
    if reply.status != 202:
        assert reply.json["jsonrpc"] == "2.0"
        assert reply.status == 200 or "error" in reply.json


@given(
    verb=st.sampled_from([b"POST", b"GET", b"OPTIONS", b"CONNECT", b"PRI"]) | LINE,
    path=st.sampled_from([b"/mcp", b"*", b"//", b"/%ff", b"http://[", b"x:1", b"/mcp?\xff", b"/mcp#"]) | LINE,
    name=st.sampled_from(
        [
            b"Authorization",
            b"Origin",
            b"Host",
            b"X-Forwarded-Host",
            b"Accept",
            b"Expect",
            b"Transfer-Encoding",
        ]
    )
    | LINE,
    value=LINE,
)
@FEW
async def test_any_head_is_answered(verb: bytes, path: bytes, name: bytes, value: bytes) -> None:
    """By us or by aiohttp's parser, but as a refusal and not as a failure."""
    head = b"%s %s HTTP/1.1\r\nhost: 127.0.0.1\r\n%s: %s\r\nconnection: close\r\n\r\n" % (
        verb,
        path,
        name,
        value,
    )
    members: dict[str, Any] = {
        "hosts": ["127.0.0.1"],
        "trusted_proxies": ["127.0.0.1"],
        "cors": {"origins": ["http://a.example"]},
    }
    members["limits"] = {"request_body": 0.2}
    async with serving(Answers(), **members) as gateway, gateway.connect() as client, asyncio.timeout(8):
        client.send(head)
        data = await client.reader.read(65_536)
    assert data.startswith(b"HTTP/1.")  # aiohttp answers 1.0 to what it cannot read
    assert int(data[9:12]) < 500


@given(cuts=st.lists(st.integers(0, 700), max_size=6))
@FEW
async def test_any_cutting_of_a_request_gives_the_same_answer(cuts: list[int]) -> None:
    """Head and body arrive in any pieces."""
    request = post("tools/call", body("tools/call", {"name": "é"}), mcp_name="=?base64?w6k=?=")
    edges = [0, *sorted(min(cut, len(request)) for cut in cuts), len(request)]
    async with serving(Answers()) as gateway, gateway.connect() as client:
        for start, end in pairwise(edges):
            client.send(request[start:end])
            await asyncio.sleep(0)
        reply = await client.reply()
    assert (reply.status, reply.json["id"]) == (200, 1)
