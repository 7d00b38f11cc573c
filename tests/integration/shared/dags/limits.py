"""Tasks that go beyond their limits."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import BaseOperator, dag

from lading.operators import resources

DIARY = Path(os.environ["AIRFLOW_HOME"]) / "diary"


def note(page, words):
    with (DIARY / page).open("a") as diary:
        diary.write(f"{words}\n")


def failed(context):
    note(f"{context['ti'].task_id}-callbacks", f"failure of try {context['ti'].try_number}")


def retried(context):
    note(f"{context['ti'].task_id}-callbacks", f"retry of try {context['ti'].try_number}")


class Hog(BaseOperator):
    def execute(self, context):
        note(f"{self.task_id}-tries", context["ti"].try_number)
        print("about to take more than there is")
        hoard = bytearray(1000 * 2**20)
        for page in range(0, len(hoard), 4096):
            hoard[page] = 1
        time.sleep(300)


class Dawdler(BaseOperator):
    def execute(self, context):
        print("about to take longer than allowed")
        time.sleep(300)

    def on_kill(self):
        note(f"{self.task_id}-killed", "on_kill")


class Small(BaseOperator):
    def execute(self, context):
        return len(bytearray(b"x" * 600 * 2**20))


@dag(schedule=None, default_args={"on_failure_callback": failed, "on_retry_callback": retried})
def limits():
    # As large as a hog, but no limit is set: defaults are for packing only.
    small = Small(task_id="small")
    Hog(task_id="hog", executor_config=resources(memory="400 MiB"), retries=1, retry_delay=timedelta(0))
    # After another, which has waited for an API server that takes seconds over its first answer.
    small >> Dawdler(task_id="dawdler", executor_config=resources(time="40s"))


limits()
