"""A collector of OpenTelemetry metrics on a free loopback port, which keeps what it is sent."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class Collector:
    """Receives OTLP over HTTP; a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, list[dict[str, Any]]] = {}
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._take(self.rfile.read(int(self.headers["Content-Length"])))
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

    def _take(self, body: bytes) -> None:
        sent = ExportMetricsServiceRequest.FromString(body)
        metrics = [m for r in sent.resource_metrics for scope in r.scope_metrics for m in scope.metrics]
        with self._lock:
            for metric in metrics:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    tags = {each.key: each.value.string_value for each in point.attributes}
                    self._points.setdefault(metric.name, []).append(tags)
