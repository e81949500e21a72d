"""The checks a request passes on its way in, in the order of S-06, each with the bytes that trip it."""

import asyncio
import logging
import re

import pytest

from gateway.protocol.jsonrpc import METHOD_NOT_FOUND, McpError
from tests.support.front import Answers, answer, body, post, serving


async def test_a_good_request_is_answered_with_its_own_id() -> None:
    """The baseline of every row below."""
    pipeline = Answers(answer(tools=[]))
    async with serving(pipeline) as gateway:
        reply = await gateway.ask(post("tools/list", id="a"))
    assert reply.status == 200
    assert reply.header("content-type") == "application/json"
    assert reply.json == {"jsonrpc": "2.0", "id": "a", "result": {"resultType": "complete", "tools": []}}
    assert [call.method for call in pipeline.calls] == ["tools/list"]


# Each row breaks one rule; the later steps are broken too where that can be said in one request, so a row
# also proves that the earlier check answers.
LADDER = {
    "foreign Host": (post(host="evil.example", verb="GET", path="/x"), 403),
    "foreign host in the target": (post(path="http://evil.example/mcp"), 403),
    "two Origins": (post(extra=(("origin", "http://localhost"), ("origin", "http://localhost"))), 403),
    "no Host": (post(version="1.0", without=("host",)), 403),
    "foreign Origin": (post(origin="https://evil.example", verb="GET", path="/x"), 403),
    "Origin null": (post(origin="null"), 403),
    "Origin of nonsense": (post(origin="https://127.0.0.1:80:80"), 403),
    "unknown path": (post(path="/other", verb="GET"), 404),
    "path below the endpoint": (post(path="/mcp/x"), 404),
    "GET": (post(verb="GET", authorization="a", extra=(("authorization", "b"),)), 405),
    "DELETE": (post(verb="DELETE"), 405),
    "PUT": (post(verb="PUT"), 405),
    "OPTIONS without CORS": (post(verb="OPTIONS"), 405),
    "token in the query": (post(path="/mcp?access_token=x", content_type="text/plain"), 400),
    "token in the query, spelled oddly": (
        post(path="/mcp?a=1&access%5Ftoken=x", content_type="text/plain"),
        400,
    ),
    "two credentials": (
        post(authorization="a", extra=(("authorization", "b"),), content_type="text/plain"),
        400,
    ),
    "credential not ASCII": (post(authorization="Bearer \xe9", content_type="text/plain"), 400),
    "text/plain": (post(content_type="text/plain", accept="text/plain"), 415),
    "no Content-Type": (post(without=("content-type",)), 415),
    "JSON only": (post(accept="application/json", content_encoding="gzip"), 406),
    "gzip": (post(content_encoding="gzip", content=b"[", x="y" * 40_000, y="y" * 40_000), 415),
    "large head": (post(content=b"[", **{f"x{n}": "y" * 20_000 for n in range(4)}), 431),
    "large body": (post(content=b"[" * 2000), 413),
    "no JSON": (post(content=b"{"), 400),
    "no UTF-8 in a name": (
        post(content=b'{"method":"x","params":{"_meta":{"\xff":1}}}', without=("mcp-protocol-version",)),
        400,
    ),
    "a batch": (post(content=b"[" + body() + b"]"), 400),
    "no _meta": (post(content=b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'), 400),
}


@pytest.mark.parametrize("row", LADDER)
async def test_each_step_answers_with_its_own_status(row: str) -> None:
    """S-06: the first failing step answers, and the pipeline hears nothing of it."""
    request, status = LADDER[row]
    pipeline = Answers()
    async with serving(pipeline, limits={"message": 1000}) as gateway:
        reply = await gateway.ask(request)
    assert reply.status == status
    assert pipeline.calls == []
    assert "gateway.front" not in reply.body.decode()
    if reply.body:
        assert reply.header("content-type")


async def test_a_good_request_opens_no_door_for_a_bad_one() -> None:
    """What was judged is remembered by all that was looked at: each row is refused as ever."""
    pipeline = Answers(answer(tools=[]))
    async with serving(pipeline, limits={"message": 1000}) as gateway:
        for row, (request, status) in LADDER.items():
            assert (await gateway.ask(post("tools/list"))).status == 200
            assert (await gateway.ask(request)).status == status, row
    assert len(pipeline.calls) == len(LADDER)


async def test_each_refusal_is_a_line_of_the_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    """Endpoint, status and reason, and nothing that the client wrote (B42)."""
    caplog.set_level(logging.DEBUG, "gateway.front.http")
    async with serving(Answers(), limits={"message": 1000}) as gateway:
        for request, _ in LADDER.values():
            caplog.clear()
            reply = await gateway.ask(request)
            lines = [line for line in caplog.messages if "refused with" in line]
            assert len(lines) == 1, request[:60]
            assert re.fullmatch(rf"(/mcp|other): refused with {reply.status}, [a-z_]+", lines[0])


async def test_each_refusal_is_counted_by_its_reason() -> None:
    """The label is from a closed set."""
    async with serving(Answers(), limits={"message": 1000}) as gateway:
        for request, _ in LADDER.values():
            await gateway.ask(request)
        counted = "\n".join(await gateway.counted("rejected_total"))
    for reason, count in {
        "host": 2,
        "origin": 3,
        "verb": 4,
        "authorization": 4,
        "content_type": 2,
        "accept": 1,
        "encoding": 1,
        "header_size": 1,
        "body_size": 1,
        "malformed": 2,
        "envelope": 1,
        "params": 1,
    }.items():
        assert f'rejected_total{{endpoint="/mcp",reason="{reason}"}} {count}.0' in counted, reason
    assert 'rejected_total{endpoint="other",reason="path"} 2.0' in counted


@pytest.mark.parametrize(
    ("header", "value", "setting"),
    [("host", "gw.example:8080", "hosts"), ("origin", "https://app.example", "origins")],
)
async def test_a_refusal_at_the_door_names_the_setting(header: str, value: str, setting: str) -> None:
    """B31: the operator reads what to change, and after changing it the request passes."""
    async with serving(Answers()) as gateway:
        refused = await gateway.ask(post(**{header: value}))
    assert refused.status == 403
    assert refused.header("www-authenticate") is None  # rmcp would read it as insufficient scope (S-10)
    assert f"`{setting}`" in refused.json["error"]["message"]
    assert "id" not in refused.json
    async with serving(Answers(), **{setting: [value]}) as gateway:
        assert (await gateway.ask(post(**{header: value}))).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1"},
        {"host": "localhost:1"},
        {"host": "[::1]:8080"},
        {"origin": "http://localhost:6274"},
        {"host": "mcp.example.com", "origin": "https://mcp.example.com"},
    ],
)
async def test_our_own_names_are_let_in(headers: dict[str, str]) -> None:
    """Loopback in any spelling and with any port, and the public URL (B31, B37)."""
    async with serving(Answers(), public_url="https://mcp.example.com/tools") as gateway:
        assert (await gateway.ask(post(**headers))).status == 200


