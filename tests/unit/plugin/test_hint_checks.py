"""Hints that no site takes are found when a Dag is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lading.plugin import hint_checks
from lading.plugin.hint_checks import check_stage
from lading.plugin.published import Known
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.resources import Resources

SITES = {
    "lab": Known(stage_schemes=("s3",)),
    "hpc": Known(stage_schemes=("http",), takes_unnamed=False),
    "old": Known(takes_unnamed=False),
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
        ("http://x/y", {"site": "lab"}, "the site takes no files from http://"),
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
