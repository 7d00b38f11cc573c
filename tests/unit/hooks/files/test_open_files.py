"""How many files Lading's own processes and what they start may have open."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMITS = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
RAISES = f"""
import resource, subprocess, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
from lading.hooks.files import open_files
command = [sys.executable, "-c", {LIMITS!r}]
assert open_files.with_first_limit(command) == command
open_files.raise_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
done = subprocess.run(open_files.with_first_limit(command), capture_output=True, text=True)
assert done.stdout == f"(100, {{hard}})\\n"
try:
    open_files.with_first_limit(["/no/such/program"])
except FileNotFoundError:
    open_files.restore_limit()
    print(*resource.getrlimit(resource.RLIMIT_NOFILE)[:1])
"""


def test_what_is_started_finds_the_limit_that_there_was() -> None:
    done = subprocess.run([sys.executable, "-c", RAISES], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_a_controller_may_open_as_many_files_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from lading.plugin import service

    raised = []
    monkeypatch.setattr(service, "make_private", lambda folder: None)
    monkeypatch.setattr(service, "log_to", lambda settings, managed: None)
    monkeypatch.setattr(service, "raise_limit", lambda: raised.append(True))
    monkeypatch.setattr(service, "ensure_tables", lambda: sys.exit(raised and "raised"))
    with pytest.raises(SystemExit, match="raised"):
        service.serve(managed=True)
