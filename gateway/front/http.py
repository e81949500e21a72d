"""Serves the MCP endpoints over HTTP: checks in the order of S-06, the modern POST, and the orderly end."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Protocol
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMessage
from msgspec.structs import replace
from multidict import MultiMapping, istr

from gateway import config
from gateway.front import challenges, mirror
from gateway.front.admission import Admission, Crowded, Entry, Refusal, has_rates
from gateway.front.auth import Authenticator, Knock, identify
from gateway.front.challenges import Denied, Door
from gateway.front.connections import BACKLOG, LINGER, ClientConnection, FrontServer, tune
from gateway.front.gate import Gate
from gateway.front.legacy import VERBS, LegacyFront
from gateway.front.legacy_sessions import Sessions
from gateway.front.metadata import Resources
from gateway.front.outcomes import Mirrored, Stopping, mirrored_failure, only, outcome, plain
from gateway.front.stream import CLOSES, ClientGone, Outcome, Responder, failure, too_much
from gateway.front.tls import ListenerTls, shown_certificate
from gateway.front.verify import Verifier
from gateway.protocol import jsonrpc, methods, modern
from gateway.protocol.call import (
    Answer,
    Call,
    Emit,
    Notice,
    Principal,
    Sink,
)
from gateway.protocol.envelope import read_id
from gateway.protocol.jsonrpc import INVALID_REQUEST, Json, Malformed, McpError, split
from gateway.protocol.modern import PostedNotification, Rejection
from gateway.support import access, logs, tracing
from gateway.support import exchange as exchanges
from gateway.support.exchange import Exchange
from gateway.support.guests import Guests
from gateway.support.metrics import OTHER, Metrics
from gateway.support.seal import Seal
from gateway.support.tasks import Background, happens

log = logging.getLogger(__name__)

LISTEN = "subscriptions/listen"

_LAST_WORDS = 1.0  # what the rest may take to hear that the gateway stops
_REMEMBERED = 512
_HEEDED = 1000
_PEEKED = 65_536
_TICKS = 4  # looks at every open request per shortest deadline
_LOOKS_AT_ONCE = 200  # open requests; then others have their turn, for thousands may be due a comment
_LONGEST_TICK = 0.5  # a client that left is seen within a second (S-21)

_REQUEST_ID = istr("X-Request-Id")
_VERBS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH"})
"""What the access line calls by its name where it is no message."""

_AFTER_ALL = ("challenge", "forbidden")
"""How requests end that became calls and are refused all the same."""

_TURNED_AWAY = (401, 403, 429)
"""What is answered to whom an operator may want to keep out elsewhere."""


class Pipeline(Protocol):
    """What answers the calls of one endpoint."""

    async def handle(self, call: Call, principal: Principal, emit: Emit) -> Answer:
        """Answer any method but `subscriptions/listen`."""
        ...

    async def listen(self, call: Call, principal: Principal, sink: Sink) -> Answer:
        """Relay until the client leaves (cancellation) or the gateway stops (a graceful result, L-10)."""
        ...

    def passes(self, method: str, principal: Principal) -> bool:
        """Whether an upstream may serve this caller a method that is not known here (K-08)."""
        ...

    def give_up(self, call: Call, principal: Principal) -> None:
        """Let a call end that was answered with questions, as the client will not answer them."""
        ...

    def report(self, call: Call, principal: Principal, key: str, params: Mapping[str, Json]) -> None:
        """Tell who asked something in a call, of which this is the retry, how far the answer is."""
        ...

    def on_withdrawn(self, call: Call, principal: Principal, key: str, tell: Callable[[], None]) -> None:
        """Have it told once who asked something in a call wants no answer to it any more."""
        ...

    def note(self, notice: Notice, principal: Principal) -> None:
        """Tell servers what a client tells of itself."""
        ...

    async def check_subscribable(self, uri: str, capabilities: Json, principal: Principal) -> None:
        """Raise McpError unless somebody tells of the updates of this resource."""
        ...


@dataclass(frozen=True, slots=True)
class FrontState:
    """All that one configuration means to the front; a request reads it once and lives on it."""

    config: config.Config
    pipelines: Mapping[str, Pipeline]
    """By the endpoint's path, as configured."""
    seal: Seal
    sessions: Sessions
    """Those of clients of older revisions."""
    verifier: Verifier | None = None
    """Tells who shows which credential; None where nothing is verified."""
    guests: Guests = field(default_factory=Guests)
    """The requests that work by it."""


