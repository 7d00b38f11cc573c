"""Classes of equal jobs, on their way from site to site. Pure.

There can be thousands of jobs with few differences. Binding filters and rankings of plugins can send each of them along
a different path, so jobs of a class that are at the same stop are handled together, wherever they come from and go
next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter

from lading.scheduling.matching.market import Market
from lading.scheduling.matching.ranking import Match
from lading.scheduling.matching.routes import by_step, by_targets, least_first
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Order, Route, Stop
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.reasons import Reason

NAME = attrgetter("name")


@dataclass(slots=True, eq=False)
class JobClass:
    """Equal jobs; there can be thousands of them.

    :param route: where they can ever run
    :param refused: why they can run nowhere; None: there is a route
    :param jobs: in their order
    :param order: in which they visit the stops of the route
    :param orders: by job name, the individual orders of jobs with binding filters or a plugin's ranking
    :param matches: the places that a plugin can rank differently for each job
    :param needs: what jobs take, by job name, for each distinct set of requests
    :param why_not: by stop number, why that stop does not take them now
    :param passed: by the sequence of stops before their own, why these did not take them, combined into one reason
    :param steps: the stop numbers by their targets; ``known``: orders already derived from targets
    """

    route: Route
    refused: Reason | None = None
    jobs: list[WaitingJob] = field(default_factory=list)
    order: Order = ()
    orders: dict[str, Order] = field(default_factory=dict)
    needs: dict[Hashable, dict[str, PlannedJob]] = field(default_factory=dict)
    why_not: dict[int, Reason] = field(default_factory=dict)
    passed: dict[Order, Reason] = field(default_factory=dict)
    matches: Sequence[Match] = ()
    steps: list[dict[str, list[int]]] = field(init=False, repr=False)
    known: dict[tuple[str, ...], Order] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.order = self.order or tuple(range(len(self.route)))
        self.steps = by_step(self.route)

    def send(self, job: WaitingJob, targets: tuple[str, ...]) -> None:
        """Let a job visit these targets in this order."""
        if (order := self.known.get(targets)) is None:
            order = self.known[targets] = by_targets(self.steps, targets)
        self.orders[job.name] = order

    def order_of(self, job: PlannedJob) -> Order:
        return self.orders.get(job.name, self.order) if self.orders else self.order

    def prefetched(self) -> JobClass:
        """Return the class with the smallest acceptable requests first: nothing has room for the jobs now."""
        if all(stop.rule is None for stop in self.route):
            return self
        orders = {name: least_first(self.route, order) for name, order in self.orders.items()}
        return replace(self, order=least_first(self.route, self.order), orders=orders)

    def stop_at(self, job: PlannedJob, site: str) -> Stop | None:
        """Return a job's first stop at a site; None if it has none there."""
        stops = (self.route[number] for number in self.order_of(job))
        return next((stop for stop in stops if stop.site == site), None)

    def by_order(self, jobs: Sequence[WaitingJob]) -> Iterator[tuple[Order, Sequence[WaitingJob]]]:
        if not self.orders:
            yield self.order, jobs
            return
        found: dict[Order, list[WaitingJob]] = {}
        for job in jobs:
            found.setdefault(self.orders[job.name], []).append(job)
        yield from found.items()


@dataclass(slots=True)
class ClassAtStop:
    """Equal jobs at the same stop, or on their way to it.

    :param at: the number of the stop in their route
    """

    alike: JobClass
    at: int
    jobs: Sequence[WaitingJob]
    _first: int | None = None

    @property
    def stop(self) -> Stop:
        return self.alike.route[self.at]

    def needs(self, site: SiteView) -> Iterable[tuple[str, PlannedJob]]:
        """Return the name of each of its jobs with what it takes at the stop."""
        stop = self.stop
        if isinstance(site.market, Market):
            of_these: Hashable = self.at
        else:
            of_these = stop.relaxed + stop.changes + site.implied(stop.asked(self.jobs[0]))
            if not of_these:
                return zip(map(NAME, self.jobs), self.jobs, strict=True)
        known = self.alike.needs.setdefault(of_these, {})
        for job in self.jobs:
            if job.name not in known:
                known[job.name] = site.need(stop.asked(job))
        return [(job.name, known[job.name]) for job in self.jobs]

    def first(self, positions: Mapping[str, int]) -> int:
        """Return the lowest of its jobs' positions."""
        if self._first is None:
            self._first = min(map(positions.__getitem__, map(NAME, self.jobs)))
        return self._first

    def join(self, other: ClassAtStop, positions: Mapping[str, int]) -> None:
        """Add other jobs of the same class at the same stop."""
        self._first = min(self.first(positions), other.first(positions))
        self.jobs = [*self.jobs, *other.jobs]

    def by_next(self) -> Iterable[tuple[int | None, Sequence[WaitingJob]]]:
        """Group its jobs by the number of their next stop; None: they have none."""
        alike, at = self.alike, self.at
        if not alike.orders:
            return [(next(iter(after(alike.order, at)), None), self.jobs)] if self.jobs else []
        by_stop: dict[int | None, list[WaitingJob]] = defaultdict(list)
        orders = alike.orders
        for job in self.jobs:  # runs for up to ten thousand jobs at each of their stops
            order = orders[job.name]
            number = order.index(at) + 1
            by_stop[order[number] if number < len(order) else None].append(job)
        return by_stop.items()

    def stops_after(self) -> Counter[str]:
        """Count the stops that its jobs have after this one, by site."""
        alike, at = self.alike, self.at
        if alike.orders:
            stops = Counter(chain.from_iterable([after(alike.orders[job.name], at) for job in self.jobs]))
        else:
            stops = Counter(dict.fromkeys(after(alike.order, at), len(self.jobs)))
        found: Counter[str] = Counter()
        for number, count in stops.items():
            found[alike.route[number].site] += count
        return found


def after(order: Order, at: int) -> Order:
    return order[order.index(at) + 1 :]


class ApproachingClasses:
    """The classes of jobs on their way, by the site each visits next.

    :param positions: each job's position among all jobs, by name
    """

    def __init__(self, positions: Mapping[str, int]) -> None:
        self._positions = positions
        self._at: dict[str, dict[tuple[JobClass, int], ClassAtStop]] = {}
        self._later: Counter[str] = Counter()

    def set_out(self, party: ClassAtStop) -> None:
        """Send a class to its first stop."""
        self._later.update(party.stops_after())
        self._add(party)

    def go_on(self, party: ClassAtStop) -> None:
        """Move a class from its previous stop to its present one."""
        self._later[party.stop.site] -= len(party.jobs)
        self._add(party)

    def leave(self, party: ClassAtStop) -> None:
        """Stop expecting a class at its later stops."""
        self._later.subtract(party.stops_after())

    def _add(self, party: ClassAtStop) -> None:
        there = self._at.setdefault(party.stop.site, {})
        if (before := there.setdefault((party.alike, party.at), party)) is not party:
            before.join(party, self._positions)

    def pop(self, site: str) -> list[ClassAtStop]:
        """Remove and return the classes that visit a site next."""
        return list(self._at.pop(site, {}).values())

    def next_site(self, sites: Iterable[str]) -> str | None:
        """Return the site to visit next; None if no job moves any further.

        Prefer a site to which no job can still come from another one; otherwise take the site of the first job.

        :param sites: all, in their order
        """
        if len(self._at) < 2:
            return next(iter(self._at), None)
        free = next((name for name in sites if name in self._at and not self._later[name]), None)
        return free or min(self._at, key=self._first)

    def _first(self, site: str) -> int:
        return min(party.first(self._positions) for party in self._at[site].values())
