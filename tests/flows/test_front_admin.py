"""What operators and probes see on the listener of their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from multidict import MultiMapping

from gateway.config import Config
from gateway.core.explain import Question, Report
from gateway.core.inventory import Page, Search
from gateway.core.purge import Wish
from gateway.front import operators
from gateway.front.admin import AdminFront
from gateway.front.auth import identify
from gateway.front.challenges import Denied
from gateway.protocol.call import Principal
from gateway.status import Phase, Status
from gateway.support.metrics import Metrics
from gateway.support.seal import Seal
from gateway.support.tasks import Background
from tests.support.front import Client, Reply

SEAL = Seal(["0123456789abcdef0123456789abcdef"])


@dataclass
class Admin:
    """A running admin listener and what it is told."""

    phase: Phase = "ready"
    upstreams: dict[str, str] = field(default_factory=lambda: {"time": "up", "gh": "down"})
    redis: str | None = None
    metrics: Metrics = field(default_factory=Metrics)
    port: int = 0

    async def look(self) -> Status:
        return Status(version="1.2.3", phase=self.phase, now=2.0, started=1.0)

    async def search(self, endpoint: str | None, search: Search, *, read: bool) -> Page:
        raise AssertionError("nothing is searched here")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        """Hold a connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    async def get(self, path: str, verb: str = "GET", host: str = "10.1.2.3:8080") -> Reply:
        """Ask as a probe does, by pod address."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        client = Client(reader, writer)
        client.send(f"{verb} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        reply = await client.reply(bare=verb == "HEAD")
        writer.close()
        await writer.wait_closed()
        return reply


class Asked:
    """Plays the gateway behind /explain and /purge; tests/flows/test_explain.py asks a real one."""

    async def explain(self, endpoint: str | None, question: Question, principal: Principal) -> Report:
        return {"method": question.method, "caller": principal.partition, "kept": principal.authorization}

    async def purge(self, wish: Wish) -> Report:
        return {"purged": [wish.upstream]}


async def _identify(headers: MultiMapping[str], endpoint: str | None) -> Principal | Denied:
    return identify(headers, SEAL)


@asynccontextmanager
async def running(*, request_head: float = 10.0, **settings: Any) -> AsyncIterator[Admin]:
    """Serve until the test is done."""
    background = Background()
    upstreams = {"a": {"url": "http://127.0.0.1:9/mcp"}}
    limits = {"request_head": request_head}
    config = Config.model_validate({"upstreams": upstreams, "limits": limits, **settings})
    admin = Admin()
    front = AdminFront(
        admin.metrics,
        phase=lambda: admin.phase,
        upstreams=lambda: admin.upstreams,
        redis=lambda: admin.redis,
        shown=admin,
        cache=Asked(),
        identify=_identify,
        background=background,
        settings=lambda: config,
    )
    ((_, admin.port),) = await front.start("127.0.0.1", 0)
    try:
        yield admin
    finally:
        await front.close()
        await background.close(1.0)


@pytest.mark.parametrize("phase", ["starting", "ready", "draining"])
async def test_liveness_depends_on_nothing(phase: Phase) -> None:
    """200 whatever happens elsewhere."""
    async with running() as admin:
        admin.phase = phase
        assert (await admin.get("/healthz")).status == 200


@pytest.mark.parametrize(("phase", "status"), [("starting", 503), ("ready", 200), ("draining", 503)])
async def test_readiness_follows_the_phase_and_shows_each_upstream(phase: Phase, status: int) -> None:
    """A dead upstream is shown and does not make the gateway unready."""
    async with running() as admin:
        admin.phase = phase
        reply = await admin.get("/readyz")
    assert reply.status == status
    assert reply.json == {"status": phase, "upstreams": {"time": "up", "gh": "down"}}


async def test_without_redis_it_is_ready_and_says_degraded() -> None:
    """Clients are served all the same; an operator's eye finds the word, an alert the metrics."""
    async with running() as admin:
        admin.phase, admin.redis = "degraded", "down"
        reply = await admin.get("/readyz")
        assert (reply.status, reply.json["status"], reply.json["redis"]) == (200, "degraded", "down")
        admin.phase, admin.redis = "draining", "up"
        reply = await admin.get("/readyz")
        assert (reply.status, reply.json["status"], reply.json["redis"]) == (503, "draining", "up")


