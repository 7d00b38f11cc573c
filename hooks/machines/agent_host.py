"""Keeps the node agent of a spool alive on the machine that this process runs on, no matter who started the agent."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lading.hooks.files import child_processes, host
from lading.hooks.files.child_processes import with_first_open_files_limit, without_secrets
from lading.hooks.files.safe_files import NotReadable, make_private, open_regular, write_atomically
from lading.hooks.files.version import VERSION
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Spool
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.model.resources import Resources

# An agent that dies at once is restarted after 1, 2, 4 ... seconds, up to this many.
LONGEST_PAUSE = 60.0
ANOTHER_AGENT = (
    "an agent that was started by another version of Lading, or with another setup, is still running; it takes no more "
    "jobs, and is replaced once its current jobs have finished"
)


def settings(
    capacity: Resources,
    patience: float,
    kill_grace: float,
    *,
    measure_disk: bool,
    idle_seconds: float | None = None,
    switch_off: str = "",
    scratch: str = "",
    keep_failed: float = 0.0,
    is_spot: bool = False,
) -> dict[str, Any]:
    """Return the settings of an agent.

    :param capacity: the most that jobs can use together
    :param patience: seconds for which a waiting job may be overtaken
    :param kill_grace: seconds between SIGTERM and SIGKILL
    :param measure_disk: whether the disk space for jobs is what is free when a job starts, up to that of ``capacity``
    :param idle_seconds: after which an agent without jobs exits; None: never
    :param switch_off: shell text that it runs on exit to shut down its machine
    :param scratch: the folder for the jobs' scratch folders; empty: the machine's folder for temporary files
    :param keep_failed: seconds for which the scratch folder of a failed job is kept
    :param is_spot: whether AWS may reclaim the machine
    """
    amounts = {name: getattr(capacity, name) for name in ("cpus", "memory", "disk", "gpus")}
    return {
        "capacity": amounts,
        "gpu_devices": host.gpu_devices(),
        "patience": patience,
        "kill_grace": kill_grace,
        "measure_disk": measure_disk,
        "idle_seconds": idle_seconds,
        "switch_off": switch_off,
        "scratch": scratch,
        "keep_failed": keep_failed,
        "is_spot": is_spot,
    }


class AgentHost:
    """The node agent of one spool.

    :param rejected: keeps files that cannot be read
    :param scope: words that precede the agent's command
    :param options: of the agent's command
    :param stamp: identifies the version and setup for new agents; an agent with another stamp drains
    """

    def __init__(
        self,
        spool: Spool,
        rejected: RejectedFiles,
        scope: Sequence[str] = (),
        options: Sequence[str] = (),
        stamp: str | None = None,
    ) -> None:
        self.spool = spool
        self.rejected = rejected
        self.scope = scope
        self.options = options
        self.stamp = stamp
        self.agent: subprocess.Popen[bytes] | None = None
        self.backoff = Backoff(longest=LONGEST_PAUSE)
        self.started_at = 0.0
        self.resumed = False

    def keep_alive(self, settings: Mapping[str, Any]) -> str | None:
        """Start the agent if none is running; return why it cannot run, or None."""
        make_private(self.spool.root.parent)
        self.spool.create()
        self._configure(json.dumps(settings))
        if self.is_another:
            self.spool.ask_to_shut_down("drain")
            return ANOTHER_AGENT
        if not self.resumed:  # an agent that an earlier controller left draining takes jobs again
            self.rejected.remove(self.spool.shutdown)
            self.resumed = True
        if self.lives():
            if self.agent is None or time.monotonic() - self.started_at > LONGEST_PAUSE:
                self.backoff.succeeded()
            return None
        if self.backoff.left <= 0:
            self._start()
        return self.backoff.message if self.backoff.failures > 1 else None

    @property
    def is_another(self) -> bool:
        """Whether the running agent has another version or setup than a new one would have."""
        identity = self._identity()
        return self.stamp is not None and _lives(identity) and identity.get("stamp", "") != self.stamp

    @property
    def is_introduced(self) -> bool:
        """Whether the running agent has written its identity."""
        return _lives(self._identity())

    def lives(self) -> bool:
        """Whether an agent of this spool is running, no matter who started it, or is still importing Airflow."""
        return (self.agent is not None and self.agent.poll() is None) or _lives(self._identity())

    def _identity(self) -> dict[str, Any]:
        """Return what the last agent has written about itself; empty: none has, or it cannot be read."""
        try:
            found = json.loads(self.spool.request(self.spool.identity))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def close(self, how: str, timeout: float) -> None:
        """Shut the agent down as :meth:`lading.hooks.site.Site.close` says; ``cancel`` waits until it has exited.

        The request is also left if no agent seems to be running: a controller that was killed may have started one that
        has not written its identity yet. It is withdrawn before the next agent is started.
        """
        if how == "hand_over" or not self.spool.root.is_dir():
            return
        self.spool.ask_to_shut_down("drain" if how == "leave" else "cancel")
        deadline = time.monotonic() + timeout
        while how == "cancel" and self.lives() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _start(self) -> None:
        self.rejected.remove(self.spool.shutdown)
        if self.spool.log_is_full():
            self.spool.part_log()
        stamp = () if self.stamp is None else ("--stamp", self.stamp)
        with os.fdopen(self._open_log(), "ab") as log:
            self.agent = subprocess.Popen(
                with_first_open_files_limit(
                    [
                        *self.scope,
                        *child_processes.python_command(
                            "lading.executors.agent", str(self.spool.root), *self.options, *stamp
                        ),
                    ]
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=without_secrets(os.environ),
                start_new_session=True,
            )
        self.started_at = time.monotonic()
        starts = self.backoff.failures + 1
        self.backoff.failed(f"the node agent keeps exiting; it has been started {starts} times: see {self.spool.log}")

    def _open_log(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            return open_regular(self.spool.log, flags)
        except NotReadable as error:
            self.rejected.move(self.spool.log, error)
            return open_regular(self.spool.log, flags)

    def _configure(self, settings: str) -> None:
        try:
            if self.spool.request(self.spool.config) == settings:
                return
        except FileNotFoundError:
            pass
        except NotReadable as error:
            self.rejected.move(self.spool.config, error)
        write_atomically(self.spool.config, settings)


def introduce(spool: Spool, stamp: str = "") -> None:
    """Write that this process is the agent of a spool, so that its site can see whether it is running.

    :param stamp: the version and setup that it was started with; see :class:`AgentHost`
    """
    pid = os.getpid()
    identity = {
        "pid": pid,
        "started": host.started(pid),
        "boot_id": host.boot_id(),
        "version": VERSION,
        "stamp": stamp,
    }
    write_atomically(spool.identity, json.dumps(identity))


def _lives(identity: Mapping[str, Any]) -> bool:
    try:
        if identity["boot_id"] != host.boot_id():
            return False  # written on another machine that shares the folder, or before a reboot
        return host.is_alive(int(identity["pid"]), identity["started"])
    except (OSError, ValueError, TypeError, LookupError, OverflowError):
        return False  # not written by an agent, so none is running
