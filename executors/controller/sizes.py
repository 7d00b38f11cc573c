"""What machines really have for jobs: seen at a boot, it replaces the specification of the type from then on. Pure.

A kernel keeps memory for itself, how much depends on the type and the image. Where a launch counted on more than there
is, the job that it was for would never start there, and one machine after the other would be launched.
"""

from __future__ import annotations

from collections.abc import Mapping

from lading.hooks.site import LocationState, Observation
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.resources import Resources


class Sizes:
    """What jobs have of machines of a site.

    :param known: by instance type and image
    """

    def __init__(self, known: Mapping[tuple[str, str], Resources]) -> None:
        self.known = dict(known)
        self._names: set[str] = set()

    def learn(self, observation: Observation) -> dict[tuple[str, str], Resources]:
        """Look at the machines that have come up; returns what was not known of them."""
        market = observation.market
        if not isinstance(market, MachineMarket):
            return {}
        up = {each.name: each.location for each in observation.locations if each.state == LocationState.UP}
        came = {
            (str(it.instance_type), market.images.get(it.arch or "", "")): it.capacity
            for name, it in up.items()
            if name not in self._names
        }
        self._names = set(up)
        news = {key: size for key, size in came.items() if self.known.get(key) != size}
        self.known |= news
        return news
