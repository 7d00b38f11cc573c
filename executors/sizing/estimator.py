"""The estimator: threads in which it is found out what jobs ask for, beside the controller's ticks.

Inputs may be on file systems that are slow or hang. No Dag takes all threads, each takes its turn, and a thread that
hangs is counted against its Dag alone. Where several hang, no thread looks until one of them goes on. A job without
expressions, such as a plain retry, needs no look. The threads are daemons, so none of them keeps a stopped controller.

Jobs are noted in the store before a thread looks at them, and those over which a controller may have died or hung are
looked at alone (see :mod:`lading.executors.store.strikes`).
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
from lading.executors.settings import Settings
from lading.executors.sizing import sizing
from lading.executors.sizing.file_sizes import MOST_SECONDS, FileSizes, KnownSizes, place, too_slow
from lading.executors.sizing.sizing import SizingNote, SizingQuestion, UnsizedJob
from lading.executors.store import Change, strikes
from lading.executors.turns import THREADS, THREADS_PER_DAG, DagTurns
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.reasons import because
from lading.scheduling.resources import Resources

if TYPE_CHECKING:
    from lading.hooks.site import Site

log = logging.getLogger(__name__)

# Where so many threads hang, in a mount or a folder, jobs fail at once that would look there.
MOST_HANGING_THERE = 4
# Threads that hang do no more work; of so many in all places none is begun that may hang, too.
MOST_HANGING = 64
# A thread goes on with the jobs of a task for so long, then it is another's turn, seconds.
SECONDS_PER_TURN = 10.0
# A job that is looked at for so much longer than the limit says hangs in a file system, seconds.
SECONDS_OF_GRACE = 5.0
# A job of which nothing was found out, for the database failed, is looked at again after 1, 2, 4 ... seconds, at most
# this.
LONGEST_REST = 15.0


@dataclass(eq=False)
class SizingWork:
    """Some jobs of one task and run, which one thread looks at.

    :param largest: the most of everything that a location has which they can ever get; None: that is not known
    :param most_preemptions: after how many of them a job goes on demand, by site
    :param keeps_inputs: whether plugins ask for the values of inputs
    :ivar behind: the jobs that wait for the end of an earlier try, each with its token
    :param is_alone: whether it is one job beside which no other is looked at
    :ivar left: the jobs that were not looked at, as the time was up
    :ivar place: where it hangs
    """

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
        """The end of the job whose inputs have been looked at for far too long; None: there is none."""
        if (at := self._at) is None or time.monotonic() - at[2] <= MOST_SECONDS + SECONDS_OF_GRACE:
            return None
        return refused(at[0].token, because("hint_error", text=str(too_slow(at[1].address))), time.time())

    def abandon(self) -> None:
        """Expect nothing more of it."""
        self.is_abandoned = True
        self.place = place(at[1].address) if (at := self._at) is not None else None

    def run(self, ring: Callable[[], None]) -> None:
        """What the thread does."""
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
        until = time.monotonic() + SECONDS_PER_TURN
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
        """What is to be answered; where something is wrong with what the store has of one of them, it fails alone.

        :raises SQLAlchemyError: the database has failed
        """
        try:
            read = sizing.read(jobs)
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
    """Finds out what jobs ask for.

    :param ring: called when something has been found out
    :param largest: the most of everything that a location can ever have at a site, or at any (None)
    :param sites: by name
    :param holder: by which the controller holds its lease
    :param keeps_inputs: whether plugins ask for the values of inputs
    """

    def __init__(
        self,
        settings: Settings,
        ring: Callable[[], None],
        largest: Callable[[str | None], Resources | None],
        sites: Mapping[str, Site[Any]],
        holder: str,
        *,
        keeps_inputs: bool = False,
    ) -> None:
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
        """What is under way and is to be started when its jobs' notes are committed."""
        self.is_turn_of_struck = True
        self.hanging: list[SizingWork] = []
        self.resting: dict[str, Backoff] = {}
        self.behind: dict[str, str] = {}
        self.turns = DagTurns()

    def step(self, session: Session, *, any_wait: bool = True) -> tuple[list[Change], list[SizingNote]]:
        """Collect what has been found out, and note the jobs that are next; call :meth:`start` after the commit.

        :param any_wait: whether jobs wait of which it is not known what they ask for
        """
        changes: list[Change] = []
        lessons: list[SizingNote] = []
        self.under_way = [work for work in self.under_way if work not in self.beginning]  # what was not committed
        self.beginning = []
        for work in self._ended():
            changes += work.changes
            lessons += work.lessons
            done = {change.token for change in work.changes}
            strikes.passed(session, done)
            strikes.take_back(session, work.tokens - done)
        self.hanging = [work for work in self.hanging if not work.is_over]
        there = Counter(work.place for work in self.hanging if work.place is not None)
        self.known.hanging = frozenset(where for where, count in there.items() if count >= MOST_HANGING_THERE)
        if any_wait:
            self._begin(session, {change.token for change in changes})
        strikes.note(session, self.holder, (token for work in self.beginning for token in work.tokens))
        return changes, lessons

    def start(self) -> None:
        """Start the threads of what has been begun."""
        for work in self.beginning:
            threading.Thread(target=work.run, args=(self.ring,), name="sizing", daemon=True).start()
        self.beginning = []

    def close(self) -> None:
        """Begin with nothing more; a thread that hangs is not waited for."""
        for work in self.under_way:
            work.is_abandoned = True

    def _ended(self) -> Iterator[SizingWork]:
        """What is over, and what hangs and is abandoned, with the end of the job at which it hangs."""
        for work in list(self.under_way):
            if work.is_over:
                self._rest(work)
            elif (end := work.hangs()) is not None:
                work.abandon()
                self.hanging.append(work)
                work.changes = [*work.changes, end]
                log.warning(
                    "A look at the inputs of job %s hangs and is abandoned: %s", end.token, end.values["reason"]
                )
            else:
                continue
            self.under_way.remove(work)
            yield work

    def _rest(self, work: SizingWork) -> None:
        """Let jobs of which nothing was found out rest before they are looked at again."""
        self.behind.update(work.behind)
        found = {change.token for change in work.changes}
        for token in work.tokens:
            if token in found or token in work.left or token in work.behind:
                self.resting.pop(token, None)
            else:
                self.resting.setdefault(token, Backoff(1.0, LONGEST_REST)).failed("nothing is known yet")
        self.resting = {token: rest for token, rest in self.resting.items() if rest.left > -2 * LONGEST_REST}

    def _begin(self, session: Session, known: Iterable[str]) -> None:
        """Begin with jobs of the Dags in turn, as far as there are threads.

        One over which a controller may have died has its turn between those of the others, when they have ended.
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
        """How many threads each Dag has, also those that hang."""
        # A place that is not looked at any more keeps no Dag from looking elsewhere.
        hung = Counter(work.dag_id for work in self.hanging if work.place not in self.known.hanging)
        return Counter(work.dag_id for work in self.under_way) + hung

    def _may_hang(self, dag: str) -> bool:
        """Whether a thread may look for a Dag where it might hang."""
        return self._taken()[dag] < THREADS_PER_DAG and len(self.hanging) < MOST_HANGING

    def _struck(self, session: Session, busy: Iterable[str]) -> UnsizedJob | None:
        """The next job over which a controller may have died or hung; None: none can be looked at now."""
        found = sizing.unsized_jobs(session, busy, are_struck=True)
        return next((job for job in found if not job.measures_inputs or self._may_hang(job.task[0])), None)

    def _begin_together(self, session: Session, busy: Iterable[str], dags: list[str]) -> None:
        """Begin with jobs that may be looked at beside each other."""
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
        work = SizingWork(jobs, self.settings, self.known, largest, most, is_alone, self.keeps_inputs)
        self.under_way.append(work)
        self.beginning.append(work)


def take_next(waiting: list[list[UnsizedJob]], may_hang: bool) -> list[UnsizedJob] | None:
    """Take the next jobs out of those that wait, the next without a look at inputs where one may not hang; None: there
    are none.
    """
    for number, jobs in enumerate(waiting):
        if may_hang or not any(job.measures_inputs for job in jobs):
            return waiting.pop(number)
    return None


def by_task(jobs: Iterable[UnsizedJob]) -> list[list[UnsizedJob]]:
    """The jobs of each task and run that ask for the same, in their order."""
    found: dict[tuple[sizing.TaskKey, str], list[UnsizedJob]] = {}
    for job in jobs:
        found.setdefault((job.task, job.text), []).append(job)
    return list(found.values())
