"""Debian's Podman, which takes Docker's commands: real containers, of an image that has nothing but this machine's own
programs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.services import debian

IMAGE = "localhost/lading-test:1"
ROOT = Path(__file__).parents[2]
# What an image of Debian links to its own /usr.
LINKS = "bin", "lib", "lib64", "sbin"


@contextlib.contextmanager
def podman() -> Iterator[Path]:
    """A folder with a command ``docker``, whose containers and images are its own, with :data:`IMAGE`.

    The programs of this machine, this Python and these tests are mounted into each container.
    """
    of_this_machine = dict.fromkeys(["/usr", sys.base_prefix, sys.prefix, str(ROOT)])
    with engine(*of_this_machine) as command:
        subprocess.run([command, "import", "-", IMAGE], input=image(), check=True, capture_output=True, timeout=120)
        yield command.parent


@contextlib.contextmanager
def engine(*mounted: str) -> Iterator[Path]:
    """A command ``docker``, whose containers and images are its own.

    :param mounted: the folders of this machine that each container sees
    """
    # Catatonit is the init of `docker run --init`, which Podman only recommends.
    needed = ("podman", "runc", "catatonit")
    if not all(shutil.which(each) for each in needed):
        debian.install(*needed)
    folder = Path(tempfile.mkdtemp(prefix="lading-podman-"))
    command = folder / "bin" / "docker"
    try:
        write(folder, command, mounted)
        yield command
    finally:
        if command.exists():
            subprocess.run([command, "rm", "--all", "--force"], check=False, capture_output=True, timeout=120)
        subprocess.run([*as_root(), "rm", "-rf", str(folder)], check=False, timeout=120)


def write(folder: Path, command: Path, mounted: Sequence[str]) -> None:
    """Write the command, and what it reads."""
    mounts = [f"{each}:{each}:ro" for each in mounted]
    limits = [f"nofile={most(resource.RLIMIT_NOFILE)}", f"nproc={most(resource.RLIMIT_NPROC)}"]
    lists = f"volumes = {json.dumps(mounts)}\ndefault_ulimits = {json.dumps(limits)}"
    settings = folder / "containers.conf"
    settings.write_text(f'[containers]\n{lists}\n[engine]\ncgroup_manager = "cgroupfs"\n')
    command.parent.mkdir()
    # Runc knows cgroups of both versions side by side, and vfs needs nothing of the file system below.
    options = ["--root", f"{folder}/store", "--runroot", f"{folder}/run", "--storage-driver=vfs", "--runtime=runc"]
    words = [*as_root(), "env", f"CONTAINERS_CONF={settings}", shutil.which("podman") or "podman", *options]
    command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    command.chmod(0o755)


def as_root() -> list[str]:
    return [] if os.geteuid() == 0 else ["sudo", "-n", "-E"]


def most(limit: int) -> str:
    """What a container may have, soft and hard, where this process may have no more itself."""
    hard = resource.getrlimit(limit)[1]
    number = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    return f"{number}:{number}"


def image() -> bytes:
    """A file system that has no file: what is in it is mounted."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("usr", "tmp", "proc", "sys", "dev", "etc", "root", "run", "var"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in LINKS:
            if Path("/", name).is_symlink():
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(entry)
    return archive.getvalue()
