"""The folder of an allocation on a cluster, and the terms that its agent gets: the one place that knows the file names.

The folder contains the spool of the allocation's node agent, its script, the batch system's answer, and its output. The
claims are next to the folders of all allocations: a process must claim a job's token before it starts the job, so if
two agents have got the same job, only one starts it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.files.safe_files import open_regular, read_regular
from lading.hooks.spool.tokens import checked
from lading.scheduling.model.resources import Resources

# Seconds between an agent's reports of its remaining time, so a report can be that old.
SECONDS_BETWEEN_REPORTS = 60.0


@dataclass(frozen=True, slots=True)
class AllocationTerms:
    """The terms of an allocation, in ``terms.json``: written before it is submitted, read by its agent.

    :param capacity: shared by its jobs
    :param seconds: for jobs, from the start of its agent
    :param unlimited: minimum of remaining seconds for which a job without a time limit is started
    :param idle: seconds without a running job after which it ends
    :param kill_grace: seconds between SIGTERM and SIGKILL
    :param kind: determines which jobs can use it
    :param scratch: folder with a sub-folder for each job; empty: the node's folder for temporary files
    :param keep_failed: seconds for which the scratch folder of a failed job is kept
    """

    capacity: Resources
    seconds: float
    unlimited: float
    idle: float
    kill_grace: float
    kind: str = ""
    scratch: str = ""
    keep_failed: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AllocationTerms:
        """:raises ValueError: the text is damaged"""
        # Imported here, since a process on a node that only needs the folder names does not need the models.
        from lading.hooks.files.json_model import checked
        from lading.hooks.spool.job_files import TermsFile
        from lading.scheduling.text.nesting import parse_json

        found = checked(TermsFile, parse_json(text.encode()))
        capacity = found["capacity"]
        return cls(**{**found, "capacity": Resources(capacity.cpus, capacity.memory, capacity.disk, capacity.gpus)})


@dataclass(frozen=True, slots=True)
class AllocationFolder:
    """The paths of one allocation, as text because most of them are not on this machine.

    :param name: of its batch job
    """

    cluster: ClusterFolder
    name: str

    @property
    def relative(self) -> str:
        """Relative to the cluster's folder."""
        return f"allocations/{checked(self.name)}"

    @property
    def root(self) -> str:
        return f"{self.cluster.root}/{self.relative}"

    @property
    def spool(self) -> str:
        return f"{self.root}/spool"

    @property
    def closed(self) -> str:
        """The name that the agent gives its inbox when it stops accepting jobs, so that later writes to it fail."""
        return f"{self.spool}/closed"

    @property
    def terms(self) -> str:
        return f"{self.root}/terms.json"

    @property
    def taken(self) -> str:
        """Created by the first process of the batch job; if that is restarted, the second process exits."""
        return f"{self.root}/taken"

    @property
    def up(self) -> str:
        """Written by the agent when it starts to accept jobs: its host, and how long it accepts them."""
        return f"{self.root}/up.json"

    @property
    def output(self) -> str:
        return f"{self.root}/output"

    @property
    def claims(self) -> str:
        return claims(self.cluster)


def claims(cluster: ClusterFolder) -> str:
    return f"{cluster.root}/claims"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a job: which allocation has started it, and where its log is.

    :param allocation: name
    :param log_path: of the task's log, relative to Airflow's log folder; empty: it has none
    """

    allocation: str
    log_path: str

    def make(self, folder: Path, token: str) -> bool:
        """Claim a job; return False if another allocation has claimed it.

        :raises OSError: the result is unknown
        """
        path = folder / checked(token)
        part = folder / f".{token}.{self.allocation}"
        try:
            with os.fdopen(open_regular(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as stream:
                stream.write(f"{self.allocation}\t{self.log_path}\n")
            os.link(part, path)
        except FileExistsError:
            return Claim.read(path).allocation == self.allocation
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        return True

    def drop(self, folder: Path, token: str) -> None:
        """Release the claim of a job that was not started; another allocation's claim stays.

        :raises OSError: the claim may still exist
        """
        path = folder / checked(token)
        with contextlib.suppress(FileNotFoundError):
            if Claim.read(path).allocation == self.allocation:
                path.unlink()

    @classmethod
    def read(cls, path: Path) -> Claim:
        """:raises OSError: it cannot be read"""
        return cls.from_line(read_regular(path, 2**16).decode(errors="replace"))

    @classmethod
    def from_line(cls, line: str) -> Claim:
        allocation, _, log_path = line.rstrip("\n").partition("\t")
        return cls(allocation, log_path)
