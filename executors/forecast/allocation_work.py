"""What is to come at each site of allocations, as the decision about them has it, from tick to tick."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lading.executors.forecast.held_up import HeldUpSteps
from lading.scheduling.forecast.coming import ComingRun, RunAtSite, parts_at, site_forecast
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.provisioning.coming_work import ComingWork


class AllocationWork:
    """What is to come at one site of allocations."""

    def __init__(self) -> None:
        self.at_site: dict[str, RunAtSite] = {}
        self.held_up = HeldUpSteps()
        self.foreseen: dict[str, bool] = {}
        """Of the allocations in which jobs were: whether these were all of runs of which it is known what comes."""

    def coming_work(
        self,
        runs: Sequence[ComingRun],
        site: SiteView,
        waits: QueueWaits,
        known: Collection[str],
        now: float,
        *,
        pools: Mapping[str, int],
        is_blind: bool,
    ) -> ComingWork:
        """What is to come.

        :param waits: for how long allocations have waited in their queues
        :param known: the runs of which it is known what comes after their jobs
        :param now: epoch seconds
        :param pools: how many slots each of Airflow's pools has
        :param is_blind: whether it is not known of some other run of a Dag
        """
        self.at_site = parts_at(runs, site.name, self.at_site)
        its = site_forecast(self.at_site.values(), pools)
        _, held_up = self.held_up.update(its, now)
        there = {each.name for each in site.launched}
        self.foreseen = {name: value for name, value in self.foreseen.items() if name in there}
        for name, are_known in located(its.forecast, known).items():
            if name in there:
                self.foreseen[name] = self.foreseen.get(name, True) and are_known
        return ComingWork(
            its.forecast.without(held_up) if held_up else its.forecast,
            {token: name for name, token in its.waiting.items()},
            frozenset(known),
            frozenset(name for name, value in self.foreseen.items() if value),
            is_blind or bool(held_up),  # which may go on at any time
            site.name,
            waits,
        )


def located(forecast: Forecast, known: Collection[str]) -> Mapping[str, bool]:
    """The allocations in which jobs are, and whether all of these are of known runs."""
    found: dict[str, bool] = {}
    for step in forecast.steps.values():
        if step.location is not None:
            found[step.location] = found.get(step.location, True) and step.job.run in known
    return found
