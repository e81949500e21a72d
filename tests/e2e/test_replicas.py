"""Three gateway processes on one Redis behave as one cache, whatever is done to Redis and to one of them.

The upstream is in the test's own process, so that it is counted and changed; the client asks the processes in
turn, as a load balancer does. A change is told by a purge on one of them.
"""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio

from gateway.server import Addresses
from tests.support.listening import TOOLS, TOOLS_CHANGED, listening, told
from tests.support.processes import Program, gateway, text_of
from tests.support.redis import RedisServer, redis_server
from tests.support.running import Reachable
from tests.support.scripted import Exchange, ScriptedUpstream, result, tool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

ANN, BOB = "TOK-ANN", "TOK-BOB"
WRONG_TYPES = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  redis.call('DEL', key)
  redis.call('RPUSH', key, 'x')
end
"""
WRONG_VALUES = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('TYPE', key).ok == 'hash' then
    for _, field in ipairs(redis.call('HKEYS', key)) do redis.call('HSET', key, field, '9007199254740993') end
  end
end
"""
GUIDE = {"uri": "alpha+note://guide"}


@dataclass
class Process(Reachable):
    """A gateway process."""

    program: Program

    def signal(self, number: int) -> None:
        os.kill(self.program.process.pid, number)

    async def names(self, *, token: str | None = None) -> list[str]:
        """Return the tools it lists; whatever is no proper list fails, and so does a wait without end."""
        async with asyncio.timeout(10):
            answer = await self.ask("tools/list", token=token, judged=False)
        assert answer.status == 200
        return answer.names

    async def purge(self, method: str = "tools/list") -> None:
        code, said = await self.admin("/purge", {"upstream": "alpha", "method": method})
        assert (code, said["purged"][0]["method"]) == (200, method)

    async def linked(self, state: str = "up") -> None:
        while (await self.admin("/status.json"))[1]["cache"]["redis"] != state:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.02)


@dataclass
class House:
    """The whole arrangement."""

    redis: RedisServer
    alpha: ScriptedUpstream
    processes: tuple[Process, ...]

    async def one_cache(self) -> None:
        """Wait until what one of them fetched is answered by all of them from the cache."""
        for one in self.processes:
            await one.linked()
        while not all([await _hits(one) for one in self.processes]):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)

    async def becomes(self, version: str, *, told_by: Process) -> None:
        """Change the list, and return when the change has been told."""
        self.alpha.tools = [tool(version)]
        await told_by.purge()


async def _hits(one: Process) -> bool:
    answer = await one.ask("tools/list", judged=False)
    return (answer.header("mcp-gateway-cache") or "").startswith("hit")


async def personal(exchange: Exchange) -> None:
    """Answer a read with the caller's own, and privately."""
    whose = exchange.received.header("authorization")
    contents = [{"uri": exchange.received.params["uri"], "text": f"for {whose}"}]
    await result({"contents": contents, "ttlMs": 60_000, "cacheScope": "private"})(exchange)


