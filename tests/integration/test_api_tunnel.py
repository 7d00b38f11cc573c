"""Tunnels to an API through a real sshd, as compute nodes would use them: from another address than the loopback's."""

from __future__ import annotations

import select
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.api_tunnel.address import Address
from lading.hooks.api_tunnel.tunnel import ApiTunnel
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.openssh_transport import ControlMasterTransport
from lading.hooks.ssh.paramiko_transport import SSHTransport
from lading.hooks.ssh.transport import Transport
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.sshd import Sshd

# The login node's own address, which is none that sshd opens without GatewayPorts.
LOGIN = "127.0.0.5"
WAYS = ("ssh", "control_master")


@pytest.fixture
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as service:
        yield service


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Make connections: of kind and options of the sshd, which the first of them starts."""
    opened = ExitStack()
    servers: list[Sshd] = []
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)

    def connect(kind: str, **options: str) -> tuple[Transport, Sshd]:
        if not servers:
            servers.append(opened.enter_context(Sshd(options=options)))
        backoff = Backoff(first=0.1, longest=0.2)
        made: Transport
        if kind == "ssh":
            monkeypatch.setenv("AIRFLOW_CONN_SITE", servers[0].connection())
            made = SSHTransport("site", backoff=backoff)
        else:
            # The folders of pytest may have names that are too long for a socket's.
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="lading-")))
            made = ControlMasterTransport("site", config_file=servers[0].client_config, folder=folder, backoff=backoff)
        return opened.enter_context(made), servers[0]

    yield connect
    opened.close()


def tunnel(transport: Transport, api: ExecutionApi, folder: Path, **options: Any) -> ApiTunnel:
    table = {"kind": "slurm", "work_dir": "/w", "python": sys.executable, "node_cpus": 8, "node_memory": 9000}
    table |= {"api": "tunnel", "ssh_conn_id": "x", "tunnel_host": LOGIN, **options}
    config = ClusterConfig.model_validate(table)
    made = ApiTunnel(
        transport,
        config.python,
        api.url,
        host=config.tunnel_host,
        port=config.tunnel_port,
        file=f"{folder}/api_address",
    )
    made.backoff = Backoff(first=0.1, longest=0.2)
    return made


def keep(tunnel: ApiTunnel) -> Address:
    """What the site's thread does."""

    def stands() -> bool:
        try:
            tunnel.keep()
        except TransportError:
            return False
        return tunnel.stands

    assert wait_until(stands, 60, 0.1), tunnel.backoff.message
    assert tunnel.address is not None
    return tunnel.address


def fetch(transport: Transport, address: Address, path: str = "/execution/health") -> str:
    """Ask from the login node; the status, or what is wrong."""
    code = f"import urllib.request as u; print(u.urlopen('http://{address}{path}', timeout=60).status)"
    (answer,) = transport.run([[sys.executable, "-c", code]], 120)
    return answer.message.split()[-1] if answer.status == 0 else answer.message


@pytest.mark.parametrize("way", WAYS)
def test_the_same_port_after_a_restart(
    connect: Callable[..., Any], way: str, api: ExecutionApi, tmp_path: Path
) -> None:
    transport, sshd = connect(way, GatewayPorts="no")
    made = tunnel(transport, api, tmp_path)
    address = keep(made)
    assert fetch(transport, address) == "200"
    assert Address.read(tmp_path / "api_address") == address
    sshd.restart()
    assert wait_until(lambda: not made.stands, 30, 0.05)
    assert keep(made) == address
    assert fetch(transport, address) == "200"
    made.close()
    assert wait_until(lambda: "refused" in fetch(transport, address), 30, 0.1), "nothing is left at the login node"
    other, _ = connect(way)
    successor = tunnel(other, api, tmp_path)
    assert keep(successor) == address, "and the next controller's"
    assert fetch(transport, address) == "200"


