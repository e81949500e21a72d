"""Speaks Streamable HTTP of revision 2026-07-28 to one upstream: one POST per request, JSON or SSE back.

Every failure leaves here as Failed, Challenge or UpstreamError; cancelling a call closes its response at
once, which is how the modern protocol cancels (U-23). No deadline is kept here: the pool keeps them, since
upstreams rightly withhold headers for long (U-24).
"""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TypeAlias

import aiohttp
from yarl import URL

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
from gateway.protocol.jsonrpc import METHOD_NOT_FOUND, Incoming, Malformed, McpError, encode, read_incoming
from gateway.protocol.sse import EventTooLarge, SseParser
from gateway.protocol.subscriptions import Wanted
from gateway.support.logs import redact
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.connecting import proxy_for, shown_url, trust_for
from gateway.upstream.credentials import Credentials
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.incoming import Conversation, Dropped, Stale, Subscription
from gateway.upstream.listening import EventListening
from gateway.upstream.negotiating import negotiated
from gateway.upstream.outgoing import Outgoing, compose
from gateway.upstream.posting import CONNECT_TIMEOUT, Poster, Response, header_lines
from gateway.upstream.probing import PROBE, PROBE_TIMEOUT, Verdict, judge

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[Change], Awaitable[None]]

_HOPS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
_EXCERPT = 2048
_DRAIN_TIME = 1.0
_DRAIN_BYTES = 64 * 2**10
# Statuses that speak of the moment, not of the request.
_TRANSIENT = frozenset({408, 425, 429, 502, 503, 504})


