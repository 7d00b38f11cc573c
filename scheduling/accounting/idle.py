"""What the idle cpus of sites cost, and which settings would halve that. Pure.

Idle cpus are those of machines that are up which no job requested: on idle machines, which have no job, and on busy
ones. Amounts are USD, or cpu-hours where nothing has a price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

# Shorter values of idle_seconds that are compared, as fractions of the present one.
FRACTIONS = (0.5, 0.25, 0.1, 0.0)
# Kinds of sites whose machines Lading neither launches nor releases.
FIXED = ("local", "ssh")


@dataclass(frozen=True, slots=True)
class IdleCost:
    """The idle cpus of a site within a time range.

    :param kind: of the site
    :param cost: of all its idle cpus
    :param idle_seconds: the setting; None: it launches no machines, or its controller has not stored it yet
    :param machines: how many were released after being idle; if there are none, savings are unknown
    :param saved: what each of ``FRACTIONS`` of the setting would have saved
    """

    site: str
    kind: str
    cost: float
    idle_seconds: float | None = None
    machines: int = 0
    saved: Sequence[float] = ()

    @property
    def is_fixed(self) -> bool:
        return self.kind in FIXED

    @property
    def is_measured(self) -> bool:
        """Whether it is known what a shorter ``idle_seconds`` would have saved."""
        return bool(self.idle_seconds and self.machines)


@dataclass(frozen=True, slots=True)
class IdleChange:
    """A site's ``idle_seconds``, its proposed value, and what that would have saved."""

    site: str
    now: float
    then: float
    saved: float


class RestKind(str, Enum):
    """Why no setting is known to save a part of the cost."""

    BUSY = "busy"
    """Idle cpus of machines that also ran jobs, or were idle only between two jobs."""
    FIXED = "fixed"
    """Machines that Lading does not release."""
    UNKNOWN = "unknown"
    """No machine was released after being idle, so nothing was measured."""
    OTHER = "other"
    """It belongs to no site that is still recorded."""


@dataclass(frozen=True, slots=True)
class IdleRest:
    """A part of the cost that no setting is known to save; the most expensive site comes first."""

    kind: RestKind
    sites: tuple[str, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class IdleAdvice:
    """The settings that halve the cost of idle cpus, largest saving first, or that save as much as settings can.

    :param cost: of all idle cpus
    :param saved: what the changes would have saved together
    :param is_halved: whether they would have saved at least half
    :param rest: what they would not have saved, largest part first; empty if they save half
    """

    cost: float
    changes: tuple[IdleChange, ...]
    saved: float
    is_halved: bool
    rest: tuple[IdleRest, ...]


def halve(sites: Sequence[IdleCost], whole: float) -> IdleAdvice | None:
    """Decide which settings to change; None: nothing was idle.

    ``idle_seconds`` is lowered by the same factor at all sites: the mildest of ``FRACTIONS`` that halves the cost, or 0
    if none does. Sites that are not needed to reach half are left out.

    :param sites: those with idle cpus
    :param whole: the cost of all idle cpus
    """
    if whole <= 0:
        return None
    measured = [site for site in sites if site.is_measured]
    changes: tuple[IdleChange, ...] = ()
    saved = 0.0
    for number in range(len(FRACTIONS)):
        changes = _changes(measured, number, whole / 2)
        saved = sum(change.saved for change in changes)
        if 2 * saved >= whole:
            return IdleAdvice(whole, changes, saved, True, ())
    return IdleAdvice(whole, changes, saved, False, _rest(sites, changes, whole))


def _changes(measured: Sequence[IdleCost], number: int, enough: float) -> tuple[IdleChange, ...]:
    """Lower ``idle_seconds`` to one of ``FRACTIONS``, where most is saved first, until enough is saved."""
    changes: list[IdleChange] = []
    for site in sorted(measured, key=lambda each: (-each.saved[number], each.site)):
        if site.saved[number] > 0 and sum(change.saved for change in changes) < enough:
            now = site.idle_seconds or 0.0
            changes.append(IdleChange(site.site, now, now * FRACTIONS[number], site.saved[number]))
    return tuple(changes)


def _rest(sites: Sequence[IdleCost], changes: Sequence[IdleChange], whole: float) -> tuple[IdleRest, ...]:
    saved = {change.site: change.saved for change in changes}
    left = {site.site: max(0.0, site.cost - saved.get(site.site, 0.0)) for site in sites}
    parts = []
    for kind in (RestKind.BUSY, RestKind.FIXED, RestKind.UNKNOWN):
        here = [site.site for site in sites if _kind(site) == kind and left[site.site] > 0.005 * whole]
        here.sort(key=lambda name: (-left[name], name))
        parts.append(IdleRest(kind, tuple(here), sum(left[name] for name in here)))
    parts.append(IdleRest(RestKind.OTHER, (), whole - sum(site.cost for site in sites)))
    # Less than this part of the cost is not worth a line.
    found = [part for part in parts if part.cost > 0.005 * whole]
    return tuple(sorted(found, key=lambda part: -part.cost))


def _kind(site: IdleCost) -> RestKind:
    if site.is_fixed:
        return RestKind.FIXED
    return RestKind.BUSY if site.is_measured or site.idle_seconds == 0 else RestKind.UNKNOWN
