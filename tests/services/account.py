"""An unprivileged account of this machine, with a home of its own, for as long as a test session."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.services import processes

PREFIX = "lading-test-"


class NeedsRootError(RuntimeError):
    """Only root can make accounts."""


class Account:
    """A user who may log in by key, never by password; a context manager.

    :param shell: the login shell
    :raises NeedsRootError: we are not root
    """

    def __init__(self, shell: str = "/bin/bash") -> None:
        if os.geteuid() != 0:
            raise NeedsRootError("only root can make an account: run the tests as root, or in a container")
        _remove_those_left_behind()
        self.folder = Path(tempfile.mkdtemp(prefix="lading-account-"))
        self.folder.chmod(0o755)
        self.home = self.folder / "home"
        self.name = f"{PREFIX}{os.getpid()}-{self.folder.name[-4:].lower()}"
        # "*" matches no password, but does not lock the account: sshd without PAM refuses one that is locked.
        options = ["--password", "*", "--shell", shell, "--home-dir", str(self.home), "--create-home"]
        made = subprocess.run(["useradd", *options, self.name], capture_output=True, text=True)
        if made.returncode:
            shutil.rmtree(self.folder)
            raise RuntimeError(f"useradd failed: {made.stderr}")
        self.home.chmod(0o755)
        self.uid = pwd.getpwnam(self.name).pw_uid

    def __enter__(self) -> Account:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def own(self, path: Path) -> Path:
        """Give a file to the user, and return it."""
        shutil.chown(path, self.name, self.name)
        return path

    def write(self, name: str, text: str) -> Path:
        """Write a file into the home."""
        path = self.home / name
        path.write_text(text)
        return self.own(path)

    def remove(self) -> None:
        """End what still runs as the user, and remove the account and its home."""
        processes.kill(processes.of_user(self.uid))
        processes.wait_until(lambda: not processes.of_user(self.uid), 10)
        _remove(self.name)
        shutil.rmtree(self.folder, ignore_errors=True)


def _remove(name: str) -> None:
    subprocess.run(["userdel", "--force", name], capture_output=True, check=False)


def _remove_those_left_behind() -> None:
    """Accounts of test sessions that were killed."""
    for user in pwd.getpwall():
        if user.pw_name.startswith(PREFIX):
            with contextlib.suppress(ValueError):
                if not Path("/proc", user.pw_name.removeprefix(PREFIX).split("-")[0]).exists():
                    _remove(user.pw_name)
                    shutil.rmtree(Path(user.pw_dir).parent, ignore_errors=True)
