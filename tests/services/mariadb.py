"""A MariaDB server of Debian's packages, in a folder of its own: it has SLURM's accounts, and stands for MySQL."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.services import debian, processes
from tests.services.ports import free_ports

PROGRAM = Path("/usr/sbin/mariadbd")
PACKAGE = "mariadb-server"
# Nothing here has to survive a power cut, so nothing waits for the disk.
OPTIONS = {
    "bind-address": "127.0.0.1",
    "innodb-log-file-size": "64M",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-lock-wait-timeout": "900",  # as SLURM asks for
}


class MariaDB:
    """A running server.

    :param folder: where its data go; made here
    :param buffer_pool: MiB of pages that it keeps in memory
    """

    def __init__(self, folder: Path, buffer_pool: int = 64) -> None:
        self.folder, self.buffer_pool = folder, buffer_pool
        self.port = free_ports(1)[0]
        self.socket = folder / "socket"
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the data folder where there is none, and start the server on it; its packages are installed where they
        are missing.

        :raises RuntimeError: it did not start; with what it said
        """
        if not PROGRAM.exists():
            debian.install(PACKAGE)
        log, data, temporary = self.folder / "log", self.folder / "data", self.folder / "tmp"
        # A server that starts deletes the temporary tables of all others in the same folder.
        environment = {**os.environ, "TMPDIR": str(temporary)}
        if not data.exists():
            temporary.mkdir(parents=True)
            options = ["--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db"]
            command = ["mariadb-install-db", *options, "--auth-root-authentication-method=normal"]
            made = subprocess.run(command, capture_output=True, text=True, env=environment)
            if made.returncode:
                raise RuntimeError(f"mariadb-install-db failed:\n{made.stdout}{made.stderr}")
        options = [f"--{name}={value}" for name, value in OPTIONS.items()]
        options += [
            f"--innodb-buffer-pool-size={self.buffer_pool}M",
            f"--datadir={data}",
            f"--socket={self.socket}",
            f"--port={self.port}",
            "--pid-file=pid",
        ]
        with log.open("ab") as output:
            self._server = subprocess.Popen(
                [str(PROGRAM), "--no-defaults", "--user=root", "--skip-name-resolve", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment,
            )
        if not processes.wait_until(self._answers, 30):
            self.stop()
            raise RuntimeError(f"MariaDB did not start:\n{log.read_text()}")

    def execute(self, statements: str) -> None:
        subprocess.run([*self._client("mariadb"), "-e", statements], check=True)

    def create_database(self, name: str) -> str:
        """Make an empty database that compares text as Airflow wants it; return its URL."""
        user = f"CREATE USER {name}; GRANT ALL ON {name}.* TO {name}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb3; {user}")
        return f"mysql+pymysql://{name}@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(300)
            self._server = None

    def _answers(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            return True  # the next command says why
        return subprocess.run([*self._client("mariadb-admin"), "ping"], capture_output=True).returncode == 0

    def _client(self, program: str) -> list[str]:
        return [program, "--no-defaults", "-S", str(self.socket), "-u", "root"]
