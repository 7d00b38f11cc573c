"""Room held on a location for upcoming jobs. The spool's files define the holds, so that a new agent can read them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from lading.executors.agent.journal import Journal
from lading.hooks.files.safe_files import NotReadable, read_regular, visible
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import MOST_REQUEST_BYTES, Spool
from lading.hooks.spool.tokens import TOKEN
from lading.scheduling.model import gpus
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources
from lading.scheduling.starts.queueing import QueueRoom

log = logging.getLogger(__name__)

NO_ROOM = because("hold_no_room")
CLOSED = because("agent_leaves")
RUN_OUT = because("hold_expired")


@dataclass(slots=True)
class GrantedHold:
    """A hold that was granted.

    :param file: the file's inode, which changes when the hold is renewed
    :param devices: the share of each GPU
    :param since: when the file was first seen, on the monotonic clock
    """

    hold: Hold
    file: int
    devices: Mapping[str, float]
    since: float = field(default_factory=time.monotonic)


class AgentHolds:
    """The holds that an agent has granted, by job.

    :param rejected: sets unreadable requests aside
    """

    def __init__(self, spool: Spool, journal: Journal, rejected: RejectedFiles) -> None:
        self.spool = spool
        self.journal = journal
        self.rejected = rejected
        self.by_job: dict[str, GrantedHold] = {}

    def used(self) -> Resources:
        return sum((each.hold.resources for each in self.by_job.values()), Resources())

    def without(self, devices: Mapping[str, float]) -> dict[str, float]:
        """Return the free share of each GPU, less what is held."""
        left = dict(devices)
        for each in self.by_job.values():
            for device in each.devices.keys() & left.keys():
                left[device] -= each.devices[device]
        return left

    def refresh(self, room: Callable[[], QueueRoom], *, takes: bool) -> None:
        """Grant new requests if there is room, forget dropped holds, and let old ones expire.

        :param room: returns what is free now, less what is held
        :param takes: whether new holds are granted
        """
        files = {path.stem: path for path in visible(self.spool.holds)}
        for job, held in list(self.by_job.items()):
            if held.hold.token not in files:
                del self.by_job[job]
        known = {each.hold.token: each for each in self.by_job.values()}
        for token, path in files.items():
            try:
                file = os.stat(path, follow_symlinks=False).st_ino
                if token in known:
                    self._renew(known[token], file)
                elif TOKEN.fullmatch(token):
                    self._read(token, file, room, takes=takes)
                else:
                    self.rejected.move(path, "its file name does not have the form TOKEN.json, which holds have")
            except FileNotFoundError:
                continue  # it was withdrawn
            except (NotReadable, ValueError) as error:
                self.rejected.move(path, error)
            except OSError as error:  # reading is tried again
                self.rejected.report(path.name, error)

    def use(self, job: str) -> None:
        """Remove a job's hold, because the job has started."""
        if (held := self.by_job.pop(job, None)) is not None:
            self.spool.hold(held.hold.token).unlink(missing_ok=True)

    def held_for(self, waiting: Collection[str]) -> list[GrantedHold]:
        return [held for job, held in self.by_job.items() if job in waiting]

    def _renew(self, held: GrantedHold, file: int) -> None:
        if held.file != file:
            held.file, held.since = file, time.monotonic()
        elif time.monotonic() - held.since > held.hold.seconds:
            del self.by_job[held.hold.job]
            self._remove(held.hold.token, "hold_lost", RUN_OUT)

    def _read(self, token: str, file: int, room: Callable[[], QueueRoom], *, takes: bool) -> None:
        hold = Hold.from_json(read_regular(self.spool.hold(token), MOST_REQUEST_BYTES))
        if hold.token != token:
            raise ValueError(f"the file contains hold {hold.token!r}")
        there = room()
        held = GrantedHold(hold, file, gpus.pick(there.devices, hold.resources.gpus) or {} if there.devices else {})
        if hold.job in self.by_job or not takes or not there.takes(hold.resources):
            self._remove(token, "refused", NO_ROOM if takes else CLOSED)
        else:
            self.by_job[hold.job] = held
            self.journal.held(token, at=time.time())

    def _remove(self, token: str, event: str, reason: Reason) -> None:
        log.info("hold %s, %s: %s", token, event, reason.sentence)
        self.spool.hold(token).unlink(missing_ok=True)
        self.journal.not_held(token, event, reason, at=time.time())
