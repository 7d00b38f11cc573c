"""Shares and budgets in the controller: usage is counted in each tick, and stored periodically."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lading.executors.accounting import share_rows
from lading.executors.controller.answers import SiteAnswer
from lading.executors.controller.sites_file import budgets_of, shares_of
from lading.executors.orchestrator.orchestrator import Orchestrator, TaskNote
from lading.executors.settings import Settings
from lading.executors.starts.work_left import work_left
from lading.executors.store.fair_queue import FairTurns, FirstJobs, TenantTerms
from lading.hooks.site import Site
from lading.scheduling.accounting.bounds import ShareBounds
from lading.scheduling.accounting.budgets import NO_BUDGETS, BudgetTerms, BudgetUse, Unit, budget_terms, foreseen_hours
from lading.scheduling.accounting.share_table import NONE_USED, OTHERS, Share, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing, UseHistory, entitled, share_standings
from lading.scheduling.accounting.who import Tenant
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob, key
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.bounded import largest_of, taken_by, there_can_be, there_is
from lading.scheduling.placing.placement_pass import SECONDS_UNTIL_EXPLAINED

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# Among Dags with equal usage now, the one that used less over about this many seconds goes first. Recent usage is
# weighted by the second number, so that it only breaks ties. A Dag whose recent usage is below the third number, as a
# fraction of all capacity, is forgotten.
SECONDS_OF_TIES, WORTH_OF_TIES, LEAST_PART = 600.0, 1e-3, 1e-6
NO_TERMS = TenantTerms("")
# The reason's code of a job that waits because the site is full.
NO_ROOM = "site_full"


@dataclass(slots=True)
class SiteUse:
    """The capacity of a site and each share's usage of it, as observed last.

    :param there: capacity that exists now
    :param possible: capacity that could exist
    :param largest: the largest amount of each resource at any location
    :param used: by share
    :param promised: cpu-hours that the site's jobs are still expected to use, by the name of the budget
    """

    there: ShareAmounts = NONE_USED
    possible: ShareAmounts = NONE_USED
    largest: Resources = field(default_factory=Resources)
    used: dict[str, ShareAmounts] = field(default_factory=dict)
    promised: Mapping[str, float] = field(default_factory=dict)


class Budgets:
    """The spending of budgets, and the terms that follow for each tenant's jobs.

    :raises SitesError: the sites file cannot be read, or its budgets are not valid
    """

    seconds_between_notes = 30.0
    """Between two sums of the spending of budgets; the usage of shares is stored as often."""

    def __init__(self, host: Orchestrator, settings: Settings) -> None:
        self.host = host
        self.table = budgets_of(settings.sites_file)
        self.found: Sequence[BudgetUse] = ()
        self._facts = self.host.forecaster().facts
        self._needs_tags = any(each.who.tag is not None for each in self.table)
        self._next_look = 0.0
        self._is_first = True
        self._ended = share_rows.EndedCosts()
        self._terms: dict[Tenant, BudgetTerms] = {}

    def sum_up(self, session: Session, now: float, *, is_asked: bool = False) -> None:
        """Periodically sum up spending, store it, and warn about budgets that are nearly spent.

        :param is_asked: do it now, because a user has lifted or restored a budget
        """
        # If the sites file no longer has budgets, the first call removes those of an earlier controller.
        if not (self.table or self._is_first) or (time.monotonic() < self._next_look and not is_asked):
            return
        self._is_first = False
        begun = time.monotonic()
        # Tags take a query per Dag, so they are read only if a budget depends on them.
        tags = partial(_tags, session, self._facts) if self._needs_tags else _no_tags
        self.found = share_rows.spending(
            session, self.table, now, tags, self._ended, work_left(session, now) if self.table else ()
        )
        for each in share_rows.save_spending(session, self.found, now):
            text = budget_warning(each)
            log.warning("%s", text)
            self.host.note(session, [TaskNote("lading budget", None, text)])
        self._terms.clear()
        # The longer it takes, the less often it is done.
        self._next_look = begun + max(self.seconds_between_notes, 10 * (time.monotonic() - begun))

    def terms(self, tenant: Tenant) -> BudgetTerms:
        if not self.found:
            return NO_BUDGETS
        if (known := self._terms.get(tenant)) is None:
            known = self._terms[tenant] = budget_terms(self.found, tenant)
        return known

    def promise(self, hours: Mapping[str, float]) -> None:
        """Note the cpu-hours that jobs at sites are still expected to use, by the name of the budget."""
        self.found = [each._replace(promised=hours.get(each.budget.name, 0.0)) for each in self.found]
        self._terms.clear()

    @property
    def in_hours(self) -> bool:
        """Whether any budget is counted in cpu-hours."""
        return any(each.unit is Unit.CPU_HOURS for each in self.table)

    @property
    def any_spent(self) -> bool:
        return any(each.is_spent for each in self.found)


class FairShares:
    """The usage of shares, and the turns and bounds that follow from it.

    :param potential: possible locations, by site
    :param seconds: returns the expected run time of a row's job; None: unknown
    :raises SitesError: the sites file cannot be read, or its shares are not valid
    """

    def __init__(
        self,
        settings: Settings,
        sites: Mapping[str, Site[Any]],
        potential: Mapping[str, Sequence[Location]],
        budgets: Budgets,
        seconds: Callable[[Any], float | None] = lambda row: None,
    ) -> None:
        self.budgets = budgets
        self.seconds = seconds
        self.shares = shares_of(settings.sites_file, sites, settings.share_half_life)
        # Budgets apply even with fair shares off; all jobs then belong to one share, which does not change their order.
        self.is_on = settings.fair or bool(budgets.table)
        if not settings.fair:
            self.shares = Shares((Share(OTHERS),))
        # What these have is stored, for the page and for expected starts; without a table each Dag is a share.
        self.is_declared = bool(self.shares.table)
        self.priced = frozenset(
            name
            for name, site in sites.items()
            if any(each.max_jobs is not None and site.config.cpu_hour(each.capacity) for each in potential[name])
        )
        self.sites: dict[str, SiteUse] = {name: SiteUse() for name in sites}
        self.history: UseHistory | None = None
        """Recent usage of the shares in the sites file."""
        self.recent = UseHistory(SECONDS_OF_TIES)
        """Recent usage of Dags where each Dag is a share: it breaks ties between Dags with equal usage now."""
        self.standing = Standing()
        self.apart: Mapping[str, int] = {}
        self.fair: FairTurns | None = None
        self.first = FirstJobs()
        self._known: dict[Any, tuple[Tenant, str]] = {}
        self._next_note = 0.0
        self._is_first = True

    def terms(self, row: Any) -> TenantTerms:
        columns = row.team, row.dag_id, row.dag_owner, row.dag_tags
        if (known := self._known.get(columns)) is None:
            tenant = Tenant.from_columns(*columns)
            known = self._known[columns] = tenant, self.shares.share_of(tenant)
        return TenantTerms(known[1], *self.budgets.terms(known[0]))

    def hours(self, row: Any) -> float:
        """Return the cpu-hours that a row's job at a site is still expected to use; 0 without a cpu-hour budget."""
        if not self.terms(row).hour_budgets:
            return 0.0
        ran = None if row.started_at is None else time.time() - row.started_at
        return foreseen_hours(row.cpus * (row.nodes or 1), self.seconds(row), ran)

    def load(self, session: Session) -> None:
        """Read the stored usage of shares, once, when the controller begins to act."""
        if self.history is None and len(self.shares.table) > 1:
            means, at = share_rows.means(session)
            self.history = UseHistory(self.shares.half_life, means, at)
        elif self.history is None and self._is_first:  # the sites file has no shares any more
            share_rows.save_means(session, {}, 0.0)
        if not self.is_declared and self._is_first:
            share_rows.save_standings(session, [], 0.0)
        self._is_first = False

    def count(self, answers: Sequence[SiteAnswer], sites: Sequence[SiteView], now: float) -> None:
        """Count each share's usage. Sites that do not answer keep their last count.

        :param sites: the views of all sites
        """
        if not self.is_on:
            return
        views = {each.name: each for each in sites}
        for answer in answers:
            self._count(answer, views[answer.site.name])
        used: dict[str, dict[str, ShareAmounts]] = {}
        for site, use in self.sites.items():
            for share, amounts in use.used.items():
                used.setdefault(share, {})[site] = amounts
        promised: dict[str, float] = defaultdict(float)
        for use in self.sites.values():
            for budget, hours in use.promised.items():
                promised[budget] += hours
        self.budgets.promise(promised)
        total = NONE_USED
        for use in self.sites.values():
            total = total.plus(use.there)
        self.standing = Standing(total, used)
        if self.history is not None:
            self.history.note({share: self.standing.part_of(share) for share in used}, now)
            self.standing = replace(self.standing, lately=self.history.lately)
        elif not self.shares.table:
            self.recent.note({share: self.standing.part_of(share) for share in used}, now)
            self.recent.forget(LEAST_PART)
            lately = {share: WORTH_OF_TIES * part for share, part in self.recent.lately.items()}
            self.standing = replace(self.standing, lately=lately)

    def _count(self, answer: SiteAnswer, site: SiteView) -> None:
        use = self.sites[site.name]
        if site.locations or site.launched or site.market is not None:
            use.there, use.possible = there_is(site), there_can_be(site)
            use.largest = largest_of([*site.locations, *site.launched])
        rates = {
            each.name: each.usd_per_hour / each.capacity.cpus
            for each in (*site.launched, *site.locations)
            if each.usd_per_hour and each.capacity.cpus
        }
        capacity = {each.name: each.capacity for each in (*site.launched, *site.locations) if each.max_jobs is None}
        sums: dict[tuple[str, str | None], list[float]] = {}
        promised: dict[str, float] = defaultdict(float)
        for given in answer.jobs:
            terms = given.terms or NO_TERMS
            for budget in terms.hour_budgets:
                promised[budget.name] += given.hours
            there = sums.get(place := (terms.share, given.location))
            if there is None:
                there = sums[place] = [0.0, 0.0, 0.0, 0.0]
            asked, nodes = given.job.resources, given.job.nodes
            there[0] += asked.cpus * nodes
            there[1] += asked.memory * nodes
            there[2] += asked.gpus * nodes
            there[3] += nodes
        use.used, use.promised = {}, promised
        for (share, name), (cpus, memory, gpus, number) in sums.items():
            machine = capacity.get(name or "")
            here = Resources(cpus, int(memory), 0, gpus)
            amounts = (
                ShareAmounts(cpus, memory, gpus, number, 0.0)
                if machine is None
                else taken_by(here, 1, machine, rates.get(name or "", 0.0))
            )
            use.used[share] = use.used.get(share, NONE_USED).plus(amounts)

    def begin(self, now: float) -> FairTurns | None:
        """Set up the turns of shares for this tick; None: fair shares are off.

        :param now: epoch seconds
        """
        if not self.is_on:
            self.fair = None
        else:
            sizes = [each.largest for each in self.sites.values()]
            largest = (
                max((each.cpus for each in sizes), default=0.0),
                float(max((each.memory for each in sizes), default=0)),
                max((each.gpus for each in sizes), default=0.0),
            )
            self.fair = FairTurns(
                self.shares, self.standing, now, self.apart, largest, self.budgets.terms, self.seconds, self.first
            )
        return self.fair

    def bounds(self) -> ShareBounds | None:
        """Return what is left for each share; None: nothing limits them."""
        is_paid = self.budgets.in_hours or (self.priced and self.budgets.any_spent)
        if not self.is_on or not (self.shares.has_bounds or is_paid):
            return None
        total = NONE_USED
        for use in self.sites.values():
            total = total.plus(use.possible)
        possible = {name: use.possible for name, use in self.sites.items()}
        return ShareBounds(self.shares, replace(self.standing, total=total), possible, self.priced)

    def learn(self, waiting: Sequence[WaitingJob], found: Assignment, now: float) -> None:
        """Note which jobs found no room, and explain to those whose share has used more than it is entitled to."""
        shares = {job.share for job in waiting}
        if not self.is_on or len(shares) < 2:
            self.apart = {}
            return
        turned_away = {name for names in found.turned_away.values() for name in names}
        numbers: dict[Any, int] = {}
        placed: set[int] = set()
        apart: dict[str, int] = {}
        for job in waiting:
            number = numbers.setdefault(key(job), len(numbers))
            if job.name in found.placed:
                placed.add(number)
            elif job.name in turned_away:
                apart[job.name] = number
        self.apart = {name: number for name, number in apart.items() if number not in placed}
        if self.history is not None:
            self._explain(waiting, found, now)

    def _explain(self, waiting: Sequence[WaitingJob], found: Assignment, now: float) -> None:
        shares = {job.share or "" for job in waiting}
        parts, lately = entitled(self.shares, shares | self.standing.used.keys()), self.standing.lately
        over: dict[str, Reason] = {
            share: because(
                "share_turn",
                share=share,
                used=round(100 * lately.get(share, 0.0)),
                entitled=round(100 * parts.get(share, 0.0)),
                half_life=self.shares.half_life,
            )
            for share in shares
            if lately.get(share, 0.0) > parts.get(share, 0.0)
        }
        for job in waiting if over else ():
            why = over.get(job.share or "")
            if why is None or job.name not in found.waits or job.queued_at > now - SECONDS_UNTIL_EXPLAINED:
                continue
            known = found.waits[job.name]
            if known is None:
                found.waits[job.name] = why
            elif known.code == NO_ROOM:
                found.waits[job.name] = known.with_also(why)

    def note_ends(self, session: Session, tokens: Sequence[str]) -> None:
        """Charge shares for what their ended jobs used in excess of their requests."""
        if self.history is None or not self.standing.total.cpus:
            return
        for row in share_rows.excess(session, tokens):
            self.history.add(self.terms(row).share, row.seconds / self.standing.total.cpus)

    @property
    def is_due(self) -> bool:
        return self.is_declared and time.monotonic() >= self._next_note

    def save(self, session: Session, now: float) -> None:
        """Store the present and recent use of shares if that is due."""
        if not self.is_due:
            return
        self._next_note = time.monotonic() + Budgets.seconds_between_notes
        if self.history is not None:
            share_rows.save_means(session, self.history.means, now, self.shares.half_life)
        share_rows.save_standings(session, share_standings(self.shares, self.standing), now)


def _tags(session: Session, facts: Callable[[Session, str], Mapping[str, Any]], dag_id: str) -> str | None:
    """Return a Dag's current tags as JSON."""
    tags: str | None = facts(session, dag_id).get("dag_tags")
    return tags


def _no_tags(_: str) -> None:
    """Stand in for :func:`_tags` if no budget depends on tags."""


def budget_warning(spending: BudgetUse) -> str:
    budget = spending.budget
    spent, most = budget.unit.written(spending.spent), budget.unit.written(budget.most)
    return (
        f"The budget {budget.name} is at {100 * spending.part:.0f} %: {spent} of {most} {budget.unit.value} "
        f"of this {budget.per}"
    )
