"""A job's folder on its location: which process runs the job, how it ended, and why it was terminated.

After the death of a node agent, these folders are all that its successor has. Therefore each step of a job's life is
one rename in its folder: ``workload.json`` (about to start), ``claimed.<pid>.<started>.json`` (a process has taken it,
and no other ever will), ``supervisor.json`` (it runs), ``exit.json`` (it has ended).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lading.hooks.files import host
from lading.hooks.files.json_model import checked
from lading.hooks.files.logs import get_logger
from lading.hooks.files.safe_files import NotReadable, read_regular, write_atomically
from lading.hooks.spool import job_files, values
from lading.hooks.spool.spool import JobFolder
from lading.scheduling.model.light_dataclasses import as_dict, dataclass, field, replace
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources

log = get_logger(__name__)

T = TypeVar("T")

# How long to wait for a process that has claimed a job to write its identity, seconds; it usually takes milliseconds.
CLAIM_PATIENCE = 5.0
# The name of a claim: the pid and the start time of the process that holds it.
_CLAIM = r"claimed\.([0-9]{1,9})\.([0-9]{1,18})\.json"


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The process that runs a job, and what the agent must know to watch and terminate it: ``supervisor.json``.

    :param started: when the process started, clock ticks after boot
    :param at: when the job started, epoch seconds
    :param began: the same in seconds since boot; the process may have run another job before
    :param devices: the job's share of each GPU
    :param dags: the folder with its Dags, which is removed after the job; None: Lading has copied none
    :param container: the container that it runs in; None: no container
    """

    pid: int
    started: int
    boot_id: str
    at: float
    began: float
    resources: Resources
    memory_limit: int | None
    time_limit: int | None
    devices: Mapping[str, float] = field(default_factory=dict)
    dags: str | None = None
    container: str | None = None

    @property
    def alive(self) -> bool:
        return self.boot_id == host.boot_id() and host.is_alive(self.pid, self.started)

    def write(self, folder: JobFolder) -> None:
        write_atomically(folder.supervisor, json.dumps({**as_dict(self), "resources": as_dict(self.resources)}))

    @classmethod
    def read(cls, folder: JobFolder) -> Supervisor | None:
        return _read(folder.supervisor, lambda found: cls._of(checked(job_files.SupervisorFile, found)))

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> Supervisor:
        return cls(**{**found, "resources": Resources(**as_dict(found["resources"]))})


@dataclass(frozen=True, slots=True)
class ExitFile:
    """How a job ended, as its supervisor saw it: ``exit.json``.

    :param exit_code: 0 for success; negative: the signal that killed the task's process; None: unknown
    :param reason: what went wrong; None for success
    :param cpu_seconds: of all processes of the job; None: unknown
    :param peak_memory: MiB, measured where the agent could not; None: the agent has measured it
    :param touched_memory: MiB of pages that the job's processes touched, at most the peak of the largest process; shows
        what they may have used since the last exact sample, because each page costs a page fault
    :param cause: of the failure: ``cancelled`` if Airflow did not let the task start, or (with exit code 0) has decided
        about it while it ran: it was cleared, marked or deleted
    :param outputs: the files that the job leaves on its machine, with their bytes
    """

    exit_code: int | None
    reason: Reason | None
    ended_at: float
    cpu_seconds: float | None
    peak_memory: int | None
    touched_memory: int = 0
    cause: str = "error"
    outputs: Mapping[str, int] = field(default_factory=dict)

    def write(self, folder: JobFolder) -> None:
        write_atomically(folder.sentinel, values.to_json(as_dict(self)))

    @classmethod
    def read(cls, folder: JobFolder) -> ExitFile | None:
        return _read(folder.sentinel, lambda found: cls(**checked(job_files.SentinelFile, found)))


@dataclass(frozen=True, slots=True)
class EndCause:
    """Why the agent terminates a job: ``cause.json``, written before the job gets a signal.

    :param cause: ``out_of_memory``, ``time_limit``, ``cancelled``, ``preempted`` or ``terminated``
    :param reason: the same for users
    """

    cause: str
    reason: Reason

    def write(self, folder: JobFolder) -> None:
        write_atomically(folder.cause, values.to_json(as_dict(self)))

    @classmethod
    def read(cls, folder: JobFolder) -> EndCause | None:
        return _read(folder.cause, lambda found: cls(**checked(job_files.CauseFile, found)))


