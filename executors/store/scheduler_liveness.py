"""Which of Airflow's schedulers live.

Airflow takes a scheduler for dead that has been silent for 30 s. Each one that uses Lading also holds a lock on a file
in the state folder, which the kernel lets go when the process ends, however it ends: all that share the folder
see it at once. A lock that can't be seen from here, as on another machine, leaves it at Airflow's 30 s.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.configuration import conf
from airflow.jobs.job import Job as AirflowJob
from airflow.jobs.job import JobState
from airflow.utils.net import get_hostname
from sqlalchemy import select

from lading.hooks.files.safe_files import make_private, visible

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Seconds of silence after which Airflow has long noticed by itself, so that the file adds nothing.
SECONDS_UNTIL_FORGOTTEN = 86400


class Presence:
    """Shows others that this scheduler lives, until ``end`` or the end of the process.

    :param folder: where the files are
    :param job_id: the number of the scheduler's Airflow job
    """

    def __init__(self, folder: Path, job_id: int) -> None:
        make_private(folder)
        forget_old(folder)
        self.path = folder / str(job_id)
        hidden = folder / f".{job_id}"
        self.descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Locked before it can be seen: a file without a lock means that its scheduler has ended.
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        os.rename(hidden, self.path)

    def end(self) -> None:
        """Say that this scheduler needs Lading no more."""
        with contextlib.suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # a forked process may hold the same descriptor open
            os.close(self.descriptor)


def living(session: Session, folder: Path) -> set[int]:
    """The numbers of the schedulers that live, as far as can be seen from here."""
    silence = timedelta(seconds=conf.getint("scheduler", "scheduler_health_check_threshold"))
    heard = session.execute(
        select(AirflowJob.id, AirflowJob.hostname).where(
            AirflowJob.job_type == "SchedulerJob",
            AirflowJob.state == JobState.RUNNING,
            AirflowJob.latest_heartbeat > datetime.now(timezone.utc) - silence,
        )
    )
    here = get_hostname()
    files = {job_id: (folder / str(job_id), host) for job_id, host in heard}
    # One of this machine without a file does not use Lading yet: it begins, or has died before it could. One that
    # begins starts a controller itself where it finds none.
    users = {job_id: path for job_id, (path, host) in files.items() if host != here or path.exists()}
    return {job_id for job_id, path in users.items() if not has_ended(path)}


def has_ended(path: Path) -> bool:
    """Whether a scheduler is known to have ended, by its file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def forget_old(folder: Path) -> None:
    """Delete the files of schedulers that ended long ago."""
    for path in visible(folder):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - SECONDS_UNTIL_FORGOTTEN and has_ended(path):
                path.unlink()
