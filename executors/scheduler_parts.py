"""What the executors of one scheduler share: the file by which it shows that it lives, and the controller's process.

With ``[core] multi_team`` one scheduler has an executor for each team, of which several may be Lading's. They have one
store, one controller and one set of sites. The first of them that starts makes what they share, and the last that ends
stops the controller.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

from lading.executors.controller_process import ControllerProcess
from lading.executors.orchestrator.presence import Presence
from lading.executors.settings import Settings


class SchedulerParts:
    """What the executors of one scheduler share.

    :param settings: the ``[lading]`` section, without what teams have of their own
    :param job_id: the number of the scheduler's Airflow job; None: it has none
    """

    def __init__(self, settings: Settings, job_id: int | None) -> None:
        self.controller = ControllerProcess(settings, job_id)
        self.presence = None if job_id is None else Presence(settings.schedulers_folder, job_id)
        self.teams: list[str | None] = []
        """The teams of the executors that have started and not ended, in this order; None: the one for all teams."""

    def join(self, team: str | None) -> None:
        """An executor has started."""
        self.teams.append(team)

    def leave(self, team: str | None) -> bool:
        """An executor ends; returns whether it was the last one."""
        self.teams.remove(team)
        if self.teams:
            return False
        if self.presence is not None:
            self.presence.end()
            self.presence = None
        return True

    def is_first(self, team: str | None) -> bool:
        """Whether the executor of this team takes over what is left of teams that have none here any more."""
        return self.teams[:1] == [team]


# By state folder and scheduler. A process has one of each; what is shared goes with the executors.
_parts: WeakValueDictionary[tuple[Path, int], SchedulerParts] = WeakValueDictionary()


def parts_of(settings: Settings, job_id: int | None) -> SchedulerParts:
    """What the executors of a scheduler share; made for the first one that asks."""
    if job_id is None:
        return SchedulerParts(settings, job_id)
    key = settings.state_folder, job_id
    found = _parts.get(key)
    if found is None or not found.teams:
        found = _parts[key] = SchedulerParts(settings, job_id)
    return found
