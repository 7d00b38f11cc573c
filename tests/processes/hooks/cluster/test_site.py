"""The site of a batch cluster, as a controller sees it, with mock commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lading.executors.controller.site_driver import SiteDriver
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.jobs.job_script import SHOWN_NAME
from lading.hooks.cluster.site import ClusterSite, cluster_kind
from lading.hooks.polling import rounds
from lading.hooks.site import LocationState
from lading.scheduling.model.reasons import because
from tests.clusters.asked import look, put
from tests.clusters.fleet import Fleet
from tests.clusters.paper import Paper, envelope
from tests.services.processes import wait_until


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path, api_url="http://api/execution/")


@pytest.fixture
def site(paper: Paper) -> ClusterSite:
    return cluster_kind(SLURM())("hpc", paper.config, paper.folder / "state")


def test_jobs_are_given_and_taken_back(site: ClusterSite, paper: Paper) -> None:
    seen = look(site)
    assert (seen.name, seen.location.max_jobs, seen.note, seen.state) == ("hpc", 1000, None, LocationState.UP)
    put(site, [envelope("a")])
    assert wait_until(lambda: bool(paper.read("queue")), 10, 0.05)
    assert look(site).known == {"a"}
    site.close("leave", 60.0)
    assert paper.read("cancelled") == "1\n"
    assert look(site).known == frozenset()


def test_only_the_first_look_waits_for_an_answer(
    site: ClusterSite, monkeypatch: pytest.MonkeyPatch, paper: Paper
) -> None:
    monkeypatch.setattr(site, "_first_answer", 0.3)
    goes_on = threading.Event()
    monkeypatch.setattr(site.poller, "round", goes_on.wait)
    waited = []
    monkeypatch.setattr(site.rounds, "answered_within", waited.append)
    for _ in range(3):
        with pytest.raises(OSError, match="no answer yet"):
            site.observe()
    assert waited == [0.3, 0.0, 0.0]
    goes_on.set()


PARTITIONS = "PartitionName=batch MaxNodes=UNLIMITED TotalNodes=4\nPartitionName=short MaxNodes=2 TotalNodes=4\n"


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, {"": 4, "batch": 4, "short": 2}),
        ({"queue": "short"}, {"": 2, "batch": 4, "short": 2}),
        ({"nodes": "ignore"}, {}),
        ({"resources": {"qos": "wide"}}, {}),
        ({"resources": {"M": "far"}}, {}),
        ({"resources": {"account": "astro"}}, {"": 4, "batch": 4, "short": 2}),
    ],
)
def test_how_many_nodes_a_job_can_ever_have(tmp_path: Path, options: dict[str, Any], most: dict[str, int]) -> None:
    """What is drained or down now is counted, and what a queue allows; where a site places by cores it is no matter."""
    paper = Paper(tmp_path, api_url="http://api/execution/", **options)
    paper.write("nodes", "batch*|8|16000|3|down\nbatch*|8|16000|1|drain\nshort|8|16000|4|idle\n")
    paper.write("partitions", PARTITIONS)
    site = cluster_kind(SLURM())("hpc", paper.config, paper.folder / "state")
    assert site.potential()[0].most_nodes == (), "nothing has been asked yet"
    assert dict(look(site).location.most_nodes or ()) == most
    site.close("leave", 60.0)


def drive(site: ClusterSite, token: str, happened: Callable[[], bool]) -> SiteDriver:
    """Give the site a job, as a controller does, and go on until something has happened."""
    solo = SiteDriver(site)
    solo.put([envelope(token)])
    assert wait_until(lambda: solo.tick() is not None and happened(), 30, 0.05)
    return solo


@pytest.mark.parametrize(("mode", "parent"), [("job", "submissions"), ("allocation", "allocations")])
def test_the_script_that_is_shown_is_the_one_that_is_submitted(tmp_path: Path, mode: str, parent: str) -> None:
    paper = Paper(tmp_path, api_url="http://api/execution/", mode=mode, setup="module load mpi", queue="long")
    site = cluster_kind(SLURM())("hpc", paper.config, paper.folder / "state")
    shown = site.script(envelope("a"))
    drive(site, "a", lambda: bool(paper.read("queue")))
    [path] = (paper.root / parent).glob("*/script")
    site.close("leave", 60.0)
    submitted = path.read_text()
    assert submitted.replace(path.parent.name, SHOWN_NAME) == shown
    assert "module load mpi" in submitted


def test_jobs_are_handed_over(site: ClusterSite, paper: Paper) -> None:
    site.observe()
    put(site, [envelope("a")])
    assert wait_until(lambda: bool(paper.read("queue")), 10, 0.05)
    site.close("hand_over", 60.0)
    assert paper.read("cancelled") == ""


def test_running_jobs_are_ended(site: ClusterSite, paper: Paper) -> None:
    site.observe()
    put(site, [envelope("a")])
    assert wait_until(lambda: bool(paper.read("queue")), 10, 0.05)
    paper.begin("a")
    assert wait_until(lambda: any(event["event"] == "started" for event in site.observe().events), 20, 0.1)
    before = time.monotonic()
    site.close("cancel", 10.0)
    assert time.monotonic() - before < 100, "the job never ends"
    assert (paper.root / "spool/cancel/a").read_text() == because("airflow_stopped").to_json()


def ends(site: ClusterSite) -> list[dict[str, Any]]:
    return [event for event in site.observe().events if event["event"] == "finished"]


def test_what_waits_is_not_ended(tmp_path: Path) -> None:
    paper = Paper(tmp_path, api_url="http://api/execution/", max_submitted=1)
    site = cluster_kind(SLURM())("hpc", paper.config, paper.folder / "state")
    site.observe()
    put(site, [envelope("submitted"), envelope("waits")])
    assert wait_until(lambda: bool(paper.read("queue")), 10, 0.05)
    put(site, [envelope("given")])
    site.close("cancel", 60.0)
    assert paper.read("cancelled") == "1\n"
    assert (look(site).known, ends(site)) == (frozenset(), [])


def test_a_batch_job_that_has_not_taken_its_task_gives_it_back(site: ClusterSite, paper: Paper) -> None:
    site.observe()
    put(site, [envelope("a")])
    assert wait_until(lambda: bool(paper.read("queue")), 10, 0.05)
    paper.write("queue", paper.read("queue").replace("PENDING", "RUNNING"))
    jobs = site.poller.tracker.jobs
    assert wait_until(lambda: jobs["a"].native is not None and jobs["a"].native.state == "running", 20, 0.05)
    site.close("cancel", 60.0)
    assert (look(site).known, ends(site)) == (frozenset(), [])
    [submission] = (paper.root / "submissions").iterdir()
    assert (submission / "withdrawn").read_text() == "a\n"
    assert paper.read("cancelled") == "1\n"


def test_a_site_that_does_not_answer_is_no_error_for_ever(paper: Paper, site: ClusterSite) -> None:
    (paper.folder / "work").write_text("a file")
    with pytest.raises(OSError, match="work_dir cannot be used"):
        site.observe()
    (paper.folder / "work").unlink()
    site.rounds.wake()
    assert wait_until(lambda: site.poller.user is not None and site.rounds.trouble is None, 10, 0.05)
    assert look(site).known == frozenset()
    site.close("hand_over", 60.0)


def test_a_trial_leaves_nothing(site: ClusterSite, paper: Paper, tmp_path: Path) -> None:
    trial = site.trial(tmp_path / "lading-check-1")
    assert trial.config.work_dir.startswith(f"{paper.root}/")
    paper.root.mkdir()
    trial.observe()
    assert list(paper.root.iterdir())
    trial.close("cancel", 60.0)
    assert not list(paper.root.iterdir())


def test_allocations_are_let_go(tmp_path: Path) -> None:
    paper = Paper(tmp_path, api_url="http://api/execution/", mode="allocation")
    site = cluster_kind(SLURM())("hpc", paper.config, paper.folder / "state")
    [possible] = site.potential()
    assert possible.capacity.memory == 16 * 1024 - 2 * 384, "less what the agent and a supervisor need"
    drive(site, "a", lambda: bool(paper.read("queue")))
    [allocation] = site.observe().locations
    assert (allocation.location.arch, allocation.location.os) == (possible.arch, possible.os) == ("x86_64", "linux")
    site.close("cancel", 60.0)
    assert paper.read("cancelled") == "1\n"
    told = site.observe()
    assert (told.locations[0].known, told.events) == (frozenset(), []), "it waits in Airflow"


def test_what_waits_in_an_allocation_is_not_ended(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, api_url="http://api/execution/")
    site = cluster_kind(SLURM())("hpc", fleet.config, fleet.folder / "state")
    solo = drive(site, "a", lambda: bool(fleet.read("queue")))
    [name] = fleet.begin_all()
    assert wait_until(lambda: solo.tick() is not None and fleet.inbox(name) == ["a"], 30, 0.05)
    site.put({name: [envelope("given")]})
    site.close("cancel", 60.0)
    assert fleet.inbox(name) == []
    told = site.observe()
    assert [each.known for each in told.locations] == [frozenset()]
    # Each once; which comes first depends on whether a round had put the second one into the inbox before the end.
    assert sorted((event["event"], event["token"]) for event in told.events) == [
        ("returned", "a"),
        ("returned", "given"),
    ]


def test_a_trial_in_an_allocation_leaves_nothing(tmp_path: Path) -> None:
    paper = Paper(tmp_path, api_url="http://api/execution/", mode="allocation")
    paper.root.mkdir()
    trial = cluster_kind(SLURM())("hpc", paper.config, paper.folder / "state").trial(tmp_path / "lading-check-1")
    drive(trial, "a", lambda: bool(paper.read("queue")))
    trial.close("cancel", 60.0)
    assert paper.read("cancelled").startswith("1\n")
    assert not list(paper.root.iterdir())


def test_trouble_is_said_when_it_begins_changes_and_ends(
    site: ClusterSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="lading.hooks.polling.rounds")
    monkeypatch.setattr(rounds, "PAUSE_AFTER_TROUBLE", 0.0)
    over = threading.Event()
    gone = [OSError(f"gone; tried again in {seconds} s") for seconds in (1, 2, 4)]
    troubles = [*gone, OSError("refused"), KeyError("x"), KeyError("x"), None, OSError("gone")]

    def one_round() -> None:
        if not troubles:
            site.rounds.stopping = True
            over.set()
        elif (error := troubles.pop(0)) is not None:
            raise error

    monkeypatch.setattr(site.poller, "round", one_round)
    monkeypatch.setattr(site.poller, "pause", lambda: 0.0)
    site.rounds.start()
    assert over.wait(120)
    site.rounds.stop(10)
    said = [
        (each.levelname, each.getMessage()) for each in caplog.records if each.name == "lading.hooks.polling.rounds"
    ]
    what = "Site 'hpc' could not be polled"
    assert said == [
        ("WARNING", f"{what}: gone; tried again in 1 s (logged once, retrying)"),
        ("WARNING", f"{what}: refused (logged once, retrying)"),
        ("ERROR", f"{what}: 'x' (logged once, retrying)"),
        ("INFO", f"{what}: resolved"),
        ("WARNING", f"{what}: gone (logged once, retrying)"),
        ("INFO", f"{what}: resolved"),
    ]


def test_allocations_that_live_are_fed_while_the_batch_system_is_away(tmp_path: Path) -> None:
    """Jobs come to them through the shared folder; it is new ones alone that cannot be asked for."""
    fleet = Fleet(tmp_path, api_url="http://api/execution/")
    site = cluster_kind(SLURM())("hpc", fleet.config, fleet.folder / "state")
    solo = drive(site, "a", lambda: bool(fleet.read("queue")))
    [name] = fleet.begin_all()
    assert wait_until(lambda: solo.tick() is not None and fleet.inbox(name) == ["a"], 30, 0.05)
    fleet.write("status", "1")
    assert wait_until(lambda: site.poller.unasked is not None, 30, 0.05)
    solo.put([envelope("b")])
    assert wait_until(lambda: solo.tick() is not None and fleet.inbox(name) == ["a", "b"], 30, 0.05)
    told = site.observe()
    assert (told.trouble, [each.state for each in told.locations]) == (None, [LocationState.UP])
    assert told.market is not None
    assert "could not be queried" in str(told.market.held)
    assert "could not be queried" in (told.note or "")
    site.close("cancel", 60.0)
