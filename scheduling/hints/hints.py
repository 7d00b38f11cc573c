"""Hints: the requirements that a Dag author states for a task, under the key ``lading`` of its ``executor_config``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lading.scheduling.hints.expressions import Expression, ExpressionFacts
from lading.scheduling.hints.finish_by import FinishBy
from lading.scheduling.hints.gang_hints import AttemptSchedule, misplaced
from lading.scheduling.hints.patterns import Matching, covers
from lading.scheduling.hints.values import HINT_NAMES, OF_THE_RUN, PARSERS, Range, checked, no_such_hints, parse_value
from lading.scheduling.model.gpus import gpu_feature, split_type
from lading.scheduling.model.resources import Layout, Resources
from lading.scheduling.text.nearest import nearest
from lading.scheduling.text.printable import shortened

HINT_KEY = "lading"
# Where the task policy notes the sources of a job's inputs, for tasks whose hints are expressions.
INPUTS_KEY = "lading_inputs"
# The value of a hint that is learned from earlier tries of the task, and the hints that can have it. The amount that is
# used until then can follow in parentheses: ``auto(8 GiB)``.
AUTO = re.compile(r"\s*auto\s*(?:\((?P<until_known>[^()]*)\))?\s*", re.IGNORECASE)
AUTO_HINTS = ("cpus", "memory", "time")
# The layout of a batch job's processes on nodes.
LAYOUT_HINTS = ("nodes", "ppn", "threads")
# The names of the same hints in CWL workflows on Seven Bridges platforms.
ALIASES = {"sbg:AWSInstanceType": "instance_type", "sbg:maxNumberOfParallelInstances": "max_instances"}


class HintError(ValueError):
    """Hints are invalid. The message names every invalid one, its value, and the valid ones."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits at which a job is killed.

    :param memory: MiB; None: no limit
    :param time: seconds; None: no limit
    """

    memory: int | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints of one task; None means that a hint was not given.

    :param cpus: processors; 0.25 is a quarter of one
    :param memory: MiB; used for packing, and enforced
    :param disk: MiB of scratch space
    :param gpus: GPUs; 0.5 is half of one; their type is one of the ``features`` (:mod:`lading.scheduling.model.gpus`)
    :param time: the time limit of the task, seconds
    :param site: the name of the site that runs it
    :param targets: sites, queues and patterns of instance types, one of which runs it, see
        :class:`lading.scheduling.hints.places.Target`
    :param filters: the binding filters that choose among the targets
    :param matching: regular expressions that the inputs must match for a target, see
        :mod:`lading.scheduling.hints.patterns`
    :param instance_type: the type of machine that runs it
    :param queue: the queue of a batch site
    :param native: directives of a batch site's scheduler, by key; True: a flag without a value, False: removes the
        directive
    :param nodes: the nodes of its batch job, for a range the most; cpus, memory, disk and gpus are per node
    :param ppn: processes per node
    :param threads: cpus per process
    :param arch: the architecture that it runs on, such as ``x86_64``; None: the default of its site
    :param os: the operating system of the machine
    :param features: features that the machine must have, including properties (``license=matlab``)
    :param preferred: features that the machine should have if possible
    :param capacity_type: ``on-demand`` or ``spot``
    :param container: the container in which it runs, see :mod:`lading.scheduling.hints.places`
    :param stage: the inputs whose files are copied to where it runs
    :param max_instances: on how many machines jobs of the task can run at once, per run of its Dag
    :param max_jobs: how many jobs of the task can be active at once, per run of its Dag
    :param run_max_instances: ``max_instances`` for all tasks of the run together, from the Dag's hint ``max_instances``
    :param run_max_jobs: ``max_jobs`` for all tasks of the run together, from the Dag's hint ``max_jobs``
    :param max_usd: how much all tasks of the run can cost together before nothing more is launched for them, USD
    :param hurry: the value of finishing the run early where a forecast launches machines, see
        :mod:`lading.scheduling.forecast.choice`
    :param finish_by: the deadline of the run, whatever it costs
    :param infrastructure_retries: how many tries that fail because of the infrastructure use up no retry
    :param gang: the name shared by the jobs of a run that start together
    :param partial: whether the members with room start, and the others are placed individually
    :param spread: whether each member runs on a location of its own
    :param on_failure: what happens to the other members when one has failed: ``cancel`` or ``leave``
    :param attempts: how often room is searched, and when; None: the default for a gang, and no limit for a single job
    :param gang_tasks: the tasks of the gang, each with the tasks of the gang that come before it
    :param gang_limits: for tasks of the gang, how many jobs Airflow runs at once, and the name of that limit
    :param ahead: whether capacity is requested before the task is queued, as soon as its start can be predicted; None:
        if its start is certain
    :param expressions: the hints that depend on the job, by name; they are None above until ``evaluated``
    :param auto: the hints whose value is learned from earlier tries, by name, each with the amount that is used until a
        try has finished (None: the default); they are None above
    :param least: for hints that are ranges the minimum, by name; above is the preferred amount
    """

    cpus: float | None = None
    memory: int | None = None
    disk: int | None = None
    gpus: float | None = None
    time: int | None = None
    site: str | None = None
    targets: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    matching: Matching = ()
    instance_type: str | None = None
    arch: str | None = None
    os: str | None = None
    features: frozenset[str] = frozenset()
    preferred: frozenset[str] = frozenset()
    capacity_type: str | None = None
    container: str | None = None
    stage: tuple[str, ...] = ()
    max_instances: int | None = None
    max_jobs: int | None = None
    run_max_instances: int | None = None
    run_max_jobs: int | None = None
    max_usd: float | None = None
    hurry: float | None = None
    finish_by: FinishBy | None = None
    infrastructure_retries: int | None = None
    gang: str | None = None
    partial: bool = False
    spread: bool = False
    on_failure: str = "cancel"
    attempts: AttemptSchedule | None = None
    gang_tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gang_limits: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    ahead: bool | None = None
    queue: str | None = None
    native: Mapping[str, str | bool] = field(default_factory=dict)
    nodes: int | None = None
    ppn: int | None = None
    threads: int | None = None
    expressions: Mapping[str, Expression] = field(default_factory=dict)
    auto: Mapping[str, float | int | None] = field(default_factory=dict)
    least: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, hints: Mapping[str, object]) -> Hints:
        """Return the hints from the values that people write: ``{"memory": "8 GiB", "time": "2h"}``.

        :raises HintError: a name is not a hint, or a value is invalid
        """
        values: dict[str, Any] = {}
        auto: dict[str, float | int | None] = {}
        errors = []
        gpu_type = None
        if unknown := [name for name in (ALIASES.get(each, each) for each in hints) if name not in PARSERS]:
            errors.append(no_such_hints(unknown))
        for written, value in hints.items():
            name = ALIASES.get(written, written)
            if name not in PARSERS or value is None:
                continue
            try:
                if name in AUTO_HINTS and (match := AUTO.fullmatch(str(value))):
                    auto[name] = None if match["until_known"] is None else PARSERS[name](match["until_known"])
                else:
                    amount, gpu_type = split_type(value) if name == "gpus" else (value, gpu_type)
                    values[name] = parse_value(name, amount)
            except ValueError as error:
                errors.append(f"hint {written}: {error}")
        expressions = {name: value for name, value in values.items() if isinstance(value, Expression)}
        least = {name: value.least for name, value in values.items() if isinstance(value, Range)}
        values = {
            name: value.wish if isinstance(value, Range) else value
            for name, value in values.items()
            if name not in expressions
        }
        if "nodes" in least:  # prefer no more than the limits allow
            limits = [values[name] for name in ("max_instances", "run_max_instances") if name in values]
            values["nodes"] = max(least["nodes"], min([values["nodes"], *limits]))
        if "properties" in values:
            values["features"] = values.get("features", frozenset()) | values.pop("properties")
        if gpu_type is not None and values.get("gpus") == 0:
            errors.append(f"hint gpus: 0 GPUs cannot have a type; valid: 0, or a number, such as '{gpu_type}:1'")
        elif gpu_type is not None:
            values["features"] = values.get("features", frozenset()) | {gpu_feature(gpu_type)}
        laid_out = [name for name in LAYOUT_HINTS if name in values]
        if laid_out and "cpus" in {*values, *expressions, *auto}:
            errors.append(
                f"hint cpus: it cannot be combined with {' and '.join(laid_out)}, because ppn × threads are the "
                f"cpus on each node; valid: cpus alone, or {', '.join(LAYOUT_HINTS)} without it"
            )
        errors += [*_too_few_machines(values), *_two_places(values), *misplaced(values)]
        if errors:
            raise HintError("; ".join(errors))
        return cls(**values, expressions=expressions, auto=auto, least=least)

    @classmethod
    def from_config(cls, executor_config: object) -> Hints:
        """Return the hints in an ``executor_config`` as Airflow passes it to an executor.

        :raises HintError: see :meth:`parse`
        """
        return cls.parse(given(executor_config))

    def evaluated(self, facts: ExpressionFacts) -> Hints:
        """Return the hints of one job, with its expressions evaluated.

        :raises HintError: an expression cannot be evaluated for this job, or its result is invalid
        """
        values: dict[str, Any] = {}
        errors = []
        for name, expression in self.expressions.items():
            try:
                values[name] = checked(name, expression.evaluate(facts))
            except ValueError as error:
                errors.append(f"hint {name}: {error}")
        if errors:
            raise HintError("; ".join(errors))
        return replace(self, **values, expressions={})

    def resources(self, defaults: Resources) -> Resources:
        """Return the requests of the task: its hints, and ``defaults`` where it gives none.

        For a task with a layout, these are the requests per node.
        """
        cpus = self.layout.cpus_per_node if self.layout else self.cpus
        return Resources(
            cpus=defaults.cpus if cpus is None else cpus,
            memory=defaults.memory if self.memory is None else self.memory,
            disk=defaults.disk if self.disk is None else self.disk,
            gpus=defaults.gpus if self.gpus is None else self.gpus,
        )

    def minimum(self, asked: Resources) -> Resources:
        """The minimal requests.

        :param asked: the result of :meth:`resources`
        """
        return replace(asked, **{name: least for name, least in self.least.items() if name != "nodes"})

    @property
    def layout(self) -> Layout | None:
        """The layout of its processes on nodes, where missing hints count as 1; None if none was given."""
        given = {name: value for name in LAYOUT_HINTS if (value := getattr(self, name)) is not None}
        return Layout(**given, least_nodes=self.least.get("nodes")) if given else None

    @property
    def is_native(self) -> bool:
        """Whether it has hints that only batch systems support."""
        return self.queue is not None or bool(self.native)

    def limits(self) -> JobLimits:
        """Return the enforced limits: only what the author wrote, never a default."""
        return JobLimits(memory=self.memory, time=self.time)


