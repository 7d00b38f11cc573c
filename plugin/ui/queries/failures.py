"""Why jobs have failed, grouped by cause, with remedies and with what tasks should request.

Times are seconds since the epoch, memory MiB. None means unknown or hidden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from pydantic import BaseModel
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from lading.executors.accounting import task_usage
from lading.executors.store import JobRow
from lading.executors.store.jobs import chunks
from lading.plugin.ui.queries.now import MOST_DAGS, MOST_SENTENCES, WaitingDag, failed_since
from lading.plugin.ui.queries.runs import why_failed
from lading.plugin.ui.queries.sight import Sight
from lading.plugin.ui.queries.since_then import Since, SinceThen, became, since_then, task_of
from lading.scheduling.model.reason_codes import CAUSES, CODES, Cause, Code, remedy_at
from lading.scheduling.sizing.right_size import right_size
from lading.scheduling.text.units import format_memory, format_time

# Causes that concern a machine are grouped by machine. Preemptions are grouped by site, because being reclaimed by the
# provider says nothing about a machine.
OF_NODES = ("node_failure", "lost")
OF_SITES = (*OF_NODES, "preempted")
# A group gives advice for at most this many tasks, those with the most failures.
MOST_ADVISED = 3
# An unhealthy site has a group for each of its nodes.
MOST_GROUPS = 100
# Reasons are read from at most this many tasks of a group, those with the most jobs.
MOST_SAID = 10
DEFAULT_CAUSE = "error"


class FailedTask(BaseModel):
    """A task whose jobs failed with one cause."""

    dag_id: str
    task_id: str
    jobs: int
    advice: str | None
    """What it should request, for example ``request 9 GiB``; None: no advice can be derived from its tries."""
    line: str | None
    """The line to paste into the Dag; None: there is no advice."""
    run_id: str | None
    """The run of one of these jobs, for a link to its log; the next two fields belong to the same job."""
    map_index: int
    try_number: int
    since_then: SinceThen | None
    """What has become of the task of this job; None: Airflow does not know the task."""


class FailureGroup(BaseModel):
    """Jobs that failed with the same cause. Reasons with a remedy of their own, and machines if the cause concerns the
    machine, form separate groups."""

    cause: str
    title: str
    remedy: str
    actors: list[str]
    """Who can fix it: ``author``, ``operator``."""
    site: str | None
    """None: the cause does not concern a particular site."""
    node: str | None
    """The node or machine; None: the cause does not concern a particular one."""
    jobs: int
    tasks: int
    """Number of tasks that these jobs belong to; all mapped instances of a task count once."""
    since_then: dict[Since, int]
    """What has become of the task instances of these jobs since then, and of how many; only those of Dags the user can
    see and of tasks that Airflow knows. Each mapped instance counts once."""
    first: float
    """When the first of them failed."""
    last: float
    sentences: list[str]
    """The most common reasons, or exit codes where there is no reason, of Dags the user can see."""
    dags: list[WaitingDag]
    """The Dags with the most jobs in the group."""
    dags_total: int
    """Number of Dags in the group that the user can see."""
    failed_tasks: list[FailedTask]
    """The tasks with the most jobs in the group."""
    hidden: bool
    """Whether the group also contains jobs of hidden Dags."""


class FailureGroups(BaseModel):
    """Why jobs have failed since a time, largest group first."""

    now: float
    since: float
    jobs: int
    groups: list[FailureGroup]
    """At most :data:`MOST_GROUPS`, largest first."""
    groups_left_out: int
    """Number of groups that are not listed."""
    jobs_left_out: int
    """Number of jobs in those groups."""


Key = tuple[str, Cause | Code, str | None, str | None]


@dataclass(slots=True)
class FailedJobs:
    """The jobs of a group while they are being summed up."""

    jobs: int = 0
    first: float = float("inf")
    last: float = 0.0
    dags: Counter[str] = field(default_factory=Counter)
    tasks: Counter[tuple[str, str]] = field(default_factory=Counter)
    hidden_tasks: int = 0
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    """By task: the token of one of its jobs, preferably one with a reason."""
    said: Counter[str] = field(default_factory=Counter)
    """Tokens of jobs with a reason, and the number of jobs each represents."""
    silent: Counter[str] = field(default_factory=Counter)
    """The same for jobs without a reason."""
    since_then: Counter[Since] = field(default_factory=Counter)
    """What has become of their task instances."""

    @property
    def telling(self) -> list[tuple[str, int]]:
        """The tokens whose reasons are read, or whose exit codes if none has a reason, with their numbers of jobs."""
        return (self.said or self.silent).most_common(MOST_SAID)

    def add(self, row: Any, seen: bool) -> None:
        """Add the jobs of one task."""
        self.jobs += row.jobs
        self.first, self.last = min(self.first, row.first), max(self.last, row.last)
        if not seen:
            self.hidden_tasks += 1
            return
        if row.dag_id:
            self.dags[row.dag_id] += row.jobs
        if row.dag_id and row.task_id:
            self.tasks[row.dag_id, row.task_id] += row.jobs
            self.examples[row.dag_id, row.task_id] = row.said or row.token
        if row.said is not None:
            self.said[row.said] += row.jobs
        else:
            self.silent[row.token] += row.jobs


def failures(session: Session, sight: Sight, since: float, now: float) -> FailureGroups:
    """Group the jobs that failed since a time."""
    of_site, of_node = JobRow.cause.in_(OF_SITES), JobRow.cause.in_(OF_NODES)
    where = {"site": case((of_site, JobRow.site)), "node": case((of_node, func.coalesce(JobRow.node, JobRow.location)))}
    names = ("cause", "reason_code", "site", "node", "dag_id", "task_id")
    columns = [where.get(name, getattr(JobRow, name)).label(name) for name in names]
    # A token stands in for the reason, because MariaDB groups text on disk.
    said = case((JobRow.reason.is_not(None), JobRow.token)).label("said")
    by: Any = select(*columns, JobRow.run_id, JobRow.map_index, JobRow.ended_at, JobRow.token, said)
    failed = by.where(*failed_since(since)).subquery()
    keys = [failed.c[name] for name in names]
    sums = {
        "jobs": func.count(),
        "first": func.min(failed.c.ended_at),
        "last": func.max(failed.c.ended_at),
        "said": func.max(failed.c.said),
        "token": func.max(failed.c.token),
    }
    rows = session.execute(select(*keys, *(each.label(name) for name, each in sums.items())).group_by(*keys))
    groups: dict[Key, FailedJobs] = {}
    for row in rows:
        groups.setdefault(key_of(row), FailedJobs()).add(row, sight.sees(row.dag_id))
    instances = func.count(TaskInstance.id.distinct()).label("instances")
    query = select(*keys, TaskInstance.state, instances).join(TaskInstance, task_of(failed.c))
    for row in session.execute(query.group_by(*keys, TaskInstance.state)):
        if sight.sees(row.dag_id) and (found := groups.get(key_of(row))) is not None:
            found.since_then[became(row.state)] += row.instances
    ordered = sorted(groups.items(), key=_rank)
    shown = ordered[:MOST_GROUPS]
    tokens = {token for _, found in shown for token, _ in found.telling}
    tokens |= {found.examples[task] for _, found in shown for task, _ in found.tasks.most_common(MOST_ADVISED)}
    examples = load_examples(session, sorted(tokens))
    return FailureGroups(
        now=now,
        since=since,
        jobs=sum(each.jobs for each in groups.values()),
        groups=[model(session, key, found, examples) for key, found in shown],
        groups_left_out=len(ordered[MOST_GROUPS:]),
        jobs_left_out=sum(each.jobs for _, each in ordered[MOST_GROUPS:]),
    )


def count_failed_tasks(session: Session, since: float) -> int:
    """Count the tasks that have a try that failed since a time and that Airflow will not retry.

    A failed job without a task in Airflow counts as one.
    """
    task = TaskInstance
    failed = func.count(case((task.state == TaskInstanceState.FAILED, task.id)).distinct())
    unknown = func.count(case((task.id.is_(None), JobRow.token)))
    query = select(failed, unknown).select_from(JobRow).outerjoin(task, task_of(JobRow)).where(*failed_since(since))
    return sum(session.execute(query).one())


def meaning(cause: str, code: str | None) -> Cause | Code:
    """Return the reason of a failure if it has a remedy of its own, otherwise its cause."""
    its, own = CAUSES.get(cause, CAUSES[DEFAULT_CAUSE]), CODES.get(code or "")
    return its if own is None or own.kind != its.key or own.remedy == its.remedy else own


def key_of(row: Any) -> Key:
    """Return the key of the group that a failed job belongs to."""
    cause = row.cause or DEFAULT_CAUSE
    return cause, meaning(cause, row.reason_code), row.site, row.node


def _rank(group: tuple[Key, FailedJobs]) -> tuple[int, str, str, str, str]:
    (cause, means, site, node), found = group
    return -found.jobs, cause, means.key, site or "", node or ""


def load_examples(session: Session, tokens: Sequence[str]) -> dict[str, Any]:
    """Load the outcome, run, map index and try number of jobs, by token."""
    columns = (
        JobRow.token, JobRow.cause, JobRow.reason, JobRow.exit_code, JobRow.run_id, JobRow.map_index, JobRow.try_number,
    )  # fmt: skip
    query = select(*columns)
    return {row.token: row for chunk in chunks(tokens) for row in session.execute(query.where(JobRow.token.in_(chunk)))}


def model(session: Session, key: Key, found: FailedJobs, examples: dict[str, Any]) -> FailureGroup:
    """
    :param examples: see :func:`load_examples`
    """
    name, means, site, node = key
    sentences: Counter[str] = Counter()
    for token, jobs in found.telling:
        if token in examples and (text := why_failed(examples[token])) is not None:
            sentences[text] += jobs
    return FailureGroup(
        cause=name,
        title=means.title,
        remedy=remedy_at(means.remedy, site),
        actors=[each.value for each in means.actors],
        site=site,
        node=node,
        jobs=found.jobs,
        tasks=len(found.tasks) + found.hidden_tasks,
        since_then=dict(found.since_then),
        first=found.first,
        last=found.last,
        sentences=[text for text, _ in sentences.most_common(MOST_SENTENCES)],
        dags=[WaitingDag(dag_id=dag_id, jobs=jobs) for dag_id, jobs in found.dags.most_common(MOST_DAGS)],
        dags_total=len(found.dags),
        failed_tasks=failed_tasks(session, name, found, examples),
        hidden=found.hidden_tasks > 0,
    )


def failed_tasks(session: Session, cause: str, found: FailedJobs, examples: dict[str, Any]) -> list[FailedTask]:
    """Return the tasks with the most failures, each with what it should request where that would help."""
    tasks = []
    sequels = since_then(session, [found.examples[task] for task, _ in found.tasks.most_common(MOST_ADVISED)])
    for (dag_id, task_id), jobs in found.tasks.most_common(MOST_ADVISED):
        row = examples.get(found.examples[dag_id, task_id])  # None: it has just been purged
        a_try = (None, -1, 0) if row is None else (row.run_id, row.map_index, row.try_number)
        its = dict(zip(("run_id", "map_index", "try_number"), a_try, strict=True))
        advised = advise(session, cause, dag_id, task_id)
        advice, line = advised["advice"], advised["line"]
        then = sequels.get(found.examples[dag_id, task_id])
        tasks.append(
            FailedTask(dag_id=dag_id, task_id=task_id, jobs=jobs, advice=advice, line=line, since_then=then, **its)
        )
    return tasks


def advise(session: Session, cause: str, dag_id: str, task_id: str) -> dict[str, str | None]:
    """Return what a task that requested too little should request, based on what its tries used."""
    if cause not in ("out_of_memory", "time_limit"):
        return {"advice": None, "line": None}
    is_memory = cause == "out_of_memory"
    used = task_usage.of_task(session, dag_id, task_id)
    advised = right_size(used)
    enough = (advised.memory if is_memory else advised.time).nearly_all
    said = None if enough is None else f"request {format_memory(int(enough)) if is_memory else format_time(enough)}"
    bounds = [(use.memory_bound if is_memory else use.seconds) or 0 for use in used.sample if use.cause == cause]
    if said is None and bounds:
        # No try has needed more and succeeded, so only a lower bound is known.
        most = max(bounds)
        said = f"request clearly more than {format_memory(int(most)) if is_memory else format_time(most)}"
    return {"advice": said, "line": None if enough is None else advised.line}
