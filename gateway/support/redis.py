"""Asks Redis, and never waits for it: every question has a deadline, and after a failure there is a pause.

Who asks gets an answer or None. After a failure nobody asks until a pause is over; then one question goes out
as a probe, and its answer decides whether the others may follow or the pause grows. A question that nobody
waits for any more goes on for a while: a connection may take longer than an answer may, and there would never
be one if each attempt to make it ended with the patience of who needed it.

A deadline measures Redis, not this process: a time in which nothing ran here is not held against an answer
that came meanwhile. And whatever one request asks, it waits no longer than its budget altogether.
"""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha1
from inspect import signature
from math import inf
from typing import Any, TypeAlias, cast

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError

from gateway.config import RedisAddress, RedisTls
from gateway.support.busy import Busy
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.support.trust import trust

log = logging.getLogger(__name__)

Reply: TypeAlias = list[Any]
"""What a script answers: numbers, bytes and lists of them."""


_CONNECTING = 1.0
_LONGEST = 2 * _CONNECTING
"""Seconds for which a question may go on that nobody waits for."""
_AT_ONCE = 32
_STEPS = 5
"""In so many parts a wait is cut; of each no more counts than it was meant to take."""
_PASSES = 10
"""Turns of the event loop that what has arrived needs to reach who waits for it."""
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0


# Or each client reads, blocking, the library's own package data, and each connection sends it.
_ANONYMOUS: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in signature(Redis.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)


@dataclass(frozen=True, slots=True)
class Script:
    """Lua that Redis runs as one step; the name is what metrics call it. It must answer with a list."""

    name: str
    text: str
    sha: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", sha1(self.text.encode(), usedforsecurity=False).hexdigest())


def trusting(tls: RedisTls) -> ssl.SSLContext:
    """Return what verifies the servers of a rediss:// address; raises ValueError for unusable files."""
    context = trust("cache.redis_tls", tls)
    if tls.insecure_skip_verify:
        log.warning("redis: any certificate is accepted (redis_tls.insecure_skip_verify)")
    context.check_hostname = tls.check_hostname and not tls.insecure_skip_verify
    context.verify_mode = ssl.CERT_NONE if tls.insecure_skip_verify else ssl.CERT_REQUIRED
    return context


PING = Script("ping", "return {1}")


class Breaker:
    """Whether to ask at all: after a failure not before the pause is over, and then one at a time."""

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._failures = 0
        self._until = 0.0

    def __repr__(self) -> str:
        if not self._failures:
            return "<Breaker closed>"
        return f"<Breaker open {max(0.0, self._until - self._clock()):.1f}s more>"

    @property
    def closed(self) -> bool:
        """Whether the last answer came."""
        return not self._failures

    def admit(self) -> bool:
        """Whether this question may go out. The one that may although the last failed is the probe."""
        if not self._failures:
            return True
        now = self._clock()
        if now < self._until:
            return False
        self._until = now + self._pause()  # the next probe, should this one never come back
        return True

    def answered(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures = min(self._failures + 1, 16)
        self._until = self._clock() + self._pause()

    def _pause(self) -> float:
        longest: float = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._failures - 1))
        return longest * (0.5 + self._random() / 2)


class _Budget:
    """What one request may wait for Redis altogether; what it asks at the same time counts once."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.over = False
        self._seconds = seconds
        self._busy = Busy(clock)

    @property
    def left(self) -> float:
        """The seconds that may still be waited; once the request has ended, whoever goes on has no budget."""
        return inf if self.over else max(0.0, self._seconds - self._busy.spent)

    def spent(self) -> AbstractContextManager[None]:
        """Take the time within off it."""
        return self._busy.asking()


_budget: ContextVar[_Budget | None] = ContextVar("redis budget", default=None)


@contextmanager
def redis_budget(seconds: float, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Let whatever is done within wait for Redis so long altogether, tasks begun within included."""
    budget = _Budget(seconds, clock)
    token = _budget.set(budget)
    try:
        yield
    finally:
        budget.over = True
        _budget.reset(token)


@contextmanager
def no_redis_budget() -> Iterator[None]:
    """Let what is done within ask Redis on nobody's account."""
    token = _budget.set(None)
    try:
        yield
    finally:
        _budget.reset(token)


async def within_redis_budget(task: asyncio.Task[None]) -> None:
    """Wait for a task, on the account of this request; when that is spent the task goes on by itself."""
    budget = _budget.get()
    if budget is None:
        await asyncio.wait([task])
    elif budget.left:
        with budget.spent():
            await asyncio.wait([task], timeout=None if budget.left == inf else budget.left)