def given(executor_config: object) -> Mapping[str, object]:
    """Return the hints in ``executor_config`` as they were written, ``{}`` if there are none.

    :raises HintError: the value under the key is not a mapping
    """
    hints = executor_config.get(HINT_KEY) if isinstance(executor_config, Mapping) else None
    if hints is None:
        return {}
    if not isinstance(hints, Mapping):
        raise HintError(
            f"executor_config[{HINT_KEY!r}] is {shortened(hints)}; valid: the result of resources(...), for "
            'example executor_config=resources(cpus=2, memory="4 GiB")'
        )
    return hints


def refuse_stray_hints(executor_config: object) -> None:
    """Refuse hints that were written directly into ``executor_config``, where Lading would ignore them.

    A dict with Lading's key is never refused, so authors can add settings for other executors whatever their names.

    :raises HintError: the dict has no hints, but keys that are names of hints, or nearly so
    """
    if not isinstance(executor_config, Mapping) or HINT_KEY in executor_config:
        return
    meant = {key: hint for key in executor_config if isinstance(key, str) and (hint := _hint_meant(key)) is not None}
    if meant:
        keys, hints = ", ".join(map(repr, meant)), ", ".join(f"{hint}=..." for hint in dict.fromkeys(meant.values()))
        raise HintError(
            f"executor_config has {keys} outside resources(...), where Lading ignores it; valid: "
            f"executor_config=resources({hints}); or, if it is for another executor, "
            f"executor_config={{**resources(), {next(iter(meant))!r}: ...}}"
        )


