"""Which steps could have begun or been queued, and which of them are held up, from tick to tick."""

from __future__ import annotations

from collections.abc import Mapping

from lading.scheduling.forecast.coming import SiteForecast

# A step that could have begun or been queued for so long is held up, seconds: Airflow and Lading act sooner.
SECONDS_UNTIL_HELD_UP = 15.0


class HeldUpSteps:
    """The steps of one site that could have begun or been queued, each since when."""

    def __init__(self) -> None:
        self.since: Mapping[str, float] = {}

    def update(self, its: SiteForecast, now: float) -> tuple[list[str], list[str]]:
        """The steps that could have begun or been queued lately, and those that are held up by something that is not
        known here: a full pool that others fill, the time until a retry, an earlier run, a site without room. What
        waits for room elsewhere, for as long as is expected, is none of them."""
        names = [name for name in its.unqueued() if not its.forecast.steps[name].waits_for_room(now)]
        self.since = {name: self.since.get(name, now) for name in names}
        return names, [name for name in names if now - self.since[name] >= SECONDS_UNTIL_HELD_UP]
