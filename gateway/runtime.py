"""Builds one immutable Runtime from a Config by plain constructor calls, and the one that comes after it."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict

from pydantic import SecretStr

from gateway.cache.flight import SingleFlight
from gateway.cache.replicated import Replicated, Sharing, replicated
from gateway.cache.responses import ResponseCache
from gateway.cache.stores import MOST_TOPICS, MemoryGenerations, MemoryStore
from gateway.config import (
    VERSION,
    Config,
    Upstream,
    parse_redis_url,
)
from gateway.core.catalogue import Catalogue, rules_of
from gateway.core.federation import Federation
from gateway.core.following import Alone, Following
from gateway.core.hub import Hub
from gateway.core.pipeline import Pipeline
from gateway.core.replicas import Replicas
from gateway.core.shown import Shown
from gateway.front.legacy_sessions import Sessions
from gateway.front.verify import Verifier
from gateway.protocol.call import Change, UpstreamName
from gateway.protocol.jsonrpc import encode
from gateway.reloading import Difference, difference, turn
from gateway.support.bus import Bus, LocalBus
from gateway.support.guests import Guests
from gateway.support.leases import Leases
from gateway.support.mailbox import LocalMailbox, Mailbox
from gateway.support.metrics import Metrics
from gateway.support.notebook import LocalNotebook, Notebook
from gateway.support.rates import LocalRates, Rates, RedisRates
from gateway.support.redis_mailbox import RedisMailbox
from gateway.support.redis_notebook import RedisNotebook
from gateway.support.room import Room
from gateway.support.seal import Seal
from gateway.support.tasks import Background
from gateway.upstream.parked import Parked
from gateway.upstream.pool import Pace, Retired, UpstreamPool

_CLOSING = 2.0
_WRAPPING = 2**20
_NOTES = 8
"""Facts about one session of an older client, of 1 KiB on average, for which a process alone has room."""
_NOTED = 64 * 2**20
_PATIENCE = 1.0
"""Seconds a caller waits for the fetch of another in this process where `cache.coalesce` is off."""


class _Parking(TypedDict):
    """How many calls may wait for their clients' answers, and for how long."""

    most: int
    each: int
    wait: float
    anonymous_wait: float


