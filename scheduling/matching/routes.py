"""Routes: the places to which a job goes one after the other, with what it asks for there. Pure.

Rules are outside, places inside: all that it wishes at the last place is better than less of it at the first one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from lading.scheduling.hints.place_words import Target
from lading.scheduling.matching.bindings import GetTargets, filtered
from lading.scheduling.matching.ranking import Match, Rank, by_probability
from lading.scheduling.matching.rules import Rule, minimum, variants
from lading.scheduling.matching.sites import SiteView, asked, open_to, refusal, stop_at
from lading.scheduling.matching.stops import Changes, Order, Route, of_text
from lading.scheduling.matching.waiting import Waiting


def matches(job: Waiting, sites: Sequence[SiteView]) -> list[tuple[Target, SiteView]]:
    """The places that can ever run a job with the least that will do for it, in the order in which they are named."""
    least = minimum(job)
    takers = {site.name: site for site in open_to(job, asked(job, sites))}
    targets = [Target(name) for name in takers] if job.targets is None else map(Target.parse, of_text(job.targets)[0])
    return [
        (target, site)
        for target in targets
        if (site := takers.get(target.site)) is not None and stop_at(least, target, site) is not None
    ]


def ranked(
    job: Waiting, places: Sequence[tuple[Target, SiteView]], rank: Rank = by_probability
) -> Sequence[tuple[Target, SiteView]]:
    """The places in the order in which the job goes to them; those that it or the sites file names stay as they are."""
    if len(places) < 2 or job.targets is not None or job.site is not None or job.instance_type is not None:
        return places
    by_name = {site.name: (target, site) for target, site in places}
    found = [as_match(job, site) for _, site in places]
    return [by_name[each.site] for each in rank(job, found) or by_probability(job, found)]


def as_match(job: Waiting, site: SiteView) -> Match:
    """A site as rankings see it."""
    available, total = site.nodes(minimum(job)) or (None, None)
    wait = None if site.waits is None else site.waits.expected(site.name, job.queue, job.resources.cpus * job.nodes)
    return Match(site.name, available, total, wait, site.burst_after > 0)


def route(job: Waiting, sites: Sequence[SiteView], rules: Sequence[Rule] = (), rank: Rank = by_probability) -> Route:
    """Where a job may ever run, in the order in which it goes there; empty: nowhere.

    :raises ValueError: a plugin's rule has failed
    """
    places = ranked(job, matches(job, sites), rank)
    return tuple(
        stop
        for rule, changes in variants(job, rules)
        for target, site in places
        if (stop := stop_at(job, target, site, rule, changes)) is not None
    )


def nowhere(job: Waiting, sites: Sequence[SiteView]) -> str:
    """Why a job has no route, in words."""
    if matches(job, sites):
        return "less than it wishes would do, but no rule of the sites file lets it have less; see [[rules]]"
    return refusal(minimum(job), sites)


def through_filters(job: Waiting, its_route: Route, known: Mapping[str, GetTargets]) -> tuple[str, ...] | None:
    """The targets that the binding filters of a job leave, in their order; None: it has no filters.

    :raises ValueError: a filter has failed, or leaves none
    """
    if job.targets is None or not (filters := of_text(job.targets)[1]):
        return None
    targets = tuple(dict.fromkeys(str(stop.target) for stop in its_route))
    left = filtered(job, targets, filters, known)
    if not left:
        raise ValueError(f"its binding filters ({', '.join(filters)}) leave none of {', '.join(targets)}")
    return left


def by_step(its_route: Route) -> list[dict[str, list[int]]]:
    """The numbers of the stops of a route by their targets, for each step of a rule apart."""
    steps: dict[tuple[str | None, Changes], dict[str, list[int]]] = {}
    for number, stop in enumerate(its_route):
        steps.setdefault((stop.rule, stop.relaxed), {}).setdefault(str(stop.target), []).append(number)
    return list(steps.values())


def by_targets(steps: Iterable[Mapping[str, Sequence[int]]], targets: Sequence[str]) -> Order:
    """The stops at these targets alone, in their order; rules stay outside.

    :param steps: see :func:`by_step`
    """
    return tuple(number for step in steps for target in targets for number in step.get(target, ()))


def reordered(its_route: Route, targets: Sequence[str]) -> Route:
    """A route by these targets alone, in their order; rules stay outside."""
    return tuple(its_route[number] for number in by_targets(by_step(its_route), targets))


def least_first(its_route: Route, order: Order) -> Order:
    """An order in which those stops come first at which the job asks for the least amounts; else the same."""

    def size(number: int) -> tuple[float, ...]:
        asked = dict(its_route[number].relaxed).get("resources")
        return (math.inf,) if asked is None else (asked.cpus, asked.memory, asked.disk, asked.gpus)

    return tuple(sorted(order, key=size))
