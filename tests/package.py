"""``make package``: the sdists and wheels of a release in ``.environments/dist``, checked as a user would meet them.

Each wheel is built from its sdist and must hold the same files as one that is built from the checkout. Then that for
Airflow is installed with each Python that Lading supports and that is here, without extras, and Airflow has to find all
that it brings; with the first of them each extra as well. ``CONSTRAINTS=URL`` fixes the versions of everything else,
with ``{python}`` for that of Python; without it those of ``requirements.lock`` are taken. The wheel for Snakemake is
installed together with Snakemake, without Airflow, and has to run a workflow.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import metadata
from pathlib import Path

from tests.services.environments import (
    FOLDER,
    PYTHONS,
    ROOT,
    Environment,
    InstallationError,
    interpreter,
    tool,
)

DIST = FOLDER / "dist"
# What an sdist must contain in addition to the package.
IN_SDIST = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO")
PLUGIN = ROOT / "snakemake_plugin"
# The oldest Python on which Snakemake 9 runs.
SNAKEMAKES_OLDEST = "3.11"
SNAKEFILE = """
rule all:
    input: "all.txt"
rule one:
    output: "out/{i}.txt"
    shell: "echo {wildcards.i} > {output}"
rule merge:
    input: expand("out/{i}.txt", i=range(4))
    output: "all.txt"
    run:
        with open(output[0], "w") as file:
            file.writelines(open(each).read() for each in input)
"""
# What runs is the wheel's, and neither Airflow nor its own distribution of the engine is there.
WITHOUT_AIRFLOW = """
from importlib.metadata import distributions
from importlib.util import find_spec

found = [each.name for each in distributions() if "airflow" in each.name]
assert not found and find_spec("airflow") is None, f"the install has {found}"
import lading.executors.controller.controller, lading.executors.agent.agent, lading.plugin.builtin
"""
# With which nothing else is needed: what `planning` brings must be neither there nor missed.
SMOKE = """
import importlib.util, json, sys
from importlib.resources import files

import airflow_lading
from airflow.executors.executor_loader import ExecutorLoader
from airflow.providers_manager import ProvidersManager
from jsonschema import validate

