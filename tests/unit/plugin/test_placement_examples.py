"""The plugins of docs/explanation/placement.md: each is one as it stands there, and decides where jobs go."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lading.plugin import manager
from lading.scheduling.matching.ranking import Match
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.placement import assign

DOCS = Path(__file__).parents[3] / "docs/explanation/placement.md"
EXAMPLES = [text for text in re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.M | re.S) if "@hookimpl" in text]


@pytest.fixture(autouse=True)
def _plugins() -> Iterator[None]:
    plugins = []
    for number, text in enumerate(EXAMPLES):
        plugin = types.ModuleType(f"example{number}")
        exec(compile(text, f"{DOCS}, example {number}", "exec"), vars(plugin))
        manager.plugin_manager().register(plugin)
        plugins.append(plugin)
    manager.plugin_manager().check_pending()
    yield
    for plugin in plugins:
        manager.plugin_manager().unregister(plugin)


def site(name: str, *locations: str, **options: object) -> SiteView:
    there = [Location(each, Resources(4, 4000)) for each in locations]
    return SiteView(**{"name": name, "locations": there, "possible": there, **options})  # type: ignore[arg-type]


def test_a_binding_filter() -> None:
    targets = as_text(["a", "b"], ["even_here_odd_there"])
    jobs = [WaitingJob(name=name, resources=Resources(1, 100), targets=targets) for name in ("1e", "1f")]
    found = assign(jobs, [site("a", "m"), site("b", "m")], now=1.0, filters=manager.binding_filters())
    assert found.placed == {"1e": ("a", "m"), "1f": ("b", "m")}


def test_a_policy() -> None:
    jobs = [WaitingJob(name=f"j{number}", resources=Resources(1, 100)) for number in range(6)]
    lab = site("lab", "x", "y", "z", policy="emptiest_first")
    lab = replace(
        lab, locations=[replace(each, used=Resources(number, 0)) for number, each in enumerate(lab.locations)]
    )
    found = assign(jobs, [lab], now=1.0, choice=Choice(1.0, policies=manager.policies()))
    assert [found.placed[job.name][1] for job in jobs] == ["x", "x", "y", "x", "y", "z"]


def test_an_order_of_sites() -> None:
    rank = manager.implemented("rank_matches")
    assert rank is not None
    matches = [Match("small", 1, 1), Match("big_memory", 1, 1)]
    wheat = PlannedJob("1", Resources(1, 100), task_id="align", input_values='[{"genome": "wheat"}]')
    assert rank(job=wheat, matches=matches) == matches[::-1]
    assert rank(job=replace(wheat, input_values='[{"genome": "rice"}]'), matches=matches) is None


def test_there_are_no_others() -> None:
    assert len(EXAMPLES) == 3
