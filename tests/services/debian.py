"""Debian packages of the services that the tests start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Some packages start a service of this machine when they are installed, unless this program forbids it.
NO_SERVICES = {"/usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n"}


class MissingPackagesError(RuntimeError):
    """Debian packages are missing and could not be installed; the message says what to type."""


def install(*packages: str, while_installing: Mapping[str, str] | None = None, answers: str = "") -> None:
    """Install Debian packages, as root or by ``sudo -n``.

    :param while_installing: files to be there meanwhile, path to text: settings and programs that the packages' scripts
        use; one that is there already stays as it is
    :param answers: to the packages' questions, as debconf-set-selections(1) reads them
    :raises MissingPackagesError: this is not Debian, there is no right to install, or apt-get failed
    """
    files = {path: text for path, text in (while_installing or {}).items() if not Path(path).exists()}
    advice = f"install them by hand: apt-get install {' '.join(packages)}"
    if not shutil.which("apt-get"):
        raise MissingPackagesError(
            f"Debian packages {', '.join(packages)} are missing and there is no apt-get; {advice}"
        )
    with _alone():
        if _are_installed(packages):  # by another process of the tests, which was first
            return
        try:
            for path, text in files.items():
                _as_root(["mkdir", "-p", str(Path(path).parent)], advice)
                _as_root(["tee", path], advice, text)
                _as_root(["chmod", "755", path], advice)
            if answers:
                _as_root(["debconf-set-selections"], advice, answers)
            _as_root(["apt-get", "update", "-q"], advice)
            _as_root(["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages], advice)
        finally:
            if files:
                _as_root(["rm", "-f", *files], advice)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one process of the tests install at a time."""
    with open(Path(tempfile.gettempdir()) / f"lading-tests-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _are_installed(packages: Sequence[str]) -> bool:
    shown = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status}\n", *packages], capture_output=True, text=True
    )
    return shown.returncode == 0 and set(shown.stdout.split()) == {"installed"}


def _as_root(command: Sequence[str], advice: str, text: str = "") -> None:
    # `env` on the command line, because sudo passes no variables on.
    command = ["env", "DEBIAN_FRONTEND=noninteractive", *command]
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            raise MissingPackagesError(f"{' '.join(command)} needs root, and there is no sudo; {advice}")
        command = ["sudo", "-n", *command]
    done = subprocess.run(command, capture_output=True, text=True, input=text)
    if done.returncode:
        raise MissingPackagesError(f"{' '.join(command)} failed; {advice}\n{done.stdout}{done.stderr}")
