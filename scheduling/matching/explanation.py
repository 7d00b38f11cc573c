"""Why a job goes where it goes: the steps of the decision about one job, as text. Pure.

The steps use the same functions as the decision itself, :func:`lading.scheduling.placing.placement.assign`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lading.scheduling.hints.places import Target
from lading.scheduling.matching.bindings import FILTERS, GetTargets
from lading.scheduling.matching.ranking import Match, Rank, by_probability
from lading.scheduling.matching.routes import matches, nowhere, rankable, reordered, router, through_filters
from lading.scheduling.matching.rules import NODES, RULES, Rule, describe_changes, minimum, soft
from lading.scheduling.matching.sites import SiteView, asked, open_to, why_no_target
from lading.scheduling.matching.stops import Route, Stop, of_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.matching.wishes import resolved
from lading.scheduling.model.job import LAYOUT
from lading.scheduling.model.resources import format_resources
from lading.scheduling.model.site_names import is_named
from lading.scheduling.text.units import format_time

NOTHING_LESS = "the full request"


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    """One step of the decision.

    :param name: the step
    :param lines: its result, as text
    """

    name: str
    lines: Sequence[str]


def explained(
    job: WaitingJob,
    sites: Sequence[SiteView],
    *,
    filters: Mapping[str, GetTargets] = FILTERS,
    rules: Sequence[Rule] = RULES,
    rank: Rank | None = None,
    is_of_gang: bool = False,
    has_place: bool = False,
) -> Iterator[ExplanationStep]:
    """The steps of the decision where a job goes, up to the site.

    :param is_of_gang: whether it starts together with others, so that room for it alone is not enough
    :param has_place: whether it already has a place, so that the room available now played no part
    """
    yield ExplanationStep("bindings", [_named(job, sites)])
    try:
        its_route = router(sites, rules, rank)(job)
        left = through_filters(job, its_route, filters) if its_route else None
    except ValueError as error:
        yield ExplanationStep("filters", [f"failed: {error}"])
        return
    if left is not None:
        its_route = reordered(its_route, left)
        yield ExplanationStep(
            "filters", [f"{', '.join(of_text(job.targets or '')[1])} leave, in this order: {', '.join(left)}"]
        )
    places = matches(job, sites)
    yield ExplanationStep("matching", list(_matching(job, sites, places)) or ["there is no place that it can go to"])
    if not its_route:
        yield ExplanationStep("refused", [str(nowhere(job, sites))])
        return
    found = rankable(job, places)
    order = (None if rank is None or not found else rank(job, found)) or by_probability(job, found)
    yield ExplanationStep("ranking", [", ".join(map(_likely, order)) if order else _unranked(job, places)])
    if not has_place:
        yield ExplanationStep("rules × matches", list(_tried(job, its_route, sites, is_of_gang=is_of_gang)))


def _unranked(job: WaitingJob, places: Sequence[tuple[Target, SiteView]]) -> str:
    """Why no ranking was needed."""
    if job.targets is not None:
        return "not needed: the targets are tried in their order"
    if job.site is not None:
        return f"not needed: the hint names {job.site}"
    if len(places) == 1:
        return f"not needed: only {places[0][0]} can run it"
    return "not needed: the sites are tried in the order of the sites file"


def _named(job: WaitingJob, sites: Sequence[SiteView]) -> str:
    if job.targets is not None:
        return f"its Dag, or a binding, names the targets {', '.join(of_text(job.targets)[0])}"
    if job.site is not None:
        return f"its hint site names {job.site}"
    takers = ", ".join(site.name for site in asked(job, sites)) or "none"
    return f"no place is named; the sites that accept such tasks: {takers}"


def _matching(job: WaitingJob, sites: Sequence[SiteView], places: Sequence[tuple[Target, SiteView]]) -> Iterator[str]:
    by_name = {site.name: site for site in sites}
    least, matched = minimum(job), {str(target) for target, _ in places}
    if job.targets is not None:
        targets = list(map(Target.parse, of_text(job.targets)[0]))
    else:
        targets = [Target(name) for name in ([job.site] if job.site else [site.name for site in asked(job, sites)])]
    for target in targets:
        yield (
            f"{target}: it can run there" if str(target) in matched else f"{target}: {_cannot(least, target, by_name)}"
        )


def _cannot(job: WaitingJob, target: Target, sites: Mapping[str, SiteView]) -> str:
    named = (each for name, each in sites.items() if is_named(name, target.site))
    site = next(iter(open_to(job, named)), None)
    is_barred = site is not None and site.barred_reason(replace(job, queue=target.within or job.queue)) is not None
    return f"it {'cannot' if is_barred else 'can never'} run there: {why_no_target(job, target, sites).sentence}"


def _likely(match: Match) -> str:
    if match.wait is not None:
        return f"{match.site} (three of four jobs waited at most {format_time(round(match.wait))})"
    if match.share is not None:
        return f"{match.site} ({match.available} of {match.total} nodes are idle)"
    return f"{match.site} (in the order of the sites file)"


def _tried(job: WaitingJob, its_route: Route, sites: Sequence[SiteView], *, is_of_gang: bool) -> Iterator[str]:
    now = "for this job alone" if is_of_gang else "now"
    by_name = {site.name: site for site in sites}
    for rule, relaxed in dict.fromkeys((stop.rule, stop.relaxed) for stop in its_route):
        stops = [stop for stop in its_route if (stop.rule, stop.relaxed) == (rule, relaxed)]
        asks = f"{NOTHING_LESS}, {format_resources(job.resources)}"
        if rule is not None:
            asks = f"rule {rule!r}, {describe_changes(job, relaxed)}"
        yield f"{asks}: " + "; ".join(f"{each.target or each.site} {_room(job, each, by_name, now)}" for each in stops)


def _room(job: WaitingJob, stop: Stop, sites: Mapping[str, SiteView], now: str) -> str:
    site = sites[stop.site]
    need = resolved(stop.asked(job), site.arch)
    has_room = site.trouble is None and any(
        each.suits(need)
        and (each.jobs < each.max_jobs if each.max_jobs is not None else need.resources.fits(each.capacity - each.used))
        for each in site.locations
    )
    if has_room:
        return f"has room {now}"
    return f"has none ({site.why_not(stop.asked(job)).sentence})"


def wishes(job: WaitingJob) -> str:
    """A job's requests, and its minimal requests, as text."""
    least, its_own = minimum(job), soft(job.soft)
    parts = [format_resources(job.resources)]
    if its_own.least.keys() - {NODES}:
        parts.append(f"at least {format_resources(least.resources)}")
    if LAYOUT in job.hints:
        parts.append(
            f"{job.nodes} node{'s' if job.nodes > 1 else ''}"
            + (f", at least {least.nodes}" if least.nodes < job.nodes else "")
        )
    if missing := sorted(job.features - least.features):
        parts.append(f"{', '.join(missing)} only if possible")
    return "; ".join(parts)
