"""One session with a server of Streamable HTTP of the revisions 2025-03-26 to 2025-11-25.

Each request is a POST whose answer comes as JSON or on a stream of its own; what belongs to none comes on a
standing stream, where the server has one. A server may forget the session at any time, and says so by 404.
"""

import asyncio
import logging
import random as chance
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus

from gateway import config
from gateway.protocol.call import Challenge, Reason, UpstreamUnavailable
from gateway.protocol.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Incoming,
    Malformed,
    read_incoming,
)
from gateway.protocol.legacy_server import INITIALIZE, Greeting, read_messages
from gateway.protocol.sse import Event, EventTooLarge, SseParser
from gateway.support import exchange
from gateway.support.tasks import happens
from gateway.upstream.exchange import Exchange
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.http_line import HttpLine
from gateway.upstream.legacy_listening import Changes, Ears
from gateway.upstream.legacy_session import (
    LegacySession,
    SessionGone,
    forgets,
    is_answer,
    number_of,
)
from gateway.upstream.parked import Parked
from gateway.upstream.posting import Response
from gateway.upstream.retrying import Pace
from gateway.upstream.sessions import Key
from gateway.upstream.slots import Slot

log = logging.getLogger(__name__)

_NOTHING: Mapping[str, str] = {}
_UNVERSIONED = frozenset({"2025-03-26", "2024-11-05"})
"""Revisions that have no MCP-Protocol-Version header (9.1)."""
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,8192}")
_GOODBYE = 5.0
"""The longest a server is waited for that is told of the end of its session."""
_HEAD = 5.0
"""A standing stream whose head is held back this long counts as open: there is nothing to say yet."""
_LONGEST_RETRY = 60.0
_RESUMPTIONS = 5
"""How often in a row a stream is resumed that says nothing."""
_STABLE = 5.0
"""A standing stream that lasted so long was none of those that end as they begin (B45)."""


