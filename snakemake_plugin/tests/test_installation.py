"""What the distribution brings: Lading's engine, and nothing of Airflow's."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from flows import Workflow

NAME = "snakemake-executor-plugin-lading"
SNAKEFILE = """
rule all:
    output: "all.txt"
    shell: "touch {output}"
"""


def test_the_engine_is_in_the_wheel_and_airflow_is_not_installed() -> None:
    assert find_spec("airflow") is None
    installed = {each.name for each in distributions(path=[sysconfig.get_path("purelib")])}
    assert NAME in installed
    assert not [name for name in installed if "airflow" in name]
    files = {str(each) for each in distribution(NAME).files or ()}
    spec = find_spec("lading.executors")
    assert spec is not None
    assert spec.origin == str(distribution(NAME).locate_file("lading/executors/__init__.py"))
    assert {
        "lading/executors/alembic.ini",
        "lading/executors/migrations/script.py.mako",
        "lading/scheduling/data/ec2_prices.csv",
        "lading/scheduling/py.typed",
    } <= files
    assert not [each for each in files if each.startswith("lading/plugin/ui/static") or "airflow_lading" in each]


def test_an_engine_of_another_version_is_refused(make: Callable[[str], Workflow], tmp_path: Path) -> None:
    other = tmp_path / "packages/airflow_lading-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: airflow-lading\nVersion: 9.9\n")
    flow = make(SNAKEFILE)
    said = flow.run(status=1, PYTHONPATH=str(other.parent))
    assert "airflow-lading 9.9 and " in said
    assert "install all of Lading in the same version" in said
    assert not (flow.lading / "store.db").exists()
    done = subprocess.run(
        [str(Path(sys.executable).parent / "snakemake-lading"), "jobs"],
        cwd=flow.folder, env={**os.environ, "PYTHONPATH": str(other.parent)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "airflow-lading 9.9 and " in done.stderr
