"""Run more tasks than this machine has room for: the other tasks run on spot instances, which AWS can reclaim.

The tasks name no site. So they fill the first site of the sites file, and then overflow to the next site that takes
tasks without a site. See docs/how_to/ec2.md for the tables of the sites.

If AWS reclaims a machine, its tasks are repeated without using up a retry. A task logs when it learns that its machine
will be reclaimed. At this point, a longer task would save its state. The report says how many tasks each machine ran.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypedDict

from airflow.sdk import Param, dag, get_current_context, task

from lading.operators import resources


class Part(TypedDict):
    machine: str
    points: int
    inside: int


def ends_at() -> float | None:
    """Return when this job will be stopped because its machine is reclaimed, in epoch seconds; None: unknown."""
    notice = Path(os.environ.get("LADING_ENDS_AT", "/nowhere"))
    return float(notice.read_text()) if notice.exists() else None


@dag(
    schedule=None,
    params={
        "parts": Param(8, type="integer", minimum=1, description="the number of tasks"),
        "seconds": Param(30, type="integer", minimum=1, description="how long each task takes"),
    },
    max_active_tasks=1000,  # a high limit, so that only resources limit how many tasks run at once
    tags=["lading", "example"],
    doc_md=__doc__,
)
def burst() -> None:
    @task(executor_config=resources(cpus=0.25, memory=256))
    def sizes() -> list[int]:
        """Return the duration of each part, in seconds."""
        params = get_current_context()["params"]
        return [params["seconds"]] * params["parts"]

    @task(executor_config=resources(cpus=1, memory=512, time="1h"))
    def throw(seconds: int) -> Part:
        """Count how many random points of a square lie in its quarter circle."""
        points = inside = 0
        end, is_told = time.monotonic() + seconds, False
        while time.monotonic() < end:
            inside += sum(random.random() ** 2 + random.random() ** 2 <= 1 for _ in range(1000))
            points += 1000
            if not is_told and (at := ends_at()) is not None:
                is_told = True
                print(f"AWS is reclaiming this machine: {at - time.time():.0f} s left")
            time.sleep(0.1)
        return Part(machine=socket.gethostname(), points=points, inside=inside)

    @task(executor_config=resources(cpus=0.25, memory=256))
    def report(parts: Any) -> dict[str, object]:
        every = list(parts)
        return {
            "pi": 4 * sum(part["inside"] for part in every) / sum(part["points"] for part in every),
            "parts": dict(Counter(part["machine"] for part in every)),
        }

    report(throw.expand(seconds=sizes()))


burst()
