"""Allocations as locations of their site."""

from __future__ import annotations

import time

from lading.hooks.cluster.allocations.allocation import Allocation, AllocationFleet, ReleaseState
from lading.hooks.cluster.allocations.launcher import AllocationLauncher
from lading.hooks.site import LocationState, Order, Seen
from lading.scheduling.location import Location
from lading.scheduling.reasons import Reason
from lading.scheduling.resources import Resources


def seen(fleet: AllocationFleet, launcher: AllocationLauncher) -> list[Seen]:
    """The allocations that were asked for and are not forgotten, and those that are about to be."""
    with fleet.tracker.lock:  # an order becomes an allocation under the same
        known, allocations, orders = fleet.known(), list(fleet.allocations.values()), launcher.ordered()
    held = launcher.market().held
    there = [
        Seen(
            location(each.name, each.terms.capacity, each.terms.kind, ends_at(each)),
            state(each),
            frozenset(known.get(each.name, ())),
            None if (waits := launcher.queue_reason(each)) is None else waits.sentence,
            each.batch.native_id(launcher.system),
            each.batch.node,
            waits=waits,
        )
        for each in allocations
    ]
    return [*there, *(ordered(each, held) for each in orders)]


def ordered(order: Order, held: Reason | None) -> Seen:
    """What is about to be asked for.

    :param held: why it is not yet
    """
    launch = order.launch
    there = location(order.name, launch.capacity, launch.kind, time.time() + launch.seconds)
    note = None if held is None else held.sentence
    return Seen(there, LocationState.BOOTING, frozenset(), note, waits=held)


def state(allocation: Allocation) -> LocationState:
    """What an allocation can do now."""
    if allocation.release is not ReleaseState.NONE:
        return LocationState.DRAINING
    if allocation.is_pending:
        return LocationState.BOOTING
    return LocationState.UP if allocation.is_up else LocationState.DRAINING


def ends_at(allocation: Allocation) -> float:
    """When it takes no jobs any more, epoch seconds; of one that has not begun: if it began now."""
    left = allocation.terms.seconds if allocation.ends_at is None else allocation.ends_at - time.monotonic()
    return time.time() + left


def location(name: str, capacity: Resources, kind: str, ends_at: float) -> Location:
    """An allocation as placement sees it; its end is rounded, or it would be another location at each look."""
    return Location(name, capacity, instance_type=kind, ends_at=float(round(ends_at)))
