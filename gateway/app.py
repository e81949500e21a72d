"""Builds one immutable Runtime from a Config by plain constructor calls, runs it, and drains it."""

import asyncio
import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from pydantic import SecretStr

from gateway.cache.flight import SingleFlight
from gateway.cache.replicated import Replicated, Sharing, replicated
from gateway.cache.responses import ResponseCache
from gateway.cache.stores import MOST_TOPICS, MemoryGenerations, MemoryStore
from gateway.config import (
    VERSION,
    Config,
    Upstream,
    confidential,
    parse_address,
    parse_redis_url,
)
from gateway.core.access import said_of, somebody
from gateway.core.catalogue import Catalogue
from gateway.core.directory import Target
from gateway.core.explain import Question, Report, Unanswerable
from gateway.core.federation import Federation, namespaces
from gateway.core.following import Alone, Following
from gateway.core.hub import Hub
from gateway.core.pipeline import Pipeline
from gateway.core.purge import Wish, changes
from gateway.core.replicas import Replicas
from gateway.core.shown import Shown
from gateway.front.admin import AdminFront, Phase
from gateway.front.admission import Admission
from gateway.front.http import FrontState, HttpFront
from gateway.front.legacy_sessions import Sessions
from gateway.front.pipes import Inlet, Outlet, take_over
from gateway.front.stdio import StdioFront
from gateway.front.verify import Verifier
from gateway.protocol.call import Principal, UpstreamName, UpstreamUnavailable
from gateway.protocol.jsonrpc import McpError, encode, text_of
from gateway.support import logs
from gateway.support.bus import LocalBus
from gateway.support.descriptors import room_for
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

log = logging.getLogger(__name__)

_CLOSING = 2.0
_WRAPPING = 2**20
_NOTES = 8
"""Facts about one session of an older client, of 1 KiB on average, for which a process alone has room."""
_NOTED = 64 * 2**20
_STREAMS_OF_EACH = 50
"""Connections to an upstream beside those of its calls: streams, and such as are about to close."""
_A_YEAR = 365 * 86400.0
_PATIENCE = 1.0
"""Seconds a caller waits for the fetch of another in this process where `cache.coalesce` is off."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the gateway answers, as bound: port 0 in the configuration is a real port here."""

    endpoints: tuple[str, ...]
    admin: str | None


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
    upstream_settings = _settings(config, seal)
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


