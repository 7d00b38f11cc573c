"""Recorded workflows: how they are read, what equal machines cost for them, and how they run in a simulation."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.plugin.offline.simulation import wfformat
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.fixed_fleet import reference
from lading.plugin.offline.simulation.report import Report
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.wfformat import WorkflowError
from lading.plugin.offline.simulation.workflow import expected_lengths, run_at
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.model.plan import FORECAST, LENGTHS, InstanceLimits
from lading.scheduling.model.resources import Resources
from tests.services.packing import catalogue

GOODS = catalogue(small=(2, 4096, 0.36), large=(8, 16384, 1.44))
DATA = Path(__file__).parents[5] / "benchmarks/data"


def task(name: str, *parents: str, **ran: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"name": name, "id": name, "parents": list(parents)}, {"id": name, "runtimeInSeconds": 10.0, **ran}


def text_of(*tasks: tuple[dict[str, Any], dict[str, Any]], version: str = "1.5") -> str:
    if version == "1.4":
        return json.dumps({"workflow": {"tasks": [said | ran for said, ran in tasks]}})
    return json.dumps(
        {
            "workflow": {
                "specification": {"tasks": [said for said, _ in tasks]},
                "execution": {"tasks": [ran for _, ran in tasks]},
            }
        }
    )


@given(st.text(alphabet="aID12._-٣", max_size=12))
def test_a_kind_is_a_name_without_its_number(name: str) -> None:
    without = re.sub(r"[._-]*(ID)?\d+\Z", "", name)
    assert wfformat._kind(name) == (without or name)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("long", ["_" * 10**6 + "x", "1" * 10**6 + "x", "_ID" * 10**6, "_ID1" * 10**6])
def test_a_kind_takes_time_in_proportion_to_the_names_length(long: str) -> None:
    assert len(wfformat._kind(long)) in (len(long), len(long) - 4)


def chain(*lengths: float, cpus: float = 2.0) -> list[Arrival]:
    tasks = [
        task(f"t{number}", *([f"t{number - 1}"] if number else []), runtimeInSeconds=length, coreCount=cpus)
        for number, length in enumerate(lengths)
    ]
    return wfformat.read(text_of(*tasks), "f")


@pytest.mark.parametrize("version", ["1.4", "1.5"])
def test_what_is_read(version: str) -> None:
    tasks = (
        task("sort_ID0000001", avgCPU=119.0, memoryInBytes=2**30),
        task("sort_ID0000002", "sort_ID0000001", coreCount=3.0, runtimeInSeconds=0.0),
        task("NF.ALIGN_7", "sort_ID0000001", "sort_ID0000002", avgCPU=2121.0, memoryInBytes=1),
    )
    first, second, third = wfformat.read(text_of(*tasks, version=version), "f", scale=2.0)
    assert (first.job.name, first.job.task, first.parents) == ("sort_ID0000001", "sort", ())
    assert (first.job.resources, first.duration) == (Resources(1, 1280), 20.0)
    assert (second.job.resources, second.duration, second.job.task) == (Resources(3, 1280), 0.2, "sort")
    assert third.parents == ("sort_ID0000001", "sort_ID0000002")
    assert (third.job.resources, third.job.task) == (Resources(16, 256), "NF.ALIGN")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "f: Expecting value: line 1 column 1 (char 0); valid: a run recorded in WfFormat 1.4 or 1.5, as JSON"),
        ("[" * 100_000, "f: it is nested too deeply; valid: "),
        ("[]", "f: the file: Input should be .*; valid: a run recorded in WfFormat 1.4 or 1.5"),
        ("{}", "f: workflow: Field required; valid: a run"),
        (text_of(task("a", runtimeInSeconds=-1)), r"f: workflow.execution.tasks.0.runtimeInSeconds: Input should be "),
        (text_of(task("a", coreCount=float("inf"))), r"f: workflow.execution.tasks.0.coreCount: Input should be a fin"),
        (
            text_of(task("a", runtimeInSeconds=None)),
            "f: task 'a': runtimeInSeconds is missing; valid: its running time",
        ),
        (text_of(task("a", "b")), "f: task 'a': parent 'b' is not in the file"),
        (text_of(task("a", "b"), task("b", "a")), "f: 2 tasks wait for each other, among them a, b; valid: parents"),
        (text_of(task("a"), task("a")), "f: two tasks have the same id"),
    ],
)
def test_what_is_no_workflow_says_why(text: str, error: str) -> None:
    with pytest.raises(WorkflowError, match="^" + error.replace("(", r"\(").replace(")", r"\)")):
        wfformat.read(text, "f")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["workflow", "tasks", "specification", "execution", "id", "name"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_nothing_but_a_workflow_error_comes_of_odd_files(value: object) -> None:
    with contextlib.suppress(WorkflowError):
        assert wfformat.read(json.dumps(value), "f") == []


def test_equal_machines() -> None:
    """A second of a small machine costs 0.0001 USD."""
    found = reference(wfformat.as_forecast(chain(100, 50)), GOODS, boot=60.0)
    assert found.critical_path == 150
    assert found.in_time is not None
    assert (found.in_time.instance_type, found.in_time.machines, found.in_time.seconds) == ("small", 1, 150)
    assert found.in_time.usd == pytest.approx(0.021)
    assert found.cheapest == found.in_time


def wide() -> list[Arrival]:
    """A first task, eight of two cpus, and a last one."""
    middle = [task(f"m_{number}", "first", runtimeInSeconds=100.0, coreCount=2) for number in range(8)]
    last = task("last", *(said["name"] for said, _ in middle), runtimeInSeconds=20.0)
    return wfformat.read(text_of(task("first", runtimeInSeconds=20.0), *middle, last), "f")


def on_spot() -> Catalogue:
    """The same machines, all of which can be reclaimed."""
    return Catalogue(
        {
            name: replace(kind, offerings=tuple(replace(each, capacity_type=SPOT) for each in kind.offerings))
            for name, kind in GOODS.types.items()
        }
    )


def run(
    trace: list[Arrival], policy: str = FORECAST, known: str = "known", most: int | None = None, **options: Any
) -> Any:
    conditions = Conditions(boot_seconds=60, tick_seconds=0.1, **options.pop("conditions", {}))
    lengths = expected_lengths(trace, known)
    return simulate(
        trace, GOODS, InstanceLimits(instances=most), policy, conditions=conditions, lengths=lengths, **options
    )


@pytest.mark.parametrize("policy", ["greedy", FORECAST])
def test_a_task_begins_when_its_parents_have_ended(policy: str) -> None:
    report = run(chain(100, 50, 25), policy)
    assert (report.unplaced, report.jobs) == (0, 3)
    assert report.makespan >= 60 + 175


def test_a_chain_has_one_machine_for_its_time_alone() -> None:
    report = run(chain(100, 50, 25))
    assert (report.launches, report.makespan) == (1, pytest.approx(235, abs=1))
    assert report.cost == pytest.approx(235 * 0.0001, rel=0.01)
    assert report.wait_max == pytest.approx(60, abs=1)


def test_what_comes_is_booted_for_and_released_at_its_end() -> None:
    """The eight have machines when the first one ends, as there is time to boot while it runs or waits for its own."""
    report, greedy = run(wide()), run(wide(), "greedy")
    assert report.makespan == pytest.approx(60 + 140, rel=0.05)
    assert report.makespan < greedy.makespan
    assert report.cost <= greedy.cost + 1e-9


@pytest.mark.parametrize("known", LENGTHS)
@pytest.mark.parametrize("hurry", [0.0, 1.0, 10.0])
def test_every_task_ends_whatever_is_known(known: str, hurry: float) -> None:
    trace = [each for number in range(2) for each in run_at(wide(), str(number), 50.0 * number)]
    report = run(trace, known=known, hurry=hurry)
    assert (report.jobs, report.unplaced, report.refusals) == (20, 0, ())
    assert report == run(trace, known=known, hurry=hurry)


def test_limits_reclaims_and_a_lack_of_capacity_are_lived_with() -> None:
    report = run(wide(), most=2)
    assert (report.unplaced, report.peak_instances) == (0, 2)
    assert run(wide(), conditions={"capacity_errors": 0.5, "seed": 3}).unplaced == 0
    report = simulate(
        wide(), on_spot(), policy=FORECAST, conditions=Conditions(tick_seconds=0.1, reclaims_per_hour=20, seed=5)
    )
    assert report.unplaced == 0
    assert report.restarts > 0


@pytest.mark.parametrize("known", LENGTHS)
@pytest.mark.parametrize("trace", [wide(), chain(100, 50, 25, 200)])
def test_reclaims_cost_what_they_cost_themselves(trace: list[Arrival], known: str) -> None:
    """The work that is lost, and the boots of as many other machines, in USD and in time."""

    def with_reclaims(per_hour: float, seed: int = 0) -> Report:
        conditions = Conditions(boot_seconds=60, tick_seconds=0.1, reclaims_per_hour=per_hour, seed=seed)
        return simulate(
            trace, on_spot(), policy=FORECAST, conditions=conditions, lengths=expected_lengths(trace, known)
        )

    without, found = with_reclaims(0.0), [with_reclaims(20.0, seed) for seed in range(8)]
    assert without.lost_usd == without.lost_seconds == 0
    assert sum(each.reclaims for each in found) > 8
    for each in found:
        assert each.unplaced == 0
        assert each.cost <= 1.05 * (without.cost + each.lost_usd)
        assert each.makespan <= 1.05 * (without.makespan + each.lost_seconds)


def test_a_type_of_which_there_is_none_costs_as_if_it_were_not_on_sale() -> None:
    known = expected_lengths(wide(), "known")

    def with_types(goods: Catalogue, scarce: frozenset[str] = frozenset()) -> Report:
        conditions = Conditions(boot_seconds=60, tick_seconds=0.1, scarce=scarce)
        return simulate(wide(), goods, policy=FORECAST, conditions=conditions, lengths=known)

    best = frozenset(with_types(GOODS).launched)
    others = Catalogue({name: kind for name, kind in GOODS.types.items() if name not in best})
    without, refused = with_types(others), with_types(GOODS, best)
    assert refused.capacity_errors > 0
    assert best.isdisjoint(refused.launched)
    assert refused.cost == pytest.approx(without.cost, rel=0.01)
    assert refused.makespan <= without.makespan + 1.0


def test_what_airflow_takes_between_two_tasks() -> None:
    found = run(chain(100, 50, 25), conditions={"latency_seconds": 10.0})
    assert found.makespan == pytest.approx(run(chain(100, 50, 25)).makespan + 20, abs=1)


def test_what_fits_nothing_is_refused_and_the_rest_runs() -> None:
    tasks = [task("huge", coreCount=64), task("after", "huge"), task("other")]
    report = run(wfformat.read(text_of(*tasks), "f"))
    assert [name for name, _ in report.refusals] == ["huge"]
    assert (report.jobs, report.unplaced) == (3, 2)


def test_a_job_that_waits_for_none_that_is_there_is_an_error() -> None:
    trace = [Arrival(chain(1.0)[0].job, 0.0, 1.0, ("nowhere",))]
    with pytest.raises(ValueError, match="job 't0' waits for 'nowhere', which is not in the trace"):
        run(trace)


def test_what_is_known_of_lengths() -> None:
    trace = wide()
    assert expected_lengths(trace, "unknown") == {}
    assert expected_lengths(trace, "known")["m_3"].seconds == 100
    odd = [*trace, *wfformat.read(text_of(task("m_9", runtimeInSeconds=900.0)), "f")]
    before = expected_lengths(odd, "task")["m_9"]
    assert before.seconds == pytest.approx(100)
    assert before.spread > expected_lengths(trace, "task")["m_3"].spread == 0
    assert before.number == sum(each.job.task == "m" for each in odd)


@pytest.mark.parametrize("name", ["rnaseq", "cutandrun"])
def test_recorded_runs_cost_and_take_what_a_careful_person_would_pay_and_wait(name: str) -> None:
    from benchmarks.workflows import goods

    workflow = wfformat.read((DATA / f"{name}.json").read_text(), name)
    best = reference(wfformat.as_forecast(workflow), goods(), 60.0)
    assert best.in_time is not None
    for known, most in (("known", 1.02), ("task", 1.25)):
        lengths = expected_lengths(workflow, known)
        conditions = Conditions(boot_seconds=60, tick_seconds=0.1)
        report = simulate(workflow, goods(), policy=FORECAST, conditions=conditions, lengths=lengths)
        assert report.cost * report.makespan <= most * best.in_time.usd * (best.in_time.seconds + 60)
