"""The standing stream of a session: what changed, as far as the session wants to hear of it.

Behind it is a listen as modern clients have one (L-25). When the session wants something else the new listen
is opened before the old one is closed, so that nothing is missed between them. What was not granted is asked
for again, ever less often, for it may only have been out of reach.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from gateway.core.standing import LetGo
from gateway.protocol.call import MODERN_VERSION, Answer, Call, Notice, Principal, RequestMeta, Sink
from gateway.protocol.jsonrpc import encode
from gateway.protocol.legacy_answers import notice_of, told, written
from gateway.protocol.subscriptions import ACKNOWLEDGED, Wanted, read_acknowledged, spell
from gateway.support.notebook import Unavailable
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_LISTS = Wanted(tools=True, prompts=True, resources=True)
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 5.0
_LONGEST_WAIT_FOR_MORE = 30.0
"""The longest until what was not granted is asked for again."""
_ACKNOWLEDGING = 30.0
"""The longest a new listen may take before it is given up; the old one is kept meanwhile."""


class Outlet(Protocol):
    """Where what belongs to one exchange with a client is sent. Every method raises ConnectionError."""

    async def send(self, message: bytes) -> None:
        """Send a message, and wait while the client is slow to take it."""
        ...

    def post(self, message: bytes) -> bool:
        """Send a message if the client takes more now; whether it was sent."""
        ...

    async def writable(self) -> None:
        """Return once the client takes more."""
        ...


class Listens(Protocol):
    """What opens a listen: a Pipeline is one."""

    async def listen(self, call: Call, principal: Principal, sink: Sink) -> Answer: ...


class _Ear:
    """Takes what one listen says, and lets the client hear it from the moment it is let in."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.granted = Wanted()
        self.acknowledged = asyncio.Event()
        self.let_in = asyncio.Event()

    async def emit(self, notice: Notice) -> None:
        if notice.method == ACKNOWLEDGED:
            self.granted = read_acknowledged(notice.params)
            self.acknowledged.set()
            return
        await self.let_in.wait()
        await self._outlet.send(written(notice_of(notice)))

    def tell(self, before: bytes, id: bytes, behind: bytes) -> bool:
        if not self.let_in.is_set():
            return False
        return self._outlet.post(written(told(before, id, behind)))

    async def writable(self) -> None:
        await self.let_in.wait()
        await self._outlet.writable()


