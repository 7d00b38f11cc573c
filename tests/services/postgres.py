"""A PostgreSQL server of Debian's packages, in a folder of its own, for as long as a test session."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.services import debian
from tests.services.ports import free_ports
from tests.services.service import Service

# Nothing here has to survive a power cut, so nothing waits for the disk.
OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
}
USER = "airflow"
# Debian's package makes and starts a server of its own unless told not to.
NO_CLUSTER = {"/etc/postgresql-common/createcluster.d/lading-tests.conf": "create_main_cluster = false\n"}


def programs() -> Path:
    """Find the folder of the newest installed server's programs, and install Debian's server when there is none.

    :raises tests.services.debian.MissingPackagesError: it could not be installed
    """
    if not (found := _installed()):
        debian.install("postgresql", while_installing=NO_CLUSTER)
        found = _installed()
    if not found:
        raise debian.MissingPackagesError("postgresql is installed, but there is no /usr/lib/postgresql/*/bin/initdb")
    return found[-1]


def _installed() -> list[Path]:
    initdbs = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return sorted((path.parent for path in initdbs), key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0))


class Postgres(Service):
    """A running server; a context manager. Anyone on the loopback address is let in, for the data is a test's.

    :param options: further ones of the server, by their names
    """

    def __init__(self, **options: str) -> None:
        self.options = {**OPTIONS, **options}
        self.programs = programs()
        self.port = free_ports(1)[0]
        # Not pytest's tmp_path: the server's user could not enter it.
        self.folder = Path(tempfile.mkdtemp(prefix="lading-postgres-"))
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the data folder where there is none, and start the server on it.

        :raises RuntimeError: it did not start; with what it said
        """
        as_user = _unprivileged(self.folder)
        data, log = self.folder / "data", self.folder / "log"
        if not data.exists():
            initdb = [self.programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"]
            made = subprocess.run(initdb, capture_output=True, text=True, cwd="/", **as_user)
            if made.returncode:
                raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")
        options = [f"--{name}={value}" for name, value in self.options.items()]
        command = [self.programs / "postgres", "-D", data, "-k", self.folder, "-p", str(self.port), *options]
        with log.open("ab") as output:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,  # Ctrl-C in a terminal is for the tests, which still need it to stop an Airflow
                **as_user,
            )
        ready = [self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(3000):
            if self._server.poll() is not None:
                break
            if subprocess.run(ready).returncode == 0:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(0.1)
        said = log.read_text()
        self.stop()
        raise RuntimeError(f"PostgreSQL did not start:\n{said}")

    def create_database(self, name: str) -> str:
        """Make an empty database and return its SQLAlchemy URL."""
        command = [self.programs / "createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, name]
        subprocess.run(command, check=True)
        return f"postgresql+psycopg2://{USER}@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        """End the server and remove its folder."""
        self.pause()
        shutil.rmtree(self.folder, ignore_errors=True)

    def pause(self) -> None:
        """End the server, even with open connections; ``start`` goes on with what it has stored."""
        if self._server:
            self._server.send_signal(signal.SIGINT)  # PostgreSQL's "fast shutdown": ends sessions, then itself
            try:
                self._server.wait(120)
            except subprocess.TimeoutExpired:
                self._server.send_signal(signal.SIGQUIT)  # "immediate shutdown", which ends its children too
                self._server.wait(120)
            self._server = None


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Say how to run as the user that Debian's package made, which then owns ``folder``: the server refuses root."""
    if os.geteuid() != 0:
        return {}
    shutil.chown(folder, "postgres", "postgres")
    return {"user": "postgres", "group": "postgres", "extra_groups": []}