info = airflow_lading.get_provider_info()
validate(info, json.loads((files("airflow") / "provider_info.schema.json").read_text()))
manager = ProvidersManager()
assert manager.providers["airflow-lading"].version == airflow_lading.__version__
executor, _ = ExecutorLoader.import_default_executor_cls()
assert executor.__name__ == "LadingExecutor", executor
found = [name for name in ("numpy", "highspy", "boto3", "numba") if importlib.util.find_spec(name)]
assert not found, f"the install without extras has {found}"
import lading.executors.controller.controller, lading.executors.agent.agent, lading.plugin.ui.app
"""


def main() -> int:
    """Build and check; 1 if anything is wrong, which is printed."""
    try:
        wheel = build()
        constraints = os.environ.get("CONSTRAINTS")
        there = {version: path for version in PYTHONS if (path := interpreter(version)) is not None}
        print(f"Python {', '.join(there)} (not here: {', '.join(set(PYTHONS) - there.keys()) or 'none'})", flush=True)
        for version, python in there.items():
            try_install(wheel, version, python, constraints)
        version, python = next(iter(there.items()))
        for extra in extras():
            try_extra(wheel, extra, version, python, constraints)
        plugin = build_plugin()
        for version, python in there.items():
            if version not in PYTHONS[: PYTHONS.index(SNAKEMAKES_OLDEST)]:
                try_snakemake(plugin, version, python)
    except InstallationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def build() -> Path:
    """Build sdist and wheel for Airflow into :data:`DIST` and compare what they hold; the wheel.

    :raises InstallationError: one cannot be built, or lacks something
    """
    shutil.rmtree(DIST, ignore_errors=True)
    tested = next((ROOT / "dist").glob("*.whl"), None)
    if tested is None:
        raise InstallationError(
            "dist has no wheel, with which the tests run: remove .venv/installed, and make package again"
        )
    return built(ROOT, IN_SDIST, tested)


def build_plugin() -> Path:
    """The same for Snakemake.

    :raises InstallationError: one cannot be built, or lacks something
    """
    with tempfile.TemporaryDirectory() as folder:
        tool("uv", "build", "--quiet", "--wheel", "--out-dir", folder, str(PLUGIN))
        shutil.rmtree(PLUGIN / "build", ignore_errors=True)
        [wheel] = Path(folder).glob("*.whl")
        in_sdist = [*(name for name in IN_SDIST if name != "CHANGELOG.md"), "engine/executors/__init__.py"]
        return built(PLUGIN, in_sdist, wheel)


def built(project: Path, in_sdist: Sequence[str], expected: Path) -> Path:
    """Build the sdist of a project, and the wheel from that; the wheel.

    :param in_sdist: files that the sdist has to have
    :param expected: a wheel that was built from the checkout
    :raises InstallationError: one cannot be built, or lacks something
    """
    before = set(DIST.glob("*"))
    tool("uv", "build", "--quiet", "--out-dir", str(DIST), str(project))
    for info in project.glob("*.egg-info"):
        shutil.rmtree(info)
    new = set(DIST.glob("*")) - before
    [sdist] = (path for path in new if path.name.endswith(".tar.gz"))
    [wheel] = (path for path in new if path.suffix == ".whl")
    tool("twine", "check", "--strict", str(sdist), str(wheel))
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := [name for name in in_sdist if name not in names]:
        raise InstallationError(f"{sdist.name} lacks {', '.join(missing)}: MANIFEST.in says what is in it")
    if differing := sorted(held(wheel) ^ held(expected)):
        raise InstallationError(f"of the wheels of the sdist and of the checkout one alone has {', '.join(differing)}")
    for path in (sdist, wheel):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)
    return wheel


def held(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def extras() -> list[str]:
    """Those that are for users."""
    declared = metadata("airflow-lading").get_all("Provides-Extra", [])
    return [name for name in declared if name != "test"]


def try_install(wheel: Path, version: str, python: Path, constraints: str | None) -> None:
    """Install without extras, and have Airflow load what the package brings; prints what it weighs.

    :raises InstallationError: something of that fails
    """
    environment = Environment(f"python-{version}", python)
    fixed = constraints and constraints.format(python=version)
    environment.install(["apache-airflow>=3.3"], constraints=fixed)
    airflow = environment.mib
    environment.install([f"airflow-lading @ {wheel.as_uri()}"], constraints=fixed)
    lading = environment.mib  # before anything is compiled
    settings = {
        "AIRFLOW_HOME": str(environment.folder / "home"),
        "AIRFLOW__CORE__EXECUTOR": "lading.executors.LadingExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    environment.run("-c", SMOKE, **settings)
    environment.run("-m", "airflow", "db", "migrate", **settings)
    environment.run("-m", "airflow", "lading", "sites", **settings)
    environment.run("-m", "lading.plugin.offline.command", "script", "--help", **settings)
    print(f"Python {version}: Airflow {airflow} MiB, with Lading {lading} MiB", flush=True)


def try_extra(wheel: Path, extra: str, version: str, python: Path, constraints: str | None) -> None:
    """Install one extra and import what it brings; prints what it weighs.

    :raises InstallationError: something of that fails
    """
    environment = Environment(f"extra-{extra}", python)
    fixed = constraints and constraints.format(python=version)
    environment.install([f"airflow-lading[{extra}] @ {wheel.as_uri()}"], constraints=fixed)
    mib = environment.mib  # before anything is compiled
    environment.run("-c", "import lading.scheduling.packing.priced")
    print(f"Python {version} with [{extra}]: {mib} MiB", flush=True)


def try_snakemake(wheel: Path, version: str, python: Path) -> None:
    """Install it together with Snakemake, run a workflow, and print the size of the install.

    :raises InstallationError: something of that fails
    """
    environment = Environment(f"snakemake-{version}", python, PLUGIN / "requirements.lock")
    environment.install(["snakemake>=9.6"])
    snakemake = environment.mib
    environment.install(["snakemake>=9.6", f"snakemake-executor-plugin-lading @ {wheel.as_uri()}"])
    lading = environment.mib  # before anything is compiled
    environment.run("-c", WITHOUT_AIRFLOW)
    (environment.folder / "Snakefile").write_text(SNAKEFILE)
    environment.run("-m", "snakemake", "--executor", "lading", "--jobs", "10")
    if (found := (environment.folder / "all.txt").read_text()) != "0\n1\n2\n3\n":
        raise InstallationError(f"the workflow has written {found!r}")
    environment.run("-m", "snakemake_executor_plugin_lading.commands", "jobs")
    print(f"Python {version}: Snakemake {snakemake} MiB, with Lading {lading} MiB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
