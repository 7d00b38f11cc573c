"""Tasks that run as jobs of a batch cluster."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task

from lading.operators import resources

DIARY = Path(os.environ.get("CLUSTER_DIARY", "/nonexistent"))


def note(name: str, text: str) -> None:
    """Write a file that exists as a whole or not at all."""
    (DIARY / f".{name}").write_text(text)
    (DIARY / f".{name}").rename(DIARY / name)


@dag(schedule=None)
def squares():
    @task(executor_config=resources(cpus=4, memory="600 MiB"))
    def square(number: int) -> int:
        print("square of", number, "in job", os.environ["SLURM_JOB_ID"])
        return number * number

    @task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    total(square.expand(number=list(range(4))))


@dag(schedule=None)
def ended():
    @task(executor_config=resources(cpus=1, memory="500 MiB"))
    def hog() -> None:
        print("about to take more than there is")
        block = bytearray(os.urandom(2**20)) * 900
        time.sleep(60)
        del block

    @task(executor_config=resources(cpus=1, time="3s"))
    def dawdler() -> None:
        time.sleep(60)

    @task(executor_config=resources(cpus=1))
    def marked() -> None:
        note("marked", str(os.getpid()))
        time.sleep(600)

    @task(executor_config=resources(cpus=1))
    def cancelled_at_the_site() -> None:
        array = os.environ.get("SLURM_ARRAY_JOB_ID")
        note("victim", f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"])
        time.sleep(600)

    hog()
    dawdler()
    marked()
    cancelled_at_the_site()


@dag(schedule=None)
def failing_node():
    asked = resources(cpus=1, time="2 min", queue="short", native={"comment": "of the author"})

    # On SIGTERM it fails, and says so.
    @task.bash(executor_config=asked, retries=0, retry_delay=timedelta(seconds=1))
    def survivor(ti=None) -> str:
        note(f"survivor-{ti.try_number}", "begun")
        return "sleep 120" if ti.try_number == 1 else "true"

    survivor()


@dag(schedule=None)
def several_nodes():
    @task.bash(executor_config=resources(nodes=2, ppn=2, memory="600 MiB"))
    def stepped() -> str:
        return "srun sh -c 'echo $SLURMD_NODENAME $GREETING' | sort | xargs"

    # Without -genvnone each process would be told the name of the node on which mpirun runs.
    @task.bash(executor_config=resources(nodes=2, ppn=2, memory="600 MiB"))
    def ranks() -> str:
        return f"mpirun -genvnone {DIARY.parent}/ranks"

    @task.bash(executor_config=resources(nodes=(2, 8), ppn=2, memory="600 MiB"))
    def granted() -> str:
        return "echo $LADING_NODES $(srun sh -c 'echo $SLURMD_NODENAME' | sort | uniq -c | xargs)"

    # Its variables are not those of an MPI job, which would let mpirun find one slot.
    @task.bash(executor_config=resources(cpus=2, memory="600 MiB"))
    def alone() -> str:
        return 'echo "$SLURM_JOB_NODELIST ${SLURM_NTASKS-none}"; mpirun -n 2 true && echo both'

    stepped()
    ranks()
    granted()
    alone()


squares()
ended()
failing_node()
several_nodes()
