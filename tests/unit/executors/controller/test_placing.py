"""When a place is sought for jobs, and what policies of third parties learn from the store."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import placing
from lading.executors.controller.controller import Controller
from lading.executors.controller.placing import Extensions, PlacementAttempts, Placing
from lading.executors.store import JobRow, State, strikes
from lading.hooks.site import ObservedLocation, SiteConfig
from lading.scheduling.matching.ranking import Match
from lading.scheduling.model.job import PlannedJob as Planned
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing import placement
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.policies import JobAllocation
from tests.clusters.sites import FINISHED, FakeSite, StoreHost, make_settings, make_store, rest
from tests.reasons import told

ONE = Resources(1, 512)


class Asked:
    """A policy that notes what it is asked, and says no to all but some jobs."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.jobs: Mapping[str, JobAllocation] = {}
        self.there: dict[str, dict[str, list[str]]] = {}
        self.takes: set[str] = set()
        self.asked: list[Planned] = []

    def get_location(
        self, context: object, job: Planned, requirement: Resources, available: Any, jobs: Any, locations: Any
    ) -> str | None:
        self.calls.append(job.name)
        self.asked.append(job)
        self.jobs = dict(jobs)
        self.there = {site: {name: list(each.jobs) for name, each in of.items()} for site, of in locations.items()}
        return "here" if job.name in self.takes else None


class House:
    """A controller with one site whose policy is that of a third party."""

    def __init__(self, engine: Engine, folder: Path, extensions: Extensions, **config: Any) -> None:
        self.engine = engine
        self.site = FakeSite("a", folder)
        self.site.config = SiteConfig(kind="fake", **config)
        settings = make_settings(folder / "state")
        settings.state_folder.mkdir()
        sites = {"a": self.site}
        self.controller = Controller(
            StoreHost(engine), sites, lambda *_: "", settings, True, lambda _: None, extensions
        )

    def add(self, token: str, state: State = State.QUEUED, location: str | None = None, **columns: object) -> None:
        amounts = {"cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0}
        placed = {"site": "a", "location": location, "placed_at": 1.0} if location else {}
        with Session(self.engine) as session:
            store.add_job(
                session, token=token, kind="ExecuteTask", subject="s", workload="{}", priority=1, queued_at=1.0,
                try_number=1, unreported=False, news=0, state=state, **amounts, **placed,
                **{"map_index": -1, **columns},
            )  # fmt: skip
            session.commit()

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.controller.leadership.leads_until = time.monotonic() + 20
            self.rest()
            self.controller.threads.request_observations()
            self.rest()
            decision = self.controller.decide(self.controller.observe(), any_wait=True)
            self.controller.record(decision, True, time.time())
            self.controller.act(decision)
            self.rest()

    def rest(self) -> None:
        rest(self.controller.threads)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", 0.0)
    return make_store(tmp_path)


@pytest.fixture
def policy() -> Asked:
    return Asked()


def house(engine: Engine, folder: Path, policy: Asked, **config: Any) -> House:
    return House(engine, folder, Extensions(policies={"mine": policy}), policy="mine", **config)


def test_without_retry_delay_a_place_is_sought_in_every_tick(engine: Engine, tmp_path: Path, policy: Asked) -> None:
    here = house(engine, tmp_path, policy)
    here.add("a")
    here.tick(3)
    assert policy.calls == ["a"] * 3


def test_with_none_there_is_an_attempt_at_each_end_of_a_job_and_none_between(
    engine: Engine, tmp_path: Path, policy: Asked
) -> None:
    here = house(engine, tmp_path, policy, placement_interval="0")
    here.add("t", State.RUNNING, "here")
    here.add("a")
    here.tick(3)
    assert policy.calls == ["a"], "when it came"
    here.add("b")
    here.tick(3)
    assert policy.calls == ["a", "b"], "only for the one that came"
    here.site.events.append(FINISHED)
    here.tick(3)
    assert policy.calls == ["a", "b", "a", "b"]
    here.site.locations = [ObservedLocation(here.site.location), ObservedLocation(Location("new", Resources(1, 1024)))]
    here.tick(3)
    assert policy.calls == ["a", "b"] * 3, "what comes up is room as well"


def test_retry_delay_is_the_time_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(placing.time, "monotonic", lambda: now)
    attempts = PlacementAttempts(30)
    assert attempts.tried(["here"]) == frozenset()
    attempts.note(["a"])
    now += 29
    assert attempts.tried(["here"]) == {"a"}
    now += 1
    assert attempts.tried(["here"]) == frozenset()


def test_a_policy_is_given_all_jobs_that_have_or_had_a_location(engine: Engine, tmp_path: Path, policy: Asked) -> None:
    here = house(engine, tmp_path, policy)
    here.add("old", State.SUCCEEDED, "gone")
    here.add("runs", State.RUNNING, "here")
    here.add("a")
    policy.takes = {"a"}
    here.tick()
    assert policy.jobs == {
        "old": JobAllocation("a", ("gone",), "succeeded", ONE),
        "runs": JobAllocation("a", ("here",), "running", ONE),
    }
    with Session(engine) as session:
        session.execute(update(JobRow).where(JobRow.token == "runs").values(state=State.FAILED, queue="long"))
        session.commit()
    here.add("b")
    here.tick()
    assert policy.jobs["runs"] == JobAllocation("a/long", ("here",), "failed", ONE)
    assert policy.jobs["a"].state == "running"
    assert policy.there == {"a": {"gone": ["old"], "here": ["runs", "a"]}}


def test_a_policy_sees_whose_job_it_is_and_its_inputs(engine: Engine, tmp_path: Path, policy: Asked) -> None:
    here = house(engine, tmp_path, policy)
    assert here.controller.estimator.keeps_inputs
    (tmp_path / "plain").mkdir()
    assert not House(engine, tmp_path / "plain", Extensions()).controller.estimator.keeps_inputs
    of_task = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 3}
    here.add("a", **of_task, input_values='[{"sample": "x"}]')
    here.add("b", **of_task)
    here.tick()
    first, second = policy.asked
    for job in (first, second):
        assert (job.dag_id, job.run_id, job.task_id, job.map_index) == ("d", "r", "t", 3)
    assert (first.inputs, second.inputs) == (({"sample": "x"},), ())


