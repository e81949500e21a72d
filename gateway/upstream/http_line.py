"""What every exchange with an upstream over HTTP shares, whatever it speaks: the way there and back.

Posting with its credential, redirects that stay at home, bodies within bounds, and what each failure means:
it leaves here as Failed or Challenge. No deadline is kept here: the pool keeps them, since upstreams rightly
withhold headers for long (U-24).
"""

import asyncio
import logging
import os
import random as chance
import time
from collections.abc import Callable, Mapping

import aiohttp
from yarl import URL

from gateway import config
from gateway.protocol.call import Reason, UpstreamName
from gateway.support.logs import redact
from gateway.support.metrics import Metrics
from gateway.support.room import Held, Room
from gateway.support.tasks import Background
from gateway.support.trust import failed_check
from gateway.upstream.challenges import read_challenge
from gateway.upstream.connecting import proxy_for, shown_url, trust_for
from gateway.upstream.credentials import Credentials
from gateway.upstream.egress import Answer, Astray, bounded
from gateway.upstream.failures import Busy, Failed
from gateway.upstream.obtaining import tokens_for
from gateway.upstream.posting import CONNECT_TIMEOUT, Poster, Response, header_lines
from gateway.upstream.retrying import retry_after
from gateway.upstream.slots import Slot, Slots

log = logging.getLogger(__name__)

_HOPS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REFUSALS = frozenset({401, 403})
_TRIES = 3
"""A request may go out without a token, then with one, then with one that permits more."""
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
_EXCERPT = 2048
_PIECE = 16 * 2**10
"""What is parsed in one go of a stream: of the shortest lines there are, about ten milliseconds."""
_LARGE_PIECE = 2**20
"""The same of what is only put together."""
_DRAIN_TIME = 1.0
_DRAIN_BYTES = 64 * 2**10
# Statuses that speak of the moment, not of the request.
_TRANSIENT = frozenset({408, 425, 429, 502, 503, 504})


