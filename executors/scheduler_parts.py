"""What the executors of one scheduler share: the file that shows the scheduler is alive, and the controller's process.

With ``[core] multi_team``, one scheduler has an executor for each team, and several of these can be Lading's. They
share one store, one controller and one set of sites. The first that starts creates the shared parts, and the last that
stops also stops the controller.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

from lading.executors.controller_process import ControllerProcess
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.orchestrator.presence import Presence
from lading.executors.settings import Settings


class SchedulerParts:
    """What the executors of one scheduler share.

    :param settings: the ``[lading]`` section without the options of teams
    :param job_id: the id of the scheduler's Airflow job; None: it has none
    """

    def __init__(self, settings: Settings, job_id: int | None) -> None:
        self.controller = ControllerProcess(AirflowOrchestrator(), settings, job_id)
        self.presence = None if job_id is None else Presence(settings.schedulers_folder, job_id)
        self.teams: list[str | None] = []
        """The teams of the running executors, in the order of their starts; None: the executor for all teams."""

    def join(self, team: str | None) -> None:
        self.teams.append(team)

    def leave(self, team: str | None) -> bool:
        """Note that an executor stops; returns whether it was the last one."""
        self.teams.remove(team)
        if self.teams:
            return False
        if self.presence is not None:
            self.presence.end()
            self.presence = None
        return True

    def is_first(self, team: str | None) -> bool:
        """Return whether this team's executor started first, and so adopts the jobs of teams without an executor."""
        return self.teams[:1] == [team]


# By state folder and scheduler's id. Weak, so that the parts are dropped together with the executors.
_parts: WeakValueDictionary[tuple[Path, int], SchedulerParts] = WeakValueDictionary()


def parts_of(settings: Settings, job_id: int | None) -> SchedulerParts:
    """Return the parts that the executors of a scheduler share, created on first use."""
    if job_id is None:
        return SchedulerParts(settings, job_id)
    key = settings.state_folder, job_id
    found = _parts.get(key)
    if found is None or not found.teams:
        found = _parts[key] = SchedulerParts(settings, job_id)
    return found
