"""That of all replicas one holds a thing, that nobody is ever without, and that nobody speaks out of turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from gateway.config import parse_redis_url
from gateway.support.bus import RedisBus
from gateway.support.leases import Leases, Standing
from gateway.support.metrics import Metrics
from gateway.support.redis import SharedRedis
from gateway.support.seal import Seal
from gateway.support.tasks import Background
from tests.support.redis import RedisServer, redis_server

KEY = "t:1:{thing}:x"
SPOIL = """
for _, key in ipairs(redis.call('KEYS', 't:1:{thing}*')) do
  if redis.call('TYPE', key).ok == 'hash' then
    for _, field in ipairs(redis.call('HKEYS', key)) do redis.call('HSET', key, field, '9007199254740993') end
  else
    redis.call('DEL', key)
    redis.call('RPUSH', key, 'x')
  end
end
"""


class Replica:
    """One replica that wants the thing, holds it while it may, and says what it is told to."""

    def __init__(self, server: RedisServer, *keys: str, life: float = 1.0, enough: bytes = b"") -> None:
        self.ahead = 0.0
        self.background = Background()
        metrics, seal = Metrics(), Seal(keys or ("k",))
        self.redis = SharedRedis(parse_redis_url(server.url), timeout=2.0, metrics=metrics)
        self.bus = RedisBus(self.redis, seal, prefix="t", background=self.background, metrics=metrics)
        self.leases = Leases(
            self.redis,
            self.bus,
            seal,
            self.background,
            life=life,
            clock=lambda: asyncio.get_running_loop().time() + self.ahead,
        )
        self.enough = enough
        self.wish = b""
        self.missed = 0
        self.turns = 0
        self.acts = False

    async def __aenter__(self) -> "Replica":
        self.bus.start()
        self.lease = self.leases.lease(
            KEY,
            wish=lambda: self.wish,
            changed=lambda: None,
            missed=self._missed,
            suffices=lambda word: word >= self.enough,
        )
        self.background.start(self._work(), name="work")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leases.close()
        await self.bus.close()
        await self.background.close(1.0)
        await self.redis.close()

    async def _work(self) -> None:
        while True:
            async with self.lease.turn():
                self.turns += 1
                self.acts = True
                try:
                    await asyncio.Event().wait()
                finally:
                    self.acts = False

    def say(self, wish: bytes) -> None:
        self.wish = wish
        self.lease.wish()

    def _missed(self) -> None:
        self.missed += 1

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.005)

    async def becomes(self, standing: Standing) -> None:
        await self.until(lambda: self.lease.standing == standing)


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def test_one_holds_it_and_hears_what_the_others_want(server: RedisServer) -> None:
    """And they hear what it says of it; nothing of that can be read in Redis."""
    async with Replica(server, life=600.0) as one:
        await one.becomes("mine")
        async with Replica(server, life=600.0) as two, Replica(server, life=600.0) as three:
            await two.becomes("another's")
            two.say(b"wish of two")
            three.say(b"wish of three")
            await one.until(lambda: sorted(one.lease.others) == [b"wish of three", b"wish of two"])
            one.lease.grant(b"granted")
            for other in (two, three):
                await other.until(lambda it=other: it.lease.word == b"granted")  # type: ignore[misc] # bound now
                assert not other.acts
                assert not other.lease.holds
            assert one.acts
            assert one.lease.holds
            for key in await server.keys("t:1:{thing}*"):
                dumped = await server.ask("DUMP", key)
                assert b"wish" not in dumped
                assert b"granted" not in dumped
        await one.until(lambda: not one.lease.others)


async def test_who_wants_something_learns_when_the_holder_knows(server: RedisServer) -> None:
    """And not before; what was taken back meanwhile and is wanted again counts as another wish."""
    async with Replica(server, life=600.0) as one:
        await one.becomes("mine")
        async with Replica(server, life=600.0) as two:
            await two.becomes("another's")
            for wish in (b"a", b"b", b"", b"b"):
                two.say(wish)
                said = two.lease.wishes
                assert not two.lease.heard(said)
                await two.until(lambda it=said: two.lease.heard(it))  # type: ignore[misc] # bound now
                assert list(one.lease.others) == ([wish] if wish else [])


async def test_nobody_gives_way_to_who_does_not_know_what_he_wants(server: RedisServer) -> None:
    """What the holder says may be enough, and yet be said for others."""
    async with Replica(server, enough=b"2") as one:
        one.lease.grant(b"2")
        await one.becomes("mine")
        async with Replica(server, enough=b"3") as two:
            two.say(b"wish")
            await two.becomes("another's")
            two.bus.distrust()
            await two.until(lambda: not two.bus.hears)
            two.ahead = 2.0
            two.lease.stir()
            await two.becomes("alone")
            await two.until(lambda: two.bus.hears and two.lease.word == b"2")
            assert two.acts
            two.enough = b"2"
            two.say(b"another wish")
            await two.becomes("another's")
            assert list(one.lease.others) == [b"another wish"]


async def test_who_leaves_is_followed_at_once(server: RedisServer) -> None:
    """A lease of ten minutes is not waited for."""
    async with Replica(server, life=600.0) as two, AsyncExitStack() as stack:
        await two.becomes("mine")
        one = await stack.enter_async_context(Replica(server, life=600.0))
        await one.becomes("another's")
        await two.leases.close()
        await one.becomes("mine")


async def test_who_is_silent_is_followed_when_the_lease_is_over(server: RedisServer) -> None:
    """His wishes go with him."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Replica(server))
        await one.becomes("mine")
        async with Replica(server) as two:
            await two.becomes("another's")
            one.say(b"wish")
            await one.background.close(1.0)  # as though its process had died
            await two.becomes("mine")
            await two.until(lambda: not two.lease.others)


