"""`lading script --dag DAG --task TASK`: what a task would submit at its site.

The Dag is parsed from its bundle as Airflow's own commands do it, and its hints are handled as those of a real job:
policy, columns of the store, choice of the site, script. Nothing is read from Airflow's database, unless a Dag file or
a bundle reads something.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.utils.cli import suppress_logs_and_warning

from lading.executors import decisions
from lading.executors.columns import hint_columns
from lading.executors.controller import dispatch
from lading.executors.settings import Settings
from lading.executors.sizing import sizing
from lading.executors.sizing.file_sizes import FileSizes
from lading.executors.sizing.inputs import Inputs
from lading.executors.store import JobRow, queue
from lading.hooks.dags.teams import team_of_task
from lading.hooks.site import Site
from lading.hooks.spool.spool import Envelope
from lading.plugin import policies
from lading.plugin.offline.options import UsageError
from lading.plugin.sites import load_sites
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import INPUTS_KEY, HintError, Hints, given
from lading.scheduling.matching.routes import nowhere, route
from lading.scheduling.matching.rules import RULES
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Route
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.matching.wishes import default_arch
from lading.scheduling.resources import format_resources
from lading.scheduling.text.nearest import nearest
from lading.scheduling.text.units import format_memory, format_time

Task: TypeAlias = BaseOperator | MappedOperator

# How many names are listed where none is close to what was asked for.
MOST_NAMES = 10


@dataclass(frozen=True, slots=True)
class TaskSubmission:
    """What a task would submit.

    :param text: the script that would be submitted, or a sentence that says why none is
    :param notes: what the text does not show
    """

    text: str
    notes: tuple[str, ...] = ()


def of_task(dag_id: str, task_id: str) -> TaskSubmission:
    """What a task would submit; of a mapped one, its first instance alone.

    :raises UsageError: there is no such task, or it could not run anywhere; the message says which and why
    """
    task = find(dag_id, task_id)
    where = f"Dag {dag_id!r}, task {task_id!r}"
    team = team_of_task(task)
    if not policies.goes_to_lading(task.executor, team):
        raise UsageError(f"{where}: it goes to {task.executor or 'the default executor'}, which is not Lading's")
    try:
        job = as_job(task)
        name, site = site_of(job)
        envelope = dispatch.envelope(job, "", 0.0)
        script = site.script(envelope)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if script is not None:
        return TaskSubmission(script, tuple(notes(task, site)))
    return TaskSubmission(f"{where}: nothing is submitted. {packed(name, site, envelope)}\n", tuple(notes(task, site)))


# -- the Dag


@dataclass(slots=True)
class Parsed:
    """What was read of the bundles until the Dag was found.

    :param errors: the last line of each import error, by file
    """

    dag: DAG | None = None
    others: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


def find(dag_id: str, task_id: str) -> Task:
    """The task of a Dag in Airflow's bundles.

    :raises UsageError: there is none; the message lists those that are close
    """
    tasks: dict[str, Any] = find_dag(dag_id).task_dict
    if task_id not in tasks:
        raise UsageError(f"--task {task_id!r}: Dag {dag_id!r} has no such task; {close(task_id, tasks, 'tasks')}")
    task: Task = tasks[task_id]
    return task


def find_dag(dag_id: str) -> DAG:
    """A Dag in Airflow's bundles.

    :raises UsageError: there is none; the message lists those that are close
    """
    parsed = Parsed()
    # A Dag file may print anything: the script alone is this command's output.
    with contextlib.redirect_stdout(sys.stderr):
        parse(Namespace(verbose=False, dag_id=dag_id, found=parsed))
    if parsed.dag is None:
        # A file whose hints are wrong is the likeliest to be missed.
        faults = sorted(parsed.errors.items(), key=lambda each: dag_id not in f"{each[0]} {each[1]}")
        unread = "".join(f"; {file} cannot be imported: {error}" for file, error in faults[:3])
        raise UsageError(f"--dag {dag_id!r}: there is no such Dag; {close(dag_id, parsed.others, 'Dags')}{unread}")
    return parsed.dag


@suppress_logs_and_warning
def parse(args: Namespace) -> None:
    """Read Airflow's bundles until the Dag is found; what has been read is in ``args.found``."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager

    parsed: Parsed = args.found
    for bundle in DagBundlesManager().get_all_dag_bundles():
        bundle.initialize()
        with _airflow_parsing_context_manager(dag_id=args.dag_id):
            bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        parsed.errors |= {file: text.strip().splitlines()[-1] for file, text in bag.import_errors.items()}
        parsed.others += bag.dags
        parsed.dag = bag.dags.get(args.dag_id)
        if parsed.dag is not None:
            return


