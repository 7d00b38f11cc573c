"""From what waits and what sites answered to what is to be done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import answers
from lading.executors.controller.dispatch import BEHIND_OTHERS, decided, envelope, to_send
from lading.executors.store import JobRow, State, metadata, queue
from lading.executors.store.fair_queue import FairTurns
from lading.executors.store.queue import GivenJob
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.jobs.job_script import shape
from lading.hooks.cluster.site import cluster_kind
from lading.hooks.spool.spool import Envelope
from lading.scheduling.accounting.share_table import Shares
from lading.scheduling.accounting.share_usage import Standing
from lading.scheduling.matching.admission import Admission
from lading.scheduling.matching.stops import Stop
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.sizing.auto import SizeChoice, as_text
from tests.reasons import told

NOW = 1000.0


def given(token: str, state: State, expires_at: float | None = NOW + 600) -> GivenJob:
    job = WaitingJob(name=token, resources=Resources(cpus=1, memory=100))
    return GivenJob(job, state, "node1", NOW, expires_at, None)


OLD, FULL = because("site_full", site="old"), because("busy", locations=["node1"])


def test_what_is_decided_is_recorded_with_the_place_and_the_reason() -> None:
    jobs = [WaitingJob(name=token, resources=Resources(1, 100), reason=reason) for token, reason in
            (("a", None), ("b", OLD), ("c", OLD), ("d", None), ("e", FULL), ("f", None))]  # fmt: skip
    found = Assignment(
        placed={"a": ("lab", "node1"), "b": ("hpc", "hpc")},
        passed={"b": because("site_full", site="lab")},
        waits={"c": None, "d": None, "e": FULL},
        refused={"f": because("nowhere", text="too large")},
    )
    decision = decided(jobs, found, NOW)
    assert decision.placed == {"lab": {"node1": ["a"]}, "hpc": {"hpc": ["b"]}}
    by_token = {change.token: change for change in decision.changes}
    assert set(by_token) == {"a", "b", "f"}
    assert decision.reasons == {BEHIND_OTHERS: ["c"]}, "a job with the same reason as before, or none, gets no new one"
    assert told(by_token["a"].values["reason"]) is None
    assert by_token["b"].values["location"] == "hpc"
    assert told(by_token["b"].values["reason"]) == "sent here because site 'lab' has no room"
    assert (by_token["f"].values["state"], told(by_token["f"].values["reason"])) == (State.FAILED, "too large")
    assert by_token["f"].report
    assert decision.more_waiting


def test_texts_of_a_plugin_are_made_fit_for_every_database() -> None:
    """Or one job's reason would keep everything that a tick has decided from being stored, tick after tick."""
    bad = "its policy failed: OSError: /data/\udcff\0" + "x" * 100_000
    names = ("waits", "goes", "fails", "told")
    jobs = [WaitingJob(name=each, resources=Resources(1, 100), reason=None) for each in names]
    jobs[3] = replace(jobs[3], reason=free_text(bad))
    words = free_text(bad)
    found = Assignment(
        {"goes": ("lab", "node1")}, {"goes": words}, {"waits": words, "told": words}, refused={"fails": words}
    )
    decision = decided(jobs, found, NOW)
    stored = [each.to_json() for each in (*decision.reasons, *(each.values["reason"] for each in decision.changes))]
    assert len(stored) == 3
    assert all("\\u0000" not in each and "\\udcff" not in each and len(each) < 65_535 for each in stored)
    assert [*decision.reasons.values()] == [["waits"]], "a job that had that reason before does not get it again"