# For a job that its batch system terminates; only the batch system knows why.
TERMINATED = EndCause("terminated", because("batch_asked_to_end"))


def claim(folder: JobFolder, pid: int, started: int) -> Path | None:
    """Claim a job for this process; None: another process has claimed it."""
    mine = folder.claim(pid, started)
    try:
        os.rename(folder.workload, mine)
    except FileNotFoundError:
        return None
    return mine


def give_back(folder: JobFolder, envelope: Path) -> bool:
    """Return an unclaimed job to the inbox; False: it has been claimed.

    :param envelope: its path in the inbox; an envelope that is already there is newer and is kept
    """
    try:
        if envelope.exists():
            folder.workload.unlink()
        else:
            os.rename(folder.workload, envelope)
    except FileNotFoundError:
        return False
    return True


def owner(folder: JobFolder) -> Supervisor | None:
    """Return the process, alive or dead, that has started a job; None: the job has not been started.

    :raises TimeoutError: a live process has claimed the job but does not start it
    """
    deadline = time.monotonic() + CLAIM_PATIENCE
    while (supervisor := Supervisor.read(folder)) is None:
        # Ignore files with similar names, which a task may have left.
        claims = (
            (path, match) for path in folder.root.glob("claimed.*.json") if (match := re.fullmatch(_CLAIM, path.name))
        )
        claimed, claim = next(claims, (None, None))
        if claimed is None or claim is None:
            return Supervisor.read(folder)
        pid, started = map(int, claim.groups())
        if not host.is_alive(pid, started):
            # It died between the claim and the start, unless it has written its identity in the meantime.
            if (supervisor := Supervisor.read(folder)) is None:
                os.rename(claimed, folder.workload)
            return supervisor
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has claimed the job in {folder.root} but does not start it")
        time.sleep(0.01)
    return supervisor


def mark_task_ended(folder: JobFolder) -> None:
    """Note that the task's process has ended: its resources are free, though its supervisor still has work to do."""
    with contextlib.suppress(OSError):  # on a full disk, they are freed a little later, with the exit file
        (folder.root / "ended").touch(mode=0o600)


def task_has_ended(folder: JobFolder) -> bool:
    return os.path.exists(folder.root / "ended")


def mark_unanswered(folder: JobFolder) -> None:
    """Note that the job cannot begin because Airflow's API server does not answer."""
    with contextlib.suppress(OSError):  # on a full disk, other jobs are started and wait, too
        (folder.root / "unanswered").touch(mode=0o600)


def begin_anew(folder: JobFolder) -> None:
    """Note that the API server has answered the job, which counts as running from now on."""
    try:
        if (supervisor := Supervisor.read(folder)) is not None:
            replace(supervisor, at=time.time(), began=host.since_boot()).write(folder)
    finally:  # even on a full disk: while the mark exists, the job has no time limit and no others are started
        (folder.root / "unanswered").unlink(missing_ok=True)


def is_unanswered(folder: JobFolder) -> bool:
    return os.path.exists(folder.root / "unanswered")


def remove(folder: JobFolder) -> None:
    """Delete the folder. It is renamed first, so that a crash midway leaves nothing that looks like a job."""
    hidden = folder.root.with_name(f".{folder.root.name}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder.root, hidden)
    _delete(hidden)


def remove_remains(jobs: Path) -> None:
    """Delete the rest of folders whose deletion was interrupted by a crash."""
    for hidden in jobs.glob(".*"):
        _delete(hidden)


def _delete(folder: Path) -> None:
    import shutil  # imported late: in a batch job, the controller removes the folder

    shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path, build: Callable[[dict[str, Any]], T]) -> T | None:
    """Read a file; None: it does not exist, or is invalid because a task has damaged it (writes are atomic)."""
    try:
        # A larger file was not written by an agent or a supervisor.
        return build(json.loads(read_regular(path, 2**24)))
    except FileNotFoundError:
        return None
    except (NotReadable, ValueError, TypeError, KeyError, RecursionError) as error:
        log.error("ignoring the invalid file %s: %r", path, error)
        return None
