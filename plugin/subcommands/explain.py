"""``airflow lading explain``: the steps that decide where the job of a task runs, or what a finished job did."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.controller.sites_file import possible, rules_of
from lading.executors.starts.expected_starts import NoStart, accuracy, show_starts
from lading.executors.store import LIVE, JobRow, LocationRow, SiteRow, State, instances, queue, site_rows
from lading.executors.store.durations import PastWaits
from lading.executors.store.gangs import rows as gangs
from lading.executors.store.gangs.terms import GangTerms
from lading.executors.store.leases import controller_now, database_ahead
from lading.executors.store.tables import ENDED
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.hooks.site import LocationState, Site
from lading.plugin.database import reading_store
from lading.plugin.host import Host
from lading.plugin.manager import binding_filters, implemented
from lading.plugin.manager import rules as plugins_rules
from lading.plugin.published import most_nodes
from lading.plugin.sites import SitesError, load_sites
from lading.plugin.subcommands.console import complain, format_length, readable
from lading.plugin.subcommands.records import has_records, unknown
from lading.plugin.ui.queries.now import remedies
from lading.scheduling.gangs.room import Ways, Where
from lading.scheduling.gangs.supply import explained as room
from lading.scheduling.insight.phases import TITLES, Times, phases
from lading.scheduling.matching.explanation import ExplanationStep, explained, wishes
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.matching.wishes import default_arch
from lading.scheduling.model.location import Location as Place
from lading.scheduling.model.machine_traits import DEFAULT_OS
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.text.units import format_count, format_memory, format_moment, format_time, format_usd

# Precedes the lines of a step that has several.
DETAIL = "   "


def task_name(dag_id: str | None, task_id: str | None, map_index: int) -> str:
    return f"{dag_id}.{task_id}" + (f"[{map_index}]" if map_index >= 0 else "")


def no_job(args: Namespace, indexes: Sequence[int]) -> str:
    """Say that there is no such job.

    :param indexes: the map indexes of the jobs of this task in this run; -1: it is not mapped
    """
    task = f"{args.dag_id}.{args.task_id}"
    mapped = [index for index in indexes if index >= 0]
    if args.map_index < 0 and mapped:
        return f"{task} is mapped: add the index of one of its jobs, {min(mapped)} to {max(mapped)}"
    return f"Lading has no job of {task_name(args.dag_id, args.task_id, args.map_index)} in run {args.run_id}"


def explain(host: Host, args: Namespace) -> None:
    """Print the steps for the last try of a task instance, with the current state of the sites, and its own state."""
    with reading_store(host) as session:
        of_task = (JobRow.dag_id == args.dag_id, JobRow.run_id == args.run_id, JobRow.task_id == args.task_id)
        # A try with a job script has several jobs, at most one of which is live. Once all have finished, the script
        # matters: the others only write it to the site and fetch its result.
        of_most_interest = (JobRow.state.in_(LIVE).desc(), (JobRow.kind == JOB_SCRIPT).desc())
        order = (JobRow.try_number.desc(), *of_most_interest, JobRow.queued_at.desc())
        query = select(JobRow).where(*of_task, JobRow.map_index == args.map_index).order_by(*order)
        if (job := session.scalars(query.limit(1)).first()) is None:
            if not has_records(session, args.dag_id, args.run_id):
                raise SystemExit(unknown(host, session, args.dag_id, args.run_id, time.time()))
            raise SystemExit(no_job(args, session.scalars(select(JobRow.map_index).where(*of_task)).all()))
        try:
            lines = report(host, session, job)
        except SitesError as error:
            raise SystemExit(str(error)) from error
        for line in lines:
            if text := readable(host, host.for_users(line) or ""):
                print(f"{DETAIL}{text}" if line.startswith(DETAIL) else text)


def report(host: Host, session: Session, job: JobRow) -> list[str]:
    """Return what is known about a job: its request, then numbered steps, of which the last is its state.

    :raises SitesError: the job has not finished, and the sites file is not valid
    """
    if job.state in ENDED:
        verb, steps = "requested", [*past(host, session, job), usage(job)]
    else:
        verb, steps = "requests", decision_steps(host, session, job)
    lines = [
        f"{task_name(job.dag_id, job.task_id, job.map_index)}, try {job.try_number}, {verb} {wishes(as_it_asked(job))}"
    ]
    for number, step in enumerate([*steps, outcome(host, session, job)], start=1):
        its = list(step.lines)
        lines.append(f"{number}. {step.name}:" + (f" {its.pop()}" if len(its) == 1 else ""))
        lines += (f"{DETAIL}{line}" for line in its)
    return lines


def decision_steps(host: Host, session: Session, job: JobRow) -> list[ExplanationStep]:
    """Return the steps that decide where an unfinished job runs."""
    settings = host.settings()
    sites = load_sites(settings, host)
    most, rules = most_nodes(settings), rules_of(settings.sites_file, plugins_rules())
    views = [view(session, site, job.token, most.get(site.name, ())) for site in sites.values()]
    waits, has_place = as_it_asked(job), job.site is not None
    if not has_place:
        complain_of_silence(views)
    hook = implemented("rank_matches")
    rank = None if hook is None else lambda job, matches: hook(job=job, matches=matches)
    filters = binding_filters()
    of_gang = job.gang is not None and job.state in (State.QUEUED, State.ATTEMPTED)
    how: dict[str, Any] = {"filters": filters, "rules": rules, "rank": rank}
    steps = list(explained(waits, views, **how, is_of_gang=of_gang, has_place=has_place))
    if of_gang:
        steps.append(together(session, job, views, Ways(rules, rank, filters)))
    if job.site is not None and (site := sites.get(job.site)) is not None:
        steps.append(ExplanationStep("policy", [f"{site.config.policy} chooses the location at site {job.site}"]))
    if has_place:
        steps += past(host, session, job)
    if (terms := host.terms(session, str(job.dag_id), str(job.run_id))) is not None:
        steps.append(ExplanationStep("run", list(terms.lines())))
    return steps + start_step(session, job)


def together(session: Session, job: JobRow, sites: Sequence[SiteView], ways: Ways) -> ExplanationStep:
    """Return the step about room for all members of the gang of a job."""
    known, terms = gangs.load(session, by_dag=True), GangTerms.from_json(job.gang_terms or "{}")
    partitions: dict[str, list[WaitingJob]] = {}
    for member in known.members:
        if member.gang == job.gang and member.is_ready:
            partitions.setdefault(member.partition(is_partial=terms.partial), []).append(member.job)
    held: dict[Where, Resources] = {}
    for row in known.holds:
        if row.gang != job.gang and row.state in ("asked", "held"):
            held[row.site, row.location] = held.get((row.site, row.location), Resources()) + row.resources
    partitions = {task: partitions[task] for task in sorted(partitions, key=[*terms.tasks, *partitions].index)}
    try:
        lines = room(partitions, sites, held, time.time(), ways, partial=terms.partial, spread=terms.spread)
        return ExplanationStep(f"gang {terms.name!r}" if terms.name is not None else "gang of one", list(lines))
    except ValueError as error:
        return ExplanationStep("gang", [f"it fails: {error}"])


def past(host: Host, session: Session, job: JobRow) -> Iterator[ExplanationStep]:
    """Yield the recorded decision about a job, its phases, and the reasons why it waited."""
    if job.site is not None:
        chosen = f"site {job.site}, location {job.location}" + (f", queue {job.queue}" if job.queue else "")
        when = "" if job.placed_at is None else f", at {format_moment(job.placed_at)}"
        yield ExplanationStep("decision", [chosen + when, *([str(job.placed_because)] if job.placed_because else [])])
    boot = instances.boots(session, [job.location] if job.location else []).get(job.location or "")
    times = Times(
        job.queued_at - database_ahead(session), job.placed_at, job.submitted_at, boot, job.started_at, job.ended_at
    )
    now = controller_now(session)
    yield ExplanationStep(
        "phases",
        [
            f"{TITLES[each.key]} for {format_time(round(max(0.0, (each.until or now) - each.since)))}"
            f"{'' if each.until is not None else ' so far'}, from {format_moment(each.since)}"
            for each in phases(times)
        ],
    )
    if notes := host.notes(session, job):
        yield ExplanationStep("reasons it had", [f"{format_moment(at)}: {text}" for at, text in notes])


def start_step(session: Session, job: JobRow) -> list[ExplanationStep]:
    """Return when a waiting job is expected to start, and how accurate such predictions were in the last week."""
    now = controller_now(session)
    if (start := show_starts(session, [job], now).get(job.token)) is None:
        return []
    if isinstance(start, NoStart):
        return [ExplanationStep("expected start", [f"none while it is held: {start.text}"])]
    at, since, until = map(format_moment, (start.at, start.since, start.until))
    said = f"about {at}; between {since} and {until} ({start.text})"
    came_true = [
        f"in the last week, {each.within} of {each.said} such jobs started within the interval predicted first"
        for each in accuracy(session, now - 7 * 86400.0)
        if each.source is start.source
    ]
    return [ExplanationStep("expected start", [said, *came_true])]


def as_it_asked(job: JobRow) -> WaitingJob:
    """Return a job as placement saw it while it waited, before a rule reduced its request."""
    waits = queue.as_waiting(job, by_dag=True)
    if not job.asked:
        return waits
    before: dict[str, Any] = json.loads(job.asked)
    amounts = {name: before.pop(name) for name in ("cpus", "memory", "disk", "gpus")}
    before["nodes"] = before.get("nodes") or waits.nodes
    before["features"] = frozenset(filter(None, (before["features"] or "").split(",")))
    return replace(waits, resources=replace(waits.resources, **amounts), queue=job.queue_hint, **before)


def view(session: Session, site: Site[Any], token: str, most: tuple[tuple[str, int], ...]) -> SiteView:
    """Return a site as placement sees it, from the records of the store.

    :param token: the token of the job in question, whose own room counts as free
    :param most: the most nodes that a job can ever have, by queue of a batch site, as published by the controller
    """
    row = session.get(SiteRow, site.name)
    potential = tuple(replace(each, most_nodes=most) if each.most_nodes == () else each for each in site.potential())
    by_name = {each.name: each for each in potential}
    rows: Sequence[LocationRow] = session.scalars(select(LocationRow).where(LocationRow.site == site.name)).all()
    # A site that launches its locations has a row itself, which is not a location.
    rows = [each for each in rows if not (site.launches and each.name == site.name)]
    seen = [(each, place(each, by_name.get(each.name))) for each in rows]
    here = queue.by_location([each for each in queue.given(session, site.name) if each.token != token])
    up = [queue.loaded(one, here.get(one.name, ()), 0) for each, one in seen if each.state == LocationState.UP.value]
    trouble = None
    if row is not None and (row.paused_by or row.trouble):
        silent = because("site_silent", site=site.name, text=row.trouble or "")
        trouble = because("paused", site=site.name, by=row.paused_by) if row.paused_by else silent
    could_be = possible(potential, [one for _, one in seen])
    return SiteView(
        name=site.name,
        locations=up,
        possible=could_be,
        trouble=trouble,
        barred=site_rows.of_text(row.barred) if row is not None else {},
        holds=site.holds,
        launches=site.launches,
        accept_untargeted=bool(site.config.accept_untargeted),
        burst_after=site.config.burst_after,
        admission=site.admission,
        arch=default_arch(site.arch, could_be),
        waits=PastWaits().read(session),
    )


def place(row: LocationRow, known: Place | None) -> Place:
    """Convert a row of the store to a location.

    :param known: the same location as its site declares it, with more details; None: the site does not declare it
    """
    location = known or Place(
        row.name,
        row.capacity,
        instance_type=row.instance_type,
        capacity_type=row.capacity_type,
        arch=row.arch,
        os=row.os or DEFAULT_OS,
        features=frozenset(filter(None, (row.features or "").split(", "))),
        site=row.site,
    )
    return replace(location, nodes=row.nodes, idle_nodes=row.idle_nodes)


def complain_of_silence(views: list[SiteView]) -> None:
    """Report the sites without a location that is up."""
    for each in views:
        if not each.locations and each.trouble is None:
            complain(f"Site {each.name!r} has no location that is up")


def usage(job: JobRow) -> ExplanationStep:
    """Return what a finished job used and cost."""
    if job.started_at is None or job.ended_at is None:
        return ExplanationStep("usage", ["none, because it never started"])
    seconds, cpus = job.ended_at - job.started_at, job.cpus * (job.nodes or 1)
    peak = "not measured" if job.peak_memory is None else f"peak {format_memory(job.peak_memory)}"
    spent = "not measured" if job.cpu_seconds is None else f"{format_length(job.cpu_seconds)} of cpu time"
    cpu_hours = f"{format_count(seconds * cpus / 3600)} cpu-hours, for which its site has no price"
    return ExplanationStep(
        "usage",
        [
            f"memory: {peak}, {format_memory(job.memory) if job.memory else 'none'} requested",
            f"cpus: {spent} in {format_length(seconds)}, {format_count(cpus)} requested",
            f"cost: {cpu_hours if job.usd is None else f'{format_usd(job.usd)} USD'}",
        ],
    )


def outcome(host: Host, session: Session, job: JobRow) -> ExplanationStep:
    """Return the state of a job with its place, reason and remedy; of a finished job also its end and exit code."""
    facts = [
        f"at {job.site}/{job.location}" if job.site else "",
        f"queue {job.queue}" if job.site and job.queue else "",
        f"node {job.node}" if job.node else "",
        f"batch job {job.native_id}" if job.native_id else "",
        "" if job.ended_at is None else f"ended at {format_moment(job.ended_at)}",
        "" if job.exit_code is None else f"exit code {job.exit_code}",
    ]
    reason = str(job.reason) if job.reason and job.reason != job.placed_because else ""
    lines = [*filter(None, (", ".join(filter(None, facts)), ": ".join(filter(None, (job.cause, reason)))))]
    advice = host.for_users(remedies(session, [job]).get(job.token))
    return ExplanationStep(
        State(job.state).value, [*(lines or ["waits for its turn"]), *([f"What to do: {advice}"] if advice else [])]
    )
