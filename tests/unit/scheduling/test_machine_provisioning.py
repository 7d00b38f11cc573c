"""Which machines are bought, which are released, and what waits for that."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from lading.scheduling.gangs.room import GangRoom
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import Apart
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering, bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import AssignedJob, Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.quotas import family, quota
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import LONGEST_ARRIVAL, SECONDS_UNTIL_SETTLED, Provision, decide, decide_apart
from tests.reasons import clauses, trouble

NOW = 100_000.0
TYPES = {
    "m5.large": (2, 8_000, 0.1),
    "m5.xlarge": (4, 16_000, 0.2),
    "m5.2xlarge": (8, 32_000, 0.4),
    "g5.xlarge": (4, 16_000, 1.0),
}


def kind(name: str, **offering: object) -> InstanceType:
    cpus, memory, usd = TYPES[name]
    return InstanceType(name, Resources(cpus, memory, 100_000), (Offering(usd, **offering),))  # type: ignore[arg-type]


CATALOGUE = Catalogue({name: kind(name) for name in TYPES})
MARKET = MachineMarket(CATALOGUE)


def jobs(count: int, cpus: float = 1, memory: int = 1000, at: float = NOW - 100, **more: object) -> list[PlannedJob]:
    asked = Resources(cpus, memory)
    return [PlannedJob(f"{cpus}-{at}-{i}", asked, queued_at=at, **more) for i in range(count)]  # type: ignore[arg-type]


def machine(name: str, type: str = "m5.large", used: float = 0.0, seconds: float = 100.0, **more: object) -> Location:
    cpus, memory, usd = TYPES[type]
    running = (AssignedJob(NOW - 10, Prediction(seconds), Resources(used, 1000)),) if used else ()
    return Location(
        name,
        Resources(cpus, memory, 100_000),
        used=Resources(used, 1000) if used else Resources(),
        instance_type=type,
        usd_per_hour=usd,
        running_jobs=running,
        **more,  # type: ignore[arg-type]
    )


def limited(policy: str = "forecast", **limits: object) -> MachineMarket:
    return replace(MARKET, limits=InstanceLimits(**limits), policy=policy)  # type: ignore[arg-type]


def provide(
    waiting: list[PlannedJob], there: list[Location] | None = None, market: MachineMarket = MARKET
) -> Provision:
    return decide(waiting, there or [], market, now=NOW)


def bought(found: Provision) -> list[str]:
    return sorted(each.kind for each in found.launches)


def test_machines_that_take_no_more_jobs_are_named_where_they_leave_nothing_of_a_limit() -> None:
    there = [machine(name, used=1, draining=True) for name in "ab"]
    [words] = clauses(provide(jobs(1), there, limited(instances=2)).waits).values()
    assert words == ("0 of 0 instances of the site are busy or booting; the limit also counts 2 machines being drained")


@pytest.mark.parametrize("policy", ["forecast", "greedy", "priced"])
def test_the_cheapest_set_that_fits_is_bought(policy: str) -> None:
    found = provide(jobs(8, 0.5), market=replace(MARKET, policy=policy))
    assert sum(TYPES[name][2] for name in bought(found)) == pytest.approx(0.2)
    [first, *_] = found.launches
    assert first.usd_per_hour == TYPES[first.kind][2]
    assert first.seconds == float("inf")
    assert {name for each in found.launches for name in each.jobs} == {job.name for job in jobs(8, 0.5)}


def test_what_is_held_for_a_gang_keeps_its_machine() -> None:
    there = [machine("held", idle_since=NOW - 9999), machine("empty", idle_since=NOW - 9999)]
    site = SiteView(name="cloud", locations=there, launched=there, market=MARKET)
    [kept] = GangRoom([site], {("cloud", "held"): Resources(1, 100)}).with_held()
    assert provide([], list(kept.launched)).releases.keys() == {"empty"}
    assert provide([], there).releases.keys() == {"held", "empty"}, "what is not held any more goes"
    # Nor does it go for something dearer that the limits leave no room for beside it.
    waiting = jobs(1, 8)
    found = provide(waiting, list(kept.launched), limited(instances=2))
    assert found.releases.keys() == {"empty"}
    # Nor does it make way for what can never run there: another one does, though it has more to do.
    busy = machine("busy", used=2)
    assert provide(waiting, [kept.launched[0], busy], limited(instances=2)).releases.keys() == {"busy"}
    assert provide(waiting, list(kept.launched[:1]), limited(instances=1)).releases == {}


def test_greedy_is_the_algorithm_of_seven_bridges() -> None:
    """Dearest first; each to the first instance that fits, least left first; else the cheapest that fits is added."""
    found = provide([*jobs(1, 3), *jobs(3, 1)], market=replace(MARKET, policy="greedy"))
    # The large one gets the cheapest type that holds it, and one small one the rest of that.
    assert bought(found) == ["m5.large", "m5.xlarge"]
    by_type = {each.kind: len(each.jobs) for each in found.launches}
    assert by_type == {"m5.xlarge": 2, "m5.large": 2}


@pytest.mark.parametrize("policy", ["forecast", "greedy"])
def test_what_is_there_is_filled_first_and_what_boots_counts_whole(policy: str) -> None:
    market = replace(MARKET, policy=policy)
    there = [machine("up", used=1, seconds=5000.0), machine("boots", booting=True)]
    assert bought(provide(jobs(3), there, market)) == []
    assert len(provide(jobs(4), there, market).launches) == 1


def test_room_that_comes_free_soon_is_waited_for_where_that_is_cheapest() -> None:
    [words] = clauses(provide(jobs(1, time=900.0), [machine("up", used=2)]).waits).values()
    assert words == (
        "up will have room in about 90 s: waiting for that room does not delay the run, or is cheaper than a new "
        "machine"
    )
    assert bought(provide(jobs(1), [machine("up", used=2, seconds=5000.0)])) == ["m5.large"]


def test_what_boots_is_kept_for_the_jobs_that_were_promised_it() -> None:
    """Later jobs get what is left of it, and what else is bought for them."""
    first, later = jobs(1, 2, at=NOW - 50), jobs(1, 2, at=NOW - 10)
    boots = machine("boots", booting=True, ready_at=NOW + 30, promised=frozenset([later[0].name]))
    found = provide([*first, *later], [boots])
    assert found.homes == {later[0].name: "boots"}
    assert [each.jobs for each in found.launches] == [(first[0].name,)]
    assert found.spare == frozenset()


def test_nothing_is_bought_while_jobs_arrive() -> None:
    old, new = jobs(1, at=NOW - 4), jobs(1, at=NOW - 1)
    assert provide(old).launches
    assert not provide([*old, *new]).launches
    assert provide([*jobs(1, at=NOW - LONGEST_ARRIVAL - 1), *new]).launches
    assert not provide(jobs(1, at=NOW - SECONDS_UNTIL_SETTLED)).launches
    # Where jobs came back, what counts is when they first found no room.
    assert not decide(old, [], MARKET, {old[0].name: NOW - 1}, now=NOW).launches


@pytest.mark.parametrize("policy", ["forecast", "greedy", "priced"])
@pytest.mark.parametrize(
    ("limits", "most", "words"),
    [
        (InstanceLimits(instances=2), 2, "2 of 2 instances of the site"),
        (InstanceLimits(types={"m5.xlarge": 1, "m5.2xlarge": 0, "g5.xlarge": 0}), 1, "instances of"),
        (InstanceLimits(usd_per_hour=0.5), 2, "0.4 of at most 0.5 USD per hour (max_usd_per_hour)"),
        (
            InstanceLimits(vcpus={"standard on-demand": 9, "g on-demand": 0}),
            2,
            "of 9 vCPUs of the quota standard on-demand are in use",
        ),
    ],
)
def test_limits_stop_launches_and_say_so(policy: str, limits: InstanceLimits, most: int, words: str) -> None:
    waiting = jobs(4, cpus=3)
    found = provide(waiting, market=replace(MARKET, limits=limits, policy=policy))
    assert len(found.launches) == most
    assert len(clauses(found.waits)) == len(waiting) - most
    assert words in next(iter(clauses(found.waits).values()))


@pytest.mark.parametrize("policy", ["forecast", "greedy"])
def test_what_drains_counts_for_every_limit(policy: str) -> None:
    there = [machine("a", "m5.xlarge", used=4, draining=True)]
    for limits in ({"instances": 1}, {"usd_per_hour": 0.3}, {"vcpus": {quota("m5.large", "on-demand"): 4}}):
        only = Catalogue({"m5.xlarge": kind("m5.xlarge")})
        market = replace(limited(policy, **limits), catalogue=only)
        found = provide(jobs(1), there, market)
        assert found.launches == ()
        assert len(clauses(found.waits)) == 1


def test_another_quota_serves_where_one_is_used_up() -> None:
    market = limited("greedy", vcpus={"standard on-demand": 4})
    assert bought(provide(jobs(2, cpus=4), market=market)) == ["g5.xlarge", "m5.xlarge"]


def test_what_has_no_capacity_is_left_out_until_it_is_over() -> None:
    until = NOW + 180
    gone = {name: kind(name, unavailable_until=until) for name in TYPES}
    found = provide(jobs(1), market=MachineMarket(Catalogue({**gone, "g5.xlarge": kind("g5.xlarge")})))
    assert bought(found) == ["g5.xlarge"]
    found = provide(jobs(1), market=MachineMarket(Catalogue(gone)))
    assert found.launches == ()
    assert next(iter(clauses(found.waits).values())).startswith(
        "no capacity for m5.large, which is not requested again before"
    )
    late = decide(jobs(1), [], MachineMarket(Catalogue(gone)), now=until)
    assert len(late.launches) == 1


def test_a_permanent_error_holds_launches_and_is_what_jobs_wait_for() -> None:
    found = provide(jobs(2), market=replace(MARKET, held=trouble("the image ami-1 does not exist")))
    assert found.launches == ()
    assert set(clauses(found.waits).values()) == {"the image ami-1 does not exist"}


def test_the_zone_and_the_capacity_type_are_those_of_the_cheapest_offering() -> None:
    offerings = (
        Offering(0.1),
        Offering(0.04, "spot", "a"),
        Offering(0.03, "spot", "b"),
        Offering(0.02, "spot", "c", NOW + 9),
    )
    market = MachineMarket(Catalogue({"m5.large": replace(kind("m5.large"), offerings=offerings)}))
    [launch] = provide(jobs(1), market=market).launches
    assert (launch.capacity_type, launch.zone, launch.usd_per_hour) == ("spot", "b", 0.03)
    [launch] = provide(jobs(1, capacity_type="on-demand"), market=market).launches
    assert (launch.capacity_type, launch.zone) == ("on-demand", None)


def test_what_is_idle_is_released_after_its_seconds_but_for_those_that_are_kept() -> None:
    there = [machine("a", idle_since=NOW - 61), machine("b", idle_since=NOW - 59), machine("c", used=1)]
    assert set(provide([], there).releases) == {"a"}
    assert provide([], there, replace(MARKET, min_instances=3)).releases == {}
    assert set(provide([], there, replace(MARKET, min_instances=2)).releases) == {"a"}
    # One that what waits can use stays, and one that drains is released already.
    assert provide(jobs(1, 2), [machine("a", idle_since=NOW - 61)]).releases == {}
    assert provide([], [machine("a", idle_since=NOW - 61, draining=True)]).releases == {}
    # One that has only just come up, or whose last job has only just ended, is not idle yet.
    assert provide([], [machine("a")], replace(MARKET, idle_seconds=0.0)).releases == {}


@pytest.mark.parametrize(
    "limits", [{"instances": 1}, {"usd_per_hour": 0.45}, {"vcpus": {quota("m5.large", "on-demand"): 9}}]
)
def test_what_is_empty_goes_at_once_where_the_limits_allow_nothing_else(limits: dict[str, object]) -> None:
    there = [machine("a", idle_since=NOW - 1)]
    market = replace(limited("greedy", **limits), catalogue=Catalogue({n: kind(n) for n in TYPES if n[0] == "m"}))
    found = provide(jobs(1, cpus=8), there, market)
    assert found.launches == ()
    assert set(found.releases) == {"a"}
    assert bought(provide(jobs(1, cpus=8), [], market)) == ["m5.2xlarge"]
    # Where it would not help it stays: the job is for neither.
    assert provide(jobs(1, cpus=8, arch="riscv64"), there, market).releases == {}


def test_one_makes_way_for_what_nothing_that_is_there_can_ever_run() -> None:
    there = [machine("busy", used=2), machine("less", used=1)]
    market = limited("greedy", instances=2)
    assert set(provide(jobs(1, cpus=8), there, market).releases) == {"less"}
    assert provide(jobs(1, cpus=8), [*there[:1], machine("less", used=1, draining=True)], market).releases == {}
    assert provide(jobs(5, cpus=2), there, market).releases == {}  # they can run there when others have ended


def test_jobs_that_are_too_large_for_every_type_are_refused() -> None:
    found = provide([*jobs(1, 99), *jobs(1)])
    assert list(clauses(found.refused)) == [jobs(1, 99)[0].name]
    assert len(found.launches) == 1


@pytest.mark.parametrize(
    ("type", "expected"),
    [("m7i.large", "standard"), ("im4gn.large", "standard"), ("inf2.xlarge", "inf"), ("t3.micro", "standard"),
     ("trn1.2xlarge", "trn"), ("g5g.xlarge", "g"), ("vt1.3xlarge", "g"), ("p5en.48xlarge", "p"), ("dl1.24xlarge", "dl"),
     ("d3.xlarge", "standard"), ("hpc7g.4xlarge", "hpc"), ("h1.2xlarge", "standard"), ("u-6tb1.56xlarge", "u"),
     ("x2gd.medium", "x"), ("f1.2xlarge", "f")],
)  # fmt: skip
def test_the_family_of_a_type(type: str, expected: str) -> None:
    assert family(type) == expected


@pytest.mark.parametrize("number", [8, 200])
def test_short_jobs_do_not_keep_a_machine_with_long_ones(number: int) -> None:
    """Every second one is long: the room of a short one beside it would be paid for as long as the long one runs."""
    lengths = {job.name: 36_000.0 if i % 2 else 600.0 for i, job in enumerate(jobs(number))}
    waiting = [replace(job, expected=Prediction(lengths[job.name])) for job in jobs(number)]
    by_forecast, by_greedy = (
        provide(waiting, market=replace(MARKET, policy=policy)) for policy in ("forecast", "greedy")
    )

    def bill(found: Provision) -> float:
        return sum((each.usd_per_hour or 0) * max(lengths[name] for name in each.jobs) for each in found.launches)

    assert bill(by_forecast) < bill(by_greedy)


@pytest.mark.parametrize("policy", ["forecast", "greedy"])
def test_five_thousand_jobs_of_fifty_shapes_on_three_hundred_instances(policy: str) -> None:
    """benchmarks/provisioning.py says how long it takes; here only that it is no matter of seconds."""
    catalogue = bundled().select(["c7i.*", "m7i.*", "r7i.*"]).with_ebs(10**6)
    shapes = [Resources(1 + i % 5, 1000 * (1 + i % 10), 10) for i in range(50)]
    waiting = [PlannedJob(f"j{i}", shapes[i % 50], queued_at=NOW - 100) for i in range(5000)]
    there = [
        replace(machine(f"i{i}"), capacity=Resources(16, 64_000, 10**6), used=Resources(12, 48_000), jobs=6)
        for i in range(300)
    ]
    begun = time.process_time()
    found = decide(waiting, there, MachineMarket(catalogue, policy=policy), now=NOW)
    assert time.process_time() - begun < 5
    assert len(found.launches) > 100


def test_members_that_are_spread_are_bought_machines_one_by_one() -> None:
    waiting = [(job, Apart("g")) for job in jobs(3)]
    assert len(provide(jobs(3)).launches) < 3
    found, _, _ = decide_apart(waiting, [], MARKET, {}, InstanceLimits(), now=NOW)
    assert len(found.launches) == 3
    assert len(decide_apart(waiting, [machine("m")], MARKET, {}, InstanceLimits(), now=NOW)[0].launches) == 2
    two = limited(instances=2)
    assert len(decide_apart(waiting, [], two, {}, InstanceLimits(), now=NOW)[0].launches) == 2


GPU_TYPES = {f"g{i}.xlarge": replace(kind("g5.xlarge"), name=f"g{i}.xlarge") for i in range(3, 7)}
WITH_GPUS = replace(
    MARKET,
    catalogue=Catalogue(
        {name: replace(each, capacity=replace(each.capacity, gpus=1.0)) for name, each in GPU_TYPES.items()}
    ),
    images={"x86_64": "ami-1"},
)


def wants_gpus(count: int) -> list[PlannedJob]:
    return [PlannedJob(f"gpu-{i}", Resources(1, 1000, gpus=1), queued_at=NOW - 100) for i in range(count)]


def test_at_most_two_machines_are_bought_to_learn_whether_an_image_has_a_driver() -> None:
    market = WITH_GPUS.sized({})
    found = provide(wants_gpus(5), market=market)
    assert len(found.launches) == 2
    waiting = {name for name, words in clauses(found.waits).items() if "the first GPU machine is booting" in words}
    assert waiting == {job.name for job in wants_gpus(5)} - {name for each in found.launches for name in each.jobs}
    size = Resources(4, 16_000, 100_000, 1.0)
    boots = [
        replace(
            machine(name, "g5.xlarge", booting=True),
            instance_type="g3.xlarge",
            capacity=size,
        )
        for name in "ab"
    ]
    assert provide(wants_gpus(5), boots, market).launches == ()
    known = WITH_GPUS.sized({("g3.xlarge", "ami-1"): Resources(4.0, 15_000, 100_000, 1.0)})
    assert len(provide(wants_gpus(5), market=known).launches) == 5, "it has one"


def test_after_a_machine_without_gpus_nothing_is_bought_for_a_job_that_needs_one_and_the_reason_says_why() -> None:
    market = WITH_GPUS.sized({("g3.xlarge", "ami-1"): Resources(4.0, 15_000, 100_000, 0.0)})
    found = provide(wants_gpus(1), market=market)
    assert found.launches == ()
    assert "the image (ami-1) has no GPU driver" in clauses(found.refused["gpu-0"])
