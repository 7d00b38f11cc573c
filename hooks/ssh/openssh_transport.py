"""The transport over a connection that the OpenSSH client shares (ControlMaster), for sites with two-factor login.

A user logs in once with ``ssh -o ControlMaster=yes -o ControlPath=PATH -o ControlPersist=yes LOGIN true``, and the
transport uses that connection. If no second factor is required, it opens the connection itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lading.hooks.files.safe_files import make_private, own_folder
from lading.hooks.ssh import session
from lading.hooks.ssh.answer import TransportError, whole_number
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.exchange import COMMAND, Exchange
from lading.hooks.ssh.local_transport import converse
from lading.hooks.ssh.session import ProcessSession, Session
from lading.hooks.ssh.transport import LOGIN_PAUSE, LOOPBACK, SessionRefused, Transport

# The client's message when the server refuses a session.
REFUSAL = b"session request failed"
MASTER_PID = re.compile(r"pid=(\d+)")
# Overrides options that a user may have set for terminal sessions.
PLAIN = {
    "ControlMaster": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ForwardX11": "no",
    "ForwardAgent": "no",
    # Without the shared connection, the client would open a new one for each command.
    "ProxyCommand": "false",
}


@dataclass
class _Tunnel:
    """A port at the site.

    :param asked: the requested port, with which it is cancelled; 0: any
    :param master: pid of the client that has it
    """

    host: str
    port: int
    address: str
    remote_port: int
    asked: int = 0
    master: int | None = None

    @property
    def spec(self) -> str:
        """The argument of the client's option -R."""
        return f"{_bracketed(self.address)}:{self.asked}:{_bracketed(self.host)}:{self.port}"


