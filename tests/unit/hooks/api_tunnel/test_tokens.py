"""Which tokens the gate before a tunnel takes for those of tasks, with the keys that a deployment may have."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from airflow.api_fastapi.auth.tokens import generate_private_key, key_to_jwk_dict, key_to_pem

from lading.hooks.api_tunnel import gate as gate_module
from lading.hooks.api_tunnel.gate import ApiGate
from lading.hooks.deployment import airflow as deployment_module
from lading.plugin.service import mint
from tests.services.execution_api import ExecutionApi

SMALL, LARGE = b"{}", json.dumps("x" * 2 * gate_module.UNVERIFIED_BYTES).encode()


@contextlib.contextmanager
def posting() -> Iterator[object]:
    """Send bodies with a token through a gate; returns the status of each answer."""
    with ExecutionApi() as api:
        gate = ApiGate(api.url, "tokens")
        try:
            host, port = gate.open()

            def post(token: str, *bodies: bytes) -> list[int]:
                headers = {"Authorization": f"Bearer {token}"}
                url = f"http://{host}:{port}/execution/x"
                return [
                    httpx.post(url, content=body, headers=headers, trust_env=False, timeout=120).status_code
                    for body in bodies
                ]

            yield post
        finally:
            gate.close()


def has_secret(patch: pytest.MonkeyPatch, secret: str) -> None:
    patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", secret)


def has_key(patch: pytest.MonkeyPatch, folder: Path, kind: str) -> object:
    key = generate_private_key(kind)
    (folder / "key.pem").write_bytes(key_to_pem(key))
    has_secret(patch, "")
    patch.setenv("AIRFLOW__API_AUTH__JWT_PRIVATE_KEY_PATH", str(folder / "key.pem"))
    return key


def minted() -> str:
    return mint()("job", 600.0)


def test_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    has_secret(monkeypatch, "a" * 64)
    with posting() as post:
        assert post(minted(), SMALL, LARGE) == [200, 200]
        assert post(mint()("job", -200.0), SMALL) == [200], "the API server's clock counts, which may be another"
        assert post(mint()("job", -4000.0), SMALL) == [403]
        has_secret(monkeypatch, "b" * 64)
        assert post(minted(), SMALL, LARGE) == [403, 403]
    with posting() as post:
        assert post(minted(), SMALL) == [200]
        monkeypatch.setenv("AIRFLOW__EXECUTION_API__JWT_AUDIENCE", "urn:people")
        assert post(minted(), SMALL) == [403], "it was made for something else"


@pytest.mark.parametrize("kind", ["RSA", "Ed25519"])
def test_a_private_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    has_key(monkeypatch, tmp_path, kind)
    good = minted()
    with posting() as post:
        assert post(good, SMALL, LARGE) == [200, 200]
        has_key(monkeypatch, tmp_path, kind)
        assert post(minted(), SMALL, LARGE) == [403, 403], "of another key"


def test_published_keys_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats go on, what is large is to be sent again, and nobody fills the log or the way to the keys."""
    monkeypatch.setattr(deployment_module.AirflowDeployment, "keys_interval", 0.0)
    key = has_key(monkeypatch, tmp_path, "Ed25519")
    served, asked = threading.Event(), []

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if served.is_set() else 500)
            self.end_headers()
            self.wfile.write(json.dumps({"keys": [key_to_jwk_dict(key)]}).encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep quiet."""

    with HTTPServer(("127.0.0.1", 0), Keys) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        monkeypatch.setenv("AIRFLOW__API_AUTH__TRUSTED_JWKS_URL", f"http://127.0.0.1:{server.server_port}/keys")
        with posting() as post:
            assert post(minted(), SMALL, LARGE, SMALL) == [200, 503, 200]
            assert caplog.text.count("cannot be verified") == 1
            assert len(asked) == 3
            monkeypatch.setattr(deployment_module.AirflowDeployment, "keys_interval", 3600.0)
            served.set()
            assert post(minted(), LARGE) == [200]
            before = len(asked)
            has_key(monkeypatch, tmp_path, "Ed25519")
            assert post(minted(), SMALL, LARGE) == [200, 503], "a key that is not known yet"
            assert len(asked) == before
        server.shutdown()


def test_the_keys_are_not_asked_for_at_each_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_key(monkeypatch, tmp_path, "Ed25519")
    monkeypatch.setenv("AIRFLOW__API_AUTH__TRUSTED_JWKS_URL", str(tmp_path / "keys.json"))
    read = []
    real = open

    with posting() as post:
        monkeypatch.setattr("builtins.open", lambda *each, **more: (read.append(each[0]), real(*each, **more))[1])
        assert post(minted(), LARGE, LARGE, LARGE) == [503] * 3
        assert read.count(str(tmp_path / "keys.json")) == 1


def test_a_key_that_appears_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one no controller starts, so this is a moment in which its file is replaced, or a check."""
    has_key(monkeypatch, tmp_path, "Ed25519")
    token, key = minted(), (tmp_path / "key.pem").read_bytes()
    (tmp_path / "key.pem").write_bytes(b"")
    with posting() as post:
        assert post(token, SMALL, LARGE) == [200, 503]
        (tmp_path / "key.pem").write_bytes(key)
        assert post(token, SMALL, LARGE) == [200, 200]
