"""Running a prologue or an epilogue: a script that runs on the submitting side, before a job and after it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

# How much of a failed script's output is kept; the end is the most useful part.
KEPT_CHARACTERS = 2000


class NearScriptError(RuntimeError):
    """A prologue or epilogue did not run, or did not end well. The message has the end of what it said."""


def run_near(what: str, script: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a script on this machine, with an empty input, and wait for its end; what it has printed.

    :param what: what the script is, for messages
    :param script: its text, the first line of which names the interpreter
    :param variables: put into its environment, over this process's own
    :raises NearScriptError: it cannot be run, or ends with another status than 0
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
        end = said.strip()[-KEPT_CHARACTERS:]
        raise NearScriptError(f"the {what} ended with status {done.returncode}" + (f": {end}" if end else ""))
    return said


def interpreter(script: str) -> list[str]:
    """The command in the line ``#!...``, with at most one argument, as the kernel reads it.

    Run so instead of by the file itself, a script also works where files in the temporary folder may not be executed.

    :raises NearScriptError: there is no such line
    """
    first = script.partition("\n")[0]
    if not first.startswith("#!") or not first[2:].strip():
        raise NearScriptError(f"the first line {first!r} names no interpreter; begin with for example '#!/bin/bash'")
    return first[2:].strip().split(maxsplit=1)
