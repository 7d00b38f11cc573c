"""Workflows in folders of their own, run by ``snakemake`` as a user would."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forking
from forking import PATIENCE


class Workflow:
    """A workflow in a folder.

    :param folder: in which it is made
    :param snakefile: its rules
    :param python: that runs Snakemake; None: that of the tests
    :param user: whose it is; None: that of the tests
    """

    def __init__(self, folder: Path, snakefile: str, python: Path | None = None, user: str | None = None) -> None:
        self.folder, self.python, self.user = folder, python, user
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "Snakefile").write_text(snakefile)
        if user is not None:
            shutil.chown(folder, user, user)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        """Start ``snakemake``."""
        arguments = ["--executor", "lading", "--jobs", "100", *options]
        # What changes how Python starts has no effect on a fork.
        if self.python is None and not any(name.startswith("PYTHON") for name in environment):
            output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            forked = forking.start(
                "snakemake", *arguments, cwd=self.folder, env={**os.environ, **environment}, **output
            )
            self.started.append(forked)
            return forked
        # What a shell starts in the background ignores Ctrl-C, as do the processes that it starts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                [str(self.python or sys.executable), "-m", "snakemake", *arguments],
                cwd=self.folder,
                env={**os.environ, **environment},
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)
        self.started.append(process)
        return process

    def run(self, *options: str, status: int = 0, **environment: str) -> str:
        """Run ``snakemake`` to its end; returns what it has printed."""
        process = self.start(*options, **environment)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == status, said
        return said

    def jobs(self, columns: str = "task_id, state, cause") -> list[tuple[Any, ...]]:
        """The rows of all jobs, in the order in which they were queued."""
        database = sqlite3.connect(f"{(self.lading / 'store.db').as_uri()}?mode=ro", uri=True, timeout=60)
        try:
            return database.execute(f"SELECT {columns} FROM lading_job ORDER BY queued_at, token").fetchall()
        finally:
            database.close()

    @property
    def lading(self) -> Path:
        return self.folder / ".snakemake/lading"

    def processes(self) -> list[int]:
        """The processes that belong to it: its controller, its node agent and all that these have started."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = os.fsdecode(path.read_bytes()) + os.readlink(path.parent / "cwd")
            except OSError:
                continue
            if str(self.folder) in text and path.parent.name != str(os.getpid()):
                found.append(int(path.parent.name))
        return found

    def process(self, part: str) -> int:
        """The one process of it whose command has this part."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for pid in self.processes():
                try:
                    if part in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
                        return pid
                except OSError:
                    continue
            time.sleep(0.05)
        raise AssertionError(f"no process has {part!r} in its command")

    def clean_up(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def remove_state(flow: Workflow) -> None:
    """Remove ``.snakemake`` as a user does: again, if processes of the workflow have written into it meanwhile."""
    folder = flow.folder / ".snakemake"

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_until(is_gone)


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for something to be so."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it does not become so"
        time.sleep(0.05)
