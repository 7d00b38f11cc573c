"""By which names tasks choose Lading's executor. Every Airflow process imports this, so it imports nothing."""

from __future__ import annotations

from typing import NamedTuple

EXECUTOR_CLASS = "LadingExecutor"


class ConfiguredExecutor(NamedTuple):
    """One executor of ``[core] executor``.

    :param team: whose it is; None: it is for all teams
    :param alias: its name in front of the colon; empty: it has none
    :param path: its class, as it is written
    """

    team: str | None
    alias: str
    path: str

    @property
    def names(self) -> frozenset[str]:
        """By which a task may name it."""
        return frozenset(filter(None, (self.alias, self.path, self.path.rpartition(".")[2])))

    @property
    def is_lading(self) -> bool:
        return self.path.rpartition(".")[2] == EXECUTOR_CLASS


def configured() -> list[ConfiguredExecutor]:
    """The executors of ``[core] executor`` in their order: those for all teams come first, as Airflow asks for."""
    from airflow.configuration import conf

    found = []
    for group in conf.get("core", "executor").split(";"):
        before, equals, after = group.partition("=")
        team, entries = (before.strip() or None, after) if equals else (None, before)
        if team is not None and not has_teams():
            continue  # as Airflow does, which says so in the scheduler's log
        for entry in filter(None, map(str.strip, entries.split(","))):
            alias, _, path = entry.rpartition(":")
            found.append(ConfiguredExecutor(team, alias, path))
    return found


def has_teams() -> bool:
    """Whether Airflow runs with ``[core] multi_team``."""
    from airflow.configuration import conf

    return bool(conf.getboolean("core", "multi_team", fallback=False))


def executor_of(executor: str | None, team: str | None = None) -> ConfiguredExecutor | None:
    """Which executor Airflow's scheduler gives a task; None: none has that name.

    :param executor: as the task names it; None: it names none
    :param team: that of its Dag; None: it has none
    """
    known = [each for each in configured() if each.team is None or each.team == team]
    if executor:
        return next((each for each in known if executor in each.names), None)
    return next((each for each in known if each.team == team), None) or next(iter(known), None)


def goes_to_lading(executor: str | None, team: str | None = None) -> bool:
    """Whether a task with this ``executor`` is Lading's; what it gives to other executors is none of its business.

    :param team: that of its Dag; None: it has none
    """
    found = executor_of(executor, team)
    return found is not None and found.is_lading
