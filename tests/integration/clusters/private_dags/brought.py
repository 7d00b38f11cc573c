"""A Dag that the nodes of a cluster cannot read where it is written."""

from __future__ import annotations

import os
import subprocess

from airflow.sdk import dag, task
from brought_lib.message import WORDS

from lading.operators import resources


@dag(schedule=None)
def brought():
    @task(executor_config=resources(cpus=2, site="synced"))
    def tell() -> dict[str, object]:
        # As in a shell of the login node: the job of this task has one process with two cpus, and exports nothing.
        command = ["srun", "--overlap", "--ntasks=2", "printenv", "TOLD"]
        step = subprocess.run(command, env={**os.environ, "TOLD": WORDS}, capture_output=True, text=True)
        names = sorted(name for name in os.environ if name.startswith(("SLURM", "SBATCH_", "LADING_")))
        return {"file": __file__, "step": step.stdout + step.stderr, "names": names}

    tell()


brought()
