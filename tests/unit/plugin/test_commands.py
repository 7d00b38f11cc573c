from __future__ import annotations

import json

import pytest

from lading.executors.store import Job, Location, State
from lading.plugin.commands import group_rows, job_row, location_rows, short_job_row, show
from lading.scheduling.resources import Resources


def job(task_id: str | None, map_index: int, state: State, memory: int = 512) -> Job:
    names = {"dag_id": "d", "run_id": "r", "task_id": task_id} if task_id else {}
    asked = {"cpus": 1.0, "memory": memory, "disk": 0, "gpus": 0.0}
    return Job(kind="ExecuteTask" if task_id else "ExecuteCallback", map_index=map_index, state=state, **names, **asked)


def test_jobs_of_one_task_run_and_shape_are_one_group() -> None:
    jobs = [job("align", number, State.RUNNING if number < 2 else State.QUEUED) for number in range(5)]
    jobs += [job("align", 5, State.QUEUED, memory=1024), job(None, -1, State.SUCCEEDED)]
    rows = group_rows(jobs)
    assert [
        (row["task_id"], row["asked"], row["jobs"], row["queued"], row["running"], row["succeeded"]) for row in rows
    ] == [
        ("align", "1 cpu, 512 MiB memory", 5, 3, 2, 0),
        ("align", "1 cpu, 1 GiB memory", 1, 1, 0, 0),
        ("ExecuteCallback", "1 cpu, 512 MiB memory", 1, 0, 0, 1),
    ]


def test_a_callback_of_a_dag_is_no_task() -> None:
    one = job(None, -1, State.RUNNING)
    one.dag_id, one.queued_at, one.try_number = "d", 5.0, 0
    assert (job_row(one)["dag_id"], short_job_row(one)["task"]) == ("d", "d.ExecuteCallback")
    assert [row["task_id"] for row in group_rows([one])] == ["ExecuteCallback"]


def test_the_batch_job_and_its_node() -> None:
    one = job("align", -1, State.RUNNING)
    one.native_id, one.node, one.queued_at, one.try_number = "17[3].pbs", "n1", 5.0, 1
    assert (job_row(one)["batch_job"], job_row(one)["node"]) == ("17[3].pbs", "n1")
    assert (short_job_row(one)["batch job"], short_job_row(one)["node"]) == ("17[3].pbs", "n1")


def test_allocations_are_rows_of_their_site(capsys: pytest.CaptureFixture[str]) -> None:
    capacity = {"cpus": 8.0, "memory": 15232, "disk": 0, "gpus": 0.0}
    seen = [
        {"native_id": "17", "state": "running", "node": "n1", "jobs": 3, "capacity": capacity},
        {"native_id": None, "state": "waiting", "node": None, "jobs": 0, "capacity": capacity},
    ]
    amounts = {"cpus": 8.0, "memory": 15232, "disk": 0, "gpus": 0.0}
    location = Location(site="hpc", name="hpc", kind="slurm", allocations=json.dumps(seen), **amounts)
    rows = location_rows(location, {("hpc", "hpc"): (3, Resources(1.5, 1000))}, None)
    assert len({tuple(row) for row in rows}) == 1, "all rows have the same columns"
    show(rows, "json")
    site, running, waiting = json.loads(capsys.readouterr().out)
    assert (site["kind"], site["batch_job"], site["running_jobs"], site["cpus_used"]) == ("slurm", None, 3, 1.5)
    assert (running["kind"], running["batch_job"], running["node"], running["note"]) == (
        "allocation",
        "17",
        "n1",
        "running",
    )
    assert (running["running_jobs"], running["cpus"], running["memory_mib"]) == (3, 8.0, 15232)
    assert (waiting["batch_job"], waiting["note"], waiting["gpus"]) == (None, "waiting", 0.0)
    show(rows, "table")
    assert "allocation" in capsys.readouterr().out
