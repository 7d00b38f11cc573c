from __future__ import annotations

from typing import Any

import pytest

from lading.executors.sizing import preemptions
from lading.executors.sizing.sizing import Question, UnsizedJob
from lading.executors.store import Change, JobRow, State
from lading.hooks.ec2.config import EC2Config


def question(*tries: tuple[str, str | None], **hints: Any) -> Question:
    """A job whose earlier tries ran at a site and ended with a cause."""
    job = UnsizedJob("t", ("d", "r", "t"), -1, len(tries) + 1, None, hints, {})
    return Question(job, [JobRow(try_number=n, site=site, cause=cause) for n, (site, cause) in enumerate(tries, 1)], ())


LOST = "cloud", "preempted"


def test_after_two_preemptions_a_job_goes_on_demand_and_is_told_why() -> None:
    asked = question(LOST, ("cloud", "error"), LOST)
    change, [lesson] = preemptions.heeded(asked, Change("t", {"cpus": 1}), {"cloud": 2, "hpc": 1})
    assert change.values == {"cpus": 1, "capacity_type": "on-demand"}
    assert lesson.words == "goes to a machine on demand: 2 of its tries were preempted at site 'cloud'"
    assert lesson.entry().event == "lading leaves spot machines"


@pytest.mark.parametrize(
    "asked",
    [
        question(LOST),
        question(LOST, ("hpc", "preempted")),
        question(LOST, ("cloud", "node_failure")),
        question(LOST, LOST, capacity_type="spot"),
        question(LOST, LOST, capacity_type="on-demand"),
    ],
    ids=["one", "elsewhere", "of another cause", "spot is wanted", "on demand already"],
)
def test_else_nothing_changes(asked: Question) -> None:
    before = Change("t", {"cpus": 1})
    assert preemptions.heeded(asked, before, {"cloud": 2}) == (before, [])


def test_of_a_job_that_fails_nothing_more_is_said() -> None:
    before = Change("t", {"state": State.FAILED})
    assert preemptions.heeded(question(LOST, LOST), before, {"cloud": 2}) == (before, [])


@pytest.mark.parametrize(
    ("capacity_type", "after", "most"),
    [("spot-with-fallback", 2, 2), ("spot-with-fallback", 0, None), ("spot", 2, None), ("on-demand", 2, None)],
)
def test_only_a_site_that_has_machines_on_demand_sends_jobs_to_them(
    capacity_type: Any, after: int, most: int | None
) -> None:
    config = EC2Config(
        kind="ec2", subnets=("subnet-0a1b2c3d",), ami={"x86_64": "ami-0a1b2c3d"}, work_dir="/w", python="/p",
        capacity_type=capacity_type, on_demand_after=after,
    )  # fmt: skip
    assert config.most_preemptions == most
