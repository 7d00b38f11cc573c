"""The controller's process: how an executor starts, wakes and stops it.

The process outlives the scheduler that started it: after a ``kill -9`` of the scheduler it keeps starting jobs, and the
next scheduler finds it by its lease.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

from lading.executors import store
from lading.executors.orchestrator.kept_connection import poll
from lading.executors.orchestrator.orchestrator import Orchestrator
from lading.executors.settings import Settings
from lading.executors.store.leases import DatabaseNow
from lading.hooks.files.bell import Bell
from lading.hooks.files.safe_files import make_private, private_opener
from lading.hooks.spool.spool import MOST_LOG_BYTES
from lading.hooks.ssh.backoff import pause
from lading.scheduling.model.reasons import because

log = logging.getLogger(__name__)

LONGEST_PAUSE = 60.0
# The reason's code of a job that waits for a controller.
NO_CONTROLLER = "no_controller"
# The same if the controller is a service. It is given once no controller has run for this long, seconds.
NO_SERVICE = "no_controller_service"
# A live controller that has not held the lease for this long hangs, seconds. One that is starting has more time, as it
# must first import Airflow, on a machine that may be busy.
SECONDS_UNTIL_HUNG = 30.0


class ControllerProcess:
    """Starts a controller if none is alive, wakes it, and stops it on shutdown."""

    seconds_until_begun = 60.0
    """How much longer a stop waits for a controller that is still starting; after that, it finishes on its own."""
    seconds_between_looks = 2.0

    def __init__(self, host: Orchestrator, settings: Settings, job_id: int | None = None) -> None:
        self.host = host
        self.settings = settings
        self.job_id = job_id
        self.child: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.started_at = 0.0
        self.next_look = 0.0
        self.explained = False
        self.absent_since: float | None = None
        self.lease: store.Lease | None = None
        self.next_read = 0.0
        # Controllers on this machine, by pid: since when they have not held the lease, and which have ever held it.
        self.without_lease: dict[int, float] = {}
        self.has_led: set[int] = set()

    def ensure(self) -> None:
        """Start a controller unless one is alive, here or elsewhere. Cheap enough for every scheduler loop.

        If the controller is a service, jobs that wait for it get a reason that says so instead.
        """
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + self.seconds_between_looks
        if self.child is not None and (status := self.child.poll()) is not None:
            was_killed_at_work = status < 0 and self.child.pid in self.has_led
            self.child = None
            self._note_end(status, now - self.started_at)
            if was_killed_at_work:
                self.starts = 0  # it was able to start, so the next one need not wait longer
        lease = self._check_lease(now)
        if self.child is not None:
            if now - self.started_at > LONGEST_PAUSE:
                self._note_health()
            return
        if lives(lease):
            self._note_health()
            return
        if not self.settings.starts_controller:
            self._note_absence(now)
            return
        self.starts += 1
        self.started_at = now
        self.next_look = now + pause(self.starts, self.seconds_between_looks, LONGEST_PAUSE)
        self.child = spawn(self.host, self.settings)

    def _check_lease(self, now: float) -> store.Lease | None:
        """Return the lease, and kill a controller on this machine that is alive but does not renew it.

        A standby then takes its place, or a new one is started. Nothing is lost, because a controller can be killed at
        any moment.
        """
        lease = self._read_lease(now)
        held = lease is not None and lease.left >= 0
        holder = lease.pid if lease is not None and lease.host == socket.gethostname() else None
        known = [*self.has_led, holder, self.child.pid if self.child is not None else None]
        alive = {pid for pid in known if pid is not None and self._is_alive(pid)}
        self.has_led = {pid for pid in alive if pid in self.has_led or (held and pid == holder)}
        # A controller that has never held the lease stands by while another one holds it. A controller that has lost
        # the lease should have exited.
        without = {pid for pid in alive if not (held and pid == holder) and (pid in self.has_led or not held)}
        self.without_lease = {pid: self.without_lease.get(pid, now) for pid in without}
        for pid, since in self.without_lease.items():
            begins = self.child is not None and pid == self.child.pid and pid not in self.has_led
            if now - since > (180.0 if begins else SECONDS_UNTIL_HUNG):
                log.error("The controller with pid %d hangs: it does not renew its lease, so it is killed", pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        return lease

    def _read_lease(self, now: float) -> store.Lease | None:
        """Return the lease; a lease that is held is read again before it would expire."""
        if now >= self.next_read or not lives(self.lease):
            try:
                self.lease = current_lease(self.host)
            except Exception:
                self.without_lease.clear()  # the database may be what keeps a controller from renewing
                raise
            # A held lease is read again after ten seconds, or once its holder on this machine is gone.
            self.next_read = now + (0.0 if self.lease is None else min(10.0, self.lease.left))
        return self.lease

    def _is_alive(self, pid: int) -> bool:
        return is_controller(pid) or (self.child is not None and self.child.pid == pid)

    def _note_health(self) -> None:
        """Note that a controller stays up, and withdraw the reasons that jobs were given while none did."""
        self.starts = 0
        self.absent_since = None
        if self.explained:
            with self.host.session() as session:
                store.forget_reasons(session, NO_CONTROLLER if self.settings.starts_controller else NO_SERVICE)
            self.explained = False

    def _note_absence(self, now: float) -> None:
        """Tell waiting jobs that no controller service runs, after giving it time to restart."""
        if self.absent_since is None:
            self.absent_since = now
        if now - self.absent_since < 30.0:
            return
        if not self.explained:
            log.error(
                "No controller is running. Because of [lading] start_controller = False, a service has to start it"
            )
        with self.host.session() as session:
            store.explain_the_rest(session, because(NO_SERVICE), DatabaseNow())
        self.explained = True

    def _note_end(self, status: int, lived: float) -> None:
        """Log how the controller ended; if it fails repeatedly, also tell the waiting jobs."""
        if lived > LONGEST_PAUSE:
            self.starts = 0
        if status == 0:
            log.info("The controller has exited normally")
            return
        message = f"the controller exited with status {status}"
        if status > 0 and (line := last_line(self.settings.controller_log)):
            message += f": {line}"
        log.error("Started %d times, %s; see %s", self.starts, message, self.settings.controller_log)
        if self.starts > 1:
            with self.host.session() as session:
                log_file, host = str(self.settings.controller_log), socket.gethostname()
                reason = because(NO_CONTROLLER, text=message, log=log_file, host=host)
                store.explain_the_rest(session, reason, DatabaseNow())
            self.explained = True

    def ring(self) -> None:
        """Wake the controller on this machine, as there is something to do; one elsewhere checks every second."""
        Bell(self.settings.controller_bell).ring()

    def stop(self) -> None:
        """Stop the controller on this machine cleanly, unless it also acts for another scheduler.

        If the last controller was killed and not replaced, start one that only closes all sites, because nothing else
        would clean up there. A controller of a killed scheduler may still be starting and not be visible yet; it learns
        from a file that Airflow was stopped.
        """
        try:
            is_shared = self._note_stop()
        except (KeyboardInterrupt, SystemExit):
            # Ctrl-C in the terminal of `airflow standalone` sends its scheduler SIGINT and at once SIGTERM.
            self._note_stop()
            raise
        lease = current_lease(self.host)
        acting = _acting_here(lease)
        # A child killed at this moment cannot be waited for until the last of its threads has ended.
        own_lives = self.child is not None and self.child.poll() is None and _runs(self.child.pid)
        own = {self.child.pid} if self.child is not None and own_lives else set()
        was_killed = lease is not None and lease.managed and not lives(lease) and not acting
        if was_killed and not own and not is_shared:
            log.info(
                "The controller with pid %d was killed; starting another to close its sites", lease.pid if lease else 0
            )
            self.child = spawn(self.host, self.settings)
            own = {self.child.pid}
        pids = own - acting if is_shared else own | acting
        for pid in pids:
            _ask_to_end(pid)
        begins = pids & own - acting - self.has_led  # still importing Airflow, and closes the sites only after that
        deadline = time.monotonic() + self.settings.shutdown_seconds + (self.seconds_until_begun if begins else 5)
        look_at = time.monotonic() + self.seconds_between_looks
        while (
            any(_runs(pid) if pid in own else is_controller(pid) for pid in pids)
            and (now := time.monotonic()) < deadline
        ):
            time.sleep(0.05)
            if now >= look_at and not is_shared:
                look_at = now + self.seconds_between_looks
                for pid in _acting_here(current_lease(self.host)) - pids:
                    _ask_to_end(pid)
                    pids.add(pid)

    def _note_stop(self) -> bool:
        """Write the file from which a controller learns in each tick that Airflow was stopped, unless another scheduler
        lives; return whether one does."""
        is_shared = another_scheduler_lives(self.host, self.settings, self.job_id)
        if not is_shared:
            with contextlib.suppress(OSError):  # a full disk must not prevent stopping the others
                make_private(self.settings.state_folder)
                self.settings.stopped.touch(mode=0o600)
        return is_shared


def _acting_here(lease: store.Lease | None) -> set[int]:
    """Return the pid of the controller on this machine that an executor started and that holds the lease, if any.

    An expired lease counts, because its controller may only be slow and must still be stopped.
    """
    is_here = lease is not None and lease.managed and lease.host == socket.gethostname() and is_controller(lease.pid)
    return {lease.pid} if lease is not None and is_here else set()


def _runs(pid: int) -> bool:
    """Return whether a process is alive, by its pid alone, as a process that has just started has no command yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _ask_to_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def was_stopped(host: Orchestrator, settings: Settings) -> bool:
    """Return whether Airflow was stopped cleanly here and no scheduler has started since, so a controller must stop."""
    return settings.stopped.exists() and not another_scheduler_lives(host, settings, None)


