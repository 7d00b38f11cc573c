"""What an allocation is asked for: how large, for how long, and its script."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence

from lading.hooks.batch import environment
from lading.hooks.batch.system import BatchSystem
from lading.hooks.cluster import job_script
from lading.hooks.cluster.allocations.layout import AllocationFolder, Terms
from lading.hooks.cluster.checks import trial
from lading.hooks.cluster.config import ClusterConfig
from lading.hooks.cluster.job_script import SHOWN_NAME, Shape
from lading.hooks.cluster.layout import ClusterFolder
from lading.hooks.spool.spool import Envelope
from lading.scheduling.matching.market import Market, need
from lading.scheduling.provisioning import Launch, decide
from lading.scheduling.resources import Layout, Resources


def market(config: ClusterConfig) -> Market:
    """What can be launched at a site."""
    seconds = config.allocation_time - reserve(config)
    return Market(
        Resources(
            config.node_cpus, config.node_memory - config.memory_overhead, config.node_disk, float(config.node_gpus)
        ),
        config.memory_overhead,
        seconds,
        # Half of it: who gives no limit shall have some time for certain, and the nodes shall not stand idle for it.
        seconds / 2,
        min(config.max_allocations, config.max_submitted or config.max_allocations),
        config.whole_node is not None,
        config.idle_seconds,
        memory_limit=config.memory_limit,
        time_limit=config.time_limit,
        grace=config.kill_grace,
    )


def reserve(config: ClusterConfig) -> int:
    """Seconds at the end of an allocation in which jobs end and their logs are completed."""
    return config.kill_grace + job_script.TIME_TO_REPORT


def terms(launch: Launch, config: ClusterConfig) -> Terms:
    """What the agent of an allocation is told."""
    unlimited = market(config).unlimited
    return Terms(
        launch.capacity,
        launch.seconds,
        unlimited,
        config.idle_seconds,
        config.kill_grace,
        launch.kind,
        config.scratch,
        config.keep_failed,
    )


def queue(terms: Terms) -> str | None:
    """The queue of an allocation; None: that of the site."""
    found: str | None = json.loads(terms.kind)[0]
    return found


def render(
    folder: AllocationFolder,
    terms: Terms,
    *,
    system: BatchSystem,
    config: ClusterConfig,
    api: str,
    excluded: Sequence[str] = (),
    is_trial: bool = False,
) -> str:
    """The script of an allocation.

    :param api: URL of Airflow's execution API
    :param excluded: the nodes on which it shall not run
    :param is_trial: whether it looks first for what a trial is to find
    :raises ValueError: the batch system has no word for something
    """
    _, native = json.loads(terms.kind)
    capacity = terms.capacity
    shape = Shape(
        Layout(threads=max(1, math.ceil(capacity.cpus))),
        capacity.memory + config.memory_overhead,
        math.ceil(capacity.gpus),
        math.ceil(terms.seconds) + reserve(config),
        queue(terms),
        tuple((key, value) for key, value in native),
    )
    command = [config.python, "-m", "lading.executors.agent.allocation_agent", folder.cluster.root, folder.name]
    lines = [
        *(trial.marker(folder.root) if is_trial else ()),
        f"exec >>{shlex.quote(folder.output)} 2>&1 </dev/null",
        "cd /",
        *environment.note(system),
        *job_script.api_environment(config, folder.cluster, api),
        *(trial.request(config) if is_trial else ()),
        f"exec {shlex.join(command)}",
    ]
    return job_script.script(folder.name, 1, shape, lines, system=system, config=config, excluded=excluded)


def of_one(
    envelope: Envelope, *, system: BatchSystem, config: ClusterConfig, api: str, excluded: Sequence[str] = ()
) -> str:
    """The script of the allocation that would be asked for if a task waited alone, to be shown.

    :raises ValueError: no allocation can hold it, or the batch system has no word for something
    """
    most = market(config)
    found = decide([need(envelope.waiting(), most)], (), most, now=math.inf)
    for words in found.refused.values():
        raise ValueError(words)
    folder = AllocationFolder(ClusterFolder(config.work_dir), SHOWN_NAME)
    return render(folder, terms(found.launches[0], config), system=system, config=config, api=api, excluded=excluded)
