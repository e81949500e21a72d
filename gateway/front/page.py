"""Serves the status page: one file of HTML, what it shows as it changes, and the catalogue to search in.

However many look, the status is taken down once a beat, and while nobody does not at all. Who reads slowly
is given the whole anew instead of all that was missed: nothing waits in a queue.
"""

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import Mapping
from importlib import resources
from typing import Protocol

from aiohttp import web

from gateway.core.explain import Unanswerable
from gateway.core.inventory import KINDS, LONGEST_QUERY, MOST_AT_ONCE, Page, Search
from gateway.front.operations import Refused
from gateway.protocol.jsonrpc import encode
from gateway.status import Status, difference
from gateway.support.tasks import Background, happens

log = logging.getLogger(__name__)

MOST_VIEWERS = 32
BEAT = 1.0
_PATIENCE = 10.0
"""Seconds in which a viewer has to take what it is sent."""
_ASKED = ("endpoint", "q", "kind", "upstream", "offset", "limit", "read")
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_OFFSETS = 10**9


class Shown(Protocol):
    """What a gateway, of one process or several, lets operators look at."""

    async def look(self) -> Status: ...

    async def search(self, endpoint: str | None, search: Search, *, read: bool) -> Page: ...


class StatusPage:
    """The page for everybody who looks."""

    def __init__(
        self, shown: Shown, background: Background, *, beat: float = BEAT, most: int = MOST_VIEWERS
    ) -> None:
        self._shown = shown
        self._background = background
        self._beat = beat
        self._most = most
        self._viewers: set[Viewer] = set()
        self._sender: asyncio.Task[None] | None = None
        self._new = asyncio.Event()

    def __repr__(self) -> str:
        return f"<StatusPage {len(self._viewers)} viewers{'' if self._sender is None else ', sending'}>"

    def page(self) -> web.Response:
        """Return the file, which loads nothing from anywhere."""
        return web.Response(
            body=_HTML,
            headers={
                "Content-Type": "text/html; charset=utf-8",
                "Content-Security-Policy": _POLICY,
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "DENY",
                "Referrer-Policy": "no-referrer",
                "Cross-Origin-Opener-Policy": "same-origin",
                "Cross-Origin-Resource-Policy": "same-origin",
                "Cache-Control": "no-store",
            },
        )

    async def catalogue(self, request: web.BaseRequest) -> Page:
        """Return what was found of what is searched for; raises Refused."""
        query = request.query
        for key in query:
            if key not in _ASKED:
                raise Refused(400, f"{key[:64]!r} is none of {', '.join(_ASKED)}")
        read = query.get("read", "false")
        if read not in ("true", "false"):
            raise Refused(400, "read is true or false")
        if read == "true":
            _check_site(request)  # upstreams are asked
        try:
            return await self._shown.search(query.get("endpoint"), _search(query), read=read == "true")
        except Unanswerable as error:
            raise Refused(400, str(error)) from None

    async def events(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the whole, and then what changes, until either side leaves; raises Refused."""
        _check_site(request)
        if len(self._viewers) >= self._most:
            raise Refused(503, f"{self._most} look already; /status.json says the same")
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
                "X-Content-Type-Options": "nosniff",
            }
        )
        viewer = Viewer()
        self._viewers.add(viewer)
        try:
            await response.prepare(request)
            self._begin()
            while True:
                frame = await viewer.frame()
                async with asyncio.timeout(_PATIENCE):
                    await response.write(frame)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and self._sender is not None:
                self._sender.cancel()
                self._sender = None
        return response

    def _begin(self) -> None:
        self._new.set()
        if self._sender is None:
            self._sender = self._background.start(self._send(), name="status page")

    async def _send(self) -> None:
        before: Status | None = None
        while True:
            self._new.clear()
            try:
                status = await self._shown.look()
            except Exception:  # a bug in what is shown must not leave viewers with what was
                log.exception("the status could not be told")
            else:
                whole = Frame("whole", status)
                change = whole if before is None else Frame("change", difference(before, status))
                before = status
                for viewer in self._viewers:
                    viewer.offer(whole, change)
            await happens(self._new, self._beat)


class Frame:
    """An event that is written out once, when the first viewer needs it."""

    def __init__(self, event: str, data: object) -> None:
        self._event = event
        self._data = data
        self._text: bytes | None = None

    @property
    def text(self) -> bytes:
        if self._text is None:
            self._text = b"event: %s\ndata: %s\n\n" % (self._event.encode(), encode(self._data))
        return self._text


class Viewer:
    """One who looks: at most one frame waits to be taken."""

    def __init__(self) -> None:
        self._next: bytes | None = None
        self._knows = False
        self._there = asyncio.Event()

    def offer(self, whole: Frame, change: Frame) -> None:
        """Have it given the change, or everything when it lacks what came before."""
        self._next = change.text if self._knows and self._next is None else whole.text
        self._knows = True
        self._there.set()

    async def frame(self) -> bytes:
        """Return what is next."""
        await self._there.wait()
        self._there.clear()
        frame, self._next = self._next, None
        return frame or b""


def _search(query: Mapping[str, str]) -> Search:
    kind = query.get("kind") or None
    if kind is not None and kind not in KINDS.values():
        raise Refused(400, f"kind is one of {', '.join(KINDS.values())}")
    words = query.get("q", "")
    if len(words) > LONGEST_QUERY:
        raise Refused(400, f"q has {LONGEST_QUERY} characters at most")
    limit = _number(query, "limit", 50, MOST_AT_ONCE)
    return Search(words, kind, query.get("upstream") or None, _number(query, "offset", 0, _OFFSETS), limit)


def _number(query: Mapping[str, str], key: str, default: int, most: int) -> int:
    text = query.get(key, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > most:
        raise Refused(400, f"{key} is a number, {most} at most")
    return int(text)


def _check_site(request: web.BaseRequest) -> None:
    """Refuse what another site's page asks for: it may not read the answer, but would have it made."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Refused(403, "pages of other sites may not look here")


def _page() -> tuple[bytes, str]:
    """Return the file and a policy that lets nothing run or load but what stands in it."""
    html = resources.files("gateway.front").joinpath("status.html").read_bytes()
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(html.decode()):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    return html, "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


_HTML, _POLICY = _page()  # read once, before there is a loop that it could hold up
