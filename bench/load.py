"""A cheap load: raw keep-alive connections that send one prepared request again and again.

Reads a Job as JSON from stdin and prints what it measured as
JSON. It looks at nothing but the status line and the end of each answer, so that its own work is small
beside the server's, and the same for whatever is measured.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import uvloop

WARM_UP_SECONDS = 0.3


@dataclass(frozen=True)
class Job:
    """What to send where, over how many connections, for how long."""

    url: str
    headers: dict[str, str]
    body: str
    connections: int
    seconds: float


@dataclass
class Tally:
    """What all connections counted."""

    deadline: float = 0.0
    measuring: bool = False
    seconds: list[float] = field(default_factory=list)
    answers: int = 0
    bytes: int = 0
    errors: list[str] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One keep-alive connection; the next request leaves when the answer is whole."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self._request, self._tally = request, tally
        self._head, self._missing, self._sent = b"", -1, 0.0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)

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
        if self._tally.measuring:
            self._tally.seconds.append(now - self._sent)
        if now < self._tally.deadline:
            self._send()
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


async def load(job: Job) -> dict[str, object]:
    """Run one job and return its figures."""
    url = urlsplit(job.url)
    body = job.body.encode()
    headers = {**job.headers, "host": url.netloc, "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = f"POST {url.path or '/'} HTTP/1.1\r\n{lines}\r\n".encode() + body
    tally, loop = Tally(), asyncio.get_running_loop()
    tally.deadline = time.perf_counter() + WARM_UP_SECONDS + job.seconds
    connections = []
    for _ in range(job.connections):
        _, connection = await loop.create_connection(
            lambda: Connection(request, tally), url.hostname or "", url.port or 80
        )
        connections.append(connection)
    await asyncio.sleep(WARM_UP_SECONDS)
    tally.measuring, started, bytes_before = True, time.perf_counter(), tally.bytes
    await asyncio.wait_for(asyncio.gather(*(c.over for c in connections)), job.seconds + 30)
    took = time.perf_counter() - started
    ordered = sorted(tally.seconds) or [0.0]
    return {
        "rate": len(tally.seconds) / took,
        "answers": tally.answers,
        "megabytes_per_second": (tally.bytes - bytes_before) / took / 1e6,
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000,
        "errors": tally.errors[:3],
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(Job(**json.load(sys.stdin))))))
