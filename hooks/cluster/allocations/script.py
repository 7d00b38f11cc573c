"""The request of an allocation: its size, its duration, and its script."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Collection, Sequence

from lading.hooks.cluster.allocations.layout import AllocationFolder, AllocationTerms
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import (
    SHOWN_NAME,
    TIME_TO_REPORT,
    ArrayShape,
    ScriptWriter,
    named_queues,
    whole,
)
from lading.hooks.spool import agent_archive
from lading.hooks.spool.spool import Envelope
from lading.scheduling.matching.market import Market, need
from lading.scheduling.model.resources import Layout, Resources
from lading.scheduling.provisioning import Launch, decide


def market(config: ClusterConfig, longest: int | None = None) -> Market:
    """Return what can be launched at a site.

    :param longest: maximum run time of a job in its queue, in seconds; None: unlimited or unknown
    """
    most = config.allocation_time if longest is None else min(config.allocation_time, longest)
    seconds = max(1, most - reserve(config))
    return Market(
        Resources(
            config.node_cpus, config.node_memory - config.added_memory, config.node_disk, float(config.node_gpus)
        ),
        config.added_memory,
        seconds,
        # Half of it: a job without a limit needs some guaranteed time, but nodes should not be left idle for it.
        seconds / 2,
        min(config.max_allocations, config.max_submitted or config.max_allocations),
        config.whole_node is not None,
        config.idle_seconds,
        queue_seconds=config.idle_seconds if config.expected_queue_time is None else config.expected_queue_time,
        memory_limit=config.memory_limit,
        time_limit=config.time_limit,
        grace=config.kill_grace,
        hurry=config.hurry,
    )


def reserve(config: ClusterConfig) -> int:
    """Return the seconds at the end of an allocation that are reserved to end jobs and complete their logs."""
    return config.kill_grace + TIME_TO_REPORT


def terms(launch: Launch, config: ClusterConfig) -> AllocationTerms:
    unlimited = market(config).unlimited
    return AllocationTerms(
        launch.capacity,
        launch.seconds,
        unlimited,
        config.idle_seconds if launch.idle_seconds is None else launch.idle_seconds,
        config.kill_grace,
        launch.kind,
        config.scratch,
        config.keep_failed_scratch,
    )


def queue(terms: AllocationTerms) -> str | None:
    """Return the queue of an allocation; None: the site's queue."""
    found: str | None = json.loads(terms.kind)[0]
    return found


def native(terms: AllocationTerms) -> dict[str, str | bool]:
    """Return the native directives of the tasks in an allocation."""
    return dict(json.loads(terms.kind)[1])


class AllocationWriter(ScriptWriter):
    def allocation(
        self,
        folder: AllocationFolder,
        terms: AllocationTerms,
        excluded: Sequence[str] = (),
        longest: Callable[[str, Collection[str]], int | None] = lambda queue, native: None,
    ) -> str:
        """Return the script of an allocation.

        :param excluded: nodes on which it must not run
        :param longest: returns the maximum run time, in seconds, of a job with a queue and native directives; None:
            unlimited
        """
        capacity = whole(terms.capacity)
        shape = ArrayShape(
            Layout(threads=int(capacity.cpus)),
            capacity.memory + self.config.added_memory,
            int(capacity.gpus),
            math.ceil(terms.seconds) + reserve(self.config),
            math.ceil(terms.seconds),
            queue(terms),
            tuple(native(terms).items()),
            next(iter(self.config.gpu_types), None),
        )
        named = shape.queue or ",".join(named_queues(self.config, self.system))
        shape = shape.within(longest(named, dict(shape.native)), f"queue {named!r}" if named else "the default queue")
        root = folder.cluster.root
        agent = agent_archive.command(
            self.config.deployment, self.config.python, root, "lading.executors.agent.allocation_agent"
        )
        agent += [root, folder.name, *self.config.deployment.runner_options()]
        last = [f"exec {shlex.join(agent)}"]
        return self.script(folder.name, 1, shape, folder.root, shlex.quote(folder.output), last, excluded)

    def of_one(self, envelope: Envelope, excluded: Sequence[str] = ()) -> str:
        """Return the script of the allocation that would be requested for a single waiting task, for display.

        :raises ValueError: no allocation can hold the task
        """
        most = market(self.config)
        found = decide([need(envelope.waiting(), most)], (), most, now=math.inf)
        for message in found.refused.values():
            raise ValueError(message)
        folder = AllocationFolder(self.folder, SHOWN_NAME)
        return self.allocation(folder, terms(found.launches[0], self.config), excluded)
