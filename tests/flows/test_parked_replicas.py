"""Calls that wait for their user on one replica are gone on with from any other, whatever dies (M-20)."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.protocol.call import Challenge, Context, Notice, Reason, Reply, UpstreamName, UpstreamUnavailable
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, McpError
from gateway.upstream.failures import Failed, TimedOut, UpstreamError
from tests.support.mailboxes import ME, Call, Post
from tests.support.processes import ROOT
from tests.support.redis import RedisServer, redis_server

GH = UpstreamName("gh")
ANSWERS = {"a": b'{"action":"accept","content":{"n":1.0}}', "\u00e9": b"[ ]"}


class Child:
    """A replica in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """Return the next line it writes."""
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()


@asynccontextmanager
async def child(server: RedisServer, *arguments: str) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.mailboxes", server.url, *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def code(resuming: Awaitable[Reply]) -> int:
    """Return the code of the error that a retry ends with."""
    with pytest.raises(McpError) as refused:
        await resuming
    return refused.value.code


async def test_a_retry_on_another_replica_goes_on_with_the_call(server: RedisServer) -> None:
    """Answers, notices and result cross to the byte."""
    heard = []

    async def emit(notice: Notice) -> None:
        heard.append(notice)

    async with Post(server.url) as one, Post(server.url) as two:
        call = Call(steps=3)
        call.go.set()
        state = one.parked.park(call, ME)
        reply = await two.parked.resume(state, ME, ANSWERS, emit)
        assert reply.result == '{"a":{"action":"accept","content":{"n":1.0}},"\u00e9":[ ]}'.encode()
        assert call.answers == [ANSWERS]
        assert heard == [Notice("notifications/progress", {"progress": step}) for step in (b"0", b"1", b"2")]
        assert await code(two.parked.resume(state, ME, ANSWERS)) == INVALID_PARAMS
        assert await code(one.parked.resume(state, ME, ANSWERS)) == INVALID_PARAMS
        assert len(one.parked) == 0


async def test_it_is_given_up_from_another_replica(server: RedisServer) -> None:
    """As when the client, which came there with its last answers, takes its call back."""
    async with Post(server.url) as one, Post(server.url) as two:
        call = Call()
        state = one.parked.park(call, ME)
        await two.parked.give_up(state, Context(caller="another"))
        assert len(one.parked) == 1
        await two.parked.give_up(state, ME)
        assert len(one.parked) == 0
        await two.parked.give_up(state, ME)
        assert await code(two.parked.resume(state, ME, ANSWERS)) == INVALID_PARAMS


async def test_it_may_ask_again_and_again(server: RedisServer) -> None:
    """What a call parks anew stays where it is, and is gone on with from elsewhere."""

    class Asks(Call):
        async def go_on(self, answers, emit):  # type: ignore[no-untyped-def] # as above
            await super().go_on(answers, emit)
            state = one.parked.park(Call(), ME) if len(self.answers) > 2 else one.parked.park(self, ME)
            return Reply(state.encode())

    async with Post(server.url) as one, Post(server.url) as two:
        call = Asks()
        call.go.set()
        state = one.parked.park(call, ME)
        for _ in range(3):
            state = (await two.parked.resume(state, ME, ANSWERS)).result.decode()  # type: ignore[union-attr]
        assert len(call.answers) == 3
        assert len(one.parked) == 1


