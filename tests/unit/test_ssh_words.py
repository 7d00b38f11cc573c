"""What is said of a connection that cannot be used."""

from __future__ import annotations

import pytest

from lading.hooks.exchange import Run
from lading.hooks.ssh import SSHTransport


def test_the_connection_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_NO_SUCH", raising=False)
    transport = SSHTransport("no_such")
    (answer,) = transport.exchange([Run("true")])
    assert answer.status is None
    assert answer.words.count("no_such'") == 1, answer.words
    assert transport.fault(answer) == answer.words
    monkeypatch.setenv("AIRFLOW_CONN_NO_SUCH", '{"conn_type": "ssh", "host": "127.0.0.1", "port": 1}')
    transport.backoff.succeeded()
    (answer,) = transport.exchange([Run("true")])
    assert answer.words.count("no_such'") == 1, answer.words