@dataclass(frozen=True)
class Lasting:
    """What goes on from one configuration to the next, for as long as the process lives."""

    memory: MemoryStore
    parked: Parked
    bus: Bus
    settings: dict[UpstreamName, str]
    """The fingerprints of all upstreams there ever were, as they are or were last."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    pace: Pace | None
    earlier: list[Guests] = field(default_factory=list)
    """Who may still be at work by earlier configurations."""


@dataclass(frozen=True)
class Runtime:
    """Everything one configuration needs; a request reads it once and lives its whole life on it."""

    config: Config
    metrics: Metrics
    background: Background
    stopping: asyncio.Event
    pool: UpstreamPool
    cache: ResponseCache
    catalogue: Catalogue
    hub: Hub
    following: Following
    pipelines: Mapping[str, Pipeline]
    seal: Seal
    notebook: Notebook
    mailbox: Mailbox
    sessions: Sessions
    verifier: Verifier | None
    replicated: Replicated | None
    rates: Rates
    room: Room
    lasting: Lasting
    guests: Guests = field(default_factory=Guests)
    """The requests that work by it."""

    async def start(self, *, follow: bool = True) -> None:
        """Begin to reach the upstreams and the other replicas; does not wait for any of them.

        Who only wants to ask something need not `follow` what the upstreams say of their own accord.
        """
        if self.replicated is not None:
            self.replicated.start()
        self.mailbox.start()
        await self.pool.start()
        if follow:
            self.hub.start()

    async def close(self) -> None:
        """End every connection and task."""
        self.stopping.set()
        self.sessions.close()
        self.hub.stop()
        await self.following.close()
        await self.pool.close()
        await self.mailbox.close()
        if self.verifier is not None:
            await self.verifier.close()
        if self.replicated is not None:
            await self.replicated.close()
        await self.background.close(_CLOSING)


def build(
    config: Config,
    *,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
    pace: Pace | None = None,
    metrics: Metrics | None = None,
) -> Runtime:
    """Return the parts of a gateway, wired, with nothing running; raises ValueError for unusable files.

    It reads files, certificates among them, and is to be done beside a loop that has other work.
    `pace` says how often an upstream that does not answer is tried, `metrics` where it is counted.
    """
    metrics = metrics or Metrics(version=VERSION)
    metrics.config_loaded(1, wall_clock())
    background = Background()
    stopping = asyncio.Event()
    seal = Seal([key.get_secret_value() for key in config.secrets.keys], now=wall_clock)
    memory = MemoryStore(config.cache.memory, clock, linger=config.cache.stale_if_error)
    shared = _shared(config, memory, seal, background, metrics, clock)
    bus = LocalBus() if shared is None else shared.bus
    cache = ResponseCache(
        memory if shared is None else shared.store,
        MemoryGenerations() if shared is None else shared.generations,
        SingleFlight(background),
        metrics,
        clock=clock,
        stale_if_error=config.cache.stale_if_error,
        leads=None if shared is None else shared.leads,
        bounds=_bounds(config, config.cache.coalesce or _PATIENCE),
    )
    notebook, mailbox = _between(config, shared, seal, background, metrics, clock)
    limits = config.limits
    rates = _rates(config, shared, seal, clock)
    room = Room(limits.in_flight, limits.message)
    parked = Parked(mailbox, background, metrics=metrics, **_parking(config))
    settings = dict(fingerprints(config, seal))
    lasting = Lasting(memory, parked, bus, settings, clock, wall_clock, pace)
    pool = _pool(config, lasting, background, metrics, rates, room)
    sessions = Sessions(
        config,
        seal=seal,
        notebook=notebook,
        mailbox=mailbox,
        bus=bus,
        metrics=metrics,
        background=background,
        now=wall_clock,
    )
    parked.on_completed = sessions.completed
    catalogue = Catalogue(config, pool, cache, metrics, _result_keys(config, seal), clock=clock)
    following = _following(config, shared, seal, background, settings)
    hub = Hub(
        config,
        pool=pool,
        catalogue=catalogue,
        background=background,
        metrics=metrics,
        stopping=stopping,
        following=following,
        wall_clock=wall_clock,
        shown=None if shared is None else _shown(shared, notebook, background, settings),
        bus=bus,
    )
    pool.on_change = hub.changed
    pipelines = _pipelines(config, pool, cache, catalogue, hub, seal, metrics, clock)
    for path, pipeline in pipelines.items():
        hub.join(path, pipeline)
    return Runtime(
        config,
        metrics,
        background,
        stopping,
        pool,
        cache,
        catalogue,
        hub,
        following,
        pipelines,
        seal,
        notebook,
        mailbox,
        sessions,
        _verifier(config, seal, background, metrics, lasting),
        shared,
        rates,
        room,
        lasting,
    )


@dataclass(frozen=True)
class Prepared:
    """What of another runtime takes files to be read: upstreams, and issuers of tokens."""

    pool: UpstreamPool
    verifier: Verifier | None


def prepare(before: Runtime, config: Config) -> Prepared:
    """Return what the runtime after this one is made with; raises ValueError for unusable files.

    To be done beside the loop: a certificate takes long to read, and may lie where nobody answers. Nothing is
    changed by it, and nothing that the loop changes meanwhile is looked at.
    """
    lasting, metrics = before.lasting, before.metrics
    pool = _pool(config, lasting, before.background, metrics, before.rates, before.room, before.pool)
    verifier = before.verifier
    if before.config.authentication != config.authentication:
        verifier = _verifier(config, before.seal, before.background, metrics, lasting)
    return Prepared(pool, verifier)


def rebuild(before: Runtime, config: Config, prepared: Prepared) -> Runtime:
    """Return what comes after a runtime, wired with all of it that lasts; nothing is changed by that.

    Settings that wait for a restart have to be as they were.
    """
    lasting, metrics, cache = before.lasting, before.metrics, before.cache
    pool, verifier = prepared.pool, prepared.verifier
    if verifier is not None and before.verifier not in (None, verifier):
        verifier.adopt(before.verifier)
    keys = _result_keys(config, before.seal)
    catalogue = Catalogue(config, pool, cache, metrics, keys, clock=lasting.clock, before=before.catalogue)
    pipelines = _pipelines(config, pool, cache, catalogue, before.hub, before.seal, metrics, lasting.clock)
    return replace(
        before,
        config=config,
        pool=pool,
        catalogue=catalogue,
        pipelines=pipelines,
        verifier=verifier,
        guests=Guests(),
    )


@dataclass(frozen=True)
class Handover:
    """What is left to do after a runtime has taken another one's place."""

    before: Runtime
    after: Runtime
    difference: Difference
    others: frozenset[UpstreamName]
    """Upstreams that are gone, or other ones under the same name."""
    retired: Retired

    async def forget(self) -> None:
        """Let nothing that was kept be served again of upstreams that are configured anew."""
        for name in self.difference.names | self.others:
            await self.after.cache.invalidate(Change(name, cause="settings"))

    async def finish(self, grace: float) -> None:
        """Close what is left once nobody works with it.

        Requests under way by any earlier configuration may finish within the grace.
        """
        before, after = self.before, self.after
        await asyncio.gather(*(guests.gone(grace) for guests in list(after.lasting.earlier)))
        if before.guests in after.lasting.earlier:
            after.lasting.earlier.remove(before.guests)
        for pipeline in before.pipelines.values():
            pipeline.shed()
        await self.retired.close()
        if before.verifier is not None and before.verifier is not after.verifier:
            await before.verifier.close()


