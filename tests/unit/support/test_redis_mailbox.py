"""That one replica is asked by another, however much there is to say, whatever becomes of either of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.support.mailbox import LocalMailbox, Unreachable
from gateway.support.redis_mailbox import _Frame
from tests.support.mailboxes import Post
from tests.support.redis import RedisServer, redis_proxy, redis_server


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def test_another_answers(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        assert await one.mailbox.ask(two.me, "echo", b"hello", timeout=20) == b"hello"
        assert await two.mailbox.ask(one.me, "echo", b"", timeout=20) == b""
        assert await one.mailbox.ask(one.me, "echo", b"self", timeout=20) == b"self"


@pytest.mark.parametrize("size", [1, 2**17 - 7, 2**17 - 6, 2**17 - 5, 3_000_001])
async def test_any_size_comes_whole_both_ways(server: RedisServer, size: int) -> None:
    """Parts are acknowledged, so few of them are under way; the largest message of all fits."""
    async with Post(server.url) as one, Post(server.url) as two:
        question = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert await one.mailbox.ask(two.me, "echo", question, timeout=60) == question


@pytest.mark.timeout(120)
async def test_the_largest_answer_comes_whole(server: RedisServer) -> None:
    """Although Redis cuts off a subscriber for whom it holds back that much."""
    async with Post(server.url, beat=1) as one, Post(server.url, beat=1) as two:
        assert len(await one.mailbox.ask(two.me, "size", b"33554432", timeout=None)) == 2**25


@pytest.mark.timeout(120)
async def test_many_are_asked_at_once(server: RedisServer) -> None:
    async with Post(server.url, beat=1) as one, Post(server.url, beat=1) as two:
        asks = (one.mailbox.ask(two.me, "echo", b"%d" % number, timeout=60) for number in range(200))
        assert await asyncio.gather(*asks) == [b"%d" % number for number in range(200)]
        assert two.asked == 200


async def test_what_is_told_meanwhile_comes_in_order(server: RedisServer) -> None:
    heard = []

    async def told(said: bytes) -> None:
        heard.append(said)

    async with Post(server.url) as one, Post(server.url) as two:
        assert await one.mailbox.ask(two.me, "tell", b"abc", timeout=20, told=told) == b"abc"
        assert await one.mailbox.ask(two.me, "tell", b"abc", timeout=20) == b"abc"
    assert heard == [b"a", b"b", b"c"]


async def test_who_is_slow_to_take_in_holds_up_who_tells(server: RedisServer) -> None:
    go, first = asyncio.Event(), asyncio.Event()
    heard = []

    async def told(said: bytes) -> None:
        heard.append(said)
        first.set()
        await go.wait()

    async with Post(server.url) as one, Post(server.url) as two:
        asking = asyncio.create_task(one.mailbox.ask(two.me, "tell", b"ab", timeout=60, told=told))
        await first.wait()
        assert await one.mailbox.ask(two.me, "echo", b"meanwhile", timeout=20) == b"meanwhile"
        assert heard == [b"a"]
        go.set()
        assert await asking == b"ab"


async def test_who_is_not_there_is_gone(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        for nobody in (LocalMailbox().me, "", "x", two.me + "x", two.me.upper() + "*"):
            with pytest.raises(Unreachable) as refused:
                await one.mailbox.ask(nobody, "echo", b"", timeout=60)
            assert refused.value.gone


async def test_what_nobody_answers_and_what_fails_is_said(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        with pytest.raises(Unreachable, match="'nothing'") as refused:
            await one.mailbox.ask(two.me, "nothing", b"", timeout=60)
        assert refused.value.gone
        with pytest.raises(Unreachable, match="failed") as refused:
            await one.mailbox.ask(two.me, "fail", b"", timeout=60)
        assert not refused.value.gone


async def test_what_is_too_large_is_said_either_way(server: RedisServer) -> None:
    async with Post(server.url, largest=1000) as one, Post(server.url, largest=1000) as two:
        for subject, question in (("echo", bytes(1001)), ("size", b"1001")):
            with pytest.raises(Unreachable, match="large"):
                await one.mailbox.ask(two.me, subject, question, timeout=60)
        assert len(await one.mailbox.ask(two.me, "size", b"1000", timeout=60)) == 1000
    async with Post(server.url) as one, Post(server.url, largest=1000) as two:
        with pytest.raises(Unreachable, match="no longer"):
            await one.mailbox.ask(two.me, "echo", bytes(2000), timeout=60)


async def test_who_gives_up_ends_the_work(server: RedisServer) -> None:
    """Whether cancelled or by his own time."""
    async with Post(server.url) as one, Post(server.url) as two:
        asking = asyncio.create_task(one.mailbox.ask(two.me, "hang", b"", timeout=None))
        await two.until(lambda: two.hanging == 1)
        asking.cancel()
        await two.until(lambda: two.hanging == 0)
        with pytest.raises(TimeoutError):
            await one.mailbox.ask(two.me, "hang", b"", timeout=0.1)
        await two.until(lambda: two.hanging == 0)


async def test_who_stops_says_so_to_both_sides(server: RedisServer) -> None:
    async with Post(server.url, beat=30) as one:
        async with Post(server.url, beat=30) as two:
            asking = asyncio.create_task(one.mailbox.ask(two.me, "hang", b"", timeout=None))
            await two.until(lambda: two.hanging == 1)
        with pytest.raises(Unreachable) as ended:
            await asking
        assert ended.value.gone
        async with Post(server.url, beat=30) as three:
            asking = asyncio.create_task(three.mailbox.ask(one.me, "hang", b"", timeout=None))
            await one.until(lambda: one.hanging == 1)
        with pytest.raises(Unreachable, match="stopping"):
            await asking
        await one.until(lambda: one.hanging == 0)
        with pytest.raises(Unreachable, match="stopping"):
            await three.mailbox.ask(one.me, "echo", b"", timeout=1)


async def test_a_link_that_is_lost_delays_and_loses_nothing(server: RedisServer) -> None:
    """What was under way is sent again; a question is worked on once."""
    async with Post(server.url, beat=1) as one, Post(server.url, beat=1) as two:
        asking = [
            asyncio.create_task(one.mailbox.ask(two.me, "echo", bytes(1_000_000), timeout=60))
            for _ in range(5)
        ]
        asking.append(asyncio.create_task(one.mailbox.ask(two.me, "tell", b"abcdefgh", timeout=60)))
        for _ in range(3):
            await asyncio.sleep(0)
            await server.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        answers = await asyncio.gather(*asking)
        assert answers == [bytes(1_000_000)] * 5 + [b"abcdefgh"]
        assert two.asked == 5


async def test_what_is_lost_on_the_way_is_sent_again(server: RedisServer) -> None:
    """Although the link stands, as when a Cluster drops what one node was to pass on to another."""
    async with (
        redis_proxy(server, ()) as proxy,
        Post(server.url, beat=0.3) as one,
        Post(proxy.url, beat=0.3) as two,
    ):
        proxy.deaf = True
        asking = asyncio.create_task(one.mailbox.ask(two.me, "echo", bytes(3_000_000), timeout=60))
        await published(server, 8)
        proxy.deaf = False
        assert await asking == bytes(3_000_000)
        assert two.asked == 1


async def test_who_hears_nothing_although_linked_links_anew(server: RedisServer) -> None:
    async with (
        redis_proxy(server, ()) as proxy,
        Post(server.url) as one,
        Post(proxy.url) as two,
    ):
        proxy.deaf = True
        with pytest.raises(Unreachable):
            await one.mailbox.ask(two.me, "hang", b"", timeout=60)
        proxy.deaf = False
        await two.mailbox.linked()
        assert await one.mailbox.ask(two.me, "echo", b"again", timeout=60) == b"again"


async def published(server: RedisServer, more: int) -> None:
    """Wait until so much more was published."""
    reached = None
    while reached is None or await publications(server) < reached:
        reached = reached or await publications(server) + more


async def publications(server: RedisServer) -> int:
    return int((await server.ask("INFO", "commandstats"))["cmdstat_publish"]["calls"])


async def test_a_redis_that_hangs_for_a_while_delays(server: RedisServer) -> None:
    async with (
        Post(server.url, beat=0.5, timeout=0.05) as one,
        Post(server.url, beat=0.5, timeout=0.05) as two,
    ):
        assert await one.mailbox.ask(two.me, "echo", b"", timeout=60) == b""
        server.freeze()
        asking = asyncio.create_task(one.mailbox.ask(two.me, "echo", b"late", timeout=60))
        await one.until(lambda: not one.redis.answers)
        server.thaw()
        assert await asking == b"late"


async def test_without_redis_nobody_is_taken_for_gone(server: RedisServer) -> None:
    async with Post(server.url, timeout=0.05) as one, Post(server.url, timeout=0.05) as two:
        hanging = asyncio.create_task(one.mailbox.ask(two.me, "hang", b"", timeout=None))
        await two.until(lambda: two.hanging == 1)
        server.freeze()
        for ask in (hanging, one.mailbox.ask(two.me, "echo", b"", timeout=60)):
            with pytest.raises(Unreachable) as refused:
                await ask
            assert not refused.value.gone
        await two.until(lambda: two.hanging == 0)
        server.thaw()
        await one.until(lambda: one.redis.answers)
        assert await one.mailbox.ask(two.me, "echo", b"back", timeout=60) == b"back"


async def test_it_survives_a_redis_that_died_and_came_back_empty(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        assert await one.mailbox.ask(two.me, "echo", b"1", timeout=60) == b"1"
        await server.kill()
        await server.begin()
        await one.mailbox.linked()
        await two.mailbox.linked()
        while True:
            try:
                assert await one.mailbox.ask(two.me, "echo", b"2", timeout=60) == b"2"
                break
            except Unreachable:
                await asyncio.sleep(0.05)


async def test_keys_may_be_rotated_one_replica_at_a_time(server: RedisServer) -> None:
    """Who has the new key alone, both, or the old one alone: neighbours understand each other."""
    async with (
        Post(server.url, "old") as old,
        Post(server.url, "new", "old") as both,
        Post(server.url, "new") as new,
    ):
        for one, two in ((old, both), (both, old), (both, new), (new, both)):
            assert await one.mailbox.ask(two.me, "echo", b"hello", timeout=60) == b"hello"
        with pytest.raises(Unreachable):
            await old.mailbox.ask(new.me, "echo", b"", timeout=60)


async def test_what_strangers_publish_is_ignored_and_counted(server: RedisServer) -> None:
    async with Post(server.url) as one, Post(server.url) as two:
        (channel,) = [
            channel
            for channel in await server.ask("PUBSUB", "CHANNELS", "mcpgw:1:bus:*")
            if channel.decode().endswith(two.me)
        ]
        for text in (b"", b"x", bytes(100)):
            assert await server.ask("PUBLISH", channel, text) == 1
        assert await one.mailbox.ask(two.me, "echo", b"hello", timeout=60) == b"hello"
        counted = await asyncio.to_thread(two.metrics.render)
        assert b"mcp_gateway_redis_unreadable_total 3.0" in counted


async def test_what_is_published_again_by_others_is_not_answered_again(server: RedisServer) -> None:
    """Neither at once nor when the question is forgotten."""
    async with Post(server.url) as one, Post(server.url, beat=0.05) as two:
        client = Redis(unix_socket_path=f"{server.folder}/redis.sock", protocol=2)
        async with client.pubsub() as link:
            await link.psubscribe("*")
            asking = asyncio.create_task(one.mailbox.ask(two.me, "echo", b"once" * 100, timeout=60))
            message = None
            while message is None or not (
                message["channel"].endswith(two.me.encode()) and len(message["data"]) > 400
            ):
                message = await link.get_message(ignore_subscribe_messages=True, timeout=None)
            await asking
            await client.publish(message["channel"], message["data"])
            await two.until(lambda: not two.mailbox._peers)
            await client.publish(message["channel"], message["data"])
        await client.aclose()
        assert await one.mailbox.ask(two.me, "echo", b"twice", timeout=60) == b"twice"
        assert two.asked == 2


async def test_nothing_is_kept_in_redis_nor_sent_in_the_clear(server: RedisServer) -> None:
    """What a user answers is neither kept nor readable on the way (M-25)."""
    canary = b"CANARY-of-a-user" * 10
    async with Post(server.url) as one, Post(server.url) as two:
        client = Redis(unix_socket_path=f"{server.folder}/redis.sock", protocol=2)
        async with client.pubsub() as link:
            await link.psubscribe("*")
            asking = asyncio.create_task(one.mailbox.ask(two.me, "echo", canary, timeout=60))
            heard: list[bytes] = []
            while sum(map(len, heard)) < 4 * len(canary):
                message = await link.get_message(ignore_subscribe_messages=True, timeout=None)
                heard += [message["data"]] if message is not None else []
            assert await asking == canary
        await client.aclose()
        assert not any(b"CANARY" in one for one in heard)
        assert await server.keys() == []


async def test_what_is_given_up_halfway_leaves_nothing_behind(server: RedisServer) -> None:
    """Neither room that nobody gives back, nor work, nor memory of who asked."""
    async with Post(server.url, beat=0.1) as one, Post(server.url, beat=0.1) as two:
        for subject, question in (("echo", bytes(1_000_000)), ("size", b"1000000"), ("tell", bytes(50))):
            asking = [
                asyncio.create_task(one.mailbox.ask(two.me, subject, question, timeout=None))
                for _ in range(4)
            ]
            for index, ask in enumerate(asking):
                before = await publications(server)
                while await publications(server) < before + index:
                    pass
                ask.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        for asks, other in ((one, two), (two, one)):
            assert await asks.mailbox.ask(other.me, "echo", bytes(500_000), timeout=None) == bytes(500_000)
        await one.until(lambda: not one.mailbox._peers and not two.mailbox._peers)


async def test_a_question_half_sent_by_who_was_killed_is_forgotten(server: RedisServer) -> None:
    async with Post(server.url, beat=0.05) as two:
        async with Post(server.url, beat=0.05) as one:
            peer = one.mailbox._peer(two.me)
            frame = _Frame(one.me, "ask", 1, 0, b"+echo\nhalf of it")
            assert await one.mailbox._put(peer, frame)
            await two.until(lambda: bool(two.mailbox._peers))
        await two.until(lambda: not two.mailbox._peers)
        assert two.asked == 0
