"""Tasks as a bare job array: what can be done with Airflow's Task SDK on a cluster, without Lading.

Airflow's scheduler puts each workload, as it would hand it to any executor, into a file of a folder. One
``sbatch --array`` then runs them all, each by the command that Airflow has for machines without it,
``python -m airflow.sdk.execution_time.execute_workload``. The rate counts from the submission, when all files are
there, so neither Airflow's scheduler nor the writing of the files slows the array down.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecuteTask

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecutorWorkload
    from sqlalchemy.orm import Session

# Where the workloads go, and of which Dag; Airflow's scheduler has these in its environment.
FOLDER_VARIABLE = "LADING_BENCHMARK_WORKLOADS"
DAG = "trivial"
PROCESSES = 2

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=bare --array=1-{count} --nodes=1 --ntasks-per-node=1 --cpus-per-task=1 --mem={memory}
#SBATCH --time=1-00:00:00 --export=NONE --no-requeue --output=/dev/null --error=/dev/null
umask 077
exec </dev/null
cd /
{exports}
exec {python} -m airflow.sdk.execution_time.execute_workload --json-path {folder}/$SLURM_ARRAY_TASK_ID.json
"""


class HoldingExecutor(LocalExecutor):
    """Runs the tasks of all Dags but one, whose workloads it writes into files and forgets."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.parallelism = PROCESSES  # for the other Dags; [core] parallelism holds for the scheduler

    def queue_workload(self, workload: ExecutorWorkload, session: Session) -> None:
        if not isinstance(workload, ExecuteTask) or workload.ti.dag_id != DAG:
            return super().queue_workload(workload, session)
        path = Path(os.environ[FOLDER_VARIABLE]) / f"{workload.ti.map_index + 1}.json"
        path.with_suffix(".part").write_text(workload.model_dump_json())
        path.with_suffix(".part").rename(path)
        return None


def held(folder: Path) -> int:
    """How many workloads there are."""
    return sum(1 for _ in folder.glob("*.json"))


def script(count: int, *, python: Path, folder: Path, memory: int, environment: Mapping[str, str]) -> str:
    """The script of the array.

    :param memory: of each of its jobs, MiB
    :param environment: what the jobs need to find Airflow's API server and Dags
    """
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())
    return SCRIPT.format(count=count, memory=memory, exports=exports, python=python, folder=folder)


def submit(path: Path, **options: Any) -> None:
    """Submit a script, as the user and with the environment that ``options`` of :func:`subprocess.run` say."""
    subprocess.run(["sbatch", "--parsable", str(path)], check=True, capture_output=True, cwd="/", **options)