async def test_who_slept_through_his_lease_knows_before_he_speaks(server: RedisServer) -> None:
    """By his own clock, which went on."""
    async with Replica(server, life=600.0) as one:
        await one.until(lambda: one.acts)
        assert one.lease.holds
        one.ahead = 601.0
        assert not one.lease.holds
        assert one.acts  # what it has it keeps, until it hears that another serves it


async def test_without_redis_each_acts_for_himself_and_gives_way_to_who_serves_him(
    server: RedisServer,
) -> None:
    """Whoever acts goes on as he is; a holder who serves another less well than he does himself is no use."""
    async with Replica(server, enough=b"2") as one, Replica(server, enough=b"2") as two:
        for each in (one, two):
            each.lease.grant(b"1")
            await each.until(lambda it=each: it.lease.standing != "asking")  # type: ignore[misc] # bound now
        await server.kill()
        for each in (one, two):
            await each.becomes("alone")
            assert each.acts
            assert not each.lease.holds
        await server.begin()
        await one.until(lambda: "mine" in (one.lease.standing, two.lease.standing))
        holder, other = (one, two) if one.lease.standing == "mine" else (two, one)
        await other.until(lambda: other.lease.word == b"1")
        assert other.acts
        holder.lease.grant(b"2")
        await other.becomes("another's")
        await other.until(lambda: not other.acts)
        assert holder.acts


@pytest.mark.parametrize("trouble", [("FLUSHALL",), ("EVAL", SPOIL, 0)])
async def test_what_redis_lost_or_holds_as_garbage_is_said_again(
    server: RedisServer, trouble: tuple[str, ...]
) -> None:
    """One holds it afterwards, and knows what the other wants."""
    async with Replica(server) as one, Replica(server) as two:
        both = {one, two}
        for each in both:
            each.say(b"wish")
            each.lease.grant(b"granted")
        for _ in range(2):
            await one.until(lambda: {it.lease.standing for it in both} == {"mine", "another's"})
            await one.until(lambda: sorted(map(tuple, (it.lease.others for it in both))) == [(), (b"wish",)])
            await one.until(lambda: {it.lease.word for it in both} == {None, b"granted"})
            await server.ask(*trouble)
        await one.until(lambda: {it.lease.standing for it in both} == {"mine", "another's"})


async def test_who_may_have_missed_something_is_told_so(server: RedisServer) -> None:
    """Once for each session of the bus, but the first."""
    async with Replica(server, life=600.0) as one:
        await one.becomes("mine")
        assert one.missed == 0
        one.bus.distrust()
        await one.until(lambda: one.missed == 1)


@pytest.mark.parametrize("keys", [["new", "old"], ["old", "new", "old"]])
async def test_a_replica_in_the_middle_of_a_rotation_takes_part(server: RedisServer, keys: list[str]) -> None:
    """It seals with the key that all have, that of the names."""
    async with Replica(server, "old", life=600.0) as one, Replica(server, *keys, life=600.0) as two:
        await one.until(lambda: {one.lease.standing, two.lease.standing} == {"mine", "another's"})
        for each in (one, two):
            each.say(b"wish")
            each.lease.grant(b"granted")
        await one.until(lambda: {one.lease.word, two.lease.word} == {None, b"granted"})
        holder = one if one.lease.holds else two
        await one.until(lambda: list(holder.lease.others) == [b"wish"])


async def test_what_ends_a_turn_otherwise_is_passed_on(server: RedisServer) -> None:
    """A failure inside is none of the lease's business."""
    async with Replica(server, life=600.0) as one:
        await one.becomes("mine")
        with pytest.raises(TimeoutError, match="inside"):
            async with one.lease.turn():
                raise TimeoutError("inside")
