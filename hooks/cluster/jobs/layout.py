"""Lading's folder on a cluster's shared file system: the one place that knows the names in it.

``spool`` is what a node agent's spool is on other sites. Each submission, a batch job or a job array, has a folder with
its script, its list of tasks, the batch system's answer and the output of its jobs. All of it is removed as the tasks
end.
"""

from __future__ import annotations

from collections.abc import Iterable

from lading.hooks.spool.tokens import checked
from lading.scheduling.model.light_dataclasses import dataclass

# The folders of the spool on a cluster. It has no bell, because no process on a cluster rings one.
SPOOL_FOLDERS = ("inbox", "cancel", "events", "jobs")


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a submission.

    :param token: identifies the try
    :param log_path: of its log, relative to Airflow's log folder; empty: it has none
    :param bundle: hash of the Dag bundle that it reads; empty: Lading has uploaded none for it
    """

    token: str
    log_path: str = ""
    bundle: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The paths below Lading's folder of a cluster, as text because most of them are not on this machine.

    :param root: absolute, or relative to the home folder as ``~/...``
    """

    root: str

    @property
    def spool(self) -> str:
        return f"{self.root}/spool"

    @property
    def inbox(self) -> str:
        return f"{self.spool}/inbox"

    @property
    def events(self) -> str:
        return f"{self.spool}/events"

    @property
    def submissions(self) -> str:
        return f"{self.root}/submissions"

    @property
    def bundles(self) -> str:
        """The Dag bundles, each in a folder named by its hash; hidden folders are incomplete."""
        return f"{self.root}/bundles"

    def bundle(self, hash: str) -> str:
        return f"{self.bundles}/{checked(hash)}"

    @property
    def api_address(self) -> str:
        """Tells jobs how to reach Airflow's API through a tunnel; see :mod:`lading.hooks.api_tunnel.address`."""
        return f"{self.root}/api_address"

    def submission(self, name: str) -> str:
        return f"{self.submissions}/{name}"

    def tokens(self, name: str) -> str:
        """The list of the tasks of a submission; the first one has index 1."""
        return f"{self.submission(name)}/tasks"

    def output(self, name: str, index: int) -> str:
        return f"{self.submission(name)}/output.{index}"

    def job(self, token: str) -> str:
        return f"{self.spool}/jobs/{checked(token)}"

    def logs(self, token: str) -> str:
        """Airflow's log folder for one job."""
        return f"{self.root}/logs/{checked(token)}"

    def files_of(self, token: str) -> list[str]:
        """Return all files that a job may have, relative to the root."""
        checked(token)
        return [f"spool/inbox/{token}.json", f"spool/cancel/{token}", f"spool/jobs/{token}", f"logs/{token}"]


def write_tokens(tasks: Iterable[Task]) -> str:
    return "".join("\t".join([checked(task.token), task.log_path, task.bundle]).rstrip("\t") + "\n" for task in tasks)


def read_tokens(text: str) -> list[Task]:
    """Parse the list of tasks of a submission.

    :raises ValueError: it is damaged
    """
    tasks = []
    for line in filter(None, text.splitlines()):
        token, *more = line.split("\t")
        if len(more) > 2:
            raise ValueError(f"{line!r} is not a task: a token, the path of a log and a bundle are expected")
        tasks.append(Task(checked(token), *more))
    return tasks