@pytest.mark.parametrize("way", WAYS)
def test_without_relay(connect: Callable[..., Any], way: str, api: ExecutionApi, tmp_path: Path) -> None:
    transport, _ = connect(way, GatewayPorts="clientspecified")
    made = tunnel(transport, api, tmp_path)
    address = keep(made)
    assert fetch(transport, address) == "200"
    assert "refused" in fetch(transport, Address("127.0.0.1", address.port)), "sshd listens where nodes connect"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gateway", ["no", "clientspecified"])
def test_the_execution_api_alone(
    connect: Callable[..., Any], way: str, gateway: str, api: ExecutionApi, tmp_path: Path
) -> None:
    """Through the relay, past it, and through sshd's own port: users of the login node reach nothing else."""
    transport, _ = connect(way, GatewayPorts=gateway)
    made = tunnel(transport, api, tmp_path)  # its connection ends with it
    address = keep(made)
    for host in (LOGIN, "127.0.0.1"):
        if host == LOGIN or gateway == "no":
            there = Address(host, address.port)
            assert fetch(transport, there) == "200"
            for path in ("/auth/token", "/execution/../auth/token", "/execution/%2e%2e/auth/token", "/"):
                assert "403" in fetch(transport, there, path), (host, path)
    assert {path for _, path, _ in api.requests} == {"/execution/health"}


@pytest.mark.parametrize("way", WAYS)
def test_a_port_that_another_connection_still_holds(
    connect: Callable[..., Any], way: str, api: ExecutionApi, tmp_path: Path
) -> None:
    first, _ = connect(way, GatewayPorts="no")
    before = tunnel(first, api, tmp_path)
    address = keep(before)
    second, _ = connect(way)
    made = tunnel(second, api, tmp_path)
    moved = keep(made)
    assert moved != address
    assert fetch(second, moved) == "200"
    assert Address.read(tmp_path / "api_address") == moved
    with pytest.raises(TransportError, match=f"{address.port}"):
        tunnel(connect(way)[0], api, tmp_path, tunnel_port=address.port).keep()


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_forwards_nothing(
    connect: Callable[..., Any], way: str, api: ExecutionApi, tmp_path: Path
) -> None:
    transport, _ = connect(way, AllowTcpForwarding="no")
    with pytest.raises(TransportError, match="is AllowTcpForwarding off"):
        tunnel(transport, api, tmp_path).keep()
    assert transport.run(["echo fine"])[0].stdout == "fine\n"


def test_a_site_without_lading(connect: Callable[..., Any], api: ExecutionApi, tmp_path: Path) -> None:
    transport, _ = connect("ssh")
    with pytest.raises(TransportError, match=r"the relay of the tunnel is not running: .*no-such-python"):
        tunnel(transport, api, tmp_path, python="/no-such-python").keep()


@pytest.mark.parametrize("way", WAYS)
def test_a_session_is_talked_with(connect: Callable[..., Any], way: str) -> None:
    transport, sshd = connect(way, ForceCommand='echo noise >&2; eval "$SSH_ORIGINAL_COMMAND"')
    transport.setup = "echo noise; echo noise >&2; set -e; cat"
    session = transport.session(["/bin/sh", "-c", 'while read -r line; do echo "it\'s $line"; done; echo over'])
    session.write(b"me\n", 120)
    assert session.wait_for_line("it's ", 120) == "me"

    def is_quiet() -> bool:  # sshd may bring errors later than what was printed after them
        assert session.read_new() in (b"", b"noise\n")
        return not select.select([session.fileno()], [], [], 0.2)[0]

    assert wait_until(is_quiet, 10, 0), "errors that are not read would wake up the wait for news again and again"
    assert session.alive
    sshd.restart()
    assert wait_until(lambda: not session.alive, 30, 0.05)
    session = transport.session(["/bin/sh", "-c", "echo never mind; exit 3"])
    with pytest.raises(TransportError, match=r"(?s)last output: .*never mind"):
        session.wait_for_line("it's ", 120)
    session.close()
