"""The simulator and the live engine decide the same for the same trace."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import leadership, site_threads
from lading.executors.controller.controller import Controller
from lading.executors.store import JobRow as Row
from lading.executors.store import State
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.simulated_machines import SimulatedMachine
from lading.plugin.offline.simulation.simulator import Simulation
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import InstanceLimits, Objective, PlannedLaunch
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.scale_in import ScaleIn
from tests.clusters.bought import BoughtSite, Clock, Diary
from tests.clusters.sites import StoreHost, make_settings, make_store, rest
from tests.services.at_once import AtOnce
from tests.services.packing import catalogue

TICK, BOOT, IDLE = 5.0, 60.0, 60.0
TYPES = catalogue(small=(2, 4096, 0.1), medium=(4, 16384, 0.2), large=(16, 65536, 0.8), odd=(2, 16384, 0.13))
SIZES = ((1, 1000), (1, 3000), (2, 4000), (2, 12000), (4, 8000), (8, 30000))


class Recorded(Simulation):
    """A simulation that notes what is decided."""

    def run_noting(self) -> Diary:
        self.diary = Diary()
        self.names: list[str] = []
        self.run(lambda done: None)
        return self.diary

    def launch(self, launch: PlannedLaunch, now: float) -> SimulatedMachine | None:
        made = super().launch(launch, now)
        assert made is not None
        self.names.append(made.name)
        self.diary.launches.append((now, launch.instance_type, launch.capacity_type))
        return made

    def start(self, machine: SimulatedMachine, shape: int, number: int, now: float) -> None:
        jobs = [self.queues[shape].waiting[i] for i in range(number)]
        super().start(machine, shape, number, now)
        place = self.names.index(machine.name), max(now, machine.ready_at)
        self.diary.begun |= {f"j{job:04}": place for job in jobs}

    def release(self, machine: SimulatedMachine, time: float) -> None:
        self.diary.released[self.names.index(machine.name)] = time
        super().release(machine, time)


def simulated(trace: Sequence[Arrival], policy: str) -> Diary:
    conditions = Conditions(boot_seconds=BOOT, tick_seconds=TICK)
    made = Recorded(trace, TYPES, InstanceLimits(), policy, "fast", Objective(), ScaleIn(IDLE), conditions)
    return made.run_noting()


def live(trace: Sequence[Arrival], policy: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Diary:
    """The same by a controller with a store, on a clock that is moved by a tick at a time."""
    engine = make_store(folder)
    clock = Clock()
    start = clock.now
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(leadership, "seconds_ahead", lambda *_: 0.0)  # the database's clock is moved as well
    market = MachineMarket(TYPES, policy=policy, idle_seconds=IDLE, boot_seconds=BOOT)
    lengths = {each.job.name: each.duration for each in trace}
    site = BoughtSite(folder, market, clock, lengths, policy)
    settings = make_settings(folder)
    house = Controller(
        StoreHost(engine), {"cloud": site}, lambda subject, seconds: "", settings, False, lambda changes: None
    )
    house.durations.seconds_until_stale = house.placing.waits.seconds_until_stale = 0.0
    house.housekeeping.due = lambda *_: False  # type: ignore[method-assign]  # it asks Airflow's tables
    house.site_plans.threads = AtOnce()  # however slow the machine is
    coming = list(trace)

    def is_over() -> bool:
        with Session(engine) as session:
            left = session.scalar(select(func.count()).where(Row.state != State.SUCCEEDED))
        return not (coming or left or site.machines)

    while not is_over():
        clock.now += TICK
        with Session(engine) as session:
            while coming and coming[0].arrival <= clock.now - start:
                each = coming.pop(0)
                asked = each.job.resources
                amounts = {"cpus": asked.cpus, "memory": asked.memory, "disk": 0, "gpus": 0.0}
                what = {"kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "priority": 0}
                when = {"queued_at": start + each.arrival, "time_limit": each.job.time}
                store.add_job(session, token=each.job.name, **what, **when, **amounts)
            session.commit()
        site.advance()
        house.threads.request_observations()
        rest(house.threads)
        house.tick()
        rest(house.threads)
        assert clock.now - start < 4 * 3600, "it does not come to its end"
    house.threads.end()
    engine.dispose()
    found = site.diary
    return Diary(
        [(at - start, *what) for at, *what in found.launches],
        {token: (number, at - start) for token, (number, at) in found.begun.items()},
        {number: at - start for number, at in found.released.items()},
    )


def some(number: int, seconds: float, seed: int, known: bool) -> list[Arrival]:
    """Jobs of all sizes and lengths; some come together."""
    chance = random.Random(seed)
    times = sorted(TICK * chance.randrange(1, int(seconds / TICK)) for _ in range(number))
    found = []
    for i, at in enumerate(times):
        length = TICK * max(3, round(chance.lognormvariate(4.5, 0.8) / TICK))
        asked = Resources(*chance.choice(SIZES))
        found.append(Arrival(PlannedJob(f"j{i:04}", asked, time=length if known else None), at, length))
    return found


def by_machine(diary: Diary) -> Counter[object]:
    """What each machine did from its launch to its release. Those of a type that are launched together are alike."""
    jobs: dict[int, set[tuple[str, float]]] = {number: set() for number in range(len(diary.launches))}
    for job, (number, at) in diary.begun.items():
        jobs[number].add((job, at))
    return Counter(
        (launch, frozenset(jobs[number]), diary.released[number])
        for number, launch in enumerate(map(tuple, diary.launches))
    )


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_by_a_forecast_all_is_the_same(known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = some(16, 300, 1, known)
    on_paper = simulated(trace, "forecast")
    with monkeypatch.context() as patch:
        alive = live(trace, "forecast", tmp_path, patch)
    assert alive.launches == on_paper.launches
    assert by_machine(alive) == by_machine(on_paper)
    assert len(alive.launches) > 5


def test_a_short_job_begins_where_there_is_room_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was bought for it is not used, and goes when it has been idle."""
    long = Arrival(PlannedJob("j0000", Resources(8, 30000), time=600.0), 5.0, 30.0)
    short = Arrival(PlannedJob("j0001", Resources(8, 40000), time=2 * TICK), 50.0, 2 * TICK)
    on_paper = simulated([long, short], "forecast")
    with monkeypatch.context() as patch:
        alive = live([long, short], "forecast", tmp_path, patch)
    assert len(alive.launches) == 2
    assert {machine for machine, _ in alive.begun.values()} == {0}
    assert alive.launches == on_paper.launches
    assert alive.begun == on_paper.begun
    assert alive.released == on_paper.released


def test_by_the_greedy_policy_orders_are_the_same_and_what_is_prefetched_moves_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator prefetches nothing: a prefetched job moves to another machine that could run it."""
    trace = some(16, 300, 1, known=True)
    on_paper = simulated(trace, "greedy")
    with monkeypatch.context() as patch:
        alive = live(trace, "greedy", tmp_path, patch)
    assert alive.launches == on_paper.launches
    late = {job: at - on_paper.begun[job][1] for job, (_, at) in alive.begun.items()}
    assert len(late) == len(trace)
    assert max(late.values()) <= 15.0 + 2 * TICK, late
