"""Choose locations for waiting jobs: when to try, with which policies and plugins, and with what data for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from lading.executors.locality.allocation_history import AllocationHistory
from lading.executors.store import ENDED, Change, data
from lading.executors.store.durations import PastWaits
from lading.hooks.files.logs import Trouble
from lading.hooks.site import Site
from lading.scheduling.accounting.bounds import ShareBounds
from lading.scheduling.matching.bindings import FILTERS, GetTargets
from lading.scheduling.matching.ranking import Match, Rank
from lading.scheduling.matching.rules import RULES, Relax, Rule
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.reasons import Reason, free_text
from lading.scheduling.placing import placement
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.placement import AtWork
from lading.scheduling.placing.policies import DATA_LOCALITY, Policy, PolicyContext
from lading.scheduling.placing.rooms import stacks
from lading.scheduling.provisioning.foreseen import Foreseen
from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# Replaces the whole decision; None: Lading decides.
AssignJobs = Callable[..., Assignment | None]
# Orders the sites for a job; None: Lading's order.
RankMatches = Callable[..., Sequence[Match] | None]
UNRANKED = "rank_matches of a plugin has failed, so sites are tried in Lading's order"
REPLACED = "assign_jobs of a plugin has failed, so Lading decides where jobs go"


@dataclass(frozen=True, slots=True)
class Extensions:
    """What plugins and the sites file add to placement.

    :param filters: binding filters by name, including Lading's own
    :param policies: placement policies by name, without Lading's own
    :param rules: rules that relax preferences, from the sites file or by default
    :param rank_matches: called with ``job`` and ``matches`` for each job; None: no plugin implements it
    :param assign_jobs: called with ``jobs``, ``sites``, ``at_work`` and ``now`` before Lading decides; None: no plugin
        implements it
    """

    filters: Mapping[str, GetTargets] = field(default_factory=lambda: FILTERS)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    rules: Sequence[Rule] = RULES
    rank_matches: RankMatches | None = None
    assign_jobs: AssignJobs | None = None

    @property
    def ask_of_all(self) -> bool:
        """Whether a plugin decides about the jobs of every site, and so may need any data about them."""
        return self.rank_matches is not None or self.assign_jobs is not None


class PlacementAttempts:
    """The jobs that have been tried at one site since room last became free there.

    :param placement_interval: seconds after which all jobs are tried again in any case; 0: never; None: in every tick
    """

    def __init__(self, placement_interval: float | None) -> None:
        self.placement_interval = placement_interval
        self._tried: set[str] = set()
        self._locations: frozenset[str] = frozenset()
        self._since = time.monotonic()

    def begin(self) -> None:
        """Try all jobs again, because one has ended at the site."""
        self._tried.clear()
        self._since = time.monotonic()

    def tried(self, locations: Iterable[str]) -> frozenset[str]:
        """Return the jobs that need not be tried now.

        :param locations: those that take jobs; all jobs are tried again if one of them is new
        """
        is_due = self.placement_interval and time.monotonic() - self._since >= self.placement_interval
        if is_due or not self._locations.issuperset(locations := frozenset(locations)):
            self.begin()
        self._locations = frozenset(locations)
        return frozenset(self._tried)

    def note(self, turned_away: Iterable[str]) -> None:
        if self.placement_interval is not None:
            self._tried = set(turned_away)


class NotedPolicy:
    """A plugin's policy that tells ``noted`` which job each call is for."""

    def __init__(self, policy: Policy, noted: Callable[[str, Callable[[], Any]], Any]) -> None:
        self.policy = policy
        self.noted = noted

    def get_location(self, context: PolicyContext, job: PlannedJob, *rest: Any) -> str | None:
        answer: str | None = self.noted(job.name, lambda: self.policy.get_location(context, job, *rest))
        return answer


