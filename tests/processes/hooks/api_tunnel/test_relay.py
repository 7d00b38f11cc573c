"""The login node's end of a tunnel, on this machine's loopback addresses."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.api_tunnel import relay as api_relay
from lading.hooks.api_tunnel.address import Address, endpoint
from lading.hooks.api_tunnel.relay import Listener, PortTakenError, RelayError, listeners, locate, target

NEAR = ipaddress.ip_address("127.0.0.1")
HERE = ipaddress.ip_address("10.0.0.5")
# Of the kernel: 10.0.0.5:41234 listens for user 1000, as does every address of IPv6; 127.0.0.1:41234 is only connected.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0500000A:A112 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 0100007F:A112 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0 20 4 30 10 -1
   2: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when   uid
   0: 00000000000000000000000000000000:A112 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 \
00000000  1000        0 4 1 0 100 0 0 10 0
   1: 00000000000000000000000001000000:A113 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 \
00000000  1000        0 5 1 0 100 0 0 10 0
"""


def test_the_address_of_a_tunnel() -> None:
    for address in (Address("login1.cluster", 41234), Address("10.0.0.5", 1024), Address("fd00::5", 65535)):
        assert Address.from_text(address.to_text()) == address
    assert str(Address("fd00::5", 80)) == "[fd00::5]:80"
    for text in ("", "login1", "login1 x", "login1 0", "login1 65536", "login1 1 2", "a;b 1", "-x 1", "none"):
        with pytest.raises(ValueError, match=r"."):
            Address.from_text(text)


def test_where_an_api_is() -> None:
    assert endpoint("https://airflow.example.org/execution/") == ("airflow.example.org", 443)
    assert endpoint("http://[::1]:8080/execution/") == ("::1", 8080)
    for url in ("airflow.example.org", "ftp://airflow/", "http:///execution/", "http://airflow:x/"):
        with pytest.raises(ValueError, match=r"."):
            endpoint(url)


def test_a_name_of_this_machine() -> None:
    assert locate("127.0.0.5") == ("127.0.0.5", ipaddress.ip_address("127.0.0.5"))
    with pytest.raises(RelayError, match=r"'localhost' is 127.0.0.1 .* set tunnel_host"):
        locate("localhost")
    with pytest.raises(RelayError, match=r"not an address of the login node"):
        locate("192.0.2.1")
    with pytest.raises(RelayError, match=r"cannot be resolved on the login node"):
        locate("no-such-host.invalid")


def test_who_listens(tmp_path: Path) -> None:
    tables = [tmp_path / "tcp", tmp_path / "tcp6"]
    tables[0].write_text(TCP)
    with pytest.raises(RelayError, match="tunnels need Linux"):
        listeners(41234, tables[1:])
    tables[1].write_text(TCP6)
    assert listeners(41234, tables) == [Listener(HERE, 1000), Listener(ipaddress.ip_address("::"), 1000)]
    assert listeners(41235, tables) == [Listener(ipaddress.ip_address("::1"), 1000)]
    assert listeners(41236, tables) == []


def test_who_listens_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listeners(server.getsockname()[1]) == [Listener(NEAR, os.getuid())]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([Listener(NEAR, 7)], NEAR),
        ([Listener(ipaddress.ip_address("::1"), 7), Listener(NEAR, 7)], NEAR),
        ([Listener(HERE, 7)], None),
        ([Listener(ipaddress.ip_address("0.0.0.0"), 7)], None),
        ([Listener(ipaddress.ip_address("10.0.0.6"), 8), Listener(NEAR, 7)], NEAR),
    ],
)
def test_what_is_passed_on(found: list[Listener], expected: Any) -> None:
    assert target(HERE, 41234, found, uid=7) == expected


@pytest.mark.parametrize(
    "found",
    [
        [],
        [Listener(NEAR, 8)],
        [Listener(NEAR, 7), Listener(HERE, 8)],
        [Listener(HERE, 7), Listener(ipaddress.ip_address("::1"), 8)],
        [Listener(ipaddress.ip_address("10.0.0.6"), 7)],
    ],
)
def test_a_port_of_another_user_is_not_used(found: list[Listener]) -> None:
    with pytest.raises(PortTakenError, match="41234"):
        target(HERE, 41234, found, uid=7)


class Relay:
    """A running relay, and the controller's side of it."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", api_relay.__name__, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline().removeprefix(api_relay.MARK))
        return answer

    def ask(self, text: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> int:
        self.process.communicate(timeout=120)
        return self.process.returncode


@pytest.fixture
def sshd() -> Iterator[socket.socket]:
    """What sshd opens on the loopback address; it echoes everything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def echo(near: socket.socket) -> None:
            with near:
                while data := near.recv(65536):
                    near.sendall(data)

        def serve() -> None:
            while True:
                try:
                    near, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(near,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server
        server.shutdown(socket.SHUT_RDWR)


def test_it_passes_on_until_its_input_ends(sshd: socket.socket) -> None:
    port = sshd.getsockname()[1]
    relay = Relay("127.0.0.5")
    assert relay.hear() == {"host": "127.0.0.5", "address": "127.0.0.5"}
    assert relay.ask(f"{api_relay.LOOK}{port}") == {"stands": False}
    assert relay.ask(str(port)) == {"relays": True}
    data = os.urandom(3_000_000)
    with socket.create_connection(("127.0.0.5", port), 120) as far:
        threading.Thread(target=lambda: (far.sendall(data), far.shutdown(socket.SHUT_WR)), daemon=True).start()
        back = b""
        while part := far.recv(65536):
            back += part
    assert back == data, "both ways at once, and the end of each"
    with socket.create_connection(("127.0.0.5", port), 120):
        assert relay.end() == 0, "also with a connection under way"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.5", port), 120)


def test_it_tries_another_port(sshd: socket.socket) -> None:
    port = sshd.getsockname()[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        relay = Relay("127.0.0.5")
        relay.hear()
        assert "has not opened port" in relay.ask(str(free.getsockname()[1]))["taken"]
    assert relay.ask(str(port)) == {"relays": True}
    assert relay.end() == 0


def test_it_leaves_the_work_to_sshd(sshd: socket.socket) -> None:
    port = sshd.getsockname()[1]
    relay = Relay("127.0.0.1")
    relay.hear()
    assert relay.ask(f"{api_relay.LOOK}{port}") == {"stands": True}
    assert relay.ask(str(port)) == {"relays": False}
    assert relay.process.poll() is None
    assert relay.end() == 0


def test_it_says_what_is_wrong() -> None:
    relay = Relay("localhost")
    assert "set tunnel_host" in relay.hear()["error"]
    assert relay.end() == 1


def test_it_imports_nothing_large() -> None:
    code = f"import sys, {api_relay.__name__}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"airflow", "paramiko", "pydantic", "tenacity", "httpx"} & set(done.stdout.split())
