"""What the tries of a simulated run request, and what one costs that gets too little."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.report import Report
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.sized_tries import SizedTries, earlier_runs
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import ASKED, AUTO, EXACT, FORECAST, SIZES
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.right_size import ROUNDED, sizes
from lading.scheduling.sizing.usage import Usage, Use
from tests.services.packing import catalogue

GOODS = catalogue(small=(2, 8192, 0.36), large=(8, 32768, 1.44))
ASKED_FOR = Resources(2, 8000)


def arrival(name: str, peak: int | None, *parents: str, cpus: float = 0.4, seconds: float = 100.0) -> Arrival:
    used = Use(2, 8000, seconds, peak_memory=peak, cpu_seconds=cpus * seconds, input_size=peak and peak * 2**20)
    job = PlannedJob(name, ASKED_FOR, arch="x86_64", task=name.partition("_")[0])
    return Arrival(job, 0.0, seconds, parents, used)


def run(trace: list[Arrival], how: str, known: Mapping[str, Usage] | None = None, policy: str = FORECAST) -> Report:
    tries = SizedTries(trace, how, GOODS, known)
    return simulate(trace, GOODS, policy=policy, tries=tries, conditions=Conditions(boot_seconds=60, tick_seconds=0.1))


def alike(number: int, peak: int = 900) -> list[Arrival]:
    return [arrival(f"align_{each}", peak) for each in range(number)]


@pytest.mark.parametrize("policy", ["greedy", FORECAST])
def test_the_second_run_is_packed_by_what_the_first_one_used(policy: str) -> None:
    trace = alike(8)
    known = earlier_runs(trace, 1, seed=1)
    found = {how: run(trace, how, known, policy) for how in SIZES}
    assert [found[how].unplaced for how in SIZES] == [0, 0, 0]
    assert found[ASKED].cost == run(trace, AUTO, None, policy).cost, "the first one knows nothing when its jobs come"
    assert found[AUTO].cost < 0.5 * found[ASKED].cost
    assert found[EXACT].cost <= found[AUTO].cost


def test_sizes_are_those_that_a_controller_would_choose() -> None:
    trace = [arrival(f"align_{number}", 1000 * number) for number in range(1, 7)]
    known = earlier_runs(trace, 3, seed=2)
    tries, fitted = SizedTries(trace, AUTO, GOODS, known), sizes(known["align"])
    assert fitted.memory is not None
    assert fitted.memory.slope
    for each in trace:
        assert each.used is not None
        size = each.used.input_size
        wanted = Resources(fitted.amount("cpus", size) or 0, int(fitted.amount("memory", size) or 0))
        assert tries.next(each.job.name) == wanted


def test_a_sibling_that_comes_later_is_sized_within_the_first_run() -> None:
    trace = [arrival("align_0", 900), arrival("align_1", 900, "align_0")]
    tries = SizedTries(trace, AUTO, GOODS)
    simulate(trace, GOODS, policy=FORECAST, tries=tries)
    assert tries.next("align_1").memory < 1200
    asked, auto = run(trace, ASKED), run(trace, AUTO)
    assert auto.memory_utilisation < asked.memory_utilisation


def test_a_try_that_falls_short_runs_to_its_end_and_is_repeated_with_more() -> None:
    known = {"align": Usage()}
    for _ in range(10):
        known["align"].add(Use(2, 8000, 100, peak_memory=900, cpu_seconds=40))
    trace = [arrival("align_0", 3000), arrival("report", 900, "align_0")]
    report = run(trace, AUTO, known)
    assert (report.short, report.unplaced) == (2, 0), "900 MiB and a little, twice that, four times"
    assert report.makespan == pytest.approx(run(trace, ASKED).makespan + 200, abs=3)
    # What fell short costs, and is no part of what has to be done.
    assert report.bound < run(trace, ASKED).bound


def test_no_try_requests_more_than_the_largest_machine_has() -> None:
    trace = [arrival("align_0", 40_000)]
    report = run(trace, EXACT)
    assert (report.short, report.unplaced) == (0, 1), "it fits nothing"
    assert run(trace, ASKED).short == 3, "8,000 MiB, 16,000, 32,000; then it has all that there is"


def test_a_try_with_fewer_cpus_than_it_used_takes_longer() -> None:
    known = {"align": Usage()}
    for _ in range(10):
        known["align"].add(Use(2, 8000, 100, peak_memory=900, cpu_seconds=50))
    slow = run([arrival("align_0", 900, cpus=1.0)], AUTO, known)
    assert slow.makespan == pytest.approx(60 + 200, abs=3)
    assert run([arrival("align_0", 900, cpus=1.0)], EXACT).makespan == pytest.approx(160, abs=3)


def test_what_was_not_recorded_stays_as_it_was_asked_for() -> None:
    trace = [arrival("align_0", None, cpus=0.0), Arrival(PlannedJob("plain", ASKED_FOR, arch="x86_64"), 0.0, 10.0)]
    for how in SIZES:
        tries = SizedTries(trace, how, GOODS, earlier_runs(trace, 2, seed=1))
        assert tries.next("plain") == ASKED_FOR
        assert tries.next("align_0").memory == ASKED_FOR.memory
        assert run(trace, how).unplaced == 0


def test_tries_of_earlier_runs_are_recorded_ones_by_the_seed() -> None:
    trace = [arrival(f"align_{number}", 100 * number) for number in range(1, 9)]
    found = [earlier_runs(trace, 3, seed)["align"] for seed in (1, 1, 2)]
    peaks = [[use.peak_memory for use in usage.sample] for usage in found]
    assert peaks[0] == peaks[1] != peaks[2]
    assert set(peaks[2]) <= {each.used.peak_memory for each in trace if each.used}
    assert found[0].tries == 24
    assert earlier_runs(trace, 0, 1) == {}


def test_amounts_are_rounded_as_those_of_a_controller() -> None:
    [each] = [arrival("align_0", 901, cpus=0.3)]
    found = SizedTries([each], EXACT, GOODS).next("align_0")
    assert found == Resources(ROUNDED["cpus"](0.3), ROUNDED["memory"](901))
