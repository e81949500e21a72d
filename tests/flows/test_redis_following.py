"""Replicas share one stream of each upstream: one holds it, the clients of all hear it (L-13 to L-18)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

from gateway.core.purge import Wish
from gateway.protocol.call import Change, UpstreamName
from gateway.support.bus import ANNOUNCE
from gateway.support.leases import SHARE
from tests.support.listening import TOOLS, TOOLS_CHANGED, UPDATED, listening, quiet, told, uris
from tests.support.redis import RedisServer, redis_proxy, redis_server
from tests.support.replicas import Place
from tests.support.running import Exchange, Running, running
from tests.support.scripted import Exchange as Asked
from tests.support.scripted import ScriptedUpstream, result, status, tool

pytestmark = pytest.mark.timeout(60)

SECRETS = {"keys": ["0123456789abcdef-key"]}
TASKS = "io.modelcontextprotocol/tasks"
NEWS = "com.example/news"
RESOURCES = [{"uri": f"a:{number}", "name": str(number)} for number in range(4)]


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")], resources=RESOURCES) as upstream:
        yield upstream


def sharing(
    upstream: ScriptedUpstream,
    server: Place,
    *,
    lease: float = 1.0,
    auth: str = "none",
    timeout: float = 1.0,
    **subscriptions: float,
) -> AbstractAsyncContextManager[Running]:
    """Run a replica; what it asks of Redis may take as long as a busy machine needs."""
    cache: Mapping[str, Any] = {"redis": server.url, "redis_timeout": timeout}
    return running(
        {"alpha": {"url": upstream.url, "auth": auth}},
        extensions=[NEWS, TASKS],
        cache=cache,
        secrets=SECRETS,
        subscriptions={"lease": lease, **subscriptions},
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what no event announces."""
    while not holds():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.005)


def task(status: str, **members: Any) -> dict[str, Any]:
    """Return a task as an upstream writes it."""
    times = {"createdAt": "2026-11-30T10:00:00Z", "lastUpdatedAt": "2026-11-30T10:00:01Z"}
    return {"taskId": "t-1", "status": status, "ttlMs": None, **times, **members}


