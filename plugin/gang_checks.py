"""Gangs when a Dag is parsed: which tasks are their members, and whether these can ever run at the same time.

Like :mod:`lading.plugin.policies`, which every Airflow process loads, this imports little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from lading.plugin.hint_checks import check_gang
from lading.scheduling.hints.gang_words import LIMITS, TASKS
from lading.scheduling.hints.hints import HintError, Hints

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

Task: TypeAlias = "BaseOperator | MappedOperator"


def of_gang(
    task: Task, gang: str, gang_of: Callable[[Task], object], hints_of: Callable[[Task], Mapping[str, object]]
) -> dict[str, object]:
    """What the task policy adds to the hints of a member: the tasks of its gang.

    :param gang: its name
    :param gang_of: says what gang a task names, as its own hints and those above it have it
    :param hints_of: says all hints of a task, those above it and its bindings included
    :raises HintError: the members can never run at the same time
    """
    dag = task.get_dag()
    members = {each.task_id: each for each in dag.tasks if gang_of(each) == gang} if dag is not None else {}
    members[task.task_id] = task
    before = task.get_flat_relative_ids(upstream=True) & members.keys()
    if before:
        raise HintError(
            f"hint gang: the task waits for {', '.join(sorted(before))}, which is of gang {gang!r} as well, so they "
            "can never start together; take one of them out of the gang"
        )
    if others := waits_for(members.values(), gang, gang_of):
        raise HintError(
            f"hint gang: gang {gang!r} waits for gang {others[0]!r}, and that for gang {gang!r}, so neither can ever "
            "start; take one of their tasks out of its gang"
        )
    check_limits(task, gang, list(members.values()))
    if task.task_id == next(iter(members)):  # what concerns all of them is looked at once
        check_together(gang, {name: (hints_of(each), length(each)) for name, each in members.items()}, task.dag_id)
    limits = {task_id: [*min(found)[::-1]] for task_id, each in members.items() if (found := limits_of(each))}
    return {TASKS: {name: [] for name in members}, **({LIMITS: limits} if limits else {})}


def check_together(gang: str, members: Mapping[str, tuple[Mapping[str, object], int]], dag_id: str) -> None:
    """Check what the members say of their gang, and ask for together.

    :param members: by task, its hints as they are written and how many jobs it is at least
    :raises HintError: some of them say that they are to be spread and others do not, or they ask for too much
    """
    spread = [name for name, (hints, _) in members.items() if hints.get("spread")]
    if spread and (others := sorted(members.keys() - set(spread))):
        raise HintError(
            f"hint spread: it is True of task {spread[0]!r} of gang {gang!r} and not of {', '.join(others)}; it says "
            "that no two members share a location: give it to all of them, as by default_args of their task group"
        )
    check_gang(gang, {name: (Hints.parse(hints), count) for name, (hints, count) in members.items()}, dag_id)


def waits_for(members: Iterable[Task], gang: str, gang_of: Callable[[Task], object]) -> list[str]:
    """The gangs for which a gang waits while they, or others behind them, wait for itself.

    A task waits for those before it, and for what the other members of its gang wait for.
    """
    dag = next(iter(members)).get_dag()
    if dag is None:
        return []
    every = {each.task_id: gang_of(each) for each in dag.tasks}
    theirs: dict[object, set[str]] = {}
    for task_id, name in every.items():
        theirs.setdefault(name, set()).add(task_id)

    def before(start: Iterable[str]) -> set[str]:
        """All that has to end first, their gangs with them."""
        found: set[str] = set()
        following = [up for each in start for up in dag.get_task(each).upstream_task_ids]
        while following:
            if (task_id := following.pop()) not in found:
                found.add(task_id)
                together = theirs[every[task_id]] if every[task_id] is not None else {task_id}
                following += [up for each in together for up in dag.get_task(each).upstream_task_ids]
        return found

    its_own = theirs.get(gang, set())
    others = {str(every[each]) for each in before(its_own) if every[each] not in (None, gang)}
    return sorted(name for name in others if before(theirs[name]) & its_own)


def check_limits(task: Task, gang: str, members: Sequence[Task]) -> None:
    """Check what Airflow lets run at the same time, as far as a Dag file says how many members there are.

    :raises HintError: it is less than the gang has
    """
    dag, its_own, size = task.get_dag(), length(task), sum(map(length, members))
    limits = [(name, most, its_own, "jobs of the task") for most, name in limits_of(task)]
    if dag is not None and dag.max_active_tasks > 0:
        limits.append(("max_active_tasks of the Dag", dag.max_active_tasks, size, f"members of gang {gang!r}"))
    for name, most, number, what in limits:
        if most < number:
            raise HintError(
                f"hint gang: {name} is {most}, fewer than the {number} {what}, which can so never start together; "
                f"raise it to at least {number}"
            )


OF_TASKS = ("max_active_tis_per_dagrun", "max_active_tis_per_dag")


def limits_of(task: Task) -> list[tuple[int, str]]:
    """How many jobs of a task Airflow lets run at the same time, each with the name of the limit."""
    return [(most, name) for name in OF_TASKS if (most := getattr(task, name, None) or 0) > 0]


def length(task: Task) -> int:
    """How many jobs a task is at least: one, or where it is mapped over lists that the Dag file has, their product."""
    expand = getattr(task, "_get_specified_expand_input", None)
    if expand is None:
        return 1
    found = expand().value
    lists = found.values() if isinstance(found, Mapping) else [found]
    return math.prod(len(each) if isinstance(each, (list, tuple, dict)) else 1 for each in lists)
