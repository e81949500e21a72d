"""Keeps the sessions of clients of older revisions, so that any replica with the same keys serves them.

What the handshake settled travels in the session's id, which is sealed and bound to endpoint and caller
(X-20): to the credential, or to the person where one was verified. What changes later is in the notebook that
replicas share: the log level, the resources asked for, and whether the session has ended. What runs at the
moment, a call or a stream, is here.
"""

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import msgspec

from gateway import config
from gateway.core import dialogue
from gateway.front.legacy_stream import Stream
from gateway.protocol import legacy_answers
from gateway.protocol.call import LOG_LEVELS, Partition, Principal
from gateway.protocol.jsonrpc import INTERNAL_ERROR, Json, McpError, text_or_none
from gateway.protocol.legacy_client import Answered, Handshake
from gateway.support.bus import Bus
from gateway.support.mailbox import Mailbox, Tell, Unreachable
from gateway.support.metrics import Metrics
from gateway.support.notebook import Notebook, Unavailable
from gateway.support.seal import Seal, SealBroken
from gateway.support.shares import Shares
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_TOKEN = "legacy session"
_QUESTION = "legacy question"
_NOTE = "legacy session"
_SINCE = "legacy sessions noted"
_URIS = "legacy resources"
_STREAMS = "legacy streams"
_CANCEL = "legacy cancel"
_END = "legacy end"
_ANSWER = "legacy answer"
_REFRESH = "legacy refresh"
_REPLACE = "legacy replace"
_REPORT = "legacy report"
_PAGE = "legacy page"
_COMPLETED = "legacy completed"

_MANY = {
    "all": "Too many calls wait for answers; the setting `limits.questions` allows more",
    "own": "Too many of your calls wait for answers; the setting `limits.questions_per_caller` allows more",
}
_ENDED = b"ended"
_RANDOM = 16
_PATIENCE = 5.0
"""Seconds that another replica may take to see to its stream, or to take an answer."""
_ANSWERING = 10.0
"""Seconds for which an answer to another replica is tried again before its client is told to."""
_PAUSE = 0.5
_MOST_STREAMS = 64
"""More replicas than this do not hold streams of one session at once."""


Report: TypeAlias = Callable[[Mapping[str, Json]], None]


class TooMany(Exception):
    """There are as many sessions at work as there may be, altogether or of one caller."""

    def __init__(self, setting: str) -> None:
        super().__init__(f"There are too many sessions; the setting `limits.{setting}` allows more")


