"""Shares: whose jobs they are for, how much of what there is belongs to each, and what is kept for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lading.scheduling.shares.who import Tenant, Who

# What jobs have that no share of the table is for.
OTHERS = "others"
# Seconds after which what a share has used counts half.
HALF_LIFE = 86400.0


class ShareAmounts(NamedTuple):
    """ShareAmounts of all that shares are counted by: cpus, MiB of memory, GPUs, machines, and USD per hour.

    A job that has a part of a machine counts as that part: the largest of its parts of any resource.
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

    :param site: there; None: over all sites together
    :param amounts: by the names of the fields of :class:`ShareAmounts`
    """

    site: str | None
    amounts: Mapping[str, float]

    @property
    def most(self) -> tuple[float | None, ...]:
        """The same in the order of the fields; None: nothing is said of that."""
        return tuple(self.amounts.get(name) for name in ShareAmounts._fields)


@dataclass(frozen=True, slots=True)
class Share:
    """One share.

    :param name: unique
    :param who: whose jobs it is for
    :param weight: of what is contended for, it gets as much as its weight is of those of all that contend
    :param kept: what it has before all others while it has jobs for it
    :param lends: whether others may use what is kept for it and it does not use now
    :param borrows: whether it may use more than what is kept for it; where nothing is, than its part by weight
    """

    name: str
    who: Who = Who()  # noqa: RUF009 (frozen)
    weight: float = 1.0
    kept: tuple[Kept, ...] = ()
    lends: bool = True
    borrows: bool = True


@dataclass(frozen=True, slots=True)
class Shares:
    """All shares, in the order of their table. Without a table each Dag has one of its own.

    :param table: the first that is for a job counts
    :param half_life: seconds after which what was used counts half; it counts where there is a table
    """

    table: tuple[Share, ...] = ()
    half_life: float = HALF_LIFE
    _known: dict[Tenant, str] = field(default_factory=dict, compare=False, repr=False)

    def share_of(self, tenant: Tenant) -> str:
        """The name of the share of a job."""
        if not self.table:
            return tenant.dag_id or OTHERS
        if (known := self._known.get(tenant)) is None:
            found = (each.name for each in self.table if each.who.meets(tenant))
            known = self._known[tenant] = next(found, OTHERS)
        return known

    def get(self, name: str) -> Share:
        """The share of a name, also of one that the table does not have."""
        return next((each for each in self.table if each.name == name), None) or Share(name)

    @property
    def has_bounds(self) -> bool:
        """Whether any of them limits what jobs may use."""
        return any(not (each.lends and each.borrows) for each in self.table)
