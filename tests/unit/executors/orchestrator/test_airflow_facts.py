"""Whose a Dag is, as Airflow's tables say."""

from __future__ import annotations

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from sqlalchemy import event, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.orchestrator.airflow_facts import DagFacts, all_owners


def parse(engine: Engine, owner: str | None, mapped: str | None, *, alone: bool) -> None:
    """Store a Dag as Airflow does when it parses a file.

    :param owner: in ``default_args``
    :param mapped: of the mapped task
    :param alone: whether all its tasks are mapped
    """
    with DAG("d", schedule=None, default_args={} if owner is None else {"owner": owner}) as dag:
        if not alone:
            BashOperator(task_id="a", bash_command=":")
        given = {} if mapped is None else {"owner": mapped}
        BashOperator.partial(task_id="many", **given).expand(bash_command=["1", "2"])
    lazy = LazyDeserializedDAG.from_dag(dag)
    with Session(engine) as session:
        if session.get(DagModel, "d") is None:
            session.add(DagBundleModel(name="bundle"))
            session.flush()
            session.add(DagModel(dag_id="d", bundle_name="bundle"))
            session.flush()
        # As airflow.dag_processing.collection has it.
        session.execute(update(DagModel).values(owners=lazy.owner or "airflow"))
        SerializedDagModel.write_dag(lazy, "bundle", session=session)
        session.commit()


@pytest.mark.parametrize(
    ("owner", "mapped", "alone", "owners"),
    [
        ("genomics", None, True, "genomics"),
        ("genomics", None, False, "genomics"),
        ("genomics", "bob", True, "bob"),
        ("genomics", "bob", False, "bob, genomics"),
        (None, "bob", False, "bob"),
        (None, None, True, "airflow"),
        (None, None, False, "airflow"),
    ],
)
def test_owners_of_mapped_tasks_are_those_of_the_dag_as_well(
    airflow_database: Engine, owner: str | None, mapped: str | None, alone: bool, owners: str
) -> None:
    parse(airflow_database, owner, mapped, alone=alone)
    with Session(airflow_database) as session:
        assert DagFacts().columns(session, "d")["dag_owner"] == owners


def test_a_version_of_a_dag_is_read_once(airflow_database: Engine) -> None:
    statements: list[str] = []
    event.listen(airflow_database, "before_cursor_execute", lambda *given: statements.append(given[2]))
    facts = DagFacts()
    facts.seconds_known = 0.0

    def owners() -> tuple[str, int]:
        """Those of the Dag, and how often it was read."""
        statements.clear()
        with Session(airflow_database) as session:
            found = facts.columns(session, "d")["dag_owner"]
        return found, sum("data_compressed" in each for each in statements)

    parse(airflow_database, "genomics", None, alone=True)
    assert [owners(), owners()] == [("genomics", 1), ("genomics", 0)]
    parse(airflow_database, "imaging", None, alone=True)
    assert [owners(), owners()] == [("imaging", 1), ("imaging", 0)]


def test_a_dag_that_is_stored_in_another_way_has_the_owners_that_airflow_shows(
    airflow_database: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    parse(airflow_database, "genomics", "bob", alone=False)
    with Session(airflow_database) as session:
        session.scalars(select(SerializedDagModel)).one()._data = {"dag": {"jobs": []}}
        session.commit()
        assert DagFacts().columns(session, "d")["dag_owner"] == "genomics"
    assert "owners of mapped tasks" in caplog.text


def test_owners_are_in_the_same_order_each_time() -> None:
    assert all_owners("bob, ann", frozenset(), "airflow") == all_owners("ann, bob", frozenset(), "airflow")
    assert all_owners("airflow, ann", frozenset({"bob"}), "airflow") == ["ann", "bob"]
    assert all_owners("airflow", frozenset(), "airflow") == ["airflow"]
    assert all_owners(None, frozenset(), "airflow") == []
