"""Turns of Dags at the threads that read files for them.

Files and stores can be slow or hang, so the number of threads for each Dag is limited. Next is the Dag that uses the
fewest threads now; among several of these, the one that was served longest ago.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

# Number of threads for one kind of work, and for one Dag among them.
THREADS = 4
THREADS_PER_DAG = 2


class DagTurns:
    def __init__(self) -> None:
        self._served: dict[str, float] = {}

    def next(self, dags: Collection[str], taken: Mapping[str, int]) -> str:
        """Return the Dag whose turn it is.

        :param dags: the Dags that wait, at least one
        :param taken: number of threads that each Dag uses, including threads that hang
        """
        return min(dags, key=lambda dag: (taken.get(dag, 0), self._served.get(dag, 0.0), dag))

    def serve(self, dag: str) -> None:
        self._served[dag] = time.monotonic()

    def forget(self, waiting: Collection[str]) -> None:
        """Forget Dags that no longer wait."""
        self._served = {dag: at for dag, at in self._served.items() if dag in waiting}
