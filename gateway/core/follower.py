"""Holds one upstream's notification stream for one authorization context, for as long as anybody wants it.

A listen cannot be amended (L-15): when more is wanted than the open stream was asked for, another is opened,
and the old one closed once the new one is acknowledged, so that nothing falls between the two.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from gateway import config
from gateway.core.audience import KINDS, Followed, Kind, kinds_of
from gateway.core.bounding import Room
from gateway.core.capabilities import needed
from gateway.core.discover import extends, notifies, subscribes
from gateway.core.following import Following, Granted, State
from gateway.core.sifting import Sieve
from gateway.protocol.call import (
    Challenge,
    Context,
    Notice,
    Principal,
    Reason,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import METHOD_NOT_FOUND, McpError
from gateway.protocol.methods import TASKS
from gateway.protocol.subscriptions import Wanted
from gateway.support import exchange
from gateway.support.logs import redact
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background, happens
from gateway.upstream.pool import UpstreamPool
from gateway.upstream.retrying import Pace, spread

log = logging.getLogger(__name__)

N = TypeVar("N", bound=Hashable)

_A_DAY = 86400.0
_LINGER = 20
"""How many times longer a stream that was asked for too much stays than one that was asked for too little."""

_EXCERPT = 2000
"""Characters of an upstream's error that are looked at for the log."""
_ABOUT_THE_WISH = frozenset({Reason.STATUS, Reason.PROTOCOL, Reason.TOO_LARGE, Reason.TIMEOUT})
"""What may have become of a listen because of what it asked for; nobody was there to ask otherwise."""


@dataclass(frozen=True, slots=True)
class Ears:
    """Whom a follower tells; none of them waits."""

    heard: Callable[[Followed, Notice, Wanted], None]
    """Given with each notice what the stream that it came on was asked for."""
    resumed: Callable[["Follower", frozenset[str] | None, bool], None]
    """Nothing was heard for a while before now, but of these resources before; None = it is the first stream,
    and True with it that another replica had heard everything until then."""
    refused: Callable[["Follower"], None]
    """The upstream refuses the context's own credential, which it had accepted."""
    idle: Callable[["Follower"], None]
    """Nobody has wanted anything of it for a while; it has ended."""
    missed: Callable[["Follower"], None]
    """Another replica may have said something that was not heard here."""
    withdrawn: Callable[["Follower", Wanted], None]
    """Of these resources and tasks the upstream does not tell, whatever it granted before."""
    restored: Callable[["Follower", frozenset[str]], None]
    """These resources are told of again, later than the rest of what was missed."""


