"""A command that goes on for as long as its input is open."""

from __future__ import annotations

from typing import Any

import pytest

from lading.hooks.ssh import paramiko_transport
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.paramiko_transport import SSHTransport
from lading.hooks.ssh.session import ChannelSession


class GoneChannel:
    """A channel whose connection is gone without notice."""

    def exec_command(self, command: str) -> None:
        """It is still there."""

    def settimeout(self, seconds: float) -> None:
        """Likewise."""

    def set_combine_stderr(self, combine: bool) -> None:
        """Likewise."""

    def sendall(self, text: bytes) -> None:
        if text:
            raise EOFError

    def recv(self, size: int) -> bytes:
        raise EOFError  # it announces to the other side that there is room again

    def close(self) -> None:
        raise EOFError


def test_a_session_whose_connection_is_gone_can_be_closed() -> None:
    channel: Any = GoneChannel()
    session = ChannelSession(channel, b"", 1.0)
    with pytest.raises(EOFError):
        channel.close()
    session.close()


def test_what_is_said_to_it_is_an_error_of_the_transport() -> None:
    channel: Any = GoneChannel()
    session = ChannelSession(channel, b"", 1.0)
    with pytest.raises(TransportError):
        session.write(b"text", 1.0)
    assert session._receive(1.0) == b""


def test_an_exchange_whose_connection_goes_is_an_error_of_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = SSHTransport("gone")

    def transfer(*_: object) -> None:
        raise EOFError

    monkeypatch.setattr(transport, "_session", lambda: (None, GoneChannel()))
    monkeypatch.setattr(paramiko_transport, "_transfer", transfer)
    with pytest.raises(TransportError, match="the connection was lost"):
        transport.put("/folder", {"name": b""})
