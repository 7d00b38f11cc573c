"""In which order jobs of a plan fill allocations."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.matching.market import Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.filling import in_planned_order
from lading.scheduling.provisioning.launch import AllocationPlan

NOW = 1000.0
ONE = Resources(1, 100)
jobs = st.lists(
    st.builds(
        lambda number, priority, arrival: PlannedJob(f"j{number}", ONE, priority=priority, queued_at=arrival),
        st.integers(0, 30),
        st.integers(0, 2),
        st.integers(0, 5).map(float),
    ),
    unique_by=lambda job: job.name,
    max_size=12,
).map(lambda some: sorted(some, key=lambda job: (-job.priority, job.queued_at)))
starts = st.dictionaries(st.integers(0, 30).map("j{}".format), st.integers(0, 9).map(float))


@given(jobs, starts)
def test_jobs_of_a_plan_exchange_their_turns_and_nothing_else_comes_later(
    given_jobs: list[PlannedJob], planned: dict[str, float]
) -> None:
    found = in_planned_order(given_jobs, planned)
    assert sorted(job.name for job in found) == sorted(job.name for job in given_jobs)
    for before, after in zip(given_jobs, found, strict=True):
        assert (after.priority, after.queued_at) == (before.priority, before.queued_at)
        assert (before.name in planned) == (after.name in planned)
        if before.name not in planned:
            assert after == before
    for priority in range(3):
        theirs = [planned[job.name] for job in found if job.priority == priority and job.name in planned]
        assert theirs == sorted(theirs)


def site(capacity: Resources = ONE) -> tuple[SiteView, Location]:
    x = Location("x", capacity, ends_at=NOW + 9000, prefetchable=8)
    market = Market(Resources(4, 1000), 0, 9000, 4500, 1)
    return SiteView(name="hpc", locations=[x], launched=[x], market=market), x


def test_what_a_plan_has_first_goes_first() -> None:
    hpc, _ = site()
    waiting = [PlannedJob(name, ONE, time=100.0, queued_at=NOW) for name in ("a", "b", "c")]
    plan = AllocationPlan(planned=frozenset("abc"), starts={"a": NOW + 9, "b": NOW, "c": NOW + 5})
    choice = Choice(NOW, foreseen={"hpc": plan})
    assert choice.run(hpc, waiting, InstanceLimits()) == {"b": "x"}
    assert Choice(NOW).run(hpc, waiting, InstanceLimits()) == {"a": "x"}
    urgent = [*waiting, PlannedJob("z", ONE, priority=1, time=100.0, queued_at=NOW)]
    assert choice.run(hpc, urgent, InstanceLimits()) == {"z": "x"}, "priority counts before"


def test_what_a_plan_has_elsewhere_is_not_prefetched() -> None:
    hpc, x = site()
    full = replace(x, used=ONE, jobs=1)
    hpc = replace(hpc, locations=[full], launched=[full])
    short = [PlannedJob(name, ONE, time=100.0, expected=Prediction(1.0), queued_at=NOW) for name in ("a", "b", "c")]
    plan = AllocationPlan(planned=frozenset("ab"), prefetch_to={"a": "x"})
    choice = Choice(NOW, foreseen={"hpc": plan})
    assert choice.prefetch(hpc, short, InstanceLimits()).keys() == {"a", "c"}
    long = [replace(job, expected=Prediction(1000.0)) for job in short]
    assert choice.prefetch(hpc, long, InstanceLimits()).keys() == {"a", "c"}, "what is short is the plan's to say"
    assert Choice(NOW).prefetch(hpc, long, InstanceLimits()).keys() == {"a", "b", "c"}
