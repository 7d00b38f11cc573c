"""Sites as placement sees them, and which of them a job can go to, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.hints.places import Target
from lading.scheduling.matching import admission
from lading.scheduling.matching.admission import EVERYBODY, Admission
from lading.scheduling.matching.market import MachineMarket, Market, need
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.matching.rules import NODES, soft, within
from lading.scheduling.matching.stops import Changes, Stop, in_queue, of_text, parts_of
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.matching.wishes import MatchedMachine, granting, lacking, names_arch, resolved, too_many_nodes
from lading.scheduling.model.gpus import not_supported
from lading.scheduling.model.job import LAYOUT, NATIVE, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import valid_types
from lading.scheduling.model.reasons import Reason, because, combined
from lading.scheduling.model.site_names import is_named
from lading.scheduling.text.nearest import nearest_first


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteView:
    """A site as placement sees it.

    :param locations: the locations that accept jobs now, with what is on them, oldest first
    :param possible: all locations that exist in any state or could exist; empty: unknown
    :param trouble: why the whole site accepts no jobs now; None: it does
    :param in_trouble: how long that has lasted, seconds
    :param barred: by queue, why it accepts no jobs for now; the empty name stands for the site's default queue
    :param is_new: whether it has not answered yet; jobs wait for that before they go elsewhere
    :param market: what can be launched there; None: nothing
    :param launched: everything that was launched there, with what is on it, oldest first, including booting and
        draining machines
    :param booting: for each kind that is booting, the reason why jobs wait for it
    :param turned_away: by job, how long it has found no room there, even while machines are launched, seconds
    :param accept_untargeted: whether it accepts jobs that name no site
    :param burst_after: after how many seconds without room here a job that names no site can move to the next site
    :param admission: whose jobs it accepts
    :param waits: how long jobs have waited in queues; None: not relevant
    :param holds: whether its locations can hold room for jobs
    :param attempts: how often room is searched for gangs that do not state it; None: the default
    :param arch: the architecture of jobs that name none; None: any of its machines suits them
    :param policy: how its locations are chosen, see :mod:`lading.scheduling.placing.choosing`
    :param locality_fallback: a setting of the policy ``data_locality``
    :param locality_wait: a setting of the policy ``data_locality``
    :param launches: whether its locations are launched, even while it is unknown which can be
    :param tried: the jobs for which no room has become free since the last search
    :param seconds_ahead: for how long a location with short jobs is kept busy by prefetched jobs
    """

    name: str
    locations: Sequence[Location] = ()
    possible: Sequence[Location] = ()
    trouble: Reason | None = None
    in_trouble: float = 0.0
    barred: Mapping[str, Reason] = field(default_factory=dict)
    is_new: bool = False
    market: Market | MachineMarket | None = None
    launched: Sequence[Location] = ()
    booting: Mapping[str, Reason] = field(default_factory=dict)
    turned_away: Mapping[str, float] = field(default_factory=dict)
    accept_untargeted: bool = True
    burst_after: float = 0.0
    admission: Admission = EVERYBODY
    waits: QueueWaits | None = None
    holds: bool = False
    attempts: AttemptSchedule | None = None
    arch: str | None = None
    policy: str = "greedy"
    locality_fallback: str = "random"
    locality_wait: float = 0.0
    tried: frozenset[str] = frozenset()
    launches: bool = False
    seconds_ahead: float = 0.0

    def may_run(self, job: PlannedJob) -> bool:
        """Whether it could ever run a job, busy or not."""
        asked = resolved(job, self.arch)
        return not self.possible or any(each.suits(asked) for each in self.possible)

    def barred_reason(self, job: WaitingJob) -> Reason | None:
        """Why it accepts no such jobs for now, because its account is not allowed; None: it accepts them.

        A job with native directives may name another account.
        """
        return self.barred.get(job.queue or "") if self.barred and job.native is None else None

    def nodes(self, job: PlannedJob) -> tuple[int, int] | None:
        """(Idle nodes, all nodes) of its queues that can run a job; None: unknown."""
        there = [each for each in self.locations or self.possible if each.suits(resolved(job, self.arch))]
        if not there or any(each.nodes is None or each.idle_nodes is None for each in there):
            return None
        idle = sum(each.idle_nodes or 0 for each in there)
        return 0 if self.trouble is not None else idle, sum(each.nodes or 0 for each in there)

    def nodes_for(self, job: PlannedJob) -> int | None:
        """How many nodes a job can ever get there; None: unknown."""
        known = [each.nodes_for(job) for each in self.possible if each.kind.grants(resolved(job, self.arch).wish)]
        return max((each for each in known if each is not None), default=None) if None not in known else None

    @property
    def is_batch(self) -> bool:
        """Whether it has queues, which is the case if its locations support the options of a batch system."""
        return isinstance(self.market, Market) or any(
            NATIVE in each.hints for each in (*self.possible, *self.locations)
        )

    def types(self, pattern: str) -> frozenset[str]:
        there = {each.instance_type for each in (*self.possible, *self.locations)}
        return frozenset(each for each in there if each is not None and fnmatchcase(each, pattern))

    def is_queue(self, location: str) -> bool:
        """Whether a location is a queue, in which each job is a batch job of its own."""
        return any(each.name == location and each.max_jobs is not None for each in (*self.locations, *self.possible))

    def need(self, job: WaitingJob) -> PlannedJob:
        """What a job needs of a location there, which can be more than its author states."""
        if isinstance(self.market, Market):
            return need(job, self.market)
        return replace(job, **dict(implied)) if (implied := self.implied(job)) else job

    def implied(self, job: WaitingJob) -> Changes:
        """The requirements that the site adds to a job's hints; the same for all equal jobs."""
        arch: Changes = () if self.arch is None or names_arch(job) else (("arch", self.arch),)
        return arch if (types := self._targeted(job)) is None else (*arch, ("types", types))

    def _targeted(self, job: WaitingJob) -> frozenset[str] | None:
        """The instance types that a job's targets at the site allow, if they name any.

        The requests of a job at a stop are not stored: without this, a job that was given a machine and waits there
        would accept any.
        """
        if job.types is not None or job.targets is None:
            return None
        patterns = parts_of(job.targets, self.name)
        if not patterns or None in patterns or self.is_batch:
            return None
        return frozenset().union(*map(self.types, filter(None, patterns)))

    def coming(self, job: WaitingJob) -> Reason | None:
        """What a job waits for among the booting machines; None: none of them is for it, as far as is known."""
        kind = self.need(job).instance_type
        if kind is None:
            return next(iter(self.booting.values()), None)
        return self.booting.get(kind)

    def given(self, jobs: Iterable[PlannedJob], locations: Mapping[str, str]) -> SiteView:
        """The site with these jobs at its locations.

        :param locations: the location of each job, by the job's name
        """
        here: dict[str, list[PlannedJob]] = {}
        for job in jobs:
            here.setdefault(locations[job.name], []).append(job)
        return replace(
            self,
            locations=[each.given(here[each.name]) if each.name in here else each for each in self.locations],
            launched=[each.given(here[each.name]) if each.name in here else each for each in self.launched],
        )

    @property
    def lets_all_go(self) -> bool:
        """Whether every job that finds no room here can move to the next site."""
        return not self.is_new and self.in_trouble >= self.burst_after

    def lets_go(self, job: PlannedJob) -> bool:
        """Whether a job that finds no room here can move to the next site."""
        waited = max(self.turned_away.get(job.name, 0.0), self.in_trouble)
        return not self.is_new and waited >= self.burst_after

    def why_not(self, job: PlannedJob) -> Reason:
        if self.trouble is not None:
            return self.trouble
        asked = resolved(job, self.arch)
        if most := sum(each.max_jobs for each in self.locations if each.max_jobs and each.suits(asked)):
            return because("max_jobs", site=self.name, most=most)
        if any(each.suits(asked) for each in self.locations):
            return self.no_room
        return because("too_small_now", site=self.name)

    @property
    def no_room(self) -> Reason:
        """The reason of a job that waits for others to finish."""
        return because("site_full", site=self.name)


