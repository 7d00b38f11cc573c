"""The [[shares]] and [[budgets]] of the sites file."""

from __future__ import annotations

from typing import Any

import pytest

from lading.hooks.site.share_tables import parse_budgets, parse_shares
from lading.scheduling.accounting.budgets import PeriodBudget, Unit
from lading.scheduling.accounting.share_table import Kept, Share
from lading.scheduling.accounting.who import Tenant, Who


def test_shares_are_read_in_their_order() -> None:
    tables = [
        {"team": "a", "weight": 2, "cpus": 8, "sites": {"hpc": {"memory": "4 GiB"}}, "lend": False},
        {"name": "rest", "dag": "*", "borrow": False},
    ]
    found = parse_shares(tables, ["hpc"], 60.0)
    assert found.table == (
        Share("team a", Who(team="a"), 2, (Kept(None, {"cpus": 8}), Kept("hpc", {"memory": 4096})), lends=False),
        Share("rest", Who(dag="*"), 1, (), borrows=False),
    )
    assert found.half_life == 60
    assert [found.share_of(each) for each in (Tenant("a", "x"), Tenant("b", "x"), Tenant())] == [
        "team a",
        "rest",
        "others",
    ]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"weight": 0}, "weight = 0: Input should be greater than 0"),
        ({"team": "a", "weights": 2}, "weights is unknown; did you mean weight? The keys are: "),
        ({"team": "a", "lend": False}, "lend = false: the share reserves nothing; give cpus, memory"),
        ({"team": "a", "sites": {"moon": {"cpus": 1}}}, "there is no site 'moon'; valid: hpc"),
        (
            {"team": "a", "sites": {"hpc": {}}},
            "the table reserves nothing; valid: cpus, memory, gpus, machines, usd_per_hour",
        ),
        ({"name": "others", "team": "a"}, "is the name for all jobs that match no share"),
        ({"team": "b"}, "name = 'team b': another table already has this name"),
        (
            {"name": "Téam B"},
            "name = 'Téam B': another table already has this name, or one that differs only in case, accents",
        ),
        ({"name": "Others", "team": "a"}, "is the name for all jobs that match no share"),
    ],
)
def test_what_is_wrong_with_a_share_is_said(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"\[\[shares\]\] 2: ") as raised:
        parse_shares([{"team": "b"}, table], ["hpc"], 60.0)
    assert words in str(raised.value)


def test_budgets_are_read() -> None:
    tables = [{"team": "a", "usd": 5}, {"owner": "ann", "cpu_hours": 7, "per": "day", "zone": "Europe/Berlin"}]
    assert parse_budgets(tables) == [
        PeriodBudget("team a", Who(team="a"), 5.0),
        PeriodBudget("owner ann", Who(owner="ann"), 7.0, Unit.CPU_HOURS, "day", "Europe/Berlin"),
    ]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"team": "a"}, "either usd or cpu_hours is expected"),
        ({"team": "a", "usd": 1, "cpu_hours": 1}, "either usd or cpu_hours is expected"),
        ({"usd": -1}, "usd = -1: Input should be greater than 0"),
        ({"usd": 1, "per": "year"}, "per = 'year'"),
        ({"usd": 1, "zone": "Moon"}, "'Moon' is not a time zone; valid: names such as UTC"),
        ({"usd": 1, "zone": "../UTC"}, "is not a time zone"),
    ],
)
def test_what_is_wrong_with_a_budget_is_said(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"\[\[budgets\]\] 1: ") as raised:
        parse_budgets([table])
    assert words in str(raised.value)
