"""``airflow lading wake``: starts a new attempt now for sleeping gangs and jobs."""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.executors.settings import Settings
from lading.executors.store.gangs import rows
from lading.hooks.files.bell import Bell
from lading.plugin.database import reading_store
from lading.plugin.host import AirflowHost


@airflow_cli.action_cli(check_db=False)  # type: ignore[untyped-decorator]
@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def wake(args: Namespace) -> None:
    """Wake gangs and jobs; exits with status 1 if none of the named ones is sleeping."""
    with reading_store(AirflowHost()) as session:
        number = rows.wake(session, args.dag_id, args.run_id, args.gang)
    if not number:
        named = " ".join(filter(None, (args.dag_id, args.run_id, args.gang and f"--gang {args.gang}")))
        print(f"no job is sleeping for: {named}; `airflow lading jobs --state attempted` lists sleeping jobs")
        sys.exit(1)
    Bell(Settings.load().controller_bell).ring()
    print(f"{number} woken; Lading tries to place them now")
