"""Hints: what a Dag author says a task needs, under the key ``lading`` of its ``executor_config``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lading.scheduling.gpus import gpu_feature, split_type
from lading.scheduling.hints.expressions import Expression, ExpressionFacts
from lading.scheduling.hints.finish_by import FinishBy
from lading.scheduling.hints.gang_hints import AttemptSchedule, misplaced
from lading.scheduling.hints.patterns import Matching, covers
from lading.scheduling.hints.values import OF_THE_RUN, PARSERS, Range, checked, no_such_hints, parse_value
from lading.scheduling.resources import Layout, Resources
from lading.scheduling.text.printable import shortened

HINT_KEY = "lading"
# Where the task policy notes from what a job's inputs are to be taken, for tasks whose hints are expressions.
INPUTS_KEY = "lading_inputs"
# What a hint is whose value is what earlier tries of the task needed, and the hints that may be it.
# In brackets may stand the amount that counts until something is known: ``auto(8 GiB)``.
AUTO = re.compile(r"\s*auto\s*(?:\((?P<until_known>[^()]*)\))?\s*", re.IGNORECASE)
AUTO_HINTS = ("cpus", "memory", "time")
# How the processes of a batch job lie on nodes.
LAYOUT_HINTS = ("nodes", "ppn", "threads")
# The names that CWL workflows on Seven Bridges platforms have for the same wishes.
ALIASES = {"sbg:AWSInstanceType": "instance_type", "sbg:maxNumberOfParallelInstances": "max_instances"}


class HintError(ValueError):
    """Hints that are wrong. The message names every wrong one, its value and what is valid."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What ends a job when it is exceeded.

    :param memory: MiB; None: no limit
    :param time: seconds; None: no limit
    """

    memory: int | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints of one task; None is a hint that was not given.

    :param cpus: processors; 0.25 is a quarter of one
    :param memory: MiB; packed by and enforced
    :param disk: MiB of scratch space
    :param gpus: GPUs; 0.5 is half of one; of which type is one of the ``features``, see :mod:`lading.scheduling.gpus`
    :param time: seconds that the task may run
    :param site: the name of the site that shall run it
    :param targets: sites, queues and patterns of instance types, of which one shall run it, see
        :class:`lading.scheduling.hints.places.Target`
    :param filters: the binding filters that choose among the targets
    :param matching: of targets, the regular expressions that its inputs have to match, see
        :mod:`lading.scheduling.hints.patterns`
    :param instance_type: the type of machine that shall run it
    :param queue: the queue of a batch site
    :param native: directives in the words of a batch site's scheduler, by key; True: a bare flag, False: without it
    :param nodes: the machines of its batch job, of a range the most; cpus, memory, disk and gpus are those of each
    :param ppn: processes on each of them
    :param threads: cpus of each process
    :param arch: the architecture that it runs on, such as ``x86_64``; None: that which its site has by default
    :param os: the operating system of the machine
    :param features: words for what the machine must have, among them its properties (``license=matlab``)
    :param preferred: words for what it shall have if that is possible
    :param capacity_type: ``on-demand`` or ``spot``
    :param container: in which it runs, see :mod:`lading.scheduling.hints.places`
    :param stage: the inputs whose files are brought to where it runs
    :param max_instances: on how many machines jobs of the task may be at once in a run of its Dag
    :param max_jobs: how many jobs of the task may be at work at once in a run of its Dag
    :param run_max_instances: the same for all tasks of the run together: what the Dag's ``max_instances`` has become
    :param run_max_jobs: likewise
    :param max_usd: what all tasks of the run may cost together before nothing more is launched for them, USD
    :param hurry: what the end of the run is worth where machines are bought by a forecast, see
        :mod:`lading.scheduling.forecast.choice`
    :param finish_by: when the run shall have ended, whatever that costs
    :param infrastructure_retries: how many of its tries that the infrastructure has ended use up no retry
    :param gang: what those jobs of its run are called together that start together with it
    :param partial: whether those of them start for which there is room, and the others are tried alone
    :param spread: whether each of them runs on a location of its own
    :param on_failure: what happens to the others when one has failed: ``cancel`` or ``leave``
    :param attempts: how often room is looked for, and when; None: a gang as usual, a job alone until there is some
    :param gang_tasks: the tasks of the gang, each with those of them that come before it
    :param gang_limits: how many jobs of a task of the gang Airflow lets run at once, and what its limit is called
    :param ahead: whether what the task needs is asked for before it is there, as soon as its start can be predicted;
        None: where its start is certain
    :param expressions: the hints that depend on the job, by name; they are None above until ``evaluated``
    :param auto: the hints that are what earlier tries of the task needed, by name, which are None above; each with the
        amount that counts until a try has ended, None: the default
    :param least: of the hints that are ranges the least that will do, by name; above is what is wished for
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
        """Return the hints that ``hints`` gives as people write them: ``{"memory": "8 GiB", "time": "2h"}``.

        :raises HintError: a name that is not a hint, or a value that is not valid
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
        if "nodes" in least:  # what it may never have it need not wish for
            limits = [values[name] for name in ("max_instances", "run_max_instances") if name in values]
            values["nodes"] = max(least["nodes"], min([values["nodes"], *limits]))
        if "properties" in values:
            values["features"] = values.get("features", frozenset()) | values.pop("properties")
        if gpu_type is not None and values.get("gpus") == 0:
            errors.append(f"hint gpus: there is no type of no GPUs; valid: 0, or a number, such as '{gpu_type}:1'")
        elif gpu_type is not None:
            values["features"] = values.get("features", frozenset()) | {gpu_feature(gpu_type)}
        laid_out = [name for name in LAYOUT_HINTS if name in values]
        if laid_out and "cpus" in {*values, *expressions, *auto}:
            errors.append(
                f"hint cpus: it cannot be given with {' and '.join(laid_out)}, since ppn × threads are the cpus on "
                f"each node; valid: cpus alone, or {', '.join(LAYOUT_HINTS)} without it"
            )
        errors += [*_too_few_machines(values), *_two_places(values), *misplaced(values)]
        if errors:
            raise HintError("; ".join(errors))
        return cls(**values, expressions=expressions, auto=auto, least=least)

    @classmethod
    def from_config(cls, executor_config: object) -> Hints:
        """Return the hints in an ``executor_config`` as Airflow hands it to an executor.

        :raises HintError: see :meth:`parse`
        """
        return cls.parse(given(executor_config))

    def evaluated(self, facts: ExpressionFacts) -> Hints:
        """Return the hints of one job, with the values that its expressions have for it.

        :raises HintError: an expression cannot be evaluated for this job, or its result is not valid
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
        """Return what to pack the task by: its hints, and ``defaults`` for what it gives no hint.

        Of a task with a layout it is what it needs on each node.
        """
        cpus = self.layout.cpus_per_node if self.layout else self.cpus
        return Resources(
            cpus=defaults.cpus if cpus is None else cpus,
            memory=defaults.memory if self.memory is None else self.memory,
            disk=defaults.disk if self.disk is None else self.disk,
            gpus=defaults.gpus if self.gpus is None else self.gpus,
        )

    def minimum(self, asked: Resources) -> Resources:
        """The least that will do.

        :param asked: what :meth:`resources` says
        """
        return replace(asked, **{name: least for name, least in self.least.items() if name != "nodes"})

    @property
    def layout(self) -> Layout | None:
        """How its processes lie on nodes, what was not given counting as 1; None: nothing of it was given."""
        given = {name: value for name in LAYOUT_HINTS if (value := getattr(self, name)) is not None}
        return Layout(**given, least_nodes=self.least.get("nodes")) if given else None

    @property
    def is_native(self) -> bool:
        """Whether something is asked for in the words of a batch system, which no other site understands."""
        return self.queue is not None or bool(self.native)

    def limits(self) -> JobLimits:
        """Return what is enforced: only what the author wrote, never a default."""
        return JobLimits(memory=self.memory, time=self.time)


def given(executor_config: object) -> Mapping[str, object]:
    """Return the hints in ``executor_config`` as they were written, ``{}`` where there are none.

    :raises HintError: something other than a mapping is under the key
    """
    hints = executor_config.get(HINT_KEY) if isinstance(executor_config, Mapping) else None
    if hints is None:
        return {}
    if not isinstance(hints, Mapping):
        raise HintError(
            f"executor_config[{HINT_KEY!r}] is {shortened(hints)}; valid: what resources(...) returns, "
            f'for example executor_config=resources(cpus=2, memory="4 GiB")'
        )
    return hints


def _too_few_machines(values: Mapping[str, Any]) -> list[str]:
    """Why a job of several nodes could never start, for it has more of them than it may use at once."""
    limits = {"max_instances": "", "run_max_instances": " of the Dag"}
    return [
        f"hint nodes: {values['nodes']} is more than max_instances{whose}, the {most} machines that it may use"
        for name, whose in limits.items()
        if (most := values.get(name)) is not None and most < values.get("nodes", 1)
    ]


def _two_places(values: Mapping[str, Any]) -> Iterator[str]:
    """Why targets do not go with other hints that say where a task runs."""
    targets = values.get("targets", ())
    if targets and "site" in values:
        yield f"hint targets: the hint site is given as well, {values['site']!r}; valid: one of them"
    if "filters" in values and not targets:
        yield "hint filters: they choose among targets; give the hint targets as well"
    matched = [name for name, _ in values.get("matching", ())]
    if strange := sorted(name for name in matched if not any(covers(name, target) for target in targets)):
        yield f"hint matching: {strange[0]!r} is none of its targets; valid: {', '.join(targets) or 'none'}"
    if any("/" in each for each in targets) and "queue" in values:
        yield "hint queue: a target names a queue or instance types itself; valid: the queue in the targets alone"


def merge(*levels: Mapping[str, object]) -> dict[str, object]:
    """Return the hints of several levels as one: key by key, the later level wins.

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
    """Return the levels of :func:`merge` without what a later level says with another hint.

    A layout and ``cpus`` both say how many cpus there are on a node, so a Dag's ``cpus`` do not stand in the way of a
    task with ``nodes``. A site and targets both say where a task runs.
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
    """Return a Dag's hints as its tasks get them: its ``max_instances`` is that of all its tasks together.

    So is its ``max_jobs``.
    """
    return {OF_THE_RUN.get(name, name): value for name, value in merge(hints).items()}


def _bare(directives: Mapping[Any, object]) -> dict[Any, object]:
    """Native directives by their keys without the dashes that may be before them."""
    return {key.lstrip("-") if isinstance(key, str) else key: value for key, value in directives.items()}


def largest_of(hints: Sequence[Hints]) -> Hints:
    """The hints that suffice for each of several jobs, which run in one task instance."""
    values = {
        name: max((amount for each in hints if (amount := getattr(each, name)) is not None), default=None)
        for name in ("cpus", "memory", "disk", "gpus", "time")
    }
    return replace(hints[0] if hints else Hints(), **values)  # type: ignore[arg-type]
