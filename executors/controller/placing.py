"""How places are chosen for jobs that wait: when it is tried, by which policies, and what these may know."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from lading.executors.forecast.site_plans import Foreseen
from lading.executors.locality.allocation_history import AllocationHistory
from lading.executors.store import ENDED, Change, data
from lading.executors.store.durations import PastWaits
from lading.hooks.files.logs import Trouble
from lading.hooks.site import Site
from lading.scheduling.job import PlannedJob
from lading.scheduling.matching.bindings import FILTERS, GetTargets
from lading.scheduling.matching.ranking import Match, Rank
from lading.scheduling.matching.rules import RULES, Relax, Rule
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.placing import placement
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.placement import AtWork
from lading.scheduling.placing.policies import DATA_LOCALITY, Policy, PolicyContext
from lading.scheduling.placing.rooms import stacks
from lading.scheduling.reasons import Reason, free_text
from lading.scheduling.shares.bounds import ShareBounds
from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# Replaces the whole choice; None: it does not.
AssignJobs = Callable[..., Assignment | None]
# Orders the sites of a job; None: it does not.
RankMatches = Callable[..., Sequence[Match] | None]
# A decision that fails over more jobs than these in a tick fails by no fault of theirs.
MOST_CULPRITS = 10
UNRANKED = "rank_matches of a plugin has failed, so sites are tried in Lading's order"
REPLACED = "assign_jobs of a plugin has failed, so Lading decides where jobs go"


@dataclass(frozen=True, slots=True)
class Extensions:
    """What third parties add to the choice of places.

    :param filters: the binding filters by name, with Lading's own
    :param policies: by name, without Lading's own
    :param rules: by which jobs do without what they only wish, those of the sites file or Lading's own
    :param rank_matches: called with ``job`` and ``matches`` for each job; None: no plugin has it
    :param assign_jobs: called with ``jobs``, ``sites``, ``at_work`` and ``now`` before Lading decides; None: likewise
    """

    filters: Mapping[str, GetTargets] = field(default_factory=lambda: FILTERS)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    rules: Sequence[Rule] = RULES
    rank_matches: RankMatches | None = None
    assign_jobs: AssignJobs | None = None

    @property
    def ask_of_all(self) -> bool:
        """Whether they decide about jobs at every site, by whatever they know of these."""
        return self.rank_matches is not None or self.assign_jobs is not None


class PlacementAttempts:
    """For which jobs a place was sought at a site since something has come free there.

    :param placement_interval: seconds after which it is sought again in any case; 0: it is not; None: it always is
    """

    def __init__(self, placement_interval: float | None) -> None:
        self.placement_interval = placement_interval
        self._tried: set[str] = set()
        self._locations: frozenset[str] = frozenset()
        self._since = time.monotonic()

    def begin(self) -> None:
        """A job has ended there, so that it is sought for all."""
        self._tried.clear()
        self._since = time.monotonic()

    def tried(self, locations: Iterable[str]) -> frozenset[str]:
        """The jobs for which it need not be sought now.

        :param locations: those that take jobs; one that did not when it was sought last is something new
        """
        is_due = self.placement_interval and time.monotonic() - self._since >= self.placement_interval
        if is_due or not self._locations.issuperset(locations := frozenset(locations)):
            self.begin()
        self._locations = frozenset(locations)
        return frozenset(self._tried)

    def note(self, turned_away: Iterable[str]) -> None:
        """It was sought for these, and not found."""
        if self.placement_interval is not None:
            self._tried = set(turned_away)


class NotedPolicy:
    """A policy of a third party, during whose calls it is known which job they are for."""

    def __init__(self, policy: Policy, noted: Callable[[str, Callable[[], Any]], Any]) -> None:
        self.policy = policy
        self.noted = noted

    def get_location(self, context: PolicyContext, job: PlannedJob, *rest: Any) -> str | None:
        answer: str | None = self.noted(job.name, lambda: self.policy.get_location(context, job, *rest))
        return answer


class Placing:
    """The choice of places for the jobs that wait.

    :param mark: called with the job for which a third party is asked from now on, and with None when it has answered
    :ivar at: the job for which a third party is asked now; None: none is
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
            policies={name: NotedPolicy(each, self._noted) for name, each in extensions.policies.items()},
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

    def _noted(self, token: str, ask: Callable[[], Any]) -> Any:
        """What a third party answers for a job, which is known while it is asked.

        :raises Exception: whatever it raises; in the place of the end of the process RuntimeError
        """
        self.at = token
        self.mark(token)
        try:
            return ask()
        except SystemExit as error:
            raise RuntimeError(f"it has called sys.exit({error.code!r})") from error
        finally:
            self.at = None
            self.mark(None)

    def _filter(self, ask: GetTargets) -> GetTargets:
        return lambda job, targets: self._noted(job.name, lambda: ask(job, targets))

    def _rule(self, rule: Rule, ask: Relax) -> Rule:
        return replace(rule, relax=lambda job: self._noted(job.name, lambda: ask(job)))

    def note_events(
        self, session: Session, site: str, events: Iterable[dict[str, Any]], changes: Iterable[Change]
    ) -> None:
        """Take note of what has happened at a site, when it has been stored."""
        if any(each.values.get("state") in ENDED for each in changes):
            self.attempts[site].begin()
        data.note(session, site, events)

    def needed(self, session: Session, site: Site[Any]) -> dict[str, int]:
        """By location of a site, the bytes of files there that runs have left which have not ended."""
        return data.needed(session, site.name)

    def assign(
        self,
        session: Session,
        jobs: Sequence[WaitingJob],
        sites: Sequence[SiteView],
        at_work: Sequence[AtWork],
        now: float,
        wanted: Mapping[str, Sequence[WaitingJob]],
        foreseen: Foreseen = Foreseen(),  # noqa: B008 (frozen)
        bounds: ShareBounds | None = None,
    ) -> Assignment:
        """Where jobs go.

        :param now: epoch seconds
        :param wanted: by site, gang members, there or to come, to launch capacity for; the gang pass places them
        :param foreseen: what follows from what is to come
        :param bounds: what is left for the jobs of each share; None: all there is
        """
        sites = [
            replace(each, tried=self.attempts[each.name].tried(one.name for one in each.locations)) for each in sites
        ]
        assignment = self._replaced(jobs, sites, at_work, now)
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
                    choice=replace(
                        self._choice(session, some, sites, now), foreseen=foreseen.actions, coming=foreseen.coming
                    ),
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
        """The choice of locations, with what policies see of the store."""
        choice = Choice(now, self.extensions.policies)
        if self.needs_files:
            choice.files = data.read(session, [job.name for job in jobs])
        if self.history is not None:
            beneath = {(each.name, name): lower for each in sites for name, lower in stacks(each.locations).items()}
            choice.allocations = self.history.read(session, beneath)
        return choice

    def _without_culprits(self, jobs: Sequence[WaitingJob], assigned: Callable[..., Assignment]) -> Assignment:
        """Where jobs go; those over which the decision fails are refused, and they alone.

        :raises Exception: it fails without any of them as well, or over too many to be their own fault
        """
        try:
            return assigned(jobs)
        except SQLAlchemyError:
            raise
        except Exception as error:  # what an author or a plugin has said of one of them
            failures = culprits(jobs, assigned, error)
            found = assigned([job for job in jobs if job.name not in failures])
            for name, failure in failures.items():
                log.error("No place could be sought for job %s, so it fails", name, exc_info=failure)
                found.refused[name] = free_text(f"no place could be sought for it: {type(failure).__name__}: {failure}")
            return found

    @property
    def rank(self) -> Rank | None:
        """The order of a plugin for each job; None: no plugin ranks."""
        return None if self.extensions.rank_matches is None else self.ranked

    def ranked(self, job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match] | None:
        """The order of a plugin for a job; None: it has none."""
        assert self.extensions.rank_matches is not None
        try:
            ask = self.extensions.rank_matches
            order: Sequence[Match] | None = self._noted(job.name, lambda: ask(job=job, matches=tuple(matches)))
            if order is not None and (len(order) != len(matches) or set(order) != set(matches)):
                raise ValueError(f"it answers {shortened(order)}; valid: the matches in another order")
        except Exception as error:  # a third party's may raise anything
            self.unranked += 1
            self.trouble.begin(UNRANKED, error, traceback=True)
            return None
        return order

    def _replaced(
        self, jobs: Sequence[WaitingJob], sites: Sequence[SiteView], at_work: Sequence[AtWork], now: float
    ) -> Assignment | None:
        """What a plugin decides in Lading's place; None: nothing."""
        if self.extensions.assign_jobs is None:
            return None
        try:
            given = {"jobs": tuple(jobs), "sites": tuple(sites), "at_work": tuple(at_work)}
            assignment = self.extensions.assign_jobs(**given, now=now)
            if assignment is not None:
                check(assignment, jobs, sites)
                assignment = in_codes(assignment)
        except (Exception, SystemExit) as error:  # a third party's may raise anything
            self.trouble.begin(REPLACED, error, traceback=True)
            return None
        self.trouble.end(REPLACED)
        return assignment


