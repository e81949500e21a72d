"""What waits for a client is a set: bounded by what it asked for, and each thing told once (L-20)."""

import asyncio
from typing import Any

import pytest

from gateway.core.subscription import Subscription
from gateway.protocol.call import Notice
from gateway.protocol.subscriptions import Wanted

TOOLS = ("notifications/tools/list_changed", "")


def note(uri: str) -> tuple[tuple[str, str], dict[str, Any]]:
    return ("notifications/resources/updated", uri), {"uri": b'"%s"' % uri.encode()}


class Client:
    """Takes what it is told when the test lets it."""

    def __init__(self) -> None:
        self.told: list[Notice] = []
        self.takes = asyncio.Event()
        self.takes.set()

    async def __call__(self, notice: Notice) -> None:
        await self.takes.wait()
        self.told.append(notice)


@pytest.fixture
def stream() -> Subscription:
    return Subscription(b'"id"', "/mcp", None, Wanted(tools=True))


async def test_a_change_that_was_not_told_yet_is_told_once(stream: Subscription) -> None:
    """However often it happened."""
    client = Client()
    assert [stream.tell(TOOLS) for _ in range(3)] == [True, False, False]
    stream.end("stopping")
    count = [0.0]
    await stream.relay(client, count)
    assert [notice.method for notice in client.told] == [TOOLS[0]]
    assert client.told[0].params == {"_meta": b'{"io.modelcontextprotocol/subscriptionId":"id"}'}
    assert count == [1.0]


async def test_a_change_while_the_client_is_told_of_the_last_is_told_too(stream: Subscription) -> None:
    """Or the last change would be lost (B45)."""
    client = Client()
    client.takes.clear()
    relaying = asyncio.create_task(stream.relay(client, [0.0]))
    stream.tell(TOOLS)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(1000):
        stream.tell(TOOLS)
    client.takes.set()
    stream.end("stopping")
    await relaying
    assert len(client.told) == 2


async def test_of_several_notices_about_one_thing_the_last_is_told(stream: Subscription) -> None:
    """Such as a task's states."""
    client = Client()
    key = ("notifications/tasks", "t")
    stream.tell(key, {"status": b'"working"'})
    stream.tell(key, {"status": b'"completed"'})
    stream.end("stopping")
    await stream.relay(client, [0.0])
    assert [bytes(notice.params["status"]) for notice in client.told] == [b'"completed"']


async def test_what_nobody_named_is_bounded(stream: Subscription) -> None:
    """Parts of a resource are without number."""
    told = [stream.tell_unnamed(*note(f"file:///{number}")) for number in range(1000)]
    assert told.count(True) == 256
    assert told[256:] == [None] * 744
    assert stream.tell_unnamed(*note("file:///7")) is False
    assert "256 pending" in repr(stream)


async def test_nothing_is_added_after_the_end(stream: Subscription) -> None:
    """So that the end comes, however busy the upstreams are."""
    client = Client()
    stream.end("expired")
    assert stream.tell(TOOLS) is False
    stream.end("stopping")
    await stream.relay(client, [0.0])
    assert client.told == []
    assert stream.ended == "expired"
