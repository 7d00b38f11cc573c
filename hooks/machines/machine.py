"""A machine behind SSH: one exchange with it in each round, and the conclusions from its answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lading.hooks.dags.bundles import DagBundles
from lading.hooks.dags.upload import BundleSync
from lading.hooks.files.logs import Trouble
from lading.hooks.files.owner import Owner
from lading.hooks.machines import introduction
from lading.hooks.machines.agent_host import LONGEST_PAUSE
from lading.hooks.machines.fixed_config import HostConfig, MachinesConfig
from lading.hooks.machines.introduction import MachineRefused
from lading.hooks.machines.tracker import MachineJobTracker, Parcel, TrackedJob
from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.polling.outside_clock import by_our_clock
from lading.hooks.polling.rounds import PollInterval
from lading.hooks.polling.task_logs import MOST_LOG_BYTES, LogCopies, TaskLogs
from lading.hooks.spool.connection import Reply
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.model.reasons import Reason, because

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

log = logging.getLogger(__name__)

EVENTS = "spool/events/"
# A job's last events.
ENDS = "finished", "returned"


class Machine:
    """The state of a machine. ``round`` belongs to one thread; other methods can be called by another.

    :param api: URL at which its jobs reach Airflow's execution API
    :param folder: on the controller, for state about the machine; ``logs``: Airflow's folder of logs
    :param owner: the deployment that Lading's folder on the machine is to belong to; None: the folder is not marked
    """

    def __init__(
        self,
        site: str,
        config: MachinesConfig,
        host: HostConfig,
        transport: Transport,
        api: str,
        folder: Path,
        logs: Path,
        owner: Owner | None = None,
    ) -> None:
        self.config = config
        self.host = host
        self.transport = transport
        self.api = api
        self.owner = owner
        self.root = config.root(host)
        self.place = f"{host.ssh_conn_id!r} of site {site!r}"
        self.folder = folder
        self.facts = introduction.load_facts(folder / "facts.json")
        self.tracker = MachineJobTracker()
        self.holds = HoldsToSend()
        self.rejected = RejectedFiles(folder / "rejected")
        self.event_buffer = EventBuffer()
        self.endings = Endings(host.ssh_conn_id, self.tracker, self.event_buffer)
        self.interval = PollInterval(config.min_poll_interval, config.max_poll_interval)
        self.logs = TaskLogs(lambda token: f"logs/{token}", LogCopies(logs, folder / "logs.json"))
        bundles = DagBundles(config.max_bundle_size) if config.dags == "sync" else None
        self.bundles = BundleSync(f"{self.root}/bundles", bundles) if bundles else None
        self.spool = introduction.spool_connection(transport, config, host, api)
        self.no_api: str | None = None
        self.drains = False  # whether its agent takes no more jobs because another one is to replace it
        self.lives = False  # whether its agent is running
        self.is_loaded = False
        """Whether its list of jobs has been read."""
        self.is_behind = False  # whether it has more events than were read
        self.reached_at = time.monotonic()
        """When it last answered, or else when this process started; on the monotonic clock."""
        self.ends_at: float | None = None  # when its jobs are told to exit as it is reclaimed, by our clock
        self.is_closing = False
        """Whether it takes no more jobs because it is to be released."""
        self.is_empty = False
        """Whether its inbox is closed, it has no jobs, and all its events are stored."""
        self._troubles = Trouble(log)
        self._fault: str | None = None
        self._writing = WriteCheck(self.root)
        self._clock_ahead = 0.0
        self._is_introduced = False
        self._introduced_at = 0.0
        self._starts = Backoff(longest=LONGEST_PAUSE)
        self._shutdown: str | None = None
        self._was_restarted = False

    @property
    def note(self) -> str | None:
        """Why it takes no jobs; None: it takes jobs."""
        dead = self._starts.message if self._starts.failures > 1 and not self.lives else None
        return self._writing.fault or dead or self._fault or self.no_api

    def acknowledge(self, count: int) -> None:
        """Note that the first ``count`` unread events have been stored."""
        stored = self.event_buffer.acknowledge(count)
        self.tracker.acknowledge(event["token"] for event in stored if event["event"] in ENDS)

    def shut_down(self, how: str) -> None:
        """Shut the agent down from the next round on, with a request as for the spool; it is not restarted.

        If jobs are to be cancelled, a dead agent is restarted once more, because only an agent can kill them.

        :raises OSError: that failed
        """
        if how == "cancel" and self.tracker.is_busy and not self.lives:
            self._introduce()
        self._shutdown = how

    def leave(self) -> None:
        """Disconnect from it; its agent keeps running."""
        self.spool.close()
        introduction.RESIDENTS.leave(self.place)

    # -- the rounds

    def round(self) -> None:
        """Make one exchange with the machine, and start its agent first if that is due.

        :raises OSError: it could not be asked
        """
        try:
            refused = self._introduce() if self._shutdown is None and not self._is_introduced else None
            try:
                self._exchange()
            except OSError as error:
                raise refused or error from None
            if self._needs_agent():
                self._introduce()
                self._starts.failed(
                    f"the node agent keeps exiting; it has been started {self._starts.failures + 1} times: see "
                    f"{self.root}/spool/agent.log on the machine"
                )
        except OSError:
            self._is_introduced = False
            raise

    def _needs_agent(self) -> bool:
        since = time.monotonic() - self._introduced_at
        # An agent starts within ten seconds: on a slow machine, importing Airflow takes less.
        if self.lives or self._shutdown is not None or not self._is_introduced or since < 10.0:
            return False
        if since > LONGEST_PAUSE:  # it ran for a while
            self._starts.succeeded()
        return (self.tracker.is_busy or self._starts.failures > 1) and self._starts.left <= 0

    def pause(self) -> float:
        if self.is_behind:
            return 0.2  # the machine has more events than one round reads
        if self.note is not None:
            return 5.0  # a fault keeps the machine from taking jobs
        if self.is_closing:  # it costs money until it is empty
            return self.config.min_poll_interval
        return self.interval.pause(has_jobs=self.tracker.is_busy or bool(self.tracker.jobs))

    def _introduce(self) -> MachineRefused | None:
        """Query its resources, and have its agent started; return why the machine refuses, which its jobs survive.

        :raises OSError: it has not answered
        """
        try:
            found = introduction.introduce(self.spool, self.config, self.host, self.api, self.owner)
        except MachineRefused as error:
            self._fault = str(error)
            return error
        self._clock_ahead, self.drains, self.lives = found.clock_ahead, found.drains, found.lives
        boot_id = found.facts.boot_id
        self._fault = found.note or introduction.RESIDENTS.enter(self.place, boot_id, is_bounded=self.host.is_bounded)
        if self.bundles is not None:
            self.bundles.forget()  # its folder may have been replaced
        if found.facts != self.facts:
            self._was_restarted = self.facts is not None and boot_id != self.facts.boot_id
            log.info("%s is %s", self.host.ssh_conn_id, found.facts)
            self.facts = found.facts
            self._keep_here("its resources", lambda: introduction.save_facts(self.folder / "facts.json", found.facts))
        self._is_introduced = True
        self._introduced_at = time.monotonic()
        return None

    def _exchange(self) -> None:
        parcels = self._parcels()
        cancels = self.tracker.take_cancels()
        # In this order, so that the event files of finished jobs are among those to remove.
        over, files = self.tracker.over(), self.event_buffer.done()
        copied = self.logs.choose(list(self.tracker.jobs.values()))
        request = self._request(parcels, cancels)
        request["remove"] = [*files, *(f"logs/{job.token}" for job in over)]
        self.holds.add_to(request)
        request |= {"logs": self.logs.parts(copied), "most": MOST_LOG_BYTES // max(1, len(copied))}
        asked_at = time.time()
        try:
            reply = self.spool.ask(request)
        except BaseException:
            self.tracker.put_back(cancels)
            raise
        self.reached_at = time.monotonic()
        self._note_removed(over, files, reply)
        for file, why in reply.left_out.items():
            self.rejected.report(file, why)
        self.is_behind = reply.more  # unread events may include those of jobs that the machine no longer lists
        self._take_pulse(reply, asked_at)
        self._read_events(reply.events)
        self._note_arrived(parcels, cancels, reply)
        self._note_vanished(reply)
        if not self.is_loaded and not self.is_behind:
            self.tracker.load(reply.found)
            self._keep_here("its logs", lambda: self.logs.keep(self.tracker.jobs.keys() | reply.known))
            self.is_loaded = True
        if copied:
            self._keep_here("its logs", lambda: self.logs.add(copied, reply.logs, request["most"]))
            self.tracker.move_to_end(copied)
        self._sweep_bundles()
        self.is_closing = self.is_closing or reply.closed
        unstored = self.event_buffer.unread() or self.event_buffer.seen
        self.is_empty = reply.closed and not (reply.known or self.is_behind or self.tracker.jobs or unstored)

    def _keep_here(self, what: str, keep: Callable[[], None]) -> None:
        """Do something on the controller's own disk; a failure is logged and does not affect the machine."""
        matter = f"{what} could not be saved here ({self.host.ssh_conn_id})"
        try:
            keep()
            self._troubles.end(matter)
        except OSError as error:
            self._troubles.begin(matter, error)

    def _request(self, parcels: Sequence[Parcel], cancels: Mapping[str, Reason]) -> dict[str, Any]:
        """Return the request to the machine, except for logs."""
        request: dict[str, Any] = {
            "cancel": {token: reason.to_json() for token, reason in cancels.items()},
            "give": {
                each.job.token: [each.sent.to_json(), each.job.log_path] for each in parcels if not each.is_renewed
            },
            "renew": {each.job.token: each.sent.to_json() for each in parcels if each.is_renewed},
            "seen": [file.removeprefix(EVENTS) for file in self.event_buffer.seen if file.startswith(EVENTS)],
            "found": not self.is_loaded,
            "probe": self._writing.is_in_doubt,
        }
        if self.owner is not None:
            request["owner"] = self.owner.to_json()
        if self._shutdown is not None or self.is_closing:
            return request | ({"close": True} if self._shutdown is None else {"shutdown": self._shutdown})
        return request | {"recall": self.tracker.to_recall()}

    def _parcels(self) -> list[Parcel]:
        """Return the jobs that can be sent: those whose Dags are on the machine."""
        waiting = self.tracker.on_the_way()
        if self.is_closing:
            for job, _ in waiting:
                self.endings.give_back(job.token, because("machine_being_released"))
            return []
        if self.bundles is None or not waiting:
            return [self._parcel(job, envelope, envelope) for job, envelope in waiting]
        given = {job.token: envelope for job, envelope in waiting}
        parcels = []
        for bound in self.bundles.bind_jobs(
            self.transport,
            [(job, envelope, job.bundle) for job, envelope in waiting],
            refuse=lambda job, text: self.endings.end(job, "submit_rejected", because("bundle_refused", text=text)),
            hold=self.event_buffer.add_reason,
        ):
            bound.job.bundle = bound.hash
            parcels.append(self._parcel(bound.job, given[bound.job.token], bound.envelope))
        return parcels

    def _parcel(self, job: TrackedJob, envelope: Envelope, bound: Envelope) -> Parcel:
        return Parcel(job, envelope, bound.by_clock(self._clock_ahead), job.is_renewed)

    # -- conclusions from the answers

    def _note_removed(self, over: Collection[TrackedJob], files: Collection[str], reply: Reply) -> None:
        kept = frozenset(reply.kept)
        self.event_buffer.removed(file for file in files if file not in kept)
        gone = [job for job in over if f"logs/{job.token}" not in kept]
        self.tracker.forget(gone)
        self._keep_here("its logs", lambda: self.logs.forget(job.token for job in gone))

    def _take_pulse(self, reply: Reply, asked_at: float) -> None:
        self.lives = reply.lives
        by_ours = reply.now - self._clock_ahead
        self.ends_at = None if reply.ends_at is None else reply.ends_at - self._clock_ahead
        # A clock that differs from the measured one by more than five seconds was reset.
        clock_was_set = not asked_at - 5.0 < by_ours < time.time() + 5.0
        was_started = self.facts is not None and reply.boot_id != self.facts.boot_id
        if clock_was_set or was_started or self.drains:
            self._is_introduced = False

    def _note_arrived(self, parcels: Sequence[Parcel], cancels: Mapping[str, Reason], reply: Reply) -> None:
        self._writing.take_reply(reply, self.tracker, self.event_buffer)
        if reply.fault is not None:
            self.tracker.put_back(cancels)
        elif parcels or cancels:
            self.interval.changed()
        self.tracker.arrived([] if reply.fault is not None else parcels, reply.known, reply.waiting)

    def _note_vanished(self, reply: Reply) -> None:
        """Report jobs that will not start on the machine, and those that a restarted machine lost with its folder."""
        for token in reply.returned:
            if self.event_buffer.is_new(file := f"spool/returned/{token}.json"):
                self.endings.give_back(token, because("agent_leaves"), file)
        vanished = self.tracker.vanished(reply.known) if self._was_restarted and not self.is_behind else []
        self._was_restarted = self._was_restarted and self.is_behind
        for job in vanished:
            if job.started:
                self.endings.end(job, "node_failure", because("machine_rebooted"))
            else:
                self.endings.give_back(job.token, because("machine_restarted"))
        self.tracker.stuck(reply.waiting if self.drains or reply.fault or not reply.lives else frozenset())

    def _sweep_bundles(self) -> None:
        used = {job.bundle for job in list(self.tracker.jobs.values())}
        if self.bundles is not None and (sweep := self.bundles.sweep(used)) is not None:
            self.bundles.swept(*self.transport.exchange([sweep]))

    def _read_events(self, files: Mapping[str, bytes]) -> None:
        for event, last in self.event_buffer.new({EVENTS + file: files[file] for file in files}, self.rejected):
            self.interval.changed()
            self.tracker.read(event)
            self.event_buffer.add(by_our_clock(event, self._clock_ahead), last)