class Hold:
    """Keeps a question of one replica back until it may `go`."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.go.wait()


def is_(standing: str, gateway: Running) -> bool:
    """Whether the stream is this to a replica: `mine`, `another's`, or its own since it is `alone`."""
    return f"<Lease {standing}," in repr(gateway.runtime.following)


async def one_holds(*gateways: Running) -> tuple[Running, ...]:
    """Wait until one of them holds the stream and the others hear it; return it first, and the others."""

    def settled() -> bool:
        mine = [one for one in gateways if is_("mine", one)]
        others = [one for one in gateways if is_("another's", one)]
        said = all(one.runtime.hub.state(UpstreamName("alpha")) == "following" for one in gateways)
        return len(mine) == 1 and len(others) == len(gateways) - 1 and said

    await until(settled)
    return tuple(sorted(gateways, key=lambda one: not is_("mine", one)))


@pytest.fixture
async def three(alpha: ScriptedUpstream, server: RedisServer) -> AsyncIterator[tuple[Running, ...]]:
    """Run three replicas; the first is the one that holds the stream."""
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(sharing(alpha, server)) for _ in range(3))
        yield await one_holds(*await asyncio.gather(*starting))


async def test_one_stream_serves_the_clients_of_all(
    alpha: ScriptedUpstream, three: tuple[Running, ...]
) -> None:
    """L-13, L-17: each hears of a change once, and finds the new list wherever it asks then."""
    await until(lambda: len(alpha.listens) == 1)  # who was late to see the others may have had his own
    opened = len(alpha.seen("subscriptions/listen"))
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(one, TOOLS)) for one in three]
        for version in ("b", "c", "d"):
            for one in three:
                await one.ask("tools/list")
            alpha.tools = [tool(version)]
            await alpha.notify(TOOLS_CHANGED)
            for number, stream in enumerate(streams):
                assert await told(stream) == (TOOLS_CHANGED, None)
                for step in (1, 2):
                    asked = three[(number + step) % 3]
                    assert (await asked.ask("tools/list")).names == [f"alpha__{version}"]
        assert len(alpha.seen("subscriptions/listen")) == opened
        for one in three:
            await quiet(one)
            assert await one.counted('notices_total{fate="delivered"}') == 3


async def test_the_holder_asks_for_what_the_others_want(
    alpha: ScriptedUpstream, three: tuple[Running, ...]
) -> None:
    """L-14, L-07: each resource is granted to its own client, told to it alone, and given up with it."""
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(one, uris(f"alpha+a:{number}")))
            for number, one in enumerate(three)
        ]
        await until(lambda: len(alpha.listens) == 1)
        assert sorted(alpha.listens[0].wanted["resourceSubscriptions"]) == ["a:0", "a:1", "a:2"]
        for number, stream in enumerate(streams):
            await alpha.notify(UPDATED, uri=f"a:{number}")
            assert await told(stream) == (UPDATED, f"alpha+a:{number}")
        for one in three:
            assert await one.counted('notices_total{fate="delivered"}') == 1
    await until(lambda: [one.wanted.get("resourceSubscriptions") for one in alpha.listens] == [None])


async def test_who_is_promised_something_is_told_of_it_from_then_on(
    alpha: ScriptedUpstream, three: tuple[Running, ...]
) -> None:
    """L-03, L-14: by a holder who asks for it on behalf of somebody else, or of one who has just left."""
    holder, other, _ = three
    async with listening(holder, uris("alpha+a:0")):
        for name in ("a:0", "a:1"):
            for _ in range(5):
                async with listening(other, uris(f"alpha+{name}")) as stream:
                    await alpha.notify(UPDATED, uri=name)
                    assert await told(stream) == (UPDATED, f"alpha+{name}")
                await until(lambda: "0 URIs" in repr(other.runtime.hub))


async def test_the_clients_of_all_replicas_share_what_an_upstream_may_be_asked_for(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """L-07, L-14: what the holder has no room for is promised on no replica, and what it has is kept."""
    async with (
        sharing(alpha, server, lease=600.0, uris_per_upstream=3) as one,
        sharing(alpha, server, lease=600.0, uris_per_upstream=3) as two,
    ):
        holder, other = await one_holds(one, two)
        async with listening(other, uris("alpha+x:1", "alpha+x:2")) as first:
            async with (
                listening(holder, uris("alpha+a:1", "alpha+a:2"), uris("alpha+a:1")) as second,
                listening(other, uris("alpha+a:0"), {}, id=2),
                listening(other, uris("alpha+b:1", "alpha+b:2", "alpha+b:3", "alpha+b:4"), {}, id=3),
            ):
                for stream, uri in ((first, "x:1"), (second, "a:1")):
                    await alpha.notify(UPDATED, uri=uri)
                    assert await told(stream) == (UPDATED, f"alpha+{uri}")
            await holder.subscribed(0)
            async with listening(holder, uris("alpha+a:2"), id=4) as third:
                await alpha.notify(UPDATED, uri="a:2")
                assert await told(third) == (UPDATED, "alpha+a:2")


async def test_what_was_asked_for_at_one_replica_is_told_to_nobody_else_at_another(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """L-06, L-21: though that one has not heard yet that it was, and when who asked for it has left."""
    async with (
        redis_proxy(server, [SHARE]) as proxy,
        sharing(alpha, server, lease=600.0, debounce=0.5) as one,
        sharing(alpha, server, lease=600.0) as two,
        sharing(alpha, proxy, lease=600.0, timeout=60.0) as late,
    ):
        await one_holds(one, two, late)
        assert is_("mine", one)
        async with listening(late, uris("alpha+a:1")) as stream:
            proxy.before[SHARE.name] = hold = Hold()
            async with listening(one, uris("alpha+a:0"), id=2) as other:
                await hold.reached.wait()
                for uri in ("a:0", "a:0/part", "a:1"):
                    await alpha.notify(UPDATED, uri=uri)
                assert await told(other) == (UPDATED, "alpha+a:0")
                assert await told(stream) == (UPDATED, "alpha+a:1")
            hold.go.set()
            await one.subscribed(0)
            for uri in ("a:0", "a:0/part", "a:1"):
                await alpha.notify(UPDATED, uri=uri)
            assert await told(stream) == (UPDATED, "alpha+a:1")


async def test_the_next_holder_is_there_when_one_stops(alpha: ScriptedUpstream, server: RedisServer) -> None:
    """Long before the lease would have ended; what was missed meanwhile is found out by all (L-18)."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(sharing(alpha, server, lease=600.0))
        async with sharing(alpha, server, lease=600.0) as two, sharing(alpha, server, lease=600.0) as three:
            await one_holds(first, two, three)
            wanted = {**TOOLS, **uris("alpha+a:1")}
            async with listening(two, wanted) as second, listening(three, TOOLS) as third:
                assert (await two.ask("tools/list")).names == ["alpha__a"]
                assert (await three.ask("tools/list")).names == ["alpha__a"]
                alpha.tools = [tool("b")]
                await stack.aclose()
                assert {await told(second), await told(second)} == {
                    (TOOLS_CHANGED, None),
                    (UPDATED, "alpha+a:1"),
                }
                assert await told(third) == (TOOLS_CHANGED, None)
                for one in await one_holds(two, three):
                    assert (await one.ask("tools/list")).names == ["alpha__b"]
                await until(lambda: len(alpha.listens) == 1)
                alpha.tools = [tool("c")]
                await alpha.notify(TOOLS_CHANGED)
                assert await told(second) == await told(third) == (TOOLS_CHANGED, None)
                for one, count in ((two, 3), (three, 2)):
                    await quiet(one)
                    assert await one.counted('notices_total{fate="delivered"}') == count


