"""That what replicas say to each other arrives, in bounds, and only by who may say it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.core.audience import Followed
from gateway.core.following import Aside, Found, Gap, Looking, Lost, Said
from gateway.core.relay import Relay
from gateway.protocol.call import Change, Notice, Partition, UpstreamName
from gateway.support.bus import LocalBus, Receive
from gateway.support.tasks import Background

ALPHA = UpstreamName("alpha")
AT = Followed(ALPHA, None)
ANNS = Followed(ALPHA, Partition("ann"))
SETTINGS = {ALPHA: "settings"}


class Bus(LocalBus):
    """A bus whose messages a test holds up, loses, counts, and delivers by hand."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.open = asyncio.Event()
        self.works = True
        self.receive: list[Receive] = []

    def subscribe(self, topic: str, receive: Receive) -> None:
        self.receive.append(receive)

    async def announce(self, topic: str, message: bytes) -> bool:
        await self.open.wait()
        if self.works:
            self.messages.append(message)
        return self.works

    async def tell(self, topic: str, message: bytes) -> None:
        self.messages.append(message)

    def deliver(self) -> None:
        for message in self.messages:
            for receive in self.receive:
                receive(message)


@pytest.fixture
async def background() -> AsyncIterator[Background]:
    background = Background()
    yield background
    await background.close(1.0)


async def idle(relay: Relay) -> None:
    while relay._task is not None:  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0)


def hears(bus: Bus, background: Background, settings: dict[UpstreamName, str] = SETTINGS) -> list[object]:
    """Return where another replica notes what it hears."""
    heard: list[object] = []
    Relay(bus, background, settings=settings, hear=lambda at, said: heard.append((at, said)))
    return heard


def speaker(bus: Bus, background: Background) -> Relay:
    return Relay(bus, background, settings=SETTINGS, hear=lambda at, said: None)


EVERYTHING: list[Said] = [
    Change(ALPHA, "tools/list"),
    Change(ALPHA, "resources/read", "a:1", "updated", asked=True),
    Aside(Change(ALPHA, None, cause="purge", partition=Partition("ann"))),
    Found(Change(ALPHA, "tools/list", cause="catalogue"), {b"tools/list x": b"digest"}),
    Notice("notifications/com.example/x/y", {"n": b"1.0"}),
    Lost("notifications/com.example/x/z"),
    Gap(b"run"),
    Looking("tools/list", 5.0),
]


async def test_everything_arrives_as_it_was_said_and_in_order(background: Background) -> None:
    """In each context of authorization by itself."""
    bus = Bus()
    heard, relay = hears(bus, background), speaker(bus, background)
    bus.open.set()
    for at in (AT, ANNS):
        for said in EVERYTHING:
            relay.say(at, said, lambda: True)
    await idle(relay)
    bus.deliver()
    assert heard == [(at, said) for at in (AT, ANNS) for said in EVERYTHING]
    bus.deliver()
    assert len(heard) == 2 * len(EVERYTHING)  # what comes twice is taken in once


async def test_an_upstream_of_other_settings_is_another_one(background: Background) -> None:
    """Replicas of two configurations may share a Redis."""
    bus = Bus()
    heard, relay = hears(bus, background, {ALPHA: "others"}), speaker(bus, background)
    bus.open.set()
    relay.say(AT, Gap(), lambda: True)
    await idle(relay)
    bus.deliver()
    assert (len(bus.messages), heard) == (1, [])


async def test_what_waits_is_bounded_and_said_once(background: Background) -> None:
    """Of too many resources it is all, of too many notices that they were too many; messages stay small."""
    bus = Bus()
    heard, relay = hears(bus, background), speaker(bus, background)
    relay.say(AT, Gap(), lambda: True)
    await asyncio.sleep(0)  # it is under way, and held up
    for _ in range(3):
        for number in range(5000):
            relay.say(AT, Change(ALPHA, "resources/read", f"a:{number}", "updated"), lambda: True)
        for number in range(1000):
            relay.say(AT, Notice("notifications/x/y", {"n": b"%d" % number}), lambda: True)
        relay.say(AT, Change(ALPHA, "resources/read", "b" * 100_000, "updated"), lambda: True)
    bus.open.set()
    await idle(relay)
    bus.deliver()
    assert max(map(len, bus.messages)) <= 66_000
    assert len(heard) <= 1024 + 256 + 4
    assert (AT, Change(ALPHA, "resources/read", None, "updated")) in heard
    assert (AT, Lost("notifications/x/y")) in heard


async def test_what_may_have_been_lost_is_said_again_unless_there_is_no_authority(
    background: Background,
) -> None:
    """A holder that is none any more says nothing; one in doubt waits until it knows."""
    bus = Bus()
    heard, relay = hears(bus, background), speaker(bus, background)
    bus.open.set()
    bus.works = False
    may: bool | None = None
    relay.say(AT, Gap(), lambda: may)
    relay.say(ANNS, Gap(), lambda: False)
    relay.say(AT, Lost("x"), lambda: True)
    while "2 waiting" not in repr(relay):  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0.005)
    bus.works, may = True, True
    await idle(relay)
    bus.deliver()
    assert sorted(heard, key=repr) == sorted([(AT, Gap()), (AT, Lost("x"))], key=repr)


async def test_what_another_version_says_is_left_alone(background: Background) -> None:
    """It fails nothing."""
    bus = Bus()
    heard = hears(bus, background)
    bus.messages += [b"", b"\xff", b"\x92\xa1x\x91\x01"]
    bus.deliver()
    assert heard == []
