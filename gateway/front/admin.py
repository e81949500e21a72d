"""Serves health, metrics, status and answers about the cache to operators, on a listener of its own.

Liveness depends on nothing but the event loop.
"""

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web

from gateway.config import Config
from gateway.front import operations
from gateway.front.operations import Identify, Operations, Refused
from gateway.front.operators import OperatorsListener, json_answer
from gateway.front.page import Shown, StatusPage
from gateway.status import SERVING, Phase
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background

_PATHS = {
    "/": ("GET", "HEAD"),
    "/healthz": ("GET", "HEAD"),
    "/readyz": ("GET", "HEAD"),
    "/metrics": ("GET", "HEAD"),
    "/status": ("GET", "HEAD"),
    "/status.json": ("GET", "HEAD"),
    "/status/events": ("GET",),
    "/catalogue.json": ("GET", "HEAD"),
    "/explain": ("GET", "HEAD"),
    "/purge": ("POST",),
}


class AdminFront:
    """The operators' listener; what it tells is handed in as callables and read at each request."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        phase: Callable[[], Phase],
        upstreams: Callable[[], Mapping[str, str]],
        redis: Callable[[], str | None],
        shown: Shown,
        cache: Operations,
        identify: Identify,
        background: Background,
        settings: Callable[[], Config],
    ) -> None:
        self._metrics = metrics
        self._phase = phase
        self._upstreams = upstreams
        self._redis = redis
        self._shown = shown
        self._page = StatusPage(shown, background)
        self._cache = cache
        self._identify = identify
        self._listener = OperatorsListener(self._handle, background, settings)

    def __repr__(self) -> str:
        return f"<AdminFront {self._listener!r}, {self._page!r}>"

    async def start(self, host: str, port: int) -> list[tuple[str, int]]:
        """Listen; return where exactly (port 0 picks one)."""
        return await self._listener.start(host, port)

    async def start_at(self, path: str) -> None:
        """Listen on a unix socket, which whoever may enter its folder can ask."""
        await self._listener.start_at(path)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        await self._listener.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in _PATHS:
            return json_answer({"error": "There is nothing at this path", "paths": list(_PATHS)}, 404)
        verbs = _PATHS[request.path]
        if request.method not in verbs:
            refusal = json_answer({"error": f"Only {' and '.join(verbs)} are served here"}, 405)
            refusal.headers["Allow"] = ", ".join(verbs)
            return refusal
        try:
            return await self._answer(request)
        except Refused as error:
            return json_answer({"error": str(error)}, error.status)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.path:
            case "/healthz":
                return json_answer({"status": "alive"})
            case "/readyz":
                return self._readiness()
            case "/status.json":
                return json_answer(await self._shown.look())
            case "/":
                # Relative, for whoever reaches this listener below a path of a proxy's.
                return web.Response(status=302, headers={"Location": "status"})
            case "/status":
                return self._page.page()
            case "/status/events":
                return await self._page.events(request)
            case "/catalogue.json":
                return json_answer(await self._page.catalogue(request))
            case "/explain":
                return json_answer(await operations.explain(request, self._cache, self._identify))
            case "/purge":
                return json_answer(await operations.purge(request, self._cache, self._identify))
            case _:
                # In a thread: the process metrics read files.
                text = await asyncio.to_thread(self._metrics.render)
                return web.Response(body=text, headers={"Content-Type": self._metrics.content_type})

    def _readiness(self) -> web.Response:
        """Answer 200 while clients should be sent here: without Redis they are served, only not from it."""
        phase, redis = self._phase(), self._redis()
        said = {"status": phase} | ({} if redis is None else {"redis": redis})
        return json_answer({**said, "upstreams": self._upstreams()}, 200 if phase in SERVING else 503)
