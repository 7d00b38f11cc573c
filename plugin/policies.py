"""The cluster policy that checks hints when a Dag is parsed, and gives tasks the hints of their Dag and task groups.

Every Airflow process loads this module and calls it for every task of every Dag, so it imports little, and a task
without hints costs it a few look-ups.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.policies import hookimpl

from lading.scheduling.expressions import NAMES
from lading.scheduling.hints import (
    HINT_KEY,
    INPUTS_KEY,
    HintError,
    Hints,
    given,
    merge,
    no_such_type,
    of_the_run,
)
from lading.scheduling.resources import Resources
from lading.scheduling.units import format_count, format_memory, format_resources

if TYPE_CHECKING:
    from airflow.sdk import DAG, BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from lading.plugin.sites import Known

log = logging.getLogger(__name__)

EXECUTOR_CLASS = "LadingExecutor"
# A Dag file's tasks are checked one after the other; the capacities of the sites are read once for them.
SECONDS_SITES_ARE_KEPT = 5.0


@hookimpl
def task_policy(task: BaseOperator | MappedOperator) -> None:
    """Merge the hints of the Dag, the task groups and the task into the task's ``executor_config``, and check them.

    :raises AirflowClusterPolicyViolation: a hint is wrong; the Dag gets an import error with the same words
    """
    if not getattr(task, "takes_hints", True):
        return  # what a scatter adds around its jobs needs next to nothing
    levels = list(executor_configs(task))
    if not any(HINT_KEY in level for level in levels if isinstance(level, Mapping)):
        return
    if not goes_to_lading(task.executor) or runs_a_task():
        return
    try:
        hints = merge(of_the_run(given(levels[0])), *(given(level) for level in levels[1:]))
        parsed = Hints.parse(hints)
        give(task, hints, sources(task, parsed))
        check(parsed)
    except HintError as error:
        from airflow.exceptions import AirflowClusterPolicyViolation

        raise AirflowClusterPolicyViolation(f"Dag {task.dag_id!r}, task {task.task_id!r}: {error}") from error


def executor_configs(task: BaseOperator | MappedOperator) -> Iterator[Any]:
    """The ``executor_config`` of the task's Dag, its task groups from outside to inside, and its own."""
    dag: DAG | None = task.get_dag()
    yield dag.default_args.get("executor_config") if dag is not None else None
    groups = []
    group = task.task_group
    while group is not None:
        groups.append(group)
        group = group.parent_group
    for group in reversed(groups):
        yield group.default_args.get("executor_config")
    if task.executor_config not in (
        level.default_args.get("executor_config") for level in (dag, *groups) if level is not None
    ):
        yield task.executor_config  # else Airflow has given it that of the default_args, which is no level of its own


def sources(task: BaseOperator | MappedOperator, hints: Hints) -> dict[str, Any]:
    """Where the inputs come from on which the hints depend, for the controller; ``{}`` where they depend on none.

    :raises HintError: a hint uses an input that the task does not have
    """
    if not hints.expressions:
        return {}
    from lading.operators import sources as inputs

    known = inputs.names(task)
    for name, expression in hints.expressions.items():
        unknown = sorted(expression.inputs - known)
        if unknown and not inputs.takes_rows(task):
            valid = ", ".join(sorted(known)) or "none"
            raise HintError(
                f"hint {name}: {expression.text!r} uses {unknown[0]}, which is no input of the task; "
                f"its inputs: {valid}; other names: {', '.join(NAMES)}"
            )
    every = any(expression.uses("input_size") for expression in hints.expressions.values())
    used = {name for expression in hints.expressions.values() for name in expression.inputs}
    return inputs.of_task(task, None if every else used)


def give(task: BaseOperator | MappedOperator, hints: Mapping[str, object], inputs: Mapping[str, Any]) -> None:
    """Make ``hints`` those of the task; its ``executor_config`` may be shared with other tasks, so it gets a new one.

    :param inputs: where the inputs come from on which the hints depend
    :raises HintError: the task's own ``executor_config`` is nothing that can carry hints
    """
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    own: object = task.executor_config
    if not isinstance(own, Mapping):
        raise HintError(f"executor_config is {own!r}, which cannot carry the hints of the Dag; valid: a dict")
    config = {**own, HINT_KEY: dict(hints), **({INPUTS_KEY: dict(inputs)} if inputs else {})}
    if isinstance(task, MappedOperator):
        task.partial_kwargs["executor_config"] = config
    else:
        task.executor_config = config


