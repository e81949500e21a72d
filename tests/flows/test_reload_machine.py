"""Any sequence of configurations under load: nothing is dropped, and nothing is served of what is gone.

Clients of both eras listen all the time, and fetch their list only when they are told of a change: whatever
was configured in between, each ends up with just what is configured now. What is the same is not asked again,
and keeps its stream; calls that were under way end well, wherever they began.

`RELOADS=300 pytest --hypothesis-profile=search tests/flows/test_reload_machine.py` looks deeper.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.legacy_client import LegacyClient
from tests.support.listening import TOOLS, TOOLS_CHANGED
from tests.support.running import Answer, Running, running
from tests.support.scripted import Behaviour, Exchange, ScriptedUpstream, default, tool

EXAMPLES = int(os.environ.get("RELOADS", "5"))
STEPS = 12
PATIENCE = 60.0
SERVERS = 4
EVERYWHERE, SOME = "/mcp", "/some"


class Upstream(NamedTuple):
    """How a server is configured."""

    server: int
    prefix: str | None
    hidden: bool
    timeout: int


UPSTREAMS = st.builds(
    Upstream,
    st.integers(0, SERVERS - 1),
    st.sampled_from([None, None, "other"]),
    st.booleans(),
    st.sampled_from([20, 20, 30]),
)
CONFIGURED = st.dictionaries(st.sampled_from("abc"), UPSTREAMS, min_size=1).filter(
    lambda upstreams: len({one.server for one in upstreams.values()}) == len(upstreams)
)


class Mirror:
    """A client that knows what it was last given, and asks again only when it is told that it changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: list[str] = []
        self.task: asyncio.Task[None] | None = None

    async def modern(self, gateway: Running) -> None:
        """Listen; a stream that the gateway ends is opened anew, as long as there is an endpoint."""
        while True:
            async with gateway.open(
                "subscriptions/listen", {"notifications": TOOLS}, path=self.path
            ) as stream:
                if not (await stream.begun()).streamed:
                    self.names = []
                    await asyncio.sleep(0.005)
                    continue
                while "result" not in (message := await stream.event()):
                    if message["method"] != TOOLS_CHANGED:  # it is acknowledged: what was before is unknown
                        assert message["method"].endswith("acknowledged"), message
                    await self.fetch(gateway)

    async def fetch(self, gateway: Running) -> None:
        answer = await gateway.ask("tools/list", path=self.path, judged=False)
        if answer.status == 200 and "result" in answer.message:
            self.names = sorted(answer.names)

    async def older(self, url: str) -> None:
        """Do the same as a client of an older revision: its one stream stays."""
        async with LegacyClient(url) as client, client.listen() as stream:
            while True:
                listed = await client.result("tools/list")
                self.names = sorted(one["name"] for one in listed["tools"])
                while ((await stream.next()) or {}).get("method") != TOOLS_CHANGED:
                    pass


def _held(begun: asyncio.Event, end: asyncio.Event) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        begun.set()
        await end.wait()
        await default(exchange)

    return behave


