"""The client of Airflow's execution API behind a tunnel: only the connection goes elsewhere."""

from __future__ import annotations

import datetime
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from airflow.sdk.api import client as airflow_client
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lading.executors.agent.tasks import api_client, probe
from lading.hooks.api_tunnel.address import VARIABLE, Address

NAME = "airflow.example.org"


class Api:
    """An API server; writes down how it was asked."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.asked: list[tuple[str, str | None]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append((self.path, self.headers["host"]))
                data = json.dumps({"status": "healthy"}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = Address("127.0.0.1", self.server.server_address[1])
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that :data:`NAME` has signed for itself, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "api_address"))
    return tmp_path / "api_address"


@pytest.fixture
def api(file: Path) -> Iterator[Api]:
    service = Api()
    file.write_text(service.address.to_text())
    yield service
    service.close()


def ask(url: str) -> int:
    with api_client.JobClient(base_url=url, token="") as client:
        return client.get("health").status_code


def test_path_and_host_are_those_of_the_api(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert ask(f"http://{NAME}:8080/some/where/execution/") == 200
    assert api.asked == [("/some/where/execution/health", f"{NAME}:8080")]
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", f"http://{NAME}/execution/")
    probe.run()


def test_a_tunnel_that_has_moved_is_followed(api: Api, file: Path) -> None:
    with api_client.JobClient(base_url=f"http://{NAME}/", token="") as client:
        assert client.get("first").status_code == 200
        other = Api()
        file.write_text(other.address.to_text())
        assert client.get("second").status_code == 200
        other.close()
    assert ([path for path, _ in api.asked], [path for path, _ in other.asked]) == (["/first"], ["/second"])


def test_tls_is_with_the_api(file: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Api(certificate)
    file.write_text(service.address.to_text())
    monkeypatch.setattr(airflow_client, "API_SSL_CA_FILE_PATH", str(certificate))
    monkeypatch.setattr(airflow_client, "API_RETRIES", 1)
    try:
        assert ask(f"https://{NAME}/execution/") == 200
        with (
            api_client.JobClient(base_url="https://other.example.org/", token="") as client,
            pytest.raises(httpx.ConnectError, match=r"other\.example\.org"),
        ):
            httpx.Client.request(client, "GET", "health")
    finally:
        service.close()
    assert [host for _, host in service.asked] == [NAME]


def test_a_tunnel_that_is_not_there_yet_is_tried_again(file: Path) -> None:
    request = httpx.Request("GET", f"http://{NAME}/")
    with pytest.raises(httpx.ConnectError, match="cannot be read"):
        api_client.lead_through(request)
    assert airflow_client._should_retry_api_request(httpx.ConnectError("no", request=request))
    file.write_text("nonsense")
    with pytest.raises(httpx.ConnectError, match="cannot be read"):
        api_client.lead_through(request)
