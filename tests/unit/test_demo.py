"""What the demo says about its runs, and what make says while it installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lading.executors.store import JobRow
from tests.demo_costs import arrivals_of
from tests.demo_sites import DemoError, simulated_costs
from tests.demo_summary import Job, batch_lines, bought_lines, packed_lines, table

ROOT = Path(__file__).parents[2]
SMALL = Job("small", "local", "vm", "ok", 0.25, 512, 0, 100, 0.4, started_at=0, ended_at=10)


def run(count: int, memory: int = 512, at_once: int = 2, peak: float = 100) -> list[Job]:
    """Jobs that are queued together and run ``at_once`` at a time, each for 10 s."""
    begins = [10.0 * (number // at_once) for number in range(count)]
    return [
        replace(SMALL, index=number, memory=memory, peak_memory=peak, started_at=begin, ended_at=begin + 10)
        for number, begin in enumerate(begins)
    ]


def shown(runs: list[list[Job]], width: int = 150) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table(runs))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_summary_says_how_the_second_run_was_packed_by_the_first() -> None:
    lines = dict(packed_lines([run(40), run(40, memory=128, at_once=8)], 2.0, 8192))
    assert lines["This machine"] == "2 cores and 8.0 GiB for tasks"
    assert lines["First run"] == (
        "40 jobs in 200 s, at most 2 at once; they requested 20.0 GiB in all, of which they used 3.9"
    )
    assert lines["Second run"] == (
        "40 jobs in 50 s, at most 8 at once; 40 of them sized by what the first run used, they requested 5.0 GiB in "
        "all, of which they used 3.9"
    )
    again = dict(packed_lines([run(40), run(40)], 2.0, 8192))["Second run"]
    assert "at most 2 at once; they requested 20.0 GiB in all" in again


@pytest.mark.parametrize(("tasks", "started"), [(40, 32), (12, 12)])
def test_local_executor_would_have_started_what_was_ready_up_to_its_slots(tasks: int, started: int) -> None:
    line = dict(packed_lines([run(1), run(tasks)], 2.0, 2048))["LocalExecutor"]
    assert f"it would have started {started} tasks at once, which request {started / 4:g} cores" in line
    assert line.endswith(f"use up to {started * 100 / 1024:.1f} GiB" + (", more than there is" * (started == 32)))


def test_the_table_has_a_row_per_task_with_what_each_run_requested() -> None:
    printed = shown([run(30), run(30, memory=46)])
    [row] = [line for line in printed.splitlines() if line.lstrip().startswith("small")]
    assert re.search(r"small +30 +local vm × 30 +30 ok +0.25 +0.4 +512 → 46 +100 ", row)
    assert "batch job" not in printed


def test_a_narrow_terminal_truncates_nothing() -> None:
    killed = replace(SMALL, task="duplicated", location="ip-172-31-20-7", outcome="failed out_of_memory", memory=4096)
    printed = shown([[*run(13, memory=1024), killed], [*run(13, memory=46), killed]], width=80)
    assert "…" not in printed
    assert " outcome " in printed
    assert "13 ok" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_several_machines_of_a_site_are_counted() -> None:
    jobs = [replace(SMALL, site="cloud", location=name, index=index) for index, name in enumerate("aab")]
    assert "cloud × 3 on 2 machines" in shown([[*jobs, SMALL]])


def test_a_batch_run_names_arrays_jobs_and_nodes() -> None:
    names = replace(SMALL, task="samples", site="hpc", batch_job="1", node="n1")
    array = [
        replace(names, task="sketch", batch_job=f"2_{number}", node=node, index=number - 1, started_at=20, ended_at=30)
        for number, node in ((1, "n1"), (2, "n1"), (3, "n2"))
    ]
    assert batch_lines([names, *array]) == [
        ("Run", "4 jobs in 30 s, at most 3 at once; 2 submissions"),
        ("samples", "job 1, on n1"),
        ("sketch", "job array 2, 3 elements, on n1 × 2, n2"),
    ]
    assert "2_1, 2_2, 2_3" in shown([[names, *array]])


def test_a_run_on_bought_machines_names_types_seconds_and_usd_and_what_other_policies_cost() -> None:
    machine = {"instance_type": "m5.large", "capacity_type": "spot", "zone": "us-east-1c", "usd": "0.0006"}
    instances = [machine | {"launched_at": "0", "ended_at": str(60 + number)} for number in range(2)]
    compared = {
        "forecast": {"usd": 0.0011, "machines": 2, "seconds": 37.2},
        "greedy": {"usd": 0.0012, "machines": 2, "seconds": 38.0},
        "alone": {"usd": 0.0021, "machines": 4, "seconds": 38.0},
    }
    lines = dict(bought_lines([SMALL, replace(SMALL, site="cloud")], instances, compared))
    assert lines["Run"].endswith("1 at local, 1 at cloud")
    assert lines["Bought"] == "2 × m5.large spot in us-east-1c: 121 s in all for 0.0012 USD"
    assert lines["Simulated"].endswith(
        "Lading 0.0011 USD (2 machines, 37 s); greedy packing 0.0012 USD (2 machines, 38 s); one machine per task "
        "0.0021 USD (4 machines, 38 s)"
    )


def test_jobs_that_did_not_run_cost_nothing_and_stop_no_summary() -> None:
    ended = {"cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0, "ended_at": 60.0}
    cancelled = JobRow(token="cancelled", queued_at=5.0, started_at=None, **ended)
    [arrival] = arrivals_of([cancelled, JobRow(token="ran", queued_at=10.0, started_at=20.0, **ended)])
    assert (arrival.job.name, arrival.arrival, arrival.duration) == ("ran", 0.0, 40.0)
    assert arrivals_of([cancelled]) == []
    assert dict(bought_lines([SMALL], [], {}))["Simulated"] == "no job ran at cloud"


def test_costs_that_cannot_be_simulated_are_an_error_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho a warning >&2; echo 'site cloud: it has no price' >&2; exit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(DemoError, match=r"the run ended, but .* is not known: site cloud: it has no price$"):
        simulated_costs({}, "cloud", "a run")


def make(recipe: str, log: Path) -> subprocess.CompletedProcess[str]:
    # Without what a surrounding make tells its own recipes: a make within a make prints its folder.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", f"--eval=try: ; $(call quietly,trying,{recipe})", "try", "BEAT=1", f"LOG={log}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_a_step_of_make_says_how_far_it_is_and_how_long_it_took(tmp_path: Path) -> None:
    done = make("echo half the way; sleep 4", tmp_path / "log")
    assert done.returncode == 0, done.stderr
    first, *between, last = done.stdout.splitlines()
    assert first == "trying"
    assert between
    assert all(re.fullmatch(r" +\d+ s  half the way", line) for line in between)
    assert re.fullmatch(r" +done in \d+ s", last)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("Collecting rich==14.1.0 (from -r requirements.lock (line 4040))", "Collecting rich==14.1.0"),
        ("  Downloading https://index.example.org/a/b/rich-14.1.0-py3-none-any.whl (243 kB)",
         "Downloading rich-14.1.0-py3-none-any.whl (243 kB)"),
        ("two words\nWARNING: Location 'x' is ignored\n  WARNING: again\nnpm warn deprecated y\na.md:1: WARNING: z\n\n",
         "two words"),
        ("Collecting a\nLooking in indexes: https://index.example.org/simple", "Collecting a"),
        ("word " * 30, "word " * 19 + "..."),
        ("x" * 120, "x" * 97 + "..."),
    ],
)  # fmt: skip
def test_a_step_of_make_shows_whole_words_and_no_warnings(tmp_path: Path, printed: str, shown: str) -> None:
    (tmp_path / "printed").write_text(printed + "\n")
    done = make(f"cat {tmp_path}/printed; sleep 4", tmp_path / "log")
    assert done.returncode == 0, done.stderr
    _, *between, _ = done.stdout.splitlines()
    assert between
    assert {line.partition(" s  ")[2] for line in between} == {shown}


def test_a_step_of_make_that_fails_prints_all_its_output(tmp_path: Path) -> None:
    failed = make("echo first; echo second; false", tmp_path / "log")
    assert failed.returncode != 0
    assert "first\nsecond\n" in failed.stdout
    assert "done" not in failed.stdout
