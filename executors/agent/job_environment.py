"""What each job of a machine other than the controller's has of its own."""

from __future__ import annotations

import math
import os
from typing import Any

from lading.executors.agent.ending import VARIABLE
from lading.executors.agent.supervisor import AgentJob, Runner
from lading.scheduling.resources import CPUS_VARIABLE


class JobEnvironment:
    """A runner whose jobs have what each job of a batch system has of its own: its folder of logs, its threads.

    Each also has the name of the file that says when its machine goes.

    :param logs: the folder in which each job has one, from which the controller fetches the log
    """

    def __init__(self, runner: Runner, logs: str) -> None:
        self.runner = runner
        self.logs = logs

    def preload(self) -> None:
        self.runner.preload()

    def run(self, workload: dict[str, Any], job: AgentJob) -> None:
        os.environ["AIRFLOW__LOGGING__BASE_LOG_FOLDER"] = f"{self.logs}/{job.token}"
        os.environ["OMP_NUM_THREADS"] = str(max(1, math.ceil(float(os.environ[CPUS_VARIABLE]))))
        os.environ[VARIABLE] = str(job.spool.ends_at)
        self.runner.run(workload, job)
