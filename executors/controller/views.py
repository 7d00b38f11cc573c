"""What a site answered, as placement sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lading.executors.controller import launched
from lading.executors.store import queue
from lading.executors.store.instances import InstanceRow
from lading.executors.store.queue import GivenJob
from lading.hooks.site import ElasticSite, LocationState, Observation, Seen, Site
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.wishes import default_arch
from lading.scheduling.provisioning import recalls
from lading.scheduling.reasons import Reason, because, combined
from lading.scheduling.resources import Resources

# A job that has been at a location for so long may be given to another one that has room for it at once, seconds.
SECONDS_UNTIL_MOVED = 15.0
# What is said to a job that waits for something of which its site says nothing.
NOT_BEGUN = because("not_begun")
NO_MARKET = because("no_market")
NO_LOCATIONS = because("no_locations")


@dataclass(frozen=True, slots=True)
class SiteAnswer:
    """What a site answered last, and what the store thinks it has.

    :param jobs: that it was given
    :param instances: that were launched there and have not ended, oldest first
    :param is_new: whether nothing was concluded from the answer yet
    :param sizes: what its machines really have, by instance type and image
    :param files: by location, the bytes of files there that runs have left which have not ended
    :param promised: by the names of waiting jobs, what boots and has a place for them
    """

    site: Site[Any]
    observation: Observation
    jobs: Sequence[GivenJob] = ()
    instances: Sequence[InstanceRow] = ()
    is_new: bool = True
    sizes: Mapping[tuple[str, str], Resources] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    promised: Mapping[str, str] = field(default_factory=dict)


def view(site: Site[Any], answer: SiteAnswer | None, silence: str, possible: Sequence[Location]) -> SiteView:
    """A site as placement sees it, but for its locations and for what the controller has noted of it.

    :param answer: what it has answered; None: it could not be asked
    :param silence: why not, in words
    """
    config = site.config
    silent = because("site_silent", site=site.name, text=silence)
    seen = [] if answer is None else [each.location for each in answer.observation.locations]
    return SiteView(
        name=site.name,
        possible=possible,
        arch=default_arch(site.arch, (*possible, *seen)),
        trouble=silent if answer is None else trouble(answer),
        barred={} if answer is None else answer.observation.barred,
        burst_after=config.burst_after,
        allowed_dags=config.allowed_dags,
        holds=site.holds,
        launches=site.launches,
        attempts=config.attempts,
        policy=config.policy,
        locality_fallback=config.locality_fallback,
        locality_wait=config.locality_wait,
    )


def with_locations(found: SiteView, answer: SiteAnswer, ahead: Mapping[str, int], now: float) -> SiteView:
    """The view with what there is at the site, and what is on it.

    :param ahead: how many jobs may be prefetched to a location, by its name, where its jobs are short
    :param now: epoch seconds
    """
    here, seen, market = queue.by_location(answer.jobs), answer.observation.locations, market_of(answer)
    found = replace(found, market=market)

    promised: dict[str, set[str]] = {}
    for job, name in answer.promised.items():
        promised.setdefault(name, set()).add(job)

    def loaded(location: Location) -> Location:
        kept = frozenset(promised.get(location.name, ()))
        there, data = location, answer.files.get(location.name, 0)
        if (data, kept) != (location.data, location.promised):
            there = replace(location, data=data, promised=kept)
        return queue.loaded(there, here.get(location.name, ()), ahead.get(location.name, 0), found.need)

    if market is None:
        up = [launched.as_seen(each) for each in seen if each.state == LocationState.UP]
        return replace(found, locations=[loaded(each) for each in up])
    everything = [loaded(each) for each in launched.live(answer.instances, seen, now)]
    booting = {str(each.instance_type): NOT_BEGUN for each in everything if each.booting}
    coming = {
        str(each.location.instance_type): why_not_up(each) for each in seen if each.state == LocationState.BOOTING
    }
    return replace(
        found,
        locations=[each for each in everything if not (each.booting or each.draining)],
        launched=everything,
        booting=booting | {kind: reason for kind, reason in coming.items() if reason is not None},
    )


def why_not_up(seen: Seen) -> Reason | None:
    """What jobs wait for that wait for a machine which is not up yet; None: nothing is said."""
    return seen.waits or (because("booting", text=seen.note) if seen.note else None)


def paused(found: SiteView, by: str | None) -> SiteView:
    """The view of a site that is paused: it is given nothing. What is idle there ends by itself.

    :param by: who; None: it is not paused
    """
    return found if by is None else replace(found, trouble=because("paused", site=found.name, by=by))


def market_of(answer: SiteAnswer) -> Market | MachineMarket | None:
    """What can be launched at a site; None: nothing ever is, whatever it says."""
    market = answer.observation.market if answer.site.launches and isinstance(answer.site, ElasticSite) else None
    return market.sized(answer.sizes) if isinstance(market, MachineMarket) else market


def recalled(answer: SiteAnswer, site: SiteView, now: float) -> dict[str, list[str]]:
    """By location, the jobs that are to come back from where they have not begun.

    From a site that takes none now, as one that is paused, only those that could not run there any more.
    """
    if site.trouble is not None:
        return recalls(site.launched, frozenset(), now=now)
    # What seems to be placed later than now was placed by a controller of another machine, before this one began.
    placed = ((each.token, each.placed_at) for each in answer.jobs if each.placed_at is not None)
    settled = (token for token, at in placed if abs(now - at) > SECONDS_UNTIL_MOVED)
    return recalls(site.launched, frozenset(settled), now=now)


def trouble(answer: SiteAnswer) -> Reason | None:
    """Why a site that has answered takes no jobs at all now; None: it does."""
    why = answer.observation.trouble or _trouble(answer.site.launches, answer.observation)
    return None if why is None else because("site_trouble", site=answer.site.name).with_also(why)


def _trouble(launches: bool, observation: Observation) -> Reason | None:
    if launches:
        return NO_MARKET if observation.market is None else None
    if any(each.state == LocationState.UP for each in observation.locations):
        return None
    found = [
        because("location_note", text=each.note)
        if each.note
        else because("location_state", location=each.name, state=each.state.value)
        for each in observation.locations
    ]
    return combined(found) if found else NO_LOCATIONS
