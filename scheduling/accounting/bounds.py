"""The bounds of shares: the room that their jobs do not get although it is free.

A share with ``borrow = false`` gets no more than its own part. No other share gets what is reserved for a share with
``lend = false``. Running jobs are never stopped: a share above its bound gets nothing more until it is below it.
Pure, except that :class:`ShareBounds` counts what is given away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from lading.scheduling.accounting.budgets import hours_promised, may_start
from lading.scheduling.accounting.share_table import ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing, entitled
from lading.scheduling.model.job import Budget, HourBudget
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.site_names import declared_name, is_named

TOLERANCE = 1e-6
# The reasons that quote a share's own use, and all reasons that concern shares.
OWN_BOUNDS = ("share_bound", "share_by_weight")
OF_SHARES = (*OWN_BOUNDS, "share_closed")
# The displayed name of each amount, and the divisor that converts it to that unit.
UNITS = (("cpus", 1.0), ("GiB of memory", 1024.0), ("GPUs", 1.0), ("machines", 1.0), ("USD per hour", 1.0))


class Bound(NamedTuple):
    """The most that the jobs of a share can have.

    :param site: where it applies; None: over all sites together
    :param most: in the order of the fields of :class:`ShareAmounts`; None: no limit
    :param by_weight: whether the bound follows from the share's weight
    """

    site: str | None
    most: tuple[float | None, ...]
    by_weight: bool = False


class ShareBounds:
    """Tracks what is left for the jobs of each share.

    :param standing: what shares use; its total is the possible capacity, including what can be launched
    :param totals: the possible capacity by site
    :param priced: the sites where each job has a cost of its own
    """

    def __init__(
        self,
        shares: Shares,
        standing: Standing,
        totals: Mapping[str, ShareAmounts],
        priced: Collection[str] = frozenset(),
    ) -> None:
        self._priced = priced
        self._used: dict[tuple[str, str | None], list[float]] = {}
        self._hours: dict[str, float] = {}
        self._standing, self._totals = standing, totals
        self._of: dict[str, list[Bound]] = {}
        self._shares = shares
        self._closed = [each for each in shares.table if not each.lends and each.kept]
        self._parts = entitled(shares, standing.used)

    def anew(self) -> ShareBounds:
        """Return an independent copy; what either gives away later does not count for the other."""
        found = ShareBounds(self._shares, self._standing, self._totals, self._priced)
        found._used = {key: list(amounts) for key, amounts in self._used.items()}
        found._hours = dict(self._hours)
        return found

    def admits(self, share: str, site: str, need: ShareAmounts, budgets: Sequence[Budget] = ()) -> Reason | None:
        """Return why a job cannot go to a site; None if it can.

        :param need: what it takes there
        :param budgets: the budgets that bound launches for it, and starts at sites where each job costs money
        """
        return self._unpaid(site, budgets) or self._beyond_own(share, site, need) or self._of_others(share, site, need)

    def out_of_hours(self, budgets: Sequence[HourBudget], hours: float) -> Reason | None:
        """Return the reason of the first budget without enough cpu-hours for a start; None if all have enough.

        :param hours: the cpu-hours that the job will use
        """
        for it in budgets:
            now = it._replace(promised=it.promised + self._hours.get(it.name, 0.0))
            if not may_start(now, hours):
                return hours_promised(now)
        return None

    def promise(self, budgets: Sequence[HourBudget], hours: float, times: int = 1) -> None:
        """Count the cpu-hours that a permitted start will use; ``times = -1`` takes this back."""
        for it in budgets:
            self._hours[it.name] = self._hours.get(it.name, 0.0) + times * hours

    def _unpaid(self, site: str, budgets: Sequence[Budget]) -> Reason | None:
        """Return which budget cannot pay for another job at a site, as a reason; None: all can."""
        for it in budgets if site in self._priced else ():
            if it.until is not None and it.spent >= it.most:
                said = {"spent": it.said_spent, "most": it.most, "until": it.until}
                return because("budget_spent", budget=it.name, **said).at(site)
        return None

    def _beyond_own(self, share: str, site: str, need: ShareAmounts) -> Reason | None:
        """Return which bound of its own share the job would exceed, as a reason; None: none."""
        for bound in self._bounds(share):
            if bound.site is not None and not is_named(site, bound.site):
                continue
            used = self._use(share, bound.site)
            for number, (most, have, more) in enumerate(zip(bound.most, used, need, strict=True)):
                if most is not None and more > 0 and have + more > most + TOLERANCE:
                    what, unit = UNITS[number]
                    said = {"used": round(have / unit, 2), "most": round(most / unit, 2), "what": what}
                    if bound.by_weight:
                        return _at(because("share_by_weight", share=share, **said), bound.site)
                    return _at(because("share_bound", share=share, **said), bound.site)
        return None

    def _of_others(self, share: str, site: str, need: ShareAmounts) -> Reason | None:
        """Return which other share's reserve the job would use, as a reason; None: none."""
        for other in self._closed:
            for kept in other.kept if other.name != share else ():
                if kept.site is not None and not is_named(site, kept.site):
                    continue
                total = self._total(kept.site)
                theirs, taken = self._use(other.name, kept.site), self._all(kept.site)
                for number, most in enumerate(kept.most):
                    if most is None or need[number] <= 0:
                        continue
                    left = total[number] - taken[number] - max(0.0, most - theirs[number])
                    if need[number] > left + TOLERANCE:
                        what, unit = UNITS[number]
                        found = because("share_closed", share=other.name, most=round(most / unit, 2), what=what)
                        return _at(found, kept.site)
        return None

    def put(self, share: str, site: str, need: ShareAmounts, times: int = 1) -> None:
        """Count a job of a share as given to a site; ``times = -1`` takes this back."""
        for name in (share, ""):
            for where in {site, declared_name(site), None}:
                used = self._use(share, where) if name else self._all(where)
                for number, more in enumerate(need):
                    used[number] += times * more

    def as_now(self, reason: Reason) -> Reason:
        """Update the use quoted in a reason of :meth:`admits`, which can include jobs that got no place after all."""
        params = dict(reason.params)
        if reason.code not in OWN_BOUNDS:
            return reason
        number, unit = next((number, unit) for number, (name, unit) in enumerate(UNITS) if name == params["what"])
        have = self._use(str(params["share"]), reason.site)[number]
        return because(reason.code, **{**params, "used": round(have / unit, 2)})

    def _bounds(self, name: str) -> list[Bound]:
        if (known := self._of.get(name)) is None:
            known = self._of[name] = list(self._made(name))
        return known

    def _made(self, name: str) -> Iterable[Bound]:
        share = self._shares.get(name)
        if share.borrows:
            return
        if not share.kept:
            part = self._parts.get(name, 0.0)
            yield Bound(None, (*(part * each for each in self._standing.total[:3]), None, None), by_weight=True)
            return
        yield from (Bound(each.site, each.most) for each in share.kept)
        if all(each.site is not None for each in share.kept):
            nothing = (0.0, 0.0, 0.0, None, None)
            for site in self._totals:
                if not any(is_named(site, each.site) for each in share.kept):
                    yield Bound(site, nothing)

    def _use(self, share: str, site: str | None) -> list[float]:
        key = share, site
        if (known := self._used.get(key)) is None:
            known = self._used[key] = list(self._standing.used_by(share, site))
        return known

    def _all(self, site: str | None) -> list[float]:
        key = "", site
        if (known := self._used.get(key)) is None:
            every = [self._standing.used_by(share, site) for share in self._standing.used]
            known = self._used[key] = [sum(some) for some in zip(*every, strict=True)] or [0.0] * len(
                ShareAmounts._fields
            )
        return known

    def _total(self, site: str | None) -> ShareAmounts:
        if site is None:
            return self._standing.total
        there = [total for name, total in self._totals.items() if is_named(name, site)]
        return ShareAmounts(*map(sum, zip(*there, strict=True))) if there else ShareAmounts()


def _at(reason: Reason, site: str | None) -> Reason:
    return reason if site is None else reason.at(site)
