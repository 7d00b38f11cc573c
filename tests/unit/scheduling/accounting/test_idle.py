"""Which settings would halve the cost of idle cpus."""

from __future__ import annotations

import pytest

from lading.scheduling.accounting.idle import FRACTIONS, IdleChange, IdleCost, IdleRest, RestKind, halve

# What half, a quarter and a tenth of idle_seconds, and none, would have saved.
MOSTLY_IDLE_MACHINES, MOSTLY_BUSY_MACHINES = [30.0, 55.0, 80.0, 90.0], [3.0, 4.0, 5.0, 6.0]


def cost(**more: object) -> IdleCost:
    return IdleCost(**{"site": "hpc", "kind": "slurm", "cost": 100.0, **more})  # type: ignore[arg-type]


def test_the_longest_setting_that_halves_the_cost_is_proposed() -> None:
    assert len(FRACTIONS) == len(MOSTLY_IDLE_MACHINES)
    found = halve([cost(idle_seconds=600.0, machines=9, saved=MOSTLY_IDLE_MACHINES)], 100.0)
    assert found is not None
    assert (found.changes, found.saved, found.is_halved) == ((IdleChange("hpc", 600, 150, 55),), 55, True)
    assert found.rest == ()


def test_the_settings_of_several_sites_together_halve_the_cost_of_all() -> None:
    hpc = cost(idle_seconds=600.0, machines=9, saved=MOSTLY_IDLE_MACHINES)
    cloud = cost(site="cloud", kind="ec2", cost=60.0, idle_seconds=300.0, machines=5, saved=(10.0, 30.0, 40.0, 50.0))
    small = cost(site="small", cost=10.0, idle_seconds=60.0, machines=1, saved=(1.0, 2.0, 3.0, 4.0))
    found = halve([small, cloud, hpc], 170.0)
    assert found is not None
    # The largest saving comes first, and a site that is not needed is left out.
    assert found.changes == (IdleChange("hpc", 600, 150, 55), IdleChange("cloud", 300, 75, 30))
    assert (found.saved, found.is_halved) == (85, True)


def test_if_no_setting_halves_the_cost_the_rest_is_divided_by_its_cause() -> None:
    hpc = cost(idle_seconds=600.0, machines=9, saved=MOSTLY_BUSY_MACHINES)
    cloud = cost(site="cloud", kind="ec2", cost=60.0, idle_seconds=300.0)
    lab = cost(site="lab", kind="ssh", cost=40.0)
    found = halve([hpc, cloud, lab], 210.0)
    assert found is not None
    assert (found.changes, found.saved, found.is_halved) == ((IdleChange("hpc", 600, 0, 6),), 6, False)
    assert found.rest == (
        IdleRest(RestKind.BUSY, ("hpc",), 94),
        IdleRest(RestKind.UNKNOWN, ("cloud",), 60),
        IdleRest(RestKind.FIXED, ("lab",), 40),
        IdleRest(RestKind.OTHER, (), 10),
    )
    assert found.saved + sum(part.cost for part in found.rest) == found.cost


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"kind": "ssh"}, RestKind.FIXED),
        ({"kind": "ec2"}, RestKind.UNKNOWN),
        ({"idle_seconds": 120.0}, RestKind.UNKNOWN),
        ({"idle_seconds": 0.0}, RestKind.BUSY),
        ({"idle_seconds": 600.0, "machines": 1, "saved": (0.0, 0.0, 0.0, 0.0)}, RestKind.BUSY),
    ],
)
def test_no_setting_is_proposed_without_a_measured_saving(more: dict[str, object], kind: RestKind) -> None:
    found = halve([cost(**more)], 100.0)
    assert found is not None
    assert (found.changes, found.saved) == ((), 0)
    assert found.rest == (IdleRest(kind, ("hpc",), 100),)


def test_without_idle_cpus_there_is_nothing_to_halve() -> None:
    assert halve([], 0.0) is None