@pytest.mark.parametrize(("proxies", "status"), [(["127.0.0.0/8"], 200), (["10.0.0.0/8"], 403), ([], 403)])
async def test_a_forwarded_host_counts_only_from_a_trusted_proxy(proxies: list[str], status: int) -> None:
    """B31: anybody can write the header."""
    async with serving(Answers(), hosts=["mcp.example.com"], trusted_proxies=proxies) as gateway:
        request = post(host="pod-7:8080", x_forwarded_host="mcp.example.com")
        assert (await gateway.ask(request)).status == status


@pytest.mark.parametrize(
    "path", ["/mcp", "/mcp/", "/mcp?x=1", "http://127.0.0.1/mcp", "/mcp/dev", "/mcp/dev/"]
)
async def test_both_spellings_of_a_path_are_served_without_redirect(path: str) -> None:
    """B16: several endpoints, with and without the trailing slash."""
    wanted, other = Answers(), Answers()
    pipelines = (
        {"/mcp": wanted, "/mcp/dev": other} if "dev" not in path else {"/mcp": other, "/mcp/dev/": wanted}
    )
    async with serving(pipelines) as gateway:
        assert (await gateway.ask(post(path=path))).status == 200
    assert (len(wanted.calls), len(other.calls)) == (1, 0)


