"""Tags by which AWS allocates what machines cost: the team and the Dag of the jobs on them, where these have one.

A launch does not set them: it is repeated with the same bytes where there was no answer, and who will use a machine may
have changed by then. They are set when the first job is given to it, and again when that is true no more:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/custom-tags.html
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from lading.hooks.ec2.client import EC2Error
from lading.hooks.ec2.fleet_state import FleetPart, FleetState
from lading.hooks.site import Tenancy

TEAM, DAG = "lading:team", "lading:dag"
# What was refused is tried again after so long, seconds: a policy of the account may allow it by then.
SECONDS_AFTER_REFUSAL = 600.0


class CostTags(FleetPart):
    """Keeps the tags of machines as the controller says whose they are."""

    def __init__(self, state: FleetState) -> None:
        super().__init__(state)
        self.tenants: Mapping[str, Tenancy] = {}
        """By the machine's name; another thread sets it."""
        self.refused: str | None = None
        """Why tags are not set, as text; None: they are."""
        self._set: dict[str, dict[str, str]] = {}
        self._due = 0.0

    def update(self) -> None:
        """Set the tags of those machines that have others than they should, alike ones by one request.

        What AWS refuses holds up nothing else.
        """
        if not self.state.config.cost_tags or time.monotonic() < self._due:
            return
        tenants, wanted = self.tenants, dict[tuple[tuple[str, str], ...], list[str]]()
        there = {
            each.instance.id: each
            for each in list(self.machines.values())
            if each.instance is not None and each.instance.lives
        }
        self._set = {id: tags for id, tags in self._set.items() if id in there}
        for id, machine in there.items():
            if (tenant := tenants.get(machine.name)) is None or machine.instance is None:
                continue
            tags = tags_of(tenant)
            known = self._set.get(id) or {name: machine.instance.tags.get(name, "") for name in (TEAM, DAG)}
            if any(known.get(name, "") != value for name, value in tags.items()):
                wanted.setdefault(tuple(tags.items()), []).append(id)
        for tags_as_items, ids in wanted.items():
            try:
                self.ec2.tag(ids, dict(tags_as_items))
            except EC2Error as error:
                self.refused = f"machines are not tagged with who is charged for them: {error}"
                self._due = time.monotonic() + SECONDS_AFTER_REFUSAL
                return
            self._set |= {id: dict(tags_as_items) for id in ids}
        if wanted:
            self.refused = None


def tags_of(tenant: Tenancy) -> dict[str, str]:
    """The tags of a machine; one that its jobs have no name for is not set, for those of no team."""
    found = {TEAM: tenant.team, DAG: tenant.dag_id}
    return {name: value for name, value in found.items() if value}
