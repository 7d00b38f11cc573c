"""A collector of OpenTelemetry metrics and traces on a free loopback port, which keeps what it is sent."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Receives OTLP over HTTP; a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, list[dict[str, Any]]] = {}
        self._spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                (collector._take_spans if self.path == "/v1/traces" else collector._take)(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def names(self) -> set[str]:
        """The names of all metrics that have been sent."""
        with self._lock:
            return set(self._points)

    def tags(self, name: str) -> list[dict[str, Any]]:
        """The tags of each point of a metric, in the order of arrival."""
        with self._lock:
            return list(self._points.get(name, []))

    def spans(self) -> list[Span]:
        """All spans that have been sent, in the order of arrival."""
        with self._lock:
            return list(self._spans)

    def _take_spans(self, body: bytes) -> None:
        sent = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self._spans += [each for r in sent.resource_spans for scope in r.scope_spans for each in scope.spans]

    def _take(self, body: bytes) -> None:
        sent = ExportMetricsServiceRequest.FromString(body)
        metrics = [m for r in sent.resource_metrics for scope in r.scope_metrics for m in scope.metrics]
        with self._lock:
            for metric in metrics:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    tags = {each.key: each.value.string_value for each in point.attributes}
                    self._points.setdefault(metric.name, []).append(tags)