_OPEN = {"Access-Control-Allow-Origin": "*"}
_OPEN_PREFLIGHT = {
    **_OPEN,
    "Access-Control-Allow-Methods": "GET, HEAD",
    "Access-Control-Allow-Headers": "Accept, Content-Type, MCP-Protocol-Version",
    "Access-Control-Max-Age": "7200",
}
_KEPT = b"Cache-Control: public, max-age=3600\r\n"

_CREDENTIALS = (hdrs.AUTHORIZATION, hdrs.COOKIE, "Mcp-Session-Id")
"""Headers whose values no log may show."""


class _Site:
    """What is derived from one FrontState on the bound addresses."""

    def __init__(
        self,
        state: FrontState,
        bound: Sequence[tuple[str, int]],
        metrics: Metrics,
        background: Background,
        stopping: asyncio.Event,
        admission: Admission,
    ) -> None:
        self.state = state
        self.limits = state.config.limits
        self._admission = admission
        self.rated = has_rates(state.config)
        self.baggage = bool(state.config.tracing.baggage)
        self.gate = Gate(state.config, bound)
        self.resources = Resources(state.config, state.pipelines, bound)
        self.authenticator = Authenticator(state.config, state.seal, state.verifier)
        self._by_connection = state.config.authentication.certificates.source == "tls"
        self._realm = state.config.identity.name
        self._scopes = tuple(state.config.authentication.scopes)
        key_header = state.config.authentication.key_header
        self.credentials = (*_CREDENTIALS, key_header) if key_header is not None else _CREDENTIALS
        self.mirrored: Mirrored | None = None
        if state.config.cache.headers:
            self.mirrored = partial(mirror.lines, guarded=state.config.authentication.on)
        self.allow = "GET, POST, DELETE, OPTIONS" if self.gate.cors else "GET, POST, DELETE"
        self.legacy = LegacyFront(
            state.pipelines,
            state.config,
            state.sessions,
            metrics,
            background=background,
            stopping=stopping,
            refused=lambda came, id, endpoint, responder: outcome(
                came, id=id, door=self.door(endpoint, responder.request)
            ),
            barred=self.barred,
        )
        self._welcome: dict[modern.Head, bytes] = {}
        self._heeded = 0 if self.gate.looks_at_peers else _HEEDED
        self._paths = {path.rstrip("/") or "/": path for path in state.pipelines}
        # Both spellings are served; a redirect would lose the body or the scheme (B16).
        self._paths |= {f"{path}/": at for path, at in self._paths.items() if path != "/"}
        # A proxy may leave the path of the public URL where it is (B37).
        prefix = urlsplit(state.config.public_url or "").path.rstrip("/")
        self._paths = {f"{prefix}{path}": at for path, at in self._paths.items()} | self._paths

    def endpoint(self, request: web.BaseRequest) -> str | None:
        """Return the configured path of the endpoint asked for."""
        found = self._paths.get(request.raw_path)
        return self._paths.get(request.rel_url.raw_path) if found is None else found

    def door(self, endpoint: str, request: web.BaseRequest) -> Door:
        """Return what challenges say of an endpoint to who sent this request."""
        host = request.headers.get(hdrs.HOST, "")
        return Door(self._realm, self.resources.metadata(endpoint, host), self._scopes)

    def knock(self, endpoint: str, request: web.BaseRequest) -> Knock:
        """Return what is looked at to say who sent a request."""
        headers = request.headers
        return Knock(
            headers,
            self.resources.url(endpoint, headers.get(hdrs.HOST, "")),
            self.gate.trusts(request.remote) if self.gate.looks_at_peers else False,
            partial(shown_certificate, request.transport) if self._by_connection else _nothing_shown,
        )

    def denied(self, came: Denied, endpoint: str, request: web.BaseRequest) -> Outcome:
        """Return why a request does not get in, with its id where that has arrived already (B15)."""
        door = None if self.state.verifier is None else self.door(endpoint, request)
        return challenges.denied(came, _peeked_id(request), door)

    def document(self, request: web.BaseRequest) -> Outcome | None:
        """Return what is said of an endpoint at its well-known places; None at all other paths (Z-03).

        It is the same for everybody, so anybody may read it, web pages from wherever among them.
        """
        endpoint = self.resources.asked(request.rel_url.raw_path)
        if endpoint is None:
            return None
        if request.method == "OPTIONS":
            return Outcome(204, word="preflight", headers=_OPEN_PREFLIGHT)
        if request.method not in ("GET", "HEAD"):
            return plain(405, {"Allow": "GET, HEAD, OPTIONS"}, word="verb")
        document = self.resources.document(endpoint, request.headers.get(hdrs.HOST, ""))
        return Outcome(200, (document,), "metadata", _OPEN, cached=_KEPT)

    async def barred(self, endpoint: str, responder: Responder, requests: int = 1) -> Refusal | None:
        """Return why requests come too quickly, if they do."""
        if not self.rated:
            return None
        request = responder.request
        address = self.gate.peer(request.headers, request.remote)
        return await self._admission.rate(
            self.state.config, endpoint, responder.entry.whose, address, requests
        )

    async def verified(self, knock: Knock, request: web.BaseRequest) -> Principal | Denied | Refusal:
        """Return who shows a credential that is not known yet, if its address may have it verified."""
        address = self.gate.peer(request.headers, request.remote)
        suspect = await self._admission.suspect(self.limits, address) if self.rated else None
        if suspect is not None:
            return suspect
        try:
            return await self.authenticator.identify(
                knock, partial(self._admission.place, self.limits, address)
            )
        except Crowded as crowded:
            return crowded.refusal

    async def strike(self, request: web.BaseRequest) -> Refusal | None:
        """Count a credential that was refused, or none; return why there are too many of them."""
        if not self.rated or self.state.verifier is None:
            return None
        return await self._admission.refused(self.limits, self.gate.peer(request.headers, request.remote))

    def welcome(self, head: modern.Head) -> bytes | None:
        """Return the CORS lines for header lines that passed every check they can be put to, once before."""
        return self._welcome.get(head)

    def heed(self, request: web.BaseRequest) -> None:
        """Say once that clients reach the gateway in another way than the configuration has it.

        The first requests show it, and a look costs 10 µs (measured).
        """
        if self._heeded >= _HEEDED:
            return
        self._heeded += 1
        called = self.gate.called_otherwise(request.headers, request.remote)
        if called is not None:
            self._heeded = _HEEDED
            log.warning(
                "clients reach the gateway as %s, a trusted proxy says, and `public_url` is another: it is "
                "what clients are told, and what their tokens must be for",
                called,
            )

    def remember(self, head: modern.Head, cors_lines: bytes) -> None:
        if self.gate.looks_at_peers or not head.common:  # who sent them decides too, or they are rare
            return
        if len(self._welcome) >= _REMEMBERED:
            self._welcome.clear()
        self._welcome[head] = cors_lines

    def not_found(self) -> Outcome:
        names = sorted(self.state.pipelines)
        body = jsonrpc.encode({"error": "There is no MCP endpoint at this path", "endpoints": names})
        return Outcome(404, (body,), "path")