def spawn(host: Orchestrator, settings: Settings) -> subprocess.Popen[bytes]:
    """Start a controller in a session of its own, so that a signal to the scheduler's group does not reach it.

    It starts with SIGTERM blocked, and unblocks it once it can stop cleanly. Otherwise, a controller that is stopped
    while it imports Airflow would not clean up after one that was killed before.
    """
    make_private(settings.state_folder)
    part(settings.controller_log)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with open(settings.controller_log, "ab", opener=private_opener) as output:
            return subprocess.Popen(
                host.controller_command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def part(path: Path) -> None:
    """Rotate a full log, to which controllers print even before they set up logging."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MOST_LOG_BYTES:
            os.replace(path, path.with_name(f"{path.name}.1"))


def last_line(path: Path) -> str:
    """Return the last line of a log that is not blank; empty if there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(stream.seek(0, os.SEEK_END) - 2000, 0))
            lines = stream.read().decode(errors="replace").replace("\0", "").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def current_lease(host: Orchestrator) -> store.Lease | None:
    return poll(host.session, store.lease)


def lives(lease: store.Lease | None) -> bool:
    """Return whether the lease's holder is alive, as far as this machine can tell."""
    if lease is None or lease.left < 0:
        return False
    return lease.host != socket.gethostname() or is_controller(lease.pid)


def is_dead(lease: store.Lease) -> bool:
    """Return whether the lease's holder is known to be dead: it ran on this machine and is gone."""
    return lease.host == socket.gethostname() and not is_controller(lease.pid)


def ask_to_make_way(lease: store.Lease) -> None:
    """Stop a controller that an executor started on this machine, because a service takes over."""
    if lease.managed and lease.host == socket.gethostname() and is_controller(lease.pid):
        log.info("Stopping the controller with pid %d, which an executor started: a service takes over", lease.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(lease.pid, signal.SIGTERM)


def kill(lease: store.Lease | None) -> bool:
    """Kill the controller that holds the lease, without effect on any job; return whether it was on this machine."""
    if lease is None or lease.host != socket.gethostname():
        return False
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        process = psutil.Process(lease.pid)
        process.kill()
        process.wait(SECONDS_UNTIL_HUNG)
    return True


def is_controller(pid: int) -> bool:
    """Return whether a process is a controller, by its command, as its pid may have been reused."""
    try:
        return _runs(pid) and "controller" in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def another_scheduler_lives(host: Orchestrator, settings: Settings, job_id: int | None) -> bool:
    return host.is_attended(settings.schedulers_folder, job_id)
