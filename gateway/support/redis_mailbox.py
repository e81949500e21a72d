"""The mailbox of a replica that has others: messages over Redis's pub/sub, where nothing is ever kept.

What a user answers travels here and must lie nowhere, not even sealed (M-25); so large messages are cut into
parts instead of being put down. Pub/sub loses what is sent while a link is down: each part is acknowledged,
and sent again with the next beat until it is. So many parts to one replica are under way at a time, that what
Redis holds back for it stays small.

With each beat whoever waits for answers says for which; who hears that works on for them, and says what he
knows nothing of. Each gives the other up after a few beats of silence: a few seconds, counted in beats that
passed here, so that a process that slept takes nobody for dead. Nobody being on a channel any more is noticed
sooner.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
from cachetools import LRUCache
from redis.asyncio.client import PubSub

from gateway.support.mailbox import Serve, Served, Tell, Unreachable, address, ask_oneself
from gateway.support.metrics import Metrics
from gateway.support.redis import Script, SharedRedis
from gateway.support.seal import Seal, SealBroken
from gateway.support.tasks import Background, happens

log = logging.getLogger(__name__)

BEAT = 1.0
_PURPOSE = "mail"
_PART = 128 * 2**10
_UNDER_WAY = 8
"""Parts to one replica that are not acknowledged."""
_AHEAD = 2 * _UNDER_WAY
"""Parts that may be here before one that is missing."""
_AT_ONCE = 8
"""Publications at once, so that the cache's questions find room beside them."""
_SILENT = 4
"""Beats without a word after which the other side counts as gone."""
_KNOCKS = 4
_KNOCK = 0.1
"""How often, and in which distance, somebody is looked for whom nobody is listening for."""
_REMEMBERED = 10
"""Beats for which it is remembered that a question is done with: a part of it may come late."""
_FORMER = 4096
"""Replicas of whom it is remembered which of their questions were done with long ago."""
_MOST = 4096
"""Questions of one replica that are worked on at once."""
_CONNECTING = 2.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_ADDRESS = re.compile(r"[0-9a-f]{32}")

PUBLISH = Script("mail", "return {redis.call('PUBLISH', ARGV[1], ARGV[2])}")
"""Publishes; the key, of nothing, says at which node of a Cluster those who listen are to be counted."""

_Kind: TypeAlias = Literal[
    "ask", "say", "got-ask", "got-say", "took", "give-up", "drop", "beat", "alive", "self"
]


class _Frame(msgspec.Struct, array_like=True):
    """What is published, sealed.

    `ask` and `say` are parts of a message, to and from who answers; the first byte tells whether there are
    more of the same message. `got-` acknowledges one, `took` counts what was told and taken in. Who asked
    gives up, who works drops it.
    """

    sender: str
    kind: _Kind
    number: int = 0
    part: int = 0
    data: bytes = b""


class _Beat(msgspec.Struct, array_like=True):
    """For which questions, of all up to the latest, there is somebody waiting, and how much each took in."""

    latest: int
    waiting: dict[int, int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Frame).decode
_decode_beat = msgspec.msgpack.Decoder(_Beat).decode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode

_TOLD, _ANSWER, _NONE, _GONE = b"t", b"a", b"n", b"g"
"""What is said: in between, the answer, that there is none, that there never will be."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The channels of one key of the ring: replicas in the middle of a rotation have one in common."""

    seal: Seal
    channel: str

    def of(self, whom: str) -> str:
        return f"{self.channel}:{whom}"


