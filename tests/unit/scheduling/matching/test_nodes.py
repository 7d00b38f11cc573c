"""To which places a job goes that asks for several nodes, or for a range of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lading.scheduling.matching.explanation import explained, wishes
from lading.scheduling.matching.ranking import Match
from lading.scheduling.matching.routes import matches, nowhere, rankable, route, router
from lading.scheduling.matching.rules import RULES, Rule, Soft, describe_changes, variants
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import LAYOUT, NATIVE
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.placement import assign
from tests.reasons import told

NODE = Resources(16, 65536)
JOB = WaitingJob(name="a", resources=Resources(4, 1000), nodes=4, hints=frozenset([LAYOUT]))
RANGE = replace(JOB, nodes=8, soft=Soft({"nodes": 2}).as_text())


def said(job: WaitingJob, sites: Sequence[SiteView]) -> str:
    """Why a job can run nowhere, as it is shown."""
    return str(nowhere(job, sites))


def batch(name: str, most: dict[str, int] | None, **options: Any) -> SiteView:
    location = Location(
        name,
        NODE,
        hints=frozenset([NATIVE, LAYOUT]),
        site=name,
        max_jobs=9,
        most_nodes=None if most is None else tuple(most.items()),
        **options,
    )
    return SiteView(name=name, locations=[location], possible=[location])


def order(job: WaitingJob, *sites: SiteView) -> list[str]:
    return [stop.target or stop.site for stop in route(job, sites)]


def test_a_job_goes_only_where_it_can_have_its_nodes() -> None:
    small, large, unknown = batch("small", {"": 3}), batch("large", {"": 4}), batch("unknown", {})
    assert order(JOB, small, large, unknown) == ["large", "unknown"]
    assert order(replace(JOB, nodes=1), batch("tiny", {"": 0})) == ["tiny"], "a job of one node asks for no number"
    assert assign([JOB], [small, large], now=1.0).placed == {"a": ("large", "large")}


def test_the_reason_names_both_numbers() -> None:
    refused = told(assign([JOB], [batch("small", {"": 3})], now=1.0).refused["a"])
    assert refused == "requests 4 nodes, more than site 'small' can ever give to a job: site 'small' has 3"
    words = said(replace(JOB, queue="short", hints=JOB.hints | {NATIVE}), [batch("hpc", {"": 9, "short": 2})])
    assert words.endswith("queue 'short' of site 'hpc' has 2")
    words = said(JOB, [batch("a", {"": 3}), batch("b", {"": 2})])
    assert words == ("requests 4 nodes, more than any one site can ever give to a job: site 'b' has 2; site 'a' has 3")


def test_machines_have_one_node_for_a_job() -> None:
    machine = Location("m1", NODE, site="lab")
    lab = SiteView(name="lab", locations=[machine], possible=[machine])
    words = "its hints nodes, ppn and threads require a batch site with mode = 'job', which 'lab' is not"
    assert said(JOB, [lab]) == f"{words} (a task there gets 1 node, and it requests 4); name another site"
    assert said(RANGE, [lab]) == f"{words} (a task there gets 1 node, and it requests 2); name another site"
    assert said(replace(JOB, nodes=1), [lab]) == f"{words}; name another site"


def test_nodes_that_are_down_or_busy_now_are_counted() -> None:
    down = batch("hpc", {"": 4}, nodes=2, idle_nodes=0)
    assert order(JOB, down) == ["hpc"]


def test_each_queue_has_its_own_number() -> None:
    site = batch("hpc", {"": 2, "long": 8, "short": 2})
    assert order(JOB, site) == []
    assert order(replace(JOB, queue="long"), site) == ["hpc"]
    assert order(replace(JOB, queue="other"), site) == ["hpc"], "of that it is not known"
    targets = as_text(["hpc/short", "hpc/long", "hpc"], [])
    assert order(replace(JOB, targets=targets), site) == ["hpc/long"]
    assert "target 'hpc/short': it requests 4 nodes" in said(
        replace(JOB, targets=as_text(["hpc/short", "hpc"], [])), [site]
    )


@pytest.mark.parametrize(
    ("native", "goes"), [('{"qos": "wide"}', ["hpc"]), ('{"M": "far"}', ["hpc"]), ('{"A": "x"}', [])]
)
def test_native_directives_may_name_what_has_other_limits(native: str, goes: list[str]) -> None:
    assert order(replace(JOB, native=native), batch("hpc", {"": 2})) == goes


def test_a_site_of_a_plugin_says_how_many_nodes_its_queue_has() -> None:
    assert order(JOB, batch("two", None, nodes=2), batch("four", None, nodes=4)) == ["four"]
    two = replace(batch("q", None).locations[0], nodes=2)
    site = SiteView(name="p", locations=[two, replace(two, name="wide", nodes=9)])
    site = replace(site, possible=site.locations)
    assert assign([JOB], [site], now=1.0).placed == {"a": ("p", "wide")}
    assert assign([JOB], [replace(site, policy="first_come")], now=1.0).placed == {"a": ("p", "wide")}


def test_jobs_of_several_numbers_of_nodes_are_of_several_shapes() -> None:
    sites = [batch("small", {"": 3}), batch("large", {"": 9})]
    found = router(sites, RULES, None)
    assert [[stop.site for stop in found(each)] for each in (replace(JOB, nodes=3), JOB)] == [
        ["small", "large"],
        ["large"],
    ]
    assert JOB.shape != replace(JOB, nodes=3).shape


def test_rankings_see_only_where_it_can_have_them() -> None:
    sites = [batch(name, {"": most}, nodes=9, idle_nodes=5) for name, most in (("a", 9), ("b", 3), ("c", 4))]
    found = rankable(JOB, matches(JOB, sites))
    assert found == (Match("a", 5, 9), Match("c", 5, 9))


def test_of_a_range_the_least_has_to_be_there() -> None:
    one, two, many = batch("one", {"": 1}), batch("two", {"": 2}), batch("many", {"": 20})
    assert order(RANGE, one, two, many) == ["two", "many"]
    assert said(RANGE, [one]).startswith("requests 2 nodes, more than site 'one' can ever give to a job")


@pytest.mark.parametrize(("most", "asked"), [(2, 2), (5, 5), (8, 8), (20, 8), (None, 8)])
def test_of_a_range_it_asks_for_the_most_that_the_place_can_give(most: int | None, asked: int) -> None:
    [stop] = route(RANGE, [batch("hpc", {} if most is None else {"": most})])
    assert stop.asked(RANGE).nodes == asked
    assert stop.rule is None


def test_a_target_caps_the_range_by_its_own_queue() -> None:
    site = batch("hpc", {"": 20, "short": 4})
    job = replace(RANGE, targets=as_text(["hpc/short", "hpc"], []))
    assert [stop.asked(job).nodes for stop in route(job, [site])] == [4, 8]


def test_the_rule_less_goes_down_to_the_least() -> None:
    steps = variants(RANGE, [Rule("less", amounts=("nodes",))])
    assert [dict(changes).get("nodes") for _, changes in steps] == [None, 4, 2]
    assert describe_changes(RANGE, steps[1][1]) == "4 of 8 nodes"
    both = replace(RANGE, soft=Soft({"nodes": 3, "memory": 500}).as_text())
    [_, step, last] = variants(both, [Rule("less", amounts=("memory", "nodes"))])
    assert describe_changes(both, step[1]) == "500 MiB of 1000 MiB memory, 4 of 8 nodes"
    assert dict(last[1])["nodes"] == 3
    assert variants(RANGE, [Rule("other", amounts=("cpus",))]) == [(None, ())]


def test_a_range_goes_down_where_its_group_may_use_fewer_machines() -> None:
    site = batch("hpc", {"": 20})
    limited = {"task": "t", "max_instances": 5}
    before = replace(JOB, name="b", nodes=3, task="t")
    waits = replace(RANGE, **limited)
    found = assign([waits], [site], [(before, "hpc", "hpc")], now=1.0, rules=RULES)
    assert found.placed == {"a": ("hpc", "hpc")}
    assert found.stops["a"].asked(waits).nodes == 2, "two more may be used"


def test_a_rule_of_a_plugin_may_take_nodes_within_the_range() -> None:
    rule = Rule("mine", relax=lambda job: [{"nodes": 5}])
    assert [dict(changes) for _, changes in variants(RANGE, [rule])] == [{}, {"nodes": 5}]
    for wrong in (1, 9):
        with pytest.raises(ValueError, match=f"relaxes nodes to {wrong}|relaxes 'nodes' to {wrong}"):
            variants(RANGE, [Rule("mine", relax=lambda job, wrong=wrong: [{"nodes": wrong}])])


def test_the_explanation_says_it() -> None:
    steps = {step.name: list(step.lines) for step in explained(JOB, [batch("small", {"": 3}), batch("hpc", {"": 9})])}
    assert steps["matching"] == [
        "small: it can never run there: requests 4 nodes, more than site 'small' can ever give to a job: site "
        "'small' has 3",
        "hpc: it can run there",
    ]
    assert wishes(RANGE) == "4 cpus, 1000 MiB memory; 8 nodes, at least 2"
