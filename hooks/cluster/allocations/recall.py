"""What is taken out of inboxes: nothing will start it there, or it is wanted back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from lading.hooks.cluster.allocations import remote_steps
from lading.hooks.cluster.allocations.allocation import AllocationFleet
from lading.hooks.cluster.jobs.poller import SECONDS_UNTIL_REPEATED
from lading.hooks.cluster.jobs.tracker import TrackedBatchJob
from lading.hooks.ssh.answer import CommandResult

# In one look so many jobs are taken out of inboxes.
MOST_TAKEN_BACK = 1000


class Recall:
    """The jobs that are to leave their inboxes.

    :param let_wait: is told of each job that is in no inbox any more
    """

    def __init__(self, fleet: AllocationFleet, let_wait: Callable[[TrackedBatchJob], None]) -> None:
        self.fleet = fleet
        self.let_wait = let_wait
        self.asked: dict[str, str] = {}
        """The allocation of each job that is wanted back, by token."""

    def ask(self, tokens: Mapping[str, Sequence[str]]) -> bool:
        """Take jobs back in the next round; returns whether there is anything new in that.

        :param tokens: by allocation
        """
        with self.fleet.tracker.lock:
            given = self.fleet.given
            pairs = ((token, name) for name, some in tokens.items() for token in some if given.get(token) == name)
            new = {token: name for token, name in pairs if token not in self.asked}
            self.asked |= new
        return bool(new)

    def ask_for_all(self) -> None:
        """Take back all that has not begun."""
        self.asked |= {job.token: allocation.name for allocation, job in self.fleet.jobs() if not job.started}

    def choose(self) -> dict[str, str]:
        """The jobs that leave their inbox in this look: the allocation of each, by token."""
        placed = {job.token: allocation for allocation, job in self.fleet.jobs() if not job.started}
        back = {token: each.name for token, each in placed.items() if each.ends or token in self.fleet.doubtful}
        for job in list(self.fleet.tracker.waiting()):
            if job.token in self.asked:  # it is in no inbox yet
                self.let_wait(job)
        with self.fleet.tracker.lock:
            self.asked = {token: name for token, name in self.asked.items() if token in placed}
            back |= self.asked
        return dict(list(back.items())[:MOST_TAKEN_BACK])

    def read(self, chosen: Mapping[str, str], gone: Mapping[str, object], answer: CommandResult | None) -> None:
        """See which of the chosen jobs are in no inbox any more.

        :param gone: the allocations that may have ended
        :param answer: None: nothing was taken back
        """
        found = {} if answer is None else remote_steps.taken_back(answer)
        self.fleet.doubtful |= chosen.keys() - found.keys()
        now = time.monotonic()
        for token, what in found.items():
            self.asked.pop(token, None)
            job = self.fleet.tracker.jobs.get(token)
            if job is None or job.started or job.ended or job.submission is None:
                continue
            late = now - self.fleet.placed_at.get(token, 0.0) > SECONDS_UNTIL_REPEATED
            if what == "removed" or (what == "absent" and token in self.fleet.doubtful and late):
                self.let_wait(job)
            elif what == "begun":
                self.fleet.doubtful.discard(token)
                if chosen[token] in gone:
                    job.started = True
