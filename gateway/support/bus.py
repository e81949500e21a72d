"""Tells every replica what one of them learned, and knows at any time whether it would be told itself.

A replica may act on what it remembers only while it `hears`: while what it published less than a lease ago
came back to it, behind all that others had published before. Each message names the one before it, so one
that was lost on the way is noticed: between nodes of a Cluster, with a server that failed over, in a flush.
Whoever announces waits for every replica that may still be acting, at most for a lease. So on return
everybody has heard, or no longer acts on what he remembers. This holds without comparing clocks of two
machines: a lease is a duration on each.

A lease reaches no further than a lease beyond what is known to have come back, and one that has heard nothing
yet gets none. So who goes deaf, hangs or dies is waited for once. Whoever cannot wait publishes: all hear of
it, or notice within a lease that they missed something.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, TypeAlias

import msgspec
from redis.asyncio.client import PubSub

from gateway.support.metrics import Metrics
from gateway.support.redis import Reply, Script, SharedRedis
from gateway.support.seal import Seal, SealBroken
from gateway.support.tasks import Background, happens

log = logging.getLogger(__name__)

Receive: TypeAlias = Callable[[bytes], None]

LEASE = 2.0
_PURPOSE = "bus"
_CONNECTING = 2.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_LASTED = 5.0
"""Seconds after which a link counts as one that held, and its loss as the first."""

_KEPT_MS = 7 * 86_400_000

_PRELUDE = f"""
local t = redis.call('TIME')
local us = t[1] * 1000000 + t[2]
local now = math.floor(us / 1000)
local members, told = KEYS[1], KEYS[2]
if redis.call('TYPE', members).ok ~= 'zset' then redis.call('DEL', members) end
if redis.call('TYPE', told).ok ~= 'hash' then redis.call('DEL', told) end
local last = redis.call('HGET', told, 'last') or ''
local since = tonumber(redis.call('HGET', told, 'since')) or now
local function publish(before)
  redis.call('HSET', told, 'last', last, 'since', string.format('%.0f', since))
  redis.call('PEXPIRE', told, {_KEPT_MS})
  return redis.call('PUBLISH', ARGV[1], before .. ':' .. last .. ':' .. ARGV[2])
end
"""

ENROL = Script(
    "enrol",
    _PRELUDE
    + """
    redis.call('ZREMRANGEBYSCORE', members, '-inf', now)
    if last == '' or redis.call('EXISTS', members) == 0 then
      since = now
      if last == '' then last = string.format('%.0f', us) end
    end
    if tonumber(ARGV[5]) > 0 then
      redis.call('ZADD', members, now + ARGV[5], ARGV[3])
      redis.call('PEXPIRE', members, ARGV[4])
    end
    publish(last)
    return {1}
    """,
)
"""Notes for how long a replica may be acting on what it remembers, and tells it what was told last."""

RESIGN = Script("resign", "return {redis.call('ZREM', KEYS[1], ARGV[1])}")

ANNOUNCE = Script(
    "announce",
    _PRELUDE
    + """
    local before = last
    local young = last == '' or now < since + ARGV[3] or redis.call('EXISTS', members) == 0
    last = string.format('%.0f', math.max(us, (tonumber(last) or 0) + 1))
    local reached = publish(before)
    return {young and reached or 0, redis.call('ZRANGEBYSCORE', members, '(' .. now, '+inf')}
    """,
)
"""Publishes, and answers who has to confirm it; while the list is younger than a lease, also how many.

