"""``airflow lading clean``: removes old leftovers at sites and on this machine, and spares what live jobs need."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow.models.taskinstance import TaskInstance
from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select

from lading.executors.settings import Settings
from lading.executors.store import JobRow, State
from lading.hooks.job_scripts.hook import RUNS_FOLDER
from lading.hooks.job_scripts.run_site import RunSite, read_site
from lading.hooks.job_scripts.run_store import RunStore
from lading.hooks.site import RemovedLeftovers
from lading.operators.job_script import token
from lading.plugin.database import read_connections, reading_store
from lading.plugin.host import AirflowHost
from lading.plugin.manager import site_kinds
from lading.plugin.sites import SitesError, declared, faults
from lading.plugin.subcommands.console import complain, show
from lading.scheduling.text.nearest import nearest_first

HERE = "(this machine)"
# A task in one of these states may have a batch job whose files are still needed.
AT_WORK = (
    TaskInstanceState.QUEUED,
    TaskInstanceState.RUNNING,
    TaskInstanceState.RESTARTING,
    TaskInstanceState.DEFERRED,
)


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def clean(args: Namespace) -> None:
    """Remove leftovers and print what was removed; exits with status 1 if something could not be removed."""
    read_connections()
    outcomes, good = [], True
    for outcome in clean_sites(args.site, args.older_than, args.dry_run):
        if outcome.trouble is not None:
            good = False
            complain(f"site {outcome.site}: {outcome.trouble}")
        if outcome.number:
            outcomes.append(outcome)
    mapper = short_row if args.output in ("table", "plain") else outcome_row
    show(AirflowHost(), list(map(mapper, outcomes)), args.output)
    if not outcomes:
        complain("There is nothing to remove.")
    elif args.dry_run:
        complain("Nothing was removed, because of --dry-run.")
    if not good:
        sys.exit(1)


class Cleaner(Protocol):
    """Removes leftovers by age; see :meth:`lading.hooks.site.Site.clean`."""

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]: ...


@dataclass(frozen=True, slots=True)
class CleanResult:
    """Leftovers of one kind that were removed at a site, or what went wrong.

    :param trouble: what went wrong, as text
    """

    site: str
    kind: str = ""
    number: int = 0
    mib: float = 0.0
    trouble: str | None = None


def outcome_row(outcome: CleanResult) -> dict[str, Any]:
    return {"site": outcome.site, "kind": outcome.kind, "number": outcome.number, "mib": round(outcome.mib, 1)}


def short_row(outcome: CleanResult) -> dict[str, Any]:
    """Return the columns of an outcome for a table."""
    return {"site": outcome.site, "kind": outcome.kind, "number": outcome.number, "size": f"{outcome.mib:.1f} MiB"}


def clean_sites(only: Sequence[str], older_than: float, dry_run: bool) -> Iterator[CleanResult]:
    """Remove leftovers, site by site. If a site cannot be reached, the other sites are still cleaned.

    :param only: the names of the sites; empty: all sites, and this machine
    :param older_than: leftovers are removed if they have not changed for this many seconds
    :param dry_run: only report what would be removed
    :raises SitesError: the sites file cannot be read
    :raises SQLAlchemyError: the database cannot be read
    """
    settings = Settings.load()
    tables = declared(settings, site_kinds())
    keep = living()
    for name in only or tables:
        try:
            site = cleaner(settings, name, tables)
            for each in site.clean(older_than, keep, dry_run):
                yield CleanResult(
                    name, each.kind, each.number, each.mib, each.trouble and f"{each.kind}: {each.trouble}"
                )
        except (OSError, ValueError) as error:
            yield CleanResult(name, trouble=str(error).removeprefix(f"site {name}: "))
    if not only:
        for each in RunStore(RUNS_FOLDER.expanduser()).clean(older_than, dry_run=dry_run):
            yield CleanResult(HERE, each.kind, each.number, each.mib, each.trouble)


def living() -> frozenset[str]:
    """Return the tokens of everything that is alive: jobs of the executor, runs of job scripts that Airflow tasks have
    submitted, and runs saved on this machine.
    """
    with reading_store(AirflowHost()) as session:
        jobs = session.scalars(select(JobRow.token).where(JobRow.state.in_((State.PLACED, State.RUNNING)))).all()
        tries = session.execute(
            select(TaskInstance.id, TaskInstance.try_number).where(TaskInstance.state.in_(AT_WORK))
        ).all()
    saved = RunStore(RUNS_FOLDER.expanduser()).living()
    return frozenset(jobs) | {token(each) for each in tries} | saved


def cleaner(settings: Settings, name: str, tables: dict[str, Any]) -> Cleaner:
    """Return the site with a name. If only job scripts can use its table, return a cleaner for their runs.

    :raises SitesError: there is no such site, or its table is not valid
    """
    if name not in tables:
        raise SitesError(f"there is no such site; the sites are: {nearest_first(name, tables)}")
    kinds = site_kinds()
    errors = faults(name, tables[name], kinds)
    if not errors:
        kind = kinds[tables[name]["kind"]]
        return kind(name, kind.config_model(**tables[name]), settings.spool_folder / name)
    try:
        assert settings.sites_file is not None
        return JobScriptRuns(read_site(settings.sites_file, name))
    except ValueError:
        raise SitesError("; ".join(errors)) from None


@dataclass(frozen=True, slots=True)
class JobScriptRuns:
    """The runs of job scripts at a site that the executor does not use."""

    site: RunSite

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]:
        try:
            yield from self.site.clean(older_than, keep, dry_run)
        finally:
            self.site.close()
