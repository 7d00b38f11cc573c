"""The rule by which a location starts its waiting jobs.

Jobs are considered by priority, then by turn (where shares take turns), then by the longest remaining path of their run
(where that is used), then by arrival. A job that fits into the free room starts. A job that does not fit is skipped, so
that others can use the room meanwhile. It counts as overtaken as soon as one of these starts: a job behind it, a more
urgent job that arrived later and needs less, or a job that arrived later and has the longer remaining path. From then
on its patience runs:

* ``patience`` seconds later its room is kept free: jobs behind it get nothing of the resources that it needs, until
  enough is free for it to start. Other resources stay available.
* ``MORE_URGENT * patience`` seconds later it goes before all others, including more urgent jobs.

So small jobs fill gaps but cannot starve a larger one, and priorities still count: a job that only waits because more
urgent jobs of its size or larger go first keeps waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lading.scheduling.model import gpus
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources

# The ``rest`` of a job that goes before all others of its priority, seconds.
LONGEST_REST = 1e9
# The ``patience`` of sites that configure none, seconds.
PATIENCE = 60
# A job can be overtaken by more urgent jobs this many times longer than by other jobs.
MORE_URGENT = 5

KEPT_FREE = because("kept_free")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits for room.

    :param token: identifies the job
    :param resources: what it requests
    :param priority: jobs with a higher priority go first
    :param queued_at: when it was queued, epoch seconds; among equals the earliest goes first
    :param overtaken_since: when it was first overtaken, on the clock of the caller; None: never
    :param rest: the longest remaining path of its run, seconds; among equals the longest goes first, and 0, where jobs
        go by arrival, goes last
    :param turn: its position where shares take turns: among jobs of one priority the lowest goes first
    """

    token: str
    resources: Resources
    priority: int
    queued_at: float
    overtaken_since: float | None = None
    rest: float = 0.0
    turn: float = 0.0

    @property
    def rank(self) -> tuple[int, float, float, float, str]:
        """Its position in the queue; the token makes the order deterministic."""
        return (-self.priority, self.turn, -self.rest, self.queued_at, self.token)


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """What to do with the waiting jobs.

    :param starts: tokens of the jobs to start now, in this order
    :param overtaken: tokens of the jobs that one of the starts overtakes for the first time
    :param impossible: why a job can never start here, by token
    """

    starts: tuple[str, ...] = ()
    overtaken: frozenset[str] = frozenset()
    impossible: Mapping[str, Reason] = field(default_factory=dict)


class QueueRoom:
    """The free room of a location while jobs are fitted into it.

    :param free: the free resources
    :param devices: the free share of each GPU; if empty, GPUs are only counted
    """

    def __init__(self, free: Resources, devices: Mapping[str, float]) -> None:
        self.free = free
        self.devices = dict(devices)

    def takes(self, resources: Resources) -> bool:
        if not resources.fits(self.free):
            return False
        return not (resources.gpus and self.devices) or gpus.pick(self.devices, resources.gpus) is not None

    def use(self, resources: Resources) -> None:
        self.free = self.free - resources
        for device, share in (gpus.pick(self.devices, resources.gpus) or {}).items():
            self.devices[device] -= share

    def keep_free(self, resources: Resources) -> None:
        """Take away a job's room as far as it is free, whether the job fits or not."""
        free = self.free
        self.free = Resources(
            max(free.cpus - resources.cpus, 0.0),
            max(free.memory - resources.memory, 0),
            max(free.disk - resources.disk, 0),
            max(free.gpus - resources.gpus, 0.0),
        )


def smallest(waiting: Sequence[QueuedJob]) -> Resources:
    """The least amount of each resource that any of the jobs needs: room smaller than this is too small for all of
    them."""
    needs = [job.resources for job in waiting]
    return Resources(
        min((need.cpus for need in needs), default=0.0),
        min((need.memory for need in needs), default=0),
        min((need.disk for need in needs), default=0),
        min((need.gpus for need in needs), default=0.0),
    )


