"""Classes of jobs that are alike, on their way from site to site. Pure.

There may be thousands of jobs, and few that differ. Binding filters, and rankings of plugins, may send each of them
another way: so those that are at one stop are together there, wherever they come from and go next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter

from lading.scheduling.job import PlannedJob
from lading.scheduling.matching.market import Market
from lading.scheduling.matching.ranking import Match
from lading.scheduling.matching.routes import by_step, by_targets, least_first
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Order, Route, Stop
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.reasons import Reason

NAME = attrgetter("name")


@dataclass(slots=True, eq=False)
class JobClass:
    """Jobs that are alike, of which there may be thousands.

    :param route: where they may ever run
    :param refused: why nowhere; None: there is a route
    :param jobs: in their order
    :param order: in which they go to the stops of the route
    :param orders: of those that have binding filters, or that a plugin ranks: in which each does, by its name
    :param matches: the places that a plugin may put in another order for each of them
    :param needs: what they take where they ask for the same: by what that is, by their names
    :param why_not: by the number of a stop: why that does not take them now
    :param passed: by the stops before their own: why these do not, as one reason
    :param steps: the numbers of the stops by their targets; ``known``: the orders that follow from targets
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
        """One of the jobs goes to these targets in this order."""
        if (order := self.known.get(targets)) is None:
            order = self.known[targets] = by_targets(self.steps, targets)
        self.orders[job.name] = order

    def order_of(self, job: PlannedJob) -> Order:
        """The order in which a job goes to the stops."""
        return self.orders.get(job.name, self.order) if self.orders else self.order

    def prefetched(self) -> JobClass:
        """The same where nothing has room for them now: they are prefetched with the least that will do."""
        if all(stop.rule is None for stop in self.route):
            return self
        orders = {name: least_first(self.route, order) for name, order in self.orders.items()}
        return replace(self, order=least_first(self.route, self.order), orders=orders)

    def stop_at(self, job: PlannedJob, site: str) -> Stop | None:
        """The first stop of a job at a site; None: it has none there."""
        stops = (self.route[number] for number in self.order_of(job))
        return next((stop for stop in stops if stop.site == site), None)

    def by_order(self, jobs: Sequence[WaitingJob]) -> Iterator[tuple[Order, Sequence[WaitingJob]]]:
        """These of its jobs together that go to the stops in the same order."""
        if not self.orders:
            yield self.order, jobs
            return
        found: dict[Order, list[WaitingJob]] = {}
        for job in jobs:
            found.setdefault(self.orders[job.name], []).append(job)
        yield from found.items()


@dataclass(slots=True)
class ClassAtStop:
    """Jobs that are alike and are at the same stop, or come there next.

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
        """What its jobs take at its stop, each with its name."""
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
        """The least of the positions of its jobs, which are given by their names."""
        if self._first is None:
            self._first = min(map(positions.__getitem__, map(NAME, self.jobs)))
        return self._first

    def join(self, other: ClassAtStop, positions: Mapping[str, int]) -> None:
        """Let the jobs of another party come along that are alike and at the same stop."""
        self._first = min(self.first(positions), other.first(positions))
        self.jobs = [*self.jobs, *other.jobs]

    def by_next(self) -> Iterable[tuple[int | None, Sequence[WaitingJob]]]:
        """Its jobs by the number of their next stop; None: they have none."""
        alike, at = self.alike, self.at
        if not alike.orders:
            return [(next(iter(after(alike.order, at)), None), self.jobs)] if self.jobs else []
        by_stop: dict[int | None, list[WaitingJob]] = defaultdict(list)
        orders = alike.orders
        for job in self.jobs:  # of ten thousand, at each of their stops
            order = orders[job.name]
            number = order.index(at) + 1
            by_stop[order[number] if number < len(order) else None].append(job)
        return by_stop.items()

    def stops_after(self) -> Counter[str]:
        """How many stops its jobs have after this one, by their sites."""
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
    """The stops after one."""
    return order[order.index(at) + 1 :]


class ApproachingClasses:
    """The parties on their way, by the site to which each comes next.

    :param positions: of a job among all, by its name
    """

    def __init__(self, positions: Mapping[str, int]) -> None:
        self._positions = positions
        self._at: dict[str, dict[tuple[JobClass, int], ClassAtStop]] = {}
        self._later: Counter[str] = Counter()

    def set_out(self, party: ClassAtStop) -> None:
        """A party sets out to its first stop."""
        self._later.update(party.stops_after())
        self._add(party)

    def go_on(self, party: ClassAtStop) -> None:
        """A party moves to its stop, from the one before."""
        self._later[party.stop.site] -= len(party.jobs)
        self._add(party)

    def leave(self, party: ClassAtStop) -> None:
        """A party stays where it is."""
        self._later.subtract(party.stops_after())

    def _add(self, party: ClassAtStop) -> None:
        there = self._at.setdefault(party.stop.site, {})
        if (before := there.setdefault((party.alike, party.at), party)) is not party:
            before.join(party, self._positions)

    def pop(self, site: str) -> list[ClassAtStop]:
        """Those that come to a site, which are there now."""
        return list(self._at.pop(site, {}).values())

    def next_site(self, sites: Iterable[str]) -> str | None:
        """The site that is visited next; None: no job moves any further.

        It is one to which no job can come later, from another one; where there is none, that of the first job.

        :param sites: all, in their order
        """
        if len(self._at) < 2:
            return next(iter(self._at), None)
        free = next((name for name in sites if name in self._at and not self._later[name]), None)
        return free or min(self._at, key=self._first)

    def _first(self, site: str) -> int:
        return min(party.first(self._positions) for party in self._at[site].values())
