"""The trial job of ``airflow lading check`` on a cluster: what its script does first.

Both sides look for what the other has written in ``work_dir``, and the node asks Airflow's API before it imports
Airflow: what can be wrong there is told at once, by its own name, and not as a job that does not end in time.
"""

from __future__ import annotations

import shlex

from lading.hooks.api_tunnel.address import OPTION
from lading.hooks.cluster.jobs.config import ClusterConfig

# A file server may show to one machine a moment later what another one has written, seconds.
SECONDS_UNTIL_SEEN = 5


def marker(folder: str) -> list[str]:
    """The lines of a script that end it where the node does not see what the login node has written.

    :param folder: in which the script itself is
    """
    seen = f"[ -f {shlex.quote(folder)}/script ]"
    return [
        f"for each in {' '.join(map(str, range(SECONDS_UNTIL_SEEN)))}; do {seen} && break; sleep 1; done",
        f"{seen} || exit 1",
    ]


def request(config: ClusterConfig) -> list[str]:
    """The lines that end it where the node gets no answer of Airflow's API, after those that say where it is."""
    command = shlex.join([config.python, "-m", "lading.hooks.cluster.checks.early_request"])
    return [f"export {OPTION}=api_url", f"{command} || exit 1"]
