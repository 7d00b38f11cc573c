"""Selects the waiting jobs to consider when shares take turns: the first jobs of each share."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from lading.executors.store.queued import QueueColumns, QueuedJobs, by
from lading.scheduling.accounting.budgets import NO_BUDGETS, BudgetTerms, foreseen_hours
from lading.scheduling.accounting.fair_order import Candidate, Need, fair_order
from lading.scheduling.accounting.share_table import Shares
from lading.scheduling.accounting.share_usage import Standing
from lading.scheduling.accounting.who import Tenant, Who
from lading.scheduling.model.job import Budget, HourBudget
from lading.scheduling.model.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Distance of the turns of two jobs in one tick, so small that the turns of a later tick come after all of them.
STEP = 1e-5
# When only the number of similar jobs matters, they are compared in blocks of this size, in at most this many blocks.
BLOCK, MOST_BLOCKS = 8, 64
# The pause before the first jobs are searched for again: a multiple of the duration of the last search, and the
# maximum in seconds.
PAUSE_BETWEEN_LOOKS, LONGEST_PAUSE = 50.0, 5.0
TenantColumns = tuple[str | None, str | None, str | None, str | None]


class TenantTerms(NamedTuple):
    """The rules for the jobs of a tenant.

    :param budgets: limit the launches for them
    :param held: why waiting jobs cannot start; None: they can
    :param hour_budgets: limit their starts
    :param withdrawn: why jobs that have not started are withdrawn; None: they are not
    """

    share: str
    budgets: tuple[Budget, ...] = ()
    held: Reason | None = None
    hour_budgets: tuple[HourBudget, ...] = ()
    withdrawn: Reason | None = None


class GangTurn(NamedTuple):
    """A gang taking its turn among the jobs of its share, as one job as large as its largest member.

    If it counted with the resources of all members, a share of little weight would never get its turn, because half of
    a job counts before it starts. The resources of its members count once they are allocated.

    :param site: the only site it can go to; None: any
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
    """The result of a search for jobs, kept for several ticks because searching a long queue is slow.

    :param tokens: the jobs found; None: there was no search yet
    :param due_at: when to search again, on the monotonic clock
    :param ends_at: when the result expires even if there is no reason to search again, on the monotonic clock
    """

    tokens: Sequence[str] | None = None
    due_at: float = -math.inf
    ends_at: float = -math.inf

    def note(self, tokens: Sequence[str], begun: float, longest: float = LONGEST_PAUSE) -> None:
        """Keep the result of a search; the longer the search took, the longer it is kept.

        :param begun: when the search began, on the monotonic clock
        :param longest: how long the result is kept at most, in seconds
        """
        now = time.monotonic()
        self.tokens, self.ends_at = tokens, now + longest
        self.due_at = now + min(PAUSE_BETWEEN_LOOKS * (now - begun), LONGEST_PAUSE)


@dataclass(slots=True)
class FirstJobs:
    """The jobs to consider in a tick, as last searched for.

    :param first: as many as a tick considers, or slightly more
    :param others: jobs behind them, considered for the sake of their shapes
    """

    first: FoundJobs = field(default_factory=FoundJobs)
    others: FoundJobs = field(default_factory=FoundJobs)


@dataclass(slots=True)
class FairTurns:
    """How shares take turns in one tick.

    :param now: epoch seconds, from which turns are counted, so that jobs of later ticks come after those of earlier
        ones
    :param apart: by token, the group of similar jobs to which a job belongs that found no room last time
    :param largest: the cpus, MiB and GPUs of the largest machine
    :param budgets: the limits for a tenant's jobs, in addition to the budgets of their runs
    :param seconds: predicts how long a row's job runs; None if that is unknown
    :param first: the first jobs, kept from tick to tick
    :param gangs: those waiting for their turn
    :ivar turns: the turns of the ordered jobs and gangs, by token
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
        """Whether Airflow's priority counts before shares do: no share is declared, or a single one for everybody."""
        return not self.shares.table or (len(self.shares.table) == 1 and self.shares.table[0].who == Who())

    def terms(self, row: Any) -> TenantTerms:
        key = row.team, row.dag_id, row.dag_owner, row.dag_tags
        if (known := self._terms.get(key)) is None:
            tenant = Tenant.from_columns(*key)
            known = self._terms[key] = TenantTerms(self.shares.share_of(tenant), *self.budgets(tenant))
        return known

    def hours(self, row: Any) -> float:
        """Return the cpu-hours a row's job is predicted to use, or 0 if no budget limits its hours."""
        return foreseen_hours(_need(row)[0], self.seconds(row)) if self.terms(row).hour_budgets else 0.0

    def explain_held(self, session: Session, queued: QueuedJobs, before: float) -> None:
        """Store why jobs held by a budget cannot start.

        :param before: only for jobs queued before this time, in epoch seconds
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
        """Return the turn of a job; a job that was not ordered comes after all that were."""
        return self.turns.get(token, self.now + len(self.turns) * STEP)

    def priority(self, row: Any) -> int:
        """Return the priority of a row's job across shares."""
        return int(row.priority) if self.by_level else 0

    def put_in_order(self, rows: Sequence[Any], rests: Mapping[str, float]) -> list[Any]:
        """Assign turns to rows; return those whose jobs can start, in the order of their turns."""
        # Each tick orders about a thousand rows, so each row is evaluated only once.
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
    """Return the cpus, MiB and GPUs of a row's job on all its nodes."""
    nodes = row.nodes or 1
    return row.cpus * nodes, float(row.memory * nodes), row.gpus * nodes


def first(
    queued: QueuedJobs, most: int, fair: FairTurns, rests: Mapping[str, float]
) -> tuple[list[QueueColumns], bool]:
    """Return the first jobs without a limit, unordered and slightly more than wanted, and whether there are more.

    :param most: how many are wanted
    :param rests: the longest remaining path of each job's run, by token, in seconds
    """
    known = fair.first.first
    begun = time.monotonic()
    if known.tokens is not None and begun < known.due_at:
        rows = queued.rows(known.tokens)
        if 2 * len(rows) >= most:
            return rows, True
    rows, are_more = _first(queued, most, fair, rests)
    if are_more:
        # The order shifts as shares get more or less, so a margin of jobs is kept.
        # Some more than one tick considers are kept as first jobs.
        rows = fair.put_in_order(rows, rests)[: int(1.1 * most)]
        known.note([row.token for row in rows], begun)
    else:
        known.tokens = None
    return rows, are_more


def _first(
    queued: QueuedJobs, most: int, fair: FairTurns, rests: Mapping[str, float]
) -> tuple[list[QueueColumns], bool]:
    if sum(len(lane.ranks) for lane in queued.lanes.values()) <= most:
        return queued.unlimited(), False
    if rests:
        return fair.put_in_order(queued.unlimited(), rests)[:most], True
    lanes = by(queued.lanes.values(), lambda key: key.dag_id)
    wanted = _wanted(queued, most, fair)
    return [row for dag_id, count in wanted.items() for row in queued.first(lanes[dag_id], count)], True


def _wanted(queued: QueuedJobs, most: int, fair: FairTurns) -> Mapping[str | None, int]:
    """Estimate how many jobs of each Dag are among the first, without looking at each job."""
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
