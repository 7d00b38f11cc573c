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
        """Look at the machines that have come up; returns what was not known of them.

        One that has booted from another image than is launched now says nothing of that.
        """
        market = observation.market
        if not isinstance(market, MachineMarket):
            return {}
        up = {each.name: each for each in observation.locations if each.state == LocationState.UP}
        self._names &= up.keys()
        came = {}
        for name, each in up.items():
            it, image = each.location, market.images.get(each.location.arch or "", "")
            if name not in self._names and each.image in (None, image.partition(" ")[0]):
                self._names.add(name)
                came[str(it.instance_type), image] = it.capacity
        news = {key: size for key, size in came.items() if self.known.get(key) != size}
        self.known |= news
        return news