class HttpFront:
    """Listens for clients and hands their calls to the pipelines of the current state."""

    def __init__(
        self,
        state: Callable[[], FrontState],
        metrics: Metrics,
        *,
        background: Background,
        stopping: asyncio.Event,
        admission: Admission,
    ) -> None:
        """`stopping` is set when the drain begins; listening pipelines wait for it and end gracefully."""
        self._state = state
        self._metrics = metrics
        self._background = background
        self._stopping = stopping
        self._bound: tuple[tuple[str, int], ...] = ()
        self._listeners: list[asyncio.Server] = []
        self._server: FrontServer | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._tls: ListenerTls | None = None
        self._site: _Site | None = None
        self._open: set[Responder] = set()
        self._nothing_open = asyncio.Event()
        self._admission = admission
        self._serving = False
        self._linger = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        where = ", ".join(f"{host}:{port}" for host, port in self._bound) or "not bound"
        ending = ", draining" if self.draining else ""
        listening = self._admission.listening
        return f"<HttpFront {where}: {len(self._open)} open, {listening} listening{ending}>"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return 0 if self._server is None else self._server.connected

    @property
    def serving(self) -> bool:
        """Whether clients are let in: bound, and not draining."""
        return self._serving

    @property
    def draining(self) -> bool:
        return self._stopping.is_set()

    async def start(self, host: str, port: int) -> list[tuple[str, int]]:
        """Listen on an address, one more each time; return where exactly (port 0 picks one)."""
        return await self._listen_on(host=host, port=port)

    async def start_on(self, at: socket.socket) -> list[tuple[str, int]]:
        """Listen on a socket that somebody else has bound, and that is closed with the listener."""
        return await self._listen_on(sock=at)

    async def accept_from(self, at: socket.socket) -> asyncio.Server:
        """Accept what comes over one more socket of the same address, until the listener is closed."""
        listener = await self._listener(sock=at)
        self._listeners.append(listener)
        return listener

    def release(self, listener: asyncio.Server) -> None:
        """Accept nothing more over a such a socket; the connections stay."""
        listener.close()
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def _listen_on(self, **where: Any) -> list[tuple[str, int]]:
        listener = await self._listener(**where)
        self._listeners.append(listener)
        addresses = [(name[0], name[1]) for name in (at.getsockname() for at in listener.sockets)]
        self._bound += tuple(addresses)
        self._site = None
        if self._pulse is None:
            self._pulse = self._background.start(self._beat(), name="keep-alive")
        self._serving = True
        return addresses

    async def _listener(self, **where: Any) -> asyncio.Server:
        loop = self._loop = asyncio.get_running_loop()
        limits = self._state().config.limits
        if self._server is None:
            self._server = FrontServer(
                self._handle,
                self._metrics,
                limits.header,
                lambda: self._current().allow,
                limits.connections,
                lambda: self._state().verifier is not None,
            )
        secured = await self._secured()
        listener = await loop.create_server(self._server, backlog=BACKLOG, **where, **secured)
        tune(listener, limits.stalled_listener)
        return listener

    def adopt(self) -> None:
        """Go on by another configuration, which `state` returns from now on."""
        if self._server is not None:
            self._server.most = self._state().config.limits.connections

    async def _secured(self) -> Mapping[str, Any]:
        """Return what makes a listener speak TLS, where it is to; raises OSError for unusable files."""
        settings = self._state().config
        if settings.tls.cert_file is None:
            return {}
        if self._tls is None:
            self._tls = await asyncio.to_thread(
                ListenerTls, settings.tls, self._metrics, has_room=self._has_room
            )
            self._background.start(self._tls.watch(), name="tls files")
        return {
            "ssl": self._tls.context,
            "ssl_handshake_timeout": settings.limits.request_head,
            "ssl_shutdown_timeout": LINGER,
        }

    async def identify(self, headers: MultiMapping[str], endpoint: str | None = None) -> Principal | Denied:
        """Return whom an endpoint, or else any, would take the sender of these headers for."""
        site = self._current()
        known = site.state.pipelines
        for path in [endpoint] if endpoint is not None and endpoint in known else known:
            came = await site.authenticator.identify(Knock(headers, site.resources.url(path, "")))
            if isinstance(came, Principal):
                break
        return came

    def _has_room(self, handshakes: int) -> bool:
        """Whether one more connection may begin a handshake beside so many, and those that are through.

        It may take an idle one's place, but who leaves handshakes alone takes no more than half of all.
        """
        server = self._server
        if server is None or server.connected + handshakes < server.most:
            return server is not None
        return handshakes < server.most / 2 and server.make_room()

    async def drain(self, grace: float, linger: float = 0.0) -> None:
        """Let nobody in, end the streams, let calls finish until the grace is over, and close (B50).

        Clients that go on elsewhere lose nothing if they may `linger`: a connection is closed with the next
        answer then, while one that is closed as it is idle may have a request on the way. So may one whose
        stream has just ended, the head of which, sent long before, told nothing of an end: it may linger too.
        """
        self._serving = False
        self._linger = linger
        self._stopping.set()
        for responder in self._open:
            responder.closing |= not responder.streaming  # nothing is promised yet
        for listener in self._listeners:
            listener.close()
        if linger and self._server is not None:
            await happens(self._server.left, linger)
        self._close_idle_connections()
        if not await (self._all_left(grace) if linger else self._all_done(grace)):
            log.warning("%d open request(s) cut off at the end of the grace", len(self._open))
            for responder in self._open:
                responder.stop()
            if not await self._all_done(_LAST_WORDS):
                for responder in list(self._open):
                    responder.abort()
                await self._all_done(_LAST_WORDS)
        if self._pulse is not None:
            self._pulse.cancel()
        if self._server is not None:
            await self._server.shutdown(0.1)

    async def _all_done(self, deadline: float) -> bool:
        """Whether no request is open any more, before the deadline."""
        try:
            async with asyncio.timeout(deadline):
                while self._open:
                    self._nothing_open.clear()
                    await self._nothing_open.wait()
        except TimeoutError:
            return False
        return True

    async def _all_left(self, deadline: float) -> bool:
        """Whether no request is open any more once nobody is connected, at the deadline at the latest."""
        if self._server is not None:
            await happens(self._server.left, deadline)
        return not self._open

    def _close_idle_connections(self) -> None:
        if self._server is None:
            return
        busy = {responder.request.protocol for responder in self._open}
        for connection in self._server.connections:
            if connection in busy:  # it would lose the rest of its body
                continue
            if not isinstance(connection, ClientConnection):
                connection.close()
            elif not connection.lingers:
                connection.end()

    async def _beat(self) -> None:
        """Look after every open request and every connection, for ever."""
        while True:
            limits = self._state().config.limits
            shortest = min(limits.keep_alive, limits.stalled_listener, limits.request_head)
            await asyncio.sleep(min(shortest / _TICKS, _LONGEST_TICK))
            now = time.monotonic()
            for number, responder in enumerate(list(self._open), 1):
                if responder in self._open:
                    responder.beat(now, keep_alive=limits.keep_alive, stalled=limits.stalled_listener)
                if number % _LOOKS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if self._server is not None:
                self._server.close_late(now, limits.request_head)
            self._current().legacy.sweep()

    # One request

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        entry = self._admission.arrive()
        exchange = exchanges.begin("http", request.headers.get(_REQUEST_ID))
        named = f"X-Request-Id: {exchange.id}\r\n".encode()
        responder = Responder(request, self._metrics, asyncio.current_task(self._loop), entry, named)
        self._open.add(responder)
        server, connection = self._server, request.protocol
        assert server is not None  # whose request it is
        server.request_begun(connection)
        responder.closing = self.draining
        lingers = False
        try:
            came = await self._came(request, responder, exchange)
            exchange.outcome, exchange.status = came.word, came.status
            if came.status in _TURNED_AWAY and log.isEnabledFor(logging.DEBUG):
                peer = self._current().gate.peer(request.headers, request.remote)
                log.debug("Turned away %s: %d, %s", peer, came.status, came.word)
            if self.draining:
                lingers = self._linger > 0 and responder.promised and not responder.stopped
                responder.closing |= not lingers
            return await responder.finish(came)
        except ClientGone:
            exchange.outcome = "gone"
            return CLOSES
        finally:
            responder.release()
            exchange.sent = responder.written
            access.tell(exchange)
            self._open.discard(responder)
            server.request_ended(connection)
            if lingers and isinstance(connection, ClientConnection):
                connection.linger(self._linger)
            if not self._open:
                self._nothing_open.set()

    async def _came(self, request: web.BaseRequest, responder: Responder, exchange: Exchange) -> Outcome:
        """Return what the request comes to; only a client that left has no answer (S-21)."""
        try:
            return await self._serve(request, responder, exchange)
        except asyncio.CancelledError:
            if not responder.stopped:
                raise
            return outcome(Stopping(), id=responder.id)
        except ClientGone:
            raise
        except Exception as error:
            return outcome(error, id=responder.id)

    async def _serve(self, request: web.BaseRequest, responder: Responder, exchange: Exchange) -> Outcome:
        site = self._current()
        responder.entry.settle(site.state.guests)
        endpoint = site.endpoint(request)
        exchange.endpoint = endpoint or ""
        if request.method != "POST":
            exchange.method = request.method if request.method in _VERBS else OTHER
        if endpoint is None and (document := site.document(request)) is not None:
            return self._refused(None, document)
        head = modern.read_head(request.raw_headers)
        welcome = site.welcome(head)
        refused = self._turned_away(site, request, responder, endpoint, head, welcome)
        if refused is not None:
            return self._refused(endpoint, refused)
        assert endpoint is not None  # who has none was turned away
        checked = await self._let_in(site, request, responder, endpoint, head, welcome)
        if isinstance(checked, Outcome):
            return self._refused(endpoint, checked)
        exchange.caller = checked.who or ""
        if isinstance(connection := request.protocol, ClientConnection):
            connection.let_in(proven=":" in checked.id)
        barred = responder.entry.enter(site.limits, checked.who)
        if barred is None and site.rated:
            barred = await site.barred(endpoint, responder)
        if barred is not None:
            responder.closing |= not request.content.is_eof()
            return self._refused(endpoint, too_much(barred))
        body = b""
        if request.method == "POST":
            read = await _read_body(request, site.limits, responder.entry)
            if isinstance(read, Outcome):
                responder.closing = True
                return self._refused(endpoint, read)
            body = read
        while self._state() is not site.state:  # another configuration judges what came no sooner
            site = self._current()
            responder.entry.settle(site.state.guests)
            if site.endpoint(request) != endpoint:
                return self._refused(None, site.not_found())
            checked = await self._let_in(site, request, responder, endpoint, head, site.welcome(head))
            if isinstance(checked, Outcome):
                return self._refused(endpoint, checked)
        if request.method != "POST":
            exchange.era = "legacy"
            return self._refused(
                endpoint, await self._in_session(site, endpoint, request, head, checked, responder)
            )
        exchange.era = modern.era_of(head, body)
        if exchange.era == "legacy":
            came = await site.legacy.post(endpoint, head, body, checked, responder)
            return came if came.word in _AFTER_ALL else self._refused(endpoint, came)
        accepted = modern.accept_body(
            head,
            body,
            depth=site.limits.depth,
            passes=lambda method: site.state.pipelines[endpoint].passes(method, checked),
            strict_tasks=site.state.config.strict_task_headers,
        )
        match accepted:
            case Call():
                return await self._call(site, endpoint, accepted, checked, responder, exchange)
            case PostedNotification():
                log.debug("Dropped a posted notification")  # none is defined from client to server (S-20)
                return outcome(accepted)
            case Rejection():
                exchange.method = _method_of(head)
                return self._refused(endpoint, outcome(accepted))

    async def _in_session(
        self,
        site: _Site,
        endpoint: str,
        request: web.BaseRequest,
        head: modern.Head,
        principal: Principal,
        responder: Responder,
    ) -> Outcome:
        if request.method == "DELETE":
            return await site.legacy.delete(endpoint, head, principal)
        return await site.legacy.get(endpoint, request, head, principal, responder)

    def _current(self) -> _Site:
        state = self._state()
        if self._site is None or self._site.state is not state:
            self._site = _Site(
                state, self._bound, self._metrics, self._background, self._stopping, self._admission
            )
        return self._site

    def _refused(self, endpoint: str | None, refusal: Outcome) -> Outcome:
        if refusal.status >= 400:  # a preflight is none
            self._metrics.rejected(endpoint or OTHER, refusal.word)
            log.debug("%s: refused with %d, %s", endpoint or OTHER, refusal.status, refusal.word)
        return refusal

    def _turned_away(
        self,
        site: _Site,
        request: web.BaseRequest,
        responder: Responder,
        endpoint: str | None,
        head: modern.Head,
        welcome: bytes | None,
    ) -> Outcome | None:
        """Take a request through S-06, steps 1 and 2: where it comes from and where it wants to go."""
        headers = request.headers
        # The whole URL stands there only for a proxy, and is no part of what `welcome` was given for.
        refusal = None if request.raw_path.startswith("/") else site.gate.refuse_target(request.raw_path)
        if welcome is not None:
            responder.extra_head = welcome
        else:
            refusal = refusal or site.gate.refuse(headers, request.remote)
            responder.extra_head = site.gate.cors_lines(headers.get(hdrs.ORIGIN))
        if refusal is not None:
            return failure(403, McpError(INVALID_REQUEST, refusal.message), None, refusal.reason)
        if welcome is None:
            site.heed(request)
        if endpoint is None:
            return site.not_found()
        if request.method != "POST" and not (request.method in VERBS and modern.SESSION in head.lines):
            return _other_verb(site, request)
        if "?" in request.raw_path and "access_token" in request.query:
            error = McpError(INVALID_REQUEST, "A token belongs in the Authorization header, not in the query")
            return failure(400, error, None, "authorization")
        crowded = responder.entry.crowded(site.limits)
        if crowded is None:
            return None
        responder.closing |= not request.content.is_eof()
        return too_much(crowded)

    async def _let_in(
        self,
        site: _Site,
        request: web.BaseRequest,
        responder: Responder,
        endpoint: str,
        head: modern.Head,
        welcome: bytes | None,
    ) -> Principal | Outcome:
        """Return who sent a request, after S-06, steps 3 to 5; all of it is known before the body is read."""
        logs.hide(request.headers, site.credentials)
        caller: Principal | Denied | Refusal
        if site.state.verifier is None:
            caller = identify(request.headers, site.state.seal)
        else:
            knock = site.knock(endpoint, request)
            known = site.authenticator.known(knock)  # which costs no turn of the loop
            caller = await site.verified(knock, request) if known is None else known
        if isinstance(caller, Denied):
            barred = await site.strike(request) if caller.status == 401 else None
            if barred is None:
                return site.denied(caller, endpoint, request)
            caller = barred
        if isinstance(caller, Refusal):
            responder.closing |= not request.content.is_eof()
            return too_much(caller)
        if welcome is None and request.method == "POST":
            unfit = _check_content(head, request.headers)
            if unfit is not None:
                return unfit
            site.remember(head, responder.extra_head)
        return _check_sizes(site, request, responder) or caller

    async def _call(
        self,
        site: _Site,
        endpoint: str,
        call: Call,
        principal: Principal,
        responder: Responder,
        exchange: Exchange,
    ) -> Outcome:
        responder.begin(call.id)
        exchange.method = methods.shown(call.method)
        if tracing.on():
            call = _traced(exchange, call, principal, responder.request.headers, site.baggage)
        self._metrics.exchange_started(endpoint)
        started = time.monotonic()
        word = "cancelled"
        try:
            came = await self._answer(site, endpoint, call, principal, responder, exchange)
            word = came.word
            return came
        except asyncio.CancelledError:
            word = "stopping" if responder.stopped else "cancelled"
            raise
        finally:
            self._metrics.exchange(endpoint, call.method, word, time.monotonic() - started)

    async def _answer(
        self,
        site: _Site,
        endpoint: str,
        call: Call,
        principal: Principal,
        responder: Responder,
        exchange: Exchange,
    ) -> Outcome:
        pipeline = site.state.pipelines[endpoint]
        try:
            if call.method == LISTEN:
                exchange.listens = True
                return await self._listen(site, endpoint, call, principal, responder)
            answer = await pipeline.handle(call, principal, responder.emit)
            exchange.reuse = answer.reuse
            return outcome(answer, id=call.id, mirrored=site.mirrored)
        except ClientGone:
            raise
        except Exception as error:
            if isinstance(error, McpError):
                exchange.code = error.code
            failed = outcome(error, id=call.id, door=site.door(endpoint, responder.request))
            return (
                mirrored_failure(failed, error)
                if site.mirrored and methods.cacheable(call.method)
                else failed
            )

    async def _listen(
        self, site: _Site, endpoint: str, call: Call, principal: Principal, responder: Responder
    ) -> Outcome:
        pipeline = site.state.pipelines[endpoint]
        barred = responder.entry.stream(site.limits)
        if barred is not None:
            refused = self._refused(endpoint, too_much(barred, call.id))
            return replace(refused, word="error")  # of the call it is by now
        return replace(outcome(await pipeline.listen(call, principal, responder), id=call.id), streamed=True)


