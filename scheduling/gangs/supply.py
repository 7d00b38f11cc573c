"""Whether a gang can ever have room together: the requests of its members against the capacity of all sites. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lading.scheduling.gangs.gang import NO_RULE
from lading.scheduling.gangs.room import GangRoom, Options, Ways, Where, options
from lading.scheduling.matching.market import Market
from lading.scheduling.matching.rules import minimum
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.sites import asked as sites_asked
from lading.scheduling.matching.stops import of_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.matching.wishes import resolved
from lading.scheduling.model.job import NOTHING
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources, format_resources


class SiteSupply(NamedTuple):
    """What a site can ever provide for a partition.

    :param locations: the locations that suit a member, by their number at the site
    :param most: for a site that launches locations, how many there can be at once; None: it launches none
    """

    site: str
    locations: Mapping[int, Location]
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests of a partition.

    :param name: its task
    :param asked: the minimal request of each member
    :param supplies: the sites that it can go to
    """

    name: str
    asked: Sequence[Resources]
    supplies: Sequence[SiteSupply]


def shortage(demands: Sequence[Demand], *, together: bool = True, spread: bool = False) -> Reason | None:
    """Why members can never have room at the same time, with the totals; None: they may have.

    A reason is certain: each total is an upper bound for every packing.

    :param together: whether all partitions start at the same time; otherwise each is checked separately
    :param spread: whether each member needs a location of its own
    """
    for each in demands:
        if (why := _of_one(each, spread=spread)) is not None:
            return why
    return _of_all(demands, spread=spread) if together and len(demands) > 1 else None


def _of_one(demand: Demand, *, spread: bool) -> Reason | None:
    for asked, count in Counter(demand.asked).items():
        most = sum(_copies(asked, each, spread=spread) for each in demand.supplies)
        if most < count:
            sites = [each.site for each in demand.supplies]
            if count == 1:
                why = because("gang_job_too_large", task=demand.name, each=asked, sites=sites)
            else:
                code = "gang_too_many_apart" if spread else "gang_too_many"
                together = asked * count
                why = because(code, task=demand.name, jobs=count, all=together, each=asked, sites=sites, most=most)
            return why.with_also(*map(_capacity, demand.supplies))
    return _of_all([demand], spread=spread)


def _of_all(demands: Sequence[Demand], *, spread: bool) -> Reason | None:
    supplies = _union(demands)
    sites = [each.site for each in supplies]
    jobs = sum(len(each.asked) for each in demands)
    asked = NOTHING.with_all([each for demand in demands for each in demand.asked])
    total = _total(supplies)
    if lacking := asked.lacking(total):
        asks, most = _only(asked, lacking), _only(total, lacking)
        return because("gang_too_large", jobs=jobs, all=asks, sites=sites, has=most)
    there = sum(len(each.locations) if each.most is None else each.most for each in supplies)
    if spread and there < jobs:
        return because("gang_too_few_locations", jobs=jobs, sites=sites, most=there)
    return None


def _copies(asked: Resources, supply: SiteSupply, *, spread: bool) -> float:
    """An upper bound on how many jobs with these requests a site can hold."""
    counts = [asked.copies(each.capacity) for each in supply.locations.values()]
    counts = [min(each, 1) for each in counts] if spread else counts
    if supply.most is None:
        return sum(counts)
    largest = max(counts, default=0)
    return largest * supply.most if largest else 0


def _union(demands: Sequence[Demand]) -> list[SiteSupply]:
    by_site: dict[str, SiteSupply] = {}
    for supply in (each for demand in demands for each in demand.supplies):
        before = by_site.get(supply.site)
        locations = {**before.locations, **supply.locations} if before is not None else supply.locations
        by_site[supply.site] = supply._replace(locations=locations)
    return list(by_site.values())


def _total(supplies: Sequence[SiteSupply]) -> Resources:
    amounts = dict.fromkeys(("cpus", "memory", "disk", "gpus"), 0.0)
    for supply in supplies:
        for name in amounts:
            here = [getattr(each.capacity, name) for each in supply.locations.values()]
            if supply.most is None:
                amounts[name] += sum(here)
            elif largest := max(here, default=0):
                amounts[name] += largest * supply.most
    return Resources(**amounts)  # type: ignore[arg-type]  # infinite where there is no limit


def _only(amounts: Resources, names: Sequence[str]) -> Resources:
    return Resources(**{name: getattr(amounts, name) for name in names})


