"""Tasks that are marked or cleared in the UI, while they wait, while they run and afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.diary import Diary
from tests.services.processes import wait_until

# From the click to the end: Airflow's supervisor learns of it with its next heartbeat, at most 5 s later; then a task
# that catches SIGTERM has 5 s more.
SECONDS_TO_THE_END = 15

Runs = Mapping[str, str]


def mark(airflow: Airflow, dag_id: str, run_id: str, task_id: str, state: str) -> None:
    airflow.rest("PATCH", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", {"new_state": state})


def clear(airflow: Airflow, dag_id: str, run_id: str, *task_ids: str) -> None:
    body = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": list(task_ids)}
    airflow.rest("POST", f"dags/{dag_id}/clearTaskInstances", body)


@contextmanager
def full_machine(airflow: Airflow, diary: Diary, page: str) -> Iterator[None]:
    """Have the whole machine taken until the end of the block."""
    run = airflow.trigger("machine_is_full", {"page": page})
    diary.wait_for(f"{page}-blocked")
    try:
        yield
    finally:
        diary.write(f"{page}-go")
    assert airflow.wait_for_run("machine_is_full", run) == "success"


def test_a_running_task_ends_with_all_its_processes(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    run = runs["running"]
    tasks = ("marked_failed", "marked_success", "cleared")
    pids = {int(pid) for task in tasks for pid in " ".join(diary.wait_for(f"{task}-pids", timeout=120)).split()}
    assert len(pids) == 6
    assert pids <= processes.living().keys()
    for task in tasks:
        airflow.wait_for_task("running", run, task, "running")

    mark(airflow, "running", run, "marked_failed", "failed")
    mark(airflow, "running", run, "marked_success", "success")
    clear(airflow, "running", run, "cleared")
    assert wait_until(lambda: not pids & processes.living().keys(), SECONDS_TO_THE_END), "processes are left"
    assert all(diary.lines(f"{task}-killed") for task in tasks), "on_kill has not been called"

    assert airflow.wait_for_task("running", run, "cleared", "success") == "success"
    assert diary.lines("cleared-tries") == ["1", "2"]
    assert diary.lines("marked_failed-tries") == diary.lines("marked_success-tries") == ["1"]
    assert airflow.wait_for_run("running", run) == "failed"
    ended = {ti["task_id"]: (ti["state"], ti["try_number"]) for ti in airflow.task_instances("running", run)}
    assert ended == {"marked_failed": ("failed", 1), "marked_success": ("success", 1), "cleared": ("success", 2)}


def test_a_finished_task_that_is_cleared_runs_again(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    run = airflow.trigger("finished")
    assert airflow.wait_for_run("finished", run) == "success"
    clear(airflow, "finished", run, "cleared")
    diary.wait_for("finished-tries", lines=2)
    assert airflow.wait_for_run("finished", run) == "success"
    assert diary.lines("finished-tries") == ["1", "2"]


def test_a_queue_in_front_of_a_full_machine(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    """Tasks that wait for longer than ``task_queued_timeout`` stay queued, say why, and start by their priority."""

    def reasons(task_id: str) -> list[str]:
        return [
            e["extra"] for e in airflow.events("queue", run) if (e["event"], e["task_id"]) == ("lading waits", task_id)
        ]

    def states_of(task_id: str) -> list[str]:
        jobs = json.loads(airflow.lading("jobs", "--dag-id", "queue", "-o", "json"))
        return sorted(job["state"] for job in jobs if job["task_id"] == task_id)

    with full_machine(airflow, diary, "queue"):
        run = airflow.trigger("queue")
        assert wait_until(lambda: bool(reasons("marked_first")), 60)
        for task in ("marked_first", "marked_last", "cleared"):
            airflow.wait_for_task("queue", run, task, "queued")
        for task in ("marked_first", "marked_last"):
            mark(airflow, "queue", run, task, "failed")
        clear(airflow, "queue", run, "cleared")
        assert wait_until(lambda: bool(reasons("low")), 60), "a task that waits for long says why"
        assert wait_until(lambda: len(states_of("cleared")) == 2, 60, 1), "it is queued anew"

        def queued_for() -> float:
            since = [ti["queued_when"] for ti in airflow.task_instances("queue", run) if ti["task_id"] != "cleared"]
            youngest = max(datetime.fromisoformat(when) for when in since)
            return (datetime.now(youngest.tzinfo) - youngest).total_seconds()

        assert wait_until(lambda: queued_for() > 20, 60)
        waiting = {ti["task_id"]: (ti["state"], ti["try_number"]) for ti in airflow.task_instances("queue", run)}
        assert {task: waiting[task] for task in ("high", "middle", "low")} == dict.fromkeys(
            ("high", "middle", "low"), ("queued", 1)
        )
        assert waiting["marked_first"][0] == waiting["marked_last"][0] == "failed"
        assert diary.lines("queue-started") == []

    assert airflow.wait_for_run("queue", run) == "failed"
    started = diary.lines("queue-started")
    assert [task for task in started if task != "cleared"] == ["high", "middle", "low"]
    # The agent has been given two jobs in advance, which it keeps when Airflow queues a more urgent one anew.
    assert started.index("cleared") < started.index("low")
    events = {entry["event"] for entry in airflow.events("queue", run)}
    assert not {event for event in events if "stuck" in event or "mismatch" in event}
    assert "needs 4 cpus" in reasons("marked_first")[0]
    assert any("waits for its turn" in reason for reason in reasons("low"))
    ended = {ti["task_id"]: ti["try_number"] for ti in airflow.task_instances("queue", run) if ti["state"] == "success"}
    assert {task: ended[task] for task in ("high", "middle", "low")} == {"high": 1, "middle": 1, "low": 1}
    assert states_of("marked_first") == states_of("marked_last") == ["cancelled"]
    assert wait_until(lambda: states_of("cleared") == ["cancelled", "succeeded"], 60, 1), states_of("cleared")


def test_room_that_comes_right_after_marking_starts_nothing(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    with full_machine(airflow, diary, "haste"):
        run = airflow.trigger("haste")
        for task in ("marked", "cleared"):
            airflow.wait_for_task("haste", run, task, "queued")
        mark(airflow, "haste", run, "marked", "failed")
        clear(airflow, "haste", run, "cleared")
    assert airflow.wait_for_run("haste", run) == "failed"
    assert diary.lines("haste-started") == ["cleared"]
    ended = {ti["task_id"]: ti["state"] for ti in airflow.task_instances("haste", run)}
    assert ended == {"marked": "failed", "cleared": "success"}
