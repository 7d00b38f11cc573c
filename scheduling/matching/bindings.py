"""Bindings: the targets of tasks that name none, by patterns of Dags, task groups and tasks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha512
from typing import TypeAlias

from lading.scheduling.hints.patterns import Matching, as_written, parse_matching
from lading.scheduling.hints.places import parse_filters, parse_targets
from lading.scheduling.model.job import PlannedJob


@dataclass(frozen=True, slots=True)
class Binding:
    """Where tasks that match all of the patterns (``*``, ``?``, ``[...]``) can run.

    :param dag: a pattern of Dag ids
    :param task: a pattern of task ids, which include the task group as in Airflow (``group.task``)
    :param group: a pattern of ids of task groups that contain the task, directly or not; None: any task, in a group or
        not
    :param targets: see :class:`lading.scheduling.hints.places.Target`; tried in this order
    :param filters: the binding filters that choose among the targets
    :param matching: the patterns of inputs that a job needs for a target
    """

    targets: tuple[str, ...]
    dag: str = "*"
    task: str = "*"
    group: str | None = None
    filters: tuple[str, ...] = ()
    matching: Matching = ()

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> Binding:
        """A binding as it was published.

        :raises ValueError: a value is invalid
        """
        group = table.get("group")
        return cls(
            parse_targets(table.get("targets")),
            str(table.get("dag", "*")),
            str(table.get("task", "*")),
            None if group is None else str(group),
            parse_filters(table.get("filters", ())),
            parse_matching(matching) if (matching := table.get("matching")) else (),
        )

    def binds(self, dag_id: str, task_id: str, groups: Sequence[str]) -> bool:
        """Whether it applies to a task.

        :param groups: the ids of the task groups that contain it
        """
        group = self.group
        inside = group is None or any(fnmatchcase(each, group) for each in groups)
        return inside and fnmatchcase(dag_id, self.dag) and fnmatchcase(task_id, self.task)

    def hints(self) -> dict[str, object]:
        more: dict[str, object] = {"filters": list(self.filters)} if self.filters else {}
        if self.matching:
            more["matching"] = as_written(self.matching)
        return {"targets": list(self.targets), **more}


def binding(bindings: Iterable[Binding], dag_id: str, task_id: str, groups: Sequence[str]) -> Binding | None:
    """The first binding that applies to a task, or None."""
    return next((each for each in bindings if each.binds(dag_id, task_id, groups)), None)


# A binding filter: takes a job and its targets, and returns those that it can go to, in the order in which they are
# tried.
GetTargets: TypeAlias = Callable[[PlannedJob, Sequence[str]], Sequence[str]]


def shuffle(job: PlannedJob, targets: Sequence[str]) -> Sequence[str]:
    """The targets in random order: different for each job, and always the same for one job."""
    # Use the digits of one hash: seeding a random generator takes ten times as long.
    chance = int.from_bytes(sha512(job.name.encode(errors="surrogatepass")).digest(), "big")
    left, found = list(targets), []
    while left:
        chance, number = divmod(chance, len(left))
        found.append(left.pop(number))
    return found


FILTERS: Mapping[str, GetTargets] = {"shuffle": shuffle}


def filtered(
    job: PlannedJob, targets: Sequence[str], filters: Iterable[str], known: Mapping[str, GetTargets] = FILTERS
) -> tuple[str, ...]:
    """The targets that a job's filters leave, in the order in which they are tried.

    :param known: the binding filters by name
    :raises ValueError: a filter does not exist, has failed, or returned something that was not among the targets
    """
    kept = tuple(targets)
    for name in filters:
        if name not in known:
            raise ValueError(f"there is no binding filter {name!r}; valid: {', '.join(sorted(known))}")
        try:
            left = tuple(known[name](job, kept))
        except Exception as error:  # a third party's filter can raise anything
            raise ValueError(f"the binding filter {name!r} failed: {type(error).__name__}: {error}") from error
        if strange := [str(each) for each in left if each not in kept]:
            raise ValueError(f"the binding filter {name!r} returned {', '.join(strange)}; valid: {', '.join(kept)}")
        kept = tuple(dict.fromkeys(left))
    return kept
