"""The team of a Dag in processes that cannot query Airflow's database.

Where they can, the scheduler reads it for each job (``airflow_facts``), and the API server for each task that starts or
defers. Of the answers of this module only :func:`team_of_triggerer` can be trusted; where an author's code runs, that
code can change the answer:

* a triggerer has a team, and Airflow gives it only triggers of that team;
* a task's process gets its team from the controller in a variable, or else from the API server;
* when a Dag is parsed, only its file is known, and the team follows from the bundle whose folder contains it. Each
  process can have the bundles of ``[dag_processor] dag_bundle_config_list`` in other folders, but these follow from
  its configuration.
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

# The environment variable in which the controller tells a job its team.
VARIABLE = "LADING_TEAM"
LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


class UnknownTeam(RuntimeError):
    """The team cannot be determined."""


def team_of_triggerer() -> str | None:
    """Return the team of all triggers in this triggerer; None: they have none, or Airflow has no teams.

    When a task defers, the API server reads its team from the database and stores it with the trigger. A triggerer runs
    the triggers of its ``--team-name``, or without it those of no team (``Trigger.ids_for_triggerer``).

    :raises UnknownTeam: this process is not a triggerer
    """
    if not _has_teams():
        return None
    from airflow.cli.cli_parser import get_parser

    try:
        arguments = vars(get_parser().parse_args(sys.argv[1:]))
    except SystemExit:
        arguments = {}
    if arguments.get("subcommand") != "triggerer":
        raise UnknownTeam("with [core] multi_team Lading's triggers run only in `airflow triggerer`")
    return arguments["team_name"] or None


def team_of_process() -> str | None:
    """Return the team of the Dag whose task or callback runs in this process, which the author's code can fake. None:
    the Dag has no team, no task runs here, or Airflow has no teams."""
    if of_job := os.environ.get(VARIABLE):
        return of_job
    from airflow.sdk import get_current_context

    try:
        run: Any = get_current_context()["dag_run"]
    except (RuntimeError, KeyError):  # no task runs in this process
        return None
    team: str | None = getattr(run, "team_name", None)
    return team


def team_of_task(task: BaseOperator | MappedOperator) -> str | None:
    """Return the team of the Dag of a task that is being parsed; None: it has none, or Airflow has no teams."""
    dag: Any = task.get_dag()
    return None if dag is None else team_of_file(dag.fileloc)


def team_of_file(fileloc: str | None) -> str | None:
    """Return the team of the Dags in a file; None: they have none, or Airflow has no teams."""
    from airflow.sdk.configuration import conf

    if not fileloc or not _has_teams():
        return None
    configured = conf.get("dag_processor", "dag_bundle_config_list", fallback="[]") or "[]"
    folders = _teams(configured, conf.get("core", "dags_folder", fallback=""))
    path = Path(fileloc)
    within = [(folder, team) for folder, team in folders if path.is_relative_to(folder)]
    return max(within, key=lambda each: len(each[0].parts), default=(path, None))[1]


def _has_teams() -> bool:
    from airflow.sdk.configuration import conf

    return str(conf.get("core", "multi_team", fallback="False")).strip().lower() in ("true", "t", "1")


@lru_cache(maxsize=4)
def _teams(configured: str, dags_folder: str) -> tuple[tuple[Path, str | None], ...]:
    try:
        bundles = json.loads(configured)
    except ValueError:  # Airflow itself reports it
        return ()
    known = [each for each in bundles if isinstance(each, Mapping) and isinstance(each.get("name"), str)]
    return tuple((folder_of(each, dags_folder), each.get("team_name")) for each in known)


def folder_of(bundle: Mapping[str, Any], dags_folder: str) -> Path:
    """Return the local folder that contains the files of a bundle, of whatever version."""
    from airflow.dag_processing.bundles.base import get_bundle_base_folder

    kwargs = bundle.get("kwargs")
    path = kwargs.get("path") if isinstance(kwargs, Mapping) else None
    if bundle.get("classpath") == LOCAL_BUNDLE:
        return Path(path or dags_folder)
    return get_bundle_base_folder(str(bundle["name"]))
