"""Spans as OpenTelemetry has them, sent over OTLP by a thread that nobody waits for. Needs the extra `otel`.

Nothing but this file imports OpenTelemetry, and nobody imports this file unless tracing is configured.
"""

import asyncio
import io
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import config
from gateway.support.tracing import Attributes, Kind, Span

log = logging.getLogger(__name__)

_KINDS = {
    "server": trace.SpanKind.SERVER,
    "internal": trace.SpanKind.INTERNAL,
    "client": trace.SpanKind.CLIENT,
}
_QUEUE = 4096
"""Spans that wait to be sent; more are dropped, so that a collector that is away costs no memory."""
_BATCH = 512
_EVERY = 2000
"""Milliseconds after which what there is is sent."""
_PATIENCE = 5.0
"""Seconds that one batch may take, its repetitions included."""
_LAST = 2.0
"""Seconds for what is left at the end."""
_MOST_CHARACTERS = 256

_NO_CONTEXT = Context()
_propagator = TraceContextTextMapPropagator()


class _Span:
    """One span of the SDK."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def trace_id(self) -> str:
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def child(self, name: str, kind: Kind, attributes: Attributes) -> Span:
        span = self._tracer.start_span(name, self._context(), _KINDS[kind], attributes)
        return _Span(self._tracer, span)

    def carrier(self) -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, self._context())
        return carrier

    def note(self, attributes: Attributes) -> None:
        if self._span.is_recording():
            self._span.set_attributes(dict(attributes))

    def end(self, error: str | None = None, name: str | None = None) -> None:
        if name is not None and self._span.is_recording():
            self._span.update_name(name)
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()

    def _context(self) -> Context:
        return trace.set_span_in_context(self._span, Context())


class _Session(requests.Session):
    """Posts, and believes a collector no more than the status of its answer.

    The body is not read, so that it may be of any length; nothing is posted to where it redirects, for the
    headers are meant for the collector alone; and an answer that trickles in is given up, which the timeout
    of `requests` would not do, being one of each read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asking: threading.Thread | None = None

    def send(self, request: requests.PreparedRequest, **settings: Any) -> requests.Response:
        """Return the answer without its body."""
        if self._asking is not None and self._asking.is_alive():  # one at most is left behind
            raise requests.ReadTimeout("the collector has not answered yet what it was sent before")
        came: list[requests.Response | requests.RequestException] = []

        def ask() -> None:
            try:
                answer = super(_Session, self).send(
                    request, **settings | {"stream": True, "allow_redirects": False}
                )
            except requests.RequestException as error:
                came.append(error)
                return
            if answer.headers.get("Content-Length") != "0":
                answer.close()
                answer.raw = io.BytesIO()
            came.append(answer)

        self._asking = threading.Thread(target=ask, name="spans", daemon=True)
        self._asking.start()
        self._asking.join(_PATIENCE)
        if not came:
            raise requests.ReadTimeout("the collector does not answer in time")
        if isinstance(came[0], requests.RequestException):
            raise came[0]
        return came[0]


class OtelTracer:
    """Makes spans, and sends them to a collector."""

    def __init__(self, settings: config.Tracing, *, version: str) -> None:
        exporter = OTLPSpanExporter(
            endpoint=_place(settings.otlp or ""),
            headers={name: secret.get_secret_value() for name, secret in settings.headers.items()} or None,
            timeout=_PATIENCE,
            session=_Session(),
        )
        batches = BatchSpanProcessor(
            exporter, max_queue_size=_QUEUE, max_export_batch_size=_BATCH, schedule_delay_millis=_EVERY
        )
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(settings.sample),
            resource=Resource.create({"service.name": settings.service_name, "service.version": version}),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=_MOST_CHARACTERS),
        )
        self._provider.add_span_processor(batches)
        self._tracer = self._provider.get_tracer("mcp-gateway", version)

    def begin(
        self,
        name: str,
        *,
        began: float,
        parent: Mapping[str, str],
        link: Mapping[str, str],
        attributes: Attributes,
    ) -> Span:
        """Begin the span of a request."""
        span = self._tracer.start_span(
            name,
            _context_of(parent),
            trace.SpanKind.SERVER,
            attributes,
            [trace.Link(trace.get_current_span(_context_of(link)).get_span_context())] if link else None,
            start_time=time.time_ns() - int((time.monotonic() - began) * 1e9),
        )
        return _Span(self._tracer, span)

    async def close(self) -> None:
        """Send what is left; a collector that hangs is waited for no longer than a moment."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is gone: nobody waited so long
                loop.call_soon_threadsafe(over.set)

        # Not one of the loop's own threads, which are waited for at the end.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(_LAST):
                await over.wait()
        except TimeoutError:
            log.warning("the collector did not take the last spans in time")


def _context_of(carrier: Mapping[str, str]) -> Context:
    return _propagator.extract(carrier, Context()) if carrier else _NO_CONTEXT


def _place(otlp: str) -> str:
    """Return where spans are posted: the usual path where none is written."""
    url = urlsplit(otlp)
    return urlunsplit(url._replace(path="/v1/traces")) if url.path in ("", "/") else otlp
