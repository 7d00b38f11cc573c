"""The estimator: threads in which it is found out what jobs ask for, beside the controller's ticks.

Inputs may be on file systems that are slow or hang. No Dag takes all threads, each takes its turn, and a thread that
hangs is counted against its Dag alone. Where several hang, nobody looks until one of them goes on. A job without
expressions, such as a plain retry, needs no look. The threads are daemons, so none of them keeps a stopped controller.
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
from lading.executors.estimation import appraisal, preemptions
from lading.executors.estimation.appraisal import Lesson, Unappraised
from lading.executors.estimation.file_sizes import MOST_SECONDS, FileSizes, KnownSizes, place, too_slow
from lading.executors.settings import Settings
from lading.executors.store import Change
from lading.executors.turns import THREADS, THREADS_PER_DAG, Turns
from lading.hooks.ssh.backoff import Backoff
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
class Work:
    """Some jobs of one task and run, which one thread looks at.

    :param largest: the most of everything that a location has which they can ever get; None: that is not known
    :param most_preemptions: after how many of them a job goes on demand, by site
    :param keeps_inputs: whether plugins ask for the values of inputs
    :ivar behind: the jobs that wait for the end of an earlier try, each with its token
    :ivar left: the jobs that nobody has looked at, as the time was up
    :ivar place: where it hangs
    """

    jobs: Sequence[Unappraised]
    settings: Settings
    known: KnownSizes
    largest: Resources | None
    most_preemptions: Mapping[str, int]
    keeps_inputs: bool = False
    changes: list[Change] = field(default_factory=list)
    lessons: list[Lesson] = field(default_factory=list)
    behind: Mapping[str, str] = field(default_factory=dict)
    left: frozenset[str] = frozenset()
    is_over: bool = False
    is_given_up: bool = False
    place: str | None = None
    _at: tuple[Unappraised, FileSizes, float] | None = None

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
        return appraisal.failed(at[0].token, str(too_slow(at[1].address)))

    def give_up(self) -> None:
        """Expect nothing more of it."""
        self.is_given_up = True
        self.place = place(at[1].address) if (at := self._at) is not None else None

    def run(self, ring: Callable[[], None]) -> None:
        """What the thread does."""
        try:
            self._look()
        except SQLAlchemyError as error:
            log.warning("Jobs of %s could not be appraised: %s", "/".join(self.jobs[0].task), error)
        except Exception as error:
            log.exception("Jobs of %s could not be appraised", "/".join(self.jobs[0].task))
            why = f"what it asks for could not be found out: {type(error).__name__}: {error}"
            done = {change.token for change in self.changes}
            self.changes += [appraisal.failed(token, why) for token in self.tokens - done]
        self.is_over = True
        if self.changes and not self.is_given_up:
            ring()

    def _look(self) -> None:
        read = appraisal.read(self.jobs)
        self.behind = read.behind
        until = time.monotonic() + SECONDS_PER_TURN
        for number, question in enumerate(read.questions):
            if self.is_given_up or time.monotonic() > until:
                self.left = frozenset(each.job.token for each in read.questions[number:])
                return
            sizes = FileSizes(self.settings.input_roots, self.known)
            self._at = question.job, sizes, time.monotonic()
            change, lessons = appraisal.answer(
                question, sizes, self.settings, self.largest, keeps_inputs=self.keeps_inputs
            )
            change, more = preemptions.heeded(question, change, self.most_preemptions)
            self._at = None
            if self.is_given_up:
                return
            self.changes.append(change)
            self.lessons += [*lessons, *more]


class Estimator:
    """Finds out what jobs ask for.

    :param ring: called when something has been found out
    :param largest: the most of everything that a location can ever have at a site, or at any (None)
    :param sites: by name
    :param keeps_inputs: whether plugins ask for the values of inputs
    """

    def __init__(
        self,
        settings: Settings,
        ring: Callable[[], None],
        largest: Callable[[str | None], Resources | None],
        sites: Mapping[str, Site[Any]],
        *,
        keeps_inputs: bool = False,
    ) -> None:
        self.settings = settings
        self.keeps_inputs = keeps_inputs
        self.largest = largest
        limits = {name: site.config.most_preemptions for name, site in sites.items()}
        self.most_preemptions = {name: most for name, most in limits.items() if most is not None}
        self.ring = ring
        self.known = KnownSizes()
        self.under_way: list[Work] = []
        self.hanging: list[Work] = []
        self.resting: dict[str, Backoff] = {}
        self.behind: dict[str, str] = {}
        self.turns = Turns()

    def step(self, session: Session) -> tuple[list[Change], list[Lesson]]:
        """Collect what has been found out, and begin with jobs that are new."""
        changes: list[Change] = []
        lessons: list[Lesson] = []
        for work in self._ended():
            changes += work.changes
            lessons += work.lessons
        self.hanging = [work for work in self.hanging if not work.is_over]
        there = Counter(work.place for work in self.hanging if work.place is not None)
        self.known.hanging = frozenset(where for where, count in there.items() if count >= MOST_HANGING_THERE)
        self._begin(session, {change.token for change in changes})
        return changes, lessons

    def close(self) -> None:
        """Begin with nothing more; a thread that hangs is not waited for."""
        for work in self.under_way:
            work.is_given_up = True

    def _ended(self) -> Iterator[Work]:
        """What is over, and what hangs and is given up, with the end of the job at which it hangs."""
        for work in list(self.under_way):
            if work.is_over:
                self._rest(work)
            elif (end := work.hangs()) is not None:
                work.give_up()
                self.hanging.append(work)
                work.changes = [*work.changes, end]
                log.warning("A look at the inputs of job %s hangs and is given up: %s", end.token, end.values["reason"])
            else:
                continue
            self.under_way.remove(work)
            yield work

    def _rest(self, work: Work) -> None:
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
        """Begin with jobs of the Dags in turn, as far as there are threads."""
        if len(self.under_way) >= THREADS:
            return
        busy = {*known, *(token for work in self.under_way for token in work.tokens)}
        busy |= {token for token, rest in self.resting.items() if rest.left > 0}
        live = store.live(session, self.behind.values())
        self.behind = {token: earlier for token, earlier in self.behind.items() if earlier in live}
        busy |= self.behind.keys()
        dags = appraisal.waiting_dags(session)
        self.turns.forget(dags)
        waiting: dict[str, list[list[Unappraised]]] = {}
        while dags and len(self.under_way) < THREADS:
            at_work = Counter(work.dag_id for work in self.under_way)
            # A place that nobody looks at any more keeps no Dag from looking elsewhere.
            hung = Counter(work.dag_id for work in self.hanging if work.place not in self.known.hanging)
            taken = at_work + hung
            dag = self.turns.next(dags, taken)
            if at_work[dag] >= THREADS_PER_DAG:
                dags.remove(dag)
                continue
            if dag not in waiting:
                waiting[dag] = by_task(appraisal.unappraised(session, busy, dag))
            may_hang = taken[dag] < THREADS_PER_DAG and len(self.hanging) < MOST_HANGING
            jobs = first(waiting[dag], may_hang)
            if jobs is None:
                dags.remove(dag)
                continue
            self.turns.serve(dag)
            self._start(jobs)

    def _start(self, jobs: Sequence[Unappraised]) -> None:
        largest = self.largest(jobs[0].site_hint)
        work = Work(jobs, self.settings, self.known, largest, self.most_preemptions, self.keeps_inputs)
        self.under_way.append(work)
        threading.Thread(target=work.run, args=(self.ring,), name="appraisal", daemon=True).start()


def first(waiting: list[list[Unappraised]], may_hang: bool) -> list[Unappraised] | None:
    """Take the next jobs out of those that wait, the next without a look at inputs where one may not hang; None: there
    are none.
    """
    for number, jobs in enumerate(waiting):
        if may_hang or not any(job.has_expressions for job in jobs):
            return waiting.pop(number)
    return None


def by_task(jobs: Iterable[Unappraised]) -> list[list[Unappraised]]:
    """The jobs of each task and run, in their order."""
    found: dict[appraisal.TaskKey, list[Unappraised]] = {}
    for job in jobs:
        found.setdefault(job.task, []).append(job)
    return list(found.values())
