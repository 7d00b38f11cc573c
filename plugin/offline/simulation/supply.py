"""What a simulated site has on sale, given that some offerings run out for a while."""

from __future__ import annotations

from dataclasses import replace

from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.plan import PlannedLaunch


class KnownSupply:
    """The offerings that are on sale, as far as the planner knows.

    :param catalogue: all offerings
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = self._available = catalogue
        self._until: dict[tuple[str, str, str | None], float] = {}

    def ran_out(self, launch: PlannedLaunch, until: float) -> None:
        """Record that a launch failed for lack of capacity; the planner avoids its offering until then."""
        self._until[launch.instance_type, launch.capacity_type, launch.zone] = until
        self._available = self._with_shortages()

    def available(self, now: float) -> Catalogue:
        """The same object as before unless a shortage has begun or is over."""
        if any(until <= now for until in self._until.values()):
            self._until = {offering: until for offering, until in self._until.items() if until > now}
            self._available = self._with_shortages()
        return self._available

    def _with_shortages(self) -> Catalogue:
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
