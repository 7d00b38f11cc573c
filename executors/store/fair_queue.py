"""Which of the jobs that wait are looked at where shares go in turn: the first of each, as many as it gets next."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from lading.executors.store.queued import QueueColumns, QueuedJobs, by
from lading.scheduling.job import Budget, HourBudget
from lading.scheduling.reasons import Reason
from lading.scheduling.shares.budgets import NO_BUDGETS, BudgetTerms, foreseen_hours
from lading.scheduling.shares.fair_order import Candidate, Need, fair_order
from lading.scheduling.shares.table import Shares
from lading.scheduling.shares.usage import Standing
from lading.scheduling.shares.who import Tenant, Who

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Between the turns of two jobs of one tick: those of a later tick come after all of them.
STEP = 1e-5
# Jobs that are alike are compared so many at a time where only their number is asked, in as many blocks at most.
BLOCK, MOST_BLOCKS = 8, 64
# Which jobs come first is found out anew after so many times as long as that takes, and after so many seconds at most.
PAUSE_BETWEEN_LOOKS, LONGEST_PAUSE = 50.0, 5.0
# Which others are looked at for their shapes is found out anew after that, if too few are left of a shape, and after so
# many seconds in any case.
LONGEST_PAUSE_OF_SHAPES = 30.0
# So many times as many jobs as a tick looks at are kept as the first ones.
MARGIN = 1.1
TenantColumns = tuple[str | None, str | None, str | None, str | None]


class TenantTerms(NamedTuple):
    """What the jobs of a tenant go by.

    :param budgets: what launches for them are bounded by
    :param held: why those that wait may not start; None: they may
    :param hour_budgets: what their starts are bounded by
    :param withdrawn: why those are withdrawn that have not started; None: they are not
    """

    share: str
    budgets: tuple[Budget, ...] = ()
    held: Reason | None = None
    hour_budgets: tuple[HourBudget, ...] = ()
    withdrawn: Reason | None = None


class GangTurn(NamedTuple):
    """A gang as it takes its turn among the jobs of its share: as one job as large as its largest member.

    As one that needs what all of them do it would never have its turn in a share of little weight: half of a job counts
    before it starts. What they take counts when they have it.

    :param site: the only one that it may go to; None: any
    """

    token: str
    share: str
    need: Need
    priority: int
    queued_at: float
    rest: float = 0.0
    site: str | None = None


@dataclass(slots=True)
class FoundJobs:
    """Some jobs, as they were found last: where many wait that takes long, and is not done in each tick.

    :param tokens: those that could be placed; None: they were not sought yet
    :param due_at: when they are sought anew, on the monotonic clock
    :param ends_at: until when they hold, if there is no reason to seek others
    """

    tokens: Sequence[str] | None = None
    due_at: float = -math.inf
    ends_at: float = -math.inf

    def note(self, tokens: Sequence[str], begun: float, longest: float = LONGEST_PAUSE) -> None:
        """They were found, by a search that has begun at a time of the monotonic clock: the longer that has taken the
        longer they hold.

        :param longest: for so many seconds at most
        """
        now = time.monotonic()
        self.tokens, self.ends_at = tokens, now + longest
        self.due_at = now + min(PAUSE_BETWEEN_LOOKS * (now - begun), LONGEST_PAUSE)


@dataclass(slots=True)
class FirstJobs:
    """Which jobs are looked at in a tick, as it was found out last.

    :param first: as many as a tick looks at, or somewhat more
    :param others: those that are looked at behind them for their shapes
    """

    first: FoundJobs = field(default_factory=FoundJobs)
    others: FoundJobs = field(default_factory=FoundJobs)


@dataclass(slots=True)
class FairTurns:
    """How shares go in turn in one tick.

    :param shares: all of them
    :param standing: what they have
    :param now: epoch seconds, from which turns are counted: jobs that are placed later come behind
    :param apart: of the jobs that found no place last: what is alike of them, by their tokens
    :param largest: what the largest machine has: cpus, MiB and GPUs
    :param budgets: what they allow a tenant's jobs, besides the budgets of their runs
    :param seconds: that the job of a row will run, as far as that is known
    :param first: which jobs come first, from tick to tick
    :param gangs: those that wait for their turn
    :ivar turns: those of the jobs that were put in order, and of the gangs, by their tokens
    """

    shares: Shares
    standing: Standing
    now: float
    apart: Mapping[str, int] = field(default_factory=dict)
    largest: Need = (0.0, 0.0, 0.0)
    budgets: Callable[[Tenant], BudgetTerms] = lambda tenant: NO_BUDGETS
    seconds: Callable[[Any], float | None] = lambda row: None
    first: FirstJobs = field(default_factory=FirstJobs)
    gangs: Sequence[GangTurn] = ()
    turns: dict[str, float] = field(default_factory=dict)
    _terms: dict[TenantColumns, TenantTerms] = field(default_factory=dict)

    @property
    def by_level(self) -> bool:
        """Whether Airflow's priority counts before all shares: where there are not several declared."""
        return not self.shares.table or (len(self.shares.table) == 1 and self.shares.table[0].who == Who())

    def terms(self, row: Any) -> TenantTerms:
        """What a row's job goes by."""
        key = row.team, row.dag_id, row.dag_owner, row.dag_tags
        if (known := self._terms.get(key)) is None:
            tenant = Tenant.from_columns(*key)
            known = self._terms[key] = TenantTerms(self.shares.share_of(tenant), *self.budgets(tenant))
        return known

    def hours(self, row: Any) -> float:
        """The cpu-hours that a row's job will use once it begins, where it has a budget of such."""
        return foreseen_hours(_need(row)[0], self.seconds(row)) if self.terms(row).hour_budgets else 0.0

    def explain_held(self, session: Session, queued: QueuedJobs, before: float) -> None:
        """Store that reason for the jobs that may not start.

        :param before: those that were queued before, seconds since the epoch
        """
        for lane in queued.lanes.values():
            if (held := self.terms(lane.key).held) is not None:
                queued.explain(session, held, queued.others(lane, held, before))
        for group in queued.groups.values():
            for row in queued.first([group]):
                held = self.terms(row).held
                if held is not None and held != row.reason and row.queued_at < before:
                    queued.explain(session, held, [row.token])

    def turn(self, token: str) -> float:
        """The turn of a job; one that was not among those that were put in order comes behind them."""
        return self.turns.get(token, self.now + len(self.turns) * STEP)

    def priority(self, row: Any) -> int:
        """The priority of a row's job between shares."""
        return int(row.priority) if self.by_level else 0

    def put_in_order(self, rows: Sequence[Any], rests: Mapping[str, float]) -> list[Any]:
        """Give rows their turns; returns those whose jobs may start, in that order."""
        # A thousand of them in each tick: what is asked of a row is asked once.
        known: list[Any] = [
            (-row.priority, -rests.get(token, 0.0) if rests else 0.0, row.queued_at, token, terms.share, row)
            for row in rows
            if (terms := self.terms(row)).held is None and (token := row.token)
        ]
        known += ((-each.priority, -each.rest, each.queued_at, each.token, each.share, each) for each in self.gangs)
        known.sort(key=itemgetter(0, 1, 2, 3))
        apart, by_level = self.apart, self.by_level
        jobs = [
            Candidate(share, row.need, -level if by_level else 0, None, row.site)
            if isinstance(row, GangTurn)
            else Candidate(share, _need(row), -level if by_level else 0, apart.get(token), row.site_hint)
            for level, _, _, token, share, row in known
        ]
        found = [known[number][5] for number in fair_order(jobs, self.shares, self.standing, self.largest)]
        self.turns = {row.token: self.now + number * STEP for number, row in enumerate(found)}
        return [row for row in found if not isinstance(row, GangTurn)]


