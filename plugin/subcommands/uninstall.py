"""``airflow lading uninstall``: drops the tables and removes the state folder."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from airflow.utils import cli as airflow_cli
from airflow.utils.db import DBLocks, create_global_lock
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from airflow.utils.session import create_session
from sqlalchemy import func, inspect, select
from sqlalchemy.orm import Session

from lading.executors.controller_process import lives
from lading.executors.migrations.db_manager import LadingDBManager
from lading.executors.orchestrator.presence import has_ended
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State, lease, metadata
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.files.safe_files import visible
from lading.hooks.spool.spool import Spool, lock_spool
from lading.scheduling.text.printable import first_few, printable


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def uninstall(args: Namespace) -> None:
    """Ask, and remove the tables and the state folder; exits with status 1 if something still needs them."""
    settings = Settings.load()
    with create_session(scoped=False) as session:
        tables = existing_tables(session)
        if found := list(obstacles(session, settings, tables)):
            raise SystemExit("\n".join(("Nothing was removed:", *(f"* {printable(each)}" for each in found))))
        if not tables and not settings.state_folder.exists():
            print(f"There is nothing to remove: neither tables nor {settings.state_folder} exist")
            return
        print(f"{len(tables)} tables, with the records of all jobs, and {settings.state_folder} will be removed.")
        if not (args.yes or agreed()):
            raise SystemExit("Nothing was removed")
        with create_global_lock(session=session, lock=DBLocks.MIGRATIONS):
            LadingDBManager(session).drop_tables(session.connection())
            session.commit()
    print(f"{len(tables)} tables were dropped: {', '.join(tables)}" if tables else "There were no tables")
    if kept := remove_state_folder(settings):
        print(printable(f"{settings.state_folder} was emptied, but kept because it has other files: {', '.join(kept)}"))
    else:
        print(f"{settings.state_folder} was removed")


def agreed() -> bool:
    """Ask the user for confirmation.

    :raises SystemExit: standard input is closed
    """
    try:
        return input("Proceed? (y/N) ").strip().lower() in ("y", "yes")
    except EOFError:
        raise SystemExit(
            "\nNothing was removed, because there was no answer; to remove without asking, use --yes"
        ) from None


def existing_tables(session: Session) -> list[str]:
    """Return the existing tables of Lading, including the one with their version."""
    there = inspect(session.connection()).get_table_names()
    return sorted({*metadata.tables, LadingDBManager.version_table_name} & {*there})


def obstacles(session: Session, settings: Settings, tables: list[str]) -> Iterator[str]:
    """Yield what still needs the tables or the folder, and what to do about it.

    :param tables: the existing tables; an older version may lack some
    """
    for path in entries(settings.schedulers_folder):
        if not has_ended(path):
            yield (
                f"scheduler {path.name} uses Lading as its executor; set another one in [core] executor, "
                "and restart the scheduler"
            )
    if "lading_lease" in tables and (holder := lease(session)) is not None and lives(holder):
        yield f"a controller is running, pid {holder.pid} on {holder.host}; stop it, or the scheduler that started it"
    if "lading_job" in tables:
        at_work = select(func.count()).where(JobRow.state.in_((State.PLACED, State.RUNNING)))
        if number := session.scalar(at_work):
            some = "a job is" if number == 1 else f"{number} jobs are"
            yield f"{some} running; start Airflow with Lading again, and let them finish or mark their tasks as failed"
    if "lading_instance" in tables:
        live = select(InstanceRow.token).where(InstanceRow.state != InstanceState.ENDED).order_by(InstanceRow.token)
        if names := session.scalars(live).all():
            yield (
                f"launched machines or allocations have not ended: {first_few(names, 3)}; terminate them: "
                "airflow lading instances terminate"
            )
    for folder in entries(settings.spool_folder):
        if has_agent(Spool(folder)):
            yield f"the node agent of site {folder.name} is running; it exits by itself once no controller uses it"


def entries(folder: Path) -> list[Path]:
    return visible(folder) if folder.is_dir() else []


def has_agent(spool: Spool) -> bool:
    if not spool.lock.exists():
        return False
    if (descriptor := lock_spool(spool)) is None:
        return True
    os.close(descriptor)
    return False


def remove_state_folder(settings: Settings) -> list[str]:
    """Remove Lading's files from the state folder, and the folder itself if it is empty then.

    The option can name a folder that has files of other programs, which are never touched.

    :returns: the names of the remaining files
    """
    folder, log = settings.state_folder, settings.controller_log
    written = settings.controller_mark, settings.published_sites
    ours = (
        log,
        *folder.glob(f"{log.name}.[0-9]"),  # before the log was parted
        settings.controller_bell,
        settings.stopped,
        settings.schedulers_folder,
        settings.spool_folder,
        *written,
        # Temporary files of a process that died while writing these files.
        *(left for path in written for left in folder.glob(f".{path.name}.*")),
    )
    for path in ours:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if not settings.state_folder.is_dir():
        return []
    kept = sorted(path.name for path in settings.state_folder.iterdir())
    if not kept:
        settings.state_folder.rmdir()
    return kept
