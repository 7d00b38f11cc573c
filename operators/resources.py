"""``resources``: how a Dag author declares what a task needs."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from lading.scheduling.hints.hints import HINT_KEY

# The minimum and the maximum of a range.
Range: TypeAlias = tuple[float | str, float | str]


def resources(
    *,
    cpus: float | str | Range | None = None,
    memory: float | str | Range | None = None,
    disk: float | str | Range | None = None,
    gpus: float | str | Range | None = None,
    time: float | str | timedelta | None = None,
    site: str | None = None,
    targets: Sequence[str] | str | None = None,
    filters: Sequence[str] | str | None = None,
    matching: Mapping[str, Mapping[str, str] | Sequence[Mapping[str, str]]] | None = None,
    instance_type: str | None = None,
    arch: str | None = None,
    os: str | None = None,
    features: Sequence[str] | str | None = None,
    properties: Mapping[str, str | int] | None = None,
    preferred: Sequence[str] | str | None = None,
    capacity_type: str | None = None,
    container: str | None = None,
    stage: Sequence[str] | str | None = None,
    max_instances: int | None = None,
    max_jobs: int | None = None,
    max_usd: float | None = None,
    hurry: float | str | None = None,
    finish_by: float | str | timedelta | None = None,
    infrastructure_retries: int | None = None,
    queue: str | None = None,
    native: Mapping[str, str | float | bool] | None = None,
    nodes: int | tuple[int, int] | None = None,
    ppn: int | None = None,
    threads: int | None = None,
    gang: str | None = None,
    partial: bool | None = None,
    spread: bool | None = None,
    on_failure: str | None = None,
    attempts: int | Mapping[str, object] | None = None,
    ahead: bool | None = None,
    **unknown: object,
) -> dict[str, dict[str, Any]]:
    """Declare what a task needs, for its ``executor_config``::

        @task(executor_config=resources(cpus=4, memory="8 GiB", time="2h"))
        def align(sample): ...

    Every hint is optional. Hints in the ``default_args`` of a Dag or task group apply to all tasks in it, unless a task
    sets the same hint itself. To combine hints with another executor's settings, write ``{**resources(cpus=4), ...}``.

    ``cpus``, ``memory``, ``disk``, ``gpus`` and ``time`` can be expressions that are evaluated for each job:
    ``memory="2 * input_size + 1 GiB"``, ``cpus="min(8, len(samples))"``, ``time="30 min * attempt"``. ``cpus``,
    ``memory`` and ``time`` can be ``"auto"``: what earlier tries of the task needed, depending on the size of their
    inputs; ``"auto(8 GiB)"`` means 8 GiB until a try has finished.

    ``cpus``, ``memory``, ``disk`` and ``gpus`` can be ranges: with ``cpus=(4, 16)`` the task gets 16 if they are
    available now, or fewer, but at least 4. The environment variable ``LADING_CPUS`` has the number it got.

    Invalid hints raise no exception here. They are reported as a Dag import error that names the task, the value and
    the valid values.

    :param cpus: processors; 0.25 is a quarter of one
    :param memory: MiB, or text with a unit such as ``"8 GiB"``; a task that uses more is killed
    :param disk: MiB of scratch space, or text with a unit
    :param gpus: GPUs; 0.5 is half of one; ``"a100:1"`` is one of a named type
    :param time: seconds, text such as ``"2h"`` or ``"1h30m"``, or a ``timedelta``; a task that runs longer is killed
    :param site: the name of the site that runs the task; without it, any
    :param targets: sites, queues of batch sites, and patterns of instance types of other sites, one of which runs the
        task, in the order in which to try them: ``["hpc/long", "cloud/c7i.*"]``; cannot be combined with ``site``
    :param filters: the names of binding filters that choose among the targets, such as ``["shuffle"]``
    :param matching: by target, regular expressions that must be found in inputs of the task: ``{"hpc/long": {"sample":
        "^big_"}}``; given a list of such tables, one table has to match; a target without patterns accepts all inputs
    :param instance_type: the machine type that runs it, at a site that has types
    :param arch: the architecture it runs on, such as ``"aarch64"``; without it, the site's default, which is ``x86_64``
        nearly everywhere
    :param os: the operating system of the machine, as named by its site; without it, any
    :param features: names of features that the machine must all have, as named by its site: ``["avx512"]``
    :param properties: named properties that the machine must all have: ``{"license": "matlab"}``
    :param preferred: names of features that the machine should have, if one with them is available now: ``["a100"]``
    :param capacity_type: ``"on-demand"`` for a machine that is not reclaimed, ``"spot"`` for one that can be reclaimed
        at any time; without it, either
    :param container: the container it runs in: ``"docker://IMAGE"``, ``"apptainer:///path/of/image.sif"`` or
        ``"apptainer://IMAGE"``; without it, that of its site, if any
    :param stage: the inputs whose files are copied to where the task runs, unless they are already there:
        ``["reads"]``; :func:`lading.operators.staged` returns their paths
    :param max_instances: how many machines jobs of the task can use at once in one run of the Dag; in ``default_args``
        of the Dag, jobs of all its tasks together
    :param max_jobs: how many jobs of the task can be placed or running at once in one run of the Dag; in
        ``default_args`` of the Dag, of all its tasks together
    :param max_usd: in ``default_args`` of the Dag: what all tasks of a run can cost together, in USD. Once that is
        spent, nothing more is launched for them, while running jobs continue
    :param hurry: in ``default_args`` of the Dag, for sites that launch machines by forecast: how much finishing the run
        early is worth. With 1, ten per cent longer for ten per cent less money is a draw; 0, or ``"cheap"``: as cheap
        as possible; 10, or ``"fast"``: as fast as possible. The highest value of its tasks applies
    :param finish_by: in ``default_args`` of the Dag, for the same sites: the deadline of the run, to be met at any
        cost: seconds or text such as ``"2h"``, counted from when its first task is queued; or a time of day such as
        ``"06:00"`` in the time zone of the Dag, the next one after that. The earliest value of its tasks applies. If no
        machines can meet it, the run is as little late as possible
    :param infrastructure_retries: how many tries that fail because of a machine or a preemption use up none of its
        ``retries``; without it, the value of ``[lading] infrastructure_retries``. With 0, and ``retries=0``, a task
        that has started never runs a second time
    :param queue: at a batch site: the queue (SLURM: partition) instead of the site's; unrelated to the argument
        ``queue`` of Airflow's operators
    :param native: at a batch site: directives of its scheduler, such as ``{"account": "astro"}``; True means a bare
        flag, and False removes a directive of the site's ``resources``
    :param nodes: at a batch site with ``mode = "job"``: the number of nodes of its batch job; the task runs on the
        first, and its ``mpirun`` and ``srun`` see all of them. ``memory``, ``disk`` and ``gpus`` are per node. Cannot
        be combined with ``cpus``. A range such as ``(2, 8)`` means at least 2 and at most 8 (docs/reference/hints.md)
    :param ppn: processes on each node; without it, 1
    :param threads: cpus of each process; without it, 1
    :param gang: a name; all jobs of a run with the same name start together, or none of them does
        (docs/how_to/gangs.md)
    :param spread: whether each job of a gang gets a location of its own, such as a separate machine
    :param partial: whether members of a gang that fit start now, while the rest are scheduled individually
    :param on_failure: what happens to the other jobs of a gang when one fails: ``"cancel"`` or ``"leave"``
    :param attempts: how often room is searched for before the job or gang fails: a number, or ``{"pauses": ["15m",
        "15m", "30m", "1h"], "count": 5, "timeout": "10m"}``, which is the default for a gang
    :param ahead: whether room for the task is launched before Airflow has queued it, so that it is ready in time, even
        if it is uncertain when the task starts; in ``default_args`` of the Dag, for all its tasks
        (docs/how_to/launch_early.md)
    :return: plain JSON values under the key ``lading``
    """
    given = locals()  # all arguments by name
    hints = {name: value for name, value in given.items() if value is not None and name != "unknown"} | unknown
    return {HINT_KEY: {name: _LISTS.get(name, _plain)(value) for name, value in hints.items()}}


def _sorted(value: object) -> Any:
    """Convert features to JSON, sorted, because a different order would make a new version of the Dag at each parse."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return sorted(str(_plain(each)) for each in value)
    return _plain(value)


def _in_order(value: object) -> Any:
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else _plain(value)


def _patterns(value: object) -> Any:
    if not isinstance(value, Mapping):
        return _plain(value)
    return {str(target): _in_order(tables) for target, tables in value.items()}


# The hints that can be lists, or tables of tables.
_LISTS: dict[str, Callable[[object], Any]] = {
    "matching": _patterns,
    **dict.fromkeys(("features", "preferred"), _sorted),
    **dict.fromkeys(("targets", "filters", "stage", "cpus", "memory", "disk", "gpus", "nodes", "gang"), _in_order),
}


def _plain(value: object) -> Any:
    """Convert a value to JSON. What JSON cannot hold becomes text, which the import error then shows."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): _directive(each) for key, each in value.items()}
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):  # numpy's integers are not instances of int
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    return repr(value)


def _directive(value: object) -> Any:
    """Convert the value of a native directive or of an attempts table to JSON; None removes a directive."""
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))  # rejected when hints are checked
    return value is not None and _plain(value)