# The parts of a machine's state.


class Endings:
    """Ends of jobs that the machine does not report itself; they are reported on its behalf."""

    def __init__(self, location: str, tracker: MachineJobTracker, event_buffer: EventBuffer) -> None:
        self.location = location
        self.tracker = tracker
        self.event_buffer = event_buffer

    def end(self, job: TrackedJob, cause: str, reason: Reason) -> None:
        end = {"event": "finished", "token": job.token, "at": time.time(), "cause": cause, "reason": reason}
        self.tracker.read(end)
        self.event_buffer.add({**end, "exit_code": None, "peak_memory": None, "cpu_seconds": None})

    def give_back(self, token: str, reason: Reason, file: str | None = None) -> None:
        """Report that a job has not started on the machine, and will not.

        :param file: with which the machine reports that; None: none
        """
        self.tracker.give_back(token)
        event = {"event": "returned", "token": token, "location": self.location, "reason": reason}
        self.event_buffer.add(event, file)

    def end_all(self, cause: str, reason: Reason) -> None:
        """Report the ends of all jobs of a machine that is gone.

        :param cause: of the ends of jobs that had started; the others are returned
        :param reason: why the machine is gone
        """
        for job in list(self.tracker.jobs.values()):
            if job.started and not job.ended:
                self.end(job, cause, reason)
            elif not job.ended:
                self.give_back(job.token, because("machine_ended").with_also(reason))