class ReloadMachine(RuleBasedStateMachine):
    """One run."""

    loop: ClassVar[asyncio.AbstractEventLoop]

    @initialize(configured=CONFIGURED)
    def begin(self, configured: Mapping[str, Upstream]) -> None:
        self.stack = AsyncExitStack()
        self.do(self.open(configured))

    async def open(self, configured: Mapping[str, Upstream]) -> None:
        self.configured, self.some = configured, True
        self.version = 0
        self.servers = [ScriptedUpstream(tools=[tool(f"s{at}")]) for at in range(SERVERS)]
        for server in self.servers:
            server.capabilities = {"tools": {"listChanged": True}}
            await self.stack.enter_async_context(server)
        self.gateway = await self.stack.enter_async_context(running(self.upstreams(), **self.members()))
        self.mirrors = [Mirror(EVERYWHERE), Mirror(SOME), Mirror(EVERYWHERE)]
        everywhere, some, older = self.mirrors
        for mirror, work in (
            (everywhere, everywhere.modern(self.gateway)),
            (some, some.modern(self.gateway)),
            (older, older.older(self.gateway.addresses.endpoints[0])),
        ):
            mirror.task = asyncio.ensure_future(work)
        await self.converged()

    def teardown(self) -> None:
        async def close() -> None:
            for mirror in self.mirrors:
                if mirror.task is not None:
                    mirror.task.cancel()
            await asyncio.gather(*(one.task for one in self.mirrors if one.task), return_exceptions=True)
            await self.stack.aclose()

        if hasattr(self, "mirrors"):
            self.do(close())

    def do(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    # What is configured, and what follows from that

    def upstreams(self) -> dict[str, Mapping[str, Any]]:
        return {
            name: {
                "url": self.servers[one.server].url,
                "timeout": float(one.timeout),
                **({} if one.prefix is None else {"prefix": f"{one.prefix}-{name}"}),
                **({"tools": {"deny": ["*-hidden"]}} if one.hidden else {}),
            }
            for name, one in self.configured.items()
        }

    def members(self) -> dict[str, Any]:
        first = next(iter(self.configured))
        some = {SOME: {"upstreams": [first]}} if self.some else {}
        return {"endpoints": {EVERYWHERE: {}, **some}, "shutdown_grace": 30.0}

    def expected(self, path: str) -> list[str]:
        if path == SOME and not self.some:
            return []
        names = list(self.configured)[: 1 if path == SOME else None]
        return sorted(name for one in names for name in self.names_of(one))

    def names_of(self, name: str) -> list[str]:
        one = self.configured[name]
        prefix = name if one.prefix is None else f"{one.prefix}-{name}"
        tools = [each["name"] for each in self.servers[one.server].tools]
        return [f"{prefix}__{each}" for each in tools if not (one.hidden and each.endswith("-hidden"))]

    async def until(self, so: Callable[[], bool]) -> None:
        while not so():
            for mirror in self.mirrors:
                if mirror.task is not None and mirror.task.done():
                    mirror.task.result()
            await asyncio.sleep(0.002)

    async def converged(self) -> None:
        """Wait until every client has what is configured, and asking gives just that."""
        try:
            async with asyncio.timeout(PATIENCE / 3):
                await self.until(lambda: all(one.names == self.expected(one.path) for one in self.mirrors))
        except TimeoutError:
            found = [(one.path, one.names, self.expected(one.path)) for one in self.mirrors]
            raise AssertionError(f"{found}\n{self.gateway.runtime.hub!r}") from None
        listed = await self.gateway.ask("tools/list")
        assert sorted(listed.names) == self.expected(EVERYWHERE)

    # What happens

    @rule(configured=CONFIGURED, some=st.booleans(), calls=st.integers(0, 3))
    def reload(self, configured: Mapping[str, Upstream], some: bool, calls: int) -> None:
        self.do(self.reloaded(configured, some, calls))

    async def reloaded(self, configured: Mapping[str, Upstream], some: bool, calls: int) -> None:
        before = self.configured
        held = await self.held(calls)
        same = {
            one.server: list(self.servers[one.server].listens)
            for name, one in configured.items()
            if name in before and (one.server, one.timeout) == (before[name].server, before[name].timeout)
        }
        discovered = {at: len(self.servers[at].seen("server/discover")) for at in same}
        loose = [self.call(name) for name in before for _ in range(calls)]
        self.configured, self.some = configured, some
        await self.gateway.reload(self.upstreams(), **self.members())
        for answer in loose:  # it came before or after: here perhaps nobody has such a name any more
            came = (await answer).message
            assert "result" in came or came["error"]["code"] == -32602, came
        await self.converged()
        for at, listens in same.items():
            assert self.servers[at].listens == listens, "a stream was opened anew"
            assert len(self.servers[at].seen("server/discover")) == discovered[at]
        for name, answer, end in held:
            end.set()
            assert "result" in (await answer).message, name
        await self.until(lambda: not self.gateway.runtime.pool.retired)
        for at, server in enumerate(self.servers):
            if at not in {one.server for one in configured.values()}:
                await server.unlistened()

    async def held(self, count: int) -> list[tuple[str, "asyncio.Task[Answer]", asyncio.Event]]:
        """Return calls that are under way at their servers, until an event is set."""
        held = []
        for name in list(self.configured)[:count]:
            begun, end = asyncio.Event(), asyncio.Event()
            self.servers[self.configured[name].server].once("tools/call", _held(begun, end))
            held.append((name, self.call(name), end))
            await begun.wait()
        return held

    def call(self, name: str) -> "asyncio.Task[Answer]":
        """Begin a call of an upstream's first tool."""
        asked = self.gateway.ask("tools/call", {"name": self.names_of(name)[0]}, judged=False)
        return asyncio.ensure_future(asked)

    @rule(at=st.integers(0, SERVERS - 1), hidden=st.booleans())
    def change(self, at: int, hidden: bool) -> None:
        """A server lists something else, and says so if anybody listens."""
        self.do(self.changed(at, hidden))

    async def changed(self, at: int, hidden: bool) -> None:
        self.version += 1
        more = [tool(f"s{at}-{self.version}-hidden")] if hidden else []
        server = self.servers[at]
        server.tools = [tool(f"s{at}-{self.version}"), *more]
        if at in {one.server for one in self.configured.values()}:
            await server.listening()
            await server.notify(TOOLS_CHANGED)
        await self.converged()


@pytest.mark.timeout(60 + EXAMPLES * 30)
class TestReloadMachine(ReloadMachine.TestCase):  # type: ignore[misc, name-defined]
    """One loop for all of it."""

    settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    @classmethod
    def setUpClass(cls) -> None:
        ReloadMachine.loop = asyncio.new_event_loop()

    @classmethod
    def tearDownClass(cls) -> None:
        ReloadMachine.loop.close()
