"""That whoever asks Redis gets an answer or None in time, and that after a failure nobody waits in vain."""

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from gateway.config import parse_redis_url
from gateway.support.metrics import Metrics
from gateway.support.redis import (
    Breaker,
    Script,
    SharedRedis,
    no_redis_budget,
    redis_budget,
    within_redis_budget,
)
from tests.support.redis import RedisServer, redis_proxy, redis_server

ECHO = Script("get", "return {ARGV[1]}")
FAILS = Script("put", "return redis.call('NONSENSE')")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


def shared(url: str, *, timeout: float = 1.0, clock: Clock | None = None) -> SharedRedis:
    return SharedRedis(
        parse_redis_url(url), timeout=timeout, metrics=Metrics(), clock=clock or Clock(), random=lambda: 1.0
    )


def counted(metrics: str, outcome: str) -> float:
    """Return how many questions ended so."""
    name = f'mcp_gateway_redis_operations_total{{operation="get",outcome="{outcome}"}} '
    return sum(float(line.removeprefix(name)) for line in metrics.splitlines() if line.startswith(name))


def test_the_breaker_lets_one_probe_through_after_each_pause() -> None:
    """The pause doubles with each failure up to a bound, and is over with the first answer."""
    clock = Clock()
    breaker = Breaker(clock, lambda: 1.0)
    assert breaker.admit()
    pauses = []
    for _ in range(8):
        breaker.failed()
        began = clock.now
        while not breaker.admit():
            clock.now += 0.1
        assert not breaker.admit(), "one probe at a time"
        pauses.append(round(clock.now - began, 1))
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], abs=0.15)
    breaker.answered()
    assert breaker.closed
    assert breaker.admit()
    assert breaker.admit()


async def test_an_answer_comes_back(server: RedisServer) -> None:
    """Also the first time, when the server does not know the script."""
    redis = shared(server.url)
    assert await redis.run(ECHO, [], [b"\x00\xff"]) == [b"\x00\xff"]
    assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
    assert redis.answers
    await redis.close()


@pytest.mark.parametrize(
    "url",
    [
        "unix:///nowhere/at/all.sock",
        "redis://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/main",
        "redis+cluster://127.0.0.1:1",
        "redis://no-such-host.invalid",
    ],
)
async def test_nobody_there_is_no_answer_and_no_exception(url: str) -> None:
    """Whatever the library raises for it (C-35)."""
    redis = shared(url)
    assert await redis.run(ECHO, [], []) is None
    assert not redis.answers
    await redis.close()


async def test_after_a_failure_nobody_asks_until_the_pause_is_over(server: RedisServer) -> None:
    """Then one does, and if there is an answer all do; what is urgent never waits for that."""
    clock = Clock()
    redis = shared(server.url, clock=clock)
    assert await redis.run(FAILS, [], []) is None
    assert await redis.run(ECHO, [], [b"x"]) is None
    assert await redis.run(ECHO, [], [b"x"], urgent=True) == [b"x"]
    assert await redis.run(FAILS, [], []) is None
    clock.now += 1
    assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
    assert redis.answers
    await redis.close()


