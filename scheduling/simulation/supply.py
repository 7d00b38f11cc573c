"""Supply: what a simulated site has on sale, which has none of some offerings for a while."""

from __future__ import annotations

from dataclasses import replace

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.plan import PlannedLaunch


class KnownSupply:
    """What is on sale as far as it is known, as the simulation proceeds.

    :param catalogue: what there is without them
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._until: dict[tuple[str, str, str | None], float] = {}

    def ran_out(self, launch: PlannedLaunch, until: float) -> None:
        """There was none for a launch, and the planner leaves its offering alone until then."""
        self._until[launch.instance_type, launch.capacity_type, launch.zone] = until

    def available(self, now: float) -> Catalogue:
        """The catalogue with what is known of missing capacity."""
        self._until = {offering: until for offering, until in self._until.items() if until > now}
        if not self._until:
            return self.catalogue
        types = dict(self.catalogue.types)
        for name in {name for name, _, _ in self._until}:
            kind = types[name]
            offerings = tuple(
                replace(o, unavailable_until=self._until.get((name, o.capacity_type, o.zone), o.unavailable_until))
                for o in kind.offerings
            )
            types[name] = replace(kind, offerings=offerings)
        return Catalogue(types)
