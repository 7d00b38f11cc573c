"""Which settings would halve the cost of idle machines."""

from __future__ import annotations

import pytest

from lading.scheduling.insight.idle import FRACTIONS, IdleCost, halve

# What half, a quarter and a tenth of idle_seconds, and none, would have saved.
MOSTLY_AFTER_JOBS, BETWEEN_JOBS = (30.0, 55.0, 80.0, 90.0), (3.0, 4.0, 5.0, 6.0)


def cost(**more: object) -> IdleCost:
    return IdleCost(**{"site": "hpc", "kind": "slurm", "cost": 100.0, "in_usd": True, **more})  # type: ignore[arg-type]


def test_the_longest_setting_that_halves_the_cost_is_proposed() -> None:
    found = cost(idle_seconds=600.0, machines=9, saved=MOSTLY_AFTER_JOBS)
    assert len(FRACTIONS) == len(MOSTLY_AFTER_JOBS)
    assert (found.choice, found.proposed) == (1, 150)
    assert (
        found.remedy()
        == "Lower idle_seconds of hpc from 600 to 150: this would have saved $55.00, 55 % of its idle cost."
    )
    hours = cost(idle_seconds=600.0, machines=9, saved=MOSTLY_AFTER_JOBS, in_usd=False)
    assert "55 cpu-hours, 55 % of its idle cost" in hours.remedy()


def test_idle_time_between_jobs_needs_fewer_machines() -> None:
    found = cost(idle_seconds=600.0, machines=9, saved=BETWEEN_JOBS)
    assert found.proposed == 0
    assert found.remedy() == (
        'Set hurry of hpc to "cheap", so that Lading uses fewer allocations for longer: most idle cpus are on '
        "allocations that also run jobs. Even idle_seconds = 0 instead of 600 would have saved only $6.00, 6 % of "
        "its idle cost."
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kind": "ssh"}, "send more jobs to this site"),
        ({"kind": "ec2"}, 'Lower idle_seconds of hpc. Set hurry of hpc to "cheap", so that Lading uses fewer machines'),
        ({"idle_seconds": 0.0}, "Its idle_seconds is 0 already."),
        ({"idle_seconds": 120.0}, "from 120 to 60. What that saves is unknown"),
    ],
)
def test_what_is_unknown_is_not_proposed(more: dict[str, object], said: str) -> None:
    found = cost(**more)
    assert (found.choice, found.proposed) == (None, None)
    assert said in found.remedy()


def test_the_settings_of_several_sites_together_halve_the_cost_of_all() -> None:
    hpc = cost(site="hpc", idle_seconds=600.0, machines=9, saved=MOSTLY_AFTER_JOBS)
    cloud = cost(site="cloud", kind="ec2", cost=60.0, idle_seconds=300.0, machines=5, saved=(10.0, 30.0, 40.0, 50.0))
    small = cost(site="small", cost=10.0, idle_seconds=60.0, machines=1, saved=(1.0, 2.0, 3.0, 4.0))
    assert halve([hpc, cloud, small], 170.0) == (
        "Lower idle_seconds of hpc from 600 to 150 and of cloud from 300 to 75: this would have saved $85.00, 50 % of "
        "$170.00."
    )


def test_what_settings_save_at_most_is_said_if_they_cannot_halve_the_cost() -> None:
    hpc = cost(site="hpc", idle_seconds=600.0, machines=9, saved=BETWEEN_JOBS)
    cloud = cost(site="cloud", kind="ec2", cost=60.0, idle_seconds=300.0)
    lab = cost(site="lab", kind="ssh", cost=40.0)
    assert halve([hpc, cloud, lab], 200.0) == (
        "Even idle_seconds = 0 at hpc would have saved only $6.00, 3 % of $200.00. What lowering it at cloud saves is "
        'unknown: no idle machine was released in this time. To save more, set hurry = "cheap" at hpc and cloud, '
        "which uses fewer machines for longer, or send more jobs to lab, whose machines cost the same without jobs."
    )
    assert halve([lab], 40.0) == (
        "No idle_seconds is known to save any of $40.00. To save more, send more jobs to lab, whose machines cost "
        "the same without jobs."
    )
    assert halve([], 0.0) == ""
