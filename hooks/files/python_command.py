"""Python processes of Lading's own: controllers and node agents."""

from __future__ import annotations

import sys

# `python -m` and `python -c` put the working folder first on sys.path, where a stray json.py would take the place of
# the standard library's, in the node agent and in all tasks. `python -P` says no to that only from 3.11 on. The working
# folder itself stays what it is: tasks may count on it.
WITHOUT_WORKING_FOLDER = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
del sys.argv[0]
import runpy
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)"""


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as ``python -m`` does, but imports nothing from the working folder."""
    return [sys.executable, "-c", WITHOUT_WORKING_FOLDER, module, *arguments]
