"""More work than this machine can do: what finds no room goes to spot machines, also when AWS reclaims one of them.

The tasks name no site, so they fill the first one of the sites file and overflow to the next that takes such tasks: see
docs/how_to/ec2.md for the tables. A part whose machine is reclaimed is done again and uses up no try; it says in its
log when it learns of that, for that is when a longer one would store what it has. The report says what ran where.
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
    """When this job is asked to end because its machine goes, seconds since the epoch; None: that is not known."""
    notice = Path(os.environ.get("LADING_ENDS_AT", "/nowhere"))
    return float(notice.read_text()) if notice.exists() else None


@dag(
    schedule=None,
    params={
        "parts": Param(8, type="integer", minimum=1, description="how many tasks there are"),
        "seconds": Param(30, type="integer", minimum=1, description="how long each of them takes"),
    },
    max_active_tasks=1000,  # how many run at once is for resources to say
    tags=["lading", "example"],
    doc_md=__doc__,
)
def burst() -> None:
    @task(executor_config=resources(cpus=0.25, memory=256))
    def sizes() -> list[int]:
        """The seconds of each part."""
        params = get_current_context()["params"]
        return [params["seconds"]] * params["parts"]

    @task(executor_config=resources(cpus=1, memory=512, time="1h"))
    def throw(seconds: int) -> Part:
        """How many random points of a square lie in its quarter of a circle."""
        points = inside = 0
        end, is_told = time.monotonic() + seconds, False
        while time.monotonic() < end:
            inside += sum(random.random() ** 2 + random.random() ** 2 <= 1 for _ in range(1000))
            points += 1000
            if not is_told and (at := ends_at()) is not None:
                is_told = True
                print(f"AWS takes this machine away: there are {at - time.time():.0f} s left")
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
