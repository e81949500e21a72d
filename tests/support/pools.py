"""Real upstream pools for tests, pointed at scripted upstreams."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gateway import config
from gateway.protocol.call import Change, Notice, Request, UpstreamName
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.pool import Pace, UpstreamPool
from tests.support.scripted import ScriptedUpstream

QUICK = Pace(first=0.01, longest=0.02, patience=2.0, gap=0.0)
"""Probes follow each other at once, so that no test waits for a back-off."""
ALPHA = UpstreamName("alpha")


class Watched:
    """A running pool with what came out of it."""

    def __init__(self, pool: UpstreamPool, metrics: Metrics, background: Background) -> None:
        self.pool = pool
        self.metrics = metrics
        self.background = background
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self._told = asyncio.Event()
        self.notices: list[tuple[str, dict[str, bytes]]] = []

    async def changed(self, change: Change) -> None:
        self.changes.put_nowait(change)

    async def emit(self, notice: Notice) -> None:
        self.notices.append((notice.method, {key: bytes(raw) for key, raw in notice.params.items()}))
        self._told.set()

    async def told(self, count: int) -> None:
        """Return once so many notices came."""
        while len(self.notices) < count:
            self._told.clear()
            await self._told.wait()

    async def call(self, method: str, *, upstream: str = "alpha", **members: Any) -> bytes:
        """Return the raw result; keyword arguments are the fields of Request."""
        reply = await self.pool.call(UpstreamName(upstream), Request(method, **members), self.emit)
        return bytes(reply.result)

    async def tool(self, name: str = "a", **members: Any) -> bytes:
        """Call a tool."""
        return await self.call("tools/call", params={"name": b'"' + name.encode() + b'"'}, **members)

    async def counted(self, sample: str) -> float:
        """Return the value of one sample line of the metrics, 0 when there is none."""
        text = await asyncio.to_thread(self.metrics.render)
        for line in text.decode().splitlines():
            if line.startswith(sample):
                return float(line.rpartition(" ")[2])
        return 0.0


@asynccontextmanager
async def running(
    *,
    pace: Pace = QUICK,
    limits: config.Limits | None = None,
    environ: dict[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    **upstreams: config.Upstream | ScriptedUpstream,
) -> AsyncIterator[Watched]:
    """Run a pool over these upstreams, each probed once when the block begins."""
    metrics, background = Metrics(), Background()
    pool = await asyncio.to_thread(
        UpstreamPool,
        {
            name: settings(one) if isinstance(one, ScriptedUpstream) else one
            for name, one in upstreams.items()
        },
        identity=config.Identity(name="gw", title="Gateway"),
        version="1.2.3",
        limits=limits or config.Limits(),
        background=background,
        metrics=metrics,
        environ=environ or {},
        pace=pace,
        clock=clock,
    )
    watched = Watched(pool, metrics, background)
    pool.on_change = watched.changed
    await pool.start()
    try:
        for name in upstreams:
            await pool.tried(UpstreamName(name), 5)
        yield watched
    finally:
        await pool.close()
        await background.close(1)


def settings(upstream: ScriptedUpstream | str, **members: Any) -> config.Upstream:
    """Return the configuration of one upstream."""
    url = upstream if isinstance(upstream, str) else upstream.url
    return config.Upstream(**{"url": url, "prefix": "alpha", **members})
