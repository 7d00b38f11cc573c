"""Scratch space: a folder for each job, which goes when the job has ended, and what a disk has left for further jobs.

All folders of a user lie in one folder of the machine, also those of several agents; in another one if other users
have made something of its name. While anything of a job lives,
``TOKEN.lock`` is locked; of a job that failed ``TOKEN.kept`` says by its time until when its folder is kept, and holds
the MiB of disk that the job had asked for. What is hidden is being deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from lading.hooks.files import child_processes, host
from lading.hooks.files.safe_files import NotReadable, open_regular, own_folder, own_folders, read_regular

MIB = 2**20
# Where a job finds its folder, besides TMPDIR.
VARIABLE = "LADING_SCRATCH"
# Where Airflow keeps its copies of Dag bundles: one folder for all jobs of a user on a machine.
BUNDLES_VARIABLE = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH"
# What a mark says, bytes: MiB, at most those of a disk of a million TiB; nothing where the job has not said it.
MOST_MARK_BYTES = 12
_AMOUNT = re.compile(rb"[0-9]*")
# A node agent looks so often for folders whose time is over, seconds.
INTERVAL = 60.0


def root(configured: str) -> Path:
    """The folder of all folders of this user.

    :param configured: ``scratch`` of the site
    :raises OSError: there is no such place on this machine, or it cannot be made there
    """
    return own_folder(host.scratch(configured), _name())


def _name() -> str:
    return f"lading-{os.geteuid()}"


class JobScratch:
    """The folder of a job, in the process that runs it.

    :raises OSError: it cannot be made
    """

    def __init__(self, configured: str, token: str) -> None:
        parent = root(configured)
        self.path = parent / token
        self._lock = parent / f"{token}.lock"
        while (held := _hold(self._lock, os.O_CREAT)) is None:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(self._lock.lstat().st_mode):
                    raise OSError(f"{self._lock} is there, and is no file: remove it")
            time.sleep(0.01)  # another process only looks whether it is held
        self._held = held
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)

    def end(self, keep: float, disk: int) -> None:
        """Remove the folder, or let it be.

        :param keep: seconds for which it is kept
        :param disk: MiB that it counts for meanwhile
        """
        if keep:
            os.ftruncate(self._held, 0)
            os.write(self._held, str(disk).encode())
            _keep(self._lock, host.file_time(self._lock.parent) + keep)
        else:
            remove(_hide(self.path))
            self._lock.unlink(missing_ok=True)
        os.close(self._held)


@dataclass(frozen=True, slots=True)
class KeptScratch:
    """The folder of a job that failed.

    :param mark: the file that says so
    :param until: seconds since the epoch, by the clock that dates files there
    :param disk: MiB that it counts for
    """

    mark: Path
    until: float
    disk: int


class Scratch:
    """The scratch space of a machine, as its node agent manages it.

    What a job was promised is free until the job writes it, so what is free now does not say what may be promised.
    It does while nothing is promised; that is remembered, less what is promised since then.

    :param configured: ``scratch`` of the site
    :param keep_failed: seconds for which the folder of a job is kept whose process died before it could see to that
    """

    def __init__(self, configured: str = "", keep_failed: float = 0.0) -> None:
        self.configured = configured
        self.keep_failed = keep_failed
        self.kept: list[KeptScratch] = []
        self.whole = 0
        self._due = 0.0
        self._failures = 0
        self._remover: subprocess.Popen[bytes] | None = None

    def measure(self, promised: int) -> int:
        """Measure what may be promised to further jobs, in MiB.

        :param promised: MiB that running jobs have been promised, used by now or not
        """
        free = shutil.disk_usage(host.scratch(self.configured)).free // MIB
        self.whole = max(self.whole, free) if promised else free
        return max(min(self.whole - promised, free), 0)

    @property
    def counted(self) -> int:
        """MiB that the folders of failed jobs count for."""
        return sum(each.disk for each in self.kept)

    def expire(self, failures: int = 0) -> None:
        """Now and then, and when a job has failed, see which folders are kept, and let go of those whose time is over.

        :param failures: how many jobs have failed so far
        """
        if time.monotonic() >= self._due or failures != self._failures:
            self._failures = failures
            self._due = time.monotonic() + INTERVAL
            self._sweep()

    def make_room(self) -> None:
        """Remove the folder of the failed job whose time is over first, for another job needs the room."""
        self._sweep()
        if self.kept and not self._removes():
            self._sweep(min(each.until for each in self.kept))

    def _sweep(self, now: float | None = None) -> None:
        with contextlib.suppress(OSError):  # there is none, or no such place: what needs it says so
            swept = [sweep(each, self.keep_failed, now) for each in own_folders(host.scratch(self.configured), _name())]
            self.kept = [each for kept, _ in swept for each in kept]
            hidden = [each for _, hidden in swept for each in hidden]
            if hidden and not self._removes():
                # On its own, for it may take minutes; if it is killed another look begins it anew.
                parents = sorted({str(each.parent) for each in hidden})
                command = child_processes.python_command(__name__, *parents)
                self._remover = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def _removes(self) -> bool:
        return self._remover is not None and self._remover.poll() is None


def sweep(parent: Path, keep_failed: float, now: float | None = None) -> tuple[list[KeptScratch], list[Path]]:
    """Hide what is not needed any more; returns the folders that are kept, and those that are hidden.

    :param keep_failed: seconds for which the folder of a job is kept that has died without a report
    :param now: epoch seconds by the clock that dates the files there, which nodes may share; None: what it says
    :raises OSError: there is no such folder
    """
    now = host.file_time(parent) if now is None else now
    kept = []
    for mark in list(parent.glob("*.lock")):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if (held := _hold(mark)) is not None:
                _keep(mark, now + keep_failed)
                os.close(held)
    for mark in list(parent.glob("*.kept")):
        with contextlib.suppress(OSError):  # it has gone, or is none of ours and stays where it is
            found = _kept(mark)
            if found.until > now:
                kept.append(found)
            else:
                _hide(mark.with_suffix(""))
                mark.unlink()
    return kept, [path for path in parent.iterdir() if path.name.startswith(".")]


def _kept(mark: Path) -> KeptScratch:
    """What a mark says. Jobs may leave anything beside their folders.

    :raises OSError: it is no file of ours, or not there
    """
    content = read_regular(mark, MOST_MARK_BYTES)
    if not _AMOUNT.fullmatch(content):
        raise NotReadable(f"{mark} says no amount of MiB")
    return KeptScratch(mark, mark.lstat().st_mtime, int(content or b"0"))


def remove(folder: Path) -> None:
    """Delete a folder, what is write-protected in it as well; what cannot be deleted stays. No link is followed."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(folder.lstat().st_mode):
            folder.unlink()
            return
        os.chmod(folder, 0o700)
    for path, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(each := os.path.join(path, name)):
                with contextlib.suppress(OSError):  # it belongs to another user
                    os.chmod(each, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _hide(folder: Path) -> Path:
    """Mark a folder as one that is not needed any more."""
    hidden = folder.with_name(f".{folder.name}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, hidden)
    return hidden


def _hold(lock: Path, flags: int = 0) -> int | None:
    """Lock a file; None: it is locked, or no file. The descriptor must stay open.

    :param flags: with which it is opened
    :raises FileNotFoundError: it is not there
    """
    while True:
        try:
            held = open_regular(lock, os.O_RDWR | flags)
        except NotReadable:
            return None
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(held), os.stat(lock)):
                return held
        except BlockingIOError:
            os.close(held)
            return None
        except FileNotFoundError:
            pass  # it was removed in this very moment
        os.close(held)


def _keep(lock: Path, until: float) -> None:
    """Let what a held lock stands for be kept until then, epoch seconds by the clock that dates files there."""
    os.utime(lock, (int(until), int(until)))
    lock.rename(lock.with_suffix(".kept"))


def main() -> None:
    """Delete what is hidden in some folders."""
    for folder in sys.argv[1:]:
        for path in Path(folder).glob(".*"):
            remove(path)


if __name__ == "__main__":
    main()
