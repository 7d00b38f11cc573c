"""How often a batch system is asked for the states of jobs, of whichever of its sites they are."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.jobs import poller
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.poller import StateQuestions, questions_to


class Looks:
    """Pollers that look at a cluster, each in a pace of its own, and ask for the states of jobs where they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *paces: float) -> None:
        self.now = 100.0
        monkeypatch.setattr(poller, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.questions = StateQuestions()
        self.paces = dict(zip("abc", paces, strict=False))
        self.pollers, self.next = {name: Poller() for name in self.paces}, dict.fromkeys(self.paces, self.now)
        self.asked: list[tuple[str, float]] = []

    def until(self, end: float, *, pause: float = 5.0) -> list[tuple[str, float]]:
        """Those that ask until then, and when."""
        before = len(self.asked)
        while min(self.next.values()) < end:
            name = min(self.next, key=lambda each: self.next[each])
            self.now = self.next[name]
            self.next[name] += self.paces[name]
            if self.questions.begin(self.pollers[name], pause):
                self.questions.asked(self.pollers[name], pause)
                self.asked.append((name, self.now))
        return self.asked[before:]


class Poller:
    """Asks."""


def pauses(asked: list[tuple[str, float]], name: str | None = None) -> list[float]:
    times = [at for each, at in asked if name in (None, each)]
    return [after - before for before, after in pairwise(times)]


def test_the_pollers_of_one_batch_system_ask_together_as_rarely_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for paces in ((2.0, 2.0), (2.0, 2.3), (1.9, 3.7), (0.5, 4.9), (2.0, 2.1, 2.2)):
        looks = Looks(monkeypatch, *paces)
        asked = looks.until(400)
        assert min(pauses(asked)) >= 5
        assert max(pauses(asked)) <= 5 + max(paces), "no turn is left out"
        for name in looks.paces:  # none waits for long: it comes after the others
            assert max(pauses(asked, name)) <= len(paces) * (5 + max(paces))


def test_a_poller_that_asks_no_more_costs_the_others_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, 2.0, 2.0)
    looks.until(150)
    looks.next["b"] = 300.0
    asked = looks.until(300)
    assert {name for name, _ in asked} == {"a"}
    assert set(pauses(asked)[1:]) == {6.0}
    assert [name for name, _ in looks.until(310)][:2] in (["b", "a"], ["a", "b"])


def test_the_sites_of_one_login_share_the_questions_to_its_batch_system() -> None:
    def config(**more: Any) -> ClusterConfig:
        given = {"kind": "slurm", "work_dir": "/w", "python": "/p", "node_cpus": 8, "node_memory": "16 GiB"}
        return ClusterConfig(**{**given, "ssh_conn_id": "login", **more})

    shared = questions_to(SLURM(), config())
    assert questions_to(SLURM(), config(mode="allocation", work_dir="/w/allocations", max_poll_interval=9)) is shared
    assert questions_to(SLURM(), config(ssh_conn_id="other")) is not shared