# Trouble of Redis


async def freeze(server: RedisServer) -> None:
    server.freeze()


async def thaw(server: RedisServer) -> None:
    server.thaw()


async def kill(server: RedisServer) -> None:
    await server.kill()


async def begin(server: RedisServer) -> None:
    await server.begin()


Step = Callable[[RedisServer], Awaitable[None]]


@pytest.mark.parametrize(("away", "back"), [(freeze, thaw), (kill, begin)])
async def test_each_follows_for_itself_while_redis_is_away(
    alpha: ScriptedUpstream, server: RedisServer, three: tuple[Running, ...], away: Step, back: Step
) -> None:
    """Nobody is deaf meanwhile, one stream remains afterwards, and nobody is told of what did not change."""
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(one, TOOLS)) for one in three]
        for one in three:
            await one.ask("tools/list")
        await away(server)
        try:
            await until(lambda: all(is_("alone", one) for one in three))
            await alpha.listening(3)
            alpha.tools = [tool("b")]
            await alpha.notify(TOOLS_CHANGED)
            for stream in streams:
                assert await told(stream) == (TOOLS_CHANGED, None)
        finally:
            await back(server)
        await one_holds(*three)
        await until(lambda: len(alpha.listens) == 1)
        for one in three:
            assert (await one.ask("tools/list")).names == ["alpha__b"]
            await quiet(one)
        alpha.tools = [tool("c")]
        await alpha.notify(TOOLS_CHANGED)
        for one, stream in zip(three, streams, strict=True):
            assert await told(stream) == (TOOLS_CHANGED, None)
            assert await one.counted('notices_total{fate="delivered"}') == 2


async def test_a_flush_leaves_one_stream_that_serves_all(
    alpha: ScriptedUpstream, server: RedisServer, three: tuple[Running, ...]
) -> None:
    """Lease and wishes are written anew; a resource may have been updated unheard, which is told once."""
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(one, {**TOOLS, **uris(f"alpha+a:{number}")}))
            for number, one in enumerate(three)
        ]
        (words,) = await server.keys("*:words")
        await server.ask("FLUSHALL")
        while await server.ask("HLEN", words) != 2 * 3:  # noqa: ASYNC110 - a version with each
            await asyncio.sleep(0.01)
        await one_holds(*three)
        await until(lambda: len(alpha.listens) == 1)
        await until(lambda: sorted(alpha.listens[0].wanted["resourceSubscriptions"]) == ["a:0", "a:1", "a:2"])
        await alpha.notify(TOOLS_CHANGED)
        for number, stream in enumerate(streams):
            notice = await told(stream)
            if notice[0] == UPDATED:
                assert notice == (UPDATED, f"alpha+a:{number}")
                notice = await told(stream)
            assert notice == (TOOLS_CHANGED, None)


