"""The tunnel to Airflow's API, with a mock site in place of sshd and relay."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.api_tunnel import relay
from lading.hooks.api_tunnel.address import VARIABLE
from lading.hooks.api_tunnel.tunnel import ApiTunnel
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import api_environment
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.local_transport import ShellTransport
from lading.hooks.ssh.session import Session


class PaperRelay(Session):
    """A relay that answers what the test wants.

    :param taken: the ports that it finds taken
    """

    def __init__(self, host: str, taken: set[int], standing: set[int]) -> None:
        super().__init__()
        self.taken = taken
        self.standing = standing
        self.open = True
        self._answer(host=host, address="127.0.0.5")

    @property
    def alive(self) -> bool:
        return self.open

    def fileno(self) -> int:
        raise OSError("nobody waits for a paper one")

    def write(self, text: bytes, timeout: float) -> None:
        words = text.decode().strip()
        if words.startswith(relay.LOOK):
            self._answer(stands=int(words.removeprefix(relay.LOOK)) in self.standing)
        elif int(words) in self.taken:
            self._answer(taken=f"port {words} is another user's")
        else:
            self._answer(relays=True)

    def close(self) -> None:
        self.open = False

    def _receive(self, timeout: float) -> bytes:
        return b""

    def _answer(self, **words: Any) -> None:
        self._unread += f"{relay.MARK}{json.dumps(words)}\n".encode()


class PaperSite(ShellTransport):
    """A site whose files are on this machine.

    :ivar refused: the ports that sshd refuses; 0: all that it would choose itself
    :ivar asked: the ports that it was asked for
    """

    def __init__(self) -> None:
        super().__init__()
        self.host = "login1.cluster"
        self.refused: set[int] = set()
        self.taken: set[int] = set()
        self.standing: set[int] = set()
        self.asked: list[int] = []
        self.open: list[int] = []
        self.relays: list[PaperRelay] = []
        self._next = 40000

    def tunnel(self, host: str, port: int, remote_port: int = 0, address: str = "") -> int:
        assert (host, port, address) == ("airflow.example.org", 443, "127.0.0.5")
        self.asked.append(remote_port)
        if remote_port in self.refused:
            raise TransportError(f"the SSH server refuses port {remote_port}")
        if not remote_port:
            self._next += 1
        self.open.append(remote_port or self._next)
        return self.open[-1]

    def untunnel(self, host: str, port: int) -> None:
        self.open.clear()

    def session(self, command: Sequence[str], setup: str = "") -> Session:
        assert command[:3] == ["/py", "-m", "lading.hooks.api_tunnel.relay"]
        self.relays.append(PaperRelay(self.host, self.taken, self.standing))
        return self.relays[-1]


@pytest.fixture
def site() -> PaperSite:
    return PaperSite()


@pytest.fixture
def make(site: PaperSite, tmp_path: Path) -> Callable[..., ApiTunnel]:
    def make(file: str = "api_address", shared: str | None = None, **options: Any) -> ApiTunnel:
        config = ClusterConfig.model_validate({**TABLE, "api": "tunnel", "ssh_conn_id": "x", **options})
        url = "https://airflow.example.org/execution/"
        shared = f"{tmp_path}/{shared}" if shared else None
        way = {"host": config.tunnel_host, "port": config.tunnel_port}
        return ApiTunnel(site, config.python, url, **way, file=f"{tmp_path}/{file}", shared=shared)

    return make


TABLE = {"kind": "slurm", "work_dir": "/w", "python": "/py", "node_cpus": 8, "node_memory": 9000}


def test_the_port_stays_the_same(site: PaperSite, make: Callable[..., ApiTunnel], tmp_path: Path) -> None:
    tunnel = make()
    assert not tunnel.stands
    tunnel.keep()
    tunnel.keep()
    assert (tunnel.stands, site.asked, site.open) == (True, [0], [40001])
    assert (tmp_path / "api_address").read_text() == "login1.cluster 40001\n"
    assert (tmp_path / "api_address").stat().st_mode & 0o777 == 0o600
    site.relays[-1].close()
    assert not tunnel.stands
    tunnel.keep()
    make().keep()
    assert site.asked == [0, 40001, 40001]


def test_another_port_where_it_must_be(site: PaperSite, make: Callable[..., ApiTunnel], tmp_path: Path) -> None:
    (tmp_path / "api_address").write_text("login1.cluster 41234\n")
    site.refused = {41234}
    site.taken = {40001, 40002}
    site.host = "login2.cluster"
    make().keep()
    assert site.asked == [41234, 0, 0, 0]
    assert site.open == [40003]
    assert (tmp_path / "api_address").read_text() == "login2.cluster 40003\n"


def test_a_port_of_the_table_and_no_other(site: PaperSite, make: Callable[..., ApiTunnel], tmp_path: Path) -> None:
    site.taken = {41234}
    tunnel = make(tunnel_port=41234)
    with pytest.raises(TransportError, match="port 41234 is another user's"):
        tunnel.keep()
    assert (site.asked, site.open, tunnel.stands) == ([41234], [], False)
    assert not site.relays[-1].alive
    assert not (tmp_path / "api_address").exists()
    with pytest.raises(TransportError, match="tried again in"):
        tunnel.keep()
    assert site.asked == [41234], "not at once"
    assert tunnel.backoff.message == "port 41234 is another user's"


def test_a_tunnel_that_stands_is_shared(site: PaperSite, make: Callable[..., ApiTunnel], tmp_path: Path) -> None:
    (tmp_path / "api_address").write_text("login1.cluster 41234\n")
    site.standing = {41234}
    make(file="trial/api_address", shared="api_address", tunnel_port=41234).keep()
    assert (tmp_path / "trial/api_address").read_text() == "login1.cluster 41234\n"
    assert site.asked == []
    site.standing = set()
    make(file="other/api_address", shared="api_address").keep()
    assert site.asked == [0]
    assert (tmp_path / "other/api_address").read_text() == "login1.cluster 40001\n"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"api": "tunnel"}, "give ssh_conn_id or control_master"),
        ({"api": "tunnels", "ssh_conn_id": "x"}, "'url' or 'tunnel'"),
        ({"tunnel_port": 41234, "ssh_conn_id": "x"}, "cannot be used without api = 'tunnel'"),
        ({"tunnel_host": "login1"}, "cannot be used without api = 'tunnel'"),
        ({"api": "tunnel", "ssh_conn_id": "x", "tunnel_host": "login1:22"}, "without port"),
        ({"api": "tunnel", "ssh_conn_id": "x", "tunnel_port": 80}, "1024"),
        ({"api": "tunnel", "ssh_conn_id": "x", "api_url": "unix:/socket"}, "is not the URL of an API"),
        ({"api_url": "airflow.example.org:8080"}, "is not the URL of an API"),
    ],
)
def test_tables_that_make_no_sense(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ClusterConfig.model_validate({**TABLE, **table})


def test_what_jobs_are_given() -> None:
    def told(*names: str, **options: Any) -> list[str]:
        config = ClusterConfig.model_validate({**TABLE, **options})
        lines = api_environment(config, ClusterFolder("/my work"), "https://airflow.example.org/a path/")
        script = "\n".join([*lines, *(f'printf "%s\\n" "${name}"' for name in names)])
        return subprocess.run(["/bin/bash"], input=script, capture_output=True, text=True, env={}).stdout.splitlines()

    url, patience = "AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"
    tunnel = {"api": "tunnel", "ssh_conn_id": "x"}
    assert told(url, VARIABLE, patience) == ["https://airflow.example.org/a path/", "", "300"]
    assert told(url, VARIABLE, patience, **tunnel) == [
        "https://airflow.example.org/a path/",
        "/my work/api_address",
        "300",
    ]
    assert told(patience, setup=f"export {patience}=900", **tunnel) == ["900"], "the site's own lines win"