class Placing:
    """Places waiting jobs, with the plugins' extensions.

    :param mark: called with the job before a plugin is called for it, and with None after the call
    :ivar at: the job that a plugin is being called for; None: no plugin is running
    """

    def __init__(
        self,
        sites: Mapping[str, Site[Any]],
        extensions: Extensions,
        mark: Callable[[str | None], None] = lambda token: None,
    ) -> None:
        self.sites = sites
        self.mark = mark
        self.at: str | None = None
        self.extensions = replace(
            extensions,
            filters={name: self._filter(each) for name, each in extensions.filters.items()},
            policies={name: NotedPolicy(each, self._call_marked) for name, each in extensions.policies.items()},
            rules=[each if each.relax is None else self._rule(each, each.relax) for each in extensions.rules],
        )
        self.trouble = Trouble(log)
        self.waits = PastWaits()
        self.attempts = {name: PlacementAttempts(site.config.placement_interval) for name, site in sites.items()}
        used = {site.config.policy for site in sites.values()}
        self.history = AllocationHistory() if used & extensions.policies.keys() else None
        third_party = extensions.filters.keys() - FILTERS.keys() or used & extensions.policies.keys()
        self.needs_inputs = extensions.ask_of_all or bool(third_party)
        self.unranked = 0
        self.needs_files = not used.isdisjoint({DATA_LOCALITY, *extensions.policies})

    def _call_marked(self, token: str, ask: Callable[[], Any]) -> Any:
        """Return a plugin's answer for a job, which is marked during the call.

        :raises RuntimeError: the plugin has called ``sys.exit``
        :raises Exception: whatever else the plugin raises
        """
        self.at = token
        self.mark(token)
        try:
            return ask()
        except SystemExit as error:
            raise RuntimeError(f"it called sys.exit({error.code!r})") from error
        finally:
            self.at = None
            self.mark(None)

    def _filter(self, ask: GetTargets) -> GetTargets:
        return lambda job, targets: self._call_marked(job.name, lambda: ask(job, targets))

    def _rule(self, rule: Rule, ask: Relax) -> Rule:
        return replace(rule, relax=lambda job: self._call_marked(job.name, lambda: ask(job)))

    def note_events(
        self, session: Session, site: str, events: Iterable[dict[str, Any]], changes: Iterable[Change]
    ) -> None:
        if any(each.values.get("state") in ENDED for each in changes):
            self.attempts[site].begin()
        data.note(session, site, events)

    def needed(self, session: Session, site: Site[Any]) -> dict[str, int]:
        """Return the bytes of files that unfinished runs have left at a site, by location."""
        return data.needed(session, site.name)

    def assign(
        self,
        session: Session,
        jobs: Sequence[WaitingJob],
        sites: Sequence[SiteView],
        at_work: Sequence[AtWork],
        now: float,
        wanted: Mapping[str, Sequence[WaitingJob]],
        foreseen: Mapping[str, Foreseen],
        bounds: ShareBounds | None = None,
    ) -> Assignment:
        """Decide where jobs go, by a plugin or by Lading.

        :param now: epoch seconds
        :param wanted: waiting gang members to launch capacity for, by site; the gang pass places them
        :param foreseen: by site, what the plan of all upcoming work requests
        :param bounds: what is left for each share's jobs; None: everything
        """
        sites = [
            replace(each, tried=self.attempts[each.name].tried(one.name for one in each.locations)) for each in sites
        ]
        assignment = self._plugin_assignment(jobs, sites, at_work, now)
        if assignment is None:

            def assigned(some: Sequence[WaitingJob]) -> Assignment:
                return placement.assign(
                    some,
                    [replace(each, waits=self.waits.read(session)) for each in sites],
                    at_work,
                    now=now,
                    filters=self.extensions.filters,
                    rules=self.extensions.rules,
                    rank=self.rank,
                    choice=replace(self._choice(session, some, sites, now), foreseen=foreseen),
                    wanted=wanted,
                    bounds=None if bounds is None else bounds.anew(),
                )

            assignment = self._without_culprits(jobs, assigned)
        for name, attempts in self.attempts.items():
            attempts.note(assignment.turned_away.get(name, ()))
        if not self.unranked:
            self.trouble.end(UNRANKED)
        self.unranked = 0
        return assignment

    def _choice(self, session: Session, jobs: Sequence[WaitingJob], sites: Sequence[SiteView], now: float) -> Choice:
        choice = Choice(now, self.extensions.policies)
        if self.needs_files:
            choice.files = data.read(session, [job.name for job in jobs])
        if self.history is not None:
            beneath = {(each.name, name): lower for each in sites for name, lower in stacks(each.locations).items()}
            choice.allocations = self.history.read(session, beneath)
        return choice

    def _without_culprits(self, jobs: Sequence[WaitingJob], assigned: Callable[..., Assignment]) -> Assignment:
        """Assign jobs; if that fails because of some jobs, refuse those and assign the others.

        :raises Exception: it also fails without any jobs, or because of more than ten
        """
        try:
            return assigned(jobs)
        except SQLAlchemyError:
            raise
        except Exception as error:  # a hint or a plugin can make the decision fail for one job
            failures = culprits(jobs, assigned, error)
            found = assigned([job for job in jobs if job.name not in failures])
            for name, failure in failures.items():
                log.error("Placement of job %s raised an error, so the job fails", name, exc_info=failure)
                found.refused[name] = free_text(f"its placement raised {type(failure).__name__}: {failure}")
            return found

    @property
    def rank(self) -> Rank | None:
        """The function that orders the sites for each job; None: no plugin does."""
        return None if self.extensions.rank_matches is None else self.ranked

    def ranked(self, job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match] | None:
        """Return a plugin's order of the sites for a job; None: the plugin gives none or has failed."""
        assert self.extensions.rank_matches is not None
        try:
            ask = self.extensions.rank_matches
            order: Sequence[Match] | None = self._call_marked(job.name, lambda: ask(job=job, matches=tuple(matches)))
            if order is not None and (len(order) != len(matches) or set(order) != set(matches)):
                raise ValueError(f"it returned {shortened(order)}; valid: the given matches, in any order")
        except Exception as error:  # a plugin can raise anything
            self.unranked += 1
            self.trouble.begin(UNRANKED, error, traceback=True)
            return None
        return order

    def _plugin_assignment(
        self, jobs: Sequence[WaitingJob], sites: Sequence[SiteView], at_work: Sequence[AtWork], now: float
    ) -> Assignment | None:
        """Return a plugin's assignment; None: no plugin decides, or it has failed."""
        if self.extensions.assign_jobs is None:
            return None
        try:
            given = {"jobs": tuple(jobs), "sites": tuple(sites), "at_work": tuple(at_work)}
            assignment = self.extensions.assign_jobs(**given, now=now)
            if assignment is not None:
                check(assignment, jobs, sites)
                assignment = in_codes(assignment)
        except (Exception, SystemExit) as error:  # a plugin can raise anything
            self.trouble.begin(REPLACED, error, traceback=True)
            return None
        self.trouble.end(REPLACED)
        return assignment


