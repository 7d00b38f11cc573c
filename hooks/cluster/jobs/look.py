"""One look at a cluster: all that is asked and done there in one exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lading.hooks.batch.canceller import Cancellation
from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.cluster.jobs.tracker import Errands, TrackedBatchJob
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import RemoteStep
from lading.hooks.ssh.tails import Parts


@dataclass(slots=True, kw_only=True)
class ClusterLook:
    """What both modes of a site ask and do.

    :param errands: what is done there
    :param done: tokens of jobs whose files are removed
    :param files: the files of events that are removed
    :param copied: the jobs whose logs are looked at
    :param logs: the question for them
    :param status: the question for the states of batch jobs
    :param cancelled: batch jobs of job scripts that were asked to end, which are asked for as well
    :param steps: all that is sent, by names of the look's own
    :param answers: to them, by the same names
    :param asked_at: when it was sent, on the monotonic clock
    """

    errands: Errands
    done: list[str]
    files: list[str]
    copied: list[TrackedBatchJob]
    logs: Parts | None = None
    status: StatusQuery | None = None
    cancelled: Mapping[str, Cancellation] = field(default_factory=dict)
    steps: dict[str, RemoteStep] = field(default_factory=dict)
    answers: dict[str, CommandResult] = field(default_factory=dict)
    asked_at: float = 0.0
