"""A chain of tasks for each of several samples that stays on the machine where the files of the sample are.

The machines are those of a site called `lab`, whose disks are their own, with `policy = "data_locality"` and
`locality_wait = "10m"`: a task waits for so long for the machine that has its file. What a task returns names the file
that it has written, which is all that Lading needs to know. See docs/explanation/placement.md.
"""

from __future__ import annotations

import getpass
import itertools
import random
import socket
from pathlib import Path
from typing import TypedDict

from airflow.sdk import Param, dag, get_current_context, task

from lading.operators import resources

LAB = resources(site="lab", cpus=0.25, memory=256)


class Sample(TypedDict):
    file: str
    machines: list[str]


def machine() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


@dag(
    schedule=None,
    params={"samples": Param(6, type="integer", minimum=1, description="how many chains there are")},
    default_args={"executor_config": LAB},
    max_active_tasks=1000,  # how many run at once is for resources to say
    tags=["lading", "example"],
    doc_md=__doc__,
)
def stays_with_its_files() -> None:
    @task
    def samples() -> list[int]:
        return list(range(get_current_context()["params"]["samples"]))

    @task
    def measure(sample: int) -> Sample:
        """Write a file, and say where it is."""
        folder = Path.home() / "lading-samples"
        folder.mkdir(exist_ok=True)
        file = folder / f"{get_current_context()['run_id']}.{sample}"
        file.write_text("\n".join(str(random.random()) for _ in range(10_000)))
        return Sample(file=str(file), machines=[machine()])

    @task
    def smooth(sample: Sample) -> Sample:
        """Write another one from it, on the same machine: there is no other way to it."""
        numbers = [float(line) for line in Path(sample["file"]).read_text().splitlines()]
        file = Path(f"{sample['file']}.smooth")
        pairs = itertools.pairwise(numbers)
        file.write_text("\n".join(str((one + other) / 2) for one, other in pairs))
        Path(sample["file"]).unlink()
        return Sample(file=str(file), machines=[*sample["machines"], machine()])

    @task
    def mean(sample: Sample) -> dict[str, object]:
        file = Path(sample["file"])
        numbers = [float(line) for line in file.read_text().splitlines()]
        file.unlink()
        return {"mean": sum(numbers) / len(numbers), "machines": [*sample["machines"], machine()]}

    mean.expand(sample=smooth.expand(sample=measure.expand(sample=samples())))


stays_with_its_files()
