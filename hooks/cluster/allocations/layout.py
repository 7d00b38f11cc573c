"""The folder of an allocation on a cluster, and what its agent gets: the one place that has the names in it.

It holds the spool of the allocation's node agent, its script, what the batch system answered, and what it has printed.
Beside the folders of all allocations lie the claims: a process that starts a job makes the claim of its token first, so
of two agents that have been given the same job one starts it.
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
from lading.scheduling.resources import Resources

# What is larger is no claim, and no terms of an allocation.
MOST_CLAIM_BYTES = 2**16
MOST_TERMS_BYTES = 2**20
# How often an agent writes how much of its time is left, seconds: what is read may be that old.
SECONDS_BETWEEN_REPORTS = 60.0


@dataclass(frozen=True, slots=True)
class AllocationTerms:
    """What an allocation is for, in ``terms.json``: written before it is submitted, read by its agent.

    :param capacity: what its jobs can use together
    :param seconds: that it has for jobs, from the start of its agent
    :param unlimited: seconds that are left when a job without a time limit begins, at least
    :param idle: seconds after which it ends when nothing has run
    :param kill_grace: seconds between SIGTERM and SIGKILL
    :param kind: which jobs may use it
    :param scratch: the folder in which each job has one of its own; empty: the node's folder for temporary files
    :param keep_failed: seconds for which that of a failed job is kept
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
        """One line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AllocationTerms:
        """:raises ValueError: the text is damaged"""
        # A node that only names its folder need not know how they look.
        from lading.hooks.files.json_model import checked, parsed
        from lading.hooks.spool.events import TermsFile

        found = checked(TermsFile, parsed(text.encode()))
        capacity = found["capacity"]
        return cls(**{**found, "capacity": Resources(capacity.cpus, capacity.memory, capacity.disk, capacity.gpus)})


@dataclass(frozen=True, slots=True)
class AllocationFolder:
    """The paths of one allocation, as text, for most of them are not on this machine.

    :param name: that of its batch job
    """

    cluster: ClusterFolder
    name: str

    @property
    def relative(self) -> str:
        """To the cluster's folder."""
        return f"allocations/{checked(self.name)}"

    @property
    def root(self) -> str:
        return f"{self.cluster.root}/{self.relative}"

    @property
    def spool(self) -> str:
        return f"{self.root}/spool"

    @property
    def closed(self) -> str:
        """The name of the inbox when the agent takes nothing more; a process that writes there notices it."""
        return f"{self.spool}/closed"

    @property
    def terms(self) -> str:
        return f"{self.root}/terms.json"

    @property
    def taken(self) -> str:
        """Made by the first process of the batch job; a second one, if it is being restarted, ends."""
        return f"{self.root}/taken"

    @property
    def up(self) -> str:
        """Written by the agent when it takes jobs: where it is, and when it will not any more."""
        return f"{self.root}/up.json"

    @property
    def output(self) -> str:
        """What the batch job has printed."""
        return f"{self.root}/output"

    @property
    def claims(self) -> str:
        return claims(self.cluster)


def claims(cluster: ClusterFolder) -> str:
    """The folder of the claims."""
    return f"{cluster.root}/claims"


@dataclass(frozen=True, slots=True)
class Claim:
    """Who has begun a job, and where its log is.

    :param allocation: its name
    :param log_path: of the task's log, relative to Airflow's folder of logs; empty: it has none
    """

    allocation: str
    log_path: str

    def make(self, folder: Path, token: str) -> bool:
        """Claim a job; False: another allocation has.

        :raises OSError: neither is known
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
        """Release the claim of a job that was not begun; another allocation's stays.

        :raises OSError: it may still be there
        """
        path = folder / checked(token)
        with contextlib.suppress(FileNotFoundError):
            if Claim.read(path).allocation == self.allocation:
                path.unlink()

    @classmethod
    def read(cls, path: Path) -> Claim:
        """:raises OSError: it cannot be read"""
        return cls.from_line(read_regular(path, MOST_CLAIM_BYTES).decode(errors="replace"))

    @classmethod
    def from_line(cls, line: str) -> Claim:
        """The claim that a file holds."""
        allocation, _, log_path = line.rstrip("\n").partition("\t")
        return cls(allocation, log_path)
