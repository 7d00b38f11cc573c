"""LSF where the conformance suite does not look: the command that works for OpenLava, too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lading.hooks.batch import Answer, CouldNotAsk, NativeJob
from lading.hooks.lsf import LSF
from tests.recordings import recorded


def _asked(folder: Path, script: str) -> Answer:
    """The answer to a status query where ``bjobs`` is this script."""
    path = folder / "bjobs"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(LSF().status("hpc", ["114"]), capture_output=True, text=True, env=environment)
    return Answer(done.returncode, done.stdout, done.stderr)


def test_columns_where_bjobs_has_them(tmp_path: Path) -> None:
    answer = _asked(tmp_path, f"cat <<'END'\n{recorded('lsf/queue').stdout}END\necho \"$*\" > '{tmp_path}/words'")
    assert LSF().statuses(answer) == LSF().statuses(recorded("lsf/queue"))
    words = (tmp_path / "words").read_text()
    assert words.startswith("-a -u hpc -o jobid jobindex stat ")
    assert words.endswith("job_name delimiter='^'\n")


def test_the_table_where_bjobs_has_no_columns(tmp_path: Path) -> None:
    table = recorded("lsf/openlava_queue_wide").stdout
    refusal = "bjobs: invalid option -- 'o'\\nusage: bjobs [-h] ..."
    script = f"case $* in *-o*) printf \"{refusal}\" >&2; exit 255 ;; esac\ncat <<'END'\n{table}END"
    assert LSF().statuses(_asked(tmp_path, script)) == LSF().statuses(recorded("lsf/openlava_queue_wide"))


def test_no_job_at_all(tmp_path: Path) -> None:
    assert LSF().statuses(_asked(tmp_path, "echo 'No job found' >&2; exit 255")) == []
    assert LSF().statuses(_asked(tmp_path, "echo 'No job found' >&2")) == []


def test_no_answer_at_all(tmp_path: Path) -> None:
    with pytest.raises(CouldNotAsk, match="LSF is down"):
        LSF().statuses(_asked(tmp_path, "echo 'LSF is down. Please wait ...' >&2; exit 255"))


def test_a_command_cannot_forge_its_history() -> None:
    """The first job of the recording prints what LSF says of successes."""
    found = {job.id: job for job in LSF().accounted(recorded("lsf/history"))}
    assert found["117"] == NativeJob(id="117", state="ended", cause="error", exit_code=7)
    assert found["103"].reason == "TERM_RUNLIMIT: job killed after reaching LSF run time limit"


def test_the_script_is_read_from_a_file_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "a $(b) 'c'.sh"
    path.write_text("#BSUB -n 1\n")
    (tmp_path / "bsub").write_text("#!/bin/sh\ncat\n")
    (tmp_path / "bsub").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(LSF().submit(str(path)), capture_output=True, text=True, env=environment)
    assert done.stdout == "#BSUB -n 1\n"
