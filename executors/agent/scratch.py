"""Scratch space: a folder for each job that is removed after the job, and how much disk is left for further jobs.

All scratch folders of a user on a machine, including those of several agents, have one parent folder; it gets another
name if other users have created something with its usual one. While any process of a job is alive, ``TOKEN.lock`` is
locked. After a failure, the modification time of ``TOKEN.kept`` says until when the job's folder is kept, and its
content is the disk that the job had requested, in MiB. Hidden folders are being deleted. ``swept`` was modified when a
batch job last removed what was no longer needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lading.hooks.files import child_processes, host
from lading.hooks.files.safe_files import NotReadable, open_regular, own_folder, own_folders, read_regular
from lading.scheduling.model.light_dataclasses import dataclass

if TYPE_CHECKING:
    import subprocess

MIB = 2**20
# The variable that names a job's folder, in addition to TMPDIR.
VARIABLE = "LADING_SCRATCH"
# The folder of Airflow's copies of Dag bundles, one for all jobs of a user on a machine.
BUNDLES_VARIABLE = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH"
_AMOUNT = re.compile(rb"[0-9]*")
# How often a node agent, or one of the batch jobs on a machine, removes folders whose time is over, seconds.
INTERVAL = 60.0
SWEPT = "swept"


def root(configured: str) -> Path:
    """Return the parent of this user's scratch folders, creating it if necessary.

    :param configured: ``scratch`` of the site
    :raises OSError: the configured folder does not exist on this machine, or the parent cannot be created in it
    """
    return own_folder(host.scratch(configured), _name())


def _name() -> str:
    return f"lading-{os.geteuid()}"


class JobScratch:
    """A job's scratch folder, held by the process that runs the job.

    :raises OSError: it cannot be created
    """

    def __init__(self, configured: str, token: str) -> None:
        parent = root(configured)
        self.path = parent / token
        self._lock = parent / f"{token}.lock"
        while (held := _hold(self._lock, os.O_CREAT)) is None:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(self._lock.lstat().st_mode):
                    raise OSError(f"{self._lock} exists and is not a file: remove it")
            time.sleep(0.01)  # another process is briefly checking whether it is locked
        self._held = held
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)

    def end(self, keep: float, disk: int) -> None:
        """Remove the folder, or keep it for a while.

        :param keep: for how many seconds; 0: remove it now
        :param disk: MiB that it counts for while it is kept
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
    """The kept folder of a failed job.

    :param mark: its ``TOKEN.kept`` file
    :param until: epoch seconds, by the clock of the file system
    :param disk: MiB that it counts for
    """

    mark: Path
    until: float
    disk: int