async def test_of_retries_at_once_everywhere_one_reaches_the_upstream(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two, Post(server.url) as three:
        call = Call()
        call.go.set()
        state = one.parked.park(call, ME)
        retries = [each.parked.resume(state, ME, ANSWERS) for each in (one, two, three) for _ in range(5)]
        ends = await asyncio.gather(*retries, return_exceptions=True)
        assert len([end for end in ends if isinstance(end, Reply)]) == 1
        assert {end.code for end in ends if isinstance(end, McpError)} == {INVALID_PARAMS}
        assert len(call.answers) == 1


async def test_anothers_call_is_as_good_as_none_and_stays(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        call = Call()
        call.go.set()
        state = one.parked.park(call, ME)
        for other in (Context(), Context(caller="me"), Context(caller="me", session="mine", alone=True)):
            assert await code(two.parked.resume(state, other, ANSWERS)) == INVALID_PARAMS
        await two.parked.resume(state, ME, ANSWERS)


@pytest.mark.parametrize(
    "error",
    [
        McpError(-32000, "no", b'{"n":1.0}'),
        UpstreamError(McpError(-32602, "d\u00e9j\u00e0 vu"), 400),
        Failed(GH, Reason.STATUS, "it answered 502", status=502),
        TimedOut(GH, "tools/call x", "30s idle"),
        Challenge(GH, 403, "insufficient_scope", "write"),
        UpstreamUnavailable(GH, Reason.STOPPING),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_is_raised_there_is_raised_here(server: RedisServer, error: Exception) -> None:
    """In the same words, with all that decides what the client is told; nothing invites to ask again."""
    async with Post(server.url) as one, Post(server.url) as two:
        call = Call(error=error)
        call.go.set()
        with pytest.raises(type(error)) as raised:
            await two.parked.resume(one.parked.park(call, ME), ME, ANSWERS)
        assert str(raised.value) == str(error)
        kept = {key: one for key, one in vars(error).items() if key not in ("unsent", "transient", "lost")}
        assert {key: getattr(raised.value, key) for key in kept} == kept
        assert not getattr(raised.value, "transient", False)


async def test_who_goes_away_while_it_goes_on_cancels_it(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        call = Call()
        retry = asyncio.create_task(two.parked.resume(one.parked.park(call, ME), ME, ANSWERS))
        await call.asked.wait()
        retry.cancel()
        await call.cancelled.wait()


async def test_a_replica_that_is_killed_while_it_waits_for_the_result_cancels_it(server: RedisServer) -> None:
    """Its client is gone as well."""
    async with Post(server.url) as one:
        call = Call()
        async with child(server, "resume", one.parked.park(call, ME)) as other:
            await call.asked.wait()
            other.process.kill()
            await call.cancelled.wait()


async def test_a_call_whose_replica_was_killed_is_over(server: RedisServer) -> None:
    """Which is noticed at once, whether the retry comes later or waits for the result already."""
    async with Post(server.url) as one, child(server, "hold", "2") as holder:
        first, second = await holder.line(), await holder.line()
        assert (await one.parked.resume(first, ME, {"a": b"1"})).result == b'{"a":1}'
        holder.process.kill()
        await holder.process.wait()
        assert await code(one.parked.resume(second, ME, {"a": b"1"})) == INVALID_PARAMS


async def test_a_replica_that_hangs_is_given_up(server: RedisServer) -> None:
    async with Post(server.url) as one, child(server, "hold", "1") as holder:
        state = await holder.line()
        holder.process.send_signal(signal.SIGSTOP)
        assert await code(one.parked.resume(state, ME, {"a": b"1"})) == INVALID_PARAMS


async def test_a_replica_that_stops_cancels_what_waits_and_says_so(server: RedisServer) -> None:
    async with Post(server.url) as one, child(server, "hold", "1") as holder:
        state = await holder.line()
        holder.process.terminate()
        assert await holder.line() == "dropped"
        assert await code(one.parked.resume(state, ME, {"a": b"1"})) == INVALID_PARAMS
        assert await holder.process.wait() == 0


@pytest.mark.timeout(120)
async def test_many_are_gone_on_with_at_once(server: RedisServer) -> None:
    async with Post(server.url) as one, child(server, "hold", "200") as holder:
        states = [await holder.line() for _ in range(200)]
        resuming = (
            one.parked.resume(state, ME, {"a": b"%d" % number}) for number, state in enumerate(states)
        )
        replies = await asyncio.gather(*resuming)
        assert [reply.result for reply in replies] == [b'{"a":%d}' % number for number in range(200)]


async def test_a_large_result_crosses_whole(server: RedisServer) -> None:
    text = b'"' + b"x" * 5_000_000 + b'"'
    async with Post(server.url) as one, Post(server.url) as two:
        call = Call()
        call.go.set()
        reply = await two.parked.resume(one.parked.park(call, ME), ME, {"a": text})
        assert reply.result == b'{"a":' + text + b"}"


async def test_while_redis_is_away_a_call_is_out_of_reach_and_not_gone(server: RedisServer) -> None:
    """Its own replica goes on with it all the same; others say that it may be tried again, and it may."""
    async with Post(server.url, timeout=0.05) as one, Post(server.url, timeout=0.05) as two:
        calls = [Call(), Call()]
        states = [one.parked.park(call, ME) for call in calls]
        for call in calls:
            call.go.set()
        server.freeze()
        assert await code(two.parked.resume(states[0], ME, ANSWERS)) == INTERNAL_ERROR
        assert isinstance(await one.parked.resume(states[1], ME, ANSWERS), Reply)
        server.thaw()


Breaking = Callable[[RedisServer], Awaitable[object]]


@pytest.mark.parametrize(
    "breaking",
    [
        lambda server: server.ask("FLUSHALL"),
        lambda server: server.ask("SCRIPT", "FLUSH"),
        lambda server: server.ask("CLIENT", "KILL", "TYPE", "pubsub"),
    ],
    ids=["flush", "scripts", "links"],
)
async def test_what_redis_loses_meanwhile_matters_not(server: RedisServer, breaking: Breaking) -> None:
    async with Post(server.url, beat=0.5) as one, Post(server.url, beat=0.5) as two:
        call = Call()
        retry = asyncio.create_task(two.parked.resume(one.parked.park(call, ME), ME, ANSWERS))
        await call.asked.wait()
        await breaking(server)
        call.go.set()
        assert isinstance(await retry, Reply)


async def test_nothing_of_it_lies_in_redis(server: RedisServer) -> None:
    """Neither what is asked nor what is answered (M-25)."""
    async with Post(server.url) as one, Post(server.url) as two:
        call = Call()
        retry = asyncio.create_task(two.parked.resume(one.parked.park(call, ME), ME, ANSWERS))
        await call.asked.wait()
        assert await server.keys() == []
        call.go.set()
        await retry
        assert await server.keys() == []


async def test_how_calls_end_is_counted(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        calls = [Call(), Call()]
        for call in calls:
            call.go.set()
        states = [one.parked.park(call, ME) for call in calls]
        await two.parked.resume(states[0], ME, ANSWERS)
        counted = (await asyncio.to_thread(one.metrics.render)).decode().splitlines()
        assert "mcp_gateway_parked_calls 1.0" in counted
        assert 'mcp_gateway_parked_calls_ended_total{outcome="resumed"} 1.0' in counted
        await one.parked.close()
        counted = (await asyncio.to_thread(one.metrics.render)).decode().splitlines()
        assert "mcp_gateway_parked_calls 0.0" in counted
        assert 'mcp_gateway_parked_calls_ended_total{outcome="stopping"} 1.0' in counted
