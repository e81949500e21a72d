"""Speaks Streamable HTTP of revision 2026-07-28 to one upstream: one POST per request, JSON or SSE back.

Every failure leaves here as Failed, Challenge or UpstreamError; cancelling a call closes its response at
once, which is how the modern protocol cancels (U-23). No deadline is kept here: the pool keeps them, since
upstreams rightly withhold headers for long (U-24).
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from gateway import config
from gateway.protocol.call import (
    MODERN_VERSION,
    Challenge,
    Change,
    Emit,
    Notice,
    Reason,
    Reply,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import METHOD_NOT_FOUND, Incoming, Malformed, McpError, read_incoming
from gateway.protocol.sse import EventTooLarge, SseParser
from gateway.protocol.subscriptions import Wanted
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.http_line import HttpLine
from gateway.upstream.incoming import Conversation, Dropped, Stale, Subscription
from gateway.upstream.listening import EventListening
from gateway.upstream.negotiating import negotiated
from gateway.upstream.outgoing import compose
from gateway.upstream.posting import Response
from gateway.upstream.probing import PROBE, PROBE_TIMEOUT, Verdict, judge
from gateway.upstream.slots import Slot

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[Change], Awaitable[None]]


class ModernHttpUpstream:
    """One upstream server reached by modern Streamable HTTP."""

    def __init__(
        self, line: HttpLine, settings: config.Upstream, *, client_info: bytes, on_change: OnChange
    ) -> None:
        self._line = line
        self._name = line.name
        self._client_info = client_info
        self._metrics = line.metrics
        self._on_change = on_change
        self._ids = itertools.count(1)
        self._listen_idle = settings.listen_idle
        self._probe_timeout = min(settings.timeout, PROBE_TIMEOUT)
        self._forced = settings.era == "modern"
        self.version = MODERN_VERSION
        """The protocol version spoken with this upstream."""

    def __repr__(self) -> str:
        return f"<ModernHttpUpstream {self._line!r}>"

    @property
    def name(self) -> UpstreamName:
        return self._name

    @property
    def wire(self) -> str:
        return "Streamable HTTP"

    @property
    def active(self) -> int:
        return self._line.active

    async def probe(self, asker: Request = PROBE) -> Verdict:
        """Ask it, with the credential of this request, who it is; raises nothing."""
        verdict = await self._asked(replace(PROBE, authorization=asker.authorization))
        if verdict.version is not None:
            self.version = verdict.version
        return verdict

    async def _asked(self, probe: Request) -> Verdict:
        try:
            async with asyncio.timeout(self._probe_timeout):
                reply = await negotiated(self, lambda: self.call(probe))
                return judge(reply, forced=self._forced)
        except TimeoutError:
            return Verdict(None, reason=Reason.TIMEOUT, detail="no answer to server/discover", outage=True)
        except (UpstreamUnavailable, UpstreamError, Challenge) as error:
            return judge(error, forced=self._forced)

    async def call(self, request: Request, emit: Emit | None = None) -> Reply:
        """Return the result; raises UpstreamError as the upstream sent it, Failed or Challenge."""
        outgoing = compose(request, id=next(self._ids), version=self.version, client_info=self._client_info)
        conversation = Conversation(outgoing.id, progress=request.wants_progress, log_level=request.log_level)
        slot = await self._line.slot(request.method, request.authorization)
        self._line.count(+1)
        try:
            response = await self._line.post(
                outgoing.headers, outgoing.body, request.authorization, slot=slot
            )
            try:
                return await self._answer(response, conversation, request, emit, slot)
            except BaseException:
                response.close()
                raise
        finally:
            slot.release()
            self._line.count(-1)

    async def listen(self, request: Request, wanted: Wanted) -> EventListening:
        """Return the subscription once it is acknowledged, for the caller to close.

        It takes none of the slots, neither while it is open, which may be for ever, nor before: an upstream
        that is busy with calls is still listened to. Raises as `call` does; McpError -32601 is an upstream
        that serves no subscriptions.
        """
        outgoing = compose(request, id=next(self._ids), version=self.version, client_info=self._client_info)
        response = await self._line.post(outgoing.headers, outgoing.body, request.authorization)
        try:
            await self._expect_stream(response, outgoing.id, request.authorization)
        except BaseException:
            response.close()
            raise
        response.detect_loss()
        self._line.count_subscription(+1)
        listening = EventListening(
            self._name,
            Subscription(outgoing.id, wanted),
            read=partial(self._line.some, response),
            hang_up=partial(self._hang_up, response),
            limit=self._line.limit,
            idle=self._listen_idle,
            metrics=self._metrics,
            grown=partial(self._line.check_room, self._line.held()),
        )
        try:
            await listening.open()
        except BaseException:
            listening.close()
            raise
        return listening

    def _hang_up(self, response: Response) -> None:
        self._line.count_subscription(-1)
        response.close()

    # The way back

    async def _answer(
        self,
        response: Response,
        conversation: Conversation,
        request: Request,
        emit: Emit | None,
        slot: Slot,
    ) -> Reply:
        media = self._line.media(response)
        if media == "text/event-stream" and response.status == 200:
            slot.release()
            return await self._from_stream(response, conversation, emit)
        # A missing type is JSON when it reads as JSON (B26).
        if media in ("application/json", ""):
            return await self._from_json(response, conversation, media)
        # What a user said reaches no log (M-25), nor what a caller is told.
        secret = request.personal or "inputResponses" in request.params
        raise await self._line.odd(response, media, request.authorization, secret=secret)

    async def _expect_stream(self, response: Response, id: int, authorization: str | None) -> None:
        """Return if the answer to a listen is a stream, else raise what it says instead."""
        media = self._line.media(response)
        if media == "text/event-stream" and response.status == 200:
            return
        if media in ("application/json", ""):
            await self._from_json(response, Conversation(id), media)
            # A result at once, and no stream: whatever it calls that, nothing will be heard.
            raise UpstreamError(McpError(METHOD_NOT_FOUND, "the listen ended as it began"), response.status)
        raise await self._line.odd(response, media, authorization, secret=authorization is not None)

    async def _from_json(self, response: Response, conversation: Conversation, media: str) -> Reply:
        body = await self._line.body(response)
        if not body.strip() or response.status in (202, 204):
            if response.ok:
                raise self._line.protocol("no answer in the response", response)
            raise self._line.status(response)
        try:
            message = read_incoming(body)
            meaning = conversation.meaning(message)
        except Malformed as error:
            if response.ok:
                raise self._line.protocol(f"{error}", response) from None
            raise self._line.status(response) from None
        if isinstance(meaning, McpError):
            raise UpstreamError(meaning, response.status)
        if not response.ok:
            raise self._line.status(response)
        if not isinstance(meaning, Reply):
            raise self._line.protocol("the response holds no answer", response)
        return meaning

    async def _from_stream(self, response: Response, conversation: Conversation, emit: Emit | None) -> Reply:
        parser = SseParser(self._line.limit)
        self._line.streams += 1
        self._metrics.stream_opened("upstream")
        try:
            with self._line.held() as held:
                while chunk := await self._line.some(response):
                    for event in parser.feed(chunk):
                        if event.event not in ("", "message") or not event.data:
                            continue  # other events are other people's; empty data primes a resumption (U-21)
                        reply = await self._heard(self._read(event.data), conversation, emit)
                        if reply is not None:
                            self._line.let_end(response)
                            return reply
                    self._line.check_room(held, parser.held)
        except EventTooLarge:
            raise self._line.too_large() from None
        finally:
            self._line.streams -= 1
            self._metrics.stream_closed("upstream")
        raise Failed(self._name, Reason.PROTOCOL, "the stream ended without an answer", transient=True)

    def _read(self, data: bytes) -> Incoming:
        try:
            return read_incoming(data)
        except Malformed as error:
            raise Failed(self._name, Reason.PROTOCOL, f"in the stream: {error}") from None

    async def _heard(self, message: Incoming, conversation: Conversation, emit: Emit | None) -> Reply | None:
        try:
            meaning = conversation.meaning(message)
        except Malformed as error:
            raise Failed(self._name, Reason.PROTOCOL, f"in the stream: {error}") from None
        match meaning:
            case Reply():
                return meaning
            case McpError():
                raise UpstreamError(meaning, 200)
            case Notice():
                if emit is not None:
                    await emit(meaning)
            case Stale():
                for method in meaning.methods:
                    cause = "list_changed" if meaning.uri is None else "updated"
                    await self._on_change(Change(self._name, method, meaning.uri, cause))
            case Dropped():
                self._metrics.dropped(self._name, meaning.what)
                log.debug("upstream %s: %s dropped: %s", self._name, meaning.what, meaning.why)
        return None
