"""What Lading tells Airflow's metrics backend, as ``lading.*``: docs/metrics.md lists it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import Stats
from sqlalchemy import select

from lading.executors.store import ENDED, Change, Job, State, chunks, figures
from lading.executors.store.instances import Instance
from lading.scheduling.insight.reasons import reason_class

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class Metrics:
    """Counters, gauges and timers of the controller. Ids go into tags, never into names."""

    def __init__(self) -> None:
        self.shown: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        """The gauges that have been shown, each with its tags."""
        self.started: set[str] = set()
        """The jobs that have started since the last round."""
        self.last_round = time.time()

    @contextlib.contextmanager
    def tick(self) -> Iterator[None]:
        """Time one tick: ``lading.tick.duration``."""
        with Stats.timer("lading.tick.duration"):
            yield

    def count(self, changes: Iterable[Change]) -> None:
        """Count jobs that started or ended: ``lading.jobs.started``, ``lading.jobs.ended`` by state and cause."""
        for change in changes:
            state = change.values.get("state")
            if state in ENDED:
                tags = {"state": str(state.value), "cause": change.values.get("cause") or "none"}
                Stats.incr("lading.jobs.ended", tags=tags)
                if change.values.get("cpu_seconds") is not None:
                    Stats.timing("lading.jobs.cpu", change.values["cpu_seconds"] * 1000, tags=tags)
            elif state == State.RUNNING:
                Stats.incr("lading.jobs.started")
                self.started.add(change.token)

    def round(self, session: Session, live: Mapping[tuple[str | None, str], int]) -> None:
        """Show how things are now, and how long what has started since the last round had to wait.

        :param live: how many jobs have not ended, by site and state
        """
        self._waits(session)
        found = {
            ("lading.jobs.live", (("site", site or "none"), ("state", state))): n for (site, state), n in live.items()
        }
        reasons: Counter[str] = Counter()
        for words, _, jobs, _, _ in figures.waiting(session):
            reasons[reason_class(words).key] += jobs
        found |= {("lading.jobs.waiting", (("reason", key),)): jobs for key, jobs in reasons.items()}
        used = {site: float(cpus) for site, state, _, cpus in figures.live_jobs(session) if state == State.RUNNING}
        up = figures.what_is_up(session)
        rates = figures.queues(session)
        for site in {*used, *rates, *(each[0] for each in up)} - {None}:
            here = [(cpus, usd) for name, cpus, usd in up if name == site]
            found["lading.cpus.used", (("site", site),)] = used.get(site, 0.0)
            found["lading.cpus.up", (("site", site),)] = sum(cpus for cpus, _ in here)
            price = figures.usd_per_hour([usd for _, usd in here], rates.get(site), used.get(site, 0.0))
            if price is not None:
                found["lading.usd_per_hour", (("site", site),)] = price
        self.shown |= found.keys()
        for name, tags in self.shown:  # what is gone is 0: a gauge keeps its last value
            Stats.gauge(name, found.get((name, tags), 0), tags=dict(tags))

    def _waits(self, session: Session) -> None:
        """Time the waits of jobs that have started, and the boots of instances that have come up."""
        started, since = sorted(self.started), self.last_round
        self.started, self.last_round = set(), time.time()
        for chunk in chunks(started):
            for site, queued, submitted, began in session.execute(
                select(Job.site, Job.queued_at, Job.submitted_at, Job.started_at).where(Job.token.in_(chunk))
            ):
                for name, at in (("lading.jobs.wait", queued), ("lading.jobs.queue", submitted)):
                    if at is not None and began is not None:
                        Stats.timing(name, 1000 * max(began - at, 0.0), tags={"site": site or "none"})
        boots = select(Instance.site, Instance.ordered_at, Instance.ready_at).where(Instance.ready_at >= since)
        for site, ordered, ready in session.execute(boots):
            Stats.timing("lading.instances.boot", 1000 * max(ready - ordered, 0.0), tags={"site": site})
