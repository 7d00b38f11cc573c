"""How a cluster's controller keeps jobs away from nodes that fail, and repeats a cancellation that has failed."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from lading.hooks.cluster.jobs import job_mode
from lading.hooks.cluster.jobs.excluded_nodes import ExcludedNodes
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.clusters.paper import Paper, only
from tests.reasons import message_in

REFUSES_EXCLUSIONS = """
if grep -q exclude "$2"; then
  echo 'sbatch: error: Batch job submission failed: Requested node configuration is not available' >&2; exit 1
fi
"""


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    made = Paper(tmp_path)
    made.poller.nodes.seconds = 600
    for node in ("n1", "n2"):
        made.poller.nodes.seen(node)
    return made


def fail(paper: Paper, id: int = 1, node: str = "n1") -> None:
    """Let the node of the last job fail before its task began."""
    name = paper.read("queue").strip().rpartition("|")[2]
    paper.write("queue", f"{id}|NODE_FAIL|{node}|None|{name}\n")
    paper.go()


def test_a_job_is_submitted_again_to_another_node(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    assert "exclude" not in paper.read("script.1")
    fail(paper)
    paper.go()
    assert "#SBATCH --exclude=n1\n" in paper.read("script.2")


def test_the_node_of_a_task_that_had_begun_is_excluded(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.begin("a")
    name = paper.read("queue").strip().rpartition("|")[2]
    paper.write("queue", f"1|RUNNING|n2|None|{name}\n")
    paper.go()
    paper.write("queue", f"1|NODE_FAIL||None|{name}\n")
    assert only([*paper.go(), *paper.go()], "finished")["cause"] == "node_failure"
    paper.give("b")
    paper.go()
    assert "#SBATCH --exclude=n2\n" in paper.read("script.2")


def test_a_job_that_waits_says_from_where_it_is_kept_away(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_mode.JobMode, "seconds_until_reported", 0.0)
    paper.poller.nodes.failed("n1", "it failed")
    paper.give("a")
    paper.go()
    assert "nodes where jobs failed are avoided: n1" in message_in(only(paper.go(), "waiting"))


def test_a_node_on_which_nothing_starts_is_excluded(paper: Paper) -> None:
    for number, token in enumerate(("a", "b"), 1):
        paper.give(token)
        paper.go()
        name = paper.read("queue").strip().rpartition("|")[2]
        paper.write("queue", "")
        paper.write("accounts", f"{number}|FAILED|127:0|{datetime.now().isoformat()}|n1|{name}\n")
        paper.go()
        time.sleep(2.1)
        assert only(paper.go(), "finished")["cause"] == "error"
    assert list(paper.poller.nodes.reasons()) == ["n1"]


def test_where_no_other_node_can_run_it_a_job_goes_to_all(paper: Paper) -> None:
    sbatch = paper.folder / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{REFUSES_EXCLUSIONS}"))
    paper.poller.nodes.failed("n1", "it failed")
    paper.give("a")
    assert paper.go() == []
    assert paper.read("submissions") == ""
    assert paper.go() == []
    assert "exclude" not in paper.read("script.1")
    assert [job.token for job in paper.poller.tracker.live()] == ["a"]


def test_without_nodes_that_failed_nothing_is_excluded(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    assert paper.poller.nodes.reasons() == ExcludedNodes(0).reasons() == {}


def test_jobs_of_another_queue_or_with_other_directives_go_to_another_array(paper: Paper) -> None:
    from tests.clusters.paper import envelope

    paper.give("a", "b")
    asked = envelope("c")
    paper.poller.give([type(asked)("c", asked.workload, Resources(1, 1000), None, None, 0, 1.0, 2e9, "long")])
    paper.poller.give(
        [type(asked)("d", asked.workload, Resources(1, 1000), None, None, 0, 1.0, 2e9, None, {"account": "astro"})]
    )
    paper.go()
    scripts = [paper.read(f"script.{number}") for number in (1, 2, 3)]
    assert sum("--partition=long\n" in each for each in scripts) == 1
    assert sum("--account=astro\n" in each for each in scripts) == 1
    assert sum("--array=1-2\n" in each for each in scripts) == 1


def test_a_cancellation_that_fails_is_repeated(paper: Paper) -> None:
    scancel = paper.folder / "bin" / "scancel"
    works = scancel.read_text()
    scancel.write_text("#!/bin/sh\necho 'scancel: error: Unable to contact slurm controller' >&2; exit 1\n")
    paper.give("a")
    paper.go()
    paper.poller.ask_to_cancel({"a": free_text("enough")})
    assert only([*paper.go(), *paper.go()], "finished")["cause"] == "cancelled"
    paper.go()
    assert paper.read("cancelled") == ""
    scancel.write_text(works)
    for _ in range(3):
        paper.go()
    assert paper.read("cancelled") == "1\n", "once it has worked it is not repeated"


def test_a_cancellation_is_not_repeated_for_ever(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    from lading.hooks.cluster.jobs import tracker

    monkeypatch.setattr(tracker.PendingActions, "seconds_of_cancelling", 0.0)
    scancel = paper.folder / "bin" / "scancel"
    scancel.write_text('#!/bin/sh\necho "$*" >> "$PAPER/cancelled"; echo "scancel: error: no" >&2; exit 1\n')
    paper.give("a")
    paper.go()
    paper.poller.ask_to_cancel({"a": free_text("enough")})
    for _ in range(4):
        paper.go()
    assert paper.read("cancelled") == "1\n"
    assert paper.poller.tracker.pending.cancels == {}


def test_what_is_gone_is_not_cancelled_again(paper: Paper) -> None:
    scancel = paper.folder / "bin" / "scancel"
    gone = "scancel: error: Kill job error on job id 1: Invalid job id specified"
    scancel.write_text(f'#!/bin/sh\necho "$*" >> "$PAPER/cancelled"; echo "{gone}" >&2; exit 1\n')
    paper.give("a")
    paper.go()
    paper.poller.ask_to_cancel({"a": free_text("enough")})
    for _ in range(4):
        paper.go()
    assert paper.read("cancelled") == "1\n"
