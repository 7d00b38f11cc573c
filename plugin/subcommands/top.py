"""``airflow lading top``: an overview of sites and of waiting jobs in a terminal, from the queries of the page."""

from __future__ import annotations

import time
from argparse import Namespace

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lading.plugin.database import reading_store
from lading.plugin.host import Host
from lading.plugin.subcommands.console import readable
from lading.plugin.ui.queries.now import SiteState, Summary, WaitGroup, WaitGroups, summary, waits
from lading.plugin.ui.queries.sight import EVERYTHING
from lading.scheduling.text.units import format_count, format_time, format_usd

# Only one space to the right of each cell, because the table has to fit into 80 columns.
NARROW = (0, 1, 0, 0)


def top(host: Host, args: Namespace) -> None:
    """Show the overview: on a terminal every few seconds until Ctrl-C, otherwise once."""
    console = Console()
    if args.once or not console.is_terminal:
        console.print(shown(host))
        return
    with Live(shown(host), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(args.seconds)
                live.update(shown(host), refresh=True)
        except KeyboardInterrupt:
            return


def shown(host: Host) -> Group:
    with reading_store(host) as session:
        now = time.time()
        return screen(host, summary(session, EVERYTHING, now), waits(session, EVERYTHING, now))


def screen(host: Host, things: Summary, why: WaitGroups) -> Group:
    """Build the whole output. Text from sites and Dag authors is shown without interpreting markup."""
    cpus = f"{format_count(things.cpus_used)} of {format_count(things.cpus_up)} cpus requested"
    cpus += f", {format_count(things.cpus_batch)} in batch jobs" if things.cpus_batch else ""
    machines = "1 machine" if things.machines == 1 else f"{things.machines} machines"
    counts = f"{things.running} running, {things.waiting} waiting, {machines}, {cpus}"
    head = Text(f"{counts}{usd(things.usd_per_hour)}")
    if not things.controller_lives:
        head.append("\nNo controller is running: no jobs are started", style="bold red")
    its_teams = [teams(host, things)] if things.teams else []
    waiting = reasons(host, why) if why.groups else Text("Nothing waits.")
    return Group(head, sites(host, things), *for_any_site(things), *its_teams, waiting)


def usd(amount: float | None) -> str:
    return "" if amount is None else f", {format_usd(amount)} USD per hour"


def sites(host: Host, things: Summary) -> Table:
    table = Table(title="Sites", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    for heading in ("site", "kind", "state", "running", "waiting", "cpus requested", "last contact", "note"):
        is_number = heading in ("running", "waiting", "cpus requested")
        # On a narrow terminal, words are wrapped rather than numbers, and long ones such as paths are folded, not cut.
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for site in things.sites:
        contact = "never" if site.contact_at is None else f"{ago(things.now - site.contact_at)} ago"
        numbers = (str(site.running), str(site.waiting), cpus_of(site))
        texts = (site.name, site.kind, site.state, *numbers, contact, site.note or "")
        table.add_row(*(Text(readable(host, text)) for text in texts))
    return table


def for_any_site(things: Summary) -> list[Text]:
    """Return a line with which the waiting jobs of the sites add up to those at the top; empty: they already do."""
    count = things.waiting_for_any
    return [Text(f"Waiting jobs that name no site and are not assigned to one yet: {count}\n")] if count else []


def teams(host: Host, things: Summary) -> Table:
    table = Table(title="Teams", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    for heading in ("team", "running", "waiting", "cpus requested"):
        table.add_column(heading, justify="left" if heading == "team" else "right", overflow="fold")
    for team in things.teams:
        texts = (team.name, str(team.running), str(team.waiting), format_count(team.cpus_used))
        table.add_row(*(Text(readable(host, text)) for text in texts))
    return table


def cpus_of(site: SiteState) -> str:
    """Format the cpus that the jobs of a site use: of its machines that are up, and in batch jobs of their own."""
    of_up = [] if site.cpus_up is None else [f"{format_count(site.cpus_used)} of {format_count(site.cpus_up)}"]
    in_batch = [f"{format_count(site.cpus_batch)} in batch jobs"] if site.cpus_batch else []
    return ", ".join(of_up + in_batch) or format_count(site.cpus_used)


def reasons(host: Host, why: WaitGroups) -> Table:
    """Build a table with a row for each reason, site and limit, largest group first."""
    table = Table(title="Why jobs wait", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    for heading in ("jobs", "oldest", "waits for", "reason", "what to do"):
        table.add_column(heading, justify="right" if heading in ("jobs", "oldest") else "left", overflow="fold")
    for group in why.groups:
        message = group.sentences[0] if group.sentences else ""
        said = [host.for_users(text) or "" for text in (titled(group), message, group.remedy)]
        texts = (str(group.jobs), ago(why.now - group.oldest), *said)
        table.add_row(*(Text(readable(host, text)) for text in texts))
    return table


def titled(group: WaitGroup) -> str:
    where = ", ".join(filter(None, (group.site, group.limit)))
    return f"{group.title} ({where})" if where else group.title


def ago(seconds: float) -> str:
    return format_time(max(0, round(seconds)))
