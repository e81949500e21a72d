"""An upstream with a URL, whatever it speaks: finds out which era that is, and then speaks it.

The era is the upstream's own and is kept until an answer contradicts it (U-19a). Asked is `server/discover`
first; what is not modern is greeted the old way, and only a greeting that is returned makes it legacy.
"""

import asyncio
import logging
from dataclasses import replace
from http import HTTPStatus
from typing import Protocol

from gateway import config
from gateway.protocol.call import Context, Emit, Notice, Reason, Reply, Request, UpstreamName
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from gateway.protocol.subscriptions import Wanted
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.http_line import HttpLine
from gateway.upstream.modern_http import ModernHttpUpstream
from gateway.upstream.probing import PROBE, Verdict, speaks_of_era
from gateway.upstream.transport import Listening

log = logging.getLogger(__name__)

_OF_ENVELOPES = frozenset({INVALID_REQUEST, INVALID_PARAMS, INTERNAL_ERROR})
"""What a modern server's complaint of a missing envelope is by the time it gets here."""
_SERVER_MADE = range(-32019, -32000 + 1)
"""Codes by which servers of older revisions complain of their transport."""


class Speaker(Protocol):
    """One way to speak with a server of an older revision."""

    @property
    def version(self) -> str: ...

    @property
    def alive(self) -> bool:
        """Whether there is a session of the gateway's own."""
        ...

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        ...

    async def probe(self, asker: Request = PROBE) -> Verdict:
        """Find out whether it answers whoever asks, opening a session only where there is none (B29)."""
        ...

    async def call(self, request: Request, emit: Emit | None = None) -> Reply: ...

    async def listen(self, request: Request, wanted: Wanted) -> Listening: ...

    def note(self, context: Context, notice: Notice) -> None:
        """Tell the server something in this client's own sessions."""
        ...

    def retire(self) -> None:
        """Leave nothing open for longer than what is under way lasts: from now on another one speaks."""
        ...

    async def close(self) -> None: ...


class HttpUpstream:
    """One upstream server reached by HTTP: the Transport of a URL."""

    def __init__(
        self,
        line: HttpLine,
        settings: config.Upstream,
        modern: ModernHttpUpstream,
        legacy: Speaker,
        older: Speaker | None = None,
    ) -> None:
        """`older` is tried with a server that refuses the handshake where it was posted (U-18)."""
        self.name: UpstreamName = line.name
        self._line = line
        self._era = settings.era
        self._modern = modern
        self._legacy = legacy
        self._older = older
        self._speaker: ModernHttpUpstream | Speaker | None = modern if settings.era == "modern" else None
        self._finding = asyncio.Lock()
        self._doubtful = False
        """Whether an answer contradicted what is spoken, so that a session that lives proves nothing."""

    def __repr__(self) -> str:
        return f"<HttpUpstream {self.name}: {self._speaker!r}>"

    @property
    def version(self) -> str:
        return (self._speaker or self._modern).version

    @version.setter
    def version(self, version: str) -> None:
        self._modern.version = version

    @property
    def active(self) -> int:
        return self._line.active

    @property
    def queued(self) -> int:
        return self._line.slots.waiting

    @property
    def sessions(self) -> int:
        return self._legacy.sessions + (0 if self._older is None else self._older.sessions)

    @property
    def wire(self) -> str:
        return "HTTP+SSE" if self._speaker is not None and self._speaker is self._older else "Streamable HTTP"

    async def probe(self) -> Verdict:
        """Find out what it speaks, or whether it still does; raises nothing."""
        async with self._finding:
            return await self._probed(PROBE)

    async def call(self, request: Request, emit: Emit | None = None) -> Reply:
        """Return the result; raises UpstreamError, Failed or Challenge."""
        speaker = self._speaker or await self._found(request)
        try:
            return await speaker.call(request, emit)
        except (Failed, UpstreamError) as error:
            sounds_other = _sounds_legacy if speaker is self._modern else _sounds_modern
            if self._era == "auto" and sounds_other(error):
                error.contradicts = self._doubtful = True
            raise

    async def listen(self, request: Request, wanted: Wanted) -> Listening:
        """Return the subscription once it is open; raises as `call` does."""
        speaker = self._speaker or await self._found(request)
        return await speaker.listen(request, wanted)

    def note(self, context: Context, notice: Notice) -> None:
        """Tell an older server something; a modern one is told nothing but requests."""
        if self._speaker is not None and not isinstance(self._speaker, ModernHttpUpstream):
            self._speaker.note(context, notice)

    async def close(self) -> None:
        """End every session, then every connection."""
        await self._legacy.close()
        if self._older is not None:
            await self._older.close()
        await self._line.close()

    async def _found(self, asker: Request) -> ModernHttpUpstream | Speaker:
        """Return how to speak with one that lets in nobody but its own users: one of them is here (U-17)."""
        async with self._finding:
            if self._speaker is None:
                await self._probed(asker)
        return self._speaker or self._modern

    async def _probed(self, asker: Request) -> Verdict:
        speaker = self._speaker
        old = None if speaker is None or isinstance(speaker, ModernHttpUpstream) else speaker
        if old is not None and old.alive and not self._doubtful:
            verdict = await self._spoken(old, asker)
            if verdict.reason not in (Reason.ERA, Reason.STATUS):
                return verdict
        self._doubtful = False
        if self._era == "legacy":
            return await self._greeted(asker)
        verdict = await self._modern.probe(asker)
        unanswered = verdict.reason is Reason.TIMEOUT and speaker is not self._modern
        if self._era == "auto" and (verdict.era == "legacy" or unanswered):
            # Silence says nothing (U-17), but the answer to a greeting does, whatever came before it.
            greeted = await self._greeted(asker)
            if unanswered and greeted.reason is not None:
                return verdict
            return (
                replace(greeted, detail=f"{verdict.detail}; {greeted.detail}") if greeted.refused else greeted
            )
        if verdict.reason is None and not verdict.silent:
            self._speak(self._modern)
        if verdict.silent and old is not None:
            return replace(verdict, era="legacy", version=old.version)
        return verdict

    async def _greeted(self, asker: Request) -> Verdict:
        """Speak the old way from now on, if the server does."""
        verdict = await self._spoken(self._legacy, asker)
        if verdict.refused and self._older is not None:
            older = await self._spoken(self._older, asker)
            return older if older.reason is None else verdict
        return verdict

    async def _spoken(self, speaker: Speaker, asker: Request) -> Verdict:
        verdict = await speaker.probe(asker)
        if verdict.reason is None and not verdict.silent:
            self._speak(speaker)
        return verdict

    def _speak(self, speaker: ModernHttpUpstream | Speaker) -> None:
        before, self._speaker = self._speaker, speaker
        if before is not speaker and before is not None and not isinstance(before, ModernHttpUpstream):
            before.retire()


def _sounds_modern(error: Failed | UpstreamError) -> bool:
    """Whether a modern server would have answered so to a request without its envelope."""
    if isinstance(error, Failed):
        return error.reason is Reason.STATUS and error.status is not None and speaks_of_era(error.status)
    return error.status == HTTPStatus.BAD_REQUEST and error.code in _OF_ENVELOPES


def _sounds_legacy(error: Failed | UpstreamError) -> bool:
    """Whether no modern server would have answered so: the next probe says what it is."""
    if isinstance(error, Failed):
        return error.reason is Reason.STATUS and error.status is not None and speaks_of_era(error.status)
    return 400 <= error.status < 500 and (error.code == INVALID_REQUEST or error.code in _SERVER_MADE)
