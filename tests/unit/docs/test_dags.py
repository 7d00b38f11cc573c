"""The Dags in the README, the how-tos and the tutorials: they import, and tutorials show the files that they name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task
from airflow.sdk.bases.decorator import _TaskDecorator

from lading.hooks.files import host
from lading.operators import JobScriptOperator, resources
from lading.plugin import hint_checks
from lading.plugin.policies import task_policy
from lading.plugin.sites import known_sites
from lading.scheduling.model.resources import Resources
from tests.clusters.sites import make_settings

ROOT = Path(__file__).parents[3]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A block below a paragraph that links to an example Dag shows a part of it.
OF_AN_EXAMPLE = re.compile(
    r"^[^\n]*\(\.\./\.\./example_dags/(\w+)\.py\)[^\n]*\n(?:[^\n]+\n)*\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
# What the smallest machine has: a core, and of its 2 GiB what the kernel leaves.
SMALL = Resources(cpus=1, memory=1900, disk=10_000)
# The sites that pages name, large enough for what they show there.
SITES = """
[sites.local]

[sites.lab]
kind = "ssh"
work_dir = "/w"
python = "/p"
hosts = [{ssh_conn_id = "lab1", cpus = 64, memory = "256 GiB"}]

[sites.hpc]
kind = "slurm"
work_dir = "/w"
python = "/p"
node_cpus = 32
node_memory = "120 GiB"
"""


@pytest.fixture(autouse=True)
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of one core and 2 GiB, which is all that takes tasks without a site, and the sites that pages name."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
    monkeypatch.setattr(host, "hardware", lambda folder: SMALL)
    file = tmp_path / "sites.toml"
    file.write_text(SITES)
    settings = make_settings(tmp_path / "state", sites_file=file)
    known = known_sites(settings), settings.default_resources
    monkeypatch.setattr(hint_checks, "_read_sites", lambda now: known)
    monkeypatch.setattr(hint_checks, "_read_bindings", lambda now: ())


def first_block(page: str) -> str:
    found = PYTHON.search((ROOT / page).read_text("utf-8"))
    assert found is not None
    return found[1]


def check(dag: DAG) -> None:
    assert dag.tasks
    for each in dag.tasks:
        task_policy(each)


def test_the_dag_of_the_readme() -> None:
    *definition, call = first_block("README.md").splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(definition), names)
    check(names[call.removesuffix("()")]())


HOW_TOS = [f"how_to/{name}" for name in ("containers", "files", "gangs", "mpi", "right_sizes", "script_operator")]


@pytest.mark.parametrize("page", [*HOW_TOS, "reference/hints"])
def test_the_first_block_of_a_page(page: str) -> None:
    names: dict[str, Any] = {each.__name__: each for each in (BashOperator, JobScriptOperator, resources)}
    names["task"] = task
    with DAG("shown", schedule=None) as dag:
        exec(first_block(f"docs/{page}.md"), names)
        for name, value in names.items():
            if isinstance(value, _TaskDecorator) and name not in dag.task_ids:  # the page shows no call
                value(**dict.fromkeys(inspect.signature(value.function).parameters, "/data/file"))
    check(dag)


@pytest.mark.parametrize(
    ("page", "example"), [("laptop", "first_steps"), ("scatter", "scatter_methods"), ("slurm", "cluster_sketches")]
)
def test_a_tutorial_shows_a_part_of_its_example(page: str, example: str) -> None:
    found = dict(OF_AN_EXAMPLE.findall((ROOT / f"docs/tutorials/{page}.md").read_text("utf-8")))
    source = (ROOT / f"example_dags/{example}.py").read_text("utf-8")
    assert found.keys() == {example}
    assert found[example] in re.sub(r"  # type: ignore.*", "", source)