def _need(row: Any) -> Need:
    """What a row's job takes: its cpus, MiB and GPUs on all of its nodes."""
    nodes = row.nodes or 1
    return row.cpus * nodes, float(row.memory * nodes), row.gpus * nodes


def first(
    queued: QueuedJobs, most: int, fair: FairTurns, rests: Mapping[str, float]
) -> tuple[list[QueueColumns], bool]:
    """The first jobs of those without a limit, some more than that, in no order; and whether there are others.

    :param most: so many are wanted
    :param rests: of their runs, by token, seconds
    """
    known = fair.first.first
    begun = time.monotonic()
    if known.tokens is not None and begun < known.due_at:
        rows = queued.rows(known.tokens)
        if 2 * len(rows) >= most:
            return rows, True
    rows, are_more = _first(queued, most, fair, rests)
    if are_more:
        # As their shares get more or less the order changes, so some more than are wanted may be among the first.
        rows = fair.put_in_order(rows, rests)[: int(MARGIN * most)]
        known.note([row.token for row in rows], begun)
    else:
        known.tokens = None
    return rows, are_more


def _first(
    queued: QueuedJobs, most: int, fair: FairTurns, rests: Mapping[str, float]
) -> tuple[list[QueueColumns], bool]:
    """The same, found out now."""
    if sum(len(lane.ranks) for lane in queued.lanes.values()) <= most:
        return queued.unlimited(), False
    if rests:
        return fair.put_in_order(queued.unlimited(), rests)[:most], True
    lanes = by(queued.lanes.values(), lambda key: key.dag_id)
    wanted = _wanted(queued, most, fair)
    return [row for dag_id, count in wanted.items() for row in queued.first(lanes[dag_id], count)], True


def _wanted(queued: QueuedJobs, most: int, fair: FairTurns) -> Mapping[str | None, int]:
    """How many jobs of each Dag are among the first, as far as that can be said without a look at each of them."""
    jobs, blocks = [], []
    alike = by(queued.lanes.values(), lambda key: (*key[:4], key.priority))
    for some in sorted(alike.values(), key=lambda some: min(lane.ranks[0] for lane in some)):
        key = some[0].key
        terms = fair.terms(key)
        if terms.held is not None:
            continue
        number = sum(len(lane.ranks) for lane in some)
        needs = [(len(lane.ranks), _need(queued.jobs[lane.ranks[0].token].row)) for lane in some]
        cpus, memory, gpus = (sum(count * need[kind] for count, need in needs) / number for kind in range(3))
        left = min(number, most)
        size = max(BLOCK, -(-left // MOST_BLOCKS))
        while left > 0:
            count = min(size, left)
            level = key.priority if fair.by_level else 0
            jobs.append(Candidate(terms.share, (cpus * count, memory * count, gpus * count), level))
            blocks.append((key.dag_id, count))
            left -= count
    wanted: Counter[str | None] = Counter()
    for number in fair_order(jobs, fair.shares, fair.standing, fair.largest):
        dag, count = blocks[number]
        wanted[dag] += count
        if wanted.total() >= most:
            break
    return wanted
