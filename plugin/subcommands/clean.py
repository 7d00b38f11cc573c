"""``airflow lading clean``: what it removes, and what it must not."""

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
from lading.plugin.manager import site_kinds
from lading.plugin.sites import SitesError, declared, faults
from lading.plugin.subcommands.console import complain, show
from lading.scheduling.text.nearest import nearest_first

HERE = "(this machine)"
# A task in one of these states may have a batch job that is not to be disturbed.
AT_WORK = (
    TaskInstanceState.QUEUED,
    TaskInstanceState.RUNNING,
    TaskInstanceState.RESTARTING,
    TaskInstanceState.DEFERRED,
)


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def clean(args: Namespace) -> None:
    """Remove what is left behind and print it; status 1 if that could not be done everywhere."""
    read_connections()
    outcomes, good = [], True
    for outcome in clean_sites(args.site, args.older_than, args.dry_run):
        if outcome.trouble is not None:
            good = False
            complain(f"site {outcome.site}: {outcome.trouble}")
        if outcome.number:
            outcomes.append(outcome)
    show(list(map(outcome_row, outcomes)), args.output)
    if args.dry_run:
        complain("Nothing was removed, for --dry-run was given.")
    if not good:
        sys.exit(1)


class Cleaner(Protocol):
    """What removes leftovers by age; see :meth:`lading.hooks.site.Site.clean`."""

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]: ...


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What was removed at a site of one sort, or what went wrong there.

    :param trouble: as text; None: nothing
    """

    site: str
    kind: str = ""
    number: int = 0
    mib: float = 0.0
    trouble: str | None = None


def outcome_row(outcome: CleanResult) -> dict[str, Any]:
    return {"site": outcome.site, "kind": outcome.kind, "number": outcome.number, "mib": round(outcome.mib, 1)}


def clean_sites(only: Sequence[str], older_than: float, dry_run: bool) -> Iterator[CleanResult]:
    """Remove what is left behind, site by site; one that cannot be asked does not hold up the others.

    :param only: the sites; empty: all, and this machine
    :param older_than: seconds for which nothing has changed in it
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
    """The tokens of all that Airflow has at sites, jobs of the executor and runs of job scripts, and of the runs that
    are saved on this machine.
    """
    with reading_store() as session:
        jobs = session.scalars(select(JobRow.token).where(JobRow.state.in_((State.PLACED, State.RUNNING)))).all()
        tries = session.execute(
            select(TaskInstance.id, TaskInstance.try_number).where(TaskInstance.state.in_(AT_WORK))
        ).all()
    saved = RunStore(RUNS_FOLDER.expanduser()).living()
    return frozenset(jobs) | {token(each) for each in tries} | saved


def cleaner(settings: Settings, name: str, tables: dict[str, Any]) -> Cleaner:
    """The site of a name; a table that only job scripts can use is one for these.

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
    """The runs of job scripts at a site at which the executor runs nothing."""

    site: RunSite

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]:
        try:
            yield from self.site.clean(older_than, keep, dry_run)
        finally:
            self.site.close()