class Follower:
    """One upstream in one context; `want` and `unwant` say what is worth following."""

    def __init__(
        self,
        at: Followed,
        principal: Principal,
        ears: Ears,
        settings: config.Subscriptions,
        *,
        pool: UpstreamPool,
        following: Following,
        background: Background,
        metrics: Metrics,
        random: Callable[[], float],
        always: bool,
    ) -> None:
        """With `always` every list is followed that the upstream tells about, for the sake of the cache."""
        self.at = at
        self.principal = principal
        self._ears = ears
        self._settings = settings
        self._pool = pool
        self._background = background
        self._metrics = metrics
        self._random = random
        self._always = always
        self._kinds: Counter[Kind] = Counter()
        self._uris: Counter[str] = Counter()
        self._tasks: Counter[str] = Counter()
        self._pace = Pace(settings.retry, settings.longest_retry)
        self._sieve = Sieve(self._pace, random)
        self._room, self._own_room = (
            Room(settings.uris_per_upstream, settings.upstream_uri_bytes) for _ in range(2)
        )
        """For what all want, and for what is wanted here of a replica that holds the stream."""
        self._left_out = Wanted()
        """What there was no room for when that was last counted."""
        self._complained = False
        self._again = 0.0
        """When to ask once more after a refusal, in the loop's time."""
        self._refusal: int | None = None
        """The code of the last refusal that was logged."""
        self._blamed = Wanted()
        """What may be the reason why there is a pause now."""
        self._owed: frozenset[str] = frozenset()
        """Resources that were told of before the last gap, and are not yet again."""
        self._stream: _Stream | None = None
        self._heard_of: frozenset[str] | None = None
        """The resources of which the last stream would have told, wherever it was, None before the first."""
        self._heard_before: frozenset[str] = frozenset()
        """Of which of our resources it told before its last gap that we have not heard of yet."""
        self.run = b""
        """Names the time since the last gap, wherever the stream is."""
        self._handed_over = False
        self._out_of_reach = False
        self._failures = 0
        self._unsupported = False
        self._turned_away = False
        self._accepted = False
        """Whether the upstream has taken the credential at least once, here or at another replica."""
        self._stir = asyncio.Event()
        self._woken = asyncio.Event()
        self._settled = asyncio.Event()
        """Set and replaced whenever something was found out."""
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._elsewhere: Granted | None = None
        """What was last heard of the stream that another replica holds."""
        self._share = following.share(
            at,
            wanted=lambda: self._own_room.fit(self._own),
            changed=self._shared,
            missed=lambda: ears.missed(self),
        )

    def __repr__(self) -> str:
        whose = "gateway" if self.at.context is None else "caller"
        return f"<Follower {self.at.upstream} ({whose}): {self.state}, {len(self._uris)} URIs wanted>"

    @property
    def state(self) -> State:
        granted = self._share.granted
        return self._state if granted is None else granted.state

    @property
    def _state(self) -> State:
        if self._unsupported:
            return "unsupported"
        if self._turned_away:
            return "refused"
        if self._stream is not None and not self._stream.ended:
            return "following"
        return "connecting" if self._wish() else "idle"

    @property
    def heard_elsewhere(self) -> frozenset[str]:
        """Of which resources another replica's stream tells, if it is not our own that does."""
        return frozenset() if self._stream is not None else self._heard_of or frozenset()

    def missed_before(self, run: bytes) -> frozenset[str]:
        """Return of which resources another replica's stream told before the gap with which this run began.

        Its word of what it grants now may have come before that of the gap, or may be yet to come.
        """
        if self._stream is not None:
            return frozenset()
        before, self._heard_before = self._heard_before, frozenset()
        return before if run and run == self.run else before | self.heard_elsewhere

    @property
    def wanted(self) -> bool:
        """Whether anybody here still wants anything of it."""
        return self._always or bool(self._kinds or self._uris or self._tasks)

    def start(self) -> None:
        """Begin; what nobody wants is not asked for."""
        if self._task is None or self._task.done():
            self._task = self._background.start(self._follow(), name=f"follow {self.at.upstream}")

    def stop(self) -> None:
        """Hang up, for good."""
        if self._task is not None:
            self._task.cancel()

    def retire(self) -> None:
        """Hang up, and have no part in the stream any more: another upstream may bear the name by now."""
        self.stop()
        self._share.close()

    def adopt(self, pool: UpstreamPool, settings: config.Subscriptions) -> None:
        """Go on by another configuration, in which the upstream is the same."""
        self._pool = pool
        if settings != self._settings:
            self._settings = settings
            self._pace = Pace(settings.retry, settings.longest_retry)
            self._room, self._own_room = (
                Room(settings.uris_per_upstream, settings.upstream_uri_bytes) for _ in range(2)
            )
            self._stir.set()

    def want(self, wanted: Wanted) -> None:
        """Follow this, too."""
        self._kinds.update(kinds_of(wanted))
        self._uris.update(wanted.uris)
        self._tasks.update(wanted.tasks)
        self._share.want()
        if wanted.names:
            self._count_left_out()
        self.start()
        self._stir.set()

    def unwant(self, wanted: Wanted) -> None:
        """Take back a `want`."""
        _take(self._kinds, kinds_of(wanted))
        _take(self._uris, wanted.uris)
        _take(self._tasks, wanted.tasks)
        self._left_out -= wanted
        self._share.want()
        self._stir.set()

    def wake(self) -> None:
        """Try at once: the upstream is back, and may be another one now."""
        self._unsupported = False
        self._turned_away = False
        self._refusal = None
        self._sieve.forget()
        self._woken.set()
        self._stir.set()

    async def settled(self) -> None:
        """Return once it is known whether there is a stream, or that there is nothing to ask for yet."""
        await self._tried.wait()

    async def honours(self, wanted: Wanted) -> Wanted:
        """Return what of these resources and tasks the upstream tells of, once it has said so.

        They have to be wanted already. A replica that holds the stream has to know that they are wanted here,
        too: else it would tell us nothing of what it hears for others, and might give it up with them.
        """
        named, wish = wanted.names, self._share.wishes
        while True:
            if self._unsupported or self._turned_away or not named & self._wish():
                return Wanted()
            elsewhere = self._share.granted
            granted = elsewhere or self._granted()
            known = elsewhere is None or self._share.heard(wish)
            if granted.state == "following" and known and not named & self._wish() - granted.asked:
                return named & granted.honoured
            if granted.state in ("unsupported", "refused"):
                return Wanted()
            await self._settled.wait()

    @property
    def withdrawn(self) -> Wanted:
        """The resources and tasks that were asked for in vain."""
        granted = self._share.granted or self._granted()
        return (granted.asked - granted.honoured).names

    @property
    def _own(self) -> Wanted:
        """Return what is wanted here."""
        tools, prompts, resources = (kind in self._kinds for kind in KINDS)
        return Wanted(tools, prompts, resources, frozenset(self._uris), frozenset(self._tasks))

    @property
    def _all(self) -> Wanted:
        return self._own | self._share.others

    def _wish(self) -> Wanted:
        """Return what to ask for: what of it was not refused of late, and there is room for."""
        return self._room.fit(self._sieve.fit(self._declared(), _now()))

    def _count_left_out(self) -> None:
        """Count what there is no room for, and say so once."""
        self._wish()
        before, self._left_out = self._left_out, self._room.left_out
        new = self._left_out - before
        if not new:
            return
        self._metrics.listen_left_out(self.at.upstream, len(new.uris) + len(new.tasks))
        if not self._complained:
            self._complained = True
            log.warning(
                "upstream %s: clients want to hear of more than subscriptions.uris_per_upstream (%d) and "
                "upstream_uri_bytes (%d) let it be asked for; the rest is not promised to them",
                self.at.upstream,
                self._settings.uris_per_upstream,
                self._settings.upstream_uri_bytes,
            )

    def _declared(self) -> Wanted:
        """Return what is wanted, as far as the upstream declared that it tells of it."""
        wanted, discovered = self._all, self._pool.discovered(self.at.upstream)
        if discovered is None:  # it has said nothing yet: whatever is wanted may be had
            return wanted.names
        told = {kind: notifies(discovered.capabilities, kind) for kind in KINDS}
        tools, prompts, resources = (told[kind] and (self._always or getattr(wanted, kind)) for kind in KINDS)
        uris = wanted.uris if subscribes(discovered.capabilities) else frozenset()
        tasks = wanted.tasks if extends(discovered.capabilities, TASKS) else frozenset()
        return Wanted(tools, prompts, resources, uris, tasks)

    def _granted(self) -> Granted:
        """Return what our own stream tells of. What is not worth asking for counts as asked in vain."""
        wish, wanted = self._wish(), self._all
        if self._unsupported or self._turned_away:
            return Granted(self._state, wanted | wish)
        stream = self._stream
        if stream is None or stream.ended:
            return Granted(self._state, wanted - wish)
        return Granted("following", stream.asked | wanted - wish, stream.honoured, self.run)

    def _shared(self) -> None:
        """Take in what other replicas want, or say of the stream that one of them holds."""
        granted = self._share.granted
        before, self._elsewhere = self._elsewhere, granted
        if granted is not None and granted != before:
            if granted.state != "connecting":
                self._tried.set()
            if granted.state == "following":
                if granted.run != self.run:
                    self._heard_before |= (self._heard_of or frozenset()) & self._uris.keys()
                    self.run = granted.run
                self._heard_of, self._accepted = granted.honoured.uris, True
            if granted.state == "refused" and self._accepted:
                self._accepted = False
                self._ears.refused(self)
        self._count_left_out()
        self._found_out()
        self._stir.set()

    # The stream

    async def _follow(self) -> None:
        exchange.detach()
        await self._pool.tried(self.at.upstream, _A_DAY)
        self._found_out()
        while self.wanted:
            try:
                async with self._share.turn() as self._handed_over:
                    await self._hold()
            finally:
                self._hang_up()
            if self._out_of_reach:
                await self._pause()
        self._share.close()
        self._ears.idle(self)

    async def _hold(self) -> None:
        """Keep the stream in step with what is wanted, until nothing is any more, or none is to be had."""
        self._out_of_reach = False
        while True:
            self._stir.clear()
            stream = self._stream
            if stream is not None and stream.ended:
                await self._lost(stream)
                continue
            wish = self._wish()
            if not self.wanted or (stream is not None and not wish - stream.asked and wish != stream.asked):
                # Who leaves may come back at once, and a stream that says too much hurts nobody.
                # Nor is it asked again any sooner for that.
                linger = self._settings.debounce * _LINGER
                if self._resting:
                    linger = max(linger, self._again - _now())
                if await happens(self._stir, linger):
                    continue
                if not self.wanted:
                    return
            elif not wish or wish == self._asked or self._resting:
                self._tried.set()
                await self._rest()
                continue
            elif stream is not None:
                debounce = 0.0 if self._sieve.searching else self._settings.debounce
                await asyncio.sleep(max(debounce, self._sieve.wait(_now())))
                if stream.ended:
                    continue
            wish = self._wish()
            if not wish:
                self._drop()
            elif not await self._open(self._sieve.trial(wish, self._asked)):
                self._failures += 1
                self._tried.set()
                if self._out_of_reach and self._stream is None:
                    return  # another replica may get through to it
                await self._pause()

    @property
    def _resting(self) -> bool:
        """Whether the upstream said no to all of it, so lately that it is not asked again."""
        return (self._unsupported or self._turned_away) and _now() < self._again

    async def _rest(self) -> None:
        """Wait for something else to be wanted, or for another attempt to be worth it."""
        until = self._again if self._resting else self._sieve.next_fit(self._declared(), _now())
        await happens(self._stir, None if until is None else max(0.0, until - _now()))

    @property
    def _asked(self) -> Wanted | None:
        return None if self._stream is None else self._stream.asked

    async def _lost(self, stream: "_Stream") -> None:
        """Wait before another attempt: the longer, the more streams in a row did not last."""
        self._stream = None
        self._failures = 1 if stream.lasted >= self._settings.stable else self._failures + 1
        log.info("upstream %s: its notification stream ended after %.1fs", self.at.upstream, stream.lasted)
        self._found_out()
        await self._pause()

    async def _pause(self) -> None:
        """Wait after a failure, but for no longer than there is a stream, or a wish for what was refused."""
        until = _now() + self._pace.pause(self._failures, self._random())
        while (left := until - _now()) > 0 and not self._woken.is_set():
            self._stir.clear()
            if (self._stream is not None and self._stream.ended) or self._given_up():
                return
            await happens(self._stir, left)

    def _given_up(self) -> bool:
        """Whether all that was refused is not wanted any more, but something else is."""
        blamed, wish = self._blamed, self._wish()
        return bool(blamed and wish) and not blamed & wish and self._sieve.affords(_now())

    async def _open(self, trial: Wanted) -> bool:
        """Open a stream that asks for this and let go of the one before; whether to go on at once."""
        stream = _Stream(self.at.upstream, trial, self._stir)
        before, self._blamed = self._stream, Wanted()
        self._woken.clear()
        try:
            await stream.open(
                lambda: self._read(stream),
                self._background,
                f"listen to {self.at.upstream}",
                instead_of=before,
            )
        except Challenge:
            self._turn_away()
            return True
        except McpError as error:
            return self._declined(error, trial)
        except UpstreamUnavailable as error:
            log.debug("upstream %s: no notification stream: %s", self.at.upstream, error)
            if error.reason in _ABOUT_THE_WISH:
                slow = error.reason is Reason.TIMEOUT
                if self._sieve.refused(trial, self._asked, _now(), certain=False, slow=slow):
                    self._found_out()
                    return True
                self._blamed = trial.names
            self._out_of_reach = True
            return False
        if stream.superseded:
            return True
        if before is not None and not before.ended and self._wish() & before.asked - stream.asked:
            stream.close()  # somebody was promised meanwhile what only the one before tells of
            return True
        self._accepted, self._out_of_reach = True, False
        self._unsupported = self._turned_away = False
        self._sieve.took(trial)
        self._stream = stream
        if before is not None:
            if before.lasted >= self._settings.stable:
                self._failures = 0
            before.close()
        if before is None or before.ended:
            self._owed |= self._heard_of or frozenset()
            self.run = os.urandom(8)
            self._resumed()
            self._owed -= stream.honoured.uris
        elif restored := self._owed & stream.honoured.uris:
            self._owed -= restored
            self._ears.restored(self, restored)
        self._owed &= self._all.uris
        self._heard_of = stream.honoured.uris
        self._found_out()
        return True

    def _turn_away(self) -> None:
        """Take in that the credential is refused: who was promised anything is let go, once (L-11)."""
        accepted, self._accepted = self._accepted, False
        self._turned_away = True
        self._failures += 1
        self._again = _now() + self._pace.pause(self._failures, self._random())
        self._found_out()
        if accepted:
            self._ears.refused(self)

    def _declined(self, error: McpError, trial: Wanted) -> bool:
        """Take an upstream's no for what it is; whether there is anything to be done at once."""
        unknown = error.code == METHOD_NOT_FOUND and self._stream is None
        if self._refusal != error.code:  # once, however often it is asked
            self._refusal = error.code
            level = logging.INFO if unknown else logging.WARNING
            log.log(
                level, "upstream %s refuses to be listened to: %s", self.at.upstream, self._excerpt(error)
            )
        if unknown:
            if not self._unsupported and self._heard_of is not None:  # it did before it was restarted
                self._resumed()
                self._heard_of = None
            self._unsupported = True
            self._again = _now() + spread(self._pace.longest, self._random())
            self._found_out()
            return True
        if not self._sieve.refused(trial, self._asked, _now(), certain=True, slow=False):
            return False
        self._found_out()
        return True

    def _excerpt(self, error: McpError) -> str:
        """Return the start of what an upstream wrote, on one line and without the caller's credential."""
        words = " ".join(error.message[:_EXCERPT].split())
        secret = self.principal.authorization or ""
        secrets = {part for part in (secret, secret.rpartition(" ")[2]) if part}
        text = "".join(char if char.isprintable() else "?" for char in redact(words, secrets))
        return f"error {error.code}: {text[:200]}"

    def _resumed(self) -> None:
        if self._heard_of is not None:
            self._metrics.listen_gap(self.at.upstream)
        self._ears.resumed(self, self._heard_of, self._handed_over)

    async def _read(self, stream: "_Stream") -> None:
        listen = self._pool.listen(
            self.at.upstream,
            stream.asked,
            capabilities=needed(TASKS) if stream.asked.tasks else b"{}",
            authorization=self.principal.authorization if self.at.context is not None else None,
            context=Context(self.at.context or ""),
        )
        async with listen as listening:
            stream.acknowledged(listening.honoured)
            async for notice in listening:
                self._ears.heard(self.at, notice, stream.asked)

    def _drop(self) -> None:
        if self._stream is not None:
            self._hang_up()
            self._heard_of = frozenset()

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _found_out(self) -> None:
        self._share.grant(self._granted())
        self._settled.set()
        self._settled = asyncio.Event()
        if withdrawn := self.withdrawn:
            self._ears.withdrawn(self, withdrawn)