def hand_over(before: Runtime, after: Runtime) -> Handover:
    """Let a runtime take another one's place, in one step; `finish` what is returned.

    Whoever listens goes on by the new one, and is told of what is shown otherwise.
    """
    config, lasting = after.config, after.lasting
    changes = difference(before.config, config)
    lasting.earlier.append(before.guests)
    lasting.settings.update(fingerprints(config, after.seal))
    lasting.memory.allow(config.cache.memory, config.cache.stale_if_error)
    lasting.parked.allow(**_parking(config))
    after.room.allow(config.limits.in_flight, config.limits.message)
    if isinstance(after.notebook, LocalNotebook):
        after.notebook.allow(*_noted(config))
    after.cache.allow(
        stale_if_error=config.cache.stale_if_error,
        bounds=_bounds(config, config.cache.coalesce or _PATIENCE),
    )
    meaning = turn(changes, before.config, config, lambda name: after.pool.keeps(name, before.pool))
    before.catalogue.outdated(meaning.gone)
    retired = after.pool.take_over(before.pool)
    for path, pipeline in after.pipelines.items():
        if path in before.pipelines and not (
            changes.rules or path in changes.otherwise or before.config.behind(path) != config.behind(path)
        ):
            pipeline.go_on_from(before.pipelines[path])
    after.sessions.adopt(config, meaning.counts)
    after.hub.adopt(config, after.pool, after.catalogue, after.pipelines, meaning)
    return Handover(before, after, changes, meaning.gone, retired)


def _pool(
    config: Config,
    lasting: Lasting,
    background: Background,
    metrics: Metrics,
    rates: Rates,
    room: Room,
    before: UpstreamPool | None = None,
) -> UpstreamPool:
    return UpstreamPool(
        {UpstreamName(name): upstream for name, upstream in config.upstreams.items()},
        identity=config.identity,
        version=VERSION,
        limits=config.limits,
        background=background,
        metrics=metrics,
        clock=lasting.clock,
        wall_clock=lasting.wall_clock,
        pace=lasting.pace,
        parked=lasting.parked,
        bus=lasting.bus,
        rates=rates,
        room=room,
        before=before,
    )


def _verifier(
    config: Config, seal: Seal, background: Background, metrics: Metrics, lasting: Lasting
) -> Verifier | None:
    if not config.authentication.on:
        return None
    settings, now = config.authentication, lasting.wall_clock
    return Verifier(settings, seal, background, metrics, now, clock=lasting.clock)


def _pipelines(
    config: Config,
    pool: UpstreamPool,
    cache: ResponseCache,
    catalogue: Catalogue,
    hub: Hub,
    seal: Seal,
    metrics: Metrics,
    clock: Callable[[], float],
) -> Mapping[str, Pipeline]:
    server_info = _server_info(config)
    return {
        path: Pipeline(
            Federation(path, config),
            config,
            pool=pool,
            cache=cache,
            catalogue=catalogue,
            hub=hub,
            seal=seal,
            metrics=metrics,
            server_info=server_info,
            clock=clock,
        )
        for path in config.endpoints
    }


def _parking(config: Config) -> _Parking:
    limits = config.limits
    return {
        "most": limits.questions,
        "each": limits.questions_per_caller,
        "wait": limits.input_wait,
        "anonymous_wait": limits.anonymous_input_wait,
    }


def _noted(config: Config) -> tuple[int, int]:
    """Return for how many facts, and bytes of them, a process alone has room."""
    sessions = config.limits.sessions
    return _NOTES * sessions, max(_NOTED, _NOTES * 2**10 * sessions)


def _rates(
    config: Config, shared: Replicated | None, seal: Seal, clock: Callable[[], float]
) -> LocalRates | RedisRates:
    """Return where requests are counted."""
    local = LocalRates(clock)
    if shared is None or config.limits.rates_in == "memory":
        return local
    return RedisRates(shared.redis, seal, prefix=config.cache.redis_prefix, local=local)


