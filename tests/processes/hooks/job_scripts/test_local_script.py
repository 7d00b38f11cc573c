"""Prologues and epilogues run on this side."""

from __future__ import annotations

from pathlib import Path

import pytest

from lading.hooks.job_scripts.local_script import NearScriptError, interpreter, run_near


def test_it_runs_in_the_working_folder_with_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.chdir(tmp_path)
    said = run_near("prologue", '#!/bin/sh\npwd; echo "$X $INHERITED"; cat; echo err >&2\n', {"X": "a b"})
    assert said == f"{tmp_path.resolve()}\na b yes\nerr\n"
    assert list(tmp_path.iterdir()) == []


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    said = run_near("epilogue", '#!/bin/sh -e\nstat -c "%a %U" "$0" "$(dirname "$0")"\n')
    assert said == f"600 {tmp_path.owner()}\n700 {tmp_path.owner()}\n"


def test_a_failure_is_reported_with_what_was_said() -> None:
    with pytest.raises(NearScriptError, match=r"^the prologue exited with status 3: no room$"):
        run_near("prologue", "#!/bin/sh\necho no room >&2; exit 3\n")
    with pytest.raises(NearScriptError, match="status 1") as caught:
        run_near("prologue", "#!/bin/sh\nyes | head -c 100000; exit 1\n")
    assert len(str(caught.value)) < 2000 + 100


def test_what_cannot_run() -> None:
    with pytest.raises(NearScriptError, match=r"the epilogue cannot be run in .*: .*No such file"):
        run_near("epilogue", "#!/no/such/shell\n")
    with pytest.raises(NearScriptError, match="'exit 0' names no interpreter"):
        run_near("epilogue", "exit 0\n")


def test_interpreters() -> None:
    assert interpreter("#! /usr/bin/env -S bash -l\nx") == ["/usr/bin/env", "-S bash -l"]
    assert interpreter("#!/bin/sh") == ["/bin/sh"]
