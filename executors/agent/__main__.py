"""``python -m lading.executors.agent SPOOL``: the node agent of a machine."""

from __future__ import annotations

import sys

from lading.executors.agent.agent import main

if __name__ == "__main__":
    sys.exit(main())