class ModernHttpUpstream:
    """One upstream server reached by modern Streamable HTTP."""

    def __init__(
        self,
        name: UpstreamName,
        settings: config.Upstream,
        *,
        identity: config.Identity,
        version: str,
        limit: int,
        background: Background,
        metrics: Metrics,
        on_change: OnChange,
        environ: Mapping[str, str] = os.environ,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Raise ValueError when a file that the settings name will not do."""
        self._name = name
        self._url = URL(settings.url or "", encoded=True)
        self._proxy = proxy_for(settings, environ)
        self._tls = trust_for(name, settings, self._proxy)
        self._server_name = settings.tls.server_name
        self._credentials = Credentials(name, settings.auth)
        self._client_info = _client_info(identity, version)
        self._headers = {"User-Agent": f"mcp-gateway/{version}", "Accept-Encoding": "gzip, deflate"}
        self._limit = limit
        self._background = background
        self._metrics = metrics
        self._on_change = on_change
        self._wall_clock = wall_clock
        self._ids = itertools.count(1)
        self._poster: Poster | None = None
        self._start = ""
        self._closed = False
        self._slots = asyncio.Semaphore(settings.connections)
        self._listen_idle = settings.listen_idle
        self._probe_timeout = min(settings.timeout, PROBE_TIMEOUT)
        self._forced = settings.era == "modern"
        self.version = MODERN_VERSION
        """The protocol version spoken with this upstream."""
        self.active = 0
        """Calls under way; a subscription is none."""
        self.streams = 0
        self._subscriptions = 0

    def __repr__(self) -> str:
        return f"<ModernHttpUpstream {self._name}: {self.active} active, {self.streams} streams>"

    @property
    def name(self) -> UpstreamName:
        return self._name

    @property
    def forwards(self) -> bool:
        """Whether callers authenticate themselves at this upstream."""
        return self._credentials.forwards

    async def probe(self) -> Verdict:
        """Ask it who it is; raises nothing."""
        verdict = await self._asked()
        if verdict.version is not None:
            self.version = verdict.version
        return verdict

    async def _asked(self) -> Verdict:
        try:
            async with asyncio.timeout(self._probe_timeout):
                reply = await negotiated(self, lambda: self.call(PROBE))
                return judge(reply, forced=self._forced)
        except TimeoutError:
            return Verdict(None, reason=Reason.TIMEOUT, detail="no answer to server/discover", outage=True)
        except (UpstreamUnavailable, UpstreamError, Challenge) as error:
            return judge(error, forced=self._forced)

    async def call(self, request: Request, emit: Emit | None = None) -> Reply:
        """Return the result; raises UpstreamError as the upstream sent it, Failed or Challenge."""
        outgoing = compose(request, id=next(self._ids), version=self.version, client_info=self._client_info)
        conversation = Conversation(outgoing.id, progress=request.wants_progress, log_level=request.log_level)
        slot = _Slot(self._slots)
        await self._slots.acquire()
        self._count(+1)
        try:
            response = await self._post(outgoing, request.authorization)
            try:
                return await self._answer(response, conversation, request, emit, slot)
            except BaseException:
                response.close()
                raise
        finally:
            slot.release()
            self._count(-1)

    async def listen(self, request: Request, wanted: Wanted) -> EventListening:
        """Return the subscription once it is acknowledged, for the caller to close.

        It takes none of the slots, neither while it is open, which may be for ever, nor before: an upstream
        that is busy with calls is still listened to. Raises as `call` does; McpError -32601 is an upstream
        that serves no subscriptions.
        """
        outgoing = compose(request, id=next(self._ids), version=self.version, client_info=self._client_info)
        response = await self._post(outgoing, request.authorization)
        try:
            await self._expect_stream(response, outgoing.id, request.authorization)
        except BaseException:
            response.close()
            raise
        response.detect_loss()
        self._count_subscription(+1)
        listening = EventListening(
            self._name,
            Subscription(outgoing.id, wanted),
            read=partial(self._some, response),
            hang_up=partial(self._hang_up, response),
            limit=self._limit,
            idle=self._listen_idle,
            metrics=self._metrics,
        )
        try:
            await listening.open()
        except BaseException:
            listening.close()
            raise
        return listening

    async def close(self) -> None:
        """Close every connection; calls that are running or come later fail as STOPPING."""
        self._closed = True
        if self._poster is not None:
            await self._poster.close()

    # The way out

    def _count(self, step: int) -> None:
        self.active += step
        self._metrics.upstream_connections(self._name, self.active + self._subscriptions)

    def _count_subscription(self, step: int) -> None:
        self.streams += step
        self._subscriptions += step
        self._count(0)

    def _hang_up(self, response: Response) -> None:
        self._count_subscription(-1)
        response.close()

    async def _post(self, outgoing: Outgoing, authorization: str | None) -> Response:
        """Return the response to one request, its body still unread."""
        poster = self._connected()
        lines = header_lines(self._credentials.headers(authorization)) + header_lines(outgoing.headers)
        url = self._url
        for _ in range(_HOPS + 1):
            start = self._start if url is self._url else poster.start(url, self._headers)
            try:
                response = await poster.post(start + lines, outgoing.body)
            except aiohttp.ClientError as error:
                raise self._failed(error) from error
            if response.status not in _REDIRECTS:
                return response
            response.close()
            url = self._redirected(response, url)
        raise Failed(self._name, Reason.STATUS, f"over {_HOPS} redirects")

    def _redirected(self, response: Response, url: URL) -> URL:
        """Return where to send the same request again: only 307 and 308 keep it, only home is safe (B16)."""
        status, location = response.status, response.headers.get("Location", "")
        if status not in (307, 308) or not location:
            raise Failed(self._name, Reason.STATUS, f"HTTP {status}: not a redirect to follow", status=status)
        try:
            wanted = url.join(URL(location)).with_user(None).with_fragment(None)
            same = wanted.origin() == url.origin()
        except (ValueError, TypeError):
            same = False
        if not same:
            raise Failed(
                self._name, Reason.STATUS, f"HTTP {status}: redirect to another origin", status=status
            )
        log.debug("upstream %s redirects to %s", self._name, shown_url(str(wanted)))
        return wanted

    def _connected(self) -> Poster:
        if self._closed:
            raise Failed(self._name, Reason.STOPPING)
        if self._poster is None:
            self._poster = Poster(
                self._url,
                tls=self._tls,
                server_name=self._server_name,
                proxy=self._proxy,
                background=self._background,
            )
            self._start = self._poster.start(self._url, self._headers)
        return self._poster

    # The way back

    async def _answer(
        self,
        response: Response,
        conversation: Conversation,
        request: Request,
        emit: Emit | None,
        slot: "_Slot",
    ) -> Reply:
        media = self._media(response)
        if media == "text/event-stream" and response.status == 200:
            slot.release()
            return await self._from_stream(response, conversation, emit)
        # A missing type is JSON when it reads as JSON (B26).
        if media in ("application/json", ""):
            return await self._from_json(response, conversation, media)
        raise await self._odd(response, media, request.authorization)

    async def _expect_stream(self, response: Response, id: int, authorization: str | None) -> None:
        """Return if the answer to a listen is a stream, else raise what it says instead."""
        media = self._media(response)
        if media == "text/event-stream" and response.status == 200:
            return
        if media in ("application/json", ""):
            await self._from_json(response, Conversation(id), media)
            # A result at once, and no stream: whatever it calls that, nothing will be heard.
            raise UpstreamError(McpError(METHOD_NOT_FOUND, "the listen ended as it began"), response.status)
        raise await self._odd(response, media, authorization)

    def _media(self, response: Response) -> str:
        """Return the media type of an answer; raises for a refusal, and for an encoding nobody offered."""
        if response.status in (401, 403):
            raise self._credentials.refused(response.status, response.headers.getall("WWW-Authenticate", []))
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise self._protocol(f"unsupported encoding {encoding[:40]}", response)
        return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def _from_json(self, response: Response, conversation: Conversation, media: str) -> Reply:
        body = await self._body(response)
        if not body.strip() or response.status in (202, 204):
            if response.ok:
                raise self._protocol("no answer in the response", response)
            raise self._status(response)
        try:
            message = read_incoming(body)
            meaning = conversation.meaning(message)
        except Malformed as error:
            if response.ok:
                raise self._protocol(f"{error}", response) from None
            raise self._status(response) from None
        if isinstance(meaning, McpError):
            raise UpstreamError(meaning, response.status)
        if not response.ok:
            raise self._status(response)
        if not isinstance(meaning, Reply):
            raise self._protocol("the response holds no answer", response)
        return meaning

    async def _body(self, response: Response) -> bytes:
        """Return the decoded body, bounded as it arrives: a small one may decode to a huge one."""
        if response.content_length is not None and response.content_length > self._limit:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        while chunk := await self._some(response):
            size += len(chunk)
            if size > self._limit:
                raise self._too_large()
            chunks.append(chunk)
            if response.content.at_eof():
                break
        return b"".join(chunks)

    async def _some(self, response: Response) -> bytes:
        """Return what arrived of the body, b"" at its end."""
        try:
            return await response.content.readany()
        except aiohttp.ClientError as error:
            raise self._failed(error) from error

    async def _from_stream(self, response: Response, conversation: Conversation, emit: Emit | None) -> Reply:
        parser = SseParser(self._limit)
        self.streams += 1
        self._metrics.stream_opened("upstream")
        try:
            while chunk := await self._some(response):
                for event in parser.feed(chunk):
                    if event.event not in ("", "message") or not event.data:
                        continue  # other events are other people's; empty data primes a resumption (U-21)
                    reply = await self._heard(self._read(event.data), conversation, emit)
                    if reply is not None:
                        self._let_end(response)
                        return reply
        except EventTooLarge:
            raise self._too_large() from None
        finally:
            self.streams -= 1
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

    def _let_end(self, response: Response) -> None:
        """Give the stream a moment to end by itself, so that its connection can be used again."""
        if not response.content.at_eof():
            self._background.start(self._drain(response), name=f"drain {self._name}")

    async def _drain(self, response: Response) -> None:
        size = 0
        try:
            async with asyncio.timeout(_DRAIN_TIME):
                async for chunk in response.content.iter_any():
                    size += len(chunk)
                    if size > _DRAIN_BYTES:
                        break
        except (aiohttp.ClientError, TimeoutError):
            pass  # what follows the answer is ignored (U-22)
        finally:
            response.close()

    # What went wrong

    def _failed(self, error: Exception) -> Failed:
        """Return what an exception of aiohttp's means; the detail is for logs only."""
        if self._closed:
            return Failed(self._name, Reason.STOPPING)
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return self._lost(f"certificate: {error.certificate_error}")
            case aiohttp.ClientConnectorError():
                detail = error.os_error.strerror or str(error.os_error)
                return self._lost(detail, unsent=True)
            case aiohttp.ClientHttpProxyError():
                return self._lost(f"the proxy answered HTTP {error.status}")
            case aiohttp.ConnectionTimeoutError():
                return self._lost(f"no connection within {CONNECT_TIMEOUT:g}s")
            case aiohttp.ClientResponseError() if "content-encoding" in error.message.lower():
                return Failed(self._name, Reason.PROTOCOL, "unsupported encoding, or not what it says")
            case aiohttp.ClientResponseError():
                return Failed(self._name, Reason.PROTOCOL, "not HTTP")
            case aiohttp.ClientPayloadError() if "content-encoding" in str(error).lower():
                return Failed(self._name, Reason.PROTOCOL, "unsupported encoding, or not what it says")
            case _:
                return Failed(
                    self._name, Reason.CONNECT, f"connection lost: {type(error).__name__}", transient=True
                )

    def _lost(self, detail: str, *, unsent: bool = False) -> Failed:
        return Failed(self._name, Reason.CONNECT, detail, unsent=unsent, lost=True)

    def _too_large(self) -> Failed:
        return Failed(self._name, Reason.TOO_LARGE, f"over {self._limit} bytes")

    def _protocol(self, detail: str, response: Response) -> Failed:
        return Failed(
            self._name, Reason.PROTOCOL, f"HTTP {response.status}: {detail}", status=response.status
        )

    def _status(self, response: Response, detail: str = "") -> Failed:
        return Failed(
            self._name,
            Reason.STATUS,
            f"HTTP {response.status}{detail}",
            transient=response.status in _TRANSIENT,
            status=response.status,
            retry_after=retry_after(response.headers.get("Retry-After"), self._wall_clock()),
        )

    async def _odd(self, response: Response, media: str, authorization: str | None) -> Failed:
        """Return the failure for an answer that is neither JSON nor a stream, its text in the detail."""
        text = (await self._some(response))[:_EXCERPT]
        words = " ".join(text.decode("utf-8", "replace").split())
        excerpt = redact(words, self._credentials.secrets(authorization))[:200]
        detail = f", {media[:80]}: {excerpt}" if excerpt else f", {media[:80]}"
        if response.ok:
            return self._protocol(f"no JSON and no stream{detail}", response)
        return self._status(response, detail)


class _Slot:
    """One place among the calls, given back once: early when the answer streams.

    So `connections` bounds the calls an upstream works on, and long streams starve nobody.
    """

    def __init__(self, semaphore: asyncio.Semaphore) -> None:
        self._semaphore: asyncio.Semaphore | None = semaphore

    def release(self) -> None:
        if self._semaphore is not None:
            self._semaphore.release()
            self._semaphore = None


def retry_after(text: str | None, now: float) -> float | None:
    """Return the seconds a Retry-After header asks for, None when it is absent or unreadable."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):  # the latter for a year or an hour of many digits
        return None


def _client_info(identity: config.Identity, version: str) -> bytes:
    title = {} if identity.title is None else {"title": identity.title}
    return encode({"name": identity.name, **title, "version": version})