async def test_what_may_have_been_missed_on_the_bus_is_found_out(
    alpha: ScriptedUpstream, three: tuple[Running, ...]
) -> None:
    """A replica that lost its link looks for itself; only what is another than before is told."""
    _, deaf, _ = three
    async with listening(deaf, TOOLS) as stream:
        await deaf.ask("tools/list")
        assert deaf.runtime.replicated is not None
        alpha.tools = [tool("b")]
        await deaf.runtime.catalogue.changed(Change(UpstreamName("alpha"), "tools/list"))
        deaf.runtime.replicated.bus.distrust()
        assert await told(stream) == (TOOLS_CHANGED, None)
        await quiet(deaf)
        assert await deaf.counted('notices_total{fate="delivered"}') == 1


# What one replica learns otherwise


async def test_a_purge_is_told_to_the_clients_of_all(three: tuple[Running, ...]) -> None:
    """Whoever an operator asked."""
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(one, TOOLS)) for one in three]
        await three[1].gateway.purge(Wish("alpha", "tools/list"))
        for stream in streams:
            assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_change_without_a_word_is_told_to_all_whoever_finds_it(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """Once to each, though all of them look."""
    alpha.capabilities, alpha.ttl_ms = {"tools": {}}, 0
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(sharing(alpha, server)) for _ in range(3))
        three = await asyncio.gather(*starting)
        await until(lambda: not any(is_("asking", one) for one in three))
        streams = [await stack.enter_async_context(listening(one, TOOLS)) for one in three]
        for one in three[:2]:
            await one.ask("tools/list")
        alpha.tools = [tool("b")]
        for one in three:
            assert (await one.ask("tools/list")).names == ["alpha__b"]
        for stream in streams:
            assert await told(stream) == (TOOLS_CHANGED, None)
        for one in three:
            await one.ask("tools/list")
            await quiet(one)
            assert await one.counted('notices_total{fate="delivered"}') == 1


async def test_a_restart_is_told_once_by_all(alpha: ScriptedUpstream, three: tuple[Running, ...]) -> None:
    """B04: each looks for what its own clients have seen, and tells them what another found, once."""
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(one, TOOLS)) for one in three]
        for one in three:
            await one.ask("tools/list")
        alpha.tools = [tool("b")]
        alpha.listens[0].cut()
        for stream in streams:
            assert await told(stream) == (TOOLS_CHANGED, None)
        for one in three:
            assert (await one.ask("tools/list")).names == ["alpha__b"]
            await quiet(one)
        for one in three:
            assert await one.counted('notices_total{fate="delivered"}') == 1


