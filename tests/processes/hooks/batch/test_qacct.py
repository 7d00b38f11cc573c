"""Only the queried jobs are returned of all those that qacct lists."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.system import CouldNotAsk, NativeJob
from lading.hooks.ssh.answer import CommandResult
from tests.recordings import recorded


def asked(folder: Path, *ids: str, status: int, stdout: str) -> list[NativeJob]:
    (folder / "records").write_text(stdout)
    qacct = folder / "qacct"
    qacct.write_text(f'#!/bin/sh\necho "$*" > {folder}/arguments\ncat {folder}/records\nexit {status}\n')
    qacct.chmod(0o755)
    command = SGE().accounting(ids, "hpc", datetime(2026, 11, 21, 12, 29))
    assert command is not None
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(command, env=path, capture_output=True, text=True, timeout=60, check=False)
    assert (folder / "arguments").read_text() == "-o hpc -b 202611191229 -j\n"
    assert (done.returncode, done.stderr) == (status, "")
    return SGE().accounted(CommandResult(done.returncode, done.stdout))


def test_the_records_of_those_that_were_asked_for(tmp_path: Path) -> None:
    all_jobs = recorded("sge/accounts").stdout
    found = asked(tmp_path, "6", "10", "999", status=0, stdout=f"a banner\n{all_jobs}{'=' * 20}\nTotal System Usage\n")
    assert found == [job for job in SGE().accounted(CommandResult(0, all_jobs)) if job.id in ("6", "10")]
    assert {job.id for job in found} == {"6", "10"}


def test_no_records(tmp_path: Path) -> None:
    assert asked(tmp_path, "6", status=0, stdout="") == []
    assert asked(tmp_path, "6", status=1, stdout="no jobs running since startup\n") == []
    with pytest.raises(CouldNotAsk, match="cannot be read"):
        asked(tmp_path, "6", status=1, stdout="error: the accounting cannot be read\n")
