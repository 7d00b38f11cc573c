"""Answers of real batch systems, as they were given, and of those that no test can run, as their manuals show them.

A file has the command, its exit status, and what it said::

    $ squeue -h -r ...
    status 0
    -- stdout
    ...
    -- stderr
    ...
"""

from __future__ import annotations

import re
from pathlib import Path

from lading.hooks.ssh.answer import CommandResult

FOLDER = Path(__file__).parent
_FILE = re.compile(r"\$ .*\nstatus (\d+)\n-- stdout\n(.*?)-- stderr\n(.*)", re.DOTALL)


def recorded(name: str) -> CommandResult:
    """The answer in a file, such as ``slurm/queue``."""
    path = FOLDER / f"{name}.txt"
    match = _FILE.fullmatch(path.read_bytes().decode())
    if match is None:
        raise ValueError(f"{path} is no recording")
    return CommandResult(int(match[1]), match[2], match[3])
