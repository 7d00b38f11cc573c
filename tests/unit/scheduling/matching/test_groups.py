from __future__ import annotations

import pytest

from lading.scheduling.matching.groups import Allowance, GroupMachines, JobGroup, Label, admitted
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import LAYOUT
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.filling import queue_up
from lading.scheduling.placing.rooms import Rooms

RUN = ("dag", "run")


@pytest.mark.parametrize(
    ("most", "of_run", "live", "room"),
    [
        (None, None, {}, None),
        (5, None, {}, 5),
        (5, None, {"align": 3, "sort": 9}, 2),
        (5, None, {"align": 7}, 0),
        (None, 4, {"align": 1, "sort": 1}, 2),
        (3, 10, {"align": 1, "sort": 8}, 1),
    ],
)
def test_room(most: int | None, of_run: int | None, live: dict[str, int], room: int | None) -> None:
    assert JobGroup(RUN, "align", most, of_run).room({RUN: live, ("dag", "other"): {"align": 99}}) == room


def test_jobs_are_admitted_in_order_until_a_limit_is_reached() -> None:
    align, sort, free = (
        JobGroup(RUN, "align", 2, 3),
        JobGroup(RUN, "sort", None, 3),
        JobGroup(("dag", "other"), "align", 2),
    )
    jobs = [
        ("a1", align),
        ("s1", sort),
        ("a2", align),
        ("a3", align),
        ("s2", sort),
        ("f1", free),
        ("f2", free),
        ("f3", free),
    ]
    assert admitted(jobs, {}) == ["a1", "s1", "a2", "f1", "f2"]
    assert admitted(jobs, {RUN: {"align": 2}}) == ["s1", "f1", "f2"]
    assert admitted(jobs, {RUN: {"merge": 3}}) == ["f1", "f2"]


MANY = 10**9  # as an author may write them; each of them on its own would take all memory


def of_many_nodes(name: str, nodes: int = MANY) -> WaitingJob:
    return WaitingJob(
        name, Resources(1, 1), task="d r t", nodes=nodes, max_instances=2 * MANY, hints=frozenset([LAYOUT])
    )


def test_the_nodes_of_a_batch_job_are_a_number_and_are_counted_once() -> None:
    job, other = of_many_nodes("a"), of_many_nodes("b", nodes=MANY - 1)
    machines = GroupMachines.from_jobs([job, other])
    for _ in range(2):
        machines.put(job, "hpc", "hpc", is_queue=True)
    machines.put(other, "lab", "m", is_queue=False)
    assert machines.limits("hpc", []).tasks == {"d r t": MANY - 1}
    assert machines.full(other) is None
    machines.put(of_many_nodes("c", nodes=2), "hpc", "hpc", is_queue=True)
    assert machines.full(other) is not None
    there = Location("m", Resources(1, 1), tasks=frozenset(["d r t"]))
    assert machines.limits("lab", [there]).tasks == {"d r t": MANY - 2}, "one of it is used already"
    assert machines.are_at(Label("task", "d r t"), "lab")
    assert not machines.are_at(Label("task", "d r t"), "hpc"), "a batch job's nodes are not shared"


def test_jobs_of_any_number_of_nodes_are_queued_up_by_how_many_are_left() -> None:
    jobs = [of_many_nodes(name) for name in "abc"]
    hpc = Location("hpc", Resources(1, 1), max_jobs=9, hints=frozenset([LAYOUT]))
    allowance = Allowance(InstanceLimits(tasks={"d r t": 2 * MANY}), [])
    assert queue_up(jobs, [hpc], allowance, now=0.0) == {"a": "hpc", "b": "hpc"}
    rooms = Rooms([hpc], InstanceLimits(tasks={"d r t": 2 * MANY}), now=0.0)
    for job in jobs[:2]:
        assert rooms.has_room(job, "hpc")
        rooms.put(job, "hpc")
    assert not rooms.has_room(jobs[2], "hpc")


def test_reasons_name_the_limit() -> None:
    group = JobGroup(RUN, "align", 2, 3)
    assert (
        str(group.reason({RUN: {"align": 2}}))
        == "waits: at most 2 jobs of task 'align' can be active at once (max_jobs)"
    )
    assert str(group.reason({RUN: {"sort": 3}})) == (
        "waits: at most 3 jobs of this run can be active at once (max_jobs of the Dag)"
    )