async def test_an_unknown_path_names_the_endpoints() -> None:
    """Whoever mistypes the path learns the right one."""
    async with serving({"/mcp": Answers(), "/mcp/dev": Answers()}) as gateway:
        reply = await gateway.ask(post(path="/sse"))
    assert reply.status == 404
    assert reply.json["endpoints"] == ["/mcp", "/mcp/dev"]


@pytest.mark.parametrize("verb", ["GET", "DELETE", "PATCH"])
async def test_other_verbs_are_told_what_is_allowed(verb: str) -> None:
    """S-05."""
    async with serving(Answers()) as gateway:
        reply = await gateway.ask(post(verb=verb))
    assert (reply.status, reply.header("allow")) == (405, "GET, POST, DELETE")


@pytest.mark.parametrize("verb", ["FOO", "post", "Get", "X-Y"])
@pytest.mark.parametrize(
    ("origins", "allow"), [([], "GET, POST, DELETE"), (["http://a.example"], "GET, POST, DELETE, OPTIONS")]
)
async def test_a_verb_that_nobody_knows_is_a_405(verb: str, origins: list[str], allow: str) -> None:
    """S-05: the parser stumbles over it before it reads any further, so the connection closes."""
    async with serving(Answers(), cors={"origins": origins}) as gateway, gateway.connect() as client:
        client.send(post(verb=verb))
        reply = await client.reply()
        assert await client.hung_up()
        assert await gateway.counted('rejected_total{endpoint="other",reason="verb"} 1')
    assert (reply.status, reply.header("allow")) == (405, allow)
    assert reply.json["error"]["code"] == -32600


@pytest.mark.parametrize("line", [b"\x16\x03\x01\x02", b"FOO", b"extra POST /mcp", b"FOO /mcp HTTP/9.9"])
async def test_what_is_no_request_line_is_a_400(line: bytes) -> None:
    """A TLS client, the rest of a body longer than its Content-Length: the verb is not what is wrong."""
    async with serving(Answers()) as gateway:
        assert (await gateway.ask(line + b"\r\nhost: 127.0.0.1\r\n\r\n")).status == 400


async def test_head_is_answered_without_a_body() -> None:
    """The connection stays in step: what follows is the next answer."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        client.send(post(verb="HEAD", content=b""))
        assert (await client.reply(bare=True)).status == 405
        client.send(post())
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
async def test_media_types_compare_without_case_and_parameters(kind: str) -> None:
    """B26."""
    async with serving(Answers()) as gateway:
        assert (await gateway.ask(post(content_type=kind))).status == 200


async def test_a_coded_body_is_refused_with_what_is_accepted() -> None:
    """B26: a coding would hide the size; `identity` is none."""
    async with serving(Answers()) as gateway:
        refused = await gateway.ask(post(content_encoding="gzip"))
        assert (refused.status, refused.header("accept-encoding")) == (415, "identity")
        assert (await gateway.ask(post(content_encoding="identity"))).status == 200


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer " + "t" * 70_000}, {f"x-{n}": "1" for n in range(300)}],
    ids=["one long line", "many lines"],
)
async def test_a_head_that_the_parser_refuses_is_a_431(headers: dict[str, str]) -> None:
    """B42: aiohttp's own 400 would quote the header in the log."""
    async with serving(Answers()) as gateway:
        reply = await gateway.ask(post(**headers))
        assert 'rejected_total{endpoint="other",reason="header_size"} 1.0' in await gateway.counted(
            "rejected_total"
        )
    assert reply.status == 431
    assert b"limits.header" in reply.body


