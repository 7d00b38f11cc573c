"""Stands for the tools of a workflow: writes its standard input into each of the files that are its arguments.

Of ``FOLDER/`` it makes a folder with one file. Files behind ``--`` are those that the tool would read; of them it reads
pipes, whose writers wait for that.
"""

import sys
from pathlib import Path

text = sys.stdin.read()
split = sys.argv.index("--")
for each in map(Path, sys.argv[split + 1 :]):
    if each.is_fifo():
        each.read_bytes()
for each in sys.argv[1:split]:
    if each.endswith("/"):
        Path(each).mkdir(parents=True, exist_ok=True)
    Path(each, "stub" if each.endswith("/") else "").write_text(f"{Path(each).name}: {text}")
