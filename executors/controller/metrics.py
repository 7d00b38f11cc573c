"""What Lading reports to the orchestrator's metrics backend, as ``lading.*``: docs/reference/metrics.md lists it."""

from __future__ import annotations

import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select

from lading.executors.orchestrator import current
from lading.executors.store import ENDED, Change, JobRow, State, chunks, figures, share_rows
from lading.executors.store.instances import InstanceRow
from lading.executors.store.jobs import QUEUED
from lading.hooks.files.addresses import fitting
from lading.scheduling.reasons import NEW

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# What a tag's value cannot have where StatsD puts it into the metric's name. Three of the longest fit into a name.
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")
LONGEST_VALUE = 64
WAITING = (State.QUEUED, State.ATTEMPTED, State.PLACED)
# Its name and its tags.
Gauge = tuple[str, tuple[tuple[str, str | None], ...]]


class Counted(NamedTuple):
    """That a job has started or ended.

    :param tags: without its team
    :param cpu_seconds: that it has used; None: it has not ended, or that is not known
    """

    token: str
    name: str
    tags: dict[str, str | None]
    cpu_seconds: float | None = None


class Metrics:
    """Counters, gauges and timers of the controller. Ids go into tags, never into names."""

    def __init__(self) -> None:
        self.stats = current.orchestrator().metrics()
        self.shown: set[Gauge] = set()
        self.started: set[str] = set()
        """The jobs that have started since the last round."""
        self.counted: list[Counted] = []
        """What is counted in the next round, when the teams are read."""
        self.last_round = time.time()

    @contextlib.contextmanager
    def tick(self) -> Iterator[None]:
        """Time one tick: ``lading.tick.duration``."""
        with self.stats.timer("lading.tick.duration"):
            yield

    def count(self, changes: Iterable[Change]) -> None:
        """Count jobs that started or ended, in the next round: ``lading.jobs.started``, ``lading.jobs.ended`` by state
        and cause, each by team."""
        for change in changes:
            state = change.values.get("state")
            if state in ENDED:
                tags = {"state": str(state.value), "cause": change.values.get("cause")}
                self.counted.append(Counted(change.token, "lading.jobs.ended", tags, change.values.get("cpu_seconds")))
            elif state == State.RUNNING:
                self.counted.append(Counted(change.token, "lading.jobs.started", {}))
                self.started.add(change.token)

    def round(self, session: Session, live: Mapping[figures.LiveKey, int]) -> None:
        """Show how things are now, and how long what has started since the last round had to wait.

        :param live: how many jobs have not ended
        """
        self._counts(session)
        self._waits(session)
        gauges: defaultdict[Gauge, float] = defaultdict(float)
        for each, jobs in live.items():
            gauges["lading.jobs.live", (("site", each.site), ("state", each.state), *of_team(each.team))] += jobs
            if each.state in WAITING:
                kind = (each.reason or NEW).meaning.kind
                gauges["lading.jobs.waiting", (("reason", kind), *of_team(each.team))] += jobs
        gauges |= {("lading.team.cpus", of_team(each.team)): 0.0 for each in live if each.team is not None}
        at_work = figures.teams(session, [State.RUNNING])
        gauges |= {("lading.team.cpus", of_team(each.team)): each.cpus for each in at_work}
        for site, amounts in by_site(session).items():
            gauges |= {(name, (("site", site),)): amount for name, amount in amounts.items() if amount is not None}
        gauges |= {
            ("lading.budget.used", (("budget", each.name),)): each.spent / each.most
            for each in share_rows.budgets(session)
        }
        lately, _ = share_rows.means(session)
        gauges |= {("lading.share.used", (("share", name),)): mean.part for name, mean in lately.items()}
        told: dict[Gauge, float] = {}
        for (name, tags), amount in gauges.items():
            gauge: Gauge = name, tuple(as_tags(dict(tags)).items())
            told[gauge] = max(amount, told.get(gauge, amount))  # of names that differ in nothing else
        self.shown |= told.keys()
        for gauge in self.shown:  # what is gone is 0: a gauge keeps its last value
            name, tags = gauge
            self.stats.gauge(name, told.get(gauge, 0), tags=dict(tags))

    def _counts(self, session: Session) -> None:
        """Count what has started and ended since the last round."""
        counted, self.counted = self.counted, []
        teams: dict[str, str | None] = {}
        for chunk in chunks(sorted({each.token for each in counted})):
            of_team_alone = JobRow.token.in_(chunk), JobRow.team.is_not(None)
            rows = session.execute(select(JobRow.token, JobRow.team).where(*of_team_alone))
            teams |= {row.token: row.team for row in rows}
        for each in counted:
            tags = as_tags({**each.tags, **dict(of_team(teams.get(each.token)))})
            self.stats.incr(each.name, tags=tags)
            if each.cpu_seconds is not None:
                self.stats.timing("lading.jobs.cpu", each.cpu_seconds * 1000, tags=tags)

    def _waits(self, session: Session) -> None:
        """Time the waits of jobs that have started, and the boots of instances that have come up."""
        started, since = sorted(self.started), self.last_round
        self.started, self.last_round = set(), time.time()
        for chunk in chunks(started):
            times = (QUEUED, JobRow.submitted_at, JobRow.started_at, JobRow.said_since, JobRow.said_until)
            for site, team, queued, submitted, began, since_said, until_said, source in session.execute(
                select(JobRow.site, JobRow.team, *times, JobRow.said_source).where(JobRow.token.in_(chunk))
            ):
                tags = as_tags({"site": site, **dict(of_team(team))})
                if began is not None and since_said is not None and until_said is not None:
                    within = "yes" if since_said <= began <= until_said else "no"
                    self.stats.incr("lading.jobs.expected", tags=as_tags({"source": source, "within": within}))
                for name, at in (("lading.jobs.wait", queued), ("lading.jobs.queue", submitted)):
                    if at is not None and began is not None:
                        self.stats.timing(name, 1000 * max(began - at, 0.0), tags=tags)
        boots = select(InstanceRow.site, InstanceRow.ordered_at, InstanceRow.ready_at).where(
            InstanceRow.ready_at >= since
        )
        for site, ordered, ready in session.execute(boots):
            self.stats.timing(
                "lading.instances.boot", 1000 * max((ready or ordered) - ordered, 0.0), tags=as_tags({"site": site})
            )


