"""Bindings: the targets of tasks whose Dag names none, by patterns of Dags, task groups and tasks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha512
from typing import TypeAlias

from lading.scheduling.hints.patterns import Matching, as_written, parse_matching
from lading.scheduling.hints.places import parse_filters, parse_targets
from lading.scheduling.job import PlannedJob


@dataclass(frozen=True, slots=True)
class Binding:
    """Where tasks may run that match all of the patterns (``*``, ``?``, ``[...]``).

    :param dag: of the Dag's id
    :param task: of the task's id, that of its task group in front as Airflow has it (``group.task``)
    :param group: of the id of a task group that has the task, directly or not; None: any task, in a group or not
    :param targets: see :class:`lading.scheduling.hints.places.Target`; tried in this order
    :param filters: which choose among them
    :param matching: of targets, the patterns of inputs that a job needs to go there
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

        :raises ValueError: a value is not valid
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
        """Whether it is for a task.

        :param groups: the ids of the task groups that have it
        """
        group = self.group
        inside = group is None or any(fnmatchcase(each, group) for each in groups)
        return inside and fnmatchcase(dag_id, self.dag) and fnmatchcase(task_id, self.task)

    def hints(self) -> dict[str, object]:
        """The hints that it stands for."""
        more: dict[str, object] = {"filters": list(self.filters)} if self.filters else {}
        if self.matching:
            more["matching"] = as_written(self.matching)
        return {"targets": list(self.targets), **more}


def binding(bindings: Iterable[Binding], dag_id: str, task_id: str, groups: Sequence[str]) -> Binding | None:
    """The first of several that is for a task; None: none is."""
    return next((each for each in bindings if each.binds(dag_id, task_id, groups)), None)


# A binding filter: from a job and its targets to those that it may go to, in the order in which they are tried.
GetTargets: TypeAlias = Callable[[PlannedJob, Sequence[str]], Sequence[str]]


def shuffle(job: PlannedJob, targets: Sequence[str]) -> Sequence[str]:
    """The targets in an order of chance, another one for each job, and the same one whenever that job is asked for."""
    # The digits of one number, each for one of those that are left: a generator of its own takes ten times as long.
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
    """The targets that the filters of a job leave, in the order in which they are tried.

    :param known: the binding filters by name
    :raises ValueError: there is no such filter, it has failed, or it has answered with what was no target before
    """
    kept = tuple(targets)
    for name in filters:
        if name not in known:
            raise ValueError(f"there is no binding filter {name!r}; valid: {', '.join(sorted(known))}")
        try:
            left = tuple(known[name](job, kept))
        except Exception as error:  # a third party's may raise anything
            raise ValueError(f"the binding filter {name!r} has failed: {type(error).__name__}: {error}") from error
        if strange := [str(each) for each in left if each not in kept]:
            raise ValueError(f"the binding filter {name!r} answers {', '.join(strange)}; valid: {', '.join(kept)}")
        kept = tuple(dict.fromkeys(left))
    return kept
