"""What the store has of a job that got less than it wished by a rule."""

from __future__ import annotations

import json
from typing import Any

from airflow.models.log import Log
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import rule_log, store
from lading.executors.columns import hint_columns
from lading.executors.controller import dispatch, events
from lading.executors.settings import Settings
from lading.executors.store import Job, State, queue, shapes
from lading.operators import resources
from lading.scheduling.hints.hints import Hints
from lading.scheduling.location import Location
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.placement import assign
from lading.scheduling.resources import Resources

HALF = Location("m", Resources(16, 16384), used=Resources(8, 8192))


def add(session: Session, token: str, **others: Any) -> None:
    hints = Hints.of(resources(cpus=(4, 16), memory=("2 GiB", "8 GiB"), preferred=["nvme"], **others))
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
        assert set(shapes.totals(session, by_dag=False)) == {wished[0].shape}
        found = assign(wished, [SiteView(name="lab", locations=[HALF], possible=[HALF])], now=1.0)
        decision = dispatch.decided(wished, found, 1.0)
        session.add_all(rule_log.entries(session, store.apply(session, decision.changes)))
        session.flush()
        job = session.get_one(Job, "a")
        assert (job.cpus, job.memory, job.memory_limit, job.features) == (8.0, 4096, 4096, None)
        assert job.rule == "less, and without what is preferred"
        words = "by rule 'less, and without what is preferred': 8 of 16 cpus, 4 GiB of 8 GiB memory, without nvme"
        assert job.placed_because == f"sent here because site 'lab' has no room; {words}"
        [entry] = session.query(Log).all()
        assert (entry.event, entry.task_id, entry.extra) == ("lading rule", "t", job.placed_because)
        envelope = dispatch.envelope(job, "jwt", 9.0)
        assert (envelope.resources, envelope.memory_limit) == (Resources(8, 4096), 4096), "it has what it was given"
        back = events.changes([{"event": "returned", "token": "a", "at": 2.0, "location": "m"}])
        store.apply(session, back, "lab")
        session.expire_all()
        assert queue.waiting(session) == wished
        assert (job.rule, job.asked, session.get_one(Job, "a").memory_limit) == (None, None, 8192)


def test_what_can_be_done_without_is_kept_as_json(airflow_database: Engine) -> None:
    with Session(airflow_database) as session:
        add(session, "a", features=["nvme", "avx512"])
        job = session.get_one(Job, "a")
        assert json.loads(str(job.soft)) == [{"cpus": 4, "memory": 2048}, []], "it must have nvme"
        assert job.features == "avx512,nvme"
