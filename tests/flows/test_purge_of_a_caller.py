"""What is private to one caller is forgotten by its token, everywhere; what others have stays."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from tests.flows.test_explain import http
from tests.flows.test_redis_replicas import linked
from tests.support.redis import RedisServer, redis_server
from tests.support.running import Clock, Running, running
from tests.support.scripted import Exchange, ScriptedUpstream, hang, result, tool

ANN, BOB = "TOK-ANN-SECRET", "TOK-BOB-SECRET"
OWN, SHARED = "alpha+a:own", "alpha+a:shared"
RESOURCES = [{"uri": uri.removeprefix("alpha+"), "name": uri} for uri in (OWN, SHARED)]


async def read(exchange: Exchange) -> None:
    """Answer a read; one resource is everybody's, the others are whose token it is."""
    uri = exchange.received.params["uri"]
    scope = "public" if uri == "a:shared" else "private"
    members = {"contents": [{"uri": uri, "text": uri}], "ttlMs": 60_000, "cacheScope": scope}
    await result(members)(exchange)


def upstream() -> ScriptedUpstream:
    server = ScriptedUpstream(resources=RESOURCES, tools=[tool("add")])
    server.on("resources/read", read)
    return server


async def purge(gateway: Running, token: str, **wish: str) -> None:
    body = json.dumps({"caller": True, **wish}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    reply = await http(gateway, "POST", "/purge", body, **headers)
    assert reply.status == 200, reply.body
    assert b"SECRET" not in reply.body
    assert all(len(one["caller"]) == 16 for one in reply.json["purged"])


async def found(gateway: Running, uri: str, token: str | None) -> str:
    """Return whether a read was answered from memory."""
    answer = await gateway.ask("resources/read", {"uri": uri}, token=token)
    return (answer.header("mcp-gateway-cache") or "").partition(";")[0]


async def test_one_callers_private_results_are_fetched_anew():
    """Ann's, kept calls included; Bob's and everybody's are hits, as Ann's of another method or upstream."""
    kept = {"calls": {"add": {"ttl": 60.0}}}
    async with (
        upstream() as alpha,
        upstream() as beta,
        running(
            {"alpha": {"url": alpha.url, "cache": kept}, "beta": beta}, clock=Clock(), admin="127.0.0.1:0"
        ) as gateway,
    ):

        async def all_found() -> dict[str, str]:
            call = await gateway.ask("tools/call", {"name": "alpha__add", "arguments": {}}, token=ANN)
            return {
                "ann": await found(gateway, OWN, ANN),
                "bob": await found(gateway, OWN, BOB),
                "shared": await found(gateway, SHARED, ANN),
                "call": (call.header("mcp-gateway-cache") or "").partition(";")[0],
                "beta": await found(gateway, "beta+a:own", ANN),
            }

        hits = dict.fromkeys(await all_found(), "hit")
        assert await all_found() == hits
        await purge(gateway, ANN)
        assert await all_found() == hits | {"ann": "miss", "call": "miss", "beta": "miss"}
        await purge(gateway, ANN, upstream="alpha")
        assert await all_found() == hits | {"ann": "miss", "call": "miss"}
        await purge(gateway, ANN, method="resources/read")
        assert await all_found() == hits | {"ann": "miss", "beta": "miss"}
        await purge(gateway, ANN, upstream="alpha", method="tools/call")
        assert await all_found() == hits | {"call": "miss"}
        await purge(gateway, "TOK-OF-NOBODY-SECRET")
        assert await all_found() == hits


async def test_a_joined_private_list_is_joined_anew():
    """The remembered whole goes with its parts; Bob's parts are still there."""
    async with (
        ScriptedUpstream(tools=[tool("a")], scope="private") as alpha,
        running(
            {"alpha": {"url": alpha.url, "auth": "forward"}}, clock=Clock(), admin="127.0.0.1:0"
        ) as gateway,
    ):
        for token in (ANN, BOB):
            await gateway.ask("tools/list", token=token)
        alpha.tools = [tool("b")]
        await purge(gateway, ANN)
        assert (await gateway.ask("tools/list", token=ANN)).names == ["alpha__b"]
        assert (await gateway.ask("tools/list", token=BOB)).names == ["alpha__a"]


async def test_what_was_being_fetched_is_not_kept():
    """It is older than the purge (C-32); it still answers who asked for it."""
    async with (
        upstream() as alpha,
        running({"alpha": alpha}, clock=Clock(), admin="127.0.0.1:0") as gateway,
    ):
        late = asyncio.Event()
        alpha.once("resources/read", hang(late, then=read))
        asking = asyncio.create_task(found(gateway, OWN, ANN))
        await alpha.arrived("resources/read")
        await purge(gateway, ANN)
        late.set()
        assert await asking == "bypass"
        assert [await found(gateway, OWN, ANN) for _ in range(2)] == ["miss", "hit"]


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


def sharing(alpha: ScriptedUpstream, server: RedisServer) -> AbstractAsyncContextManager[Running]:
    return running(
        {"alpha": alpha},
        cache={"redis": server.url, "redis_timeout": 1.0, "private_in_redis": True},
        secrets={"keys": ["0123456789abcdef-key"]},
        admin="127.0.0.1:0",
    )


async def test_on_every_replica_in_memory_and_in_redis(server: RedisServer):
    """Asked of one, it holds on the other at once, and a third that starts later finds nothing of it."""
    async with upstream() as alpha, sharing(alpha, server) as one, sharing(alpha, server) as two:
        await linked(one, two)
        for gateway in (one, two):
            for uri, token in ((OWN, ANN), (OWN, BOB), (SHARED, None)):
                await found(gateway, uri, token)
        assert len(alpha.seen("resources/read")) == 3
        await purge(one, ANN)
        async with sharing(alpha, server) as three:
            await linked(three)
            for gateway in (three, two, one):
                assert await found(gateway, OWN, BOB) == await found(gateway, SHARED, ANN) == "hit"
            assert [await found(gateway, OWN, ANN) for gateway in (three, two, one)] == ["miss", "hit", "hit"]
        stored = [(await server.ask("DUMP", key)) + key.encode() for key in await server.keys()]
        assert stored
        assert not [text for text in stored if b"SECRET" in text]


async def test_a_fetch_begun_before_on_another_replica_is_not_stored(server: RedisServer):
    """Whoever was told of the purge."""
    async with upstream() as alpha, sharing(alpha, server) as one, sharing(alpha, server) as two:
        await linked(one, two)
        late = asyncio.Event()
        alpha.once("resources/read", hang(late, then=read))
        asking = asyncio.create_task(found(two, OWN, ANN))
        await alpha.arrived("resources/read")
        await purge(one, ANN)
        late.set()
        assert await asking == "bypass"
        assert await found(one, OWN, ANN) == "miss"
        assert await found(two, OWN, ANN) == "hit"
