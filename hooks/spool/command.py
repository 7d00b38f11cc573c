"""The work of a job that is a command, as stored in the job's row and its envelope."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lading.scheduling.model.light_dataclasses import as_dict, dataclass, field

# The types of such a workload and of a site's trial.
COMMAND, PROBE = "Command", "Probe"
# The module that runs it in the node agent.
COMMAND_RUNNER = "lading.executors.agent.tasks.command_runner"
# The job's folder of logs on a machine whose logs the controller fetches. Airflow reads the same variable.
LOG_FOLDER_VARIABLE = "AIRFLOW__LOGGING__BASE_LOG_FOLDER"


@dataclass(frozen=True, slots=True)
class CommandWork:
    """A command.

    :param arguments: the program and its arguments; for a shell command, the shell and its arguments
    :param folder: its working directory; empty: the job's own scratch folder, which is removed when the job has
        finished
    :param environment: variables in addition to those of the node agent
    :param log_folder: folder of its log on a machine that shares the controller's files
    :param log_path: file for its output, relative to that folder; empty: none
    :param rule: the rule that it is a job of, for display
    :param wildcards: distinguishes the jobs of the rule, such as ``sample=A``, for display
    :param runner: module that runs it if it is installed; it preloads the program once for all such jobs of a process.
        Empty: the program is started separately for each job
    """

    arguments: Sequence[str]
    folder: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    log_folder: str = ""
    log_path: str = ""
    rule: str = ""
    wildcards: str = ""
    runner: str = ""

    def to_workload(self) -> dict[str, Any]:
        return {"type": COMMAND, **as_dict(self)}

    @classmethod
    def from_workload(cls, workload: Mapping[str, Any]) -> CommandWork:
        """Read the command of a workload, including the variables given at dispatch.

        :raises ValueError: the workload is not a valid command
        """
        if workload.get("type") != COMMAND:
            raise ValueError(
                f"its workload has the type {workload.get('type')!r}, but this machine only runs {COMMAND!r}"
            )
        arguments, environment = workload.get("arguments"), workload.get("environment", {})
        if not isinstance(arguments, list) or not arguments or not all(isinstance(each, str) for each in arguments):
            raise ValueError("the arguments of its command must be a list of texts")
        if not isinstance(environment, dict) or not all(isinstance(each, str) for each in environment.values()):
            raise ValueError("the environment of its command must be a table of texts")
        texts = {name: workload.get(name, "") for name in ("folder", "log_folder", "log_path", "runner")}
        if wrong := sorted(name for name, value in texts.items() if not isinstance(value, str)):
            raise ValueError(f"{', '.join(wrong)} of its command must be text")
        environment = {**environment, **_given_at_dispatch(workload.get("token"))}
        if texts["log_path"] and not texts["log_folder"]:
            raise ValueError("its command has a log_path without a log_folder")
        return cls(arguments, environment=environment, **texts)


def runner_of(workload: Mapping[str, Any]) -> str:
    """Return the runner that a command names; empty: none, or the workload is not a command."""
    runner = workload.get("runner") if workload.get("type") == COMMAND else ""
    return runner if isinstance(runner, str) else ""


def _given_at_dispatch(token: object) -> dict[str, str]:
    """Read the variables that no table stores, since they may be secrets.

    They come as JSON in the field that holds the JWT of Airflow's workloads.

    :raises ValueError: they are not valid; the text does not quote them
    """
    if not token:
        return {}
    try:
        found = json.loads(token) if isinstance(token, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError("the variables given to its command at dispatch must be a table of texts")
    return found
