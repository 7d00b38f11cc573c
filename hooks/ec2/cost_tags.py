"""Tags by which AWS allocates what machines cost: the team and the Dag of the jobs on them, where these have one.

A launch does not set them: it is repeated with the same bytes where there was no answer, and who will use a machine may
have changed by then. They are set when the first job is given to it, and again when that is true no more:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/custom-tags.html
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from lading.hooks.ec2.client import AWSTrouble, EC2Error
from lading.hooks.ec2.fleet_state import FleetPart, FleetState
from lading.hooks.site import Tenancy

TEAM, DAG = "lading:team", "lading:dag"
# What was refused is tried again after so long, seconds: a policy of the account may allow it by then.
SECONDS_AFTER_REFUSAL = 600.0
# Of machines of which some were refused so many are asked for one by one in an update.
MOST_ALONE = 8


class CostTags(FleetPart):
    """Keeps the tags of machines as the controller says whose they are."""

    def __init__(self, state: FleetState) -> None:
        super().__init__(state)
        self.tenants: Mapping[str, Tenancy] = {}
        """By the machine's name; another thread sets it."""
        self.refused: str | None = None
        """Why tags are not set, as text; None: they are."""
        self._set: dict[str, dict[str, str]] = {}
        self._alone: set[str] = set()
        """Instances that were refused together with others."""
        self._pause_until = 0.0
        """Until when none is asked for, since AWS does not answer."""
        self._due: dict[str, float] = {}
        """When a refused machine is tried again, on the monotonic clock, by its instance."""

    def update(self) -> None:
        """Set the tags of those machines that have others than they should, alike ones by one request.

        What AWS refuses of one holds up nothing else, nor the tags of other machines.
        """
        now = time.monotonic()
        if not self.state.config.cost_tags or now < self._pause_until:
            return
        tenants, wanted = self.tenants, dict[tuple[tuple[str, str], ...], list[str]]()
        there = {
            each.instance.id: each
            for each in list(self.machines.values())
            if each.instance is not None and each.instance.lives
        }
        self._set = {id: tags for id, tags in self._set.items() if id in there}
        self._due = {id: at for id, at in self._due.items() if id in there}
        self._alone &= there.keys()
        for id, machine in there.items():
            tenant = tenants.get(machine.name)
            if tenant is None or machine.instance is None or now < self._due.get(id, 0.0):
                continue
            tags = tags_of(tenant)
            known = self._set.get(id) or {name: machine.instance.tags.get(name, "") for name in (TEAM, DAG)}
            if any(known.get(name, "") != value for name, value in tags.items()):
                wanted.setdefault(tuple(tags.items()), []).append(id)
        alone = [id for ids in wanted.values() for id in ids if id in self._alone][:MOST_ALONE]
        for tags_as_items, ids in wanted.items():
            together = [id for id in ids if id not in self._alone]
            for some in ([together] if together else []) + [[id] for id in ids if id in alone]:
                if not self._tag(some, dict(tags_as_items), now):
                    return
        if not self._due:
            self.refused = None

    def _tag(self, ids: list[str], tags: dict[str, str], now: float) -> bool:
        """Tag machines; returns whether others may be.

        One that AWS refuses has the whole request refused, so each of them is asked for alone next.
        """
        try:
            self.ec2.tag(ids, tags)
        except EC2Error as error:
            self.refused = f"machines are not tagged with who is charged for them: {error}"
            if error.trouble in (AWSTrouble.SILENCE, AWSTrouble.THROTTLE):
                self._pause_until = now + SECONDS_AFTER_REFUSAL
                return False
            if len(ids) > 1:
                self._alone.update(ids)
            else:
                self._due[ids[0]] = now + SECONDS_AFTER_REFUSAL
            return True
        self._set |= {id: dict(tags) for id in ids}
        self._alone.difference_update(ids)
        for id in ids:
            self._due.pop(id, None)
        return True


def tags_of(tenant: Tenancy) -> dict[str, str]:
    """The tags of a machine; one that its jobs have no name for is not set, for those of no team."""
    found = {TEAM: tenant.team, DAG: tenant.dag_id}
    return {name: value for name, value in found.items() if value}
