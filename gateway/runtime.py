"""Builds one immutable Runtime from a Config by plain constructor calls."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
from gateway.core.catalogue import Catalogue
from gateway.core.federation import Federation
from gateway.core.following import Alone, Following
from gateway.core.hub import Hub
from gateway.core.pipeline import Pipeline
from gateway.core.replicas import Replicas
from gateway.core.shown import Shown
from gateway.front.legacy_sessions import Sessions
from gateway.front.verify import Verifier
from gateway.protocol.call import UpstreamName
from gateway.protocol.jsonrpc import encode
from gateway.support.bus import LocalBus
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
from gateway.upstream.pool import Pace, UpstreamPool

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

_CLOSING = 2.0
_WRAPPING = 2**20
_NOTES = 8
"""Facts about one session of an older client, of 1 KiB on average, for which a process alone has room."""
_NOTED = 64 * 2**20
_PATIENCE = 1.0
"""Seconds a caller waits for the fetch of another in this process where `cache.coalesce` is off."""


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
    verifier: Verifier | None = None
    replicated: Replicated | None = None
    rates: Rates = field(default_factory=LocalRates)
    room: Room = field(default_factory=lambda: Room(2**29, 2**25))

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
) -> Runtime:
    """Return the parts of a gateway, wired, with nothing running; raises ValueError for unusable files.

    `pace` says how often an upstream that does not answer is tried.
    """
    metrics = Metrics(version=VERSION)
    metrics.config_loaded(1, wall_clock())
    background = Background()
    stopping = asyncio.Event()
    seal = Seal([key.get_secret_value() for key in config.secrets.keys], now=wall_clock)
    memory = MemoryStore(config.cache.memory, clock, linger=config.cache.stale_if_error)
    shared = _shared(config, memory, seal, background, metrics, clock)
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
    parked = Parked(
        mailbox,
        background,
        most=limits.questions,
        each=limits.questions_per_caller,
        wait=limits.input_wait,
        anonymous_wait=limits.anonymous_input_wait,
        metrics=metrics,
    )
    pool = UpstreamPool(
        {UpstreamName(name): upstream for name, upstream in config.upstreams.items()},
        identity=config.identity,
        version=VERSION,
        limits=limits,
        background=background,
        metrics=metrics,
        clock=clock,
        wall_clock=wall_clock,
        pace=pace,
        parked=parked,
        bus=None if shared is None else shared.bus,
        rates=rates,
        room=room,
    )
    sessions = Sessions(
        config,
        seal=seal,
        notebook=notebook,
        mailbox=mailbox,
        bus=LocalBus() if shared is None else shared.bus,
        metrics=metrics,
        background=background,
        now=wall_clock,
    )
    parked.on_completed = sessions.completed
    upstream_settings = fingerprints(config, seal)
    catalogue = Catalogue(config, pool, cache, metrics, upstream_settings, clock=clock)
    following = _following(config, shared, seal, background, upstream_settings)
    hub = Hub(
        config,
        pool=pool,
        catalogue=catalogue,
        background=background,
        metrics=metrics,
        stopping=stopping,
        following=following,
        wall_clock=wall_clock,
        shown=None if shared is None else _shown(shared, notebook, background, upstream_settings),
    )
    pool.on_change = hub.changed
    server_info = _server_info(config)
    pipelines = {
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
        Verifier(config.authentication, seal, background, metrics, wall_clock, clock=clock)
        if config.authentication.on
        else None,
        shared,
        rates,
        room,
    )


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
        sessions = config.limits.sessions
        notebook = LocalNotebook(clock, most=_NOTES * sessions, bytes=max(_NOTED, _NOTES * 2**10 * sessions))
        return notebook, LocalMailbox()
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
