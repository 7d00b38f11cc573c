"""Gangs over two sites that fail, do not answer, lie and lose what they hold, under controllers that are killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lading.executors.controller import site_threads
from lading.executors.gangs import tick
from lading.executors.store import ENDED, State
from lading.scheduling.hints.gang_hints import AttemptSchedule
from tests.clusters.gangs import HoldingSite, House
from tests.clusters.sites import make_settings, make_store
from tests.services.examples import EXAMPLES

SIZE = 3
SITES = st.sampled_from((0, 1))
AT_WORK = (State.PLACED.value, State.RUNNING.value)


class Faults(RuleBasedStateMachine):
    """Runs with a gang of three each; each site has room for one gang and a half."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        self.patch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", 0.0)
        self.patch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
        self.patch.setattr(tick.Tick, "seconds_until_answered", 0.02)
        engine = make_store(folder)
        self.sites = [HoldingSite(name, folder, ("m1",), cpus=9) for name in ("a", "b")]
        self.house = House(engine, make_settings(folder / "state"), self.sites, seconds_until_repeated=0.0)
        self.runs = 0

    @rule()
    def queue(self) -> None:
        """Another run comes, one of whose members is late."""
        if self.runs < 4:
            self.runs += 1
            self.house.to_come = {}
            names = ["head", *(f"workers.{number}" for number in range(SIZE - 1))]
            self.house.queue(*names, run=f"r{self.runs}", attempts=AttemptSchedule((1,), 1000))
            self.house.to_come = {}

    @rule()
    def tick(self) -> None:
        self.house.tick()

    @rule()
    def killed_before_it_stores(self) -> None:
        self.house.decided()
        self.house.begin()

    @rule()
    def killed_before_it_acts(self) -> None:
        self.house.recorded(self.house.decided())
        self.house.begin()

    @rule(number=SITES)
    def killed_when_one_of_two_sites_has_heard(self, number: int) -> None:
        decision, deaf = self.house.recorded(self.house.decided()), self.sites[1 - number]
        before, deaf.trouble = deaf.trouble, OSError("it has not heard of it")
        self.house.act(decision)
        deaf.trouble = before
        self.house.begin()

    @rule()
    def killed_when_it_has_acted(self) -> None:
        self.house.tick()
        self.house.begin()

    @rule()
    def time_passes(self) -> None:
        self.house.sleep(1)

    @rule(number=SITES, lies=st.sampled_from((None, "refused", "silence")))
    def lies(self, number: int, lies: str | None) -> None:
        self.sites[number].lies = lies

    @rule(number=SITES, where=st.sampled_from(("observe", "hold", "put")))
    def hangs(self, number: int, where: str) -> None:
        self.sites[number].hang.add(where)

    @rule(number=SITES)
    def goes_on(self, number: int) -> None:
        self.sites[number].go_on()

    @rule(number=SITES)
    def fails(self, number: int) -> None:
        self.sites[number].trouble = OSError("away")

    @rule(number=SITES)
    def is_back(self, number: int) -> None:
        self.sites[number].trouble = None

    @rule(number=SITES)
    def loses_what_it_holds(self, number: int) -> None:
        site = self.sites[number]
        for token in list(site.held):
            del site.held[token]
            site.say("hold_lost", token, reason="it has run out")

    @rule()
    def a_gang_ends(self) -> None:
        for site in self.sites:
            for token in list(site.at):
                site.end(token)

    @invariant()
    def no_gang_is_half_started(self) -> None:
        runs: dict[str, list[str]] = {}
        for job in self.house.by_token().values():
            runs.setdefault(str(job.run_id), []).append(str(job.state))
        for states in runs.values():
            begun = [state for state in states if state in AT_WORK or state in {each.value for each in ENDED}]
            assert len(begun) in (0, SIZE), states

    @invariant()
    def what_runs_is_of_a_gang_of_which_all_are_to_run(self) -> None:
        jobs = self.house.by_token()
        for token in (token for site in self.sites for token in site.at):
            assert jobs[token].state in AT_WORK, token

    def teardown(self) -> None:
        """In the end all is well, and so is every gang; nothing is held."""
        try:
            for site in self.sites:
                site.lies = site.trouble = None
                site.go_on()
            for _ in range(100):
                self.house.sleep(1)
                self.house.tick()
                self.a_gang_ends()
                states = {str(job.state) for job in self.house.by_token().values()}
                if states <= {State.SUCCEEDED.value}:
                    break
            assert states <= {State.SUCCEEDED.value}, states
            self.house.tick()
            assert (self.house.holds(), self.house.gangs()) == ([], [])
        finally:
            self.house.controller.threads.end()
            self.patch.undo()
            self.folder.cleanup()


TestFaults = Faults.TestCase
TestFaults.settings = settings(max_examples=max(1, EXAMPLES // 10), stateful_step_count=25, deadline=None)
