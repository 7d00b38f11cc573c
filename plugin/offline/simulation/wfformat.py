"""Recorded runs of workflows in WfFormat 1.4 and 1.5 of WfCommons, as `lading simulate` reads them.

Coleman, Casanova, Pottier, Kaushik, Deelman, Ferreira da Silva, "WfCommons: a framework for enabling scientific
workflow research and development", Future Generation Computer Systems 128, 2022; https://wfcommons.org/format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from lading.plugin.offline.simulation.trace import MOST_SIMULATED, Arrival
from lading.scheduling.forecast.forecast import CycleError, Forecast, WorkflowStep
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.machine_traits import DEFAULT_ARCH
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.usage import Use
from lading.scheduling.text.nesting import parse_json
from lading.scheduling.text.printable import shortened

# A task requests its average cpus minus UNASKED_CPUS, rounded up, and its peak memory times MEMORY_MARGIN, within
# limits. Missing records count as one cpu and 1 GiB.
UNASKED_CPUS = 0.2
MOST_CPUS = 16
MEMORY_MARGIN = 1.25
LEAST_MEMORY, MOST_MEMORY, UNRECORDED_MEMORY = 256, 200 * 1024, 1024
# The minimum running time of a task, because shorter times were not recorded precisely, seconds.
LEAST_SECONDS = 0.1

Amount = Annotated[FiniteFloat, Field(ge=0, le=2**53)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class WorkflowError(ValueError):
    """A file is not a recorded workflow; the message names the file, the place in it, and what is valid there."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Task(_Read):
    """A task as specified and, in 1.4, as it ran."""

    id: Name
    name: Name
    parents: tuple[Name, ...] = ()


class _Ran(_Read):
    id: Name
    seconds: Amount | None = Field(None, alias="runtimeInSeconds")
    cores: Amount | None = Field(None, alias="coreCount")
    percent: Amount | None = Field(None, alias="avgCPU")
    memory: Amount | None = Field(None, alias="memoryInBytes")
    read: Amount | None = Field(None, alias="readBytes")


class _Specification(_Read):
    tasks: tuple[_Task, ...]


class _Execution(_Read):
    tasks: tuple[_Ran, ...]


class _Workflow(_Read):
    specification: _Specification
    execution: _Execution


class _Record(_Read):
    workflow: _Workflow


def read(text: str, source: str, *, scale: float = 1.0) -> list[Arrival]:
    """Return the tasks of a recorded run. All arrive at 0 s, or when their parents have finished.

    The jobs are named by the ids of the tasks. ``Job.task`` is the task's name without its number, which is the same
    for tasks that do the same.

    :param source: the file's name, for errors
    :param scale: factor for all lengths
    :raises WorkflowError: the file is not in this format, a parent is missing, tasks wait for each other, or there are
        too many tasks
    """
    try:
        record = _Record.model_validate(_specified(parse_json(text)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise WorkflowError(
            f"{source}: {place}: {first['msg']}; valid: a run recorded in WfFormat 1.4 or 1.5 (https://wfcommons.org/format)"
        ) from None
    except ValueError as error:
        raise WorkflowError(f"{source}: {error}; valid: a run recorded in WfFormat 1.4 or 1.5, as JSON") from None
    tasks = record.workflow.specification.tasks
    if len(tasks) > MOST_SIMULATED:
        raise WorkflowError(f"{source}: it has {len(tasks):,} tasks; valid: at most {MOST_SIMULATED:,}")
    ran = {each.id: each for each in record.workflow.execution.tasks}
    known = {each.id for each in tasks}
    if len(known) < len(tasks):
        raise WorkflowError(f"{source}: two tasks have the same id; valid: a unique id for each task")
    arrivals = []
    for task in tasks:
        for parent in task.parents:
            if parent not in known:
                raise WorkflowError(
                    f"{source}: task {shortened(task.id)}: parent {shortened(parent)} is not in the file; "
                    "valid: ids of its tasks"
                )
        its = ran.get(task.id)
        if its is None or its.seconds is None:
            raise WorkflowError(
                f"{source}: task {shortened(task.id)}: runtimeInSeconds is missing; valid: its running time in seconds"
            )
        asked, seconds = _asked(its), max(its.seconds, LEAST_SECONDS) * scale
        job = PlannedJob(name=task.id, resources=asked, arch=DEFAULT_ARCH, task=_kind(task.name), run="")
        arrivals.append(Arrival(job, 0.0, seconds, task.parents, _used(its, asked, seconds)))
    try:
        _ = as_forecast(arrivals).order
    except CycleError as error:
        raise WorkflowError(f"{source}: {error}; valid: parents without a cycle") from None
    return arrivals


def as_forecast(trace: Sequence[Arrival]) -> Forecast:
    return Forecast({each.job.name: WorkflowStep(each.job, each.duration, each.parents) for each in trace})


def _specified(record: Any) -> Any:
    """Convert 1.4, which has one list of tasks for both their specification and their execution, to 1.5."""
    match record:
        case {"workflow": {"tasks": list(tasks)}}:
            return {"workflow": {"specification": {"tasks": tasks}, "execution": {"tasks": tasks}}}
    return record


def _asked(ran: _Ran) -> Resources:
    cpus = int(ran.cores) if ran.cores else math.ceil((ran.percent or 100.0) / 100 - UNASKED_CPUS)
    memory = (
        math.ceil(ran.memory / 2**20 * MEMORY_MARGIN) if ran.memory else math.ceil(UNRECORDED_MEMORY * MEMORY_MARGIN)
    )
    return Resources(max(1, cpus if ran.cores else min(cpus, MOST_CPUS)), min(max(LEAST_MEMORY, memory), MOST_MEMORY))


def _used(ran: _Ran, asked: Resources, seconds: float) -> Use:
    return Use(
        cpus=asked.cpus,
        memory=asked.memory,
        seconds=seconds,
        peak_memory=math.ceil(ran.memory / 2**20) if ran.memory else None,
        cpu_seconds=None if ran.percent is None else ran.percent / 100 * seconds,
        input_size=None if ran.read is None else int(ran.read),
    )


def _kind(name: str) -> str:
    """Return the name without its number, which is the same for tasks that do the same."""
    # Matched backwards on the reversed name: a forward search would restart at each separator.
    number = re.match(r"\d+(?:DI)?[._-]*", name[::-1])
    return name if number is None else name[: -number.end()] or name
