"""``make test-versions``: the tests that touch Airflow, on each version of Airflow that Lading supports.

Each version is installed in an environment of its own, below ``.environments``. Without a version named, all final ones
since 3.3.0 that the index has are tried, and the newest pre-release if it is newer than these.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from tests.services.environments import FOLDER, ROOT, Environment, InstallationError, printed

OLDEST = Version("3.3.0")
# The rooms that import Airflow's internals, and a run of a real Airflow.
TESTS = ("tests/unit/executors", "tests/unit/plugin", "tests/integration/test_standalone.py")


def main(named: Sequence[str]) -> int:
    """Try the versions; 1 if a test failed or one could not be installed."""
    versions = [Version(each) for each in named] or supported(available())
    print(f"Airflow {', '.join(map(str, versions))} with Python {sys.version_info.major}.{sys.version_info.minor}")
    [wheel] = (ROOT / "dist").glob("*.whl")
    outcomes = {version: outcome(version, wheel) for version in versions}
    return int(any(not each.startswith("passed") for each in outcomes.values()))


def outcome(version: Version, wheel: Path) -> str:
    """Install one version and run the tests; prints and returns how that went."""
    print(f"{version}: installing", flush=True)
    environment = Environment(f"airflow-{version}", Path(sys.executable).resolve())
    log = FOLDER / f"airflow-{version}.log"
    try:
        environment.install(
            [f"airflow-lading[test] @ {wheel.as_uri()}", f"apache-airflow=={version}"],
            prereleases=version.is_prerelease,
        )
    except InstallationError as error:
        log.write_text(str(error))
        said = f"cannot be installed, see {log.relative_to(ROOT)}"
    else:
        print(f"{version}: testing, see {log.relative_to(ROOT)}", flush=True)
        processes = os.environ.get("PROCESSES", "2")
        with log.open("w") as out:
            done = subprocess.run(
                [environment.python, "-m", "pytest", "-n", processes, *TESTS], cwd=ROOT, stdout=out, stderr=out
            )
        last = log.read_text().rstrip().rpartition("\n")[2].strip("= ")
        said = f"passed: {last}" if done.returncode == 0 else f"failed: {last}"
    print(f"{version}: {said}", flush=True)
    return said


def available() -> list[Version]:
    """All versions of Airflow that the index has, pre-releases too."""
    command = [sys.executable, "-m", "pip", "index", "versions", "apache-airflow", "--pre"]
    found = re.search(r"^Available versions: (.+)$", printed(command, ROOT, dict(os.environ)), re.MULTILINE)
    if found is None:
        raise InstallationError("pip index versions has named no versions of apache-airflow")
    return [Version(each) for each in found[1].split(", ")]


def supported(versions: Sequence[Version]) -> list[Version]:
    """Those that Lading says it supports, oldest first, and the newest pre-release if it is newer than these."""
    final = sorted(each for each in versions if each >= OLDEST and not each.is_prerelease)
    newest = max((each for each in versions if each.is_prerelease), default=None)
    return [*final, newest] if newest is not None and (not final or newest > final[-1]) else final


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
