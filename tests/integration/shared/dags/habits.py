"""Small Dags, one for each habit of Airflow that has to work. What a task did it notes in a file of the diary."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import Asset, BaseOperator, dag, setup, task, teardown

from lading.operators import resources

DIARY = Path(os.environ["AIRFLOW_HOME"]) / "diary"


def note(page: str, words: object = "") -> None:
    with (DIARY / page).open("a") as diary:
        diary.write(f"{words}\n")


def wait_for(page: str) -> None:
    while not (DIARY / page).exists():
        time.sleep(0.1)


@dag(schedule=None)
def retries():
    @task(retries=2, retry_delay=timedelta(0))
    def third_time_lucky(ti=None):
        if ti.try_number < 3:
            raise ValueError(f"try {ti.try_number} is not the third")
        return ti.try_number

    @task(retries=1, retry_delay=timedelta(0))
    def never_lucky():
        raise ValueError("this never works")

    third_time_lucky()
    never_lucky()


@dag(schedule=None)
def timeouts():
    @task(execution_timeout=timedelta(seconds=1))
    def slow():
        time.sleep(300)

    slow()


@dag(schedule=None)
def trigger_rules():
    good = EmptyOperator(task_id="good")
    bad = BashOperator(task_id="bad", bash_command="exit 1")
    for rule in ("all_success", "all_done", "one_failed", "none_skipped", "all_failed", "one_success"):
        [good, bad] >> BashOperator(task_id=rule, trigger_rule=rule, bash_command="true")


@dag(schedule=None)
def mapped():
    @task
    def numbers():
        return [1, 2, 3, 4, 5]

    @task(executor_config=resources(cpus=0.5))
    def square(number):
        return number * number

    @task
    def total(squares):
        return sum(squares)

    total(square.expand(number=numbers()))


class Patient(BaseOperator):
    """Waits in the triggerer, not on the machine."""

    def execute(self, context):
        note("deferred", "before")
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=1)), method_name="resume", kwargs={"word": "after"})

    def resume(self, context, event, word):
        note("deferred", word)
        return word


@dag(schedule=None)
def deferred():
    Patient(task_id="patient", executor_config=resources(memory="300 MiB"))


@dag(schedule=None)
def xcoms():
    @task
    def push(ti=None):
        ti.xcom_push(key="more", value={"a": [1, 2]})
        return "one"

    @task
    def pull(value, ti=None):
        return [value, ti.xcom_pull(task_ids="push", key="more")]

    pull(push())


@dag(schedule=None)
def pools():
    @task(pool="single_file")
    def bather(number):
        note("pools", f"in {number}")
        time.sleep(0.3)
        note("pools", f"out {number}")

    bather.expand(number=[1, 2, 3])


@dag(schedule=None)
def logs():
    @task
    def talker():
        print("the first words")
        wait_for("logs-heard")
        print("the last words")

    talker()


PRODUCT = Asset("x-lading://product")


@dag(schedule=None)
def producer():
    @task(outlets=[PRODUCT])
    def produce():
        return "made"

    produce()


@dag(schedule=[PRODUCT])
def consumer():
    @task
    def consume(triggering_asset_events=None):
        return [event.asset.uri for events in triggering_asset_events.values() for event in events]

    consume()


@dag(schedule=None)
def frames():
    @setup
    def build():
        note("frames", "build")

    @task
    def work():
        note("frames", "work")
        raise ValueError("the work fails")

    @teardown
    def tear_down():
        note("frames", "tear down")

    built = build()
    built >> work() >> tear_down().as_teardown(setups=built)


@dag(
    schedule=None,
    default_args={"executor_config": resources(cpus=0.5, memory="600 MiB", time="1h")},
)
def merged():
    EmptyOperator(task_id="empty")  # never reaches an executor
    BashOperator(task_id="plain", bash_command="true")
    BashOperator(task_id="own", bash_command="true", executor_config=resources(memory="300 MiB"))


@dag(schedule=None)
def slipped():
    """What injects the wrong hints is airflow_local_settings.py, behind the task policy."""
    BashOperator(task_id="wrong", bash_command='touch "$AIRFLOW_HOME/diary/slipped"')
    BashOperator(task_id="greedy", bash_command='touch "$AIRFLOW_HOME/diary/slipped"')
    BashOperator(task_id="neighbour", bash_command="true")


for make in (retries, timeouts, trigger_rules, mapped, deferred, xcoms, pools, logs, producer, consumer, frames):
    make()
merged()
slipped()
