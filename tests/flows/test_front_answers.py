"""What a call's outcome looks like to the client: results, errors, challenges, bugs, callers and ids."""

import asyncio
import logging
from dataclasses import replace

import msgspec
import pytest

from gateway.protocol.call import (
    Answer,
    Call,
    Challenge,
    Emit,
    Partition,
    Principal,
    Reason,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import McpError
from gateway.support.seal import Seal
from tests.support.front import Answers, answer, body, post, serving, state

ALPHA = UpstreamName("alpha")


async def test_segments_are_written_as_they_are() -> None:
    """Numbers, escapes and key order of a result reach the client to the byte."""
    raw = msgspec.Raw(b'{"z":1.0,"a":18446744073709551616,"e":"\\u00e9"}')
    async with serving(Answers(Answer((b'{"resultType":"complete","x":', raw, b"}")))) as gateway:
        reply = await gateway.ask(post())
    assert reply.body == (
        b'{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","x":' + bytes(raw) + b"}}"
    )
    assert reply.header("content-length") == str(len(reply.body))


@pytest.mark.parametrize("id", ["1", 1, 0, -1, "a😀", 9007199254740993, ""])
async def test_the_id_comes_back_with_its_value_and_type(id: str | int) -> None:
    """E-04, B22: in results and in errors."""
    async with serving(Answers()) as gateway:
        assert (await gateway.ask(post(id=id))).json["id"] == id
    async with serving(Answers(McpError(-32602, "no"))) as gateway:
        assert (await gateway.ask(post(id=id))).json["id"] == id


async def test_fifty_calls_with_one_id_get_each_its_own_answer() -> None:
    """B22: the client's id is no key anywhere."""
    everyone = asyncio.Barrier(50)

    async def echo(call: Call, principal: Principal, emit: Emit) -> Answer:
        await everyone.wait()
        return Answer((b'{"text":', call.params["text"], b"}"))

    async with serving(Answers(echo)) as gateway:
        requests = [post("tools/call", params={"name": "t", "text": str(n)}) for n in range(50)]
        replies = await asyncio.gather(*(gateway.ask(request) for request in requests))
    assert [reply.json["result"]["text"] for reply in replies] == [str(n) for n in range(50)]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (-32700, 400),
        (-32600, 400),
        (-32601, 404),
        (-32602, 400),
        (-32603, 200),
        (-32020, 400),
        (-32021, 400),
        (-32022, 400),
        (-31000, 200),
        (7, 200),
    ],
)
async def test_each_error_code_has_its_status(code: int, status: int) -> None:
    """The table of chapter 1; data is passed as it is."""
    async with serving(Answers(McpError(code, "no", b'{"n":1.0}'))) as gateway:
        reply = await gateway.ask(post())
    assert reply.status == status
    assert reply.body.endswith(b'"message":"no","data":{"n":1.0}}}')


async def test_an_unavailable_upstream_is_named_and_not_described() -> None:
    """E-14: neither an address nor the detail for the log."""
    failure = UpstreamUnavailable(ALPHA, Reason.CONNECT, "http://10.0.0.7:9001/mcp refused")
    async with serving(Answers(failure)) as gateway:
        reply = await gateway.ask(post())
        counted = await gateway.answered()
    assert reply.status == 200
    assert reply.json["error"] == {"code": -32603, "message": "upstream alpha: connection failed"}
    assert counted == {("/mcp", "tools/list", "unavailable"): 1}


async def test_a_bug_is_logged_and_tells_the_client_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """-32603 with the id, the traceback in the log only."""
    async with serving(Answers(KeyError("secret-detail"))) as gateway:
        reply = await gateway.ask(post(id="x"))
    assert reply.status == 200
    assert reply.json == {"jsonrpc": "2.0", "id": "x", "error": {"code": -32603, "message": "Internal error"}}
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None


class BrokenSeal(Seal):
    """A seal that fails for a reason nobody thought of."""

    def partition(self, authorization: str) -> Partition:
        raise RuntimeError("out of order")


