"""A collector of traces in this process: OTLP over HTTP, as protobuf, and keeps all it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Collector:
    """What came, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.got: list[tuple[str, Any]] = []
        """Path, and `ExportTraceServiceRequest`."""

    def spans(self, trace_id: bytes) -> list[tuple[str, Any]]:
        """Of one trace: the kind of server that says each, and the span."""
        return [
            (_about(resource)["stelae.kind"], span)
            for _, request in [*self.got]
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.trace_id == trace_id
        ]


def _about(resource: Any) -> dict[str, str]:
    return {a.key: a.value.string_value for a in resource.resource.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens until the end."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.got.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
