"""A cheap load: raw keep-alive connections that send prepared requests again and again, or once all together.

Reads a Job as JSON from stdin and prints what it measured as JSON. It looks at nothing but the status line
and the end of each answer, so that its own work is small beside the server's, and the same for whatever is
measured.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median
from typing import TypeAlias, cast
from urllib.parse import urlsplit

import uvloop

WARM_UP_SECONDS = 0.3
PATIENCE_SECONDS = 30.0

Prepared: TypeAlias = tuple[int, bytes]
"""The place of a request in the job, and its bytes."""


@dataclass(frozen=True)
class Job:
    """What to send where, over how many connections, for how long; 0 seconds: once each, all at one moment.

    The first connection goes to the first of `urls`, the second to the second, and so on around. Connection
    i of n sends requests i, i + n, ... in turn, or the only ones there are when there are fewer than n.
    """

    urls: list[str]
    requests: list[dict[str, object]]
    connections: int
    seconds: float


@dataclass
class Tally:
    """What all connections counted; `seconds` by the place of the request."""

    seconds: list[list[float]]
    deadline: float = 0.0
    measuring: bool = False
    answers: int = 0
    bytes: int = 0
    last: float = 0.0
    errors: list[str] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One keep-alive connection; the next request leaves when the answer is whole."""

    def __init__(self, requests: Sequence[Prepared], tally: Tally) -> None:
        self._requests: Iterator[Prepared] = cycle(requests)
        self._tally = tally
        self._head, self._missing, self._sent, self._place = b"", -1, 0.0, 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def send(self) -> None:
        self._place, request = next(self._requests)
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._tally.bytes += len(data)
        if self._missing < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, rest = self._head[:end].lower(), len(self._head) - end - 4
            self._head = b""
            at = head.find(b"content-length:")
            if at < 0 or not head.startswith(b"http/1.1 200"):
                self._fail(head.decode("latin-1"))
                return
            self._missing = int(head[at + 15 :].split(b"\r\n", 1)[0]) - rest
        else:
            self._missing -= len(data)
        if self._missing == 0:
            self._answered()

    def _answered(self) -> None:
        now, self._missing = time.perf_counter(), -1
        self._tally.answers += 1
        self._tally.last = now
        if self._tally.measuring:
            self._tally.seconds[self._place].append(now - self._sent)
        if now < self._tally.deadline:
            self.send()
        else:
            self._transport.close()

    def _fail(self, reason: str) -> None:
        self._tally.errors.append(reason)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._missing > 0 or exc is not None:
            self._tally.errors.append(f"connection lost: {exc}")
        if not self.over.done():
            self.over.set_result(None)


def prepared(job: Job) -> list[Prepared]:
    """Return the bytes of every request; the Host is that of the first URL, which nobody measured minds."""
    host = urlsplit(job.urls[0]).netloc
    ready = []
    for place, request in enumerate(job.requests):
        body = str(request["body"]).encode()
        headers = cast(dict[str, str], request["headers"])
        headers = {**headers, "host": host, "content-length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        ready.append((place, f"POST {request['path']} HTTP/1.1\r\n{lines}\r\n".encode() + body))
    return ready


async def load(job: Job) -> dict[str, object]:
    """Run one job and return its figures."""
    requests, loop = prepared(job), asyncio.get_running_loop()
    tally = Tally([[] for _ in requests])
    connections: list[Connection] = []
    for number in range(job.connections):
        url = urlsplit(job.urls[number % len(job.urls)])
        own = requests[number :: job.connections] or [requests[number % len(requests)]]
        _, connection = await loop.create_connection(
            lambda own=own: Connection(own, tally),  # type: ignore[misc]  # mypy infers no lambda with a default
            url.hostname or "",
            url.port or 80,
        )
        connections.append(connection)
    over = asyncio.gather(*(connection.over for connection in connections))
    once = job.seconds == 0
    tally.measuring, started, bytes_before = once, time.perf_counter(), 0
    tally.deadline = started + (0.0 if once else WARM_UP_SECONDS + job.seconds)
    for connection in connections:
        connection.send()
    if not once:
        await asyncio.sleep(WARM_UP_SECONDS)
        tally.measuring, started, bytes_before = True, time.perf_counter(), tally.bytes
    await asyncio.wait_for(over, job.seconds + PATIENCE_SECONDS)
    took = (tally.last if once else time.perf_counter()) - started
    ordered = sorted(seconds for each in tally.seconds for seconds in each) or [0.0]
    return {
        "rate": len(ordered) / took,
        "answers": tally.answers,
        "megabytes_per_second": (tally.bytes - bytes_before) / took / 1e6,
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000,
        "took_ms": took * 1000,
        "p50_ms_each": [median(each or [0.0]) * 1000 for each in tally.seconds],
        "errors": tally.errors[:3],
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(Job(**json.load(sys.stdin))))))
