"""What each engine makes of an answer that is silent about jobs, and of a translator that fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lading.hooks import allocation_giving
from lading.hooks.batch import Answer, BatchSystem, NativeJob
from lading.hooks.run_site import RunSite
from lading.hooks.site_options import SiteOptions
from lading.hooks.site_profile import SiteProfile
from lading.hooks.slurm import SLURM
from tests.unit.test_allocation_rounds import Fleet
from tests.unit.test_cluster_rounds import Paper, only
from tests.unit.test_run_site import advanced, placed
from tests.unit.toy_batch import Toy, ToyCluster


class ById(SLURM):
    """Is asked for jobs by their ids, as PBS is."""

    unknown = BatchSystem.unknown

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["squeue", *ids]


class Faulty(SLURM):
    """Its translators fail."""

    def statuses(self, answer: Answer) -> list[NativeJob]:
        raise KeyError("state")

    def accounted(self, answer: Answer) -> list[NativeJob]:
        raise ValueError("zip() argument 2 is longer than argument 1")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_giving, "SECONDS_UNTIL_SETTLED", -1.0)


@pytest.fixture
def by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("status", "unknown"):
        monkeypatch.setattr(SLURM, name, getattr(ById, name))


def rows(paper: Paper, *ids: str) -> None:
    """The batch system tells of these jobs alone."""
    lines = [line for line in paper.read("queue").split("\n") if line.partition("|")[0] in ids]
    paper.write("queue", "".join(f"{line}\n" for line in lines))


@pytest.mark.usefixtures("by_id")
def test_a_task_of_which_nothing_is_said_goes_on(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    paper.give("a", cpus=1)
    paper.give("b", cpus=2)
    paper.go()
    for token in "ab":
        paper.begin(token)
    rows(paper, "1")
    for _ in range(3):
        paper.go()
        time.sleep(0.6)
    assert [job.gone_since for job in paper.rounds.ledger.jobs.values()] == [None, None]
    paper.write("squeue.err", "slurm_load_jobs error: Invalid job id specified: 2\n")
    (paper.folder / "bin/squeue").write_text('#!/bin/sh\ncat "$PAPER/queue"; cat "$PAPER/squeue.err" >&2; exit 1\n')
    paper.go()
    time.sleep(1.1)
    assert only(paper.go(), "finished")["token"] == "b"


@pytest.mark.usefixtures("by_id")
def test_an_allocation_of_which_nothing_is_said_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.running("a")
    fleet.write("queue", "77|RUNNING|n1|None|another\n")
    for _ in range(3):
        assert [event for event in fleet.go() if event["event"] == "finished"] == []
        time.sleep(0.6)
    assert fleet.read("submissions").count("x") == 1


class ToyById(Toy):
    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["toy-list", *ids]


def test_a_run_of_which_nothing_is_said_goes_on(tmp_path: Path) -> None:
    cluster = ToyCluster(tmp_path / "toy")
    options = SiteOptions(work_dir=str(tmp_path / "work"), absence_deadline=2)
    site = RunSite("toy", ToyById(), SiteProfile(), options, cluster)
    known, silent = advanced(site, placed(site, "sleep 60", 2))
    (cluster.folder / "bin/toy-list").write_text(f"#!/bin/sh\necho {known.job_id} {known.jobname}\n")
    now = time.time()
    for seconds in (0, 100, 200):
        known, silent = advanced(site, [known, silent], now=now + seconds)
    assert (known.state, silent.ended, silent.gone_since) == ("running", False, None)
    site.cancel([known, silent])


@pytest.mark.parametrize("kind", [Paper, Fleet])
def test_a_translator_that_fails_stops_no_round(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = kind(tmp_path)
    paper.give("a")
    paper.go()
    statuses = SLURM.statuses
    monkeypatch.setattr(SLURM, "statuses", Faulty.statuses)
    paper.go()
    assert "KeyError" in str(paper.rounds.note)
    monkeypatch.setattr(SLURM, "statuses", statuses)
    monkeypatch.setattr(SLURM, "accounted", Faulty.accounted)
    paper.write("queue", "")
    for _ in range(3):
        paper.go()
    assert paper.rounds.note is None
