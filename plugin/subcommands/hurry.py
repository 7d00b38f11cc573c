"""``airflow lading hurry``: how much it is worth to finish a live run early, and when it has to finish."""

from __future__ import annotations

import getpass
import sys
from argparse import Namespace

from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.executors.orchestrator import airflow_run_requests
from lading.executors.settings import Settings
from lading.hooks.files.bell import Bell
from lading.plugin.database import reading_store
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.console import complain, readable


@airflow_cli.action_cli(check_db=False)  # type: ignore[untyped-decorator]
@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def hurry(args: Namespace) -> None:
    """Set or withdraw the hurry of a run, and print what it uses; exits with status 1 if that is not possible."""
    is_asked = args.hurry is not None or args.finish_by is not None
    if is_asked and args.withdraw:
        complain("--withdraw removes what was set before; give it alone, or give HURRY and --finish-by without it")
        sys.exit(1)
    with reading_store(AirflowHost()) as session:
        if is_asked or args.withdraw:
            try:
                airflow_run_requests.ask(
                    session, args.dag_id, args.run_id, args.hurry, args.finish_by, getpass.getuser()
                )
            except (LookupError, ValueError) as error:
                complain(str(error))
                sys.exit(1)
            session.commit()
            Bell(Settings.load().controller_bell).ring()
        if (found := airflow_run_requests.terms(session, args.dag_id, args.run_id).get(args.run_id)) is None:
            complain(f"Dag {args.dag_id} has no unfinished run {args.run_id}")
            sys.exit(1)
        for line in found.lines():
            print(readable(AirflowHost(), line))
