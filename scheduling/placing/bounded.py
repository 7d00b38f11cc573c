"""How much jobs count against their shares, and the total capacity that exists or is possible. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

from lading.scheduling.accounting.share_table import NONE_USED, ShareAmounts
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources


def once_per_need(site: SiteView) -> Callable[[PlannedJob], ShareAmounts]:
    """Return a function that tells what a job takes at a site; cached, because thousands of jobs have equal needs."""
    known: dict[Hashable, ShareAmounts] = {}
    largest = largest_of([*site.locations, *site.launched, *site.possible])
    rate = min(
        (each.usd_per_hour / each.capacity.cpus for each in site.locations if each.usd_per_hour and each.capacity.cpus),
        default=0.0,
    )

    def taken(job: PlannedJob) -> ShareAmounts:
        key = job.resources, job.nodes
        if key not in known:
            known[key] = taken_by(job.resources, job.nodes, largest, rate)
        return known[key]

    return taken


def taken_by(resources: Resources, nodes: int, machine: Resources, rate: float) -> ShareAmounts:
    """Return what a job takes. On one node, its part of the machine is its largest fraction of any resource.

    :param machine: capacity of its machine
    :param rate: price of a cpu-hour there, USD
    """
    cpus = resources.cpus * nodes
    part = float(nodes)
    if nodes == 1:
        pairs = (
            (resources.cpus, machine.cpus),
            (resources.memory, machine.memory),
            (resources.gpus, machine.gpus),
        )
        part = min(1.0, max((need / have for need, have in pairs if have), default=1.0))
    return ShareAmounts(cpus, resources.memory * nodes, resources.gpus * nodes, part, cpus * rate)


def largest_of(locations: Iterable[Location]) -> Resources:
    there = [each.capacity for each in locations]
    return Resources(
        max((each.cpus for each in there), default=0.0),
        max((each.memory for each in there), default=0),
        max((each.disk for each in there), default=0),
        max((each.gpus for each in there), default=0.0),
    )


def there_is(site: SiteView) -> ShareAmounts:
    """Return the total capacity at a site, busy or not."""
    by_name = {each.name: each for each in (*site.launched, *site.locations) if not each.stacked}
    return sum_of(by_name.values())


def sum_of(locations: Iterable[Location]) -> ShareAmounts:
    """Return the total capacity of locations; a queue counts once per node or, without nodes, per concurrent job."""
    found = NONE_USED
    for each in locations:
        number = 1 if each.max_jobs is None else (each.nodes or each.max_jobs)
        size = each.capacity
        found = found.plus(
            (size.cpus * number, size.memory * number, size.gpus * number, number, each.usd_per_hour * number)
        )
    return found


def there_can_be(site: SiteView) -> ShareAmounts:
    """Return the total capacity at a site, including what can be launched."""
    there, market = there_is(site), site.market
    if market is None:
        return there
    if isinstance(market, MachineMarket):
        sizes: Sequence[Resources] = [each.capacity for each in market.catalogue.types.values()]
        most = market.limits.instances
        price = market.limits.usd_per_hour
    else:
        sizes, most, price = [market.capacity], market.most, None
    more = math.inf if most is None else max(0, most - len(site.launched))
    largest = [max((getattr(each, name) for each in sizes), default=0) for name in ("cpus", "memory", "gpus")]
    amounts = [have * more if have and more else 0.0 for have in largest]
    usd = math.inf if price is None else max(0.0, price - there.usd_per_hour)
    return there.plus((*amounts, more, usd))
