"""Traces by OpenTelemetry, if the cluster's file names a collector, or the environment does:
``OTEL_EXPORTER_OTLP_ENDPOINT``, which wins, as it is of one machine or process.

The SDK (``pip install 'stelae[traces]'``) is imported only then; all its standard variables hold
(``OTEL_TRACES_SAMPLER=parentbased_traceidratio`` with ``OTEL_TRACES_SAMPLER_ARG=0.01`` keeps one
trace in a hundred). Spans leave the process in the background, over HTTP; those that cannot be sent
are dropped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stelae.core import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PATH = "/v1/traces"
SERVICE = "stelae"


def trace_as(endpoint: str = "", /, **identity: Any) -> bool:
    """Trace this process's work, if the cluster's file (``endpoint``) or the environment says where
    to; ``identity``: cluster, kind, server. Whether it does.
    """
    if any(os.environ.get(name) for name in ENDPOINTS):
        endpoint = ""  # the SDK looks itself
    elif not endpoint:
        return False
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    try:
        tracing.use(_spans_to_collector(endpoint, identity))
    except Exception as error:  # whatever the SDK makes of its variables: servers are to start
        what = f"{type(error).__name__}: {error}"
        logger.warning(
            "no traces: by what traces.endpoint or the variables OTEL_… say there can be none: %s",
            what,
        )
        return False
    return True


def _spans_to_collector(endpoint: str, identity: Mapping[str, Any]) -> OpenTelemetrySpans:
    """``endpoint``: empty, as the environment says. Raises ImportError, or what the SDK raises of
    wrong values."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {f"stelae.{name}": str(value) for name, value in identity.items()}
    name = os.environ.get("OTEL_SERVICE_NAME") or SERVICE
    resource = Resource.create({"service.name": name, **about})
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}{PATH}" if endpoint else None)
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetrySpans(provider)


class OpenTelemetrySpans:
    """See `stelae.core.tracing.Spans`."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("stelae")
        self._extract = TraceContextTextMapPropagator().extract
        self._kinds = {
            "server": SpanKind.SERVER,
            "client": SpanKind.CLIENT,
            "internal": SpanKind.INTERNAL,
        }

    def begin(
        self, name: str, kind: tracing.Kind, parent: str, attributes: Mapping[str, str | int]
    ) -> _Span | None:
        span = self._start(name, kind, parent, attributes, None)
        return _Span(span) if span.is_recording() else None

    def record(
        self,
        name: str,
        began_s: float,
        ended_s: float,
        parent: str,
        attributes: Mapping[str, str | int],
    ) -> str:
        span = self._start(name, "internal", parent, attributes, int(began_s * 1e9))
        span.end(int(max(began_s, ended_s) * 1e9))
        return _context_of(span) if span.get_span_context().trace_flags.sampled else ""

    def flush(self, timeout_ms: int) -> bool:
        """Send what is there; whether it could be."""
        return self._provider.force_flush(timeout_ms)

    def _start(
        self,
        name: str,
        kind: str,
        parent: str,
        attributes: Mapping[str, str | int],
        start_ns: int | None,
    ) -> Any:
        # Never what is current by OpenTelemetry's own word: calls of many requests are interleaved.
        context = self._extract({"traceparent": parent} if parent else {}, context=_nothing())
        return self._tracer.start_span(
            name, context, self._kinds[kind], dict(attributes), start_time=start_ns
        )


def _nothing() -> Any:
    from opentelemetry.context import Context

    return Context()


def _context_of(span: Any) -> str:
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


class _Span:
    """See `stelae.core.tracing.Span`."""

    def __init__(self, span: Any) -> None:
        self._span = span
        self.context = _context_of(span)

    def end(self, error: str = "", attributes: Mapping[str, str | int] | None = None) -> None:
        from opentelemetry.trace import Status, StatusCode

        if attributes:
            self._span.set_attributes(dict(attributes))
        if error:
            kind = error.partition(":")[0][:80]  # and no more: the text has keys and values in it
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, kind))
        self._span.end()
