"""Runs a Runtime: the listeners in front of it, what they tell operators, and the orderly end."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from gateway.config import Config, parse_address
from gateway.core.explain import Question, Report, Unanswerable
from gateway.core.federation import namespaces
from gateway.core.inventory import Page, Search
from gateway.core.pipeline import Pipeline
from gateway.core.purge import Wish, changes
from gateway.front.admin import AdminFront
from gateway.front.admission import Admission
from gateway.front.http import FrontState, HttpFront
from gateway.protocol.call import Principal, UpstreamName
from gateway.reloading import applicable
from gateway.runtime import Handover, Runtime, hand_over, prepare, rebuild
from gateway.snapshot import SAMPLED, Doors, Recorder, status_of
from gateway.status import Phase, Settings, Status

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the gateway answers, as bound: port 0 in the configuration is a real port here."""

    endpoints: tuple[str, ...]
    admin: str | None


@dataclass(frozen=True, slots=True)
class Handed:
    """What a supervisor has a worker listen on."""

    sockets: tuple[socket.socket, ...]
    admin: str | None
    """The path of a unix socket for operators' questions."""


class Gateway:
    """A running gateway: the Runtime and the two listeners in front of it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.generation = 1
        """Which configuration is in force: it moves with every reload."""
        self.loaded = time.time()
        """Since when that is."""
        self.reload_problem: str | None = None
        """Why the file as it is now is not in force, None where it is."""
        self.on_reload: Callable[[Runtime], None] | None = None
        """Told in the same step when another configuration is in force; whoever serves a client beside us."""
        self.needs_restart: tuple[str, ...] = ()
        """Settings of that file which a process keeps for as long as it lives."""
        self._state = _front_state(runtime)
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
            shown=self,
            cache=self,
            identify=self._front.identify,
            background=runtime.background,
            settings=lambda: self.runtime.config,
        )
        self._settled = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        """Held while another configuration is being applied."""
        self._started = time.time()
        self._recorder = Recorder(runtime.metrics, time.monotonic())

    def __repr__(self) -> str:
        return f"<Gateway {self.phase()} {self._front!r} {self._admin!r} {self.runtime.pool!r}>"

    async def start(self, *, listen: bool = True, handed: Handed | None = None) -> Addresses:
        """Listen, and begin to reach the upstreams; raises OSError for an address that cannot be had.

        Without `listen` the endpoints are served nowhere: the client is not on the network. What is `handed`
        takes the place of the configuration's addresses.
        """
        runtime = self.runtime
        admin: str | None = None
        endpoints: tuple[str, ...] = ()
        try:
            if handed is not None:
                await self._start_on(handed)
            elif runtime.config.admin != "off":
                at = parse_address(runtime.config.admin)
                admin = url_of(await self._admin.start(at.host, at.port))
            if listen and handed is None:
                at = parse_address(runtime.config.listen)
                scheme = "http" if runtime.config.tls.cert_file is None else "https"
                base = url_of(await self._front.start(at.host, at.port), scheme)
                endpoints = tuple(base + path for path in runtime.config.endpoints)
        except BaseException:
            await self.stop(0.0)
            raise
        await runtime.start()
        if listen and runtime.verifier is not None:
            runtime.verifier.warm()
        runtime.background.start(self._settle(), name="settle")
        runtime.background.start(self._record(), name="recent counts")
        return Addresses(endpoints, admin)

    def begin_with(self, generation: int) -> None:
        """Count the configuration it was built from as this one: processes before have had the others."""
        self.generation = generation
        self.runtime.metrics.config_loaded(generation, self.loaded)

    async def reload(self, wanted: Config) -> None:
        """Go on by another configuration; what is under way ends as it began.

        Nothing is changed before all of it is known to work; raises ValueError where it does not.
        """
        async with self._one_at_a_time:
            await self._reload(wanted)

    async def _reload(self, wanted: Config) -> None:
        before = self.runtime
        if before.stopping.is_set():
            return
        config, late = applicable(before.config, wanted)
        prepared = await asyncio.to_thread(prepare, before, config)
        if before.stopping.is_set():
            return
        after = rebuild(before, config, prepared)
        handover = hand_over(before, after)
        # Up to the first `await` nobody else has a turn: requests are of the one configuration or the other.
        self.runtime = after
        self._state = _front_state(after)
        self._front.adopt()
        if self.on_reload is not None:
            self.on_reload(after)
        await handover.forget()
        self.generation += 1
        self.loaded = time.time()
        self.reload_problem = None
        self.needs_restart = late
        after.metrics.config_loaded(self.generation, self.loaded)
        if after.verifier is not None and after.verifier is not before.verifier and self._front.serving:
            after.verifier.warm()
        log.info("configuration %d is in force: %s", self.generation, handover.difference)
        for setting in late:
            log.warning("configuration: %s is applied when the gateway is started again", setting)
        after.background.start(self._finish(handover, config.shutdown_grace), name="finish a reload")

    async def _finish(self, handover: Handover, grace: float) -> None:
        """Close what is left of a configuration, and drop the series of what only it had (B52)."""
        await handover.finish(grace)
        before, now = handover.before.config, self.runtime.config
        for endpoint in before.endpoints.keys() - now.endpoints.keys():
            self.runtime.metrics.forget_endpoint(endpoint)
        for issuer in before.authentication.tokens.keys() - now.authentication.tokens.keys():
            self.runtime.metrics.forget_issuer(issuer)

    def confirm(self) -> None:
        """Note that the file says what is in force."""
        self.reload_problem = None
        self.runtime.metrics.config_loaded(self.generation, self.loaded)

    def not_reloaded(self, problem: str) -> None:
        """Note why a changed configuration could not be applied: the one before is still in force."""
        self.reload_problem = problem
        self.runtime.metrics.config_refused()

    async def settled(self) -> None:
        """Wait until every upstream was tried once, at most `startup_wait`."""
        await self._settled.wait()

    async def _start_on(self, handed: Handed) -> None:
        if handed.admin is not None:
            await self._admin.start_at(handed.admin)
        for at in handed.sockets:
            await self._front.start_on(at)

    async def accept_from(self, at: socket.socket) -> asyncio.Server:
        """Serve what comes over one more socket of the same address, too, until the listener is closed."""
        return await self._front.accept_from(at)

    def release(self, listener: asyncio.Server) -> None:
        """Leave such a socket to others."""
        self._front.release(listener)

    async def stop(self, grace: float, linger: float = 0.0) -> None:
        """Drain: streams end gracefully, calls may finish until the grace is over (B50).

        Where clients go on elsewhere their connections may `linger` until the next answer.
        """
        await self._front.drain(grace, linger)
        await self.runtime.close()
        await self._admin.close()

    def phase(self) -> Phase:
        """Whether clients should be sent here."""
        if self.runtime.stopping.is_set():
            return "draining"
        if not self._settled.is_set():
            return "starting"
        return "degraded" if self._redis() == "down" else "ready"

    async def look(self) -> Status:
        """Return what /status.json says; it holds names and numbers, no address and no secret."""
        return await status_of(
            self.runtime,
            self._recorder,
            phase=self.phase(),
            redis=self._redis(),
            started=self._started,
            doors=Doors(self._front.connections, self._admission.requests, self._admission.listening),
            settings=Settings(
                generation=self.generation,
                loaded=round(self.loaded, 3),
                problem=self.reload_problem,
                needs_restart=self.needs_restart,
            ),
        )

    async def search(self, endpoint: str | None, search: Search, *, read: bool) -> Page:
        """Return what an endpoint lists; `read` what is not known yet before. Raises Unanswerable."""
        inventory = self._pipeline(endpoint).inventory
        if read:
            await inventory.read()
        return await inventory.find(search)

    async def explain(self, endpoint: str | None, question: Question, principal: Principal) -> Report:
        """Return what the cache would do for a request; raises Unanswerable."""
        return await self._pipeline(endpoint).explainer.explain(question, principal)

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

    def _pipeline(self, endpoint: str | None) -> Pipeline:
        pipelines = self.runtime.pipelines
        path = next(iter(pipelines)) if endpoint is None else endpoint
        if path not in pipelines:
            raise Unanswerable(f"there is no endpoint {path[:128]!r}: {', '.join(pipelines)}")
        return pipelines[path]

    def _upstreams(self) -> Mapping[str, str]:
        pool = self.runtime.pool
        return {name: pool.status(UpstreamName(name)).state for name in self.runtime.config.upstreams}

    def _redis(self) -> Literal["up", "down"] | None:
        replicated = self.runtime.replicated
        return None if replicated is None else replicated.state

    async def _record(self) -> None:
        while True:
            await asyncio.sleep(SAMPLED)
            self._recorder.sample(time.monotonic())

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


def _front_state(runtime: Runtime) -> FrontState:
    return FrontState(
        runtime.config,
        runtime.pipelines,
        runtime.seal,
        runtime.sessions,
        runtime.verifier,
        runtime.guests,
    )


def url_of(bound: list[tuple[str, int]], scheme: str = "http") -> str:
    """Return the URL of the first of the addresses that are bound."""
    host, port = bound[0]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
