"""Tasks that are marked or cleared while they wait or run."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from airflow.sdk import BaseOperator, dag, task

from lading.operators import resources

DIARY = Path(os.environ["AIRFLOW_HOME"]) / "diary"
ALL = resources(cpus=4)  # of the machine, as the tests' sites file says


def note(page, words=""):
    with (DIARY / page).open("a") as diary:
        diary.write(f"{words}\n")


class Stubborn(BaseOperator):
    """Starts a process that leaves its session and a child of its own, and lives until it is ended.

    In its second try it has done what it should.
    """

    def execute(self, context):
        note(f"{self.task_id}-tries", context["ti"].try_number)
        if context["ti"].try_number > 1:
            return
        child = subprocess.Popen(
            ["setsid", "sh", "-c", f"sleep 1000 & echo $! $$ > '{DIARY}/{self.task_id}-pids'; trap '' TERM; wait; wait"]
        )
        child.wait()
        time.sleep(1000)

    def on_kill(self):
        note(f"{self.task_id}-killed")


@dag(schedule=None)
def running():
    Stubborn(task_id="marked_failed")
    Stubborn(task_id="marked_success")
    Stubborn(task_id="cleared")


@dag(schedule=None)
def finished():
    @task
    def cleared(ti=None):
        note("finished-tries", ti.try_number)

    cleared()


@dag(schedule=None)
def machine_is_full():
    @task(executor_config=ALL)
    def blocker(dag_run=None):
        """Takes the whole machine until a test releases it."""
        page = dag_run.conf["page"]
        note(f"{page}-blocked")
        while not (DIARY / f"{page}-go").exists():
            time.sleep(0.05)

    blocker()


@dag(schedule=None)
def queue():
    weights = {"marked_first": 40, "cleared": 30, "high": 20, "middle": 15, "low": 10, "marked_last": 5}
    for name, weight in weights.items():

        @task(task_id=name, executor_config=ALL, priority_weight=weight)
        def wait(ti=None):
            note("queue-started", ti.task_id)

        wait()


@dag(schedule=None)
def haste():
    for name in ("marked", "cleared"):

        @task(task_id=name, executor_config=ALL)
        def wait(ti=None):
            note("haste-started", ti.task_id)

        wait()


running()
finished()
machine_is_full()
queue()
haste()
