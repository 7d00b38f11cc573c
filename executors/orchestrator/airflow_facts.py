"""Whose a Dag is, as Airflow's tables say: its team, owners and tags, for the columns of its jobs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel, DagTag
from sqlalchemy import select

from lading.executors.orchestrator.executor_names import has_teams
from lading.executors.store.tables import as_name

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A Dag whose team, owners or tags change has jobs with the new ones after so many seconds at the latest.
SECONDS_KNOWN = 30.0
# More Dags than a scheduler queues tasks of at a time.
MOST_KNOWN = 10_000


class DagFacts:
    """The teams, owners and tags of Dags, read once in a while: thousands of tasks of a Dag are queued in a row."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    def columns(self, session: Session, dag_id: str | None) -> dict[str, Any]:
        """The columns of a job that say whose its Dag is; ``{}`` for one of no Dag."""
        if not dag_id:
            return {}
        until, columns = self._known.get(dag_id, (0.0, {}))
        if time.monotonic() >= until:
            columns = read(session, dag_id)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[dag_id] = time.monotonic() + SECONDS_KNOWN, columns
        return columns


def read(session: Session, dag_id: str) -> dict[str, Any]:
    """What Airflow's tables say of a Dag now, as the columns of a job.

    The owners have a comma and a blank between them, as Airflow joins those of all tasks of a Dag; the tags are JSON.
    """
    owners = session.scalar(select(DagModel.owners).where(DagModel.dag_id == dag_id))
    tags = sorted(session.scalars(select(DagTag.name).where(DagTag.dag_id == dag_id)))
    # Not `get_team_name`, whose answer may be half a minute old.
    teams = DagModel.get_dag_id_to_team_name_mapping([dag_id], session=session) if has_teams() else {}
    return {
        "team": teams.get(dag_id),
        "dag_owner": as_name(owners) or None,
        "dag_tags": json.dumps(tags) if tags else None,
    }
