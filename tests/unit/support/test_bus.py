"""That what one replica announces is handled by all before it goes on, and that a gap is never overlooked."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from gateway.config import parse_redis_url
from gateway.support.bus import ANNOUNCE, LocalBus, RedisBus
from gateway.support.metrics import Metrics
from gateway.support.redis import SharedRedis
from gateway.support.seal import Seal
from gateway.support.tasks import Background
from tests.support.redis import RedisServer, redis_proxy, redis_server
from tests.support.replicas import Place

WAITED = "did not confirm"
"""What the log says when a lease was waited for."""


class Replica:
    """One end of the bus, and what it was told."""

    def __init__(self, server: Place, *keys: str, lease: float = 5.0) -> None:
        self.background = Background()
        self.slept = 0.0
        """Seconds for which nothing of it ran."""
        self.metrics, self.told = Metrics(), Metrics()
        self.redis = SharedRedis(parse_redis_url(server.url), timeout=5.0, metrics=self.metrics)
        self.bus = RedisBus(
            self.redis,
            Seal(keys or ("k",)),
            prefix="t",
            background=self.background,
            metrics=self.told,
            lease=lease,
            clock=lambda: time.monotonic() + self.slept,
        )
        self.heard: list[bytes] = []
        self.gaps = 0
        self.bus.watch(self._lost)
        self.bus.subscribe("news", self.heard.append)

    def _lost(self) -> None:
        self.gaps += 1

    async def __aenter__(self) -> "Replica":
        self.bus.start()
        await self.until(lambda: self.bus.hears)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bus.close()
        await self.background.close(1.0)
        await self.redis.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - the bus has no event for a test to wait for
            await asyncio.sleep(0.005)


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def bus_channel(server: RedisServer) -> str:
    channels = [name.decode() for name in await server.ask("PUBSUB", "CHANNELS", "t:*")]
    return next(name for name in channels if name.count(":") == 3)


async def test_alone_there_is_nobody_to_tell() -> None:
    """Without Redis the bus is always well, and nothing ever comes."""
    bus = LocalBus()
    bus.subscribe("news", lambda _: pytest.fail("nobody else is there"))
    assert await bus.announce("news", b"x")
    assert await bus.publish("news", b"x")
    bus.watch(lambda: pytest.fail("nothing is ever lost"))
    bus.distrust()
    assert (bus.hears, bus.session) == (True, 1)


async def test_on_return_every_other_replica_has_handled_it(server: RedisServer) -> None:
    """Nobody can be told of a change while another replica has not heard of it."""
    async with Replica(server) as one, Replica(server) as two, Replica(server) as three:
        for number in range(20):
            assert await one.bus.announce("news", b"%d" % number)
            assert two.heard[-1] == three.heard[-1] == b"%d" % number
        assert len(two.heard) == 20
        assert one.heard == []


async def test_no_lease_is_waited_for_where_all_confirm(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten announcements at once take what their messages take."""
    async with Replica(server) as one, Replica(server) as two:
        await asyncio.gather(*(one.bus.announce("news", b"x") for _ in range(10)))
        assert len(two.heard) == 10
    assert WAITED not in caplog.text


