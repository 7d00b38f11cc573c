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
class SpendingRate:
    """An amount spent until a time, and the rate from then on.

    :param at: epoch seconds
    """

    spent: float
    per_hour: float
    at: float

    @classmethod
    def mean(cls, spent: float, since: float, at: float) -> SpendingRate:
        """Return what was spent from a time until ``at``, today included, and its mean rate.

        Less than an hour counts as an hour, so that the first job of a period does not predict a huge bill.
        """
        return cls(spent, spent / max(1.0, (at - since) / 3600), at)

    def by(self, until: float) -> float:
        """Return what will have been spent by a later time."""
        return self.spent + self.per_hour * (until - self.at) / 3600

    def reaches(self, amount: float) -> float | None:
        """Return when an amount will have been spent, at the earliest ``at``; None: never."""
        left = max(0.0, amount - self.spent)
        if self.per_hour <= 0:
            return None if left else self.at
        return self.at + left / self.per_hour * 3600


def total(each: Iterable[BillParts]) -> BillParts:
    found = BillParts()
    for amounts in each:
        found.add(amounts)
    return found
