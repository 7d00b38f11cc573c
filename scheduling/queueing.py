"""The rule by which a location starts the jobs that wait for room on it.

Jobs are looked at by priority, then by turn where shares go in turn, then by the rest of their run where they go by
that, then by arrival. One that fits the
free room starts. One that does not is passed over, so that others can use the room meanwhile, and is overtaken as soon
as one of these starts: one behind it, or a more urgent one that arrived later and needs less, or one that arrived later
whose run takes longer from there. From the first time this happened the patience of the job runs:

* ``patience`` seconds later its room is kept free: of what it needs, and of nothing else, nothing is given to a job
  behind it, until enough has come free for it to start.
* ``MORE_URGENT * patience`` seconds later it goes before all others, the more urgent ones too.

So no job is starved by smaller ones, small ones fill the gaps while they may, and priorities still mean something: a
job that waits only because more urgent ones of its own size or larger come first continues to wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lading.scheduling import gpus
from lading.scheduling.reasons import Reason, because
from lading.scheduling.resources import Resources

# The rest of a job that goes before all others of its priority, seconds.
LONGEST_REST = 1e9
# How many times longer than by others a job may be overtaken by more urgent ones.
MORE_URGENT = 5

KEPT_FREE = because("kept_free")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits for room.

    :param token: identifies the job
    :param resources: what it needs
    :param priority: higher goes first
    :param queued_at: seconds since the epoch; earlier goes first among equals
    :param overtaken_since: when it was first overtaken, on the clock that decides; None: never
    :param rest: seconds of the longest way from its start to the end of its run; among equals a longer one goes first,
        and 0, where they go by arrival, last
    :param turn: its place where jobs of several shares go in turn: of one priority a lower one goes first
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
        """The place in the queue; the token makes it the same for everyone who computes it."""
        return (-self.priority, self.turn, -self.rest, self.queued_at, self.token)


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """What to do with the jobs that wait.

    :param starts: tokens of the jobs to start now, in this order
    :param overtaken: tokens of jobs that have been overtaken for the first time by one of the starts
    :param impossible: token -> why the job can never start here
    """

    starts: tuple[str, ...] = ()
    overtaken: frozenset[str] = frozenset()
    impossible: Mapping[str, Reason] = field(default_factory=dict)


class QueueRoom:
    """What is free on a location while jobs are being fitted into it.

    :param free: what is free altogether
    :param devices: the free share of each GPU; without any, GPUs are only counted
    """

    def __init__(self, free: Resources, devices: Mapping[str, float]) -> None:
        self.free = free
        self.devices = dict(devices)

    def takes(self, resources: Resources) -> bool:
        if not resources.fits(self.free):
            return False
        return not (resources.gpus and self.devices) or gpus.pick(self.devices, resources.gpus) is not None

    def use(self, resources: Resources) -> None:
        """Take away the room of a job that fits."""
        self.free = self.free - resources
        for device, share in (gpus.pick(self.devices, resources.gpus) or {}).items():
            self.devices[device] -= share

    def keep_free(self, resources: Resources) -> None:
        """Take away as much of the room of a job as there is, whether it fits or not."""
        free = self.free
        self.free = Resources(
            max(free.cpus - resources.cpus, 0.0),
            max(free.memory - resources.memory, 0),
            max(free.disk - resources.disk, 0),
            max(free.gpus - resources.gpus, 0.0),
        )


def smallest(waiting: Sequence[QueuedJob]) -> Resources:
    """The least that any of the jobs needs of each resource: room too small for this is too small for all of them."""
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
    """Which of the waiting jobs start now.

    :param waiting: in the order of :attr:`QueuedJob.rank`
    :param free: what is free on the location now
    :param capacity: what the location has when it is empty
    :param now: seconds, best on a clock that never jumps
    :param patience: for how many seconds a job may be overtaken, by more urgent ones ``MORE_URGENT`` times as long
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
    """The jobs that are overtaken for the first time by one of the starts."""
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
    """Whether a job arrived later than another and starts because it needs less, be it more urgent or not, or because
    the rest of its run is longer, however much it needs."""
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

    :param waiting: the jobs that :func:`next_starts` has left waiting; the other parameters as there
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
    """Fit the jobs one by one: each, whether it fits, and what is left for those behind it."""
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
    """The jobs in the order in which they are looked at: first those overtaken for too long, the longest before all."""
    first = [job for job in waiting if _impatient(job, now, MORE_URGENT * patience)]
    if not first:
        return waiting
    first.sort(key=lambda job: job.overtaken_since or 0.0)
    return [*first, *(job for job in waiting if not _impatient(job, now, MORE_URGENT * patience))]


def _impatient(job: QueuedJob, now: float, patience: float) -> bool:
    return job.overtaken_since is not None and now - job.overtaken_since >= patience


def no_room(resources: Resources, free: Resources) -> Reason:
    """The reason of a job that waits for room."""
    taken = resources.lacking(free)
    if not taken:
        return because("no_whole_gpu", needs=resources)
    return because("machine_full", needs=resources, taken=taken)


def too_large(resources: Resources, capacity: Resources) -> Reason:
    """The reason of a job that can never start here."""
    return because("too_large_here", needs=resources, all=capacity)
