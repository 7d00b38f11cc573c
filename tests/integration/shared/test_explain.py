"""A Dag whose tasks have wishes, on a real Airflow, and the explanation of where they went."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import lading.example_dags
from tests.services.airflow import Airflow

EXAMPLE = Path(lading.example_dags.__path__[0]) / "gpu_wishes.py"


def test_tasks_get_what_is_to_be_had_now_and_explain_says_why(airflow: Airflow) -> None:
    airflow.add_dag("gpu_wishes", EXAMPLE.read_text())
    run_id = airflow.trigger("gpu_wishes")
    assert airflow.wait_for_run("gpu_wishes", run_id) == "success"
    best = airflow.xcom("gpu_wishes", run_id, "best")
    seeds = (1, 2, 3)
    scores = {
        each: max(hashlib.sha256(f"{each} {step}".encode()).hexdigest() for step in range(40_000)) for each in seeds
    }
    assert (best["seed"], best["score"]) == max(scores.items(), key=lambda each: each[1])
    lines = airflow.lading("explain", "gpu_wishes", run_id, "train", "0").splitlines()
    assert lines[0].startswith(
        "gpu_wishes.train[0], try 1, requested 8 cpus, 2 GiB memory; at least 0.5 cpus, 400 MiB memory"
    )
    assert lines[0].endswith("a100 only if possible"), "this machine has fewer, and none of that"
    assert lines[1] == "1. decision:", "what has room now had no part in it"
    assert any("by rule 'less, and without what is preferred'" in line for line in lines[2:])
    assert any(line.startswith("2. phases:") for line in lines)
    assert any(re.fullmatch(r"   memory: peak .* MiB, .* requested", line) for line in lines), lines
    assert "exit code 0" in lines[-1]
    assert "lading rule" in {each["event"] for each in airflow.events("gpu_wishes", run_id)}
    missing = airflow.run("lading", "explain", "gpu_wishes", run_id, "nothing")
    assert (missing.status, "Lading has no job of gpu_wishes.nothing" in missing.errors) == (1, True)


MATCHED = """
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None)
def matched():
    @task
    def samples():
        return [{"name": "whole_genome_1"}, {"name": "exome_2"}]

    @task(executor_config=resources(targets=["local"], matching={"local": {"sample": '"whole_genome_[0-9]+"'}}))
    def align(sample):
        return sample["name"]

    align.expand(sample=samples())

matched()
"""


def test_a_job_goes_to_the_targets_that_its_inputs_match(airflow: Airflow) -> None:
    airflow.add_dag("matched", MATCHED)
    run_id = airflow.trigger("matched")
    assert airflow.wait_for_run("matched", run_id) == "failed"
    assert airflow.xcom("matched", run_id, "align", map_index=0) == "whole_genome_1"
    said = [each["extra"] for each in airflow.events("matched", run_id) if each["map_index"] == 1]
    assert any("its inputs match none of its targets local" in str(each) for each in said), said
    assert "decision: site local, location " in airflow.lading("explain", "matched", run_id, "align", "0")
