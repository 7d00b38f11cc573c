"""Run Snakemake's own tests with its local executor and with Lading's; what passes only with the first is a fault.

``python snakemake_plugin/upstream [-k EXPRESSION] [--checkout FOLDER]``. Without a checkout that of the installed
version is cloned into ``.environments/upstream``. Tests that need a network or programs that are not there fail with
both, and do not count. ``exceptions.txt`` has the tests that may fail, each with the reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from with_lading import VARIABLE

HERE = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/snakemake/snakemake"
TESTS = "tests/tests.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkout", type=Path, help="Snakemake's sources of the installed version")
    parser.add_argument("-k", default="", help="which tests, as for pytest (default: all)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each test: some hang")
    options = parser.parse_args()
    checkout = options.checkout or clone(HERE.parents[1] / ".environments/upstream")
    known = read_exceptions(HERE / "exceptions.txt")
    passed = {executor: run(executor, checkout, options.k, options.timeout) for executor in ("local", "lading")}
    faults = sorted(passed["local"] - passed["lading"] - known.keys())
    for name in faults:
        print(f"{name} passes with the local executor, and not with lading")
    for name in sorted(known.keys() & passed["lading"]):
        print(f"{name} passes: take it out of exceptions.txt ({known[name]})")
    print(f"{len(passed['local'])} pass with the local executor, {len(passed['lading'])} with lading")
    return 1 if faults or not passed["local"] else 0


def clone(folder: Path) -> Path:
    """Get the sources of the installed Snakemake."""
    checkout = folder / f"snakemake-{version('snakemake')}"
    if not checkout.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        tag = f"v{version('snakemake')}"
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", "--branch", tag, REPOSITORY, checkout], check=True)
    return checkout


def read_exceptions(path: Path) -> dict[str, str]:
    """The tests that may fail, with the reason of each."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in (line.partition(":") for line in lines)}


def run(executor: str, checkout: Path, chosen: str, seconds: float) -> set[str]:
    """The names of the tests that pass with an executor.

    :param seconds: for each
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command: Sequence[str | Path] = [
            sys.executable, "-m", "pytest", "-q", "-p", "with_lading", "-p", "no:cacheprovider", TESTS,
            f"--junitxml={report}", "--timeout", str(seconds), "-k", chosen,
        ]  # fmt: skip
        modules = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        environment = {**os.environ, "PYTHONPATH": modules, "PATH": programs, VARIABLE: executor}
        subprocess.run(command, cwd=checkout, env=environment, check=False)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {str(case.get("name")) for case in cases if not len(case)}


if __name__ == "__main__":
    sys.exit(main())
