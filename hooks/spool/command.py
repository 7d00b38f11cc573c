"""The work of a job that is a command, as its row and its envelope have it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# What such a workload is called, and what the trial of a site is.
COMMAND, PROBE = "Command", "Probe"
# What runs it in the node agent, a module.
COMMAND_RUNNER = "lading.executors.agent.tasks.command_runner"
# The folder of logs of a job on a machine from which the controller fetches them. Airflow reads the same variable.
LOG_FOLDER_VARIABLE = "AIRFLOW__LOGGING__BASE_LOG_FOLDER"


@dataclass(frozen=True, slots=True)
class CommandWork:
    """A command.

    :param arguments: the program and its arguments; a shell is named where one is wanted
    :param folder: in which it runs; empty: the job's own scratch folder, which goes when it has ended
    :param environment: variables beside those of the node agent
    :param log_folder: below which it has its log on a machine that shares the controller's files
    :param log_path: of the file in which it prints, relative to that folder; empty: it has none
    :param rule: of which it is a job, for people
    :param wildcards: which job of that it is, for people, such as ``sample=A``
    :param runner: the module that runs it where it is installed, and preloads its program once for all such jobs of a
        process; empty: the program is started anew, as any other is
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
        """The same as the workload of a job."""
        return {"type": COMMAND, **asdict(self)}

    @classmethod
    def from_workload(cls, workload: Mapping[str, Any]) -> CommandWork:
        """The command of a workload, with the variables that it was given when it was dispatched.

        :raises ValueError: it is none
        """
        if workload.get("type") != COMMAND:
            raise ValueError(f"its work is of type {workload.get('type')!r}; this machine runs {COMMAND!r}")
        arguments, environment = workload.get("arguments"), workload.get("environment", {})
        if not isinstance(arguments, list) or not arguments or not all(isinstance(each, str) for each in arguments):
            raise ValueError("the arguments of its command are not a list of text")
        if not isinstance(environment, dict) or not all(isinstance(each, str) for each in environment.values()):
            raise ValueError("the environment of its command is not a table of text")
        texts = {name: workload.get(name, "") for name in ("folder", "log_folder", "log_path", "runner")}
        if wrong := sorted(name for name, value in texts.items() if not isinstance(value, str)):
            raise ValueError(f"{', '.join(wrong)} of its command is not text")
        environment = {**environment, **_given_at_dispatch(workload.get("token"))}
        if texts["log_path"] and not texts["log_folder"]:
            raise ValueError("its command has a log_path without a log_folder")
        return cls(arguments, environment=environment, **texts)


def runner_of(workload: Mapping[str, Any]) -> str:
    """The runner that a command names; empty: none, or it is no command."""
    runner = workload.get("runner") if workload.get("type") == COMMAND else ""
    return runner if isinstance(runner, str) else ""


def _given_at_dispatch(token: object) -> dict[str, str]:
    """The variables that are in no table, for they may be secrets: as JSON in what Airflow's workloads have a JWT in.

    :raises ValueError: they make no sense; the text does not quote them
    """
    if not token:
        return {}
    try:
        found = json.loads(token) if isinstance(token, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError("the variables that its command was given are not a table of text")
    return found
