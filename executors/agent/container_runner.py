"""Where the workload of a job runs: on the machine itself, or in a container."""

from __future__ import annotations

from typing import Any

from lading.executors.agent.supervisor import AgentJob


class ContainerRunner:
    """Runs each job on this machine or in a container, as its envelope says.

    :param runner: the module that runs workloads
    """

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    def preload(self, runner: str = "") -> None:
        self.runner.preload(runner)

    def run(self, workload: dict[str, Any], job: AgentJob) -> None:
        """Run a workload to its end.

        :raises AgentJobFailed: the job failed, or its container could not be started
        """
        if job.envelope is None or job.envelope.container is None:
            self.runner.run(workload, job)
        else:
            from lading.executors.agent import container  # imported late: few jobs have one

            container.run(workload, job, job.envelope, self.runner.__name__)
