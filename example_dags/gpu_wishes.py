"""What is wished for and what will do: on an A100 if there is one to be had now, else on whatever the site has.

The Dag names no place. Where its tasks go is for the sites file to say, which knows the machines::

    [[bindings]]
    dag = "gpu_wishes"
    task = "train"
    targets = ["hpc/gpu", "cloud/g6.*"]

``preferred`` is a wish: an A100 that is busy is not waited for if a V100 is idle. What a machine must have stands in
``features``: with ``features=["gpu"]`` beside it the task would never go to a machine without one. Its cpus are a
range, so it starts on what is left of a machine instead of waiting for all of it. Which place it has got, and why, says
``airflow lading explain gpu_wishes RUN train 0``.
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
    """The share of one process of what stands for a training: the best hash of its numbers."""
    steps = range(part, STEPS, parts)
    return max(int(hashlib.sha256(f"{seed} {step}".encode()).hexdigest(), 16) for step in steps)


@dag(schedule=None, catchup=False, tags=["lading"], doc_md=__doc__)
def gpu_wishes() -> None:
    @task(executor_config=resources(cpus=(0.5, 8), memory=("400 MiB", "2 GiB"), preferred=["a100"]))
    def train(seed: int) -> Model:
        """Use as many processes as there are cpus to use."""
        cpus = max(1, int(float(os.environ.get("LADING_CPUS", "1"))))
        with ProcessPoolExecutor(cpus) as pool:
            best = max(pool.map(score, [seed] * cpus, range(cpus), [cpus] * cpus))
        return {"seed": seed, "cpus": cpus, "score": f"{best:064x}"}

    @task
    def best(models: list[Model]) -> Model:
        """However many cpus each training had, the same one is the best."""
        return max(models, key=lambda each: each["score"])

    best(train.expand(seed=SEEDS))  # type: ignore[arg-type]


gpu_wishes()