class Gateway:
    """A running gateway: the Runtime and the two listeners in front of it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._state = FrontState(
            runtime.config, runtime.pipelines, runtime.seal, runtime.sessions, runtime.verifier
        )
        self._admission = Admission(runtime.room, runtime.rates, runtime.metrics)
        self._front = HttpFront(
            lambda: self._state,
            runtime.metrics,
            background=runtime.background,
            stopping=runtime.stopping,
            admission=self._admission,
        )
        self._admin = AdminFront(
            runtime.metrics,
            phase=self.phase,
            upstreams=self._upstreams,
            redis=self._redis,
            status=self.status,
            cache=self,
            identify=self._front.identify,
            background=runtime.background,
            request_head=runtime.config.limits.request_head,
        )
        self._settled = asyncio.Event()
        self._started = time.time()

    def __repr__(self) -> str:
        return f"<Gateway {self.phase()} {self._front!r} {self.runtime.pool!r} {self.runtime.cache!r}>"

    async def start(self, *, listen: bool = True) -> Addresses:
        """Listen, and begin to reach the upstreams; raises OSError for an address that cannot be had.

        Without `listen` the endpoints are served nowhere: the client is not on the network.
        """
        runtime = self.runtime
        admin: str | None = None
        endpoints: tuple[str, ...] = ()
        try:
            if runtime.config.admin != "off":
                at = parse_address(runtime.config.admin)
                admin = _url(await self._admin.start(at.host, at.port))
            if listen:
                at = parse_address(runtime.config.listen)
                scheme = "http" if runtime.config.tls.cert_file is None else "https"
                base = _url(await self._front.start(at.host, at.port), scheme)
                endpoints = tuple(base + path for path in runtime.config.endpoints)
        except BaseException:
            await self.stop(0.0)
            raise
        await runtime.start()
        if listen and runtime.verifier is not None:
            runtime.verifier.warm()
        runtime.background.start(self._settle(), name="settle")
        return Addresses(endpoints, admin)

    async def settled(self) -> None:
        """Wait until every upstream was tried once, at most `startup_wait`."""
        await self._settled.wait()

    async def stop(self, grace: float) -> None:
        """Drain: streams end gracefully, calls may finish until the grace is over (B50)."""
        await self._front.drain(grace)
        await self.runtime.close()
        await self._admin.close()

    def phase(self) -> Phase:
        """Whether clients should be sent here."""
        if self.runtime.stopping.is_set():
            return "draining"
        if not self._settled.is_set():
            return "starting"
        return "degraded" if self._redis() == "down" else "ready"

    def status(self) -> Mapping[str, object]:
        """Return what /status.json says; it holds names and numbers, no address and no secret."""
        runtime = self.runtime
        entries, held = runtime.cache.held
        limits = runtime.config.limits
        return {
            "version": VERSION,
            "phase": self.phase(),
            "started": self._started,
            "endpoints": {
                path: list(endpoint.upstreams or runtime.config.upstreams)
                for path, endpoint in runtime.config.endpoints.items()
            },
            "upstreams": {
                name: self._upstream_status(UpstreamName(name)) for name in runtime.config.upstreams
            },
            "authentication": None if runtime.verifier is None else runtime.verifier.status,
            "load": {
                "connections": {"open": self._front.connections, "most": limits.connections},
                "requests": {"open": self._admission.requests, "most": limits.requests},
                "streams": {"open": self._admission.listening},
                "bytes": {"held": runtime.room.held, "most": limits.in_flight},
            },
            "sessions": {"open": len(runtime.sessions), "most": limits.sessions},
            "questions": {
                "parked": runtime.pool.parked,
                "asked": len(runtime.sessions.asking),
                "most": limits.questions,
                "most_per_caller": limits.questions_per_caller,
            },
            "cache": {
                "entries": entries,
                "bytes": held,
                "redis": self._redis(),
            },
        }

    async def explain(self, endpoint: str | None, question: Question, principal: Principal) -> Report:
        """Return what the cache would do for a request; raises Unanswerable."""
        pipelines = self.runtime.pipelines
        path = next(iter(pipelines)) if endpoint is None else endpoint
        if path not in pipelines:
            raise Unanswerable(f"there is no endpoint {path[:128]!r}: {', '.join(pipelines)}")
        return await pipelines[path].explainer.explain(question, principal)

    async def purge(self, wish: Wish) -> Report:
        """Make stale what an operator names and return what that was; raises NothingToPurge."""
        runtime = self.runtime
        made = changes(wish, namespaces(runtime.config))
        for change in made:
            await runtime.hub.changed(change)
        log.info("purged by an operator: %d change(s)", len(made))
        purged = [
            {"upstream": one.upstream, "method": one.method, "uri": one.uri}
            | ({} if one.partition is None else {"caller": one.partition[:16]})
            for one in made
        ]
        return {"purged": purged}

    def _upstream_status(self, name: UpstreamName) -> Mapping[str, object]:
        status = self.runtime.pool.status(name)
        return {
            "state": status.state,
            "era": status.era,
            "transport": status.wire,
            "version": status.version,
            "error": None if status.last_error is None else status.last_error.value,
            "http_status": _http_status(status.detail),
            "active": status.active,
            "queued": status.queued,
            "breaker": status.breaker,
            "sessions": {"open": status.sessions, "most": self.runtime.config.upstreams[name].most_sessions},
            "followed": self.runtime.hub.state(name),
            "in_state_seconds": round(time.monotonic() - status.since, 1),
            **self.runtime.catalogue.report(name),
        }

    def _upstreams(self) -> Mapping[str, str]:
        pool = self.runtime.pool
        return {name: pool.status(UpstreamName(name)).state for name in self.runtime.config.upstreams}

    def _redis(self) -> Literal["up", "down"] | None:
        replicated = self.runtime.replicated
        return None if replicated is None else replicated.state

    async def _settle(self) -> None:
        pool = self.runtime.pool
        wait = self.runtime.config.startup_wait
        tried = (pool.tried(UpstreamName(name), wait) for name in self.runtime.config.upstreams)
        try:
            async with asyncio.timeout(wait):
                await asyncio.gather(*tried)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.runtime.config.subscriptions.acknowledge):
                        await self.runtime.hub.settled()
        except TimeoutError:
            late = [name for name, state in self._upstreams().items() if state == "starting"]
            log.warning("no answer yet from %s; they are tried on", ", ".join(late))
        finally:
            self._settled.set()


def serve(
    config: Config, *, ready: Callable[[Addresses], None] | None = None, warnings: Sequence[str] = ()
) -> int:
    """Run until SIGTERM or SIGINT and return the exit code; a second signal ends the process at once with 1.

    `ready` is called once the addresses are bound; `warnings`, of the configuration, go to the log. Raises
    OSError for an address that cannot be had.
    """
    _guard_secrets(config)
    for warning in warnings:
        log.warning("configuration: %s", warning)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, ready))


async def _serve(config: Config, ready: Callable[[Addresses], None] | None) -> int:
    gateway = Gateway(build(_within_files(config)))
    asked = _asked_to_stop()
    if hasattr(signal, "SIGHUP"):  # it would end the process, and means reload to many a service manager
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _cannot_reload)
    addresses = await gateway.start()
    if ready is not None:
        ready(addresses)
    if not config.secrets.keys:
        log.info(
            "no secrets.keys: cursors, sessions and ids of tasks are sealed with a random key "
            "and end with this process"
        )
    await asked.wait()
    log.info("stopping: up to %gs for what is running", config.shutdown_grace)
    await gateway.stop(config.shutdown_grace)
    return 0


def _within_files(config: Config) -> Config:
    """Return the configuration with no more connections than this process may have files open."""
    upstream = sum(one.connections + _STREAMS_OF_EACH for one in config.upstreams.values())
    clients = room_for(config.limits.connections, upstream)
    return config.model_copy(update={"limits": config.limits.model_copy(update={"connections": clients})})


def _asked_to_stop() -> asyncio.Event:
    """Return what is set by the first signal to stop; the second one ends the process at once."""
    asked = asyncio.Event()

    def stop() -> None:
        if asked.is_set():
            log.warning("second signal: ending now")
            os._exit(1)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return asked


def serve_stdio(
    config: Config,
    endpoint: str,
    *,
    authorization: str | None = None,
    warnings: Sequence[str] = (),
) -> int:
    """Serve one client over stdin and stdout until stdin ends, or SIGTERM or SIGINT; return the exit code.

    `authorization` is what upstreams with `auth: forward` are shown. Raises OSError for the address of an
    admin listener that cannot be had.
    """
    pipes = take_over()
    _guard_secrets(config, [] if authorization is None else [authorization])
    for warning in warnings:
        log.warning("configuration: %s", warning)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve_stdio(of_one_person(config), endpoint, pipes, authorization))


def of_one_person(config: Config) -> Config:
    """Return the configuration of a gateway that has one client: nobody needs to be kept apart from anybody.

    So a server of an older era may be told what this client can do, and may ask its user. What is private
    stays in this process, for whoever else meets at the same Redis is somebody else. The session of an older
    client lasts as long as its pipes.
    """
    upstreams = {
        name: one if one.isolation is not None else one.model_copy(update={"isolation": "caller"})
        for name, one in config.upstreams.items()
    }
    cache = config.cache.model_copy(update={"single_tenant": True, "private_in_redis": False})
    limits = config.limits.model_copy(update={"session_lifetime": _A_YEAR})
    return config.model_copy(update={"upstreams": upstreams, "cache": cache, "limits": limits})


async def _serve_stdio(
    config: Config, endpoint: str, pipes: tuple[int, int], authorization: str | None
) -> int:
    gateway = Gateway(build(config))
    runtime = gateway.runtime
    asked = _asked_to_stop()
    source, target = pipes
    outlet = Outlet(target)
    front = StdioFront(
        runtime.pipelines[endpoint],
        config,
        runtime.metrics,
        endpoint=endpoint,
        principal=_person(runtime.seal, authorization),
        sessions=runtime.sessions,
        background=runtime.background,
        stopping=runtime.stopping,
        outlet=outlet,
    )
    addresses = await gateway.start(listen=False)
    log.info("serving %s over stdio, admin %s", endpoint, addresses.admin or "off")
    serving = runtime.background.start(front.serve(Inlet(source)), name="stdin")
    ends = [serving, *(runtime.background.start(one.wait(), name="end") for one in (asked, outlet.gone))]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()
    hurry = asyncio.Event() if asked.is_set() else asked  # the second signal ends the process anyway
    log.info("stopping: up to %gs for what is running", config.shutdown_grace)
    runtime.stopping.set()
    await front.drain(config.shutdown_grace, hurry)
    await gateway.stop(0.0)
    return 0


def _person(seal: Seal, authorization: str | None) -> Principal:
    return Principal() if authorization is None else Principal(seal.partition(authorization), authorization)


def _cannot_reload() -> None:
    log.warning("reload is not supported by this version; restart to apply a changed configuration")


@dataclass(frozen=True, slots=True)
class ToolLine:
    """One tool as clients of an endpoint see it, and where it comes from."""

    name: str
    upstream: str
    original: str
    description: str


@dataclass(frozen=True, slots=True)
class ToolListing:
    """The tools of an endpoint, and what kept others from being there."""

    tools: tuple[ToolLine, ...]
    problems: tuple[str, ...]
    kept: tuple[tuple[str, str], ...] = ()
    """What the rules of `access` keep from the caller who was named, and what they say of it."""


def alone(config: Config) -> Config:
    """Return the configuration of a process that asks once, and shares nothing with the replicas."""
    return config.model_copy(update={"cache": config.cache.model_copy(update={"redis": None})})


async def list_tools(
    config: Config,
    endpoint: str,
    *,
    caller: str | None = None,
    scopes: Sequence[str] = (),
    claims: Mapping[str, object] | None = None,
) -> ToolListing:
    """Reach the upstreams once and return what a client of this endpoint will see; listens nowhere.

    Without a caller the rules of `access` are set aside: it is what there is to be seen.
    """
    principal = None if caller is None else somebody(config, caller, scopes, claims)
    guard_command(config)
    runtime = build(alone(config))
    await runtime.start(follow=False)
    try:
        seen, missing, kept = await runtime.pipelines[endpoint].tools(principal)
    except (McpError, UpstreamUnavailable) as error:
        states = ((name, runtime.pool.status(UpstreamName(name))) for name in config.upstreams)
        down = [f"upstream {name}: {at.last_error.value}" for name, at in states if at.last_error is not None]
        return ToolListing((), tuple(down) or (str(error),))
    finally:
        await runtime.close()
    tools = (ToolLine(name, tool.upstream, tool.original, _description(tool)) for name, tool in seen.items())
    why = ((name, said_of(verdict)) for name, verdict in kept.items())
    return ToolListing(tuple(tools), tuple(missing), tuple(why))


def _description(tool: Target) -> str:
    raw = tool.item.members.get("description")
    return text_of(raw) or ""


def _settings(config: Config, seal: Seal) -> Mapping[UpstreamName, str]:
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


def guard_command(config: Config, authorizations: Sequence[str] = ()) -> None:
    """Leave secrets out of what a command may warn of, and what callers show whom it asks for."""
    logs.guard_last_resort([*confidential(config), *_parts(authorizations)])


def _guard_secrets(config: Config, authorizations: Sequence[str] = ()) -> None:
    """Set up the log so that it tells none, and have the system write none to a core file."""
    logs.configure(config.log, secrets=[*confidential(config), *_parts(authorizations)])
    logs.take_the_rest()
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # a program that wants one may raise it again


def _parts(authorizations: Sequence[str]) -> Iterator[str]:
    for authorization in authorizations:
        yield authorization
        yield authorization.rpartition(" ")[2]


def _server_info(config: Config) -> bytes:
    identity: dict[str, object] = {"name": config.identity.name, "version": VERSION}
    if config.identity.title is not None:
        identity["title"] = config.identity.title
    return encode(identity)


def _http_status(detail: str) -> int | None:
    """Return the number of an HTTP status; the rest of a detail is for logs, it may name an address."""
    hit = re.match(r"HTTP ([1-5][0-9]{2})\b", detail)
    return int(hit[1]) if hit else None


def _url(bound: list[tuple[str, int]], scheme: str = "http") -> str:
    host, port = bound[0]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists: a call costs a third less there."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