def asked(job: WaitingJob, sites: Sequence[SiteView]) -> list[SiteView]:
    """The sites that a job can go to."""
    if job.targets is not None:
        named = dict.fromkeys(Target.parse(each).site for each in of_text(job.targets)[0])
        return [site for name in named for site in sites if is_named(site.name, name)]
    return [site for site in sites if (is_named(site.name, job.site) if job.site else site.accept_untargeted)]


def stop_at(
    job: WaitingJob, target: Target, site: SiteView, rule: str | None = None, relaxed: Changes = ()
) -> Stop | None:
    """A target as a stop of a job; None: it can never run there.

    :param rule: the rule by which it requests something else than its hints; None: none
    :param relaxed: the changes by that rule
    """
    job = replace(job, **dict(relaxed)) if relaxed else job
    changes: Changes = ()
    if target.within is not None and site.is_batch:
        changes = in_queue(job, target.within)
    elif target.within is not None:
        changes = (("types", site.types(target.within)),)
    elif any(name == "queue" for name, _ in relaxed):
        changes = in_queue(job, str(job.queue))
    if NODES in soft(job.soft).least:
        here = replace(job, **dict(changes))
        changes += within(here, site.nodes_for(here))
    stop = Stop(site.name, None if job.targets is None else str(target), changes, rule, relaxed)
    asks = stop.asked(job)
    return stop if site.barred_reason(asks) is None and site.may_run(asks) else None