async def test_a_bug_of_the_edge_itself_is_answered_and_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    """Before there is a call, hence without an id; the connection stays usable."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        gateway.state = replace(gateway.state, seal=BrokenSeal())
        client.send(post(authorization="Bearer x"))
        assert (await client.reply()).json == {
            "jsonrpc": "2.0",
            "error": {"code": -32603, "message": "Internal error"},
        }
        client.send(post())
        assert (await client.reply()).status == 200
    assert "out of order" in caplog.text


@pytest.mark.parametrize(
    ("challenge", "status", "header"),
    [
        (
            Challenge(ALPHA, 401, "invalid_token", None),
            401,
            'Bearer realm="acme", error="invalid_token"',
        ),
        (
            Challenge(ALPHA, 403, "insufficient_scope", "w x"),
            403,
            'Bearer realm="acme", error="insufficient_scope", scope="w x"',
        ),
        (Challenge(ALPHA, 407, None, None), 401, 'Bearer realm="acme"'),
        (Challenge(ALPHA, 401, 'a"b', "c\r\nX-Evil: 1"), 401, 'Bearer realm="acme"'),
    ],
)
async def test_a_refused_caller_is_challenged_by_us(challenge: Challenge, status: int, header: str) -> None:
    """B15: our own challenge with the upstream's error and scope, the id and the CORS headers."""
    members = {"identity": {"name": "acme"}, "cors": {"origins": ["https://app.example"]}}
    async with serving(Answers(challenge), **members) as gateway:
        reply = await gateway.ask(post(id="c", origin="https://app.example"))
    assert reply.status == status
    assert reply.header("www-authenticate") == header
    assert reply.json["id"] == "c"
    assert reply.header("access-control-allow-origin") == "https://app.example"
    assert "WWW-Authenticate" in (reply.header("access-control-expose-headers") or "")


async def test_callers_are_told_apart_by_their_credential() -> None:
    """The same header is the same partition; none is anonymous; the value itself shows nowhere."""
    pipeline = Answers()
    async with serving(pipeline) as gateway:
        for token in ("Bearer TOK-A", "Bearer TOK-B", "Bearer TOK-A", None, " "):
            await gateway.ask(post(**({} if token is None else {"authorization": token})))
    first, second, third, nobody, blank = pipeline.principals
    assert first.partition == third.partition != second.partition
    assert nobody == blank == Principal()
    assert first.authorization == "Bearer TOK-A"
    assert "TOK-A" not in repr(first)


async def test_a_fifteen_megabyte_result_arrives_whole() -> None:
    """B25."""
    text = "x" * 15_000_000
    async with serving(Answers(answer(text=text))) as gateway:
        assert (await gateway.ask(post())).json["result"]["text"] == text


async def test_a_connection_serves_many_calls() -> None:
    """Keep-alive: nothing of one exchange is left to the next."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        for id in range(20):
            client.send(post(id=id))
            assert (await client.reply()).json["id"] == id
        assert repr(gateway.front).endswith(": 0 open, 0 listening>")
        assert await gateway.counted("requests_in_flight") == ['requests_in_flight{endpoint="/mcp"} 0.0']


async def test_invented_names_leave_few_series() -> None:
    """B52: paths, methods, tool names and headers that clients make up."""
    async with serving(Answers()) as gateway, gateway.connect() as client:
        for n in range(500):
            client.send(post(f"tools/x{n}", body(f"tools/x{n}", {"name": f"n{n}"}), mcp_name=f"n{n}"))
            client.send(post(path=f"/p{n}", mcp_session_id=f"s{n}"))
            assert {(await client.reply()).status, (await client.reply()).status} <= {200, 404}
        assert set(await gateway.answered()) <= {("/mcp", "other", "error")}
        assert len(await gateway.counted("rejected_total")) <= 2


async def test_one_state_serves_a_whole_request() -> None:
    """A request that began before a reload ends on the objects it began with."""
    release = asyncio.Event()

    async def wait(call: Call, principal: Principal, emit: Emit) -> Answer:
        await release.wait()
        return answer(which="old")

    old = Answers(wait)
    async with serving(old) as gateway, gateway.connect() as client:
        client.send(post())
        await old.started.wait()
        gateway.state = state({"/mcp": Answers(answer(which="new")), "/mcp/dev": Answers()})
        assert (await gateway.ask(post())).json["result"]["which"] == "new"
        assert (await gateway.ask(post(path="/mcp/dev"))).status == 200
        release.set()
        assert (await client.reply()).json["result"]["which"] == "old"
