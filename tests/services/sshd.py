"""A real OpenSSH server on a free loopback port, with keys of its own, for as long as a test session."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.services import debian, processes
from tests.services.account import Account
from tests.services.ports import free_ports
from tests.services.service import Service

PROGRAM = Path("/usr/sbin/sshd")
# sshd of root wants this folder, which systemd makes elsewhere. It stays: others' servers need it at each connection.
PRIVILEGE_SEPARATION = Path("/run/sshd")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
OPTIONS = {
    "AddressFamily": "inet",  # else -R is content with ::1 when 127.0.0.1 is taken
    "UsePAM": "no",
    "StrictModes": "no",  # the folders above ours may belong to any user
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "PermitRootLogin": "prohibit-password",
    "GatewayPorts": "clientspecified",
    "UseDNS": "no",
    "PrintMotd": "no",
    "LogLevel": "VERBOSE",  # a line for each connection and each session, which the tests count
    "Subsystem": "sftp internal-sftp",
}


class Sshd(Service):
    """A running server; a context manager.

    :param account: who logs in; the user of the tests when None
    :param options: further lines of sshd_config(5), such as ``{"MaxSessions": "1"}``
    :param environment: what every command finds in its environment
    :param is_forked: whether a fork of the server serves a connection without starting anew, which costs less
    :param boots: whether what runs behind it finds a boot id of its own, and another one after :meth:`reboot`
    """

    def __init__(
        self,
        account: Account | None = None,
        *,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        boots: bool = False,
        is_forked: bool = False,
    ) -> None:
        if not PROGRAM.exists():
            debian.install("openssh-server", "openssh-client", while_installing=debian.NO_SERVICES)
        self.user = account.name if account else getpass.getuser()
        self.port = free_ports(1)[0]
        self.folder = Path(tempfile.mkdtemp(prefix="lading-sshd-"))
        self.folder.chmod(0o755)
        self.log = self.folder / "log"
        self.log.touch()
        self.options = {**OPTIONS, **(options or {})}
        self.environment = dict(environment or {})
        self.account = account
        self.boots = boots
        self.is_forked = is_forked
        self._server: subprocess.Popen[bytes] | None = None
        self._orphans: list[processes.Process] = []
        for name in ("host_key", "id_user", "other_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name)]
            subprocess.run(command, check=True)
        shutil.copy(self.folder / "id_user.pub", self.folder / "authorized_keys")
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")
        self._write_client_config()

    @property
    def host_key(self) -> str:
        return self._public("host_key")

    @property
    def other_key(self) -> str:
        """A key without an owner."""
        return self._public("other_key")

    @property
    def client_config(self) -> Path:
        """An ssh_config in which this server is called ``site``."""
        return self.folder / "ssh_config"

    def connection(self, **changes: object) -> str:
        """Airflow's connection to this server, as the text of an environment variable ``AIRFLOW_CONN_...``.

        :param changes: other values of ``login``, ``host``, ``port``, or of the extra fields; None leaves one out
        """
        extra = {"key_file": str(self.folder / "id_user"), "host_key": self.host_key, "look_for_keys": "false"}
        parts = {"conn_type": "ssh", "host": "127.0.0.1", "port": self.port, "login": self.user}
        for name, value in changes.items():
            (parts if name in parts else extra)[name] = value  # type: ignore[assignment]
        return json.dumps({**parts, "extra": {name: value for name, value in extra.items() if value is not None}})

    def start(self) -> None:
        """Start the server, again on the same port with the same keys.

        :raises RuntimeError: it did not start; with what it said
        """
        if os.geteuid() == 0:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        lines = {
            **self.options,
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": str(self.folder / "host_key"),
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "PidFile": "none",
        }
        if self.environment:  # only the first such line counts
            lines["SetEnv"] = " ".join(f'"{name}={value}"' for name, value in self.environment.items())
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        with self.log.open("ab") as output:
            self._server = subprocess.Popen(
                [*self._boot(), str(PROGRAM), "-D", "-e", *(["-r"] if self.is_forked else []), "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
        if not processes.wait_until(lambda: self._listening() or self._ended(), 20, 0.02) or self._ended():
            said = self.log.read_text()
            self.stop()
            raise RuntimeError(f"sshd did not start:\n{said}")

    def stop(self) -> None:
        """End the server and all its connections, and remove its folder."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    def halt(self) -> None:
        """End the server and all its connections, as a machine that is shut down."""
        self.kill()
        self.cut()

    def kill(self) -> None:
        """Kill the server; the connections that it has accepted live on."""
        if self._server is not None:
            self._orphans += [process for pid in self.connections_of_now() for process in processes.identify(pid)]
            self._server.kill()
            self._server.wait()
            self._server = None

    def reboot(self) -> None:
        """Kill all that runs on the machine, jobs and agents as well, and start it again."""
        self.halt()
        if self.account is not None:
            processes.kill(processes.of_user(self.account.uid))
        self.start()

    def _boot(self) -> list[str]:
        """What comes before the server: a mount namespace of its own, in which the boot id is another file."""
        if not self.boots:
            return []
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        mount = f'mount --bind {self.folder}/boot_id {BOOT_ID} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, "sh"]

    def restart(self) -> None:
        """End the server and all its connections, and start it again."""
        self.halt()
        self.start()

    def cut(self) -> None:
        """Kill what serves the connections; what they have started is left to itself."""
        for pid in self.connections_of_now():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._orphans.clear()

    def freeze(self) -> None:
        """Keep the connections open and silent, as when a cable is pulled."""
        for pid in self.connections_of_now():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.connections_of_now():
            os.kill(pid, signal.SIGCONT)

    def connections_of_now(self) -> set[int]:
        """The pids that serve living connections."""
        found = processes.descendants(self._server.pid) if self._server is not None else []
        ours = {process.pid for process in found if process.command.startswith("sshd: ")}
        living = {(process.pid, process.started) for process in processes.living().values()}
        return ours | {orphan.pid for orphan in self._orphans if (orphan.pid, orphan.started) in living}

    @property
    def accepted(self) -> int:
        """How many connections have come in since the first start."""
        return self.log.read_text().count("Connection from ") - self._knocks

    @property
    def sessions(self) -> int:
        """How many sessions have been opened since the first start."""
        return self.log.read_text().count("Starting session: ")

    _knocks = 0

    def _listening(self) -> bool:
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", self.port)):
                return False
        self._knocks += 1
        # It is counted when the server has written it down.
        return processes.wait_until(lambda: self.log.read_text().count("Connection from ") >= self._knocks, 5, 0.01)

    def _ended(self) -> bool:
        return self._server is None or self._server.poll() is not None

    def _public(self, name: str) -> str:
        return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

    def _write_client_config(self) -> None:
        lines = {
            "Host": "site",
            "HostName": "127.0.0.1",
            "Port": self.port,
            "User": self.user,
            "IdentityFile": self.folder / "id_user",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.folder / "known_hosts",
            "GlobalKnownHostsFile": "none",
        }
        self.client_config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
