"""The tenant of a Dag, from Airflow's tables: its team, owners and tags, as columns of its jobs."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.models.dag import DagModel, DagTag
from airflow.models.dag_version import DagVersion
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy import select

from lading.executors.orchestrator.executor_names import has_teams
from lading.executors.store.tables import as_name
from lading.hooks.files.logs import Trouble

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

TROUBLE = "The owners of mapped tasks of some Dags cannot be read, so only those of their other tasks count"


class DagFacts:
    """The teams, owners and tags of Dags, cached for a while because thousands of a Dag's tasks are queued in a row."""

    seconds_known = 30.0
    """How long a change of team, owners or tags can take to reach new jobs of the Dag."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], tuple[float, dict[str, Any]]] = {}
        self._mapped = MappedOwners()

    def columns(self, session: Session, dag_id: str | None, bundle: str | None = None) -> dict[str, Any]:
        """Return the columns that identify the tenant of a job's Dag; ``{}`` without a Dag.

        :param bundle: the bundle of its code, whose team is the Dag's; None: the bundle in which the Dag was last
            parsed. Naming it matters because a file in the bundle of another team may have taken over the id of the Dag
            since then
        """
        if not dag_id:
            return {}
        until, columns = self._known.get((dag_id, bundle), (0.0, {}))
        if time.monotonic() >= until:
            columns = self._read(session, dag_id, bundle)
            # More Dags than a scheduler queues tasks of at a time.
            if len(self._known) >= 10_000:
                self._known.clear()
            self._known[dag_id, bundle] = time.monotonic() + self.seconds_known, columns
        return columns

    def _read(self, session: Session, dag_id: str, bundle: str | None) -> dict[str, Any]:
        """Read the columns from Airflow's tables: owners separated by ", ", tags as JSON."""
        row = session.execute(select(DagModel.owners, DagModel.bundle_name).where(DagModel.dag_id == dag_id)).first()
        said, parsed_in = (None, None) if row is None else row
        tags = sorted(session.scalars(select(DagTag.name).where(DagTag.dag_id == dag_id)))
        # Not `DagModel.get_team_name`, whose answer may be half a minute old.
        source = bundle or parsed_in
        teams = DagBundleModel.get_team_names([source], session=session) if source and has_teams() else {}
        owners = all_owners(said, self._mapped.read(session, dag_id), conf.get("operators", "default_owner"))
        return {
            "team": teams.get(source or ""),
            "dag_owner": as_name(", ".join(owners)) or None,
            "dag_tags": json.dumps(tags) if tags else None,
        }


class MappedOwners:
    """The owners of mapped tasks, which Airflow leaves out of their Dag's owners. Each version is read once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, frozenset[str]]] = {}
        self._trouble = Trouble(log)

    def read(self, session: Session, dag_id: str) -> frozenset[str]:
        """Return those of the latest version of a Dag; none if it is not stored, or in an unknown format."""
        last = session.execute(
            select(SerializedDagModel.id, SerializedDagModel.dag_hash)
            .join(DagVersion, SerializedDagModel.dag_version_id == DagVersion.id)
            .where(SerializedDagModel.dag_id == dag_id)
            .order_by(DagVersion.version_number.desc())
            .limit(1)
        ).one_or_none()
        if last is None:
            return frozenset()
        digest, found = self._known.get(dag_id, ("", frozenset()))
        if digest != last.dag_hash and (stored := session.get(SerializedDagModel, last.id)) is not None:
            found = self._owners(stored)
            if len(self._known) >= 10_000:
                self._known.clear()
            # Not the hash from the query: the session may still hold an older version of the row.
            self._known[dag_id] = stored.dag_hash, found
        return found

    def _owners(self, stored: SerializedDagModel) -> frozenset[str]:
        try:
            tasks = stored.data["dag"]["tasks"] if stored.data else ()
            owners = (task["__var"].get("partial_kwargs", {}).get("owner") for task in tasks)
            return frozenset(each for each in owners if isinstance(each, str))
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # stored by another version of Airflow
            self._trouble.begin(TROUBLE, error)
            return frozenset()


def all_owners(said: str | None, mapped: frozenset[str], default: str) -> list[str]:
    """Return the owners of a Dag, sorted, because Airflow's own order changes whenever the Dag is parsed.

    :param said: the owners shown by Airflow, separated by commas
    :param mapped: the owners of its mapped tasks, which are not among them
    :param default: the owner that Airflow shows if no other task has one
    """
    shown = {each.strip() for each in (said or "").split(",")}
    return sorted(((shown - {default} if mapped else shown) | mapped) - {""})
