"""Why jobs wait: by the codes of reasons, their sites and limits, largest group first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from lading.executors.store.figures import waiting
from lading.executors.store.gangs.rows import held_by
from lading.plugin.ui.queries.models import HeldRoom, WaitGroup, WaitGroups, WaitingDag
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.reasons import NEW, Code, Reason

# Of each group so many reasons, Dags and places are named.
MOST_WORDS = 3
MOST_DAGS = 10
MOST_HELD = 5
# Code, site and limit.
Key = tuple[str, str | None, str | None]


@dataclass(slots=True)
class WaitingGroup:
    """What is known of the jobs that wait for the same."""

    code: Code
    site: str | None
    limit: str | None
    jobs: int = 0
    cpus: float = 0.0
    oldest: float = float("inf")
    words: Counter[str] = field(default_factory=Counter)
    dags: Counter[str] = field(default_factory=Counter)
    hidden: bool = False
    held: list[HeldRoom] = field(default_factory=list)

    def add(self, reason: Reason | None, dag_id: str | None, count: int, seen: bool) -> None:
        """Add jobs of one Dag and reason; the sentence of a reason may name tasks of its Dag."""
        if not seen:
            self.hidden = True
            return
        if reason is not None:
            self.words[str(reason)] += count
        if dag_id:
            self.dags[dag_id] += count

    def model(self) -> WaitGroup:
        code = self.code
        return WaitGroup(
            key=code.key,
            kind=code.kind,
            title=code.title,
            remedy=code.remedy,
            actors=[each.value for each in code.actors],
            site=self.site,
            limit=self.limit,
            jobs=self.jobs,
            cpus=self.cpus,
            oldest=self.oldest,
            words=[words for words, _ in self.words.most_common(MOST_WORDS)],
            dags=[WaitingDag(dag_id=dag_id, jobs=jobs) for dag_id, jobs in self.dags.most_common(MOST_DAGS)],
            hidden=self.hidden,
            held=sorted(self.held, key=lambda each: (-each.cpus, each.place))[:MOST_HELD],
        )


def key_of(reason: Reason | None, site: str | None, seen: bool) -> Key:
    """The group of a reason.

    :param site: to which its jobs were given
    :param seen: whether its Dag may be seen, of which a limit may name tasks
    """
    found = reason or NEW
    return found.code, found.site or site, found.limit if seen else None


def waits(session: Session, sight: Sight, now: float) -> WaitGroups:
    """Why jobs wait now."""
    groups: dict[Key, WaitingGroup] = {}
    for reason, dag_id, site, count, cpus, oldest in waiting(session):
        seen = sight.sees(dag_id)
        key = key_of(reason, site, seen)
        group = groups.setdefault(key, WaitingGroup((reason or NEW).meaning, *key[1:]))
        group.jobs += count
        group.cpus += float(cpus)
        group.oldest = min(group.oldest, oldest)
        group.add(reason, dag_id, count, seen)
    for reason, dag_id, job_site, gang, site, location, count, cpus in held_by(session):
        seen = sight.sees(dag_id)
        held_in = groups.get(key_of(reason, job_site, seen))
        if held_in is not None:  # else its jobs have begun since they were counted
            names = (dag_id, gang) if seen else (None, None)
            held_in.held.append(
                HeldRoom(dag_id=names[0], gang=names[1], place=f"{site}/{location}", jobs=count, cpus=float(cpus))
            )
    ordered = sorted(groups.values(), key=lambda each: (-each.jobs, each.code.key, each.site or "", each.limit or ""))
    return WaitGroups(now=now, jobs=sum(each.jobs for each in ordered), groups=[each.model() for each in ordered])
