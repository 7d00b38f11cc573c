"""Asking ahead: what runs will need next is launched in time, before Airflow has queued the tasks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow.models.log import Log
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lading.executors.gangs.run_ahead import AheadHistory, RunAhead, UpcomingJob
from lading.executors.gangs.steps import GangTask, step
from lading.executors.settings import Settings
from lading.executors.store.durations import Durations, PastWaits
from lading.executors.store.gangs import runs
from lading.executors.store.gangs.runs import DagRunKey
from lading.hooks.files.logs import Trouble
from lading.scheduling.gangs.room import Ways
from lading.scheduling.matching.routes import router
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.provisioning import LONGEST_ARRIVAL

log = logging.getLogger(__name__)

# What is to come of a run is reckoned anew after so many seconds, in a tick of so many runs; what has come since counts
# at once.
SECONDS_BETWEEN_LOOKS = 5.0
MOST_RUNS_PER_TICK = 5
TROUBLE = "Of some runs it is not known what they will need, so nothing is asked for ahead"
# Between two tasks a run may have no job for a moment; what is known of it is forgotten after so many seconds.
SECONDS_UNTIL_FORGOTTEN = 60.0


@dataclass(slots=True)
class Outlook:
    """What is asked for ahead.

    :param wanted: by site, jobs that are to come
    :param notes: what the event logs of their tasks say of it
    """

    wanted: dict[str, list[WaitingJob]] = field(default_factory=dict)
    notes: list[Log] = field(default_factory=list)


class Ahead:
    """
    :param durations: predict how long tasks run; ``waits``: how long it takes until there is room for them
    :param latency: says how many seconds a decision takes
    """

    def __init__(
        self, settings: Settings, durations: Durations, waits: PastWaits, latency: Callable[[], float], ways: Ways
    ) -> None:
        self.settings, self.durations, self.waits, self.latency, self.ways = settings, durations, waits, latency, ways
        self.steps: dict[DagRunKey, dict[str, GangTask]] = {}
        self.seen_at: dict[DagRunKey, float] = {}
        self.asked_at: dict[DagRunKey, dict[str, float]] = {}
        self.found: dict[DagRunKey, list[UpcomingJob]] = {}
        self.looked_at: dict[DagRunKey, float] = {}
        self.trouble = Trouble(log)

    def look(
        self, session: Session, sites: Sequence[SiteView], now: float, *, by_dag: bool, database_ahead: float = 0.0
    ) -> Outlook:
        """What is to be launched for tasks that are to come.

        :param sites: with what is held taken
        :param now: epoch seconds
        :param by_dag: whether some site does not take every Dag
        :param database_ahead: by how many seconds the database's clock is before ours
        """
        live, outlook = runs.live(session), Outlook()
        self.seen_at |= dict.fromkeys(live, now)
        self._forget(now)
        due = [run for run in live if abs(now - self.looked_at.get(run, 0.0)) >= SECONDS_BETWEEN_LOOKS]
        due = sorted(due, key=lambda run: self.looked_at.get(run, 0.0))[:MOST_RUNS_PER_TICK]
        if due:
            sites = [replace(each, waits=self.waits.read(session)) for each in sites]
            known = self._known(session, sites, by_dag, database_ahead)
            coming = runs.unfinished(session, due)
            for run in due:
                self.looked_at[run] = now
                here = RunAhead(run, known, sites, self.asked_at.setdefault(run, {}), now)
                outlook.notes += self._look_at(session, here, coming.get(run, ()), live[run])
        for run, found in self.found.items():
            have_come = {row.task_id for row in live.get(run, ())}
            for each in found if have_come else ():
                if each.task_id not in have_come:
                    # All of them are known, so none that may still arrive is waited for.
                    since = self.asked_at[run][each.partition] - LONGEST_ARRIVAL
                    outlook.wanted.setdefault(each.site, []).append(replace(each.job, queued_at=since))
        return outlook

    def _known(self, session: Session, sites: Sequence[SiteView], by_dag: bool, database_ahead: float) -> AheadHistory:
        """What predictions rest on; jobs that are alike have one route."""
        ways, able = self.ways, [site for site in sites if site.holds]
        return AheadHistory(
            self.durations.read(session),
            self.waits.launches,
            self.latency(),
            router(sites, ways.rules, ways.rank),
            router(able, ways.rules, ways.rank),
            ways.filters,
            by_dag,
            database_ahead,
        )

    def _look_at(self, session: Session, here: RunAhead, rows: Sequence[Any], live: Sequence[Any]) -> list[Log]:
        """Find out what is asked for for a run; returns what is said of it."""
        run, asked_at, notes = here.run, self.asked_at[here.run], list[Log]()
        self.found[run] = []
        try:
            self.found[run] = here.ask(self._steps(session, run), rows, live)
        except SQLAlchemyError:
            raise  # no run's trouble
        except Exception as error:  # hints are whatever was stored, and plugins may raise anything
            self.trouble.begin(TROUBLE, error, traceback=True)
        for partition in {each.partition for each in self.found[run]} - asked_at.keys():
            asked_at[partition] = here.now
            notes += self._notes(run, [each for each in self.found[run] if each.partition == partition])
        return notes

    def _steps(self, session: Session, run: DagRunKey) -> dict[str, GangTask]:
        """The tasks of a run; read once."""
        if run not in self.steps:
            configs = runs.configs(session, run).items()
            self.steps[run] = {task_id: step(run, task_id, config, self.settings) for task_id, config in configs}
        return self.steps[run]

    def _forget(self, now: float) -> None:
        for run in [run for run, at in self.seen_at.items() if abs(now - at) > SECONDS_UNTIL_FORGOTTEN]:
            for known in (self.seen_at, self.looked_at, self.steps, self.asked_at, self.found):
                known.pop(run, None)

    def _notes(self, run: DagRunKey, asked: Sequence[UpcomingJob]) -> list[Log]:
        """What is said of what is asked for first: of each task once."""
        first = {each.task_id: each for each in reversed(asked)}
        for each in first.values():
            log.info("Task %r of Dag %r, run %r: %s", each.task_id, *run, each.words)
        return [each.note(run) for each in first.values()]
