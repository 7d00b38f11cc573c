"""What the parts of a cluster's site share: the poller, what submits, and what judges how jobs have ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from lading.hooks.batch.system import BatchSystem
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.excluded_nodes import ExcludedNodes
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.jobs.tracker import BatchJobTracker
from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.polling.rounds import PollInterval


@dataclass
class ClusterContext:
    """What is known of a cluster.

    :param nodes: those that fail, to which nothing is submitted
    """

    config: ClusterConfig
    system: BatchSystem
    nodes: ExcludedNodes
    tracker: BatchJobTracker = field(default_factory=BatchJobTracker)
    event_buffer: EventBuffer = field(default_factory=EventBuffer)

    def __post_init__(self) -> None:
        self.folder = ClusterFolder(self.config.work_dir)
        self.interval = PollInterval(self.config.min_poll_interval, self.config.max_poll_interval)


class ClusterPart:
    """A part of a cluster's site."""

    def __init__(self, context: ClusterContext) -> None:
        self.context = context
        self.config, self.system, self.folder = context.config, context.system, context.folder
        self.tracker, self.nodes = context.tracker, context.nodes
        self.event_buffer, self.interval = context.event_buffer, context.interval
