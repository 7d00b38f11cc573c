"""What the idle machines of sites cost, and which settings would halve that. Pure.

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

    @property
    def is_measured(self) -> bool:
        """Whether it is known what a shorter ``idle_seconds`` would have saved."""
        return self.choice is not None

    def remedy(self) -> str:
        """Return a sentence with the setting that halves the cost, its present and proposed value, and the saving."""
        if self.kind in FIXED:
            return (
                f"Machines of {self.site} cost the same with or without jobs: send more jobs to this site "
                "(accept_untargeted, or the hint site)."
            )
        machines = "machines" if self.kind == "ec2" else "allocations"
        fewer = f'Set hurry of {self.site} to "cheap", so that Lading uses fewer {machines} for longer'
        if self.idle_seconds is None:
            return f"Lower idle_seconds of {self.site}. {fewer}."
        if not self.idle_seconds:
            return f"{fewer}. Its idle_seconds is 0 already."
        if self.choice is None:
            change = _change(self.site, self.idle_seconds, self.idle_seconds / 2)
            return f"{change}. What that saves is unknown: no idle machine was released in this time."
        saved = self.saved[self.choice]
        percent = 100 * saved / self.cost if self.cost else 0
        part = f"{written(saved, in_usd=self.in_usd)}, {percent:.0f} % of its idle cost"
        change = _change(self.site, self.idle_seconds, self.idle_seconds * FRACTIONS[self.choice])
        if 2 * saved >= self.cost:
            return f"{change}: this would have saved {part}."
        return (
            f"{fewer}: most idle cpus are on {machines} that also run jobs. Even idle_seconds = 0 instead of "
            f"{format_count(self.idle_seconds)} would have saved only {part}."
        )


def written(amount: float, *, in_usd: bool) -> str:
    return f"${format_usd(amount)}" if in_usd else f"{format_count(amount)} cpu-hours"


def _change(site: str, now: float, then: float) -> str:
    return f"Lower idle_seconds of {site} {_from_to(now, then)}"


def _from_to(now: float, then: float) -> str:
    return f"from {format_count(now)} to {format_count(then)}"


def halve(sites: Sequence[IdleCost], whole: float) -> str:
    """Return sentences with the settings that together halve the cost of all idle machines. If no settings do, they say
    how much can be saved at most, and what saves more.

    ``idle_seconds`` is lowered by the same factor at all sites, one of ``FRACTIONS``: the largest that suffices. Sites
    that are not needed to reach half are left out.

    :param sites: those with idle machines
    :param whole: the idle cost of all of them together
    """
    if not sites or whole <= 0:
        return ""
    in_usd, measured = sites[0].in_usd, [site for site in sites if site.is_measured]

    def part(saved: float) -> str:
        of = written(whole, in_usd=in_usd)
        return f"{written(saved, in_usd=in_usd)}, {100 * saved / whole:.0f} % of {of}"

    for number, fraction in enumerate(FRACTIONS):
        chosen: list[IdleCost] = []
        for site in sorted(measured, key=lambda each: (-each.saved[number], each.site)):
            if 2 * _saved(chosen, number) < whole:
                chosen.append(site)
        if 2 * (saved := _saved(chosen, number)) >= whole:
            changes = [
                f"of {site.site} {_from_to(now, fraction * now)}" for site in chosen if (now := site.idle_seconds)
            ]
            return f"Lower idle_seconds {_listed(changes)}: this would have saved {part(saved)}."
    said = []
    last = len(FRACTIONS) - 1
    if effective := [site for site in measured if site.saved[last] > 0]:
        names = _listed([site.site for site in effective])
        said.append(f"Even idle_seconds = 0 at {names} would have saved only {part(_saved(effective, last))}.")
    else:
        said.append(f"No idle_seconds is known to save any of {written(whole, in_usd=in_usd)}.")
    if unknown := [site.site for site in sites if site.idle_seconds and not site.is_measured]:
        said.append(
            f"What lowering it at {_listed(unknown)} saves is unknown: no idle machine was released in this time."
        )
    more = []
    if bought := [site.site for site in sites if site.kind not in FIXED]:
        more.append(f'set hurry = "cheap" at {_listed(bought)}, which uses fewer machines for longer')
    if fixed := [site.site for site in sites if site.kind in FIXED]:
        more.append(f"send more jobs to {_listed(fixed)}, whose machines cost the same without jobs")
    return " ".join([*said, f"To save more, {', or '.join(more)}."])


def _saved(sites: Sequence[IdleCost], number: int) -> float:
    return sum(site.saved[number] for site in sites)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
