"""PBS Pro and TORQUE where the conformance suite does not look: all jobs of a user, and ids."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from lading.hooks.batch import Answer, CouldNotAsk
from lading.hooks.pbs_job import split
from lading.hooks.pbspro import PBSPro
from lading.hooks.torque import TORQUE


def _all_of_a_user(system: PBSPro, folder: Path, qselect: str) -> Answer:
    for name, script in (("qselect", qselect), ("qstat", 'echo "$*"')):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(system.status("hpc"), capture_output=True, text=True, env=environment)
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(("system", "options"), [(PBSPro(), "-t -f -F json"), (TORQUE(), "-t -x")])
def test_all_jobs_of_a_user(system: PBSPro, options: str, tmp_path: Path) -> None:
    answer = _all_of_a_user(system, tmp_path, '[ "$*" = "-u hpc" ] && printf "1.pbs1\\n2[].pbs1\\n"')
    assert answer.stdout == f"{options} 1.pbs1 2[].pbs1\n"
    assert system.statuses(_all_of_a_user(system, tmp_path, ":")) == []
    with pytest.raises(CouldNotAsk, match="cannot connect"):
        system.statuses(_all_of_a_user(system, tmp_path, "echo 'qselect: cannot connect to server' >&2; exit 2"))


def test_ids() -> None:
    assert split("8.pbs1") == ("8.pbs1", None)
    assert split("8[].pbs1") == ("8[].pbs1", None)
    assert split("8[3].login-1.example.org") == ("8[].login-1.example.org", 3)
    assert PBSPro().element("8[].pbs1", 3) == "8[3].pbs1"
    with pytest.raises(ValueError, match="no id"):
        split("Job 8")


def test_history_is_asked_for_apart() -> None:
    words = PBSPro().accounting(["8[].pbs1"], "hpc", datetime(2026, 11, 20))
    assert words == ["qstat", "-t", "-f", "-F", "json", "-x", "8[].pbs1"]
    assert TORQUE().accounting(["8.tq1"], "hpc", datetime(2026, 11, 20)) is None
    with pytest.raises(CouldNotAsk, match="not configured"):
        PBSPro().accounted(Answer(1, "", "qstat: PBS is not configured to maintain job history\n"))
