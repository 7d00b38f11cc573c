"""Requirements and preferences: run on an A100 if one is available now, otherwise on whatever the site has.

The Dag names no place. The sites file, which knows the machines, says where its tasks go::

    [[bindings]]
    dag = "gpu_wishes"
    task = "train"
    targets = ["hpc/gpu", "cloud/g6.*"]

``preferred`` is a preference: the task does not wait for a busy A100 if a V100 is idle. ``features`` is a requirement:
with ``features=["gpu"]`` the task would never go to a machine without a GPU. The task's cpus are a range, so it starts
with what is left of a machine instead of waiting for all of it. ``airflow lading explain gpu_wishes RUN train 0`` shows
where it was placed, and why.
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
    """Stand in for training: one process's share of the search for the largest hash."""
    steps = range(part, STEPS, parts)
    return max(int(hashlib.sha256(f"{seed} {step}".encode()).hexdigest(), 16) for step in steps)


@dag(schedule=None, catchup=False, tags=["lading"], doc_md=__doc__)
def gpu_wishes() -> None:
    @task(executor_config=resources(cpus=(0.5, 8), memory=("400 MiB", "2 GiB"), preferred=["a100"]))
    def train(seed: int) -> Model:
        """Use as many processes as there are cpus."""
        cpus = max(1, int(float(os.environ.get("LADING_CPUS", "1"))))
        with ProcessPoolExecutor(cpus) as pool:
            best = max(pool.map(score, [seed] * cpus, range(cpus), [cpus] * cpus))
        return {"seed": seed, "cpus": cpus, "score": f"{best:064x}"}

    @task
    def best(models: list[Model]) -> Model:
        """Return the best model, which does not depend on how many cpus each training had."""
        return max(models, key=lambda each: each["score"])

    best(train.expand(seed=SEEDS))  # type: ignore[arg-type]


gpu_wishes()
