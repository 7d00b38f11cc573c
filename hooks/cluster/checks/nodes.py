"""Whether what a site's table says of nodes and queues is what the batch system has: for ``airflow lading check``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lading.hooks.batch.directives import settings
from lading.hooks.batch.inventory import Inventory, Nodes
from lading.hooks.batch.system import BatchJobRequest, BatchSystem, CouldNotAsk, Profile
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.site import Check
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.text.units import format_memory


def checks(config: ClusterConfig, system: BatchSystem, answer: CommandResult) -> Iterator[Check]:
    """The queue and the size of the nodes.

    :param answer: to the command of the batch system's survey
    """
    assert system.survey is not None
    try:
        inventory = system.survey.inventory(answer)
    except CouldNotAsk as error:
        words = (
            f"{system.name} does not tell which nodes and queues it has, so node_cpus, node_memory and queue were not"
        )
        yield Check("nodes", True, f"{words} compared with them: {error.words}", warns=True)
        return
    names = queues(config, system)
    if unknown := inventory.unknown(names):
        there = ", ".join(inventory.queues)
        words = f"{system.name} has no queue {unknown[0]!r}; its queues are: {there}"
        yield Check("queue", False, f'{words}; set queue = "{inventory.default or inventory.queues[0]}"')
        return
    if names:
        yield Check("queue", True, f"{system.name} has {', '.join(names)}")
    yield _sizes(config, inventory, names)


def queues(config: ClusterConfig, system: BatchSystem) -> list[str]:
    """The queues that a site's table names, in its own key or among the native directives."""
    (own,) = system.resource_directives(BatchJobRequest(queue="x"), Profile())
    setting = _setting(own, system)
    native = [
        str(value)
        for key, value in config.resources.items()
        if not isinstance(value, bool) and _setting(system.native_directive(key, str(value)), system) == setting
    ]
    # Several, where a batch system takes them, have commas or blanks between; behind an @ are hosts or a server.
    named = re.split(r"[,\s]+", config.queue or next(iter(native), ""))
    plain = [name.partition("@")[0] for name in named if name]
    return [] if any(re.search(r"[*?\[\]!|&]", name) for name in plain) else plain


def _setting(directive: str, system: BatchSystem) -> str:
    name = settings(directive)[0]
    return system.synonyms.get(name, name)


def _sizes(config: ClusterConfig, inventory: Inventory, names: Sequence[str]) -> Check:
    kinds = inventory.of(names)
    where = f"of queue {', '.join(names)}" if names else "there"
    if not kinds:
        return Check("nodes", False, f"no node is {where}; name another queue: {', '.join(inventory.queues)}")
    fitting = sum(nodes.count for nodes in kinds if _holds(nodes, config))
    largest = max(kinds, key=lambda nodes: (nodes.cpus, nodes.memory or 0))
    asked = f"node_cpus = {config.node_cpus:g} and node_memory = {format_memory(config.node_memory)}"
    if fitting:
        return Check("nodes", True, f"{fitting} of the {sum(each.count for each in kinds)} nodes {where} have {asked}")
    memory = "" if largest.memory is None else f" and {format_memory(largest.memory)}"
    line = f"set node_cpus = {min(largest.cpus, config.node_cpus):g}"
    if largest.memory is not None and largest.memory < config.node_memory:
        line += f', node_memory = "{format_memory(largest.memory)}"'
    return Check(
        "nodes",
        False,
        f"no node {where} has {asked}, so a job that asks for as much would wait for ever; the largest have "
        f"{largest.cpus} cpus{memory}; {line}",
    )


def _holds(nodes: Nodes, config: ClusterConfig) -> bool:
    return config.node_cpus <= nodes.cpus and (nodes.memory is None or config.node_memory <= nodes.memory)
