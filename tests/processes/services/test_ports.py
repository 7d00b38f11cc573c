"""The ports of the services of tests, which several processes start."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import ports
from tests.services.ports import OF_CONNECTIONS, free_ports

ROOT = Path(__file__).parents[3]
OTHER = """
import json, sys
from tests.services.ports import free_ports
print(json.dumps(free_ports(200)), flush=True)
sys.stdin.read()
"""


def test_no_connection_and_no_other_process_gets_a_port() -> None:
    low, high = map(int, OF_CONNECTIONS.read_text().split())
    command = [sys.executable, "-c", OTHER]
    others = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    named = free_ports(200)
    for other in others:
        assert other.stdout is not None
        named += json.loads(other.stdout.readline())
    for other in others:
        other.communicate()
    assert len({*named}) == 4 * 200
    assert not [port for port in named if low <= port <= high]


def test_a_port_on_which_something_listens_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        [free] = free_ports(1)
        busy: int = server.getsockname()[1]
        monkeypatch.setattr(ports, "_candidates", lambda: iter([busy, free]))
        with pytest.raises(AssertionError, match="too few are free"):
            free_ports(1)  # nor is one that this process has
