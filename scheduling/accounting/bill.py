"""The parts of a bill: used, requested but unused, idle, and booting; and what it is extrapolated to. Pure.

Parts are cpu-seconds, and USD where there is a price.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PARTS = ("used", "unused", "idle", "boot")
USD_PARTS = tuple(f"usd_{name}" for name in PARTS)


@dataclass(slots=True)
class BillParts:
    """The four parts of a sum: ``used`` and ``unused`` were requested by jobs, ``idle`` and ``boot`` by none.

    :param jobs: the number of jobs
    :param failed: how many of them failed
    """

    jobs: int = 0
    failed: int = 0
    used: float = 0.0
    unused: float = 0.0
    idle: float = 0.0
    boot: float = 0.0
    usd_used: float = 0.0
    usd_unused: float = 0.0
    usd_idle: float = 0.0
    usd_boot: float = 0.0
    # Whether any part has a price.
    is_priced: bool = False

    def add(self, other: BillParts) -> None:
        self.jobs += other.jobs
        self.failed += other.failed
        self.used += other.used
        self.unused += other.unused
        self.idle += other.idle
        self.boot += other.boot
        self.usd_used += other.usd_used
        self.usd_unused += other.usd_unused
        self.usd_idle += other.usd_idle
        self.usd_boot += other.usd_boot
        self.is_priced = self.is_priced or other.is_priced

    def less(self, other: BillParts) -> BillParts:
        """The sum without a part of it."""
        left = {name: max(0.0, getattr(self, name) - getattr(other, name)) for name in (*PARTS, *USD_PARTS)}
        return BillParts(
            self.jobs - other.jobs,
            self.failed - other.failed,
            **left,
            is_priced=self.is_priced and any(each > 1e-9 for each in left.values()),
        )

    @property
    def cpu_seconds(self) -> float:
        return self.used + self.unused + self.idle + self.boot

    @property
    def usd(self) -> float | None:
        """The total; None: nothing of it has a price."""
        return self.usd_used + self.usd_unused + self.usd_idle + self.usd_boot if self.is_priced else None


@dataclass(frozen=True, slots=True)
class SpendingOutlook:
    """An amount spent until a time, and what is spent from then on: the present rate for as long as the running and
    waiting jobs last, then the mean rate.

    :param per_hour: the mean rate
    :param at: epoch seconds
    :param present: the present rate, per hour
    :param hours: how long the running and waiting jobs last, see :func:`hours_of_work`
    """

    spent: float
    per_hour: float
    at: float
    present: float = 0.0
    hours: float = 0.0

    @classmethod
    def mean(cls, spent: float, since: float, at: float, present: float = 0.0, hours: float = 0.0) -> SpendingOutlook:
        """Return what was spent from a time until ``at``, today included, and its mean rate.

        Less than an hour counts as an hour, so that the first job of a period does not predict a huge bill.
        """
        return cls(spent, spent / max(1.0, (at - since) / 3600), at, present, hours)

    def by(self, until: float) -> float:
        """Return what will have been spent by a later time."""
        hours = (until - self.at) / 3600
        busy = min(hours, self.hours)
        return self.spent + self.present * busy + self.per_hour * (hours - busy)

    def reaches(self, amount: float) -> float | None:
        """Return when an amount will have been spent, at the earliest ``at``; None: never."""
        left = max(0.0, amount - self.spent)
        if not left:
            return self.at
        in_work = self.present * self.hours
        if left <= in_work:
            return self.at + left / self.present * 3600
        return self.at + (self.hours + (left - in_work) / self.per_hour) * 3600 if self.per_hour > 0 else None


def hours_of_work(cpu_hours: float, cpus: float) -> float:
    """Return how long the running and waiting jobs last if as many cpus stay at work as now; 0 if nothing runs, because
    nothing is known then about how fast they will be done.

    :param cpu_hours: what these jobs are still expected to use
    :param cpus: of the running jobs
    """
    return cpu_hours / cpus if cpus > 0 else 0.0


def total(each: Iterable[BillParts]) -> BillParts:
    found = BillParts()
    for amounts in each:
        found.add(amounts)
    return found
