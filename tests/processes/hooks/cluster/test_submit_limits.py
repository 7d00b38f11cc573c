"""What a submitter does at a limit on the number of jobs: a queue that has one, and a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.submit_limits import BackPressure
from lading.hooks.cluster.allocations.script import market, reserve
from lading.hooks.cluster.checks.checks import node_checks
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.ssh.answer import CommandResult
from tests.clusters.fleet import Fleet
from tests.clusters.paper import Paper, envelope, only
from tests.reasons import message_in

LIMIT = 12


class Queue:
    """A paper cluster that takes so many jobs at a time, and its controller's clock."""

    def __init__(self, folder: Path, most: int = LIMIT) -> None:
        self.paper, self.now = Paper(folder), 1000.0
        self.paper.write("mode", f"most:{most}")
        self.paper.poller.submitter.pressure.clock = lambda: self.now
        self.ends = 0

    @property
    def refused(self) -> int:
        return self.paper.read("refused").count("x")

    @property
    def submitted(self) -> int:
        return len(self.paper.read("queue").splitlines())

    def pass_time(self, seconds: float) -> list[str]:
        """Let time pass, with a round each two seconds; returns why jobs wait."""
        reasons = []
        for _ in range(int(seconds // 2)):
            self.now += 2.0
            reasons += [message_in(event) for event in self.paper.go() if event["event"] == "waiting"]
        return reasons

    def end(self, count: int) -> None:
        """Let jobs end, of those that were submitted first."""
        jobs = list(self.paper.poller.tracker.live())[:count]
        lines = self.paper.read("queue").splitlines()
        self.paper.write("queue", "".join(f"{line}\n" for line in lines[count:]))
        for job in jobs:
            self.paper.begin(job.token)
            self.paper.finish(job.token)
        self.ends += count


def test_a_limit_is_met_once_and_then_filled_as_jobs_end(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.paper.give(*(f"t{number:02}" for number in range(40)))
    reasons = queue.pass_time(20)
    assert queue.submitted == LIMIT
    assert queue.refused == 2, "the array of all, and the job after the last that fits"
    assert f"waits: {LIMIT} jobs are submitted, and AssocMaxSubmitJobLimit allows {LIMIT}" in reasons
    said = f"{LIMIT} jobs are submitted, and AssocMaxSubmitJobLimit allows {LIMIT}"
    assert queue.paper.poller.submitter.limit == said, "which `airflow lading sites` shows"
    refused, began = queue.refused, 1000.0
    while queue.ends < 28:
        queue.end(4)
        queue.pass_time(8)
        assert queue.submitted == LIMIT, "the cluster is never idle"
    assert queue.refused - refused <= (queue.now - began) / BackPressure.seconds_between_probes, "the probes alone"
    queue.end(LIMIT)
    queue.pass_time(8)
    assert not list(queue.paper.poller.tracker.waiting()), "all were submitted"
    assert not list(queue.paper.poller.tracker.live()), "all have run"
    said = f"0 jobs are submitted, and AssocMaxSubmitJobLimit allows {LIMIT}"
    assert queue.paper.poller.submitter.limit == said, "what is so now"


def test_a_refusal_that_is_of_no_number_of_jobs_is_shown_while_it_keeps_jobs_back(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.paper.give("t1")
    queue.pass_time(4)
    submitter = queue.paper.poller.submitter
    submitter.pressure.refuse(1, 1, "the disk of the controller is full")
    assert "the disk of the controller is full" in (submitter.limit or "")
    queue.now += BackPressure.seconds_between_probes
    assert submitter.limit is None, "jobs are submitted again"


def test_a_limit_is_probed_once_a_minute_and_used_when_it_is_higher(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.paper.give(*(f"t{number:02}" for number in range(40)))
    queue.pass_time(10)
    before = queue.refused
    queue.pass_time(10 * BackPressure.seconds_between_probes)
    assert (queue.submitted, queue.refused - before) == (LIMIT, 10)
    queue.paper.write("mode", "most:30")
    queue.pass_time(2 * BackPressure.seconds_between_probes + 20)
    assert queue.submitted == 30
    assert queue.refused - before <= 13
    assert queue.paper.poller.submitter.pressure.most == 30


def test_jobs_that_the_batch_system_counts_on_after_their_end_cost_no_slot(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.paper.give(*(f"t{number:02}" for number in range(30)))
    queue.pass_time(10)
    before = queue.refused
    queue.end(5)
    listed = queue.paper.read("queue")
    queue.paper.write("mode", f"most:{LIMIT - 5}")  # it still counts all of them
    queue.pass_time(10)
    assert queue.refused - before <= 5
    assert queue.paper.read("queue") == listed
    queue.paper.write("mode", f"most:{LIMIT}")
    queue.pass_time(20)
    assert queue.submitted == LIMIT


@pytest.mark.parametrize("first", [0, 3])
def test_a_limit_that_others_use_up_is_no_storm(tmp_path: Path, first: int) -> None:
    queue = Queue(tmp_path, most=first)
    queue.paper.give(*(f"t{number:02}" for number in range(40)))
    queue.pass_time(5 * BackPressure.seconds_between_probes)
    assert queue.submitted == first
    assert queue.refused <= 7


PARTITIONS = "PartitionName=batch Default=YES MaxNodes=UNLIMITED MaxTime=00:05:00 TotalNodes=3 Nodes=n[1-3]\n"


def asked(tmp_path: Path, time_limit: int | None) -> tuple[Paper, list[dict[str, Any]]]:
    """A task of so many seconds in a partition that lets jobs run for five minutes, and what is said of it."""
    paper = Paper(tmp_path)
    paper.write("nodes", f"batch*|8|16000|3|idle\n{PARTITIONS}")
    paper.poller.give([replace(envelope("a"), time_limit=time_limit)])
    return paper, paper.go()


@pytest.mark.parametrize("seconds", [60, 180, 300, None])
def test_no_job_asks_for_more_time_than_its_queue_gives(tmp_path: Path, seconds: int | None) -> None:
    paper, _ = asked(tmp_path, seconds)
    limit = "00:04:00" if seconds == 60 else "00:05:00"
    assert f"#SBATCH --time={limit}\n" in paper.read("script.1")


def test_a_task_of_more_time_than_its_queue_gives_is_refused_with_both_figures(tmp_path: Path) -> None:
    paper, events = asked(tmp_path, 301)
    end = only(events, "finished")
    assert end["cause"] == "submit_rejected"
    assert "time = 5 min 1 s" in str(end["reason"])
    assert "default queue" in str(end["reason"])
    assert "at most 5 min" in str(end["reason"])
    assert paper.read("submissions") == ""


def test_the_check_says_that_a_time_of_the_table_is_more_than_the_queue_gives(tmp_path: Path) -> None:
    answer = CommandResult(0, f"batch*|8|16000|3|idle\n{PARTITIONS}")
    config = Paper(tmp_path).config
    said = [each.message for each in node_checks(config, SLURM(), answer)]
    assert not [message for message in said if "at most" in message], "nobody has written the day that is the default"
    table = {**config.model_dump(include=config.model_fields_set), "time": 3600}
    [found] = [each for each in node_checks(ClusterConfig(**table), SLURM(), answer) if "at most" in each.message]
    assert (found.good, found.warns) == (True, True)
    assert found.message.startswith("time = 1 h, but a job in the default queue can run for at most 5 min")


def test_an_allocation_is_asked_for_no_longer_than_its_queue_gives(tmp_path: Path) -> None:
    config = Paper(tmp_path).config.model_copy(update={"mode": "allocation"})
    assert market(config).seconds == config.allocation_time - reserve(config)
    assert market(config, 3600).seconds == 3600 - reserve(config)


def test_allocations_are_jobs_for_the_limit_and_their_tasks_are_none(tmp_path: Path) -> None:
    fleet, now = Fleet(tmp_path, max_allocations=9), 1000.0
    fleet.write("mode", "most:2")
    launcher = fleet.poller.submitter
    launcher.pressure.clock = lambda: now
    for _ in range(6):
        now += 2.0
        fleet.give(*(f"t{number}-{now:.0f}" for number in range(8)), cpus=8)
        fleet.go()
    assert len(fleet.names) == 2
    assert fleet.read("refused").count("x") == 1, "the round ended, and no other allocation was tried"
    assert "2 jobs are submitted, and AssocMaxSubmitJobLimit allows 2" in str(launcher.market().held)
    assert launcher.limit is not None
    now += BackPressure.seconds_between_probes
    for _ in range(4):
        fleet.go()
    assert fleet.read("refused").count("x") == 2, "one was tried"
    fleet.write("mode", "most:3")
    now += BackPressure.seconds_between_probes
    for _ in range(4):
        fleet.go()
    assert len(fleet.names) == 3
    assert fleet.read("refused").count("x") <= 3
