"""The table of shares: whose jobs each share is for, its weight, and what is kept for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lading.scheduling.accounting.who import Tenant, Who

# The share of jobs that match no share of the table.
OTHERS = "others"
# Seconds after which past use counts half.
HALF_LIFE = 86400.0


class ShareAmounts(NamedTuple):
    """Amounts of everything that shares are counted by: cpus, MiB of memory, GPUs, machines, and USD per hour.

    A job on part of a machine counts as that fraction of a machine: the largest of its fractions of any resource.
    """

    cpus: float = 0.0
    memory: float = 0.0
    gpus: float = 0.0
    machines: float = 0.0
    usd_per_hour: float = 0.0

    def plus(self, other: Sequence[float]) -> ShareAmounts:
        return ShareAmounts(*[a + b for a, b in zip(self, other, strict=True)])


NONE_USED = ShareAmounts()


class Kept(NamedTuple):
    """What is kept for a share.

    :param site: where; None: over all sites together
    :param amounts: by the names of the fields of :class:`ShareAmounts`
    """

    site: str | None
    amounts: Mapping[str, float]

    @property
    def most(self) -> tuple[float | None, ...]:
        """The amounts in the order of the fields; None: not given."""
        return tuple(self.amounts.get(name) for name in ShareAmounts._fields)


@dataclass(frozen=True, slots=True)
class Share:
    """One share.

    :param name: unique
    :param who: whose jobs it is for
    :param weight: relative to the weights of all shares that compete for the same resources
    :param kept: what its jobs get before all others
    :param lends: whether other shares can use what is kept for it while it does not
    :param borrows: whether it can use more than is kept for it or, if nothing is, more than its part by weight
    """

    name: str
    who: Who = Who()  # noqa: RUF009 (frozen)
    weight: float = 1.0
    kept: tuple[Kept, ...] = ()
    lends: bool = True
    borrows: bool = True


@dataclass(frozen=True, slots=True)
class Shares:
    """All shares, in the order of their table. Without a table each Dag has a share of its own.

    :param table: the first share that matches a job is its share
    :param half_life: seconds after which past use counts half; only used with a table
    """

    table: tuple[Share, ...] = ()
    half_life: float = HALF_LIFE
    _known: dict[Tenant, str] = field(default_factory=dict, compare=False, repr=False)

    def share_of(self, tenant: Tenant) -> str:
        if not self.table:
            return tenant.dag_id or OTHERS
        if (known := self._known.get(tenant)) is None:
            found = (each.name for each in self.table if each.who.meets(tenant))
            known = self._known[tenant] = next(found, OTHERS)
        return known

    def get(self, name: str) -> Share:
        """Return a share by name; a name outside the table gets a default share."""
        return next((each for each in self.table if each.name == name), None) or Share(name)

    @property
    def has_bounds(self) -> bool:
        return any(not (each.lends and each.borrows) for each in self.table)
