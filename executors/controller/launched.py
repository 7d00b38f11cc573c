"""The instances launched at a site: their rows in the store, updated by what the site observes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lading.executors.controller.site_memory import MeasuredSizes, MissingSince
from lading.executors.store import Change, State, capacity, instances, queue
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.tables import as_name
from lading.hooks.batch.request import new_name
from lading.hooks.site import LocationState, Observation, ObservedLocation, Order
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import ON_DEMAND
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch, Provision
from lading.scheduling.provisioning.allocations import abandoned

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

GONE = because("machine_forgotten")

STATES = {
    LocationState.BOOTING: InstanceState.BOOTING,
    LocationState.UP: InstanceState.UP,
    LocationState.DRAINING: InstanceState.DRAINING,
}

Changes = dict[str, dict[str, Any]]


class Launched:
    """The store's instances of one site.

    :param site: its name
    :param cpu_hour: returns the price in USD of one cpu-hour of an instance of this capacity; None: unknown
    """

    seconds_until_gone = 60.0
    """Until an instance that is not seen was never launched, or has disappeared unnoticed."""

    def __init__(self, site: str, cpu_hour: Callable[[Resources], float | None] = lambda _: None) -> None:
        self.site = site
        self.cpu_hour = cpu_hour
        self.gone = MissingSince()
        self.sizes: MeasuredSizes | None = None
        self.ordered_for: dict[str, Sequence[str]] = {}
        """The jobs that each instance was ordered for, by the instance's token."""
        self.for_gangs: dict[str, Sequence[str]] = {}
        """The subset of ``ordered_for`` that was ordered only for members of gangs."""
        self.wanted: frozenset[str] = frozenset()
        """The members of gangs that the last decision launched instances for."""
        self.boots: Sequence[tuple[str, float]] | None = None
        """Instance type and boot time in seconds of the latest boots; None: not read yet."""
        self.promised: Mapping[str, str] = {}
        """The booting instance that has room for a waiting job, by the job's name."""

    def refresh(self, session: Session, seen: Sequence[ObservedLocation], is_new: bool) -> Sequence[InstanceRow]:
        """Update the instances by what the site sees of them.

        :param is_new: whether this observation has not been processed yet
        :returns: the live instances, oldest first, detached from the session
        """
        rows = instances.living(session, self.site)
        if is_new and (rows or seen):
            self._store_observation(session, rows, seen)
            rows = instances.living(session, self.site)
        session.expunge_all()
        # Forget orders whose instance has ended otherwise: they can no longer be refused.
        living = {row.token for row in rows}
        self.ordered_for = {token: jobs for token, jobs in self.ordered_for.items() if token in living}
        self.for_gangs = {token: jobs for token, jobs in self.for_gangs.items() if token in living}
        return rows

    def _store_observation(
        self, session: Session, rows: Sequence[InstanceRow], seen: Sequence[ObservedLocation]
    ) -> None:
        now, names = time.time(), {each.name for each in seen}
        if missing := names - {row.token for row in rows}:
            known = instances.known(session, missing)
            session.add_all(
                self._priced(stranger(self.site, each, now)) for each in seen if each.name in missing - known
            )
            # An instance recorded as ended that shows up after all would run unused, so it is revived, unless it is
            # draining anyway.
            back = (each for each in seen if each.name in known and each.state != LocationState.DRAINING)
            instances.revive(session, self.site, [each.name for each in back])
            session.flush()
            session.expire_all()
            rows = instances.living(session, self.site)
        gone = self.gone.update(row.token for row in rows if row.token not in names)
        found = changes(rows, seen, gone, now, self.seconds_until_gone)
        if any("ready_at" in values for values in found.values()):
            self.boots = None
        instances.change(session, self.site, found)
        session.expire_all()
        instances.settle(session, self.site, [token for token, values in found.items() if "ended_at" in values])

    def measured(self, session: Session, observation: Observation) -> Mapping[tuple[str, str], Resources]:
        """Return the measured sizes of the machines by instance type and image, including earlier controllers'."""
        if self.sizes is None:
            self.sizes = MeasuredSizes(capacity.sizes(session, self.site))
        if news := self.sizes.learn(observation):
            capacity.keep_sizes(session, self.site, news, time.time())
        return self.sizes.known

    def last_boots(self, session: Session) -> Sequence[tuple[str, float]]:
        """Return instance type and boot time in seconds of the latest boots, including earlier controllers'."""
        if self.boots is None:
            self.boots = instances.last_boots(session, self.site)
        return self.boots

    def record(self, session: Session, orders: Sequence[Order], provision: Provision, now: float) -> None:
        """Store orders, promised room and idle times before the site gets the decision."""
        session.add_all(self._priced(row(self.site, each, now)) for each in orders)
        self.ordered_for |= {each.name: each.launch.jobs for each in orders}
        self.for_gangs |= {each.name: each.launch.jobs for each in orders if self.wanted.issuperset(each.launch.jobs)}
        self.promised = promised(orders, provision)
        spare = provision.spare - queue.busy(session, self.site)
        instances.change(session, self.site, idle(instances.living(session, self.site), spare, now))

    def without_abandoned(
        self, provision: Provision, there: SiteView, wanted: Iterable[PlannedJob], active: Collection[str]
    ) -> Provision:
        """Add releases of the pending allocations that were requested for gangs which no longer need them.

        :param wanted: the jobs that instances are launched for before all others
        :param active: the members of gangs that search for room, or have started
        """
        self.wanted = frozenset(job.name for job in wanted).intersection(active)
        if not self.for_gangs or not isinstance(there.market, Market):
            return provision
        releases = abandoned(there.launched, self.for_gangs, active, provision.spare)
        return replace(provision, releases={**provision.releases, **releases}) if releases else provision

    def _priced(self, instance: InstanceRow) -> InstanceRow:
        rate = self.cpu_hour(instance.capacity)
        if instance.usd_per_hour is None and rate is not None:
            instance.usd_per_hour = rate * instance.cpus
        return instance

    def ended(self, session: Session, events: Sequence[Mapping[str, Any]]) -> list[Change]:
        """Record ended instances; return failures for the jobs whose launch was refused."""
        ends = [event for event in events if event["event"] == "released"]
        bills = {event["token"]: event["usd"] for event in events if event["event"] == "billed"}
        instances.change(session, self.site, {event["token"]: end(event) for event in ends})
        instances.bill(session, self.site, bills)
        instances.settle(session, self.site, {*bills, *(event["token"] for event in ends)})
        refused = []
        for event in ends:
            tokens = self.ordered_for.get(event["token"], ())  # empty if the instance has already ended
            refused += [refusal(token, event) for token in tokens if event.get("refused")]
        return refused