def close(name: str, names: Iterable[str], what: str) -> str:
    """As text: the names that are close to one, or some of them where none is."""
    known = sorted(names)
    if near := nearest(name, known, 5):
        return f"close to it: {', '.join(near)}"
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return f"the {what} are: {', '.join(known[:MOST_NAMES]) or 'none'}{more}"


# -- what it asks for


class BeforeRun(Inputs):
    """The inputs of a task of which no run is known: what stands in the Dag itself."""

    def __init__(self, dag_id: str, sources: Mapping[str, Any]) -> None:
        super().__init__(None, dag_id, "", sources)  # type: ignore[arg-type]

    def _read(self, task_id: str, key: str, mapped: bool) -> Any:
        raise ExpressionError(f"what task {task_id} returns is known in a run only")


def as_job(task: Task) -> JobRow:
    """The first try of a task as the store would have it, of a mapped one its first instance.

    :raises HintError: its hints are wrong
    :raises ExpressionError: they depend on what only a run knows
    """
    settings, config = Settings.load(), task.executor_config or {}
    hints = Hints.from_config(config)
    columns = hint_columns(hints, settings)
    if hints.expressions:
        sources = config.get(INPUTS_KEY, {})
        index = 0 if isinstance(task, MappedOperator) else -1
        key = (str(task.dag_id), "", task.task_id)
        asked = sizing.UnsizedJob("", key, index, 1, hints.site, given(config), sources)
        inputs = BeforeRun(str(task.dag_id), sources).for_job(index)
        try:
            columns |= sizing.size_job(asked, (), inputs, FileSizes(settings.input_roots), settings, None)[0]
        except ExpressionError as error:
            raise ExpressionError(f"{error}; give a number to see a script") from error
    columns |= {"dag_id": str(task.dag_id), "team": team_of_task(task)}
    return JobRow(token="token", subject="", workload="{}", priority=0, queued_at=0.0, **columns)


def site_of(job: JobRow) -> tuple[str, Site[Any]]:
    """The site at which a job would run, by what the sites file says; the job gets the queue that its target names.

    :raises HintError: no site can run it
    """
    sites = load_sites(Settings.load())
    waits = queue.as_waiting(job, by_dag=True)  # it has what a row has
    stop = route_of(waits, views(sites))[0]
    job.queue = dict(stop.relaxed + stop.changes).get("queue")
    for name, value in decisions.columns(stop.asked(waits)).items():
        setattr(job, name, value)
    return stop.site, sites[stop.site]


def views(sites: Mapping[str, Site[Any]]) -> list[SiteView]:
    """The sites as their tables describe them, whatever is there now."""
    return [
        SiteView(
            name=name,
            possible=site.potential(),
            accept_untargeted=bool(site.config.accept_untargeted),
            admission=site.admission,
            arch=default_arch(site.arch, site.potential()),
        )
        for name, site in sites.items()
    ]


def route_of(job: WaitingJob, views: Sequence[SiteView]) -> Route:
    """Where a job may run, in the order in which it goes there.

    :raises HintError: nowhere
    """
    if not (its_route := route(job, views, RULES)):
        raise HintError(str(nowhere(job, views)))
    return its_route


# -- as text


def packed(name: str, site: Site[Any], envelope: Envelope) -> str:
    """How a site that submits nothing runs a job."""
    message = f"Site {name!r} (kind {site.kind}) packs it by {format_resources(envelope.resources)}"
    memory = envelope.memory_limit or getattr(site.config, "memory_limit", None)
    seconds = envelope.time_limit or getattr(site.config, "time_limit", None)
    limits = [f"above {format_memory(memory)} of memory"] if memory else []
    limits += [f"after {format_time(seconds)}"] if seconds else []
    return f"{message}, and ends it {' and '.join(limits)}." if limits else f"{message}, and sets it no limit."


def notes(task: Task, site: Site[Any]) -> Iterator[str]:
    """What the script of a task does not show."""
    if auto := Hints.from_config(task.executor_config or {}).auto:
        yield f"{' and '.join(sorted(auto))}: what earlier tries needed (auto), which this command does not have"
    mode = getattr(site.config, "mode", None)
    if mode == "allocation":
        yield "tasks are packed into allocations: this is the one that would be asked for if it waited alone"
    elif mode == "job" and isinstance(task, MappedOperator):
        yield "this is one instance alone; those that ask for the same are submitted together, as a job array"
    if getattr(task, "task_type", None) == "JobScriptOperator":
        yield "this is the task itself; the job script that it submits is shown by --site NAME --body FILE"
