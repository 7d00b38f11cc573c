"""The team of a Dag, where Airflow's database cannot be asked.

The scheduler reads it there for each job (``airflow_facts``), and the API server for each task that starts or defers.
Of these answers only that of :func:`team_of_triggerer` is relied on; where an author's code runs, it can change them:

* a triggerer has a team, and Airflow gives it the triggers of no other;
* the process of a task is told its team by the controller, in a variable, or else by the API server;
* when a Dag is parsed nothing is known but the bundle that its file seems to be in. Each process may have the bundles
  of ``[dag_processor] dag_bundle_config_list`` elsewhere, but each in a folder that follows from the configuration.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

# In which variable a job is told its team by the controller.
VARIABLE = "LADING_TEAM"
LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


class UnknownTeam(RuntimeError):
    """It cannot be said of which team something is."""


def team_of_triggerer() -> str | None:
    """The team of every trigger that runs in this triggerer; None: they have none, or Airflow has no teams.

    The API server reads the team of a task in the database when it defers, and stores it with the trigger; a triggerer
    runs those of the team of its ``--team-name``, or without it those of none (``Trigger.ids_for_triggerer``).

    :raises UnknownTeam: this process is no triggerer
    """
    if not _has_teams():
        return None
    from airflow.cli.cli_parser import get_parser

    try:
        arguments = vars(get_parser().parse_args(sys.argv[1:]))
    except SystemExit:
        arguments = {}
    if arguments.get("subcommand") != "triggerer":
        raise UnknownTeam("with [core] multi_team a trigger of Lading's runs only in `airflow triggerer`")
    return arguments["team_name"] or None


def team_of_process() -> str | None:
    """The team of the Dag whose task or callback runs in this process, as its author's code may have left it; None: it
    has none, no task runs here, or Airflow has no teams."""
    if of_job := os.environ.get(VARIABLE):
        return of_job
    from airflow.sdk import get_current_context

    try:
        run: Any = get_current_context()["dag_run"]
    except (RuntimeError, KeyError):  # no task runs here
        return None
    team: str | None = getattr(run, "team_name", None)
    return team


def team_of_task(task: BaseOperator | MappedOperator) -> str | None:
    """The team of the Dag of a task that is parsed; None: it has none, or Airflow has no teams."""
    dag: Any = task.get_dag()
    return None if dag is None else team_of_file(dag.fileloc)


def team_of_file(fileloc: str | None) -> str | None:
    """The team of the Dags of a file; None: they have none, or Airflow has no teams."""
    from airflow.sdk.configuration import conf

    if not fileloc or not _has_teams():
        return None
    configured = conf.get("dag_processor", "dag_bundle_config_list", fallback="[]") or "[]"
    folders = _teams(configured, conf.get("core", "dags_folder", fallback=""))
    path = Path(fileloc)
    within = [(folder, team) for folder, team in folders if path.is_relative_to(folder)]
    return max(within, key=lambda each: len(each[0].parts), default=(path, None))[1]


def _has_teams() -> bool:
    """Whether Airflow runs with ``[core] multi_team``."""
    from airflow.sdk.configuration import conf

    return str(conf.get("core", "multi_team", fallback="False")).strip().lower() in ("true", "t", "1")


@lru_cache(maxsize=4)
def _teams(configured: str, dags_folder: str) -> tuple[tuple[Path, str | None], ...]:
    """The folder of each bundle, and its team."""
    try:
        bundles = json.loads(configured)
    except ValueError:  # which Airflow itself refuses
        return ()
    known = [each for each in bundles if isinstance(each, Mapping) and isinstance(each.get("name"), str)]
    return tuple((folder_of(each, dags_folder), each.get("team_name")) for each in known)


def folder_of(bundle: Mapping[str, Any], dags_folder: str) -> Path:
    """Below which folder of this machine the files of a bundle lie, whatever its version."""
    from airflow.dag_processing.bundles.base import get_bundle_base_folder

    kwargs = bundle.get("kwargs")
    path = kwargs.get("path") if isinstance(kwargs, Mapping) else None
    if bundle.get("classpath") == LOCAL_BUNDLE:
        return Path(path or dags_folder)
    return get_bundle_base_folder(str(bundle["name"]))
