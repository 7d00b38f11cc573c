"""The life of a job at a site: every transition, and none that is not one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from lading.hooks.batch.system import NativeJob
from lading.hooks.polling.job_life import FOLLOWING, JobAtSite, JobPhase, ShownLife, ShownPhase

TRANSITIONS: dict[str, tuple[Callable[[JobAtSite], None], JobPhase]] = {
    "submit": (JobAtSite.submit, JobPhase.SUBMITTED),
    "withdraw": (JobAtSite.withdraw, JobPhase.WAITING),
    "begin": (JobAtSite.begin, JobPhase.STARTED),
    "close": (JobAtSite.close, JobPhase.CLOSING),
    "end": (JobAtSite.end, JobPhase.ENDED),
    "give_back": (JobAtSite.give_back, JobPhase.RETURNED),
}
SINCE, NOW = 100.0, 160.0
WAITS = NativeJob(id="7", state="pending")
RUNS = replace(WAITS, state="running")
BLOCKED = replace(WAITS, never=True)
HOPELESS = replace(WAITS, cause="node_failure")
STRANGE = replace(RUNS, strange=True)
ENDED = replace(WAITS, state="ended", exit_code=0)
CANCELLED = replace(WAITS, state="ended", cause="cancelled")


@pytest.mark.parametrize(("name", "phase"), list(itertools.product(TRANSITIONS, JobPhase)))
def test_a_job_moves_where_its_phase_leads_and_stays_otherwise(name: str, phase: JobPhase) -> None:
    transition, target = TRANSITIONS[name]
    job = JobAtSite("a", phase=phase)
    transition(job)
    assert job.phase is (target if target in FOLLOWING[phase] else phase)


@pytest.mark.parametrize("phase", JobPhase)
def test_only_an_end_and_a_return_are_stored(phase: JobPhase) -> None:
    job = JobAtSite("a", phase=phase)
    job.store()
    stored = {JobPhase.ENDED: JobPhase.STORED, JobPhase.RETURNED: JobPhase.RELEASED}
    assert job.phase is stored.get(phase, phase)
    assert job.stored == (phase in stored or not FOLLOWING[phase])


def test_what_has_begun_is_never_given_to_a_site_again_and_what_has_ended_never_lives_again() -> None:
    """The two transitions that would run a job twice, from every phase, by any number of steps."""

    def later(phase: JobPhase) -> set[JobPhase]:
        reached: set[JobPhase] = set()
        while new := set().union(*(FOLLOWING[each] for each in reached | {phase})) - reached:
            reached |= new
        return reached

    for phase in JobPhase:
        job = JobAtSite("a", phase=phase)
        if job.started:
            assert not later(phase) & {JobPhase.WAITING, JobPhase.SUBMITTED}
        if job.ended:
            assert all(JobAtSite("a", phase=each).ended for each in later(phase))
    assert not FOLLOWING[JobPhase.STORED] | FOLLOWING[JobPhase.RELEASED]


@pytest.mark.parametrize(
    ("phase", "native", "after", "since"),
    [
        ("unseen", WAITS, "pending", NOW),
        ("pending", WAITS, "pending", SINCE),
        ("pending", RUNS, "running", NOW),
        ("running", RUNS, "running", SINCE),
        ("running", WAITS, "pending", NOW),  # it was requeued
        ("pending", BLOCKED, "blocked", NOW),
        ("blocked", BLOCKED, "blocked", SINCE),
        ("blocked", WAITS, "pending", NOW),
        ("pending", HOPELESS, "unrunnable", NOW),
        ("unrunnable", HOPELESS, "unrunnable", SINCE),
        ("unrunnable", BLOCKED, "unrunnable", SINCE),
        ("unrunnable", WAITS, "pending", NOW),  # an administrator has released it
        ("unrunnable", CANCELLED, "unrunnable", SINCE),  # Lading has taken it out
        ("unrunnable", ENDED, "gone", SINCE),  # it ran after all
        ("unrunnable", None, "unrunnable", SINCE),
        ("running", STRANGE, "strange", NOW),
        ("strange", STRANGE, "strange", SINCE),
        ("strange", RUNS, "running", NOW),
        ("stray", STRANGE, "strange", SINCE),
        ("stray", RUNS, "running", NOW),
        ("stray", None, "gone", SINCE),
        ("running", ENDED, "gone", NOW),
        ("running", None, "gone", NOW),
        ("gone", None, "gone", SINCE),
        ("gone", ENDED, "gone", SINCE),
        ("gone", RUNS, "running", NOW),
    ],
)
def test_what_a_batch_system_shows(phase: str, native: NativeJob | None, after: str, since: float) -> None:
    life = ShownLife(ShownPhase(phase), SINCE)
    shown = life.shown(native, NOW, blocked_for=math.inf, strange_for=math.inf) if native else life.lost(NOW)
    assert (shown.phase.value, shown.since) == (after, since)
    assert (shown.gone_since is None) == (after not in ("unrunnable", "stray", "gone"))


def test_a_job_that_cannot_start_is_given_up_after_a_while_and_counts_as_gone_from_then() -> None:
    life = ShownLife(ShownPhase.BLOCKED, SINCE, ran=False)
    assert life.shown(BLOCKED, NOW, blocked_for=61.0, strange_for=math.inf) == life
    given_up = life.shown(BLOCKED, NOW, blocked_for=60.0, strange_for=math.inf)
    assert given_up == ShownLife(ShownPhase.UNRUNNABLE, NOW, ran=False)


def test_a_strange_job_counts_as_gone_since_it_became_strange() -> None:
    life = ShownLife(ShownPhase.STRANGE, SINCE, ran=True)
    assert life.shown(STRANGE, NOW, blocked_for=math.inf, strange_for=61.0) == life
    stray = life.shown(STRANGE, NOW, blocked_for=math.inf, strange_for=60.0)
    assert (stray, stray.gone_since) == (ShownLife(ShownPhase.STRAY, SINCE, ran=True), SINCE)


def test_whether_a_job_ran_when_it_was_last_listed_is_known_after_it_has_gone() -> None:
    life = ShownLife().shown(RUNS, SINCE, blocked_for=math.inf, strange_for=math.inf)
    assert life.lost(NOW) == ShownLife(ShownPhase.GONE, NOW, ran=True)
    requeued = life.shown(WAITS, SINCE, blocked_for=math.inf, strange_for=math.inf)
    assert requeued.lost(NOW).ran is False
    assert ShownLife().lost(NOW).ran is None
