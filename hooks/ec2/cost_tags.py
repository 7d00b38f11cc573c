"""Tags that let AWS allocate the cost of machines to the team and the Dag of their jobs.

They are not part of the launch request, because a request without an answer is repeated with the same bytes, and by
then other jobs may use the machine. They are set when a machine gets its first job, and again when they change:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/custom-tags.html
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from lading.hooks.ec2.client import AWSTrouble, EC2Error
from lading.hooks.ec2.fleet_state import FleetPart, FleetState
from lading.hooks.site import Tenancy

TEAM, DAG = "lading:team", "lading:dag"


class CostTags(FleetPart):
    """Keeps the tags of machines in line with the tenants that the controller reports."""

    seconds_after_refusal = 600.0
    """Until a refused request is tried again, since the account's policy may have changed."""

    def __init__(self, state: FleetState) -> None:
        super().__init__(state)
        self.tenants: Mapping[str, Tenancy] = {}
        """By machine name; set by another thread."""
        self.refused: str | None = None
        """Why tags cannot be set, as text; None: they are set."""
        self._set: dict[str, dict[str, str]] = {}
        self._alone: set[str] = set()
        """Instances of a refused request with several machines, which are tried alone next."""
        self._pause_until = 0.0
        """No requests are made until then, on the monotonic clock, because AWS does not answer."""
        self._due: dict[str, float] = {}
        """When to try a refused machine again, on the monotonic clock, by instance id."""

    def update(self) -> None:
        """Set the tags of machines whose tags are out of date, with one request for equal tags.

        A refusal for one machine delays neither other work nor the tags of other machines.
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
        # The machines of a refused request are tried one by one, a few in each update.
        alone = [id for ids in wanted.values() for id in ids if id in self._alone][:8]
        for tags_as_items, ids in wanted.items():
            together = [id for id in ids if id not in self._alone]
            for some in ([together] if together else []) + [[id] for id in ids if id in alone]:
                if not self._tag(some, dict(tags_as_items), now):
                    return
        if not self._due:
            self.refused = None

    def _tag(self, ids: list[str], tags: dict[str, str], now: float) -> bool:
        """Tag machines; return whether further requests make sense now.

        AWS refuses a whole request because of one machine, so its machines are tried alone next.
        """
        try:
            self.ec2.tag(ids, tags)
        except EC2Error as error:
            self.refused = f"machines cannot be tagged for cost allocation: {error}"
            if error.trouble in (AWSTrouble.SILENCE, AWSTrouble.THROTTLE):
                self._pause_until = now + self.seconds_after_refusal
                return False
            if len(ids) > 1:
                self._alone.update(ids)
            else:
                self._due[ids[0]] = now + self.seconds_after_refusal
            return True
        self._set |= {id: dict(tags) for id in ids}
        self._alone.difference_update(ids)
        for id in ids:
            self._due.pop(id, None)
        return True


def tags_of(tenant: Tenancy) -> dict[str, str]:
    """Return the tags of a machine, without those for which its tenancy has no name."""
    found = {TEAM: tenant.team, DAG: tenant.dag_id}
    return {name: value for name, value in found.items() if value}