def _capacity(supply: SiteSupply) -> Reason:
    """The suitable capacity of a site, most frequent sizes first."""
    counts = Counter(each.capacity for each in supply.locations.values())
    if not counts:
        return because("site_has_nothing", site=supply.site)
    sizes = [
        amount
        for capacity, count in counts.most_common(3)
        for amount in (count, capacity.cpus, capacity.memory, capacity.disk, capacity.gpus)
    ]
    more = max(0, len(counts) - 3)
    if supply.most is None:
        return because("site_has", site=supply.site, sizes=sizes, more=more)
    most = None if math.isinf(supply.most) else supply.most
    return because("site_launches", site=supply.site, most=most, sizes=sizes, more=more)


def demand(name: str, members: Sequence[WaitingJob], found: Options, sites: Mapping[str, SiteView]) -> Demand | None:
    """The requests of a partition and the sites that it can go to; None if those are not fully known.

    :param found: where its members can be tried
    :param sites: by name
    """
    supplies: dict[str, SiteSupply] = {}
    least = {job.name: minimum(job).resources for job in members}
    shapes = {job.shape: job for job in members}.values()
    if not all(_is_known(job, [*sites.values()]) for job in shapes):
        return None
    for stops in (each for places in found.stops.values() for each in places):
        for job in shapes:
            site = sites[stops[job.name].site]
            need = replace(resolved(stops[job.name].asked(job), site.arch), resources=least[job.name])
            before = supplies.get(site.name, SiteSupply(site.name, {}, most_launched(site)))
            here = {
                number: each
                for number, each in enumerate(site.possible)
                if each.max_jobs is None and not each.stacked and each.suits(need)
            }
            supplies[site.name] = before._replace(locations={**before.locations, **here})
    return Demand(name, [least[job.name] for job in members], list(supplies.values())) if supplies else None


def _is_known(job: WaitingJob, sites: Sequence[SiteView]) -> bool:
    """Whether the capacity of all sites that a job can go to is known, including those that do not accept it now."""
    if job.targets is not None and of_text(job.targets)[1]:
        return False  # its binding filters may choose other places the next time
    return not any(
        site.is_new or site.trouble is not None or site.barred or not site.possible
        for site in sites_asked(job, sites)
        if site.holds
    )


def explained(
    partitions: Mapping[str, Sequence[WaitingJob]],
    sites: Sequence[SiteView],
    held: Mapping[Where, Resources],
    now: float,
    ways: Ways,
    *,
    partial: bool = False,
    spread: bool = False,
) -> Iterator[str]:
    """Describe the room for a gang: whether there can ever be enough, and for how many members there is room now.

    :param partitions: its members by task, in the order in which the tasks are tried
    :param held: the room held for other gangs
    :param now: epoch seconds
    :param ways: how places are found and ordered
    :raises ValueError: a plugin's rule or a binding filter failed
    """
    jobs = [job for members in partitions.values() for job in members]
    asked = NOTHING.with_all([job.resources for job in jobs])
    where = "; each needs a location of its own" if spread else ""
    yield f"its {len(jobs)} waiting jobs request {format_resources(asked)} in total{where}"
    room, by_name = GangRoom(sites, held), {site.name: site for site in sites}
    options_by_name = {name: options(members, sites, ways) for name, members in partitions.items()}
    demands = [demand(name, members, options_by_name[name], by_name) for name, members in partitions.items()]
    known = [each for each in demands if each is not None]
    if (why := shortage(known, together=not partial and len(known) == len(demands), spread=spread)) is not None:
        yield f"that is impossible: {why.sentence}"
    apart: set[Where] | None = set() if spread else None
    for name, members in partitions.items():
        counts = []
        for match in options_by_name[name].matches:
            places, left = room.find(members, options_by_name[name].stops.get((NO_RULE, match), ()), now, apart)
            counts.append(f"{match} has room for {len(members) - len(left)} of {len(members)} now")
            if not left:
                if apart is not None:
                    apart.update((each.stop.site, each.location) for each in places.values())
                break
        yield f"task {name!r}: {'; '.join(counts) or 'no site that it can go to holds room'}"


def most_launched(site: SiteView) -> float | None:
    """How many locations a site can have at once; None if it launches none."""
    if not site.launches:
        return None
    if site.market is None:
        return math.inf
    limit = site.market.most if isinstance(site.market, Market) else site.market.limits.instances
    return math.inf if limit is None else float(limit)