@contextmanager
def process(redis: RedisServer, alpha: ScriptedUpstream) -> Iterator[Process]:
    """Run one more of them."""
    more = f"cache: {{redis: '{redis.url}', redis_timeout: 200ms}}\nsecrets: {{keys: [0123456789abcdef-key]}}"
    with gateway(f"{{alpha: {{url: '{alpha.url}', auth: forward}}}}", more) as running:
        yield Process(Addresses((running.endpoint,), running.admin), running.program)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    """Run three gateways, started at once, for all tests of this file."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server())
        alpha = await stack.enter_async_context(ScriptedUpstream(tools=[tool("a")]))
        starting = [process(redis, alpha) for _ in range(3)]
        with ExitStack() as running:
            entered = (asyncio.to_thread(running.enter_context, one) for one in starting)
            yield House(redis, alpha, tuple(await asyncio.gather(*entered)))


@pytest_asyncio.fixture(loop_scope="module")
async def three(house: House) -> AsyncIterator[House]:
    """Return them as one cache that has forgotten everything, in front of a server nobody has asked."""
    house.alpha.reset()
    house.alpha.tools, house.alpha.scope = [tool("a")], "public"
    house.alpha.on("resources/read", personal)
    for one in house.processes:
        await one.linked()
    await house.processes[0].admin("/purge", {"all": True})
    house.alpha.requests.clear()
    yield house


class Load:
    """Clients that ask one process after the other, and know which version was told before each question."""

    def __init__(self, house: House, clients: int = 3) -> None:
        self.told = 0
        self.answers = 0
        self._house = house
        self._done = asyncio.Event()
        self._clients = clients

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        await asyncio.gather(*self._tasks)

    async def change(self, told_by: Process) -> None:
        """Change the list, and from when it was told accept no other."""
        version = self.told + 1
        await self._house.becomes(f"v{version}", told_by=told_by)
        self.told = version

    async def more(self, answers: int = 20) -> None:
        """Wait until so many more were answered."""
        wanted = self.answers + answers
        while self.answers < wanted:
            await asyncio.sleep(0.005)
            for task in self._tasks:
                if task.done():
                    task.result()

    async def _client(self, first: int) -> None:
        for turn in itertools.count(first):
            if self._done.is_set():
                return
            known = self.told
            (name,) = await self._house.processes[turn % 3].names()
            assert int(name.removeprefix("alpha__v")) >= known
            self.answers += 1
            await asyncio.sleep(0.005)  # lest the load itself be what everybody waits for


# One cache


async def test_a_cold_storm_on_all_of_them_costs_a_fetch_each_at_most(three: House) -> None:
    """And afterwards none, whoever asks whom (B51)."""
    storm = (one.names() for one in three.processes for _ in range(20))
    assert {tuple(names) for names in await asyncio.gather(*storm)} == {("alpha__a",)}
    assert 1 <= len(three.alpha.seen("tools/list")) <= 3
    three.alpha.requests.clear()
    for one in three.processes:
        for token in (None, ANN, BOB):
            assert await one.names(token=token) == ["alpha__a"]
    assert three.alpha.seen("tools/list") == []


async def test_a_private_answer_stays_with_its_token_and_its_process(three: House) -> None:
    """Whoever else asks, wherever, gets his own (B08)."""
    for _ in range(2):
        for one in three.processes:
            for token in (ANN, BOB):
                read = await one.ask("resources/read", GUIDE, token=token)
                assert read.result["contents"][0]["text"] == f"for Bearer {token}"
    fetched = [received.header("authorization") for received in three.alpha.seen("resources/read")]
    assert sorted(map(str, fetched)) == [f"Bearer {ANN}"] * 3 + [f"Bearer {BOB}"] * 3
    for key in await three.redis.keys():
        assert "TOK" not in key


# One truth


async def test_a_client_that_goes_round_sees_no_old_list_once_anybody_was_told(three: House) -> None:
    """Change after change, told by one after the other, while others ask."""
    await three.becomes("v0", told_by=three.processes[0])
    async with Load(three) as load:
        for number in range(10):
            await load.change(three.processes[number % 3])
            for one in three.processes:
                assert await one.names() == [f"alpha__v{load.told}"]
        await load.more()


async def freeze(house: House, load: Load) -> None:
    house.redis.freeze()
    try:
        await load.change(house.processes[0])
        for one in house.processes:
            await one.linked("down")
        await load.more()
    finally:
        house.redis.thaw()


async def kill(house: House, load: Load) -> None:
    await house.redis.kill()
    await load.change(house.processes[0])
    for one in house.processes:
        await one.linked("down")
    await load.more()
    await house.redis.begin()


async def flush(house: House, load: Load) -> None:
    await house.redis.ask("FLUSHALL")


async def spoil_types(house: House, load: Load) -> None:
    await house.redis.ask("EVAL", WRONG_TYPES, 0)


async def spoil_values(house: House, load: Load) -> None:
    await house.redis.ask("EVAL", WRONG_VALUES, 0)


Trouble = Callable[[House, Load], Awaitable[None]]


@pytest.mark.parametrize("trouble", [freeze, kill, flush, spoil_types, spoil_values])
async def test_no_trouble_of_redis_fails_a_request_or_brings_the_old_back(
    three: House, trouble: Trouble
) -> None:
    """Under load, with changes before, meanwhile and after; then it is one cache again, by itself (B51)."""
    await three.becomes("v0", told_by=three.processes[0])
    async with Load(three) as load:
        await load.more()
        await trouble(three, load)
        await load.more()
        await load.change(three.processes[2])
        await three.one_cache()
        await load.more()
    three.alpha.requests.clear()
    for one in three.processes:
        await one.names()
    assert three.alpha.seen("tools/list") == []
    assert [one.program.process.poll() for one in three.processes] == [None] * 3


async def test_a_process_that_slept_through_a_change_wakes_up_without_the_old(three: House) -> None:
    """Questions lay on its sockets when it woke, before it could have heard anything."""
    await three.one_cache()
    sleeper, other, _ = three.processes
    sleeper.signal(signal.SIGSTOP)
    try:
        await three.becomes("b", told_by=other)
        waiting = [asyncio.create_task(sleeper.names()) for _ in range(10)]
        assert await other.names() == ["alpha__b"]
    finally:
        sleeper.signal(signal.SIGCONT)
    assert {tuple(names) for names in await asyncio.gather(*waiting)} == {("alpha__b",)}
    await three.one_cache()


async def test_a_process_that_dies_in_a_fetch_delays_nobody(three: House) -> None:
    """The others ask for themselves, keep what they get, and tell each other of changes."""
    never = asyncio.Event()
    arrived = asyncio.Event()

    async def first_hangs(exchange: Exchange) -> None:
        if not arrived.is_set():
            arrived.set()
            await never.wait()
        await result({"tools": three.alpha.tools, "ttlMs": 60_000, "cacheScope": "public"})(exchange)

    with ExitStack() as stack:
        doomed = await asyncio.to_thread(stack.enter_context, process(three.redis, three.alpha))
        await doomed.linked()
        three.alpha.on("tools/list", first_hangs)
        asked = asyncio.create_task(doomed.ask("tools/list"))
        await arrived.wait()
        doomed.signal(signal.SIGKILL)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asked
        one, two, _ = three.processes
        assert await one.names() == await two.names() == ["alpha__a"]
        await three.becomes("b", told_by=one)
        for each in three.processes:
            assert await each.names() == ["alpha__b"]


# One stream


@contextmanager
def following(redis: RedisServer, alpha: ScriptedUpstream) -> Iterator[Process]:
    """Run a process that shares the stream of an upstream which sees the gateway's own credential."""
    more = (
        f"cache: {{redis: '{redis.url}', redis_timeout: 500ms}}\n"
        "secrets: {keys: [0123456789abcdef-key]}\n"
        "subscriptions: {lease: 1s, retry: 100ms, acknowledge: 15s}"
    )
    with gateway(f"{{alpha: '{alpha.url}'}}", more) as running:
        yield Process(Addresses((running.endpoint,), running.admin), running.program)