def _traced(
    exchange: Exchange, call: Call, principal: Principal, headers: Mapping[str, str], baggage: bool
) -> Call:
    """Begin the span of a call; return the call with the baggage of its headers, where any may go on."""
    meta = call.meta
    tracing.serve(
        exchange, id=call.id, version=meta.version, principal=principal, meta=meta.vendor, headers=headers
    )
    if not baggage or "baggage" not in headers or "baggage" in meta.vendor:
        return call
    vendor = {**meta.vendor, "baggage": jsonrpc.encode(headers["baggage"])}
    return replace(call, meta=replace(meta, vendor=vendor))


def _method_of(head: modern.Head) -> str:
    """Return the method that a message's header names, as it is told of one that did not become a call."""
    stated = head.lines.get("method", ())
    return methods.shown(stated[0]) if len(stated) == 1 else ""


def _other_verb(site: _Site, request: web.BaseRequest) -> Outcome:
    if request.method == "OPTIONS" and site.gate.cors:
        return Outcome(204, word="preflight", headers=site.gate.preflight(request.headers))
    return only(site.allow)


def _nothing_shown() -> None:
    return None


def _peeked_id(request: web.BaseRequest) -> bytes | None:
    """Return the id of a request that does not get in, if it is there to be read at no expense."""
    content = request.content
    if request.method != "POST" or not content.is_eof() or (request.content_length or 0) > _PEEKED:
        return None
    body = content.read_nowait()
    try:
        return None if len(body) > _PEEKED else read_id(split(body))
    except Malformed:
        return None