@dataclass(eq=False, slots=True)
class _Outgoing:
    """The parts of all messages in one direction."""

    sent: int = 0
    under_way: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when none is under way."""


@dataclass(eq=False, slots=True)
class _Incoming:
    """What has come of the messages in one direction."""

    largest: int
    expected: int = 0
    early: dict[int, bytes] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0

    def has_room(self, part: int) -> bool:
        """Whether a part can be kept, or is here already; what cannot is sent again later."""
        return part < self.expected + _AHEAD

    def take(self, part: int, data: bytes) -> list[bytes]:
        """Return the messages that are whole now; raises ValueError for one that is too large."""
        whole: list[bytes] = []
        if part >= self.expected:
            self.early[part] = data
        while (one := self.early.pop(self.expected, None)) is not None:
            self.expected += 1
            self.size += len(one) - 1
            if self.size > self.largest:
                raise ValueError(f"a message is larger than {self.largest} bytes")
            self.pieces.append(one[1:])
            if one[:1] == b".":
                whole.append(b"".join(self.pieces))
                self.pieces, self.size = [], 0
        return whole


@dataclass(eq=False, slots=True)
class _Asked:
    """A question of ours, and what is said to it."""

    incoming: _Incoming
    outgoing: _Outgoing = field(default_factory=_Outgoing)
    said: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    taken: int = 0
    term: asyncio.Timeout | None = None
    failure: Unreachable | None = None
    unknown: int = 0
    """How often in a row the other side knew nothing of it, although it had it whole."""


@dataclass(eq=False, slots=True)
class _Work:
    """A question of another's, and what we say to it."""

    incoming: _Incoming
    outgoing: _Outgoing = field(default_factory=_Outgoing)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    told: int = 0
    taken: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


@dataclass(eq=False, slots=True)
class _UnderWay:
    frame: _Frame
    outgoing: _Outgoing
    beat: int


@dataclass(eq=False, slots=True)
class _Peer:
    """Another replica, with which there is something to be said."""

    address: str
    line: int
    window: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_UNDER_WAY))
    bulk: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for a message of several parts: so one of them at a time lies with the other side in parts."""
    under_way: dict[tuple[_Kind, int, int], _UnderWay] = field(default_factory=dict)
    asked: dict[int, _Asked] = field(default_factory=dict)
    works: dict[int, _Work] = field(default_factory=dict)
    done: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Questions that are done with: since which beat, and whether they were answered."""
    silent: int = 0
    """Beats since the last word."""
    unheard: int = 0
    """How often in a row nobody listened for it."""

    @property
    def idle(self) -> bool:
        return not (self.asked or self.works or self.done or self.under_way)


