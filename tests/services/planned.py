"""What a planner decides whose search takes no time: a plan is made as soon as the last one does not hold any more."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from lading.scheduling.forecast.choice import choose
from lading.scheduling.forecast.fleet_work import FleetWork
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.policy import Actions, Planner
from lading.scheduling.model.location import Location
from lading.scheduling.packing.problem import Problem


def planned_actions(
    planner: Planner,
    forecast: Forecast,
    waiting: Sequence[str],
    locations: Sequence[Location],
    problem: Problem,
    *,
    spent: float = 0.0,
    kept: Collection[str] = (),
    now: float,
    most_boot_paid: float = math.inf,
) -> Actions:
    """
    :param spent: USD that the live runs have cost so far
    :param kept: the machines that stay in any case
    :param most_boot_paid: how many seconds of a boot are billed at most
    """
    if not (planner.is_chosen_for(forecast) and planner.holds(forecast, locations, problem, now)):
        medians = forecast.by_those_at_work(now)
        work = FleetWork(medians, locations, problem, planner.boot, now, most_boot_paid=most_boot_paid)
        planner.adopt(choose(work, planner.hurry, spent, planner.fleets(forecast)), forecast)
        planner.follow(work)
    planner.not_ahead = forecast.launched_when_waiting().difference(waiting)
    return planner.act(forecast, waiting, problem, now, kept)
