"""What docker-compose.yml describes, run: two gateways behind HAProxy, on one Redis, with the demo's servers.

The files are the shipped ones. Only the longest silence is a twentieth of the shipped one everywhere, so that
nobody has to wait for it.
"""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from gateway.config import Limits
from gateway.server import Addresses
from tests.support.compose import Service, needs_compose, topology
from tests.support.legacy_client import Exchange as LegacyExchange
from tests.support.legacy_client import LegacyClient
from tests.support.listening import TOOLS, TOOLS_CHANGED, UPDATED, listening, told, uris
from tests.support.processes import ROOT, text_of
from tests.support.running import Exchange, Reachable

pytestmark = [pytest.mark.timeout(120), needs_compose]

HOST = "localhost:8080"
"""What a client calls the balancer, which publishes its port there."""
GATEWAYS = ("gateway-1", "gateway-2")
GUIDE = {"uri": "notes+note://guide"}
INDEX = "notes+note://index"
KILOMETRE = {"name": "clock__convert_unit", "arguments": {"value": 1, "unit": "km", "to": "m"}}
SCALED: Mapping[str, list[tuple[str, str]]] = {
    "balancer": [("timeout client 60s", "timeout client 3s"), ("timeout server 60s", "timeout server 3s")],
    **{name: [("log: {format: json}", "limits: {keep_alive: 750ms}")] for name in GATEWAYS},
    "prometheus": [("_interval: 15s", "_interval: 1s")],
}


class Client(Reachable):
    """A client that knows the gateways by the name that the balancer is published under."""

    def __init__(self, service: Service) -> None:
        super().__init__(Addresses((f"http://{service.address}:8080/mcp",), f"http://{service.address}:9090"))

    @asynccontextmanager
    async def open(
        self, method: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Exchange]:
        options["headers"] = {"host": HOST, **(options.get("headers") or {})}
        async with super().open(method, params, **options) as exchange:
            yield exchange

    async def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        answer = await self.ask("tools/call", {"name": name, "arguments": arguments})
        assert answer.status == 200, answer
        return answer.result


class OlderClient(LegacyClient):
    """The same of an older revision."""

    @asynccontextmanager
    async def request(
        self, verb: str, body: bytes, method: str | None, headers: Mapping[str, str | None]
    ) -> AsyncIterator[LegacyExchange]:
        async with super().request(verb, body, method, {"host": HOST, **headers}) as exchange:
            yield exchange


