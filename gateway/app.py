"""What the commands that run something do: serve over HTTP or stdio until told to stop, and list tools."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.config import VERSION, Config, Log, confidential
from gateway.core.access import said_of, somebody
from gateway.core.directory import Target
from gateway.front.pipes import Inlet, Outlet, take_over
from gateway.front.stdio import StdioFront
from gateway.protocol.call import Principal, UpstreamName, UpstreamUnavailable
from gateway.protocol.jsonrpc import McpError, text_of
from gateway.reloader import Origin, Reloader
from gateway.runtime import Runtime, build
from gateway.server import Addresses, Gateway
from gateway.supervisor.crew import Source
from gateway.supervisor.run import supervised
from gateway.supervisor.station import Station
from gateway.support import logs, tracing
from gateway.support.descriptors import open_closed, room_for
from gateway.support.seal import Seal
from gateway.support.stopping import asked_to_stop

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_STREAMS_OF_EACH = 50
"""Connections to an upstream beside those of its calls: streams, and such as are about to close."""
_A_YEAR = 365 * 86400.0


def serve(
    config: Config,
    *,
    ready: Callable[[Addresses], None] | None = None,
    warnings: Sequence[str] = (),
    origin: Origin | None = None,
    station: Station | None = None,
) -> int:
    """Run until SIGTERM or SIGINT and return the exit code; a second signal ends the process at once with 1.

    `ready` is called once the addresses are bound; `warnings`, of the configuration, go to the log. SIGHUP
    has it read again from its `origin`. At a `station` this is one worker of several, which its supervisor
    has listen, and tells when to end. Raises OSError for an address that cannot be had.
    """
    _guard_secrets(config)
    if station is not None:
        station.mark_log()
    for warning in warnings:
        log.warning("configuration: %s", warning)
    _trace(config)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, ready, origin, station))


async def _serve(
    config: Config,
    ready: Callable[[Addresses], None] | None,
    origin: Origin | None = None,
    station: Station | None = None,
) -> int:
    metrics = None if station is None else station.metrics
    gateway = Gateway(await asyncio.to_thread(build, _within_files(config), metrics=metrics))
    asked = asked_to_stop(patient=station is not None)
    reloading = _reloading(gateway, origin, _within_files)
    if station is not None:
        gateway.begin_with(station.order.generation)
    if hasattr(signal, "SIGUSR2"):  # it would end the process otherwise
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, _cannot_roll)
    addresses = await gateway.start(handed=None if station is None else station.handed)
    if reloading is not None:
        gateway.runtime.background.start(reloading.run(config), name="reload")
    if station is not None:
        station.begin(gateway, gateway.runtime.background, asked, config.shutdown_grace)
    elif ready is not None:
        ready(addresses)
    if not config.secrets.keys:
        log.info(
            "no secrets.keys: cursors, sessions and ids of tasks are sealed with a random key "
            "and end with this process"
        )
    await asked.wait()
    grace = gateway.runtime.config.shutdown_grace
    log.info("stopping: up to %gs for what is running", grace)
    await gateway.stop(grace, 0.0 if station is None else station.leave())
    await tracing.close()
    return 0


def _trace(config: Config) -> None:
    """Have requests traced, where there is a collector; OpenTelemetry is imported for that alone."""
    if config.tracing.otlp is not None:
        from gateway.support.otel import OtelTracer

        tracing.use(OtelTracer(config.tracing, version=VERSION))


def supervise(
    config: Config,
    workers: int,
    text: str,
    source: Source,
    *,
    ready: Callable[[Addresses], None],
    warnings: Sequence[str] = (),
) -> int:
    """Run several processes that serve the same address, until SIGTERM or SIGINT; return the exit code.

    SIGHUP has all of them read the configuration again, SIGUSR2 replaces them one by one. Raises OSError for
    an address that cannot be had.
    """
    _guard_secrets(config)
    for warning in warnings:
        log.warning("configuration: %s", warning)
    return asyncio.run(supervised(config, workers, text, source, ready, _guard(config)))


def _guard(config: Config, authorizations: Sequence[str] = ()) -> Callable[[Config, Log], None]:
    """Return what hides the secrets of another configuration, too, in a log that is written as one says."""
    known = {*confidential(config), *_parts(authorizations)}

    def guard(config: Config, log: Log) -> None:
        known.update(confidential(config))  # what is under way still knows the secrets of before
        logs.configure(log, secrets=known)

    return guard


def _reloading(
    gateway: Gateway,
    origin: Origin | None,
    adapt: Callable[[Config], Config],
    authorizations: Sequence[str] = (),
) -> Reloader | None:
    """Return what has the gateway go on by its file on SIGHUP, or when that has changed; it is to be run."""
    guard = _guard(gateway.runtime.config, authorizations)
    reloader = None if origin is None else Reloader(gateway, origin, adapt=adapt, guard=guard)
    if hasattr(signal, "SIGHUP"):  # it would end the process otherwise
        ask = _cannot_reload if reloader is None else reloader.ask
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, ask)
    return reloader


def _within_files(config: Config) -> Config:
    """Return the configuration with no more connections than this process may have files open."""
    upstream = sum(one.connections + _STREAMS_OF_EACH for one in config.upstreams.values())
    clients = room_for(config.limits.connections, upstream)
    return config.model_copy(update={"limits": config.limits.model_copy(update={"connections": clients})})


def serve_stdio(
    config: Config,
    endpoint: str,
    *,
    authorization: str | None = None,
    warnings: Sequence[str] = (),
    origin: Origin | None = None,
) -> int:
    """Serve one client over stdin and stdout until stdin ends, or SIGTERM or SIGINT; return the exit code.

    `authorization` is what upstreams with `auth: forward` are shown. Raises OSError for the address of an
    admin listener that cannot be had.
    """
    open_closed()
    pipes = take_over()
    _guard_secrets(config, [] if authorization is None else [authorization])
    for warning in warnings:
        log.warning("configuration: %s", warning)
    _trace(config)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve_stdio(config, endpoint, pipes, authorization, origin))


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
    started_by: Config,
    endpoint: str,
    pipes: tuple[int, int],
    authorization: str | None,
    origin: Origin | None = None,
) -> int:
    config = of_one_person(started_by)
    gateway = Gateway(await asyncio.to_thread(build, config))
    runtime = gateway.runtime
    asked = asked_to_stop()
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
        guests=runtime.guests,
    )

    def adapt(wanted: Config) -> Config:
        if endpoint not in wanted.endpoints:
            raise ValueError(
                f"endpoints: {endpoint} is not there any more, which a client is served over stdio"
            )
        places = {"listen": config.listen, "admin": config.admin}  # what the file says of them is for others
        return of_one_person(wanted.model_copy(update=places))

    def adopt(after: Runtime) -> None:
        front.adopt(after.pipelines[endpoint], after.config, after.guests)

    gateway.on_reload = adopt
    shown = [] if authorization is None else [authorization]
    reloading = _reloading(gateway, origin, adapt, shown)
    addresses = await gateway.start(listen=False)
    if reloading is not None:
        runtime.background.start(reloading.run(started_by), name="reload")
    log.info("serving %s over stdio, admin %s", endpoint, addresses.admin or "off")
    serving = runtime.background.start(front.serve(Inlet(source)), name="stdin")
    ends = [serving, *(runtime.background.start(one.wait(), name="end") for one in (asked, outlet.gone))]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()
    hurry = asyncio.Event() if asked.is_set() else asked  # the second signal ends the process anyway
    grace = gateway.runtime.config.shutdown_grace
    log.info("stopping: up to %gs for what is running", grace)
    runtime.stopping.set()
    await front.drain(grace, hurry)
    await gateway.stop(0.0)
    await tracing.close()
    return 0


def _person(seal: Seal, authorization: str | None) -> Principal:
    return Principal() if authorization is None else Principal(seal.partition(authorization), authorization)


def _cannot_roll() -> None:
    log.warning("a rolling restart needs several processes: serve --workers")


def _cannot_reload() -> None:
    log.warning("this configuration came from no file that could be read again")


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
    runtime = await asyncio.to_thread(build, alone(config))
    await runtime.start(follow=False)
    try:
        # A program may take longer to start than a list waits for its upstream.
        behind = map(UpstreamName, config.behind(endpoint))
        tried = (runtime.pool.tried(name, config.startup_wait) for name in behind)
        await asyncio.gather(*tried)
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


def guard_command(config: Config, authorizations: Sequence[str] = ()) -> None:
    """Leave secrets out of what a command may warn of, and what callers show whom it asks for."""
    logs.guard_last_resort([*confidential(config), *_parts(authorizations)])


def _guard_secrets(config: Config, authorizations: Sequence[str] = ()) -> None:
    """Set up the log so that it tells none, and have the system write none to a core file."""
    open_closed()
    logs.configure(config.log, secrets=[*confidential(config), *_parts(authorizations)])
    logs.take_the_rest()
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # a program that wants one may raise it again


def _parts(authorizations: Sequence[str]) -> Iterator[str]:
    for authorization in authorizations:
        yield authorization
        yield authorization.rpartition(" ")[2]


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists: a call costs a third less there."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