class _Claims(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a session's id says, to those who can open it."""

    random: bytes
    started: float
    held: Handshake


class _Reply(msgspec.Struct, array_like=True):
    """An answer on its way to the replica that waits for it."""

    session: str
    number: str
    result: bytes | None
    error: tuple[int, str, bytes | None] | None = None


class Work:
    """A request that is being worked on."""

    __slots__ = ("task", "withdrawn")

    def __init__(self) -> None:
        self.task: asyncio.Task[object] | None = None
        self.withdrawn = False
        """Whether the client has taken it back: it gets no answer then."""

    def withdraw(self) -> None:
        self.withdrawn = True
        if self.task is not None:
            self.task.cancel()


class Session:
    """One client's session, as far as this process has to do with it."""

    __slots__ = (
        "ended",
        "endpoint",
        "guests",
        "held",
        "key",
        "level",
        "questions",
        "reports",
        "running",
        "seen",
        "stream",
        "until",
        "whose",
    )

    def __init__(
        self, key: str, endpoint: str, held: Handshake, until: float, seen: float, whose: str
    ) -> None:
        """`key` is a keyed hash of what is random in its id; it lasts `until` then at most.

        `whose` share of the sessions it is part of: a caller's, or that of all without a credential ("").
        """
        self.key = key
        self.whose = whose
        self.ended = False
        self.guests = 0
        """Requests over HTTP that have to do with it at the moment."""
        self.endpoint = endpoint
        self.held = held
        self.until = until
        self.seen = seen
        """When it was last heard of here."""
        self.level: str | None = None
        """From which level on log messages are sent; None = none."""
        self.running: dict[bytes, Work] = {}
        self.questions: dict[str, asyncio.Future[Answered]] = {}
        """What the client was asked here and has not answered yet."""
        self.reports: dict[str, Report] = {}
        """Who wants to hear how far it is with which of the answers."""
        self.stream: Stream | None = None

    def __repr__(self) -> str:
        streams = "" if self.stream is None else ", streaming"
        return (
            f"<Session {self.key[:8]} {self.held.version}: {len(self.running)} running,"
            f" {len(self.questions)} asked{streams}>"
        )

    @property
    def busy(self) -> bool:
        return bool(self.guests or self.running or self.questions) or self.stream is not None

    @contextmanager
    def visited(self) -> Iterator[None]:
        """Have it kept meanwhile."""
        self.guests += 1
        try:
            yield
        finally:
            self.guests -= 1

    def leave(self) -> None:
        """End everything that goes on in it."""
        self.ended = True
        for work in list(self.running.values()):
            work.withdraw()
        for question in self.questions.values():
            question.cancel()
        if self.stream is not None:
            self.stream.close()


class Visit(NamedTuple):
    """A session, and who has come to it: always the same caller, with whatever credential it has by now."""

    session: Session
    principal: Principal


class Sessions:
    """All sessions, of every endpoint of one configuration."""

    def __init__(
        self,
        settings: config.Config,
        *,
        seal: Seal,
        notebook: Notebook,
        mailbox: Mailbox,
        bus: Bus,
        metrics: Metrics,
        background: Background,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._seal = seal
        self._notebook = notebook
        self._mailbox = mailbox
        self._bus = bus
        self._metrics = metrics
        self._background = background
        self._now = now
        metrics.sessions(0)
        metrics.asked(0)
        self.asking = Shares(settings.limits.questions, settings.limits.questions_per_caller)
        """The calls that wait for their clients to answer."""
        self._configure(settings)
        self._known: OrderedDict[str, Session] = OrderedDict()
        """Those that are not idle, whoever was heard last at the end."""
        self._shares: dict[str, OrderedDict[str, Session]] = {}
        """The same, by whose they are."""
        self._assured: float | None = None
        """When it was last seen to that it is known since when sessions are noted."""
        bus.subscribe(_CANCEL, self._heard_cancel)
        bus.subscribe(_END, self._heard_end)
        mailbox.serve(_ANSWER, self._take)
        mailbox.serve(_REFRESH, self._refresh)
        mailbox.serve(_REPLACE, self._replace)
        mailbox.serve(_REPORT, self._hear_report)
        mailbox.serve(_COMPLETED, self._hear_completed)

    def _configure(self, settings: config.Config) -> None:
        self._limits = settings.limits
        self._most_uris = settings.subscriptions.uris_per_stream
        self._uri_bytes = settings.subscriptions.uri_bytes
        self._single_tenant = settings.cache.single_tenant
        self._apart = {
            path: any(settings.upstreams[name].apart == "session" for name in settings.behind(path))
            for path in settings.endpoints
        }
        self._slack = self._limits.session_idle / 8
        """A session that is younger was not noted yet, so that those that end soon cost Redis nothing."""

    def adopt(self, settings: config.Config, counts: Callable[[Principal], bool]) -> None:
        """Go on by another configuration, without the streams of those who would not be let in again.

        `counts` says of a caller whether he would be.
        """
        self._configure(settings)
        self.asking.allow(settings.limits.questions, settings.limits.questions_per_caller)
        for session in self._known.values():
            stream = session.stream
            if stream is not None and not (session.endpoint in self._apart and counts(stream.principal)):
                stream.close()

    def __repr__(self) -> str:
        busy = sum(session.busy for session in self._known.values())
        return f"<Sessions {len(self._known)}, {busy} busy>"

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._known.values()))

    # Beginning and end

    async def begin(self, held: Handshake, endpoint: str, principal: Principal) -> tuple[Visit, str]:
        """Return a new session and its id; raises TooMany."""
        started = self._now()
        if self._assured is None or started - self._assured > self._slack:
            with suppress(Unavailable):
                await self._noted_since()
        self._make_room(principal)
        claims = _Claims(os.urandom(_RANDOM), started, held)
        token = self._seal.seal(
            _TOKEN,
            _pack(claims),
            bound_to=_binding(endpoint, principal),
            ttl=self._limits.session_lifetime,
        )
        session = self._keep(claims, endpoint, principal)
        return self._visit(session, principal), token

    async def find(self, token: str, endpoint: str, principal: Principal) -> Visit | None:
        """Return the session with this id; None where there is none, any more, or it is somebody else's.

        Which of these, is not said (X-20). Raises TooMany where it would be one more than can be worked on.
        """
        try:
            opened = self._seal.open(_TOKEN, token, bound_to=_binding(endpoint, principal))
            claims = _unpack(opened)
        except (SealBroken, msgspec.DecodeError):
            return None
        key = self._key(claims)
        idle = self._limits.session_idle
        noted_from = claims.started + self._slack
        to_note, since = self._now() > noted_from, None
        try:
            note = await self._notebook.read(_NOTE, key.encode(), renew=idle)
            if note is None and to_note:
                since = await self._noted_since()
        except Unavailable:
            note, to_note = None, False
        known = self._known.get(key)  # not before: another request may have brought it meanwhile
        now = self._now()
        if note == _ENDED:
            self._forget(key)
            if now <= noted_from:
                with suppress(Unavailable):
                    await self._note_end(key)  # which was shortened by the look at it
            return None
        if since is not None and not (known is not None and known.busy):
            # Elsewhere it may have been used without a note, or Redis have lost what was noted; while Redis
            # is away nobody can tell, and its id alone says that it is not too old.
            last = max(noted_from, since, 0 if known is None else known.seen)
            if now - last > idle:
                self._forget(key)
                return None
        if known is None:
            self._make_room(principal)
            known = self._keep(claims, endpoint, principal)
        if note is not None:
            known.level = note.decode() or None
        elif to_note:
            with known.visited(), suppress(Unavailable):
                await self._notebook.add(_NOTE, key.encode(), (known.level or "").encode(), idle)
        if known.ended:  # while that was noted
            return None
        known.seen = now
        self._known.move_to_end(key)
        self._shares[known.whose].move_to_end(key)
        return self._visit(known, principal)

    async def _note_end(self, key: str) -> None:
        """Note that it has ended, for as long as without a note it might pass for one in use elsewhere."""
        await self._notebook.write(_NOTE, key.encode(), _ENDED, 2 * self._limits.session_idle)

    async def _noted_since(self) -> float:
        """Return from when on sessions in use were noted: what Redis had before that it may have lost.

        Raises Unavailable.
        """
        life = self._limits.session_lifetime
        now = self._now()
        since = await self._notebook.read(_SINCE, b"", renew=life)
        if since is None and not await self._notebook.add(_SINCE, b"", repr(now).encode(), life):
            since = await self._notebook.read(_SINCE, b"", renew=life)
        self._assured = now
        return now if since is None else float(since)

    def forget(self, session: Session) -> None:
        """Know nothing more of a session whose id nobody was given."""
        self._forget(session.key)

    def over(self, principal: Principal) -> bool:
        """Whether the time of a visit is over: the session's, or that of the credential it was made with."""
        expires = principal.expires
        return expires is not None and self._now() >= expires

    async def end(self, session: Session) -> None:
        """End a session, wherever something of it goes on; raises Unavailable where it may go on."""
        key = session.key.encode()
        await self._note_end(session.key)
        if session.key in self._known:
            self._time(session, self._now(), idle=False)
        self._forget(session.key)
        await self._bus.tell(_END, key)
        with suppress(Unavailable):
            await self._notebook.erase(_URIS, key)

    def sweep(self) -> None:
        """Forget the sessions that were idle for too long, at a few for each look."""
        bound = self._now() - self._limits.session_idle
        for key, session in list(_first(self._known, 1000)):
            if session.seen > bound:
                return
            if session.busy:
                session.seen = self._now()
                self._known.move_to_end(key)
                self._shares[session.whose].move_to_end(key)
            else:
                self._time(session, session.seen, idle=True)
                self._drop(session)

    def _time(self, session: Session, ended: float, *, idle: bool) -> None:
        took = ended - (session.until - self._limits.session_lifetime)
        self._metrics.session_ended(session.endpoint, session.held.version, max(took, 0.0), idle=idle)

    def close(self) -> None:
        """End what goes on in any session here."""
        for session in self._known.values():
            session.leave()

    # What changes

    async def set_level(self, session: Session, level: str) -> None:
        """Note from which level on the client wants log messages."""
        assert level in LOG_LEVELS
        try:
            await self._notebook.write(_NOTE, session.key.encode(), level.encode(), self._limits.session_idle)
        except Unavailable as error:
            raise _not_noted(error) from None
        session.level = level

    async def subscribe(self, session: Session, uri: str) -> None:
        """Have the client told of a resource's updates; when this returns it is."""
        key = session.key.encode()
        try:
            before = await self._notebook.members(_URIS, key)
            if uri.encode() in before:
                return
            if sum(map(len, before)) + len(uri.encode()) > self._uri_bytes:
                raise _too_many_uris("uri_bytes")
            left = self._limits.session_lifetime
            if not await self._notebook.include(_URIS, key, [uri.encode()], left, most=self._most_uris):
                raise _too_many_uris("uris_per_stream")
        except Unavailable as error:
            raise _not_noted(error) from None
        await self._changed(session)

    async def unsubscribe(self, session: Session, uri: str) -> None:
        """Have the client told no more of a resource."""
        try:
            await self._notebook.exclude(_URIS, session.key.encode(), [uri.encode()])
        except Unavailable as error:
            raise _not_noted(error) from None
        await self._changed(session)

    async def uris(self, session: Session) -> frozenset[str]:
        """Return the resources that a session asked for; raises Unavailable."""
        left = self._limits.session_lifetime
        members = await self._notebook.members(_URIS, session.key.encode(), renew=left)
        return frozenset(member.decode() for member in members)

    async def touch(self, session: Session) -> bool:
        """Keep a session alive that has a stream and nothing else; whether it has not ended meanwhile."""
        session.seen = self._now()
        try:
            note = await self._notebook.read(_NOTE, session.key.encode(), renew=self._limits.session_idle)
            if note is None:
                level = (session.level or "").encode()
                await self._notebook.add(_NOTE, session.key.encode(), level, self._limits.session_idle)
        except Unavailable:
            return True
        return note != _ENDED

    async def _changed(self, session: Session) -> None:
        """Have the session's stream, wherever it is, ask for what is wanted now."""
        if session.stream is not None:
            await session.stream.refresh(_PATIENCE)
        for holder, _ in await self._holders(session.key):
            if holder != self._mailbox.me:
                await self._ask(holder, _REFRESH, session.key.encode())

    # Streams

    async def take_stream(self, session: Session, stream: Stream) -> bool:
        """Let a stream be the session's only one, in the place of an older one; whether it is the newest.

        Of two that begin at once on two replicas both see the other, and one of them gives way.
        """
        if session.stream is not None:
            session.stream.close()
        session.stream = stream
        others = await self._holders(session.key)
        stamp = max([int(self._now() * 1000), *(at + 1 for _, at in others)])
        stream.note = _spelled(self._mailbox.me, stamp)
        try:
            idle = self._limits.session_idle
            await self._notebook.include(
                _STREAMS, session.key.encode(), [stream.note], idle, most=_MOST_STREAMS
            )
        except Unavailable:
            return True
        mine = (stamp, self._mailbox.me)
        newest = True
        for holder, at in await self._holders(session.key):
            if (at, holder) > mine:
                newest = False
            elif (at, holder) < mine:
                with suppress(Unavailable):
                    await self._notebook.exclude(_STREAMS, session.key.encode(), [_spelled(holder, at)])
                if holder != self._mailbox.me:  # nobody waits for a replica that stands still
                    replacing = self._ask(holder, _REPLACE, session.key.encode())
                    self._background.start(replacing, name="replace a legacy stream")
        return newest

    async def leave_stream(self, session: Session, stream: Stream) -> None:
        """Forget a stream that has ended."""
        if session.stream is stream:
            session.stream = None
        if stream.note:
            with suppress(Unavailable):
                await self._notebook.exclude(_STREAMS, session.key.encode(), [stream.note])

    async def keep_stream(self, session: Session) -> None:
        """Keep known where the session's stream is."""
        with suppress(Unavailable):
            await self._notebook.members(_STREAMS, session.key.encode(), renew=self._limits.session_idle)

    async def _holders(self, key: str) -> list[tuple[str, int]]:
        try:
            notes = await self._notebook.members(_STREAMS, key.encode())
        except Unavailable:
            return []
        return [_read(note) for note in notes]

    async def _refresh(self, question: bytes, tell: Tell) -> bytes:
        session = self._known.get(question.decode())
        if session is not None and session.stream is not None:
            await session.stream.refresh(_PATIENCE)
        return b""

    async def _replace(self, question: bytes, tell: Tell) -> bytes:
        session = self._known.get(question.decode())
        if session is not None and session.stream is not None:
            session.stream.close()
        return b""

    async def _ask(self, holder: str, subject: str, question: bytes) -> bytes:
        """Return what another replica says, nothing where it does not answer."""
        try:
            return await self._mailbox.ask(holder, subject, question, timeout=_PATIENCE)
        except (Unreachable, TimeoutError) as error:
            log.debug("%s: another replica did not answer: %s", subject, error)
            return b""

    # Questions to the client

    @contextmanager
    def asks(self, visit: Visit) -> Iterator[None]:
        """Have a call wait for its client meanwhile; raises McpError where too many do."""
        whose = visit.principal.who or visit.session.key
        full = self.asking.take(whose)
        if full is not None:
            raise McpError(INTERNAL_ERROR, _MANY[full])
        self._metrics.asked(len(self.asking))
        try:
            yield
        finally:
            self.asking.give_back(whose)
            self._metrics.asked(len(self.asking))

    def question(
        self, session: Session, ttl: float, report: Report | None = None
    ) -> tuple[str, "asyncio.Future[Answered]"]:
        """Return the id for a question to the client, and what becomes its answer, wherever it is posted.

        `report` is told how far the client is, as far as it tells.
        """
        number = os.urandom(8).hex()
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        session.questions[number] = answer
        if report is not None:
            session.reports[number] = report

        def answered(_: object) -> None:
            session.questions.pop(number, None)
            session.reports.pop(number, None)

        answer.add_done_callback(answered)
        place = f"{self._mailbox.me} {number}".encode()
        return self._seal.seal(_QUESTION, place, bound_to=session.key.encode(), ttl=ttl), answer

    async def answer(self, session: Session, answered: Answered) -> None:
        """Hand an answer to whoever waits for it; one that nobody waits for is dropped (M-16).

        Raises Unavailable where it could not be handed to him.
        """
        place = self._asked_at(session, text_or_none(answered.id) or "")
        if place is None:
            log.debug("dropped an answer to what was not asked in this session")
            return
        holder, number = place
        if holder == self._mailbox.me:
            self._give(session.key, number, answered)
            return
        error = answered.error
        reply = _Reply(
            session.key,
            number,
            None if answered.result is None else bytes(answered.result),
            None if error is None else (error.code, error.message, _bytes(error.data)),
        )
        await self._hand_on(holder, _pack(reply))

    async def _hand_on(self, holder: str, reply: bytes) -> None:
        """Bring an answer to the replica that waits for it; raises Unavailable where it is out of reach.

        A replica is gone when that is said twice: it may not be listening again yet where Redis is back.
        """
        gone = 0
        try:
            async with asyncio.timeout(_ANSWERING):
                while gone < 2:
                    try:
                        await self._mailbox.ask(holder, _ANSWER, reply, timeout=_PATIENCE)
                    except TimeoutError:
                        gone = 0
                    except Unreachable as error:
                        gone = gone + 1 if error.gone else 0
                    else:
                        return
                    log.debug("an answer did not reach another replica, and is sent again")
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            raise Unavailable("the replica that waits for an answer is out of reach") from None
        log.debug("dropped an answer for a replica that is gone")

    async def _take(self, question: bytes, tell: Tell) -> bytes:
        reply = _unpack_reply(question)
        error = None if reply.error is None else McpError(*reply.error)
        self._give(reply.session, reply.number, Answered(b"", reply.result, error))
        return b""

    def _give(self, key: str, number: str, answered: Answered) -> None:
        session = self._known.get(key)
        waiting = None if session is None else session.questions.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answered)

    def _asked_at(self, session: Session, id: str) -> tuple[str, str] | None:
        """Return which replica asked the question with this id, and its number there."""
        try:
            opened = self._seal.open(_QUESTION, id, bound_to=session.key.encode())
        except SealBroken:
            return None
        holder, _, number = opened.decode().partition(" ")
        return holder, number

    async def report(self, session: Session, id: str, params: Mapping[str, Json]) -> None:
        """Hand on how far the client is with the answer to a question, if anybody wants to know."""
        place = self._asked_at(session, id)
        if place is None:
            return
        holder, number = place
        if holder == self._mailbox.me:
            self._reported(session.key, number, params)
            return
        said = {key: bytes(raw) for key, raw in params.items()}
        await self._ask(holder, _REPORT, _pack((session.key, number, said)))

    async def _hear_report(self, question: bytes, tell: Tell) -> bytes:
        self._reported(*_unpack_report(question))
        return b""

    def _reported(self, key: str, number: str, params: Mapping[str, Json]) -> None:
        session = self._known.get(key)
        report = None if session is None else session.reports.get(number)
        if report is not None:
            report(params)

    async def note_page(self, session: Session, key: str, id: str) -> None:
        """Note under which id the client was sent to a page: whoever sent it may say when that is over."""
        place = f"{session.key} {key}".encode()
        with suppress(Unavailable):
            await self._notebook.write(_PAGE, place, id.encode(), self._limits.session_idle)

    async def completed(self, session: str, key: str) -> None:
        """Tell a client, on its standing stream, that a page it was sent to has been dealt with (9.4)."""
        place = f"{session} {key}".encode()
        try:
            id = await self._notebook.read(_PAGE, place)
            if id is None or not await self._notebook.erase(_PAGE, place):
                return
        except Unavailable:
            return
        message = legacy_answers.completed(id.decode())
        if self._show(session, message):
            return
        for holder, _ in await self._holders(session):
            if holder != self._mailbox.me and await self._ask(holder, _COMPLETED, _pack((session, message))):
                return

    async def _hear_completed(self, question: bytes, tell: Tell) -> bytes:
        return b"shown" if self._show(*_unpack_completed(question)) else b""

    def _show(self, key: str, message: bytes) -> bool:
        session = self._known.get(key)
        return session is not None and session.stream is not None and session.stream.post(message)

    # Taking back

    async def cancel(self, session: Session, id: bytes) -> None:
        """Take back a request of this session, wherever it is being worked on."""
        if not self._withdraw(session.key, id):
            await self._bus.tell(_CANCEL, _pack((session.key, id)))

    def _heard_cancel(self, message: bytes) -> None:
        self._withdraw(*_unpack_cancel(message))

    def _withdraw(self, key: str, id: bytes) -> bool:
        session = self._known.get(key)
        work = None if session is None else session.running.get(id)
        if work is None:
            return False
        work.withdraw()
        return True

    def _heard_end(self, message: bytes) -> None:
        self._forget(message.decode())

    # What is known here

    def _key(self, claims: _Claims) -> str:
        # No header can hold a zero byte, so no credential has this name.
        return self._seal.partition(f"\0session {claims.random.hex()}")

    def _keep(self, claims: _Claims, endpoint: str, presented: Principal) -> Session:
        key = self._key(claims)
        until = claims.started + self._limits.session_lifetime
        session = Session(key, endpoint, claims.held, until, self._now(), _whose(presented))
        self._known[key] = session
        self._metrics.sessions(len(self._known))
        self._shares.setdefault(session.whose, OrderedDict())[key] = session
        return session

    def _visit(self, session: Session, presented: Principal) -> Visit:
        """Return the session as this caller's, whose private results may be the session's own."""
        alone = presented.partition is None and not self._single_tenant
        own = alone or self._apart.get(session.endpoint, False)
        ends = session.until if presented.expires is None else min(session.until, presented.expires)
        partition = Partition(session.key) if own else presented.partition
        return Visit(session, replace(presented, partition=partition, expires=ends, session=session.key))

    def _make_room(self, presented: Principal) -> None:
        """Raise TooMany when there is no room for one more, which a quiet one may make.

        A quiet one loses nothing: its id brings it back.
        """
        limits, whose = self._limits, _whose(presented)
        own = len(self._shares.get(whose, ())) >= limits.sessions_per_caller
        if not own and len(self._known) < limits.sessions:
            return
        quiet = _quiet(self._shares.get(whose, {}))
        if quiet is None and own:
            raise TooMany("sessions_per_caller")
        quiet = quiet or _quiet(self._known)
        if quiet is None:
            raise TooMany("sessions")
        self._drop(quiet)

    def _drop(self, session: Session) -> None:
        del self._known[session.key]
        share = self._shares[session.whose]
        del share[session.key]
        if not share:
            del self._shares[session.whose]
        self._metrics.sessions(len(self._known))

    def _forget(self, key: str) -> None:
        session = self._known.get(key)
        if session is not None:
            self._drop(session)
            session.leave()


