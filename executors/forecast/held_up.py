"""The steps that should have started or been queued by now, and those of them that are held up."""

from __future__ import annotations

from collections.abc import Mapping

from lading.scheduling.forecast.coming import SiteForecast

# A step that could have started for this many seconds is held up: Airflow and Lading are faster than that.
SECONDS_UNTIL_HELD_UP = 15.0


class HeldUpSteps:
    """Since when each step of a site could have started or been queued."""

    def __init__(self) -> None:
        self.since: Mapping[str, float] = {}

    def update(self, its: SiteForecast, now: float) -> tuple[list[str], list[str]]:
        """Return the steps that could have started or been queued but have not, and those of them that are held up.

        A step is held up by something unknown here: a pool filled by other Dags, the time until a retry, an earlier
        run, a site without room. Steps waiting for room at another site for no longer than predicted are excluded.
        """
        names = [name for name in its.unqueued() if not its.forecast.steps[name].waits_for_room(now)]
        self.since = {name: self.since.get(name, now) for name in names}
        return names, [name for name in names if now - self.since[name] >= SECONDS_UNTIL_HELD_UP]