class HoldsToSend:
    """The room to hold or to give back in the next exchange; used by the controller and the machine's thread.

    The controller repeats holds that have not arrived, and holds that are not dropped expire.
    """

    def __init__(self) -> None:
        self._asked: dict[str, str] = {}
        self._dropped: set[str] = set()
        self._lock = threading.Lock()

    def ask(self, holds: Iterable[Hold]) -> None:
        with self._lock:
            self._asked |= {each.token: each.to_json() for each in holds}

    def drop(self, tokens: Iterable[str]) -> None:
        with self._lock:
            for token in tokens:
                self._asked.pop(token, None)
                self._dropped.add(token)

    def add_to(self, request: dict[str, Any]) -> None:
        with self._lock:
            request["hold"], self._asked = self._asked, {}
            request["remove"] += [f"spool/holds/{token}.json" for token in sorted(self._dropped)]
            request["drops"], self._dropped = bool(self._dropped), set()


class WriteCheck:
    """Whether files can be written on a machine: on a full disk no job arrives, and none that has arrived starts.

    The node agent of such a machine cannot report this, because all its reports are files on that disk.

    :param root: Lading's folder on the machine
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.fault: str | None = None
        """Why nothing can be written, as text; None: files can be written."""
        self.is_in_doubt = False
        """Whether to test it: writing has failed, or jobs wait and none of them has started since the last look."""
        self._waiting: frozenset[str] = frozenset()

    def take_reply(self, reply: Reply, tracker: MachineJobTracker, event_buffer: EventBuffer) -> None:
        """Process an answer, and report to waiting jobs if the machine cannot write."""
        stands_still = bool(reply.waiting) and self._waiting <= reply.waiting
        self._waiting = reply.waiting
        reason = because("cannot_write", folder=self.root, text=reply.fault or "")
        self.fault = None if reply.fault is None else reason.sentence
        self.is_in_doubt = self.fault is not None or stands_still
        for token in self._waiting if self.fault is not None else ():
            if (job := tracker.jobs.get(token)) is not None:
                event_buffer.add_reason(job, reason)
