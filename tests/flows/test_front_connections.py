"""What a connection may do before, between and behind its requests, and how one that is gone is noticed."""

import asyncio
from collections.abc import Callable
from hashlib import sha256

import pytest

from gateway.protocol.call import Answer, Call, Emit, Principal
from tests.support.front import Answers, Client, Serving, answer, body, post, serving

OFTEN = {"stalled_listener": 0.2}  # how often the front looks follows from the shortest limit
PROMPT = {"request_head": 0.2}
HEAD = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CALL = post("tools/call", params={"name": "t"})


async def _hang(call: Call, principal: Principal, emit: Emit) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


def _drop(client: Client) -> None:
    client.abort()


def _close(client: Client) -> None:
    client.writer.close()


@pytest.mark.parametrize("leave", [_drop, _close])
@pytest.mark.parametrize(
    "behind",
    [CALL * 1000, CALL * 20_000, post(content=b" " * 2_000_000)[:-1]],
    ids=["requests", "many requests", "half a body"],
)
async def test_a_client_that_sent_much_ahead_is_seen_leaving(
    behind: bytes, leave: Callable[[Client], None]
) -> None:
    """S-21, B21: long before a keep-alive is due, though its end stands behind what is not read."""
    pipeline = Answers(_hang)
    async with serving(pipeline, limits=OFTEN) as gateway, gateway.connect() as client:
        client.send(CALL)
        await pipeline.started.wait()
        client.send(behind)
        leave(client)
        async with asyncio.timeout(5):
            await pipeline.cancelled.wait()
            await gateway.until_idle()


async def test_a_client_that_sends_much_ahead_of_a_long_call_is_cut_off() -> None:
    """Whether it is still there cannot be told; what stood behind becomes no call, and that is counted."""
    pipeline = Answers(_hang)
    async with serving(pipeline, limits=OFTEN) as gateway, gateway.connect() as client, asyncio.timeout(5):
        client.send(CALL * 1000)
        await pipeline.cancelled.wait()
        assert await client.hung_up()
        assert len(pipeline.calls) == 1
        assert await gateway.counted('rejected_total{endpoint="other",reason="ahead"} 1')


async def test_quick_requests_may_be_sent_far_ahead() -> None:
    """Two hundred in one go are all answered."""
    async with serving(Answers()) as gateway, gateway.connect() as client, asyncio.timeout(10):
        client.send(b"".join(post(id=number) for number in range(200)))
        assert [(await client.reply()).json["id"] for _ in range(200)] == list(range(200))


async def test_a_large_body_and_a_few_requests_behind_it_may_take_their_time() -> None:
    """Reading pauses while the body is read, and goes on behind it."""
    go = asyncio.Event()

    async def wait(call: Call, principal: Principal, emit: Emit) -> Answer:
        await go.wait()
        return answer()

    content = body("tools/call", {"name": "t", "arguments": {"x": "y" * 8_000_000}})
    pipeline = Answers(wait)
    limits = {**OFTEN, "keep_alive": 0.6}
    async with serving(pipeline, limits=limits) as gateway, gateway.connect() as client, asyncio.timeout(10):
        client.send(post("tools/call", content, mcp_name="t") + post(id=2) * 8)
        assert (await client.head()).header("content-type") == "text/event-stream"  # it waited that long
        go.set()
        assert b'"result"' in b"".join([chunk async for chunk in client.chunks()])
        assert [(await client.reply()).json["id"] for _ in range(8)] == [2] * 8


async def _bound_passes(gateway: Serving) -> None:
    """Wait as long as the head of a request may take."""
    async with gateway.connect() as silent:
        assert await silent.hung_up()


async def _trickle(client: Client) -> None:
    for byte in HEAD * 1000:
        client.send(bytes((byte,)))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("head", [HEAD[:1], HEAD[:9], HEAD, HEAD + b"x-a", HEAD + b"x-a: b\r\n"])
