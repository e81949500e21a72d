"""What waits for a client is a set: bounded by what it asked for, and each thing told once (L-20)."""

import asyncio
import json
from typing import Any

import pytest

from gateway.core.subscription import Key, Round, Subscription
from gateway.protocol.call import Notice
from gateway.protocol.subscriptions import Circular, Wanted, circular

TOOLS = ("notifications/tools/list_changed", ""), circular("notifications/tools/list_changed", {})


def note(uri: str) -> tuple[Key, Circular]:
    method = "notifications/resources/updated"
    return (method, uri), circular(method, {"uri": b'"%s"' % uri.encode()})


class Client:
    """Takes what it is told, once the test lets it; `most` of it, then it is slow until it is let again."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.most = 10_000
        self.waits = asyncio.Event()
        self.takes = asyncio.Event()
        self.left: Exception | None = None

    async def emit(self, notice: Notice) -> None:
        raise AssertionError("what is relayed is told without waiting")

    def tell(self, before: bytes, id: bytes, behind: bytes) -> bool:
        if len(self.told) >= self.most:
            return False
        self.told.append(json.loads(before + id + behind))
        return True

    async def writable(self) -> None:
        self.waits.set()
        await self.takes.wait()
        if self.left is not None:
            raise self.left

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.told]

    @property
    def uris(self) -> list[str]:
        return [message["params"]["uri"] for message in self.told]


class Relay:
    """A stream and its client, whose request's task runs for as long as the block."""

    def __init__(self, stream: Subscription, client: Client, round: Round) -> None:
        self._relaying = stream.relay(client, round)

    async def __aenter__(self) -> "asyncio.Task[None]":
        self._task = asyncio.create_task(self._relaying)
        await turns()
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def turns() -> None:
    """Let the loop do all that can be done now."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def stream() -> Subscription:
    return Subscription(b'"id"', "/mcp", None, Wanted(tools=True))


async def test_a_change_that_was_not_told_yet_is_told_once(stream: Subscription) -> None:
    """However often it happened."""
    client, round = Client(), Round([0.0])
    assert [stream.tell(*TOOLS) for _ in range(3)] == [True, False, False]
    stream.end("stopping")
    await stream.relay(client, round)
    assert client.methods == [TOOLS[0][0]]
    assert client.told[0]["params"] == {"_meta": {"io.modelcontextprotocol/subscriptionId": "id"}}
    assert round.told == [1.0]


async def test_changes_that_come_together_are_told_once_in_the_next_round(stream: Subscription) -> None:
    """The stream's own task sleeps on."""
    client, round = Client(), Round([0.0])
    async with Relay(stream, client, round) as task:
        stream.tell(*note("a:1"))
        stream.tell(*note("a:2"))
        stream.tell(*note("a:1"))
        assert client.told == []
        assert repr(round) == "<Round 1 due>"
        await turns()
        assert client.uris == ["a:1", "a:2"]
        stream.tell(*note("a:1"))
        await turns()
        assert client.uris == ["a:1", "a:2", "a:1"]
        assert round.told == [3.0]
        assert not task.done()
        stream.end("expired")
        await task


async def test_a_change_while_the_client_takes_its_time_is_told_once_afterwards(
    stream: Subscription,
) -> None:
    """Or the last change would be lost (B45); what it has taken already it is not told again."""
    client, round = Client(), Round([0.0])
    client.most = 2
    async with Relay(stream, client, round) as task:
        for number in range(4):
            stream.tell(*note(f"a:{number}"))
        await client.waits.wait()
        assert client.uris == ["a:0", "a:1"]
        for _ in range(1000):
            stream.tell(*note("a:0"))
            stream.tell(*note("a:3"))
        await turns()
        assert "3 pending" in repr(stream)
        client.most = 10_000
        client.takes.set()
        stream.end("stopping")
        await task
    assert client.uris == ["a:0", "a:1", "a:2", "a:3", "a:0"]
    assert round.told == [5.0]


async def test_a_client_that_left_while_it_was_told_ends_its_own_request(stream: Subscription) -> None:
    """A round goes on to the next stream."""
    gone, there, round = Client(), Client(), Round([0.0])
    other = Subscription(b"2", "/mcp", None, Wanted(tools=True))
    gone.most, gone.left = 0, ConnectionResetError("left")
    gone.takes.set()
    async with Relay(stream, gone, round) as left, Relay(other, there, round):
        stream.tell(*TOOLS)
        other.tell(*TOOLS)
        await turns()
        assert isinstance(left.exception(), ConnectionResetError)
        assert len(there.told) == 1
        stream.tell(*TOOLS)  # nobody relays it any more
        await turns()
        assert gone.told == []


