"""What Dag authors are used to works. The Dags are those of dags/habits.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.services.airflow import Airflow
from tests.services.diary import Diary
from tests.services.processes import wait_until

Runs = Mapping[str, str]


def states(airflow: Airflow, dag_id: str, run_id: str) -> dict[str, str]:
    return {ti["task_id"]: ti["state"] for ti in airflow.task_instances(dag_id, run_id)}


def test_logs_are_live_while_a_task_runs_and_complete_afterwards(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    run = airflow.trigger("logs")
    airflow.wait_for_task("logs", run, "talker", "running")
    assert wait_until(lambda: "the first words" in airflow.logs("logs", run, "talker"), 60)
    assert "the last words" not in airflow.logs("logs", run, "talker")
    assert airflow.task_instance("logs", run, "talker")["state"] == "running"
    diary.write("logs-heard")
    assert airflow.wait_for_run("logs", run) == "success"
    assert wait_until(lambda: "the last words" in airflow.logs("logs", run, "talker"), 60)
    log = airflow.logs("logs", run, "talker")
    assert log.count("the first words") == log.count("the last words") == 1


def test_retries(airflow: Airflow, runs: Runs) -> None:
    assert airflow.wait_for_run("retries", runs["retries"]) == "failed"
    lucky = airflow.task_instance("retries", runs["retries"], "third_time_lucky")
    assert (lucky["state"], lucky["try_number"]) == ("success", 3)
    assert airflow.xcom("retries", runs["retries"], "third_time_lucky") == 3
    never = airflow.task_instance("retries", runs["retries"], "never_lucky")
    assert (never["state"], never["try_number"]) == ("failed", 2)
    for number in (1, 2):
        log = airflow.logs("retries", runs["retries"], "third_time_lucky", try_number=number)
        assert f"try {number} is not the third" in log


def test_execution_timeout(airflow: Airflow, runs: Runs) -> None:
    assert airflow.wait_for_run("timeouts", runs["timeouts"]) == "failed"
    assert "AirflowTaskTimeout" in airflow.logs("timeouts", runs["timeouts"], "slow")
    assert airflow.task_instance("timeouts", runs["timeouts"], "slow")["duration"] < 290, "it sleeps for 300 s"


def test_trigger_rules(airflow: Airflow, runs: Runs) -> None:
    airflow.wait_for_run("trigger_rules", runs["trigger_rules"])
    assert states(airflow, "trigger_rules", runs["trigger_rules"]) == {
        "good": "success",
        "bad": "failed",
        "all_success": "upstream_failed",
        "all_done": "success",
        "one_failed": "success",
        "none_skipped": "success",
        "all_failed": "skipped",
        "one_success": "success",
    }


def test_mapped_tasks(airflow: Airflow, runs: Runs) -> None:
    assert airflow.wait_for_run("mapped", runs["mapped"]) == "success"
    assert airflow.xcom("mapped", runs["mapped"], "total") == 55
    assert airflow.xcom("mapped", runs["mapped"], "square", map_index=4) == 25


def test_deferrable_operators(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    assert airflow.wait_for_run("deferred", runs["deferred"]) == "success"
    assert diary.lines("deferred") == ["before", "after"]
    patient = airflow.task_instance("deferred", runs["deferred"], "patient")
    assert patient["try_number"] == 1
    assert airflow.xcom("deferred", runs["deferred"], "patient") == "after"


def test_xcoms(airflow: Airflow, runs: Runs) -> None:
    assert airflow.wait_for_run("xcoms", runs["xcoms"]) == "success"
    assert airflow.xcom("xcoms", runs["xcoms"], "pull") == ["one", {"a": [1, 2]}]


def test_a_pool_with_one_slot_serialises(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    assert airflow.wait_for_run("pools", runs["pools"]) == "success"
    moves = [line.split() for line in diary.lines("pools")]
    assert [direction for direction, _ in moves] == ["in", "out"] * 3
    assert all(moves[place][1] == moves[place + 1][1] for place in (0, 2, 4))


def test_assets_trigger_their_consumers(airflow: Airflow, runs: Runs) -> None:
    assert airflow.wait_for_run("producer", runs["producer"]) == "success"
    found: list[str] = []

    def triggered() -> bool:
        found[:] = [run["dag_run_id"] for run in airflow.rest("GET", "dags/consumer/dagRuns")["dag_runs"]]
        return bool(found)

    assert wait_until(triggered, 60)
    [run] = found
    assert airflow.wait_for_run("consumer", run) == "success"
    assert airflow.xcom("consumer", run, "consume") == ["x-lading://product"]


def test_setup_and_teardown(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    assert airflow.wait_for_run("frames", runs["frames"]) == "failed"
    assert states(airflow, "frames", runs["frames"]) == {"build": "success", "work": "failed", "tear_down": "success"}
    assert diary.lines("frames") == ["build", "work", "tear down"]


def test_hints_of_the_dag_and_the_task_are_merged(airflow: Airflow, runs: Runs) -> None:
    assert airflow.wait_for_run("merged", runs["merged"]) == "success"
    jobs = {job["task_id"]: job for job in json.loads(airflow.lading("jobs", "--dag-id", "merged", "-o", "json"))}
    assert set(jobs) == {"plain", "own"}
    assert (jobs["plain"]["cpus"], jobs["plain"]["memory_mib"]) == (0.5, 600)
    assert (jobs["own"]["cpus"], jobs["own"]["memory_mib"]) == (0.5, 300)


def test_wrong_hints_that_slip_through_fail_their_tasks_alone(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    run = runs["slipped"]
    assert airflow.wait_for_run("slipped", run) == "failed"
    assert states(airflow, "slipped", run) == {"wrong": "failed", "greedy": "failed", "neighbour": "success"}
    assert not (diary.folder / "slipped").exists()
    expected = {
        "wrong": "hint cpus: 'many' is",
        "greedy": "requests 4000 cpus, 512 MiB memory, more than any site can ever give",
    }
    told = {e["task_id"]: e["extra"] for e in airflow.events("slipped", run) if e["event"] == "lading error"}
    assert told.keys() == expected.keys()
    for task, words in expected.items():
        assert words in told[task]
        assert words in airflow.logs("slipped", run, task)


def test_a_connection_is_tested_by_the_executor(airflow: Airflow, tmp_path: Any) -> None:
    def outcome(path: object) -> tuple[str, str]:
        body = {
            "connection_id": "files",
            "conn_type": "fs",
            "extra": json.dumps({"path": str(path)}),
            "commit_on_success": False,
        }
        queued = airflow.rest("POST", "connections/enqueue-test", body)
        found: dict[str, Any] = {}

        def ended() -> bool:
            # The token that says which test is meant goes into a header.
            token = {"Airflow-Connection-Test-Token": queued["token"]}
            found.update(airflow.rest("GET", "connections/enqueue-test", headers=token))
            return found["state"] not in ("pending", "queued", "running")

        assert wait_until(ended, 60), found
        return found["state"], found["result_message"]

    assert outcome(tmp_path) == ("success", f"Path {tmp_path} is existing.")
    assert outcome(tmp_path / "none") == ("failed", f"Path {tmp_path / 'none'} does not exist.")
