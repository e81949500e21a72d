"""HTTP+SSE of revision 2024-11-05: one stream that all answers come on, and a URL to post messages to (X-61).

The stream is the session: where it ends, so does that, and the next one begins with a new handshake.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence

from yarl import URL

from gateway import config
from gateway.protocol.call import Challenge, Reason, UpstreamUnavailable
from gateway.protocol.jsonrpc import read_incoming
from gateway.protocol.legacy_server import INITIALIZE, INITIALIZED
from gateway.protocol.lines import TooLong
from gateway.protocol.sse import Event, EventTooLarge, SseParser
from gateway.upstream.channel import Channel, ChannelWire, OnChange, as_failed
from gateway.upstream.failures import Failed
from gateway.upstream.http_line import HttpLine
from gateway.upstream.legacy_listening import Changes, Ears
from gateway.upstream.legacy_session import LegacySession, SessionGone, forgets
from gateway.upstream.parked import Parked
from gateway.upstream.posting import Response
from gateway.upstream.sessions import Key
from gateway.upstream.slots import Slot

log = logging.getLogger(__name__)

_WORDS = 10.0
"""The longest it may take to post what nobody waits for."""
_MOST_POSTED = 100
"""Such messages on their way at once."""
_OF_NOBODY = frozenset({INITIALIZE, INITIALIZED, "ping"})
"""Messages that hold nothing of a caller's."""


class SseDuplex:
    """The stream and the way to post: both directions of one wire."""

    def __init__(self, line: HttpLine, authorization: str | None, response: Response) -> None:
        self._line = line
        self._authorization = authorization
        self._response = response
        self._parser = SseParser(line.limit)
        self._waiting: deque[Event] = deque()
        self._endpoint: URL | None = None
        self._posted = 0
        self._closed = False
        line.count_subscription(+1)
        line.metrics.stream_opened("upstream")

    @classmethod
    async def open(cls, line: HttpLine, authorization: str | None) -> "SseDuplex":
        """Return the wire once it says where to post; raises Failed or Challenge."""
        response = await line.post({"Accept": "text/event-stream"}, b"", authorization, verb="GET")
        try:
            media = line.media(response)
            if not response.ok or media != "text/event-stream":
                raise await line.odd(response, media, authorization)
        except BaseException:
            response.close()
            raise
        response.detect_loss()
        duplex = cls(line, authorization, response)
        try:
            await duplex._located()
        except BaseException:
            duplex.close()
            raise
        return duplex

    async def _located(self) -> None:
        """Read the first event, which must name a place on the same origin: a credential goes there."""
        first = await self._event()
        if first.event != "endpoint":
            raise Failed(self._line.name, Reason.PROTOCOL, "its stream does not begin with an endpoint")
        try:
            place = self._line.url.join(URL(first.data.decode("ascii"), encoded=True)).with_fragment(None)
            same = place.with_user(None).origin() == self._line.url.with_user(None).origin()
        except (ValueError, TypeError):
            same = False
        if not same:
            raise Failed(self._line.name, Reason.PROTOCOL, "its endpoint is on another origin, or none")
        self._endpoint = place.with_user(None)

    async def send(self, message: bytes, within: float) -> None:
        """Post one message; what it is answered with comes on the stream, the response says nothing."""
        slot = await self._line.slot("", self._authorization)
        self._line.count(+1)
        try:
            async with asyncio.timeout(within):
                await self._post(message, slot)
        except TimeoutError:
            raise Failed(self._line.name, Reason.TIMEOUT, f"a message was not taken in {within:g}s") from None
        finally:
            slot.release()
            self._line.count(-1)

    async def _post(self, message: bytes, slot: Slot | None = None) -> None:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        response = await self._line.post(headers, message, self._authorization, to=self._endpoint, slot=slot)
        try:
            media = self._line.media(response)
            if not response.ok:
                text = await self._line.body(response)
                if forgets(response.status, text):
                    # The stream may stay open for long: a proxy holds it (B02).
                    raise SessionGone(self._line.name, f"HTTP {response.status}")
                if read_incoming(message).method not in _OF_NOBODY:
                    raise self._line.status(
                        response
                    )  # its words may repeat what a user said, or a caller asked
                raise self._line.oddly(response, media, text, self._authorization)
            self._line.let_end(response)
        except BaseException:
            response.close()
            raise

    def post(self, message: bytes) -> bool:
        """Post a short message in the background."""
        if self._closed or self._posted >= _MOST_POSTED:
            return False
        self._posted += 1
        self._line.background.start(self._posting(message), name=f"post to {self._line.name}")
        return True

    async def _posting(self, message: bytes) -> None:
        try:
            await self.send(message, _WORDS)
        except (UpstreamUnavailable, Challenge) as error:
            log.debug("upstream %s: it could not be told: %s", self._line.name, error)
        finally:
            self._posted -= 1

    async def receive(self) -> Sequence[bytes | TooLong]:
        """Return the next message; raises Failed once the stream is over."""
        while True:
            event = await self._event()
            if event.event in ("", "message") and event.data:
                return [event.data]

    async def _event(self) -> Event:
        while not self._waiting:
            chunk = await self._line.some(self._response)
            if not chunk:
                raise Failed(self._line.name, Reason.CONNECT, "its stream ended", transient=True)
            try:
                self._waiting.extend(self._parser.feed(chunk))
            except EventTooLarge:
                raise self._line.too_large() from None
        return self._waiting.popleft()

    def skip(self, message: bytes | TooLong, why: str) -> None:
        """Log what is no message."""
        log.debug("upstream %s: an event skipped: %s", self._line.name, why)

    def close(self) -> None:
        """Hang up; twice is no harm."""
        if not self._closed:
            self._closed = True
            self._response.close()
            self._line.count_subscription(-1)
            self._line.metrics.stream_closed("upstream")


