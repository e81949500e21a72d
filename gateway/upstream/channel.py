"""Many requests at once over one wire that carries messages both ways: a program's pipes, or HTTP+SSE.

Both eras are spoken over it. What arrives is told apart by our ids, by the progress token, which is the id of
its request, and by the subscription's id, which is that of its listen. The reader waits for nobody: a caller
who takes notices slowly loses some, a listener who does is hung up on and asks again.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

from msgspec.structs import replace

from gateway.protocol.call import (
    META_PROGRESS_TOKEN,
    META_SUBSCRIPTION_ID,
    Change,
    Emit,
    Notice,
    Reason,
    Reply,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import (
    Incoming,
    Malformed,
    McpError,
    encode,
    notification_message,
    read_incoming,
)
from gateway.protocol.legacy_server import CANCELLED, Greeting, read_messages
from gateway.protocol.lines import TooLong
from gateway.protocol.subscriptions import Wanted
from gateway.support.exchange import detach
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.company import UNNAMED, Company
from gateway.upstream.exchange import Exchange
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.incoming import (
    Acknowledged,
    Conversation,
    Dropped,
    Ended,
    Stale,
    Subscription,
    members_of,
    number_of,
)
from gateway.upstream.legacy_session import LegacySession
from gateway.upstream.outgoing import compose

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[Change], Awaitable[None]]

_WORDS = 10.0
"""The longest a notification, or an answer to the server, may take to be written."""
_MOST_WAITING = 1000
"""Notices of one subscription that may wait for whoever reads it."""


class Duplex(Protocol):
    """A wire; whoever opened it closes it."""

    async def send(self, message: bytes, within: float) -> None:
        """Write one message whole; raises Failed, as `unsent` if nothing of it was written."""
        ...

    def post(self, message: bytes) -> bool:
        """Write a short message without waiting, unless too much waits already; whether it was taken."""
        ...

    async def receive(self) -> Sequence[bytes | TooLong]:
        """Return what arrived next, message by message; raises UpstreamUnavailable when nothing more can."""
        ...

    def skip(self, message: bytes | TooLong, why: str) -> None:
        """Log what is no message."""
        ...


class Channel:
    """One wire and what is under way on it, until the wire ends or its owner closes it."""

    def __init__(
        self,
        name: UpstreamName,
        duplex: Duplex,
        *,
        client_info: bytes,
        patience: float,
        listen_idle: float | None,
        ids: "itertools.count[int]",
        background: Background,
        metrics: Metrics,
        on_change: OnChange,
    ) -> None:
        """`patience` is how long a request may take to be written."""
        self._name = name
        self._duplex = duplex
        self._client_info = client_info
        self._patience = patience
        self._listen_idle = listen_idle
        self._ids = ids
        self._background = background
        self._metrics = metrics
        self._on_change = on_change
        self._exchanges: dict[int, Exchange] = {}
        self._company = Company()
        self._listenings: dict[int, ChannelListening] = {}
        self._session: LegacySession | None = None
        self._carried: WeakValueDictionary[int, Exchange] = WeakValueDictionary()
        self.failure: UpstreamUnavailable | None = None
        """Why nothing can be asked over it any more, None while it can."""
        self.ended = asyncio.Event()
        self._reading = background.start(self._read(), name=f"read {name}")

    def __repr__(self) -> str:
        era = "modern" if self._session is None else "legacy"
        state = "open" if self.failure is None else "over"
        return f"<Channel {self._name}: {era}, {state}, {self.active} active>"

    @property
    def active(self) -> int:
        """Calls under way."""
        return len(self._exchanges) + (0 if self._session is None else self._session.active)

    def speak(self, session: Callable[["ChannelWire"], LegacySession]) -> LegacySession:
        """Speak an older era from now on, in this session."""
        self._session = session(ChannelWire(self._duplex, self._patience, self._carried))
        return self._session

    def speak_modern(self) -> None:
        """Speak the modern era again."""
        self._session = None

    async def call(
        self, request: Request, emit: Emit | None = None, *, version: str, cancel: bool = True
    ) -> Reply:
        """Return the result of a request of the modern era; raises UpstreamError or UpstreamUnavailable.

        Cancelling it tells the server (U-23), unless it is a probe, which a server of another era would not
        understand any better for it (U-19).
        """
        id = next(self._ids)
        exchange = Exchange(id, request, self._composed(request, id, version), None)
        self._check_open()
        self._company.join(request)
        self._exchanges[id] = exchange
        sent = False
        try:
            await self._duplex.send(exchange.message, self._patience)
            sent = True
            await exchange.next(emit)
            return exchange.raise_or_return()
        finally:
            del self._exchanges[id]
            if sent and cancel and not exchange.over:
                self._cancel(id)

    async def listen(self, request: Request, wanted: Wanted, *, version: str) -> "ChannelListening":
        """Return a subscription of the modern era once it is acknowledged, for the caller to close."""
        id = next(self._ids)
        message = self._composed(request, id, version)
        self._check_open()
        listening = ChannelListening(
            self._name,
            Subscription(id, wanted),
            hang_up=lambda tell: self._hang_up(id, tell),
            idle=self._listen_idle,
            metrics=self._metrics,
        )
        self._listenings[id] = listening
        try:
            await self._duplex.send(message, self._patience)
            await listening.open()
        except BaseException:
            listening.close()
            raise
        return listening

    def fail(self, failure: UpstreamUnavailable) -> None:
        """Have all that is under way, and all that comes later, fail."""
        if self.failure is not None:
            return
        self.failure = failure
        for exchange in list(self._exchanges.values()):
            exchange.end(failure)
        for listening in list(self._listenings.values()):
            listening.lose(as_failed(failure))
        if self._session is not None:
            self._session.fail(failure)
        self.ended.set()

    def close(self) -> None:
        """Have everything fail as the gateway's own doing, and read no more."""
        self.fail(Failed(self._name, Reason.STOPPING))
        self._reading.cancel()

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _composed(self, request: Request, id: int, version: str) -> bytes:
        # What headers mirror is of no concern here, not even what none could (U-09).
        bare = replace(request, header_params=()) if request.header_params else request
        return compose(bare, id=id, version=version, client_info=self._client_info).body

    def _hang_up(self, id: int, tell: bool) -> None:
        if self._listenings.pop(id, None) is not None and tell:
            self._cancel(id)

    def _cancel(self, id: int) -> None:
        if self.failure is None and not self._duplex.post(
            notification_message(CANCELLED, {"requestId": encode(id)})
        ):
            log.debug("upstream %s: request %d could not be cancelled", self._name, id)

    # What is heard

    async def _read(self) -> None:
        detach()
        try:
            while True:
                for message in await self._duplex.receive():
                    self._heard(message)
                await asyncio.sleep(0)  # one that never pauses must not keep the loop to itself
        except UpstreamUnavailable as failure:
            self.fail(failure)
        finally:
            self.fail(Failed(self._name, Reason.STOPPING))

    def _heard(self, text: bytes | TooLong) -> None:
        if isinstance(text, TooLong):
            self._too_long(text)
            return
        try:
            greeting = None if self._session is None else self._session.greeting
            messages = read_messages(text, None if greeting is None else greeting.version)
        except Malformed as error:
            self._duplex.skip(text, f"{error}"[:200] if text.strip() else "an empty line")
            self._garbled(text)
            return
        for message in messages:
            self._routed(message)

    def _too_long(self, text: TooLong) -> None:
        """Have the one call fail whose answer was too large (B25)."""
        id = number_of(text.id())
        exchange = None if id is None else self._exchanges.get(id) or self._carried.get(id)
        waiting = [one for one in (*self._exchanges.values(), *self._carried.values()) if not one.over]
        if exchange is None and id is None and len(waiting) == 1:
            exchange = waiting[0]
        self._duplex.skip(text, "it is over limits.message")
        if exchange is not None:
            exchange.end(Failed(self._name, Reason.TOO_LARGE, f"{text.size} bytes"))

    def _garbled(self, text: bytes) -> None:
        """Have the one call fail whose answer would be one, were it UTF-8."""
        try:
            text.decode()
        except UnicodeDecodeError:
            message = _whole(text.decode("utf-8", "replace").encode())
        else:
            return
        id = None if message is None or message.method is not None else number_of(message.id)
        exchange = None if id is None else self._exchanges.get(id) or self._carried.get(id)
        if exchange is not None:
            exchange.end(Failed(self._name, Reason.PROTOCOL, "its answer is not valid UTF-8"))

    def _routed(self, message: Incoming) -> None:
        if message.method is None and number_of(message.id) in self._exchanges:
            self._answered(message)  # a probe of the modern era, answered late
        elif self._session is not None:
            waiting = [id for id, exchange in self._carried.items() if not exchange.over]
            # An error without an id answers what was not understood: the only request there is (U-25).
            nameless = message.method is None and message.id is None and len(waiting) == 1
            self._session.heard(message, of=waiting[0] if nameless else None)
        elif message.method is None:
            self._answered(message)
        elif message.id is not None:
            # A modern server has no requests to make (E-02, U-22); answering would be a violation of ours.
            self._dropped(Dropped("request", f"a request: {message.method[:80]}"))
        else:
            self._told(message, message.method)

    def _answered(self, message: Incoming) -> None:
        id = number_of(message.id)
        if message.id is None and len(self._exchanges) == 1:
            ((id, only),) = self._exchanges.items()
            if self._company.only([only], [only]) is None:
                only.end(Failed(self._name, Reason.PROTOCOL, UNNAMED))
                return
        if id in self._listenings:
            self._listenings[id].hear(message)
            return
        exchange = None if id is None else self._exchanges.get(id)
        if exchange is None:
            self._dropped(Dropped("notification", "it answers nothing that is waited for"))
            return
        try:
            meaning = exchange.conversation.meaning(message)
        except Malformed as error:
            exchange.end(Failed(self._name, Reason.PROTOCOL, f"{error}"))
            return
        if isinstance(meaning, McpError):
            exchange.end(UpstreamError(meaning, 200))
        elif isinstance(meaning, Reply):
            exchange.end(meaning)

    def _told(self, message: Incoming, method: str) -> None:
        listening = self._listening_of(message, method)
        if listening is not None:
            listening.hear(message)
            return
        exchange = self._whose(message, method)
        conversation = Conversation(0) if exchange is None else exchange.conversation
        try:
            meaning = conversation.meaning(message)
        except Malformed as error:
            meaning = Dropped("notification", f"{error}")
        if isinstance(meaning, Stale):
            self._changed(meaning)
        elif isinstance(meaning, Dropped):
            self._dropped(meaning)
        elif isinstance(meaning, Notice):
            if exchange is None:
                self._dropped(Dropped("notification", "nothing says whose it is"))
            elif not exchange.told(meaning):
                self._dropped(Dropped("notification", "its call hears no more for now"))

    def _listening_of(self, message: Incoming, method: str) -> "ChannelListening | None":
        """Return the subscription that a notification belongs to (L-16), or that it ends (L-27)."""
        params = members_of(message.params)
        if method == CANCELLED:
            id = number_of(params.get("requestId"))
        else:
            id = number_of(members_of(params.get("_meta")).get(META_SUBSCRIPTION_ID))
        return None if id is None else self._listenings.get(id)

    def _whose(self, message: Incoming, method: str) -> Exchange | None:
        """Return the call that a notification is about, if there can be only one (A-14)."""
        if method == "notifications/progress":
            id = number_of(members_of(message.params).get(META_PROGRESS_TOKEN))
            return None if id is None else self._exchanges.get(id)
        calls = among = list(self._exchanges.values())
        if method == "notifications/message":
            calls = [call for call in calls if call.request.log_level is not None]
        return self._company.only(calls, among)

    def _changed(self, stale: Stale) -> None:
        for method in stale.methods:
            cause = "list_changed" if stale.uri is None else "updated"
            change = Change(self._name, method, stale.uri, cause)
            self._background.start(self._announce(change), name=f"change at {self._name}")

    async def _announce(self, change: Change) -> None:
        await self._on_change(change)

    def _dropped(self, dropped: Dropped | None) -> None:
        if dropped is not None:
            self._metrics.dropped(self._name, dropped.what)
            log.debug("upstream %s: %s dropped: %s", self._name, dropped.what, dropped.why)


