"""Runs the servers of the matrix and one gateway before all of them."""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from mcp.shared.exceptions import MCPDeprecationWarning

from tests.matrix.clients import CLIENTS
from tests.matrix.operations import OPERATIONS, outcome
from tests.support.processes import ROOT, NotReady, RunningGateway, gateway, start, text_of

Cell = tuple[str, str, str]
"""Operation, client and upstream."""
UPSTREAMS = ("modern", "sessions", "sse", "program", "apart", "shared")
ERAS = {name: "modern" if name in ("modern", "program") else "legacy" for name in UPSTREAMS}
_PROGRAM = "tests.support.programs.matrix"


@contextmanager
def matrix_gateway() -> Iterator[RunningGateway]:
    """Run them, and yield the gateway once it has reached every server."""
    with _server() as at:
        upstreams = {
            "modern": {"url": f"{at}/modern/mcp"},
            "sessions": {"url": f"{at}/legacy/mcp"},
            "sse": {"url": f"{at}/sse"},
            "program": _program("modern"),
            "apart": {**_program("legacy"), "era": "legacy", "isolation": "caller"},
            "shared": {**_program("legacy"), "era": "legacy"},
        }
        with gateway(json.dumps(upstreams)) as running:
            _reached(running)
            yield running


def _program(features: str) -> dict[str, object]:
    return {"command": sys.executable, "args": ["-m", _PROGRAM, "stdio", features], "cwd": str(ROOT)}


@contextmanager
def _server() -> Iterator[str]:
    program = start(_PROGRAM, "http", stdout=subprocess.PIPE)
    assert program.process.stdout is not None
    try:
        address = program.process.stdout.readline().strip()
        if not address:
            raise NotReady(program.written())
        yield address
    finally:
        program.process.stdout.close()
        program.close()


def _reached(running: RunningGateway, patience: float = 60.0) -> None:
    give_up = time.monotonic() + patience
    while True:
        status = json.loads(text_of(f"{running.admin}/status.json"))["upstreams"]
        found = {name: one.get("era") for name, one in status.items() if one["state"] == "up"}
        if found == ERAS:
            return
        if time.monotonic() > give_up:
            raise NotReady(f"{status}\n{running.program.written()}")
        time.sleep(0.1)


async def outcomes(endpoint: str, cells: Collection[Cell]) -> dict[Cell, str]:
    """Return what comes of these cells: each client begins once for an operation at all servers.

    Only where an operation leaves something behind in its session does the next one get another.
    """
    warnings.filterwarnings(
        "ignore", category=MCPDeprecationWarning
    )  # of what is deprecated today, much is used
    found: dict[Cell, str] = {}
    for client, opened in CLIENTS.items():
        for name, operation in OPERATIONS.items():
            upstreams = [one for one in UPSTREAMS if (name, client, one) in cells]
            rows = [[one] for one in upstreams] if name in _ONCE else [upstreams] if upstreams else []
            for row in rows:
                async with opened(endpoint) as begun:
                    for upstream in row:
                        begun.heard.forget()
                        found[name, client, upstream] = await outcome(operation, begun, upstream)
    return found


_ONCE = frozenset({"log level"})