def next_starts(
    waiting: Sequence[QueuedJob],
    free: Resources,
    capacity: Resources,
    *,
    now: float,
    patience: float,
    devices: Mapping[str, float] | None = None,
) -> QueueDecision:
    """Decide which of the waiting jobs start now.

    :param waiting: in the order of :attr:`QueuedJob.rank`
    :param free: the free resources of the location
    :param capacity: the resources of the location when it is empty
    :param now: seconds, preferably on a monotonic clock
    :param patience: for how many seconds a job can be overtaken; by more urgent jobs, ``MORE_URGENT`` times as long
    :param devices: the free share of each GPU, where a whole GPU must be one device
    """
    possible: list[QueuedJob] = []
    impossible: dict[str, Reason] = {}
    for job in waiting:
        if job.resources.fits(capacity):
            possible.append(job)
        else:
            impossible[job.token] = too_large(job.resources, capacity)
    starts: list[QueuedJob] = []
    least = smallest(possible)
    for job, fits, left in _fitted(possible, QueueRoom(free, devices or {}), now, patience):
        if fits:
            starts.append(job)
        if not least.fits(left):
            break
    return QueueDecision(tuple(job.token for job in starts), _overtaken(possible, starts), impossible)


def _overtaken(waiting: Sequence[QueuedJob], starts: Sequence[QueuedJob]) -> frozenset[str]:
    """The jobs that one of the starts overtakes for the first time."""
    if not starts:
        return frozenset()
    started = {job.token for job in starts}
    last = max(job.rank for job in starts)
    return frozenset(
        job.token
        for job in waiting
        if job.overtaken_since is None
        and job.token not in started
        and (job.rank < last or any(_cuts_in(start, job) for start in starts))
    )


def _cuts_in(start: QueuedJob, job: QueuedJob) -> bool:
    """Whether ``start`` arrived later than ``job`` and goes first, either because it needs less, whatever the
    priorities, or because its remaining path is longer and its priority no higher."""
    return start.queued_at > job.queued_at and (
        (start.rest > job.rest and start.priority <= job.priority) or not job.resources.fits(start.resources)
    )


def reasons(
    waiting: Sequence[QueuedJob],
    free: Resources,
    *,
    now: float,
    patience: float,
    devices: Mapping[str, float] | None = None,
) -> dict[str, Reason]:
    """Why each job waits.

    :param waiting: the jobs that :func:`next_starts` left waiting; the other parameters are the same as there
    """
    reasons_by_token: dict[str, Reason] = {}
    by_need: dict[Resources, Reason] = {}
    room = QueueRoom(free, devices or {})
    kept = False
    for job, fits, _ in _fitted(waiting, room, now, patience):
        if fits:
            continue
        need = job.resources
        if need not in by_need or (kept and by_need[need] != KEPT_FREE):
            by_need[need] = KEPT_FREE if kept and QueueRoom(free, devices or {}).takes(need) else no_room(need, free)
        reasons_by_token[job.token] = by_need[need]
        kept = kept or _impatient(job, now, patience)
    return reasons_by_token


def _fitted(
    waiting: Sequence[QueuedJob], room: QueueRoom, now: float, patience: float
) -> Iterator[tuple[QueuedJob, bool, Resources]]:
    """Fit the jobs one by one: yield each, whether it fits, and the room left for the jobs behind it."""
    blocked: set[Resources] = set()
    for job in _in_turn(waiting, now, patience):
        need = job.resources
        # Room only shrinks while we walk, so what did not fit once need not be tried again.
        fits = need not in blocked and room.takes(need)
        if fits:
            room.use(need)
        else:
            blocked.add(need)
            if _impatient(job, now, patience):
                room.keep_free(need)
        yield job, fits, room.free


def _in_turn(waiting: Sequence[QueuedJob], now: float, patience: float) -> Sequence[QueuedJob]:
    """The jobs in the order in which they are considered, beginning with those that were overtaken for too long."""
    first = [job for job in waiting if _impatient(job, now, MORE_URGENT * patience)]
    if not first:
        return waiting
    first.sort(key=lambda job: job.overtaken_since or 0.0)
    return [*first, *(job for job in waiting if not _impatient(job, now, MORE_URGENT * patience))]


def _impatient(job: QueuedJob, now: float, patience: float) -> bool:
    return job.overtaken_since is not None and now - job.overtaken_since >= patience


def no_room(resources: Resources, free: Resources) -> Reason:
    taken = resources.lacking(free)
    if not taken:
        return because("no_whole_gpu", needs=resources)
    return because("machine_full", needs=resources, taken=taken)


def too_large(resources: Resources, capacity: Resources) -> Reason:
    return because("too_large_here", needs=resources, all=capacity)
