"""What room is asked for ahead though no plan provides it, from tick to tick."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.hooks.files.logs import Trouble
from lading.scheduling.forecast.coming import ComingRun
from lading.scheduling.matching.market import Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.provisioning import LONGEST_ARRIVAL, SECONDS_TO_BEGIN
from lading.scheduling.provisioning.asked_ahead import AskedJob, asked_ahead
from lading.scheduling.shares.budgets import NO_BUDGETS, BudgetTerms

log = logging.getLogger(__name__)

TROUBLE = "It is not known for which jobs of run {run!r} room is to be asked for ahead, so it is when they have come"
# What is asked for of a run is found out anew after so many seconds, and when anything of it has changed, of so many
# runs in a tick. What has come since is not asked for any more at once.
SECONDS_BETWEEN_LOOKS = 5.0
MOST_RUNS_PER_TICK = 5


@dataclass(slots=True)
class AskingRun:
    """A run for which room may be asked for ahead.

    :param run: as it was looked at last, and ``looked_at`` when, epoch seconds
    :param asked_at: since when room is asked for, by the names of jobs, epoch seconds
    :param found: for which jobs it is
    """

    run: ComingRun | None = None
    looked_at: float = 0.0
    asked_at: Mapping[str, float] = field(default_factory=dict)
    found: Sequence[AskedJob] = ()


class AheadRequests:
    """The room that is asked for ahead of jobs for which no plan provides it: members of gangs, jobs that share few
    machines, and what goes to sites that go by no plan.

    :param asked: says what the jobs of tasks of a run, by its name, ask for at the sites to which they go first; those
        for which room is not asked for ahead any more are left out
    """

    def __init__(self, asked: Callable[[str], Mapping[str, WaitingJob]]) -> None:
        self.asked, self.trouble = asked, Trouble(log)
        self.runs: dict[str, AskingRun] = {}

    def update(
        self,
        runs: Sequence[ComingRun],
        sites: Sequence[SiteView],
        terms: Mapping[str, BudgetTerms],
        now: float,
    ) -> list[AskedJob]:
        """Find out for which jobs room is asked for now; returns those of them for which it is from now on.

        :param runs: all that live
        :param sites: with what is held taken
        :param terms: what budgets allow runs that have some, by the names of the runs
        :param now: epoch seconds
        """
        asking = {run.name: run for run in runs if any(task.request is not None for task in run.tasks.values())}
        self.runs = {name: self.runs.get(name) or AskingRun() for name in asking}
        for name, known in self.runs.items():
            if known.found and known.run is not asking[name]:
                jobs = (job for task in asking[name].tasks.values() if task.request is not None for job in task.jobs)
                to_come = {job.name for job in jobs if job.token is None and job.begun is None}
                known.found = [each for each in known.found if each.name in to_come]
        due = [
            name
            for name, known in self.runs.items()
            if known.run is not asking[name] or abs(now - known.looked_at) >= SECONDS_BETWEEN_LOOKS
        ]
        new: list[AskedJob] = []
        for name in sorted(due, key=lambda name: self.runs[name].looked_at)[:MOST_RUNS_PER_TICK]:
            known = self.runs[name]
            known.run, known.looked_at = asking[name], now
            known.found = ()
            if terms.get(name, NO_BUDGETS).may_launch:
                known.found = self._found(name, asking[name], sites, known.asked_at, now)
            new += [each for each in known.found if each.name not in known.asked_at]
            known.asked_at = {**dict.fromkeys((each.name for each in known.found), now), **known.asked_at}
        return new

    def _found(
        self, name: str, run: ComingRun, sites: Sequence[SiteView], asked_at: Mapping[str, float], now: float
    ) -> Sequence[AskedJob]:
        trouble = TROUBLE.format(run=name)
        try:
            found = asked_ahead(run, sites, asked_at, now)
        except Exception as error:  # without it room is asked for when the jobs have come
            self.trouble.begin(trouble, error, traceback=True)
            return ()
        self.trouble.end(trouble)
        return found

    def wanted(
        self, sites: Sequence[SiteView], terms: Mapping[str, BudgetTerms], now: float
    ) -> dict[str, list[WaitingJob]]:
        """By site, the jobs for which room is asked for, as they will wait.

        :param terms: see :meth:`update`
        :param now: epoch seconds
        """
        markets, found = {site.name: site.market for site in sites}, dict[str, list[WaitingJob]]()
        for name, known in self.runs.items():
            its_terms = terms.get(name, NO_BUDGETS)
            if not (known.found and its_terms.may_launch):
                continue
            asked = self.asked(name)
            for each in known.found:
                if (job := asked.get(each.task_id)) is None:
                    continue
                if isinstance(market := markets.get(each.site), Market):
                    job = until_its_end(job, each.start - now, market)
                # All of them are known, so none that may still arrive is waited for.
                since = known.asked_at[each.name] - LONGEST_ARRIVAL
                job = replace(job, name=each.name, queued_at=since, budgets=its_terms.launches)
                found.setdefault(each.site, []).append(job)
        return found


def until_its_end(job: WaitingJob, lead: float, market: Market) -> WaitingJob:
    """A job with the time until its end, so that an allocation that is there early still lasts for it, as far as
    allocations of the site do.

    :param lead: seconds until it is to begin
    """
    if job.time is None:
        return job
    return replace(job, time=max(job.time, min(job.time + max(0.0, lead), market.seconds - SECONDS_TO_BEGIN)))