class House:
    """The whole arrangement."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self.services = services
        self.client = Client(services["balancer"])
        self.gateways = {name: Client(services[name]) for name in GATEWAYS}

    def older(self) -> OlderClient:
        return OlderClient(self.client.addresses.endpoints[0])

    async def said_by_balancer(self) -> str:
        return await asyncio.to_thread(text_of, f"http://{self.services['balancer'].address}:8404/metrics")

    async def taken(self, proxy: str) -> list[int]:
        """Return how many requests each gateway was given."""
        said = await self.said_by_balancer()
        counts = (
            re.search(rf'haproxy_server_sessions_total{{proxy="{proxy}",server="{name}"}} (\d+)', said)
            for name in GATEWAYS
        )
        return [int(found[1]) for found in counts if found]

    async def all_up(self) -> None:
        """Wait until the balancer sends requests to both, and both hear each other."""
        up = re.compile(r'haproxy_server_status{proxy="asking",server="gateway-.",state="UP"} 1')
        while len(up.findall(await self.said_by_balancer())) < len(GATEWAYS):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)
        for one in self.gateways.values():
            while (await one.admin("/status.json"))[1]["cache"]["redis"] != "up":  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)

    async def prometheus(self, path: str) -> Any:
        """Return the data of an answer of its API."""
        text = await asyncio.to_thread(text_of, f"http://{self.services['prometheus'].address}:9090{path}")
        return json.loads(text)["data"]

    async def found(self, query: str) -> list[dict[str, Any]]:
        return list((await self.prometheus(f"/api/v1/query?{urlencode({'query': query})}"))["result"])

    async def rules_health(self) -> set[str]:
        """Return how the evaluation of its rules goes, in all words that it has for it."""
        groups = (await self.prometheus("/api/v1/rules"))["groups"]
        return {rule["health"] for group in groups for rule in group["rules"]}

    async def streams(self) -> list[int]:
        """Return how many streams each gateway has open."""
        said = [(await one.admin("/status.json"))[1] for one in self.gateways.values()]
        return [one["load"]["streams"]["open"] for one in said]


@pytest.fixture(scope="module")
def running() -> Iterator[House]:
    with topology(changes=SCALED) as services:
        yield House(services)


@pytest.fixture
async def house(running: House) -> House:
    await running.all_up()
    return running


async def verdict(client: Client, method: str, params: Mapping[str, Any] | None = None) -> str:
    """Return what the cache did: hit, miss or another word."""
    answer = await client.ask(method, params)
    assert answer.status == 200, answer
    return (answer.header("mcp-gateway-cache") or "").partition(";")[0]


# One cache


async def test_what_one_gateway_fetched_both_serve(house: House) -> None:
    """Whichever the balancer asks: there is one fetch."""
    await house.gateways["gateway-1"].admin("/purge", {"all": True})
    found = [await verdict(house.client, "resources/read", GUIDE) for _ in range(6)]
    assert found == ["miss", *["hit"] * 5]
    for gateway in house.gateways.values():
        assert await verdict(gateway, "resources/read", GUIDE) == "hit"


async def test_a_change_is_told_by_both_gateways(house: House) -> None:
    """One of them listens to the server; clients of either hear of it, and find the new list."""
    async with listening(house.client, TOOLS) as one, listening(house.client, TOOLS) as other:
        assert await house.streams() == [1, 1]
        await house.client.call("clock__start_timer", name="tea", minutes=5)
        for stream in (one, other):
            assert await told(stream) == (TOOLS_CHANGED, None)
        for gateway in house.gateways.values():
            assert "clock__stop_timer" in (await gateway.ask("tools/list")).names
        await house.client.call("clock__stop_timer", name="tea")
        for stream in (one, other):
            assert await told(stream) == (TOOLS_CHANGED, None)
        for gateway in house.gateways.values():
            assert "clock__stop_timer" not in (await gateway.ask("tools/list")).names


# Long streams


def test_the_balancer_is_four_times_as_patient_as_a_gateway_is_silent() -> None:
    """As the test below, but for the numbers as they are shipped."""
    shipped = (ROOT / "deploy" / "compose" / "haproxy" / "haproxy.cfg").read_text()
    waits = {int(wait) for wait in re.findall(r"timeout (?:client|server) (\d+)s", shipped)}
    assert waits == {4 * Limits().keep_alive}


async def test_quiet_streams_and_slow_calls_outlive_the_balancers_patience(house: House) -> None:
    """A call takes thrice as long as the balancer bears silence, and a stream has nothing to tell (B19)."""
    async with (
        listening(house.client, uris(INDEX)) as stream,
        house.older() as older,
        older.listen() as standing,
    ):
        notes = len((await house.client.call("notes__search_notes", words=""))["structuredContent"]["result"])
        summary = await house.client.call("notes__summarise_notes", pace=9 / notes)
        assert summary["structuredContent"]["notes"] == notes
        await house.client.call("notes__add_note", title="Late", text="After a long silence.")
        assert await told(stream) == (UPDATED, INDEX)
        await house.client.call("clock__start_timer", name="tea", minutes=5)
        assert ((await standing.next()) or {})["method"] == TOOLS_CHANGED
        await house.client.call("clock__stop_timer", name="tea")


# Older clients


async def test_a_session_of_an_older_client_is_no_gateways_own(house: House) -> None:
    """It is begun at one and goes on at both at once; its stream at one tells what came of the other."""
    async with house.older() as older, older.listen() as standing:
        before = await house.taken("calling")
        results = await asyncio.gather(*(older.result("tools/call", KILOMETRE) for _ in range(8)))
        assert [one["structuredContent"]["value"] for one in results] == [1000] * 8
        assert all(now > then for now, then in zip(await house.taken("calling"), before, strict=True))
        for gateway in house.gateways.values():
            await gateway.call("clock__start_timer", name="tea", minutes=5)
            assert ((await standing.next()) or {})["method"] == TOOLS_CHANGED
            await gateway.call("clock__stop_timer", name="tea")
            assert ((await standing.next()) or {})["method"] == TOOLS_CHANGED


# What watches them


async def test_prometheus_scrapes_the_balancer(house: House) -> None:
    """It tells of both gateways whether it sends them anything."""
    query = 'haproxy_server_status{job="balancer",proxy="asking",state="UP"} == 1'
    while len(found := await house.found(query)) < len(GATEWAYS):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.2)
    assert {one["metric"]["server"] for one in found} == set(GATEWAYS)


async def test_prometheus_scrapes_both_and_works_out_its_rules(house: House) -> None:
    """With the shipped files: each rule is evaluated without an error, each gateway is there by its name."""
    while len(await house.found('up{job="mcp-gateway"} == 1')) < len(GATEWAYS):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.2)
    for name in GATEWAYS:
        instance = f"{house.services[name].address}:9090"
        (one,) = await house.found(
            f'count by (instance) (mcp_gateway_upstream_up{{instance="{instance}"}} == 1)'
        )
        assert one["value"][1] == "2"
    while "unknown" in (health := await house.rules_health()):  # noqa: ASYNC110 - not evaluated yet
        await asyncio.sleep(0.2)
    assert health == {"ok"}


# A configuration that changes


async def test_a_changed_configuration_is_taken_over_and_no_stream_ends(house: House) -> None:
    """From the mounted folder, by itself; the gateways go on to listen where the image says."""
    async with listening(house.client, TOOLS) as one, listening(house.client, TOOLS) as other:
        for name in GATEWAYS:
            file = house.services[name].mounts["/etc/mcp-gateway"] / "gateway.yaml"
            more = "endpoints: {/mcp: {}, /mcp/notes: {upstreams: [notes]}}"
            await asyncio.to_thread(file.write_text, f"{await asyncio.to_thread(file.read_text)}\n{more}\n")
        for gateway in house.gateways.values():
            at = {"path": "/mcp/notes"}
            while (await gateway.ask("tools/list", judged=False, **at)).status == 404:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
            answer = await gateway.ask("tools/list", **at)
            assert answer.names
            assert all(tool.startswith("notes__") for tool in answer.names)
        await house.client.call("clock__start_timer", name="tea", minutes=5)
        for stream in (one, other):
            assert await told(stream) == (TOOLS_CHANGED, None)
        await house.client.call("clock__stop_timer", name="tea")


# A gateway that goes


class Load:
    """Clients that ask through the balancer without a pause, and for whom everything must go well."""

    def __init__(self, *each: Callable[[], Awaitable[None]]) -> None:
        self._each = each
        self._answers = 0
        self._done = asyncio.Event()

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._ask(one)) for one in self._each]
        await self.more()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        await asyncio.gather(*self._tasks)

    async def more(self, answers: int = 40) -> None:
        """Wait until so many more were answered."""
        wanted = self._answers + answers
        while self._answers < wanted:
            await asyncio.sleep(0.005)
            for task in self._tasks:
                if task.done():
                    task.result()

    async def _ask(self, one: Callable[[], Awaitable[None]]) -> None:
        while not self._done.is_set():
            await one()
            self._answers += 1


def asking(house: House) -> list[Callable[[], Awaitable[None]]]:
    """Return what changes nothing: from memory, and by way of a server."""

    async def listed() -> None:
        assert "clock__convert_unit" in (await house.client.ask("tools/list")).names

    async def prompted() -> None:
        answer = await house.client.ask(
            "prompts/get", {"name": "notes__review_notes", "arguments": {"tag": "x"}}
        )
        assert answer.status == 200
        assert answer.result["messages"]

    return [listed, prompted]


async def converted(house: House) -> None:
    assert (await house.client.call(KILOMETRE["name"], **KILOMETRE["arguments"]))["structuredContent"][
        "value"
    ] == 1000


@pytest.mark.parametrize("name", GATEWAYS)
async def test_a_gateway_that_is_killed_fails_nobody_who_asks_and_no_call_after(
    house: House, name: str
) -> None:
    """What only asks is sent again; a call that comes before the balancer noticed goes to the other."""
    service = house.services[name]
    async with house.older() as older, Load(*asking(house)) as load:
        service.signal(signal.SIGKILL)
        assert await asyncio.to_thread(service.ended) == -signal.SIGKILL
        for _ in range(10):
            await converted(house)
        assert (await older.result("tools/call", KILOMETRE))["structuredContent"]["value"] == 1000
        await load.more()
        await asyncio.to_thread(service.start)
        await house.all_up()
        await load.more()


@pytest.mark.parametrize("name", GATEWAYS)
async def test_a_gateway_that_is_stopped_fails_nobody(house: House, name: str) -> None:
    """Calls that run on it are finished, others go to the other; listeners are told that it was all (B50)."""
    service, gateway = house.services[name], house.gateways[name]
    slow = {"name": "notes__summarise_notes", "arguments": {"pace": 0.5}}
    async with listening(gateway, TOOLS) as stream, Load(*asking(house), lambda: converted(house)) as load:
        async with gateway.open("tools/call", slow) as call:
            while (await gateway.admin("/status.json"))[1]["upstreams"]["notes"]["active"] < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            service.signal(signal.SIGTERM)
            assert (await call.answer()).result["structuredContent"]["notes"] >= 3
        assert (await stream.answer()).result["resultType"] == "complete"
        assert await asyncio.to_thread(service.ended) == 0
        await load.more()
        await asyncio.to_thread(service.start)
        await house.all_up()
        await load.more()
