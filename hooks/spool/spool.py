"""The spool: the folder with which a controller drives one node agent.

Only this module knows the names in it. Every file is written under a hidden name and then renamed, so a reader never
sees a partial file, on a local disk or on NFS. The folder survives a restart of both sides: an envelope stays in
``inbox`` until its job starts, and an event stays in ``events`` until the controller has stored it.

Nothing is flushed to the disk (fsync): flushing for each batch of events and each job would delay the agent by
milliseconds on a good disk, and by much more on a busy one. So a power cut or a crash of the machine can leave partial
files, but it ends all jobs of the machine anyway. Readers treat a partial file as missing, and the controller finds the
affected jobs because they are missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lading.hooks.files.bell import Bell
from lading.hooks.files.safe_files import NotReadable, open_regular, read_regular, visible, write_atomically
from lading.hooks.spool.command import runner_of
from lading.hooks.spool.tokens import checked
from lading.scheduling.model.light_dataclasses import as_dict, dataclass, field, replace
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Layout, Resources

if TYPE_CHECKING:
    from lading.hooks.spool.hold import Hold
    from lading.hooks.spool.rejected import RejectedFiles
    from lading.scheduling.matching.waiting import WaitingJob

# The most bytes that are read of an envelope and of a request to the agent, and the size at which a log is rotated.
MOST_ENVELOPE_BYTES = 16 * 2**20
MOST_REQUEST_BYTES = 2**16
MOST_LOG_BYTES = 10 * 2**20


@dataclass(frozen=True, slots=True)
class Envelope:
    """One job on its way to a node agent.

    :param token: identifies this try of the job everywhere
    :param workload: Airflow's workload as JSON, with the JWT that it starts with: a secret
    :param resources: the request that packing uses
    :param memory_limit: MiB above which the job is killed; None: no limit
    :param time_limit: seconds after which the job is killed; None: no limit
    :param priority: Airflow's priority weight, higher first
    :param queued_at: seconds since the epoch, earlier first among equals
    :param expires_at: when the JWT expires, seconds since the epoch
    :param queue: of a batch system; None: that of the site
    :param native: directives of a batch system
    :param layout: how the processes of its batch job are distributed over nodes; None: one process of
        ``resources.cpus``
    :param dags: the folder that the job reads its Dags from; None: the one in the machine's Airflow configuration
    :param container: the container that it runs in (:mod:`lading.scheduling.hints.places`); None: none
    :param container_python: the Python in the container's image
    :param inputs: the files that were staged for it, by their addresses
    :param rest: longest remaining path in seconds, from its start to the end of its run, longer first among equals; 0:
        by arrival
    :param turn: its place when shares take turns, lower first within a priority; 0: they do not
    :param team: Airflow's team of its Dag; None: it has none
    :param gpu_type: the type of GPU that it requests; None: any
    """

    token: str
    workload: dict[str, Any]
    resources: Resources
    memory_limit: int | None
    time_limit: int | None
    priority: int
    queued_at: float
    expires_at: float
    queue: str | None = None
    native: Mapping[str, str | bool] = field(default_factory=dict)
    dags: str | None = None
    layout: Layout | None = None
    container: str | None = None
    container_python: str = "python"
    inputs: Mapping[str, str] = field(default_factory=dict)
    rest: float = 0.0
    turn: float = 0.0
    team: str | None = None
    gpu_type: str | None = None

    @property
    def runner(self) -> str:
        """The module that preloads and runs its command; empty: none."""
        return "" if self.container is not None else runner_of(self.workload)

    def at(self, site: SiteDefaults) -> Envelope:
        """Return the envelope with a site's limits and container where the author has set none."""
        limits = {name: getattr(self, name) or getattr(site, name) for name in ("memory_limit", "time_limit")}
        container = self.container or site.container or None
        return replace(self, **limits, container=container, container_python=site.container_python)

    def by_clock(self, ahead: float) -> Envelope:
        """Return the envelope with its times by a clock that is ``ahead`` seconds ahead of ours."""
        return replace(self, queued_at=self.queued_at + ahead, expires_at=self.expires_at + ahead)

    def waiting(self) -> WaitingJob:
        from lading.scheduling.matching.waiting import HINTS, WaitingJob  # imported late: jobs on nodes do not need it

        return WaitingJob(
            name=self.token,
            resources=self.resources,
            priority=self.priority,
            queued_at=self.queued_at,
            rest=self.rest,
            turn=self.turn,
            time=self.time_limit,
            hints=HINTS[self.queue is not None or bool(self.native), self.layout is not None],
            memory_limit=self.memory_limit,
            queue=self.queue,
            native=json.dumps(dict(self.native)) if self.native else None,
        )

    def to_json(self) -> str:
        layout = as_dict(self.layout) if self.layout else None
        return json.dumps({**as_dict(self), "resources": as_dict(self.resources), "layout": layout})

    @classmethod
    def from_json(cls, text: str) -> Envelope:
        fields = json.loads(text)
        layout = Layout(**fields["layout"]) if fields.get("layout") else None
        return cls(**{**fields, "resources": Resources(**fields["resources"]), "layout": layout})

    @classmethod
    def read(cls, path: Path) -> Envelope:
        """Read the envelope in a file.

        :raises OSError: it cannot be read
        :raises ValueError: it is damaged
        """
        try:
            return cls.from_json(read_regular(path, MOST_ENVELOPE_BYTES).decode())
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path.name} is not an envelope: {error!r}") from error

    @property
    def title(self) -> tuple[str, str]:
        """The rule that it is a job of, and its wildcards; empty: unknown."""
        return str(self.workload.get("rule") or ""), str(self.workload.get("wildcards") or "")

    @property
    def log_path(self) -> str:
        """The path of the task's log, relative to Airflow's folder of logs; empty: it has none that can be copied."""
        path = self.workload.get("log_path")
        return path if isinstance(path, str) and "\t" not in path and "\n" not in path else ""


