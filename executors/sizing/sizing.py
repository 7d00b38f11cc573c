"""Sizing: the requests of jobs that depend on inputs, earlier tries or other runs.

The controller sizes such a job before it places it, in separate threads (see the module estimator).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import task_usage
from lading.executors.decisions import refused
from lading.executors.orchestrator.orchestrator import Orchestrator, TaskNote, TaskTry
from lading.executors.settings import Settings
from lading.executors.sizing.file_sizes import FileSizes, addresses, named_files
from lading.executors.sizing.inputs import Inputs, kept
from lading.executors.store import Change, JobRow, State, strikes
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.hooks.files.addresses import normal_path
from lading.hooks.files.xcom_json import Unknown
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import HintError, Hints, largest_of
from lading.scheduling.hints.patterns import MOST_SEARCHES, input_names, matching_targets, searches
from lading.scheduling.hints.retries import OVER_LIMIT, EarlierTry, learn
from lading.scheduling.matching.rules import Soft
from lading.scheduling.matching.stops import as_text
from lading.scheduling.model.machine_traits import ON_DEMAND
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing import auto
from lading.scheduling.sizing.right_size import NOTHING_KNOWN, Sizes, sizes

UNKNOWN = because("inputs")

TaskKey = tuple[str, str, str]

LEAVES_SPOT = "lading leaves spot machines"


@dataclass(frozen=True, slots=True)
class UnsizedJob:
    """A job that has not been sized yet.

    :param hints: as given by the author
    :param sources: where its inputs come from, see ``lading.operators.scattering.input_sources``
    :param fault: why hints and sources cannot be read; None: they can
    :param text: hints and sources as stored
    :param team: the team of its executor, whose options apply; None: the executor is for all teams
    :param chosen: the amounts that the author leaves to Lading, as stored; None: none
    """

    token: str
    task: TaskKey
    map_index: int
    try_number: int
    site_hint: str | None
    hints: Mapping[str, object]
    sources: Mapping[str, Any]
    fault: Reason | None = None
    text: str = ""
    team: str | None = None
    chosen: str | None = None

    @property
    def measures_inputs(self) -> bool:
        """Whether sizing it accesses its inputs, which may hang. False if its hints are invalid."""
        try:
            hints = Hints.parse(self.hints)
            return bool(hints.expressions or (hints.auto and self.sources))
        except Exception:  # the stored data can be anything
            return False


@dataclass(frozen=True, slots=True)
class SizingNote:
    """A decision about a job that was based on tries, for the event log."""

    job: UnsizedJob
    event: str
    message: str

    def entry(self) -> TaskNote:
        dag_id, run_id, task_id = self.job.task
        key = TaskTry(dag_id, task_id, run_id, self.job.try_number, self.job.map_index)
        return TaskNote(self.event, key, self.message)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The values that expressions can use."""

    attempt: int
    map_index: int
    runtime: float
    inputs: Mapping[str, Any]
    sizes: FileSizes
    measured: list[int] = field(default_factory=list)
    """The size of all inputs, once an expression has used it."""

    @property
    def input_size(self) -> int:
        # Not a cached_property: before Python 3.12, one instance that hangs would block all others.
        if not self.measured:
            self.measured.append(self.sizes.total_bytes([self.value(name) for name in self.inputs]))
        return self.measured[0]

    @property
    def input_length(self) -> int:
        values = [self.value(name) for name in self.inputs]
        return sum(len(each) for each in values if isinstance(each, Sequence) and not isinstance(each, (str, bytes)))

    def value(self, name: str) -> object:
        if name not in self.inputs:
            raise ExpressionError(f"there is no input {name!r}; valid: {', '.join(self.inputs) or 'none'}")
        if isinstance(value := self.inputs[name], Unknown):
            raise ExpressionError(f"input {name!r} is unknown: {value.why}")
        return value

    def size(self, name: str) -> int:
        return self.sizes.total_bytes(self.value(name))


def waiting_dags(session: Session) -> dict[str, bool]:
    """Return the Dags with jobs that wait to be sized, and for each whether one of its jobs is struck."""
    rows = session.execute(
        select(JobRow.dag_id, func.max(func.coalesce(JobRow.strikes, 0)))
        .where(JobRow.state == State.QUEUED, JobRow.sizing.is_not(None))
        .group_by(JobRow.dag_id)
    )
    return {str(dag_id): most > 0 for dag_id, most in rows}


