"""Gangs take their turn among the jobs that start alone: who writes ``attempts`` gets no more, and no gang starves.

The controller is real. So is the rule by which the machine's agent starts what lies there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.controller import site_threads
from lading.executors.controller.controller import Controller
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.orchestrator.orchestrator import Roster
from lading.executors.store import JobRow, State
from lading.executors.store.gangs.terms import GangTerms
from lading.hooks.site import Holding
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.model.resources import Resources
from tests.clusters.agents import AgentSite
from tests.clusters.sites import StoreHost, make_settings, make_store, rest

CPUS = 8
WEIGHTS = '[[shares]]\nteam = "honest"\nweight = 9\n[[shares]]\nteam = "hostile"\nweight = 1\n'
JOB: dict[str, Any] = {
    "kind": "Test", "subject": "s", "workload": "{}", "priority": 1, "try_number": 1, "news": 0, "map_index": -1,
    "unreported": False, "state": State.QUEUED, "cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0, "run_id": "run",
    "task_id": "task", "changed_at": 0.0, "gang": None, "gang_terms": None,
}  # fmt: skip


class HoldingAgent(AgentSite, Holding):
    """A machine that holds room as its agent does: what is held is free of what runs, and nothing else starts in it."""

    holds = True

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder, CPUS)
        self.held: dict[str, Hold] = {}

    @property
    def kept(self) -> Resources:
        return sum((each.resources for each in self.held.values()), Resources())

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        for each in (one for here in holds.values() for one in here if one.token not in self.held):
            running = sum((job.resources for job in self.jobs.values()), Resources())
            has_room = each.resources.fits(self.location.capacity - running - self.kept)
            if has_room:
                self.held[each.token] = each
            self._say("held" if has_room else "refused", each.token)

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        for token in (each for here in tokens.values() for each in here):
            self.held.pop(token, None)
        self._start()

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for each in envelopes["here"]:
            if each.token in self.jobs:
                continue
            if its_own := [token for token, hold in self.held.items() if hold.job == each.token]:
                del self.held[its_own[0]]
                self.jobs[each.token] = each
                self._say("started", each.token)
            else:
                self.inbox[each.token] = each
        self._start()

    def end_oldest(self) -> None:
        """Let the job end that has run for longest, and what comes next begin."""
        if self.jobs:
            token = next(iter(self.jobs))
            del self.jobs[token]
            end = {"exit_code": 0, "cause": None, "reason": None, "peak_memory": None, "cpu_seconds": None}
            self._say("finished", token, **end)
        self._start()

    def _say(self, event: str, token: str, **more: Any) -> None:
        self.events.append({"event": event, "token": token, "at": time.time(), **more})


class Machine:
    """A controller that leads one machine, where one job ends after the other."""

    def __init__(self, engine: Engine, folder: Path, tables: str) -> None:
        self.engine, self.site = engine, HoldingAgent("lab", folder / "lab")
        path = folder / "sites.toml"
        path.write_text(f'[sites.lab]\nkind = "fake"\n{tables}')
        settings = make_settings(folder / "state", sites_file=path)
        settings.state_folder.mkdir()
        self.made = Controller(
            StoreHost(engine), {"lab": self.site}, lambda subject, seconds: "", settings, True, lambda some: None
        )
        self.made.gangs.read_roster = lambda session, wanted: dict.fromkeys(wanted, Roster(frozenset(), frozenset()))

    def queue(self, name: str, number: int, *, terms: GangTerms | None = None, **columns: Any) -> None:
        """Queue jobs; each is a gang of its own where its terms name none."""
        rows = []
        for n in range(number):
            gang = None if terms is None else name if terms.name is not None else f"{name}-{n:03}"
            its_own = {"gang": gang, "gang_terms": None if terms is None else terms.to_json()}
            token, at = f"{name}-{n:03}", time.time() - 900 + n
            rows.append({**JOB, "token": token, "dag_id": name, "map_index": n, "queued_at": at, **its_own, **columns})
        with Session(self.engine) as session:
            session.execute(insert(JobRow), rows)
            session.commit()

    def tick(self) -> None:
        made = self.made
        made.leadership.leads_until = time.monotonic() + 60
        rest(made.threads)
        made.threads.request_observations()
        rest(made.threads)
        seen, any_wait = made.observe(), made.any_wait()
        decision = made.decide(seen, any_wait)
        made.record(decision, any_wait, time.time())
        made.act(decision)
        rest(made.threads)

    def started(self) -> Counter[str]:
        """How many jobs of each name have started."""
        with Session(self.engine) as session:
            query = select(JobRow.dag_id, func.count()).where(JobRow.started_at.is_not(None)).group_by(JobRow.dag_id)
            return Counter({str(name): count for name, count in session.execute(query)})


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(AirflowOrchestrator, "note", lambda self, session, notes: None)
    return make_store(tmp_path)


def test_attempts_give_no_precedence(engine: Engine, tmp_path: Path) -> None:
    machine = Machine(engine, tmp_path, WEIGHTS)
    machine.queue("honest", 150, team="honest")
    machine.queue("hostile", 150, team="hostile", terms=GangTerms(attempts=AttemptSchedule((1,), 1000)))
    for _ in range(45):
        for _ in range(2):
            machine.tick()
        machine.site.end_oldest()
    started = machine.started()
    assert started.total() > 40
    assert started["hostile"] <= 0.1 * started.total() + 3, started
    assert started["hostile"] > 1, "it has its share all the same"


@pytest.mark.parametrize("tables", ["", WEIGHTS], ids=["no shares", "shares"])
def test_a_gang_starts_where_others_always_wait(engine: Engine, tmp_path: Path, tables: str) -> None:
    machine = Machine(engine, tmp_path, tables)
    machine.queue("before", 20, team="honest")
    for _ in range(3):
        machine.tick()
    machine.queue("gang", 3, team="hostile", terms=GangTerms("ray", tasks={"task": ()}), cpus=2.0)
    machine.queue("behind", 150, team="honest")
    for _ in range(100):
        for _ in range(2):
            machine.tick()
        if machine.started()["gang"] == 3:
            break
        machine.site.end_oldest()
    started = machine.started()
    assert started["gang"] == 3, started