class Scratch:
    """The scratch space of a machine, managed by its node agent.

    Disk that was promised to a job stays free until the job writes to it, so the free space now does not tell how much
    can be promised. It does while nothing is promised; that value is remembered, and what has been promised since then
    is subtracted.

    :param configured: ``scratch`` of the site
    :param keep_failed: for how many seconds to keep the folder of a job whose process died before it could do so itself
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
        """Return how much can be promised to further jobs, MiB.

        :param promised: MiB promised to running jobs, whether they use it or not
        """
        import shutil

        free = shutil.disk_usage(host.scratch(self.configured)).free // MIB
        self.whole = max(self.whole, free) if promised else free
        return max(min(self.whole - promised, free), 0)

    @property
    def counted(self) -> int:
        """MiB that the kept folders of failed jobs count for."""
        return sum(each.disk for each in self.kept)

    def expire(self, failures: int = 0) -> None:
        """Remove kept folders whose time is over, periodically and whenever a job has failed.

        :param failures: number of jobs that have failed so far
        """
        if time.monotonic() >= self._due or failures != self._failures:
            self._failures = failures
            self._due = time.monotonic() + INTERVAL
            self._sweep()

    def make_room(self) -> None:
        """Remove the kept folder that expires first, because another job needs the room."""
        self._sweep()
        if self.kept and not self._removes():
            self._sweep(min(each.until for each in self.kept))

    def _sweep(self, now: float | None = None) -> None:
        with contextlib.suppress(OSError):  # the folder does not exist, which a job that needs it reports
            swept = [sweep(each, self.keep_failed, now) for each in own_folders(host.scratch(self.configured), _name())]
            self.kept = [each for kept, _ in swept for each in kept]
            hidden = [each for _, hidden in swept for each in hidden]
            if hidden and not self._removes():
                import subprocess

                # In a process of its own, as it can take minutes; if it is killed, the next sweep starts another.
                parents = sorted({str(each.parent) for each in hidden})
                command = child_processes.python_command(__name__, *parents)
                self._remover = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def _removes(self) -> bool:
        return self._remover is not None and self._remover.poll() is None


def sweep_for_batch_jobs(configured: str, keep_failed: float) -> None:
    """Remove what killed jobs left on this machine, unless another batch job of this user did so within a minute.

    :param configured: ``scratch`` of the site
    :param keep_failed: for how many seconds to keep the folder of a job whose process died before it could do so itself
    """
    with contextlib.suppress(OSError):  # the folder does not exist, which a job that needs it reports
        stamp = root(configured) / SWEPT
        with contextlib.suppress(FileNotFoundError):
            if 0 <= time.time() - stamp.stat().st_mtime < INTERVAL:
                return
        stamp.touch()
        Scratch(configured, keep_failed).expire()


def sweep(parent: Path, keep_failed: float, now: float | None = None) -> tuple[list[KeptScratch], list[Path]]:
    """Hide folders that are no longer needed, for deletion.

    :param keep_failed: for how many seconds to keep the folder of a job whose process died without keeping it
    :param now: epoch seconds by the clock of the file system, which several nodes can share; None: its current time
    :returns: the kept folders, and the hidden ones
    :raises OSError: ``parent`` does not exist
    """
    now = host.file_time(parent) if now is None else now
    kept = []
    for mark in _files(parent, ".lock"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if (held := _hold(mark)) is not None:
                _keep(mark, now + keep_failed)
                os.close(held)
    for mark in _files(parent, ".kept"):
        with contextlib.suppress(OSError):  # it was removed, or is not ours and is left alone
            found = _kept(mark)
            if found.until > now:
                kept.append(found)
            else:
                _hide(mark.with_suffix(""))
                mark.unlink()
    return kept, [path for path in parent.iterdir() if path.name.startswith(".")]


def _files(parent: Path, suffix: str) -> list[Path]:
    return [parent / name for name in os.listdir(parent) if name.endswith(suffix)]  # faster than Path.glob


def _kept(mark: Path) -> KeptScratch:
    """Read a mark.

    :raises OSError: the file does not exist, or is not ours: jobs can leave anything next to their folders
    """
    # A mark is a number of MiB, up to a million TiB; it is empty if the job did not write it.
    content = read_regular(mark, 12)
    if not _AMOUNT.fullmatch(content):
        raise NotReadable(f"{mark} does not contain a number of MiB")
    return KeptScratch(mark, mark.lstat().st_mtime, int(content or b"0"))


def remove(folder: Path) -> None:
    """Delete a folder, including write-protected contents, without following links; undeletable files stay."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # most are empty, and the rest of this function imports shutil
        return
    import shutil

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
    """Rename a folder to mark it for deletion."""
    hidden = folder.with_name(f".{folder.name}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, hidden)
    return hidden


def _hold(lock: Path, flags: int = 0) -> int | None:
    """Lock a file; None: it is locked already, or is not a regular file.

    :param flags: additional flags for opening it
    :returns: the descriptor, which holds the lock while it is open
    :raises FileNotFoundError: the file does not exist
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
            pass  # it was removed at this moment
        os.close(held)


def _keep(lock: Path, until: float) -> None:
    """Turn a held lock into a mark that keeps its folder until then, epoch seconds by the file system's clock."""
    os.utime(lock, (int(until), int(until)))
    lock.rename(lock.with_suffix(".kept"))


def main() -> None:
    """Delete the hidden entries of the folders given as arguments."""
    for folder in sys.argv[1:]:
        for path in Path(folder).glob(".*"):
            remove(path)


if __name__ == "__main__":
    main()
