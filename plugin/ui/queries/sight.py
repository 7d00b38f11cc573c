"""Sight: of which Dags a user may see names, costs and counts."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import ColumnElement, not_, or_, true

from lading.executors.store import JobRow
from lading.executors.store.jobs import CHUNK


@dataclass(frozen=True, slots=True)
class Sight:
    """What a user may see. Of other Dags' jobs it is shown that they are there, and how large they are.

    :param dags: those that he may read; None: all but ``hidden``, also those that Airflow does not know (any more)
    """

    dags: frozenset[str] | None = None
    hidden: frozenset[str] = frozenset()

    def sees(self, dag_id: str | None) -> bool:
        """Whether a Dag is one of these; what belongs to no Dag all users may see."""
        return not dag_id or (dag_id not in self.hidden if self.dags is None else dag_id in self.dags)

    def sees_any(self, pattern: str | None) -> bool:
        """Whether a pattern of Dag ids may be shown: it is the id of no other Dag, and fits one of these.

        :param pattern: None: of all Dags
        """
        if pattern is None or pattern in self.hidden:
            return pattern is None
        return self.dags is None or any(fnmatchcase(dag_id, pattern) for dag_id in self.dags)

    def condition(self, dag: Any = JobRow.dag_id) -> ColumnElement[bool]:
        """The condition for jobs of these Dags, or for other rows.

        :param dag: the column of their Dag
        """
        if self.dags is None and not self.hidden:
            return true()
        named = sorted(self.hidden if self.dags is None else self.dags)
        # Databases limit how many values one list may have.
        lists: list[Any] = [dag.in_(named[start : start + CHUNK]) for start in range(0, len(named), CHUNK)]
        if self.dags is None:
            return or_(dag.is_(None), dag == "", not_(or_(*lists)))
        return or_(dag.is_(None), dag == "", *lists)


EVERYTHING = Sight()
