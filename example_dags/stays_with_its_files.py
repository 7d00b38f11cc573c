"""Run a chain of tasks for each sample on the machine that has the sample's files.

The machines belong to a site called `lab`, and have local disks. The site has `policy = "data_locality"` and
`locality_wait = "10m"`: a task waits up to ten minutes for room on the machine that has its file. Each task returns the
path of the file that it has written. From these paths, Lading knows where the files are. See
docs/explanation/placement.md.
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
    params={"samples": Param(6, type="integer", minimum=1, description="the number of chains")},
    default_args={"executor_config": LAB},
    max_active_tasks=1000,  # a high limit, so that only resources limit how many tasks run at once
    tags=["lading", "example"],
    doc_md=__doc__,
)
def stays_with_its_files() -> None:
    @task
    def samples() -> list[int]:
        return list(range(get_current_context()["params"]["samples"]))

    @task
    def measure(sample: int) -> Sample:
        """Write a file and return its path."""
        folder = Path.home() / "lading-samples"
        folder.mkdir(exist_ok=True)
        file = folder / f"{get_current_context()['run_id']}.{sample}"
        file.write_text("\n".join(str(random.random()) for _ in range(10_000)))
        return Sample(file=str(file), machines=[machine()])

    @task
    def smooth(sample: Sample) -> Sample:
        """Read the first file and write a second one. This only works on the machine with the first file."""
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
