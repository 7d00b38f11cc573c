"""As much of Airflow's execution API as the supervisor of a simple task needs; it writes down what it was asked.

``python -m tests.services.execution_api`` prints its URL, serves until its input ends, and then prints how many tasks
have said that they succeeded.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

RUN = {
    "dag_run": {
        "dag_id": "dag",
        "run_id": "run",
        "logical_date": "2026-01-01T00:00:00Z",
        "data_interval_start": None,
        "data_interval_end": None,
        "end_date": None,
        "partition_key": None,
        "start_date": "2026-01-01T00:00:00Z",
        "run_after": "2026-01-01T00:00:00Z",
        "run_type": "manual",
        "state": "running",
        "consumed_asset_events": [],
    },
    "max_tries": 0,
    "should_retry": False,
}


def task_workload(ti: str, dag_id: str, task_id: str, file: str) -> dict[str, Any]:
    """What Airflow's scheduler hands an executor for the first try of a task.

    :param ti: the id of the task instance, a UUID
    :param file: with the Dag, in the folder of Dags
    """
    return {
        "type": "ExecuteTask",
        "token": "a-jwt",
        "dag_rel_path": file,
        "bundle_info": {"name": "dags-folder", "version": None},
        "log_path": f"{ti}.log",
        "ti": {
            "id": ti,
            "task_id": task_id,
            "dag_id": dag_id,
            "run_id": "run",
            "try_number": 1,
            "dag_version_id": str(uuid.uuid4()),
            "map_index": -1,
            "hostname": "",
            "context_carrier": {},
            "queue": "default",
            "pool_slots": 1,
            "priority_weight": 1,
        },
    }


class ApiServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless the client has gone: tests kill clients."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class ExecutionApi:
    """Serves on a free loopback port while it is entered."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.delays: dict[str, float] = {}
        """Seconds that the answer to a request for a path with this end takes."""
        self.gates: dict[str, threading.Event] = {}
        """What the answer to a request for a path with this end waits for."""
        self.refusals: dict[str, int] = {}
        """The status of the answer to a request for a path with this end."""
        self.details: dict[str, dict[str, Any] | str] = {}
        """And its details, where they are others than those of a task that was ended meanwhile."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and body are written apart

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                status, content = api.answer(self.command, self.path, json.loads(body) if body else None)
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = answer

            def log_message(self, format: str, *arguments: object) -> None:
                """Keep quiet."""

        self.server = ApiServer(("127.0.0.1", 0), Handler)
        self.server.socket.listen(256)  # by default five connections wait, and others come back after seconds
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/execution/"

    def __enter__(self) -> ExecutionApi:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.requests.append((method, path, body))
        time.sleep(next((delay for end, delay in self.delays.items() if path.endswith(end)), 0))
        if (gate := next((gate for end, gate in self.gates.items() if path.endswith(end)), None)) is not None:
            gate.wait()
        end = next((end for end in self.refusals if path.endswith(end)), None)
        if end is not None:
            ended = {"reason": "not_running", "message": "TI is no longer in the running state"}
            return self.refusals[end], {"detail": self.details.get(end, ended)}
        if path.endswith("/health"):
            return 200, {"status": "healthy"}
        return 200, RUN if path.endswith("/run") else {}

    def states(self, task_instance: str) -> list[str]:
        """The states that a task instance was put to."""
        return [
            body["state"]
            for method, path, body in self.requests
            if method == "PATCH" and path.endswith(f"/{task_instance}/state")
        ]


def main() -> None:
    with ExecutionApi() as service:
        print(service.url, flush=True)
        sys.stdin.read()
        print(sum(body.get("state") == "success" for _, _, body in service.requests if isinstance(body, dict)))


if __name__ == "__main__":
    main()
