"""Runs a prologue or an epilogue: a script on the submitting side, before or after a job."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path


class NearScriptError(RuntimeError):
    """A prologue or epilogue could not run or has failed. The message has the end of its output."""


def run_near(what: str, script: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a script on this machine with empty input, wait until it exits, and return what it has printed.

    :param what: names the script in messages
    :param script: its text; the first line names the interpreter
    :param variables: added to this process's environment
    :raises NearScriptError: it cannot be run, or exits with a status other than 0
    """
    with tempfile.TemporaryDirectory(prefix="lading-") as private:
        path = Path(private) / "script"
        path.touch(mode=0o600)
        path.write_text(script, encoding="utf-8", errors="surrogateescape", newline="")
        try:
            done = subprocess.run(
                [*interpreter(script), str(path)],
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise NearScriptError(f"the {what} cannot be run in {Path.cwd()}: {error}") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        # The end of a failed script's output is its most useful part.
        end = said.strip()[-2000:]
        raise NearScriptError(f"the {what} exited with status {done.returncode}" + (f": {end}" if end else ""))
    return said


def interpreter(script: str) -> list[str]:
    """Read the command in the line ``#!...``, with at most one argument, as the kernel does.

    Running this command, instead of the file, also works where the temporary folder is mounted ``noexec``.

    :raises NearScriptError: the script has no such line
    """
    first = script.partition("\n")[0]
    if not first.startswith("#!") or not first[2:].strip():
        raise NearScriptError(f"the first line {first!r} names no interpreter; begin with for example '#!/bin/bash'")
    return first[2:].strip().split(maxsplit=1)
