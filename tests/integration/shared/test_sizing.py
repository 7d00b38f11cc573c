"""Tasks without a hint are packed by what they use: the second run of a Dag is denser than the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, State
from lading.scheduling.insight.auto import from_text
from tests.services import processes
from tests.services.airflow import Airflow

SIBLINGS, SECONDS = 20, 5
# So many fit by the defaults, which are 512 MiB and a quarter of a cpu, on the 4 cpus and 8 GiB of the shared Airflow.
BY_DEFAULT = 16
PATIENCE = 600.0
# The first run sleeps; the second waits for a file, so that it is seen how many are at work together.
DAG = """
import pathlib, time
from airflow.sdk import dag, task

@dag(schedule=None, max_active_tasks=100)
def sized():
    for name in ("one", "two", "three"):
        @task(task_id=name)
        def wait(number, **context):
            gate = context["dag_run"].conf.get("gate")
            while gate and not pathlib.Path(gate).exists():
                time.sleep(0.2)
            time.sleep({seconds})

        wait.expand(number=list(range({siblings})))

sized()
"""


@pytest.fixture
def engine(airflow: Airflow) -> Iterator[Engine]:
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    yield engine
    engine.dispose()


def jobs(engine: Engine, run: str, *states: str) -> list[JobRow]:
    with Session(engine) as session:
        query = select(JobRow).where(JobRow.dag_id == "sized", JobRow.run_id == run)
        return list(session.scalars(query.where(JobRow.state.in_(states)) if states else query))


def test_the_second_run_of_a_dag_without_hints_has_more_at_once(
    airflow: Airflow, engine: Engine, tmp_path: Path
) -> None:
    airflow.add_dag("sized", DAG.format(seconds=SECONDS, siblings=SIBLINGS))
    first = airflow.trigger("sized")
    assert airflow.wait_for_run("sized", first, PATIENCE) == "success"
    ended = jobs(engine, first)
    first_end = min(job.ended_at or 0.0 for job in ended)
    assert sum((job.started_at or 0.0) < first_end for job in ended) <= BY_DEFAULT
    gate = tmp_path / "gate"
    second = airflow.trigger("sized", {"gate": str(gate)})
    try:
        assert processes.wait_until(
            lambda: len(jobs(engine, second, State.RUNNING)) >= 1.5 * BY_DEFAULT, PATIENCE, 0.5
        ), [(job.task_id, job.state, job.cpus, job.memory, str(job.reason)) for job in jobs(engine, second)]
    finally:
        gate.touch()
    assert airflow.wait_for_run("sized", second, PATIENCE) == "success"
    ended = jobs(engine, second)
    for job in ended:
        assert (job.cause, job.memory_limit, job.try_number) == (None, None, 1), "nothing could end it"
        assert from_text(job.chosen)["memory"].until_known == 512
    # One that comes while a tick looks at the others is packed by the default.
    assert sum(job.memory < 512 / 1.5 for job in ended) > len(ended) / 2
