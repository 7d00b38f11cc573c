"""A command that goes on for as long as its input is open."""

from __future__ import annotations

from typing import Any

import pytest

from lading.hooks.ssh.session import ChannelSession


class GoneChannel:
    """A channel whose connection is gone without a word."""

    def exec_command(self, command: str) -> None:
        """It is still there."""

    def settimeout(self, seconds: float) -> None:
        """Likewise."""

    def set_combine_stderr(self, combine: bool) -> None:
        """Likewise."""

    def sendall(self, text: bytes) -> None:
        """Likewise."""

    def close(self) -> None:
        raise EOFError


def test_a_session_whose_connection_is_gone_can_be_closed() -> None:
    channel: Any = GoneChannel()
    session = ChannelSession(channel, b"", 1.0)
    with pytest.raises(EOFError):
        channel.close()
    session.close()
