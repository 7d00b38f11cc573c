"""What ``airflow lading budgets`` shows."""

from __future__ import annotations

from lading.executors.store.share_rows import BudgetRow
from lading.plugin.subcommands.budgets import row_of, short_row


def test_amounts_have_units_in_a_table_and_none_for_programs() -> None:
    budget = BudgetRow(
        name="lab", who="team lab", spent=12.5, most=100.0, unit="USD", per="month", per_hour=0.25, until=0.0
    )
    row = row_of(budget)
    assert (row["spent"], row["most"], row["per_hour"], row["used_percent"]) == (12.5, 100.0, 0.25, 12.5)
    assert short_row(row) == {
        "budget": "lab",
        "of": "team lab",
        "spent": "12.50 USD",
        "limit": "100.00 USD per month",
        "used": "12.5 %",
        "rate": "0.25 USD per hour",
        "next period": "1970-01-01 00:00:00 UTC",
        "lifted by": None,
    }
    budget.unit, budget.spent = "cpu-hours", 0.5
    assert short_row(row_of(budget))["spent"] == "0.5 cpu-hours"