class HttpSession:
    """A session, and the wire of its own."""

    def __init__(
        self,
        line: HttpLine,
        key: Key,
        settings: config.Upstream,
        *,
        client_info: bytes,
        changes: Changes,
        parked: Parked,
        on_idle: Callable[[], None],
        pace: Pace,
        random: Callable[[], float] = chance.random,
    ) -> None:
        self._line = line
        self._key = key
        self._pace = pace
        self._random = random
        self.ears = Ears(changes, key.partition, on_idle)
        self._wire = _Wire(line, key.authorization, pace, random)
        self.session = LegacySession(
            line.name,
            self._wire,
            capabilities=key.capabilities,
            client_info=client_info,
            background=line.background,
            metrics=line.metrics,
            on_told=self.ears.tell,
            on_idle=lambda session: on_idle(),
            parked=parked,
        )
        self._wire.session = self.session
        self._open_timeout = settings.timeout
        self._listening: asyncio.Task[None] | None = None
        self._hears: bool | Failed | None = None
        """Whether there is a standing stream, why it cannot be told, or None before that is known."""
        self._known = asyncio.Event()
        self._wanted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<HttpSession {self.session!r}>"

    @property
    def active(self) -> int:
        return self.session.active + len(self.ears)

    @property
    def ended(self) -> bool:
        return self.session.ended

    async def open(self) -> None:
        """Shake hands, and begin to listen where the server says that it has a session for us."""
        try:
            async with asyncio.timeout(self._open_timeout):
                await self.session.open()
        except TimeoutError:
            raise Failed(
                self._line.name, Reason.TIMEOUT, f"no answer to initialize within {self._open_timeout:g}s"
            ) from None
        if self._wire.id is not None:
            self._listen()

    async def hears(self) -> bool:
        """Whether the server has a standing stream, once that is known or taken for granted."""
        if self._listening is None:
            self._listen()
        self._wanted.set()
        await happens(self._known, _HEAD)
        if isinstance(self._hears, Failed):
            raise self._hears
        return self._hears is not False

    async def close(self) -> None:
        """End it, and tell the server, which may refuse to be told."""
        if self._listening is not None:
            self._listening.cancel()
        if self.session.ended:
            return  # the server knows it no more
        self.session.fail(Failed(self._line.name, Reason.STOPPING))
        self.ears.lose(Failed(self._line.name, Reason.STOPPING))
        if self._wire.id is not None and not self._line.closed:
            try:
                async with asyncio.timeout(_GOODBYE):
                    response = await self._line.post(
                        self._wire.headers(accept="application/json"),
                        b"",
                        self._key.authorization,
                        verb="DELETE",
                    )
                response.close()
                log.debug("upstream %s: a session ended, HTTP %d", self._line.name, response.status)
            except (UpstreamUnavailable, Challenge, TimeoutError) as error:
                log.debug("upstream %s: a session's end could not be told: %s", self._line.name, error)

    def gone(self, gone: SessionGone) -> None:
        """Take note that the server knows it no more."""
        self.session.retire(gone)
        self._know(gone)
        self.ears.lose(Failed(self._line.name, Reason.CONNECT, "its session is gone", transient=True))
        if self._listening is not None:
            self._listening.cancel()

    # The standing stream

    def _listen(self) -> None:
        self._listening = self._line.background.start(self._stand(), name=f"stand by {self._line.name}")

    def _know(self, hears: bool | Failed | None) -> None:
        self._hears = hears
        if hears is None:
            self._known.clear()
        else:
            self._known.set()

    async def _stand(self) -> None:
        """Keep the standing stream open for as long as the session lasts, if the server has one."""
        exchange.detach()
        failures, silent, place = 0, 0, _Place()
        clock = asyncio.get_running_loop().time
        while True:
            place.resumed()
            place.retry = None  # no wish of the stream before is heeded
            since = clock()
            if not await self._stood_until_lost(place):
                return
            stable = clock() - since >= _STABLE
            failures = 1 if stable else failures + 1
            silent = 0 if stable or place.heard else silent + 1
            if place.id is None or silent > _RESUMPTIONS:
                # What was said meanwhile will not be said again (L-18).
                place.id = None
                self.ears.lose(Failed(self._line.name, Reason.CONNECT, "its stream ended", transient=True))
            self._wanted.clear()
            await happens(self._wanted, place.pause(self._pace, failures, self._random()))

    async def _stood_until_lost(self, place: "_Place") -> bool:
        """Have one stream, if it begins; whether there is to be another."""
        try:
            await self._stood(place)
        except SessionGone:
            return await self._doubted()
        except Failed as failure:
            log.debug("upstream %s: its standing stream: %s", self._line.name, failure.detail)
            if failure.status is not None and failure.status < 500 and failure.status not in _LATER:
                self._know(False)  # 405 above all: it has none
                return False
            self._know(failure)
            return True
        except Challenge as challenge:  # calls say so, too
            log.debug("upstream %s: no standing stream: HTTP %d", self._line.name, challenge.status)
            self._know(False)
            return False
        if place.id is None:
            self._know(None)
        return True

    async def _doubted(self) -> bool:
        """Find out whether it is the session that is not there, or a route for GET; whether to ask again."""
        try:
            async with asyncio.timeout(self._open_timeout):
                await self.session.ping()
        except SessionGone as gone:
            self.gone(gone)
            return False
        except Failed as failure:
            self._know(failure)
            return True
        except TimeoutError:
            self._know(Failed(self._line.name, Reason.TIMEOUT, "no answer to ping", transient=True))
            return True
        except Challenge as challenge:
            log.debug("upstream %s: no standing stream: HTTP %d", self._line.name, challenge.status)
        self._know(False)
        return False

    async def _stood(self, place: "_Place") -> None:
        """Read one stream to its end; raises when it does not begin."""
        headers = self._wire.headers(accept="text/event-stream", place=place)
        response = await self._line.post(headers, b"", self._key.authorization, verb="GET")
        try:
            if not response.ok:
                refused = await self._wire.refused(response)
                raise refused if isinstance(refused, Failed) else self._line.status(response)
            if self._line.media(response) != "text/event-stream":
                raise Failed(
                    self._line.name, Reason.STATUS, "it is no stream", status=HTTPStatus.METHOD_NOT_ALLOWED
                )
            response.detect_loss()
            self._know(True)
            self._line.count_subscription(+1)
            try:
                await self._wire.read(response, None, place)
            except Failed as failure:
                log.debug("upstream %s: its standing stream: %s", self._line.name, failure.detail)
            finally:
                self._line.count_subscription(-1)
        finally:
            response.close()


