"""What an allocation is asked for: how large, for how long, and its script."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Collection, Sequence

from lading.hooks.cluster.allocations.layout import AllocationFolder, AllocationTerms
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import SHOWN_NAME, TIME_TO_REPORT, ArrayShape, ScriptWriter, named_queues
from lading.hooks.deployment import current
from lading.hooks.spool import agent_archive
from lading.hooks.spool.spool import Envelope
from lading.scheduling.matching.market import Market, need
from lading.scheduling.provisioning import Launch, decide
from lading.scheduling.resources import Layout, Resources


def market(config: ClusterConfig, longest: int | None = None) -> Market:
    """What can be launched at a site.

    :param longest: for how many seconds a job of its queue may run; None: for any time, or that is not known
    """
    most = config.allocation_time if longest is None else min(config.allocation_time, longest)
    seconds = max(1, most - reserve(config))
    return Market(
        Resources(
            config.node_cpus, config.node_memory - config.added_memory, config.node_disk, float(config.node_gpus)
        ),
        config.added_memory,
        seconds,
        # Half of it: who gives no limit should have some time for certain, and the nodes should not stand idle for it.
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
    """Seconds at the end of an allocation in which jobs end and their logs are completed."""
    return config.kill_grace + TIME_TO_REPORT


def terms(launch: Launch, config: ClusterConfig) -> AllocationTerms:
    """What the agent of an allocation gets."""
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
    """The queue of an allocation; None: that of the site."""
    found: str | None = json.loads(terms.kind)[0]
    return found


class AllocationWriter(ScriptWriter):
    """Writes the scripts of a site's allocations."""

    def allocation(
        self,
        folder: AllocationFolder,
        terms: AllocationTerms,
        excluded: Sequence[str] = (),
        longest: Callable[[str, Collection[str]], int | None] = lambda queue, native: None,
    ) -> str:
        """The script of an allocation.

        :param excluded: the nodes on which it should not run
        :param longest: for how many seconds a job of a queue with such native directives may run; None: for any time
        """
        _, native = json.loads(terms.kind)
        capacity = terms.capacity
        shape = ArrayShape(
            Layout(threads=max(1, math.ceil(capacity.cpus))),
            capacity.memory + self.config.added_memory,
            math.ceil(capacity.gpus),
            math.ceil(terms.seconds) + reserve(self.config),
            math.ceil(terms.seconds),
            queue(terms),
            tuple((key, value) for key, value in native),
            next(iter(self.config.gpu_types), None),
        )
        named = shape.queue or ",".join(named_queues(self.config, self.system))
        shape = shape.within(longest(named, dict(shape.native)), f"queue {named!r}" if named else "the default queue")
        root = folder.cluster.root
        agent = agent_archive.command(self.config.python, root, "lading.executors.agent.allocation_agent")
        agent += [root, folder.name, *current.deployment().runner_options()]
        last = [f"exec {shlex.join(agent)}"]
        return self.script(folder.name, 1, shape, folder.root, shlex.quote(folder.output), last, excluded)

    def of_one(self, envelope: Envelope, excluded: Sequence[str] = ()) -> str:
        """The script of the allocation that would be asked for if a task waited alone, to be shown.

        :raises ValueError: no allocation can hold it
        """
        most = market(self.config)
        found = decide([need(envelope.waiting(), most)], (), most, now=math.inf)
        for message in found.refused.values():
            raise ValueError(message)
        folder = AllocationFolder(self.folder, SHOWN_NAME)
        return self.allocation(folder, terms(found.launches[0], self.config), excluded)