@pytest.mark.parametrize("listed_at", ["holder", "other"])
async def test_a_list_that_a_replica_gave_which_is_gone_is_compared_after_a_gap(
    alpha: ScriptedUpstream, server: RedisServer, listed_at: str
) -> None:
    """L-18, B04: who was given it listens elsewhere; when it is the same, nobody is told of it."""
    async with AsyncExitStack() as rest, AsyncExitStack() as first:
        one = await first.enter_async_context(sharing(alpha, server))
        two = await rest.enter_async_context(sharing(alpha, server))
        leaving, staying = await one_holds(one, two)
        if listed_at == "other":
            leaving, staying = staying, leaving
        stacks = {id(one): first, id(two): rest}
        async with AsyncExitStack() as streams:
            stream = await streams.enter_async_context(listening(staying, TOOLS))
            await leaving.ask("tools/list")
            await noted(server, 1)
            await stacks[id(leaving)].aclose()
            await one_holds(staying)
            await quiet(staying)
            assert await staying.counted('notices_total{fate="delivered"}') == 0
            await restarted(alpha, tool("b"))
            assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_list_that_was_fetched_anew_elsewhere_is_compared_after_a_gap(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """L-18: that its change was told before is no reason to say nothing of the next one."""
    async with AsyncExitStack() as rest, AsyncExitStack() as first:
        one = await first.enter_async_context(sharing(alpha, server))
        two = await rest.enter_async_context(sharing(alpha, server))
        async with AsyncExitStack() as streams:
            staying, leaving = await one_holds(one, two)
            stream = await streams.enter_async_context(listening(staying, TOOLS))
            await staying.ask("tools/list")
            await noted(server, 1)
            alpha.tools = [tool("b")]
            await alpha.notify(TOOLS_CHANGED)
            assert await told(stream) == (TOOLS_CHANGED, None)
            await quiet(staying)
            await leaving.ask("tools/list")
            await noted(server, 1)
            await (first if leaving is one else rest).aclose()
            await restarted(alpha, tool("c"))
            assert await told(stream) == (TOOLS_CHANGED, None)


async def noted(server: RedisServer, count: int) -> None:
    """Wait until so much is noted of what clients were given."""
    while True:
        notes = await server.keys("*:note:*")
        if sum([await server.ask("HLEN", note) for note in notes]) == count:
            return
        await asyncio.sleep(0.005)


async def restarted(upstream: ScriptedUpstream, *tools: Mapping[str, Any]) -> None:
    """Have an upstream go away and come back with other tools."""
    await upstream.stop()
    upstream.tools = list(tools)
    await upstream.start()


async def test_what_the_specification_does_not_know_reaches_all_who_do(
    alpha: ScriptedUpstream, three: tuple[Running, ...]
) -> None:
    """L-22: on every replica, and nobody else."""
    knows = {"extensions": {NEWS: {}}}
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(one, TOOLS, capabilities=knows, judged=False))
            for one in three
        ]
        await alpha.notify(f"notifications/{NEWS}/flash", headline="yes")
        for stream in streams:
            notice = await stream.event()
            assert notice["method"] == f"notifications/{NEWS}/flash"
            assert notice["params"]["headline"] == "yes"


async def test_a_task_is_told_wherever_its_caller_listens(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """L-23: created on one replica, listened for on another, told by a third; however large its result is."""
    alpha.capabilities["extensions"] = {TASKS: {}}
    alpha.on("tools/call", result({"resultType": "task", **task("working")}))
    knows: Any = {"token": "ANN", "capabilities": {"extensions": {TASKS: {}}}}
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(sharing(alpha, server)) for _ in range(3))
        three = await one_holds(*await asyncio.gather(*starting))
        created = await three[1].ask("tools/call", {"name": "alpha__a"}, **knows)
        wanted = {"taskIds": [created.result["taskId"]]}
        stream = await stack.enter_async_context(listening(three[2], wanted, **knows))
        await alpha.notify("notifications/tasks", **task("working"))
        assert (await stream.event())["params"]["taskId"] == created.result["taskId"]
        content = {"content": [{"type": "text", "text": "x" * 100_000}]}
        alpha.on("tasks/get", result(task("completed", result=content)))
        await alpha.notify("notifications/tasks", **task("completed", result=content))
        assert (await stream.event())["params"]["result"] == content


