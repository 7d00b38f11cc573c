"""Checks of gangs when a Dag is parsed: which tasks are members, and whether they can ever run at the same time.

Every Airflow process loads this (by :mod:`lading.plugin.policies`), so it imports little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from lading.hooks.dags.teams import team_of_task
from lading.plugin import hint_checks
from lading.scheduling.hints.gang_hints import LIMITS, TASKS
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.hints.places import Target
from lading.scheduling.matching.admission import admitted
from lading.scheduling.matching.wishes import resolved
from lading.scheduling.model.resources import Resources
from lading.scheduling.model.site_names import is_named

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from lading.plugin.published import PublishedSite
    from lading.scheduling.gangs.supply import SiteSupply

Task: TypeAlias = "BaseOperator | MappedOperator"


def gang_hints(
    task: Task, gang: str, gang_of: Callable[[Task], object], hints_of: Callable[[Task], Mapping[str, object]]
) -> dict[str, object]:
    """Return what the task policy adds to the hints of a member: the tasks of its gang, and their limits.

    :param gang: the name of the gang
    :param gang_of: returns the hint ``gang`` of a task, merged from all levels
    :param hints_of: returns all hints of a task, merged from all levels and with bindings
    :raises HintError: the members can never run at the same time
    """
    dag = task.get_dag()
    members = {each.task_id: each for each in dag.tasks if gang_of(each) == gang} if dag is not None else {}
    members[task.task_id] = task
    before = task.get_flat_relative_ids(upstream=True) & members.keys()
    if before:
        raise HintError(
            f"hint gang: the task is downstream of {', '.join(sorted(before))}, which is in gang {gang!r} as well, "
            "so they can never start together; remove one of them from the gang"
        )
    if others := gangs_waited_for(members.values(), gang, gang_of):
        raise HintError(
            f"hint gang: gang {gang!r} waits for gang {others[0]!r}, and gang {others[0]!r} waits for gang {gang!r}, "
            "so neither can ever start; remove one of their tasks from its gang"
        )
    check_limits(task, gang, list(members.values()))
    if task.task_id == next(iter(members)):  # checks of the whole gang are made once
        asked = {name: (hints_of(each), job_count(each)) for name, each in members.items()}
        check_together(gang, asked, task.dag_id, team_of_task(task))
    limits = {task_id: [*min(found)[::-1]] for task_id, each in members.items() if (found := limits_of(each))}
    return {TASKS: {name: [] for name in members}, **({LIMITS: limits} if limits else {})}


def check_together(
    gang: str, members: Mapping[str, tuple[Mapping[str, object], int]], dag_id: str, team: str | None
) -> None:
    """Check that the members agree about ``spread``, and that their requests together can be met.

    :param members: by task, its hints as written and its least number of jobs
    :raises HintError: only some members have ``spread``, or together they request too much
    """
    spread = [name for name, (hints, _) in members.items() if hints.get("spread")]
    if spread and (others := sorted(members.keys() - set(spread))):
        raise HintError(
            f"hint spread: it is True for task {spread[0]!r} of gang {gang!r}, but not for "
            f"{', '.join(others)}; the hint keeps any two members from sharing a location, so set it for all "
            "of them, for example in default_args of their task group"
        )
    check_supply(gang, {name: (Hints.parse(hints), count) for name, (hints, count) in members.items()}, dag_id, team)


def check_supply(gang: str, members: Mapping[str, tuple[Hints, int]], dag_id: str, team: str | None) -> None:
    """Check the requests of all members of a gang together against all that their sites can ever give.

    :param members: by task, its hints and its least number of jobs
    :raises HintError: they request more, so they can never start together; the message has the sums
    """
    from lading.scheduling.gangs.supply import Demand, shortage  # imported here because few tasks are in a gang

    known, defaults = hint_checks.known_sites()
    is_partial = any(hints.partial for hints, _ in members.values())  # then each member is placed individually
    demands = []
    for task_id, (hints, count) in members.items():
        supplies = supplies_of(hints, dag_id, team, known)
        if not supplies:
            return  # unknown, or already reported for the task itself
        of_facts: dict[str, Any] = dict.fromkeys(
            {*hints.auto, *hints.expressions} - {"time"}, 0
        )  # unknown until the run, so assumed to be small
        least = hints.minimum(hints.resources(replace(defaults, **of_facts)))
        demands.append(Demand(task_id, [least] * (1 if is_partial else count), supplies))
    is_spread = any(hints.spread for hints, _ in members.values())
    lacking = shortage(demands, together=not is_partial, spread=is_spread)
    if lacking is not None:
        raise HintError(
            f"hint gang: gang {gang!r} can never start together: {lacking.sentence}; request less, or name a "
            "site that has more"
        )


def supplies_of(hints: Hints, dag_id: str, team: str | None, known: Mapping[str, PublishedSite]) -> list[SiteSupply]:
    """Return what the sites that can run a member of a gang can ever give; empty: unknown."""
    from lading.scheduling.gangs.supply import SiteSupply

    if hints.targets:
        places = list(map(Target.parse, hints.targets))
    else:
        names = (
            [hints.site] if hints.site is not None else [name for name, site in known.items() if site.accept_untargeted]
        )
        places = [Target(str(name)) for name in names]
    supplies: dict[str, SiteSupply] = {}
    takers = admitted(((each, each[1].admission) for each in known.items()), dag_id, team)
    for place, name, site in ((place, *each) for place in places for each in takers):
        if not is_named(name, place.site) or site.holds is False:
            continue
        if site.holds is None or not site.locations:
            return []
        of_type = place.within if site.dialect is None else None
        need = resolved(hint_checks.as_job(hints, Resources()), site.arch)
        here = {
            number: location
            for number, location in enumerate(site.locations)
            if location.kind.grants(need.wish)
            and (of_type is None or fnmatchcase(location.instance_type or "", of_type))
        }
        before = supplies.get(name, SiteSupply(name, {}, math.inf if site.launches else None))
        supplies[name] = before._replace(locations={**before.locations, **here})
    return list(supplies.values())


def gangs_waited_for(members: Iterable[Task], gang: str, gang_of: Callable[[Task], object]) -> list[str]:
    """Return the gangs that wait for each other in a cycle with a gang.

    A task waits for its upstream tasks, and for those of the other members of its gang.
    """
    dag = next(iter(members)).get_dag()
    if dag is None:
        return []
    every = {each.task_id: gang_of(each) for each in dag.tasks}
    theirs: dict[object, set[str]] = {}
    for task_id, name in every.items():
        theirs.setdefault(name, set()).add(task_id)

    def before(start: Iterable[str]) -> set[str]:
        """Return all tasks that have to finish before some tasks, including the rest of their gangs."""
        seen: set[str] = set()
        following = [up for each in start for up in dag.get_task(each).upstream_task_ids]
        while following:
            if (task_id := following.pop()) not in seen:
                seen.add(task_id)
                together = theirs[every[task_id]] if every[task_id] is not None else {task_id}
                following += [up for each in together for up in dag.get_task(each).upstream_task_ids]
        return seen

    its_own = theirs.get(gang, set())
    others = {str(every[each]) for each in before(its_own) if every[each] not in (None, gang)}
    return sorted(name for name in others if before(theirs[name]) & its_own)


def check_limits(task: Task, gang: str, members: Sequence[Task]) -> None:
    """Check that Airflow's limits allow all members to run at once, as far as the Dag file tells their number.

    :raises HintError: a limit is lower than the number of members
    """
    dag, its_own, size = task.get_dag(), job_count(task), sum(map(job_count, members))
    limits = [(name, most, its_own, "jobs of the task") for most, name in limits_of(task)]
    if dag is not None and dag.max_active_tasks > 0:
        limits.append(("max_active_tasks of the Dag", dag.max_active_tasks, size, f"members of gang {gang!r}"))
    for name, most, number, what in limits:
        if most < number:
            raise HintError(
                f"hint gang: {name} is {most}, fewer than the {number} {what}, so they can never start together; "
                f"raise it to at least {number}"
            )


OF_TASKS = ("max_active_tis_per_dagrun", "max_active_tis_per_dag")


def limits_of(task: Task) -> list[tuple[int, str]]:
    """Return Airflow's limits on running jobs of a task, each with its name."""
    return [(most, name) for name in OF_TASKS if (most := getattr(task, name, None) or 0) > 0]


def job_count(task: Task) -> int:
    """Return the least number of jobs of a task: 1, or if the Dag file has the lists that it maps, their product."""
    expand = getattr(task, "_get_specified_expand_input", None)
    if expand is None:
        return 1
    found = expand().value
    lists = found.values() if isinstance(found, Mapping) else [found]
    return math.prod(len(each) if isinstance(each, (list, tuple, dict)) else 1 for each in lists)
