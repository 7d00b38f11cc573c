"""Why jobs wait: in classes of reasons, largest first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from lading.executors.store.figures import waiting
from lading.executors.store.gangs.rows import held_by
from lading.plugin.ui.queries.models import Held, WaitGroup, WaitingDag, Waits
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.insight.reasons import Reason, reason_class

# Of each group so many reasons, Dags and places are named.
MOST_WORDS = 3
MOST_DAGS = 10
MOST_HELD = 5


@dataclass(slots=True)
class Group:
    """What is known of the jobs that wait for reasons of one class."""

    reason: Reason
    jobs: int = 0
    cpus: float = 0.0
    oldest: float = float("inf")
    words: Counter[str] = field(default_factory=Counter)
    dags: Counter[str] = field(default_factory=Counter)
    hidden: bool = False
    held: list[Held] = field(default_factory=list)

    def add(self, words: str | None, dag_id: str | None, count: int, seen: bool) -> None:
        """Add jobs of one Dag and reason; the words of a reason may name tasks of its Dag."""
        if not seen:
            self.hidden = True
            return
        if words:
            self.words[words] += count
        if dag_id:
            self.dags[dag_id] += count

    def model(self) -> WaitGroup:
        reason = self.reason
        return WaitGroup(
            key=reason.key,
            title=reason.title,
            remedy=reason.remedy,
            jobs=self.jobs,
            cpus=self.cpus,
            oldest=self.oldest,
            words=[words for words, _ in self.words.most_common(MOST_WORDS)],
            dags=[WaitingDag(dag_id=dag_id, jobs=jobs) for dag_id, jobs in self.dags.most_common(MOST_DAGS)],
            hidden=self.hidden,
            held=sorted(self.held, key=lambda each: (-each.cpus, each.place))[:MOST_HELD],
        )


def waits(session: Session, sight: Sight, now: float) -> Waits:
    """Why jobs wait now."""
    groups: dict[str, Group] = {}
    for words, dag_id, count, cpus, oldest in waiting(session):
        reason = reason_class(words)
        group = groups.setdefault(reason.key, Group(reason))
        group.jobs += count
        group.cpus += float(cpus)
        group.oldest = min(group.oldest, oldest)
        group.add(words, dag_id, count, sight.sees(dag_id))
    for words, dag_id, gang, site, location, count, cpus in held_by(session):
        held_in = groups.get(reason_class(words).key)
        if held_in is not None:  # else its jobs have begun since they were counted
            seen = sight.sees(dag_id)
            names = (dag_id, gang) if seen else (None, None)
            held_in.held.append(
                Held(dag_id=names[0], gang=names[1], place=f"{site}/{location}", jobs=count, cpus=float(cpus))
            )
    ordered = sorted(groups.values(), key=lambda each: (-each.jobs, each.reason.key))
    return Waits(now=now, jobs=sum(each.jobs for each in ordered), groups=[each.model() for each in ordered])
