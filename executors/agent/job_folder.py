"""What the folder of a job on a location says of it: who runs it, how it ended, why it was ended.

The folder is all that a new node agent has after the death of the one before, so each step of a job's life is one
rename in it: ``workload.json`` (about to start), ``claimed.<pid>.<started>.json`` (a process has taken it, and no
other ever will), ``supervisor.json`` (it runs), ``exit.json`` (it has ended).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from lading.hooks.files import host
from lading.hooks.files.json_model import checked
from lading.hooks.files.safe_files import NotReadable, read_regular, write_atomically
from lading.hooks.spool import events
from lading.hooks.spool.spool import JobFolder
from lading.scheduling.reasons import Reason, because
from lading.scheduling.resources import Resources

log = logging.getLogger(__name__)

T = TypeVar("T")

# From its claim a job's process takes milliseconds until it has written who it is; this long is waited for it, seconds.
CLAIM_PATIENCE = 5.0
# What is larger was not written by an agent or a supervisor.
MOST_BYTES = 2**24
# The name of a claim: the pid of its holder, and when that process started.
_CLAIM = re.compile(r"claimed\.([0-9]{1,9})\.([0-9]{1,18})\.json")


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The process that runs a job, and what the agent must know to watch and end it: ``supervisor.json``.

    :param started: clock ticks after boot
    :param at: when it started with the job, seconds since the epoch
    :param began: the same in seconds since boot: it may have run another job before
    :param devices: the share of each GPU that the job has
    :param dags: the folder from which it reads its Dags, which goes after it; None: none that Lading has brought
    :param container: in which it runs; None: in none
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
        write_atomically(folder.supervisor, json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: JobFolder) -> Supervisor | None:
        return _read(folder.supervisor, lambda found: cls._of(events.checked(events.SupervisorFile, found)))

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> Supervisor:
        return cls(**{**found, "resources": Resources(**asdict(found["resources"]))})


@dataclass(frozen=True, slots=True)
class ExitFile:
    """How a job ended, as its supervisor saw it: ``exit.json``.

    :param exit_code: 0 for success; negative: the signal that ended the task's process; None: not known
    :param reason: what went wrong; None for success
    :param cpu_seconds: of all processes of the job; None: not known
    :param peak_memory: MiB, as measured where the agent could not; None: it is the agent that knows
    :param touched_memory: MiB of pages that the job made its own, an estimate for a job too short to be measured: each
        costs a page fault, and a short job gives none back
    :param cause: of the failure: ``cancelled`` when Airflow did not let the task start, or (with exit code 0) has
        settled its end while it ran: it was cleared, marked or deleted
    :param outputs: the files that it leaves on its machine, with their bytes
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
        write_atomically(folder.sentinel, events.to_json(as_written(self)))

    @classmethod
    def read(cls, folder: JobFolder) -> ExitFile | None:
        return _read(folder.sentinel, lambda found: cls(**checked(events.SentinelFile, found)))


@dataclass(frozen=True, slots=True)
class EndCause:
    """Why the agent ends a job, written before it does: ``cause.json``.

    :param cause: ``out_of_memory``, ``time_limit``, ``cancelled``, ``preempted`` or ``terminated``
    :param reason: the same in a sentence for users
    """

    cause: str
    reason: Reason

    def write(self, folder: JobFolder) -> None:
        write_atomically(folder.cause, events.to_json(as_written(self)))

    @classmethod
    def read(cls, folder: JobFolder) -> EndCause | None:
        return _read(folder.cause, lambda found: cls(**checked(events.CauseFile, found)))


# Of a job that its batch system ends, which alone knows why.
TERMINATED = EndCause("terminated", because("batch_asked_to_end"))


def as_written(file: ExitFile | EndCause) -> dict[str, Any]:
    """What a file of a job says, by name."""
    return {each.name: getattr(file, each.name) for each in fields(file)}


def claim(folder: JobFolder, pid: int, started: int) -> Path | None:
    """Take an unclaimed job for this process; None when another process has taken it."""
    mine = folder.claim(pid, started)
    try:
        os.rename(folder.workload, mine)
    except FileNotFoundError:
        return None
    return mine


def give_back(folder: JobFolder, envelope: Path) -> bool:
    """Put an unclaimed job back to where it waits; False when it has been claimed by now.

    :param envelope: its place in the inbox; what lies there already is newer and stays
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
    """The process, living or dead, that has started to run a job; None when the job has not been started."""
    deadline = time.monotonic() + CLAIM_PATIENCE
    while (supervisor := Supervisor.read(folder)) is None:
        # What a task may have left under another such name is no claim.
        claims = (
            (path, match) for path in folder.root.glob("claimed.*.json") if (match := _CLAIM.fullmatch(path.name))
        )
        claimed, claim = next(claims, (None, None))
        if claimed is None or claim is None:
            return Supervisor.read(folder)
        pid, started = map(int, claim.groups())
        if not host.is_alive(pid, started):
            # It died between the claim and the start, unless it has written who it is meanwhile.
            if (supervisor := Supervisor.read(folder)) is None:
                os.rename(claimed, folder.workload)
            return supervisor
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has claimed the job in {folder.root} but does not start it")
        time.sleep(0.01)
    return supervisor


def mark_task_ended(folder: JobFolder) -> None:
    """Note that the task's process has ended: its resources are free, though its supervisor still has work to do."""
    with contextlib.suppress(OSError):  # on a full disk they come free a little later, with the sentinel
        (folder.root / "ended").touch(mode=0o600)


def task_has_ended(folder: JobFolder) -> bool:
    return os.path.exists(folder.root / "ended")


def mark_unanswered(folder: JobFolder) -> None:
    """Note that the job cannot begin, because Airflow's API server does not answer."""
    with contextlib.suppress(OSError):  # on a full disk others are started, and wait likewise
        (folder.root / "unanswered").touch(mode=0o600)


def begin_anew(folder: JobFolder) -> None:
    """Note that the API server has answered the job: from now on it runs."""
    try:
        if (supervisor := Supervisor.read(folder)) is not None:
            replace(supervisor, at=time.time(), began=host.since_boot()).write(folder)
    finally:  # on a full disk, too: while the mark is there the job has no time limit, and others are not started
        (folder.root / "unanswered").unlink(missing_ok=True)


def is_unanswered(folder: JobFolder) -> bool:
    return os.path.exists(folder.root / "unanswered")


def remove(folder: JobFolder) -> None:
    """Delete the folder; after a crash in the middle no half of it is taken for a job."""
    hidden = folder.root.with_name(f".{folder.root.name}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder.root, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_remains(jobs: Path) -> None:
    """Delete what a crash has left of folders that were being deleted."""
    for hidden in jobs.glob(".*"):
        shutil.rmtree(hidden, ignore_errors=True)


def _read(path: Path, build: Callable[[dict[str, Any]], T]) -> T | None:
    """What a file says, None when there is none. They are written whole, so only a task can have spoilt one."""
    try:
        return build(json.loads(read_regular(path, MOST_BYTES)))
    except FileNotFoundError:
        return None
    except (NotReadable, ValueError, TypeError, KeyError, RecursionError) as error:
        log.error("cannot make sense of %s, going on without it: %r", path, error)
        return None
