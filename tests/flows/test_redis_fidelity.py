"""What goes through Redis comes out as the text it went in as, numbers above all, listed or called (B39)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from gateway.protocol.jsonrpc import split
from tests.flows.test_fidelity import NUMBERS, posted, verbatim
from tests.support.redis import RedisServer, redis_server
from tests.support.running import Running, running
from tests.support.scripted import Exchange, ScriptedUpstream, default, tool

TOKENS = [
    b"1.0",
    b"1",
    b"1e2",
    b"-0",
    b"-0.0",
    b"1E+2",
    b"9007199254740993",
    b"9223372036854775808",
    b"18446744073709551616",
    b"1234567890123456789012345678901234567890",
    b"0.1000000000000000055511151231257827",
    b"1e400",
    NUMBERS,
]
KEPT_APART = [b"1.0", b"1", b"100", b"-1", b"9007199254740993", b"9007199254740992", b"9223372036854775808"]
NOT_KEPT = [
    b"18446744073709551616",
    b"1234567890123456789012345678901234567890",
    b"0.1000000000000000055511151231257827",
    b"1e400",
]


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


def sharing(upstream: ScriptedUpstream, server: RedisServer) -> AbstractAsyncContextManager[Running]:
    """Run a gateway that keeps the calls of `a` for everybody, on this Redis."""
    kept = {"calls": {"a": {"ttl": 60.0, "scope": "public"}}}
    return running(
        {"alpha": {"url": upstream.url, "cache": kept}},
        cache={"redis": server.url, "redis_timeout": 10.0},
        secrets={"keys": ["0123456789abcdef-key"]},
        admin="127.0.0.1:0",
    )


async def linked(*gateways: Running) -> None:
    for gateway in gateways:
        while (await gateway.admin("/status.json"))[1]["cache"]["redis"] != "up":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_structured_content_of_kept_calls_is_the_same_text_everywhere(server: RedisServer) -> None:
    """Fetched, from the memory of who fetched it, from Redis, and from the memory of who found it there."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        sharing(alpha, server) as one,
        sharing(alpha, server) as two,
    ):
        await linked(one, two)
        for number, spelled in enumerate(TOKENS):
            members = b'"content":[],"structuredContent":{"x":%s,"y":[%s]},"more":%s' % ((spelled,) * 3)
            alpha.on("tools/call", verbatim(members))
            body = posted(b'{"n":%d}' % number)
            answers = [
                await gateway.ask("tools/call", {"name": "alpha__a"}, body=body, judged=False)
                for gateway in (one, one, two, two)
            ]
            for answer in answers:
                assert answer.raw_result["structuredContent"] == b'{"x":%s,"y":[%s]}' % (spelled, spelled)
                assert answer.raw_result["more"] == spelled
            assert len(alpha.seen("tools/call")) == number + 1


async def test_arguments_arrive_as_sent_and_calls_that_differ_in_a_digit_are_different(
    server: RedisServer,
) -> None:
    """Also to a replica that finds what was kept of the other spelling; in doubt the call is made."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        sharing(alpha, server) as one,
        sharing(alpha, server) as two,
    ):
        await linked(one, two)

        async def echo(exchange: Exchange) -> None:
            sent = bytes(split(split(exchange.received.body)["params"])["arguments"])
            await verbatim(b'"content":[],"structuredContent":' + sent)(exchange)

        alpha.on("tools/call", echo)
        for spelled in [*KEPT_APART, *NOT_KEPT]:
            arguments = b'{"x": %s}' % spelled
            before = len(alpha.seen("tools/call"))
            for gateway in (one, two):
                called = await gateway.ask(
                    "tools/call", {"name": "alpha__a"}, body=posted(arguments), judged=False
                )
                assert called.raw_result["structuredContent"] == arguments
            made = len(alpha.seen("tools/call")) - before
            assert made == (2 if spelled in NOT_KEPT else 1), spelled


async def test_listed_and_read_numbers_are_the_same_text_everywhere(server: RedisServer) -> None:
    """In a schema, in vendor members of a list, in a resource's contents."""
    async with (
        ScriptedUpstream() as alpha,
        sharing(alpha, server) as one,
        sharing(alpha, server) as two,
    ):
        await linked(one, two)
        listed = b'"tools":[{"name":"a","inputSchema":{"type":"object","default":%s},"x":%s}]' % (
            NUMBERS,
            NUMBERS,
        )
        hints = b',"ttlMs":60000,"cacheScope":"public"'
        alpha.on("tools/list", verbatim(listed + hints))
        alpha.on(
            "resources/read", verbatim(b'"contents":[{"uri":"a:1","text":"","x":%s}]%s' % (NUMBERS, hints))
        )
        for gateway in (one, one, two, two):
            tools = await gateway.ask("tools/list")
            (only,) = [split(tools.raw_result["tools"][1:-1])]
            assert bytes(only["x"]) == NUMBERS
            assert bytes(split(only["inputSchema"])["default"]) == NUMBERS
            read = await gateway.ask("resources/read", {"uri": "alpha+a:1"})
            assert bytes(split(read.raw_result["contents"][1:-1])["x"]) == NUMBERS
        assert [len(alpha.seen(method)) for method in ("tools/list", "resources/read")] == [1, 1]


async def unread(exchange: Exchange) -> None:
    """Answer what Python refuses to read with the length of the arguments it came with."""
    if exchange.received.method:
        await default(exchange)
        return
    members = split(exchange.received.body)
    sent = len(bytes(split(members["params"])["arguments"]))
    result = b'{"resultType":"complete","content":[],"structuredContent":%d}' % sent
    body = b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (bytes(members["id"]), result)
    await exchange.respond(200, {"Content-Type": "application/json"}, [body], length=len(body))


async def test_absurd_arguments_of_kept_calls_pass_or_are_refused(server: RedisServer) -> None:
    """A number of 5000 digits arrives, is kept by nobody and stalls nothing; 100,000 levels are refused."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, sharing(alpha, server) as one:
        await linked(one)
        alpha.on("*", unread)
        long, deep = (b'{"x":%s}' % x for x in (b"9" * 5000, b"[" * 100_000 + b"]" * 100_000))
        for _ in range(2):
            called = await one.ask("tools/call", {"name": "alpha__a"}, body=posted(long), judged=False)
            assert called.raw_result["structuredContent"] == b"%d" % len(long)
            sent = split(split(alpha.seen("")[-1].body)["params"])["arguments"]
            assert bytes(sent) == long
        assert len(alpha.seen("")) == 2
        called = await one.ask("tools/call", {"name": "alpha__a"}, body=posted(deep), judged=False)
        assert called.status == 400
        assert called.code in (-32700, -32600)
        assert len(alpha.seen("")) == 2
        assert (await one.ask("tools/list")).names == ["alpha__a"]
