from __future__ import annotations

from lading.executors.store import JobRow, State
from lading.plugin.subcommands.jobs import group_rows, job_row, short_job_row


def job(task_id: str | None, map_index: int, state: State, memory: int = 512) -> JobRow:
    names = {"dag_id": "d", "run_id": "r", "task_id": task_id} if task_id else {}
    asked = {"cpus": 1.0, "memory": memory, "disk": 0, "gpus": 0.0}
    return JobRow(
        kind="ExecuteTask" if task_id else "ExecuteCallback", map_index=map_index, state=state, **names, **asked
    )


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
