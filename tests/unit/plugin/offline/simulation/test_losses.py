"""Where the money goes that a simulated day costs over the bound."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from benchmarks.losses import Life, Losses, watched
from benchmarks.packing import general_purpose
from benchmarks.traces import poisson


def test_a_machine_loses_by_its_boot_its_emptiness_and_its_free_room() -> None:
    life = Life(4.0, 0.0, 60.0, 200.0, [(60.0, 160.0, 0), (100.0, 160.0, 1)])
    usd = {0: 1.0, 1: 2.0}
    found = life.losses(usd.__getitem__)
    # Of 4.0 one is free for all 100 s, two more for 40 s of them.
    assert found == Losses(boot=240.0, empty=160.0, unfilled=100.0, partners=80.0)


@pytest.mark.parametrize("policy", ["alone", "forecast"])
def test_the_losses_are_all_that_is_over_the_bound(policy: str) -> None:
    report, losses = watched(poisson(30, seed=2), general_purpose(), policy, "fast")
    assert min(astuple(losses)) >= 0
    assert losses.boot > 0
    # Whole seconds are paid.
    assert sum(astuple(losses)) == pytest.approx(report.gap, abs=2e-3)