class RedisMailbox:
    """Replicas that share a Redis and a key; each has channels of its own."""

    def __init__(
        self,
        redis: SharedRedis,
        seal: Seal,
        *,
        prefix: str,
        background: Background,
        metrics: Metrics,
        largest: int,
        beat: float = BEAT,
    ) -> None:
        """`largest` bounds each message, either way."""
        self.me = address()
        self._redis = redis
        self._background = background
        self._metrics = metrics
        self._largest = largest
        self._beat = beat
        self._served = Served()
        self._lines = [_line(one, prefix) for one in seal.apart()]
        self._near = f"{prefix}:1:{{mail}}"
        self._peers: dict[str, _Peer] = {}
        self._former: LRUCache[str, int] = LRUCache(_FORMER)
        """The latest question of each replica that is forgotten: none up to it is worked on (again)."""
        self._numbers = 0
        self._beats = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._linked = asyncio.Event()
        self._echoed = 0
        """The last beat that came back to us."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def __repr__(self) -> str:
        asked = sum(len(peer.asked) for peer in self._peers.values())
        works = sum(len(peer.works) for peer in self._peers.values())
        state = "linked" if self._linked.is_set() else "cut off"
        return f"<RedisMailbox {self.me} {state}, {asked} questions asked, {works} worked on>"

    async def linked(self) -> None:
        """Return once others can reach us."""
        await self._linked.wait()

    def start(self) -> None:
        self._tasks = [
            self._background.start(self._stay_linked(), name="mailbox"),
            self._background.start(self._keep_beat(), name="mailbox beat"),
        ]

    async def close(self) -> None:
        """Give up what is asked, drop what is worked on, and say so, unless Redis stands still."""
        self._closed = True
        last: list[tuple[_Peer, _Frame]] = []
        working = []
        for peer in tuple(self._peers.values()):
            last += [(peer, _Frame(self.me, "give-up", number)) for number in peer.asked]
            last += [(peer, _Frame(self.me, "drop", number)) for number in peer.works]
            self._fail(peer, Unreachable("the gateway is stopping"))
            working += [work.task for work in peer.works.values() if work.task is not None]
            for number in tuple(peer.works):
                self._stop(peer, number)
        for peer, frame in last:
            if await self._put(peer, frame) is None:
                break
        for task in self._tasks:
            task.cancel()
        if ending := [*working, *self._tasks]:
            await asyncio.wait(ending, timeout=_CONNECTING)

    def serve(self, subject: str, answer: Serve) -> None:
        self._served.add(subject, answer)

    async def ask(
        self,
        whom: str,
        subject: str,
        question: bytes,
        *,
        timeout: float | None,
        told: Tell | None = None,
    ) -> bytes:
        if whom == self.me:
            return await ask_oneself(self._served, subject, question, timeout=timeout, told=told)
        if self._closed:
            raise Unreachable("the gateway is stopping")
        if not _ADDRESS.fullmatch(whom):
            raise Unreachable("there is no such replica", gone=True)
        message = subject.encode() + b"\n" + question
        if len(message) > self._largest:
            raise Unreachable(f"a question is larger than {self._largest} bytes")
        async with asyncio.timeout(timeout), self._asking(whom) as (peer, number, asked):
            await self._send(peer, "ask", number, asked.outgoing, message)
            while True:
                said = await asked.said.get()
                match said[:1]:
                    case b"t":
                        if told is not None:
                            await told(said[1:])
                        asked.taken += 1
                        await self._put(peer, _Frame(self.me, "took", number, asked.taken))
                    case b"a":
                        return said[1:]
                    case kind:
                        why = said[1:].decode("utf-8", "replace")
                        raise Unreachable(why, gone=kind == _GONE)

    @asynccontextmanager
    async def _asking(self, whom: str) -> AsyncIterator[tuple[_Peer, int, _Asked]]:
        """Have what is said to a question come in; however it ends, the other side learns that it is over."""
        peer = self._peer(whom)
        self._numbers += 1
        number, asked = self._numbers, _Asked(_Incoming(self._largest + 1))
        if not peer.asked and not peer.works:
            peer.silent = 0
        peer.asked[number] = asked
        answered = False
        try:
            async with asyncio.timeout(None) as asked.term:
                yield peer, number, asked
            answered = True
        except TimeoutError:
            if asked.failure is None:
                raise
            raise asked.failure from None
        finally:
            del peer.asked[number]
            self._forget(peer, "ask", number)
            if not answered and asked.failure is None and not self._closed:
                self._later(peer, _Frame(self.me, "give-up", number))

    # Sending

    async def _send(
        self, peer: _Peer, kind: Literal["ask", "say"], number: int, outgoing: _Outgoing, message: bytes
    ) -> None:
        """Send a message in as many parts as it needs; on return the last may still be under way."""
        cuts = range(0, len(message) or 1, _PART)
        async with peer.bulk if len(cuts) > 1 else nullcontext():
            for cut in cuts:
                head = b"." if cut == cuts[-1] else b"+"
                await peer.window.acquire()
                frame = _Frame(self.me, kind, number, outgoing.sent, head + message[cut : cut + _PART])
                peer.under_way[kind, number, frame.part] = _UnderWay(frame, outgoing, self._beats)
                outgoing.sent += 1
                outgoing.under_way += 1
                outgoing.arrived.clear()
                heard = await self._put(peer, frame)
                if not heard and kind == "ask" and not frame.part:
                    await self._knock(peer, frame)

    async def _knock(self, peer: _Peer, frame: _Frame) -> None:
        """Look again for who was not there: his link may just be made anew. Raises Unreachable."""
        key = (frame.kind, frame.number, frame.part)
        for _ in range(_KNOCKS):
            if key not in peer.under_way:
                return  # in a Cluster, whoever listens at another node is not counted
            if await happens(peer.under_way[key].outgoing.arrived, _KNOCK):
                return
            if await self._put(peer, frame) is not False:
                return
        raise Unreachable("that replica is gone", gone=True)

    def _later(self, peer: _Peer, frame: _Frame) -> None:
        """Publish what the other side finds out by itself, should it be lost."""

        async def put() -> None:
            await self._put(peer, frame)

        self._background.start(put(), name=f"{frame.kind} a question")

    async def _put(self, peer: _Peer, frame: _Frame) -> bool | None:
        """Publish; whether anybody listens there, None when nobody can tell."""
        lines = (peer.line, *(index for index in range(len(self._lines)) if index != peer.line))
        for index in lines:
            receivers = await self._publish(self._lines[index], peer.address, frame)
            if receivers is None:
                return None
            if receivers:
                peer.line, peer.unheard = index, 0
                return True
        peer.unheard += 1
        return False

    async def _publish(self, line: _Line, whom: str, frame: _Frame) -> int | None:
        sealed = line.seal.encrypt(_PURPOSE, _encode(frame), bound_to=whom.encode())
        async with self._turns:
            answer = await self._redis.run(PUBLISH, [self._near], [line.of(whom), sealed], urgent=True)
        return None if answer is None else int(answer[0])

    def _forget(self, peer: _Peer, kind: _Kind, number: int) -> None:
        """Send nothing of a message any more."""
        for key in [key for key in peer.under_way if key[:2] == (kind, number)]:
            self._arrived(peer, key)
        self._tidy(peer)

    def _arrived(self, peer: _Peer, key: tuple[_Kind, int, int]) -> None:
        if (one := peer.under_way.pop(key, None)) is not None:
            peer.window.release()
            one.outgoing.under_way -= 1
            if not one.outgoing.under_way:
                one.outgoing.arrived.set()

    # Working for another

    async def _work(self, peer: _Peer, number: int, work: _Work, question: bytes) -> None:
        subject, _, body = question.partition(b"\n")

        async def tell(said: bytes) -> None:
            async with work.turn:
                await self._send(peer, "say", number, work.outgoing, _TOLD + said)
                work.told += 1
                while work.taken < work.told:
                    work.moved.clear()
                    await work.moved.wait()

        try:
            try:
                answer = _ANSWER + await self._served.answer(subject.decode("utf-8", "replace"), body, tell)
                if len(answer) > self._largest + 1:
                    answer = _NONE + b"the answer is too large"
            except Unreachable as error:
                answer = (_GONE if error.gone else _NONE) + str(error).encode()
            except Exception:
                log.exception("a question of another replica could not be answered")
                answer = _NONE + b"it failed there"
            async with work.turn:
                await self._send(peer, "say", number, work.outgoing, answer)
                await work.outgoing.arrived.wait()
            peer.done[number] = (self._beats, True)
        finally:
            peer.done.setdefault(number, (self._beats, False))
            peer.works.pop(number, None)
            self._forget(peer, "say", number)

    def _stop(self, peer: _Peer, number: int) -> None:
        """Work no longer on a question."""
        work = peer.works.pop(number)
        peer.done[number] = (self._beats, False)
        if work.task is not None:
            work.task.cancel()

    # Hearing

    async def _handle(self, channel: str, published: bytes) -> None:
        index = next((i for i, line in enumerate(self._lines) if channel == line.of(self.me)), None)
        try:
            if index is None:
                return
            seal = self._lines[index].seal
            frame = _decode(seal.decrypt(_PURPOSE, published, bound_to=self.me.encode()))
            if not _ADDRESS.fullmatch(frame.sender):
                raise ValueError(frame.sender)
            await self._take(frame, index)
        except (SealBroken, ValueError, msgspec.DecodeError):
            self._metrics.redis_unreadable()

    async def _take(self, frame: _Frame, line: int) -> None:
        if frame.kind == "self":
            self._echoed = max(self._echoed, frame.number)
            return
        peer = self._peer(frame.sender)
        peer.line, peer.silent, peer.unheard = line, 0, 0
        match frame.kind:
            case "ask":
                if self._questioned(peer, frame):
                    await self._put(peer, _Frame(self.me, "got-ask", frame.number, frame.part))
            case "say":
                if self._spoken_to(peer, frame):
                    await self._put(peer, _Frame(self.me, "got-say", frame.number, frame.part))
            case "got-ask" | "got-say":
                self._arrived(peer, ("ask" if frame.kind == "got-ask" else "say", frame.number, frame.part))
            case "took":
                self._taken(peer, frame.number, frame.part)
            case "give-up":
                if frame.number in peer.works:
                    self._stop(peer, frame.number)
                else:
                    peer.done[frame.number] = (self._beats, False)
            case "drop":
                if (asked := peer.asked.get(frame.number)) is not None:
                    self._fail_one(asked, Unreachable("that replica no longer works on it", gone=True))
            case "beat":
                await self._beaten(peer, _decode_beat(frame.data))
            case "alive":
                self._heard_of(peer, frozenset(_decode_numbers(frame.data)))
        self._tidy(peer)

    def _questioned(self, peer: _Peer, frame: _Frame) -> bool:
        """Take in a part of a question; whether it need not come again."""
        number = frame.number
        if number in peer.done:
            return True
        work = peer.works.get(number)
        if work is None:
            if number <= self._former.get(peer.address, 0):
                return True  # said again by whom it was not for
            if self._closed or len(peer.works) >= _MOST:
                peer.done[number] = (self._beats, False)
                self._later(peer, _Frame(self.me, "drop", number))
                return True
            work = peer.works[number] = _Work(_Incoming(self._largest))
        if not work.incoming.has_room(frame.part):
            return False
        try:
            for question in work.incoming.take(frame.part, frame.data):
                if work.task is None:
                    work.task = self._background.start(
                        self._work(peer, number, work, question), name="answer a replica"
                    )
        except ValueError as error:
            log.warning("another replica asks too much: %s", error)
            self._stop(peer, number)
            self._later(peer, _Frame(self.me, "drop", number))
        return True

    def _spoken_to(self, peer: _Peer, frame: _Frame) -> bool:
        """Take in a part of what is said to us; whether it need not come again."""
        asked = peer.asked.get(frame.number)
        if asked is None:
            return True
        if not asked.incoming.has_room(frame.part):
            return False
        try:
            for message in asked.incoming.take(frame.part, frame.data):
                asked.said.put_nowait(message)
        except ValueError as error:
            self._fail_one(asked, Unreachable(str(error)))
        return True

    def _taken(self, peer: _Peer, number: int, count: int) -> None:
        work = peer.works.get(number)
        if work is not None and count > work.taken:
            work.taken = count
            work.moved.set()

    async def _beaten(self, peer: _Peer, beat: _Beat) -> None:
        for number in [one for one in peer.works if one <= beat.latest and one not in beat.waiting]:
            self._stop(peer, number)
        for number, count in beat.waiting.items():
            self._taken(peer, number, count)
        unknown = [
            one for one in beat.waiting if one not in peer.works and not peer.done.get(one, (0, False))[1]
        ]
        await self._put(peer, _Frame(self.me, "alive", data=_encode(unknown)))

    def _heard_of(self, peer: _Peer, unknown: frozenset[int]) -> None:
        for number, asked in peer.asked.items():
            whole = asked.outgoing.sent and not asked.outgoing.under_way
            asked.unknown = asked.unknown + 1 if whole and number in unknown else 0
            if asked.unknown > 1:
                self._fail_one(asked, Unreachable("that replica knows nothing of it any more", gone=True))

    # Staying in touch

    async def _keep_beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            self._beats += 1
            try:
                for peer in tuple(self._peers.values()):
                    self._judge(peer)
                await self._remind()
            except Exception:  # a bug must not end all conversations
                log.exception("the mailbox missed a beat")

    def _judge(self, peer: _Peer) -> None:
        """Give up who is gone, and forget what is long over."""
        for number in [one for one, (since, _) in peer.done.items() if since + _REMEMBERED < self._beats]:
            del peer.done[number]
            self._former[peer.address] = max(number, self._former.get(peer.address, 0))
        if peer.asked or peer.works:
            peer.silent += 1
        if peer.silent > _SILENT:
            why = "that replica is silent" if self._redis.answers else "redis does not answer"
            self._fail(peer, Unreachable(why, gone=self._redis.answers and self._linked.is_set()))
            for number in tuple(peer.works):
                self._stop(peer, number)
        elif peer.unheard > 1 and peer.silent > 1:
            self._fail(peer, Unreachable("that replica is gone", gone=True))
        self._tidy(peer)

    async def _remind(self) -> None:
        """Say what is waited for, and again what was not acknowledged; not while Redis stands still."""
        for peer in tuple(self._peers.values()):
            if peer.asked:
                waiting = {number: asked.taken for number, asked in peer.asked.items()}
                beat = _encode(_Beat(self._numbers, waiting))
                if await self._put(peer, _Frame(self.me, "beat", data=beat)) is None:
                    return
            for key, one in tuple(peer.under_way.items()):
                if key in peer.under_way and one.beat < self._beats - 1:
                    one.beat = self._beats
                    if await self._put(peer, one.frame) is None:
                        return

    async def _echo(self) -> None:
        """Publish to ourselves, over every line, with every beat: who hears that is linked."""
        while True:
            for line in self._lines:
                reached = await self._publish(line, self.me, _Frame(self.me, "self", self._beats))
                if reached == 0:
                    self._linked.clear()
            await asyncio.sleep(self._beat)

    async def _stay_linked(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = self._beats
            try:
                await self._listen()
            except Exception as error:  # whatever the client library raises: it is tried again
                log.debug("the mailbox lost its link: %s", type(error).__name__)
            self._linked.clear()
            pause = _FIRST_PAUSE if self._beats > began + 1 else min(_LONGEST_PAUSE, pause * 2)
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        async with asyncio.timeout(_CONNECTING):
            link = await self._redis.listener(near=self._near)
        echo = None
        try:
            async with asyncio.timeout(_CONNECTING):
                await self._join(link)
            self._linked.set()
            self._echoed = began = self._beats
            echo = self._background.start(self._echo(), name="mailbox echo")
            while self._linked.is_set():
                message = await link.get_message(timeout=self._beat)
                if message is not None:
                    if message["type"] != "message":
                        return  # the connection was made anew
                    await self._handle(message["channel"].decode(), message["data"])
                elif self._redis.answers and self._beats > max(began, self._echoed) + _SILENT:
                    return
        finally:
            if echo is not None:
                echo.cancel()
            await link.aclose()  # type: ignore[no-untyped-call] # waits for nobody

    async def _join(self, link: PubSub) -> None:
        waiting = {line.of(self.me) for line in self._lines}
        await link.subscribe(*waiting)
        while waiting:
            message = await link.get_message(timeout=_CONNECTING)
            if message is not None and message["type"] == "subscribe":
                waiting.discard(message["channel"].decode())
            elif message is not None:
                await self._handle(message["channel"].decode(), message["data"])

    # Who there is

    def _peer(self, whom: str) -> _Peer:
        # The last line is that of the names, which all replicas have but in the middle of a rotation.
        return self._peers.setdefault(whom, _Peer(whom, len(self._lines) - 1))

    def _tidy(self, peer: _Peer) -> None:
        if peer.idle and self._peers.get(peer.address) is peer:
            self._peers.pop(peer.address, None)

    def _fail(self, peer: _Peer, failure: Unreachable) -> None:
        for asked in peer.asked.values():
            self._fail_one(asked, failure)

    @staticmethod
    def _fail_one(asked: _Asked, failure: Unreachable) -> None:
        if asked.failure is None and asked.term is not None:
            asked.failure = Unreachable(str(failure), gone=failure.gone)
            asked.term.reschedule(asyncio.get_running_loop().time())


def _line(seal: Seal, prefix: str) -> _Line:
    name = seal.name("bus", b"").hex()
    return _Line(seal, f"{prefix}:1:bus:{name}:mail")
