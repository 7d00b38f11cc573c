"""What Dag runs can cost, and what is launched for them within that."""

from __future__ import annotations

import math

import pytest

from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import Budget, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.placement import assign
from lading.scheduling.provisioning import Launch, decide
from lading.scheduling.provisioning.budgets import within
from tests.reasons import clauses

NOW = 10_000.0
SIZE = Resources(4, 8000)
MARKET = MachineMarket(Catalogue({"m5.xlarge": InstanceType("m5.xlarge", SIZE, (Offering(1.0),))}))


def budget(most: float, spent: float = 0.0, per_hour: float = 0.0, run: str = "d r") -> Budget:
    return Budget(run, most, spent, per_hour)


def jobs(count: int, its: Budget | None, start: str = "a") -> list[PlannedJob]:
    return [
        PlannedJob(f"{start}{number}", Resources(4, 1000), queued_at=0.0, budgets=() if its is None else (its,))
        for number in range(count)
    ]


def launch(*names: str, usd: float | None = 1.0) -> Launch:
    return Launch("m", SIZE, math.inf, names, usd_per_hour=usd)


def bought(count: int, its: Budget | None, live: list[Location] | None = None) -> int:
    return len(decide(jobs(count, its), live or [], MARKET, now=NOW).launches)


@pytest.mark.parametrize(
    ("its", "count"),
    [
        (None, 10),
        (budget(100), 10),
        (budget(3), 3),  # an hour of each
        (budget(0.5), 1),  # one is always bought
        (budget(5, spent=2, per_hour=1), 2),
        (budget(5, spent=4.5, per_hour=1), 0),
        (budget(5, spent=5), 0),
        (budget(5, spent=7), 0),
    ],
)
def test_no_more_is_launched_than_what_is_left_pays_for_an_hour(its: Budget | None, count: int) -> None:
    assert bought(10, its) == count


def test_what_boots_for_a_run_counts_and_its_jobs_may_use_it() -> None:
    booting = [Location(f"L{n}", SIZE, instance_type="m5.xlarge", usd_per_hour=1.0, booting=True) for n in range(2)]
    assert bought(10, budget(3), booting) == 1
    assert bought(2, budget(3, spent=3), booting) == 0
    found = decide(jobs(3, budget(3, spent=3)), booting, MARKET, now=NOW)
    assert (found.releases, sorted(clauses(found.waits))) == ({}, ["a2"]), "two have a place, and one waits"


def test_the_reason_says_what_is_spent_or_would_be() -> None:
    spent = decide(jobs(1, budget(5, spent=5.25)), [], MARKET, now=NOW).waits["a0"]
    assert str(spent) == "waits: its run has spent 5.25 of its 5.00 USD (max_usd)"
    waits = decide(jobs(4, budget(5, spent=3.5, per_hour=1)), [], MARKET, now=NOW).waits
    assert str(waits["a0"]).startswith(
        "waits: the machines of its run cost 1.00 USD per hour, and 1.50 of its 5.00 USD are left: with more"
    )
    assert spent.limit == waits["a0"].limit == spent.meaning.kind == "max_usd"


def test_one_run_at_its_end_holds_up_no_other() -> None:
    rich, poor = jobs(2, budget(50, run="rich"), "r"), jobs(2, budget(1, spent=1, run="poor"), "p")
    found = decide([*poor, *rich, *jobs(1, None, "f")], [], MARKET, now=NOW)
    assert len(found.launches) == 3
    assert clauses(found.waits).keys() == {"p0", "p1"}


def test_each_run_at_its_end_gets_its_own_figures() -> None:
    """Their jobs are alike, and take the same way."""
    spent = {"d poor": budget(1, spent=1, run="d poor"), "d spent": budget(5, spent=6, run="d spent"), "d none": None}
    waiting = [
        WaitingJob(name=run, resources=Resources(4, 1000), queued_at=number, budgets=() if its is None else (its,))
        for number, (run, its) in enumerate(spent.items())
    ]
    found = assign(waiting, [SiteView(name="cloud", market=MARKET)], now=NOW)
    poor = "waits: site 'cloud': its run has spent 1.00 of its 1.00 USD (max_usd)"
    assert str(found.waits["d poor"]) == poor
    assert "has spent 6.00 of its 5.00 USD" in str(clauses(found.waits["d spent"]))
    assert clauses(found.waits["d none"]) is None, "a machine is launched for it"


def test_what_several_share_is_launched_when_one_of_them_can_pay_and_each_pays_its_part() -> None:
    rich, poor = budget(50, run="rich"), budget(1, spent=1, run="poor")
    known = [*jobs(2, rich, "r"), *jobs(2, poor, "p"), *jobs(1, None, "f")]
    assert within([launch("r0", "p0")], known, {}) == ((launch("r0", "p0"),), {})
    assert within([launch("p0", "f0")], known, {})[1] == {}
    assert within([launch("p0", "p1")], known, {})[1].keys() == {"p0", "p1"}
    half = budget(1, run="rich")
    both = [launch("r0", "f0"), launch("r1")]  # half of the first one is its own
    assert len(within(both, [*jobs(2, half, "r"), *jobs(1, None, "f")], {})[0]) == 1


def test_allocations_without_a_price_end_with_the_money_too() -> None:
    market = Market(SIZE, 100, 3600, 3600, 10)
    assert len(decide(jobs(3, budget(5, spent=4.9)), [], market, now=NOW).launches) > 0
    found = decide(jobs(3, budget(5, spent=5)), [], market, now=NOW)
    assert (found.launches, sorted(clauses(found.waits))) == ((), ["a0", "a1", "a2"])