def test_a_plugin_can_replace_the_whole_choice(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wordless: Any = {"2": 5}
    answers: list[Any] = [
        Assignment(placed={"a": ("a", "moon")}),
        ValueError("no map"),
        Assignment(waits=wordless),
        7,
        None,
    ]
    told: list[dict[str, Any]] = []

    def assign_jobs(**what: Any) -> Any:
        told.append(what)
        answer = answers.pop(0) if answers else Assignment(placed={"b": ("a", "here")})
        if isinstance(answer, Exception):
            raise answer
        return answer

    here = House(engine, tmp_path, Extensions(assign_jobs=assign_jobs))
    for number in range(5):
        here.add(f"{number}")
        here.tick()
    assert set(here.site.jobs) == {"0", "1", "2", "3", "4"}, "where it gives no valid answer, Lading decides"
    assert caplog.text.count(placing.REPLACED) == 5, "each once, and that it is over"
    here.add("b")
    here.add("c")
    here.tick()
    assert set(here.site.jobs) == {"0", "1", "2", "3", "4", "b"}
    assert [job.name for job in told[-1]["jobs"]] == ["b", "c"]
    assert [site.name for site in told[-1]["sites"]] == ["a"]


class Hanging(Asked):
    """A policy that hangs over one job until the test ends."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.hangs = threading.Event()

    def get_location(self, context: object, job: Planned, *rest: Any) -> str | None:
        if job.name == "b":
            self.hangs.set()
            self.goes_on.wait()
        return "here"


def test_a_job_over_which_a_plugin_hangs_twice_has_failed(engine: Engine, tmp_path: Path) -> None:
    policies, loops = (Hanging(), Hanging()), list[threading.Thread]()

    def noted() -> str | None:
        with Session(engine) as session:
            return session.get_one(JobRow, "b").examined_by

    for strike, policy in enumerate(policies, 1):
        (folder := tmp_path / str(strike)).mkdir()
        here = house(engine, folder, policy)
        if strike == 1:
            here.add("b")
        loops.append(threading.Thread(target=here.tick, daemon=True))
        loops[-1].start()
        assert policy.hangs.wait(120)
        note = here.controller._note_hang
        for hangs in (True, False, True):
            note(hangs)
        assert noted() is None, "once may be by chance"
        note(True)
        assert noted() == here.controller.leadership.holder
        note(False)
        assert noted() is None, "it has gone on"
        note(True)
        note(True)
        with Session(engine) as session:
            [change] = strikes.charge(session, "next")
            session.commit()
        assert change.values["strikes"] == strike
    for policy, loop in zip(policies, loops, strict=True):
        policy.goes_on.set()
        loop.join(120)
    with Session(engine) as session:
        job = session.get_one(JobRow, "b")
        assert job.state == State.FAILED
        assert "2 controllers died or hung while looking for a place for it" in (told(job.reason) or "")


def test_each_answer_of_a_plugin_is_a_step_so_that_many_quick_ones_are_no_hang(
    engine: Engine, tmp_path: Path, policy: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(engine, tmp_path, policy)
    for token in "abc":
        here.add(token)
    beats: list[str | None] = []
    monkeypatch.setattr(here.controller.leadership.clock, "beat", lambda: beats.append(here.controller.placing.at))
    here.tick()
    assert policy.calls == ["a", "b", "c"]
    assert [at for at in beats if at is not None] == policy.calls
    assert beats[-1] is None, "the last one has answered"


def test_a_plugin_that_ends_the_process_ends_none(engine: Engine, tmp_path: Path) -> None:
    def leave(*_: Any, **__: Any) -> Any:
        sys.exit(3)

    class Leaving(Asked):
        get_location = leave

    here = House(engine, tmp_path, Extensions(policies={"mine": Leaving()}, assign_jobs=leave), policy="mine")
    here.add("a")
    here.tick()
    with Session(engine) as session:
        assert session.get_one(JobRow, "a").state == State.QUEUED
    turned = Placing({}, Extensions(filters={"away": leave}, rank_matches=leave))
    with pytest.raises(RuntimeError, match=r"it called sys.exit\(3\)"):
        turned.extensions.filters["away"](Planned("t", ONE), ["a"])
    assert turned.ranked(Planned("t", ONE), [Match("a", 1, 2)]) is None


def test_a_job_over_which_the_decision_fails_is_refused_alone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = placement.assign
    bad = {"1", "4"}

    def assign(jobs: Sequence[Planned], *rest: Any, **more: Any) -> Assignment:
        for job in jobs:
            if job.name in bad:
                raise KeyError(job.name)
        return real(jobs, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(placement, "assign", assign)
    here = House(engine, tmp_path, Extensions())
    for number in range(6):
        here.add(f"{number}")
    here.tick()
    assert set(here.site.jobs) == {"0", "2", "3", "5"}
    with Session(engine) as session:
        ended = {job.token: job for job in session.scalars(select(JobRow).where(JobRow.state == State.FAILED))}
    assert set(ended) == bad
    assert told(ended["4"].reason) == "its placement raised KeyError: '4'"
    bad |= {f"{number}" for number in range(10, 30)}
    for name in sorted(bad):
        here.add(name)
    with pytest.raises(KeyError):  # so many fail through no fault of their own: they wait
        here.tick()
    monkeypatch.setattr(placement, "assign", lambda *_, **__: {}["site"])
    with pytest.raises(KeyError, match="site"):
        here.tick()
    with Session(engine) as session:
        assert len(session.scalars(select(JobRow).where(JobRow.state == State.FAILED)).all()) == 2


@pytest.mark.parametrize("workload", ["", "[]", "5"])
def test_a_job_that_cannot_be_sent_fails_alone(engine: Engine, tmp_path: Path, workload: str) -> None:
    here = House(engine, tmp_path, Extensions())
    for token in ("a", "bad", "c"):
        here.add(token)
    with Session(engine) as session:
        session.execute(update(JobRow).where(JobRow.token == "bad").values(workload=workload))
        session.commit()
    here.tick()
    assert set(here.site.jobs) == {"a", "c"}
    with Session(engine) as session:
        job = session.get_one(JobRow, "bad")
        assert (job.state, job.unreported) == (State.FAILED, True)
        assert "its row cannot be read, so it was not sent" in (told(job.reason) or "")


@pytest.mark.parametrize("answer", [5, [], [Match("elsewhere")]])
def test_a_ranking_that_fails_is_logged_and_leaves_the_order_to_lading(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    matches = [Match("a", 1, 2), Match("b", 2, 2)]
    placing = Placing({}, Extensions(rank_matches=lambda job, matches: answer))
    assert placing.ranked(Planned("t", Resources(1, 1)), matches) is None
    assert "rank_matches of a plugin has failed" in caplog.text
    turned = Placing({}, Extensions(rank_matches=lambda job, matches: matches[::-1]))
    assert list(turned.ranked(Planned("t", Resources(1, 1)), matches) or ()) == matches[::-1]
    meddler = Placing({}, Extensions(rank_matches=lambda job, matches: matches.clear()))
    assert meddler.ranked(Planned("t", Resources(1, 1)), matches) is None
    assert len(matches) == 2
