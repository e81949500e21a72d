"""Holds many event streams open, cheaply, and says when all of them have heard.

Reads orders as lines of JSON from stdin and prints one line of JSON for each. It looks at nothing but the
methods and URIs of what it hears, so that its own work is small beside the server's, and the same for
whatever is measured.
"""

import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

AT_ONCE = 100
"""How many connections are opened side by side."""

PATIENCE_SECONDS = 120.0
QUIET_SECONDS = 1.0

_MARK = b"\ndata: "
_URI = re.compile(rb'"uri":"([^"]+)"')


@dataclass
class Hearing:
    """What all streams heard together."""

    target: int = 1
    missing: int = 0
    last: float = 0.0
    all_have_it: asyncio.Event = field(default_factory=asyncio.Event)
    lost: list[str] = field(default_factory=list)


class Stream(asyncio.Protocol):
    """One stream; `heard` counts its events, the acknowledgement first."""

    __slots__ = ("_hearing", "_request", "_tail", "heard", "transport", "uris")

    def __init__(self, request: bytes, hearing: Hearing, *, uris: bool) -> None:
        self._request = request
        self._hearing = hearing
        self._tail = b""
        self.heard = 0
        self.uris: dict[bytes, float] | None = {} if uris else None
        """When each URI was last heard of."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        hearing = self._hearing
        if self.uris is not None:
            data = self._tail + data
            whole = data.rfind(b"\n\n") + 1
            self._tail, data = data[whole:], data[:whole]
            now = time.perf_counter()
            for uri in _URI.findall(data):
                self.uris[uri] = now
            marks = data.count(_MARK)
        else:
            data = self._tail + data
            marks = data.count(_MARK)
            self._tail = data[1 - len(_MARK) :]
        before, self.heard = self.heard, self.heard + marks
        if before < hearing.target <= self.heard:
            hearing.missing -= 1
            if not hearing.missing:
                hearing.last = time.perf_counter()
                hearing.all_have_it.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hearing.lost.append(str(exc))

    def leave(self) -> None:
        """Hang up, which is no loss."""
        self._hearing = Hearing()
        self.transport.close()


class Crowd:
    """All streams of this process."""

    def __init__(self, url: str, requests: list[dict[str, str]]) -> None:
        at = urlsplit(url)
        self._host, self._port = at.hostname or "", at.port or 80
        self._requests = requests
        self._hearing = Hearing()
        self.streams: list[Stream] = []

    async def open(self, count: int, first: int, uris: bool = False) -> dict[str, object]:
        """Open streams, whose requests have ids from `first` on, and wait until all are acknowledged."""
        hearing = self._hearing
        for start in range(first, first + count, AT_ONCE):
            ids = range(start, min(start + AT_ONCE, first + count))
            hearing.target, hearing.missing = 1, len(ids)
            hearing.all_have_it.clear()
            self.streams += await asyncio.gather(*(self._connect(id, uris) for id in ids))
            await self._all_have_it()
        return {"open": len(self.streams), "lost": hearing.lost[:3]}

    async def _connect(self, id: int, uris: bool) -> Stream:
        template = self._requests[id % len(self._requests)]
        body = template["body"].replace('"@"', str(id)).encode()
        head = template["head"] + f"Content-Length: {len(body)}\r\n\r\n"
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(
            lambda: Stream(head.encode() + body, self._hearing, uris=uris), self._host, self._port
        )
        return stream

    async def close(self) -> dict[str, object]:
        streams, self.streams = self.streams, []
        for stream in streams:
            stream.leave()
        return {"closed": len(streams)}

    def arm(self) -> dict[str, object]:
        """Get ready for one more event on every stream."""
        hearing = self._hearing
        hearing.target = self.streams[0].heard + 1
        if any(stream.heard != hearing.target - 1 for stream in self.streams):
            raise SystemExit("some streams have heard more than others")
        hearing.missing = len(self.streams)
        hearing.all_have_it.clear()
        return {}

    async def wait(self) -> dict[str, object]:
        """Return when the last stream had the event."""
        await self._all_have_it()
        return {"at": self._hearing.last, "lost": self._hearing.lost[:3]}

    def stall(self) -> dict[str, object]:
        """Let all streams take nothing any more."""
        for stream in self.streams:
            stream.transport.pause_reading()
        return {}

    async def resume(self) -> dict[str, object]:
        """Let them read again, until nothing more comes."""
        for stream in self.streams:
            stream.transport.resume_reading()
        before = -1
        while (now := sum(stream.heard for stream in self.streams)) != before:
            before = now
            await asyncio.sleep(QUIET_SECONDS)
        return self.heard()

    async def until(self, last: dict[str, float]) -> dict[str, object]:
        """Wait until all streams have heard of every URI no sooner than this; return when that was."""
        wanted = {uri.encode(): at for uri, at in last.items()}
        give_up = time.perf_counter() + PATIENCE_SECONDS
        while behind := sum(not self._knows(stream, wanted) for stream in self.streams):
            if time.perf_counter() > give_up:
                raise SystemExit(f"{behind} streams missed a change")
            await asyncio.sleep(0.01)
        done = max(at for stream in self.streams for at in (stream.uris or {}).values())
        return {"at": done, "lost": self._hearing.lost[:3]}

    def heard(self) -> dict[str, object]:
        """Return how many notices each stream had, the acknowledgement aside."""
        return {"heard": [stream.heard - 1 for stream in self.streams]}

    @staticmethod
    def _knows(stream: Stream, wanted: dict[bytes, float]) -> bool:
        heard = stream.uris or {}
        return all(heard.get(uri, 0.0) >= at for uri, at in wanted.items())

    async def _all_have_it(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._hearing.all_have_it.wait()


async def obey() -> None:
    loop = asyncio.get_running_loop()
    crowd: Crowd | None = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order: dict[str, Any] = json.loads(line)
        name = order.pop("do")
        if name == "connect":
            crowd = Crowd(**order)
            done: dict[str, object] = {}
        else:
            came = getattr(crowd, name)(**order)
            done = came if isinstance(came, dict) else await came
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    uvloop.run(obey())
