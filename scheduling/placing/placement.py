"""Placement: which job goes to which location of which site. Pure; one decision over all sites.

A job goes to the first site that can ever run it. If it finds no room there, it waits for as long as that site
specifies, and can then go to the next site that accepts jobs without a site of their own. A job that names a site goes
to no other; a job with targets goes only to these, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from lading.scheduling.accounting.bounds import ShareBounds
from lading.scheduling.matching.bindings import FILTERS, GetTargets
from lading.scheduling.matching.groups import GroupMachines
from lading.scheduling.matching.ranking import Rank
from lading.scheduling.matching.routes import matches, nowhere, rankable, route, through_filters, through_rank
from lading.scheduling.matching.rules import RULES, Rule
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob, once_per_shape
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.reasons import because
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.job_classes import JobClass
from lading.scheduling.placing.placement_pass import PlacementPass

# A job that has been given to a site, the site, and the location.
AtWork: TypeAlias = tuple[PlannedJob, str, str]


def assign(
    jobs: Sequence[WaitingJob],
    sites: Sequence[SiteView],
    at_work: Sequence[AtWork] = (),
    *,
    now: float,
    filters: Mapping[str, GetTargets] = FILTERS,
    rules: Sequence[Rule] = RULES,
    wanted: Mapping[str, Sequence[WaitingJob]] = {},
    choice: Choice | None = None,
    rank: Rank | None = None,
    bounds: ShareBounds | None = None,
) -> Assignment:
    """Give waiting jobs to the sites that have room.

    First every site gets what it can run at once, then what is prefetched to it: so no job queues behind others at one
    site while another site is idle. Launches are decided in between, as if prefetched jobs had no place: a job for
    which something is launched waits for that, and goes to no other site.

    :param jobs: in the order in which they should start
    :param sites: all of them, in their order
    :param at_work: unfinished jobs already given to sites, of groups whose number of machines is limited
    :param now: epoch seconds
    :param filters: the binding filters by name
    :param rules: how jobs reduce their requests if nothing has room for the full ones, in this order
    :param wanted: by site, waiting gang members for which to launch capacity; the gang pass places them
    :param choice: how locations are chosen; None: by Lading's own policies
    :param rank: orders the sites of each job that names no place; None: equal jobs are ordered together
    :param bounds: what is left for the jobs of each share, reduced by what is placed; None: no bounds
    """
    choice = choice or Choice(now)

    def going(job: WaitingJob) -> JobClass:
        try:
            stops = route(job, sites, rules)
        except ValueError as error:
            return JobClass((), because("nowhere", text=str(error)))
        its_matches = () if rank is None else rankable(job, matches(job, sites))
        refused = None if stops else nowhere(job, sites)
        return JobClass(stops, refused, matches=its_matches)

    alike_of = once_per_shape(going)
    kinds: list[JobClass] = []
    assignment = Assignment()
    for job in jobs:
        its_own = alike_of(job)
        if its_own.refused is not None:
            assignment.refused[job.name] = its_own.refused
            continue
        if job.targets is not None:
            try:
                targets = through_filters(job, its_own.route, filters)
            except ValueError as error:
                assignment.refused[job.name] = because("nowhere", text=str(error))
                continue
            if targets is not None:
                its_own.send(job, targets)
        elif rank is not None and its_own.matches:
            its_own.send(job, through_rank(job, its_own.route, its_own.matches, rank))
        if not its_own.jobs:
            kinds.append(its_own)
        its_own.jobs.append(job)
    by_name = {site.name: site for site in sites}
    used = used_by_groups([*jobs, *(job for some in wanted.values() for job in some)], at_work, by_name)
    this_pass = PlacementPass(jobs, kinds, by_name, assignment, used, choice.trouble, wanted, choice.foreseen)
    this_pass.bounds = bounds
    this_pass.visit(choice.run, now)
    this_pass.begin_prefetching()
    this_pass.visit(choice.prefetch, now)
    this_pass.explain(now)
    return assignment


def used_by_groups(
    jobs: Sequence[WaitingJob], at_work: Sequence[AtWork], sites: Mapping[str, SiteView]
) -> GroupMachines:
    found = GroupMachines.from_jobs(jobs)
    for job, site, location in at_work:
        found.put(job, site, location, is_queue=site in sites and sites[site].is_queue(location))
    return found
