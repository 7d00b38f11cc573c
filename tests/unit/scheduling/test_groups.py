from __future__ import annotations

import pytest

from lading.scheduling.groups import Group, admitted

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
    assert Group(RUN, "align", most, of_run).room({RUN: live, ("dag", "other"): {"align": 99}}) == room


def test_jobs_are_admitted_in_order_until_a_limit_is_reached() -> None:
    align, sort, free = Group(RUN, "align", 2, 3), Group(RUN, "sort", None, 3), Group(("dag", "other"), "align", 2)
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


def test_reasons_name_the_limit() -> None:
    group = Group(RUN, "align", 2, 3)
    assert str(group.reason({RUN: {"align": 2}})) == "waits: 2 jobs of task 'align' may be at work at once (max_jobs)"
    assert str(group.reason({RUN: {"sort": 3}})) == (
        "waits: 3 jobs of this run may be at work at once (max_jobs of the Dag)"
    )