class ControlMasterTransport(Transport):
    """Commands over a shared connection of the OpenSSH client.

    :param destination: the argument of ``ssh``: an alias of ``~/.ssh/config``, or ``user@host``
    :param options: further options of ssh_config(5), such as ``{"Port": "2222"}``
    :param config_file: an ssh_config to read instead of the user's and the machine's
    :param control_path: the socket of the shared connection; None: the one in ssh_config, or else one in ``folder``
    :param folder: our own folder for that socket; None: a private one per user in the temporary folder
    :param connect_timeout: seconds for a new connection
    """

    def __init__(
        self,
        destination: str,
        *,
        options: Mapping[str, str] | None = None,
        config_file: Path | None = None,
        control_path: Path | None = None,
        folder: Path | None = None,
        setup: str = "",
        connect_timeout: int = 15,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(setup=setup)
        if not destination or destination.startswith("-"):
            raise ValueError(
                f"{destination!r} is not a destination for ssh: give user@host or an alias of ~/.ssh/config"
            )
        self.destination = destination
        self.options = {**(options or {}), "BatchMode": "yes", "ConnectTimeout": str(connect_timeout)}
        self.config_file = config_file
        self.connect_timeout = connect_timeout
        self.backoff = backoff or Backoff()
        self._given_path = control_path
        self._folder = folder
        self._path: Path | None = None
        self._master: subprocess.Popen[bytes] | None = None
        self._opening = threading.Lock()
        self._tunnels: dict[tuple[str, int], _Tunnel] = {}

    @property
    def control_path(self) -> Path:
        """The socket of the shared connection.

        :raises TransportError: the OpenSSH client is missing, or rejects its configuration
        """
        if self._path is None:
            self._path = self._given_path or self._configured_path() or self._own_path()
        return self._path

    def tunnel(self, host: str, port: int, remote_port: int = 0, address: str = LOOPBACK) -> int:
        master = self._connected()
        with self._opening:
            known = self._tunnels.get((host, port))
            if known is None or address != known.address or remote_port not in {0, known.remote_port}:
                if known is not None:
                    self._cancel(known, master)
                known = _Tunnel(host, port, address, remote_port)
            if known.master != master:
                known.asked = known.remote_port
                done = self._ask("forward", "-R", known.spec)
                if done.returncode:
                    raise TransportError(
                        f"the SSH server refuses to forward a port to {host}:{port}: {_output(done)}; is the "
                        "port taken, or is AllowTcpForwarding off?"
                    )
                if not known.remote_port:
                    port_there = whole_number(str(done.stdout).strip())
                    if port_there is None:
                        raise TransportError(
                            f"ssh has not printed which port it forwards to {host}:{port}: {_output(done)}"
                        )
                    known.remote_port = port_there
                known.master = master
                self._tunnels[host, port] = known
            return known.remote_port

    def untunnel(self, host: str, port: int) -> None:
        with self._opening:
            if (known := self._tunnels.pop((host, port), None)) is not None:
                self._cancel(known, self._running_master())

    def session(self, command: Sequence[str], setup: str = "") -> Session:
        self._connected()
        client = self._ssh(PLAIN, "-T", "--", self.destination, session.COMMAND)
        return ProcessSession(client, session.script(command, self.setup_before(setup)))

    def close(self) -> None:
        """Cancel our tunnels, and close the connection if it was opened here; a user's is left open."""
        with self._opening:
            master = self._running_master() if self._path is not None else None
            for tunnel in self._tunnels.values():
                self._cancel(tunnel, master)
            self._tunnels.clear()
            self._end_master()

    def __str__(self) -> str:
        return f"ssh {self.destination}"

    def _converse(self, exchange: Exchange, timeout: float) -> None:
        self._connected()
        try:
            converse(self._ssh(PLAIN, "-T", "--", self.destination, COMMAND), exchange, timeout)
        except TransportError:
            if not exchange.begun:  # the shell has not answered, so the connection hangs
                with self._opening:
                    self._end_master()
            raise
        if not exchange.begun and REFUSAL in exchange.stderr:
            raise SessionRefused("the SSH server refuses a session, perhaps because of MaxSessions")

    def _cancel(self, tunnel: _Tunnel, master: int | None) -> None:
        if master is not None and tunnel.master == master:
            self._ask("cancel", "-R", tunnel.spec)

    def _connected(self) -> int:
        """Return the pid of the client that shares its connection; start one if that is due.

        :raises TransportError: there is none, and none could be opened without a user's login
        """
        with self._opening:
            if (pid := self._running_master()) is None:
                self.backoff.check()
                pid = self._start_master()
                self.backoff.succeeded()
            return pid

    def _running_master(self) -> int | None:
        found = MASTER_PID.search(_output(self._ask("check")))
        return int(found[1]) if found else None

    def _start_master(self) -> int:
        self._end_master()
        shared = {"ControlMaster": "yes", "ControlPersist": "no", "ServerAliveInterval": "30"}
        with tempfile.TemporaryFile() as output:
            self._master = subprocess.Popen(
                self._ssh({**PLAIN, **shared, "ProxyCommand": ""}, "-N", "-T", "--", self.destination),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )
            deadline = time.monotonic() + self.connect_timeout * 2
            while self._master.poll() is None and time.monotonic() < deadline:
                if self._running_master() == self._master.pid:  # not an earlier one that is about to exit
                    return self._master.pid
                time.sleep(0.05)
            output.seek(0)
            said = output.read(4000).decode(errors="replace").strip()
        self._end_master()
        if "Host key verification failed" in said:
            said += (
                "; if the server's administrator confirms the new key, remove the old one (`ssh-keygen -R HOST`) and "
                "add the new one (`ssh-keyscan -p PORT HOST` prints it) to ~/.ssh/known_hosts"
            )
        login = "Permission denied" in said or "Host key verification failed" in said
        raise self.backoff.failed(
            f"there is no shared connection, and opening one needs a user's login ({said or 'no answer'}); open "
            f"one: ssh -o ControlMaster=yes -o ControlPersist=yes -o ControlPath={self.control_path} "
            f"{self.destination} true",
            at_least=LOGIN_PAUSE if login else 0.0,
        )

    def _end_master(self) -> None:
        if self._master is not None:
            self._master.terminate()
            try:
                self._master.wait(5)
            except subprocess.TimeoutExpired:
                self._master.kill()
                self._master.wait()
            self._master = None

    def _configured_path(self) -> Path | None:
        done = _run([*self._base(), "-G", "--", self.destination])
        if done.returncode:
            raise TransportError(f"{self}: {_output(done)}")
        found = re.search(r"^controlpath (.+)$", done.stdout, re.MULTILINE)
        return Path(found[1]) if found and found[1] != "none" else None

    def _own_path(self) -> Path:
        try:
            if self._folder is None:
                self._folder = own_folder(Path(tempfile.gettempdir()), f"lading-ssh-{os.geteuid()}")
            make_private(self._folder)
        except OSError as error:
            raise TransportError(f"the folder for the control socket cannot be used: {error}") from error
        return self._folder / "%C"  # ssh expands it to a hash of host, port and user

    def _ask(self, command: str, *more: str) -> subprocess.CompletedProcess[str]:
        return _run(self._ssh({}, "-O", command, *more, "--", self.destination))

    def _ssh(self, options: Mapping[str, str], *more: str) -> list[str]:
        return [*self._base(), *_options({**options, "ControlPath": str(self.control_path)}), *more]

    def _base(self) -> list[str]:
        return ["ssh", *(["-F", str(self.config_file)] if self.config_file else []), *_options(self.options)]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _options(options: Mapping[str, str]) -> list[str]:
    return [word for name, value in options.items() if value for word in ("-o", f"{name}={value}")]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:  # the client that shares the connection is local
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10.0)
    except FileNotFoundError as error:
        raise TransportError("this machine has no OpenSSH client: install openssh-client") from error
    except subprocess.TimeoutExpired as error:
        raise TransportError(f"ssh did not answer within {error.timeout:g} s: {' '.join(command)}") from error


def _output(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.stdout}{done.stderr}".strip()
