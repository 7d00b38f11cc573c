"""``airflow lading wake``: a new attempt now for gangs and jobs that sleep."""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.executors.settings import Settings
from lading.executors.store.gangs import rows
from lading.hooks.files.bell import Bell
from lading.plugin.database import reading_store


@airflow_cli.action_cli(check_db=False)  # type: ignore[untyped-decorator]
@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def wake(args: Namespace) -> None:
    """Wake gangs and jobs; status 1 if nothing sleeps that was named."""
    with reading_store() as session:
        number = rows.wake(session, args.dag_id, args.run_id, args.gang)
    if not number:
        named = " ".join(filter(None, (args.dag_id, args.run_id, args.gang and f"--gang {args.gang}")))
        print(f"nothing sleeps until its next attempt of: {named}; see `airflow lading jobs --state attempted`")
        sys.exit(1)
    Bell(Settings.load().controller_bell).ring()
    print(f"{number} woken; room is looked for at once")
