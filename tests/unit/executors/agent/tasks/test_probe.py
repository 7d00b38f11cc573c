"""What a trial job says of an API server that is missing, one that is slow, and one that is something else."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lading.executors.agent.supervisor import AgentJobFailed
from lading.executors.agent.tasks import probe
from lading.hooks.api_tunnel.address import VARIABLE
from lading.hooks.cluster.checks import early_request
from tests.services.execution_api import ExecutionApi

START, SLOW = "start the API server", "is up but slow"


@contextmanager
def refusing() -> Iterator[int]:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield closed.getsockname()[1]


@contextmanager
def silent() -> Iterator[int]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def other() -> Iterator[int]:
    """Something else than the execution API."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


CASES = pytest.mark.parametrize(
    ("server", "said", "unsaid"),
    [(refusing, START, SLOW), (silent, SLOW, START), (other, "not from Airflow's API|is not the execution API", START)],
)


@CASES
def test_the_probe(
    monkeypatch: pytest.MonkeyPatch, server: Callable[[], AbstractContextManager[int]], said: str, unsaid: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with server() as port:
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", f"http://127.0.0.1:{port}/execution/")
        monkeypatch.setenv("AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT", "4")
        with pytest.raises(ConnectionError, match=said) as caught:
            probe.run()
    assert unsaid not in str(caught.value)
    assert f"http://127.0.0.1:{port}/execution/" in str(caught.value)


@CASES
def test_the_early_request(server: Callable[[], AbstractContextManager[int]], said: str, unsaid: str) -> None:
    with server() as port, pytest.raises(early_request.NoAnswerError, match=said) as caught:
        early_request.ask(f"http://127.0.0.1:{port}/execution/", None, timeout=4.0)
    assert unsaid not in str(caught.value)


@pytest.mark.parametrize(("status", "said"), [(401, "Missing"), (403, "Invalid")])
def test_a_token_that_the_server_does_not_accept(monkeypatch: pytest.MonkeyPatch, status: int, said: str) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with ExecutionApi() as api:
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", api.url)
        api.refusals["/run"], api.details["/run"] = status, f"{said} auth token"
        with pytest.raises(AgentJobFailed, match=rf"{status}: {said} auth token.*jwt_secret"):
            probe.run(str(uuid.uuid4()), "a-jwt")
        api.refusals["/run"], api.details["/run"] = 404, {"reason": "not_found", "message": "no such task"}
        probe.run(str(uuid.uuid4()), "a-jwt")
