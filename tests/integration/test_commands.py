"""The two commands of the README, as a newcomer types them. (The other one, ``make test``, is what runs this.)"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lading.example_dags.stdlib_survey import packages
from tests.services import processes

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / ".demo"


@pytest.fixture
def demo() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(**variables: str) -> subprocess.Popen[str]:
        # Without what a surrounding make tells its own recipes.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        process = subprocess.Popen(
            ["make", "demo"],
            cwd=ROOT,
            env={**environment, "COLUMNS": "120", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    processes.kill(processes.belonging(DEMO, ()))


def await_line(process: subprocess.Popen[str], pattern: str) -> str:
    """Read what the process prints until a line matches."""
    printed = []
    assert process.stdout
    for line in process.stdout:
        printed.append(line)
        if re.search(pattern, line):
            return line
    raise AssertionError(f"no line like {pattern!r} in:\n{''.join(printed)}")


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C, which reaches make and all that it runs; return the rest of the output."""
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=600)
    return rest


def test_demo_shows_what_ran_where_and_leaves_nothing_behind(demo: Callable[..., subprocess.Popen[str]]) -> None:
    process = demo()
    printed, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, printed
    rows = re.findall(
        r"^ ?(\w+) +(\d+) +local \S+(?: × \d+)? +(?:\d+ )?ok +([\d.]+) +[\d.]+ +([\d,]+)(?: → (\d+))? ",
        printed,
        re.MULTILINE,
    )
    found = {task: (int(jobs), cpus, first, second) for task, jobs, cpus, first, second in rows}
    assert found["duplicated"] == (1, "1", "1,024", ""), printed
    assert [found[task][1] for task in ("small", "medium", "large")] == ["0.25", "0.5", "1"]
    # The jobs of the first run get the default until some have ended, those of the second run what these used.
    first, second = (float(each) for each in re.findall(r"requested ([\d.]+)\s+GiB", printed))
    # Tries of less than two seconds size no task: which tasks are sized depends on the machine.
    if re.search(r"^Second run +\d+ jobs in \d+ s, at most \d+ at once; \d+ of them sized by", printed, re.MULTILINE):
        assert second < first, printed
    else:
        assert second == first, printed
    # The demo surveys every other package.
    surveyed = [package["name"] for package in packages(every=2)]
    assert sum(found[task][0] for task in ("small", "medium", "large")) == len(surveyed)
    others = {"small_packages", "medium_packages", "large_packages", "duplicated", "gather"}
    assert {task for task, (jobs, *_) in found.items() if jobs == 1} >= others
    assert found.keys() == others | {"small", "medium", "large"}
    assert len(rows) == len(found)
    assert re.search(r"^This machine +\S+ cores and \S+ GiB for tasks", printed, re.MULTILINE)
    assert re.search(r"^LocalExecutor +counts 32 slots", printed, re.MULTILINE)
    assert re.search(r"^Machines page +http://127\.0\.0\.1:\d+/plugin/lading\?view=machines", printed, re.MULTILINE)
    assert "functions of ten lines and more occur more than once" in printed
    assert re.search(r"UI: http://127\.0\.0\.1:\d+", printed)
    report = (DEMO / "stdlib_survey" / "report.md").read_text()
    [_, _, *reported] = re.findall(r"^\| (.+?) \|", report, re.MULTILINE)
    assert sorted(reported) == sorted(surveyed)
    assert processes.belonging(DEMO, ()) == []


def test_demo_ends_cleanly_on_ctrl_c_and_a_second_one_is_refused_meanwhile(
    demo: Callable[..., subprocess.Popen[str]],
) -> None:
    # A demo on SLURM, where there may be one: the tutorial on SLURM begins with it.
    first = demo(SITE="slurm" if os.geteuid() == 0 and shutil.which("apt-get") else "local")
    await_line(first, "Starting Airflow")
    second = demo()
    printed, _ = second.communicate(timeout=300)
    assert second.returncode != 0
    assert "another demo is running" in printed
    await_line(first, "queued|running")  # of short tasks the demo may see none running
    rest = interrupt(first)
    assert "left processes behind" not in rest
    assert first.returncode != 0
    assert processes.belonging(DEMO, ()) == []
