"""Stands for the tools of a workflow: writes its standard input into each of the files that are its arguments.

Of ``FOLDER/`` it makes a folder with one file.
"""

import sys
from pathlib import Path

text = sys.stdin.read()
for each in sys.argv[1:]:
    if each.endswith("/"):
        Path(each).mkdir(parents=True, exist_ok=True)
    Path(each, "stub" if each.endswith("/") else "").write_text(f"{Path(each).name}: {text}")