async def test_the_end_of_a_task_is_told_to_who_has_just_come_back(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """T-13: where another replica's stream has not been given it up yet."""
    alpha.capabilities["extensions"] = {TASKS: {}}
    alpha.on("tools/call", result({"resultType": "task", **task("working")}))
    knows: Any = {"capabilities": {"extensions": {TASKS: {}}}, "token": "ANN"}
    async with sharing(alpha, server) as one, sharing(alpha, server) as two:
        _, other = await one_holds(one, two)
        created = await other.ask("tools/call", {"name": "alpha__a"}, **knows)
        wanted = {"taskIds": [created.result["taskId"]]}
        for status_ in ("working", "completed"):
            async with listening(other, wanted, **knows) as stream:
                await alpha.notify("notifications/tasks", **task(status_))
                assert (await stream.event())["params"]["status"] == status_


async def test_an_upstream_that_cries_whenever_it_is_asked_causes_no_storm(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """B45: clients of three replicas that list at each word come to rest, and still hear of a change."""

    async def cry(exchange: Asked) -> None:
        await alpha.notify(TOOLS_CHANGED)
        await result({"tools": alpha.tools, "ttlMs": 60_000, "cacheScope": "public"})(exchange)

    notices = 0

    async def client(one: Running, stream: Exchange) -> None:
        nonlocal notices
        while True:
            assert await told(stream) == (TOOLS_CHANGED, None)
            notices += 1
            if (await one.ask("tools/list")).names == ["alpha__b"]:
                return

    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(sharing(alpha, server, gather=0.25)) for _ in range(3))
        three = await one_holds(*await asyncio.gather(*starting))
        streams = [await stack.enter_async_context(listening(one, TOOLS)) for one in three]
        for one in three:
            await one.ask("tools/list")
        alpha.on("tools/list", cry)
        clients = [asyncio.create_task(client(*each)) for each in zip(three, streams, strict=True)]
        await alpha.notify(TOOLS_CHANGED)
        before = -1
        while before != notices:
            before = notices
            await asyncio.sleep(1.5)  # far longer than a notice takes
        assert notices <= 40
        alpha.tools = [tool("b")]
        await alpha.notify(TOOLS_CHANGED)
        await asyncio.gather(*clients)


# Callers' own streams


async def test_a_callers_stream_is_held_where_its_credential_is(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """L-13: two replicas at which ann listens share one, bob's is his; the last one to leave ends it."""
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(sharing(alpha, server, auth="forward")) for _ in range(3))
        one, two, three = await asyncio.gather(*starting)
        anns = AsyncExitStack()
        first = await anns.enter_async_context(listening(one, TOOLS, token="ANN"))
        async with listening(two, {**TOOLS, **uris("alpha+a:1")}, token="ANN") as second:
            async with listening(three, TOOLS, token="BOB") as third:

                def shared() -> bool:
                    asked = [it.wanted.get("resourceSubscriptions") for it in alpha.listens]
                    return len(asked) == 2 and None in asked and ["a:1"] in asked

                await until(shared)  # for a while each may have had its own
                whose = {str(it.exchange.received.header("authorization")): it for it in alpha.listens}
                assert whose["Bearer ANN"].wanted["resourceSubscriptions"] == ["a:1"]
                await whose["Bearer ANN"].notify(TOOLS_CHANGED)
                assert await told(first) == (TOOLS_CHANGED, None)
                assert await told(second) == (TOOLS_CHANGED, None)
                await whose["Bearer BOB"].notify(TOOLS_CHANGED)
                assert await told(third) == (TOOLS_CHANGED, None)
                assert await three.counted('notices_total{fate="delivered"}') == 1
            await anns.aclose()
            await until(lambda: is_("mine", two) and len(alpha.listens) == 1)
            assert await told(second) == (UPDATED, "alpha+a:1")  # it may have been, in between
            await alpha.notify(UPDATED, uri="a:1")
            assert await told(second) == (UPDATED, "alpha+a:1")
        await alpha.unlistened()


async def test_what_was_promised_since_a_gap_was_not_missed_in_it(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """L-18: the word that a first stream was opened may come after the promise of what it tells."""
    async with (
        redis_proxy(server, [ANNOUNCE]) as proxy,
        sharing(alpha, proxy, auth="forward", lease=600.0, timeout=60.0) as one,
        sharing(alpha, server, auth="forward", lease=600.0) as two,
    ):
        proxy.before[ANNOUNCE.name] = hold = Hold()
        async with listening(one, TOOLS, token="ANN"):
            await hold.reached.wait()
            async with listening(two, {**TOOLS, **uris("alpha+a:1")}, token="ANN") as second:
                hold.go.set()
                await one.runtime.hub.settled()
                await until(lambda: len(alpha.listens) == 1)
                await alpha.notify(TOOLS_CHANGED)
                assert await told(second) == (TOOLS_CHANGED, None)
                alpha.listens[0].cut()
                assert await told(second) == (UPDATED, "alpha+a:1")


async def test_a_credential_that_is_refused_ends_the_callers_streams_everywhere(
    alpha: ScriptedUpstream, server: RedisServer
) -> None:
    """L-11: whichever replica the upstream said so to."""
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(sharing(alpha, server, auth="forward")) for _ in range(2))
        gateways = await asyncio.gather(*starting)
        streams = [await stack.enter_async_context(listening(one, TOOLS, token="ANN")) for one in gateways]
        await one_holds(*gateways)
        await until(lambda: len(alpha.listens) == 1)
        alpha.on("subscriptions/listen", status(401))
        alpha.listens[0].cut()
        for stream in streams:
            assert (await stream.event())["result"]["resultType"] == "complete"
