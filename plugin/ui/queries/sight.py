"""Sight: the Dags whose names, costs and counts a user can see."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import ColumnElement, not_, or_, true

from lading.executors.store import JobRow
from lading.executors.store.jobs import CHUNK


@dataclass(frozen=True, slots=True)
class Sight:
    """The Dags a user can see. Jobs of other Dags are shown without names, with their size only.

    :param dags: the visible Dags; None: all but ``hidden``, including Dags unknown to Airflow, such as deleted ones
    """

    dags: frozenset[str] | None = None
    hidden: frozenset[str] = frozenset()

    def sees(self, dag_id: str | None) -> bool:
        """Whether the user can see a Dag. Everyone can see what belongs to no Dag."""
        return not dag_id or (dag_id not in self.hidden if self.dags is None else dag_id in self.dags)

    def sees_any(self, pattern: str | None) -> bool:
        """Whether a pattern of Dag ids can be shown: it is not the id of a hidden Dag, and matches a visible one.

        :param pattern: None: all Dags
        """
        if pattern is None or pattern in self.hidden:
            return pattern is None
        return self.dags is None or any(fnmatchcase(dag_id, pattern) for dag_id in self.dags)

    def condition(self, dag: Any = JobRow.dag_id) -> ColumnElement[bool]:
        """Return the condition for rows of visible Dags and of no Dag.

        :param dag: the column that contains the Dag
        """
        if self.dags is None and not self.hidden:
            return true()
        named = sorted(self.hidden if self.dags is None else self.dags)
        # Databases limit the number of values in one list.
        lists: list[Any] = [dag.in_(named[start : start + CHUNK]) for start in range(0, len(named), CHUNK)]
        if self.dags is None:
            return or_(dag.is_(None), dag == "", not_(or_(*lists)))
        return or_(dag.is_(None), dag == "", *lists)


EVERYTHING = Sight()