def test_a_location_has_what_was_given_to_it_and_of_short_jobs_many_are_prefetched() -> None:
    """It would run dry before the next tick."""
    jobs = [given("runs", State.RUNNING), given("runs too", State.RUNNING), given("waits", State.PLACED)]
    machine = Location("node1", Resources(cpus=4, memory=8192))
    loaded = queue.loaded(machine, jobs, 3)
    assert (loaded.used, loaded.running) == (Resources(3, 300), Resources(2, 200))
    assert ([job.name for job in loaded.prefetched], loaded.jobs) == (["waits"], 3)
    assert [queue.loaded(machine, jobs, most).prefetchable for most in (0, 2, 99)] == [0, 2, 99]
    assert queue.loaded(machine, [], 9).prefetchable == 9, "all that it had may have ended since the last look"
    assert queue.loaded(replace(machine, max_jobs=9), jobs, 9).prefetchable == 0, "a queue fills itself"
    said = queue.loaded(replace(machine, used=machine.capacity, prefetched=loaded.prefetched), [], 9)
    assert (said.empty, said.prefetched) == (True, ()), "a site cannot know that"
    assert queue.loaded(Location("node1", machine.capacity, max_jobs=9), jobs, 0).jobs == 3


def test_the_queue_that_a_target_names_is_stored_with_the_placement_and_forgotten_when_the_job_comes_back() -> None:
    stop = Stop("hpc", "hpc/long", (("queue", "long"),))
    found = Assignment(placed={"a": ("hpc", "hpc"), "b": ("hpc", "hpc")}, stops={"a": stop})
    changes = decided([], found, 1.0).changes
    assert {each.token: each.values["queue"] for each in changes} == {"a": "long", "b": None}
    event = {"event": "returned", "token": "a", "at": 2.0, "location": "hpc"}
    [back] = answers.changes_by_events([event])
    assert back.values["queue"] is None


def test_the_rest_of_a_run_travels_with_its_job() -> None:
    job = JobRow(token="t", workload="{}", cpus=1.0, memory=1, disk=0, gpus=0.0, priority=2, queued_at=NOW)
    made = envelope(job, "jwt", NOW + 60, rest=500.0)
    assert Envelope.from_json(made.to_json()).rest == 500.0
    assert made.waiting().rank == (-2, 0.0, -500.0, NOW, "t")
    assert envelope(job, "jwt", NOW + 60).rest == 0.0


def test_a_job_at_a_site_that_is_closed_to_its_dag_is_not_sent_there(tmp_path: Path) -> None:
    """Whatever has placed it: a plugin, or a controller with another sites file."""
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    metadata.create_all(engine)
    with Session(engine) as session:
        for token, team, expires_at in (("own", "genes", None), ("theft", "loads", None), ("there", "loads", NOW)):
            session.add(a_row(token, team, expires_at))
        session.flush()
        placed = {"here": ["own", "theft", "there"]}
        site: Any = SimpleNamespace(
            name="lab",
            admission=Admission(teams=["genes"]),
            jwt_seconds=600.0,
            requests_are_limits=False,
            occupied=lambda asked: asked,
        )
        sent, changes = to_send(session, placed, lambda subject, seconds: "jwt", site)
    assert [each.token for each in sent["here"]] == ["own", "there"], "what is there gets its new JWT"
    [change] = changes
    assert change.token == "theft"
    assert "site 'lab' has allowed_teams = ['genes']" in str(told(change.values["reason"]))


