"""Converts the resources that users of batch systems write to Lading's hints.

Their names, and their meaning for SLURM, are those of ``snakemake-executor-plugin-slurm``. Other batch systems get the
resources that have a counterpart there.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

# Where a job runs and who pays: the corresponding option of each batch system that has one.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "slurm_account": {"slurm": "account", "pbspro": "A", "torque": "A", "lsf": "P", "sge": "A"},
    "qos": {"slurm": "qos", "torque": "qos"},
    "constraint": {"slurm": "constraint"},
    "clusters": {"slurm": "clusters"},
}
QUEUES = ("lading_queue", "slurm_partition")
# Other names of the resource "clusters".
CLUSTERS = ("cluster", "slurm_cluster")
# All resources that only a batch system understands.
OF_BATCH_SYSTEMS = (*QUEUES, *OPTIONS, *CLUSTERS, "slurm_extra")
# For an option of SLURM, the resources that can be its cause in addition to ``OPTIONS``.
CAUSES: Mapping[str, Sequence[str]] = {
    "partition": QUEUES,
    "clusters": CLUSTERS,
    "time": ("runtime",),
    "gres": ("gres", "gpu_model", "gpu", "gpus", "nvidia_gpu"),
}
# The resources for the number of GPUs; the first one that a job has is used.
GPUS = ("gpu", "gpus", "nvidia_gpu")
# What Snakemake shows for a resource that depends on files that do not exist yet.
UNKNOWN = "<TBD>"
_GRES = re.compile(r"(?P<name>\w+)(?::(?P<type>[A-Za-z][\w.-]*))?(?::(?P<count>\d+[TGM]?))?", re.ASCII)
_MODEL = re.compile(r"[\w.-]+", re.ASCII)


class NeedsError(ValueError):
    """The request of a job is not valid, or no site can meet it; the text names it."""


def number(asked: Any, name: str) -> float | None:
    """Read a resource that is a number; None: it is not set, or still unknown.

    :raises NeedsError: it is not a number
    """
    value = asked.get(name)
    if value is None or isinstance(value, bool) or value == UNKNOWN:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise NeedsError(f"resource {name} is {value!r}, which is not a number") from None


def count(asked: Any, name: str, least: int = 1) -> int | None:
    """Read a resource that is a whole number of at least ``least``."""
    if (value := number(asked, name)) is None:
        return None
    if value < least or value != int(value):
        raise NeedsError(f"resource {name} is {asked.get(name)!r}; valid: a whole number, {least} or more")
    return int(value)


def text(asked: Any, name: str) -> str | None:
    """Read a resource that is text; None: it is not set, or empty, which removes a value set by a profile."""
    value = asked.get(name)
    return None if value is None or value in ("", UNKNOWN) else str(value)


def options_of_queues(system: str | None) -> set[str]:
    """Return the options of a batch system for where a job runs and who pays, which jobs in an allocation can share."""
    return {option for by_system in OPTIONS.values() if (option := by_system.get(system or "")) is not None}


def where(asked: Any, system: str | None, place: str) -> dict[str, Any]:
    """Return the hints ``queue`` and ``native``.

    :param system: the batch system of the sites where the job can run; None: they have none
    :param place: these sites, as text
    :raises NeedsError: one of the resources has no counterpart there
    """
    given = {name: value for name in OF_BATCH_SYSTEMS if (value := text(asked, name)) is not None}
    if system is None and given:
        name, value = next(iter(given.items()))
        raise NeedsError(
            f"resource {name} is {value!r}, which only a batch system understands, but {place} has no batch "
            "system; name a site that has one with the resource lading_site, or leave this resource out: "
            f"--set-resources RULE:{name}=\"''\""
        )
    queue = _same(given, QUEUES)
    if (clusters := _same(given, ("clusters", *CLUSTERS))) is not None:
        given["clusters"] = clusters
    native: dict[str, str | bool] = {}
    for name, by_system in OPTIONS.items():
        option = by_system.get(system or "")
        if name in given and option is None:
            valid = ", ".join(by_system)
            raise NeedsError(
                f"resource {name} is {given[name]!r}, but {place} uses {system}, which has no option for it; "
                f"valid with: {valid}"
            )
        if name in given:
            native[str(option)] = given[name]
        elif asked.get(name) == "" and option is not None:
            native[option] = False
    if (extra := given.get("slurm_extra")) is not None:
        if system != "slurm":
            raise NeedsError(f"resource slurm_extra is {extra!r}, but {place} uses {system}, not SLURM")
        for key, said in read_extra(extra).items():
            if key in native:
                taken = next(name for name in OPTIONS if OPTIONS[name].get("slurm") == key)
                raise NeedsError(f"slurm_extra has --{key}, which the resource {taken} sets as well; keep one of them")
            native[key] = said
    return {"queue": queue, "native": native}


def are_known(job: Any) -> bool:
    """Whether no resource of a job depends on files that do not exist yet. Lading does not use ``tmpdir``."""
    jobs = job.jobs if job.is_group() else [job]
    return not any(value == UNKNOWN for each in jobs for name, value in each.resources.items() if name != "tmpdir")


def cause(asked: Any, option: str) -> str | None:
    """Return the resource that sets an option of SLURM, with its value; None: the rule does not set it."""
    names = [name for name, by_system in OPTIONS.items() if by_system.get("slurm") == option]
    for name in (*names, *CAUSES.get(option, ())):
        if (value := text(asked, name)) is not None:
            return f"resource {name} is {value!r}"
    extra = text(asked, "slurm_extra")
    return None if extra is None or option not in read_extra(extra) else f"resource slurm_extra is {extra!r}"


def _same(given: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the one value of resources that mean the same; None: none is set.

    :raises NeedsError: they differ
    """
    values = {name: given[name] for name in names if name in given}
    if len(set(values.values())) > 1:
        raise NeedsError(f"resources {' and '.join(f'{name} = {value!r}' for name, value in values.items())} differ")
    return next(iter(values.values()), None)