async def test_a_nine_kilobyte_token_is_fine() -> None:
    """aiohttp's default refuses header lines above 8,190 bytes."""
    async with serving(Answers()) as gateway:
        assert (await gateway.ask(post(authorization="Bearer " + "t" * 9000))).status == 200


async def test_a_body_announced_too_large_is_refused_before_it_is_sent() -> None:
    """Not a byte of it is waited for."""
    async with serving(Answers()) as gateway:
        reply = await gateway.ask(post(content_length=str(33 * 2**20), content=b""))
    assert reply.status == 413
    assert reply.header("connection") == "close"


async def test_a_chunked_body_is_cut_off_at_the_limit() -> None:
    """The limit holds without a Content-Length; the body never ends here."""
    async with serving(Answers(), limits={"message": 100_000}) as gateway, gateway.connect() as client:
        client.send(post(content=b"", without=("content-length",), transfer_encoding="chunked"))
        for _ in range(11):
            client.send(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        assert (await client.reply()).status == 413


async def test_a_three_megabyte_argument_passes_in_chunks() -> None:
    """B25: aiohttp's default refuses a body above 1 MiB."""
    content = body("tools/call", {"name": "x", "arguments": {"data": "y" * 3_000_000}})
    pipeline = Answers()
    async with serving(pipeline) as gateway, gateway.connect() as client:
        head = post("tools/call", b"", without=("content-length",), transfer_encoding="chunked", mcp_name="x")
        client.send(head + b"%x\r\n" % len(content) + content + b"\r\n0\r\n\r\n")
        assert (await client.reply()).status == 200
    assert len(bytes(pipeline.calls[0].params["arguments"])) > 3_000_000


async def test_a_body_that_does_not_arrive_is_a_408() -> None:
    """Slowloris: one byte now and then is not enough."""
    async with serving(Answers(), limits={"request_body": 0.1}) as gateway, gateway.connect() as client:
        client.send(post()[:-20])
        assert (await client.reply()).status == 408
        assert await client.hung_up()


async def test_a_broken_chunk_is_a_400() -> None:
    """The framing of the body itself is wrong."""
    head = post(content=b"", without=("content-length",), transfer_encoding="chunked")
    async with serving(Answers()) as gateway:
        assert (await gateway.ask(head + b"zz\r\n")).status == 400


@pytest.mark.parametrize("chunks", [[b"zz\r\n"], [b"4\r\n{}", b"  \r\nzz\r\n"], [b"2\r\n{}", b"}\r\n"]])
async def test_a_chunk_that_breaks_later_is_a_400_at_once(
    chunks: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Not a 408 once `limits.request_body` is over; nor is it worth an error in the log."""
    head = post(content=b"", without=("content-length",), transfer_encoding="chunked")
    async with serving(Answers()) as gateway, gateway.connect() as client, asyncio.timeout(5):
        client.send(head)
        await gateway.until_busy()
        for chunk in chunks:
            client.send(chunk)
            await asyncio.sleep(0)  # so that each arrives alone
        reply = await client.reply()
        assert await client.hung_up()
        await gateway.until_idle()
    assert (reply.status, reply.header("connection")) == (400, "close")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_the_body_is_asked_for_once_the_head_is_fine() -> None:
    """Expect: 100-continue; curl waits a second without it."""
    request = post(expect="100-continue")
    head, _, content = request.partition(b"\r\n\r\n")
    async with serving(Answers()) as gateway, gateway.connect() as client:
        client.send(head + b"\r\n\r\n")
        assert (await client.reply()).status == 100
        client.send(content)
        assert (await client.reply()).status == 200


async def test_a_body_is_not_asked_for_when_the_head_is_refused() -> None:
    """The refusal comes instead of the 100."""
    head = post(expect="100-continue", content_type="text/plain").partition(b"\r\n\r\n")[0]
    async with serving(Answers()) as gateway:
        assert (await gateway.ask(head + b"\r\n\r\n")).status == 415


async def test_a_refused_request_leaves_the_connection_usable() -> None:
    """A small body in flight is read and thrown away."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        for content_type, status in [("text/plain", 415), ("application/json", 200), ("text/html", 415)]:
            client.send(post(content_type=content_type))
            assert (await client.reply()).status == status


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Three requests in one packet, one of them refused."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        client.send(post(id=1) + post(verb="GET") + post(id=2))
        replies = [await client.reply() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 405, 200]
    assert (replies[0].json["id"], replies[2].json["id"]) == (1, 2)


async def test_an_http_1_0_client_is_answered() -> None:
    """And its connection closed, unless it asks to keep it."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        client.send(post(version="1.0", connection="keep-alive"))
        assert (await client.reply()).header("connection") == "keep-alive"
        client.send(post(version="1.0"))
        assert (await client.reply()).header("connection") == "close"
        assert await client.hung_up()


async def test_an_offer_to_upgrade_is_declined_by_answering() -> None:
    """`curl --http2` offers h2c with its first request."""
    async with serving(Answers()) as gateway:
        reply = await gateway.ask(
            post(connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAMA")
        )
    assert reply.status == 200


async def test_a_posted_notification_is_taken_and_dropped() -> None:
    """S-20: 202 without a body, and nobody is cancelled by it."""
    content = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
    pipeline = Answers()
    async with serving(pipeline) as gateway:
        reply = await gateway.ask(post(content=content, without=("mcp-method",)))
    assert (reply.status, reply.body, reply.header("content-length")) == (202, b"", "0")
    assert reply.header("content-type") is None
    assert pipeline.calls == []


async def test_a_method_nobody_serves_is_a_404_with_the_id() -> None:
    """-32601 as the pipeline raises it."""
    async with serving(Answers(McpError(METHOD_NOT_FOUND, "no"))) as gateway:
        reply = await gateway.ask(post("tools/list", id=0))
    assert reply.status == 404
    assert reply.json == {"jsonrpc": "2.0", "id": 0, "error": {"code": -32601, "message": "no"}}


async def test_without_loopback_and_hosts_any_host_is_served() -> None:
    """Bound to all addresses, the network in front decides."""
    async with serving(Answers(), host="0.0.0.0") as gateway:
        assert (await gateway.ask(post(host="pod-7:8080"))).status == 200
        assert (await gateway.ask(post(host="pod-7:8080", origin="http://pod-7:8080"))).status == 403


async def test_a_wrong_public_url_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A proxy that speaks https for http://: no client would ever get a token that is good here (B37)."""
    members = {"public_url": "http://mcp.example.com", "trusted_proxies": ["127.0.0.1"]}
    async with serving(Answers(), **members) as gateway:
        for _ in range(2):
            told = {"x_forwarded_host": "mcp.example.com", "x_forwarded_proto": "https"}
            assert (await gateway.ask(post(**told))).status == 200
    said = [record.getMessage() for record in caplog.records if record.name == "gateway.front.http"]
    assert len(said) == 1
    assert said[0].startswith("clients reach the gateway as https://mcp.example.com, ")


async def test_the_log_says_whom_it_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    """At debug level: the client, not the proxy; nothing it says of itself (B42)."""
    caplog.set_level("DEBUG", "gateway.front.http")
    told = {"x_forwarded_for": "6.6.6.6, 192.0.2.7", "origin": "https://evil.example"}
    async with serving(Answers(), trusted_proxies=["127.0.0.1"]) as gateway:
        assert (await gateway.ask(post(**told))).status == 403
        assert (await gateway.ask(post())).status == 200
    away = [text for text in caplog.messages if text.startswith("Turned away")]
    assert away == ["Turned away 192.0.2.7: 403, origin"]
