"""The message about a connection that cannot be used."""

from __future__ import annotations

import pytest

from lading.hooks.ssh.paramiko_transport import SSHTransport
from lading.hooks.ssh.steps import RunCommand


def test_the_connection_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_NO_SUCH", raising=False)
    transport = SSHTransport("no_such")
    (answer,) = transport.exchange([RunCommand("true")])
    assert answer.status is None
    assert answer.message.count("no_such'") == 1, answer.message
    assert transport.fault(answer) == answer.message
    monkeypatch.setenv("AIRFLOW_CONN_NO_SUCH", '{"conn_type": "ssh", "host": "127.0.0.1", "port": 1}')
    transport.backoff.succeeded()
    (answer,) = transport.exchange([RunCommand("true")])
    assert answer.message.count("no_such'") == 1, answer.message


@pytest.mark.parametrize("value", ['{"conn_type": "ssh", "password": "sesame"', '{"conn_type": "ssh", "sesame": 1}'])
def test_a_variable_that_cannot_be_read_is_not_called_undefined(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MAL", value)
    transport = SSHTransport("mal")
    (answer,) = transport.exchange([RunCommand("true")])
    assert "AIRFLOW_CONN_MAL is set, but cannot be read as a connection" in answer.message
    assert "isn't defined" not in answer.message
    assert "sesame" not in answer.message
    assert transport.unusable


def test_a_variable_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_MAL", raising=False)
    (answer,) = SSHTransport("mal").exchange([RunCommand("true")])
    assert "isn't defined" in answer.message
    assert "set AIRFLOW_CONN_MAL, for example to" in answer.message
    assert "`airflow connections add mal --conn-type ssh" in answer.message