@dataclass(slots=True)
class _Question:
    """One script to run, and whether it is on its way."""

    script: Script
    keys: Sequence[str]
    args: Sequence[bytes | str | int]
    sent: bool = False


class SharedRedis:
    """One Redis, be it a server, a server that Sentinels know, or a Cluster."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        timeout: float,
        metrics: Metrics,
        tls: RedisTls | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.timeout = timeout
        self._address = address
        self._trust = trusting(tls or RedisTls()) if address.tls else None
        self._metrics = metrics
        self._background = Background()
        self._clock = clock
        self._breaker = Breaker(clock, random)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._sentinels: list[Redis] = []
        self._client = self._connect(retries=1)
        self._listeners: dict[str, Redis] = {}
        """Those in use, by where they lead; in anything but a Cluster that is everywhere the same."""
        metrics.redis_answers(self.answers)

    def __repr__(self) -> str:
        return f"<SharedRedis {self._address} {self._breaker!r}>"

    @property
    def answers(self) -> bool:
        """Whether the last question was answered in time."""
        return self._breaker.closed

    async def run(
        self, script: Script, keys: Sequence[str], args: Sequence[bytes | str | int], *, urgent: bool = False
    ) -> Reply | None:
        """Return what a script answers, None when it does not in time or must not be asked now.

        What is urgent is tried even while there is a pause, and whatever the request has waited already. An
        unanswered script may still run later.
        """
        budget = None if urgent else _budget.get()
        patience = self.timeout if budget is None else min(self.timeout, budget.left)
        if not patience:
            self._metrics.redis_operation(script.name, "spent")
            return None
        if not self._breaker.admit() and not urgent:
            self._metrics.redis_operation(script.name, "paused")
            return None
        now = asyncio.get_running_loop().time
        begun = now()
        try:
            with nullcontext() if budget is None else budget.spent():
                answer = await self._answer(_Question(script, keys, args), patience)
        finally:
            self._metrics.redis_took(script.name, now() - begun)
        if isinstance(answer, TimeoutError) and patience < self.timeout:
            self._metrics.redis_operation(script.name, "spent")
            return None
        if isinstance(answer, Exception):
            self._failed(script, answer)
            return None
        self._answered(script)
        return answer

    async def listener(self, *, near: str) -> PubSub:
        """Return a new, unconnected pub/sub connection; nothing on it is tried twice unseen.

        It leads to where a key lies. Any node of a Cluster would do, but this one counts whom a script that
        uses the key publishes to.
        """
        if isinstance(self._client, RedisCluster):
            await self._drop_listener(near)
            await self._client.initialize()
            await self._client.nodes_manager.initialize()  # another may have taken the place of a dead one
            node = self._client.get_node_from_key(near)
            assert node is not None, "a slot has a master"
            self._listeners[near] = self._redis(node.host, int(node.port), **self._options(retries=0))
        elif near not in self._listeners:
            self._listeners[near] = cast("Redis", self._connect(retries=0))
        return self._listeners[near].pubsub()

    async def ask(
        self, script: Script, keys: Sequence[str], args: Sequence[bytes | str | int], *, patience: float
    ) -> Reply | Exception:
        """Return what a script answers, or why not, whatever was answered before; nothing counts it."""
        try:
            async with asyncio.timeout(patience):
                return await self._evaluate(script, keys, args)
        except TimeoutError as error:
            return error

    async def close(self) -> None:
        """Close every connection; bounded, whatever the other side does."""
        try:
            async with asyncio.timeout(_CONNECTING):
                await self._background.close(_CONNECTING)
                for near in tuple(self._listeners):
                    await self._drop_listener(near)
                for client in (self._client, *self._sentinels):
                    await client.aclose()
        except Exception as error:
            log.debug("closing redis: %s", type(error).__name__)

    async def _answer(self, question: _Question, patience: float) -> Reply | Exception:
        """Return what comes back in time; a question that was not sent by then never is."""
        asking = self._background.start(self._ask_in_turn(question), name="ask redis")
        try:
            for _ in range(_STEPS):
                await asyncio.wait([asking], timeout=patience / _STEPS)
                if asking.done():
                    break
            else:
                for _ in range(_PASSES):
                    if not asking.done():
                        await asyncio.sleep(0)
        finally:
            if not question.sent:
                asking.cancel()
        return asking.result() if asking.done() and not asking.cancelled() else TimeoutError()

    async def _ask_in_turn(self, question: _Question) -> Reply | Exception:
        async with self._turns:
            question.sent = True
            return await self._evaluate(question.script, question.keys, question.args)

    async def _evaluate(
        self, script: Script, keys: Sequence[str], args: Sequence[bytes | str | int]
    ) -> Reply | Exception:
        try:
            async with asyncio.timeout(max(self.timeout, _LONGEST)):
                try:
                    answer = self._client.evalsha(script.sha, len(keys), *keys, *args)
                    return await cast("Awaitable[Reply]", answer)
                except NoScriptError:
                    answer = self._client.eval(script.text, len(keys), *keys, *args)
                    return await cast("Awaitable[Reply]", answer)
        except Exception as error:  # whatever a client library raises: a failing cache fails no call (C-35)
            return error

    def _answered(self, script: Script) -> None:
        self._metrics.redis_operation(script.name, "ok")
        if not self._breaker.closed:
            log.info("redis answers again")
            self._breaker.answered()
            self._metrics.redis_answers(True)

    def _failed(self, script: Script, error: Exception) -> None:
        late = isinstance(error, TimeoutError)
        self._metrics.redis_operation(script.name, "timeout" if late else "error")
        if self._breaker.closed:
            reason = "no answer in time" if late else f"{type(error).__name__}: {error}"
            log.warning("redis failed (%s): %s; going on without it", script.name, reason[:200])
        self._breaker.failed()
        self._metrics.redis_answers(False)

    async def _drop_listener(self, near: str) -> None:
        listener = self._listeners.pop(near, None)
        if listener is not None:
            await listener.aclose()

    def _connect(self, *, retries: int) -> "Redis | RedisCluster":
        address, options = self._address, self._options(retries)
        if address.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in address.hosts]
            cluster = RedisCluster(startup_nodes=nodes, ssl=address.tls, **options)
            if self._trust is not None:
                # Found nodes are made of these arguments, the named ones were already.
                cluster.connection_kwargs["connection_class"] = _trusting(SSLConnection, self._trust)
                for node in cluster.startup_nodes:
                    node.connection_class = cluster.connection_kwargs["connection_class"]
            return cluster
        if address.kind == "sentinel":
            sentinel = Sentinel(())  # type: ignore[no-untyped-call] # untyped in the library
            sentinel.sentinels = [self._redis(*host, **self._sentinel_options()) for host in address.hosts]
            self._sentinels += sentinel.sentinels
            if self._trust is not None:
                options["connection_class"] = _trusting(_ManagedTls, self._trust)
            return cast("Redis", sentinel.master_for(address.service, db=address.db, **options))
        if address.kind == "unix":
            return Redis(unix_socket_path=address.path, db=address.db, **options)
        ((host, port),) = address.hosts
        return self._redis(host, port, db=address.db, **options)

    def _redis(self, host: str, port: int, **options: Any) -> Redis:
        redis = Redis(host=host, port=port, ssl=self._trust is not None, **options)
        if self._trust is not None:
            redis.connection_pool.connection_class = _trusting(SSLConnection, self._trust)
        return redis

    def _options(self, retries: int) -> dict[str, Any]:
        """Return what every connection has in common. The deadline of a question lies around it, in `run`."""
        return {
            **self._credentials(self._address.username, self._address.password),
            **_ANONYMOUS,
            "protocol": 2,
            "socket_timeout": None,
            "socket_connect_timeout": _CONNECTING,
            # Once more at once: the pooled connection may be one that the server closed meanwhile.
            "retry": Retry(NoBackoff(), retries),
        }

    def _sentinel_options(self) -> dict[str, Any]:
        given = self._address.options
        login = self._credentials(given.get("sentinel_username"), given.get("sentinel_password"))
        return {
            **_ANONYMOUS,
            **login,
            "socket_timeout": _CONNECTING,
            "socket_connect_timeout": _CONNECTING,
        }

    def _credentials(self, username: str | None, password: str | None) -> dict[str, Any]:
        return {"username": username, "password": password} if password is not None else {}


class _ManagedTls(SentinelManagedConnection, SSLConnection):
    """A connection to the server that Sentinels know."""


def _trusting(kind: type[SSLConnection], trust: ssl.SSLContext) -> type[SSLConnection]:
    """Return a kind of connection that verifies by what was read once.

    By itself each connection reads the system's authorities anew, which holds up the event loop for about
    50 ms: as long as a question may take altogether.
    """

    class Trusting(kind):  # type: ignore[misc,valid-type] # a class made at run time
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.ssl_context.context = trust

    return Trusting
