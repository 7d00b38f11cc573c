"""Ends of jobs of which a machine tells none itself: they are told for it."""

from __future__ import annotations

import time

from lading.hooks.machines.tracker import MachineJobTracker, TrackedJob
from lading.hooks.polling.event_buffer import EventBuffer
from lading.scheduling.reasons import Reason, because


class Endings:
    """:param location: the name of the machine's location"""

    def __init__(self, location: str, tracker: MachineJobTracker, event_buffer: EventBuffer) -> None:
        self.location = location
        self.tracker = tracker
        self.event_buffer = event_buffer

    def end(self, job: TrackedJob, cause: str, reason: Reason) -> None:
        """A job has ended, and its machine tells nothing of it."""
        end = {"event": "finished", "token": job.token, "at": time.time(), "cause": cause, "reason": reason}
        self.tracker.read(end)
        self.event_buffer.tell({**end, "exit_code": None, "peak_memory": None, "cpu_seconds": None})

    def give_back(self, token: str, reason: Reason, file: str | None = None) -> None:
        """A job has not begun there, and will not.

        :param file: in which the machine says so; None: it does not
        """
        self.tracker.give_back(token)
        event = {"event": "returned", "token": token, "location": self.location, "reason": reason}
        self.event_buffer.tell(event, file)

    def give_up(self, cause: str, reason: Reason) -> None:
        """The machine is gone, and all that was there with it.

        :param cause: of the ends of those jobs that had begun; the others come back
        :param reason: why it is
        """
        for job in list(self.tracker.jobs.values()):
            if job.started and not job.ended:
                self.end(job, cause, reason)
            elif not job.ended:
                self.give_back(job.token, because("machine_ended").with_also(reason))
