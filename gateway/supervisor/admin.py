"""The operators' listener of several workers: tells of all as one, hands on what any of them can answer."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import cast

from aiohttp import web
from msgspec.structs import replace

from gateway import status
from gateway.config import VERSION
from gateway.core.explain import Unanswerable
from gateway.core.inventory import Page, Search
from gateway.front.operations import Refused, whole_body
from gateway.front.operators import OperatorsListener, json_answer
from gateway.front.page import StatusPage
from gateway.status import SERVING, Phase, Settings, Status
from gateway.supervisor.asking import NoAnswer, catalogue, hand_on, readiness, statuses
from gateway.supervisor.crew import Crew
from gateway.support.metrics import Metrics, merged, processes
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_BEST_FIRST: Sequence[Phase] = ("ready", "degraded", "starting", "draining")


class CrewAdmin:
    """Answers operators for a crew."""

    def __init__(self, crew: Crew, background: Background) -> None:
        self._crew = crew
        self._page = StatusPage(self, background)
        self._listener = OperatorsListener(self._handle, background, lambda: crew.config)

    def __repr__(self) -> str:
        return f"<CrewAdmin {self._listener!r} of {self._crew!r}>"

    async def start(self, host: str, port: int) -> list[tuple[str, int]]:
        """Listen; return where exactly (port 0 picks one)."""
        return await self._listener.start(host, port)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        await self._listener.close()

    async def look(self) -> Status:
        """Return the status of all workers as one."""
        crew = self._crew
        said = await statuses([one for one in crew.serving if one.order.admin is not None])
        phase: Phase | None = None if crew.settled.is_set() else "starting"
        if crew.stopping.is_set():
            phase = "draining"
        if not said:
            now = round(time.time(), 3)
            return Status(
                version=VERSION,
                phase=phase or "starting",
                now=now,
                started=crew.started,
                config=Settings(
                    generation=crew.generation, loaded=round(crew.loaded, 3), problem=crew.problem
                ),
                workers=crew.told,
            )
        whole = status.merged(said, workers=crew.told, phase=phase)
        if crew.problem is None:
            return whole
        # The workers were not even asked to read it.
        return replace(whole, config=replace(whole.config, problem=crew.problem))

    async def search(self, endpoint: str | None, search: Search, *, read: bool) -> Page:
        """Return what an endpoint lists, as one worker knows it, always the same; raises Unanswerable."""
        for worker in self._crew.ready:
            return await catalogue(worker, endpoint, search, read=read)
        raise Unanswerable("no worker is ready to answer")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Refused as error:
            return json_answer({"error": str(error)}, error.status)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = request.method in ("GET", "HEAD")
        match request.path:
            case "/healthz" if asked:
                return json_answer({"status": "alive"})
            case "/readyz" if asked:
                return await self._readiness()
            case "/metrics" if asked:
                return await self._metrics()
            case "/status.json" if asked:
                return json_answer(await self.look())
            case "/status" if asked:
                return self._page.page()
            case "/status/events" if request.method == "GET":
                return await self._page.events(request)
            case "/catalogue.json" if asked:
                return json_answer(await self._page.catalogue(request))
            case _:
                return await self._handed_on(request)

    async def _metrics(self) -> web.Response:
        live, ended = self._crew.counted()
        pids = self._crew.pids
        text = await asyncio.to_thread(lambda: merged([*live, processes(pids)], ended))
        return web.Response(body=text, headers={"Content-Type": Metrics.content_type})

    async def _readiness(self) -> web.Response:
        """Answer 200 while one worker can be sent clients, and every one was tried."""
        crew = self._crew
        said = await readiness(crew.ready)
        phases = {cast(Phase, each.get("status")) for each in said}
        phase: Phase = next((each for each in _BEST_FIRST if each in phases), "starting")
        if crew.stopping.is_set():
            phase = "draining"
        elif not crew.settled.is_set():
            phase = "starting"
        first = next((each for each in said if each.get("status") == phase), {})
        answer = {
            "status": phase,
            **{key: first[key] for key in ("redis", "upstreams") if key in first},
            "workers": {"ready": len(crew.ready), "of": len(crew.posts)},
        }
        return json_answer(answer, 200 if phase in SERVING else 503)

    async def _handed_on(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await whole_body(request)
        for worker in self._crew.ready:
            try:
                return await hand_on(request, body, worker)
            except NoAnswer:
                log.debug("worker %d does not answer", worker.number)
        return json_answer({"error": "No worker is ready to answer"}, 503)
