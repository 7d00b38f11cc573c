"""Run Snakemake's own tests with Lading's executor, and those that fail also with the executor that they name.

``python snakemake_plugin/upstream [-k EXPRESSION] [--checkout FOLDER]``. Without a checkout that of the installed
version is cloned into ``.environments/upstream``. The executor that a test names is the local one or
``cluster-generic``; what passes with that alone is a fault. Tests that need a network or programs that are not there
fail with both, and do not count. ``exceptions.txt`` has the tests that may fail, each with the reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from with_lading import VARIABLE

HERE = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/snakemake/snakemake"
TESTS = "tests/tests.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkout", type=Path, help="a checkout of Snakemake's sources in the installed version")
    parser.add_argument("-k", default="", help="which tests, as for pytest (default: all)")
    parser.add_argument("-n", default="0", help="how many tests at a time (default: one)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each test: some hang")
    options = parser.parse_args()
    checkout = options.checkout or clone(HERE.parents[1] / ".environments/upstream")
    known = read_exceptions(HERE / "exceptions.txt")
    ways = {"-k": options.k, "-n": options.n, "--timeout": options.timeout}
    passed, failed = run("lading", checkout, [TESTS], ways)
    theirs = run("its own", checkout, [f"{TESTS}::{name}" for name in sorted(failed)], ways)[0] if failed else set()
    faults = sorted(theirs - known.keys())
    for name in faults:
        print(f"{name} passes with its own executor, and not with lading")
    for name in sorted(known.keys() & passed):
        print(f"{name} passes: take it out of exceptions.txt ({known[name]})")
    print(
        f"{len(passed)} pass with lading, {len(theirs)} with their own executor alone, "
        f"of which {len(theirs) - len(faults)} are exceptions, and {len(failed - theirs)} with neither"
    )
    return 1 if faults or not passed else 0


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


def run(executor: str, checkout: Path, tests: Sequence[str], ways: Mapping[str, object]) -> tuple[set[str], set[str]]:
    """The names of the tests that pass, and of those that fail.

    :param ways: options of pytest
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command: Sequence[str | Path] = [
            sys.executable, "-m", "pytest", "-q", "-p", "with_lading", "-p", "no:cacheprovider", *tests,
            f"--junitxml={report}", *(str(each) for way in ways.items() for each in way),
        ]  # fmt: skip
        modules = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        environment = {**os.environ, "PYTHONPATH": modules, "PATH": programs, VARIABLE: executor}
        subprocess.run(command, cwd=checkout, env=environment, check=False)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    skipped = {str(case.get("name")) for case in cases if case.find("skipped") is not None}
    passed = {str(case.get("name")) for case in cases if not len(case)}
    return passed, {str(case.get("name")) for case in cases} - passed - skipped


if __name__ == "__main__":
    sys.exit(main())
