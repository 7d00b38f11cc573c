"""The team of a Dag, where Airflow's database cannot be asked: by the bundle that its file is in.

A job has it from the controller, in a variable: a machine that is sent its Dags has other bundles than Airflow.

Each process may have the Dag bundles of ``[dag_processor] dag_bundle_config_list`` elsewhere, but each in a folder that
follows from the configuration alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

VARIABLE = "LADING_TEAM"
LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


def team_of_task(task: BaseOperator | MappedOperator) -> str | None:
    """The team of the Dag of a task; None: it has none, or Airflow has no teams."""
    dag: Any = task.get_dag()
    return None if dag is None else team_of_file(dag.fileloc)


def current_team() -> str | None:
    """The team of the Dag whose task runs in this process; None: it has none, no task runs here, or Airflow has no
    teams."""
    from airflow.sdk import get_current_context

    try:
        dag: Any = get_current_context()["dag"]
    except (RuntimeError, KeyError):  # no task runs here
        return None
    return team_of_file(dag.fileloc)


def team_of_file(fileloc: str | None) -> str | None:
    """The team of the Dags of a file; None: they have none, or Airflow has no teams."""
    from airflow.sdk.configuration import conf

    if of_job := os.environ.get(VARIABLE):
        return of_job
    if not fileloc or str(conf.get("core", "multi_team", fallback="False")).strip().lower() not in ("true", "t", "1"):
        return None
    configured = conf.get("dag_processor", "dag_bundle_config_list", fallback="[]") or "[]"
    folders = _teams(configured, conf.get("core", "dags_folder", fallback=""))
    path = Path(fileloc)
    within = [(folder, team) for folder, team in folders if path.is_relative_to(folder)]
    return max(within, key=lambda each: len(each[0].parts), default=(path, None))[1]


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
