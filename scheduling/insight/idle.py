"""What a site's idle machines cost, and which setting would halve that. Pure.

Amounts are USD, or cpu-hours where nothing has a price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lading.scheduling.text.units import format_count, format_usd

# Shorter values of idle_seconds that are compared, as fractions of the present one.
FRACTIONS = (0.5, 0.25, 0.1, 0.0)
# Kinds of sites whose machines Lading neither launches nor releases.
FIXED = ("local", "ssh")


@dataclass(frozen=True, slots=True)
class IdleCost:
    """The idle machines of a site within a time range.

    :param kind: of the site
    :param cost: all idle time, also that between jobs
    :param in_usd: whether amounts are USD
    :param idle_seconds: the setting; None: it launches no machines, or its controller has not stored it yet
    :param machines: how many were released after being idle; if there are none, savings are unknown
    :param saved: what each of ``FRACTIONS`` of the setting would have saved
    """

    site: str
    kind: str
    cost: float
    in_usd: bool
    idle_seconds: float | None = None
    machines: int = 0
    saved: Sequence[float] = ()

    @property
    def choice(self) -> int | None:
        """The position of the longest setting that halves the cost, or of the shortest if none does; None: unknown."""
        if not self.idle_seconds or not self.machines:
            return None
        halving = (number for number, saved in enumerate(self.saved) if 2 * saved >= self.cost)
        return next(halving, len(FRACTIONS) - 1)

    @property
    def proposed(self) -> float | None:
        """The proposed ``idle_seconds``; None: unknown."""
        return None if self.choice is None or self.idle_seconds is None else self.idle_seconds * FRACTIONS[self.choice]

    def remedy(self) -> str:
        """Say which setting halves the cost, from which value to which, and what that would have saved."""
        if self.kind in FIXED:
            return (
                f"Machines of {self.site} cost the same with or without jobs: send more jobs to this site "
                "(accept_untargeted, or the hint site)."
            )
        them = "machines" if self.kind == "ec2" else "allocations"
        fewer = f'Set hurry of {self.site} to "cheap", so that Lading uses fewer {them} for longer'
        if self.idle_seconds is None:
            return f"Lower idle_seconds of {self.site}. {fewer}."
        if not self.idle_seconds:
            return f"{fewer}. Its idle_seconds is 0 already."
        if self.choice is None:
            change = _change(self.site, self.idle_seconds, self.idle_seconds / 2)
            return f"{change}. What that saves is unknown: no idle machine was released in this time."
        saved = self.saved[self.choice]
        part = f"{self._written(saved)}, {100 * saved / self.cost if self.cost else 0:.0f} % of its idle cost"
        change = _change(self.site, self.idle_seconds, self.idle_seconds * FRACTIONS[self.choice])
        if 2 * saved >= self.cost:
            return f"{change}: this would have saved {part}."
        return (
            f"{fewer}: most idle cpus are on {them} that also run jobs. Even idle_seconds = 0 instead of "
            f"{format_count(self.idle_seconds)} would have saved only {part}."
        )

    def _written(self, amount: float) -> str:
        return f"${format_usd(amount)}" if self.in_usd else f"{format_count(amount)} cpu-hours"


def _change(site: str, now: float, then: float) -> str:
    return f"Lower idle_seconds of {site} from {format_count(now)} to {format_count(then)}"
