"""Sites of a real SLURM that tests share."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lading.hooks.site import Site
from lading.plugin.manager import site_kinds
from tests.services import node_python
from tests.services.account import Account

# A task on a machine that is busy with other tests waits for Airflow's API, seconds.
SETUP = "export AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT=900"


def small_slurm(account: Account, api_url: str, **options: Any) -> Callable[[str, Path], Site[Any]]:
    """Makes sites of one table, by their names and folders, on the connection ``hpc``.

    :param options: of the table; without them a node has 4 cpus, and little is waited for
    """
    kind = site_kinds()["slurm"]
    table = {
        "mode": "allocation",
        "work_dir": f"{account.home}/{uuid.uuid4()}",
        "python": str(node_python.make(account)),
        "node_cpus": 4,
        "node_memory": 8000,
        "max_poll_interval": 2,
        "kill_grace": 2,
        **options,
    }
    config = kind.config_model(kind="slurm", ssh_conn_id="hpc", api_url=api_url, setup=SETUP, **table)
    return lambda name, folder: kind(name, config, folder)