def _between(
    config: Config,
    shared: Replicated | None,
    seal: Seal,
    background: Background,
    metrics: Metrics,
    clock: Callable[[], float],
) -> tuple[Notebook, Mailbox]:
    """Return where replicas note what any of them may need, and how they ask one another."""
    if shared is None:
        most, size = _noted(config)
        return LocalNotebook(clock, most=most, bytes=size), LocalMailbox()
    prefix = config.cache.redis_prefix
    mailbox = RedisMailbox(
        shared.redis,
        seal,
        prefix=prefix,
        background=background,
        metrics=metrics,
        # What is carried is a message and what tells where it belongs.
        largest=config.limits.message + _WRAPPING,
    )
    return RedisNotebook(shared.redis, seal, prefix=prefix), mailbox


def _following(
    config: Config,
    shared: Replicated | None,
    seal: Seal,
    background: Background,
    settings: Mapping[UpstreamName, str],
) -> Following:
    """Return how this process shares the streams of upstreams, where there are others to share them with."""
    if shared is None:
        return Alone()
    leases = Leases(shared.redis, shared.bus, seal, background, life=config.subscriptions.lease)
    return Replicas(leases, shared.bus, seal, background, settings=settings, slot=shared.generations.slot)


def _shown(
    shared: Replicated, notebook: Notebook, background: Background, settings: Mapping[UpstreamName, str]
) -> Shown:
    return Shown(notebook, background, settings, hears=lambda: shared.bus.hears)


def _shared(
    config: Config,
    memory: MemoryStore,
    seal: Seal,
    background: Background,
    metrics: Metrics,
    clock: Callable[[], float],
) -> Replicated | None:
    """Return what makes this process one replica of several, where there is a Redis to meet at."""
    cache = config.cache
    if cache.redis is None:
        return None
    return replicated(
        parse_redis_url(cache.redis.get_secret_value()),
        Sharing(
            cache.redis_timeout,
            cache.redis_prefix,
            cache.redis_entry,
            cache.private_in_redis,
            linger=cache.stale_if_error,
            coalesce=cache.coalesce,
            coalesces=_bounds(config, cache.coalesce),
        ),
        memory=memory,
        seal=seal,
        background=background,
        metrics=metrics,
        clock=clock,
        most_topics=MOST_TOPICS,
        tls=cache.redis_tls,
    )


def _bounds(config: Config, coalesce: float) -> dict[UpstreamName, float]:
    """Return how long another's fetch is waited for: what is spent on that is missing for one's own."""
    return {
        UpstreamName(name): min(coalesce, upstream.list_timeout / 2)
        for name, upstream in config.upstreams.items()
    }


def fingerprints(config: Config, seal: Seal) -> Mapping[UpstreamName, str]:
    """Return what cache keys say of an upstream's settings: a keyed hash, for a credential is among them."""
    return {
        UpstreamName(name): seal.partition(_spelled(upstream)) for name, upstream in config.upstreams.items()
    }


def _result_keys(config: Config, seal: Seal) -> Mapping[UpstreamName, str]:
    """Return the same with how far its hints are followed: what was kept by other rules is not found."""
    return {
        UpstreamName(name): seal.partition(
            f"{_spelled(upstream)}\n{rules_of(config, name)}\n{upstream.cache!r}"
        )
        for name, upstream in config.upstreams.items()
    }


def _spelled(upstream: Upstream) -> str:
    """Return what decides which answers an upstream gives: where it is and who asks, credential included."""
    auth = upstream.auth
    bearer = auth.bearer.get_secret_value() if auth.bearer is not None else None
    headers = {name: secret.get_secret_value() for name, secret in auth.headers.items()}
    env = {name: secret.get_secret_value() for name, secret in upstream.env.items()}
    started = [upstream.command, upstream.args, sorted(env.items()), upstream.cwd]
    where = [upstream.url] if upstream.command is None else [None, *started]
    obtained = auth.obtained
    asked = [] if obtained is None else [json.dumps(obtained.model_dump(), sort_keys=True, default=_in_clear)]
    return encode([*where, auth.kind, bearer, sorted(headers.items()), *asked]).decode()


def _in_clear(secret: SecretStr) -> str:
    return secret.get_secret_value()


def _server_info(config: Config) -> bytes:
    identity: dict[str, object] = {"name": config.identity.name, "version": VERSION}
    if config.identity.title is not None:
        identity["title"] = config.identity.title
    return encode(identity)
