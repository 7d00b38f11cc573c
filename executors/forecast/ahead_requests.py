"""Room requested ahead of jobs for which no plan provides it, tracked from tick to tick."""

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

TROUBLE = "No room can be requested ahead for run {run!r}, so it is requested once the jobs are queued"
# A run's requests are recomputed after this many seconds or when the run has changed, for at most this many runs per
# tick. Requests for jobs that have been queued in the meantime are dropped at once.
SECONDS_BETWEEN_LOOKS = 5.0
MOST_RUNS_PER_TICK = 5


@dataclass(slots=True)
class AskingRun:
    """A run for which room can be requested ahead.

    :param run: the run at the last computation, which was made at ``looked_at``, in epoch seconds
    :param asked_at: since when room has been requested, by the names of jobs, in epoch seconds
    :param found: the jobs for which room is requested
    """

    run: ComingRun | None = None
    looked_at: float = 0.0
    asked_at: Mapping[str, float] = field(default_factory=dict)
    found: Sequence[AskedJob] = ()


class AheadRequests:
    """The room requested ahead of jobs for which no plan provides it: members of gangs, jobs with a limit on machines,
    and jobs for sites without a plan.

    :param asked: returns what the jobs of a run's tasks request at the sites they go to first, by the run's name;
        without those for which room is no longer requested ahead
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
        """Recompute for which jobs room is requested; return those for which it was not requested before.

        :param runs: all live runs
        :param sites: with holds counted as taken
        :param terms: the budgets of runs that have any, by the names of the runs
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
        except Exception as error:  # without this, room is requested once the jobs are queued
            self.trouble.begin(trouble, error, traceback=True)
            return ()
        self.trouble.end(trouble)
        return found

    def wanted(
        self, sites: Sequence[SiteView], terms: Mapping[str, BudgetTerms], now: float
    ) -> dict[str, list[WaitingJob]]:
        """Return the jobs for which room is requested, by site, as they will be once they wait.

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
                # All jobs are known, so there is no need to wait for more of them to arrive.
                since = known.asked_at[each.name] - LONGEST_ARRIVAL
                job = replace(job, name=each.name, queued_at=since, budgets=its_terms.launches)
                found.setdefault(each.site, []).append(job)
        return found


def until_its_end(job: WaitingJob, lead: float, market: Market) -> WaitingJob:
    """Extend a job's time to its expected end, so that an allocation that starts early lasts long enough.

    The time is limited by how long allocations of the site last.

    :param lead: seconds until the job is expected to start
    """
    if job.time is None:
        return job
    return replace(job, time=max(job.time, min(job.time + max(0.0, lead), market.seconds - SECONDS_TO_BEGIN)))