class _Stream:
    """One listen under way, in a task of its own."""

    def __init__(self, upstream: UpstreamName, asked: Wanted, stir: asyncio.Event) -> None:
        """`stir` is set when it ends."""
        self._upstream = upstream
        self.asked = asked
        self.honoured = Wanted()
        self.ended = False
        self.superseded = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stir = stir
        self._since: float | None = None
        self._until: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(
        self,
        reading: Callable[[], Awaitable[None]],
        background: Background,
        name: str,
        *,
        instead_of: "_Stream | None" = None,
    ) -> None:
        """Run `reading`, which calls `acknowledged`; raises what it raised before that.

        Should the stream end that it is to take the place of, this one is `superseded` instead: what was
        heard of before is more urgent than what is new.
        """
        self._task = background.start(self._run(reading), name=name)
        # Work that is cancelled before its first step never gets to its own `finally`.
        self._task.add_done_callback(self._end)
        try:
            if instead_of is not None:
                await asyncio.wait({self._opened, instead_of.over}, return_when=asyncio.FIRST_COMPLETED)
                if not self._opened.done():
                    self.superseded = True
                    self.close()
                    return
            await self._opened
        except BaseException:
            self.close()
            raise

    @property
    def lasted(self) -> float:
        """For how many seconds it is open, or was."""
        if self._since is None:
            return 0.0
        return (self._until or asyncio.get_running_loop().time()) - self._since

    def acknowledged(self, honoured: Wanted) -> None:
        self.honoured = honoured
        self._since = asyncio.get_running_loop().time()
        if not self._opened.done():
            self._opened.set_result(None)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, reading: Callable[[], Awaitable[None]]) -> None:
        try:
            await reading()
        except (Challenge, McpError, UpstreamUnavailable) as error:
            if self._opened.done():
                log.debug("upstream %s: the notification stream was lost: %s", self._upstream, error)
            else:
                self._opened.set_exception(error)
        except Exception as error:
            if not self._opened.done():
                unavailable = UpstreamUnavailable(self._upstream, Reason.PROTOCOL, type(error).__name__)
                self._opened.set_exception(unavailable)
            raise  # a bug of ours, for the log

    def _end(self, task: "asyncio.Task[None]") -> None:
        self.ended = True
        self._until = asyncio.get_running_loop().time()
        if not self._opened.done():
            self._opened.cancel()
        if not self.over.done():
            self.over.set_result(None)
        self._stir.set()


def _take(counted: Counter[N], names: Iterable[N]) -> None:
    for name in names:
        counted[name] -= 1
        if counted[name] <= 0:
            del counted[name]


def _now() -> float:
    return asyncio.get_running_loop().time()