class HttpLine:
    """The connections to one upstream, and the calls that may run on them at once."""

    def __init__(
        self,
        name: UpstreamName,
        settings: config.Upstream,
        *,
        version: str,
        limit: int,
        background: Background,
        metrics: Metrics,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        room: Room,
        wall_clock: Callable[[], float] = time.time,
        random: Callable[[], float] = chance.random,
    ) -> None:
        """Raise ValueError when a file that the settings name will not do."""
        self.name = name
        self.limit = limit
        self.background = background
        self.metrics = metrics
        self.url = URL(settings.url or "", encoded=True)
        self._proxy = proxy_for(settings, environ)
        self._tls = trust_for(name, settings, self._proxy)
        self._server_name = settings.tls.server_name
        self._headers = {"User-Agent": f"mcp-gateway/{version}", "Accept-Encoding": "gzip, deflate"}
        self._wall_clock = wall_clock
        tokens = tokens_for(
            name,
            settings,
            own=self._document,
            user_agent=self._headers["User-Agent"],
            background=background,
            metrics=metrics,
            clock=clock,
            wall_clock=wall_clock,
            random=random,
        )
        self.credentials = Credentials(name, settings.auth, tokens)
        self._room = room
        self._poster: Poster | None = None
        self._start = ""
        self._closed = False
        self.slots = Slots(name, settings.connections, settings.queue, metrics)
        self.active = 0
        """Calls under way; a subscription is none."""
        self.streams = 0
        self._subscriptions = 0

    def __repr__(self) -> str:
        return f"<HttpLine {self.name}: {self.active} active, {self.streams} streams>"

    @property
    def closed(self) -> bool:
        return self._closed

    async def slot(self, method: str, authorization: str | None) -> Slot:
        """Return a place among the calls that may run at once, when there is one; raises Busy.

        Nobody holds one while this caller's token is waited for, which may take long or fail: so it raises
        what that raises, too.
        """
        self._check_open()
        await self.credentials.ready(authorization)
        return await self.slots.take(method)

    def count(self, step: int) -> None:
        """Count a call in, or out."""
        self.active += step
        self.metrics.upstream_connections(self.name, self.active + self._subscriptions)

    def count_subscription(self, step: int) -> None:
        """Count a stream that belongs to no call in, or out."""
        self.streams += step
        self._subscriptions += step
        self.count(0)

    async def close(self) -> None:
        """Close every connection; what is running or comes later fails as STOPPING."""
        self._closed = True
        await self.credentials.close()
        if self._poster is not None:
            await self._poster.close()

    # The way out

    async def post(
        self,
        headers: Mapping[str, str],
        body: bytes,
        authorization: str | None,
        *,
        verb: str = "POST",
        to: URL | None = None,
        slot: Slot | None = None,
    ) -> Response:
        """Return the response to one request, its body still unread; `to` another place of this origin.

        What is refused is sent again with another credential, if there is one (U-28): it was not worked on,
        and its slot is free while that credential is got.
        """
        self._check_open()
        lines, kinds = header_lines(headers), set[str]()
        shown = await self.credentials.headers(authorization)
        for _ in range(_TRIES):
            response = await self._sent(
                header_lines(shown) + lines, body, verb, self.url if to is None else to
            )
            if response.status not in _REFUSALS:
                return response
            response.close()
            bearer = read_challenge(response.headers.getall("WWW-Authenticate", []))
            kind = "scope" if bearer.error == "insufficient_scope" else "token"
            others = None
            if slot is not None:
                slot.release()
            if kind not in kinds:
                others = await self.credentials.others(authorization, shown, response.status, bearer)
            if others is None:
                break
            kinds.add(kind)
            shown = others
            if slot is not None:
                await slot.regain()
        raise self.credentials.refused(authorization, shown, response.status, bearer)

    async def _sent(self, lines: str, body: bytes, verb: str, url: URL) -> Response:
        """Return the response at the end of all redirects."""
        poster = self._connected()
        for _ in range(_HOPS + 1):
            common = url is self.url and verb == "POST"
            start = self._start if common else poster.start(url, self._headers, verb)
            try:
                response = await poster.post(start + lines, body)
            except aiohttp.ClientError as error:
                raise self.failed(error) from error
            if response.status not in _REDIRECTS:
                return response
            response.close()
            url = self._redirected(response, url)
        raise Failed(self.name, Reason.STATUS, f"over {_HOPS} redirects")

    async def _document(self, url: URL) -> Answer:
        """Return a document of this very origin, asked for without a credential; raises Astray."""
        place = shown_url(str(url))
        try:
            poster = self._connected()
            headers = {**self._headers, "Accept": "application/json", "Accept-Encoding": "identity"}
            response = await poster.post(poster.start(url, headers, "GET"), b"")
            try:
                body = await bounded(response.content.readany, place)
            finally:
                response.close()
        except aiohttp.ClientError as error:
            raise Astray(f"{place}: {self.failed(error).detail}", outage=True) from None
        except Failed as failure:
            raise Astray(f"{place}: {failure.reason.value}", outage=True) from None
        return Answer(response.status, response.headers, body)

    def _redirected(self, response: Response, url: URL) -> URL:
        """Return where to send the same request again: only 307 and 308 keep it, only home is safe (B16)."""
        status, location = response.status, response.headers.get("Location", "")
        try:
            wanted = url.join(URL(location)).with_user(None).with_fragment(None)
            same, place = wanted.origin() == url.origin(), f" to {shown_url(str(wanted))[:200]}"
        except (ValueError, TypeError):
            same, place = False, ""
        if status not in (307, 308) or not location:
            raise Failed(
                self.name, Reason.STATUS, f"HTTP {status}: no redirect{place} to follow", status=status
            )
        if not same:
            raise Failed(
                self.name, Reason.STATUS, f"HTTP {status}: a redirect{place}, another origin", status=status
            )
        log.debug("upstream %s redirects to %s", self.name, shown_url(str(wanted)))
        return wanted

    def _check_open(self) -> None:
        if self._closed:
            raise Failed(self.name, Reason.STOPPING)

    def _connected(self) -> Poster:
        self._check_open()
        if self._poster is None:
            self._poster = Poster(
                self.url,
                tls=self._tls,
                server_name=self._server_name,
                proxy=self._proxy,
                background=self.background,
            )
            self._start = self._poster.start(self.url, self._headers)
        return self._poster

    # The way back

    def media(self, response: Response) -> str:
        """Return the media type of an answer; raises for an encoding nobody offered."""
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise self.protocol(f"unsupported encoding {encoding[:40]}", response)
        return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def body(self, response: Response) -> bytes:
        """Return the decoded body, bounded as it arrives: a small one may decode to a huge one."""
        if response.content_length is not None and response.content_length > self.limit:
            raise self.too_large()
        chunks: list[bytes] = []
        size = 0
        with self.held() as held:
            while chunk := await self.some(response, _LARGE_PIECE):
                size += len(chunk)
                if size > self.limit:
                    raise self.too_large()
                self.check_room(held, size)
                chunks.append(chunk)
                if response.content.at_eof():
                    break
            return b"".join(chunks)

    def held(self) -> Held:
        """Return what counts a message of the upstream while it is read."""
        return Held(self._room, "")

    def check_room(self, held: Held, size: int) -> None:
        """Note how large a message is by now; raises Busy when there is no room for it."""
        if not held.fits(size):
            raise Busy(self.name, "in_flight")

    async def some(self, response: Response, most: int = _PIECE) -> bytes:
        """Return what arrived of the body, b"" at its end; after each full piece others have their turn.

        What is there already is read without waiting, and a coding can make hundreds of megabytes of little:
        whoever reads them in one go stops the whole process.
        """
        try:
            piece = await response.content.read(most)
        except aiohttp.ClientError as error:
            raise self.failed(error) from error
        if len(piece) == most:
            await asyncio.sleep(0)
        return piece

    def let_end(self, response: Response) -> None:
        """Give the stream a moment to end by itself, so that its connection can be used again."""
        if not response.content.at_eof():
            self.background.start(self._drain(response), name=f"drain {self.name}")

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

    def failed(self, error: Exception) -> Failed:
        """Return what an exception of aiohttp's means; the detail is for logs only."""
        if self._closed:
            return Failed(self.name, Reason.STOPPING)
        check = failed_check(error)
        if check is not None:
            return self._lost(f"TLS: {check}")
        match error:
            case aiohttp.ClientConnectorError():
                detail = error.os_error.strerror or str(error.os_error)
                return self._lost(detail, unsent=True)
            case aiohttp.ClientHttpProxyError():
                return self._lost(f"the proxy answered HTTP {error.status}")
            case aiohttp.ConnectionTimeoutError():
                return self._lost(f"no connection within {CONNECT_TIMEOUT:g}s")
            case aiohttp.ClientResponseError() if "content-encoding" in error.message.lower():
                return Failed(self.name, Reason.PROTOCOL, "unsupported encoding, or not what it says")
            case aiohttp.ClientResponseError():
                return Failed(self.name, Reason.PROTOCOL, "not HTTP")
            case aiohttp.ClientPayloadError() if "content-encoding" in str(error).lower():
                return Failed(self.name, Reason.PROTOCOL, "unsupported encoding, or not what it says")
            case _:
                return Failed(
                    self.name, Reason.CONNECT, f"connection lost: {type(error).__name__}", transient=True
                )

    def _lost(self, detail: str, *, unsent: bool = False) -> Failed:
        return Failed(self.name, Reason.CONNECT, detail, unsent=unsent, lost=True)

    def too_large(self) -> Failed:
        return Failed(self.name, Reason.TOO_LARGE, f"over {self.limit} bytes")

    def protocol(self, detail: str, response: Response) -> Failed:
        return Failed(self.name, Reason.PROTOCOL, f"HTTP {response.status}: {detail}", status=response.status)

    def status(self, response: Response, detail: str = "") -> Failed:
        return Failed(
            self.name,
            Reason.STATUS,
            f"HTTP {response.status}{detail}",
            transient=response.status in _TRANSIENT,
            status=response.status,
            retry_after=retry_after(response.headers.get("Retry-After"), self._wall_clock()),
        )

    async def odd(
        self, response: Response, media: str, authorization: str | None, *, secret: bool = False
    ) -> Failed:
        """Return the failure for an answer that is neither JSON nor a stream, its text in the detail.

        Not where the request is `secret`, for the text may repeat it.
        """
        return self.oddly(response, media, b"" if secret else await self.some(response), authorization)

    def oddly(self, response: Response, media: str, text: bytes, authorization: str | None) -> Failed:
        """Return the same for an answer whose text was read already."""
        words = " ".join(text[:_EXCERPT].decode("utf-8", "replace").split())
        excerpt = redact(words, self.credentials.secrets(authorization))[:200]
        said = ": ".join(filter(None, (media[:80], excerpt)))
        detail = f", {said}" if said else ""
        if response.ok:
            return self.protocol(f"no JSON and no stream{detail}", response)
        return self.status(response, detail)
