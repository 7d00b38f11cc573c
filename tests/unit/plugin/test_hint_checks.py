"""Hints that no site takes are found when a Dag is parsed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lading.executors.controller.sites_file import described
from lading.executors.settings import Settings
from lading.plugin import hint_checks
from lading.plugin.hint_checks import check_stage
from lading.plugin.published import PublishedSite, known, most_nodes
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.model.job import LAYOUT, NATIVE
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources

SITES = {
    "lab": PublishedSite(stage_schemes=("s3",)),
    "hpc": PublishedSite(stage_schemes=("http",), accept_untargeted=False),
    "old": PublishedSite(accept_untargeted=False),
}


@pytest.fixture(autouse=True)
def sites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_checks, "known_sites", lambda: (SITES, Resources()))


def staged(value: Any, **hints: Any) -> tuple[Hints, Mapping[str, Any], str]:
    fixed = {"reads": {"value": value}, "other": {"value": "local:///not/staged"}}
    return Hints.parse({"stage": ["reads"], **hints}), {"fixed": fixed}, "d"


@pytest.mark.parametrize(
    ("value", "hints", "words"),
    [
        ({"a": ["LOCAL:///etc/passwd"]}, {}, "at site 'lab', 'LOCAL:///etc/passwd' is not staged"),
        ("http://x/y", {"site": "lab"}, "the site accepts no files from http://"),
        ({"class": "File", "location": "airflow.cfg"}, {}, "has no scheme"),
        ("s3://b/k", {"targets": ["hpc"]}, "at site 'hpc', 's3://b/k' is not staged"),
    ],
)
def test_an_address_that_no_site_takes_is_an_import_error(value: Any, hints: dict[str, Any], words: str) -> None:
    with pytest.raises(HintError) as error:
        check_stage(*staged(value, **hints))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("value", "hints"),
    [
        ("s3a://b/k", {}),
        ("/data/x", {}),
        ("http://x/y", {"site": "hpc"}),
        ("http://x/y", {"targets": ["lab", "hpc"]}),
        ("ftp://x/y", {"site": "old"}),
    ],
)
def test_one_that_a_site_takes_is_none(value: Any, hints: dict[str, Any]) -> None:
    check_stage(*staged(value, **hints))


def batch(most: dict[str, int] | None, **options: Any) -> PublishedSite:
    """A batch site as its controller has published it."""
    location = Location(
        "hpc",
        Resources(16, 65536),
        hints=frozenset([NATIVE, LAYOUT]),
        max_jobs=9,
        arch="x86_64",
        most_nodes=None if most is None else tuple(most.items()),
        **options,
    )
    names = ("dialect", "accept_untargeted", "burst_after", "has_sites_file", "rules", "arch")
    values = ({"system": "slurm", "profile": {}, "takes_layouts": True}, True, 0, True, {}, "x86_64")
    return known({"locations": [described(location)], **dict(zip(names, values, strict=True))})


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ({"nodes": 5}, "hint nodes: it requests 5 nodes, more than any one site can ever give to a job: "),
        ({"nodes": 5, "site": "hpc", "native": {"account": "astro"}}, "site 'hpc' has 4"),
        ({"nodes": 5, "site": "small"}, "more than site 'small' can ever give to a job: site 'small' has 2"),
        ({"nodes": 3, "site": "hpc", "queue": "short"}, "queue 'short' of site 'hpc' has 2"),
        ({"nodes": (3, 8), "site": "small"}, "hint nodes: it requests 3 nodes, more than site 'small' can ever give"),
        (
            {"nodes": (2, 8), "site": "ec2"},
            "site 'ec2' is not one (a task there has 1 node, but this one requests 2); valid else",
        ),
        ({"nodes": 3, "targets": ["small", "hpc/short"]}, "target 'hpc/short': hint nodes: it requests 3 nodes"),
    ],
)
def test_more_nodes_than_any_place_can_ever_give_are_an_import_error(
    hints: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = PublishedSite((Location("", Resources(16, 65536)),), accept_untargeted=False)
    sites = {"hpc": batch({"": 4, "short": 2, "long": 9}), "small": batch({"": 2}), "ec2": machines}
    monkeypatch.setattr(hint_checks, "known_sites", lambda: (sites, Resources()))
    with pytest.raises(HintError) as error:
        hint_checks.check(Hints.parse(hints), "d")
    assert words in str(error.value)


@pytest.mark.parametrize(
    "hints",
    [
        {"nodes": 4},
        {"nodes": 9, "queue": "long"},
        {"nodes": 99, "queue": "other"},
        {"nodes": 5, "native": {"qos": "wide"}, "site": "hpc"},
        {"nodes": (2, 8), "site": "small"},
        {"nodes": 9, "targets": ["small", "hpc/long"]},
        {"nodes": 99, "site": "silent"},
    ],
)
def test_those_that_a_place_may_give_are_none(hints: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sites = {"hpc": batch({"": 4, "short": 2, "long": 9}), "small": batch({"": 2}), "silent": batch({})}
    monkeypatch.setattr(hint_checks, "known_sites", lambda: (sites, Resources()))
    hint_checks.check(Hints.parse(hints), "d")


def grid_engine(**dialect: Any) -> PublishedSite:
    location = Location("sge", Resources(16, 65536), hints=frozenset([NATIVE, LAYOUT]))
    return PublishedSite((location,), dialect={"system": "sge", "profile": {}, "takes_layouts": True, **dialect})


def test_cpus_for_which_a_batch_system_has_no_option_are_an_import_error() -> None:
    two, words = Hints.parse({"cpus": 1.5}), "hint cpus: at site 'sge', 2 slots need a parallel_environment"
    with pytest.raises(HintError, match=words):
        hint_checks.check_sites(two, {"sge": grid_engine()}, Resources(), "d")
    able = {
        "one": (Hints.parse({"cpus": 1}), grid_engine()),
        "profile": (two, grid_engine(profile={"parallel_environment": "smp"})),
        "site": (two, grid_engine(native={"pe": "smp 2"})),
        "task": (Hints.parse({"cpus": 2, "native": {"pe": "smp 2"}}), grid_engine()),
        "allocation": (two, grid_engine(takes_layouts=False)),
    }
    for hints, site in able.values():
        hint_checks.check_sites(hints, {"sge": site}, Resources(), "d")
    machine = PublishedSite((Location("", Resources(16, 65536)),))
    hint_checks.check_sites(two, {"sge": grid_engine(), "machine": machine}, Resources(), "d")


def test_the_nodes_of_a_site_of_a_plugin_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = {"hpc": batch(None, nodes=3)}
    monkeypatch.setattr(hint_checks, "known_sites", lambda: (sites, Resources()))
    hint_checks.check(Hints.parse({"nodes": 3}), "d")
    with pytest.raises(HintError, match="site 'hpc' has 3"):
        hint_checks.check(Hints.parse({"nodes": 4}), "d")


def test_explain_knows_what_a_controller_has_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a controller asks batch systems; the command has its numbers by the file."""
    settings = Settings.load()
    file = tmp_path / "sites.json"
    monkeypatch.setattr(type(settings), "published_sites", property(lambda _: file))
    assert most_nodes(settings) == {}, "no controller has run"
    location = Location("hpc", Resources(16, 65536), most_nodes=(("", 4), ("short", 2)))
    site = {"locations": [described(location)], "dialect": None, "accept_untargeted": True, "burst_after": 0}
    site |= {"has_sites_file": True, "rules": {}, "arch": "x86_64"}
    file.write_text(json.dumps({"sites": {"hpc": site}}))
    assert most_nodes(settings) == {"hpc": (("", 4), ("short", 2))}
