"""Targets: of several places of a job one is enough; bindings give them to tasks whose Dag names none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lading.hooks.site.rules import parse_bindings
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.hints.places import Target, parse_targets
from lading.scheduling.matching.bindings import Binding, binding, filtered, shuffle
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import NATIVE, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.placement import assign
from tests.reasons import clauses, told

NODE = Resources(cpus=4, memory=8192)
QUEUE = Location("hpc", NODE, hints=frozenset([NATIVE]), max_jobs=10)
HPC = SiteView(name="hpc", locations=[QUEUE], possible=[QUEUE])
TYPES = [Location(name, NODE, instance_type=f"{name}.xlarge") for name in ("c7i", "c7g", "m7i")]
CLOUD = SiteView(name="cloud", locations=TYPES, possible=TYPES, accept_untargeted=False)
LOCAL = SiteView(name="local", locations=[Location("here", NODE)], possible=[Location("here", NODE)])


def job(name: str, *targets: str, filters: Sequence[str] = (), cpus: float = 1) -> WaitingJob:
    return WaitingJob(name=name, resources=Resources(cpus, 100), targets=as_text(targets, filters))


def place(jobs: Sequence[WaitingJob], *sites: SiteView) -> Assignment:
    return assign(jobs, sites, now=100.0)


def queue_of(found: Assignment, name: str) -> object:
    return dict(found.stops[name].changes).get("queue") if name in found.stops else None


def test_a_job_with_targets_goes_to_the_first_that_has_room_whatever_the_order_of_the_sites() -> None:
    found = place([job("a", "hpc/long", "local"), job("b", "local", "hpc")], LOCAL, HPC)
    assert found.placed == {"a": ("hpc", "hpc"), "b": ("local", "here")}
    assert (queue_of(found, "a"), queue_of(found, "b")) == ("long", None)


def test_a_full_target_sends_the_job_to_the_next_one_and_the_reason_says_so() -> None:
    full = replace(HPC, locations=[replace(QUEUE, jobs=10)])
    found = place([job("a", "hpc/long", "hpc/short", "cloud/c7*")], LOCAL, full, CLOUD)
    assert found.placed == {"a": ("cloud", "c7i")}
    assert clauses(found.passed) == {"a": "site 'hpc' already has 10 jobs (max_jobs)"}


def test_a_target_takes_a_pattern_of_instance_types_and_a_site_that_takes_no_unnamed_tasks() -> None:
    found = place([job(f"j{number:02}", "cloud/c7?.*") for number in range(9)], LOCAL, CLOUD)
    assert set(found.placed.values()) == {("cloud", "c7i"), ("cloud", "c7g")}


def test_no_job_with_targets_goes_anywhere_else() -> None:
    full = replace(HPC, locations=[replace(QUEUE, jobs=10)])
    found = place([job("a", "hpc/long")], full, LOCAL)
    assert (found.placed, list(told(found.waits))) == ({}, ["a"])


def test_jobs_whose_targets_are_in_opposite_orders_are_all_placed() -> None:
    """No site can be visited last: each has jobs that may come from the other one."""
    jobs = [job(f"{number}", *(("local", "lab") if number % 2 else ("lab", "local"))) for number in range(8)]
    lab = SiteView(name="lab", locations=[Location("n", NODE)], possible=[Location("n", NODE)])
    assert sorted(site for site, _ in place(jobs, LOCAL, lab).placed.values()) == ["lab"] * 4 + ["local"] * 4
    busy = replace(lab, locations=[Location("n", NODE, used=Resources(3, 100))])
    first = place(jobs, LOCAL, busy).placed
    assert [first[name][0] for name in ("0", "1", "2", "3", "4")] == ["lab", "local", "local", "local", "local"]


def test_what_no_target_can_ever_run_is_refused_with_the_reason_of_each() -> None:
    found = place([job("a", "hpc/long", "cloud/x9.*", "moon", cpus=64)], LOCAL, HPC, CLOUD)
    for words in (
        "target 'hpc/long': it requests 64 cpus",
        "target 'cloud/x9.*': the site has no instance type 'x9.*', valid: c7g.xlarge, c7i.xlarge, m7i.xlarge",
        "target 'moon': there is no site 'moon'; the sites are: local, hpc, cloud",
    ):
        assert words in told(found.refused["a"])


def test_shuffle_has_another_order_for_each_job_and_the_same_one_each_time() -> None:
    targets = ["a", "b", "c"]
    orders = [tuple(shuffle(job(f"token{number}"), targets)) for number in range(60)]
    assert len(set(orders)) == 6
    assert orders == [tuple(shuffle(job(f"token{number}"), targets)) for number in range(60)]
    jobs = [job(f"token{number}", "hpc/long", "local", filters=["shuffle"]) for number in range(8)]
    wide = replace(LOCAL, locations=[Location("here", Resources(64, 65536))], possible=[])
    assert {site for site, _ in place(jobs, wide, HPC).placed.values()} == {"hpc", "local"}


def test_each_job_goes_its_own_way_and_gets_its_own_places() -> None:
    """Those that are alike are together where their ways meet."""
    ways = {"a": ["x", "y", "z"], "b": ["y", "x"], "c": ["z", "x", "y"], "d": ["y", "z", "x"], "e": ["z", "y"]}
    jobs = [replace(job(name, "x", "y", "z", filters=["own"]), queued_at=float(n)) for n, name in enumerate(ways)]
    one = [Location("m", Resources(1, 1000))]
    there = [SiteView(name=name, locations=one, possible=one, policy="first_come") for name in "xyz"]
    found = assign(jobs, there, now=100.0, filters={"own": lambda job, _: ways[job.name]})
    assert found.placed == {"a": ("x", "m"), "b": ("y", "m"), "c": ("z", "m")}
    full = {name: f"site {name!r} has no room" for name in "xyz"}
    assert told(found.waits) == {
        "d": f"waits: {full['y']}; {full['z']}; {full['x']}",
        "e": f"waits: {full['z']}; {full['y']}",
    }
    assert {name: sorted(jobs) for name, jobs in found.turned_away.items()} == {
        "x": ["d"], "y": ["d", "e"], "z": ["d", "e"],
    }  # fmt: skip


def test_a_filter_sees_whose_job_it_is_and_its_inputs() -> None:
    seen: list[tuple[object, ...]] = []

    def note(job: PlannedJob, targets: Sequence[str]) -> Sequence[str]:
        seen.append((job.dag_id, job.run_id, job.task_id, job.map_index, job.inputs))
        return targets[::-1] if job.inputs[0]["sample"] == "big" else targets

    jobs = [
        replace(
            job(sample, "hpc/long", "local", filters=["note"]),
            dag_id="d",
            run_id="r",
            task_id="t",
            map_index=number,
            input_values=f'[{{"sample": "{sample}"}}]',
        )
        for number, sample in enumerate(("small", "big"))
    ]
    found = assign(jobs, [LOCAL, HPC], now=0.0, filters={"note": note})
    assert [site for site, _ in found.placed.values()].count("local") == 1
    assert found.placed["big"][0] == "local"
    assert seen == [("d", "r", "t", 0, ({"sample": "small"},)), ("d", "r", "t", 1, ({"sample": "big"},))]


def test_a_filter_may_name_a_target_twice() -> None:
    known = {"twice": lambda job, targets: [*targets, *targets]}
    full = replace(LOCAL, locations=[], possible=[])
    found = assign([job("a", "hpc/long", "local", filters=["twice"])], [full], now=0.0, filters=known)
    assert found.turned_away == {"local": ["a"]}


def test_a_filter_of_a_third_party_chooses_among_the_targets_and_what_it_gets_wrong_costs_its_job_alone() -> None:
    def last(job: PlannedJob, targets: Sequence[str]) -> Sequence[str]:
        return targets[-1:]

    def broken(job: PlannedJob, targets: Sequence[str]) -> Sequence[str]:
        raise KeyError(job.name)

    known = {"last": last, "broken": broken, "liar": lambda job, targets: ["moon"], "none": lambda job, targets: []}
    jobs = [job(name, "hpc/long", "local", filters=[name]) for name in known] + [job("plain", "local")]
    found = assign(jobs, [LOCAL, HPC], now=0.0, filters=known)
    assert found.placed == {"last": ("local", "here"), "plain": ("local", "here")}
    assert told(found.refused) == {
        "broken": "the binding filter 'broken' failed: KeyError: 'broken'",
        "liar": "the binding filter 'liar' returned moon; valid: hpc/long, local",
        "none": "its binding filters (none) removed all of its targets: hpc/long, local",
    }
    with pytest.raises(ValueError, match="there is no binding filter 'x'; valid: shuffle"):
        filtered(jobs[0], ["a"], ["x"])


def test_the_first_binding_whose_patterns_all_match_counts() -> None:
    gpu = Binding(("hpc/gpu",), dag="train_*", group="*models*")
    rest = Binding(("local",), task="*.prepare")
    assert binding([gpu, rest], "train_a", "models.prepare", ["models"]) is gpu
    assert binding([gpu, rest], "train_a", "data.prepare", ["data"]) is rest
    assert binding([gpu, rest], "train_a", "prepare", []) is None
    assert gpu.hints() == {"targets": ["hpc/gpu"]}


def test_bindings_of_a_sites_file_are_checked_one_by_one() -> None:
    table = {"dag": "train_*", "targets": ["hpc/long", "cloud/c7i.*"], "filters": ["shuffle"]}
    [found] = parse_bindings([table], ["hpc", "cloud"])
    assert found == Binding(("hpc/long", "cloud/c7i.*"), dag="train_*", filters=("shuffle",))
    assert Binding.from_table(json.loads(json.dumps({"targets": ["hpc"], "group": None}))) == Binding(("hpc",))
    with pytest.raises(ValueError, match="bindings") as error:
        parse_bindings([table, {"dags": "x", "targets": "hpc/"}, {"targets": ["moon/a"]}, 3], ["hpc", "cloud"])
    for words in (
        "[[bindings]] 2: targets = 'hpc/': 'hpc/' is not a target",
        "dags is unknown; did you mean dag? The keys are: dag, task, group, targets, filters",
        "[[bindings]] 3: targets: 'moon/a' names no existing site; valid: hpc, cloud",
        "[[bindings]] 4: it is not a table",
    ):
        assert words in str(error.value)


@pytest.mark.parametrize("text", ["", "/long", "hpc/", "hpc/a b", "h p c", 3, None, "hpc/\x1b[0m"])
def test_what_is_no_target_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a target; valid: a site, a queue of it"):
        Target.parse(text)


def test_hints_say_where_once() -> None:
    assert Hints.parse({"targets": "hpc/long"}).targets == ("hpc/long",)
    assert parse_targets(["a", "a", "b/c"]) == ("a", "b/c")
    for hints, words in (
        ({"targets": ["hpc"], "site": "lab"}, "hint targets: it cannot be combined with the hint site ('lab')"),
        ({"filters": ["shuffle"]}, "hint filters: filters choose among targets"),
        ({"targets": ["hpc/long"], "queue": "x"}, "hint queue: a target already names a queue"),
        ({"targets": []}, "is not a list of targets; valid: 1 to 32"),
        ({"targets": ["a"], "filters": ["No Name"]}, "is not a list of binding filters"),
    ):
        with pytest.raises(HintError) as error:
            Hints.parse(hints)
        assert words in str(error.value)