def goes_to_lading(executor: str | None) -> bool:
    """Whether a task with this ``executor`` is Lading's; what it gives to other executors is none of its business."""
    from airflow.configuration import conf

    # Teams, whose executors stand behind the first semicolon, cannot have Lading as theirs.
    configured = conf.get("core", "executor").split(";")[0].split(",")
    for position, entry in enumerate(configured):
        alias, _, path = entry.strip().rpartition(":")
        if path.rpartition(".")[2] == EXECUTOR_CLASS:
            return executor in {alias, path, EXECUTOR_CLASS} if executor else position == 0
    return False


def runs_a_task() -> bool:
    """Whether the Dag is parsed to run one of its tasks: it was checked before, and here the sites may not be known."""
    from airflow.sdk import get_parsing_context

    return get_parsing_context().task_id is not None


def check(hints: Hints) -> None:
    """Check hints against what the sites can ever give, as far as that is known.

    :raises HintError: there is no such site, more is asked for than any site has, or it is no batch site that a hint
        needs
    """
    known = known_sites()
    if hints.site is not None and known:
        if hints.site not in known:
            raise HintError(f"hint site: there is no site {hints.site!r}, valid: {', '.join(known)}")
        known = {hints.site: known[hints.site]}
    wish = hints.instance_type
    if wish is not None and known:
        types = {name for site in known.values() for name in site.instance_types or ()}
        known = {name: site for name, site in known.items() if site.suits(Resources(), wish)}
        if not known:
            raise HintError(no_such_type(wish, types))
    if hints.is_native:
        check_native(hints, known)
        known = {name: site for name, site in known.items() if site.dialect is not None}
    asked = hints.resources(Resources())
    if known and not any(site.suits(asked, wish) for site in known.values()):
        raise HintError(too_much(asked, {name: site.capacity for name, site in known.items() if site.capacity}))


def check_native(hints: Hints, known: Mapping[str, Known]) -> None:
    """Check hints in the words of a batch system against the batch sites that the task may go to.

    :raises HintError: there is none, or one of them does not take a directive
    """
    sites = {name: site.dialect for name, site in known.items() if site.dialect is not None}
    given = "queue" if hints.queue is not None else "native"
    if known and not sites:
        names = f"site {next(iter(known))!r} is none" if len(known) == 1 else f"none of {', '.join(known)} is one"
        raise HintError(f"hint {given}: only batch sites have queues and native directives, and {names}")
    if not hints.native:
        return
    # Not at the top: few tasks have them.
    from lading.hooks.batch import Profile
    from lading.hooks.native_hints import refuse
    from lading.plugin.manager import batch_systems

    systems = batch_systems()
    for name, dialect in sites.items():
        if (system := systems.get(dialect.get("system", ""))) is None:
            continue  # it is not known here
        try:
            refuse(hints.native, system, Profile(**dialect["profile"]))
        except ValueError as error:
            advice = "" if len(sites) == 1 else "; the hint site says which one it is for"
            raise HintError(f"hint native: at site {name!r}, {error}{advice}") from error


def too_much(asked: Resources, capacities: Mapping[str, Resources]) -> str:
    """In words: which hints are more than the sites can ever give, and what they can."""
    lacking = {name for room in capacities.values() for name in asked.lacking(room)}
    excess = [
        f"hint {name}: {format_memory(amount) if name in ('memory', 'disk') else format_count(amount)}"
        for name in ("cpus", "memory", "disk", "gpus")
        if name in lacking and (amount := getattr(asked, name))
    ]
    sites = f"site {next(iter(capacities))!r}" if len(capacities) == 1 else "any one site"
    most = "; ".join(f"{site} has {format_resources(room)}" for site, room in capacities.items())
    verb = "is" if len(excess) == 1 else "are"
    return f"{', '.join(excess)} {verb} more than {sites} can ever give: {most}; the sites_file can set what it has"


_kept: tuple[float, Mapping[str, Known]] = (0.0, {})


def known_sites() -> Mapping[str, Known]:
    """What is known of each site; ``{}`` where Lading cannot tell, which breaks nobody's Dags."""
    global _kept  # noqa: PLW0603 - one value per process
    kept_at, known = _kept
    if kept_at and time.monotonic() - kept_at < SECONDS_SITES_ARE_KEPT:
        return known
    try:
        from lading.executors.settings import Settings
        from lading.plugin import sites

        known = sites.known_sites(Settings.load())
    except Exception as error:
        log.warning("Hints are not checked against what the sites have, because that cannot be read: %s", error)
        known = {}
    _kept = (time.monotonic(), known)
    return known
