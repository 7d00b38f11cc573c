"""Requirements and preferences: run on an A100 if one is free now, otherwise on any machine of the site.

The Dag names no site. A binding in the sites file says where its tasks go::

    [[bindings]]
    dag = "gpu_wishes"
    task = "train"
    targets = ["hpc/gpu", "cloud/g6.*"]

``preferred`` is a preference: the task does not wait for a busy A100 if a V100 is idle. ``features`` is a requirement:
with ``features=["gpu"]``, the task would never run on a machine without a GPU. The task requests a range of cpus, so it
can start on a machine that is partly in use. ``airflow lading explain gpu_wishes RUN train 0`` shows where the task was
placed, and why.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TypedDict

from airflow.sdk import dag, task

from lading.operators import resources

SEEDS = [1, 2, 3]
STEPS = 40_000


class Model(TypedDict):
    seed: int
    cpus: int
    score: str


def score(seed: int, part: int, parts: int) -> int:
    """Do one process's part of the work. A search for the largest hash stands in for training a model."""
    steps = range(part, STEPS, parts)
    return max(int(hashlib.sha256(f"{seed} {step}".encode()).hexdigest(), 16) for step in steps)


@dag(schedule=None, catchup=False, tags=["lading"], doc_md=__doc__)
def gpu_wishes() -> None:
    @task(executor_config=resources(cpus=(0.5, 8), memory=("400 MiB", "2 GiB"), preferred=["a100"]))
    def train(seed: int) -> Model:
        """Train with as many processes as the task has cpus."""
        cpus = max(1, int(float(os.environ.get("LADING_CPUS", "1"))))
        with ProcessPoolExecutor(cpus) as pool:
            best = max(pool.map(score, [seed] * cpus, range(cpus), [cpus] * cpus))
        return {"seed": seed, "cpus": cpus, "score": f"{best:064x}"}

    @task
    def best(models: list[Model]) -> Model:
        """Return the best model. The result is the same for any number of cpus."""
        return max(models, key=lambda each: each["score"])

    best(train.expand(seed=SEEDS))  # type: ignore[arg-type]


gpu_wishes()
