"""The teams of Dags, as Airflow has them: a Dag is of the team of its bundle."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow.models.dag import DagModel

from lading.executors.executor_names import has_teams

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# For so long the team of a Dag is not asked for again; a bundle that is given to another team has it after that.
SECONDS_UNTIL_ASKED_AGAIN = 5.0


class DagTeams:
    """Remembers the teams of Dags for a while: thousands of their tasks may be queued in one loop of the scheduler."""

    def __init__(self) -> None:
        self.known: dict[str, str | None] = {}
        self.until = 0.0

    def of(self, session: Session, dag_id: str | None) -> str | None:
        """The team of a Dag; None: it has none."""
        if not dag_id:
            return None
        return self.of_each(session, [dag_id])[dag_id]

    def of_each(self, session: Session, dag_ids: Iterable[str]) -> dict[str, str | None]:
        """The team of each of these Dags; None: it has none, as every Dag where Airflow has no teams."""
        asked = {*dag_ids}
        if not has_teams():
            return dict.fromkeys(asked)
        if time.monotonic() > self.until:
            self.known, self.until = {}, time.monotonic() + SECONDS_UNTIL_ASKED_AGAIN
        if new := sorted(asked - self.known.keys()):
            found = DagModel.get_dag_id_to_team_name_mapping(new, session=session)
            self.known |= {dag_id: found.get(dag_id) for dag_id in new}
        return {dag_id: self.known[dag_id] for dag_id in asked}