class ChannelWire:
    """The part of a channel that a session of an older era speaks over."""

    apart = False

    def __init__(
        self, duplex: Duplex, patience: float, carried: "WeakValueDictionary[int, Exchange]"
    ) -> None:
        self._duplex = duplex
        self._patience = patience
        self._carried = carried

    async def request(self, exchange: Exchange) -> None:
        """Send a request; what comes for it, comes with everything else."""
        self._carried[exchange.id] = exchange
        await self._duplex.send(exchange.message, self._patience)

    async def send(self, message: bytes) -> None:
        """Send a notification, or an answer."""
        await self._duplex.send(message, _WORDS)

    def greeted(self, greeting: Greeting) -> None:
        """Nothing depends on it here."""


class ChannelListening:
    """An open subscription of the modern era, to be iterated by one reader."""

    def __init__(
        self,
        name: UpstreamName,
        subscription: Subscription,
        *,
        hang_up: Callable[[bool], None],
        idle: float | None,
        metrics: Metrics,
    ) -> None:
        """`hang_up` is called once, and told whether the server has yet to hear of it."""
        self._name = name
        self._subscription = subscription
        self._hang_up = hang_up
        self._idle = idle
        self._metrics = metrics
        self._waiting: deque[Incoming] = deque()
        self._stir = asyncio.Event()
        self._opened = False
        self._closed = False
        self._lost: Failed | None = None
        self.honoured = Wanted()
        """What the upstream acknowledged, never more than was wanted (L-16)."""
        self.failure: Failed | None = None
        """How it was lost, None while it was not."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "not acknowledged"
        return f"<ChannelListening {self._name}: {state}, {len(self._waiting)} waiting>"

    def hear(self, message: Incoming) -> None:
        """Take a message that belongs to it."""
        if len(self._waiting) >= _MOST_WAITING:
            self.lose(Failed(self._name, Reason.PROTOCOL, "it tells more than is taken", transient=True))
            return
        self._waiting.append(message)
        self._stir.set()

    def lose(self, failure: Failed) -> None:
        """End it as lost, once what came before was read."""
        if self._lost is None:
            self._lost = failure
            self._stir.set()

    async def open(self) -> None:
        """Return once it is acknowledged; raises UpstreamError for an error instead, or Failed."""
        match await self._heard(idle=None):
            case Acknowledged(honoured):
                self.honoured = honoured
                self._opened = True
                self._metrics.listen_opened(self._name)
            case McpError() as error:
                self._end("error", tell=False)
                raise UpstreamError(error, 200)
            case _:
                self._end("error", tell=False)
                raise Failed(self._name, Reason.PROTOCOL, "the listen ended before it was acknowledged")

    def close(self) -> None:
        """Hang up, unless it is over already; notices not read yet are forgotten."""
        self._end("closed", tell=True)

    def __aiter__(self) -> "ChannelListening":
        return self

    async def __anext__(self) -> Notice:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise StopAsyncIteration
        try:
            meaning = await self._heard(idle=self._idle)
        except Failed as failure:
            self.failure = failure
            self._end("idle" if failure.reason is Reason.TIMEOUT else "lost", tell=True)
            raise
        if isinstance(meaning, Notice):
            return meaning
        if isinstance(meaning, Ended):
            self._end(meaning.how, tell=False)
            raise StopAsyncIteration
        assert isinstance(meaning, McpError)  # the subscription hands out only the first acknowledgement
        self._end("error", tell=False)
        raise Failed(self._name, Reason.PROTOCOL, f"error {meaning.code} ended the listen")

    async def _heard(self, *, idle: float | None) -> Acknowledged | Notice | Ended | McpError:
        while True:
            meaning = self._meaning(await self._next(idle))
            if not isinstance(meaning, Dropped):
                return meaning
            self._metrics.dropped(self._name, meaning.what)
            log.debug("upstream %s: %s dropped: %s", self._name, meaning.what, meaning.why)

    async def _next(self, idle: float | None) -> Incoming:
        try:
            async with asyncio.timeout(idle):
                while not self._waiting:
                    if self._lost is not None:
                        raise self._lost
                    self._stir.clear()
                    await self._stir.wait()
        except TimeoutError:
            raise Failed(self._name, Reason.TIMEOUT, f"nothing was heard for {idle:g}s") from None
        return self._waiting.popleft()

    def _meaning(self, message: Incoming) -> Acknowledged | Notice | Ended | McpError | Dropped:
        try:
            return self._subscription.meaning(message)
        except Malformed as error:
            raise Failed(self._name, Reason.PROTOCOL, f"in the listen: {error}") from None

    def _end(self, how: str, *, tell: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        self._hang_up(tell)
        if self._opened:
            self._metrics.listen_ended(self._name, how)
            log.debug("upstream %s: its listen ended: %s", self._name, how)


def _whole(text: bytes) -> Incoming | None:
    """Return the one message that a text is, None when it is none."""
    try:
        return read_incoming(text)
    except Malformed:
        return None


def as_failed(failure: UpstreamUnavailable) -> Failed:
    """Return a failure as one of this edge."""
    if isinstance(failure, Failed):
        return failure
    return Failed(failure.upstream, failure.reason, failure.detail)
