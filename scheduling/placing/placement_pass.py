"""The placement pass: waiting jobs go from site to site until one has room for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.accounting.bounds import ShareBounds
from lading.scheduling.matching.groups import GroupMachines, Label, labels
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Order
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.reasons import Reason, because, combined
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.bounded import once_per_need
from lading.scheduling.placing.filling import Filling, in_turn
from lading.scheduling.placing.job_classes import NAME, ApproachingClasses, ClassAtStop, JobClass
from lading.scheduling.provisioning import Provision, decide, decide_apart
from lading.scheduling.provisioning.foreseen import Foreseen

# A job gets a reason once it has waited for this many seconds; shorter waits need none.
SECONDS_UNTIL_EXPLAINED = 10.0


@dataclass(slots=True)
class PlacementPass:
    """Moves jobs from site to site, in classes of equal jobs (:class:`ClassAtStop`), because there can be thousands.

    :param kinds: the jobs that some site can ever run
    :param sites: by name, updated with the jobs they are given
    :param groups: the machines used by jobs of limited groups
    :param failures: by site and job: how the site's policy failed
    :param wanted: by site, further jobs for which it launches what they need
    :param foreseen: by site, what the plan of all upcoming work requests
    :param positions: each job's position among all jobs, by name
    :param hidden: jobs behind which jobs of their shape were not examined, each with its class
    :param resting: the jobs that go to no other site now, at the stop that turned them away last
    :param held: jobs that no location takes now because unexamined jobs come before them
    :param awaited: by job, the site where a machine exists or is launched for it
    :param wanting: by site, what each job for which the site can launch needs, and since when
    :param is_decided: whether launches are decided
    :param bounds: what is left for the jobs of each share; None: no bounds
    :param barred: by site and job: why the job cannot go there even if there is room
    """

    jobs: Sequence[WaitingJob]
    kinds: Sequence[JobClass]
    sites: dict[str, SiteView]
    found: Assignment
    groups: GroupMachines
    failures: Mapping[str, Mapping[str, Reason]]
    wanted: Mapping[str, Sequence[WaitingJob]] = field(default_factory=dict)
    foreseen: Mapping[str, Foreseen] = field(default_factory=dict)
    positions: dict[str, int] = field(init=False)
    hidden: dict[str, JobClass] = field(init=False)
    resting: list[ClassAtStop] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    awaited: dict[str, str] = field(default_factory=dict)
    wanting: dict[str, dict[str, tuple[PlannedJob, float]]] = field(default_factory=dict)
    is_decided: bool = False
    bounds: ShareBounds | None = None
    barred: dict[str, dict[str, Reason]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = {job.name: position for position, job in enumerate(self.jobs)}
        self.hidden = {job.name: each for each in self.kinds for job in each.jobs if job.hidden}

    def begin_prefetching(self) -> None:
        """Switch to prefetching: what runs now, and what is launched, is decided."""
        self.kinds = [each.prefetched() for each in self.kinds]
        self.is_decided = True
        self.found.barred = {site: frozenset(jobs) for site, jobs in self.barred.items() if jobs}

    def visit(self, filling: Filling, now: float) -> None:
        """Let each site take what it can of the jobs that come to it, in their order."""
        coming = self._set_out()
        unvisited = dict.fromkeys(self.sites)  # a site that no job visits can still release machines
        while (name := coming.next_site(self.sites) or next(iter(unvisited), None)) is not None:
            unvisited.pop(name, None)
            site, parties = self.sites[name], coming.pop(name)
            needs = self._needs(site, parties)
            limits = self.groups.limits(name, site.locations)
            taken: dict[str, str] = {}
            if needs and site.trouble is None:
                trying = self._in_order(needs.keys() - site.tried if site.tried else needs)
                taken = self._filled(site, trying, needs, limits, filling) if trying else {}
            after = site
            if taken:
                kept = self._kept(site, taken, needs)
                self._place(site, kept, parties)
                self.held |= taken.keys() - kept.keys()
                self._give_back(site, taken.keys() - kept.keys(), needs)
                after = self.sites[name] = site.given([needs[token] for token in kept], kept)
                for each in parties:
                    coming.leave(replace(each, jobs=[job for job in each.jobs if job.name in taken]))
                    each.jobs = [job for job in each.jobs if job.name not in taken]
            is_due = not self.is_decided and (any(each.jobs for each in parties) or name not in self.found.provisions)
            if is_due and site.market is not None and site.trouble is None:
                by_name = {job.name: job for each in parties for job in each.jobs}
                self._provide(after, site.market, [by_name[token] for token in self._in_order(by_name)], needs, now)
            for each in parties:
                self._send_on(each, coming)

    def _filled(
        self,
        site: SiteView,
        trying: Sequence[str],
        needs: Mapping[str, PlannedJob],
        limits: InstanceLimits,
        filling: Filling,
    ) -> dict[str, str]:
        """Return the location of each job that a site takes, by job name, within what is left for the shares.

        If a job finds no place, what was reserved of its share goes to the jobs of that share behind it, in at most
        four rounds.
        """
        if self.bounds is None:
            return filling(site, [needs[token] for token in trying], limits)
        barred = self.barred.setdefault(site.name, {})
        taken: dict[str, str] = {}
        # A job that finds no place takes its share's room all the same, so the site is filled again without it.
        for _ in range(4):
            admitted = self._admitted(site, trying, needs, barred)
            found = filling(site, [needs[token] for token in admitted], limits) if admitted else {}
            missed = [token for token in admitted if token not in found]
            self._give_back(site, missed, needs)
            taken |= found
            trying = [token for token in trying if token in barred]
            if not (missed and trying):
                break
            site = site.given([needs[token] for token in found], found)
        return taken

    def _admitted(
        self, site: SiteView, trying: Iterable[str], needs: Mapping[str, PlannedJob], barred: dict[str, Reason]
    ) -> list[str]:
        """Return the jobs for which their shares have something left; each takes its amount.

        :param barred: output: why the others are not admitted, by job name
        """
        assert self.bounds is not None
        admitted = []
        taken_at = once_per_need(site)
        for token in trying:
            job = needs[token]
            amounts = taken_at(job)
            why = self.bounds.out_of_hours(job.hour_budgets, job.hours)
            why = why or self.bounds.admits(job.share or "", site.name, amounts, job.budgets)
            if why is not None:
                barred[token] = why
                continue
            barred.pop(token, None)
            self.bounds.put(job.share or "", site.name, amounts)
            self.bounds.promise(job.hour_budgets, job.hours)
            admitted.append(token)
        return admitted

    def _give_back(self, site: SiteView, names: Iterable[str], needs: Mapping[str, PlannedJob]) -> None:
        """Give back to the shares what these jobs took from them."""
        if self.bounds is not None:
            taken_at = once_per_need(site)
            for job in (needs[token] for token in names):
                self.bounds.put(job.share or "", site.name, taken_at(job), times=-1)
                self.bounds.promise(job.hour_budgets, job.hours, times=-1)

    def _launchable(
        self, site: SiteView, jobs: Sequence[WaitingJob], needs: Mapping[str, PlannedJob]
    ) -> Sequence[WaitingJob]:
        """Return the jobs for which a site can launch something within what is left for their shares."""
        if self.bounds is None:
            return jobs
        admitted = self._admitted(site, [job.name for job in jobs], needs, self.barred.setdefault(site.name, {}))
        self._give_back(site, admitted, needs)
        names = set(admitted)
        return [job for job in jobs if job.name in names]

    def _set_out(self) -> ApproachingClasses:
        """Return the jobs without a place, by the site each visits first."""
        done = self.found.placed.keys() | self.held
        self.resting = []
        coming = ApproachingClasses(self.positions)
        for alike in self.kinds:
            jobs = [job for job in alike.jobs if job.name not in done] if done else alike.jobs
            for at, some in self._first_stops(alike, jobs).items():
                coming.set_out(ClassAtStop(alike, at, some))
        return coming

    def _first_stops(self, alike: JobClass, jobs: list[WaitingJob]) -> Mapping[int, list[WaitingJob]]:
        """Group jobs by their first stop: where something is launched for them, or the first of their order."""
        if not (self.awaited or alike.orders):
            return {alike.order[0]: jobs} if jobs else {}
        by_stop: dict[int, list[WaitingJob]] = {}
        for job in jobs:
            order, site = alike.order_of(job), self.awaited.get(job.name)
            launching = (number for number in order if alike.route[number].site == site)
            by_stop.setdefault(order[0] if site is None else next(launching), []).append(job)
        return by_stop

    def _send_on(self, party: ClassAtStop, coming: ApproachingClasses) -> None:
        """Send jobs that can move on to their next stop; the others stay here."""
        for at, jobs in party.by_next():
            going = [] if at is None else self._leaving(party, jobs, at)
            if at is not None and going:
                coming.go_on(ClassAtStop(party.alike, at, going))
            if len(going) < len(jobs):
                left = set(map(NAME, going))
                resting = ClassAtStop(party.alike, party.at, [job for job in jobs if job.name not in left])
                coming.leave(resting)
                self.resting.append(resting)

    def _leaving(self, party: ClassAtStop, jobs: Sequence[WaitingJob], at: int) -> Sequence[WaitingJob]:
        """Return the jobs of a class that can go to stop number ``at``, their next one, now."""
        site, is_there = self.sites[party.stop.site], party.alike.route[at].site == party.stop.site
        if (is_there or site.lets_all_go) and not self.groups.most and not self.awaited:
            return jobs
        return [job for job in jobs if self._may_leave(job, site, is_there=is_there)]

    def _may_leave(self, job: WaitingJob, site: SiteView, *, is_there: bool) -> bool:
        """Return whether a job that found no room at a site can go to its next stop.

        :param is_there: whether the next stop is at the same site, with different requests
        """
        if (full := self.groups.full(job)) is not None and not self.groups.are_at(full, site.name):
            return True  # its group cannot use anything that becomes free there
        return self.awaited.get(job.name) != site.name and (is_there or site.lets_go(job))

    def _in_order(self, names: Collection[str]) -> list[str]:
        if len(names) == len(self.positions):
            return list(self.positions)
        if 4 * len(names) > len(self.positions):  # then scanning all jobs is faster than sorting
            return [name for name in self.positions if name in names]
        return sorted(names, key=self.positions.__getitem__)

    def _needs(self, site: SiteView, parties: Iterable[ClassAtStop]) -> dict[str, PlannedJob]:
        found: dict[str, PlannedJob] = {}
        for each in parties:
            found.update(each.needs(site))
        return found

    def _kept(self, site: SiteView, taken: Mapping[str, str], needs: Mapping[str, PlannedJob]) -> dict[str, str]:
        """Return the placements that keep the order of the jobs, see :func:`in_turn`."""
        if not self.hidden:
            return {name: taken[name] for name in self._in_order(taken)}
        in_order = []
        for job in self.jobs:
            if job.name in taken:
                in_order.append((job, needs[job.name]))
            elif (alike := self.hidden.get(job.name)) and (stop := alike.stop_at(job, site.name)) is not None:
                in_order.append((job, needs.get(job.name) or site.need(stop.asked(job))))
        return in_turn(in_order, taken, site.locations)

    def _provide(
        self,
        site: SiteView,
        market: Market | MachineMarket,
        jobs: Sequence[WaitingJob],
        needs: Mapping[str, PlannedJob],
        now: float,
    ) -> None:
        """Decide what is launched for jobs that found no room at a site, in this and earlier visits of the tick."""
        wanting = self.wanting.setdefault(site.name, {})
        for job in self._launchable(site, jobs, needs):
            need = needs[job.name]
            if job.hidden:  # the unexamined jobs have the same shape
                need = replace(need, count=1 + job.hidden)
            wanting[job.name] = need, now - site.turned_away.get(job.name, 0.0)
        waiting = [need for need, _ in wanting.values()]
        since = {name: at for name, (_, at) in wanting.items()}
        others = self.wanted.get(site.name, ())
        waiting += [site.need(job) for job in others if job.apart is None]
        since |= {job.name: job.queued_at for job in others}
        limits, launched = self.groups.limits(site.name, site.launched), site.launched
        spread = [(site.need(job), job.apart) for job in others if job.apart is not None]
        first, kept = Provision(), frozenset[str]()
        if spread:
            first, launched, kept = decide_apart(spread, launched, market, since, limits, now=now)
        foreseen = self.foreseen.get(site.name)
        provision = decide(waiting, launched, market, since, limits, now=now, foreseen=foreseen)
        if spread:
            provision = replace(
                provision,
                launches=(*first.launches, *provision.launches),
                releases={name: reason for name, reason in provision.releases.items() if name not in kept},
                spare=provision.spare - kept,
                waits={**provision.waits, **first.waits},
                refused={**provision.refused, **first.refused},
            )
        before = self.found.provisions.get(site.name, Provision()).waits
        kept_waits = {name: reason for name, reason in before.items() if name not in wanting}
        self.found.provisions[site.name] = replace(provision, waits={**kept_waits, **provision.waits})
        for name in provision.waits.keys() | provision.refused.keys():
            wanting.pop(name, None)  # it can come again with smaller requests
            if self.awaited.get(name) == site.name:
                del self.awaited[name]
        self.awaited |= dict.fromkeys(wanting, site.name)
        # Locations that make way take no more jobs.
        there = [each for each in site.locations if each.name not in provision.releases]
        self.sites[site.name] = replace(site, locations=there)

    def _place(self, site: SiteView, locations: Mapping[str, str], parties: Iterable[ClassAtStop]) -> None:
        """Give jobs to the locations of a site.

        :param locations: by job name, in the order of the jobs
        :param parties: the classes at the site
        """
        theirs = {job.name: (job, each) for each in parties for job in each.jobs if job.name in locations}
        for token, location in locations.items():
            job, party = theirs[token]
            self.found.placed[token] = site.name, location
            if not party.stop.is_plain:
                self.found.stops[token] = party.stop
            if labels(job):  # few have any
                self.groups.put(job, site.name, location, is_queue=site.is_queue(location))
            order = party.alike.order_of(job)
            if number := order.index(party.at):
                self.found.passed[token] = self._passed(job, party.alike, order[:number])

    def _awaited(self, job: WaitingJob, site: SiteView, asked: WaitingJob) -> Reason | None:
        """Return what a job waits for that has a place on a booting machine or in a plan, at its last site.

        :param asked: the job with what it requests there
        """
        its_own, of_site = self.found.provisions[site.name].awaits.get(job.name), site.coming(asked)
        if its_own is None:
            return of_site
        if its_own.code == "machine_boots" and of_site is not None and of_site.code != "not_begun":
            return its_own.with_also(of_site)  # what can delay it further
        return its_own

    def _passed(self, job: WaitingJob, alike: JobClass, stops: Order) -> Reason:
        """Return why the stops before its own did not take a job. Most jobs share the reason of their class."""
        if any(self._its_own(job, alike.route[number].site) is not None for number in stops):
            return combined(self._met(job, alike, stops))
        if stops not in alike.passed:
            alike.passed[stops] = combined(self._met(job, alike, stops))
        return alike.passed[stops]

    def _met(self, job: WaitingJob, alike: JobClass, stops: Order) -> list[Reason]:
        return list(dict.fromkeys(self._why_not(job, alike, number) for number in stops))

    def _why_not(self, job: WaitingJob, alike: JobClass, at: int) -> Reason:
        stop = alike.route[at]
        if (its_own := self._its_own(job, stop.site)) is not None:
            return its_own.at(stop.site)
        if at not in alike.why_not:
            alike.why_not[at] = self.sites[stop.site].why_not(stop.asked(job))
        return alike.why_not[at]

    def _its_own(self, job: WaitingJob, site: str) -> Reason | None:
        """Return the reason found for this job alone at a site; None if it waits there like the rest of its class."""
        if site in self.failures and (failure := self.failures[site].get(job.name)) is not None:
            return failure
        if site in self.barred and (why := self.barred[site].get(job.name)) is not None:
            return why
        if (found := self.found.provisions.get(site)) is None:
            return None
        refused = found.refused.get(job.name)
        return found.waits.get(job.name) if refused is None else refused

    def explain(self, now: float) -> None:
        self.found.waits |= dict.fromkeys(self.held)
        provisions = self.found.provisions.values()
        known: list[Mapping[str, Hashable]] = [
            some for each in provisions for some in (each.waits, each.refused, each.awaits) if some
        ]
        known += [some for some in (self.awaited, *self.failures.values(), *self.barred.values()) if some]
        for party in self.resting:
            for order, jobs in party.alike.by_order(party.jobs):
                self._explain(party, order, jobs, known, now - SECONDS_UNTIL_EXPLAINED)

    def _explain(
        self,
        party: ClassAtStop,
        order: Order,
        jobs: Sequence[WaitingJob],
        known: Sequence[Mapping[str, Hashable]],
        latest: float,
    ) -> None:
        """Record why those jobs of a class wait that visit their stops in the same order.

        :param known: reasons found for single jobs, by name; jobs with equal reasons share one explanation
        :param latest: jobs queued after this have not waited for long
        """
        number = order.index(party.at) + 1
        for site in dict.fromkeys(party.alike.route[each].site for each in order[:number]):
            self.found.turned_away.setdefault(site, []).extend(map(NAME, jobs))
        waits, limited, said = self.found.waits, self.groups.most, dict[Hashable, Reason | None]()
        for job in jobs:
            full, is_late = self.groups.full(job) if limited else None, job.queued_at <= latest
            key = (full, is_late, *(some.get(job.name) for some in known)) if known else (full, is_late)
            if key not in said:
                said[key] = self._reason(job, party.alike, order, number, full, is_late=is_late)
            waits[job.name] = said[key]

    def _reason(
        self, job: WaitingJob, alike: JobClass, order: Order, number: int, full: Label | None, *, is_late: bool
    ) -> Reason | None:
        """Return why a job waits; None: for its turn, or not for long.

        :param order: in which it visits its stops; the first ``number`` have turned it away
        :param full: its group that can use no further machine
        :param is_late: whether it has waited long enough for a reason
        """
        if full is not None:
            return self.groups.reason(full) if is_late else None
        before, sites = alike.route[order[number - 1]], self.sites
        last = sites[before.site]
        if self.awaited.get(job.name) == last.name:
            return self._awaited(job, last, before.asked(job)) if is_late else None
        met, following = self._met(job, alike, order[:number]), [alike.route[each].site for each in order[number:]]
        is_busy = met[-1] == last.no_room
        is_only = len(met) == 1 and not following and (len(sites) == 1 or not job.site)
        if is_busy and (is_only or not is_late):
            return None
        found = combined(met)
        if following and not last.is_new:
            return found.with_also(because("may_go_to_next_site", after=last.burst_after, next=following[0]))
        return found.with_also(because("only_site")) if is_busy and job.site else found
