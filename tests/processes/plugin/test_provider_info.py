from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from lading.hooks.files.host import usable_cpus
from lading.plugin.provider_info import get_provider_info, options
from lading.scheduling.model.resources import cpus_of_one

DOCS = Path(__file__).parents[3] / "docs"

# Reads every option through Airflow as declared, and with nothing declared, as where the provider info is not loaded;
# then again with some options set; then asks for all bundles. Airflow is imported once for all of it.
QUESTIONS = """
import json, os, sys
from airflow.configuration import conf
from lading.executors.settings import DEFAULTS, Settings

class Undeclared:
    def get(self, section, key, *, fallback):
        return fallback

values = {name: conf.get("lading", name, fallback=None) for name in DEFAULTS}
unset = [repr(Settings.load()), repr(Settings.load(Undeclared())), values]
os.environ.update(json.loads(sys.argv[1]))
given = repr(Settings.load())
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "True"
from airflow.dag_processing.bundles.manager import DagBundlesManager
bundles = [each.name for each in DagBundlesManager().get_all_dag_bundles()]
print(json.dumps({"unset": unset, "set": given, "bundles": bundles}))
"""
SET = {
    "sites_file": "/etc/lading/sites.toml",
    "default_memory": "2 GiB",
    "default_disk": "1 GB",
    "on_shutdown": "leave",
    "shutdown_timeout": "2 min",
    "job_retention_days": "7",
}


@dataclass(frozen=True)
class Answers:
    """What an Airflow of its own answers to :data:`QUESTIONS`."""

    home: Path
    printed: str
    found: dict[str, Any]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    home = tmp_path_factory.mktemp("home")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    given = {f"AIRFLOW__LADING__{name.upper()}": value for name, value in SET.items()}
    done = subprocess.run(
        [sys.executable, "-c", QUESTIONS, json.dumps(given)],
        env={**inherited, "AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return Answers(home, done.stdout + done.stderr, json.loads(done.stdout.splitlines()[-1]))


def test_the_provider_info_is_what_airflow_expects() -> None:
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    validate(get_provider_info(), schema)


@pytest.mark.parametrize("name", options())
def test_every_option_is_described(name: str) -> None:
    option = options()[name]
    assert set(option) == {"description", "version_added", "type", "example", "default"}
    assert all(option[key] for key in ("description", "version_added", "type", "example"))


def test_declared_defaults_are_the_fallbacks(answers: Answers) -> None:
    declared, undeclared, values = answers.found["unset"]
    assert declared == undeclared
    assert f"state_folder={answers.home / 'lading'!r}" in declared
    cpus = cpus_of_one(usable_cpus(), 32, 0.25)
    assert f"default_resources=Resources(cpus={cpus}, memory=512, disk=0, gpus=0.0)" in declared
    defaults = {name: option["default"] for name, option in options().items()}
    assert values == {**defaults, "state_folder": str(answers.home / "lading")}


def test_set_options_are_read(answers: Answers) -> None:
    settings = answers.found["set"]
    assert "sites_file=PosixPath('/etc/lading/sites.toml')" in settings
    assert "Resources(cpus=0.25, memory=2048, disk=954, gpus=0.0)" in settings
    assert "on_shutdown='leave', shutdown_seconds=120, job_retention_days=7" in settings


class Written:
    """A configuration in which one option is set."""

    def __init__(self, option: str, value: str) -> None:
        self.option, self.value = option, value

    def get(self, section: str, key: str, *, fallback: Any) -> Any:
        return self.value if (section, key) == ("lading", self.option) else fallback


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("sites_file", "sites.toml", "a path that starts with / or ~"),
        ("state_folder", "", "a path that starts with / or ~"),
        ("default_cpus", "0", "4 or 0.5"),
        ("default_memory", "8 Gob", '"8 GiB"'),
        ("default_disk", "-1", '"8 GiB"'),
        ("on_shutdown", "wait", "leave, cancel"),
        ("shutdown_timeout", "soon", '"90 min"'),
        ("job_retention_days", "0", "a whole number from 1"),
        ("job_retention_days", "1.5", "a whole number from 1"),
    ],
)
def test_a_wrong_option_names_itself_its_value_and_what_is_valid(option: str, value: str, valid: str) -> None:
    from airflow.exceptions import AirflowConfigException

    from lading.executors.settings import Settings

    with pytest.raises(AirflowConfigException) as error:
        Settings.load(Written(option, value))
    for words in (f"[lading] {option}: {value!r}", valid):
        assert words in str(error.value)


@pytest.mark.parametrize("name", ["commands", "configuration", "reasons"])
def test_a_generated_page_is_current(name: str) -> None:
    script = DOCS / f"generate_{name}.py"
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    written = (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert written == generator.page(), f"run: python docs/{script.name}"


def test_airflow_finds_a_module_for_the_distribution(answers: Answers) -> None:
    """Each task's log would begin with a traceback where examples are loaded, as they are on a bare node."""
    assert "example_dags" in answers.found["bundles"], "examples are loaded"
    assert "Traceback" not in answers.printed
    assert not any("lading" in name for name in answers.found["bundles"]), "those of Lading are not"
