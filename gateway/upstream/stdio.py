"""A server that is a program: started when it is needed, spoken to in its era, started again when it ends.

Which era that is, its first answers tell (U-19), and it holds for as long as the process lives (U-19a). A
process that ends by itself is replaced after a pause that grows, and only once all of it is gone. One process
is the gateway's own, and everybody's unless `isolation` says otherwise: then callers have theirs beside it.
"""

import asyncio
import itertools
import logging
import os
import random as chance
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from gateway import config
from gateway.protocol.call import (
    MODERN_VERSION,
    Change,
    Context,
    Emit,
    Notice,
    Reason,
    Reply,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import (
    UNSUPPORTED_PROTOCOL_VERSION,
    Malformed,
    McpError,
    array,
    items,
    join,
    split,
)
from gateway.protocol.legacy_server import Greeting
from gateway.protocol.mirror import without_invalid
from gateway.protocol.subscriptions import Wanted, spell
from gateway.support import exchange
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.channel import Channel, ChannelWire, OnChange, as_failed
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.legacy_listening import Changes, Ears, LegacyListening
from gateway.upstream.legacy_session import LegacySession
from gateway.upstream.negotiating import negotiated
from gateway.upstream.parked import Parked
from gateway.upstream.probing import (
    PROBE,
    PROBE_TIMEOUT,
    Discovered,
    Verdict,
    judge,
    mutual,
    supported_versions,
)
from gateway.upstream.program import STEP, Launch, Program
from gateway.upstream.retrying import Pace
from gateway.upstream.sessions import Key, Sessions, key_of, whose_of
from gateway.upstream.slots import Slots
from gateway.upstream.transport import Listening

log = logging.getLogger(__name__)

T = TypeVar("T")
Opener: TypeAlias = Literal["discover", "initialize"]

_STABLE = 60.0
"""A process that lived this long counts as good: the pauses start from the first again."""
_PATIENCE = 1.0
"""A call waits for a process that is about to be started again so soon; else it fails at once (B01)."""


class StdioUpstream:
    """One upstream that is a program."""

    def __init__(
        self,
        name: UpstreamName,
        settings: config.Upstream,
        *,
        client_info: bytes,
        limit: int,
        parked: Parked,
        background: Background,
        metrics: Metrics,
        on_change: OnChange,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = chance.random,
        pace: Pace | None = None,
        step: float = STEP,
    ) -> None:
        self._name = name
        self._settings = settings
        self._launch = Launch.of(name, settings, environ)
        self._client_info = client_info
        self._limit = limit
        self._parked = parked
        self._background = background
        self._metrics = metrics
        self._on_change = on_change
        self._clock = clock
        self._random = random
        self._pace = pace or Pace()
        self._step = step
        self._ids = itertools.count(1)
        self._slots = Slots(name, settings.connections, settings.queue, metrics)
        self._probe_timeout = min(settings.timeout, PROBE_TIMEOUT)
        self._opener: Opener = "initialize" if settings.era == "legacy" else "discover"
        self._patient = settings.era == "modern"
        """Whether it is known to be modern, however long it takes to say so."""
        self._process: Process | None = None
        self._left: set[Process] = set()
        """All that were started, everybody's and callers' own, and are not gone yet."""
        self._opening: asyncio.Task[Process | UpstreamUnavailable] | None = None
        self._changes = Changes(name, on_change, background)
        self._rest = Rest(self._pace, clock, random)
        self._others: Sessions[Process] = Sessions(
            self._open_other,
            most=max(1, settings.most_sessions - 1),
            each=settings.sessions_per_caller,
            idle=settings.session_idle,
            background=background,
            metrics=metrics,
            name=name,
            counted=False,
        )
        self._others_rest = Rest(self._pace, clock, random)
        self._lived = False
        """Whether there was one before, so that the next one is a reconnection."""
        self._closed = False
        self.version = MODERN_VERSION
        """The protocol version spoken with this upstream, in the modern era."""
        self.active = 0
        """Calls under way; a subscription is none."""

    def __repr__(self) -> str:
        return f"<StdioUpstream {self._name}: {self.active} active, {self._process or 'no process'}>"

    @property
    def name(self) -> UpstreamName:
        return self._name

    @property
    def queued(self) -> int:
        """Calls that wait until one more may run."""
        return self._slots.waiting

    @property
    def sessions(self) -> int:
        return len(self._left)

    @property
    def wire(self) -> str:
        return "stdio"

    async def probe(self) -> Verdict:
        """Start it if it does not run, and find out what it speaks; raises nothing."""
        process = self._process
        if process is not None and process.usable:
            return await self._pinged(process)
        try:
            # It may take longer to start, having itself installed first: it is left to go on with that.
            async with asyncio.timeout(2 * self._probe_timeout):
                opened = await self._opened()
        except TimeoutError:
            detail = "it was started and has not answered yet"
            return Verdict(None, reason=Reason.TIMEOUT, detail=detail, outage=True)
        if isinstance(opened, Process):
            return opened.verdict
        return Verdict(None, reason=opened.reason, detail=opened.detail, outage=opened.outage)

    async def call(self, request: Request, emit: Emit | None = None) -> Reply:
        """Return the result; raises UpstreamError as the upstream sent it, or Failed."""
        slot = await self._slots.take(request.method)
        self.active += 1
        try:
            process = await self._ready()
            if process.session is not None and "requestState" in request.params:
                return await self._parked.go_on(request, emit)
            key = self._key(request, process)
            if key == Key():
                return await process.call(request, emit)
            async with self._others.use(key) as own:
                return await own.call(request, emit)
        finally:
            slot.release()
            self.active -= 1

    async def listen(self, request: Request, wanted: Wanted) -> Listening:
        """Return the subscription once it is open, for the caller to close. Raises as `call` does."""
        process = await self._ready()
        key = self._key(request, process)
        if key == Key():
            return await process.listen(request, wanted)
        async with self._others.use(key) as own:
            return await own.listen(request, wanted)

    def note(self, context: Context, notice: Notice) -> None:
        """Tell the processes of this client's own something; everybody's could not tell whose word it is."""
        for own in self._others.of(whose_of(context, self._settings)):
            if own.session is not None:
                own.session.note(notice)

    async def close(self) -> None:
        """End every process ever started; calls that are running or come later fail as STOPPING."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await asyncio.gather(self._others.close(), *(process.close() for process in self._left))

    # One process for everybody

    async def _ready(self) -> "Process":
        """Return the process, started if need be; raises Failed, as unsent."""
        if self._closed:
            raise Failed(self._name, Reason.STOPPING)
        process = self._process
        if process is not None and process.usable:
            return process
        if self._opening is None:
            self._rest.check(self._name)
        opened = await self._opened()
        if isinstance(opened, Process):
            return opened
        raise unsent(self._name, opened)

    async def _opened(self) -> "Process | UpstreamUnavailable":
        """Return it, or what comes of starting it: begun once for all who wait, not given up with them."""
        if self._closed:
            return Failed(self._name, Reason.STOPPING)
        if self._process is not None and self._process.usable:
            return self._process
        if self._opening is None:
            self._opening = self._background.start(self._open(), name=f"start {self._name}")
        opening = self._opening
        await asyncio.wait([opening])
        return Failed(self._name, Reason.STOPPING) if opening.cancelled() else opening.result()

    async def _open(self) -> "Process | UpstreamUnavailable":
        """Start it once the one before is gone and its rest is over; it rests longer after a failure."""
        try:
            if self._process is not None:
                await self._process.close()
                self._process = None
            await asyncio.sleep(self._rest.left)
            process = await self._settled()
        except UpstreamUnavailable as error:
            self._rest.failed(error)
            return error
        finally:
            self._opening = None
        self._process = process
        self._background.start(self._attend(process, self._clock()), name=f"attend {self._name}")
        if self._lived:
            await self._tell_reconnected()
        self._lived = True
        return process

    async def _tell_reconnected(self) -> None:
        """Say that whatever was cached may have changed unseen (C-30)."""
        try:
            await self._on_change(Change(self._name, cause="reconnect"))
        except Exception:  # a listener's bug must not leave the upstream without its program
            log.exception("upstream %s: its reconnection could not be announced", self._name)

    async def _settled(self) -> "Process":
        """Return a process that can be used; raises UpstreamUnavailable when there is none."""
        opener, patient = self._opener, self._patient
        while True:
            process = await self._started(Key())
            verdict = await self._spoken_to(process, opener, patient)
            if verdict.reason is None:
                if verdict.version is not None and verdict.era == "modern":
                    self.version = verdict.version
                self._remember(process)
                return process
            died = process.channel.failure
            await process.close()
            self._remember(None)
            if died is None or opener == "initialize" or self._settings.era != "auto":
                raise Failed(self._name, verdict.reason, verdict.detail, lost=died is not None)
            # It may be one that ends at an opener it does not know (U-19).
            opener = "initialize"

    def _remember(self, process: "Process | None") -> None:
        """Keep what spares the next process a wait in vain; once it fails, nothing is known (U-19a)."""
        if self._settings.era == "auto":
            mute = process is not None and process.mute and process.session is not None
            self._opener = "initialize" if mute else "discover"
            self._patient = process is not None and process.late

    async def _spoken_to(self, process: "Process", opener: Opener, patient: bool) -> Verdict:
        try:
            async with asyncio.timeout(self._settings.max_timeout):
                return await process.settle(opener, patient=patient)
        except TimeoutError:
            detail = f"no answer to its handshake in {self._settings.max_timeout:g}s"
            return Verdict(None, reason=Reason.TIMEOUT, detail=detail, outage=True)
        except BaseException:
            await process.close()
            raise

    async def _started(self, key: Key) -> "Process":
        if self._closed:
            raise Failed(self._name, Reason.STOPPING)
        program = await Program.start(
            self._launch,
            limit=self._limit,
            background=self._background,
            step=self._step,
            vital=key == Key(),  # a caller's own is nobody else's loss
        )
        channel = Channel(
            self._name,
            program,
            client_info=self._client_info,
            patience=self._settings.timeout,
            listen_idle=self._settings.listen_idle,
            ids=self._ids,
            background=self._background,
            metrics=self._metrics,
            on_change=self._on_change,
        )
        process = Process(self, program, channel, key)
        self._left.add(process)
        self._metrics.upstream_sessions(self._name, by=1)
        self._metrics.process_started(self._name)
        self._count()
        return process

    async def _attend(self, process: "Process", since: float) -> None:
        """See the shared process to its end, and start the next one (U-31)."""
        exchange.detach()
        await process.channel.ended.wait()
        if self._clock() - since >= _STABLE:
            self._rest.over()
        assert process.channel.failure is not None
        self._rest.failed(process.channel.failure)
        while not self._closed and not isinstance(await self._opened(), Process):
            pass  # it rested meanwhile

    # Processes of callers' own

    def _key(self, request: Request, shared: "Process") -> Key:
        """Return whose process a request goes to.

        What those ask who cannot be told apart goes to everybody's: a process for each of their calls would
        be anybody's to start. A modern server declares nothing to be kept apart by.
        """
        key = key_of(request, self._settings, "")
        if not key.whose and not request.context.alone:
            return Key()
        return key if shared.session is not None else Key(key.whose, partition=key.partition)

    async def _open_other(self, key: Key) -> "Process":
        """Start a process for one caller, once those that end are gone; raises Failed, as unsent."""
        ending = [one.close() for one in self._left if one.whose == key.whose and one.ended]
        if key.whose and ending:
            await asyncio.gather(*ending)
        self._others_rest.check(self._name, vital=False)
        shared = self._process
        opener: Opener = "initialize" if shared is not None and shared.session is not None else "discover"
        try:
            process = await self._started(key)
            # What everybody's has said it is, this one is as well, sooner or later.
            verdict = await self._spoken_to(process, opener, patient=shared is not None)
            if verdict.reason is not None:
                await process.close()
                raise Failed(self._name, verdict.reason, verdict.detail)
        except UpstreamUnavailable as error:
            self._others_rest.failed(error)
            raise unsent(self._name, error, vital=False) from None
        self._others_rest.over()
        self._background.start(self._attend_other(key, process), name=f"attend one at {self._name}")
        if process.session is None:
            self._background.start(process.overhear(), name=f"overhear one at {self._name}")
        return process

    async def _attend_other(self, key: Key, process: "Process") -> None:
        await process.channel.ended.wait()
        self._others.forget(key, process)
        await process.close()

    def _count(self) -> None:
        self._metrics.upstream_connections(self._name, len(self._left))

    async def _pinged(self, process: "Process") -> Verdict:
        """Return whether a process that runs is of use; one that is busy need not answer."""
        try:
            async with asyncio.timeout(self._probe_timeout):
                return await process.ping()
        except TimeoutError:
            if process.channel.active:
                return process.verdict
            failure: UpstreamUnavailable = Failed(self._name, Reason.TIMEOUT, "it runs and answers nothing")
        except UpstreamUnavailable as error:
            failure = error
        process.channel.fail(failure)  # it is replaced
        return Verdict(None, reason=failure.reason, detail=failure.detail, outage=failure.outage)

    # What a process needs of its upstream

    def session(self, key: Key, ears: Ears, wire: ChannelWire) -> LegacySession:
        """Return a session of an older era, not open yet."""
        return LegacySession(
            self._name,
            wire,
            capabilities=key.capabilities,
            client_info=self._client_info,
            background=self._background,
            metrics=self._metrics,
            on_told=ears.tell,
            on_idle=lambda session: self._others.rested(key),
            parked=self._parked,
            ids=self._ids,
            timeout=self._settings.timeout,
        )

    def ears(self, key: Key) -> Ears:
        return Ears(self._changes, key.partition, lambda: self._others.rested(key))

    def listening(self, session: LegacySession, ears: Ears) -> LegacyListening:
        return LegacyListening(session, ears, idle=self._settings.listen_idle, metrics=self._metrics)

    def start(self, coro: Coroutine[Any, Any, T], what: str) -> "asyncio.Task[T]":
        return self._background.start(coro, name=f"{what} {self._name}")

    @property
    def forced(self) -> bool:
        return self._settings.era == "modern"

    @property
    def probe_timeout(self) -> float:
        return self._probe_timeout

    def gone(self, process: "Process") -> None:
        """Take note that nothing of a process is left."""
        if process in self._left:  # it may be closed more than once
            self._left.remove(process)
            self._metrics.upstream_sessions(self._name, by=-1)
            self._metrics.process_ended(self._name)
            self._count()


class Rest:
    """How long nothing is started after failures: longer each time."""

    def __init__(self, pace: Pace, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._random = random
        self._failures = 0
        self._until = clock()
        self._last: UpstreamUnavailable | None = None

    @property
    def left(self) -> float:
        """The seconds it still lasts."""
        return max(0.0, self._until - self._clock())

    def check(self, name: UpstreamName, *, vital: bool = True) -> None:
        """Raise the last failure again while it lasts longer than anybody should wait."""
        if self._last is not None and self.left > _PATIENCE:
            raise unsent(name, self._last, vital=vital)

    def failed(self, error: UpstreamUnavailable) -> None:
        """Begin a rest."""
        self._last = error
        self._failures += 1
        self._until = self._clock() + self._pace.pause(self._failures, self._random())

    def over(self) -> None:
        """Begin with the first pause again."""
        self._failures = 0


class Process:
    """One process of a program, and what it turned out to speak."""

    def __init__(self, upstream: StdioUpstream, program: Program, channel: Channel, key: Key) -> None:
        self._upstream = upstream
        self._program = program
        self._key = key
        self._ears = upstream.ears(key)
        self.channel = channel
        self.session: LegacySession | None = None
        self.verdict = Verdict(None, reason=Reason.DOWN, detail="its handshake is not over")
        self.mute = False
        """Whether it said nothing at all to the probe."""
        self.late = False
        """Whether it took its time to say that it is modern."""

    def __repr__(self) -> str:
        return f"<Process {self.verdict.era or 'starting'}, {self._program!r}>"

    @property
    def name(self) -> UpstreamName:
        return self._upstream.name

    @property
    def version(self) -> str:
        return self._upstream.version

    @version.setter
    def version(self, version: str) -> None:
        self._upstream.version = version

    @property
    def whose(self) -> str:
        """The caller whose own it is, "" for everybody's."""
        return self._key.whose

    @property
    def usable(self) -> bool:
        """Whether requests may be sent to it."""
        return self.verdict.reason is None and self.channel.failure is None

    @property
    def active(self) -> int:
        """Calls under way, those that wait for their user included, and listeners."""
        return self.channel.active + len(self._ears)

    @property
    def ended(self) -> bool:
        return self.channel.failure is not None

    async def settle(self, opener: Opener, *, patient: bool) -> Verdict:
        """Find out what it speaks, beginning with this (U-19); raises nothing but for being cancelled.

        With patience its first answer is waited for, however long that takes.
        """
        if opener == "initialize":
            self.verdict = await self._shaken(None)
            return self.verdict
        probing = self._upstream.start(self._discover(), "probe")
        try:
            self.verdict = await self._probed(probing, patient)
        finally:
            probing.cancel()
        return self.verdict

    async def _probed(self, probing: "asyncio.Task[Verdict]", patient: bool) -> Verdict:
        """Return what its answer means; one that says nothing yet is greeted as an older server as well."""
        await asyncio.wait([probing], timeout=None if patient else self._upstream.probe_timeout)
        if not probing.done():
            self.mute = True
            return await self._shaken(probing)
        before = probing.result()
        if before.reason is None or self._upstream.forced or self.channel.failure is not None:
            return before
        verdict = await self._shaken(None)
        named = verdict.reason is Reason.ERA and before.era == "modern"
        return before if named else verdict  # it named versions, and none of ours

    async def _shaken(self, probing: "asyncio.Task[Verdict] | None") -> Verdict:
        """Shake hands as with an older server, or learn meanwhile that it is a modern one that was slow.

        Whoever takes the handshake is spoken to that way; but one that has taken the probe may refuse it,
        in the proper words or in any others, or not answer it at all.
        """
        shaking = self._upstream.start(self._initialize(), "greet")
        try:
            both = [shaking] if probing is None else [shaking, probing]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            slow = probing is not None and probing.done() and probing.result().reason is None
            await asyncio.wait([shaking], timeout=self._upstream.probe_timeout if slow else None)
            greeted = shaking.result() if shaking.done() else None
        finally:
            shaking.cancel()
        if probing is not None and probing.done():
            self.mute = False
            self.late = probing.result().reason is None
        if isinstance(greeted, Verdict) and (greeted.reason is None or not self.late):
            return greeted
        refused = Verdict(None, reason=Reason.ERA, detail="it does not answer initialize")
        if isinstance(greeted, UpstreamError):
            refused = Verdict(None, reason=Reason.ERA, detail=f"it refuses initialize: error {greeted.code}")
            wants_other = greeted.code == UNSUPPORTED_PROTOCOL_VERSION and mutual(supported_versions(greeted))
            if probing is None and not wants_other:
                return refused
        self.channel.speak_modern()
        self.session = None
        if probing is not None and self.late:
            return probing.result()
        verdict = await self._asked_again()
        return verdict if verdict.reason is None or self.channel.failure is not None else refused

    async def _asked_again(self) -> Verdict:
        """Probe one that is known to answer."""
        try:
            async with asyncio.timeout(self._upstream.probe_timeout):
                return await self._discover()
        except TimeoutError:
            return Verdict(None, reason=Reason.TIMEOUT, detail="no answer to server/discover", outage=True)

    async def _discover(self) -> Verdict:
        """Ask it as a modern server; a probe is never cancelled, which could only confuse."""
        try:
            reply = await negotiated(
                self, lambda: self.channel.call(PROBE, version=self.version, cancel=False)
            )
        except (UpstreamError, UpstreamUnavailable) as error:
            return judge(error, forced=self._upstream.forced)
        return judge(reply, forced=self._upstream.forced)

    async def _initialize(self) -> Verdict | UpstreamError:
        """Return what comes of a handshake, or how it is refused."""
        session = self.channel.speak(partial(self._upstream.session, self._key, self._ears))
        self.session = session
        try:
            return _verdict(await session.open())
        except UpstreamError as error:
            return error
        except UpstreamUnavailable as error:
            return Verdict(None, reason=error.reason, detail=error.detail, outage=error.outage)

    async def ping(self) -> Verdict:
        """Return what it is, having heard from it; raises UpstreamUnavailable, or TimeoutError if it may."""
        if self.session is not None:
            await self.session.ping()
            return self.verdict
        verdict = await self._discover()
        if verdict.reason is not None:
            raise Failed(self.name, verdict.reason, verdict.detail)
        self.verdict = verdict
        return verdict

    async def call(self, request: Request, emit: Emit | None) -> Reply:
        """Return the result as a modern server words it."""
        if self.session is not None:
            return await self.session.call(request, emit)
        reply = await self.channel.call(request, emit, version=self.version)
        return without_invalid_annotations(reply) if request.method == "tools/list" else reply

    async def listen(self, request: Request, wanted: Wanted) -> Listening:
        """Return an open subscription, which the server of an older era may not know to be one (L-26)."""
        if self.session is None:
            return await self.channel.listen(request, wanted, version=self.version)
        listening = self._upstream.listening(self.session, self._ears)
        try:
            await listening.open(wanted)
        except BaseException:
            listening.close()
            raise
        return listening

    async def overhear(self) -> None:
        """Pass on, until it ends, what a modern server says of its lists, though no client listens to it.

        One of an older era says so unasked. What else a caller may listen for is told by everybody's process.
        """
        lists = Wanted(tools=True, prompts=True, resources=True)
        asked = Request("subscriptions/listen", {"notifications": spell(lists)})
        try:
            async for notice in await self.channel.listen(asked, lists, version=self.version):
                self._ears.tell(notice)
        except (McpError, UpstreamUnavailable) as error:
            log.debug("upstream %s: a caller's process is not listened to: %s", self.name, error)

    async def close(self) -> None:
        """End it, and return once all of it is gone."""
        self.channel.close()
        assert self.channel.failure is not None
        self._ears.lose(as_failed(self.channel.failure))
        await self._program.stop()
        self._upstream.gone(self)


def unsent(name: UpstreamName, error: UpstreamUnavailable, *, vital: bool = True) -> Failed:
    """Return the failure of what was never sent, for there was nobody to send it to."""
    lost = error.reason is Reason.CONNECT
    return Failed(name, error.reason, error.detail, unsent=lost, lost=lost and vital)


def without_invalid_annotations(reply: Reply) -> Reply:
    """Return a list of tools whose annotations for headers all hold: a program is sent none (U-09)."""
    if b"x-mcp-header" not in bytes(reply.result):
        return reply
    try:
        members: dict[str, object] = dict(split(reply.result))
        tools = []
        for raw in items(members["tools"]):  # type: ignore[arg-type]
            tool = dict(split(raw))
            tools.append(join({**tool, "inputSchema": without_invalid(tool["inputSchema"])}))
        return Reply(join({**split(reply.result), "tools": array(tools)}))
    except (Malformed, KeyError):
        return reply  # whoever reads the list says what is wrong with it


def _verdict(greeting: Greeting) -> Verdict:
    """Return what a handshake told, as a probe would tell it."""
    discovered = Discovered(
        greeting.capabilities, greeting.instructions, (greeting.version,), greeting.discovered
    )
    return Verdict("legacy", greeting.version, discovered)
