"""Running a prologue or an epilogue: a script that runs on the submitting side, before a job and after it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

# So much of what a failed script has said is kept; the end tells most.
KEPT_CHARACTERS = 2000


class NearScriptError(RuntimeError):
    """A prologue or epilogue did not run, or did not end well. The message has the end of what it said."""


def run_near(
    what: str, script: str, folder: Path, variables: Mapping[str, str] | None = None, timeout: float | None = None
) -> str:
    """Run a script on this machine, with an empty input, and wait for its end; what it has printed.

    :param what: what the script is, for messages
    :param script: its text, the first line of which names the interpreter
    :param folder: where it runs
    :param variables: put into its environment, over this process's own
    :param timeout: seconds that it may take; None: any time
    :raises NearScriptError: it cannot be run, takes too long, or ends with another status than 0
    """
    with tempfile.TemporaryDirectory(prefix="lading-") as private:
        path = Path(private) / "script"
        path.touch(mode=0o600)
        path.write_text(script, encoding="utf-8", errors="surrogateescape", newline="")
        try:
            process = subprocess.Popen(
                [*interpreter(script), str(path)],
                cwd=folder,
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise NearScriptError(f"the {what} cannot be run in {folder}: {error}") from None
        said = _output(what, process, timeout)
    if process.returncode:
        raise NearScriptError(f"the {what} ended with status {process.returncode}{_end(said)}")
    return said.decode(errors="replace")


def _output(what: str, process: subprocess.Popen[bytes], timeout: float | None) -> bytes:
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        # All that it has started goes with it; otherwise one of them could hold the pipe open for ever.
        os.killpg(process.pid, signal.SIGKILL)
        said = _end(process.communicate()[0])
        raise NearScriptError(f"the {what} was ended, since it took more than {timeout:g} s{said}") from None


def interpreter(script: str) -> list[str]:
    """The command in the line ``#!...``, with at most one argument, as the kernel reads it.

    Run so instead of by the file itself, a script also works where files in the temporary folder may not be executed.

    :raises NearScriptError: there is no such line
    """
    first = script.partition("\n")[0]
    if not first.startswith("#!") or not first[2:].strip():
        raise NearScriptError(f"the first line {first!r} names no interpreter; begin with for example '#!/bin/bash'")
    return first[2:].strip().split(maxsplit=1)


def _end(output: bytes) -> str:
    text = output.decode(errors="replace").strip()
    return f": {text[-KEPT_CHARACTERS:]}" if text else ""
