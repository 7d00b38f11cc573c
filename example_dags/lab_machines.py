"""Estimate π from random points, with tasks of three sizes on the machines of a site called `lab`.

Lading packs the tasks by the resources that they request. A machine with two cores runs eight small tasks at once, or
one large and four small tasks. The report says how many tasks each machine ran. See docs/how_to/machines.md for the
table of the site.
"""

from __future__ import annotations

import getpass
import random
import socket
from collections import Counter
from typing import Any, TypedDict

from airflow.sdk import Param, dag, get_current_context, task

from lading.operators import resources


class Part(TypedDict):
    machine: str
    points: int
    inside: int


def throw(points: int) -> Part:
    """Count how many random points of a square lie in its quarter circle. The result also names the machine."""
    inside = sum(random.random() ** 2 + random.random() ** 2 <= 1 for _ in range(points))
    return Part(machine=f"{getpass.getuser()}@{socket.gethostname()}", points=points, inside=inside)


@dag(
    schedule=None,
    params={"parts": Param(40, type="integer", minimum=4, description="the number of tasks")},
    default_args={"executor_config": resources(site="lab"), "retries": 1},
    max_active_tasks=1000,  # a high limit, so that only resources limit how many tasks run at once
    tags=["lading", "example"],
    doc_md=__doc__,
)
def lab_machines() -> None:
    @task(executor_config=resources(site="lab", cpus=0.25, memory=256))
    def sizes(share: float, points: int) -> list[int]:
        """Return a list with the number of points of each task.

        :param share: the number of tasks, as a fraction of the parameter ``parts``
        """
        return [points] * round(share * get_current_context()["params"]["parts"])

    @task(executor_config=resources(site="lab", cpus=0.25, memory=256))
    def small(points: int) -> Part:
        return throw(points)

    @task(executor_config=resources(site="lab", cpus=0.5, memory=384))
    def medium(points: int) -> Part:
        return throw(points)

    @task(executor_config=resources(site="lab", cpus=1, memory=512))
    def large(points: int) -> Part:
        return throw(points)

    @task(executor_config=resources(site="lab", cpus=0.25, memory=256))
    def report(*parts: Any) -> dict[str, object]:
        every = [part for some in parts for part in some]
        points = sum(part["points"] for part in every)
        return {
            "pi": 4 * sum(part["inside"] for part in every) / points,
            "parts": dict(Counter(part["machine"] for part in every)),
        }

    report(
        small.expand(points=sizes(0.5, 50_000)),
        medium.expand(points=sizes(0.25, 100_000)),
        large.expand(points=sizes(0.25, 200_000)),
    )


lab_machines()
