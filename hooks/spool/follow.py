"""``python -m lading.hooks.spool.follow SPOOL``: says at once when an agent has told something, until its input ends.

A controller has it run on a machine where jobs are, and reads the events themselves when it hears of some. It imports
next to nothing, for there may be one of each machine.
"""

from __future__ import annotations

import os
import select
import sys
import time

# How often the folder of events is looked at, seconds; a job's end is noticed within this.
INTERVAL = 0.1
# What is said when there is something new, in a line; and now and then when there is not, so that both ends notice
# when the other one is gone.
NEWS = b"lading-news\n"
ALIVE = b"lading-alive\n"
SECONDS_UNTIL_ALIVE = 30.0


def main(spool: str) -> int:
    events = os.path.join(spool, "events")
    modified, known = -1, frozenset[str]()
    said_at = time.monotonic()
    while True:
        if select.select([0], [], [], INTERVAL)[0] and not os.read(0, 4096):
            return 0
        before, modified, words = modified, _modified(events), b""
        if modified != before:
            found = _names(events)
            words, known = NEWS if found - known else b"", found
        if not words and time.monotonic() - said_at > SECONDS_UNTIL_ALIVE:
            words = ALIVE
        if words:
            try:
                os.write(1, words)
            except OSError:
                return 0
            said_at = time.monotonic()


def _modified(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return frozenset()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
