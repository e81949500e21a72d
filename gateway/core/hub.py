"""Between the upstreams' notification streams and the clients': one comes in, any number go out.

For every change the order is the same (L-17): first what is cached of it is dropped, on every replica, and
only then is anybody told, or the woken client would be given the old list again. A client's stream is told
through a set of what it does not know yet; nothing here waits for a client.
"""

import asyncio
import logging
import random as chance
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import assert_never

from gateway.cache.policy import ancestors
from gateway.config import Config
from gateway.core.access import Sight
from gateway.core.audience import (
    KIND_OF,
    KINDS,
    LISTS_OF,
    UPDATED,
    Audience,
    Followed,
    Place,
    Tracked,
)
from gateway.core.capabilities import Profile, needed
from gateway.core.catalogue import Caller, Catalogue
from gateway.core.federation import namespaces
from gateway.core.follower import Ears, Follower
from gateway.core.following import TASK, Alone, Aside, Digests, Following, Found, Gap, Looking, Lost, Said
from gateway.core.lane import Lane
from gateway.core.lastseen import Findings
from gateway.core.refresher import Refresher
from gateway.core.router import uri_problem
from gateway.core.shown import Shown, Stale
from gateway.core.subscription import Round, Subscription
from gateway.core.tasklooks import TaskLooks
from gateway.core.turning import Crier, Door, Listener, Turn, end_of, moved, offered
from gateway.protocol.call import (
    Challenge,
    Change,
    Notice,
    Partition,
    Principal,
    Request,
    Sink,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import Json, Malformed, McpError, encode, split, text_or_none
from gateway.protocol.methods import TASKS
from gateway.protocol.subscriptions import Wanted
from gateway.support.bus import Bus
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.pool import UpstreamPool

log = logging.getLogger(__name__)

_NOTHING = Wanted()
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MOST_LACKING = 10_000
_MOST_PROFILES = 8
"""More ways than this in which clients see one list are not looked at anew; all are told instead."""

_CHANGED: Mapping[str, str] = {f"notifications/{kind}/list_changed": LISTS_OF[kind][0] for kind in KINDS}


@dataclass(slots=True)
class _Lacking:
    """Who was given a list without an upstream's share, and how it would have been asked."""

    caller: Caller
    partitions: dict[Partition | None, None] = field(default_factory=dict)


class Hub:
    """Serves all endpoints, and goes on from one configuration to the next. Each endpoint has to `join`."""

    def __init__(
        self,
        config: Config,
        *,
        pool: UpstreamPool,
        catalogue: Catalogue,
        background: Background,
        metrics: Metrics,
        stopping: asyncio.Event,
        following: Following | None = None,
        shown: Shown | None = None,
        bus: Bus | None = None,
        random: Callable[[], float] = chance.random,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._background = background
        self._metrics = metrics
        self._stopping = stopping
        self._following = following or Alone()
        self._shown = shown
        self._random = random
        self._wall_clock = wall_clock
        self._doors: dict[str, Door] = {}
        self._who: dict[Subscription, tuple[Principal, Wanted]] = {}
        """Who listens, and which lists he wanted to hear of."""
        self._started = False
        self._configure(config, pool, catalogue)
        self._audience = Audience(
            self._served,
            namespaces(config),
            self._forwarding,
            subresources=self._settings.subresources,
            show=self._show,
        )
        self._crier = Crier(self._audience, background, bus)
        self._followers: dict[Followed, Follower] = {}
        self._claims: dict[Subscription, list[tuple[Follower, Wanted]]] = {}
        self._joining: set[Subscription] = set()
        """The streams that have not been promised anything yet."""
        self._expiries: dict[Subscription, asyncio.TimerHandle] = {}
        self._lanes: dict[Followed, Lane] = {}
        self._refresher = Refresher(self._refresh, pause=self._settings.gather, background=background)
        self._looks = TaskLooks(self._look_at_task, self._audience.tasks_of, background=background)
        self._lacking: dict[tuple[UpstreamName, str], _Lacking] = {}
        self._ears = Ears(
            self._heard,
            self._resumed,
            self._refused,
            self._idle,
            self._missed,
            self._withdrawn,
            self._restored,
        )
        self._findings = Findings()
        self._resuming: set[asyncio.Task[None]] = set()
        self._following.hear(self._relayed)
        self._round = Round(metrics.notices("delivered"))
        catalogue.seen.heeded = self._followers
        if shown is not None:
            catalogue.seen.on_news = shown.note

    def _configure(self, config: Config, pool: UpstreamPool, catalogue: Catalogue) -> None:
        self._config = config
        self._settings = config.subscriptions
        self._pool = pool
        self._catalogue = catalogue
        names = [UpstreamName(name) for name in config.upstreams]
        self._forwarding = frozenset(n for n in names if config.upstreams[n].auth.personal)
        self._served = {path: tuple(map(UpstreamName, config.behind(path))) for path in config.endpoints}
        catalogue.on_found = self._found
        catalogue.on_asking = self._asking

    def __repr__(self) -> str:
        followers = " | ".join(map(repr, self._followers.values()))
        lanes = " ".join(map(repr, self._lanes.values()))
        return f"<Hub {self._audience!r} [{followers}] {self._refresher!r} {self._looks!r} {lanes}>"

    def __len__(self) -> int:
        return len(self._audience)

    def join(self, endpoint: str, door: Door) -> None:
        """Let an endpoint know whose the URIs are that its clients are shown here (F-11)."""
        self._doors[endpoint] = door

    def door(self, endpoint: str) -> Door | None:
        """Return behind what an endpoint is served now, None where there is none any more."""
        return self._doors.get(endpoint)

    def start(self) -> None:
        """Begin to follow the upstreams whose lists are cached; does not wait for any of them."""
        self._started = True
        self._background.start(self._end_when_stopping(), name="end subscriptions")
        for name in self._config.upstreams:
            self._begin(UpstreamName(name))

    def _begin(self, name: UpstreamName) -> None:
        if self._started and name not in self._forwarding:
            self._follower(Followed(name, None), Principal()).start()

    def stop(self) -> None:
        """Follow nobody any more."""
        self._started = False
        for follower in self._followers.values():
            follower.stop()

    def state(self, name: UpstreamName) -> str:
        """Return what became of the stream that an upstream is followed by, for the status."""
        followers = [follower for at, follower in self._followers.items() if at.upstream == name]
        states = [follower.state for follower in followers]
        return "following" if "following" in states else next(iter(states), "idle")

    async def settled(self) -> None:
        """Return once it is known of every upstream that answers whether it can be followed."""
        for follower in list(self._followers.values()):
            await follower.settled()
        for resuming in list(self._resuming):
            await asyncio.wait([resuming])

    # Clients

    async def subscribe(
        self,
        id: Json,
        endpoint: str,
        principal: Principal,
        wanted: Wanted,
        places: Mapping[str, Place],
        tasks: Mapping[str, Tracked],
        *,
        deadline: float,
        extensions: frozenset[str] = frozenset(),
        sight: Sight | None = None,
        asked: Wanted = _NOTHING,
    ) -> Subscription:
        """Return a stream that hears of what its `wanted` says, no more and no less (L-07); `leave` follows.

        `asked` are the lists that its client asked for, all of which it may be promised one day. `places`
        and `tasks` say where what it names leads; an upstream that has not granted it by the deadline, in the
        loop's time, is not waited for. URIs in `wanted` itself are promised, and nothing is told of them.
        Changes from now on are pending when this returns.
        """
        room = self._settings.pending
        stream = Subscription(
            id,
            endpoint,
            principal.partition,
            wanted,
            extensions,
            room=room,
            who=principal.who,
            sight=sight,
        )
        self._audience.add(stream, places, tasks)
        self._who[stream] = principal, asked.lists
        self._metrics.subscriptions(len(self._audience))
        self._joining.add(stream)
        try:
            if places or tasks or self._forwarding:
                claims = self._claim(stream, principal, [*places.values(), *tasks.values()])
                self._keep(stream, places, tasks, await self._granted(claims, deadline))
        except BaseException:
            self.leave(stream)
            raise
        finally:
            self._joining.discard(stream)
        for follower, wanted in self._claims.get(stream, ()):
            if follower.withdrawn & wanted:
                stream.end("withdrawn")
        self._watch_end(stream, principal)
        for (name, method), lacking in self._lacking.items():
            self._look_again(name, method, lacking.caller)
        return stream

    def _keep(
        self,
        stream: Subscription,
        places: Mapping[str, Place],
        tasks: Mapping[str, Tracked],
        granted: Mapping[Followed, Wanted],
    ) -> None:
        """Take back what was wanted for a stream and is not promised to it."""
        kept = {uri: at for uri, at in places.items() if at.uri in granted.get(at.at, _NOTHING).uris}
        kept_tasks = {id: at for id, at in tasks.items() if at.id in granted.get(at.at, _NOTHING).tasks}
        stream.narrow(
            uris=stream.wanted.uris | kept.keys(),
            tasks=frozenset(kept_tasks),
            without=[(UPDATED, uri) for uri in places.keys() - kept.keys()],
        )
        if len(kept) + len(kept_tasks) == len(places) + len(tasks):
            return
        self._audience.narrow(stream, kept, kept_tasks)
        claims = self._claims.pop(stream, ())
        self._claims[stream] = []
        for follower, wanted in claims:
            given = granted.get(follower.at, _NOTHING)
            vain = Wanted(uris=wanted.uris - given.uris, tasks=wanted.tasks - given.tasks)
            follower.unwant(vain)
            self._claims[stream].append((follower, wanted - vain))

    async def relay(self, stream: Subscription, sink: Sink) -> None:
        """Tell what happens until the stream is to end."""
        await stream.relay(sink, self._round)

    def leave(self, stream: Subscription) -> None:
        """Forget a stream and what was followed for it alone."""
        self._audience.remove(stream)
        del self._who[stream]
        for follower, wanted in self._claims.pop(stream, ()):
            follower.unwant(wanted)
        expiry = self._expiries.pop(stream, None)
        if expiry is not None:
            expiry.cancel()
        self._metrics.subscriptions(len(self._audience))
        self._metrics.subscription_ended(stream.ended or "left")

    def _claim(
        self, stream: Subscription, principal: Principal, named: Iterable[Place | Tracked]
    ) -> list[tuple[Follower, Wanted]]:
        """Have the upstreams followed that this stream needs to hear of."""
        needs: dict[Followed, Wanted] = {}
        lists, sight = stream.wanted.lists, stream.sight
        for name in self._served.get(stream.endpoint, ()):
            if name in self._forwarding and lists and (sight is None or sight.reaches(name)):
                needs[Followed(name, principal.partition)] = lists
        for one in named:
            tasks = frozenset({one.id} if isinstance(one, Tracked) else ())
            uris = frozenset({one.uri} if isinstance(one, Place) else ())
            needs[one.at] = needs.get(one.at, _NOTHING) | Wanted(uris=uris, tasks=tasks)
        claims = [(self._follower(at, principal), wanted) for at, wanted in needs.items()]
        if claims:
            self._claims[stream] = claims
        for follower, wanted in claims:
            follower.want(wanted)
        return claims

    async def _granted(
        self, claims: Iterable[tuple[Follower, Wanted]], deadline: float
    ) -> dict[Followed, Wanted]:
        """Return what the upstreams tell of, as far as they have said so by the deadline."""
        granted: dict[Followed, Wanted] = {}

        async def ask(follower: Follower, wanted: Wanted) -> None:
            granted[follower.at] = await follower.honours(wanted)

        asked = [ask(follower, wanted) for follower, wanted in claims if wanted.uris or wanted.tasks]
        if asked:
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.gather(*asked)
            except TimeoutError:
                pass  # what has not been granted yet is not promised
        return granted

    def _watch_end(self, stream: Subscription, principal: Principal) -> None:
        if self._stopping.is_set():
            stream.end("stopping")
        elif principal.expires is not None:
            left = max(0.0, principal.expires - self._wall_clock())
            self._expiries[stream] = asyncio.get_running_loop().call_later(left, stream.end, "expired")

    async def _end_when_stopping(self) -> None:
        await self._stopping.wait()
        for stream in self._audience:
            stream.end("stopping")

    # Another configuration

    def adopt(
        self,
        config: Config,
        pool: UpstreamPool,
        catalogue: Catalogue,
        doors: Mapping[str, Door],
        turn: Turn,
    ) -> None:
        """Go on by another configuration, with everybody who listens; nothing here waits.

        Who was promised something that is not to be had any more is let go, and hears the truth when he
        listens anew. Of all else that is shown otherwise the others are told.
        """
        before, had = (
            self._served,
            {UpstreamName(n): offered(self._pool, UpstreamName(n)) for n in self._config.upstreams},
        )
        self._configure(config, pool, catalogue)
        served, move = self._served, moved(before, self._served)
        self._doors = dict(doors)
        for path, name in move.lost:
            for kind in had[name]:
                self._crier.tell(path, kind, name)
        for stream in self._audience:
            self._reconsider(stream, turn, gains=stream.endpoint in move.gaining)
        self._audience.adopt(
            served, namespaces(config), self._forwarding, subresources=self._settings.subresources
        )
        for name in turn.gone:
            self._forget(name, entirely=name not in config.upstreams)
        for follower in self._followers.values():
            follower.adopt(pool, self._settings)
        for stream in self._audience:
            if stream.ended is None:
                self._follow_for(stream)
        for named in config.upstreams:
            self._begin(UpstreamName(named))
        for path, kinds in turn.otherwise.items():
            for kind in kinds if path in served else ():
                self._crier.tell(path, kind, None)
        for name in turn.come | {name for _, name in move.gained}:
            paths = move.to(name)
            self._crier.welcome(
                name,
                pool,
                paths,
                instead_of=had.get(name, frozenset()) if name in turn.gone else None,
                elsewhere=partial(self._served_elsewhere, name, paths),
                compare=partial(self._compare, name),
            )

    def _reconsider(self, stream: Subscription, turn: Turn, *, gains: bool) -> None:
        """Let a stream go that cannot be kept as it is; what it was promised is as configured before."""
        principal, asked = self._who[stream]
        door = self._doors.get(stream.endpoint)
        named = frozenset(self._audience.named(stream))
        listener = Listener(principal, asked, stream.wanted, named)
        served = None if door is None else self._served.get(stream.endpoint, ())
        why = end_of(listener, turn, served, gains=gains)
        if why is not None:
            stream.end(why)
        elif door is not None:
            stream.sight = door.sight(principal)

    def _served_elsewhere(self, name: UpstreamName, paths: Collection[str]) -> list[str]:
        return [path for path, names in self._served.items() if name in names and path not in paths]

    def _compare(self, name: UpstreamName) -> None:
        """Look at the lists of an upstream that has taken another one's place."""
        for at in {at for at in self._followers if at.upstream == name} | {Followed(name, None)}:
            self._refresher.want(at, KIND_OF, owed=True, urgent=True)

    def _forget(self, name: UpstreamName, *, entirely: bool) -> None:
        """Follow an upstream no more that is gone; with another one in its place its lists are compared."""
        for at in [at for at in self._followers if at.upstream == name]:
            self._followers.pop(at).retire()
        for stream, claims in self._claims.items():
            self._claims[stream] = [pair for pair in claims if pair[0].at.upstream != name]
        self._crier.forget(name)
        if entirely:
            self._catalogue.seen.forget(name)
            for key in [key for key in self._lacking if key[0] == name]:
                del self._lacking[key]

    def _follow_for(self, stream: Subscription) -> None:
        """Have the upstreams followed that see this caller's credential, and are there only now."""
        lists, sight = stream.wanted.lists, stream.sight
        if not (lists and self._forwarding):
            return
        claims = self._claims.setdefault(stream, [])
        known = {follower.at for follower, wanted in claims if wanted.lists}
        principal, _ = self._who[stream]
        for name in self._served[stream.endpoint]:
            at = Followed(name, principal.partition)
            if name in self._forwarding and at not in known and (sight is None or sight.reaches(name)):
                follower = self._follower(at, principal)
                claims.append((follower, lists))
                follower.want(lists)

    # Changes

    async def changed(self, change: Change) -> None:
        """Take in a change that came another way than on a followed stream: first forget, then tell."""
        if change.cause == "reconnect":
            await self._catalogue.changed(change)
            self._back(change.upstream)
            return
        at = Followed(change.upstream, None)
        stale = await self._stale(at, change)
        await self._catalogue.changed(change)
        self._spread(change)
        self._following.relay(at, Aside(change))
        await self._forget_stale(at, stale)

    def _spread(self, change: Change) -> None:
        if change.partition is not None:
            for kind in KINDS:
                if change.method is None or KIND_OF.get(change.method) == kind:
                    self._audience.list_changed_for(change.upstream, kind, change.partition)
        elif change.upstream not in self._forwarding or change.cause == "purge":
            # What one caller was told by an upstream that knows its callers is for that caller's streams.
            self._tell(change.upstream, change)

    def _back(self, name: UpstreamName) -> None:
        """An upstream answers again that did not: it may be another one now."""
        self._recovered(name, KIND_OF)
        contexts = {at for at in self._followers if at.upstream == name} | {Followed(name, None)}
        for at in contexts:
            if at in self._followers:
                self._followers[at].wake()
            self._refresher.want(at, KIND_OF, owed=True, urgent=True)

    def _heard(self, at: Followed, notice: Notice, asked: Wanted) -> None:
        """Take in what an upstream says on a stream that was asked for this; called by whoever reads it."""
        if notice.method == UPDATED:
            uri = text_or_none(notice.params.get("uri"))
            if uri is not None and uri_problem(uri) is None:  # the longest would be kept for each stream
                # Also by who has left since, or by a client of another replica: it is meant for them.
                meant = not asked.uris.isdisjoint((uri, *ancestors(uri)))
                if meant or _SCHEME.match(uri):  # what is no URI can only be one that was listed so
                    self._lane(at).add(Change(at.upstream, "resources/read", uri, "updated", asked=meant))
                    return
        elif notice.method == TASK:
            self._following.relay(at, notice)
            if self._task(at, notice):
                return
        elif notice.method in _CHANGED:
            self._lane(at).add(Change(at.upstream, _CHANGED[notice.method]))
            return
        else:
            self._following.relay(at, notice)
            if self._foreign(at, notice):
                return
        self._metrics.dropped(at.upstream, "notification")

    def _foreign(self, at: Followed, notice: Notice) -> bool:
        hearing, lost = self._audience.foreign(at, notice)
        self._metrics.notices("dropped")[0] += lost
        return bool(hearing)

    def _task(self, at: Followed, notice: Notice) -> bool:
        id = text_or_none(notice.params.get("taskId"))
        return id is not None and self._audience.task(at, id, notice)

    def _found(self, at: Followed, method: str) -> None:
        """Take in that a list is another one than when it was last fetched."""
        log.info("upstream %s: %s changed without a word", at.upstream, method)
        change = self._unsaid(at, method)
        self._findings.note(at, change.method, self._digests(at, change))
        self._lane(at).add(change)

    async def _asking(self, at: Followed, method: str) -> None:
        """Let the other replicas know that an upstream is asked which cries change when it is (B45).

        Whoever hears it has the word of the change after this one: this was said before, and a change is told
        when every replica has confirmed to have forgotten.
        """
        known = self._config.upstreams.get(at.upstream)
        if known is not None and self._catalogue.seen.suspects(at.upstream, method):
            await self._following.warn(at, Looking(method, known.list_timeout))

    def _digests(self, at: Followed, change: Change) -> Digests:
        return self._catalogue.seen.digests(at, LISTS_OF[KIND_OF[change.method or ""]])

    def _unsaid(self, at: Followed, method: str) -> Change:
        """Return the change of a list that its upstream did not speak of; it is about one context only."""
        return Change(at.upstream, LISTS_OF[KIND_OF[method]][0], cause="catalogue", partition=at.context)

    def _lane(self, at: Followed) -> Lane:
        lane = self._lanes.get(at)
        if lane is None:
            lane = self._lanes[at] = Lane(
                lambda change: self._settle(at, change),
                lambda: self._forget_lane(at),
                gather=self._settings.gather,
                background=self._background,
            )
        return lane

    def _forget_lane(self, at: Followed) -> None:
        del self._lanes[at]

    async def _settle(self, at: Followed, change: Change) -> None:
        stale = await self._stale(at, change)
        await self._catalogue.changed(change)
        announced = self._tell(at, change)
        if change.cause != "catalogue":
            self._findings.forget(at, change.method)
            self._following.relay(at, change)
        elif self._findings.noted(at, change.method):
            digests = self._digests(at, change)
            self._findings.note(at, change.method, digests)
            self._following.relay(at, Found(change, digests))
        if announced:
            await self._forget_stale(at, stale, found=change.cause == "catalogue")

    async def _stale(self, at: Followed, change: Change) -> Stale:
        """Return what the clients of all replicas were given before a change."""
        kinds = [kind for kind in KINDS if change.method is None or KIND_OF.get(change.method) == kind]
        if self._shown is None or not kinds or change.partition not in (None, at.context):
            return {}
        return await self._shown.stale(at, [method for kind in kinds for method in LISTS_OF[kind]])

    async def _forget_stale(self, at: Followed, stale: Stale, *, found: bool = False) -> None:
        """Take it out once clients were told; what was found may be known already as it is now."""
        if self._shown is not None and stale:
            await self._shown.told(at, stale, self._catalogue.seen.digests(at, stale) if found else {})

    def _relayed(self, at: Followed, said: Said) -> None:
        """Take in what another replica says, after every cache has forgotten it."""
        match said:
            case Change():
                self._findings.forget(at, said.method)
                self._tell(at, said)
            case Aside(change):
                self._spread(change)
            case Found(change, digests):
                if not self._findings.known(at, change.method, digests):
                    self._findings.note(at, change.method, digests)
                    self._tell(at, change)
            case Notice(method):
                if method == TASK:
                    self._task(at, said)
                else:
                    self._foreign(at, said)
            case Lost(method):
                if method == TASK:
                    self._looks.want(at)
                else:
                    self._metrics.notices("dropped")[0] += 1
            case Gap(run):
                follower = self._followers.get(at)
                missed = follower.missed_before(run) if follower is not None else ()
                self._look_back(at, missed, urgent=True)
                self._looks.want(at)
            case Looking(method, lasts):
                self._catalogue.seen.looked(at.upstream, method, time.monotonic() + lasts)
            case _:
                assert_never(said)

    def _tell(self, at: Followed | UpstreamName, change: Change) -> bool:
        """Tell the clients of a change, unless it may be none: then its list is looked at first.

        Whether they were told.
        """
        kind = KIND_OF.get(change.method or "")
        if kind is None:
            self._announce(at, change)
            return True
        followed = at if isinstance(at, Followed) else Followed(at, None)
        since = time.monotonic() - 2 * self._settings.gather
        doubtful = [
            method
            for method in LISTS_OF[kind]
            if change.cause == "list_changed" and self._catalogue.seen.doubts(followed, method, since=since)
        ]
        if doubtful:
            self._refresher.want(followed, doubtful, owed=True)
        else:
            self._announce(at, change)
        return not doubtful

    def _announce(self, at: Followed | UpstreamName, change: Change) -> None:
        told = [(0, 0)]
        for kind in KINDS:
            if change.method is None or KIND_OF.get(change.method) == kind:
                for method in LISTS_OF[kind]:
                    self._catalogue.seen.tell(at, method)
                told.append(self._audience.list_changed(at, kind))
        if change.method in (None, "resources/read"):
            if change.uri is None:
                told.append(self._audience.all_updated(at))
            else:
                told.append(self._audience.updated(at, change.uri, asked=change.asked))
        self._metrics.notices("coalesced")[0] += sum(known for _, known in told)

    # Gaps

    def _resumed(self, follower: Follower, missed: frozenset[str] | None, handed_over: bool) -> None:
        """Take in that an upstream's stream is there (again): what happened before is not known."""
        name = follower.at.upstream
        if missed is None and handed_over and name not in self._catalogue.asked:
            return  # nothing was cached that could be outdated
        resuming = self._background.start(
            self._resume(follower.at, missed, Gap(follower.run)), name=f"resume {name}"
        )
        self._resuming.add(resuming)
        resuming.add_done_callback(self._resuming.discard)

    async def _resume(self, at: Followed, missed: frozenset[str] | None, gap: Gap) -> None:
        # A caller's first stream says nothing about what is cached for others.
        whose = at.context if missed is None else None
        await self._catalogue.changed(Change(at.upstream, cause="reconnect", partition=whose))
        self._look_back(at, missed or (), urgent=True)
        self._following.relay(at, gap)
        if missed is not None:
            self._looks.want(at)

    def _missed(self, follower: Follower) -> None:
        """Take in that another replica may have said something unheard; the caches know what they missed."""
        self._catalogue.seen.say_again(follower.at)  # Redis may have lost it
        self._look_back(follower.at, follower.heard_elsewhere, urgent=False)
        self._looks.want(follower.at)

    def _look_back(self, at: Followed, uris: Iterable[str], *, urgent: bool) -> None:
        """Find out what may have changed unheard, and tell of the resources, which nobody can compare."""
        self._recovered(at.upstream, KIND_OF)
        self._refresher.want(at, KIND_OF, owed=True, urgent=urgent)
        for uri in uris:
            self._announce(at, Change(at.upstream, "resources/read", uri, "reconnect", asked=True))

    async def _look_at_task(self, at: Followed, id: str) -> None:
        """Tell how a task is of which something may have been missed; a notice has to say all of it."""
        principal = self._principal(at)
        if principal is None or at.upstream not in self._config.upstreams:
            return
        notices = self._audience.notices_of(at, id)
        asked = Request(
            "tasks/get",
            {"taskId": encode(id)},
            capabilities=needed(TASKS),
            authorization=self._catalogue.forwarded(at.upstream, principal),
            context=self._catalogue.context(principal),
        )
        try:
            async with asyncio.timeout(self._config.upstreams[at.upstream].list_timeout):
                members = split((await self._pool.call(at.upstream, asked)).result)
        except (UpstreamUnavailable, McpError, Challenge, Malformed, TimeoutError) as error:
            log.debug("upstream %s: a task could not be looked at: %s", at.upstream, error)
            return
        params = {key: raw for key, raw in members.items() if key not in ("resultType", "_meta")}
        self._audience.looked(at, id, Notice(TASK, params), notices=notices)

    async def _refresh(self, at: Followed, methods: Mapping[str, bool]) -> None:
        """Fetch the lists that clients have seen; the catalogue says which of them are other ones now.

        What could not be fetched may be another one, too: where so asked, clients are told. So they are of a
        list that another replica gave them, where that is another one now or nobody can tell.
        """
        if at.upstream not in self._config.upstreams:
            return
        seen = self._catalogue.seen.profiles(at)
        principal = self._principal(at)
        for method, owed in methods.items():
            profiles = dict.fromkeys(profile for its, profile in seen if its == method)
            given: Collection[tuple[Profile, bytes]] | None = ()
            if owed and self._shown is not None:
                given = await self._shown.given(at, method)
                profiles |= dict.fromkeys(profile for profile, _ in given or ())
            callers = [Caller(principal, profile) for profile in profiles if principal]
            lacking = self._lacking.get((at.upstream, method))
            if lacking is not None and not callers:
                callers = [lacking.caller]
            outcomes = [await self._fetched(at, method, caller) for caller in callers[:_MOST_PROFILES]]
            if callers and all(outcomes):
                self._recovered(at.upstream, [method])
            elif lacking is not None and len(self._audience) and self._pool.available(at.upstream):
                self._refresher.want(at, [method])  # some client still waits to hear that it is whole
            proven = all(outcomes) and len(callers) <= _MOST_PROFILES
            if given is None and self._audience.listens(at, KIND_OF[method]):
                proven = False
            if not owed or not self._pool.available(at.upstream):
                continue  # they are told when it is back
            if not proven:
                self._lane(at).add(self._unsaid(at, method))
            elif self._others_were_given_another(at, method, given or ()):
                self._found(at, method)

    def _others_were_given_another(
        self, at: Followed, method: str, given: Iterable[tuple[Profile, bytes]]
    ) -> bool:
        """Whether what replicas gave is outdated, and clients were not told of just what is there now."""
        change = self._unsaid(at, method)
        now = self._digests(at, change)
        if self._findings.told(at, change.method, now):
            return False
        return any(now.get(f"{method} {profile.digest}".encode()) != digest for profile, digest in given)

    async def _fetched(self, at: Followed, method: str, caller: Caller) -> bool:
        try:
            await self._catalogue.part(at.upstream, method, caller)
        except (UpstreamUnavailable, McpError, Challenge) as error:
            log.debug("upstream %s: %s could not be looked at: %s", at.upstream, method, error)
            self._metrics.refreshed(at.upstream, "failed")
            return False
        self._metrics.refreshed(at.upstream, "ok")
        return True

    def _principal(self, at: Followed) -> Principal | None:
        """Return as whom to ask: a caller's credential is at hand for as long as that caller listens."""
        if at in self._followers:
            return self._followers[at].principal
        return Principal() if at.context is None else None

    def lacked(self, name: UpstreamName, method: str, caller: Caller) -> None:
        """Note that a caller was given a list without this upstream's share (L-19)."""
        if name not in self._config.upstreams:
            return  # it is gone, or an upstream of an upstream: that one's own word is waited for
        lacking = self._lacking.setdefault((name, method), _Lacking(caller))
        if len(lacking.partitions) < _MOST_LACKING:
            lacking.partitions[caller.principal.partition] = None
        self._look_again(name, method, caller)

    def _look_again(self, name: UpstreamName, method: str, caller: Caller) -> None:
        """Have an upstream's share looked for that was too slow to come: nothing else tells of that."""
        if len(self._audience) and self._pool.available(name):
            self._refresher.want(self._catalogue.followed(name, caller.principal), [method])

    def whole(self, names: Collection[UpstreamName], method: str) -> None:
        """Note that a list was fetched from these upstreams: others may have been given it without them."""
        if self._lacking:
            for name in names:
                self._recovered(name, [method])

    def _recovered(self, name: UpstreamName, methods: Collection[str]) -> None:
        for method in methods:
            lacking = self._lacking.pop((name, method), None)
            if lacking is None:
                continue
            for partition in lacking.partitions:
                self._audience.list_changed_for(name, KIND_OF[method], partition)

    # Followers

    def _follower(self, at: Followed, principal: Principal) -> Follower:
        follower = self._followers.get(at)
        if follower is None:
            follower = self._followers[at] = Follower(
                at,
                replace(principal, authorization=self._catalogue.forwarded(at.upstream, principal)),
                self._ears,
                self._settings,
                pool=self._pool,
                following=self._following,
                background=self._background,
                metrics=self._metrics,
                random=self._random,
                always=at.context is None and at.upstream not in self._forwarding,
            )
        return follower

    def _idle(self, follower: Follower) -> None:
        if self._followers.get(follower.at) is follower:
            del self._followers[follower.at]

    def _refused(self, follower: Follower) -> None:
        """End the streams of a caller whose credential an upstream does not take any more (L-11)."""
        for stream in list(self._audience.of(follower.at)):
            stream.end("refused")

    def _withdrawn(self, follower: Follower, names: Wanted) -> None:
        """End the streams that were promised what is not told any more: who listens anew hears the truth."""
        for stream, claims in self._claims.items():
            if stream not in self._joining and any(
                claimed is follower and wanted & names for claimed, wanted in claims
            ):
                stream.end("withdrawn")

    def _restored(self, follower: Follower, uris: frozenset[str]) -> None:
        """Tell of resources that were not followed for a while: they may have been updated unseen."""
        for uri in sorted(uris):
            change = Change(follower.at.upstream, "resources/read", uri, "reconnect", asked=True)
            self._lane(follower.at).add(change)

    def _show(self, endpoint: str, partition: Partition | None, uri: str, upstream: UpstreamName) -> None:
        door = self._doors.get(endpoint)
        if door is not None:
            door.show(partition, uri, upstream)
