"""``resources``: what a Dag author writes to say what a task needs."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from lading.scheduling.hints.hints import HINT_KEY

# The least that will do, and what is wished for.
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
    """Say what a task needs, for its ``executor_config``::

        @task(executor_config=resources(cpus=4, memory="8 GiB", time="2h"))
        def align(sample): ...

    Every hint may be left out. In ``default_args`` of a Dag or a task group, hints hold for all tasks in it, each
    until a task gives the same one. Together with another executor's settings: ``{**resources(cpus=4), ...}``.

    ``cpus``, ``memory``, ``disk``, ``gpus`` and ``time`` may be expressions that are evaluated for every job:
    ``memory="2 * input_size + 1 GiB"``, ``cpus="min(8, len(samples))"``, ``time="30 min * attempt"``. ``cpus``,
    ``memory`` and ``time`` may be ``"auto"``: what earlier tries of the task needed, by the size of their inputs;
    ``"auto(8 GiB)"`` is 8 GiB until a try has ended.

    ``cpus``, ``memory``, ``disk`` and ``gpus`` may be ranges: with ``cpus=(4, 16)`` the task gets 16 where that is to
    be had now, or fewer, but never fewer than 4. What it has got is in the environment variable ``LADING_CPUS``.

    Wrong hints raise nothing here: they become an import error of the Dag that names the task, the value and what is
    valid.

    :param cpus: processors; 0.25 is a quarter of one
    :param memory: MiB, or text with a unit such as ``"8 GiB"``; a task that uses more is ended
    :param disk: MiB of scratch space, or text with a unit
    :param gpus: GPUs; 0.5 is half of one; of one type with its name: ``"a100:1"``
    :param time: seconds, text such as ``"2h"`` or ``"1h30m"``, or a ``timedelta``; a task that runs longer is ended
    :param site: the name of the site that should run the task; without it any
    :param targets: sites, queues of batch sites and patterns of instance types of other sites, of which one should run
        the task, in the order in which they are tried: ``["hpc/long", "cloud/c7i.*"]``; not together with ``site``
    :param filters: the names of binding filters that choose among the targets, such as ``["shuffle"]``
    :param matching: of targets, regular expressions that have to be found in inputs of the task:
        ``{"hpc/long": {"sample": "^big_"}}``; of a list of such tables one is enough; a target without any is for all
    :param instance_type: the type of machine that should run it, at a site that has types
    :param arch: the architecture that it runs on, such as ``"aarch64"``; without it that which its site has by
        default, nearly everywhere ``x86_64``
    :param os: the operating system of the machine, as its site calls it; without it any
    :param features: names of what the machine must have, all of them, as its site calls them: ``["avx512"]``
    :param properties: what the machine must have under which name, all of it: ``{"license": "matlab"}``
    :param preferred: names of what the machine should have, where one that has it is available now: ``["a100"]``
    :param capacity_type: ``"on-demand"``: a machine that is not reclaimed; ``"spot"``: one that may be reclaimed at
        any time; without it either
    :param container: in which it runs: ``"docker://IMAGE"``, ``"apptainer:///path/of/image.sif"`` or
        ``"apptainer://IMAGE"``; without it in that of its site, if it has one
    :param stage: the inputs whose files are brought to where the task runs, where they are not there already:
        ``["reads"]``; :func:`lading.operators.staged` says where they lie there
    :param max_instances: on how many machines jobs of the task may be at once in one run of the Dag; in
        ``default_args`` of the Dag, jobs of all its tasks together
    :param max_jobs: how many jobs of the task may be at work at once in one run of the Dag; in ``default_args`` of
        the Dag, how many of all its tasks together
    :param max_usd: what all tasks of the run may cost together, USD: when that is spent nothing more is launched for
        them, while running jobs continue; in ``default_args`` of the Dag
    :param hurry: where machines are bought by a forecast: what the end of the run is worth. 1: ten per cent longer for
        ten per cent less is a draw; 0, or ``"cheap"``: as cheap as possible; 10, or ``"fast"``: as fast as possible; in
        ``default_args`` of the Dag. The highest of its tasks counts
    :param finish_by: there: how long the run may take from when its first task is queued, whatever that costs: seconds,
        or text such as ``"2h"``; or the time of day by which it shall have ended, such as ``"06:00"``, in the time zone
        of the Dag, the next one after that; in ``default_args`` of the Dag. The earliest of its tasks counts. If no
        machines can do it by then, it takes as little longer as possible
    :param infrastructure_retries: how many of its tries that a failed machine or a preemption has ended use up none of
        its ``retries``; without it, what ``[lading] infrastructure_retries`` says. With 0, and ``retries=0``, a task
        that has begun never runs a second time
    :param queue: at a batch site: the queue (SLURM: partition) in place of that of the site; nothing to do with the
        argument ``queue`` of Airflow's operators
    :param native: at a batch site: directives of its scheduler, such as ``{"account": "astro"}``; True
        is a bare flag, False takes away what the site's ``resources`` have
    :param nodes: at a batch site with ``mode = "job"``: the machines of its one batch job; the task runs on the first,
        and ``mpirun`` and ``srun`` in it see all. ``memory``, ``disk`` and ``gpus`` are those of each. Not with
        ``cpus``. A range, ``(2, 8)``: 2 will do, and it gets 8 at most (docs/reference/hints.md)
    :param ppn: processes on each of them, 1 without it
    :param threads: cpus of each process, 1 without it
    :param gang: a name: all jobs of a run with the same start together, or none of them does (docs/how_to/gangs.md)
    :param spread: whether each job of a gang runs on a location of its own, as on a machine of its own
    :param partial: whether those of a gang start for which there is room, and the others are each tried alone
    :param on_failure: what happens to a gang's other jobs when one has failed: ``"cancel"``, or ``"leave"``
    :param attempts: how often room is looked for before the job, or the gang, fails: a number, or
        ``{"pauses": ["15m", "15m", "30m", "1h"], "count": 5, "timeout": "10m"}``, which is what a gang has without it
    :param ahead: whether what the task needs is launched before Airflow has queued it, so that it is there in time,
        also where it is not certain when it begins; in ``default_args`` of the Dag for all its tasks
        (docs/how_to/gangs.md)
    :return: plain JSON values under the key ``lading``
    """
    given = locals()  # all of them by name
    hints = {name: value for name, value in given.items() if value is not None and name != "unknown"} | unknown
    return {HINT_KEY: {name: _LISTS.get(name, _plain)(value) for name, value in hints.items()}}


def _sorted(value: object) -> Any:
    """Features as JSON has them; in any order the Dag would be another one at each parse."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return sorted(str(_plain(each)) for each in value)
    return _plain(value)


def _in_order(value: object) -> Any:
    """A list as JSON has it, in its order."""
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else _plain(value)


def _patterns(value: object) -> Any:
    """Patterns of inputs by target as JSON has them."""
    if not isinstance(value, Mapping):
        return _plain(value)
    return {str(target): _in_order(tables) for target, tables in value.items()}


# The hints that may be lists, or tables of tables.
_LISTS: dict[str, Callable[[object], Any]] = {
    "matching": _patterns,
    **dict.fromkeys(("features", "preferred"), _sorted),
    **dict.fromkeys(("targets", "filters", "stage", "cpus", "memory", "disk", "gpus", "nodes", "gang"), _in_order),
}


def _plain(value: object) -> Any:
    """``value`` as JSON has it. What JSON cannot hold becomes text, with which the import error shows it."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): _directive(each) for key, each in value.items()}
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):  # numpy's integers are no int
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    return repr(value)


def _directive(value: object) -> Any:
    """The value of a native directive, or of one of the attempts, as JSON has it; None takes one away."""
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))  # is refused where hints are checked
    return value is not None and _plain(value)
