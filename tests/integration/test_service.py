"""A controller that runs as a service, next to a scheduler that has started one of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy import create_engine, text

from tests.services.airflow import Airflow
from tests.services.processes import wait_until

SOURCE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
with DAG("service", schedule=None):
    BashOperator(
        task_id="held",
        bash_command="touch {folder}/{{{{ run_id }}}}; until [ -e {folder}/go ]; do sleep 0.2; done",
    )
"""


@contextlib.contextmanager
def service(airflow: Airflow) -> Iterator[subprocess.Popen[bytes]]:
    """``airflow lading controller``, which is stopped in order."""
    with (airflow.home / "service.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "lading", "controller"],
            stdout=log,
            stderr=log,
            env=airflow.environment,
            cwd=airflow.home,
        )
    try:
        yield process
        process.terminate()
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()


def test_a_service_takes_over_and_gives_back(start_airflow: Callable[..., Airflow], tmp_path: Path) -> None:
    airflow = start_airflow(components=("api-server", "dag-processor", "scheduler"))
    airflow.add_dag("service", SOURCE.format(folder=tmp_path))
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])

    def holder() -> tuple[int, bool] | None:
        with engine.connect() as connection:
            row = connection.execute(text("select pid, managed from lading_lease")).first()
        return (row.pid, bool(row.managed)) if row else None

    def agent() -> str:
        return (airflow.home / "lading/spool/local/agent.json").read_text()

    run = airflow.trigger("service")
    assert wait_until((tmp_path / run).exists, 120), "the task runs"
    first, managed = holder() or (0, False)
    its_agent = agent()
    assert managed
    with service(airflow) as process:
        assert wait_until(lambda: holder() == (process.pid, False), 120), "the service acts"
        assert wait_until(lambda: not os.path.exists(f"/proc/{first}") or is_zombie(first), 30)
        later = airflow.trigger("service")
        assert wait_until((tmp_path / later).exists, 120), "it starts tasks"
    assert wait_until(lambda: (holder() or (0, False))[1], 120), "the scheduler's own acts again"
    (tmp_path / "go").touch()
    for each in (run, later):
        assert airflow.wait_for_run("service", each) == "success"
        [task] = airflow.rest("GET", f"dags/service/dagRuns/{each}/taskInstances")["task_instances"]
        assert task["try_number"] == 1
    assert agent() == its_agent, "all of them drove one agent"
    engine.dispose()


def is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
