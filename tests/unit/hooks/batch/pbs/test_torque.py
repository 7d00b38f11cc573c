"""TORQUE where it takes less than PBS Pro: scripts with other characters than ASCII, and memory that it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from lading.hooks.batch import canceller
from lading.hooks.batch.canceller import Canceller
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.system import BatchSystem, CancelError, Profile, Unsupported
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.properties import JobScriptWarning
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.ssh.answer import CommandResult
from tests.recordings import FOLDER


def _files(body: str, folder: Path | str = "/scratch/run", setup: str = "", **resources: object) -> dict[str, str]:
    script = JobScript(body, **resources)
    return layout.files(script, TORQUE(), Profile(), str(folder), jobname="a_name", setup=setup)


def test_a_body_of_any_characters_is_submitted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = _files("echo größe\n")
    assert files[layout.WRAPPER].isascii()
    assert "größe" in files["job.sh"]


@pytest.mark.parametrize(
    "asked",
    [{"jobname": "größe"}, {"setup": "module load größe"}, {"folder": "/scratch/größe"}, {"stdout": "/a/größe"}],
)
def test_what_qsub_would_refuse_is_said_before(asked: dict[str, str]) -> None:
    with pytest.raises(Unsupported, match=r"line .* has 'ö', but torque accepts only ASCII"):
        _files("true", **asked)


def test_a_script_to_be_submitted_by_hand_comes_with_a_warning() -> None:
    with pytest.warns(JobScriptWarning, match=r"line 2 .* has 'ö'"):
        JobScript("echo größe\n").render(TORQUE())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JobScript("echo größe\n").render(PBSPro())
        JobScript("echo grosse\n").render(TORQUE())


def _exit(folder: Path, body: str, limit: str, system: BatchSystem | None = None) -> list[str]:
    """What a run leaves of its end whose processes have that limit."""
    script = JobScript(body)
    for name, text in layout.files(script, system or TORQUE(), Profile(), str(folder), jobname="a_name").items():
        (folder / name).write_text(text)
    command = f"ulimit -d {limit}; PBS_JOBID=1.trq1 exec bash {layout.WRAPPER}"
    subprocess.run(["bash", "-c", command], cwd=folder, check=False)
    status, _, _, *cause = (folder / layout.EXIT).read_text().split()
    return [status, *cause]


GREEDY = f"{sys.executable} -c 'x = bytearray(2**30)'\n"


def test_memory_that_is_refused_is_a_cause(tmp_path: Path) -> None:
    assert _exit(tmp_path, GREEDY, "200000") == ["1", "out_of_memory"]


@pytest.mark.parametrize(
    ("body", "limit"), [("echo MemoryError; exit 1", "unlimited"), ("exit 1", "200000"), ("echo MemoryError", "200000")]
)
def test_other_failures_are_none_of_memory(body: str, limit: str, tmp_path: Path) -> None:
    assert _exit(tmp_path, body, limit) == [body[-1] if body.endswith("1") else "0"]


def test_batch_systems_that_kill_say_so_themselves(tmp_path: Path) -> None:
    assert _exit(tmp_path, GREEDY, "200000", PBSPro()) == ["1"]


def test_an_array_whose_mom_is_down_is_asked_to_end_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """TORQUE says of a job that it cannot be ended then, and of an array nothing: its elements run on."""
    text = (FOLDER / "torque/qdel-array-node-down-master.txt").read_text()
    before, of_array, of_job = re.split(r"^\$ qdel ", text, flags=re.MULTILINE)
    array, status = of_array.splitlines()
    TORQUE().cancelled(CommandResult(int(status.removeprefix("rc="))))
    job, said, status, _, *shown = of_job.partition("# MOM")[0].splitlines()
    with pytest.raises(CancelError, match="could not connect to MOM"):
        TORQUE().cancelled(CommandResult(int(status.removeprefix("rc=")), "", f"{said}\n"))
    element = TORQUE().element(array, 2)
    for lines in (before.splitlines()[1:], shown):
        assert {row.split()[0]: row.split()[4] for row in lines}[element] == "R"
    monkeypatch.setattr(canceller.Canceller, "repeated_after", (0.0, 0.0))
    asked = Canceller()
    asked.ask([array, job])
    assert TORQUE().cancel(asked.press([array, job], at_once=False)) == ["qdel", array, job]
