"""How Lading's processes are started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lading.hooks.files import child_processes


@pytest.mark.parametrize("environment", [{}, {"PYTHONSAFEPATH": "1"}])
def test_nothing_is_imported_from_the_working_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    for name in ("json", "runpy", "logging", "lading"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')")
    # A module of the standard library that reads its arguments and shows that it is the main program.
    done = subprocess.run(
        child_processes.python_command("json.tool", "--compact"),
        input='{"a": 1}',
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"a":1}\n', "")


def test_what_is_started_is_a_module_of_lading_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working folder')")
    done = subprocess.run(
        child_processes.python_command("lading.executors.agent", "--help"), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "usage: python -m lading.executors.agent" in done.stdout


def test_the_working_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    done = subprocess.run(
        child_processes.python_command("zipfile", "--create", "made.zip", "found"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made.zip").exists()