@pytest.mark.parametrize("before", [b"", CALL], ids=["first", "behind another"])
async def test_half_a_head_is_a_408(before: bytes, head: bytes) -> None:
    """Slowloris: where the head stops does not matter, nor whether a request came with its beginning."""
    async with (
        serving(Answers(), limits=PROMPT) as gateway,
        gateway.connect() as client,
        asyncio.timeout(5),
    ):
        client.send(before + head)
        if before:
            assert (await client.reply()).status == 200
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (408, "close")
        assert b"`limits.request_head`" in reply.body
        assert await client.hung_up()
        assert await gateway.counted('rejected_total{endpoint="other",reason="head_slow"} 1')


async def test_a_head_in_small_pieces_is_a_408() -> None:
    """A byte now and then is not enough, on a connection that has served before."""
    async with (
        serving(Answers(), limits=PROMPT) as gateway,
        gateway.connect() as client,
        asyncio.timeout(5),
    ):
        client.send(post())
        assert (await client.reply()).status == 200
        trickle = gateway.background.start(_trickle(client), name="trickle")
        assert (await client.reply()).status == 408
        trickle.cancel()


async def test_a_connection_without_a_request_is_closed() -> None:
    """Without a word: a browser that opened it in advance would take a 408 for its answer."""
    async with serving(Answers(), limits=PROMPT) as gateway, gateway.connect() as client, asyncio.timeout(5):
        assert await client.hung_up()
        assert await gateway.counted("rejected_total") == []


@pytest.mark.parametrize("behind", [b"", b"\r\n"], ids=["nothing", "a stray line break"])
async def test_between_two_requests_a_client_may_be_silent(behind: bytes) -> None:
    """Its next request may be long in coming; only one that has begun may not."""
    async with serving(Answers(), limits=PROMPT) as gateway, gateway.connect() as client, asyncio.timeout(5):
        client.send(post())
        assert (await client.reply()).status == 200
        client.send(behind)
        await _bound_passes(gateway)
        await _bound_passes(gateway)
        client.send(post()[:40])
        client.send(post()[40:])
        assert (await client.reply()).status == 200


KEY = "a-key-of-a-caller"
AUTHENTICATION = {"keys": {"ci": {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}"}}}


@pytest.mark.parametrize(
    "request_",
    [post(), post(authorization="Bearer made-up"), post(authorization="Basic x"), post(path="/x")],
    ids=["nothing", "no key", "no bearer", "no endpoint"],
)
async def test_a_connection_of_strangers_is_not_idle_for_long(request_: bytes) -> None:
    """Where callers prove who they are: without a word, as if there had been no request."""
    async with (
        serving(Answers(), limits=PROMPT, authentication=AUTHENTICATION) as gateway,
        gateway.connect() as client,
        asyncio.timeout(5),
    ):
        client.send(request_)
        assert (await client.reply()).status in (401, 404)
        assert await client.hung_up()


@pytest.mark.parametrize(("credential", "anonymous"), [(f"Bearer {KEY}", False), ("", True)])
async def test_a_connection_over_which_somebody_came_in_may_be_idle(credential: str, anonymous: bool) -> None:
    """Also with a mistake in between."""
    authentication = {**AUTHENTICATION, "anonymous": anonymous}
    async with (
        serving(Answers(), limits=PROMPT, authentication=authentication) as gateway,
        gateway.connect() as client,
        asyncio.timeout(5),
    ):
        for request, status in ((post(authorization=credential), 200), (post(path="/x"), 404)):
            client.send(request)
            assert (await client.reply()).status == status
            await _bound_passes(gateway)
            await _bound_passes(gateway)
        client.send(post(authorization=credential))
        assert (await client.reply()).status == 200


async def test_a_slow_body_and_a_long_call_are_no_slow_head() -> None:
    """They have their own limits."""
    go = asyncio.Event()

    async def wait(call: Call, principal: Principal, emit: Emit) -> Answer:
        await go.wait()
        return answer()

    pipeline = Answers(wait)
    async with serving(pipeline, limits=PROMPT) as gateway, gateway.connect() as client, asyncio.timeout(5):
        client.send(CALL[:-9])
        await _bound_passes(gateway)
        client.send(CALL[-9:-5])
        await _bound_passes(gateway)
        client.send(CALL[-5:])
        await pipeline.started.wait()
        client.send(post(id=2)[:30])
        await _bound_passes(gateway)
        go.set()
        client.send(post(id=2)[30:])
        assert [(await client.reply()).json["id"] for _ in range(2)] == [1, 2]