async def test_a_frozen_server_costs_one_deadline(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """However many ask at once, turn or no turn; later ones are not held at all, and it is logged once."""
    caplog.set_level(logging.WARNING)
    clock = Clock()
    redis = shared(server.url, timeout=0.05, clock=clock)
    while not await redis.run(ECHO, [], [b"x"], urgent=True):
        clock.now += 10
    caplog.clear()
    before = (await asyncio.to_thread(redis._metrics.render)).decode()
    server.freeze()
    assert set(await asyncio.gather(*(redis.run(ECHO, [], [b"x"]) for _ in range(100)))) == {None}
    assert redis._turns.locked(), "they waited for a turn"
    for _ in range(100):
        assert await redis.run(ECHO, [], [b"x"]) is None
    after = (await asyncio.to_thread(redis._metrics.render)).decode()
    assert counted(after, "timeout") - counted(before, "timeout") == 100
    assert counted(after, "paused") - counted(before, "paused") == 100
    server.thaw()
    assert len([record for record in caplog.records if "going on without" in record.message]) == 1
    await redis.close()


def stall(seconds: float) -> None:
    """Let nothing else run in this process for a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def test_a_stall_of_this_process_is_no_failure_of_redis(server: RedisServer) -> None:
    """An answer that lies in the socket when the loop gets round was in time."""
    async with redis_proxy(server, [ECHO]) as proxy:
        redis = shared(proxy.url, timeout=0.2)
        while not await redis.run(ECHO, [], [b"x"], urgent=True):
            pass

        async def while_asking() -> None:
            stall(0.5)

        async def before_the_answer_is_read() -> None:
            # The loop gets to this question's answer and to its deadline in one turn.
            asyncio.get_running_loop().call_soon(stall, 0.5)

        for step in (while_asking, before_the_answer_is_read):
            proxy.before["get"] = step
            assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
            proxy.after["get"] = step
            assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
        assert redis.answers
        await redis.close()


async def test_a_request_waits_for_redis_no_longer_than_its_budget(server: RedisServer) -> None:
    """However much it asks, in tasks of its own too; that is no failure, and not what is urgent."""
    clock = Clock()
    redis = shared(server.url, clock=clock)
    assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
    with redis_budget(1.0, clock):
        inherited = contextvars.copy_context()
        assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
        server.freeze()
        asking = asyncio.create_task(redis.run(ECHO, [], [b"x"]))
        await asyncio.sleep(0)
        clock.now += 1.0
        server.thaw()
        assert await asking == [b"x"]
        assert await redis.run(ECHO, [], [b"x"]) is None
        assert await asyncio.create_task(redis.run(ECHO, [], [b"x"])) is None
        assert await redis.run(ECHO, [], [b"x"], urgent=True) == [b"x"]
        with no_redis_budget():
            assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
        with redis_budget(1.0, clock):
            assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
    assert redis.answers
    metrics = (await asyncio.to_thread(redis._metrics.render)).decode()
    assert (counted(metrics, "spent"), counted(metrics, "timeout")) == (2, 0)
    loop = asyncio.get_running_loop()
    outliving = loop.create_task(redis.run(ECHO, [], [b"x"]), context=inherited)
    assert await outliving == [b"x"], "what outlives its request is on nobody's account"
    await redis.close()


async def test_what_is_left_of_a_budget_is_all_that_is_waited(server: RedisServer) -> None:
    """The deadline of one question is no reason to wait longer; nobody else pauses for it."""
    redis = shared(server.url, timeout=600.0)
    assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
    server.freeze()
    with redis_budget(0.05):
        assert await redis.run(ECHO, [], [b"x"]) is None
        task = asyncio.create_task(asyncio.Event().wait())
        await within_redis_budget(task)  # type: ignore[arg-type] # what it returns is nobody's business
        assert not task.done()
        task.cancel()
    server.thaw()
    assert redis.answers
    assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
    await redis.close()


async def test_what_is_asked_at_the_same_time_counts_once(server: RedisServer) -> None:
    """A list asks for the pages of all upstreams at once."""
    clock = Clock()
    redis = shared(server.url, timeout=60.0, clock=clock)
    with redis_budget(1.0, clock):
        server.freeze()
        asking = [asyncio.create_task(redis.run(ECHO, [], [b"x"])) for _ in range(10)]
        await asyncio.sleep(0)
        clock.now += 0.9
        server.thaw()
        assert await asyncio.gather(*asking) == [[b"x"]] * 10
        assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
    await redis.close()


async def test_an_answer_that_came_too_late_is_nobody_elses(server: RedisServer) -> None:
    """A question given up leaves no answer on a connection that the next would take for its own."""
    clock = Clock()
    redis = shared(server.url, timeout=0.05, clock=clock)
    for number in range(20):
        server.freeze()
        await redis.run(ECHO, [], [b"late %d" % number], urgent=True)
        server.thaw()
        clock.now += 10
        assert await redis.run(ECHO, [], [b"%d" % number], urgent=True) in ([b"%d" % number], None)
    await redis.close()


async def test_a_connection_that_takes_longer_than_a_question_is_made_all_the_same(
    server: RedisServer,
) -> None:
    """Who needed it has gone on without; the next one finds it there."""
    go = asyncio.Event()

    async def hold() -> None:
        await go.wait()

    async with redis_proxy(server, [ECHO]) as proxy:
        proxy.before[""] = hold  # what every connection begins with
        redis = shared(f"{proxy.url}?db=1", timeout=0.2)
        assert await redis.run(ECHO, [], [b"x"], urgent=True) is None
        go.set()
        while b"cmd=eval " not in await server.ask("CLIENT", "LIST"):  # noqa: ASYNC110 - it goes on by itself
            await asyncio.sleep(0.005)
        assert await redis.run(ECHO, [], [b"x"], urgent=True) == [b"x"]
        assert (await server.ask("CLIENT", "LIST")).count(b" db=1 ") == 1
        await redis.close()


async def test_closed_connections_are_no_failure(server: RedisServer) -> None:
    """A server that hung up on idle clients answers the next question."""
    redis = shared(server.url)
    await redis.run(ECHO, [], [b"x"])
    await server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await redis.run(ECHO, [], [b"x"]) == [b"x"]
    await redis.close()


async def test_no_password_is_in_a_repr_or_a_log(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """B42."""
    redis = shared(server.url.replace("unix://", "unix://:hunter2@"))
    assert await redis.run(ECHO, [], [b"x"]) is None
    assert "hunter2" not in repr(redis) + caplog.text
    await redis.close()


def test_each_kind_of_address_gets_its_client() -> None:
    """A Cluster's keys are routed by slot, a Sentinel's server is looked up."""
    kinds = {
        "redis://h": Redis,
        "rediss://h": Redis,
        "unix:///s": Redis,
        "redis+sentinel://h/main": Redis,
        "redis+cluster://h,i": RedisCluster,
    }
    for url, kind in kinds.items():
        assert isinstance(shared(url)._client, kind)
