"""In which state allocations are, as the batch system and their agents say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from lading.hooks.batch.status_query import Statuses
from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.allocations import remote_steps
from lading.hooks.cluster.allocations.allocation import Allocation, AllocationFleet, ReleaseState
from lading.hooks.cluster.allocations.layout import SECONDS_BETWEEN_WORDS
from lading.hooks.cluster.jobs.context import ClusterContext, ClusterPart
from lading.hooks.cluster.jobs.poller import SECONDS_UNTIL_REPEATED
from lading.hooks.polling.outside_clock import SECONDS_UNTIL_SEEN, least_ahead
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.tails import FilePart, Parts
from lading.scheduling.reasons import Reason, because

log = logging.getLogger(__name__)

# So long ago may have been said what is read of an agent's time, seconds.
LONGEST_TOLD_AGO = SECONDS_BETWEEN_WORDS + SECONDS_UNTIL_SEEN


class AllocationStates(ClusterPart):
    """What is asked about the states of allocations, and what the answers say.

    :param drop: forgets an allocation that was never there, with the cause and the reason
    """

    def __init__(
        self, context: ClusterContext, fleet: AllocationFleet, drop: Callable[[Allocation, str | None, Reason], None]
    ) -> None:
        super().__init__(context)
        self.fleet = fleet
        self.drop = drop

    def read(self, found: Statuses, asked_at: float) -> None:
        """Take in what the batch system says.

        :param asked_at: on the monotonic clock
        """
        for allocation in list(self.fleet.allocations.values()):
            is_found, batch = allocation.submission.is_found(found), allocation.batch
            if allocation.over:
                continue
            if not is_found:
                self._doubt(allocation, asked_at)
            elif batch.key is not None and not found.is_silent(batch.key):
                self._compare(allocation, batch.found_in(found), asked_at)

    def ups(self, allocations: Sequence[Allocation]) -> Parts:
        """The question whether agents have begun."""
        return Parts([FilePart(each.folder.up) for each in allocations])

    def read_ups(self, allocations: Sequence[Allocation], answer: CommandResult) -> None:
        """Take in which agents have begun, and how long they say that they go on.

        :param answer: to :meth:`ups`
        """
        contents = self.ups(allocations).contents(answer)
        for allocation, content in zip(allocations, contents, strict=True):
            up = remote_steps.read_up(content)
            if up is not None:
                log.info("allocation %s runs on %s", allocation.name, up["host"])
                now, allocation.ends_at = time.time(), time.monotonic() + up["left"]
                allocation.clock_ahead = least_ahead(up["now"], now - LONGEST_TOLD_AGO, now)
                self.nodes.seen(allocation.batch.node)
                self.interval.changed()

    def _doubt(self, allocation: Allocation, asked_at: float) -> None:
        """Give up an allocation that the batch system has not known for long, unless its agent has begun."""
        if allocation.ends_at is not None:
            allocation.batch.gone_since = allocation.batch.gone_since or asked_at
        elif asked_at - allocation.submission.asked_at > SECONDS_UNTIL_REPEATED:
            log.warning("allocation %s has not arrived", allocation.name)
            self.drop(allocation, "lost", because("allocation_unknown"))

    def _compare(self, allocation: Allocation, native: NativeJob | None, asked_at: float) -> None:
        batch = allocation.batch
        native = batch.given_up(native, asked_at, self.config.cancel_unrunnable_after)
        if batch.see(native, asked_at):
            self.interval.changed(asked_at)
        unwanted = allocation.release is ReleaseState.TOLD and allocation.ends_at is None and batch.gone_since is None
        if native is not None and (batch.is_hopeless or unwanted):  # or it was cancelled in vain
            self.fleet.tracker.press(batch, self.system)
