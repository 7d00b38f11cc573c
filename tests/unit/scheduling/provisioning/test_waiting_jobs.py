"""Jobs that wait and are in no forecast: each is planned as a run of one step."""

from __future__ import annotations

from dataclasses import replace

from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import AssignedJob, Location
from lading.scheduling.model.plan import InstanceLimits, Plan
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.waiting_jobs import plan_waiting
from tests.services.packing import catalogue

NOW, BOOT = 1000.0, 60.0
MARKET = MachineMarket(catalogue(small=(2, 4096, 0.36), large=(8, 16384, 1.44)), boot_seconds=BOOT)
JOB = PlannedJob("job", Resources(2, 1024), queued_at=NOW, expected=Prediction(3600.0))


def found(*jobs: PlannedJob, there: tuple[Location, ...] = (), **limits: int) -> Plan:
    return plan_waiting(jobs, there, MARKET, InstanceLimits(**limits), now=NOW)  # type: ignore[arg-type]


def machine(name: str, job: PlannedJob, left: float) -> Location:
    """A large machine with a job that still runs for so long."""
    at_work = AssignedJob(NOW - 100, Prediction(100 + left), job.resources)
    capacity = Resources(8, 16384)
    return Location(name, capacity, job.resources, "large", usd_per_hour=1.44, jobs=1, running_jobs=(at_work,))


def test_jobs_that_were_not_looked_at_are_planned_with_the_one_that_was() -> None:
    plan = found(replace(JOB, count=3))
    assert [(each.job, each.count) for each in plan.placements] == [("job", 1)] * 3
    assert [each.instance_type for each in plan.launches] == ["small"] * 3
    assert (plan.waits, plan.refusals) == ((), ())


def test_a_long_job_does_not_keep_a_machine_for_itself_that_would_be_free_soon() -> None:
    [launch] = found(JOB, there=(machine("there", JOB, 60.0),)).launches
    assert launch.instance_type == "small"
    assert [each.location for each in found(JOB, there=(machine("there", JOB, 3600.0),)).placements] == ["there"]


def test_what_boots_has_room_for_what_waits() -> None:
    boots = Location("boots", Resources(2, 4096), instance_type="small", usd_per_hour=0.36, booting=True)
    plan = found(JOB, replace(JOB, name="other"), there=(replace(boots, ready_at=NOW + 30),))
    assert sorted(each.location for each in plan.placements) == ["boots", "new-0"]


def test_a_job_waits_for_room_that_comes_free_soon_where_that_is_cheaper() -> None:
    full = replace(machine("full", replace(JOB, resources=Resources(8, 1024)), 70.0), usd_per_hour=0.36)
    plan = found(replace(JOB, resources=Resources(8, 1024)), there=(full,))
    assert (plan.launches, [(each.job, each.reason.code) for each in plan.waits]) == ((), [("job", "room_soon")])


def test_where_limits_make_jobs_wait_they_say_so() -> None:
    limited = found(JOB, replace(JOB, name="other", resources=Resources(8, 1024)), instances=1)
    assert len(limited.launches) == 1
    assert [each.reason.code for each in limited.waits] == ["site_instances"]
    alone = plan_waiting([replace(JOB, task="t")], [], MARKET, InstanceLimits(tasks={"t": 0}), now=NOW)
    assert [each.reason.code for each in alone.waits] == ["group_instances"]


def test_what_nothing_fits_is_refused_and_the_others_are_planned() -> None:
    plan = found(JOB, replace(JOB, name="huge", resources=Resources(99, 1024)))
    assert [each.job for each in plan.refusals] == ["huge"]
    assert [each.job for each in plan.placements] == ["job"]
