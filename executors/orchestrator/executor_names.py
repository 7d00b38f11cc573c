"""The names by which tasks choose Lading's executor. Every Airflow process imports this, so it imports nothing slow."""

from __future__ import annotations

from typing import NamedTuple

EXECUTOR_CLASS = "LadingExecutor"


class ConfiguredExecutor(NamedTuple):
    """One executor of ``[core] executor``.

    :param team: the team it belongs to; None: all teams
    :param alias: its name before the colon; empty: none
    :param path: its class, as written
    """

    team: str | None
    alias: str
    path: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset(filter(None, (self.alias, self.path, self.path.rpartition(".")[2])))

    @property
    def is_lading(self) -> bool:
        return self.path.rpartition(".")[2] == EXECUTOR_CLASS


def configured() -> list[ConfiguredExecutor]:
    """Return the executors of ``[core] executor`` in order; Airflow requires those for all teams to come first."""
    from airflow.configuration import conf

    found = []
    for group in conf.get("core", "executor").split(";"):
        before, equals, after = group.partition("=")
        team, entries = (before.strip() or None, after) if equals else (None, before)
        if team is not None and not has_teams():
            continue  # as in Airflow, which logs this in the scheduler
        for entry in filter(None, map(str.strip, entries.split(","))):
            alias, _, path = entry.rpartition(":")
            found.append(ConfiguredExecutor(team, alias, path))
    return found


def has_teams() -> bool:
    """Whether ``[core] multi_team`` is enabled."""
    from airflow.configuration import conf

    return bool(conf.getboolean("core", "multi_team", fallback=False))


def executor_of(executor: str | None, team: str | None = None) -> ConfiguredExecutor | None:
    """Return the executor to which Airflow's scheduler gives a task; None: no executor has that name.

    :param executor: the name the task gives; None: none
    :param team: the team of its Dag; None: none
    """
    known = [each for each in configured() if each.team is None or each.team == team]
    if executor:
        return next((each for each in known if executor in each.names), None)
    return next((each for each in known if each.team == team), None) or next(iter(known), None)


def goes_to_lading(executor: str | None, team: str | None = None) -> bool:
    """Whether Airflow gives a task with this ``executor`` to Lading.

    :param team: the team of its Dag; None: none
    """
    found = executor_of(executor, team)
    return found is not None and found.is_lading