async def test_metrics_are_rendered() -> None:
    """In the text format a Prometheus server reads."""
    async with running() as admin:
        admin.metrics.upstream_up("time", True)
        reply = await admin.get("/metrics")
    assert (reply.header("content-type") or "").startswith("text/plain; version=")
    assert b'mcp_gateway_upstream_up{upstream="time"} 1.0' in reply.body


async def test_status_is_what_it_is_told() -> None:
    """A plain JSON object, never cached."""
    async with running() as admin:
        reply = await admin.get("/status.json")
    assert reply.json["version"] == "1.2.3"
    assert reply.header("cache-control") == "no-store"


async def test_other_paths_and_verbs_are_refused() -> None:
    """404 names what there is, 405 what is allowed."""
    async with running() as admin:
        missing = await admin.get("/state")
        assert missing.status == 404
        assert "/readyz" in json.loads(missing.body)["paths"]
        refused = await admin.get("/healthz", "POST")
        assert (refused.status, refused.header("allow")) == (405, "GET, HEAD")
        assert (await admin.get("/readyz", "HEAD")).status == 200


@pytest.mark.parametrize(
    "before", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["first", "behind"]
)
async def test_half_a_head_is_a_408(before: bytes) -> None:
    """Slowloris: whoever reaches the listener of operators holds no connection with a byte now and then."""
    async with running(request_head=0.2) as admin, admin.connect() as client, asyncio.timeout(5):
        client.send(before + b"GET /healthz HTTP/1.1\r\nHost:")
        if before:
            assert (await client.reply()).status == 200
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (408, "close")
        assert await client.hung_up()


async def test_who_asks_nothing_is_hung_up_on_and_who_asked_may_wait() -> None:
    """A probe keeps its connection between two questions; one that brings none loses it."""
    async with running(request_head=0.2) as admin, admin.connect() as probe, asyncio.timeout(5):
        question = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
        probe.send(question)
        assert (await probe.reply()).status == 200
        for _ in range(2):
            async with admin.connect() as silent:
                assert await silent.hung_up()
        probe.send(question)
        assert (await probe.reply()).status == 200


SHOWN = ("/", "/status", "/status.json", "/catalogue.json", "/explain?method=tools/list", "/nothing")


@pytest.mark.parametrize("path", SHOWN)
async def test_a_page_whose_name_leads_here_is_shown_nothing(path: str) -> None:
    """DNS rebinding: its browser takes the answer for one of the page's own server."""
    async with running() as admin:
        reply = await admin.get(path, host="evil.example:9090")
        assert reply.status == 403
        assert "the setting `hosts` allows it" in reply.json["error"]
        assert (await admin.get(path, host="gateway:9090")).status != 403


async def test_it_hears_of_no_change_and_purges_nothing() -> None:
    """Whatever it sends along."""
    async with running() as admin:
        assert (await admin.get("/status/events", host="evil.example")).status == 403
        assert (await admin.get("/purge", "POST", host="evil.example")).status == 403


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_probes_may_call_it_what_they_like(path: str) -> None:
    """B31: balancers and Prometheus have names and addresses that the gateway cannot know."""
    async with running() as admin:
        assert (await admin.get(path, host="gateway.corp.example:9090")).status == 200


async def test_names_of_the_configuration_are_its_own() -> None:
    """Those that clients use, or that operators added for this."""
    settings = {"hosts": ["status.corp.example"], "public_url": "https://mcp.corp.example/mcp"}
    async with running(**settings) as admin:
        for host in ("status.corp.example:9090", "mcp.corp.example"):
            assert (await admin.get("/status.json", host=host)).status == 200
        assert (await admin.get("/status.json", host="other.corp.example")).status == 403


async def test_connections_are_bounded_and_idle_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are files of the same process: whoever opens them by the thousand leaves some for clients."""
    monkeypatch.setattr(operators, "_MOST_CONNECTIONS", 3)
    question = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    async with running() as admin, asyncio.timeout(20), AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(admin.connect()) for _ in range(3)]
        for one in idle:
            one.send(question)
            assert (await one.reply()).status == 200
        assert (await admin.get("/healthz")).status == 200
        assert await idle[0].hung_up()
        for _ in range(3):
            one = await stack.enter_async_context(admin.connect())
            one.send(b"GET /status/events HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"200 OK" in await one.reader.readline()
        async with admin.connect() as late:
            assert await late.hung_up()
        assert not one.reader.at_eof()
