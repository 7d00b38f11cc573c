"""Tasks on batch systems that write into folders of their own, and read files that their nodes cannot reach."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag, task

from lading.operators import resources, staged

DIARY = Path(os.environ.get("CLUSTER_DIARY", "/nonexistent"))


@dag(schedule=None)
def own_folders():
    for site in ("hpc", "packed", "sge"):
        asked = resources(site=site, cpus=1, memory="400 MiB")

        @task(task_id=f"works_{site}", executor_config=asked)
        def works() -> list[str]:
            folder = Path(os.environ["LADING_SCRATCH"])
            (folder / "data").write_bytes(b"x" * 2**20)
            return [str(folder), os.environ["TMPDIR"]]

        @task(task_id=f"breaks_{site}", executor_config=asked)
        def breaks() -> None:
            folder = Path(os.environ["LADING_SCRATCH"])
            (folder / "data").write_text("what was there")
            (DIARY / f"breaks_{folder.name}").write_text(str(folder))
            raise ValueError("it breaks")

        works()
        breaks()


@dag(schedule=None)
def reads_elsewhere():
    @task(executor_config=resources(site="lab", cpus=1, memory="400 MiB"))
    def write() -> dict[str, str]:
        folder = Path.home() / "private"
        folder.mkdir(mode=0o700)
        (folder / "file").write_bytes(b"what only this machine has\n" * 2**19)
        return {"class": "File", "path": str(folder / "file")}

    @task(executor_config=resources(site="hpc", cpus=1, memory="400 MiB", stage="file"))
    def read(file: dict[str, str], number: int) -> list[object]:
        assert not os.access(file["path"], os.R_OK)
        path = Path(staged(file))
        return [str(path), path.read_bytes() == b"what only this machine has\n" * 2**19]

    read.partial(file=write()).expand(number=[1, 2])


@dag(schedule=None)
def elsewhere():
    @task(executor_config=resources(targets=["barred", "hpc"], cpus=1, memory="400 MiB"))
    def anywhere() -> None:
        print("in job", os.environ["SLURM_JOB_ID"])

    anywhere()


elsewhere()
own_folders()
reads_elsewhere()
