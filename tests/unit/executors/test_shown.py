"""Lanes, and what else is stored of a job so that it can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import Capacity, Change, JobRow, LocationRow, SiteRow, State, capacity, lanes, site_rows
from lading.scheduling.model.reasons import free_text


def add(session: Session, token: str, **columns: Any) -> None:
    defaults = {"kind": "ExecuteTask", "subject": token, "workload": "{}", "cpus": 1.0, "memory": 1, "disk": 0}
    defaults |= {"gpus": 0.0, "priority": 0, "state": State.RUNNING, "queued_at": 1.0, "site": "s", "location": "m"}
    store.add_job(session, token=token, **{**defaults, **columns})


def jobs(session: Session) -> dict[str, JobRow]:
    session.expire_all()
    return {job.token: job for job in session.scalars(select(JobRow))}


def memory() -> Engine:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    return engine


@pytest.fixture(scope="module")
def emptied() -> Iterator[Engine]:
    """A database for many examples, each of which leaves it empty because it commits nothing."""
    engine = memory()
    yield engine
    engine.dispose()


SPANS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 10), st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.sampled_from("mn")),
    max_size=25,
)


@given(SPANS, st.integers(1, 5))
def test_no_two_jobs_of_a_machine_are_drawn_over_each_other(
    emptied: Engine, spans: list[tuple[int, int, float, str]], portion: int
) -> None:
    with Session(emptied) as session:
        assert not jobs(session)
        session.merge(LocationRow(site="s", name="n", kind="local", cpus=4.0, memory=1, disk=0, gpus=0.0, seen_at=1.0))
        order = sorted(spans)
        for number, (start, length, cpus, place) in enumerate(order):
            ends = {"state": State.SUCCEEDED, "ended_at": float(start + length)} if number % 3 else {}
            add(session, f"{number}", cpus=cpus, location=place, started_at=float(start), **ends)
        for first in range(0, len(order), portion):
            lanes.settle(session, "s", [str(number) for number in range(first, first + portion)])
        found = list(jobs(session).values())
    for one in found:
        for other in found:
            if one.token != other.token and one.location == other.location:
                apart = (one.ended_at or 1e9) <= (other.started_at or 0) or (other.ended_at or 1e9) <= (
                    one.started_at or 0
                )
                assert one.lane is not None
                assert other.lane is not None
                assert apart or one.lane + one.cpus <= other.lane or other.lane + other.cpus <= one.lane


def test_what_fits_a_machine_is_drawn_within_it() -> None:
    with Session(memory()) as session:
        session.add(LocationRow(site="s", name="m", kind="local", cpus=2.0, memory=1, disk=0, gpus=0.0, seen_at=1.0))
        for number in range(3):
            add(session, f"small{number}", cpus=0.25, started_at=1.0)
        add(session, "large", cpus=1.0, started_at=1.5)
        lanes.settle(session, "s", ["small0", "small1", "small2", "large"])
        assert {token: job.lane for token, job in jobs(session).items()} == {
            "small0": 0.0, "small1": 0.25, "small2": 0.5, "large": 1.0,
        }  # fmt: skip
        ended = {"state": State.SUCCEEDED, "ended_at": 2.0}
        store.apply(session, [Change("small0", ended), Change("small1", ended)])
        add(session, "new", cpus=0.25, started_at=3.0)
        add(session, "medium", cpus=0.5, started_at=3.0)
        lanes.settle(session, "s", ["new", "medium"])
        found = jobs(session)
        assert (found["new"].lane, found["medium"].lane) == (0.75, 0.0), "what is free stays in one piece"
        add(session, "too much", cpus=1.0, started_at=4.0)
        lanes.settle(session, "s", ["too much"])
        assert jobs(session)["too much"].lane == 2.0


def test_a_lane_is_settled_once_and_the_jobs_of_a_queue_are_on_nodes() -> None:
    with Session(memory()) as session:
        add(session, "a", started_at=1.0, cpus=2.0)
        add(session, "b", started_at=2.0)
        lanes.settle(session, "s", ["a", "b"])
        assert {token: job.lane for token, job in jobs(session).items()} == {"a": 0.0, "b": 2.0}
        store.apply(session, [Change("a", {"state": State.SUCCEEDED, "ended_at": 3.0})])
        lanes.settle(session, "s", ["b"])
        assert jobs(session)["b"].lane == 2.0, "it stays where it is"
        add(session, "c", started_at=4.0, location="s", node="n1")
        add(session, "d", started_at=4.0, location="s", node="n2")
        add(session, "queued", state=State.QUEUED, location=None)
        lanes.settle(session, "s", ["c", "d", "queued"])
        assert {token: jobs(session)[token].lane for token in ("c", "d", "queued")} == {"c": 0, "d": 0, "queued": None}


def test_a_job_whose_task_airflow_refused_in_the_end_blocks_no_lane() -> None:
    with Session(memory()) as session:
        ended = {"state": State.FAILED, "started_at": None, "ended_at": 20.0}
        add(session, "refused", cpus=2.0, started_at=5.0)
        lanes.settle(session, "s", ["refused"])
        store.apply(session, [Change("refused", ended)])
        add(session, "new", started_at=10.0)
        lanes.settle(session, "s", ["new"])
        assert {token: job.lane for token, job in jobs(session).items()} == {"refused": 0.0, "new": 0.0}


def test_what_a_job_has_cost_is_what_its_location_costs() -> None:
    def location(name: str, rate: float | None) -> LocationRow:
        amounts = {"cpus": 4.0, "memory": 1, "disk": 1, "gpus": 0.0}
        return LocationRow(site="s", name=name, kind="local", seen_at=1.0, usd_per_cpu_hour=rate, **amounts)

    with Session(memory()) as session:
        store.save_locations(session, "s", [location("s", 2.0), location("m", 1.0)])
        store.save_locations(session, "free", [location("free", None)])
        add(session, "here", cpus=2.0, started_at=0.0)
        add(session, "nodes", cpus=2.0, nodes=3)
        add(session, "gone", location="gone", started_at=0.0)
        add(session, "unpriced", site="free", started_at=0.0)
        add(session, "unstarted")
        ends = {"state": State.SUCCEEDED, "ended_at": 1800.0}
        store.apply(session, [Change(token, ends) for token in ("here", "gone", "unpriced", "unstarted")])
        store.apply(session, [Change("nodes", {**ends, "started_at": 0.0})])
        costs = {token: job.usd for token, job in jobs(session).items()}
    assert costs == {"here": 1.0, "nodes": 3.0, "gone": 1.0, "unpriced": None, "unstarted": None}


def test_every_change_but_the_report_of_it_can_be_asked_for() -> None:
    with Session(memory()) as session:
        add(session, "a", state=State.QUEUED, changed_at=1.0)
        store.apply(session, [Change("a", {"state": State.PLACED}, report=True)])
        changed = jobs(session)["a"].changed_at
        assert changed is not None
        assert changed > 1.0
        store.mark_reported(session, [jobs(session)["a"]])
        assert jobs(session)["a"].changed_at == changed
        store.apply(session, [Change("a", {"native_id": "7"})])
        submitted = jobs(session)["a"].submitted_at
        assert submitted is not None
        store.apply(session, [Change("a", {"native_id": "8", "reason": free_text("waits")})])
        assert jobs(session)["a"].submitted_at == submitted, "the first time counts"


def test_an_allocation_was_not_submitted_for_the_job_that_starts_in_it() -> None:
    with Session(memory()) as session:
        add(session, "a", state=State.PLACED)
        store.apply(session, [Change("a", {"state": State.RUNNING, "started_at": 5.0, "native_id": "7"})])
        assert jobs(session)["a"].submitted_at is None


def test_what_a_machine_has_is_kept_from_when_to_when() -> None:
    def machine(name: str, cpus: float, now: float, site: str = "s") -> Capacity:
        return Capacity(site=site, name=name, cpus=cpus, memory=1, gpus=0.0, since=now)

    with Session(memory()) as session:
        capacity.save(session, "s", [machine("a", 1, 1.0), machine("b", 1, 1.0)], 1.0)
        capacity.save(session, "s", [machine("a", 1, 2.0), machine("b", 2, 2.0)], 2.0)
        capacity.save(session, "t", [machine("c", 1, 2.0, "t")], 2.0)
        capacity.save(session, "s", [machine("b", 2, 3.0)], 3.0)
        capacity.end_other_sites(session, ["s"], 4.0)
        session.flush()
        session.expire_all()
        rows = {(row.name, row.cpus, row.since, row.until) for row in session.scalars(select(Capacity))}
        assert rows == {("a", 1, 1, 3), ("b", 1, 1, 2), ("b", 2, 2, None), ("c", 1, 2, 4)}
        capacity.forget(session, 2.5)
        there = session.scalars(select(Capacity.name).where(*capacity.between(2.5, 2.8)).order_by(Capacity.name))
        assert there.all() == ["a", "b", "c"]


def test_the_last_contact_of_a_site_is_its_last_answer() -> None:
    def rows(*names: str) -> list[SiteRow]:
        return [SiteRow(name=name, kind="local", position=0, limits="{}") for name in names]

    with Session(memory()) as session:
        site_rows.save(session, rows("a", "b"))
        site_rows.note_answers(session, {"a": None, "b": "it is away"}, {"a": {"": free_text("no")}}, 5.0)
        site_rows.note_answers(session, {"a": "it hangs", "b": "it is away"}, {}, 6.0)
        shown = {row.name: row.barred for row in session.scalars(select(SiteRow))}
        assert shown == {"a": None, "b": None}, "it is not so any more"
        site_rows.note_answers(session, {"a": "it hangs"}, {"a": {"": free_text("no")}}, 6.0)
        stored = session.scalar(select(SiteRow.barred).where(SiteRow.name == "a"))
        assert site_rows.of_text(stored) == {"": free_text("no")}
        assert site_rows.of_text(None) == {}
        site_rows.save(session, rows("a"))
        session.flush()
        session.expire_all()
        [row] = session.scalars(select(SiteRow))
        assert (row.name, row.contact_at, row.trouble, row.barred) == ("a", 5.0, None, None), (
            "a new controller has not asked it yet"
        )