async def holder_of(alpha: ScriptedUpstream, processes: Iterable[Process]) -> Process:
    """Wait until there is one stream, and return who holds it, as its metrics say."""
    while True:
        holding = [one for one in processes if await counted(one, "upstream_listens{") == 1]
        if len(holding) == len(alpha.listens) == 1:
            return holding[0]
        await asyncio.sleep(0.02)


async def counted(one: Process, sample: str) -> float:
    """Return the value of the metric line that begins so."""
    assert one.addresses.admin is not None
    text = await asyncio.to_thread(text_of, f"{one.addresses.admin}/metrics")
    found = [line for line in text.splitlines() if line.startswith(f"mcp_gateway_{sample}")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest_asyncio.fixture(loop_scope="module")
async def sharers(house: House) -> AsyncIterator[tuple[ScriptedUpstream, list[Process], ExitStack]]:
    """Run three processes that share the stream of an upstream of their own; whoever holds it is first."""
    async with ScriptedUpstream(tools=[tool("a")], resources=[{"uri": "a:1", "name": "one"}]) as alpha:
        with ExitStack() as stack:
            starting = [following(house.redis, alpha) for _ in range(3)]
            entered = (asyncio.to_thread(stack.enter_context, one) for one in starting)
            processes = list(await asyncio.gather(*entered))
            holder = await holder_of(alpha, processes)
            yield alpha, sorted(processes, key=lambda one: one is not holder), stack


Sharers = tuple[ScriptedUpstream, list[Process], ExitStack]


async def test_a_holder_that_is_killed_is_replaced(sharers: Sharers) -> None:
    """The next change is heard by the clients of the others, and what was missed is; one stream remains."""
    alpha, (holder, *others), _ = sharers
    async with AsyncExitStack() as clients:
        streams = [await clients.enter_async_context(listening(one, TOOLS)) for one in others]
        for one in others:
            assert await one.names() == ["alpha__a"]
        await alpha.notify(TOOLS_CHANGED)
        for stream in streams:
            assert await told(stream) == (TOOLS_CHANGED, None)
        for one in others:
            await one.names()
        holder.signal(signal.SIGKILL)
        await alpha.unlistened()
        alpha.tools = [tool("missed")]
        for stream, one in zip(streams, others, strict=True):
            assert await told(stream) == (TOOLS_CHANGED, None)
            assert await one.names() == ["alpha__missed"]
        await holder_of(alpha, others)
        alpha.tools = [tool("next")]
        await alpha.notify(TOOLS_CHANGED)
        for stream, one in zip(streams, others, strict=True):
            assert await told(stream) == (TOOLS_CHANGED, None)
            assert await one.names() == ["alpha__next"]


async def test_a_holder_that_sleeps_is_replaced_and_makes_no_trouble_when_it_wakes(sharers: Sharers) -> None:
    """It says nothing in the others' name any more, hears of them again, and its own clients know all."""
    alpha, (holder, *others), _ = sharers
    async with AsyncExitStack() as clients:
        streams = [await clients.enter_async_context(listening(one, TOOLS)) for one in (*others, holder)]
        for one in (holder, *others):
            await one.names()
        (asleep,) = alpha.listens
        holder.signal(signal.SIGSTOP)
        try:
            await alpha.listening(2)
            alpha.tools = [tool("b")]
            await alpha.listens[-1].notify(TOOLS_CHANGED)
            for stream, one in zip(streams, others, strict=False):
                assert await told(stream) == (TOOLS_CHANGED, None)
                assert await one.names() == ["alpha__b"]
            await asleep.notify(TOOLS_CHANGED)
        finally:
            holder.signal(signal.SIGCONT)
        assert await told(streams[-1]) == (TOOLS_CHANGED, None)
        assert await holder.names() == ["alpha__b"]
        assert await holder_of(alpha, (holder, *others)) in others
        alpha.tools = [tool("c")]
        await alpha.notify(TOOLS_CHANGED)
        for stream, one in zip(streams, (*others, holder), strict=True):
            while (await one.names()) != ["alpha__c"]:
                assert await told(stream) == (TOOLS_CHANGED, None)