def open_to(job: WaitingJob, sites: Iterable[SiteView]) -> list[SiteView]:
    """The sites that accept jobs of its Dag and team."""
    return admission.admitted(((site, site.admission) for site in sites), job.dag_id, job.team)


def _not_open(job: WaitingJob, sites: Iterable[SiteView]) -> Reason:
    return admission.refusal([(site.name, site.admission) for site in sites], job.dag_id, job.team)


def refusal(job: WaitingJob, sites: Sequence[SiteView]) -> Reason:
    """Why no site can ever run a job."""
    names = [site.name for site in sites]
    if job.site and not any(is_named(name, job.site) for name in names):
        return because("no_such_site", name=job.site, names=nearest_first(job.site, names))
    its_own = asked(job, sites)
    if job.targets is not None:
        return unreachable(job, sites)
    takers = open_to(job, its_own)
    if its_own and not takers:
        why = _not_open(job, its_own)
    else:
        why = unsuited(job, takers) if its_own else because("names_no_site")
    others = [site.name for site in sites if site not in its_own]
    if job.site or not others:
        return why
    names_of_others = ", ".join(others)
    if not its_own:
        return why.with_also(because("name_a_site", others=names_of_others))
    only = ", ".join(site.name for site in its_own)
    return why.with_also(because("name_another_site", only=only, others=names_of_others))


def unreachable(job: WaitingJob, sites: Sequence[SiteView]) -> Reason:
    """Why none of a job's targets can ever run it."""
    by_name = {site.name: site for site in sites}
    found = [
        because("target_refused", target=text).with_also(why_no_target(job, Target.parse(text), by_name))
        for text in of_text(job.targets or "[[], []]")[0]
    ]
    return combined(found) if found else because("names_no_site")


def why_no_target(job: WaitingJob, target: Target, sites: Mapping[str, SiteView]) -> Reason:
    """Why a target can never run a job."""
    there = [site for name, site in sites.items() if is_named(name, target.site)]
    if not there:
        return because("no_such_site", name=target.site, names=nearest_first(target.site, sites))
    if not (takers := open_to(job, there)):
        return _not_open(job, there)
    site = takers[0]
    if target.within is not None and not site.is_batch:
        types = site.types(target.within)
        if not types:
            valid = valid_types(target.within, site.types("*"))
            return because("no_type_of_target", type=target.within, valid=valid)
        job = replace(job, types=types)
    elif target.within is not None:
        job = replace(job, queue=target.within)
    return unsuited(job, [site])


def unsuited(job: WaitingJob, sites: Sequence[SiteView]) -> Reason:
    """Why no location of these sites can ever run a job; the reason names the location that comes closest."""
    barred = [why.at(each.name) for each in sites if (why := each.barred_reason(job)) is not None]
    if others := [each for each in sites if each.barred_reason(job) is None]:
        return _unsuited(job, others).with_also(*barred)
    return combined(barred)


def _unsuited(job: PlannedJob, sites: Sequence[SiteView]) -> Reason:
    places = [MatchedMachine(site.name, location, site.arch) for site in sites for location in site.possible]
    names = ", ".join(repr(site.name) for site in sites)
    for hint, code in ((NATIVE, "needs_batch_system"), (LAYOUT, "needs_batch_jobs")):
        if hint in job.hints:
            places = [each for each in places if hint in each.location.hints]
            if not places:
                return because(code, names=names, nodes=job.nodes)
    if not (fitting := granting(job, places)):
        return lacking(job, places)
    if not any(each.location.has_nodes(job) for each in fitting):
        by_size = sorted(fitting, key=lambda each: each.location.nodes_for(job) or 0)
        return too_many_nodes(job, {each.site: each.location for each in by_size})
    nearest = min(fitting, key=lambda each: job.resources.shortfall(each.location.capacity))
    closest = nearest.location
    amounts = {"needs": job.resources, "has": closest.capacity, "lacking": job.resources.lacking(closest.capacity)}
    gpu = not_supported(closest.features) if job.resources.gpus else None
    where = {"closest": closest.name, "place": nearest.site, "gpu": gpu}
    if job.instance_type:
        return because("too_large_for_type", type=job.instance_type, **amounts, **where)
    return because("too_large_anywhere", **amounts, **where)