async def test_a_client_that_leaves_in_the_moment_of_a_change_is_not_told(stream: Subscription) -> None:
    """Its request is over by the time that its turn comes."""
    client, round = Client(), Round([0.0])
    async with Relay(stream, client, round) as task:
        task.cancel()
        stream.tell(*TOOLS)
        await turns()
    assert client.told == []
    assert round.told == [0.0]


async def test_thousands_of_streams_let_others_have_their_turn() -> None:
    """The loop comes round many times before the last of them is told, and each is told once."""
    client, round = Client(), Round([0.0])
    streams = [Subscription(b"%d" % id, "/mcp", None, Wanted(tools=True)) for id in range(1000)]
    relays = [asyncio.create_task(stream.relay(client, round)) for stream in streams]
    await turns()
    for stream in streams:
        stream.tell(*TOOLS)
    told = []
    while len(client.told) < len(streams):
        await asyncio.sleep(0)
        told.append(len(client.told))
    assert told == [200, 400, 600, 800, 1000]
    ids = [message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] for message in client.told]
    assert ids == list(range(1000))
    for stream in streams:
        stream.end("stopping")
    await asyncio.gather(*relays)


async def test_of_several_notices_about_one_thing_the_last_is_told(stream: Subscription) -> None:
    """Such as a task's states."""
    client = Client()
    key = ("notifications/tasks", "t")
    stream.tell(key, circular(key[0], {"status": b'"working"'}))
    stream.tell(key, circular(key[0], {"status": b'"completed"'}))
    stream.end("stopping")
    await stream.relay(client, Round([0.0]))
    assert [message["params"]["status"] for message in client.told] == ["completed"]


async def test_what_nobody_named_is_bounded(stream: Subscription) -> None:
    """Parts of a resource are without number."""
    told = [stream.tell_unnamed(*note(f"file:///{number}")) for number in range(1000)]
    assert told.count(True) == 256
    assert told[256:] == [None] * 744
    assert stream.tell_unnamed(*note("file:///7")) is False
    assert "256 pending" in repr(stream)


async def test_what_upstreams_make_large_is_bounded_by_its_size() -> None:
    """One notice is never too large; where much waits already, more ends the stream."""
    stream, client = Subscription(b"1", "/mcp", None, Wanted(), room=1000), Client()

    def task(id: str, size: int) -> tuple[Key, Circular]:
        return ("notifications/tasks", id), circular("notifications/tasks", {"pad": b'"%s"' % (b"x" * size)})

    assert stream.tell_large(*task("a", 5000))
    assert stream.tell_unnamed(*note("a:1")) is None  # no room
    assert not stream.tell_large(*task("a", 6000))  # in place of the last
    assert stream.ended is None
    assert stream.tell(*TOOLS)  # what was asked for has always room
    assert not stream.tell_large(*task("b", 1))
    assert stream.ended == "overflow"
    await stream.relay(client, Round([0.0]))
    assert client.methods == ["notifications/tasks", TOOLS[0][0]]


async def test_what_was_told_makes_room(stream: Subscription) -> None:
    """All of it, part of it, or taken back."""
    client, round = Client(), Round([0.0])
    client.most = 1
    async with Relay(stream, client, round):
        stream.tell(*note("a:1"))
        stream.tell(*note("a:2"))
        await client.waits.wait()
        assert stream._size == sum(map(len, note("a:2")[1]))
        stream.narrow(uris=frozenset(), tasks=frozenset(), without=[note("a:2")[0], note("a:3")[0]])
        assert stream._size == 0
        stream.tell(*note("a:4"))
        client.most = 2
        client.takes.set()
        await turns()
        assert client.uris == ["a:1", "a:4"]
        assert stream._size == 0


async def test_nothing_is_added_after_the_end(stream: Subscription) -> None:
    """So that the end comes, however busy the upstreams are."""
    client = Client()
    stream.end("expired")
    assert stream.tell(*TOOLS) is False
    stream.end("stopping")
    await stream.relay(client, Round([0.0]))
    assert client.told == []
    assert stream.ended == "expired"
