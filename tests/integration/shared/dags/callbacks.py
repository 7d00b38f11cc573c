"""Dags whose callbacks note that they were called."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DeadlineAlert, DeadlineReference, SyncCallback, dag, task
from airflow.sdk.exceptions import AirflowSkipException

DIARY = Path(os.environ["AIRFLOW_HOME"]) / "diary"


def note(name, context=None, **kwargs):
    with (DIARY / "callbacks").open("a") as diary:
        diary.write(f"{name}\n")


@dag(
    schedule=None,
    on_success_callback=partial(note, "Dag succeeded"),
    on_failure_callback=partial(note, "Dag failed"),
)
def unhappy():
    told = {
        f"on_{what}_callback": partial(note, f"task {what}")
        for what in ("execute", "success", "failure", "retry", "skipped")
    }

    @task(**told)
    def good():
        return "good"

    @task(**told, retries=1, retry_delay=timedelta(0))
    def bad():
        raise ValueError("bad")

    @task(**told)
    def skipped():
        raise AirflowSkipException("not today")

    good()
    bad()
    skipped()


@dag(schedule=None, on_success_callback=partial(note, "happy Dag succeeded"))
def happy():
    BashOperator(task_id="nothing", bash_command="true")


def too_late(words, **kwargs):
    # What the node agent calls its jobs: this runs on the executor, not in the triggerer or the Dag processor.
    (DIARY / "deadline").write_text(f"{words}\n{os.environ.get('LADING_JOB')}\n")


def fails(**kwargs):
    raise ValueError("this callback fails")


def alert(callback, **kwargs):
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=1),
        callback=SyncCallback(callback, kwargs=kwargs),
    )


@dag(schedule=None, deadline=[alert(too_late, words="too late"), alert(fails)])
def late():
    @task
    def slow():
        deadline = time.monotonic() + 60
        while not (DIARY / "deadline").exists() and time.monotonic() < deadline:
            time.sleep(0.2)

    slow()


unhappy()
happy()
late()
