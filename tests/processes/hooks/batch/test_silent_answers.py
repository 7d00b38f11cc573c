"""How each engine takes an answer that leaves jobs out, and a translator that fails."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.refusals import CancelError
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchSystem, NativeJob
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run import RunRecord, looked_up
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.provisioning import launch
from tests.clusters.fleet import Fleet
from tests.clusters.paper import Paper, only
from tests.clusters.runs import advanced, placed
from tests.clusters.toy_batch import Toy, ToyCluster


class ById(SLURM):
    """Is asked for jobs by their ids, as PBS is."""

    unknown = BatchSystem.unknown

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["squeue", *ids]


class Faulty(SLURM):
    """Its translators fail."""

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        raise KeyError("state")

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
        raise ValueError("zip() argument 2 is longer than argument 1")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SECONDS_UNTIL_SETTLED", -1.0)


@pytest.fixture
def by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("status", "unknown"):
        monkeypatch.setattr(SLURM, name, getattr(ById, name))


def rows(paper: Paper, *ids: str) -> None:
    """The batch system lists these jobs alone."""
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
    assert [job.gone_since for job in paper.poller.tracker.jobs.values()] == [None, None]
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
    options = SiteOptions(work_dir=str(tmp_path / "work"), lost_after=0.6)
    site = RunSite("toy", ToyById(), SiteProfile(), options, cluster)
    known, silent = advanced(site, placed(site, "sleep 60", 2))
    lister = cluster.folder / "bin/toy-list"
    whole = lister.read_bytes()
    lister.write_text(f"#!/bin/sh\necho {known.job_id} {known.jobname}\n")
    now = time.time()
    for seconds in (0, 100, 200):
        known, silent = advanced(site, [known, silent], now=now + seconds)
    assert (known.state, silent.ended, silent.gone_since) == ("running", False, None)
    with pytest.raises(CancelError, match="the status of jobs to cancel is unknown"):
        site.cancel([known, silent])
    lister.write_bytes(whole)
    site.cancel([silent])


@pytest.mark.parametrize("kind", [Paper, Fleet])
def test_a_translator_that_fails_stops_no_round(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = kind(tmp_path)
    paper.give("a")
    paper.go()
    statuses = SLURM.statuses
    monkeypatch.setattr(SLURM, "statuses", Faulty.statuses)
    paper.go()
    assert "KeyError" in str(paper.poller.unasked)
    monkeypatch.setattr(SLURM, "statuses", statuses)
    monkeypatch.setattr(SLURM, "accounted", Faulty.accounted)
    paper.write("queue", "")
    for _ in range(3):
        paper.go()
    assert paper.poller.unasked is None


class Named(Toy):
    """Answers for every job as the test says."""

    said: tuple[NativeJob, ...] = ()

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        return list(self.said)


def placed_at(tmp_path: Path, system: Toy, **resources: Any) -> tuple[RunSite, RunRecord]:
    options = SiteOptions(work_dir=str(tmp_path / "work"), lost_after=0.6)
    site = RunSite("toy", system, SiteProfile(), options, ToyCluster(tmp_path / "toy"))
    (record,) = advanced(site, placed(site, "sleep 60", **resources))
    return site, record


@pytest.mark.parametrize("given", [None, "mine"])
def test_a_number_that_is_given_again_fails_no_run(tmp_path: Path, given: str | None) -> None:
    system = Named()
    site, record = placed_at(tmp_path, system, **({"jobname": given} if given else {}))
    name = given or str(record.jobname)
    assert record.job_id is not None
    for stranger in ("another", "lading-00000000"):
        system.said = (NativeJob(id=record.job_id, state="ended", cause="time_limit", name=stranger),)
        (seen,) = advanced(site, [record])
        assert (seen.ended, seen.gone_since is not None) == (False, True), stranger
    (Path(record.folder) / "exit").write_text("0\n")
    (seen,) = advanced(site, [seen])
    assert seen.state == "succeeded"
    system.said = (NativeJob(id=record.job_id, state="ended", cause="time_limit", name=name[:9]),)
    (seen,) = advanced(site, [record])
    assert seen.cause == "time_limit", "some print only the beginning of a name"
    site.cancel([record])


def test_an_element_that_torque_has_named_is_found_again() -> None:
    record = RunRecord("t", "/t", array_name="lading-0011aabb", index=3, look_up=True)
    jobs = [NativeJob(id="7[]", index=index, name=f"lading-0011aabb-{index}", state="pending") for index in (2, 3)]
    found = looked_up(record, jobs, TORQUE())
    assert (found.job_id, found.array_id, found.index) == ("7[3]", "7[]", 3)


def test_a_run_that_another_process_has_cancelled_was_cancelled(tmp_path: Path) -> None:
    site, record = placed_at(tmp_path, Toy())
    site.cancel([record])
    while site.transport.listed:
        time.sleep(0.05)
    now = time.time()
    for seconds in (0, 100, 200):
        (record,) = advanced(site, [record], now=now + seconds)
    assert (record.state, record.cause) == ("cancelled", "cancelled")


def test_the_batch_system_s_cause_beats_a_task_s_success(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    for token, cpus in (("a", 1), ("b", 2), ("c", 3)):
        paper.give(token, cpus=cpus)
    paper.go()
    for token in "abc":
        paper.begin(token)
    paper.go()
    states = {"1": "OUT_OF_MEMORY", "2": "RUNNING", "3": "OUT_OF_MEMORY"}
    lines = [line.split("|") for line in paper.read("queue").split()]
    paper.write("queue", "".join("|".join([line[0], states[line[0]], "n1", "", line[-1]]) + "\n" for line in lines))
    for token in "ab":
        paper.finish(token)
    left = {"exit_code": 0, "reason": None, "ended_at": 7.0, "cpu_seconds": 1.0, "peak_memory": 3}
    (paper.root / "spool/jobs/c/exit.json").write_text(json.dumps(left))
    events = [*paper.go(), *paper.go()]
    causes = {event["token"]: event["cause"] for event in events if event["event"] == "finished"}
    assert causes == {"a": "out_of_memory", "b": None, "c": "out_of_memory"}


def test_what_is_not_said_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site, record = placed_at(tmp_path, ToyById())
    lister = site.transport.folder / "bin/toy-list"  # type: ignore[attr-defined]
    whole = lister.read_bytes()
    lister.write_text("#!/bin/sh\necho 77 another\n")
    for _ in range(5):
        (record,) = advanced(site, [record])
    lister.write_bytes(whole)
    (line,) = [each.getMessage() for each in caplog.records if "did not report" in each.getMessage()]
    assert "1 jobs, such as 1" in line
    site.cancel([record])