def as_tags(tags: Mapping[str, str | None]) -> dict[str, str]:
    """Return tags as every backend takes them: Airflow drops a metric whose name StatsD would refuse.

    :param tags: values as sites, teams and budgets are called; None, and an empty one: ``none``
    """
    return {key: fitting(NOT_IN_NAMES.sub("_", value or "none"), LONGEST_VALUE) for key, value in tags.items()}


def of_team(team: str | None) -> tuple[tuple[str, str], ...]:
    """The tag of a team; what has none has no tag, as everything where Airflow has no teams."""
    return () if team is None else (("team", team),)


def by_site(session: Session) -> dict[str, dict[str, float | None]]:
    """The cpus that are used and up, and what they cost by the hour; None: that is not known."""
    busy = figures.busy(figures.live_jobs(session, [State.RUNNING]))
    up, rates = figures.what_is_up(session), figures.queues(session)
    amounts: dict[str, dict[str, float | None]] = {}
    for site in {*busy, *rates, *(each[0] for each in up)}:
        here = [(cpus, usd) for name, cpus, usd in up if name == site]
        used, batch = busy.get(site, figures.CpusInUse())
        amounts[site] = {
            "lading.cpus.used": used,
            "lading.cpus.batch": batch,
            "lading.cpus.up": sum(cpus for cpus, _ in here),
            "lading.usd_per_hour": figures.usd_per_hour([usd for _, usd in here], rates.get(site), batch),
        }
    return amounts
