"""A real Prometheus scrapes a gateway: numbers are exact, rules work, and an alert fires when it should."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from gateway.server import Addresses
from tests.deploy.test_monitoring import ALERTS, RECORDED, shown
from tests.support.processes import Program, RunningGateway, free_port, gateway, start, wait_for_port
from tests.support.prometheus import Prometheus, prometheus
from tests.support.running import Reachable

pytestmark = [pytest.mark.timeout(120)]

CALL = {"name": "clock__convert_unit", "arguments": {"value": 1, "unit": "km", "to": "m"}}


@dataclass
class House:
    """A gateway with two upstreams, one of which can be stopped, and who watches it."""

    gateway: RunningGateway
    monitor: Prometheus
    clock_port: int
    clock: Program

    def ask(self, method: str, params: dict[str, object] | None = None) -> None:
        client = Reachable(Addresses((self.gateway.endpoint,), self.gateway.admin))
        assert asyncio.run(client.ask(method, params)).result

    def asking_until_there_is_any(self, found: list[float]) -> bool:
        """Whether there are values; a rate takes two scrapes with something between them."""
        if not found:
            self.ask("tools/list")
            self.ask("tools/call", CALL)
        return bool(found)

    def stop_clock(self) -> None:
        self.clock.process.kill()
        self.clock.close()

    def start_clock(self) -> None:
        self.clock = start("deploy.demo.clock", "--port", str(self.clock_port))
        wait_for_port(self.clock_port, self.clock)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    notes_port, clock_port = free_port(), free_port()
    upstreams = {
        name: f"http://127.0.0.1:{port}/mcp" for name, port in (("notes", notes_port), ("clock", clock_port))
    }
    with ExitStack() as stack:
        notes = start("deploy.demo.notes", "--port", str(notes_port))
        stack.callback(notes.close)
        clock = start("deploy.demo.clock", "--port", str(clock_port))
        stack.callback(clock.close)
        wait_for_port(notes_port, notes)
        wait_for_port(clock_port, clock)
        running = stack.enter_context(gateway(json.dumps(upstreams)))
        monitor = stack.enter_context(prometheus(urlsplit(running.admin).netloc))
        there = House(running, monitor, clock_port, clock)
        yield there
        there.stop_clock()


def test_what_is_scraped_is_what_happened(house: House) -> None:
    """To the last request, and with the labels that the table promises."""
    asked = (
        'sum(mcp_server_operation_duration_seconds_count{mcp_method_name="%s",error_type="%s"}) or vector(0)'
    )
    before = [house.monitor.query(asked % of)[0][1] for of in (("tools/list", ""), ("tools/call", ""))]
    for _ in range(7):
        house.ask("tools/list")
        house.ask("tools/call", CALL)
    house.monitor.until(asked % ("tools/list", ""), lambda found: found == [before[0] + 7])
    house.monitor.until(asked % ("tools/call", ""), lambda found: found == [before[1] + 7])
    known = house.monitor.query("mcp_gateway_upstream_info")
    assert {labels["upstream"] for labels, _ in known} == {"notes", "clock"}
    assert house.monitor.query('up{job="mcp-gateway"}')[0][1] == 1


def test_the_shipped_rules_are_worked_out(house: House) -> None:
    """None has an error; those that traffic makes have values."""
    house.ask("tools/list")
    rules = house.monitor.rules_once_evaluated()
    assert {rule["name"] for rule in rules} == {*RECORDED, *(alert["alert"] for alert in ALERTS)}
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    for name in RECORDED:
        house.monitor.until(name, house.asking_until_there_is_any)


def test_every_query_of_the_dashboard_is_answered(house: House) -> None:
    """What nothing has happened to yet is empty; what every gateway has is not."""
    for counted in ("mcp_client_operation_duration_seconds_count", "mcp_gateway_cache_lookups_total"):
        house.monitor.until(f"sum(rate({counted}[1m])) > 0", house.asking_until_there_is_any)
    empty = {what for what, query in shown() if not house.monitor.query(query)}
    overview = {f"{panel} A" for panel in ("Requests", "Failing", "p95", "Hits", "Streams of clients")}
    upstreams = {f"Upstreams {ref}" for ref in "ABCDEFGH"}
    others = {f"{panel} A" for panel in ("Requests by method", "Calls", "Lists", "Lookups", "CPU", "Memory")}
    assert not (overview | upstreams | others) & empty


def test_an_upstream_that_dies_fires_its_alert_until_it_is_back(house: House) -> None:
    """The alert names it and says what to do; the other upstream's is quiet."""
    firing = 'ALERTS{alertname="McpGatewayUpstreamDown",alertstate="firing",upstream="%s"}'
    house.monitor.until(firing % "clock", lambda found: found == [])
    house.stop_clock()
    house.monitor.until(firing % "clock", lambda found: found == [1.0])
    assert house.monitor.query(firing % "notes") == []
    told = next(
        one for one in house.monitor.alerts() if one["labels"].get("alertname") == "McpGatewayUpstreamDown"
    )
    assert told["annotations"]["summary"] == "The upstream clock does not answer"
    assert told["labels"]["severity"] == "critical"
    house.start_clock()
    house.monitor.until(firing % "clock", lambda found: found == [])


def test_nothing_fires_where_all_is_well(house: House) -> None:
    """Even though every alert fires at once here; but what was failed a moment ago is remembered."""
    house.monitor.until("min(mcp_gateway_upstream_up)", lambda found: found == [1.0])
    house.monitor.until('ALERTS{alertname=~"McpGatewayUpstream(Down|OutOfReach)"}', lambda found: found == [])
    late = {"McpGatewayUpstreamFlaps", "McpGatewayUpstreamFails", "McpGatewayRequestsFail"}
    assert {one["labels"]["alertname"] for one in house.monitor.alerts()} <= late