def _quiet(sessions: Mapping[str, Session]) -> Session | None:
    return next((one for one in sessions.values() if not one.busy), None)


def _whose(presented: Principal) -> str:
    return presented.who or ""


def _first(known: OrderedDict[str, Session], most: int) -> Iterator[tuple[str, Session]]:
    for number, pair in enumerate(known.items()):
        if number == most:
            return
        yield pair


def _binding(endpoint: str, principal: Principal) -> bytes:
    """Return what an id is bound to: another endpoint or another caller cannot use it (X-20)."""
    return _pack((endpoint, dialogue.holder(principal)))


def _spelled(holder: str, at: int) -> bytes:
    return f"{holder} {at}".encode()


def _read(note: bytes) -> tuple[str, int]:
    holder, _, at = note.decode().partition(" ")
    return holder, int(at)


def _bytes(raw: Json | None) -> bytes | None:
    return None if raw is None else bytes(raw)


def _not_noted(error: Unavailable) -> McpError:
    log.warning("a session's wish could not be noted: %s", error)
    return McpError(INTERNAL_ERROR, "This cannot be noted at the moment; try again")


def _too_many_uris(setting: str) -> McpError:
    return McpError(INTERNAL_ERROR, f"Too many resources; the setting `subscriptions.{setting}` allows more")


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Claims).decode
_unpack_reply = msgspec.msgpack.Decoder(_Reply).decode
_unpack_report = msgspec.msgpack.Decoder(tuple[str, str, dict[str, bytes]]).decode
_unpack_completed = msgspec.msgpack.Decoder(tuple[str, bytes]).decode
_unpack_cancel = msgspec.msgpack.Decoder(tuple[str, bytes]).decode
