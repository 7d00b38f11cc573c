"""Which of Airflow's schedulers are alive.

Airflow considers a scheduler dead after 30 s of silence. Each scheduler that uses Lading also holds a lock on a file in
the state folder, which the kernel releases when the process ends for any reason, so everyone who shares the folder sees
that at once. If a lock is not visible from here, for example on another machine, Airflow's 30 s apply.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.configuration import conf
from airflow.jobs.job import Job as AirflowJob
from airflow.jobs.job import JobState
from airflow.utils.net import get_hostname
from sqlalchemy import select

from lading.executors.orchestrator.presence import has_ended

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def living(session: Session, folder: Path) -> set[int]:
    """Return the job ids of the schedulers that are alive, as far as can be seen from here."""
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
    # A scheduler of this machine without a file does not use Lading yet: it is starting, or died before it could. A
    # starting one launches a controller itself if it finds none.
    users = {job_id: path for job_id, (path, host) in files.items() if host != here or path.exists()}
    return {job_id for job_id, path in users.items() if not has_ended(path)}
