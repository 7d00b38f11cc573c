"""What each is charged: cents that add up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.accounting.bill import BillParts, total
from lading.scheduling.accounting.chargeback import charges, rounded

MONEY = st.floats(0, 1e5, allow_nan=False)
PARTS = st.builds(
    BillParts,
    jobs=st.integers(0, 9),
    used=MONEY,
    unused=MONEY,
    idle=MONEY,
    boot=MONEY,
    usd_used=MONEY,
    usd_unused=MONEY,
    usd_idle=MONEY,
    usd_boot=MONEY,
    is_priced=st.just(True),
)


@given(st.dictionaries(st.one_of(st.none(), st.text(max_size=3)), PARTS, max_size=6))
def test_the_cents_of_all_rows_are_those_of_the_bill(bill: dict[str | None, BillParts]) -> None:
    rows = charges(bill)
    assert round(100 * sum(row.usd or 0.0 for row in rows)) == round(100 * (total(bill.values()).usd or 0.0))
    assert sum(row.jobs for row in rows) == sum(each.jobs for each in bill.values())
    hours = math.fsum(row.cpu_hours for row in rows)
    assert hours == pytest.approx(sum(each.cpu_seconds for each in bill.values()) / 3600)


@given(st.dictionaries(st.integers(), MONEY, max_size=20))
def test_none_is_off_by_a_cent(amounts: dict[int, float]) -> None:
    found = rounded(amounts)
    assert all(abs(found[key] - amount) < 0.01 + 1e-6 for key, amount in amounts.items())


def test_what_has_no_price_has_hours_alone() -> None:
    rows = charges({"a": BillParts(jobs=2, used=3600.0), None: BillParts(idle=7200.0)})
    assert [(row.kind, row.name, row.cpu_hours, row.usd) for row in rows] == [
        ("jobs", "a", 1.0, None),
        ("idle", None, 2.0, None),
    ]
