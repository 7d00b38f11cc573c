"""Tasks that declare their resources. Lading packs the tasks, and kills the one that exceeds its memory."""

from __future__ import annotations

import time
from datetime import timedelta

from airflow.sdk import dag, task

from lading.operators import resources

MIB = 2**20


@dag(schedule=None, tags=["lading", "example"], doc_md=__doc__)
def first_steps() -> None:
    @task(executor_config=resources(cpus=0.5, memory="200 MiB", time="5 min"))
    def square(number: int) -> int:
        time.sleep(5)  # long enough to be seen running
        return number**2

    @task
    def total(squares: list[int]) -> int:
        return sum(squares)

    @task(executor_config=resources(memory="256 MiB"), retries=1, retry_delay=timedelta(seconds=1))
    def hungry() -> int:
        """Use more memory than requested. The first try is killed; the second gets twice as much."""
        eaten = bytearray(b"x") * (300 * MIB)
        time.sleep(30)  # on a busy machine Lading may take seconds to notice
        return len(eaten) // MIB

    total(square.expand(number=list(range(1, 9))))  # type: ignore[arg-type]  # an XComArg stands for what will be returned
    hungry()


first_steps()
