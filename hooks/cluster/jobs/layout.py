"""Lading's folder on a cluster's shared file system: the one place that knows the names in it.

``spool`` is what a node agent's spool is on other sites. Each submission, a batch job or a job array, has a folder of
its own with its script, its list of tasks, what the batch system answered and what its jobs have printed. All of it is
removed as the tasks end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lading.hooks.spool.tokens import checked

# What the spool on a cluster consists of; it has no bell, for no process rings there.
SPOOL_FOLDERS = ("inbox", "cancel", "events", "jobs")
# What is larger is no list of the tasks of a submission.
MOST_TOKENS_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a submission.

    :param token: identifies the try
    :param log_path: of its log, relative to Airflow's folder of logs; empty: it has none
    :param bundle: the hash of the content that it reads its Dags from; empty: none that Lading has brought
    """

    token: str
    log_path: str = ""
    bundle: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The paths below one folder of a cluster, as text, for most of them are not on this machine.

    :param root: absolute, or below the home as ``~/...``
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
        """The contents of Dag bundles, each in a folder of its hash; what is hidden there is not complete."""
        return f"{self.root}/bundles"

    def bundle(self, hash: str) -> str:
        return f"{self.bundles}/{checked(hash)}"

    @property
    def api_address(self) -> str:
        """Where jobs read how to reach Airflow's API through a tunnel; see :mod:`lading.hooks.api_tunnel.address`."""
        return f"{self.root}/api_address"

    def submission(self, name: str) -> str:
        return f"{self.submissions}/{name}"

    def tokens(self, name: str) -> str:
        """The tasks of a submission, the first one is that of index 1."""
        return f"{self.submission(name)}/tasks"

    def output(self, name: str, index: int) -> str:
        """What a batch job has printed."""
        return f"{self.submission(name)}/output.{index}"

    def job(self, token: str) -> str:
        return f"{self.spool}/jobs/{checked(token)}"

    def logs(self, token: str) -> str:
        """Airflow's folder of logs for one job."""
        return f"{self.root}/logs/{checked(token)}"

    def files_of(self, token: str) -> list[str]:
        """All that there may be of a job, relative to the root."""
        checked(token)
        return [f"spool/inbox/{token}.json", f"spool/cancel/{token}", f"spool/jobs/{token}", f"logs/{token}"]


def write_tokens(tasks: Iterable[Task]) -> str:
    """The list of tasks of a submission, as :func:`read_tokens` reads it."""
    return "".join("\t".join([checked(task.token), task.log_path, task.bundle]).rstrip("\t") + "\n" for task in tasks)


def read_tokens(text: str) -> list[Task]:
    """The tasks in such a list.

    :raises ValueError: it is damaged
    """
    tasks = []
    for line in filter(None, text.splitlines()):
        token, *more = line.split("\t")
        if len(more) > 2:
            raise ValueError(f"{line!r} is no task: a token, the path of a log and a bundle are expected")
        tasks.append(Task(checked(token), *more))
    return tasks