def _hint_meant(key: str) -> str | None:
    """Return the hint that a key of ``executor_config`` most likely means; None: the key belongs to someone else.

    Keys of other executors must not count, such as ``timeout`` of AWS Batch or ``pod_override`` of Kubernetes.
    """
    plain = key.lower()
    if plain in HINT_NAMES:
        return plain
    # A key of three characters or more, such as ``mem``, can abbreviate a hint.
    shortened_to = [name for name in HINT_NAMES if len(plain) >= 3 and name.startswith(plain)]
    return next(iter([*shortened_to, *nearest(plain, HINT_NAMES, cutoff=0.8)]), None)


def _too_few_machines(values: Mapping[str, Any]) -> list[str]:
    """The errors for a job with more nodes than the machines it can use at once, which could never start."""
    limits = {"max_instances": "", "run_max_instances": " of the Dag"}
    return [
        f"hint nodes: {values['nodes']} is more than max_instances{whose}, which allows {most} machines"
        for name, whose in limits.items()
        if (most := values.get(name)) is not None and most < values.get("nodes", 1)
    ]


def _two_places(values: Mapping[str, Any]) -> Iterator[str]:
    """The errors for targets combined with other hints about where a task runs."""
    targets = values.get("targets", ())
    if targets and "site" in values:
        yield f"hint targets: it cannot be combined with the hint site ({values['site']!r}); valid: one of them"
    if "filters" in values and not targets:
        yield "hint filters: filters choose among targets; add the hint targets"
    matched = [name for name, _ in values.get("matching", ())]
    if strange := sorted(name for name in matched if not any(covers(name, target) for target in targets)):
        yield f"hint matching: {strange[0]!r} is not one of its targets; valid: {', '.join(targets) or 'none'}"
    if any("/" in each for each in targets) and "queue" in values:
        yield (
            "hint queue: a target already names a queue or instance types; valid: name the queue only in the targets"
        )