A list that began anew, because Redis lost it, lacks who has not enrolled again yet.
"""

CONFIRM = Script("confirm", "redis.call('PUBLISH', KEYS[1], ARGV[1]) return {1}")
TELL = Script("tell", "return {redis.call('PUBLISH', KEYS[1], ARGV[1])}")


class Bus(Protocol):
    """How replicas reach each other."""

    @property
    def hears(self) -> bool:
        """Whether whatever another replica announces would be received."""
        ...

    @property
    def session(self) -> int:
        """A number that changes whenever something may have been missed."""
        ...

    @property
    def lapse(self) -> float:
        """The seconds until whoever loses his link when we do no longer acts on what he remembers."""
        ...

    def subscribe(self, topic: str, receive: Receive) -> None:
        """Have what other replicas announce under this topic handled, in order and at once."""
        ...

    async def announce(self, topic: str, message: bytes) -> bool:
        """Return once every other replica has handled a message; False when that is not known."""
        ...

    async def publish(self, topic: str, message: bytes) -> bool:
        """Announce without waiting: whoever misses it begins a new session. False if it may not be out."""
        ...

    async def tell(self, topic: str, message: bytes) -> None:
        """Announce what nobody needs to confirm: it may be missed, by everybody."""
        ...

    def watch(self, lost: Callable[[], None]) -> None:
        """Have something done at once whenever a session ends."""
        ...

    def distrust(self) -> None:
        """Begin a new session: what was remembered in this one must not be acted upon."""
        ...


class LocalBus:
    """The bus of a single process: nobody else is there, and nothing is missed."""

    hears = True
    session = 1
    lapse = 0.0

    def __repr__(self) -> str:
        return "<LocalBus>"

    def subscribe(self, topic: str, receive: Receive) -> None:
        """Nobody else will ever announce anything."""

    async def announce(self, topic: str, message: bytes) -> bool:
        return True

    async def publish(self, topic: str, message: bytes) -> bool:
        return True

    async def tell(self, topic: str, message: bytes) -> None:
        """Nobody else is there."""

    def watch(self, lost: Callable[[], None]) -> None:
        """The one session never ends."""

    def distrust(self) -> None:
        """There is no link that could have failed."""


class _Message(msgspec.Struct, array_like=True):
    """What is published, sealed. A confirmation has no topic, and what comes back to its sender no number.

    What nobody is to confirm has a topic and no number.
    The data of what comes back: when it was sent, and until when its sender may act once it is back.
    """

    sender: str
    number: int
    topic: str
    data: bytes


@dataclass(frozen=True, slots=True)
class _Line:
    """The channel of one key of the ring: replicas in the middle of a rotation have one in common."""

    seal: Seal
    channel: str
    members: str
    told: str

    @property
    def keys(self) -> list[str]:
        return [self.members, self.told]


@dataclass(eq=False, slots=True)
class _Pending:
    """An announcement: who has confirmed it, and who must. A confirmation may be here before the list is."""

    confirmed: set[str]
    awaited: set[str] | None = None
    at_least: int = 0
    """How many must, should the list lack some."""
    failed: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def missing(self) -> int:
        return max(len((self.awaited or set()) - self.confirmed), self.at_least - len(self.confirmed))

    def confirm(self, by: str) -> None:
        self.confirmed.add(by)
        self._settle()

    def cut_off(self) -> None:
        """Confirmations will not be heard any more."""
        self.failed = True
        self.done.set()

    def expect(self, members: set[str], at_least: int) -> None:
        self.awaited, self.at_least = members, at_least
        self._settle()

    def _settle(self) -> None:
        if self.awaited is not None and self.missing <= 0:
            self.done.set()


class _Lost(Exception):
    """The link is not what it must be; the message says why."""


class RedisBus:
    """Replicas that share a Redis and a key hear each other over its pub/sub.

    `prepare` is run in every new session before it `hears`; it returns whether that went well.
    """

    def __init__(
        self,
        redis: SharedRedis,
        seal: Seal,
        *,
        prefix: str,
        background: Background,
        metrics: Metrics,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.session = 0
        self.prepare: Callable[[], Awaitable[bool]] | None = None
        self._redis = redis
        self._background = background
        self._metrics = metrics
        self._lease = lease
        self._lease_ms = int(lease * 1000) + 1
        self._beat = lease / 5
        self._clock = clock
        self._random = random
        self._me = _somebody()
        """Another one with every link: what was under way for the last is not taken for this one's."""
        self._lines = [_line(one, prefix) for one in seal.apart()]
        self._watchers: list[Callable[[], None]] = []
        self._receivers: dict[str, list[Receive]] = {}
        self._numbers = 0
        self._pending: dict[int, _Pending] = {}
        self._linked = False
        self._ready = False
        self._complained = False
        """Whether the log says already why there is no link."""
        self._ended = -inf
        self._heard = -inf
        """When that was sent which came back over every line."""
        self._until = -inf
        """Until when, as Redis knows, we may be acting on what we remember."""
        self._came_back: dict[str, tuple[float, float]] = {}
        """The same two of each line's channel."""
        self._due = asyncio.Event()
        """Set when the next sign of life need not wait for its time."""
        self._enrolled = asyncio.Event()
        """Set when we have heard ourselves in this link, and the others know."""
        self._silence = 0.0
        """Seconds without a sign of life, of those in which we could have heard it."""
        self._last: dict[str, bytes] = {}
        """What was told last on each line's channel."""
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "hears" if self.hears else "linked" if self._linked else "cut off"
        return f"<RedisBus {state}, session {self.session}, {len(self._pending)} announcements under way>"

    @property
    def hears(self) -> bool:
        return self._ready and self._clock() < self._until

    @property
    def lapse(self) -> float:
        return self._lease if self._linked else max(0.0, self._ended + self._lease - self._clock())

    def subscribe(self, topic: str, receive: Receive) -> None:
        self._receivers.setdefault(topic, []).append(receive)

    def watch(self, lost: Callable[[], None]) -> None:
        self._watchers.append(lost)

    def start(self) -> None:
        """Link up, now and whenever the link is lost."""
        self._task = self._background.start(self._stay_linked(), name="redis bus")

    async def close(self) -> None:
        """End the link, so that nobody waits for us any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CONNECTING)
        await self._resign(self._me)

    async def announce(self, topic: str, message: bytes) -> bool:
        told: dict[int, _Pending] = {}
        try:
            async with asyncio.timeout(self._lease):
                for line in self._lines:
                    self._numbers += 1
                    told[self._numbers] = self._pending[self._numbers] = _Pending({self._me})
                    sent = _Message(self._me, self._numbers, topic, message)
                    if not await self._publish(line, sent, told[self._numbers]):
                        return False
                if not self._linked:
                    return False  # nobody's confirmation is heard
                for pending in told.values():
                    await pending.done.wait()
        except TimeoutError:
            if any(pending.awaited is None for pending in told.values()) or len(told) < len(self._lines):
                return False
            # The lease of whoever did not confirm is over: he no longer acts on what he remembers.
            missing = max(pending.missing for pending in told.values())
            log.warning("%d replicas did not confirm a change in %gs", missing, self._lease)
        finally:
            for number in told:
                del self._pending[number]
        return not any(pending.failed for pending in told.values())

    async def publish(self, topic: str, message: bytes) -> bool:
        sent = _Message(self._me, 0, topic, message)
        return all([await self._put_out(line, sent) is not None for line in self._lines])

    async def tell(self, topic: str, message: bytes) -> None:
        spelled = _encode(_Message(self._me, 0, topic, message))
        for line in self._lines:
            uncounted = b"::" + line.seal.encrypt(_PURPOSE, spelled)
            await self._redis.run(TELL, [line.channel], [uncounted])

    def distrust(self) -> None:
        if self._linked:
            self._end("not to be trusted")

    async def _publish(self, line: _Line, message: _Message, pending: _Pending) -> bool:
        found = await self._put_out(line, message)
        if found is None:
            return False
        reached, members = found
        pending.expect({member.decode("ascii", "replace") for member in members}, reached)
        return True

    async def _put_out(self, line: _Line, message: _Message) -> Reply | None:
        sealed = line.seal.encrypt(_PURPOSE, _encode(message))
        args: list[bytes | str | int] = [line.channel, sealed, self._lease_ms]
        return await self._redis.run(ANNOUNCE, line.keys, args, urgent=True)

    # The link

    async def _stay_linked(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = self._clock()
            try:
                await self._listen()
            except _Lost as lost:
                self._end(str(lost))
            except Exception as error:  # whatever the client library raises: it is tried again (C-35)
                self._end(f"{type(error).__name__}: {error}")
            pause = _FIRST_PAUSE if self._clock() - began > _LASTED else min(_LONGEST_PAUSE, pause * 2)
            await asyncio.sleep(pause * (0.5 + self._random() / 2))

    async def _listen(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        self._last.clear()
        self._me = _somebody()
        async with asyncio.timeout(_CONNECTING):
            link = await self._redis.listener(near=self._lines[0].told)
        try:
            async with asyncio.timeout(_CONNECTING):
                await self._join(link)
            self._begin()
            tasks.append(self._background.start(self._keep_alive(), name="redis bus heartbeat"))
            tasks.append(self._background.start(self._get_ready(self.session), name="redis bus start"))
            while self._linked:
                await self._receive(link)
        finally:
            self._end(None)
            for task in tasks:
                task.cancel()
            await link.aclose()  # type: ignore[no-untyped-call] # waits for nobody

    async def _join(self, link: PubSub) -> None:
        channels = [
            channel for line in self._lines for channel in (line.channel, self._reply_to(line, self._me))
        ]
        await link.subscribe(*channels)
        waiting = set(channels)
        while waiting:
            message = await link.get_message(timeout=_CONNECTING)
            if message is not None and message["type"] == "subscribe":
                waiting.discard(message["channel"].decode())
            elif message is not None:
                await self._handle(message["channel"].decode(), message["data"])

    def _begin(self) -> None:
        self.session += 1
        self._linked = True
        self._heard = self._until = -inf
        self._silence = 0.0
        self._enrolled.clear()
        self._came_back = dict.fromkeys((line.channel for line in self._lines), (-inf, -inf))

    def _end(self, reason: str | None) -> None:
        """End the session, if there is one; without a reason because we are closing."""
        if reason is not None and not self._complained:
            self._complained = True
            log.warning("not linked to the other replicas, so nothing is cached: %s", reason[:200])
        if not self._linked:
            return
        self._linked = self._ready = False
        self._ended = self._clock()
        self._metrics.redis_linked(False)
        self._background.start(self._resign(self._me), name="resign from the redis bus")
        for pending in self._pending.values():
            pending.cut_off()
        for lost in self._watchers:
            lost()

    def _begin_anew(self) -> None:
        """Begin a new session on the same link: who waits for confirmations will still hear them."""
        log.warning("a message of another replica was missed, what was kept is given up")
        self.session += 1
        self._ready = False
        for lost in self._watchers:
            lost()
        self._background.start(self._get_ready(self.session), name="redis bus start")

    async def _get_ready(self, session: int) -> None:
        await self._enrolled.wait()
        if session != self.session:
            return
        if self.prepare is not None and not await self.prepare():
            if session == self.session:
                self._end("redis does not answer")
        elif self._linked and session == self.session and not self._ready:
            self._ready, self._complained = True, False
            self._metrics.redis_linked(True)
            log.info("linked to the other replicas")

    async def _keep_alive(self) -> None:
        """Renew the lease with Redis, and have what it says come back behind every earlier message.

        Who has not heard himself yet, or no longer does, asks for no lease: nobody shall wait for him.
        """
        while self._linked:
            self._due.clear()
            for line in self._lines:
                now = self._clock()
                until = self._heard + self._lease
                sent = _Message(self._me, 0, "", msgspec.json.encode((now, max(now, until))))
                sealed = line.seal.encrypt(_PURPOSE, _encode(sent))
                args: list[bytes | str | int] = [
                    self._reply_to(line, self._me),
                    sealed,
                    self._me,
                    self._lease_ms,
                    int((until - now) * 1000) + 1 if until > now else 0,
                ]
                await self._redis.run(ENROL, line.keys, args, urgent=True)
            await happens(self._due, self._beat)

    async def _resign(self, me: str) -> None:
        for line in self._lines:
            await self._redis.run(RESIGN, [line.members], [me])

    async def _receive(self, link: PubSub) -> None:
        began = self._clock()
        message = await link.get_message(timeout=self._beat)
        # Of a time in which nothing ran here, only so much counts: what came meanwhile is still to be read.
        self._silence += min(self._clock() - began, 1.5 * self._beat)
        if message is not None:
            match message["type"]:
                case "message":
                    await self._handle(message["channel"].decode(), message["data"])
                case _:
                    raise _Lost("the connection was made anew")
        self._metrics.redis_linked(self.hears)
        if self._silence >= self._lease:
            raise _Lost(f"no sign of life in {self._lease:g}s")

    async def _handle(self, channel: str, published: bytes) -> None:
        line = next((line for line in self._lines if channel.startswith(line.channel)), None)
        try:
            if line is None:
                return
            before, last, sealed = published.split(b":", 2)
            message = _decode(line.seal.decrypt(_PURPOSE, sealed))
            sign = None if message.topic or message.number else _decode_sign(message.data)
        except (SealBroken, ValueError, msgspec.DecodeError):
            # Of a stranger. Had a replica sent it, the next message would name it, and be missed.
            self._metrics.redis_unreadable()
            return
        if last:
            if self._last.setdefault(line.channel, before) != before and self._linked:
                self._begin_anew()
            self._last[line.channel] = last
        if message.topic:
            if message.sender != self._me:
                for receive in self._receivers.get(message.topic, ()):
                    receive(message.data)
                if message.number:
                    await self._confirm(line, message)
        elif message.number:
            if (pending := self._pending.get(message.number)) is not None:
                pending.confirm(message.sender)
        elif sign is not None and message.sender == self._me and line.channel in self._came_back:
            self._came_back[line.channel] = max(sign, self._came_back[line.channel])
            self._alive()

    def _alive(self) -> None:
        """Note what has come back over every line."""
        heard = min(sent for sent, _ in self._came_back.values())
        if heard == self._heard:
            return
        self._heard, self._silence = heard, 0.0
        self._until = min(until for _, until in self._came_back.values())
        if self._clock() < self._until:
            self._enrolled.set()
        else:
            self._due.set()

    async def _confirm(self, line: _Line, message: _Message) -> None:
        sealed = line.seal.encrypt(_PURPOSE, _encode(_Message(self._me, message.number, "", b"")))
        confirmation = b"::" + sealed  # of which nobody keeps count
        await self._redis.run(CONFIRM, [self._reply_to(line, message.sender)], [confirmation], urgent=True)

    @staticmethod
    def _reply_to(line: _Line, replica: str) -> str:
        return f"{line.channel}:{replica}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Message).decode
_decode_sign = msgspec.json.Decoder(tuple[float, float]).decode


def _somebody() -> str:
    return os.urandom(8).hex()


def _line(seal: Seal, prefix: str) -> _Line:
    name = seal.name(_PURPOSE, b"").hex()
    slot = f"{prefix}:1:{{bus:{name}}}"
    return _Line(seal, f"{prefix}:1:bus:{name}", f"{slot}:replicas", f"{slot}:told")
