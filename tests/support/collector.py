"""A collector of OpenTelemetry: a real server that decodes what an exporter posts over OTLP.

async with Collector() as collector:
    ...trace to collector.url...
    await collector.close_tracing()
    spans = collector.spans
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway import config
from gateway.support import tracing
from gateway.support.otel import OtelTracer

KINDS = {1: "internal", 2: "server", 3: "client"}


@dataclass(frozen=True)
class Span:
    """One span as it arrived."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: Mapping[str, Any]
    links: tuple[str, ...]
    failed: bool
    seconds: float


class Collector:
    """Keeps the spans it is sent, and all that came with them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.headers: list[Mapping[str, str]] = []
        self.raw = b""
        self.held = asyncio.Event()
        self.held.set()
        self._runner: web.ServerRunner | None = None
        self.url = ""

    async def __aenter__(self) -> "Collector":
        self._runner = web.ServerRunner(web.Server(self._take), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.held.set()
        await tracing.close()
        assert self._runner is not None
        await self._runner.cleanup()

    async def traced(self, **settings: Any) -> None:
        """Have this process's requests traced, with these settings."""
        made = config.Tracing(otlp=self.url, **settings)
        tracing.use(await asyncio.to_thread(OtelTracer, made, version="1.2.3"))  # it looks around first

    async def all(self) -> list[Span]:
        """End the tracing, and return every span of it."""
        await tracing.close()
        return self.spans

    async def _take(self, request: web.BaseRequest) -> web.Response:
        assert (request.method, request.path) == ("POST", "/v1/traces")
        body = await request.read()
        await self.held.wait()
        self.headers.append(dict(request.headers))
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = {one.key: _value(one.value) for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += map(_span, scope.spans)
        return web.Response()


def _span(one: Any) -> Span:
    return Span(
        one.name,
        KINDS[one.kind],
        one.trace_id.hex(),
        one.span_id.hex(),
        one.parent_span_id.hex(),
        {pair.key: _value(pair.value) for pair in one.attributes},
        tuple(f"{link.trace_id.hex()}-{link.span_id.hex()}" for link in one.links),
        one.status.code == 2,
        (one.end_time_unix_nano - one.start_time_unix_nano) / 1e9,
    )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
