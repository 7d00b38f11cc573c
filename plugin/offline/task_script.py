"""`lading script --dag DAG --task TASK`: what a task would submit at its site.

The Dag is parsed from its bundle like in Airflow's own commands, and its hints are handled like those of a real job:
task policy, columns of the store, choice of the site, script. Nothing is read from Airflow's database, unless a Dag
file or a bundle reads it.
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
from lading.scheduling.model.resources import format_resources
from lading.scheduling.text.nearest import nearest
from lading.scheduling.text.units import format_memory, format_time

Task: TypeAlias = BaseOperator | MappedOperator

# How many names an error lists if none is similar to the wrong one.
MOST_NAMES = 10


@dataclass(frozen=True, slots=True)
class TaskSubmission:
    """What a task would submit.

    :param text: the script that would be submitted, or a sentence that says why nothing is
    :param notes: how the real submission can differ from the text
    """

    text: str
    notes: tuple[str, ...] = ()


def of_task(dag_id: str, task_id: str) -> TaskSubmission:
    """Return what a task would submit; for a mapped task, what its first instance alone would.

    :raises UsageError: the task does not exist, or no site can run it; the message says which and why
    """
    task = find(dag_id, task_id)
    where = f"Dag {dag_id!r}, task {task_id!r}"
    team = team_of_task(task)
    if not policies.goes_to_lading(task.executor, team):
        raise UsageError(f"{where}: it runs on {task.executor or 'the default executor'}, not on Lading")
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
    """The result of reading the bundles until the Dag was found.

    :param others: the IDs of all Dags that were read
    :param errors: the last line of each import error, by file
    """

    dag: DAG | None = None
    others: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


def find(dag_id: str, task_id: str) -> Task:
    """Return a task of a Dag in Airflow's bundles.

    :raises UsageError: it does not exist; the message lists similar names
    """
    tasks: dict[str, Any] = find_dag(dag_id).task_dict
    if task_id not in tasks:
        raise UsageError(f"--task {task_id!r}: Dag {dag_id!r} has no such task; {close(task_id, tasks, 'tasks')}")
    task: Task = tasks[task_id]
    return task


def find_dag(dag_id: str) -> DAG:
    """Return a Dag of Airflow's bundles.

    :raises UsageError: it does not exist; the message lists similar names
    """
    parsed = Parsed()
    # Dag files can print anything, but the output of this command must be the script alone.
    with contextlib.redirect_stdout(sys.stderr):
        parse(Namespace(verbose=False, dag_id=dag_id, found=parsed))
    if parsed.dag is None:
        # Import errors that mention the Dag come first: they probably explain why it is missing.
        faults = sorted(parsed.errors.items(), key=lambda each: dag_id not in f"{each[0]} {each[1]}")
        unread = "".join(f"; {file} cannot be imported: {error}" for file, error in faults[:3])
        raise UsageError(f"--dag {dag_id!r}: there is no such Dag; {close(dag_id, parsed.others, 'Dags')}{unread}")
    return parsed.dag


@suppress_logs_and_warning
def parse(args: Namespace) -> None:
    """Read Airflow's bundles until the Dag is found, into ``args.found``."""
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
    """Return a text with the names similar to a wrong one, or with the first names if none is similar."""
    known = sorted(names)
    if near := nearest(name, known, 5):
        return f"similar: {', '.join(near)}"
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return f"the {what} are: {', '.join(known[:MOST_NAMES]) or 'none'}{more}"


# -- what it requests


class BeforeRun(Inputs):
    """The inputs of a task without a run: only those that the Dag itself contains."""

    def __init__(self, dag_id: str, sources: Mapping[str, Any]) -> None:
        super().__init__(None, dag_id, "", sources)  # type: ignore[arg-type]

    def _read(self, task_id: str, key: str, mapped: bool) -> Any:
        raise ExpressionError(f"the result of task {task_id} is known only in a run")


def as_job(task: Task) -> JobRow:
    """Return the first try of a task as a row of the store; for a mapped task, that of its first instance.

    :raises HintError: its hints are not valid
    :raises ExpressionError: its hints depend on results of a run
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
    """Choose the site of a job by the sites file. The queue and the requests that its target names are set on the job.

    :raises HintError: no site can run it
    """
    sites = load_sites(Settings.load())
    waits = queue.as_waiting(job, by_dag=True)  # it has all attributes of a row
    stop = route_of(waits, views(sites))[0]
    job.queue = dict(stop.relaxed + stop.changes).get("queue")
    for name, value in decisions.columns(stop.asked(waits)).items():
        setattr(job, name, value)
    return stop.site, sites[stop.site]


def views(sites: Mapping[str, Site[Any]]) -> list[SiteView]:
    """Return the sites as their tables describe them, regardless of their current state."""
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
    """Return where a job can run, in the order of preference.

    :raises HintError: nowhere
    """
    if not (its_route := route(job, views, RULES)):
        raise HintError(str(nowhere(job, views)))
    return its_route


# -- as text


def packed(name: str, site: Site[Any], envelope: Envelope) -> str:
    """Describe how a site without a batch system runs a job."""
    message = f"Site {name!r} (kind {site.kind}) packs it by {format_resources(envelope.resources)}"
    memory = envelope.memory_limit or getattr(site.config, "memory_limit", None)
    seconds = envelope.time_limit or getattr(site.config, "time_limit", None)
    limits = [f"if it uses more than {format_memory(memory)} of memory"] if memory else []
    limits += [f"after {format_time(seconds)}"] if seconds else []
    return f"{message}, and kills it {' or '.join(limits)}." if limits else f"{message}, and sets no limit."


def notes(task: Task, site: Site[Any]) -> Iterator[str]:
    """Yield how the real submission can differ from the script."""
    if auto := Hints.from_config(task.executor_config or {}).auto:
        yield f"{' and '.join(sorted(auto))}: auto depends on earlier tries, which this command does not read"
    mode = getattr(site.config, "mode", None)
    if mode == "allocation":
        yield "tasks are packed into allocations; this allocation would be requested if no other task waited"
    elif mode == "job" and isinstance(task, MappedOperator):
        yield "this is for one instance; instances with equal requests are submitted together as a job array"
    if getattr(task, "task_type", None) == "JobScriptOperator":
        yield "this runs the task itself; to see the job script that it submits, use --site NAME --body FILE"
