"""The tour: how waiting jobs go from site to site until one has room for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from lading.scheduling.groups import Label, Machines, labels
from lading.scheduling.job import Job
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.routes import least_first, reordered, stop_of
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Route, Stop
from lading.scheduling.matching.waiting import Waiting
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.filling import Filling, in_turn
from lading.scheduling.placing.reasons import SECONDS_UNTIL_EXPLAINED, awaited, reason
from lading.scheduling.provisioning import Provision, decide

# What jobs that are alike are called where they are to be in store, among what filters have left of their targets.
IN_STORE = ("",)
NAME = attrgetter("name")


@dataclass(slots=True)
class Alike:
    """Jobs that are alike, of which there may be thousands.

    :param route: where they may ever run
    :param refused: why nowhere, in words
    :param jobs: in their order
    :param needs: by the number of a stop: what they take there, by their names
    :param words: why the first stops of the route do not take them now, by how many these are
    :param others: those that are alike but for what binding filters have left of their targets, by these
    """

    route: Route
    refused: str = ""
    jobs: list[Waiting] = field(default_factory=list)
    needs: dict[int, dict[str, Job]] = field(default_factory=dict)
    words: dict[int, list[str]] = field(default_factory=dict)
    others: dict[tuple[str, ...], Alike] = field(default_factory=dict)

    def going(self, targets: tuple[str, ...] | None) -> Alike:
        """Jobs that are alike, and go to these targets in this order; None: as their route says."""
        if targets is None:
            return self
        if targets not in self.others:
            self.others[targets] = Alike(reordered(self.route, targets))
        return self.others[targets]

    def in_store(self) -> Alike:
        """The same where nothing has room for them now: in store they are with the least that will do."""
        if all(stop.rule is None for stop in self.route):
            return self
        return self.others.setdefault(IN_STORE, Alike(least_first(self.route), jobs=self.jobs))

    @property
    def sites(self) -> list[str]:
        """The site of each stop."""
        return [stop.site for stop in self.route]


@dataclass(slots=True)
class Party:
    """Jobs that are alike and have come equally far.

    :param number: how many stops of their route have turned them away
    :param jobs: in their order
    """

    alike: Alike
    number: int
    jobs: list[Waiting]

    @property
    def stop(self) -> Stop:
        """Where they are, or come next."""
        return self.alike.route[self.number]


@dataclass(slots=True)
class Tour:
    """The way of jobs from site to site. They go in parties, for there may be thousands of them and few that differ.

    :param kinds: the jobs that some site can ever run
    :param sites: by name, with what they were given
    :param groups: on which machines the jobs of limited groups are
    :param failures: of the jobs whose policy has failed: what it did, in words
    :param wanted: by site, further jobs for which it is to launch what they need
    :param positions: of a job among all, by its name
    :param hidden: the routes of those behind which others come that were not looked at
    :param resting: the jobs that come to no other site now
    :param held: those that nothing takes now, for others that nobody has looked at come before them
    :param awaited: of the jobs for which something is launched, or is there: the site, by their names
    :param wanting: by site, what those need for which something may be launched there, and since when
    :param is_decided: whether it is decided what is launched
    """

    jobs: Sequence[Waiting]
    kinds: Sequence[Alike]
    sites: dict[str, SiteView]
    found: Assignment
    groups: Machines
    failures: Mapping[str, str]
    wanted: Mapping[str, Sequence[Waiting]] = field(default_factory=dict)
    positions: dict[str, int] = field(init=False)
    hidden: dict[str, Route] = field(init=False)
    resting: list[Party] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    awaited: dict[str, str] = field(default_factory=dict)
    wanting: dict[str, dict[str, tuple[Job, float]]] = field(default_factory=dict)
    is_decided: bool = False

    def __post_init__(self) -> None:
        self.positions = {job.name: position for position, job in enumerate(self.jobs)}
        self.hidden = {job.name: each.route for each in self.kinds for job in each.jobs if job.hidden}

    def begin_storing(self) -> None:
        """Go on with what locations take in store: what runs now, and what is launched, is decided."""
        self.kinds = [each.in_store() for each in self.kinds]
        self.is_decided = True

    def visit(self, filling: Filling, now: float) -> None:
        """Let each site take what it can of the jobs that come to it, in their order."""
        coming = self._set_out()
        unvisited = dict.fromkeys(self.sites)  # something may be released where no job comes
        while (name := self._next_site(coming) or next(iter(unvisited), None)) is not None:
            unvisited.pop(name, None)
            site, parties = self.sites[name], coming.pop(name, [])
            needs = self._needs(site, parties)
            limits = self.groups.limits(name, site.locations)
            taken: dict[str, str] = {}
            if needs and site.trouble is None:
                trying = self._in_order(needs.keys() - site.tried if site.tried else needs)
                taken = filling(site, [needs[token] for token in trying], limits) if trying else {}
            kept = self._kept(site, taken, needs)
            self._place(site, kept, parties)
            self.held |= taken.keys() - kept.keys()
            after = self.sites[name] = site.given([needs[token] for token in kept], kept)
            left = [
                Party(each.alike, each.number + 1, [job for job in each.jobs if job.name not in taken])
                for each in parties
            ]
            is_due = not self.is_decided and (any(each.jobs for each in left) or name not in self.found.provisions)
            if is_due and site.market is not None and site.trouble is None:
                by_name = {job.name: job for each in left for job in each.jobs}
                self._provide(after, site.market, [by_name[token] for token in self._in_order(by_name)], needs, now)
            for each in left:
                self._send_on(each, coming)

    def _set_out(self) -> dict[str, list[Party]]:
        """The jobs that have no place, by the sites to which they come first."""
        done = self.found.placed.keys() | self.held
        self.resting = []
        coming: dict[str, list[Party]] = {}
        for alike in self.kinds:
            jobs = [job for job in alike.jobs if job.name not in done] if done else alike.jobs
            # First where something is launched for them.
            for name in dict.fromkeys(self.awaited.get(job.name) for job in jobs) if self.awaited else (None,):
                number = 0 if name is None else alike.sites.index(name)
                some = [job for job in jobs if self.awaited.get(job.name) == name] if self.awaited else jobs
                self._send_on(Party(alike, number, some), coming)
        return coming

    def _send_on(self, party: Party, coming: dict[str, list[Party]]) -> None:
        """Let those go on to their next stop that may; the others come to none now."""
        alike, number = party.alike, party.number
        if number == 0:
            going, stay = party.jobs, []
        elif number == len(alike.route):
            going, stay = [], party.jobs
        else:
            going, stay = [], []
            for job in party.jobs:
                (going if self._may_leave(job, alike, number) else stay).append(job)
        if going:
            coming.setdefault(alike.route[number].site, []).append(Party(alike, number, going))
        if stay:
            self.resting.append(Party(alike, number, stay))

    def _may_leave(self, job: Waiting, alike: Alike, number: int) -> bool:
        """Whether a job that found no room at so many stops may go to the next one."""
        name = alike.route[number - 1].site
        if (full := self.groups.full(job)) is not None and not self.groups.are_at(full, name):
            return True  # nothing that comes free there is for it
        is_there = alike.route[number].site == name  # it asks for something else there
        return self.awaited.get(job.name) != name and (is_there or self.sites[name].lets_go(job))

    def _next_site(self, coming: Mapping[str, Sequence[Party]]) -> str | None:
        """The site that is visited next; None: no job goes on.

        It is one to which no job can come later, from another one; where there is none, that of the first job.
        """
        if len(coming) < 2:
            return next(iter(coming), None)
        later = {
            stop.site for parties in coming.values() for each in parties for stop in each.alike.route[each.number + 1 :]
        }
        free = next((name for name in self.sites if name in coming and name not in later), None)
        first = {name: min(self.positions[each.jobs[0].name] for each in parties) for name, parties in coming.items()}
        return free or min(first, key=first.__getitem__)

    def _in_order(self, names: Collection[str]) -> list[str]:
        """Names of jobs in the order in which these should start."""
        if len(names) == len(self.positions):
            return list(self.positions)
        if 4 * len(names) > len(self.positions):  # a look at all of them is quicker then than sorting
            return [name for name in self.positions if name in names]
        return sorted(names, key=self.positions.__getitem__)

    def _needs(self, site: SiteView, parties: Iterable[Party]) -> dict[str, Job]:
        """What the jobs of parties take at a site, by their names."""
        found: dict[str, Job] = {}
        for each in parties:
            if site.takes_as_asked and each.stop.is_plain:
                found.update(zip(map(NAME, each.jobs), each.jobs, strict=True))
                continue
            known = each.alike.needs.setdefault(each.number, {})
            known |= {job.name: site.need(each.stop.asked(job)) for job in each.jobs if job.name not in known}
            found |= {job.name: known[job.name] for job in each.jobs}
        return found

    def _kept(self, site: SiteView, taken: Mapping[str, str], needs: Mapping[str, Job]) -> dict[str, str]:
        """What of this may be placed at a site now."""
        if not self.hidden:
            return {name: taken[name] for name in self._in_order(taken)} if taken else {}
        in_order = []
        for job in self.jobs if taken else ():
            if job.name in taken:
                in_order.append((job, needs[job.name]))
            elif job.hidden and (stop := stop_of(self.hidden.get(job.name, ()), site.name)) is not None:
                in_order.append((job, needs.get(job.name) or site.need(stop.asked(job))))
        return in_turn(in_order, taken, site.locations)

    def _provide(
        self,
        site: SiteView,
        market: Market | MachineMarket,
        jobs: Sequence[Waiting],
        needs: Mapping[str, Job],
        now: float,
    ) -> None:
        """Decide what is launched for jobs that found no room at a site, with those that did so before in this tick."""
        wanting = self.wanting.setdefault(site.name, {})
        for job in jobs:
            need = needs[job.name]
            if job.hidden:  # of those that were not looked at nothing is known but that they are alike
                need = replace(need, count=1 + job.hidden)
            wanting[job.name] = need, now - site.turned_away.get(job.name, 0.0)
        waiting = [need for need, _ in wanting.values()]
        since = {name: at for name, (_, at) in wanting.items()}
        others = self.wanted.get(site.name, ())
        waiting += [site.need(job) for job in others]
        since |= {job.name: job.queued_at for job in others}
        limits = self.groups.limits(site.name, site.launched)
        found = decide(waiting, site.launched, market, since, limits, now=now)
        before = self.found.provisions.get(site.name, Provision()).waits
        told = {name: words for name, words in before.items() if name not in wanting}
        self.found.provisions[site.name] = replace(found, waits={**told, **found.waits})
        for name in found.waits.keys() | found.refused.keys():
            wanting.pop(name, None)  # it may come again, and ask for less
            if self.awaited.get(name) == site.name:
                del self.awaited[name]
        self.awaited |= dict.fromkeys(wanting, site.name)
        # What makes way takes nothing more.
        there = [each for each in site.locations if each.name not in found.releases]
        self.sites[site.name] = replace(site, locations=there)

    def _place(self, site: SiteView, locations: Mapping[str, str], parties: Iterable[Party]) -> None:
        """Give jobs to the locations of a site.

        :param locations: by the names of the jobs, in their order
        :param parties: those that are there
        """
        theirs = {job.name: (job, each) for each in parties for job in each.jobs if job.name in locations}
        for token, location in locations.items():
            job, party = theirs[token]
            self.found.placed[token] = site.name, location
            if not party.stop.is_plain:
                self.found.stops[token] = party.stop
            if labels(job):  # few have any
                self.groups.put(job, site.name, location, is_queue=site.is_queue(location))
            if party.number:
                self.found.passed[token] = "; ".join(self._words(job, party))

    def _words(self, job: Waiting, party: Party) -> list[str]:
        """Why the sites that a job of a party has come to have not taken it."""
        alike, number = party.alike, party.number
        if job.name in self.failures:  # one of those that are alike may fail alone
            return list(dict.fromkeys(self._why_not(job, each) for each in alike.route[:number]))
        if number not in alike.words:
            alike.words[number] = list(dict.fromkeys(self._why_not(job, each) for each in alike.route[:number]))
        return alike.words[number]

    def _why_not(self, job: Waiting, stop: Stop) -> str:
        site = self.sites[stop.site]
        if job.name in self.failures:
            return f"site {site.name!r}: {self.failures[job.name]}"
        found = self.found.provisions.get(site.name, Provision())
        if (words := found.waits.get(job.name)) is not None:
            return f"site {site.name!r}: {words}"
        refused = found.refused.get(job.name)
        return site.why_not(stop.asked(job)) if refused is None else f"site {site.name!r}: it {refused}"

    def explain(self, now: float) -> None:
        """Say why the others wait."""
        waits, turned_away = self.found.waits, self.found.turned_away
        waits |= dict.fromkeys(self.held)
        latest = now - SECONDS_UNTIL_EXPLAINED
        limited, launching, failures = self.groups.most, self.awaited, self.failures
        for party in self.resting:
            for name in dict.fromkeys(party.alike.sites[: party.number]):
                turned_away.setdefault(name, []).extend(map(NAME, party.jobs))
            said: dict[tuple[object, ...] | bool, str | None] = {}
            differ = bool(limited or launching or failures)  # else thousands of them wait for the same
            for job in party.jobs:
                name, full, is_late = job.name, None, job.queued_at <= latest
                key: tuple[object, ...] | bool = is_late
                if differ:
                    full = self.groups.full(job) if limited else None
                    key = full, is_late, launching.get(name), failures.get(name)
                if key not in said:
                    said[key] = self._reason(job, party, full, is_late=is_late)
                waits[name] = said[key]

    def _reason(self, job: Waiting, party: Party, full: Label | None, *, is_late: bool) -> str | None:
        """Why a job of a party waits, in words; None: for its turn, or only for a moment.

        :param full: its group that may use no further machine
        :param is_late: whether it has waited for so long that it is worth a reason
        """
        if full is not None:
            return self.groups.reason(full) if is_late else None
        before, following = party.alike.route[party.number - 1], party.alike.sites[party.number :]
        last = self.sites[before.site]
        if self.awaited.get(job.name) == last.name:
            return awaited(before.asked(job), last) if is_late else None
        return reason(job, self._words(job, party), last, following, len(self.sites), is_late=is_late)