def unsized_jobs(
    session: Session, busy: Iterable[str], dag_id: str | None = None, *, are_struck: bool = False
) -> list[UnsizedJob]:
    """Return queued jobs that wait to be sized, in the order in which they should start.

    :param busy: jobs to leave out
    :param dag_id: only jobs of this Dag; None: of any
    :param are_struck: whether to return struck jobs, or only the others
    """
    but = set(busy)
    query = select(
        JobRow.token,
        JobRow.dag_id,
        JobRow.run_id,
        JobRow.task_id,
        JobRow.map_index,
        JobRow.try_number,
        JobRow.site_hint,
        JobRow.sizing,
        JobRow.executor_team,
        JobRow.chosen,
    ).where(
        JobRow.state == State.QUEUED,
        JobRow.sizing.is_not(None),
        strikes.is_struck() if are_struck else ~strikes.is_struck(),
    )
    if dag_id is not None:
        query = query.where(JobRow.dag_id == dag_id)
    # Jobs of one task and run go to one thread, which reads their inputs once.
    rows = session.execute(query.order_by(JobRow.priority.desc(), JobRow.queued_at, JobRow.token).limit(500 + len(but)))
    jobs = []
    for token, dag, run_id, task_id, map_index, try_number, site_hint, request, team, chosen in rows:
        if token not in but:
            task, text = (str(dag), str(run_id), str(task_id)), str(request)
            try:
                asked = {**json.loads(text), "text": text, "team": team, "chosen": chosen}
                jobs.append(UnsizedJob(token, task, map_index, try_number, site_hint, **asked))
            except (ValueError, TypeError, RecursionError) as error:
                fault = because("hints_unreadable", text=f"{type(error).__name__}: {error}")
                jobs.append(UnsizedJob(token, task, map_index, try_number, site_hint, {}, {}, fault, text, team))
    return jobs


@dataclass(frozen=True, slots=True)
class SizingQuestion:
    """A job with everything needed to size it except access to its files.

    :param tries: its earlier tries
    :param inputs: its inputs by name, for each job of a chunk; or why they are unknown; or why the job fails unexamined
    :param needs: what the task needed in all its runs, if its author leaves an amount to Lading
    """

    job: UnsizedJob
    tries: Sequence[JobRow]
    inputs: Sequence[Mapping[str, Any]] | Exception | Reason
    needs: Sizes = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """What the database knows about jobs of one task and run.

    :param behind: by token, the job that has to end first: an earlier try, or the job of a task that an input comes
        from; there is no question for these jobs
    """

    questions: Sequence[SizingQuestion]
    behind: Mapping[str, str]


def read(host: Orchestrator, jobs: Sequence[UnsizedJob]) -> StoredFacts:
    dag_id, run_id, task_id = jobs[0].task
    with host.session() as session:
        is_chosen = any(job.chosen is not None for job in jobs)
        known = sizes(task_usage.of_task(session, dag_id, task_id)) if is_chosen else NOTHING_KNOWN
        inputs = Inputs(session, dag_id, run_id, jobs[0].sources)
        history = earlier_tries(session, jobs)
        writer = host.reporting(session, dag_id, run_id, inputs.tasks) if inputs.tasks else None
        struck = strikes.repeated(session, jobs[0].task)
        questions: list[SizingQuestion] = []
        behind: dict[str, str] = {}
        for job in jobs:
            tries = [each for each in history.get(job.map_index, []) if each.try_number < job.try_number]
            live = next((each.token for each in tries if each.state in store.LIVE), writer)
            if (why := job.fault or strikes.refusal(struck.get(job.text, []), job.map_index)) is not None:
                questions.append(SizingQuestion(job, tries, why, known))
            elif live is None:
                questions.append(SizingQuestion(job, tries, read_inputs(job, inputs), known))
            else:
                behind[job.token] = live
        session.expunge_all()
    return StoredFacts(questions, behind)


def read_inputs(job: UnsizedJob, inputs: Inputs) -> Sequence[Mapping[str, Any]] | Exception:
    """Return the inputs of a job if it needs them, or why they are unknown. Database errors are raised."""
    try:
        is_needed = bool((hints := Hints.parse(job.hints)).expressions or hints.matching or hints.stage)
    except Exception as error:  # the stored data can be anything
        return error
    try:
        return inputs.for_job(job.map_index) if is_needed or job.sources else ()
    except SQLAlchemyError:
        raise
    except Exception as error:  # tasks can write anything
        return error if is_needed else ()


def answer(
    question: SizingQuestion,
    files: FileSizes,
    settings: Settings,
    largest: Resources | None,
    *,
    keeps_inputs: bool = False,
) -> tuple[Change, list[SizingNote]]:
    """Size a job; any error in it or its inputs fails this job alone.

    :param keeps_inputs: whether plugins need the values of its inputs
    """
    job = question.job
    if isinstance(question.inputs, Reason):
        return refused(job.token, question.inputs, time.time()), []
    try:
        if isinstance(question.inputs, Exception):
            raise question.inputs
        values, sized_by, learnt = size_job(
            job, question.tries, question.inputs, files, settings, largest, question.needs
        )
    except (HintError, ExpressionError) as error:
        return refused(job.token, because("hint_error", text=str(error)), time.time()), []
    except Exception as error:  # tasks can write anything
        why = because("inputs_unknown", text=f"{type(error).__name__}: {error}")
        return refused(job.token, why, time.time()), []
    seen = {"input_values": kept(question.inputs)} if keeps_inputs else {}
    change = Change(job.token, {**values, **seen, "sizing": None, "reason": None})
    said = {"lading sizes the task": sized_by, "lading asks for more": learnt}
    return change, [SizingNote(job, event, "; ".join(texts)) for event, texts in said.items() if texts]


