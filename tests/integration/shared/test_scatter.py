"""Scatters on a real scheduler, checked to the value."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lading.example_dags
from lading.example_dags.scatter_methods import TEXTS
from lading.executors.store import ENDED
from tests.services.airflow import Airflow
from tests.services.processes import wait_until

DAGS = ("shapes", "unequal", "chunks", "lessons", "machines", "sized")
EXAMPLES = ("scatter_dotproduct", "scatter_flat_crossproduct", "scatter_nested_crossproduct", "scatter_hints")


@pytest.fixture(scope="module")
def scatters(airflow: Airflow) -> Mapping[str, str]:
    """The runs of all Dags by name, started together."""
    sources = {"scatters": (Path(__file__).parent / "dags" / "scatters.py").read_text()}
    examples = Path(lading.example_dags.__path__[0])
    sources |= {name: (examples / f"{name}.py").read_text() for name in ("scatter_methods", "scatter_hints")}
    airflow.add_dags(sources)
    return {dag_id: airflow.trigger(dag_id) for dag_id in (*DAGS, *EXAMPLES)}


class Run:
    """One finished run."""

    def __init__(self, airflow: Airflow, dag_id: str, run_id: str, state: str = "success") -> None:
        self.airflow, self.dag_id, self.run_id = airflow, dag_id, run_id
        assert airflow.wait_for_run(dag_id, run_id, 280) == state

    def output(self, task_id: str) -> Any:
        return self.airflow.xcom(self.dag_id, self.run_id, task_id)

    def instances(self, task_id: str) -> list[dict[str, Any]]:
        found = [each for each in self.airflow.task_instances(self.dag_id, self.run_id) if each["task_id"] == task_id]
        return sorted(found, key=lambda each: each["map_index"])

    def jobs(self) -> list[dict[str, Any]]:
        command = (
            "jobs",
            "--run-id",
            self.run_id,
            "--dag-id",
            self.dag_id,
            "--limit",
            "1000",
            "--output",
            "json",
        )
        rows: list[dict[str, Any]] = []

        def have_ended() -> bool:
            rows[:] = json.loads(self.airflow.lading(*command))
            return all(row["state"] in ENDED for row in rows)

        # A task reports its end to Airflow before its agent reports it to the store.
        assert wait_until(have_ended, 60, 1), rows
        return sorted(rows, key=lambda row: (row["task_id"], int(row["map_index"]), int(row["try_number"])))

    def log(self, task_id: str, map_index: int = -1, try_number: int = 1) -> str:
        return self.airflow.logs(self.dag_id, self.run_id, task_id, map_index=map_index, try_number=try_number)


def test_example_dotproduct(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "scatter_dotproduct", scatters["scatter_dotproduct"])
    assert run.output("report") == "Ada, 1815; Grace, 1906; Mary, 1893"
    labels = [each["rendered_map_index"] for each in run.instances("describe")]
    assert labels == ["name=Ada, year=1815", "name=Grace, year=1906", "name=Mary, year=1893"]


def test_example_flat_crossproduct(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "scatter_flat_crossproduct", scatters["scatter_flat_crossproduct"])
    assert [each["rendered_map_index"] for each in run.instances("compress")][:4] == [
        "text=to be or not to be, how=zlib",
        "text=to be or not to be, how=bz2",
        "text=to be or not to be, how=lzma",
        "text=all work and no play, how=zlib",
    ]
    assert set(run.output("best")) == set(TEXTS)


def test_example_nested_crossproduct(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    table = Run(airflow, "scatter_nested_crossproduct", scatters["scatter_nested_crossproduct"]).output("table")
    assert [len(row) for row in table] == [3, 3, 3]
    assert [table[number][number] for number in range(3)] == [1.0, 1.0, 1.0]
    assert table[0][1] < 1


def test_example_with_all_hints(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "scatter_hints", scatters["scatter_hints"])
    jobs = [row for row in run.jobs() if row["task_id"] == "count"]
    memory = [int(row["memory_mib"]) for row in jobs]
    assert len(jobs) == 6
    assert memory == sorted(memory)
    assert memory[0] > 400
    assert memory[-1] > memory[0] + 50
    assert {float(row["cpus"]) for row in jobs} == {0.5}
    assert run.output("total") > 0


def test_shapes(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "shapes", scatters["shapes"])
    assert run.output("group.nested") == [["0x", "01", "0{'y': [2]}"], ["1x", None, "1{'y': [2]}"]]
    assert run.output("rows") == [3, 3]
    assert run.output("lists") == [[[1, 3, 0], [1, 4, 0], [1, 5, 0]], [[2, 3, 0], [2, 4, 0], [2, 5, 0]]]
    assert run.output("skipped") == [0, None, 2, None, 4]
    assert run.output("dict") == [["k", 1], ["l", None]]
    assert run.output("classic") == ["hello 0", "1"]
    assert run.output("no_outer") == []
    assert run.output("no_inner") == [[], []]
    assert [each["state"] for each in run.instances("empty_inner")] == ["skipped"]
    assert run.instances("group.pair")[3]["rendered_map_index"] == "a=1, b=x"


def test_wrong_inputs_at_run_time_start_no_job(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "unequal", scatters["unequal"], "failed")
    assert "a dotproduct needs inputs of equal length, but a has 3 elements, b has 2" in run.log("plan_pair")
    assert "input a is 'text', of type str; valid: a list" in run.log("plan_no_list")
    assert [each["state"] for each in run.instances("pair")] == ["upstream_failed"]
    assert not any(row["task_id"] in ("pair", "no_list") for row in run.jobs())


def test_chunks(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "chunks", scatters["chunks"])
    assert run.output("listed") == [None if n == 5 else n * n for n in range(10)]
    assert run.output("short") == [1, 4, 16, 36]
    assert run.output("total") == [3000, 3000, sum(range(1, 3001))]
    labels = [each["rendered_map_index"] for each in run.instances("square")]
    assert labels == ["elements 0 to 3", "elements 4 to 7", "elements 8 to 9"]
    assert len(run.instances("identity")) == 16  # core.max_map_length
    log = run.log("square", 0, 1)
    assert "1 of 4 jobs failed: job 3 (n=3): ValueError: 3 is not ready" in log
    assert "3 of 4 jobs finished in an earlier try" in run.log("square", 0, 2)
    ran = Counter((airflow.home / "diary" / "chunks").read_text().splitlines())
    assert {line for line in ran if line.startswith("2 ")} == {"2 3", "2 8"}


def test_retries_learn_from_the_cause(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "lessons", scatters["lessons"])
    jobs = {(row["task_id"], int(row["try_number"])): row for row in run.jobs()}
    assert jobs["hungry", 1]["cause"] == "out_of_memory", jobs
    assert [int(jobs["hungry", number]["memory_mib"]) for number in (1, 2)] == [300, 600]
    assert jobs["slow", 1]["cause"] == "time_limit"
    assert jobs["slow", 2]["state"] == "succeeded"
    events = [
        each["extra"] for each in airflow.events("lessons", run.run_id) if each["event"] == "lading asks for more"
    ]
    assert "requests 600 MiB of memory, 2 times as much: try 1 ran out of 300 MiB" in events


def test_resources_by_inputs(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "sized", scatters["sized"], "failed")
    asked = {
        (row["task_id"], int(row["map_index"])): (float(row["cpus"]), int(row["memory_mib"]), int(row["disk_mib"]))
        for row in run.jobs()
        if row["state"] == "succeeded"
    }
    assert asked["work", 0] == (0.25, 500 + 10 * (1 + 5), 1)
    assert asked["work", 1] == (0.5, 500 + 10 * (3 + 5), 3)
    assert asked["expanded", 1] == (0.25, 530, 3)
    assert asked["chunked", 0] == (0.1, 512, 3)
    bad = run.instances("bad")
    assert [each["state"] for each in bad] == ["failed", "success"]
    (reason,) = [row["reason"] for row in run.jobs() if row["state"] == "failed" and row["task_id"] == "bad"]
    assert "there is no file /there/is/none on the machine of Lading's controller" in reason


def test_the_tasks_instance_type_wins_over_the_dags(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run = Run(airflow, "machines", scatters["machines"])
    assert [each["state"] for each in run.instances("double")] == ["success", "success"]
    [machine] = json.loads(airflow.lading("sites", "--output", "json"))
    assert machine["instance_type"] == "test.xlarge"


def test_max_jobs(airflow: Airflow, scatters: Mapping[str, str]) -> None:
    run_id = airflow.trigger("limited")  # not among the others, which keep Airflow busy

    def reasons() -> list[str]:
        return [each["extra"] for each in airflow.events("limited", run_id) if each["event"] == "lading waits"]

    # Those that run last until then.
    expected = "waits: at most 2 jobs of task 'two' can be active at once (max_jobs)"
    assert wait_until(lambda: expected in reasons(), 120, 0.5), reasons()
    (airflow.home / "diary" / "limited-end").touch()
    run = Run(airflow, "limited", run_id)
    of_two, of_free = run.output("counts"), run.output("free_counts")
    assert max(count for count, _ in of_two) <= 2
    assert max(everything for _, everything in [*of_two, *of_free]) <= 3