def read_extra(extra: str) -> dict[str, str | bool]:
    """Parse the options in ``slurm_extra``, by name without dashes.

    :raises NeedsError: it has something other than options
    """
    try:
        words = shlex.split(extra)
    except ValueError as error:
        raise NeedsError(f"slurm_extra = {extra!r} cannot be parsed: {error}") from None
    found: dict[str, str | bool] = {}
    while words:
        word = words.pop(0)
        match = re.fullmatch(r"--([A-Za-z][\w-]*)(?:=(.*))?|-([A-Za-z])(.*)", word, re.DOTALL)
        if match is None:
            raise NeedsError(f"slurm_extra = {extra!r} has {word!r}, which is not an option; valid: --NAME=VALUE")
        value = match[2] if match[1] else match[4] or None
        if value is None and words and not words[0].startswith("-"):
            value = words.pop(0)
        key = match[1] or match[3]
        if key in found:
            raise NeedsError(f"slurm_extra = {extra!r} has {key} twice")
        found[key] = True if value is None else value
    return found


def graphics(asked: Any, system: str | None, place: str) -> tuple[float, str | None, dict[str, str]]:
    """Return the number and the type of GPUs, and any other ``gres`` as a native hint.

    :raises NeedsError: the resources are not valid, or have no counterpart there
    """
    gpus = next((found for name in GPUS if (found := number(asked, name)) is not None), None)
    model = text(asked, "gpu_model")
    if model is not None and not _MODEL.fullmatch(model):
        raise NeedsError(f"resource gpu_model is {model!r}; valid: a name such as 'a100'")
    if (gres := text(asked, "gres")) is None:
        return (1.0 if gpus is None and model else gpus or 0.0), model, {}
    match = _GRES.fullmatch(gres)
    if match is None:
        raise NeedsError(f"resource gres is {gres!r}; valid: NAME, NAME:COUNT or NAME:TYPE:COUNT, such as 'gpu:a100:2'")
    if match["name"] != "gpu":
        if system != "slurm":
            raise NeedsError(
                f"resource gres is {gres!r}, which only SLURM understands, but {place} is not a SLURM cluster"
            )
        if gpus or model:
            raise NeedsError(
                f"resource gres is {gres!r}, but a job with GPUs cannot have another gres; keep one of them"
            )
        return 0.0, None, {"gres": gres}
    if gpus is not None or model is not None:
        raise NeedsError(f"resource gres is {gres!r}, and gpu or gpu_model requests GPUs as well; keep one of them")
    counted = match["count"] or "1"
    if not counted.isdecimal():
        raise NeedsError(f"resource gres is {gres!r}; valid: a number of GPUs without a unit")
    return float(counted), match["type"], {}


def shape(asked: Any, threads: float, gpus: float, node_cpus: float | None) -> dict[str, Any]:
    """Return the hint ``cpus``, or the hints ``nodes``, ``ppn`` and ``threads``.

    :param threads: the threads of the rule
    :param node_cpus: the cpus of a node at sites that support layouts; None: each job gets a part of one machine
    :raises NeedsError: the resources are not valid
    """
    nodes, tasks = count(asked, "nodes"), count(asked, "tasks", 0)
    per_node = count(asked, "tasks_per_node")
    if text(asked, "mpi") is not None:
        given = [name for name in ("tasks", "tasks_per_node") if number(asked, name)]
        if len(given) != 1:
            raise NeedsError(f"resource mpi is {asked.get('mpi')!r}: give either tasks or tasks_per_node")
        if (tasks if given == ["tasks"] else per_node) == 1:
            raise NeedsError(f"resource {given[0]} is 1, but a job with mpi has more processes")
    each = number(asked, "cpus_per_task") or threads
    per_gpu = number(asked, "cpus_per_gpu") if gpus else None
    if gpus and (tasks_per_gpu := number(asked, "tasks_per_gpu")) is not None and tasks_per_gpu > 0:
        per_node = max(1, round(tasks_per_gpu * gpus))
    if per_gpu is not None and per_gpu > 0:
        each = per_gpu * gpus / (per_node or 1)
    elif per_gpu is not None:
        each = 1
    if (nodes or 1) == 1 and (per_node or tasks or 1) == 1:
        return {"cpus": max(each, 0.1)}
    if node_cpus is None and (nodes or 1) == 1:
        return {"cpus": max(each * (per_node or tasks or 1), 0.1)}
    cpus = max(1, math.ceil(each))
    if per_node is None:
        nodes, per_node = _spread(tasks or nodes or 1, nodes, (node_cpus or math.inf) / cpus)
    return {"nodes": nodes or 1, "ppn": per_node, "threads": cpus}


def _spread(tasks: int, nodes: int | None, most: float) -> tuple[int, int]:
    """Distribute tasks evenly: return the number of nodes, and the tasks on each.

    :param most: how many tasks fit on a node
    :raises NeedsError: the number of tasks is not a multiple of the number of nodes
    """
    if nodes is not None and tasks % nodes:
        raise NeedsError(
            f"resources tasks = {tasks} and nodes = {nodes}: every node runs the same number of tasks; give a "
            f"multiple of {nodes}, or tasks_per_node"
        )
    if nodes is not None:
        return nodes, tasks // nodes
    few = next(each for each in range(1, tasks + 1) if tasks % each == 0 and tasks // each <= max(most, 1))
    return few, tasks // few
