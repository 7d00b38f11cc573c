"""Whose jobs a table of the sites file applies to: a team, Dags, an owner or a tag. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

# Finds each condition in the text of a :class:`Who`.
_CONDITIONS = re.compile(r"(?:^|, )(team|Dags|owner|tag) (.*?)(?=, Dags |, owner |, tag |$)")


class Tenant(NamedTuple):
    """Whose a job is.

    :param team: Airflow's team; None: it has none
    :param dag_id: its Dag; None: it has none, like a connection test
    :param owners: of its Dag
    :param tags: of its Dag
    """

    team: str | None = None
    dag_id: str | None = None
    owners: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @classmethod
    def from_columns(cls, team: str | None, dag_id: str | None, owner: str | None, tags: str | None) -> Tenant:
        """Build a tenant from a job's columns in the store.

        :param owner: comma-separated
        :param tags: a JSON list
        """
        owners = tuple(filter(None, (each.strip() for each in (owner or "").split(","))))
        return cls(team, dag_id or None, owners, tuple(json.loads(tags)) if tags else ())


@dataclass(frozen=True, slots=True)
class Who:
    """A selection of jobs. All conditions that are given must hold.

    :param team: the name of Airflow's team
    :param dag: a pattern of Dag ids (``*``, ``?``, ``[...]``)
    :param owner: one of the owners of the Dag
    :param tag: one of the tags of the Dag
    """

    team: str | None = None
    dag: str | None = None
    owner: str | None = None
    tag: str | None = None

    def meets(self, tenant: Tenant) -> bool:
        """Return whether a tenant's jobs are selected; without conditions all are."""
        return (
            (self.team is None or self.team == tenant.team)
            and (self.dag is None or (tenant.dag_id is not None and fnmatchcase(tenant.dag_id, self.dag)))
            and (self.owner is None or self.owner in tenant.owners)
            and (self.tag is None or self.tag in tenant.tags)
        )

    @classmethod
    def parse(cls, text: str) -> Who:
        """Return the selection that is displayed as this text."""
        found = {"dag" if name == "Dags" else name: value for name, value in _CONDITIONS.findall(text)}
        return cls(**found)

    def __str__(self) -> str:
        """As displayed: ``team a``, ``Dags etl_*``."""
        said = (("team", self.team), ("Dags", self.dag), ("owner", self.owner), ("tag", self.tag))
        return ", ".join(f"{name} {value}" for name, value in said if value is not None) or "everyone"


def dag_pattern(text: str) -> str | None:
    """Return the Dag pattern in the text of a :class:`Who`; None if it has none."""
    return Who.parse(text).dag
