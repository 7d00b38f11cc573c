"""State that the parts of a cluster's site share: the poller, the submitter, and the post-mortem."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lading.hooks.batch.outcome import Evidence
from lading.hooks.batch.system import BatchSystem, NativeJob
from lading.hooks.cluster.jobs import end_event
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.excluded_nodes import ExcludedNodes
from lading.hooks.cluster.jobs.job_script import named_clusters
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.jobs.tracker import BatchJobTracker, TrackedBatchJob
from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.polling.rounds import PollInterval


@dataclass
class ClusterContext:
    """The shared state of a cluster.

    :param nodes: the failed nodes, which get no jobs
    """

    config: ClusterConfig
    system: BatchSystem
    nodes: ExcludedNodes
    tracker: BatchJobTracker = field(default_factory=BatchJobTracker)
    event_buffer: EventBuffer = field(default_factory=EventBuffer)

    def __post_init__(self) -> None:
        self.folder = ClusterFolder(self.config.work_dir)
        self.interval = PollInterval(self.config.min_poll_interval, self.config.max_poll_interval)
        self.home = named_clusters({}, self.config, self.system)
        """The clusters that jobs use unless they name others; empty: that of the login node."""


class ClusterPart:
    """A part of a cluster's site, with access to the shared state."""

    def __init__(self, context: ClusterContext) -> None:
        self.context = context
        self.config, self.system, self.folder = context.config, context.system, context.folder
        self.tracker, self.nodes = context.tracker, context.nodes
        self.event_buffer, self.interval = context.event_buffer, context.interval

    def node_of(self, job: TrackedBatchJob) -> str | None:
        """Return the node that may be excluded after a failure of this job; None: there is none.

        Nodes of other clusters are never excluded, because nodes of different clusters can have the same name.
        """
        is_home = job.submission is not None and job.submission.clusters == self.context.home
        return job.node if is_home else None

    def evidence(
        self, native: NativeJob | None, own: Mapping[str, Any] | None, gone_since: float, output: str
    ) -> Evidence:
        """Return all evidence about a job that has gone, except its sentinel.

        :param native: the report of the batch system or its accounting; None: there is none
        :param own: the job's own report of how it ended; None: there is none
        :param output: the end of the output of its batch job
        """
        return Evidence(
            native=native,
            says_memory=self.system.wording.says_memory(output),
            gone=time.monotonic() - gone_since,
            patience=end_event.patience(native, own, self.config.min_poll_interval),
            deadline=self.config.lost_after,
        )
