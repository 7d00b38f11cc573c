"""``airflow lading budgets``: what budgets have spent in their periods, and requests to lift them."""

from __future__ import annotations

import getpass
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.executors import request_rows
from lading.executors.accounting import share_rows
from lading.executors.accounting.share_rows import BudgetRow
from lading.executors.request_rows import RequestKind
from lading.executors.settings import Settings
from lading.hooks.files.bell import Bell
from lading.plugin.database import reading_store
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.console import complain, show
from lading.scheduling.text.units import format_count, format_moment, format_usd


@airflow_cli.action_cli(check_db=False)  # type: ignore[untyped-decorator]
@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def budgets(args: Namespace) -> None:
    """Print a row per budget, or request that one be lifted or restored; exits with status 1 if it does not exist."""
    if args.lift is not None and args.restore is not None:
        complain("--lift and --restore are opposites; give only one of them")
        sys.exit(1)
    with reading_store(AirflowHost()) as session:
        if (name := args.lift if args.lift is not None else args.restore) is not None:
            kind = RequestKind.RESTORE if args.lift is None else RequestKind.LIFT
            try:
                request_rows.ask(session, kind, name, getpass.getuser())
            except LookupError as error:
                complain(str(error))
                sys.exit(1)
            session.commit()
            Bell(Settings.load().controller_bell).ring()
            complain("Requested; the controller carries this out within seconds.")
            return
        rows = [row_of(each) for each in share_rows.budgets(session)]
    if not rows:
        complain(
            "There are no budgets. Declare them under [[budgets]] in the sites file, which the controller reads "
            "when it starts."
        )
    show(AirflowHost(), list(map(short_row, rows)) if args.output in ("table", "plain") else rows, args.output)


def row_of(budget: BudgetRow) -> dict[str, Any]:
    outlook = budget.outlook
    return {
        "budget": budget.name,
        "who": budget.who,
        "spent": float(f"{budget.spent:.6g}"),
        "most": budget.most,
        "unit": budget.unit,
        "per": budget.per,
        "used_percent": round(100 * budget.spent / budget.most, 1),
        "per_hour": float(f"{budget.per_hour:.6g}"),
        "expected": float(f"{outlook.by(budget.until):.6g}"),
        "runs_out": None if budget.spent_at is None else format_moment(budget.spent_at),
        "until": format_moment(budget.until),
        "lifted_by": budget.lifted_by if budget.is_lifted else None,
    }


def short_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a budget for a table."""

    def amount(value: float) -> str:
        return f"{format_usd(value) if row['unit'] == 'USD' else format_count(value)} {row['unit']}"

    return {
        "budget": row["budget"],
        "of": row["who"],
        "spent": amount(row["spent"]),
        "limit": f"{amount(row['most'])} per {row['per']}",
        "used": f"{row['used_percent']:g} %",
        "rate": f"{amount(row['per_hour'])} per hour",
        "expected": amount(row["expected"]),
        "runs out": row["runs_out"],
        "next period": row["until"],
        "lifted by": row["lifted_by"],
    }
