"""When jobs that wait for the same room start, predicted from shares and lengths. Pure.

Room is given to one job at a time in the order of :mod:`lading.scheduling.accounting.fair_order`: to the share with the
smallest use relative to its weight, after shares that have less than is kept for them. All room counts as one large
machine, which starts jobs by the rule of :mod:`lading.scheduling.starts.queueing`.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, Protocol

from lading.scheduling.accounting.share_table import Share, Shares
from lading.scheduling.accounting.share_usage import Mean
from lading.scheduling.model.site_names import is_named
from lading.scheduling.model.unfinished import seconds_left, typical_length
from lading.scheduling.starts.queueing import PATIENCE

# How often lengths and arrivals are drawn. This is done only for jobs that are expected to start within
# ``LONGEST_DRAWN`` seconds and have at most ``MOST_BEFORE_DRAWN`` jobs before them: nobody knows whether jobs will be
# queued as often much later, and the lengths of many jobs even out.
DRAWS, LONGEST_DRAWN, MOST_BEFORE_DRAWN = 12, 600.0, 150
# Arrivals delay these jobs, so a draw covers LONGER times as many seconds and MORE times as many jobs.
LONGER, MORE = 3.0, 2
# Sums of cpus differ by less.
TOLERANCE = 1e-6


class ShareLine(NamedTuple):
    """The waiting jobs of one share that are served together.

    :param level: lines with a smaller one start first, whatever their shares have
    """

    level: tuple[bool, int, int]
    share: str


class Alike(NamedTuple):
    """Equal jobs that follow one another in a line.

    :param cpus: of one of them
    :param seconds: how long one runs on average
    :param spread: the standard deviation of the logarithm of their lengths; 0: all run equally long
    :param task: jobs of one task are all longer, or all shorter, than expected
    :param doubt: the standard error of the logarithm of ``seconds``
    """

    jobs: int
    cpus: float
    seconds: float
    spread: float = 0.0
    task: Hashable = None
    doubt: float = 0.0


class Running(NamedTuple):
    """Running jobs of a share that finish together.

    :param cpus: of all of them
    :param left: seconds until they are expected to finish
    :param passed: seconds since they started
    :param median: of the lengths of such jobs, seconds; 0: ``left`` is certain
    :param spread: see :class:`Alike`, also for ``task`` and ``doubt``
    """

    share: str
    cpus: float
    left: float
    passed: float = 0.0
    median: float = 0.0
    spread: float = 0.0
    task: Hashable = None
    doubt: float = 0.0


class ExpectedArrival(NamedTuple):
    """Jobs that are likely to be queued again.

    :param line: the line in which they waited
    """

    line: ShareLine
    jobs: Alike


# By line and number in it: seconds from now, and how many jobs start before it.
Starts = dict[ShareLine, dict[int, tuple[float, int]]]


class QueueAhead:
    """The predicted starts of waiting jobs.

    :param lines: the jobs of each, first to last
    :param cpus: of the whole room
    :param lately: what each share has used lately; empty: past use does not count
    :param site: the site whose room it is; None: all sites together
    :param given_ahead: how many cpus the jobs request that are given to sites before there is room for them
    :param most_compared: how often lines, shares and sizes of jobs are compared, which takes a fraction of a second;
        later jobs are assumed to start as the work before them is done
    """

    def __init__(
        self,
        lines: Mapping[ShareLine, Sequence[Alike]],
        running: Sequence[Running],
        cpus: float,
        shares: Shares,
        lately: Mapping[str, Mean],
        site: str | None = None,
        given_ahead: float = 0.0,
        most_compared: int = 100_000,
    ) -> None:
        self.lines, self.running, self.cpus, self.shares = lines, running, cpus, shares
        self.lately, self.site, self.given_ahead = lately, site, given_ahead
        self.starts, self.count, self.last, self.rest = self.run(_Typical(), most_compared)

    def run(
        self,
        lengths: _Lengths,
        most_compared: float = math.inf,
        most_started: float = math.inf,
        most_seconds: float = math.inf,
        arrivals: Sequence[_Later] = (),
    ) -> _Course:
        """Let the jobs start.

        :param most_compared: stop after this many comparisons of lines, shares and sizes
        :param most_started: stop once this many jobs have started
        :param most_seconds: stop after this many simulated seconds
        :param arrivals: jobs that are queued later, last ones first
        """
        lines = {line: _jobs(its, self.cpus, lengths) for line, its in self.lines.items()}
        names = {line.share for line in lines} | {each.line.share for each in arrivals}
        running = [lengths.running(each) for each in self.running]
        room = _Room(names, running, self.cpus, self.shares, self.lately, self.site)
        upcoming = [*arrivals]
        waiting = _Waiting(line for line, its in lines.items() if its)
        given, number = dict.fromkeys(lines, 0), {line: sum(each.left for each in its) for line, its in lines.items()}
        starts: Starts = {line: {} for line in lines}
        sizes = [each.cpus for its in (*lines.values(), *(each.jobs for each in upcoming)) for each in its]
        least, left = min(sizes, default=0.0), sum(number.values())

        def key(line: ShareLine) -> tuple[bool, float, str]:
            return *room.key(line.share, lines[line][-1].cpus), line.share

        compared, count, last = 0, 0, 0.0
        while left and compared < most_compared and count < most_started and room.now < most_seconds:
            while waiting.levels:
                first = waiting.first
                line = min(first, key=key) if len(first) > 1 else first[0]
                jobs = lines[line][-1]
                is_given = not line.level[0]
                if not is_given:  # what the site already has must not use up the limit before a start is simulated
                    compared += len(first)
                if not is_given and room.cpus_ahead + jobs.cpus > room.free + self.given_ahead + TOLERANCE:
                    break
                room.give(line, given[line], jobs.cpus, lengths.length(jobs.seconds, jobs.spread, given[line]))
                given[line] += 1
                jobs.left -= 1
                if not jobs.left:
                    lines[line].pop()
                    if not lines[line]:
                        waiting.remove(line)
            started, sizes_compared = room.start(least)
            compared += sizes_compared
            if started:
                for each in started:
                    if each.number < number.get(each.line, 0):
                        starts[each.line][each.number] = room.now, count
                        left -= 1
                    count, last = count + 1, room.now
                continue
            compared += room.advance(upcoming[-1].after if upcoming else math.inf)
            while upcoming and upcoming[-1].after <= room.now:
                later = upcoming.pop()
                if not lines.get(later.line):
                    waiting.add(later.line)
                    given.setdefault(later.line, 0)
                lines[later.line] = [*later.jobs, *lines.get(later.line, [])]
        return _Course(starts, count, last, _Rest(room, lines, given))

    def start(self, line: ShareLine, before: float) -> tuple[float, float]:
        """Return the seconds until a job starts, and how many jobs start before it.

        :param before: how many jobs of its line start before it
        """
        starts = self.starts.get(line, {})
        if (at := int(before + 0.5)) in starts:
            return starts[at]
        jobs, work = self.rest.before(line, at)
        return self.last + work / self.rest.cpus, self.count + jobs


class DrawnStarts:
    """When jobs start if lengths, and the jobs that are queued later, are drawn at random, always the same ones.

    :param arrivals: what was queued in the last ``period`` seconds; as much is expected in the next ones
    :ivar horizon: seconds that a draw covers at most
    """

    def __init__(self, queue: QueueAhead, arrivals: Sequence[ExpectedArrival], period: float) -> None:
        self.drawn = list[Starts]()
        self.horizon, most_started = LONGER * min(LONGEST_DRAWN, queue.last), MORE * MOST_BEFORE_DRAWN
        # Arrivals are repeated for at most eight times the period in which they were counted.
        periods = min(8, math.ceil(self.horizon / period)) if arrivals else 0
        for number in range(DRAWS):
            lengths = _Drawn(number)
            later = [
                _Later((passed + lengths.random()) * period, each.line, _jobs([each.jobs], queue.cpus, lengths))
                for passed in range(periods)
                for each in arrivals
            ]
            later.sort(key=lambda each: -each.after)
            course = queue.run(lengths, most_started=most_started, most_seconds=self.horizon, arrivals=later)
            self.drawn.append(course.starts)

    def seconds(self, line: ShareLine, before: float) -> list[float]:
        """Return after how many seconds a job starts in each of the draws; empty: it starts in at most half of them.

        A draw in which it does not start counts as the horizon, because leaving such draws out would bias the result
        towards early starts.

        :param before: how many jobs of its line start before it
        """
        found = (each.get(line, {}).get(int(before + 0.5)) for each in self.drawn)
        known = [each[0] for each in found if each is not None]
        return known + [self.horizon] * (DRAWS - len(known)) if 2 * len(known) > DRAWS else []


class _Course(NamedTuple):
    """How jobs start.

    :param number: how many have started
    :param last: seconds after which the last of them has
    :param rest: those that have not
    """

    starts: Starts
    number: int
    last: float
    rest: _Rest


class _Rest:
    """The jobs that have not started in a simulation, in the order in which they will.

    The jobs given to the room come first, in their order, and then one level after the other. The lines of a level have
    the room at the same time, each as much of it as the simulation gave it, or, if it gave it none, as the weight of
    its share entitles it to. So before a job come the jobs that other lines can run while its own line runs those
    before it.

    :param lines: the jobs that have not been given, last ones first
    :param given: how many jobs of each line have been
    :ivar cpus: how many are in use on average
    """

    def __init__(self, room: _Room, lines: Mapping[ShareLine, Sequence[_Jobs]], given: Mapping[ShareLine, int]) -> None:
        self.cpus = room.busy / room.now if room.busy else room.cpus
        self.given: dict[ShareLine, dict[int, tuple[float, float]]] = {}
        jobs, work = 0.0, 0.0
        for job in room.ahead:
            if not job.has_started:
                self.given.setdefault(job.line, {})[job.number] = jobs, work
                jobs, work = jobs + 1, work + job.cpus * job.seconds
        rest = [line for line, its in lines.items() if its]
        weights = sum(room.weights[line.share] for line in rest if line in room.work)
        usual = sum(room.work.get(line, 0.0) for line in rest) / weights if weights else 1.0
        self.levels: dict[tuple[bool, int, int], dict[ShareLine, _RestOfLine]] = {}
        for line in rest:
            part = room.work.get(line) or usual * room.weights[line.share]
            self.levels.setdefault(line.level, {})[line] = _RestOfLine(lines[line], given[line], part)
        # How many jobs start before those of a level, and their work.
        self.before_level: dict[tuple[bool, int, int], tuple[float, float]] = {}
        for level in sorted(self.levels):
            self.before_level[level] = jobs, work
            jobs += sum(each.jobs[-1] for each in self.levels[level].values())
            work += sum(each.work[-1] for each in self.levels[level].values())
        self.all = jobs, work

    def before(self, line: ShareLine, number: int) -> tuple[float, float]:
        """Return how many jobs start before one, and for how many seconds they run, times their cpus.

        :param number: of the job in its line; beyond the last one, all jobs start before it
        """
        if number in (its := self.given.get(line, {})):
            return its[number]
        lines = self.levels.get(line.level, {})
        if (mine := lines.get(line)) is None:
            return self.all
        jobs, work = self.before_level[line.level]
        own = mine.work_before(number - mine.first)
        for other in lines.values():
            its_work = own if other is mine else min(other.work[-1], own / mine.part * other.part)
            jobs, work = jobs + other.jobs_within(its_work), work + its_work
        return jobs, work


class _RestOfLine:
    """The jobs of a line that have not been given to the room.

    :param its: last ones first
    :param first: the number of the first one
    :param part: how much of the room the line has, relative to other lines
    :ivar jobs: how many there are up to each group of equal ones
    :ivar work: cpus times seconds of those
    """

    def __init__(self, its: Sequence[_Jobs], first: int, part: float) -> None:
        self.first, self.part = first, part
        self.jobs = [0, *accumulate(each.left for each in reversed(its))]
        self.work = [0.0, *accumulate(each.left * each.cpus * each.seconds for each in reversed(its))]

    def work_before(self, number: float) -> float:
        """Return the work of the first jobs."""
        return _between(number, self.jobs, self.work)

    def jobs_within(self, work: float) -> float:
        """Return how many jobs have been begun once this much work is done."""
        return _between(work, self.work, self.jobs)


def _between(at: float, points: Sequence[float], values: Sequence[float]) -> float:
    """Return the value at a point by linear interpolation; beyond the last point, the last value."""
    after = min(bisect_right(points, at), len(points) - 1)
    if after == 0:
        return values[0]
    low, high = points[after - 1], points[after]
    part = min(1.0, (at - low) / (high - low)) if high > low else 1.0
    return values[after - 1] + part * (values[after] - values[after - 1])


class _Lengths(Protocol):
    """How long jobs run."""

    def running(self, jobs: Running) -> Running: ...
    def mean(self, jobs: Alike) -> float: ...
    def length(self, mean: float, spread: float, number: int) -> float: ...


class _Typical:
    """Lengths that vary as those of many jobs do."""

    def running(self, jobs: Running) -> Running:
        return jobs

    def mean(self, jobs: Alike) -> float:
        return jobs.seconds

    def length(self, mean: float, spread: float, number: int) -> float:
        return typical_length(mean, spread, number)


class _Drawn:
    """Lengths drawn at random; the same number draws the same ones."""

    def __init__(self, number: int) -> None:
        generator = random.Random(number)
        self.random, self.gauss = generator.random, generator.gauss
        self.factors: dict[Hashable, float] = {}

    def factor(self, task: Hashable, doubt: float) -> float:
        """Return the factor by which all jobs of a task exceed their expected length."""
        if task not in self.factors:
            self.factors[task] = math.exp(doubt * self.gauss(0.0, 1.0))
        return self.factors[task]

    def running(self, jobs: Running) -> Running:
        if not jobs.median:
            return jobs
        median = jobs.median * self.factor(jobs.task, jobs.doubt)
        return jobs._replace(left=seconds_left(jobs.passed, median, jobs.spread, 1.0 - self.random()))

    def mean(self, jobs: Alike) -> float:
        return jobs.seconds * self.factor(jobs.task, jobs.doubt)

    def length(self, mean: float, spread: float, number: int) -> float:
        return mean * math.exp(spread * self.gauss(0.0, 1.0) - spread**2 / 2)


class _Waiting:
    """The lines with waiting jobs by level; only lines of the first level can be given a job."""

    def __init__(self, lines: Iterable[ShareLine]) -> None:
        self.levels: dict[tuple[bool, int, int], list[ShareLine]] = {}
        for line in lines:
            self.add(line)

    def add(self, line: ShareLine) -> None:
        self.levels.setdefault(line.level, []).append(line)
        if len(self.levels[line.level]) == 1:
            # The last one first.
            self.order = sorted(self.levels, reverse=True)

    def remove(self, line: ShareLine) -> None:
        self.levels[line.level].remove(line)
        if not self.levels[line.level]:
            del self.levels[line.level]
            self.order.remove(line.level)

    @property
    def first(self) -> list[ShareLine]:
        return self.levels[self.order[-1]]


@dataclass(slots=True)
class _Given:
    """A job that is given to the room.

    :param order: its position among all given jobs
    :param number: in its line
    """

    order: int
    line: ShareLine
    number: int
    cpus: float
    seconds: float
    has_started: bool = False


@dataclass(slots=True)
class _Jobs:
    """Equal jobs, to be counted down."""

    left: int
    cpus: float
    seconds: float
    spread: float


class _Later(NamedTuple):
    """Jobs that are queued later.

    :param after: how many seconds later
    :param jobs: last ones first
    """

    after: float
    line: ShareLine
    jobs: list[_Jobs]


def _jobs(alike: Sequence[Alike], cpus: float, lengths: _Lengths) -> list[_Jobs]:
    """Return jobs, last ones first."""
    found = []
    for each in reversed(alike):
        # A job that needs more cpus than are known counts as using all of them for longer.
        size = max(1.0, each.cpus / cpus)
        found.append(_Jobs(each.jobs, each.cpus / size, lengths.mean(each) * size, each.spread))
    return found


class _Room:
    """The room as time passes: what runs, what follows, and what each share has.

    :ivar now: seconds
    :ivar free: cpus on which nothing runs
    :ivar given: how many jobs have been given
    :ivar ahead: the given jobs in their order, from the first one that has not started
    :ivar by_size: the given jobs that have not started, in their order, by cpus
    :ivar sizes: the keys of ``by_size``, sorted
    :ivar cpus_ahead: of the given jobs that have not started
    :ivar busy: cpus in use times seconds so far
    :ivar work: of the given jobs, by line: cpus times seconds
    :ivar overtakes: order and time of each start of a job that was given later than all jobs started before
    """

    def __init__(
        self,
        names: Set[str],
        running: Sequence[Running],
        cpus: float,
        shares: Shares,
        lately: Mapping[str, Mean],
        site: str | None,
    ) -> None:
        names = names | {each.share for each in running}
        self.cpus, self.half_life = cpus, shares.half_life
        table = {name: shares.get(name) for name in names}
        self.weights = {name: share.weight for name, share in table.items()}
        self.kept = {name: _kept(share, site) for name, share in table.items()}
        self.used = dict.fromkeys(names, 0.0)
        self.ends: list[tuple[float, str, float]] = []
        for each in running:
            self.used[each.share] += each.cpus
            self.ends.append((each.left, each.share, each.cpus))
        heapq.heapify(self.ends)
        # A share has what it uses and what is given ahead.
        self.had = dict(self.used)
        self.now, self.free, self.busy = 0.0, cpus - sum(self.used.values()), 0.0
        self.work = dict[ShareLine, float]()
        self.given, self.ahead, self.cpus_ahead = 0, deque[_Given](), 0.0
        self.by_size, self.sizes = dict[float, deque[_Given]](), list[float]()
        self.overtakes = list[tuple[int, float]]()
        # A share without measurements counts as unused for as long as the others have been measured.
        unused = Mean(0.0, max((mean.weight for mean in lately.values()), default=0.0))
        self.means = {name: lately.get(name, unused) for name in names if lately}
        self.parts = {name: mean.part for name, mean in self.means.items()}

    def key(self, share: str, need: float) -> tuple[bool, float]:
        """Return what decides which share is given the next job: the smallest is."""
        # As in the order of placing, what is given ahead does not use up what is kept for a share.
        can_run = self.cpus / max(self.cpus, self.cpus - self.free + self.cpus_ahead)
        is_kept = self.had[share] * can_run + need <= self.kept[share] + TOLERANCE
        part = self.parts.get(share, 0.0) + (self.had[share] + need / 2) / self.cpus
        return not is_kept, part / self.weights[share]

    def give(self, line: ShareLine, number: int, need: float, seconds: float) -> None:
        job = _Given(self.given, line, number, need, seconds)
        self.ahead.append(job)
        if need not in self.by_size:
            self.by_size[need] = deque()
            insort(self.sizes, need)
        self.by_size[need].append(job)
        self.given += 1
        self.had[line.share] += need
        self.cpus_ahead += need
        self.work[line] = self.work.get(line, 0.0) + need * seconds

    def start(self, least: float) -> tuple[list[_Given], int]:
        """Start the given jobs that fit; return them, and how many sizes were compared.

        :param least: no job needs fewer cpus
        """
        free, started = self.free + TOLERANCE, list[_Given]()
        while self.ahead and self.ahead[0].cpus <= free:
            free -= self.ahead[0].cpus
            started.append(self._start(self.ahead[0].cpus))
        if not self.ahead or free < least:
            return started, 0
        # No job was overtaken before the first one.
        if self.is_impatient(self.ahead[0]):
            free = 0.0
        # Jobs of one size start in their order, so only the first one of each size can be next.
        fitting = self.sizes[: bisect_right(self.sizes, free)]
        firsts = [(self.by_size[cpus][0].order, cpus) for cpus in fitting]
        heapq.heapify(firsts)
        while firsts and free >= least:
            _, cpus = heapq.heappop(firsts)
            if cpus <= free:
                free -= cpus
                started.append(self._start(cpus))
                if cpus in self.by_size:
                    heapq.heappush(firsts, (self.by_size[cpus][0].order, cpus))
        return started, len(fitting)

    def _start(self, cpus: float) -> _Given:
        """Start the first given job of a size."""
        its_size = self.by_size[cpus]
        job = its_size.popleft()
        if not its_size:
            del self.by_size[cpus]
            self.sizes.remove(cpus)
        job.has_started = True
        while self.ahead and self.ahead[0].has_started:
            self.ahead.popleft()
        if not self.overtakes or job.order > self.overtakes[-1][0]:
            self.overtakes.append((job.order, self.now))
        self.used[job.line.share] += job.cpus
        self.free -= job.cpus
        self.cpus_ahead -= job.cpus
        heapq.heappush(self.ends, (self.now + job.seconds, job.line.share, job.cpus))
        return job

    def is_impatient(self, job: _Given) -> bool:
        """Return whether a waiting job was overtaken so long ago that room is kept free for it."""
        first = bisect_right(self.overtakes, job.order, key=itemgetter(0))
        return first < len(self.overtakes) and self.now - self.overtakes[first][1] >= PATIENCE

    def advance(self, until: float) -> int:
        """Advance to the next job end or to ``until``, whichever is earlier; return the number of shares updated."""
        before = self.now
        is_end = bool(self.ends) and self.ends[0][0] <= until
        self.now, name, cpus = heapq.heappop(self.ends) if is_end else (until, "", 0.0)
        self.busy += (self.cpus - self.free) * (self.now - before)
        for share, mean in self.means.items():
            self.means[share] = mean.after(self.now - before, min(1.0, self.used[share] / self.cpus), self.half_life)
            self.parts[share] = self.means[share].part
        if is_end:
            self.used[name] -= cpus
            self.had[name] -= cpus
            self.free += cpus
        return len(self.means)


def _kept(share: Share, site: str | None) -> float:
    """Return how many cpus of the room are kept for a share."""
    return sum(
        each.amounts["cpus"]
        for each in share.kept
        if "cpus" in each.amounts and (each.site is None or site is None or is_named(site, each.site))
    )
