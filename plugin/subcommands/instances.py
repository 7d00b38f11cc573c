"""``airflow lading instances`` and ``bootstrap``: launched instances, and user data for EC2 instances.

An instance is shown as recorded in the store and as reported by its seller (EC2 or the batch system). To drain or
terminate one is a request to the controller; if none is active, an EC2 instance is terminated directly.
"""

from __future__ import annotations

import getpass
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lading.executors import request_rows
from lading.executors.controller_process import current_lease, lives
from lading.executors.request_rows import RequestKind
from lading.executors.requests import note_end
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State
from lading.executors.store import instances as stored
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.site import ElasticSite, ListedInstance, Site
from lading.plugin.database import read_connections, reading_store
from lading.plugin.host import AirflowHost
from lading.plugin.sites import SitesError, load_sites
from lading.plugin.subcommands.console import complain, show
from lading.plugin.subcommands.cost import format_parts
from lading.scheduling.matching.market import readable_kind
from lading.scheduling.text.nearest import nearest_first

NOT_STORED = "it is not in the store"


class CommandRefused(Exception):
    """An action is not possible now; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class InstanceLine:
    """One instance.

    :param row: its record; None: the store does not have it, or has it as ended
    :param found: what its seller reports; None: the seller does not list it, or could not be queried
    :param is_listed: whether its site could be queried
    :param seller: the site whose query returned it: its own, or another site in the same region
    :param jobs: how many jobs run there
    """

    row: InstanceRow | None
    found: ListedInstance | None
    is_listed: bool
    seller: str = ""
    jobs: int = 0

    @property
    def site(self) -> str:
        return self.row.site if self.row is not None else self.found.site if self.found is not None else ""

    @property
    def name(self) -> str:
        return self.row.token if self.row is not None else self.found.name if self.found is not None else ""

    @property
    def names(self) -> set[str]:
        """The names that users can give for it."""
        ids = {self.row.native_id if self.row is not None else None, self.found.id if self.found is not None else None}
        return {self.name, f"{self.site}/{self.name}"} | {each for each in ids if each is not None}

    @property
    def note(self) -> str | None:
        if self.row is None:
            return f"{NOT_STORED}; a controller adopts it if its site is in the sites file"
        if self.found is None and self.is_listed and self.row.state != InstanceState.ORDERED:
            return "its site no longer lists it; a controller will notice that"
        return None


@airflow_cli.action_cli(check_db=False)  # type: ignore[untyped-decorator]
@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def instances(args: Namespace) -> None:
    """List instances, or drain or terminate some; exits with status 1 if a query or an action failed."""
    read_connections()
    try:
        sites: Mapping[str, Site[Any]] = load_sites(Settings.load())
    except SitesError as error:
        complain(f"{error}; only instances in the store are listed")
        sites = {}
    with reading_store(AirflowHost()) as session:
        found = listed(sites)
        lines = joined(stored.living(session), found, running(session))
        good = None not in found.values()
        if args.action == "list":
            if args.ended:
                lines += [InstanceLine(row, None, False) for row in stored.ended(session)]
            mapper = short_row if args.output in ("table", "plain") else line_row
            if not lines:
                complain(
                    "There are no EC2 instances and no batch allocations. `airflow lading sites` lists all machines."
                )
            show(AirflowHost(), [mapper(each, time.time()) for each in lines], args.output)
        else:
            done = [let_go(session, sites, each, RequestKind(args.action)) for each in chosen(lines, args.instance)]
            good = all(done)
    if not good:
        sys.exit(1)


def listed(sites: Mapping[str, Site[Any]]) -> dict[str, Sequence[ListedInstance] | None]:
    """Query the sellers of all sites that launch instances. None stands for a failed query, reported on stderr."""
    answers: dict[str, Sequence[ListedInstance] | None] = {}
    for name, site in sites.items():
        if isinstance(site, ElasticSite):
            try:
                instances = site.listed_instances()
            except (OSError, ValueError) as error:
                complain(f"site {name}: {error}")
                answers[name] = None
            else:
                answers |= {} if instances is None else {name: instances}
    return answers


def joined(
    rows: Iterable[InstanceRow],
    answers: Mapping[str, Sequence[ListedInstance] | None],
    jobs: Mapping[tuple[str, str], int],
) -> list[InstanceLine]:
    """Combine the rows of the store with what the sellers report. Instances without a row come last."""
    by_id: dict[str, tuple[ListedInstance, str]] = {}
    for site, found in answers.items():
        for each in found or ():
            if each.id not in by_id or each.site == site:  # two sites can be in the same region
                by_id[each.id] = each, site
    ids = {(each.site, each.name): each.id for each, _ in by_id.values()}
    lines = []
    for row in rows:
        there, seller = by_id.pop(row.native_id or ids.get((row.site, row.token), ""), (None, ""))
        is_listed = answers.get(row.site) is not None
        lines.append(InstanceLine(row, there, is_listed, seller, jobs.get((row.site, row.token), 0)))
    return [*lines, *(InstanceLine(None, each, True, seller) for each, seller in by_id.values())]


def running(session: Session) -> dict[tuple[str, str], int]:
    """Count the running jobs by site and location."""
    query = select(JobRow.site, JobRow.location, func.count()).where(JobRow.state == State.RUNNING)
    return {
        (str(site), str(place)): count
        for site, place, count in session.execute(query.group_by(JobRow.site, JobRow.location))
    }


def chosen(lines: Sequence[InstanceLine], names: Sequence[str]) -> list[InstanceLine]:
    """:raises SystemExit: no instance is named, or a name is unknown"""
    known = ", ".join(each.name for each in lines) or "none"
    if not names:
        raise SystemExit(f"name the instances; valid: {known}")
    if unknown := [name for name in names if not any(name in each.names for each in lines)]:
        raise SystemExit(f"there is no live instance {unknown[0]!r}; valid: {known}")
    return [each for each in lines if not each.names.isdisjoint(names)]


def let_go(session: Session, sites: Mapping[str, Site[Any]], line: InstanceLine, kind: RequestKind) -> bool:
    """Drain or terminate an instance, and report the outcome; returns whether the request could be made."""
    try:
        message = "; ".join(steps(session, sites, line, kind, getpass.getuser()))
    except (CommandRefused, LookupError, OSError) as error:
        complain(f"{line.name}: {error}")
        return False
    complain(f"{line.name}: {message}")
    return True


def steps(
    session: Session, sites: Mapping[str, Site[Any]], line: InstanceLine, kind: RequestKind, by: str
) -> Iterator[str]:
    """Drain or terminate an instance, and yield what was done.

    :raises CommandRefused: nothing can be done now
    :raises OSError: its seller could not be reached
    """
    acts, is_looked_after = lives(current_lease(AirflowHost())), line.site in sites
    if acts and is_looked_after and line.row is None:
        raise CommandRefused(f"{NOT_STORED}; the active controller adopts it within a minute: try again then")
    if line.found is not None and kind is RequestKind.TERMINATE and not (acts and is_looked_after):
        seller = sites[line.seller]
        assert isinstance(seller, ElasticSite)
        yield from ended(session, seller, line, by)
    elif line.row is None:
        raise CommandRefused(f"{NOT_STORED}, so it gets no jobs anyway; terminate it, or start a controller")
    else:
        request = request_rows.ask(session, kind, f"{line.site}/{line.name}", by)
        session.commit()
        if not acts:
            yield f"noted ({kind.value}); no controller is running, so the next one will carry it out"
            return
        # A controller reads requests every two seconds, and EC2 and clusters take a moment to carry them out.
        deadline = time.monotonic() + 30.0
        while request.done_at is None and time.monotonic() < deadline:
            time.sleep(0.5)
            session.commit()  # so that the next read sees new data
            session.refresh(request)
        yield request.outcome or f"requested ({kind.value}); `airflow lading instances` shows its progress"


def ended(session: Session, site: ElasticSite[Any], line: InstanceLine, by: str) -> Iterator[str]:
    """Terminate an instance while no controller is running."""
    assert line.found is not None
    found, row = line.found, line.row
    at = site.end([found.id]).get(found.id, time.time())
    yield f"{found.id} was terminated"
    if row is not None:
        row.native_id, row.launched_at = found.id, row.launched_at or found.launched_at
        if count := note_end(session, row, by, at):
            yield f"{count} of its jobs were cancelled"
    session.commit()


def line_row(line: InstanceLine, now: float) -> dict[str, Any]:
    """Return all that is known of an instance. ``usd`` is its cost so far."""
    row, bought = line.row, line.found
    launched_at = row.launched_at if row is not None and row.launched_at else bought.launched_at if bought else None
    until = now if row is None else row.ended_at or now
    usd = None if row is None else row.usd if row.ended_at else stored.accrued(row, now)
    parts = {} if row is None else stored.of_which(row, until)
    return {
        "site": line.site,
        "instance": line.name,
        "state": row.state if row is not None else None,
        "seller_state": bought.state if bought is not None else None,
        "native_id": (row.native_id if row is not None else None) or (bought.id if bought is not None else None),
        "node": row.node if row is not None else None,
        "instance_type": readable_kind(row.kind) if row is not None else bought.instance_type if bought else None,
        "zone": (row.zone if row is not None else None) or (bought.zone if bought is not None else None),
        "capacity_type": row.capacity_type if row is not None else bought.capacity_type if bought else None,
        "launched_at": launched_at,
        "usd_per_hour": row.usd_per_hour if row is not None else bought.usd_per_hour if bought else None,
        "usd": None if usd is None else round(usd, 4),
        "usd_idle": None if row is None or row.usd_idle is None else round(row.usd_idle, 4),
        "of_which": {name: round(part, 4) for name, part in parts.items()},
        "ended_at": None if row is None else row.ended_at,
        "running_jobs": line.jobs,
        "note": line.note or (None if row is None or row.reason is None else str(row.reason)),
    }


def short_row(line: InstanceLine, now: float) -> dict[str, Any]:
    row = line_row(line, now)
    seconds = None if row["launched_at"] is None else (row["ended_at"] or now) - row["launched_at"]
    row["hours"] = None if seconds is None else round(seconds / 3600, 2)
    row["of_which"] = format_parts(row["of_which"])
    names = ("site", "instance", "state", "native_id", "instance_type", "zone", "capacity_type", "hours")
    return {name: row[name] for name in (*names, "usd_per_hour", "usd", "usd_idle", "of_which", "running_jobs", "note")}


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def bootstrap(args: Namespace) -> None:
    """Print the user data; exits with status 1 if the site launches no machines from images."""
    try:
        sites = load_sites(Settings.load())
        if args.site not in sites:
            raise SitesError(f"there is no site {args.site!r}; the sites are: {nearest_first(args.site, sites)}")
        text = sites[args.site].bootstrap([*airflow_requirements(), args.lading])
    except ValueError as error:
        complain(str(error))
        sys.exit(1)
    if text is None:
        complain(f"Site {args.site} launches no machines from images; sites of kind ec2 do.")
        sys.exit(1)
    print(text, end="")


def airflow_requirements() -> Iterator[str]:
    """Yield Airflow and its providers in the installed versions, as pip requirements."""
    found = {each.metadata["Name"].lower(): each.version for each in distributions() if each.metadata["Name"]}
    yield from (f"{name}=={found[name]}" for name in sorted(found) if name.startswith("apache-airflow"))
