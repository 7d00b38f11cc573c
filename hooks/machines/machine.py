"""A machine behind SSH: one exchange with it for each round, and what its answers mean."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lading.hooks.dags import upload
from lading.hooks.dags.bundles import DagBundles
from lading.hooks.dags.upload import BundleSync
from lading.hooks.files.trouble import Trouble
from lading.hooks.machines import facts, introduction
from lading.hooks.machines.agent_host import LONGEST_PAUSE
from lading.hooks.machines.fixed_config import HostConfig, SSHConfig
from lading.hooks.machines.followers import Follower, Followers
from lading.hooks.machines.introduction import Refused
from lading.hooks.machines.tracker import Parcel, Tracked, Tracker
from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.polling.poll_interval import PollInterval
from lading.hooks.polling.task_logs import TaskLogs
from lading.hooks.spool import follow, remote
from lading.hooks.spool.log_mirror import LogCopies
from lading.hooks.spool.rejected import Rejected
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import Answer
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.steps import Put, Remove, Step
from lading.hooks.ssh.tails import Parts

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

log = logging.getLogger(__name__)

# The command that starts the agent answers within this, Python on a slow file server included, seconds.
INTRODUCTION_TIMEOUT = 60.0
# A clock that has been set is noticed when it differs by more from what was known, seconds.
CLOCK_TOLERANCE = 5.0
# What keeps jobs from being written there is tried again after this, seconds.
PAUSE_AFTER_FAULT = 5.0
# While there are more events than can be read at once, seconds.
PAUSE_BEHIND = 0.2
# Python, Airflow and all that an agent imports take less on a slow machine, seconds.
SECONDS_TO_START = 10.0


class Machine:
    """The state of a machine. ``round`` belongs to one thread, the rest may be called by another.

    :param host: its table
    :param api: URL at which its jobs reach Airflow's execution API
    :param folder: for what is known of it, on this machine
    :param logs: Airflow's folder of logs, on this machine
    :param followers: hears when it has news
    """

    def __init__(
        self,
        config: SSHConfig,
        host: HostConfig,
        transport: Transport,
        api: str,
        folder: Path,
        logs: Path,
        followers: Followers,
    ) -> None:
        self.config = config
        self.host = host
        self.transport = transport
        self.api = api
        self.root = config.root(host)
        self.folder = folder
        self.facts = facts.load(folder / "facts.json")
        self.tracker = Tracker()
        self.rejected = Rejected(folder / "rejected")
        self.event_buffer = EventBuffer()
        self.interval = PollInterval(config.poll_shortest, config.longest_poll)
        self.logs = TaskLogs(lambda token: f"{self.root}/logs/{token}", LogCopies(logs, folder / "logs.json"))
        bundles = DagBundles(config.sync_limit) if config.dags == "sync" else None
        self.bundles = BundleSync(f"{self.root}/bundles", bundles) if bundles else None
        command = [config.python, "-m", follow.__name__, f"{self.root}/spool"]
        self.follower = Follower(followers, transport, command, introduction.setup(config, host, api))
        self.no_api: str | None = None
        self.drains = False
        """Whether its agent takes no more jobs, for another one is to take its place."""
        self.lives = False
        """Whether its agent lives."""
        self.is_loaded = False
        """Whether it is known which jobs it has."""
        self.is_behind = False
        """Whether it has more events than were read."""
        self.reached_at = time.monotonic()
        """When it has answered last, on the monotonic clock; before that, when this process began."""
        self._troubles = Trouble(log)
        self._fault: str | None = None
        self._write_fault: str | None = None
        self._clock_ahead = 0.0
        self._is_introduced = False
        self._introduced_at = 0.0
        self._starts = Backoff(longest=LONGEST_PAUSE)
        self._shutdown: str | None = None

    @property
    def note(self) -> str | None:
        """What keeps it from taking jobs, in words; None: nothing."""
        dead = self._starts.words if self._starts.failures > 1 and not self.lives else None
        return self._write_fault or dead or self._fault or self.no_api

    def acknowledge(self, count: int) -> None:
        """The first so many of its unread events have been stored."""
        stored = self.event_buffer.acknowledge(count)
        self.tracker.acknowledge(event["token"] for event in stored if event["event"] == "finished")

    def listen(self, heard: Callable[[], None]) -> None:
        """Say what is done when it has news."""
        self.follower.heard = heard

    def shut_down(self, how: str) -> None:
        """Let the agent end, from the next round on, as its spool's request says; it is not started again."""
        self._shutdown = how

    # -- the rounds

    def round(self) -> None:
        """One exchange with the machine, before which its agent is started where that is due.

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
                    f"the node agent does not stay up, it has been started {self._starts.failures + 1} times: see "
                    f"{self.root}/spool/agent.log there"
                )
        except OSError:
            self._is_introduced = False
            self.follower.keep(False)
            raise
        self.follower.keep(self.tracker.is_busy)

    def _needs_agent(self) -> bool:
        """Whether an agent that is gone, or did not come up, is to be started now."""
        since = time.monotonic() - self._introduced_at
        if self.lives or self._shutdown is not None or not self._is_introduced or since < SECONDS_TO_START:
            return False
        if since > LONGEST_PAUSE:  # it has lived for a while
            self._starts.succeeded()
        return (self.tracker.is_busy or self._starts.failures > 1) and self._starts.left <= 0

    def pause(self) -> float:
        """Seconds until the next round."""
        if self.is_behind:
            return PAUSE_BEHIND
        if self.note is not None:
            return PAUSE_AFTER_FAULT
        return self.interval.pause(has_jobs=self.tracker.is_busy)

    def _introduce(self) -> Refused | None:
        """Ask what it has, and have its agent started; returns why that is refused there, which its jobs survive.

        :raises OSError: it has not answered
        """
        asked_at = time.time()
        command = introduction.command(self.config, self.host, self.api)
        (answer,) = self.transport.exchange([command], INTRODUCTION_TIMEOUT)
        try:
            found = introduction.read(answer, asked_at, time.time())
        except Refused as error:
            self._fault = str(error)
            return error
        self._clock_ahead, self.drains, self.lives = found.clock_ahead, found.drains, found.lives
        self._fault = found.note
        if found.facts != self.facts:
            log.info("%s is %s", self.host.ssh_conn_id, found.facts)
            self.facts = found.facts
            self._keep_here("what it has", lambda: facts.save(self.folder / "facts.json", found.facts))
        self._is_introduced = True
        self._introduced_at = time.monotonic()
        return None

    def _exchange(self) -> None:
        parcels = self._parcels()
        cancels = self.tracker.take_cancels()
        over, files = self.tracker.over(), self.event_buffer.done()
        steps = self._steps(parcels, cancels, over, files)
        copied = self.logs.choose(list(self.tracker.jobs.values()))
        question: Parts | None = None
        if copied:
            steps["logs"] = question = self.logs.question(copied)
        asked_at = time.time()
        try:
            answers = dict(zip(steps, self.transport.exchange(list(steps.values())), strict=True))
            pulse = remote.read_pulse(answers["pulse"])
            there = remote.read_known(answers["known"])
            events_there = remote.read_count(answers["count"])
            found = remote.events_of(self.root).files(answers["events"])
        except OSError:
            self.tracker.put_back(cancels)
            raise
        self.reached_at = time.monotonic()
        if "remove" in answers and answers["remove"].status == 0:
            self.event_buffer.removed(files)
            self.tracker.forget(over)
            self._keep_here("its logs", lambda: self.logs.forget(over))
        left_out = remote.events_of(self.root).left_out(answers["events"])
        for file, why in left_out.items():
            self.rejected.say(file, why)
        # The ends of jobs that are not there any more may be among those that were too many.
        self.is_behind = events_there > len(found) + len(left_out)
        self._take_pulse(pulse, asked_at)
        self._read_events(found)
        self._note_arrived(parcels, cancels, answers, there)
        if "found" in answers and answers["found"].status == 0 and not self.is_behind:
            self.tracker.load(answers["found"].lines)
            self._keep_here("its logs", lambda: self.logs.keep(self.tracker.jobs.keys() | there))
            self.is_loaded = True
        if "sweep" in answers and self.bundles is not None:
            self.bundles.swept(answers["sweep"])
        if (asked := question) is not None:
            self._keep_here("its logs", lambda: self.logs.copy(copied, asked, answers["logs"]))
            self.tracker.in_turn(copied)

    def _keep_here(self, what: str, keep: Callable[[], None]) -> None:
        """Do what needs this machine's own disk: where that fails the other one is none the worse for it."""
        matter = f"{what} could not be kept here ({self.host.ssh_conn_id})"
        try:
            keep()
        except OSError as error:
            self._troubles.begin(matter, error)
        else:
            self._troubles.end(matter)

    # -- what is asked and done

    def _steps(
        self, parcels: Sequence[Parcel], cancels: Mapping[str, str], over: Collection[str], files: Collection[str]
    ) -> dict[str, Step]:
        """All of it, by names of its own."""
        steps: dict[str, Step] = {}
        if over or files:
            steps["remove"] = Remove(self.root, [*files, *(f"logs/{token}" for token in over)])
        written = {f"spool/cancel/{token}": words.encode(errors="replace") for token, words in cancels.items()}
        folders = []
        for renewed in (False, True):
            if chosen := [each for each in parcels if each.is_renewed is renewed]:
                folders.append(f"{'renewed' if renewed else 'given'}-{uuid.uuid4().hex}")
                written |= {
                    f"incoming/{folders[-1]}/{each.job.token}.json": each.sent.to_json().encode() for each in chosen
                }
        if self._shutdown is not None:
            written["spool/shutdown"] = self._shutdown.encode()
        if self._write_fault is not None and not written:
            written["probe"] = b""  # whether it can be written there again
        if written:
            steps["put"] = Put(self.root, written)
        if folders:
            steps["place"] = remote.place(self.root, folders)
        steps["ring"] = remote.ring(self.root)
        steps["pulse"] = remote.pulse(self.root)
        steps["known"] = remote.known(self.root)  # before the events: see there
        steps["count"] = remote.count(self.root)
        steps["events"] = remote.events_of(self.root)
        if not self.is_loaded:
            steps["found"] = remote.logs_of(self.root)
        if self.bundles is not None:
            sweep = self.bundles.sweep({job.bundle for job in list(self.tracker.jobs.values())})
            if sweep is not None:
                steps["sweep"] = sweep
        return steps

    def _parcels(self) -> list[Parcel]:
        """The jobs that can be brought there: those whose Dags are where they will read them."""
        waiting = self.tracker.on_the_way()
        if self.bundles is None or not waiting:
            return [self._parcel(job, envelope, envelope) for job, envelope in waiting]
        bound = self.bundles.prepare(self.transport, [envelope for job, envelope in waiting if not job.bundle])
        ready = []
        for job, envelope in waiting:
            # One that is there already reads the Dags to which it was bound, whatever they are by now.
            if not job.bundle and (words := bound.refusal_of(envelope)) is not None:
                self._reject(job, words)
            elif not job.bundle and (words := bound.wait_of(envelope)) is not None:
                self.event_buffer.tell_reason(job, f"waits: {words}")
            else:
                job.bundle = job.bundle or bound.hash_of(envelope)
                ready.append(self._parcel(job, envelope, upload.bind(envelope, f"{self.root}/bundles", job.bundle)))
        return ready

    def _parcel(self, job: Tracked, envelope: Envelope, bound: Envelope) -> Parcel:
        ahead = self._clock_ahead
        sent = replace(bound, queued_at=bound.queued_at + ahead, expires_at=bound.expires_at + ahead)
        return Parcel(job, envelope, sent, job.is_renewed)

    def _reject(self, job: Tracked, words: str) -> None:
        end = {"event": "finished", "token": job.token, "at": time.time(), "cause": "submit_rejected", "message": words}
        self.tracker.read(end)
        self.event_buffer.tell({**end, "exit_code": None, "peak_memory": None, "cpu_seconds": None})

    # -- what the answers say

    def _take_pulse(self, pulse: remote.Pulse, asked_at: float) -> None:
        self.lives = pulse.lives
        by_ours = pulse.now - self._clock_ahead
        clock_was_set = not asked_at - CLOCK_TOLERANCE < by_ours < time.time() + CLOCK_TOLERANCE
        was_started = self.facts is not None and pulse.boot_id != self.facts.boot_id
        if clock_was_set or was_started or self.drains:
            self._is_introduced = False

    def _note_arrived(
        self,
        parcels: Sequence[Parcel],
        cancels: Mapping[str, str],
        answers: Mapping[str, Answer],
        there: frozenset[str],
    ) -> None:
        """Know what has arrived, and what is to be sent again."""
        done = [answers[name] for name in ("put", "place") if name in answers]
        faults = [answer.words for answer in done if answer.status != 0]
        if faults:
            self._write_fault = f"jobs could not be written to {self.root}: {'; '.join(faults)}"
            self.tracker.put_back(cancels)
        elif done:
            self._write_fault = None
            self.interval.changed()
        self.tracker.arrived([] if faults else parcels, there)

    def _read_events(self, files: Mapping[str, bytes]) -> None:
        for event, last in self.event_buffer.new(
            {f"spool/events/{file}": files[file] for file in files}, self.rejected
        ):
            self.interval.changed()
            self.tracker.read(event)
            self.event_buffer.tell(self._by_our_clock(event), last)

    def _by_our_clock(self, event: dict[str, Any]) -> dict[str, Any]:
        there = {name: event[name] for name in ("at", "started_at") if event.get(name) is not None}
        return {**event, **{name: max(0.0, at - self._clock_ahead) for name, at in there.items()}}
