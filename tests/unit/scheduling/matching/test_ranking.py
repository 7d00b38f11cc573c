"""In which order a job that names no place goes to the sites that can run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.matching.ranking import FEWEST_WAITS, Match, QueueWaits, by_probability
from lading.scheduling.matching.routes import matches, rankable, ranked, router
from lading.scheduling.matching.routes import route as route_of
from lading.scheduling.matching.rules import Soft
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import NATIVE, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.placement import assign
from tests.reasons import told, trouble

NODE = Resources(16, 65536)
JOB = WaitingJob(name="a", resources=Resources(4, 1000))


def queue(name: str, idle: int | None, nodes: int | None, **options: Any) -> SiteView:
    there = [Location(name, NODE, hints=frozenset([NATIVE]), max_jobs=9, nodes=nodes, idle_nodes=idle)]
    return SiteView(**{"name": name, "locations": there, "possible": there, **options})


def machine(name: str, **options: Any) -> SiteView:
    there = [Location(name, NODE)]
    return SiteView(name=name, locations=there, possible=there, **options)


def order(*sites: SiteView, job: WaitingJob = JOB) -> list[str]:
    return [stop.site for stop in route_of(job, sites)]


def test_3_of_4_nodes_come_before_5_of_10() -> None:
    ten, four = queue("ten", 5, 10), queue("four", 3, 4)
    assert order(ten, four) == ["four", "ten"]
    assert assign([JOB], [ten, four], now=1.0).placed == {"a": ("four", "four")}
    wide = WaitingJob(name="b", resources=Resources(64, 1000), soft=Soft({"cpus": 4}).as_text())
    least = [site.name for _, site in ranked(wide, matches(wide, [ten, four]))]
    assert least == ["four", "ten"], "by the nodes that can run the least that will do"
    assert order(ten, queue("even", 1, 2)) == ["ten", "even"], "of the same share the first of the file"


def test_what_cannot_be_compared_stays_where_the_file_has_it() -> None:
    """Of machines it is known whether they have room; the first to wait at a site is to stay the first there."""
    ten, four = queue("ten", 5, 10), queue("four", 3, 4)
    assert order(machine("local"), ten, four) == ["local", "four", "ten"]
    assert order(ten, machine("local"), four) == ["ten", "local", "four"]
    assert order(queue("silent", None, 10), four) == ["silent", "four"]
    assert order(queue("first", 5, 10, burst_after=60.0), four) == ["first", "four"]
    assert order(queue("down", 9, 10, trouble=trouble("it is down")), ten) == ["ten", "down"], (
        "what is idle there is not available"
    )


def test_a_job_that_names_a_place_is_not_ranked() -> None:
    def never(job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match]:
        raise AssertionError("it is asked")

    ten, four = queue("ten", 5, 10), queue("four", 3, 4)
    for job in (
        WaitingJob(name="a", resources=NODE, site="ten"),
        WaitingJob(name="a", resources=NODE, targets=as_text(["ten", "four"], [])),
    ):
        assert router([ten, four], (), never)(job)[0].site == "ten"
        assert assign([job], [ten, four], now=1.0, rank=never).placed == {"a": ("ten", "ten")}
    typed = WaitingJob(name="a", resources=NODE, instance_type="m")
    with pytest.raises(AssertionError, match="it is asked"):
        router([ten, four], (), never)(JOB)
    from lading.scheduling.hints.places import Target

    places = [(Target("ten"), ten), (Target("four"), four)]
    assert rankable(typed, places) == ()
    assert ranked(typed, places) == places


def test_a_plugin_orders_the_matches_or_leaves_it_to_lading() -> None:
    ten, four = queue("ten", 5, 10), queue("four", 3, 4)
    found = [Match("ten", 5, 10), Match("four", 3, 4)]
    asked: list[Sequence[Match]] = []

    def last_first(job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match]:
        asked.append(matches)
        return matches[::-1]

    assert [stop.site for stop in router([four, ten], (), last_first)(JOB)] == ["ten", "four"]
    assert asked == [tuple(found[::-1])]
    assert [stop.site for stop in router([ten, four], (), lambda job, matches: None)(JOB)] == ["four", "ten"]


def test_a_plugin_ranks_each_job_also_of_those_that_are_alike() -> None:
    """By the task that it runs and its inputs; what it leaves to Lading goes Lading's way among the others."""

    def by_sample(job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match] | None:
        if job.task_id == "plain":
            return None
        return sorted(matches, key=lambda each: each.site != job.inputs[0]["site"])

    ten, four = queue("ten", 5, 10), queue("four", 3, 4)
    jobs = [
        WaitingJob(
            name=str(number), resources=NODE, dag_id="d", run_id="r", task_id=task, map_index=number, input_values=text
        )
        for number, (task, text) in enumerate(
            [("align", '[{"site": "ten"}]'), ("align", '[{"site": "four"}]'), ("plain", None)]
        )
    ]
    assert len({job.shape for job in jobs}) == 1
    found = assign(jobs, [ten, four], now=1.0, rank=by_sample)
    assert {name: site for name, (site, _) in found.placed.items()} == {"0": "ten", "1": "four", "2": "four"}
    silent = [queue(name, 0, 9, trouble=trouble(f"{name} is down")) for name in ("ten", "four")]
    waits = told(assign(jobs, silent, now=100.0, rank=by_sample).waits)
    assert waits["0"] == "waits: ten is down; four is down"
    assert waits["1"] == "waits: four is down; ten is down"
    routes = router([ten, four], (), by_sample)
    assert [[stop.site for stop in routes(job)] for job in jobs] == [["ten", "four"], ["four", "ten"], ["four", "ten"]]


def test_where_enough_waits_are_known_they_decide() -> None:
    """From 20 of its size on, or of its queue, else the share of idle nodes does."""
    waits = QueueWaits()
    for number in range(FEWEST_WAITS - 1):
        waits.add("ten", None, 4, float(number))
        waits.add("four", None, 4, 1000.0 + number)
    ten, four = queue("ten", 5, 10, waits=waits), queue("four", 3, 4, waits=waits)
    assert (waits.expected("ten", None, 4), order(ten, four)) == (None, ["four", "ten"])
    waits.add("four", None, 4, 9999.0)
    assert order(ten, four) == ["four", "ten"], "of one of them too few are known"
    waits.add("ten", None, 64, 9999.0)
    assert waits.expected("ten", None, 4) == 14.0, "three of four had waited no longer: of the queue, of any size"
    assert order(ten, four) == ["ten", "four"]
    assert waits.expected("ten", "long", 4) is None


MATCHES = st.lists(
    st.builds(
        Match,
        st.uuids().map(str),
        st.none() | st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.none() | st.floats(0, 99),
        st.booleans(),
    )
)


@given(MATCHES)
def test_every_match_is_tried_once(matches: list[Match]) -> None:
    found = by_probability(JOB, matches)
    assert sorted(each.site for each in found) == sorted(each.site for each in matches)
    fixed = [number for number, each in enumerate(matches) if each.share is None or each.is_first]
    assert [found[number] for number in fixed] == [matches[number] for number in fixed]
