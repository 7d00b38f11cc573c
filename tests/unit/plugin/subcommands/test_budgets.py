"""What ``airflow lading budgets`` shows."""

from __future__ import annotations

from lading.executors.accounting.share_rows import BudgetRow
from lading.plugin.subcommands.budgets import row_of, short_row


def test_amounts_have_units_in_a_table_and_none_for_programs() -> None:
    budget = BudgetRow(
        name="lab", who="team lab", spent=12.5, most=100.0, unit="USD", per="month", per_hour=0.25, since=0.0,
        until=100 * 3600.0, at=50 * 3600.0, hours_of_work=20.0,
    )  # fmt: skip
    row = row_of(budget)
    assert (row["spent"], row["most"], row["per_hour"], row["used_percent"]) == (12.5, 100.0, 0.25, 12.5)
    assert short_row(row) == {
        "budget": "lab",
        "of": "team lab",
        "spent": "12.50 USD",
        "limit": "100.00 USD per month",
        "used": "12.5 %",
        "rate": "0.25 USD per hour",
        # 20 hours at the present rate, and 30 at the mean.
        "expected": "25.00 USD",
        "runs out": None,
        "next period": "1970-01-05 04:00:00 UTC",
        "lifted by": None,
    }
    budget.most = 15.0
    assert row_of(budget)["runs_out"] == "1970-01-03 12:00:00 UTC"
    budget.unit, budget.spent = "cpu-hours", 0.5
    assert short_row(row_of(budget))["spent"] == "0.5 cpu-hours"
