"""The controller's ``lading.*`` metrics for the orchestrator's backend; docs/reference/metrics.md lists them."""

from __future__ import annotations

import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select

from lading.executors.accounting import share_rows
from lading.executors.orchestrator.orchestrator import MetricsBackend
from lading.executors.store import ENDED, Change, JobRow, State, chunks, figures
from lading.executors.store.instances import InstanceRow
from lading.executors.store.jobs import QUEUED
from lading.hooks.files.addresses import fitting
from lading.scheduling.model.reasons import NEW

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Characters that a tag's value cannot have where StatsD puts it into the metric's name, and the longest value: a name
# has room for three of them.
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")
WAITING = (State.QUEUED, State.ATTEMPTED, State.PLACED)
# Name and tags.
Gauge = tuple[str, tuple[tuple[str, str | None], ...]]


class Counted(NamedTuple):
    """A job that has started or ended, to be counted in the next round.

    :param tags: without its team
    :param cpu_seconds: CPU time used; None: the job has not ended, or its usage was not measured
    """

    token: str
    name: str
    tags: dict[str, str | None]
    cpu_seconds: float | None = None


class Metrics:
    """The controller's counters, gauges and timers. Names of sites, teams and the like are tags, not parts of names."""

    def __init__(self, backend: MetricsBackend) -> None:
        self.stats = backend
        self.shown: set[Gauge] = set()
        self.started: set[str] = set()
        """Tokens of the jobs that have started since the last round."""
        self.counted: list[Counted] = []
        """What the next round counts, after it has read the jobs' teams."""
        self.last_round = time.time()

    @contextlib.contextmanager
    def tick(self) -> Iterator[None]:
        with self.stats.timer("lading.tick.duration"):
            yield

    def count(self, changes: Iterable[Change]) -> None:
        """Note jobs that have started or ended, for the next round to count by team, and ends by state and cause."""
        for change in changes:
            state = change.values.get("state")
            if state in ENDED:
                tags = {"state": str(state.value), "cause": change.values.get("cause")}
                self.counted.append(Counted(change.token, "lading.jobs.ended", tags, change.values.get("cpu_seconds")))
            elif state == State.RUNNING:
                self.counted.append(Counted(change.token, "lading.jobs.started", {}))
                self.started.add(change.token)

    def round(self, session: Session, live: Mapping[figures.LiveKey, int]) -> None:
        """Report all gauges, and the counts and waits since the last round.

        :param live: numbers of jobs that have not ended
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
        any_run = any(each.state == State.RUNNING for each in live)
        at_work = figures.teams(session, [State.RUNNING]) if any_run else ()
        gauges |= {("lading.team.cpus", of_team(each.team)): each.cpus for each in at_work if each.team is not None}
        for site, amounts in by_site(session, any_run=any_run).items():
            gauges |= {(name, (("site", site),)): amount for name, amount in amounts.items() if amount is not None}
        for budget in share_rows.budgets(session):
            its = (("budget", budget.name),)
            gauges["lading.budget.used", its] = budget.spent / budget.most
            gauges["lading.budget.expected", its] = budget.outlook.by(budget.until) / budget.most
        lately, _ = share_rows.means(session)
        gauges |= {("lading.share.used", (("share", name),)): mean.part for name, mean in lately.items()}
        told: dict[Gauge, float] = {}
        for (name, tags), amount in gauges.items():
            gauge: Gauge = name, tuple(as_tags(dict(tags)).items())
            told[gauge] = max(amount, told.get(gauge, amount))  # several names can become one
        self.shown |= told.keys()
        for gauge in self.shown:  # report 0 for what is gone, as a gauge keeps its last value
            name, tags = gauge
            self.stats.gauge(name, told.get(gauge, 0), tags=dict(tags))

    def _counts(self, session: Session) -> None:
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
        """Report how long started jobs had waited, and how long instances that came up took to boot."""
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
    """Return tags that every backend accepts: Airflow drops a metric whose name StatsD would refuse.

    :param tags: None and empty values become ``none``
    """
    return {key: fitting(NOT_IN_NAMES.sub("_", value or "none"), 64) for key, value in tags.items()}


def of_team(team: str | None) -> tuple[tuple[str, str], ...]:
    """Return the tag of a team; empty without a team, which is always so if Airflow has no teams."""
    return () if team is None else (("team", team),)


def by_site(session: Session, *, any_run: bool) -> dict[str, dict[str, float | None]]:
    """Return the gauges of each site: cpus in use and up, and their price per hour; None: unknown.

    :param any_run: whether any job runs
    """
    return {
        site: {
            "lading.cpus.used": each.used,
            "lading.cpus.batch": each.batch,
            "lading.cpus.up": each.up,
            "lading.usd_per_hour": each.usd_per_hour,
        }
        for site, each in figures.site_figures(session, any_run=any_run).items()
    }