def test_a_new_jwt_keeps_the_turn_of_a_job(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    metadata.create_all(engine)
    site: Any = SimpleNamespace(
        name="lab", admission=Admission(), jwt_seconds=600.0, requests_are_limits=False, occupied=lambda asked: asked
    )
    with Session(engine) as session:
        for token, expires_at in (("old", NOW), ("new", None)):
            row = a_row(token, "genes", expires_at)
            row.placed_at = NOW - 300
            session.add(row)
        session.flush()
        fair = FairTurns(Shares(), Standing(), NOW)
        sent, _ = to_send(session, {"here": ["old", "new"]}, lambda subject, seconds: "jwt", site, fair=fair)
    assert [each.turn for each in sent["here"]] == [NOW - 300, NOW]


def test_no_jwt_is_made_for_a_job_script(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    metadata.create_all(engine)
    site: Any = SimpleNamespace(
        name="lab", admission=Admission(), jwt_seconds=600.0, requests_are_limits=False, occupied=lambda asked: asked
    )
    with Session(engine) as session:
        script = a_row("script", "genes", None)
        script.kind, script.subject = JOB_SCRIPT, "of the script"
        session.add_all([script, a_row("task", "genes", None)])
        session.flush()
        asked: list[str] = []

        def mint(subject: str, seconds: float) -> str:
            asked.append(subject)
            return "jwt"

        sent, _ = to_send(session, {"here": ["script", "task"]}, mint, site)
    assert [each.workload.get("token") for each in sent["here"]] == [None, "jwt"]
    assert len(asked) == 1
    assert asked != ["of the script"]


@pytest.mark.parametrize(
    ("is_limit", "container", "sent_with"),
    [
        (True, "", Resources(1.0, 512)),
        (False, "docker://python", Resources(1.0, 512)),
        (False, "", Resources(1.0, 100)),
    ],
)
def test_a_batch_job_without_hints_requests_the_default_at_least(
    tmp_path: Path, is_limit: bool, container: str, sent_with: Resources
) -> None:
    """Its batch system would end one that uses more than it is packed by."""
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    metadata.create_all(engine)
    with Session(engine) as session:
        row = a_row("t", "genes", None)
        row.chosen = as_text({"cpus": SizeChoice(0.25), "memory": SizeChoice(512)})
        session.add(row)
        session.flush()
        site: Any = SimpleNamespace(
            name="lab",
            admission=Admission(),
            jwt_seconds=600.0,
            requests_are_limits=is_limit,
            occupied=lambda asked: asked,
            config=SimpleNamespace(container=container),
        )
        sent, _ = to_send(session, {"here": ["t"]}, lambda subject, seconds: "jwt", site)
        session.expire_all()
        assert [each.resources for each in sent["here"]] == [sent_with]
        assert row.resources == sent_with, "of which its retry and the bill are told"


@pytest.mark.parametrize(
    ("mode", "asked", "charged"),
    [
        ("job", Resources(0.25, 100, 0, 0.5), Resources(1.0, 100, 0, 1.0)),
        ("job", Resources(2.0, 100), Resources(2.0, 100)),
        ("allocation", Resources(0.25, 100, 0, 0.5), Resources(0.25, 100, 0, 0.5)),
    ],
)
def test_a_batch_job_is_charged_for_the_whole_cores_that_are_submitted(
    tmp_path: Path, mode: str, asked: Resources, charged: Resources
) -> None:
    config: Any = {"kind": "slurm", "work_dir": "/shared", "python": "/usr/bin/python3", "mode": mode}
    config |= {"node_cpus": 8, "node_memory": "8 GiB", "node_gpus": 2}
    kind = cluster_kind(SLURM())
    site = kind("hpc", kind.config_model.model_validate(config), tmp_path)
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    metadata.create_all(engine)
    with Session(engine) as session:
        row = a_row("t", "genes", None)
        row.cpus, row.gpus = asked.cpus, asked.gpus
        session.add(row)
        session.flush()
        sent, _ = to_send(session, {"hpc": ["t"]}, lambda subject, seconds: "jwt", site)
        session.expire_all()
        assert row.resources == charged
        [made] = sent["hpc"]
        assert made.resources == charged
        if mode == "job":
            submitted = shape(made, site.config)
            assert (submitted.layout.threads, submitted.gpus) == (charged.cpus, charged.gpus)
        store.apply(session, [answers.queued_again("t", None, {})])
        session.expire_all()
        assert row.resources == asked


def a_row(token: str, team: str, expires_at: float | None) -> JobRow:
    amounts = {"cpus": 1.0, "memory": 100, "disk": 0, "gpus": 0.0, "priority": 1, "queued_at": 1.0, "map_index": -1}
    names = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "dag_id": "d", "run_id": "r", "task_id": "t"}
    others = {"try_number": 1, "news": 0, "unreported": False, "state": State.PLACED, "site": "lab", "location": "here"}
    return JobRow(token=token, team=team, expires_at=expires_at, **amounts, **names, **others)