def _check_content(head: modern.Head, headers: Mapping[str, str]) -> Outcome | None:
    """Refuse a body of the wrong type, or coded: a coding would hide its size (B26)."""
    if head.unfit is not None:
        return outcome(head.unfit)
    coding = headers.get(hdrs.CONTENT_ENCODING)
    if coding is not None and coding.strip().lower() not in ("", "identity"):
        return plain(415, {"Accept-Encoding": "identity"}, word="encoding")
    return None


def _check_sizes(site: _Site, request: web.BaseRequest, responder: Responder) -> Outcome | None:
    """Refuse what is too large by its own word."""
    if sum(map(len, chain.from_iterable(request.raw_headers))) > site.limits.header:
        return plain(431)
    if request.content.is_eof():  # the whole body is here, as it nearly always is
        return None
    if (request.content_length or 0) > site.limits.message:
        responder.closing = True
        return plain(413)
    return None


async def _read_body(request: web.BaseRequest, limits: config.Limits, entry: Entry) -> bytes | Outcome:
    """Return the body, or why it was not taken; most bodies have arrived with their headers."""
    content = request.content
    if content.is_eof():
        body = content.read_nowait()
        entry.hold(len(body))
        return body if len(body) <= limits.message else plain(413)
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    parts = bytearray()
    try:
        async with asyncio.timeout(limits.request_body):
            while chunk := await content.readany():
                parts += chunk
                if len(parts) > limits.message:
                    return plain(413)
                if (barred := entry.grown(len(parts))) is not None:
                    return too_much(barred)
    except TimeoutError:
        return plain(408, word="body_slow")
    except (web.RequestPayloadError, BadHttpMessage):
        error = McpError(INVALID_REQUEST, "The body's framing is broken")
        return failure(400, error, None, "malformed")
    return bytes(parts)