def culprits(jobs: Sequence[WaitingJob], assigned: Callable[..., Assignment], error: Exception) -> dict[str, Exception]:
    """The jobs over which a decision fails, each with how, found by halving.

    :param error: how it has failed over all of them
    :raises Exception: it fails without any of them as well, or over more than :data:`MOST_CULPRITS`
    """
    assigned([])
    errors: dict[str, Exception] = {}
    failing = [(jobs, error)]
    while failing:
        some, failure = failing.pop()
        if len(some) == 1:
            errors[some[0].name] = failure
            if len(errors) > MOST_CULPRITS:
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
    """Refuse an answer that names what is not there.

    :raises ValueError: it does
    """
    names, places = {job.name for job in jobs}, {(site.name, each.name) for site in sites for each in site.locations}
    if strange := sorted({*found.placed, *found.refused, *found.waits} - names):
        raise ValueError(f"{strange[0]!r} is none of the jobs that wait")
    reasons = [*found.refused.values(), *(each for each in found.waits.values() if each is not None)]
    if strange_ones := [each for each in reasons if not isinstance(each, (str, Reason))]:
        raise ValueError(f"{shortened(strange_ones[0])} is no reason; valid: a Reason, or words")
    if wrong := sorted(set(found.placed.values()) - places):
        raise ValueError(f"{wrong[0]} is no location that takes jobs; valid: {', '.join(map(str, sorted(places)))}")


def _reason(answer: Reason | str) -> Reason:
    return answer if isinstance(answer, Reason) else free_text(answer)


def in_codes(found: Assignment) -> Assignment:
    """A plugin's answer, in which reasons that are texts have the code of such."""
    waits = {name: reason and _reason(reason) for name, reason in found.waits.items()}
    refused = {name: _reason(reason) for name, reason in found.refused.items()}
    passed = {name: _reason(reason) for name, reason in found.passed.items()}
    return replace(found, waits=waits, refused=refused, passed=passed)