async def test_what_is_only_told_is_heard_and_confirmed_by_nobody(server: RedisServer) -> None:
    """It is not counted either: whoever misses it has missed nothing that matters."""
    async with Replica(server) as one, Replica(server) as two:
        for number in range(20):
            await one.bus.tell("news", b"%d" % number)
        await two.until(lambda: len(two.heard) == 20)
        assert await one.bus.announce("news", b"x")
        confirmed = 'redis_operations_total{operation="confirm",outcome="ok"} '
        while confirmed not in (text := (await asyncio.to_thread(two.metrics.render)).decode()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert f"{confirmed}1.0" in text
        assert one.heard == []
        assert (one.bus.session, two.bus.session, one.gaps, two.gaps) == (1, 1, 0, 0)


async def test_a_lost_link_is_noticed_and_made_anew(server: RedisServer) -> None:
    """What may have been missed begins a new session; the owner is told at once."""
    async with Replica(server) as one, Replica(server) as two:
        session = two.bus.session
        await server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        await two.until(lambda: two.gaps == 1)
        assert not two.bus.hears
        for replica in (one, two):
            await replica.until(lambda replica=replica: replica.bus.hears)  # type: ignore[misc]
        assert two.bus.session > session
        assert await one.bus.announce("news", b"again")
        assert two.heard == [b"again"]


async def test_a_server_that_dies_and_returns_is_found_again(server: RedisServer) -> None:
    """Announcing fails at once while it is away; nobody waits for it."""
    async with Replica(server) as one:
        await server.kill()
        await one.until(lambda: not one.bus.hears)
        assert await one.bus.announce("news", b"x") is False
        await server.begin()
        await one.until(lambda: one.bus.hears)
        assert await one.bus.announce("news", b"x")


async def test_a_frozen_server_ends_the_lease(server: RedisServer) -> None:
    """It closes no connection; without a sign of life for a lease, what is remembered is not acted upon."""
    async with Replica(server, lease=0.5) as one:
        server.freeze()
        try:
            await one.until(lambda: not one.bus.hears)
            assert await one.bus.announce("news", b"x") is False
            await one.until(lambda: one.gaps == 1)
        finally:
            server.thaw()
        await one.until(lambda: one.bus.hears)


async def test_who_slept_through_its_lease_does_not_hear_from_the_first_moment_on(
    server: RedisServer,
) -> None:
    """A process that was stopped may go on with a request before it looks at its link."""
    async with Replica(server) as one:
        one.slept = 6.0
        assert not one.bus.hears
        await one.until(lambda: one.bus.hears)
        assert one.gaps == 0, "what was sent meanwhile has been heard before it hears again"


async def test_who_does_not_confirm_delays_nobody_beyond_a_lease(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """By then he no longer acts on what he remembers, for his own lease is over."""
    async with Replica(server, lease=0.5) as one, Replica(server, lease=0.5) as two:
        await server.ask("ZADD", (await server.keys("*replicas"))[0], 2**52, "somebody-hung")
        assert await one.bus.announce("news", b"x")
        assert two.heard == [b"x"]
    assert f"1 replicas {WAITED} a change in 0.5s" in caplog.text


async def test_a_hung_replica_is_waited_for_once(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection stays, but a lease later it is on no list any more."""
    async with Replica(server, lease=0.5) as one:
        (members,), (told,) = await server.keys("*replicas"), await server.keys("*told")
        reader, writer = await asyncio.open_unix_connection(server.url.removeprefix("unix://"))
        writer.write(f"SUBSCRIBE {await bus_channel(server)}\r\n".encode())
        await reader.readuntil(b":1\r\n")
        await server.ask("HSET", told, "since", 0)
        seconds, microseconds = await server.ask("TIME")
        await server.ask("ZADD", members, seconds * 1000 + microseconds // 1000 + 500, "hung")
        for _ in range(4):
            assert await one.bus.announce("news", b"x")
        writer.close()
    assert caplog.text.count(WAITED) == 1


async def test_who_is_not_on_a_list_that_began_anew_is_waited_for(server: RedisServer) -> None:
    """Redis was flushed, and the other has not enrolled again yet: nobody goes on before it has heard."""
    async with (
        redis_proxy(server, []) as proxy,
        Replica(server, lease=60.0) as one,
        Replica(proxy, lease=60.0) as two,
    ):
        await server.ask("FLUSHALL")
        proxy.delivers.clear()
        announcing = asyncio.create_task(one.bus.announce("news", b"x"))
        await proxy.holds.wait()
        await one.redis.run(ANNOUNCE, ["a", "b"], ["c", b"", 0])  # an answer later than that
        assert (announcing.done(), two.heard) == (False, [])
        proxy.delivers.set()
        await announcing


async def test_a_message_that_was_lost_on_the_way_is_noticed(server: RedisServer) -> None:
    """By the next that comes, or that says that none has: what is remembered is given up."""
    async with Replica(server) as one, Replica(server) as two:
        (told,) = await server.keys("*told")
        await server.ask("HSET", told, "last", 5)
        await two.until(lambda: two.gaps == 1)
        await two.until(lambda: two.bus.hears)
        assert two.bus.session == 2
        await server.ask("HSET", told, "last", 7)
        assert await one.bus.announce("news", b"x")
        assert (two.gaps, two.heard) == (2, [b"x"])


async def test_who_left_is_not_waited_for(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """A replica that stops says so."""
    async with Replica(server) as one:
        async with Replica(server):
            pass
        assert await one.bus.announce("news", b"x")
    assert WAITED not in caplog.text


async def test_nothing_of_a_message_can_be_read_on_the_way(server: RedisServer) -> None:
    """A uri may hold a secret; Redis is shown none."""
    seen: list[bytes] = []
    async with Replica(server) as one, Replica(server) as two:
        watching = asyncio.create_task(_watch(server, seen))
        while not seen:  # noqa: ASYNC110 - MONITOR has begun
            await asyncio.sleep(0.01)
        await one.bus.announce("news", b"file:///x?key=hunter2")
        watching.cancel()
        assert two.heard == [b"file:///x?key=hunter2"]
    assert not any(b"hunter2" in line or b"news" in line for line in seen)


async def _watch(server: RedisServer, seen: list[bytes]) -> None:
    reader, writer = await asyncio.open_unix_connection(server.url.removeprefix("unix://"))
    try:
        writer.write(b"MONITOR\r\n")
        while line := await reader.readline():
            seen.append(line)
    finally:
        writer.close()


@pytest.mark.parametrize("garbage", [b"garbage", b"", b"::", b"1:2:garbage", b"\xff:\xff:\xff"])
async def test_an_unreadable_message_is_a_strangers(server: RedisServer, garbage: bytes) -> None:
    """It is counted, and costs nobody what he remembers: had a replica sent it, the next would be missed."""
    async with Replica(server) as one, Replica(server) as two:
        await server.ask("PUBLISH", await bus_channel(server), garbage)
        assert await one.bus.announce("news", b"x")
        assert (one.gaps, two.gaps, two.heard) == (0, 0, [b"x"])
        assert "redis_unreadable_total 1.0" in (await asyncio.to_thread(two.told.render)).decode()


async def test_what_is_published_is_heard_or_missed(server: RedisServer) -> None:
    """Nobody waits for it, and whoever does not hear it gives up what he remembers."""
    async with redis_proxy(server, []) as proxy, Replica(server) as one, Replica(proxy) as two:
        await server.ask("ZADD", (await server.keys("*replicas"))[0], 2**52, "somebody-hung")
        assert await one.bus.publish("news", b"x")
        await two.until(lambda: two.heard == [b"x"])
        proxy.deaf = True
        assert await one.bus.publish("news", b"y")
        await two.until(lambda: not two.bus.hears or two.gaps > 0)
        proxy.deaf = False
        await two.until(lambda: two.gaps > 0 and two.bus.hears)
        assert two.heard == [b"x"]


async def test_what_cannot_be_published_is_not(server: RedisServer) -> None:
    """Whoever meant to tell it knows."""
    async with Replica(server) as one:
        await server.kill()
        assert await one.bus.publish("news", b"x") is False


async def test_a_deaf_replica_is_waited_for_no_longer_than_its_last_lease(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commands work and its subscription stands, but it asks for no lease before it has heard itself."""
    async with (
        redis_proxy(server, []) as proxy,
        # Long enough that a machine which stands still for a moment does not cost the other his own lease.
        Replica(server, lease=2.0) as one,
        Replica(proxy, lease=2.0) as two,
    ):
        proxy.deaf = True
        linked = two.bus._me
        await two.until(lambda: two.gaps == 1)
        await two.until(lambda: two.bus._me != linked and two.bus._linked)
        caplog.clear()
        (members,) = await server.keys("*replicas")
        for _ in range(20):
            assert await one.bus.announce("news", b"x")
            assert [one.bus._me.encode()] == await server.ask("ZRANGE", members, 0, -1)
        assert WAITED not in caplog.text
        proxy.deaf = False
        await two.until(lambda: two.bus.hears)
        assert await one.bus.announce("news", b"y")
        assert two.heard[-1] == b"y"


async def test_who_loses_the_link_resigns(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """He has stopped to act on what he remembers, so nobody need wait until his lease is over."""
    async with Replica(server, lease=60.0) as one, Replica(server, lease=60.0) as two:
        left = two.bus._me.encode()
        (members,) = await server.keys("*replicas")
        assert left in await server.ask("ZRANGE", members, 0, -1)
        two.bus.distrust()
        while left in await server.ask("ZRANGE", members, 0, -1):  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.005)
        assert await one.bus.announce("news", b"x")
    assert WAITED not in caplog.text


@pytest.mark.parametrize("keys", [["new", "old"], ["old", "new", "old"]])
async def test_replicas_in_the_middle_of_a_rotation_hear_each_other(
    server: RedisServer, keys: list[str]
) -> None:
    """Whatever the order: old and old+new, old+new and new; a key that is there twice is no other one."""
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(Replica(server, "old"))
        both = await stack.enter_async_context(Replica(server, *keys))
        new = await stack.enter_async_context(Replica(server, "new"))
        assert await both.bus.announce("news", b"from both")
        assert (old.heard[-1], new.heard[-1]) == (b"from both", b"from both")
        await old.bus.announce("news", b"from old")
        assert both.heard[-1] == b"from old"
        await new.bus.announce("news", b"from new")
        assert both.heard[-1] == b"from new"


async def test_other_deployments_on_the_same_redis_are_not_heard(server: RedisServer) -> None:
    """Another key is another channel: neither told nor waited for."""
    async with Replica(server, "a") as one, Replica(server, "b") as other:
        assert await one.bus.announce("news", b"x")
        assert (other.heard, other.gaps) == ([], 0)


async def test_a_session_begins_with_its_preparation(server: RedisServer) -> None:
    """Until it went well nothing is trusted; when it fails the link is made anew."""
    replica = Replica(server)
    outcomes = [False, True]
    trusted: list[bool] = []

    async def prepare() -> bool:
        trusted.append(replica.bus.hears)
        return outcomes.pop(0)

    replica.bus.prepare = prepare
    async with replica:
        assert (outcomes, trusted) == ([], [False, False])
        assert replica.bus.session == 2


async def test_distrust_begins_a_new_session(server: RedisServer) -> None:
    """Whoever could not tell the others something makes sure that it is told again."""
    async with Replica(server) as one:
        one.bus.distrust()
        assert (one.bus.hears, one.gaps) == (False, 1)
        await one.until(lambda: one.bus.hears)
        assert one.bus.session == 2
