"""What a job of Snakemake's asks for, as Lading's hints: its threads and its resources."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

from lading.operators.resources import resources
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.insight.auto import sized
from lading.scheduling.insight.right_size import NOTHING_KNOWN, Sizes

# What Snakemake itself needs in a job, beside what the rule's command uses, MiB.
OVERHEAD = 256
MB, MIB = 10**6, 2**20
# By how much the next attempt has more of what the one before had too little, unless its rule asks for more by itself.
FACTOR = 2
# What Snakemake shows for a resource that depends on files which are not there yet.
UNKNOWN = "<TBD>"
LIMITS = ("rules", "all", "none")
# The resources that count GPUs; the first that a job has counts.
GPUS = ("gpu", "gpus", "nvidia_gpu")


# The resource of jobs whose memory and runtime Lading chooses, and what that is as hints.
AUTO = "lading_auto"
AUTO_HINTS = {"mem": "memory", "runtime": "time"}


class JobNeeds(NamedTuple):
    """What a job asks for.

    :param config: its hints
    :param columns: those that differ from what these say
    :param chosen: the hints that Lading has chosen
    :param decisions: how, one sentence each
    """

    config: dict[str, Any]
    columns: dict[str, Any]
    chosen: frozenset[str] = frozenset()
    decisions: tuple[str, ...] = ()


class NeedsError(ValueError):
    """What a job asks for makes no sense; the text names it."""


def check_limits(text: str) -> str:
    """Whose memory and runtime are limits.

    :raises NeedsError: it is none of what is valid
    """
    if text not in LIMITS:
        raise NeedsError(f"--lading-limits {text!r} is not valid; valid: {', '.join(LIMITS)}")
    return text


def executor_config(**hints: Any) -> dict[str, Any]:
    """Hints as the engine takes them; those that are None are left out.

    :raises NeedsError: one of them is not valid
    """
    config = resources(**{name: value for name, value in hints.items() if value is not None})
    try:
        Hints.from_config(config)
    except HintError as error:
        raise NeedsError(str(error)) from error
    return config


def needs_of(
    job: Any,
    workflow: Any,
    options: Any,
    last: tuple[str | None, int | None, int | None] | None,
    fitted: Sizes = NOTHING_KNOWN,
    size: int | None = None,
) -> JobNeeds:
    """What a job asks for.

    :param last: of its last try the cause of the failure, and the memory and the time that it had; None: this is the
        first
    :param fitted: what the tries of its rule needed
    :param size: bytes of its inputs; None: not known
    :raises NeedsError: it makes no sense
    """
    asked = job.resources
    memory, disk = _size(asked, "mem"), _size(asked, "disk")
    seconds = None if (minutes := _number(asked, "runtime")) is None else round(60 * minutes)
    gpus = next((found for name in GPUS if (found := _number(asked, name)) is not None), None)
    its_own = {name for name in ("mem", "disk", "runtime") if is_given(job, workflow, name)}
    limited = {"rules": its_own, "all": {"mem", "runtime"}, "none": set()}[options.limits]
    cause, had_memory, had_seconds = last or (None, None, None)
    auto = {AUTO_HINTS[name]: None for name in auto_resources(job, workflow, options)}
    hints, decisions = sized(Hints(auto=auto), fitted, None, size)
    chosen = frozenset(name for name in auto if getattr(fitted, name) is not None)
    overhead = OVERHEAD
    if hints.memory is not None and fitted.memory is not None:
        memory, overhead = hints.memory, 0  # what tries needed is what all of their processes needed
        if cause == "out_of_memory" and had_memory is not None:
            memory = max(memory, math.ceil(fitted.memory.after(had_memory)))
    elif memory is not None and cause == "out_of_memory" and had_memory is not None:
        memory = max(memory, FACTOR * had_memory - OVERHEAD)
    seconds = seconds if hints.time is None else hints.time
    if options.limits != "none":
        limited |= {name for name, hint in AUTO_HINTS.items() if hint in chosen}
    if seconds is not None and cause == "time_limit" and had_seconds is not None:
        seconds = max(seconds, FACTOR * had_seconds)
    config = executor_config(
        cpus=max(_number(asked, "_cores") or 0, 0.1),
        memory=memory or None,
        disk=disk if "disk" in its_own else None,
        gpus=gpus or None,
        time=seconds,
        site=_text(asked, "lading_site") or options.site,
        queue=_text(asked, "lading_queue"),
        hurry=options.hurry,
        finish_by=options.finish_by,
    )
    is_limited = memory is not None and "mem" in limited
    columns: dict[str, Any] = {"memory_limit": memory + overhead if memory is not None and is_limited else None}
    if "runtime" not in limited:
        columns["time_limit"] = None
    return JobNeeds(config, columns, chosen, decisions if chosen else ())


def auto_resources(job: Any, workflow: Any, options: Any) -> set[str]:
    """Which resources of a job Lading chooses once a try of its rule has ended: those that its rule does not give.

    All of them are where the rule itself says ``lading_auto``; what it gives counts until a try has ended.
    """
    is_own = is_given(job, workflow, AUTO)
    value = _number(job.resources, AUTO)
    if not (options.auto if value is None else value):
        return set()
    return {name for name in AUTO_HINTS if is_own or not is_given(job, workflow, name)}


def input_size(job: Any) -> int | None:
    """Bytes of a job's inputs; None: not known, as of a group, some of whose inputs its own jobs make."""
    if job.is_group():
        return None
    try:
        return sum(os.stat(path).st_size for path in job.input)
    except OSError:
        return None


def forecast_hints(job: Any, workflow: Any, options: Any, fitted: Sizes = NOTHING_KNOWN) -> dict[str, Any]:
    """What a job that is to come will ask for, as hints, as far as that is known before its inputs are there."""
    try:
        return needs_of(job, workflow, options, None, fitted).config
    except Exception:  # a function of its inputs, which are not there yet, may raise anything
        return executor_config(hurry=options.hurry, finish_by=options.finish_by)


def is_given(job: Any, workflow: Any, name: str) -> bool:
    """Whether the rule of a job, or one of its group, gives a resource itself: it is not Snakemake's default."""
    jobs = job.jobs if job.is_group() else [job]
    default = workflow.resource_settings._parsed_default_resources
    return any(
        key in each.rule.resources and not _is_same(each.rule.resources, default, key)
        for each in jobs
        for key in (name, f"{name}_mb", f"{name}_mib")
    )


def _is_same(given: Any, default: Any, key: str) -> bool:
    if default is None or key not in default:
        return False
    rules, defaults = given[key], default[key]
    # Of a default that depends on the inputs there is no text, and the rule has the same function.
    return rules._value is defaults._value or (rules.raw is not None and rules.raw == defaults.raw)


def _size(asked: Any, name: str) -> int | None:
    """An amount of memory or disk in MiB, rounded up; None: none is asked for."""
    if (mib := _number(asked, f"{name}_mib")) is not None:
        return int(-(-mib // 1))
    if (mb := _number(asked, f"{name}_mb")) is not None:
        return int(-(-mb * MB // MIB))
    return None


def _number(asked: Any, name: str) -> float | None:
    value = asked.get(name)
    if value is None or isinstance(value, bool) or value == UNKNOWN:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise NeedsError(f"resource {name} is {value!r}, which is no number") from None


def _text(asked: Any, name: str) -> str | None:
    return None if (value := asked.get(name)) is None else str(value)