class Stream:
    """Runs for as long as the client stays and nobody takes its place."""

    def __init__(
        self,
        pipeline: Listens,
        principal: Principal,
        outlet: Outlet,
        *,
        uris: Callable[[], Awaitable[frozenset[str]]],
        touch: Callable[[], Awaitable[bool]],
        every: float,
        over: Callable[[], bool],
        background: Background,
    ) -> None:
        """`uris` are those the session asked for, `touch` is called so often and says whether it is alive.

        `over` says whether a listen that ended is not to be opened again.
        """
        self._pipeline = pipeline
        self.principal = principal
        self._outlet = outlet
        self._uris = uris
        self._touch = touch
        self._every = every
        self._over = over
        self._background = background
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False
        self._had_one = False
        self._asked: Wanted | None = None
        """What the listen was asked for; None when it could not be read what the session wants."""
        self._granted = Wanted()
        self._lacks = False
        """Whether the session wants more resources than it is granted."""
        self._next_touch = 0.0
        self.note = b""
        """How the notebook knows it."""

    def __repr__(self) -> str:
        return f"<Stream {'closed' if self._closed else 'open'}>"

    def close(self) -> None:
        """Let it end."""
        self._closed = True
        self._wanted.set()

    def post(self, message: bytes) -> bool:
        """Send a message that is no change, if the client takes more now; whether it was sent."""
        with suppress(ConnectionError):
            return not self._closed and self._outlet.post(message)
        return False

    async def refresh(self, within: float) -> None:
        """Return once the client hears of what is wanted now, or after so many seconds."""
        if self._closed:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._wanted.set()
        await asyncio.wait([done], timeout=within)

    async def run(self) -> None:
        """Tell what happens, until the end."""
        current: asyncio.Task[Answer] | None = None
        pause = more = _FIRST_PAUSE
        self._next_touch = asyncio.get_running_loop().time() + self._every
        try:
            while not self._closed:
                if self._wanted.is_set():
                    more = _FIRST_PAUSE
                self._wanted.clear()
                asked, self._waiting = self._waiting, []
                new = await self._opened(current)
                if new is not None:
                    current, pause = new, _FIRST_PAUSE
                for done in asked:
                    if not done.done():
                        done.set_result(None)
                if current is not None and not current.done():
                    await self._until_something(current, more if self._lacks else None)
                    more = min(2 * more, _LONGEST_WAIT_FOR_MORE) if self._lacks else _FIRST_PAUSE
                if current is not None and current.done():
                    if self._closed or self._over():
                        return
                    current = None
                    await self._rest(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._closed = True
            for done in self._waiting:
                done.cancel()
            if current is not None:
                current.cancel()

    async def _opened(self, before: "asyncio.Task[Answer] | None") -> "asyncio.Task[Answer] | None":
        """Return a listen for what is wanted now, in the place of the one before; None if there is none."""
        try:
            uris = await self._uris()
            asked: Wanted | None = _LISTS | Wanted(uris=uris)
        except Unavailable:
            self._lacks = True
            if before is not None:
                return None
            asked = None
        wanted = asked or _LISTS
        ear = _Ear(self._outlet)
        filter = spell(wanted)
        call = Call(
            b"0", "subscriptions/listen", {"notifications": filter}, RequestMeta(MODERN_VERSION), None
        )
        task = self._background.start(self._listen(call, ear), name="legacy stream")
        acknowledged = self._background.start(_wait(ear.acknowledged), name="legacy acknowledgement")
        try:
            await asyncio.wait(
                [task, acknowledged], timeout=_ACKNOWLEDGING, return_when=asyncio.FIRST_COMPLETED
            )
        except BaseException:
            task.cancel()
            raise
        finally:
            acknowledged.cancel()
        if not ear.acknowledged.is_set():
            task.cancel()
            self._lacks = True
            return task if before is None else None
        if before is not None:
            before.cancel()
            await asyncio.wait([before])
            # What it had asked for, and was not granted until now, may have changed meanwhile.
            late = ear.granted if self._asked is None else ear.granted & self._asked
            await self._tell_all(late - self._granted)
        elif self._had_one:
            await self._tell_all(ear.granted)
        self._had_one = True
        self._asked, self._granted = asked, ear.granted
        self._lacks = asked is None or bool(asked.uris - ear.granted.uris)
        ear.let_in.set()
        return task

    async def _tell_all(self, granted: Wanted) -> None:
        """Tell of everything that is granted, after a time in which any of it may have changed unheard."""
        for kind in ("tools", "prompts", "resources"):
            if getattr(granted, kind):
                await self._outlet.send(written(Notice(f"notifications/{kind}/list_changed", {})))
        for uri in sorted(granted.uris):
            await self._outlet.send(written(Notice("notifications/resources/updated", {"uri": encode(uri)})))

    async def _listen(self, call: Call, ear: _Ear) -> Answer:
        try:
            return await self._pipeline.listen(call, self.principal, ear)
        except LetGo:
            self.close()
            return Answer(())
        except ConnectionError:  # the client left: its request is about to be cancelled
            return Answer(())
        except Exception as error:
            log.warning("a session's stream could not listen: %s", error)
            return Answer(())

    async def _until_something(self, current: "asyncio.Task[Answer]", within: float | None) -> None:
        """Return once something else is wanted, the listen has ended, or so many seconds are over."""
        wanted = self._background.start(_wait(self._wanted), name="legacy wish")
        now = asyncio.get_running_loop().time
        end = math.inf if within is None else now() + within
        try:
            while now() < end:
                pause = max(min(self._next_touch, end) - now(), 0)
                done, _ = await asyncio.wait(
                    [current, wanted], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return
                if now() >= self._next_touch:
                    self._next_touch = now() + self._every
                    if not await self._touch():
                        self.close()
                        return
        finally:
            wanted.cancel()

    async def _rest(self, pause: float) -> None:
        """Wait a while before a listen is opened again that just ended, unless something new is wanted."""
        if not self._wanted.is_set():
            wanted = self._background.start(_wait(self._wanted), name="legacy wish")
            await asyncio.wait([wanted], timeout=pause)
            wanted.cancel()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