def merge(*levels: Mapping[str, object]) -> dict[str, object]:
    """Merge the hints of several levels key by key; later levels win.

    Native directives are merged one by one.
    """
    merged: dict[str, object] = {}
    for level in levels:
        for written, value in level.items():
            name, below = ALIASES.get(written, written), merged.get(ALIASES.get(written, written))
            if name == "native" and isinstance(value, Mapping) and isinstance(below, Mapping):
                merged[name] = {**_bare(below), **_bare(value)}
            else:
                merged[name] = value
    return merged


def without_replaced(*levels: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the levels for :func:`merge` without hints that a later level replaces by another hint.

    A layout and ``cpus`` both set the cpus on a node, so a Dag's ``cpus`` do not conflict with a task's ``nodes``. A
    site and targets both determine where a task runs.
    """
    kept: list[dict[str, object]] = []
    later: set[str] = set()
    for level in reversed(levels):
        kept.insert(0, {name: value for name, value in level.items() if name not in later})
        names = {name for name, value in level.items() if value is not None}
        later |= {"cpus"} if names.intersection(LAYOUT_HINTS) else set()
        later |= set(LAYOUT_HINTS) if "cpus" in names else set()
        later |= {"targets", "filters", "matching"} if "site" in names else set()
        later |= {"site", "queue"} if "targets" in names else set()
    return kept


def of_the_run(hints: Mapping[str, object]) -> dict[str, object]:
    """Return a Dag's hints as its tasks get them: its ``max_instances`` and ``max_jobs`` limit all its tasks
    together."""
    return {OF_THE_RUN.get(name, name): value for name, value in merge(hints).items()}


def _bare(directives: Mapping[Any, object]) -> dict[Any, object]:
    """Native directives by key, without leading dashes."""
    return {key.lstrip("-") if isinstance(key, str) else key: value for key, value in directives.items()}


def largest_of(hints: Sequence[Hints]) -> Hints:
    """The hints that suffice for each of several jobs that run in one task instance."""
    values = {
        name: max((amount for each in hints if (amount := getattr(each, name)) is not None), default=None)
        for name in ("cpus", "memory", "disk", "gpus", "time")
    }
    return replace(hints[0] if hints else Hints(), **values)  # type: ignore[arg-type]
