"""Gateways that share a Redis answer as one cache, and each for itself while it is away (B08, B39, B51)."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from gateway.protocol.call import Change, UpstreamName
from tests.support.listening import TOOLS, TOOLS_CHANGED, listening, told
from tests.support.redis import RedisServer, redis_server
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, tool

SECRETS = {"keys": ["0123456789abcdef-key"]}
ALPHA = UpstreamName("alpha")


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


def sharing(
    upstream: ScriptedUpstream, server: RedisServer, **cache: Any
) -> AbstractAsyncContextManager[Running]:
    """Run a gateway in front of this upstream, on this Redis."""
    settings: Mapping[str, Any] = {"redis": server.url, "redis_timeout": 1.0, **cache}
    return running({"alpha": upstream}, cache=settings, secrets=SECRETS, admin="127.0.0.1:0")


async def linked(*gateways: Running, state: str = "up") -> None:
    for gateway in gateways:
        while await redis_state(gateway) != state:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


async def redis_state(gateway: Running) -> object:
    return (await gateway.gateway.look()).cache.redis


async def test_a_public_list_is_fetched_once_for_all_gateways(server: RedisServer) -> None:
    """The second gateway asks the upstream for nothing that the first has fetched."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        sharing(alpha, server) as one,
        sharing(alpha, server) as two,
    ):
        await linked(one, two)
        first = await one.ask("tools/list")
        assert (await two.ask("tools/list")).names == first.names == ["alpha__a"]
        assert len(alpha.seen("tools/list")) == 1


async def test_a_private_list_is_nobody_elses_on_any_gateway(server: RedisServer) -> None:
    """B08, also where private results lie in Redis: ann's is served to ann."""
    async with (
        ScriptedUpstream(tools=[tool("a")], scope="private") as alpha,
        sharing(alpha, server, private_in_redis=True) as one,
        sharing(alpha, server, private_in_redis=True) as two,
    ):
        await linked(one, two)
        for expected, token in ((1, "TOK-A"), (1, "TOK-A"), (2, "TOK-B"), (2, "TOK-B")):
            await one.ask("tools/list", token=token)
            await two.ask("tools/list", token=token)
            assert len(alpha.seen("tools/list")) == expected


async def test_a_change_heard_by_one_is_forgotten_by_all(server: RedisServer) -> None:
    """Joined answers included: when it is announced, every gateway asks anew."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        sharing(alpha, server) as one,
        sharing(alpha, server) as two,
    ):
        await linked(one, two)
        for gateway in (one, two, one, two):
            await gateway.ask("tools/list")
        alpha.tools = [tool("b")]
        await one.runtime.catalogue.changed(Change(ALPHA, "tools/list"))
        for gateway in (two, one):
            assert (await gateway.ask("tools/list")).names == ["alpha__b"]


async def test_who_is_told_of_a_change_finds_the_list_new_on_any_gateway(server: RedisServer) -> None:
    """B04 d: forgotten by all before anybody is told (L-17)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        sharing(alpha, server) as one,
        sharing(alpha, server) as two,
    ):
        await linked(one, two)
        async with listening(one, TOOLS) as first, listening(two, TOOLS) as second:
            for gateway in (one, two):
                await gateway.ask("tools/list")
            alpha.tools = [tool("b")]
            await alpha.notify(TOOLS_CHANGED)
            for stream, other in ((first, two), (second, one)):
                assert await told(stream) == (TOOLS_CHANGED, None)
                assert (await other.ask("tools/list")).names == ["alpha__b"]


async def test_while_redis_is_away_every_request_is_answered(server: RedisServer) -> None:
    """Uncached, since no change would be heard of; and cached again when it is back."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, sharing(alpha, server) as one:
        await linked(one)
        await one.ask("tools/list")
        await server.kill()
        await linked(one, state="down")
        alpha.tools = [tool("b")]
        for _ in range(3):
            assert (await one.ask("tools/list")).names == ["alpha__b"]
        assert await one.counted("redis_linked") == 0
        await server.begin()
        await linked(one)
        before = len(alpha.seen("tools/list"))
        for _ in range(3):
            assert (await one.ask("tools/list")).names == ["alpha__b"]
        assert len(alpha.seen("tools/list")) == before + 1
        assert await one.counted("redis_linked") == 1


@pytest.mark.parametrize("trouble", ["freeze", "kill"])
async def test_readiness_says_degraded_while_redis_is_away(server: RedisServer, trouble: str) -> None:
    """200 all the while; status and metrics agree with it, and with its being back."""

    async def said(one: Running) -> tuple[object, ...]:
        code, ready = await one.admin("/readyz")
        _, status = await one.admin("/status.json")
        assert (ready["status"], ready["redis"]) == (status["phase"], status["cache"]["redis"])
        return code, ready["status"], ready["redis"], ready["upstreams"]

    async with ScriptedUpstream() as alpha, sharing(alpha, server) as one:
        await linked(one)
        assert await said(one) == (200, "ready", "up", {"alpha": "up"})
        assert (await one.counted("redis_linked"), await one.counted("redis_answers")) == (1, 1)
        if trouble == "freeze":
            server.freeze()
        else:
            await server.kill()
        await linked(one, state="down")
        assert await said(one) == (200, "degraded", "down", {"alpha": "up"})
        # Nobody asks over a link that is known to be lost.
        while 0 not in (await one.counted("redis_linked"), await one.counted("redis_answers")):
            pass
        assert (await said(one))[:3] == (200, "degraded", "down")
        if trouble == "freeze":
            server.thaw()
        else:
            await server.begin()
        await linked(one)
        assert await said(one) == (200, "ready", "up", {"alpha": "up"})
        assert (await one.counted("redis_linked"), await one.counted("redis_answers")) == (1, 1)


async def test_a_gateway_starts_without_its_redis(server: RedisServer) -> None:
    """It serves, says that it is alone, and joins when it can."""
    await server.kill()
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, sharing(alpha, server) as one:
        assert await redis_state(one) == "down"
        assert (await one.ask("tools/list")).names == ["alpha__a"]
        await server.begin()
        await linked(one)


async def test_a_frozen_redis_holds_no_request_beyond_its_deadline(server: RedisServer) -> None:
    """It accepts and never answers; all requests are answered while it still stands."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        sharing(alpha, server, redis_timeout=0.05) as one,
    ):
        await linked(one)
        server.freeze()
        try:
            answers = await asyncio.gather(*(one.ask("tools/list", token=f"T{n}") for n in range(20)))
            assert all(answer.names == ["alpha__a"] for answer in answers)
        finally:
            server.thaw()
        await linked(one)
