"""Routes: the places that a job tries one after the other, with its requests at each. Pure.

Rules are the outer loop, places the inner one: the full request at the last place is better than a smaller one at the
first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from lading.scheduling.hints.places import Target
from lading.scheduling.matching.bindings import GetTargets, filtered
from lading.scheduling.matching.ranking import Match, Rank, by_probability
from lading.scheduling.matching.rules import Rule, minimum, variants
from lading.scheduling.matching.sites import SiteView, asked, open_to, refusal, stop_at
from lading.scheduling.matching.stops import Changes, Order, Route, Stop, of_text
from lading.scheduling.matching.waiting import WaitingJob, once_per_shape
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.site_names import is_named


def matches(job: WaitingJob, sites: Sequence[SiteView]) -> list[tuple[Target, SiteView]]:
    """The places that can ever run a job with its minimal requests, in the order in which they are named."""
    least = minimum(job)
    takers = dict.fromkeys(open_to(job, asked(job, sites)))
    targets = (
        [Target(site.name) for site in takers] if job.targets is None else map(Target.parse, of_text(job.targets)[0])
    )
    return [
        (target, site)
        for target in targets
        for site in takers
        if is_named(site.name, target.site) and stop_at(least, target, site) is not None
    ]


def ranked(job: WaitingJob, places: Sequence[tuple[Target, SiteView]]) -> Sequence[tuple[Target, SiteView]]:
    """The places in the order in which the job tries them; places that it or the sites file names keep their order."""
    by_name = {site.name: (target, site) for target, site in places}
    return [by_name[each.site] for each in by_probability(job, found)] if (found := rankable(job, places)) else places


def rankable(job: WaitingJob, places: Sequence[tuple[Target, SiteView]]) -> Sequence[Match]:
    """The places that can be ranked, because the job does not name them; otherwise empty."""
    if len(places) < 2 or job.targets is not None or job.site is not None or job.instance_type is not None:
        return ()
    return tuple(as_match(job, site) for _, site in places)


def as_match(job: WaitingJob, site: SiteView) -> Match:
    available, total = site.nodes(minimum(job)) or (None, None)
    wait = None if site.waits is None else site.waits.expected(site.name, job.queue, job.resources.cpus * job.nodes)
    return Match(site.name, available, total, wait, site.burst_after > 0)


def route(job: WaitingJob, sites: Sequence[SiteView], rules: Sequence[Rule] = ()) -> Route:
    """Where a job can ever run, in the order in which it tries the places; empty: nowhere.

    :raises ValueError: a plugin's rule failed
    """
    places = ranked(job, matches(job, sites))
    return tuple(
        stop
        for rule, changes in variants(job, rules)
        for target, site in places
        if (stop := stop_at(job, target, site, rule, changes)) is not None
    )


def router(sites: Sequence[SiteView], rules: Sequence[Rule], rank: Rank | None) -> Callable[[WaitingJob], Route]:
    """Return a function that finds the route of a job: computed once for equal jobs, then ordered for each job by a
    plugin.

    :param rank: the plugin's ranking; None: there is none
    """
    of_shape = once_per_shape(lambda job: route(job, sites, rules))
    if rank is None:
        return of_shape
    matches_of = once_per_shape(lambda job: rankable(job, matches(job, sites)))

    def find_route(job: WaitingJob) -> Route:
        its_route = of_shape(job)
        return reordered(its_route, through_rank(job, its_route, matches_of(job), rank))

    return find_route


def through_rank(job: WaitingJob, its_route: Route, found: Sequence[Match], rank: Rank) -> tuple[str, ...]:
    """The places of a route in the order in which a plugin lets this job try them.

    :param found: the matches that can be ranked; empty: none
    """
    order = rank(job, found) if found else None
    return tuple(dict.fromkeys(map(place, its_route) if order is None else (each.site for each in order)))


def first_stop(job: WaitingJob, its_route: Route, known: Mapping[str, GetTargets]) -> Stop | None:
    """Where a job goes first; None: nowhere.

    :param its_route: where it can ever run
    :param known: the binding filters by name
    :raises ValueError: a filter failed, or leaves no target
    """
    targets = through_filters(job, its_route, known) if its_route else None
    return next(iter(its_route if targets is None else reordered(its_route, targets)), None)


def place(stop: Stop) -> str:
    """The name of a stop among those of a job: its target, or for a job without targets its site."""
    return stop.target or stop.site


def nowhere(job: WaitingJob, sites: Sequence[SiteView]) -> Reason:
    if matches(job, sites):
        return because("no_rule_for_less")
    return refusal(minimum(job), sites)


def through_filters(job: WaitingJob, its_route: Route, known: Mapping[str, GetTargets]) -> tuple[str, ...] | None:
    """The targets that the binding filters of a job leave, in order; None: it has no filters.

    :raises ValueError: a filter failed, or leaves no target
    """
    if job.targets is None or not (filters := of_text(job.targets)[1]):
        return None
    targets = tuple(dict.fromkeys(str(stop.target) for stop in its_route))
    left = filtered(job, targets, filters, known)
    if not left:
        raise ValueError(f"its binding filters ({', '.join(filters)}) removed all of its targets: {', '.join(targets)}")
    return left


def by_step(its_route: Route) -> list[dict[str, list[int]]]:
    """The indexes of the stops of a route by target, separately for each step of a rule."""
    steps: dict[tuple[str | None, Changes], dict[str, list[int]]] = {}
    for number, stop in enumerate(its_route):
        steps.setdefault((stop.rule, stop.relaxed), {}).setdefault(place(stop), []).append(number)
    return list(steps.values())


def by_targets(steps: Iterable[Mapping[str, Sequence[int]]], targets: Sequence[str]) -> Order:
    """The stops at these targets only, in the order of the targets; rules stay the outer loop.

    :param steps: see :func:`by_step`
    """
    return tuple(number for step in steps for target in targets for number in step.get(target, ()))


def reordered(its_route: Route, targets: Sequence[str]) -> Route:
    """The route restricted to these targets, in their order; rules stay the outer loop."""
    return tuple(its_route[number] for number in by_targets(by_step(its_route), targets))


def least_first(its_route: Route, order: Order) -> Order:
    """The order with the stops that have the smallest requests first, otherwise unchanged."""

    def size(number: int) -> tuple[float, ...]:
        asked = dict(its_route[number].relaxed).get("resources")
        return (math.inf,) if asked is None else (asked.cpus, asked.memory, asked.disk, asked.gpus)

    return tuple(sorted(order, key=size))
