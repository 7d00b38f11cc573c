"""The estimator: threads that compute the requests of jobs next to the controller's ticks.

Inputs may be on file systems that are slow or hang. No Dag occupies all threads, Dags take turns, and a hanging thread
counts only against its own Dag. A place where several threads hang is not accessed until one of them continues. Jobs
without expressions, such as plain retries, access no files. The threads are daemons, so none of them keeps a stopping
controller alive.

Jobs are marked in the store before a thread examines them, and jobs under which a controller may have died or hung are
examined alone (see :mod:`lading.executors.store.strikes`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.decisions import refused
from lading.executors.orchestrator.orchestrator import Orchestrator
from lading.executors.settings import Settings
from lading.executors.sizing import sizing
from lading.executors.sizing.file_sizes import FileSizes, KnownSizes, place, too_slow
from lading.executors.sizing.sizing import SizingNote, SizingQuestion, UnsizedJob
from lading.executors.store import Change, strikes
from lading.executors.turns import THREADS, THREADS_PER_DAG, DagTurns
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources

if TYPE_CHECKING:
    from lading.hooks.site import Site

log = logging.getLogger(__name__)


@dataclass(eq=False)
class SizingWork:
    """Jobs of one task and run that one thread sizes.

    :param largest: the largest amounts that any location available to them can ever have; None: unknown
    :param most_preemptions: by site, after how many preemptions a job goes to on-demand machines
    :param is_alone: whether it is a single job that is examined while no others are
    :param keeps_inputs: whether plugins need the values of inputs
    :ivar behind: by token, the earlier try or input's job that a job has to wait for
    :ivar left: the jobs that were not examined because the turn was over
    :ivar place: where the thread hangs
    """

    seconds_until_hanging = FileSizes.most_seconds + 5.0
    """A job that takes clearly longer than its limit is hanging in a file system."""

    host: Orchestrator
    jobs: Sequence[UnsizedJob]
    settings: Settings
    known: KnownSizes
    largest: Resources | None
    most_preemptions: Mapping[str, int]
    is_alone: bool = False
    keeps_inputs: bool = False
    changes: list[Change] = field(default_factory=list)
    lessons: list[SizingNote] = field(default_factory=list)
    behind: dict[str, str] = field(default_factory=dict)
    left: frozenset[str] = frozenset()
    is_over: bool = False
    is_abandoned: bool = False
    place: str | None = None
    _at: tuple[UnsizedJob, FileSizes, float] | None = None

    @property
    def dag_id(self) -> str:
        return self.jobs[0].task[0]

    @property
    def tokens(self) -> frozenset[str]:
        return frozenset(job.token for job in self.jobs)

    def hangs(self) -> Change | None:
        """Return the failure of the job whose inputs take far too long; None: none does."""
        if (at := self._at) is None or time.monotonic() - at[2] <= self.seconds_until_hanging:
            return None
        return refused(at[0].token, because("hint_error", text=str(too_slow(at[1].address))), time.time())

    def abandon(self) -> None:
        self.is_abandoned = True
        self.place = place(at[1].address) if (at := self._at) is not None else None

    def run(self, ring: Callable[[], None]) -> None:
        try:
            self._measure()
        except SQLAlchemyError as error:
            log.warning("Jobs of %s could not be sized: %s", "/".join(self.jobs[0].task), error)
        finally:
            self.is_over = True
        if self.changes and not self.is_abandoned:
            ring()

    def _measure(self) -> None:
        questions = self._questions(self.jobs)
        # A thread works on the jobs of a task for ten seconds before it is another task's turn.
        until = time.monotonic() + 10.0
        for number, question in enumerate(questions):
            if self.is_abandoned or time.monotonic() > until:
                self.left = frozenset(each.job.token for each in questions[number:])
                return
            sizes = FileSizes(self.settings.input_roots, self.known)
            self._at = question.job, sizes, time.monotonic()
            try:
                change, lessons = sizing.answer(
                    question, sizes, self.settings, self.largest, keeps_inputs=self.keeps_inputs
                )
                change, more = sizing.after_preemptions(question, change, self.most_preemptions)
            except Exception as error:
                change, lessons, more = self._failed(question.job, error), [], []
            self._at = None
            if self.is_abandoned:
                return
            self.changes.append(change)
            self.lessons += [*lessons, *more]

    def _questions(self, jobs: Sequence[UnsizedJob]) -> Sequence[SizingQuestion]:
        """Return the questions about the jobs; a job with invalid stored data fails alone.

        :raises SQLAlchemyError: the database failed
        """
        try:
            read = sizing.read(self.host, jobs)
        except Exception as error:
            if sizing.is_of_database(error):
                raise
            if len(jobs) > 1:
                return [question for job in jobs for question in self._questions([job])]
            self.changes.append(self._failed(jobs[0], error))
            return ()
        self.behind |= read.behind
        return read.questions

    def _failed(self, job: UnsizedJob, error: Exception) -> Change:
        log.error("Job %s of %s could not be sized", job.token, "/".join(job.task), exc_info=error)
        why = because("sizing_failed", text=f"{type(error).__name__}: {error}")
        return refused(job.token, why, time.time())


class Estimator:
    """Computes what jobs request.

    :param ring: called when jobs have been sized
    :param largest: returns the largest amounts that a location can ever have at a site, or at any (None)
    :param sites: by name
    :param holder: the holder of the controller's lease
    :param keeps_inputs: whether plugins need the values of inputs
    """

    most_hanging = 64
    """Hanging threads do no work; if this many hang in all places together, none is started that might hang too."""

    def __init__(
        self,
        host: Orchestrator,
        settings: Settings,
        ring: Callable[[], None],
        largest: Callable[[str | None], Resources | None],
        sites: Mapping[str, Site[Any]],
        holder: str,
        *,
        keeps_inputs: bool = False,
    ) -> None:
        self.host = host
        self.settings = settings
        self.holder = holder
        self.keeps_inputs = keeps_inputs
        self.largest = largest
        limits = {name: site.config.most_preemptions for name, site in sites.items()}
        self.most_preemptions = {name: most for name, most in limits.items() if most is not None}
        self.ring = ring
        self.known = KnownSizes()
        self.under_way: list[SizingWork] = []
        self.beginning: list[SizingWork] = []
        """The work that is started once the marks of its jobs are committed."""
        self.is_turn_of_struck = True
        self.hanging: list[SizingWork] = []
        self.resting: dict[str, Backoff] = {}
        self.behind: dict[str, str] = {}
        self.turns = DagTurns()

    def step(self, session: Session, *, any_wait: bool = True) -> tuple[list[Change], list[SizingNote]]:
        """Collect results and mark the next jobs; call :meth:`start` after the commit.

        :param any_wait: whether any jobs wait to be sized
        """
        changes: list[Change] = []
        lessons: list[SizingNote] = []
        self.under_way = [work for work in self.under_way if work not in self.beginning]  # drop work never committed
        self.beginning = []
        for work in self._ended():
            changes += work.changes
            lessons += work.lessons
            done = {change.token for change in work.changes}
            strikes.passed(session, done)
            strikes.take_back(session, work.tokens - done)
        self.hanging = [work for work in self.hanging if not work.is_over]
        there = Counter(work.place for work in self.hanging if work.place is not None)
        # If this many threads hang in one mount or folder, jobs with inputs there fail at once.
        self.known.hanging = frozenset(where for where, count in there.items() if count >= 4)
        if any_wait:
            self._begin(session, {change.token for change in changes})
        strikes.note(session, self.holder, (token for work in self.beginning for token in work.tokens))
        return changes, lessons

    def start(self) -> None:
        """Start the threads of the work that :meth:`step` has prepared."""
        for work in self.beginning:
            threading.Thread(target=work.run, args=(self.ring,), name="sizing", daemon=True).start()
        self.beginning = []

    def close(self) -> None:
        """Start no more work; hanging threads are not waited for."""
        for work in self.under_way:
            work.is_abandoned = True

    def _ended(self) -> Iterator[SizingWork]:
        """Yield the work that is finished, or abandoned because it hangs, with the failure of the hanging job."""
        for work in list(self.under_way):
            if work.is_over:
                self._rest(work)
            elif (end := work.hangs()) is not None:
                work.abandon()
                self.hanging.append(work)
                work.changes = [*work.changes, end]
                log.warning("Reading the inputs of job %s hangs and was abandoned: %s", end.token, end.values["reason"])
            else:
                continue
            self.under_way.remove(work)
            yield work

    def _rest(self, work: SizingWork) -> None:
        """Make jobs that could not be sized wait before they are tried again."""
        self.behind.update(work.behind)
        found = {change.token for change in work.changes}
        for token in work.tokens:
            if token in found or token in work.left or token in work.behind:
                self.resting.pop(token, None)
            else:
                # The database failed: it is retried after 1, 2, 4 ... seconds.
                self.resting.setdefault(token, Backoff(1.0, longest=15.0)).failed("it was not sized")
        self.resting = {token: rest for token, rest in self.resting.items() if rest.left > -30.0}

    def _begin(self, session: Session, known: Iterable[str]) -> None:
        """Start work on jobs of the Dags in turn, as far as threads are available.

        A struck job has its turn between the other jobs, once those under way have finished.
        """
        if len(self.under_way) >= THREADS or any(work.is_alone for work in self.under_way):
            return
        busy = {*known, *(token for work in self.under_way for token in work.tokens)}
        busy |= {token for token, rest in self.resting.items() if rest.left > 0}
        live = store.live(session, self.behind.values())
        self.behind = {token: earlier for token, earlier in self.behind.items() if earlier in live}
        busy |= self.behind.keys()
        dags = sizing.waiting_dags(session)
        self.turns.forget(dags)
        struck = self._struck(session, busy) if any(dags.values()) else None
        if struck is None or not self.is_turn_of_struck:
            self._begin_together(session, busy, [*dags])
            self.is_turn_of_struck = bool(self.under_way)
        if struck is not None and not self.under_way:
            self._start([struck], is_alone=True)
            self.is_turn_of_struck = False

    def _taken(self) -> Counter[str]:
        # Threads hanging in a place that is no longer accessed do not keep their Dag from other places.
        hung = Counter(work.dag_id for work in self.hanging if work.place not in self.known.hanging)
        return Counter(work.dag_id for work in self.under_way) + hung

    def _may_hang(self, dag: str) -> bool:
        """Whether a thread can be started for a Dag even though it might hang."""
        return self._taken()[dag] < THREADS_PER_DAG and len(self.hanging) < self.most_hanging

    def _struck(self, session: Session, busy: Iterable[str]) -> UnsizedJob | None:
        """Return the next struck job; None: none can be examined now."""
        found = sizing.unsized_jobs(session, busy, are_struck=True)
        return next((job for job in found if not job.measures_inputs or self._may_hang(job.task[0])), None)

    def _begin_together(self, session: Session, busy: Iterable[str], dags: list[str]) -> None:
        """Start work on jobs that can be examined side by side."""
        waiting: dict[str, list[list[UnsizedJob]]] = {}
        while dags and len(self.under_way) < THREADS:
            at_work = Counter(work.dag_id for work in self.under_way)
            dag = self.turns.next(dags, self._taken())
            if at_work[dag] >= THREADS_PER_DAG:
                dags.remove(dag)
                continue
            if dag not in waiting:
                waiting[dag] = by_task(sizing.unsized_jobs(session, busy, dag))
            jobs = take_next(waiting[dag], self._may_hang(dag))
            if jobs is None:
                dags.remove(dag)
                continue
            self.turns.serve(dag)
            self._start(jobs)

    def _start(self, jobs: Sequence[UnsizedJob], *, is_alone: bool = False) -> None:
        largest = self.largest(jobs[0].site_hint)
        most = self.most_preemptions
        work = SizingWork(self.host, jobs, self.settings, self.known, largest, most, is_alone, self.keeps_inputs)
        self.under_way.append(work)
        self.beginning.append(work)


def take_next(waiting: list[list[UnsizedJob]], may_hang: bool) -> list[UnsizedJob] | None:
    """Take the next waiting jobs, or the next that access no inputs if no thread may hang; None: there are none."""
    for number, jobs in enumerate(waiting):
        if may_hang or not any(job.measures_inputs for job in jobs):
            return waiting.pop(number)
    return None


def by_task(jobs: Iterable[UnsizedJob]) -> list[list[UnsizedJob]]:
    """Group jobs by task, run and stored request, keeping their order."""
    found: dict[tuple[sizing.TaskKey, str], list[UnsizedJob]] = {}
    for job in jobs:
        found.setdefault((job.task, job.text), []).append(job)
    return list(found.values())
