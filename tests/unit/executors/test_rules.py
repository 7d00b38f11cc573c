"""What the store has of a job that got less than it wished by a rule."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.models.log import Log
from sqlalchemy import update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import rule_log, store
from lading.executors.columns import hint_columns
from lading.executors.controller import answers, dispatch
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State, queue, shapes
from lading.executors.store.queued import QueuedJobs
from lading.operators import resources
from lading.scheduling.hints.hints import Hints
from lading.scheduling.matching.groups import GroupMachines
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.job import LAYOUT
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Layout, Resources
from lading.scheduling.placing.placement import assign

HALF = Location("m", Resources(16, 16384), used=Resources(8, 8192))


def add(session: Session, token: str, **others: Any) -> None:
    hints = Hints.from_config(resources(cpus=(4, 16), memory=("2 GiB", "8 GiB"), preferred=["nvme"], **others))
    store.add_job(
        session, owner=1, token=token, kind="ExecuteTask", workload="{}", subject="", queued_at=0.0,
        dag_id="d", task_id="t", run_id="r", state=State.QUEUED, priority=1, unreported=False, news=0, map_index=-1,
        try_number=1, **hint_columns(hints, Settings.load()),
    )  # fmt: skip


def test_a_rule_is_stored_with_the_job_and_in_its_event_log_and_forgotten_when_it_comes_back(
    airflow_database: Engine,
) -> None:
    with Session(airflow_database) as session:
        add(session, "a")
        wished = queue.waiting(session)
        assert wished[0].resources == Resources(16, 8192)
        assert set(shapes.totals(QueuedJobs().read(session), by_dag=False)) == {wished[0].shape}
        found = assign(wished, [SiteView(name="lab", locations=[HALF], possible=[HALF])], now=1.0)
        decision = dispatch.decided(wished, found, 1.0)
        AirflowOrchestrator().note(session, rule_log.entries(session, store.apply(session, decision.changes)))
        session.flush()
        job = session.get_one(JobRow, "a")
        assert (job.cpus, job.memory, job.memory_limit, job.features) == (8.0, 4096, 4096, None)
        assert job.rule == "less, and without what is preferred"
        words = "by rule 'less, and without what is preferred': 8 of 16 cpus, 4 GiB of 8 GiB memory, without nvme"
        assert str(job.placed_because) == f"sent here because site 'lab' has no room; {words}"
        [entry] = session.query(Log).all()
        assert (entry.event, entry.task_id, entry.extra) == ("lading rule", "t", str(job.placed_because))
        envelope = dispatch.envelope(job, "jwt", 9.0)
        assert (envelope.resources, envelope.memory_limit) == (Resources(8, 4096), 4096), "it has what it was given"
        back = answers.changes_by_events([{"event": "returned", "token": "a", "at": 2.0, "location": "m"}])
        store.apply(session, back, "lab")
        session.expire_all()
        assert queue.waiting(session) == wished
        assert (job.rule, job.asked, session.get_one(JobRow, "a").memory_limit) == (None, None, 8192)


def test_what_can_be_done_without_is_kept_as_json(airflow_database: Engine) -> None:
    with Session(airflow_database) as session:
        add(session, "a", features=["nvme", "avx512"])
        job = session.get_one(JobRow, "a")
        assert json.loads(str(job.soft)) == [{"cpus": 4, "memory": 2048}, []], "it must have nvme"
        assert job.features == "avx512,nvme"


def of_nodes(session: Session, **others: Any) -> JobRow:
    hints = Hints.from_config(resources(nodes=(2, 8), ppn=2, memory="2 GiB", **others))
    store.add_job(
        session, owner=1, token="a", kind="ExecuteTask", workload="{}", subject="", queued_at=0.0,
        dag_id="d", task_id="t", run_id="r", state=State.QUEUED, priority=1, unreported=False, news=0, map_index=-1,
        try_number=1, **hint_columns(hints, Settings.load()),
    )  # fmt: skip
    return session.get_one(JobRow, "a")


def hpc(most: int) -> SiteView:
    nodes = Location(
        "hpc", Resources(16, 16384), site="hpc", hints=frozenset([LAYOUT]), max_jobs=9, most_nodes=(("", most),)
    )
    return SiteView(name="hpc", locations=[nodes], possible=[nodes])


def place(session: Session, most: int) -> None:
    waits = queue.waiting(session)
    store.apply(session, dispatch.decided(waits, assign(waits, [hpc(most)], now=1.0), 1.0).changes)
    session.expire_all()


def test_a_job_with_a_range_of_nodes_has_the_most_that_the_place_can_give_until_it_is_known_what_was_granted(
    airflow_database: Engine,
) -> None:
    with Session(airflow_database) as session:
        job = of_nodes(session, max_instances=20)
        place(session, 4)
        words = "requests 4 of 8 nodes, which is the most that a job can get there"
        assert (job.nodes, job.rule, str(job.placed_because)) == (4, None, words)
        assert dispatch.envelope(job, "jwt", 9.0).layout == Layout(4, 2, 1, least_nodes=2)
        back = answers.changes_by_events([{"event": "returned", "token": "a", "at": 2.0, "location": "hpc"}])
        store.apply(session, back, "hpc")
        session.expire_all()
        assert (job.nodes, job.asked) == (8, None), "it wishes for all again"
        place(session, 20)
        assert (job.nodes, job.placed_because) == (8, None)
        [given] = queue.given(session, "hpc")
        assert given.job.nodes == 8
        store.apply(
            session, answers.changes_by_events([{"event": "started", "token": "a", "at": 2.0, "nodes": 3}]), "hpc"
        )
        session.expire_all()
        [given] = queue.given(session, "hpc")
        machines = GroupMachines.from_jobs([given.job])
        machines.put(given.job, "hpc", "hpc", is_queue=True)
        assert (job.nodes, given.job.nodes, [sum(each.values()) for each in machines.used.values()]) == (3, 3, [3])


def test_an_event_without_the_number_of_nodes_changes_none(airflow_database: Engine) -> None:
    with Session(airflow_database) as session:
        job = of_nodes(session)
        assert set(shapes.totals(QueuedJobs().read(session), by_dag=False)) == {
            each.shape for each in queue.waiting(session)
        }
        place(session, 20)
        store.apply(session, answers.changes_by_events([{"event": "started", "token": "a", "at": 2.0}]), "hpc")
        session.expire_all()
        assert job.nodes == 8


def test_no_event_gives_a_job_more_nodes_than_it_was_to_have(airflow_database: Engine) -> None:
    began: dict[str, Any] = {"event": "started", "at": 2.0, "nodes": 2**31 - 1}
    with Session(airflow_database) as session:
        job = of_nodes(session)
        place(session, 4)
        add(session, "one")
        session.execute(update(JobRow).where(JobRow.token == "one").values(state=State.PLACED, site="hpc"))
        store.apply(session, answers.changes_by_events([{**began, "token": "a"}, {**began, "token": "one"}]), "hpc")
        session.expire_all()
        assert (job.state, job.nodes) == (State.RUNNING, 4)
        other = session.get_one(JobRow, "one")
        assert (other.state, other.nodes) == (State.RUNNING, None)


def test_what_a_job_with_a_range_of_nodes_has_cost_is_by_what_was_granted(airflow_database: Engine) -> None:
    with Session(airflow_database) as session:
        job = of_nodes(session)
        place(session, 20)
        session.add(
            store.LocationRow(
                site="hpc", name="hpc", kind="slurm", cpus=16, memory=16384, disk=0, gpus=0, state="up",
                usd_per_cpu_hour=1.0, seen_at=0.0,
            )
        )  # fmt: skip
        session.flush()
        started = {"event": "started", "token": "a", "at": 3600.0, "nodes": 3}
        end = {"cause": None, "reason": None, "exit_code": 0, "peak_memory": None, "cpu_seconds": None}
        finished = {"event": "finished", "token": "a", "at": 7200.0, **end}
        store.apply(session, answers.changes_by_events([started, finished]), "hpc")
        session.expire_all()
        assert (job.state, job.usd) == (State.SUCCEEDED, 6.0), "3 nodes with 2 cpus each for an hour"


@pytest.mark.parametrize(
    ("terms", "name"), [(None, None), ('{"name": null}', None), ('{"name": "g"}', "g"), ("{", None), ("[]", None)]
)
def test_one_unreadable_gang_does_not_hide_what_else_a_site_was_given(
    airflow_database: Engine, terms: str | None, name: str | None
) -> None:
    with Session(airflow_database) as session:
        for token in ("a", "b"):
            add(session, token)
        session.get_one(JobRow, "a").gang_terms = terms
        for job in session.query(JobRow):
            job.state, job.site = State.PLACED, "hpc"
        session.flush()
        assert {each.token: each.gang for each in queue.given(session, "hpc")} == {"a": name, "b": None}
