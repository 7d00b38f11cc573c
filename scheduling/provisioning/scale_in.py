"""Scale-in: which empty instances to release, and when. Running jobs are never moved or stopped."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import Release
from lading.scheduling.model.reasons import Reason, because


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """When an empty instance is released.

    :param idle_seconds: how long it is kept after its last job, in case another one arrives
    :param billing_seconds: the length of the site's billing periods, counted from the launch; 1: billed by the second.
        The rest of a long period is already paid, so the instance is kept until just before the next period starts,
        however long it is idle; when billed by the second, ``idle_seconds`` decides
    :param margin_seconds: how long before the next period it is released, so that the release completes in time
    :param min_instances: how many instances are kept warm, busy ones included
    """

    idle_seconds: float = 0.0
    billing_seconds: float = 1.0
    margin_seconds: float = 60.0
    min_instances: int = 0


def releases(
    locations: Sequence[Location], filled: AbstractSet[str], rules: ScaleIn, now: float
) -> tuple[Release, ...]:
    """The instances to release now.

    :param locations: all locations of the site, oldest first
    :param filled: the names of those that this plan gives a job
    """
    instances = [location for location in locations if location.instance_type is not None]
    empty = [location for location in instances if location.empty and location.name not in filled]
    spare = max(0, len(instances) - rules.min_instances)
    due = [(location, reason) for location in reversed(empty) if (reason := release_reason(location, rules, now))]
    # Release first the instance with the least data that live runs may read, then the most expensive one, then the
    # newest one, whose disk holds the least useful data.
    due.sort(key=lambda entry: (entry[0].data, -entry[0].usd_per_hour))
    return tuple(Release(location.name, reason) for location, reason in due[:spare])


def release_reason(location: Location, rules: ScaleIn, now: float) -> Reason | None:
    """Why an empty instance is released now; None: it is kept."""
    if location.draining:
        return because("drained")
    boundary = next_boundary(location, rules, now)
    if boundary is not None:
        if now >= boundary - rules.margin_seconds:
            return because("period_ends", seconds=boundary - now)
        return None
    idle = now - location.idle_since if location.idle_since is not None else 0.0
    if idle >= rules.idle_seconds:
        return because("idle", seconds=idle) if idle else because("empty")
    return None


def next_boundary(location: Location, rules: ScaleIn, now: float) -> float | None:
    """When the next billing period starts, epoch seconds; None if the site bills by the second."""
    if rules.billing_seconds <= rules.margin_seconds or location.launched_at is None:
        return None
    periods = int((now - location.launched_at) // rules.billing_seconds) + 1
    return location.launched_at + periods * rules.billing_seconds
