"""A server of an older revision as an upstream: whose request goes to which session, over whatever wire."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec.structs import replace

from gateway import config
from gateway.protocol.call import (
    Challenge,
    Context,
    Emit,
    Era,
    Notice,
    Reason,
    Reply,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    McpError,
)
from gateway.protocol.legacy_server import NOTHING, OFFERED
from gateway.protocol.subscriptions import Wanted
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.legacy_listening import Ears, LegacyListening
from gateway.upstream.legacy_session import LegacySession, SessionGone
from gateway.upstream.parked import Parked
from gateway.upstream.probing import PROBE, PROBE_TIMEOUT, Discovered, Verdict, let_nobody_in
from gateway.upstream.sessions import Key, Sessions, key_of, whose_of

log = logging.getLogger(__name__)


class OpenSession(Protocol):
    """A session on a wire of its own."""

    session: LegacySession
    ears: Ears

    @property
    def active(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    async def hears(self) -> bool:
        """Whether the server can tell of changes by itself, once that is known."""
        ...

    def gone(self, gone: SessionGone) -> None:
        """Take note that the server knows it no more."""
        ...

    async def close(self) -> None: ...


class Refused(Failed):
    """The server does not open a session; `code` is that of its JSON-RPC error, if it sent one."""

    def __init__(self, upstream: UpstreamName, detail: str, *, code: int | None, status: int | None) -> None:
        super().__init__(upstream, Reason.ERA, f"it refuses initialize: {detail}", status=status)
        self.code = code


class LegacyUpstream:
    """One server of an older revision, with all sessions that it has with us."""

    def __init__(
        self,
        name: UpstreamName,
        settings: config.Upstream,
        open: Callable[[Key, Callable[[], None]], Awaitable[OpenSession]],
        *,
        parked: Parked,
        background: Background,
        metrics: Metrics,
    ) -> None:
        """`open` returns an open session of this key; what it is handed is called whenever that rests."""
        self.name = name
        self._settings = settings
        self._opener = open
        self._parked = parked
        self._metrics = metrics
        self._probe_timeout = min(settings.timeout, PROBE_TIMEOUT)
        self._secret = os.urandom(32)
        self._sessions: Sessions[OpenSession] = Sessions(
            self._open,
            most=settings.most_sessions,
            each=settings.sessions_per_caller,
            idle=settings.session_idle,
            background=background,
            metrics=metrics,
            name=name,
        )
        self.version = OFFERED
        """The revision last settled on."""

    def __repr__(self) -> str:
        return f"<LegacyUpstream {self.name} {self.version}: {self._sessions!r}>"

    @property
    def alive(self) -> bool:
        """Whether there is a session of the gateway's own."""
        return self._sessions.get(Key()) is not None

    @property
    def sessions(self) -> int:
        """How many are open."""
        return len(self._sessions)

    async def probe(self, asker: Request = PROBE) -> Verdict:
        """Find out whether it answers whoever asks, by a session that is there or else a new one (B29)."""
        key = self._key(replace(asker, capabilities=NOTHING))
        self._sessions.revive()
        try:
            async with asyncio.timeout(self._probe_timeout):
                return await self._answers(key)
        except TimeoutError:
            return Verdict(None, reason=Reason.TIMEOUT, detail="no answer to ping or initialize", outage=True)
        except Refused as refused:
            modern = refused.code == UNSUPPORTED_PROTOCOL_VERSION
            era: Era | None = "modern" if modern else None
            return Verdict(era, reason=Reason.ERA, detail=refused.detail, refused=not modern)
        except UpstreamUnavailable as error:
            return Verdict(None, reason=error.reason, detail=error.detail, outage=error.outage)
        except Challenge as challenge:
            return let_nobody_in(challenge)

    async def _answers(self, key: Key) -> Verdict:
        fresh = self._sessions.get(key) is None
        while True:
            try:
                async with self._sessions.use(key) as one:
                    if not fresh:
                        await one.session.ping()
                    return self._verdict(one.session)
            except SessionGone as gone:
                self._forget(key, one, gone)
                fresh = True  # one that was just opened need not be asked

    async def call(self, request: Request, emit: Emit | None = None) -> Reply:
        """Return the result, or what the server asks first; raises UpstreamError, Failed or Challenge."""
        if "requestState" in request.params:
            return await self._parked.go_on(request, emit)
        key = self._key(request)
        for _ in range(2):
            try:
                async with self._sessions.use(key) as one:
                    return await one.session.call(request, emit)
            except SessionGone as gone:
                self._forget(key, one, gone)
        raise Failed(self.name, Reason.STATUS, "it forgets each session at once")

    async def listen(self, request: Request, wanted: Wanted) -> LegacyListening:
        """Return what the server tells of changes; raises McpError -32601 where it tells of none (L-26)."""
        key = self._key(request)
        for _ in range(2):
            try:
                async with self._sessions.use(key) as one:
                    listening = LegacyListening(
                        one.session, one.ears, idle=self._settings.listen_idle, metrics=self._metrics
                    )
                    try:
                        if not await one.hears():
                            raise UpstreamError(McpError(METHOD_NOT_FOUND, "it has no standing stream"), 200)
                        await listening.open(wanted)
                    except BaseException:
                        listening.close()
                        raise
                    return listening
            except SessionGone as gone:
                self._forget(key, one, gone)
        raise Failed(self.name, Reason.STATUS, "it forgets each session at once")

    def note(self, context: Context, notice: Notice) -> None:
        """Tell the server something in this client's own sessions: those of all declare nothing."""
        for one in self._sessions.of(whose_of(context, self._settings)):
            one.session.note(notice)

    def retire(self) -> None:
        """End every session once it is idle: it is spoken to otherwise now. Listeners are lost at once."""
        for one in self._sessions.retire():
            one.ears.lose(Failed(self.name, Reason.CONNECT, "it speaks otherwise now", transient=True))

    async def close(self) -> None:
        """End every session."""
        await self._sessions.close()

    async def _open(self, key: Key) -> OpenSession:
        try:
            one = await self._opener(key, lambda: self._sessions.rested(key))
        except SessionGone as gone:
            raise Failed(self.name, Reason.STATUS, f"{gone.detail} before it was open") from None
        except UpstreamError as error:
            # Whatever it is, it is no answer to what a client asked.
            if error.status >= 500 or error.status in _LATER:
                detail = f"HTTP {error.status}, error {error.code} to initialize"
                raise Failed(self.name, Reason.STATUS, detail, transient=True, status=error.status) from None
            raise Refused(
                self.name, f"error {error.code}, HTTP {error.status}", code=error.code, status=error.status
            ) from None
        except Failed as failure:
            if failure.reason is Reason.STATUS and failure.status in _NOT_SERVED:
                raise Refused(self.name, failure.detail, code=None, status=failure.status) from None
            raise
        self.version = one.session.version
        return one

    def _forget(self, key: Key, one: OpenSession, gone: SessionGone) -> None:
        one.gone(gone)
        if self._sessions.forget(key, one):  # the first of all who meet it
            log.info("upstream %s: %s", self.name, gone.detail)

    def _key(self, request: Request) -> Key:
        return key_of(request, self._settings, self._credential(request.authorization))

    def _credential(self, authorization: str | None) -> str:
        if authorization is None:
            return ""
        return hashlib.blake2b(authorization.encode(), key=self._secret, digest_size=16).hexdigest()

    def _verdict(self, session: LegacySession) -> Verdict:
        greeting = session.greeting
        assert greeting is not None
        discovered = Discovered(
            greeting.capabilities, greeting.instructions, (greeting.version,), greeting.discovered
        )
        return Verdict("legacy", greeting.version, discovered)


_LATER = frozenset({408, 425, 429})
_NOT_SERVED = frozenset({400, 404, 405, 406, 410, 415, 422, 501})
"""What servers answer to an initialize that is none of theirs."""
