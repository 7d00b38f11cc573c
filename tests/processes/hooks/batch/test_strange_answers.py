"""How each engine takes an answer that proves nothing, a state that it does not know, and a job that cannot start."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.jobs import poller
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run_site import RunSite
from lading.scheduling.provisioning import launch
from tests.clusters.fleet import Fleet
from tests.clusters.paper import Paper, only
from tests.clusters.runs import advanced, placed
from tests.clusters.toy_batch import Toy, ToyCluster

LEFT = {"exit_code": 0, "reason": None, "ended_at": 7.0, "cpu_seconds": 1.0, "peak_memory": 3}
HELD = (
    "launch failed requeued held",
    "user env retrieval failed requeued held",
    "UserEnv retrieval failed, requeued held",
)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SECONDS_UNTIL_SETTLED", -1.0)


def pass_by(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let time pass without waiting, so that a slow machine does not let more of it pass."""
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + seconds)


def goes_on(paper: Paper, rounds: int = 3) -> bool:
    """Whether no end of a job is reported for some rounds."""
    return not any(event["event"] == "finished" for _ in range(rounds) for event in paper.go())


def ended(paper: Paper, seconds: float = 180.0) -> dict[str, Any] | None:
    """The end of a job that is reported within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := [event for event in paper.go() if event["event"] == "finished"]:
            return found[0]
        time.sleep(0.1)
    return None


def shown(paper: Paper, id: str, state: str, nodes: str = "n1", reason: str = "None") -> None:
    """Let squeue show a job so."""
    (row,) = [line for line in paper.read("queue").splitlines() if line.startswith(f"{id}|")]
    paper.write("queue", f"{id}|{state}|{nodes}|{reason}|{row.split('|')[-1]}\n")


def begun(tmp_path: Path, **options: Any) -> Paper:
    paper = Paper(tmp_path, **options)
    paper.give("a")
    paper.go()
    paper.begin("a")
    shown(paper, "1", "RUNNING")
    only(paper.go(), "started")
    return paper


SILENT = {
    "nothing": ":",
    "a banner": "echo 'Welcome to the cluster!'",
    "an error": "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2",
    "an error, as output": "echo 'slurm_load_jobs error: Socket timed out on send/recv operation'",
    "other jobs": "echo '99|RUNNING|n1|None|x'",
    "a cluster that does not answer": "echo 'CLUSTER: near'",
    "another cluster": "echo 'CLUSTER: near'; echo 'JOBID|STATE|NODELIST|REASON|NAME'; echo 'CLUSTER: far'",
    "a part": "printf 'JOBID|STATE|NODELIST|REASON|NAME\\n99|RUNN'",
}


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_wrapper_that_does_not_ask_ends_no_job_and_repeats_none(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller.ClusterPoller, "seconds_until_repeated", 0.0)
    paper = begun(tmp_path)
    paper.write("mode", "mute")
    paper.give("b")
    paper.go()
    (paper.folder / "bin/squeue").write_text(f"#!/bin/sh\n{text}\n")
    assert ended(paper, 3.0) is None
    assert paper.read("submissions").count("x") == 2, "of which one had no answer"


def test_a_job_in_an_unknown_state_has_ended_when_its_exit_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = begun(tmp_path, lost_after=600)
    (paper.root / "spool/jobs/a/exit.json").write_text(json.dumps(LEFT))
    shown(paper, "1", "FROBNICATED")
    assert goes_on(paper), "it counts as running for a while"
    pass_by(monkeypatch, 601)
    end = ended(paper)
    assert end is not None
    assert end["cause"] is None


@pytest.mark.parametrize(("word", "cause"), [("OUT_OF_MEMORY", "out_of_memory"), ("TIMEOUT", "time_limit")])
def test_a_job_in_an_unknown_state_has_ended_when_the_accounting_says_so(tmp_path: Path, word: str, cause: str) -> None:
    paper = begun(tmp_path)
    name = paper.read("queue").strip().split("|")[-1]
    shown(paper, "1", "FROBNICATED")
    paper.write("accounts", f"1|{word}|0:0|2026-11-20T19:37:40|n1|{name}\n")
    end = ended(paper)
    assert end is not None
    assert end["cause"] == cause


def test_a_job_in_an_unknown_state_of_which_nothing_else_is_known_is_cancelled_and_lost(tmp_path: Path) -> None:
    paper = begun(tmp_path)
    shown(paper, "1", "FROBNICATED")
    end = ended(paper)
    assert end is not None
    assert end["cause"] == "lost"
    assert "'FROBNICATED', which Lading does not know" in str(end["reason"])
    paper.go()
    assert paper.read("cancelled").split() == ["1"], "it may still run"


def test_a_state_that_is_known_again_and_an_answer_that_fails_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = begun(tmp_path, lost_after=600)
    for _ in range(4):
        shown(paper, "1", "FROBNICATED")
        assert goes_on(paper)
        pass_by(monkeypatch, 400)
        assert goes_on(paper)
        shown(paper, "1", "RUNNING")
        assert goes_on(paper)
    shown(paper, "1", "FROBNICATED")
    assert goes_on(paper)
    paper.write("status", "1")
    pass_by(monkeypatch, 1500)
    assert goes_on(paper), "nothing is concluded while it cannot be asked"
    paper.write("status", "0")
    assert ended(paper) is not None, "it is concluded as soon as it can be asked"


def test_an_allocation_in_an_unknown_state_goes_on_while_its_agent_may_run(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.running("a")
    row = fleet.read("queue").strip().split("|")
    fleet.write("queue", "|".join([row[0], "FROBNICATED", "n1", "None", row[-1]]) + "\n")
    for _ in range(5):
        assert [event for event in fleet.go() if event["event"] == "finished"] == []
        time.sleep(0.5)
    assert fleet.read("cancelled") == ""


def test_an_allocation_in_an_unknown_state_without_an_agent_is_cancelled(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.give("a")
    fleet.go()
    name = fleet.read("queue").strip().split("|")[-1]
    fleet.write("queue", f"1|FROBNICATED|n1|None|{name}\n")
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and not fleet.read("cancelled"):
        assert [event for event in fleet.go() if event["event"] == "finished"] == []
        time.sleep(0.2)
    assert fleet.read("cancelled").split() == ["1"]


@pytest.mark.parametrize("reason", HELD)
def test_a_job_that_could_not_be_launched_is_cancelled_and_then_submitted_again(tmp_path: Path, reason: str) -> None:
    paper = Paper(tmp_path)
    paper.poller.nodes.seconds = 60.0
    for node in ("n1", "n2", "n3"):
        paper.poller.nodes.seen(node)
    paper.give("a")
    paper.go()
    shown(paper, "1", "CONFIGURING")
    paper.go()
    shown(paper, "1", "PENDING", nodes="", reason=reason)
    for _ in range(5):
        assert [event for event in paper.go() if event["event"] == "finished"] == []
    assert paper.read("cancelled").split() == ["1"]
    assert paper.read("submissions").split() == ["x"], "it is still there, and may be released"
    shown(paper, "1", "CANCELLED", nodes="", reason=reason)
    assert ended(paper, 2.0) is None
    assert paper.read("submissions").split() == ["x", "x"]
    assert "--exclude=n1\n" in paper.read("script.2")
    paper.begin("a")
    only(paper.go(), "started")
    assert paper.read("cancelled").split() == ["1"]


def test_a_job_that_no_node_can_launch_fails_after_four_submissions(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    paper.give("a")
    end = None
    for number in range(1, 5):
        paper.go()
        rows = [line.split("|") for line in paper.read("queue").splitlines()]
        assert rows[-1][0] == str(number)
        paper.write("queue", f"{number}|PENDING||{HELD[0]}|{rows[-1][-1]}\n")
        for _ in range(3):
            paper.go()
        paper.write("queue", "")
        end = ended(paper, 1.0)
    assert end is not None
    assert (end["cause"], paper.read("submissions").split()) == ("node_failure", ["x"] * 4)
    assert HELD[0] in str(end["reason"])


def test_a_job_whose_prolog_fails_and_that_may_not_be_requeued_is_submitted_again(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    paper.give("a")
    paper.go()
    name = paper.read("queue").strip().split("|")[-1]
    shown(paper, "1", "CANCELLED")
    paper.write("accounts", f"1|CANCELLED by 0|0:0|2026-11-28T18:59:04|n1||500M|{name}\n"
                "1.batch|CANCELLED||2026-11-28T18:59:04|n1|||batch\n")  # fmt: skip
    assert ended(paper, 2.0) is None
    assert paper.read("submissions").split() == ["x", "x"]


def test_an_allocation_that_could_not_be_launched_is_gone_before_another_one_is_asked_for(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.give("a")
    fleet.go()
    name = fleet.read("queue").strip().split("|")[-1]
    fleet.write("queue", f"1|PENDING||{HELD[0]}|{name}\n")
    for _ in range(4):
        fleet.go()
    assert (fleet.read("cancelled").split(), fleet.read("submissions").split()) == (["1"], ["x"])
    fleet.write("queue", f"1|CANCELLED||{HELD[0]}|{name}\n")
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and fleet.read("submissions").count("x") == 1:
        assert [event for event in fleet.go() if event["event"] == "finished"] == []
        time.sleep(0.2)
    assert fleet.read("submissions").count("x") == 2


class Named(Toy):
    """Answers for every job as the test says."""

    said: tuple[NativeJob, ...] = ()

    def statuses(self, answer: Any) -> list[NativeJob]:
        return list(self.said)


def run_at(tmp_path: Path) -> tuple[Named, RunSite, Any]:
    system = Named()
    options = SiteOptions(work_dir=str(tmp_path / "work"), lost_after=100)
    site = RunSite("toy", system, SiteProfile(), options, ToyCluster(tmp_path / "toy"))
    (record,) = advanced(site, placed(site, "sleep 60"))
    return system, site, record


def test_a_run_in_an_unknown_state_is_cancelled_and_lost_unless_it_has_left_its_exit_status(tmp_path: Path) -> None:
    system, site, record = run_at(tmp_path)
    system.said = (NativeJob(id=record.job_id, state="running", strange=True, reason="it is odd", name=record.jobname),)
    now = time.time()
    for seconds in (0, 99):
        (record,) = advanced(site, [record], now=now + seconds)
        assert (record.state, record.gone_since) == ("running", None)
    (record,) = advanced(site, [record], now=now + 101)
    (other,) = advanced(site, [record], now=now + 102)
    assert (other.state, other.cause) == ("failed", "lost")
    assert "it is odd" in str(other.reason)
    assert (tmp_path / "toy/killed").read_text().split() == [record.job_id]
    (Path(record.folder) / "exit").write_text("0\n")
    for seconds in (102, 150):
        (record,) = advanced(site, [record], now=now + seconds)
    assert record.state == "succeeded"


def test_a_run_that_could_not_be_launched_is_gone_before_it_is_submitted_again(tmp_path: Path) -> None:
    system, site, record = run_at(tmp_path)
    first, cluster = record.job_id, tmp_path / "toy"
    held = NativeJob(id=first, state="pending", cause="node_failure", reason="held", name=record.jobname)
    system.said = (held,)
    for _ in range(3):
        (record,) = advanced(site, [record])
    assert ((cluster / "killed").read_text().split(), record.job_id) == ([first], first)
    system.said = ()
    (Path(record.folder) / "job").unlink(missing_ok=True)  # which one that was never launched has not written
    for _ in range(2):
        (record,) = advanced(site, [record])
    assert (record.state, record.job_id != first, record.not_launched) == ("submitted", True, 1)
    site.cancel([record])