_LATER = frozenset({408, 425, 429})
_OF_REQUESTS = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
"""What is said of a request, never of the session it came in."""


class _Place:
    """Where a stream was left, for its server to go on from."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.retry: float | None = None
        self.begun = False
        """Whether the stream said anything."""
        self.heard = False
        """Whether it said what is no mere mark of a place."""

    def resumed(self) -> None:
        """Take note that another stream goes on."""
        self.begun = self.heard = False

    def left(self, event: Event) -> None:
        """Take note of an event that was read."""
        self.begun = True
        if event.id:
            self.id = event.id
        if event.retry is not None:
            self.retry = min(event.retry / 1000, _LONGEST_RETRY)

    def pause(self, pace: Pace, failures: int, chance: float) -> float:
        """Return the wait before the next stream: what the server wishes, if that is no storm (B45)."""
        if self.retry is not None and self.retry >= pace.first:
            return self.retry
        return pace.pause(failures, chance)


class _Wire:
    """Posts what a session says, and reads what comes back for it."""

    apart = True

    def __init__(
        self, line: HttpLine, authorization: str | None, pace: Pace, random: Callable[[], float]
    ) -> None:
        self._line = line
        self._authorization = authorization
        self._pace = pace
        self._random = random
        self._version: str | None = None
        self.session: LegacySession
        self.id: str | None = None
        """What the server calls the session, None where it keeps none."""

    def greeted(self, greeting: Greeting) -> None:
        """Name the version from now on."""
        self._version = greeting.version

    def headers(self, *, accept: str, place: _Place | None = None) -> Mapping[str, str]:
        """Return the headers of a message of this session."""
        headers = {"Accept": accept}
        if self._version is not None and self._version not in _UNVERSIONED:
            headers["MCP-Protocol-Version"] = self._version
        if self.id is not None:
            headers["Mcp-Session-Id"] = self.id
        if place is not None and place.id is not None:
            headers["Last-Event-ID"] = place.id
        return headers

    async def send(self, message: bytes) -> None:
        """Post what is not answered; the server takes it with 202, or whatever it likes."""
        response = await self._post(message)
        try:
            if not response.ok:
                raise await self.refused(response, secret=is_answer(message))
            self._line.let_end(response)
        except BaseException:
            response.close()
            raise

    async def request(self, exchange: Exchange) -> None:
        """Post a request and hand on what comes back, to the last."""
        slot = await self._line.slot(exchange.request.method, self._authorization)
        self._line.count(+1)
        try:
            response = await self._post(exchange.message, slot, exchange.request.carried)
            try:
                if not response.ok:
                    raise await self.refused(response, exchange.id, personal=exchange.request.personal)
                await self._answered(response, exchange, slot)
            except BaseException:
                response.close()
                raise
        finally:
            slot.release()
            self._line.count(-1)

    async def refused(
        self, response: Response, of: int | None = None, *, secret: bool = False, personal: bool = False
    ) -> Failed | UpstreamError:
        """Return what the refusal of a message means; raises what a refused credential does.

        `of` is the id of a request; what a `secret` message is refused with may repeat it. A page that
        answers what is `personal` is its caller's alone.
        """
        media = self._line.media(response)
        text = await self._line.body(response)
        said: Incoming | None = None
        if media in ("application/json", ""):
            with suppress(Malformed):
                said = read_incoming(text)
        error = None if said is None else said.error
        # A server that names the request has read it: what it finds wrong then is no session (B02).
        named = said is not None and of is not None and number_of(said.id) == of
        own = named and error is not None and error.code in _OF_REQUESTS
        if self.id is not None and not own and forgets(response.status, text):
            return SessionGone(self._line.name, f"HTTP {response.status}")
        if secret:
            return self._line.status(response)
        if error is not None:
            return UpstreamError(error, response.status)
        if personal:
            text = b""
        if self.id is not None:
            text = text.replace(self.id.encode(), b"***")  # whoever knows it may speak in the session
        return self._line.oddly(response, media, text, self._authorization)

    async def read(self, response: Response, exchange: Exchange | None, place: _Place) -> None:
        """Hand on what a stream says, to its end or until it answers; whoever is slow slows it down."""
        parser = SseParser(self._line.limit)
        of = None if exchange is None else exchange.id
        self._line.metrics.stream_opened("upstream")
        try:
            with self._line.held() as held:
                while chunk := await self._line.some(response):
                    for event in parser.feed(chunk):
                        place.left(event)
                        if event.event not in ("", "message") or not event.data:
                            continue  # other events are other people's; empty data primes a resumption
                        place.heard = True
                        self._hear(event.data, of)
                        if exchange is not None:
                            if exchange.over:
                                self._line.let_end(response)
                                return
                            await exchange.room()
                        await self.session.room()
                    self._line.check_room(held, parser.held)
        except EventTooLarge:
            raise self._line.too_large() from None
        finally:
            self._line.metrics.stream_closed("upstream")

    async def _post(
        self, message: bytes, slot: Slot | None = None, carried: Mapping[str, str] = _NOTHING
    ) -> Response:
        headers = {
            "Content-Type": "application/json",
            **carried,
            **self.headers(accept="application/json, text/event-stream"),
        }
        return await self._line.post(headers, message, self._authorization, slot=slot)

    async def _answered(self, response: Response, exchange: Exchange, slot: Slot) -> None:
        media = self._line.media(response)
        if exchange.request.method == INITIALIZE:
            self._name_session(response)
        if media == "text/event-stream" and response.status == HTTPStatus.OK:
            slot.release()
            await self._streamed(response, exchange)
            return
        if media not in ("application/json", ""):
            secret = exchange.request.personal
            raise await self._line.odd(response, media, self._authorization, secret=secret)
        text = await self._line.body(response)
        if not text.strip() or response.status in (HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT):
            raise self._line.protocol("no answer in the response", response)
        self._hear(text, exchange.id)
        if not exchange.over:
            raise self._line.protocol("the response holds no answer", response)

    def _name_session(self, response: Response) -> None:
        id = response.headers.get("Mcp-Session-Id") or None
        if id is not None and _SESSION_ID.fullmatch(id) is None:
            raise self._line.protocol("a session id that no header can hold", response)
        self.id = id

    def _hear(self, text: bytes, of: int | None) -> None:
        try:
            messages = read_messages(text, self._version)
        except Malformed as error:
            raise Failed(self._line.name, Reason.PROTOCOL, f"in its answer: {error}") from None
        for message in messages:
            self.session.heard(message, of)

    async def _streamed(self, response: Response, exchange: Exchange) -> None:
        """Read an answer's stream, and go on with it where it was left, if the server says how (X-29)."""
        place, silent, empty = _Place(), 0, 0
        while True:
            place.resumed()
            try:
                await self.read(response, exchange, place)
            except Failed as failure:
                if place.id is None or failure.reason is not Reason.CONNECT:
                    raise
            finally:
                if not exchange.over:
                    response.close()
            silent = 0 if place.begun else silent + 1
            empty = 0 if place.heard else empty + 1
            if exchange.over or place.id is None or silent > _RESUMPTIONS:
                return
            await asyncio.sleep(place.pause(self._pace, max(empty, 1), self._random()))
            headers = self.headers(accept="text/event-stream", place=place)
            response = await self._line.post(headers, b"", self._authorization, verb="GET")
            try:
                if not response.ok:
                    refused = await self.refused(response)
                    # Whatever became of the session, the request itself was taken: it is not sent again.
                    raise self._line.status(response) if isinstance(refused, SessionGone) else refused
                if self._line.media(response) != "text/event-stream":
                    raise self._line.protocol("no stream to go on with", response)
            except BaseException:
                response.close()
                raise
