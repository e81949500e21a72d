"""The demo's two servers and a gateway in front of them: processes, shared by the tests of a file."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.processes import RunningGateway, free_port, gateway, start, wait_for_port


@pytest.fixture(scope="module")
def demo_upstreams() -> Iterator[str]:
    """Run notes and clock and yield the upstreams mapping of a config file."""
    with ExitStack() as stack:
        urls = {}
        for name in ("notes", "clock"):
            port = free_port()
            program = start(f"deploy.demo.{name}", "--port", str(port))
            stack.callback(program.close)
            wait_for_port(port, program)
            urls[name] = f"http://127.0.0.1:{port}/mcp"
        yield "{" + ", ".join(f"{name}: '{url}'" for name, url in urls.items()) + "}"


@pytest.fixture(scope="module")
def demo(demo_upstreams: str) -> Iterator[RunningGateway]:
    """Run one gateway for all tests of a file."""
    with gateway(demo_upstreams) as running:
        yield running