@dataclass(frozen=True, slots=True)
class Spool:
    """The paths and the elementary operations of one spool folder.

    :param root: the folder, mode 0700
    """

    root: Path

    def create(self, *, reopens: bool = False) -> None:
        """Create the folder and its subfolders if missing.

        :param reopens: also create an inbox that was closed
        """
        folders = (self.root, self.cancels, self.holds, self.events, self.jobs)
        for folder in folders if self.closed.is_dir() and not reopens else (*folders, self.inbox):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self.root, 0o700)

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def lock(self) -> Path:
        return self.root / "agent.lock"

    @property
    def identity(self) -> Path:
        return self.root / "agent.json"

    @property
    def log(self) -> Path:
        return self.root / "agent.log"

    @property
    def old_log(self) -> Path:
        return self.root / "agent.log.1"

    @property
    def bell(self) -> Path:
        return self.root / "bell"

    @property
    def shutdown(self) -> Path:
        return self.root / "shutdown"

    @property
    def inbox(self) -> Path:
        return self.root / "inbox"

    @property
    def closed(self) -> Path:
        """The name of the inbox once it is closed because the machine is to be released."""
        return self.root / "closed"

    @property
    def returned(self) -> Path:
        """The envelopes that were taken back, until their return is stored."""
        return self.root / "returned"

    @property
    def ends_at(self) -> Path:
        """The file with the time at which jobs are told to exit because the machine is reclaimed; missing: unknown."""
        return self.root / "ends_at"

    @property
    def cancels(self) -> Path:
        return self.root / "cancel"

    @property
    def holds(self) -> Path:
        return self.root / "holds"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def rejected(self) -> Path:
        return self.root / "rejected"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    def envelope(self, token: str) -> Path:
        return self.inbox / f"{checked(token)}.json"

    def hold(self, token: str) -> Path:
        return self.holds / f"{checked(token)}.json"

    def cancel(self, token: str) -> Path:
        return self.cancels / checked(token)

    def job(self, token: str) -> JobFolder:
        return JobFolder(self.jobs / checked(token))

    def put(self, envelopes: Sequence[Envelope]) -> None:
        """Give jobs to the agent; an existing envelope is replaced by one with a fresh JWT."""
        for envelope in envelopes:
            write_atomically(self.envelope(envelope.token), envelope.to_json())
        if envelopes:
            self.ring()

    def take_back(self, tokens: Collection[str]) -> None:
        """Take back jobs that have not started; for those that have, or that the agent never had, nothing happens."""
        self.returned.mkdir(mode=0o700, exist_ok=True)
        for token in tokens:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.envelope(token), self.returned / f"{token}.json")
        if tokens:
            self.ring()

    def ask_to_cancel(self, reasons: Mapping[str, Reason]) -> None:
        for token, reason in reasons.items():
            write_atomically(self.cancel(token), reason.to_json())
        if reasons:
            self.ring()

    def keep_room(self, holds: Sequence[Hold]) -> None:
        """Ask the agent to hold room, or to extend existing holds."""
        for each in holds:
            write_atomically(self.hold(each.token), each.to_json())
        if holds:
            self.ring()

    def drop_holds(self, tokens: Collection[str]) -> None:
        for token in tokens:
            self.hold(token).unlink(missing_ok=True)
        if tokens:
            self.ring()

    def ask_to_shut_down(self, how: str) -> None:
        """Ask the agent to exit: ``cancel`` kills its jobs first, ``drain`` lets them finish."""
        write_atomically(self.shutdown, how)
        self.ring()

    def request(self, path: Path) -> str:
        """Return the text of a request to the agent, such as a cancellation or a shutdown.

        :raises OSError: it does not exist, or cannot be read
        """
        return read_regular(path, MOST_REQUEST_BYTES).decode(errors="replace").strip()

    def ring(self) -> None:
        """Wake the agent; if none is running, nothing happens, since an agent looks when it starts."""
        Bell(self.bell).ring()

    def journal(self, rejected: RejectedFiles | None = None) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
        """Yield the batches of events in order, each with its file, which the reader deletes after storing the events.

        Lines that are not events, for example after a power cut, are set aside; the rest of their file is used.

        :param rejected: remembers what was set aside
        """
        from lading.hooks.spool import (
            events,  # not at the top: a node that only writes events does not need the models
        )

        rejected = rejected or self._rejected()
        for path in visible(self.events):
            try:
                found, faults = events.read(read_regular(path, events.MOST_BYTES))
            except FileNotFoundError:
                continue
            except NotReadable as error:
                rejected.move(path, error)
                continue
            except OSError as error:  # reading may work later
                rejected.report(path.name, error)
                continue
            if faults and not found:
                rejected.move(path, faults[0][1])
                continue
            if faults:
                rejected.keep(path.name, b"\n".join(line for line, _ in faults), faults[0][1])
            yield path, found

    def _rejected(self) -> RejectedFiles:
        from lading.hooks.spool.rejected import RejectedFiles  # imported late, like all that batch jobs do not need

        return RejectedFiles(self.rejected)

    def log_is_full(self) -> bool:
        try:
            return self.log.stat().st_size > MOST_LOG_BYTES
        except FileNotFoundError:
            return False

    def part_log(self) -> None:
        """Rotate the log, keeping only the previous one."""
        os.replace(self.log, self.old_log)

    def leftovers(self) -> dict[str, list[Path]]:
        """Return the files, by kind, that can be removed once they are old."""
        folders = [folder for folder in (self.inbox, self.cancels, self.holds, self.events) if folder.is_dir()]
        return {
            "rejected files": visible(self.rejected) if self.rejected.is_dir() else [],
            "torn writes": [path for folder in folders for path in folder.glob(".*")],
            "logs": [self.old_log],
        }


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The files of one job that has been started or is about to be."""

    root: Path

    @property
    def workload(self) -> Path:
        return self.root / "workload.json"

    def claim(self, pid: int, started: int) -> Path:
        return self.root / f"claimed.{pid}.{started}.json"

    @property
    def supervisor(self) -> Path:
        return self.root / "supervisor.json"

    @property
    def sentinel(self) -> Path:
        return self.root / "exit.json"

    @property
    def cause(self) -> Path:
        return self.root / "cause.json"

    @property
    def output(self) -> Path:
        return self.root / "output"


# Settings that a site sends to the node agent of its location.


class SiteDefaults(Protocol):
    """A site's defaults for jobs whose authors set none: limits in MiB and seconds, and a container."""

    @property
    def memory_limit(self) -> int | None: ...
    @property
    def time_limit(self) -> int | None: ...
    @property
    def container(self) -> str: ...
    @property
    def container_python(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """``config.json``: the location as its site describes it.

    :param measure_disk: whether disk space is what is free now, at most the capacity of the location
    :param patience: seconds for which a waiting job may be overtaken
    :param kill_grace: seconds between SIGTERM and SIGKILL
    :param idle_seconds: time without jobs and requests after which the agent exits; None: never
    :param switch_off: shell text with which an idle agent shuts down its machine on exit; empty: the machine stays up
    :param scratch: the folder for the jobs' scratch folders; empty: the machine's folder for temporary files
    :param keep_failed: seconds for which the scratch folder of a failed job is kept
    :param is_spot: whether AWS may reclaim the machine, after a notice that the agent reads
    """

    capacity: Resources
    gpu_devices: tuple[str, ...]
    patience: float
    kill_grace: float
    measure_disk: bool = False
    idle_seconds: float | None = None
    switch_off: str = ""
    scratch: str = ""
    keep_failed: float = 0.0
    is_spot: bool = False

    @classmethod
    def from_json(cls, text: str) -> AgentConfig:
        fields = json.loads(text)
        return cls(
            Resources(**fields["capacity"]),
            tuple(map(str, fields["gpu_devices"])),
            float(fields["patience"]),
            float(fields["kill_grace"]),
            bool(fields.get("measure_disk")),
            None if (idle := fields.get("idle_seconds")) is None else float(idle),
            str(fields.get("switch_off", "")),
            str(fields.get("scratch", "")),
            float(fields.get("keep_failed", 0.0)),
            bool(fields.get("is_spot")),
        )


# The lock that ensures that only one agent serves a spool.


def lock_spool(spool: Spool) -> int | None:
    """Become the only agent of a spool; None: there is one already. The lock is held while the descriptor is open."""
    try:
        descriptor = open_regular(spool.lock, os.O_RDWR | os.O_CREAT)
    except NotReadable as error:
        from lading.hooks.spool.rejected import RejectedFiles

        RejectedFiles(spool.rejected).move(spool.lock, error)
        descriptor = open_regular(spool.lock, os.O_RDWR | os.O_CREAT)
    # A process that only checks for a running agent may hold the lock for a moment.
    deadline = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(0.05)