def stored(session: Session, changes: Sequence[Change]) -> list[Change]:
    """Store results; a job with values that no column can hold fails alone.

    :returns: the changes that were stored
    :raises SQLAlchemyError: the database failed
    """
    if not changes:
        return []
    try:
        with session.begin_nested():
            store.apply(session, changes)
    except Exception as error:
        if is_of_database(error):
            raise
        if len(changes) > 1:
            return [done for change in changes for done in stored(session, [change])]
        cause = (error.orig if isinstance(error, StatementError) else None) or error  # without the whole statement
        reason = because("sizing_not_stored", text=f"{type(cause).__name__}: {cause}")
        end = refused(changes[0].token, reason, time.time())
        store.apply(session, [end])
        return [end]
    return list(changes)


def is_of_database(error: Exception) -> bool:
    """Whether an error comes from the database itself, not from the data."""
    is_of_data = isinstance(error, DataError) or (
        isinstance(error, StatementError) and not isinstance(error, DBAPIError)
    )
    return isinstance(error, SQLAlchemyError) and not is_of_data


def size_job(
    job: UnsizedJob,
    tries: Sequence[JobRow],
    inputs: Sequence[Mapping[str, Any]],
    files: FileSizes,
    settings: Settings,
    largest: Resources | None,
    needs: Sizes = NOTHING_KNOWN,
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Return the columns that size a job, and as text what ``auto`` chose and what was learnt from earlier tries.

    :param largest: the largest amounts of any location it can run at; None: unknown
    :param needs: what the task needed in all its runs
    :raises HintError: an expression cannot be evaluated, or its result is invalid
    :raises ExpressionError: its inputs are unknown
    """
    settings = settings.for_team(job.team)
    hints = Hints.parse(job.hints)
    last = max(tries, key=lambda each: each.try_number, default=None)
    runtime = 0.0 if last is None else seconds(last)
    facts = [JobFacts(job.try_number, job.map_index, runtime, values, files) for values in inputs]
    left = auto.from_text(job.chosen)
    input_size = _input_size(facts) if hints.auto and job.sources else None
    hints, message = auto.sized(hints, needs, largest, input_size)
    if hints.expressions:
        hints = largest_of([hints.evaluated(each) for each in facts])
    # Sizes that neither an expression nor auto has used are not looked up just to store them.
    looked_up = [each for each in facts if each.measured]
    measured = {"input_size": size} if (size := _input_size(looked_up)) is not None else {}
    places = {**(matched_targets(hints, inputs) if hints.matching else {}), **staged_files(hints, inputs)}
    earlier = [as_try(each) for each in tries]
    factors = settings.retry_factors
    too_little = max((each.memory for each in earlier if each.cause == "out_of_memory"), default=0)
    if "memory" in left and needs.memory is not None and too_little:
        factors = replace(factors, memory=needs.memory.after(too_little) / too_little)
    unsaid = {name: each for name, each in left.items() if not each.is_asked}
    asked = auto.resized(hints.resources(settings.default_resources), unsaid, needs, largest, input_size)
    lesson = learn(
        asked,
        hints.limits(),
        earlier,
        factors,
        None if largest is None else largest.memory,
        hints.least.get("memory"),
    )
    limits = {"memory_limit": lesson.limits.memory, "time_limit": lesson.limits.time}
    if lesson.resources.memory > asked.memory and (memory := left.get("memory")) is not None:
        left = {**left, "memory": replace(memory, least=lesson.resources.memory)}
    if "memory" in unsaid and not any(each.reason_code in OVER_LIMIT for each in tries):
        limits["memory_limit"] = None  # no limit has killed it, and the amount used for packing is not one
    chosen = {"chosen": auto.as_text(left)} if left else {}
    soft = {}
    if lesson.least_memory is not None:
        least = {**hints.least, "memory": lesson.least_memory}
        soft = {"soft": Soft(least, hints.preferred - hints.features).as_text()}
    named = {"inputs": json.dumps(found)} if (found := addresses(inputs)) else {}
    return (
        {**asdict(lesson.resources), **limits, **chosen, **measured, **soft, **named, **places},
        message,
        lesson.changes,
    )


def _input_size(facts: Sequence[JobFacts]) -> int | None:
    """Return the largest input size, as in :class:`lading.scheduling.sizing.usage.Use`; None: unknown."""
    try:
        largest = max((each.input_size for each in facts), default=None)
        return largest if largest is None or largest else -max(each.input_length for each in facts)
    except ExpressionError:
        return None


def earlier_tries(session: Session, jobs: Sequence[UnsizedJob]) -> dict[int, list[JobRow]]:
    """Return the stored tries of these jobs by map index, without the job scripts that they have submitted."""
    retried = sorted({job.map_index for job in jobs if job.try_number > 1})
    dag_id, run_id, task_id = jobs[0].task
    history: dict[int, list[JobRow]] = {}
    for start in range(0, len(retried), store.CHUNK):
        rows = session.scalars(
            select(JobRow).where(
                JobRow.dag_id == dag_id,
                JobRow.run_id == run_id,
                JobRow.task_id == task_id,
                JobRow.map_index.in_(retried[start : start + store.CHUNK]),
                JobRow.kind != JOB_SCRIPT,
            )
        )
        for row in rows:
            history.setdefault(row.map_index, []).append(row)
    return history


def as_try(job: JobRow) -> EarlierTry:
    memory = job.memory_limit or max(job.memory, job.peak_memory or 0)
    return EarlierTry(job.try_number, job.cause, memory, float(job.time_limit or seconds(job)))


def seconds(job: JobRow) -> float:
    return (job.ended_at or 0.0) - job.started_at if job.started_at else 0.0


def matched_targets(hints: Hints, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the targets column of a job, reduced to the targets that its inputs match.

    :param inputs: by name, for each job of a chunk, which all have to match
    :raises HintError: they match no target, or there are too many searches
    :raises ExpressionError: an input is unknown
    """
    if (number := len(inputs) * searches(hints.matching)) > MOST_SEARCHES:
        raise HintError(
            f"hint matching: {searches(hints.matching)} patterns for the inputs of {len(inputs)} jobs require "
            f"{number:,} searches; valid: at most {MOST_SEARCHES:,} for a chunk; lower chunk_size or use fewer patterns"
        )
    left, names = hints.targets, [name for name, _ in input_names(hints.matching)]
    for values in inputs:
        for name, each in values.items():
            if name in names and isinstance(each, Unknown):
                raise ExpressionError(f"input {name!r}, which has to be matched, is unknown: {each.why}")
        left = matching_targets(left, hints.matching, values)
    if not left:
        missing = [name for name in dict.fromkeys(names) if any(name not in values for values in inputs)]
        there = ", ".join(dict.fromkeys(name for values in inputs for name in values)) or "none"
        which = f"; it has no input {', '.join(map(repr, missing))}: its inputs are {there}" if missing else ""
        raise HintError(f"hint matching: its inputs match none of its targets {', '.join(hints.targets)}{which}")
    return {"targets": as_text(left, hints.filters)}


def staged_files(hints: Hints, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the stage column of a job: the addresses of the files to stage, to which staging adds their paths.

    :param inputs: by name, for each job of a chunk
    :raises HintError: there is no such input, or there are too many files
    :raises ExpressionError: an input is unknown
    """
    stage: dict[str, None] = {}
    for values in inputs:
        for name in hints.stage:
            if name not in values:
                raise HintError(f"hint stage: there is no input {name!r}; valid: {', '.join(values) or 'none'}")
            if isinstance(value := values[name], Unknown):
                raise ExpressionError(f"input {name!r}, whose files are to be staged, is unknown: {value.why}")
            for address, _ in named_files(value, schemes=None):
                stage[normal_path(address) or address] = None
    if len(stage) > 200:
        raise HintError(f"hint stage: the inputs name {len(stage)} files; valid: at most 200")
    return {"stage": json.dumps(stage)} if stage else {}


def after_preemptions(
    question: SizingQuestion, change: Change, limits: Mapping[str, int]
) -> tuple[Change, list[SizingNote]]:
    """Return the change of a sized job, moved to on-demand machines after too many preemptions.

    A job whose author requested spot stays on spot.

    :param change: the result of sizing
    :param limits: by site, after how many preemptions a job goes to on-demand machines
    """
    losses = Counter(each.site for each in question.tries if each.cause == "preempted")
    beyond = [site for site, most in limits.items() if losses[site] >= most]
    if not beyond or question.job.hints.get("capacity_type") is not None or change.values.get("state") == State.FAILED:
        return change, []
    message = f"goes to an on-demand machine: {losses[beyond[0]]} of its tries were preempted at site {beyond[0]!r}"
    return replace(change, values={**change.values, "capacity_type": ON_DEMAND}), [
        SizingNote(question.job, LEAVES_SPOT, message)
    ]
