"""What the distribution says of itself, to pip and to Airflow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import metadata, requires, version
from importlib.resources import files
from pathlib import Path

import airflow_lading
import pytest
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lading.hooks.files import version as versions
from lading.scheduling.text.toml import tomllib
from tests.services.environments import PYTHONS

ROOT = Path(__file__).resolve().parents[3]
METADATA = metadata("airflow-lading")
EXTRAS = sorted(name for name in METADATA.get_all("Provides-Extra", []) if name != "test")


def needed(extra: str = "") -> set[str]:
    """The distributions that an install with an extra asks for, those of other extras of Lading included."""
    asked = [Requirement(each) for each in requires("airflow-lading") or ()]
    names: set[str] = set()
    for each in asked:
        if each.marker is None or each.marker.evaluate({"extra": extra}):
            names |= {each.name}.union(*map(needed, each.extras if each.name == "airflow-lading" else ()))
    return names - {"airflow-lading"}


def test_airflow_is_given_a_provider_info_that_its_schema_allows() -> None:
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    assert list(Draft7Validator(schema).iter_errors(airflow_lading.get_provider_info())) == []


def test_the_package_named_like_the_distribution_has_its_version() -> None:
    assert airflow_lading.__version__ == version("airflow-lading")


def test_the_classifiers_name_the_pythons_with_which_a_release_is_tried() -> None:
    classifiers = METADATA.get_all("Classifier", [])
    assert re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE) == list(PYTHONS)
    assert METADATA["Requires-Python"] == f">={PYTHONS[0]}"


def test_only_extras_ask_for_what_this_machine_and_ssh_can_do_without() -> None:
    heavy = {"apache-airflow-providers-amazon", "highspy", "numba", "numpy"}
    planning = {"highspy", "numpy"}
    found = {extra: needed(extra) & heavy for extra in ["", *EXTRAS]}
    assert found == {
        "": set(),
        "planning": planning,
        "aws": planning | {"apache-airflow-providers-amazon"},
        "fast": planning | {"numba"},
        "all": heavy,
    }


def test_the_page_of_releases_has_each_extra() -> None:
    table = (
        (ROOT / "docs/project/releases.md")
        .read_text()
        .partition("\n## Size of an installation\n")[2]
        .partition("\n## ")[0]
    )
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == EXTRAS


def test_the_changelog_begins_with_what_is_not_released() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each) for each in headings[1:])
    order = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    for section in re.split(r"^## .+$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert kinds == sorted(kinds, key=order.index)


def test_controller_agent_page_and_commands_begin_without_what_only_extras_bring() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('numpy', 'highspy', 'numba', 'boto3', 'botocore')));"
        "import lading.executors.controller.controller, lading.executors.forecast.site_plans;"
        "import lading.executors.agent.agent, lading.executors.executor, lading.plugin.service, lading.plugin.policies;"
        "import lading.plugin.ui.app, lading.plugin.subcommands.cli, lading.plugin.subcommands.check;"
        "import lading.plugin.offline.plan, lading.plugin.offline.simulate, lading.plugin.offline.script"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_files_without_metadata_say_the_version() -> None:
    assert version("airflow-lading") == versions.VERSION
    assert versions.installed_versions()["airflow-lading"] == versions.VERSION
    versions.check_versions()
    versions.check_versions({})


def test_two_versions_in_one_environment_are_refused() -> None:
    mine = versions.VERSION
    versions.check_versions(dict.fromkeys(versions.DISTRIBUTIONS, mine))
    for installed in ({"airflow-lading": "9.9"}, {"airflow-lading": mine, "snakemake-executor-plugin-lading": "9.9"}):
        with pytest.raises(versions.MixedVersions, match=rf"9\.9 .*, but the files of lading have .*{mine}:"):
            versions.check_versions(installed)


def bounds(requirements: list[str]) -> dict[str, SpecifierSet]:
    return {each.name: each.specifier for each in map(Requirement, requirements)}


def test_the_executor_for_snakemake_asks_for_the_engines_dependencies_but_airflow() -> None:
    ours, plugins = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "snakemake_plugin")
    )
    asked = bounds(ours["dependencies"] + ours["optional-dependencies"]["planning"])
    engine = {name: bound for name, bound in asked.items() if not name.startswith("apache-airflow")}
    del engine["tomli"]  # for Python 3.10, which Snakemake 9 does not run on
    found = bounds(plugins["dependencies"])
    own = {name for name in found if name.startswith("snakemake-interface-")}
    airflows = {"alembic", "pyyaml", "sqlalchemy"}  # Airflow brings them, and so no line of ours does
    assert {name: bound for name, bound in found.items() if name not in own | airflows} == engine
    assert len(found) == len(own | airflows | engine.keys())