def end(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that change when an instance ends."""
    known = {"native_id": as_name(event.get("native_id")), "launched_at": event.get("launched_at")}
    values = {"state": InstanceState.ENDED, "ended_at": event["at"], "cause": event.get("cause")}
    values["reason"] = event.get("reason")
    return values | {name: value for name, value in known.items() if value is not None}


def refusal(token: str, event: Mapping[str, Any]) -> Change:
    """Return the change that fails a job whose launch was refused, if it still waits."""
    values = {"state": State.FAILED, "cause": "submit_rejected", "ended_at": event["at"]}
    values["reason"] = event.get("reason")
    return Change(token, values, report=True, only_if={"state": State.QUEUED})


def orders(launches: Iterable[Launch]) -> list[Order]:
    """Give launches the names by which they are found again; TORQUE limits names to 15 characters."""
    return [Order(new_name(), launch) for launch in launches]


def row(site: str, order: Order, now: float) -> InstanceRow:
    capacity = order.launch.capacity
    return InstanceRow(
        token=order.name,
        site=site,
        kind=order.launch.kind,
        cpus=capacity.cpus,
        memory=capacity.memory,
        disk=capacity.disk,
        gpus=capacity.gpus,
        seconds=order.launch.seconds if math.isfinite(order.launch.seconds) else 0.0,
        usd_per_hour=order.launch.usd_per_hour,
        zone=order.launch.zone,
        # An allocation has a time limit and is not bought, so it has no capacity type.
        capacity_type=None if math.isfinite(order.launch.seconds) else order.launch.capacity_type,
        state=InstanceState.ORDERED,
        ordered_at=now,
    )


def stranger(site: str, seen: ObservedLocation, now: float) -> InstanceRow:
    """Return a row for an instance that only the site has: an older version launched it, or its row was lost."""
    location = seen.location
    launch = Launch(
        str(location.instance_type),
        location.capacity,
        math.inf if location.ends_at is None else max(location.ends_at - now, 0.0),
        (),
        capacity_type=location.capacity_type or ON_DEMAND,
        usd_per_hour=location.usd_per_hour or None,
    )
    return row(site, Order(location.name, launch), now)


def promised(orders: Sequence[Order], provision: Provision) -> dict[str, str]:
    """Return the booting or ordered instance that has room for a waiting job, by the job's name."""
    return {**provision.homes, **{job: each.name for each in orders for job in each.launch.jobs}}


def live(
    rows: Iterable[InstanceRow], seen: Sequence[ObservedLocation], market: Market | MachineMarket | None, now: float
) -> list[Location]:
    """Return all live instances as locations for placement and provisioning, oldest first."""
    by_name = {each.name: each for each in seen}
    locations = []
    for instance in rows:
        there = by_name.get(instance.token)
        location = as_seen(there) if there is not None else as_ordered(instance, now)
        boots = location.booting and isinstance(market, MachineMarket)
        ready_at = instance.ordered_at + market.boot_of(instance.kind) if boots else None  # type: ignore[union-attr]
        locations.append(replace(location, idle_since=instance.idle_since, ready_at=ready_at))
    stored = {instance.token for instance in rows}
    return [*locations, *(as_seen(each) for each in seen if each.name not in stored)]


def as_seen(seen: ObservedLocation) -> Location:
    """Return a location whose ``booting`` and ``draining`` follow its observed state, not what it says itself."""
    booting = seen.state == LocationState.BOOTING
    draining = seen.state in (LocationState.DRAINING, LocationState.UNREACHABLE)
    location = seen.location
    if (location.booting, location.draining) == (booting, draining):
        return location
    return replace(location, booting=booting, draining=draining)


def as_ordered(instance: InstanceRow, now: float) -> Location:
    return Location(
        instance.token,
        instance.capacity,
        instance_type=instance.kind,
        capacity_type=instance.capacity_type or ON_DEMAND,
        usd_per_hour=instance.usd_per_hour or 0.0,
        ends_at=now + instance.seconds if instance.seconds else None,
        booting=True,
        site=instance.site,
    )


def changes(
    rows: Iterable[InstanceRow],
    seen: Sequence[ObservedLocation],
    gone: Mapping[str, float],
    now: float,
    patience: float,
) -> Changes:
    """Return the changed columns of instances, by token.

    :param gone: for how many seconds each missing instance has not been seen, while its site answered
    :param patience: seconds until it was never launched, or has disappeared unnoticed
    """
    by_name = {each.name: each for each in seen}
    changed: Changes = {}
    for instance in rows:
        if (there := by_name.get(instance.token)) is not None:
            changed[instance.token] = news(instance, there, now)
        elif gone.get(instance.token, 0.0) > patience:
            changed[instance.token] = {
                "state": InstanceState.ENDED, "ended_at": now, "cause": "lost", "reason": GONE,
            }  # fmt: skip
    return {token: values for token, values in changed.items() if values}


def news(instance: InstanceRow, seen: ObservedLocation, now: float) -> dict[str, Any]:
    """Return the columns of an instance whose values have changed."""
    state = STATES.get(seen.state, InstanceState(instance.state))
    values: dict[str, Any] = {"state": state.value, "native_id": as_name(seen.native_id), "node": as_name(seen.node)}
    if seen.native_id is not None and instance.launched_at is None:
        # A bought instance costs nothing while it is pending, and the seller reports when billing began.
        is_unpaid = instance.capacity_type is not None and seen.state == LocationState.BOOTING
        values["launched_at"] = seen.billed_since or (None if is_unpaid else seen.location.launched_at or now)
    usd = seen.location.usd_per_hour
    if instance.capacity_type is not None and usd > 0 and usd != instance.usd_per_hour:
        values |= instances.at_new_price(instance, usd, min(now, seen.location.priced_at or now))
    if seen.location.surcharges:
        values["surcharges"] = json.dumps(dict(seen.location.surcharges))
    if state == InstanceState.UP and instance.ready_at is None:
        values["ready_at"] = now
    return {key: value for key, value in values.items() if value is not None and value != getattr(instance, key)}


def idle(rows: Iterable[InstanceRow], spare: Collection[str], now: float) -> Changes:
    """Return changes of ``idle_since``.

    :param spare: the instances that have nothing to do now
    """
    changed: Changes = {}
    for instance in rows:
        is_spare = instance.token in spare
        if is_spare != (instance.idle_since is not None):
            changed[instance.token] = {"idle_since": now if is_spare else None}
    return changed
