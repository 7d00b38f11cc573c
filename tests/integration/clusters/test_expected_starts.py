"""The starts that a real SLURM predicts for jobs, as they are shown."""

from __future__ import annotations

import time

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.answers import changes_by_events
from lading.executors.starts import expected_starts
from lading.executors.store import JobRow, State
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import NativeJob
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.starts.expected_starts import ExpectedStart, StartSource
from tests.services.processes import wait_until
from tests.services.slurm import Slurm


def listed(slurm: Slurm) -> dict[str, NativeJob]:
    """The jobs that its queue has, by their ids."""
    system = SLURM()
    answer = slurm.command(*system.status("root"))
    return {job.id: job for job in system.statuses(CommandResult(0, answer))}


def test_the_second_of_two_jobs_is_expected_when_the_first_must_have_ended(slurm: Slurm) -> None:
    nodes = len(slurm.nodes)
    options = ("--parsable", "--exclusive", f"--nodes={nodes}", "--time=3", "--chdir=/", "--output=/dev/null")
    first, second = (slurm.command("sbatch", *options, "--wrap", "sleep 120").strip() for _ in range(2))
    try:
        assert wait_until(lambda: listed(slurm)[first].state == "running", 30)
        # What was cancelled a moment ago counts with its limit until SLURM reckons again.
        assert wait_until(lambda: 0 < (listed(slurm)[second].starts_at or 0.0) - time.time() <= 240, 90), "its limit"
        now, job = time.time(), listed(slurm)[second]
        assert job.state == "pending"
        engine = create_engine("sqlite://")
        store.metadata.create_all(engine)
        with Session(engine) as session:
            amounts = {"cpus": 1.0, "memory": 100, "disk": 0, "gpus": 0.0, "priority": 0}
            names = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "dag_id": "d", "task_id": "t"}
            placed = {"state": State.PLACED, "site": "hpc", "queued_at": now}
            store.add_job(session, token="second", **amounts, **names, **placed)
            event = {"event": "estimated", "token": "second", "starts_at": job.starts_at}
            store.apply(session, changes_by_events([event]), "hpc")
            [start] = expected_starts.expected_starts(session, session.scalars(select(JobRow)).all(), now).values()
        assert isinstance(start, ExpectedStart)
        assert start.source is StartSource.BATCH_SYSTEM
        assert now < start.since < (job.starts_at or 0.0) < start.until
    finally:
        slurm.command("scancel", first, second)
        slurm.wait_until_free(60)