class SseSession:
    """One session with such a server."""

    def __init__(
        self,
        line: HttpLine,
        key: Key,
        settings: config.Upstream,
        duplex: SseDuplex,
        *,
        client_info: bytes,
        changes: Changes,
        on_change: OnChange,
        parked: Parked,
        on_idle: Callable[[], None],
    ) -> None:
        ids = itertools.count(1)
        self._duplex = duplex
        self.ears = Ears(changes, key.partition, on_idle)
        self._channel = Channel(
            line.name,
            duplex,
            client_info=client_info,
            patience=settings.timeout,
            listen_idle=settings.listen_idle,
            ids=ids,
            background=line.background,
            metrics=line.metrics,
            on_change=on_change,
        )

        def session(wire: ChannelWire) -> LegacySession:
            return LegacySession(
                line.name,
                wire,
                capabilities=key.capabilities,
                client_info=client_info,
                background=line.background,
                metrics=line.metrics,
                on_told=self.ears.tell,
                on_idle=lambda session: on_idle(),
                parked=parked,
                ids=ids,
                timeout=settings.timeout,
            )

        self.session = self._channel.speak(session)
        self._gone = False

    def __repr__(self) -> str:
        return f"<SseSession {self.session!r}>"

    @classmethod
    async def open(
        cls,
        line: HttpLine,
        key: Key,
        settings: config.Upstream,
        *,
        client_info: bytes,
        changes: Changes,
        on_change: OnChange,
        parked: Parked,
        on_idle: Callable[[], None],
    ) -> "SseSession":
        """Return a session that is open; raises UpstreamError, Failed or Challenge."""
        try:
            async with asyncio.timeout(settings.timeout):
                duplex = await SseDuplex.open(line, key.authorization)
                one = cls(
                    line,
                    key,
                    settings,
                    duplex,
                    client_info=client_info,
                    changes=changes,
                    on_change=on_change,
                    parked=parked,
                    on_idle=on_idle,
                )
                try:
                    await one.session.open()
                except BaseException:
                    await one.close()
                    raise
        except TimeoutError:
            detail = f"no session within {settings.timeout:g}s"
            raise Failed(line.name, Reason.TIMEOUT, detail) from None
        line.background.start(one._attend(), name=f"attend {line.name}")
        return one

    @property
    def active(self) -> int:
        """Calls under way, and listeners."""
        return self._channel.active + len(self.ears)

    @property
    def ended(self) -> bool:
        return self._gone or self._channel.failure is not None

    async def hears(self) -> bool:
        """Changes come on the stream."""
        return True

    def gone(self, gone: SessionGone) -> None:
        """Take note that the server knows it no more."""
        self._gone = True
        lost = Failed(gone.upstream, Reason.CONNECT, "its session is gone", transient=True)
        self.session.lose(gone, lost)
        self.ears.lose(lost)

    async def close(self) -> None:
        """Hang up, which tells the server."""
        if self._gone:
            await self.session.sent(_WORDS)  # each that was refused may be made again in another session
        self._channel.close()
        assert self._channel.failure is not None
        self.ears.lose(as_failed(self._channel.failure))
        self._duplex.close()

    async def _attend(self) -> None:
        await self._channel.ended.wait()
        await self.close()