def culprits(jobs: Sequence[WaitingJob], assigned: Callable[..., Assignment], error: Exception) -> dict[str, Exception]:
    """Find the jobs that make a decision fail, each with its error, by bisection.

    :param error: raised for all jobs together
    :raises Exception: the decision also fails without any jobs, or because of more than ten
    """
    assigned([])
    errors: dict[str, Exception] = {}
    failing = [(jobs, error)]
    while failing:
        some, failure = failing.pop()
        if len(some) == 1:
            errors[some[0].name] = failure
            # If a decision fails over more jobs than this in one tick, the jobs are not the cause.
            if len(errors) > 10:
                raise error
            continue
        middle = len(some) // 2
        for half in (some[:middle], some[middle:]):
            try:
                assigned(half)
            except SQLAlchemyError:
                raise
            except Exception as its_own:
                failing.append((half, its_own))
    return errors


def check(found: Assignment, jobs: Sequence[WaitingJob], sites: Sequence[SiteView]) -> None:
    """Validate a plugin's assignment.

    :raises ValueError: it names an unknown job or location, or a reason of another type
    """
    names, places = {job.name for job in jobs}, {(site.name, each.name) for site in sites for each in site.locations}
    if strange := sorted({*found.placed, *found.refused, *found.waits} - names):
        raise ValueError(f"{strange[0]!r} is not a waiting job")
    reasons = [*found.refused.values(), *(each for each in found.waits.values() if each is not None)]
    if strange_ones := [each for each in reasons if not isinstance(each, (str, Reason))]:
        raise ValueError(f"{shortened(strange_ones[0])} is not a reason; valid: a Reason or a string")
    if wrong := sorted(set(found.placed.values()) - places):
        raise ValueError(f"{wrong[0]} is not a location that takes jobs; valid: {', '.join(map(str, sorted(places)))}")


def _reason(answer: Reason | str) -> Reason:
    return answer if isinstance(answer, Reason) else free_text(answer)


def in_codes(found: Assignment) -> Assignment:
    """Return a plugin's assignment with reasons that are strings turned into reasons with the code for free text."""
    waits = {name: reason and _reason(reason) for name, reason in found.waits.items()}
    refused = {name: _reason(reason) for name, reason in found.refused.items()}
    passed = {name: _reason(reason) for name, reason in found.passed.items()}
    return replace(found, waits=waits, refused=refused, passed=passed)
