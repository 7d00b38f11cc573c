"""Whose a Dag is, as Airflow's tables say: its team, owners and tags, for the columns of its jobs."""

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

# A Dag whose team, owners or tags change has jobs with the new ones after so many seconds at the latest.
SECONDS_KNOWN = 30.0
# More Dags than a scheduler queues tasks of at a time.
MOST_KNOWN = 10_000
TROUBLE = "The owners of mapped tasks of some Dags cannot be read, so only those of their other tasks count"


class DagFacts:
    """The teams, owners and tags of Dags, read once in a while: thousands of tasks of a Dag are queued in a row."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], tuple[float, dict[str, Any]]] = {}
        self._mapped = MappedOwners()

    def columns(self, session: Session, dag_id: str | None, bundle: str | None = None) -> dict[str, Any]:
        """The columns of a job that say whose its Dag is; ``{}`` for one of no Dag.

        :param bundle: from which its code comes, whose team is its team: a file in the bundle of another team may have
            taken the id of the Dag over since this was read last; None: that in which the Dag was parsed last
        """
        if not dag_id:
            return {}
        until, columns = self._known.get((dag_id, bundle), (0.0, {}))
        if time.monotonic() >= until:
            columns = self._read(session, dag_id, bundle)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[dag_id, bundle] = time.monotonic() + SECONDS_KNOWN, columns
        return columns

    def _read(self, session: Session, dag_id: str, bundle: str | None) -> dict[str, Any]:
        """What Airflow's tables say of a Dag now: owners with a comma and a blank between them, tags as JSON."""
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
    """The owners of the mapped tasks of Dags, which Airflow leaves out of those of the Dag. A version of a Dag is read
    once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, frozenset[str]]] = {}
        self._trouble = Trouble(log)

    def read(self, session: Session, dag_id: str) -> frozenset[str]:
        """Those of the last version of a Dag; none where it has not been stored, or not as it is understood."""
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
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            # Not what the query said: a session may still have what was stored before.
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
    """The owners of a Dag in alphabetical order: Airflow's own is another each time the Dag is parsed.

    :param said: those that Airflow shows, with commas between them
    :param mapped: of its mapped tasks, which are not among them
    :param default: whom Airflow shows where no other task has an owner
    """
    shown = {each.strip() for each in (said or "").split(",")}
    return sorted(((shown - {default} if mapped else shown) | mapped) - {""})
