"""`lading plan --dag DAG`: predict what a run of a Dag will cost.

The requests of its tasks are placed like those of real jobs, their durations are predicted as by the controller, and
machines cost what their sellers charge now. Tasks of unknown cost are listed, and are not part of any sum.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

from airflow import settings as airflow_settings
from airflow.configuration import conf as airflow_conf
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.utils.cli import suppress_logs_and_warning
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lading.executors.controller.housekeeping import cpu_hour
from lading.executors.orchestrator import airflow_run_requests
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State, capacity, instances, queue
from lading.executors.store.durations import Durations
from lading.hooks.dags.teams import team_of_task
from lading.hooks.site import ElasticSite, Site
from lading.operators.scattering import input_sources
from lading.operators.scattering.shape import ScatterShape
from lading.plugin import policies
from lading.plugin.database import read_connections, reading_store
from lading.plugin.host import AirflowHost
from lading.plugin.offline import frontier, task_script
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.simulation.run_cost import RunTask, as_workflow, begins, on_machines
from lading.plugin.offline.simulation.trace import MOST_SIMULATED, Arrival
from lading.plugin.sites import SitesError, load_sites
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import Hints
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import PlannedJob as Planned
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.resources import format_resources
from lading.scheduling.text.printable import printable
from lading.scheduling.text.units import format_time, in_zone

# How many earlier runs are searched for the number of jobs of a task.
MOST_RUNS = 100


@dataclass(slots=True)
class TaskCost:
    """A task of the run. None stands for an unknown value.

    :param jobs: the number of its jobs
    :param seconds: the duration of each job
    :param asks: the request of each job, as text
    :param site: the first choice for its jobs
    :param usd: the cost of all its jobs, with their part of boot and idle times
    :param notes: the sources of the figures, and what is unknown
    """

    task: str
    jobs: int | None = None
    seconds: float | None = None
    asks: str = ""
    site: str = ""
    usd: float | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DagCost:
    """What a run will cost.

    :param usd: the sum over all lines whose cost is known
    :param max_usd: the hint max_usd, above which nothing more is launched for the run
    :param hurry: the hint hurry, the highest of its tasks
    :param finish_by: the hints finish_by of its tasks, as text
    :param runs: by the IDs of its live runs, the lines of :meth:`RunTerms.lines`
    :param unknown: the tasks without a known cost
    :param prices: by site that launches machines, where its prices come from, with dates
    :param elsewhere: by site that launches machines, what all tasks that can go there would cost if they did
    """

    dag: str
    lines: list[TaskCost]
    usd: float = 0.0
    max_usd: float | None = None
    hurry: float | None = None
    finish_by: list[str] = field(default_factory=list)
    runs: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    prices: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteWork:
    """The work of a run at a site that launches machines.

    :param steps: its tasks at the site
    :param upstream: the upstream tasks of each task of the Dag
    """

    steps: Sequence[RunTask]
    upstream: Mapping[str, Sequence[str]]
    market: MachineMarket


def run(args: argparse.Namespace, out: IO[str]) -> int:
    """Print the forecast for a Dag; returns the exit status.

    :raises UsageError: the Dag does not exist, or the conf is not valid
    """
    conf = parsed_conf(args.conf)
    read_connections()
    asked = argparse.Namespace(verbose=False, dag=task_script.find_dag(args.dag), conf=conf, found=None, work=None)
    ask(asked)
    cost: DagCost = asked.found
    if args.frontier:
        show_frontiers(args, asked.work, out)
        return 0
    if args.output == "json":
        json.dump(asdict(cost), out)
        out.write("\n")
    else:
        show(cost, out)
    return 0


@suppress_logs_and_warning
def ask(args: argparse.Namespace) -> None:
    """Make the forecast for ``args.dag`` and ``args.conf``, into ``args.found`` and ``args.work``."""
    try:
        sites = load_sites(Settings.load())
    except SitesError as error:
        raise UsageError(str(error)) from None
    with reading_store(AirflowHost()) as session:
        args.found, args.work = forecast(session, args.dag, args.conf, sites)


def parsed_conf(text: str | None) -> dict[str, Any] | None:
    """:raises UsageError: it is not a JSON object"""
    try:
        parsed = None if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"--conf: {error}; valid: a JSON object, such as '{{\"samples\": 8}}'") from None
    if parsed is not None and not isinstance(parsed, dict):
        raise UsageError(f"--conf is {type(parsed).__name__}; valid: a JSON object, such as '{{\"samples\": 8}}'")
    return parsed


def show_frontiers(args: argparse.Namespace, work: Mapping[str, SiteWork], out: IO[str]) -> None:
    """Print the cost of the run against the time it takes, for each site that launches machines for it.

    :raises UsageError: no site launches machines for it, or it has too many dependencies between jobs
    """
    if not work:
        raise UsageError(
            f"--dag {args.dag} --frontier: none of its tasks is known to run at a site that launches machines"
        )
    for name, its in work.items():
        if args.output != "json":
            print(printable(f"Site {name}:"), file=out)
        workflow = workflow_of(args.dag, its)
        limits = its.market.limits if args.max_instances is None else InstanceLimits(instances=args.max_instances)
        frontier.show(args, workflow, its.market.catalogue, its.market.boot_seconds, limits, out)


def workflows(dag: str) -> Mapping[str, tuple[Sequence[Arrival], MachineMarket]]:
    """Return, by site that launches machines, the jobs of a run like the last runs, and the market of the site.

    :raises UsageError: the Dag does not exist, none of its tasks runs at such a site, or it has too many dependencies
        between jobs
    """
    read_connections()
    asked = argparse.Namespace(verbose=False, dag=task_script.find_dag(dag), conf=None, found=None, work=None)
    ask(asked)
    if not asked.work:
        raise UsageError(f"--dag {dag}: none of its tasks is known to run at a site that launches machines")
    return {name: (workflow_of(dag, its), its.market) for name, its in asked.work.items()}


def workflow_of(dag: str, its: SiteWork) -> list[Arrival]:
    """:raises UsageError: it has too many dependencies between jobs"""
    try:
        return as_workflow(its.steps, its.upstream)
    except ValueError as error:
        raise UsageError(f"--dag {dag}: {error}") from None


def forecast(
    session: Session, dag: DAG, conf: Mapping[str, Any] | None, sites: Mapping[str, Site[Any]]
) -> tuple[DagCost, dict[str, SiteWork]]:
    """Return what a run of a Dag with this conf will cost, and its work at each site that launches machines."""
    past, views = Past(session, dag.dag_id, conf), task_script.views(sites)
    cost = DagCost(dag.dag_id, [])
    steps: dict[str, RunTask] = {}
    stops: dict[str, dict[str, Planned]] = {}
    cost.runs = {
        run_id: list(terms.lines()) for run_id, terms in airflow_run_requests.terms(session, dag.dag_id).items()
    }
    for task in dag.topological_sort():
        line = TaskCost(task.task_id)
        cost.lines.append(line)
        if not policies.goes_to_lading(task.executor, team_of_task(task)):
            line.notes.append(f"it runs on {task.executor or 'the default executor'}, not on Lading")
            continue
        try:
            job = past.job(task, line)
            waits = queue.as_waiting(job, by_dag=True)
            route = task_script.route_of(waits, views)
        except ValueError as error:
            line.notes.append(str(error))
            continue
        note_hints(cost, Hints.from_config(task.executor_config))
        expected = past.durations.predict(job)
        cost.max_usd = job.max_usd if cost.max_usd is None else cost.max_usd
        by_site = {stop.site: stop.asked(waits) for stop in reversed(route)}
        stops[line.task] = {view.name: view.need(by_site[view.name]) for view in views if view.name in by_site}
        line.site, line.asks = route[0].site, format_resources(waits.resources)
        line.jobs = past.count(task, line)
        if line.jobs is not None:
            steps[line.task] = step = RunTask(line.task, line.jobs, stops[line.task][line.site], expected)
            line.seconds = step.seconds
            line.notes.append(f"time: {expected.source}")
    if sum(step.jobs for step in steps.values()) > MOST_SIMULATED:
        raise UsageError(
            f"--dag {dag.dag_id}: a run has more than {MOST_SIMULATED:,} jobs, the most that can be simulated"
        )
    upstream = {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks}
    markets = charge(session, cost, steps, stops, upstream, sites)
    sites_of = {line.task: line.site for line in cost.lines}
    work = {
        name: SiteWork([step for step in steps.values() if sites_of[step.name] == name], upstream, market)
        for name, market in markets.items()
    }
    return cost, {name: its for name, its in work.items() if its.steps}


def note_hints(cost: DagCost, hints: Hints) -> None:
    if hints.hurry is not None:
        cost.hurry = max(hints.hurry, cost.hurry or 0.0)
    if hints.finish_by is not None and str(hints.finish_by) not in cost.finish_by:
        cost.finish_by.append(str(hints.finish_by))


class Past:
    """The earlier runs of a Dag.

    :param conf: the conf of the predicted run; earlier runs with the same conf are preferred. None: any run
    """

    def __init__(self, session: Session, dag_id: str, conf: Mapping[str, Any] | None) -> None:
        self.session, self.dag_id, self.conf = session, dag_id, conf
        self.durations = Durations().read(session)

    def job(self, task: Any, line: TaskCost) -> JobRow:
        """Return a job of a task as a row of the store.

        :raises ValueError: its hints are not valid, or they depend on results of a run, and no earlier run is known
        """
        hints = Hints.from_config(task.executor_config)
        mine = (JobRow.dag_id == self.dag_id, JobRow.task_id == task.task_id, JobRow.state == State.SUCCEEDED)
        if hints.expressions or hints.auto:
            query = select(JobRow).where(*mine).order_by(JobRow.ended_at.desc()).limit(1)
            if (last := self.session.scalars(query).first()) is not None:
                line.notes.append(f"requests: as in run {last.run_id}")
                return last
        job = task_script.as_job(task)
        job.task_id, job.run_id = task.task_id, ""
        return job

    def count(self, task: Any, line: TaskCost) -> int | None:
        """Return the number of jobs of a task; None: it is known only in a run."""
        if not task.get_needs_expansion():
            return 1
        try:
            return mapped_jobs(task)
        except ExpressionError as error:
            why = str(error)
        query = select(JobRow.run_id, func.count(JobRow.map_index.distinct())).where(
            JobRow.dag_id == self.dag_id, JobRow.task_id == task.task_id, JobRow.map_index >= 0
        )
        query = query.group_by(JobRow.run_id).order_by(func.max(JobRow.queued_at).desc()).limit(MOST_RUNS)
        counts = {str(run_id): int(count) for run_id, count in self.session.execute(query)}
        if not counts:
            line.notes.append(f"its number of jobs is known only in a run, and no earlier run is known: {why}")
            return None
        alike = self._alike(list(counts))
        run_id = next(iter(alike), next(iter(counts)))
        other = "" if self.conf is None or alike else ", which had another conf"
        line.notes.append(f"jobs: as in run {run_id}{other}")
        return counts[run_id]

    def _alike(self, runs: Sequence[str]) -> list[str]:
        """Return those of these runs that had the same conf, in the same order."""
        from airflow.models.dagrun import DagRun

        if self.conf is None:
            return []
        query = select(DagRun.run_id, DagRun.conf).where(DagRun.dag_id == self.dag_id, DagRun.run_id.in_(runs))
        same = {run_id for run_id, conf in self.session.execute(query) if (conf or {}) == self.conf}
        return [run_id for run_id in runs if run_id in same]


def mapped_jobs(task: Any) -> int:
    """Return the number of jobs of a mapped task; for a scatter with chunks, the number of chunks.

    :raises ExpressionError: it is known only in a run
    """
    if not isinstance(task, MappedOperator) or task.get_closest_mapped_task_group() is not None:
        raise ExpressionError("it is in a mapped task group")
    inputs = task_script.BeforeRun(task.dag_id, input_sources.of_task(task, ()))
    scatter = getattr(task._get_specified_expand_input(), "scatter", None)
    most = airflow_conf.getint("core", "max_map_length")
    chunk_size = None if scatter is None else scatter.chunk_size
    return ScatterShape.plan(None, {"jobs": inputs.count()}, chunk_size, most).instances


# -- what it costs


def charge(
    session: Session,
    found: DagCost,
    steps: Mapping[str, RunTask],
    stops: Mapping[str, Mapping[str, Planned]],
    upstream: Mapping[str, Sequence[str]],
    sites: Mapping[str, Site[Any]],
) -> dict[str, MachineMarket]:
    """Set the cost of each line and the sums, and return the markets of the sites that launch machines.

    :param stops: by task, what it requests at each site where it can run
    :param upstream: the upstream tasks of each task of the Dag
    """
    begin = begins(upstream, {step.name: step.seconds for step in steps.values()})
    markets: dict[str, MachineMarket] = {}
    lines = {line.task: line for line in found.lines}
    for name, site in sites.items():
        mine = [step for step in steps.values() if lines[step.name].site == name]
        may_go = [replace(step, job=stops[step.name][name]) for step in steps.values() if name in stops[step.name]]
        if not may_go:
            continue
        market, why = market_of(session, site)
        if market is None:
            for step in mine:
                rate(site, step, lines[step.name], why)
            continue
        found.prices[name] = "; ".join(market.catalogue.sources)
        markets[name] = market
        try:
            bill = on_machines(mine, begin, market, upstream)
            if len(may_go) > len(mine):
                found.elsewhere[name] = on_machines(may_go, begin, market, upstream).usd
        except ValueError as error:
            for step in mine:
                lines[step.name].notes.append(f"site {name}: {error}")
            continue
        for step in mine:
            lines[step.name].usd = bill.of_steps.get(step.name)
            if (message := bill.refused.get(step.name)) is not None:
                lines[step.name].notes.append(f"site {name}: {message}")
    found.usd = sum(line.usd or 0.0 for line in found.lines)
    found.unknown = [line.task for line in found.lines if line.usd is None]
    return markets


def market_of(session: Session, site: Site[Any]) -> tuple[MachineMarket | None, str]:
    """Return the market of a site, with measured sizes and boot times of machines; or None, and why it is unknown."""
    try:
        found = site.priced() if isinstance(site, ElasticSite) else None
    except (OSError, ValueError) as error:
        return None, f"its prices are unknown: {error}"
    if found is not None:
        found = found.sized(capacity.sizes(session, site.name)).booting_as(instances.last_boots(session, site.name))
    return found, "it has no price"


def rate(site: Site[Any], step: RunTask, line: TaskCost, why: str) -> None:
    """Set the cost of a task at a site that launches no machines: its cpu-hours at the price of the site."""
    places = [each for each in site.potential() if each.max_jobs is not None or each.suits(step.job)]
    usd = min((price for each in places if (price := cpu_hour(site, each)) is not None), default=None)
    if usd is None:
        line.notes.append(f"site {site.name}: {why}")
    else:
        line.usd = usd * site.occupied(step.job.resources).cpus * step.job.nodes * step.jobs * step.seconds / 3600


def show(found: DagCost, out: IO[str]) -> None:
    console = Console(file=out, highlight=False, markup=False, emoji=False)
    table = Table("Task", "Jobs", "Each runs", "Each requests", "Site", "USD", "Notes")
    for line in found.lines:
        table.add_row(
            printable(line.task),
            "?" if line.jobs is None else str(line.jobs),
            "?" if line.seconds is None else format_time(round(line.seconds)),
            printable(line.asks),
            printable(line.site),
            "?" if line.usd is None else f"{line.usd:.4f}",
            printable("; ".join(line.notes)),
        )
    console.print(table)
    more = f", without {', '.join(found.unknown)}, whose cost is unknown" if found.unknown else ""
    message = f"costs about {found.usd:.4f} USD{more}"
    if len(found.unknown) == len(found.lines):
        message = "cannot be priced: the cost of none of its tasks is known"
    console.print(printable(f"A run of {found.dag} {message}."), soft_wrap=True)
    if found.max_usd is not None and found.usd > found.max_usd:
        console.print(
            (
                f"That is more than max_usd, {found.max_usd:g} USD. Once the run has cost that much, no more "
                "machines are launched for it."
            ),
            soft_wrap=True,
        )
    if found.hurry is not None:
        console.print(f"Its hurry is {found.hurry:g}.", soft_wrap=True)
    if found.finish_by:
        console.print(f"It has to finish by: {', '.join(found.finish_by)} (finish_by).", soft_wrap=True)
    for run_id, lines in found.runs.items():
        text = in_zone(f"Run {run_id}: {'; '.join(lines)}.", airflow_settings.TIMEZONE)
        console.print(printable(text), soft_wrap=True)
    for site, source in found.prices.items():
        console.print(printable(f"Prices of site {site}: {source}"), soft_wrap=True)
    left = [line.task for line in found.lines if line.jobs is None or line.seconds is None]
    more = f" ({', '.join(left)} not counted)" if left else ""
    for site, usd in found.elsewhere.items():
        message = f"If all its tasks that can run at site {site} ran there, they would cost {usd:.4f} USD there{more}."
        console.print(printable(message), soft_wrap=True)
