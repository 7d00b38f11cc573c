"""What the example counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lading.example_dags import stdlib_survey
from lading.example_dags.stdlib_survey import Package, Survey

SOURCE = """\
import os, json.decoder
from json import loads
from . import sibling


class Thing:
    def short(self):
        return 1

    async def long(self):
        x = 1
        return x
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("things/__init__.py", "things/more.py", "_alone.py", "another.py", "test/test_it.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCE)
    monkeypatch.setattr(stdlib_survey, "LIBRARY", tmp_path)
    return tmp_path


def test_packages_are_folders_and_single_files_by_letter(library: Path) -> None:
    found = {package["name"]: package for package in stdlib_survey.packages()}
    assert set(found) == {"things", "modules a*"}  # the library's own tests are left out
    assert found["things"]["size"] == 2 * len(SOURCE)
    assert [Path(file).name for file in found["modules a*"]["files"]] == ["_alone.py", "another.py"]


def test_survey_counts(library: Path) -> None:
    survey = stdlib_survey.survey(Package(name="a", files=[str(library / "another.py")], size=7))
    assert survey == Survey(
        name="a",
        files=1,
        size=7,
        lines=12,
        functions=2,
        classes=1,
        longest_function=(3, "another.py:10 long"),
        imports={"os": 1, "json": 2},
    )


def test_duplicates_have_equal_bodies_of_some_length(library: Path) -> None:
    (library / "another.py").write_text(SOURCE.replace("x = 1", "x = 2").replace("short", "renamed"))
    groups = stdlib_survey.duplicates(shortest=2)
    assert [[place.split()[1] for place in group] for group in groups] == [
        ["long"] * 3,
        ["short", "renamed", "short", "short"],
    ]
    assert stdlib_survey.duplicates(shortest=4) == []


def test_report_holds_totals_and_every_package(library: Path) -> None:
    surveys = [stdlib_survey.survey(package) for package in stdlib_survey.packages()]
    report = stdlib_survey.report(surveys, [["here", "there"]])
    assert "48 lines in 4 files of 2 packages" in report
    assert "most imported: json (8), os (4)" in report
    assert "| things | 0 | 2 | 24 | 4 | 2 |" in report
    assert "* `here`, `there`" in report
