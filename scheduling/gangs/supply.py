"""Whether a gang can ever have room together: what its members ask for, against all that sites can ever give. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lading.scheduling.gangs.gang import NO_RULE
from lading.scheduling.gangs.room import GangRoom, Options, Ways, Where, options
from lading.scheduling.job import NOTHING
from lading.scheduling.location import Location
from lading.scheduling.matching.market import Market
from lading.scheduling.matching.rules import minimum
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.sites import asked as sites_asked
from lading.scheduling.matching.stops import of_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.matching.wishes import resolved
from lading.scheduling.resources import Resources, format_resources


class SiteSupply(NamedTuple):
    """What a site can ever give to a partition.

    :param locations: those of its locations that suit a member, each by its number at the site
    :param most: how many there may be at once of a site that launches them; None: it has these and no more
    """

    site: str
    locations: Mapping[int, Location]
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """What a partition asks for.

    :param name: its task
    :param asked: the least that will do for each of its members
    :param supplies: the sites that it may go to
    """

    name: str
    asked: Sequence[Resources]
    supplies: Sequence[SiteSupply]


def shortage(demands: Sequence[Demand], *, together: bool = True, spread: bool = False) -> str:
    """Why members can never have room at the same time, with the sums, in words; empty: they may.

    It is certain where it says so: every sum is one that no packing exceeds.

    :param together: whether all partitions begin at the same time; else each is looked at for itself
    :param spread: whether each member has a location of its own
    """
    for each in demands:
        if words := _of_one(each, spread=spread):
            return words
    return _of_all(demands, spread=spread) if together and len(demands) > 1 else ""


def _of_one(demand: Demand, *, spread: bool) -> str:
    """Why the members of a partition can never have room together."""
    for asked, count in Counter(demand.asked).items():
        most = sum(_copies(asked, each, spread=spread) for each in demand.supplies)
        if most < count:
            some = f"{count} jobs" if count > 1 else "job"
            all_of_them = f"{format_resources(asked * count)} together" if count > 1 else format_resources(asked)
            where = ", on a location of its own" if spread and count > 1 else ""
            return (
                f"the {some} of task {demand.name!r} ask{'' if count > 1 else 's'} for {all_of_them} "
                f"({format_resources(asked)} each{where}), and {_sites(demand.supplies)} can never hold more than "
                f"{most:.0f} of them: {_most(demand.supplies)}"
            )
    return _of_all([demand], spread=spread)


def _of_all(demands: Sequence[Demand], *, spread: bool) -> str:
    """Why the members of all partitions can never have room together."""
    supplies = _union(demands)
    jobs = sum(len(each.asked) for each in demands)
    asked = NOTHING.with_all([each for demand in demands for each in demand.asked])
    total = _total(supplies)
    if lacking := asked.lacking(total):
        return (
            f"its {jobs} jobs ask for {format_resources(_only(asked, lacking))} together, and {_sites(supplies)} can "
            f"never give more than {format_resources(_only(total, lacking))}"
        )
    there = sum(len(each.locations) if each.most is None else each.most for each in supplies)
    if spread and there < jobs:
        return f"its {jobs} jobs need a location each (spread), and {_sites(supplies)} never has more than {there:.0f}"
    return ""


def _copies(asked: Resources, supply: SiteSupply, *, spread: bool) -> float:
    """How many jobs that ask for so much a site can hold at most."""
    counts = [asked.copies(each.capacity) for each in supply.locations.values()]
    counts = [min(each, 1) for each in counts] if spread else counts
    if supply.most is None:
        return sum(counts)
    largest = max(counts, default=0)
    return largest * supply.most if largest else 0


def _union(demands: Sequence[Demand]) -> list[SiteSupply]:
    """What all partitions together may use."""
    by_site: dict[str, SiteSupply] = {}
    for supply in (each for demand in demands for each in demand.supplies):
        before = by_site.get(supply.site)
        locations = {**before.locations, **supply.locations} if before is not None else supply.locations
        by_site[supply.site] = supply._replace(locations=locations)
    return list(by_site.values())


def _total(supplies: Sequence[SiteSupply]) -> Resources:
    """All that these sites can ever give at the same time."""
    amounts = dict.fromkeys(("cpus", "memory", "disk", "gpus"), 0.0)
    for supply in supplies:
        for name in amounts:
            here = [getattr(each.capacity, name) for each in supply.locations.values()]
            if supply.most is None:
                amounts[name] += sum(here)
            elif largest := max(here, default=0):
                amounts[name] += largest * supply.most
    return Resources(**amounts)  # type: ignore[arg-type]  # infinite where nothing bounds it


def _only(amounts: Resources, names: Sequence[str]) -> Resources:
    return Resources(**{name: getattr(amounts, name) for name in names})


def _most(supplies: Sequence[SiteSupply]) -> str:
    """What sites have, in words."""
    sentences = []
    for supply in supplies:
        counts = Counter(each.capacity for each in supply.locations.values())
        parts = [
            format_resources(capacity)
            if supply.most is None and count == 1
            else f"{number} × {format_resources(capacity)}"
            for capacity, count in counts.most_common(3)
            for number in [f"{count}" if supply.most is None else f"up to {supply.most:g}"]
        ]
        more = f" and {len(counts) - 3} other sizes" if len(counts) > 3 else ""
        sentences.append(f"{supply.site} has {'; '.join(parts) or 'nothing that suits'}{more}")
    return "; ".join(sentences)


def _sites(supplies: Sequence[SiteSupply]) -> str:
    names = ", ".join(each.site for each in supplies)
    return f"site {names!r}" if len(supplies) == 1 else f"sites {names} together" if names else "no site"


def demand(name: str, members: Sequence[WaitingJob], found: Options, sites: Mapping[str, SiteView]) -> Demand | None:
    """What a partition asks for, where it may go as far as it is known; None: that is not known.

    :param found: where its members may be tried
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
    """Whether it is known what all sites can ever give to which a job may go, also those that do not take it now."""
    if job.targets is not None and of_text(job.targets)[1]:
        return False  # its binding filters may leave other places the next time
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
    """What room there is for a gang, in words: whether there can ever be enough, and for how many of it there is now.

    :param partitions: its members by their tasks, in the order in which these are tried
    :param held: what is held for other gangs
    :param now: epoch seconds
    :param ways: how places are found for members
    :raises ValueError: a plugin's rule has failed, or a binding filter
    """
    jobs = [job for members in partitions.values() for job in members]
    asked = NOTHING.with_all([job.resources for job in jobs])
    where = ", each at a location of its own" if spread else ""
    yield f"the jobs of it that wait, {len(jobs)}, ask for {format_resources(asked)} together{where}"
    room, by_name = GangRoom(sites, held), {site.name: site for site in sites}
    options_by_name = {name: options(members, sites, ways) for name, members in partitions.items()}
    demands = [demand(name, members, options_by_name[name], by_name) for name, members in partitions.items()]
    known = [each for each in demands if each is not None]
    if words := shortage(known, together=not partial and len(known) == len(demands), spread=spread):
        yield f"that can never be: {words}"
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
        yield f"task {name!r}: {'; '.join(counts) or 'there is no site that holds room to which it may go'}"


def most_launched(site: SiteView) -> float | None:
    """How many locations there may be at a site that launches them; None: it launches none."""
    if not site.launches:
        return None
    if site.market is None:
        return math.inf
    limit = site.market.most if isinstance(site.market, Market) else site.market.limits.instances
    return math.inf if limit is None else float(limit)
