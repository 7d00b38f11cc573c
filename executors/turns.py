"""Whose turn it is: no Dag takes all threads of those that read for it what its author names.

Files and stores may be slow or hang, so each Dag may have so many of the threads and no more; of those that may have
another the one is next which has least at work, and of several that which was served longest ago.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

# So many threads do the same work at once, and so many of them for one Dag.
THREADS = 4
THREADS_PER_DAG = 2


class DagTurns:
    """The turns of Dags."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}

    def next(self, dags: Collection[str], taken: Mapping[str, int]) -> str:
        """The Dag that is next.

        :param dags: those that wait, at least one
        :param taken: how much each has at work, also what hangs
        """
        return min(dags, key=lambda dag: (taken.get(dag, 0), self._served.get(dag, 0.0), dag))

    def serve(self, dag: str) -> None:
        """Note that a Dag has had its turn."""
        self._served[dag] = time.monotonic()

    def forget(self, waiting: Collection[str]) -> None:
        """Forget Dags that wait no more."""
        self._served = {dag: at for dag, at in self._served.items() if dag in waiting}
