"""What is asked of workers over their unix sockets, by a real process and a real socket in its place."""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from gateway import status
from gateway.core.explain import Unanswerable
from gateway.core.inventory import Search
from gateway.status import Status
from gateway.supervisor.asking import catalogue, readiness, statuses
from gateway.supervisor.line import Order
from gateway.supervisor.worker import Worker, start
from gateway.support.tasks import Background

WAITS = "import socket, sys; line = socket.socket(fileno=int(sys.argv[2]))\nwhile line.recv(4096): pass"
LARGE = 2**21
"""Bytes that no socket takes at once."""


@asynccontextmanager
async def answering(folder: Path, answer: bytes, *, short: bool = False) -> AsyncIterator[Worker]:
    """Return a worker that answers everything so; one that is `short` ends before it is through."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(answer)
        await response.prepare(request)
        await response.write(answer[: len(answer) // 2])
        if short:
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(answer[len(answer) // 2 :])
        return response

    path = str(folder / "1.sock")
    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.UnixSite(runner, path).start()
    background = Background()
    order = Order(0, [], str(folder), path, str(folder / "1.ledger"), 1, "")
    worker = await start([sys.executable, "-c", WAITS], order, background)
    try:
        yield worker
    finally:
        worker.signal(signal.SIGKILL)
        await worker.ended.wait()
        await runner.cleanup()
        await background.close(5)


def large_status() -> bytes:
    workers = [status.Worker(number=number, state="away", restarts=0) for number in range(1, LARGE // 40)]
    return msgspec.json.encode(Status(version="1", phase="ready", now=2.0, started=1.0, workers=workers))


async def test_a_long_answer_is_read_to_its_end(tmp_path: Path) -> None:
    """It comes in pieces: a gateway of many upstreams has more to say than a socket holds."""
    async with answering(tmp_path, large_status()) as worker:
        [said] = await statuses([worker])
        assert said.workers is not None
        assert len(said.workers) == LARGE // 40 - 1


async def test_so_is_one_to_a_probe(tmp_path: Path) -> None:
    answer = {"status": "ready", "upstreams": {"a": "u" * LARGE}}
    async with answering(tmp_path, msgspec.json.encode(answer)) as worker:
        assert await readiness([worker]) == [answer]


async def test_of_a_worker_that_ends_in_the_middle_nothing_is_told(tmp_path: Path) -> None:
    """Neither half of its answer, nor that something is wrong with all."""
    async with answering(tmp_path, large_status(), short=True) as worker:
        assert await statuses([worker]) == []
        assert await readiness([worker]) == []
        with pytest.raises(Unanswerable, match="does not answer"):
            await catalogue(worker, None, Search("", None, None, 0, 50), read=False)
