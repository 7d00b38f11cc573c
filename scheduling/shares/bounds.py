"""What jobs of a share may not have though there is room: more than its own, where it does not borrow, and what another
share that does not lend keeps for itself. Pure, but that it counts what is given away.

Nothing that runs is ended: where a share has more than it may, it gets nothing until it has less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from lading.scheduling.job import Budget, HourBudget
from lading.scheduling.reasons import Reason, because
from lading.scheduling.shares.budgets import hours_promised, may_start
from lading.scheduling.shares.table import ShareAmounts, Shares
from lading.scheduling.shares.usage import Standing, entitled
from lading.scheduling.site_names import declared_name, is_named

TOLERANCE = 1e-6
# Reasons that say what a share has, and of all shares.
OWN_BOUNDS = ("share_bound", "share_by_weight")
OF_SHARES = (*OWN_BOUNDS, "share_closed")
# How each of the amounts is called, and by what it is divided where it is shown.
UNITS = (("cpus", 1.0), ("GiB of memory", 1024.0), ("GPUs", 1.0), ("machines", 1.0), ("USD per hour", 1.0))


class Bound(NamedTuple):
    """What the jobs of a share may have at most.

    :param site: there; None: over all sites together
    :param most: in the order of the fields of :class:`ShareAmounts`; None: any amount
    :param by_weight: whether that is the part that its weight gives it
    """

    site: str | None
    most: tuple[float | None, ...]
    by_weight: bool = False


class ShareBounds:
    """What is left for the jobs of each share.

    :param standing: what shares use; its total is what there can be, what may be launched included
    :param totals: the same by site
    :param priced: the sites at which each job costs something that none would cost
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
        """The same as it is now, whatever is given away of this one or of that."""
        found = ShareBounds(self._shares, self._standing, self._totals, self._priced)
        found._used = {key: list(amounts) for key, amounts in self._used.items()}
        found._hours = dict(self._hours)
        return found

    def admits(self, share: str, site: str, need: ShareAmounts, budgets: Sequence[Budget] = ()) -> Reason | None:
        """Why a job may not go to a site; None: it may.

        :param need: what it takes there
        :param budgets: what launches for it are bounded by, as are jobs of a site that are each paid for
        """
        return self._unpaid(site, budgets) or self._beyond_own(share, site, need) or self._of_others(share, site, need)

    def out_of_hours(self, budgets: Sequence[HourBudget], hours: float) -> Reason | None:
        """The budget that has no cpu-hours left for a start; None: each has.

        :param hours: what will be used
        """
        for it in budgets:
            now = it._replace(promised=it.promised + self._hours.get(it.name, 0.0))
            if not may_start(now, hours):
                return hours_promised(now)
        return None

    def promise(self, budgets: Sequence[HourBudget], hours: float, times: int = 1) -> None:
        """A start is allowed that will use so many cpu-hours; with ``times = -1`` that is taken back."""
        for it in budgets:
            self._hours[it.name] = self._hours.get(it.name, 0.0) + times * hours

    def _unpaid(self, site: str, budgets: Sequence[Budget]) -> Reason | None:
        """The budget that does not pay for one more job of a site; None: each does, or it costs nothing."""
        for it in budgets if site in self._priced else ():
            if it.until is not None and it.spent >= it.most:
                said = {"spent": it.said_spent, "most": it.most, "until": it.until}
                return because("budget_spent", budget=it.name, **said).at(site)
        return None

    def _beyond_own(self, share: str, site: str, need: ShareAmounts) -> Reason | None:
        """What a share that does not borrow has too little of; None: it has enough."""
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
        """What others keep for themselves; None: there is more than that."""
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
        """A job of a share is given to a site; with ``times = -1`` that is taken back."""
        for name in (share, ""):
            for where in {site, declared_name(site), None}:
                used = self._use(share, where) if name else self._all(where)
                for number, more in enumerate(need):
                    used[number] += times * more

    def as_now(self, reason: Reason) -> Reason:
        """A reason of :meth:`admits` with what its share has now, where it was found with more given to it."""
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
