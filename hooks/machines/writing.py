"""Whether anything can be written on a machine: on a full disk no job arrives, and none that has arrived begins.

The node agent of such a machine cannot say so, for all that it says is a file there.
"""

from __future__ import annotations

from lading.hooks.machines.tracker import MachineJobTracker
from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.spool.connection import Reply
from lading.scheduling.reasons import because


class Writing:
    """What is known of that.

    :param root: the folder of Lading on the machine
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.fault: str | None = None
        """Why nothing can be written, in words; None: it can."""
        self.is_in_doubt = False
        """Whether it is to be tried: it has failed, or jobs wait there of which none has begun since the last look."""
        self._waiting: frozenset[str] = frozenset()

    def look(self, reply: Reply, tracker: MachineJobTracker, event_buffer: EventBuffer) -> None:
        """Take in an answer, and say of the jobs that wait there why they do."""
        stands_still = bool(reply.waiting) and self._waiting <= reply.waiting
        self._waiting = reply.waiting
        reason = because("cannot_write", folder=self.root, text=reply.fault or "")
        self.fault = None if reply.fault is None else reason.sentence
        self.is_in_doubt = self.fault is not None or stands_still
        for token in self._waiting if self.fault is not None else ():
            if (job := tracker.jobs.get(token)) is not None:
                event_buffer.tell_reason(job, reason)
