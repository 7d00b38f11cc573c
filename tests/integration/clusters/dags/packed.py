"""Tasks that are packed into an allocation of a batch cluster."""

from __future__ import annotations

import os
import time

from airflow.sdk import TaskInstance, dag, task

from lading.operators import resources


@dag(schedule=None)
def packed():
    @task(executor_config=resources(cpus=1, memory="300 MiB", site="packed"))
    def square(number: int) -> list[int]:
        print("square of", number, "with", os.environ["OMP_NUM_THREADS"], "thread")
        return [number * number, int(os.environ["SLURM_JOB_ID"])]

    @task(executor_config=resources(cpus=2, time="3s", site="packed"))
    def dawdler() -> None:
        time.sleep(60)

    @task(executor_config=resources(site="packed"), trigger_rule="all_done")
    def tell(found: list[list[int]]) -> dict[str, int]:
        return {"sum": sum(each[0] for each in found), "batch_jobs": len({each[1] for each in found})}

    dawdler() >> tell(square.expand(number=list(range(20))))


@dag(schedule=None)
def held():
    @task(executor_config=resources(cpus=1, site="packed"), retries=1, retry_delay=0)
    def holds(ti: TaskInstance) -> str:
        if ti.try_number == 1:
            time.sleep(600)
        return os.environ["SLURM_JOB_ID"]

    holds()


packed()
held()
