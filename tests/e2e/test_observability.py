"""What a gateway leaves behind of a request, as a process: the line in its log, the spans at a collector."""

import asyncio
import json
import signal

import pytest

from gateway.server import Addresses
from tests.support.collector import Collector
from tests.support.processes import gateway
from tests.support.running import Reachable

CONFIG = """
log: {{format: json}}
tracing: {{otlp: "{collector}", service_name: edge}}
"""


@pytest.mark.timeout(90)  # three processes start first
async def test_the_last_lines_and_spans_are_there_when_the_process_has_ended(demo_upstreams: str) -> None:
    """Both wait for a moment to be written with others, but not beyond the end."""
    async with Collector() as collector:
        with gateway(demo_upstreams, CONFIG.format(collector=collector.url)) as running:
            reachable = Reachable(Addresses((running.endpoint.removesuffix("/mcp"),), None))
            answer = await reachable.ask("tools/list")
            running.program.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(running.program.wait, 15) == 0
            records = [json.loads(line) for line in running.program.written().splitlines() if line[:1] == "{"]
    (line,) = [one for one in records if one.get("logger") == "gateway.access"]
    assert (line["request"], line["outcome"]) == (answer.header("x-request-id"), "ok")
    (front,) = [span for span in collector.spans if span.kind == "server"]
    assert (front.name, front.trace) == ("tools/list", line["trace"])
    assert collector.resource["service.name"] == "edge"
