"""Chargeback: a bill divided among those who pay, in rows whose cents add up to the total. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from lading.scheduling.accounting.bill import BillParts

K = TypeVar("K", bound=Hashable)
Kind = Literal["jobs", "idle", "boot"]


class Charge(NamedTuple):
    """One row.

    :param kind: ``jobs``: charges of jobs; ``idle``: machines while no job had them; ``boot``: machines until they were
        up
    :param name: a team, Dag, owner or site; None: jobs without one, or machines that belong to none of them
    :param cpu_hours: requested by jobs while they ran, or of machines
    :param usd: None: nothing of it has a price
    """

    kind: Kind
    name: str | None
    jobs: int
    failed: int
    cpu_hours: float
    usd: float | None


# The name for several names.
SHARED = "shared"


def only(names: Iterable[str | None]) -> str | None:
    """The common name; :data:`SHARED` if there are several; None if there is none."""
    found = {*names}
    return SHARED if len(found) > 1 else next(iter(found), None)


def charges(bill: Mapping[str | None, BillParts]) -> list[Charge]:
    """The rows of a bill, jobs first, then by cost; USD in whole cents that add up to the total.

    :param bill: by the name that is charged; uncharged parts of machines under the same name, or under None
    """
    rows: dict[tuple[Kind, str | None], Charge] = {}
    exact: dict[tuple[Kind, str | None], float] = {}
    for name, parts in bill.items():
        of_jobs, of_idle, of_boot = parts.usd_used + parts.usd_unused, parts.usd_idle, parts.usd_boot
        amounts: list[tuple[Kind, float, float]] = [
            ("jobs", parts.used + parts.unused, of_jobs),
            ("idle", parts.idle, of_idle),
            ("boot", parts.boot, of_boot),
        ]
        for kind, seconds, usd in amounts:
            jobs, failed = (parts.jobs, parts.failed) if kind == "jobs" else (0, 0)
            if not (jobs or seconds or usd):
                continue
            key = kind, name
            rows[key] = Charge(kind, name, jobs, failed, seconds / 3600, None)
            if parts.is_priced:
                exact[key] = usd
    cents = rounded(exact)
    made = [row._replace(usd=cents.get(key)) for key, row in rows.items()]
    order: Sequence[Kind] = ("jobs", "idle", "boot")
    return sorted(made, key=lambda row: (order.index(row.kind), -(row.usd or 0.0), -row.cpu_hours, row.name or ""))


def rounded(amounts: Mapping[K, float], digits: int = 2) -> dict[K, float]:  # invoices are in cents
    """Round amounts to ``digits`` digits such that they add up to the rounded total. The remainder goes to the amounts
    that lose most by rounding down."""
    unit = 10**digits
    floors = {key: math.floor(amount * unit + 1e-9) for key, amount in amounts.items()}
    missing = round(math.fsum(amounts.values()) * unit) - sum(floors.values())
    by_loss = sorted(amounts, key=lambda key: floors[key] - amounts[key] * unit)
    for key in by_loss[: max(0, missing)]:
        floors[key] += 1
    return {key: amount / unit for key, amount in floors.items()}
