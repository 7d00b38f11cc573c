"""Gangs under a controller whose sites are driven by the test: sites that hold room, and a house for all of it."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.answers import Comparison
from lading.executors.controller.controller import Controller
from lading.executors.decisions import Decision
from lading.executors.orchestrator.orchestrator import ExpectedGang, Roster
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State
from lading.executors.store.gangs.tables import GangRow, HoldRow
from lading.executors.store.gangs.terms import GangTerms
from lading.hooks.site import Holding, ObservedLocation, Site, SiteConfig
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from tests.clusters.sites import FakeSite, StoreHost, rest


class HoldingSite(FakeSite, Holding):
    """A fake site with two machines of four cpus that holds room.

    :param lies: what it answers to holds: the truth, ``refused``, or nothing
    """

    holds = True

    def __init__(self, name: str, folder: Path, machines: Sequence[str] = ("m1", "m2"), cpus: float = 4) -> None:
        super().__init__(name, folder, known=True)
        self.config = SiteConfig(kind="fake", accept_untargeted=True)
        self.there = {each: Location(f"{name}-{each}", Resources(cpus, 4096), site=name) for each in machines}
        self.lies: str | None = None
        self.held: dict[str, Hold] = {}
        self.dropped: list[str] = []
        self.refused: list[str] = []
        self.at: dict[str, str] = {}
        self.life = 0
        """How many controllers it has outlived: what one of them asked for and has not got dies with it."""
        self._see()

    def outlive(self) -> None:
        """Its controller is killed, and it hangs no longer."""
        self.life += 1
        self.go_on()

    def _perhaps_hang(self, where: str) -> None:
        life = self.life
        super()._perhaps_hang(where)
        if self.life != life:
            raise OSError("the controller that asked for it was killed")

    def _see(self) -> None:
        self.locations = [
            ObservedLocation(each, known=frozenset(token for token, where in self.at.items() if where == each.name))
            for each in self.there.values()
        ]

    def potential(self) -> list[Location]:
        return list(self.there.values())

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        self._perhaps_hang("hold")
        for hold in (each for here in holds.values() for each in here):
            if self.lies == "silence" or hold.token in self.held:
                continue
            if self.lies == "refused":
                self.refused.append(hold.token)
                self.say("refused", hold.token, reason="the machine is full")
            else:
                self.held[hold.token] = hold
                self.say("held", hold.token)

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        for token in (each for here in tokens.values() for each in here):
            self.held.pop(token, None)
            self.dropped.append(token)

    def say(self, event: str, token: str, **more: Any) -> None:
        self.events.append({"event": event, "token": token, "at": time.time(), **more})

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        self._perhaps_hang("put")
        for location, here in envelopes.items():
            for each in here:
                self.at[each.token] = location
                self.held = {token: hold for token, hold in self.held.items() if hold.job != each.token}
                self.say("started", each.token)
        self._see()

    def end(self, token: str, cause: str | None = None) -> None:
        """Let a job end."""
        del self.at[token]
        self._see()
        end = {"exit_code": None, "reason": None, "peak_memory": None, "cpu_seconds": None}
        self.say("finished", token, cause=cause, **end)


@dataclass
class House:
    """A controller with its sites and its store, a clock, and what Airflow knows of gangs."""

    engine: Engine
    settings: Settings
    sites: Sequence[Site[Any]]
    to_come: dict[tuple[str, int], str] = field(default_factory=dict)
    ahead: float = 0.0
    hindrances: tuple[Reason, ...] = ()
    seconds_until_repeated: float = Comparison.seconds_until_repeated

    def __post_init__(self) -> None:
        self.settings.state_folder.mkdir(exist_ok=True)
        self.begin()

    def begin(self) -> None:
        """A controller that takes over from the last one."""
        for site in self.sites:
            if isinstance(site, HoldingSite):
                site.outlive()
        by_name = {site.name: site for site in self.sites}
        self.controller = Controller(
            StoreHost(self.engine), by_name, lambda subject, seconds: "", self.settings, True, lambda _: None
        )

        for compared in self.controller.compared.values():
            compared.seconds_until_repeated = self.seconds_until_repeated

        def read_roster(_: Session, wanted: Mapping[str, ExpectedGang]) -> dict[str, Roster]:
            def found(gang: ExpectedGang, state: str) -> frozenset[tuple[str, int]]:
                its_own = ((key, its_state) for key, its_state in self.to_come.items() if key[0] in gang.tasks)
                return frozenset(key for key, its_state in its_own if its_state == state)

            return {
                token: Roster(found(gang, "coming"), found(gang, "failed"), self.hindrances)
                for token, gang in wanted.items()
            }

        self.controller.gangs.read_roster = read_roster

    def tick(self, times: int = 1) -> None:
        """Whole turns of the controller, with the answers of the sites."""
        for _ in range(times):
            self.act(self.recorded(self.decided()))

    def decided(self) -> Decision:
        """What a tick decides; nothing of it is stored yet."""
        here = self.controller
        here.leadership.leads_until = time.monotonic() + 20
        rest(here.threads)
        here.threads.request_observations()
        rest(here.threads)
        seen = here.observe()
        return here.decide(seen, here.any_wait())

    def recorded(self, decision: Decision) -> Decision:
        """What was decided is stored, and has reached no site."""
        self.controller.record(decision, True, time.time())
        return decision

    def act(self, decision: Decision) -> None:
        """It reaches the sites."""
        self.controller.act(decision)
        rest(self.controller.threads)

    def sleep(self, seconds: float) -> None:
        """Let time pass for gangs."""
        with Session(self.engine) as session:
            for row in session.scalars(select(GangRow)):
                row.wake_at = None if row.wake_at is None else row.wake_at - seconds
                memory = json.loads(row.memory)
                row.memory = json.dumps({**memory, "look_at": memory["look_at"] - seconds})
            session.commit()

    def drop_jobs(self) -> None:
        """Airflow wants none of the members any more."""
        with Session(self.engine) as session:
            for job in session.scalars(select(JobRow)):
                job.state = State.CANCELLED
            session.commit()

    def let_time_out(self) -> None:
        """The time of each pass that looks for room is over."""
        with Session(self.engine) as session:
            for row in session.scalars(select(GangRow)):
                row.memory = json.dumps({**json.loads(row.memory), "until": 0.0})
            session.commit()

    def queue(
        self,
        *tasks: str,
        gang: str | None = "ray",
        cpus: float = 2,
        run: str = "r",
        soft: str | None = None,
        memory: int = 100,
        workload: Mapping[str, Any] | None = None,
        sites: Sequence[str] = (),
        **terms: Any,
    ) -> None:
        """Let Airflow queue members; those with an index are mapped (``workers.3``).

        :param sites: of equal parts of them
        """
        known = dict.fromkeys((task.partition(".")[0] for task in [*tasks, *(key for key, _ in self.to_come)]), ())
        made = GangTerms(gang, tasks=known, **terms)
        for number, name in enumerate(tasks):
            task, _, index = name.partition(".")
            key = task, int(index or -1)
            self.to_come[key] = "coming"
            with Session(self.engine) as session:
                store.add_job(
                    session,
                    token=f"{name.replace('.', '')}-{run}",
                    kind="ExecuteTask",
                    subject="s",
                    workload=json.dumps(workload or {}),
                    dag_id="d",
                    run_id=run,
                    task_id=task,
                    map_index=key[1],
                    try_number=1,
                    priority=1,
                    queued_at=1000.0 + number,
                    unreported=False,
                    news=0,
                    state=State.QUEUED,
                    cpus=cpus,
                    memory=memory,
                    site_hint=sites[number * len(sites) // len(tasks)] if sites else None,
                    disk=0,
                    gpus=0.0,
                    gang=f"gang-{gang or name}-{run}",
                    gang_terms=made.to_json(),
                    soft=soft,
                )
                session.commit()

    def by_token(self) -> dict[str, JobRow]:
        """All jobs of all runs."""
        with Session(self.engine) as session:
            found = {each.token: each for each in session.scalars(select(JobRow))}
            session.expunge_all()
            return found

    def jobs(self) -> dict[str, JobRow]:
        """The jobs by their tasks, where there is one run."""
        return {token.rpartition("-")[0]: each for token, each in self.by_token().items()}

    def states(self) -> dict[str, str]:
        return {token: str(job.state) for token, job in sorted(self.jobs().items())}

    def gangs(self) -> list[GangRow]:
        with Session(self.engine) as session:
            return list(session.scalars(select(GangRow).order_by(GangRow.token)))

    def holds(self) -> list[HoldRow]:
        with Session(self.engine) as session:
            return list(session.scalars(select(HoldRow)))
